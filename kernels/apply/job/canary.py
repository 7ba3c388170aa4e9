"""The canary: the job's own step decides which kernels stay, and whether the compiler launches them itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from kernels.apply.job.operators import open_all
from kernels.apply.job.start import as_rank_0
from kernels.apply.job.state import STATE


def canary(
    step: Callable[[], Any],
    *,
    steps: int = 10,
    rounds: int = 3,
    min_gain: float = 0.002,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """After `apply`: keeps only the kernels that make this job's own step faster. The times, in seconds per step.

    `step` runs one whole training step (it does train). It is timed without kernels, with all, with all launched by
    the compiler ("open"), and, in the better of the two ways, without each (a kernel and its gradient's count as
    one). A kernel without which the step is no slower is given up, and if what remains does not beat torch alone,
    all are. Compiled regions are compiled anew for each. Rank 0's choice counts.
    """
    every = dict(STATE.kernels)
    groups = sorted({name.removesuffix("_backward") for name in every})

    def timed(names: Sequence[str]) -> float:
        STATE.kernels.clear()
        STATE.kernels.update({name: every[name] for name in names})
        open_all()
        torch._dynamo.reset()
        for _ in range(3):
            step()
        found = []
        for _ in range(rounds):
            _wait()
            started = clock()
            for _ in range(steps):
                step()
            _wait()
            found.append((clock() - started) / steps)
        return min(found)

    def without(group: str) -> list[str]:
        return [name for name in every if name.removesuffix("_backward") != group]

    STATE.open = False
    seconds = {"none": timed(()), "all": timed(tuple(every))}
    whole = seconds["all"]
    if any(kernel.traceable is not None for kernel in every.values()):
        STATE.open = True
        try:
            seconds["open"] = timed(tuple(every))
            whole = min(whole, seconds["open"])
        except Exception as error:  # noqa: BLE001  a compiler that cannot look into a kernel must not stop the job
            told = f"{type(error).__name__}: {str(error)[:200]}"
            STATE.log(f"nightshift kernels: not launched by the compiler: {told}")
        STATE.open = seconds.get("open", float("inf")) < seconds["all"]
        STATE.open = as_rank_0(STATE.open)
    seconds |= {f"without {group}": timed(without(group)) for group in groups}
    useful = [g for g in groups if seconds[f"without {g}"] > (1.0 + min_gain) * whole]
    kept = [name for name in every if name.removesuffix("_backward") in useful]
    if kept and len(kept) < len(every):
        seconds["kept"] = timed(kept)
    if seconds.get("kept", whole) * (1.0 + min_gain) > seconds["none"]:
        kept = []
    kept = list(as_rank_0(kept))
    STATE.kernels.clear()
    STATE.kernels.update({name: every[name] for name in kept})
    open_all()
    torch._dynamo.reset()
    STATE.log(f"nightshift kernels: canary keeps {', '.join(kept) or 'none'} of {', '.join(every) or 'none'}")
    return seconds


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
