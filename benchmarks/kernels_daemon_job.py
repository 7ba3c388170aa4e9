"""A training job that takes certified kernels from the registry's folder: `benchmarks.kernels_daemon_loop` runs it.

    NIGHTSHIFT_KERNEL_REGISTRY=/srv/kernels PYTHONPATH=/srv/kernels python -m benchmarks.kernels_daemon_job

A Llama of Hugging Face with random weights in eager mode, bf16, fused AdamW. What Nightshift adds is in `main`:
one import, `apply`, and the canary in the job's first steps. Each start uses the same seed and batches.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nightshift_kernels  # type: ignore[import-not-found]  # from the registry's folder
import torch

from benchmarks.zoo_models import ZooModel

LLAMA = ZooModel(
    "LlamaForCausalLM", "LlamaConfig",
    {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 4, "num_attention_heads": 32,
     "num_key_value_heads": 4, "vocab_size": 32000, "max_position_embeddings": 2048},
    {"hidden_size": 1024, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
     "num_key_value_heads": 2, "vocab_size": 64},
    "causal", (4, 2048), (2, 8),
)  # fmt: skip
LOG_EVERY = 20
WARM = 5


class CountedClock:
    """A rehearsal's: each step takes one second, or 0.9 with kernels. An interpreter's times mean nothing."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def after(self, step: Callable[[], Any]) -> Callable[[], Any]:
        def counted() -> Any:
            found = step()
            self.now_s += 0.9 if nightshift_kernels.STATE.kernels else 1.0
            return found

        return counted


def driver_of(text: str, driver: str) -> str:
    """A log line as a machine with another driver would write it."""
    return f"{re.sub(r' driver=[^ ]+', '', text)} driver={driver}" if driver and " step=" in text else text


def write_trace(step: Callable[[], Any], path: Path) -> None:
    """Two steps with shapes. The name is the last thing that comes: who reads the folder finds a whole file."""
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=2)
    with torch.profiler.profile(record_shapes=True, schedule=schedule) as session:
        for _ in range(4):
            step()
            session.step()
    partial = path.with_suffix(".partial.gz")
    session.export_chrome_trace(str(partial))
    partial.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--trace", type=Path, help="write a trace of two steps here")
    parser.add_argument("--driver", default="", help="say that this is the driver: a simulated change")
    parser.add_argument("--until-demoted", type=float, default=0.0, help="train on until a kernel is demoted (s)")
    parser.add_argument("--canary", action="store_true")
    given = parser.parse_args()
    tiny = given.device == "cpu"
    model: Any = LLAMA.build(given.device, 1, tiny)
    model = model.float() if tiny else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=not tiny)
    batches = LLAMA.batches(given.device, 4, tiny)
    losses: list[float] = []
    began, count = time.monotonic(), 0

    def say(text: str) -> None:
        print(driver_of(text, given.driver), flush=True)

    def step() -> torch.Tensor:
        nonlocal count
        loss = model(**batches[count % len(batches)]).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        count += 1
        if len(losses) < 2:
            losses.append(float(loss.detach()))
        return loss.detach()

    report = nightshift_kernels.apply(
        model, optimizer=optimizer, log_every=5 if tiny else LOG_EVERY, log=say, canary=False
    )
    print(report, flush=True)
    for _ in range(WARM):
        step()
    if given.trace:
        write_trace(step, given.trace)
    gain: dict[str, float] = {}
    if given.canary and report.applied:
        clock = CountedClock()
        gain = (
            nightshift_kernels.canary(clock.after(step), steps=1, rounds=1, settle_s=0.0, clock=clock)
            if tiny
            else nightshift_kernels.canary(step, limit_s=90.0)
        )
    kernels, took = nightshift_kernels.STATE.kernels, []

    def used() -> list[str]:
        return [kernel.certificate for kernel in kernels.values() if not kernel.disabled]

    before = used()
    for number in range(given.steps):
        loss, seconds_s = _timed(step)
        took.append(seconds_s)
        if number % LOG_EVERY == 0:
            print(f"step={count} loss={float(loss):.4f} step_time={seconds_s:.4f}", flush=True)
    with_s = statistics.median(took)
    while used() and time.monotonic() - began < given.until_demoted:
        step()
    after = used()
    took = [_timed(step)[1] for _ in range(WARM + 5)][WARM:] if before != after else took
    print("job result: " + json.dumps({
        "places": len(report.applied), "skipped": [list(one) for one in report.skipped][:10],
        "first_losses": losses,
        "canary": gain, "used": before, "used_at_the_end": after, "step_s": with_s,
        "step_s_at_the_end": statistics.median(took), "steps": count, "fallbacks": nightshift_kernels.fallbacks(),
        "calls": {name: kernel.calls for name, kernel in kernels.items()}, "job_s": time.monotonic() - began,
                "file_sha256": report.kernels_sha256,
    }), flush=True)  # fmt: skip


def _timed(step: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, float]:
    """(loss, seconds) of one step."""
    started = time.perf_counter()
    loss = step()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return loss, time.perf_counter() - started


if __name__ == "__main__":
    main()
