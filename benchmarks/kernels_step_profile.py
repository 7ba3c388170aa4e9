"""Where a compiled training step spends its time, kernel by kernel: torch.compile, SDPA, fused AdamW, none of ours.

    python -m benchmarks.kernels_step_profile [--steps 5]

The step of `benchmarks.gpt_step`, traced after warm-up. Says what a kernel that is applied inside the
compiled step could win at most: each class's share, each kernel's calls and microseconds a step, and what lies
between kernels. Writes kernels_step_profile.json into $OUT.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import re
import statistics
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpt_step import SIZE, Job, batches, seconds

OUT = Path(os.environ.get("OUT", Path(__file__).parent / "results"))
CLASSES = (
    ("attention", r"flash|fmha|cudnn.*(attn|sdpa)|_sdpa_|cudnn::fusion"),
    ("optimizer", r"adam|multi_tensor"),
    ("matmul", r"gemm|nvjet|cutlass|xmma|sm90_"),
    ("fused by the compiler", r"^triton_"),
    ("memory", r"[mM]em(cpy|set)"),
)


def class_of(name: str) -> str:
    return next((label for label, pattern in CLASSES if re.search(pattern, name)), "other")


def measured(job: Job, data: list[torch.Tensor], steps: int) -> dict[str, Any]:
    """Seconds of a step, and of it each kernel's share. Spans are the union of what runs on the device."""
    wall_s = statistics.median(seconds(job, data, 20) for _ in range(5))
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as session:
        for number in range(steps):
            job.step(data[number % len(data)])
        torch.cuda.synchronize()
    calls: dict[str, list[float]] = collections.defaultdict(list)
    spans = []
    for event in session.events():
        if event.device_type == torch.autograd.DeviceType.CUDA and not event.name.startswith("Optimizer.step"):
            calls[event.name].append(event.time_range.elapsed_us())
            spans.append((event.time_range.start, event.time_range.end))
    spans.sort()
    busy, end = 0.0, float("-inf")
    for start, stop in spans:
        busy += max(0.0, stop - max(start, end))
        end = max(end, stop)
    shares: dict[str, float] = collections.defaultdict(float)
    for name, times in calls.items():
        shares[class_of(name)] += sum(times) / steps
    kernels = [
        {"name": name[:160], "class": class_of(name), "calls": len(times) / steps, "us": sum(times) / steps}
        for name, times in sorted(calls.items(), key=lambda item: -sum(item[1]))
    ]
    return {
        "step_us": wall_s * 1e6,
        "busy_us": busy / steps,
        "traced_us": (spans[-1][1] - spans[0][0]) / steps if spans else 0.0,
        "classes_us": dict(sorted(shares.items(), key=lambda item: -item[1])),
        "kernels": kernels[:80],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=5)
    given = parser.parse_args()
    data = batches(SIZE, "cuda", 8)
    result: dict[str, Any] = {
        "environment": {"gpu": torch.cuda.get_device_name(), "torch": str(torch.__version__)},
        "size": SIZE,
    }
    for name, mode in (("compile", "default"), ("eager", "")):
        job = Job(SIZE, "cuda", 1, mode)
        seconds(job, data, 5)
        result[name] = measured(job, data, given.steps)
        print(name, {k: v for k, v in result[name].items() if k != "kernels"}, flush=True)
        for kernel in result[name]["kernels"][:45]:
            print(f"{kernel['us']:9.1f} us {kernel['calls']:6.1f}x {kernel['class'][:9]:9} {kernel['name'][:110]}")
        del job
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "kernels_step_profile.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
