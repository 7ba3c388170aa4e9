"""What a GPU can do, measured on that GPU: copy bandwidth and arithmetic rate by dtype; never a table of names.

The probe is a handful of large copies and matrix products, timed by CUDA events; the best of several repeats is the
peak, because nothing can be faster than the machine. Where no GPU is at hand, a trace itself gives lower bounds:
the fastest large copy and product in it. The roofline is Williams, Waterman and Patterson's (CACM 52(4), 2009).
"""

from __future__ import annotations

import functools
import json
import math
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nightshift.kernels.profile.cost import cost
from nightshift.kernels.profile.match import segments
from nightshift.kernels.profile.operators import Operators
from nightshift.kernels.profile.pattern import PRODUCTS

PROBED = ("float32", "bfloat16", "float16")


class PeaksError(ValueError):
    """A file of peaks is malformed. The message names the file and the field."""


@dataclass(frozen=True)
class Peaks:
    """bytes_per_s: read and written bytes together of a large copy; flops_per_s: by dtype, of a large product.

    source: "probe" (measured on purpose) or "trace" (lower bounds seen in passing).
    """

    bytes_per_s: float
    flops_per_s: Mapping[str, float]
    source: str
    environment: Mapping[str, str] = field(default_factory=dict)

    def floor_s(self, moved_bytes: float, flops: float, dtype: str) -> float:
        """The least time for that traffic and arithmetic; NaN where no peak is known."""
        rate = self.flops_per_s.get(dtype, math.nan)
        times = [moved_bytes / self.bytes_per_s if self.bytes_per_s > 0 else math.nan]
        times.append(flops / rate if rate > 0 else math.nan)
        known = [value for value in times if math.isfinite(value)]
        return max(known) if known else math.nan

    def to_json(self) -> dict[str, Any]:
        """`bytes_per_s` is null where it is not known."""
        return {**asdict(self), "bytes_per_s": self.bytes_per_s if math.isfinite(self.bytes_per_s) else None}

    @classmethod
    def read(cls, path: Path) -> Peaks:
        """Raises PeaksError naming the file and what is wrong with it."""
        try:
            value = json.loads(path.read_text())
            rates = {str(k): float(v) for k, v in value["flops_per_s"].items()}
            found = cls(
                float(value["bytes_per_s"]), rates, str(value["source"]), dict(value.get("environment", {}))
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise PeaksError(f"{path}: no file of peaks ({type(error).__name__}: {error})") from error
        if not found.bytes_per_s > 0 or not math.isfinite(found.bytes_per_s):
            raise PeaksError(f"{path}: bytes_per_s: {found.bytes_per_s} is no rate")
        return found


def probe(device: str = "cuda", copy_bytes: int = 1 << 31, side: int = 8192, repeats: int = 7) -> Peaks:
    """Measures the peaks of a device; takes about a second on a GPU. On a CPU give small sizes."""
    import torch

    on_gpu = device.startswith("cuda")

    def best_s(work: Callable[[], Any]) -> float:
        # the first call compiles, loads and allocates
        work()
        times: list[float] = []
        for _ in range(repeats):
            if on_gpu:
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
                begin.record()
                work()
                end.record()
                end.synchronize()
                times.append(begin.elapsed_time(end) * 1e-3)
            else:
                started = time.perf_counter()
                work()
                times.append(time.perf_counter() - started)
        return min(times)

    source = torch.empty(copy_bytes // 4, dtype=torch.float32, device=device).fill_(1.0)
    target = torch.empty_like(source)
    bytes_per_s = 2 * source.numel() * 4 / best_s(functools.partial(target.copy_, source))
    del source, target
    rates = {}
    for name in PROBED:
        dtype = getattr(torch, name)
        a = torch.randn(side, side, device=device, dtype=torch.float32).to(dtype)
        b = torch.randn(side, side, device=device, dtype=torch.float32).to(dtype)
        out = torch.empty_like(a)
        rates[name] = 2.0 * side**3 / best_s(functools.partial(torch.matmul, a, b, out=out))
    gpu = torch.cuda.get_device_name() if on_gpu else platform.machine()
    environment = {"gpu": gpu, "torch": str(torch.__version__), "cuda": str(torch.version.cuda or "none")}
    return Peaks(bytes_per_s, rates, "probe", environment)


def peaks_of(operators: Operators, copies: Sequence[tuple[float, float]] = ()) -> Peaks:
    """Lower bounds that a trace proves: the fastest matched problem by traffic, and by arithmetic per dtype.

    `copies`: (bytes, seconds) of device-to-device copies; each byte is read and written.
    """
    rates: dict[str, float] = {}
    # small copies stay in the caches: they would prove more than memory gives
    moving = [2 * moved / seconds for moved, seconds in copies if seconds > 0 and moved >= 1 << 24]
    for units, match in segments(operators.units, operators.parameters):
        if match is None:
            continue
        forward_s = sum(unit.forward_s for unit in units)
        need = cost(match)
        # shorter kernels are as long as their launch, and prove no rate
        if forward_s > 5e-6 and match.problem in PRODUCTS:
            rates[match.dtype] = max(rates.get(match.dtype, 0.0), need.forward_flops / forward_s)
        if forward_s > 5e-6:
            moving.append(need.forward_bytes / forward_s)
    return Peaks(max(moving, default=math.nan), rates, "trace")
