"""Runs inside the candidate's host: Triton's interpreter, where there is no GPU, made to do what a GPU does.

Its launches are counted, it tunes although it has nothing to time on, and bfloat16 is converted
and computed with as hardware does it: the interpreter (3.7) makes another number of every subnormal, cuts off where
a GPU rounds to the nearest, and takes the bits for integers in every product and sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nightshift.kernels.judge.host import recorder as recording

_Convert = Callable[[Any, Any, Any, Any], Any]


def replace_interpreter() -> None:
    """For all of this process. Its own torch calls are no candidate's work; of several configurations every one
    runs once, and the first is taken."""
    from triton.runtime import autotuner, interpreter

    def run_once(kernel_call: Callable[[], Any], quantiles: Sequence[float]) -> list[float]:
        kernel_call()
        return [1.0 for _ in quantiles]

    autotuner.Autotuner.do_bench = property(lambda self: run_once)
    interpreter._convert_float = by_hardware(interpreter._convert_float, interpreter._ir.ROUNDING_MODE.RTZ)
    for name in ("binary_op", "unary_op", "ternary_op", "create_fma", "create_dot"):
        setattr(interpreter.InterpreterBuilder, name, widened(getattr(interpreter.InterpreterBuilder, name)))
    original: Callable[..., Any] = interpreter.GridExecutor.__call__

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not recording.current:
            return original(self, *args, **kwargs)
        recorder = recording.current[-1]
        recorder.launches += 1
        recorder.given([*args, *kwargs.values()])
        kept = len(recorder.opaque)
        try:
            return original(self, *args, **kwargs)
        finally:
            del recorder.opaque[kept:]

    interpreter.GridExecutor.__call__ = call


def widened(method: Callable[..., Any]) -> Callable[..., Any]:
    """An operation of the interpreter that computes with bfloat16 in float32 and rounds what comes out."""
    from triton.language import bfloat16, float32
    from triton.runtime import interpreter

    def wide(value: Any) -> Any:
        if not isinstance(value, interpreter.TensorHandle) or value.dtype.scalar != bfloat16:
            return value
        bits = interpreter._convert_float(value.data, bfloat16, float32, None)
        return interpreter.TensorHandle(bits.view(np.float32), float32)

    def made(self: Any, *given: Any) -> Any:
        values = [wide(value) for value in given]
        if np.where in given or all(value is same for value, same in zip(values, given, strict=True)):
            return method(self, *given)
        result = method(self, *values)
        summed = [x for x in given[2:3] if isinstance(x, interpreter.TensorHandle) and x.dtype.scalar == float32]
        if result.data.dtype != np.float32 or summed:
            return result  # a comparison, or a product that is summed up in float32
        bits = interpreter._convert_float(result.data, float32, bfloat16, None)
        return interpreter.TensorHandle(bits, bfloat16)

    return made


def by_hardware(convert: _Convert, towards_zero: Any) -> _Convert:
    """`convert(values, from, to, rounding)` → bits, with bfloat16 and float32 by NumPy's integers."""

    def made(values: Any, source: Any, target: Any, rounding: Any) -> Any:
        if (str(source), str(target)) == ("bf16", "fp32"):
            return values.view(np.uint16).astype(np.uint32) << 16
        if (str(source), str(target)) == ("fp32", "bf16") and rounding != towards_zero:
            bits = np.ascontiguousarray(values).view(np.uint32)
            nearest = (bits + 0x7FFF + (bits >> 16 & 1) >> 16).astype(np.uint16)
            return np.where(np.isnan(values.view(np.float32)), bits >> 16 | 0x40, nearest).astype(np.uint16)
        return convert(values, source, target, rounding)

    return made
