"""Traces of small functions, recorded here, and units as a trace of an H200 has them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, record_function
from torch.profiler import profile as torch_profile

from nightshift.collectors.training.kineto_trace import Signature
from nightshift.kernels.profile.hotspots import Profile, profile
from nightshift.kernels.profile.operators import OperatorCall


def unit(
    name: str,
    *tensors: tuple[int, ...],
    kind: str = "c10::BFloat16",
    concrete: tuple[str, ...] = (),
    kernel: str = "",
) -> OperatorCall:
    strides = tuple(tuple(math.prod(d[i + 1 :]) for i in range(len(d))) for d in tensors)
    names = tuple(kind if d else "Scalar" for d in tensors)
    told = concrete + ("",) * (len(tensors) - len(concrete))
    return OperatorCall(
        f"aten::{name}", Signature(tensors, strides, names, told), 1e-4, 0.0, 0, 0, 0, kernel=kernel
    )


GELU = (
    "void at::native::vectorized_elementwise_kernel<8, at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&, "
    "at::native::GeluType)::{{lambda()#{}}}::operator()() const::{{lambda()#4}}::operator()() const>"
)
"""As recorded of an H200: the tanh form is the first function, the exact one the second."""
X, W, ROW = (4, 32, 64), (64,), (4, 32, 1)


def traced(function: Any, path: Path) -> Profile:
    """One step of a function under torch's profiler on this machine, read back from its file."""
    with (
        torch_profile(activities=[ProfilerActivity.CPU], record_shapes=True) as session,
        record_function("ProfilerStep#0"),
    ):
        function()
    session.export_chrome_trace(str(path))
    return profile(path)
