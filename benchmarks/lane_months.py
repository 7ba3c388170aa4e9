"""Who is paged for what, over 26 weeks of a fleet without history: `python -m benchmarks.lane_months`.

- *Faults*: 6.5 per 1,000 node-days, in the mix of `MIX` (ours: about half are facts, the rest near-facts and
  statistics), at a random place, with log-uniform strength from 1 to 10. Where an alarm states
  the share of work that is lost, it is log-uniform from 2 to 50 %; the time until a leak's memory is full is
  log-uniform from 10 minutes to the detector's horizon.
- *False alarms*, of every statistical detector: at the upper end of the 90 % interval of what healthy telemetry
  showed (`populations.json`, the highest of a detector's populations that are measured); elsewhere at its claim. A
  training job counts as one run a week. Strengths are of a Pareto law of index 1, which has no mean.
- An alarm lasts an hour. A false one then clears by itself, so it is found false; a true one is answered, or never
  (rows with `answers` false). In rows with `gone_mad`, that detector alarms a hundred times as often.

The fleet is half training jobs of 8 to 256 GPUs, half serving pods of 8. Alarms go through the budget and through
correlation; a page is an incident in the page lane, as a rota counts it.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.budget_months import frames
from benchmarks.report import write
from nightshift.agent.correlation.correlate import DecisionVerb, correlate
from nightshift.collectors.frame import Instant, StepSeries
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.alarms.budget import Budget, BudgetSettings
from nightshift.detectors.alarms.lanes import PAGE_COST, Lane, Reach, lane_of, lost_share, widest
from nightshift.detectors.alarms.populations import NEAR_FACTS, Unit, rates
from nightshift.detectors.alarms.promise import promises
from nightshift.detectors.base import CERTAIN, Fault, Finding, Severity, State
from nightshift.detectors.contract.evaluate import garwood
from nightshift.detectors.memory.signals import HORIZON_S
from nightshift.detectors.plugins import ALL

WEEKS, HOUR_S, FLEETS = 26, 3600.0, 3
PER_NODE_DAY = 6.5 / 1000.0
GPU, RANK = SubjectKind.GPU, SubjectKind.RANK


@dataclass(frozen=True)
class FaultKind:
    """A fault that is drawn. `states`: a figure of its alarm, and the range that it is drawn from."""

    detector: str
    fault: Fault
    share: float
    where: SubjectKind
    severity: Severity = Severity.CRITICAL
    fact: bool = False
    states: tuple[str, float, float] | None = None


_W = Severity.WARNING
_SHARE, _LEFT = ("lost_share", 0.02, 0.5), ("eta_s", 600.0, HORIZON_S)
MIX = (
    FaultKind("xid", Fault.XID, 0.20, GPU, fact=True),
    FaultKind("ecc", Fault.HBM_DEGRADED, 0.12, GPU, fact=True),
    FaultKind("gpu_lost", Fault.GPU_LOST, 0.08, GPU, fact=True),
    FaultKind("job_crash", Fault.JOB_CRASH, 0.10, RANK, fact=True),
    FaultKind("divergence", Fault.LOSS_NONFINITE, 0.05, RANK, fact=True),
    FaultKind("hang", Fault.HANG, 0.15, RANK),
    FaultKind("divergence", Fault.LOSS_DIVERGED, 0.06, RANK),
    FaultKind("stall", Fault.DATA_STALL, 0.06, RANK, _W, states=_SHARE),
    FaultKind("straggler", Fault.STRAGGLER, 0.06, RANK, _W, states=_SHARE),
    FaultKind("throttle", Fault.THROTTLE, 0.06, GPU, _W, states=_SHARE),
    FaultKind("memory_leak", Fault.GPU_MEMORY_LEAK, 0.06, GPU, _W, states=_LEFT),
)
FALSE = {kind.detector: kind for kind in MIX if not kind.fact}
"""What a false alarm of a detector looks like."""


class FixedInventory(Inventory):
    """Nothing moves in it, so what was counted once holds at all times."""

    def __init__(self) -> None:
        super().__init__()
        self._counted: dict[Subject, list[Subject]] = {}

    def gpus(self, subject: Subject, at_s: float) -> list[Subject]:
        if subject not in self._counted:
            self._counted[subject] = super().gpus(subject, at_s)
        return self._counted[subject]


class Fleet:
    """Its inventory and its ticks: nodes of eight GPUs, half of them in training jobs, half in serving pods."""

    def __init__(self, gpus: int, rng: np.random.Generator) -> None:
        self.gpus = [Subject(GPU, f"gpu-{n}") for n in range(gpus)]
        self.ranks: list[Subject] = []
        self.jobs, self.inventory = 0, FixedInventory()
        for n, gpu in enumerate(self.gpus):
            self.inventory.observe(gpu, Subject(SubjectKind.NODE, f"n{n // 8}"), 0.0)
        start, half = 0, gpus // 2
        while start < half:
            size = min(int(rng.choice([8, 8, 8, 16, 32, 64, 256])), half - start)
            job = Subject(SubjectKind.JOB, f"ml/job-{self.jobs}")
            for n in range(size):
                rank = Subject(RANK, f"{job.name}#{n}")
                self.ranks.append(rank)
                self.inventory.observe(rank, job, 0.0)
                self.inventory.observe(self.gpus[start + n], rank, 0.0)
            start, self.jobs = start + size, self.jobs + 1
        for n in range(half, gpus):
            self.inventory.observe(self.gpus[n], Subject(SubjectKind.POD, f"ml/chat-{n // 8}"), 0.0)
        empty = np.zeros(0, dtype=np.int64)
        self._steps = tuple(StepSeries(rank, "run", empty, np.zeros(0), {}, "log") for rank in self.ranks)
        self._frames = frames(gpus)

    def tick(self, at_s: float) -> Tick:
        return Tick(at_s, self._frames, steps=self._steps)

    def alarm(self, kind: FaultKind, at_s: float, rng: np.random.Generator, number: int) -> Finding:
        """One alarm of a kind, at a random place."""
        places = self.gpus if kind.where is GPU else self.ranks
        score = CERTAIN if kind.fact else float(10.0 ** rng.uniform())
        facts = {}
        if kind.states is not None:
            name, low, high = kind.states
            facts[name] = float(np.exp(rng.uniform(np.log(low), np.log(high))))
        at, since = Instant(at_s), Instant(at_s - 1e-3 * number)
        told = (kind.detector, kind.fault, places[int(rng.integers(len(places)))], State.FIRING, since, at)
        return Finding(*told, kind.severity, "drawn", score, 1.0, facts=facts)


def weekly_false(fleet: Fleet, budget: Budget) -> dict[str, float]:
    """False alarms a week on this fleet, by detector."""
    found = {}
    for name in FALSE:
        seen = [rate for rate in rates() if rate.detector == name and rate.measured]
        runs = [rate.high * fleet.jobs for rate in seen if rate.unit is Unit.RUNS]
        series = {line.detector: line.series for line in budget.lines()}[name]
        days = [7.0 * rate.high * series for rate in seen if rate.unit is Unit.DAYS]
        claim = 7.0 * budget.stated[name].per_1000_series_days / 1000.0 * series
        found[name] = max([*runs, *days], default=claim)
    return found


def drawn(kind: FaultKind, weekly: float, rng: np.random.Generator) -> Iterator[FaultKind]:
    yield from [kind] * int(rng.poisson(weekly / 168.0))


def live(gpus: int, seed: int, answers: bool, mad: str) -> Counter[str]:
    """26 weeks of one fleet, counted."""
    rng = np.random.default_rng(seed)
    fleet, stated = Fleet(gpus, rng), promises([kind() for kind in ALL], {})
    budget, counts = Budget(BudgetSettings(), stated), Counter[str]()
    budget.weigh([], fleet.tick(1e9), fleet.inventory)
    false = {name: rate * (100.0 if name == mad else 1.0) for name, rate in weekly_false(fleet, budget).items()}
    pages = np.zeros(WEEKS * 14, dtype=np.int64)
    for hour in range(WEEKS * 168):
        at_s = 1e9 + (hour + 1) * HOUR_S
        wrong = [k for name, rate in false.items() for k in drawn(FALSE[name], rate, rng)]
        right = [k for k in MIX for _ in drawn(k, k.share * PER_NODE_DAY * gpus / 8 * 7.0, rng)]
        found = [fleet.alarm(k, at_s, rng, n) for n, k in enumerate([*wrong, *right])]
        for n in range(len(wrong)):
            found[n] = replace(found[n], score=1.0 + float(rng.pareto(1.0)))
        weighed = budget.weigh(found, fleet.tick(at_s), fleet.inventory)
        true = {finding.episode for finding in weighed[len(wrong) :]}
        for decision in correlate(weighed, [], fleet.inventory, at_s):
            counts["ignored"] += decision.verb is DecisionVerb.IGNORE
            if widest(decision.findings) is Lane.PAGE:
                pages[hour // 12] += 1
                if true.isdisjoint(f.episode for f in decision.findings):
                    counts.update({"false_pages": 1, f"false {decision.cause.detector}": 1})
        _count_faults(counts, weighed[len(wrong) :], Reach(fleet.inventory, at_s), mad)
        budget.weigh([replace(f, state=State.CLEAR) for f in weighed], fleet.tick(at_s + 1.0), fleet.inventory)
        for finding in weighed[: len(wrong)]:
            budget.refute([finding.episode])
        if answers:
            budget.confirm(true)
    counts |= Counter({"shift_median": int(np.median(pages)), "shift_p95": int(np.quantile(pages, 0.95))})
    counts["alarms_false"] = round(sum(false.values()))
    return counts


def _count_faults(counts: Counter[str], faults: list[Finding], reach: Reach, mad: str) -> None:
    """Counts the lanes of true faults: proven ones, ones that cost a page, and the rest by strength."""
    for fault in faults:
        paged, cost = lane_of(fault) is Lane.PAGE, reach.gpus(fault.subject) * lost_share(fault)
        proven = fault.score >= CERTAIN or fault.fault in NEAR_FACTS or fault.detector not in FALSE
        strength = next(
            name for top, name in ((1.5, "1-1.5"), (3.0, "1.5-3"), (np.inf, "3-")) if fault.score <= top
        )
        kind = "proven" if proven else "costly" if cost >= PAGE_COST else f"other {strength}"
        reached = lane_of(fault) is not Lane.DIGEST if kind.startswith("other") else paged
        counts.update({f"{kind}": 1, f"{kind} reached": int(reached)})
        if fault.detector != mad:
            counts.update({"unmad": int(paged or kind.startswith("other")), "unmad of": 1})
        if kind == "costly":
            counts.update({f"costly {fault.detector}": 1, f"costly {fault.detector} reached": int(paged)})


def row(gpus: int, answers: bool, mad: str = "") -> dict[str, Any]:
    """One line of the table: three fleets with seeds 0, 1 and 2."""
    lives = [live(gpus, seed, answers, mad) for seed in range(FLEETS)]
    total: Counter[str] = sum(lives, Counter())
    reached = {
        name: {"faults": total[name], "share": total[f"{name} reached"] / total[name]}
        for name in sorted(total)
        if f"{name} reached" in total or name in ("proven", "costly")
    }
    return {
        "gpus": gpus,
        "fleets": FLEETS,
        "weeks": WEEKS,
        "answered": answers,
        "gone_mad": mad,
        "false_alarms_per_week": total["alarms_false"] / FLEETS,
        "false_pages_per_week": total["false_pages"] / FLEETS / WEEKS,
        "worst_fleet_interval": garwood(max(one["false_pages"] for one in lives), WEEKS),
        "false_pages_by_detector": {name: total[f"false {name}"] for name in FALSE},
        "shift_pages_median": max(one["shift_median"] for one in lives),
        "shift_pages_p95": max(one["shift_p95"] for one in lives),
        "alarms_without_incident": total["ignored"],
        "faults": reached,
        "others_that_page_or_ticket": total["unmad"] / max(total["unmad of"], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, nargs="*", default=[1000], help="Fleet sizes")
    sizes = parser.parse_args().gpus
    rows = [row(gpus, answers) for gpus in sizes for answers in (True, False)]
    rows += [row(gpus, True, mad) for gpus in sizes for mad in ("straggler", "hang")]
    write("lane_months", {"rows": rows})


if __name__ == "__main__":
    main()
