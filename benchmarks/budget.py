"""Stated against realised false alarms on real telemetry: `NIGHTSHIFT_DATA=… python -m benchmarks.budget`.

Every detector sees healthy telemetry that it was not fitted on. Behind each row stand independent series-days (a
stretch counts once, however often it is replayed), the count that the stated rate expects, the count that came, and
Garwood's interval. A rate is *measured* where the days are at least 16 / rate; below that a detector with a fitted
tail is *extrapolated* (the tail is named) and one without is *not measurable*: the row says what to think of its
promise, not that it is kept.

Telemetry: Alibaba's GenAI serving trace (one-minute duty cycle, GPU memory, pod memory; unlabelled, so a true fault
in it counts as a false alarm), the healthy phases of our own H200 recordings in real time, and two ByteDance traces
of imbalance without a slow worker.

Memory leaks: the tail is fitted on half of the pods by `detectors.alarms.calibration` (as `nightshift calibrate`
does it) and the detector, at the strength that the tail asks for each granted rate, is counted on the other half;
the same with the halves swapped, so that every series is once held out. *Later*: fitted on the first half of
the time, counted in the second as well. The shapes that the detector looks for were chosen on this trace:
others may differ by more than these pods do among themselves. `--write` fits all pods and writes
`detectors/alarms/calibration.json`.

Beside it a z-score at 5 sigma on the duty cycle of the same pods, second half, whose nominal rate is a normal's.
"""

from __future__ import annotations

import argparse
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import norm

from benchmarks.budget_telemetry import DAY_S, imbalance, recordings, serving
from benchmarks.report import write
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.alarms.calibration import LooseAlarms, fitted, listen, loosened, save
from nightshift.detectors.alarms.tail import Tail
from nightshift.detectors.base import Detector, RateBasis, State
from nightshift.detectors.contract.evaluate import AlarmAt, Evaluation, garwood, score
from nightshift.detectors.memory.leak import MemoryLeak
from nightshift.detectors.plugins import ALL

LEAK_LADDER = (400.0, 250.0, 125.0, 50.0, 10.0)
SIGNALS = {
    "steps": ("divergence", "hang", "stall"),
    "GPU counters and clocks": ("ecc", "throttle", "interconnect", "gpu_lost"),
}
SHIPPED = Path(__file__).parent.parent / "nightshift/detectors/alarms/calibration.json"
TRACE = "Alibaba clusterdata v2026-GenAI, GPU and pod memory of serving pods"


def alarms(detector: Detector, ticks: Iterable[Tick], inventory: Inventory) -> list[tuple[Subject, float]]:
    """(subject, when) of every episode's beginning."""
    found: dict[str, tuple[Subject, float]] = {}
    for tick in ticks:
        for finding in detector.update(tick, inventory):
            if finding.state is State.FIRING:
                found.setdefault(finding.episode, (finding.subject, tick.at_s))
    return list(found.values())


def row(name: str, stated: float, count: int, days: float, where: str, tail: str = "") -> dict[str, Any]:
    """One line of the table; a bootstrap or a replay adds no days."""
    low, high = garwood(count, days)
    held = _score(count, days).held(stated)
    if held == "extrapolated":
        held = f"extrapolated ({tail})" if tail else "not measurable"
    return {
        "detector": name,
        "stated_per_1000_series_days": stated,
        "healthy_series_days": days,
        "days_needed_to_measure": 16000.0 / stated if stated > 0 else None,
        "expected": stated * days / 1000.0,
        "realised": count,
        "realised_per_1000_series_days": 1000.0 * count / days if days > 0 else None,
        "interval": [1000.0 * low, 1000.0 * high],
        "verdict": held,
        "telemetry": where,
    }


def _score(count: int, days: float) -> Evaluation:
    made = [AlarmAt("healthy", float(n)) for n in range(count)]
    return score([], made, {"healthy": days * DAY_S})


def half(subject: Subject) -> int:
    """0 or 1 by the pod's name alone: its GPU memory and its own memory are on one side."""
    name = subject.name.removeprefix("GPU-").removeprefix("serving/").removesuffix("/main")
    return hashlib.sha256(name.encode()).digest()[0] % 2


def leaks(ticks: list[Tick]) -> list[dict[str, Any]]:
    """The ladder of granted rates on pods that the tail was not fitted on, in the same time and later."""
    middle = len(ticks) // 2
    middle_s = ticks[middle].at_s
    parts = [listen(loosened([MemoryLeak]), part, Inventory()) for part in (ticks, ticks[:middle])]
    after = listen(loosened([MemoryLeak]), ticks[middle:], Inventory())["memory_leak"].days
    rows = []
    for heard, from_s, days, when in (
        (parts[0], -np.inf, parts[0]["memory_leak"].days, "other pods"),
        (parts[1], middle_s, after, "other pods, later"),
    ):
        tails = [_leak_tail(heard["memory_leak"], side) for side in (0, 1)]
        held = sum(days.values())
        said = ", ".join(f"shape {t.shape:.2f} from {t.episodes} episodes" for t in tails)
        for rate in LEAK_LADDER:
            count, expected = 0, 0.0
            for side, tail in enumerate(tails):
                detector = MemoryLeak(MemoryLeak.Settings(strength=tail.score(rate)))
                found = alarms(detector, ticks, Inventory())
                count += sum(half(subject) != side and at_s >= from_s for subject, at_s in found)
                expected += min(rate, tail.rate_per_1000) * sum(d for s, d in days.items() if half(s) != side)
            rows.append(row("memory_leak", expected / held, count, held, f"memory of {when}", f"GPD: {said}"))
        shipped = [tail.rate(1.0) for tail in tails]
        found = alarms(MemoryLeak(), ticks, Inventory())
        count = sum(at_s >= from_s for _, at_s in found)
        name = "memory_leak, as it is shipped"
        rows.append(row(name, float(np.mean(shipped)), count, held, f"memory of {when}", f"GPD: {said}"))
    return rows


def _leak_tail(heard: LooseAlarms, side: int) -> Tail:
    own = LooseAlarms(heard.threshold)
    own.peaks = {key: peak for key, peak in heard.peaks.items() if half(peak[0]) == side}
    own.days = {subject: days for subject, days in heard.days.items() if half(subject) == side}
    return fitted({"memory_leak": own}, TRACE)["memory_leak"]


def gaussian(ticks: list[Tick]) -> dict[str, Any]:
    """The rival: a z-score over the last two hours, alarm above 5 sigma, half an hour apart."""
    later = ticks[len(ticks) // 2 :]
    seen = sum(int(np.isfinite(t.frames[SubjectKind.GPU].values).all(axis=1).sum()) for t in later)
    days = 60.0 * seen / DAY_S
    table = pd.DataFrame(np.stack([t.frames[SubjectKind.GPU].column("gpu_utilization_percent") for t in later]))
    mean = table.rolling(120, min_periods=60).mean().shift(1)
    spread = table.rolling(120, min_periods=60).std().shift(1)
    above = ((table - mean) > 5.0 * spread.clip(lower=0.1)).to_numpy()
    count = 0
    for series in above.T:
        at = np.flatnonzero(series)
        count += int(len(at) and 1 + (np.diff(at) > 30).sum())
    nominal = 1000.0 * 1440.0 * float(norm.sf(5.0))
    low, high = garwood(count, days)
    return {
        "detector": "rival: rolling z > 5 on the duty cycle",
        "stated_per_1000_series_days": nominal,
        "healthy_series_days": days,
        "expected": nominal * days / 1000.0,
        "realised": count,
        "realised_per_1000_series_days": 1000.0 * count / days,
        "interval": [1000.0 * low, 1000.0 * high],
        "verdict": "broken" if 1000.0 * low > 2.0 * nominal else "not measurable",
        "telemetry": "serving pods held out",
    }


def elsewhere(folder: Path) -> list[dict[str, Any]]:
    """The detectors of training steps and hardware on what healthy recordings there are: minutes, not days."""
    rows = []
    jobs = recordings()
    rank_days = sum(len(job) * job.tick_s * len(job.ranks) for job in jobs) / DAY_S
    for kind in ALL:
        if kind.plugin not in (name for names in SIGNALS.values() for name in names):
            continue
        count = sum(len(alarms(kind(), job.ticks(), job.inventory())) for job in jobs)
        stated = kind().stated
        tail = stated.source if stated.tail is not None else ""
        name, rate = kind.plugin, stated.per_1000_series_days
        rows.append(row(name, rate, count, rank_days, "healthy H200 recordings", tail))
    kinds = {kind.plugin: kind for kind in ALL}
    stated = kinds["serving"]().stated
    none = "none: no healthy server telemetry with a queue is at hand"
    rows.append(row("serving", stated.per_1000_series_days, 0, 0.0, none))
    for name in ("SE", "ST"):
        steps, inventory, days = imbalance(folder / f"readonly/straggler/bytedance_trace-{name}.parquet")
        straggler = kinds["straggler"]()
        count = len(alarms(straggler, steps, inventory))
        rate = straggler.stated.per_1000_series_days
        rows.append(row("straggler", rate, count, days, f"ByteDance {name}"))
    return rows


def events() -> list[dict[str, Any]]:
    """What the detectors of events cite: the base rate of their event, and the precision that follows from it."""
    stated = {kind.plugin: kind().stated for kind in ALL}
    return [
        {
            "detector": name,
            "base_rate_per_1000_series_days": rate.per_1000_series_days,
            "precision": rate.precision,
            "source": rate.source,
        }
        for name, rate in stated.items()
        if rate.basis is RateBasis.EVENT
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--write", action="store_true", help="fit all pods and write nightshift/detectors/alarms/calibration.json"
    )
    arguments = parser.parse_args()
    folder = os.environ.get("NIGHTSHIFT_DATA")
    if not folder:
        parser.error("NIGHTSHIFT_DATA does not name the folder of measurements")
    ticks, _ = serving(Path(folder))
    if arguments.write:
        # only what this trace shows for days: its pods print no training steps and no clocks
        save(SHIPPED, fitted(listen(loosened([MemoryLeak]), ticks, Inventory()), TRACE))
    results = {
        "memory_leak": leaks(ticks),
        "rival": gaussian(ticks),
        "statistical": elsewhere(Path(folder)),
        "events": events(),
    }
    write("budget", results)


if __name__ == "__main__":
    main()
