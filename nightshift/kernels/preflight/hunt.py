"""The hunt for silent corruption: short sweeps on GPUs that do nothing, within a budget of GPU-seconds a day.

It gives way: before each slice, a GPU on which any other process computes is left alone, and a slice lasts less
than a second. What a day has spent is in the results' folder, so a restart spends nothing twice.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from nightshift.kernels.preflight.gpu_tests import GpuTests, Sensors, TestLevel
from nightshift.kernels.preflight.node import software
from nightshift.kernels.preflight.results import PreflightResult, ResultFolder
from nightshift.kernels.preflight.verdict import PreflightState, judged

SLICE_S, REST_S, DAY_S = 0.5, 5.0, 86_400.0
HUNT = TestLevel("hunt", 0.0, SLICE_S, SLICE_S, 0.0, 1, 1, DAY_S)


class Idle(Sensors, Protocol):
    """Sensors that tell whether others compute on the GPU."""

    def others(self) -> int: ...


class HuntBudget:
    """GPU-seconds of a day (UTC), spent and allowed."""

    def __init__(self, path: Path, day_s: float) -> None:
        self.path, self.day_s = path, day_s

    def left_s(self, now_s: float) -> float:
        try:
            told = json.loads(self.path.read_text())
            spent_s = float(told["spent_s"]) if told["day"] == int(now_s // DAY_S) else 0.0
        except (OSError, ValueError, KeyError, TypeError):
            spent_s = 0.0
        return self.day_s - spent_s

    def spend(self, now_s: float, spent_s: float) -> None:
        total = self.day_s - self.left_s(now_s) + spent_s
        self.path.write_text(json.dumps({"day": int(now_s // DAY_S), "spent_s": total}))


def hunt(
    gpus: Sequence[Idle],
    folder: ResultFolder,
    budget_s: float,
    report: Callable[[PreflightResult], None],
    device: Callable[[int], str] = lambda n: f"cuda:{n}",
    now_s: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
    turns: int = 1 << 62,
    tests: Callable[[str, Sensors, TestLevel], GpuTests] = GpuTests,
) -> None:
    """Sweeps idle GPUs in turn until it is stopped, or for `turns`. The first error of a GPU is reported; that GPU
    is not swept again."""
    budget, out = HuntBudget(folder.path / "hunt.json", budget_s), set()
    for turn in range(turns):
        number = turn % len(gpus)
        sensors = gpus[number]
        if number in out or budget.left_s(now_s()) < SLICE_S or sensors.others():
            sleep(REST_S / len(gpus))
            continue
        result = _slice(sensors, folder, budget, device(number), now_s, tests)
        if result is not None:
            out.add(number)
            report(result)


def _slice(
    sensors: Sensors, folder: ResultFolder, budget: HuntBudget, device: str, now_s: Callable[[], float],
    tests: Callable[[str, Sensors, TestLevel], GpuTests],
) -> PreflightResult | None:  # fmt: skip
    began_s = time.monotonic()
    made = tests(device, sensors, HUNT)
    try:
        made.sweep(made.main, 0.0, SLICE_S)
    finally:
        budget.spend(now_s(), time.monotonic() - began_s)
    if not made.run.wrong:
        return None
    facts: Mapping[str, str] = sensors.facts()
    used = software(facts.get("driver", ""))
    verdict = judged(made.run, used, [])
    if verdict.state is not PreflightState.REFUSED:
        return None
    return folder.add(facts.get("node", ""), made.run, verdict, used, now_s(), 0.0)
