"""Months of an operator who installs and does nothing: `NIGHTSHIFT_DATA=… python -m benchmarks.budget_months`.

Every fleet begins with no history, no calibration of its own and the default budget. Its alarms are drawn, hour by
hour for 26 weeks, from

- *serving trace*: what the leak detector says of Alibaba's serving pods, whole series drawn with replacement (at
  its default strength, and loosened to where it alarms far too often). However many weeks are drawn, the evidence
  is the series-days of the trace: a copy counts once, and the row says how many there are;
- *claims × k*: every statistical detector alarms k times as often as it claims, with Pareto strengths of index 1
  (no mean), a tenth of them critical: noise that nobody has measured.

Every page of these is false, since nobody acts on one. Beside them come two faults a week, of log-uniform strength
1 to 10, of a detector each; they are acted on where they page (or never: *nobody confirms*). Reported: pages per
week beside the budget with Garwood's interval of one fleet's 26 weeks, those that may drain beside their tenth, the
worst of the fleets, and the share of faults that paged, which is what the promise costs.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.budget_telemetry import serving
from benchmarks.report import write
from nightshift.collectors.frame import Frame, Instant, SeriesIndex, StepSeries
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.alarms.budget import Budget, BudgetSettings
from nightshift.detectors.alarms.calibration import LooseAlarms, Loosened, listen, loosened
from nightshift.detectors.alarms.promise import promises
from nightshift.detectors.base import Fault, Finding, RateBasis, Severity, State
from nightshift.detectors.contract.evaluate import garwood
from nightshift.detectors.memory.leak import MemoryLeak
from nightshift.detectors.plugins import ALL

WEEKS, HOUR_S, FLEETS = 26, 3600.0, 3
SIZES = (16, 190, 1000)
Alarm = tuple[str, float, Severity]
Noise = Callable[[np.random.Generator], list[Alarm]]
"""The false alarms of one hour."""
FAULTS_PER_WEEK = 2


def frames(count: int) -> dict[SubjectKind, Frame]:
    """So many GPUs and containers, and an eighth as many servers."""
    found = {}
    for kind, size in (
        (SubjectKind.GPU, count),
        (SubjectKind.CONTAINER, count),
        (SubjectKind.SERVER, count // 8 + 1),
    ):
        index = SeriesIndex(kind, tuple(Subject(kind, f"{kind}-{n}") for n in range(size)))
        found[kind] = Frame(0.0, index, (), np.empty((size, 0)), np.empty((1, 0)), np.zeros(size, dtype=np.int64))
    return found


def steps(count: int) -> tuple[StepSeries, ...]:
    empty = np.zeros(0, dtype=np.int64)
    return tuple(
        StepSeries(Subject(SubjectKind.RANK, f"ml/job-{n // 8}#{n % 8}"), "run", empty, np.zeros(0), {}, "log")
        for n in range(count)
    )


def drawn(heard: LooseAlarms, count: int) -> Noise:
    """Whole series of the trace with replacement, at the pace of a fleet of so many."""
    by_series: dict[Subject, list[float]] = {subject: [] for subject in heard.days}
    for subject, score, _ in heard.peaks.values():
        by_series.setdefault(subject, []).append(score)
    pool, days = list(by_series.values()), float(np.mean(list(heard.days.values())))
    hourly = 2 * count / 24.0 / days  # GPUs and containers are two series each

    def noise(rng: np.random.Generator) -> list[Alarm]:
        chosen = rng.integers(0, len(pool), rng.poisson(hourly))
        return [("memory_leak", score, Severity.WARNING) for n in chosen.tolist() for score in pool[n]]

    return noise


def claimed(times: float, count: int) -> Noise:
    """Every statistical detector at `times` what it states, strengths of a Pareto law of index 1."""
    rates = {k.plugin: k().stated.per_1000_series_days for k in ALL if k().stated.basis is RateBasis.STATISTICAL}

    def noise(rng: np.random.Generator) -> list[Alarm]:
        found: list[Alarm] = []
        for name, rate in rates.items():
            for _ in range(rng.poisson(times * rate / 1000.0 * count / 24.0)):
                severity = Severity.CRITICAL if rng.uniform() < 0.1 else Severity.WARNING
                found.append((name, 1.0 + float(rng.pareto(1.0)), severity))
        return found

    return noise


def live(count: int, noise: Noise, seed: int, confirms: bool) -> dict[str, Any]:
    """26 weeks of one fleet."""
    rng, told = np.random.default_rng(seed), promises([kind() for kind in ALL], {})
    budget, still, ranks = Budget(BudgetSettings(), told), frames(count), steps(count)
    graded = [kind.plugin for kind in ALL if kind().stated.basis is RateBasis.STATISTICAL]
    counts = dict.fromkeys(("alarms", "pages", "drains", "faults", "heard", "first_month"), 0)
    for hour in range(WEEKS * 168):
        at_s = 1e9 + hour * HOUR_S
        false = [_finding(*one, at_s, n) for n, one in enumerate(noise(rng))]
        true = []
        if rng.uniform() < FAULTS_PER_WEEK / 168.0:
            name = graded[int(rng.integers(0, len(graded)))]
            true = [_finding(name, float(10.0 ** rng.uniform()), Severity.WARNING, at_s, 10**6)]
        tick = Tick(at_s, still, steps=ranks)
        weighed = budget.weigh([*false, *true], tick, Inventory())
        budget.weigh([replace(f, state=State.CLEAR) for f in weighed], tick, Inventory())
        pages = [f for f in weighed[: len(false)] if f.pages]
        counts["alarms"] += len(false)
        counts["pages"] += len(pages)
        counts["first_month"] += len(pages) if hour < 4 * 168 else 0
        counts["drains"] += sum(f.severity is Severity.CRITICAL for f in pages)
        counts["faults"] += len(true)
        counts["heard"] += sum(f.pages for f in weighed[len(false) :])
        if confirms:
            budget.confirm(f.episode for f in weighed[len(false) :])
    return counts


def _finding(detector: str, score: float, severity: Severity, at_s: float, number: int) -> Finding:
    subject = Subject(SubjectKind.GPU, f"GPU-{int(at_s)}-{number}")
    at = Instant(at_s)
    return Finding(detector, Fault.ANOMALY, subject, State.FIRING, at, at, severity, "drawn", score, 1.0)


def row(name: str, count: int, noise: Noise, confirms: bool, days: float | None) -> dict[str, Any]:
    """One line of the table: the fleets of one kind, each with its own seed."""
    lives = [live(count, noise, seed, confirms) for seed in range(FLEETS)]
    pages = [one["pages"] for one in lives]
    worst = max(pages)
    faults = sum(one["faults"] for one in lives)
    return {
        "noise": name,
        "gpus": count,
        "fleets": FLEETS,
        "weeks": WEEKS,
        "independent_series_days": days,
        "confirmed": "as soon as they page" if confirms else "nobody confirms",
        "false_alarms_per_week": sum(one["alarms"] for one in lives) / FLEETS / WEEKS,
        "budget_per_week": 1.0,
        "false_pages_per_week": sum(pages) / FLEETS / WEEKS,
        "worst_fleet_per_week": worst / WEEKS,
        "worst_fleet_interval": garwood(worst, WEEKS),
        "worst_first_month": max(one["first_month"] for one in lives),
        "drain_pages_per_week": sum(one["drains"] for one in lives) / FLEETS / WEEKS,
        "worst_drain_pages_per_week": max(one["drains"] for one in lives) / WEEKS,
        "verdict": "held" if worst <= 2 * WEEKS and max(o["drains"] for o in lives) <= 0.2 * WEEKS else "broken",
        "faults": faults,
        "faults_that_paged": sum(one["heard"] for one in lives) / max(faults, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.parse_args()
    rows = []
    folder = os.environ.get("NIGHTSHIFT_DATA")
    if folder:
        ticks, _ = serving(Path(folder))
        loose = listen([*loosened([MemoryLeak])], ticks, Inventory())["memory_leak"]
        usual = listen([Loosened(MemoryLeak(), 1.0)], ticks, Inventory())["memory_leak"]
        for name, heard in (("serving trace", usual), ("serving trace, detector loosened", loose)):
            for count in SIZES:
                rows.append(row(name, count, drawn(heard, count), True, sum(heard.days.values())))
    for times in (1.0, 10.0, 100.0):
        for count in SIZES:
            rows.append(row(f"claims × {times:g}", count, claimed(times, count), True, None))
    rows.append(row("claims × 10", 190, claimed(10.0, 190), False, None))
    write("budget_months", {"rows": rows})


if __name__ == "__main__":
    main()
