"""Who is paged for what, over 26 weeks of a fleet without history: `python -m benchmarks.lane_months`.

- *Faults*: 6.5 per 1,000 node-days, in the mix of `MIX` (ours: about half are facts, the rest near-facts and
  statistics), at a random place, with log-uniform strength from 1 to 10. Where an alarm states
  the share of work that is lost, it is log-uniform from 2 to 50 %.
- *Leaks* are replayed by the detector itself (`leaks`): memory that fills within 10 minutes to its horizon. One
  that it does not find is counted as such. Its lane counts 10 minutes after its cost has put it into the page lane.
- *False alarms*, of every statistical detector and each population of the fleet: at the upper end of the 90 %
  interval of what healthy telemetry of that population showed (`populations.json`, its highest measured row);
  elsewhere at the detector's claim. A training job counts as one run a week. Strengths are of a Pareto law of index
  1, which has no mean. What a false leak says of its end is drawn from what those on healthy telemetry said.
- An alarm lasts an hour. A false one then clears by itself, so it is found false; a true one is answered, or never
  (rows with `answers` false). In rows with `gone_mad`, that detector alarms a hundred times as often.

The fleet is half training jobs of 8 to 256 GPUs, half serving pods of 8. Budget, lanes, costs and grouping are the
daemon's own; a page is an incident in the page lane, as a rota counts it, of one of `persons`, by the
job or node that it names; `persons` is the smallest rota that holds the bar, and the figures of one person stand
beside it. Each line states the commit that it was run at (`--line`) and its seeds; the same seed gives the same
line. Nothing of a fleet moves here and an hour without an alarm only passes, so what the daemon looks up anew at
every look is kept (`FixedInventory`).
"""

from __future__ import annotations

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from typing import Any
from zlib import crc32

import numpy as np

from benchmarks.detect_held_out import commit
from benchmarks.held_out.leak import fast, replay
from benchmarks.report import RESULTS, write
from nightshift.agent.correlation.correlate import CorrelationDecision, DecisionVerb, correlate
from nightshift.collectors.frame import Frame, Instant, SeriesIndex, StepSeries
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.alarms.budget import Budget, BudgetSettings
from nightshift.detectors.alarms.lanes import (
    NEAR_FACTS,
    PAGE_COST,
    REACT_S,
    Lane,
    WaitingGpus,
    can_wait,
    is_near_fact,
    lane_of,
    lost_share,
    widest,
)
from nightshift.detectors.alarms.promise import Population, Unit, population_of, promises, rates, unmeasured
from nightshift.detectors.base import CERTAIN, Fault, Finding, RateBasis, Severity, State
from nightshift.detectors.contract.evaluate import garwood
from nightshift.detectors.memory.signals import HORIZON_S
from nightshift.detectors.plugins import ALL

WEEKS, HOUR_S = 26, 3600.0
SEEDS = (4401, 4402, 4403)
"""0 to 2 were looked at while the rules were chosen."""
LARGE = 10_000
"""A fleet of so many GPUs has one seed: 26 weeks of it have 1,480 faults."""
PER_NODE_DAY = 6.5 / 1000.0
GPU, RANK, SERVER = SubjectKind.GPU, SubjectKind.RANK, SubjectKind.SERVER
TRAINING, SERVING = Population.TRAINING, Population.SERVING
MEDIAN, P95 = 1, 2
"""Pages per 12-hour shift and person that a rota may have."""
STRENGTHS = ((1.5, "1-1.5"), (3.0, "1.5-3"), (np.inf, "3-"))


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
_SHARE = ("lost_share", 0.02, 0.5)
LEAK, LEAKS, LOOK_S = "memory_leak", 64, 60.0
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
    FaultKind(LEAK, Fault.GPU_MEMORY_LEAK, 0.06, GPU, _W),
)
FALSE = {kind.detector: kind for kind in MIX if not kind.fact} | {
    "ecc": FaultKind("ecc", Fault.HBM_DEGRADED, 0.0, GPU, _W),
    "local_gradients": FaultKind("local_gradients", Fault.ANOMALY, 0.0, RANK, _W),
    "serving": FaultKind("serving", Fault.HANG, 0.0, SERVER),
}
"""What a false alarm of each statistical detector looks like; the serving detector's costliest."""


Said = Mapping[str, Any]
"""What a leak alarm is, beside its place and time: fields of Finding."""


@cache
def leaks() -> tuple[tuple[Said, ...], ...]:
    """What the detector says of each of LEAKS drawn leaks on a GPU without peers: at first; as soon as a page could
    save something; and REACT_S after that. Nothing of one that it does not find."""
    many = fast(np.random.default_rng(SEEDS[0]), LOOK_S, LEAKS, HORIZON_S)
    found = []
    for leak, looks in zip(many, replay(many, LOOK_S, GPU).said, strict=True):
        said = [(t, finding) for t, finding in looks if t >= leak.onset_s]
        urgent = next((t for t, f in said if is_near_fact(f) or not can_wait(f)), np.inf)
        last = [f for t, f in said if t <= urgent + REACT_S]
        moments = [*[f for _, f in said[:1]], *[f for t, f in said if t == urgent], *last[-1:]]
        found.append(tuple(_said(f) for f in moments))
    return tuple(found)


def _said(finding: Finding) -> Said:
    kept = ("eta_s", "pages_because")
    facts = {name: finding.facts[name] for name in kept if name in finding.facts}
    return {"score": finding.score, "severity": finding.severity, "facts": facts}


@cache
def false_leaks(population: Population) -> tuple[Said, ...]:
    """What false leaks said on healthy telemetry of a population; of all of it where it was not measured."""
    result = json.loads((RESULTS / "held_out_leak.json").read_text())["results"]
    sets = {SERVING: ["GenTD26 pods"]}.get(population) or [name.partition(", false")[0] for name in result]
    rows = [row for name in sets for row in _words(result, name)]
    because: Mapping[bool, Mapping[str, Any]] = {False: {}, True: {"pages_because": "as on healthy telemetry"}}
    eta = [{"eta_s": row["eta_s"]} if row["eta_s"] is not None else {} for row in rows]
    return tuple({"facts": facts | because[row["near_fact"]]} for row, facts in zip(rows, eta, strict=True))


def _words(result: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    found = result.get(f"{name}, false alarms per 1,000 days", {})
    return list(found["nightshift"]["words"]) if found else []


class FixedInventory(Inventory):
    """Nothing moves in it, so what was found once holds at all times."""

    def __init__(self) -> None:
        super().__init__()
        self._found: dict[tuple[Subject, SubjectKind], list[Subject]] = {}
        self._over: dict[Subject, dict[Subject, int]] = {}

    def below(self, subject: Subject, kind: SubjectKind, at_s: float) -> list[Subject]:
        if (subject, kind) not in self._found:
            self._found[subject, kind] = super().below(subject, kind, at_s)
        return self._found[subject, kind]

    def ancestors(self, subject: Subject, at_s: float) -> dict[Subject, int]:
        if subject not in self._over:
            self._over[subject] = super().ancestors(subject, at_s)
        return self._over[subject]


@dataclass(frozen=True)
class Source:
    """Alarms of one kind at some places, so many a week."""

    kind: FaultKind
    places: Sequence[Subject]
    weekly: float


class Fleet:
    """Its inventory and its ticks: nodes of eight GPUs, half of them in training jobs, half in serving pods."""

    def __init__(self, gpus: int, rng: np.random.Generator) -> None:
        every = [Subject(GPU, f"gpu-{n}") for n in range(gpus)]
        ranks: list[Subject] = []
        servers: list[Subject] = []
        self.jobs, self.inventory = 0, FixedInventory()
        for n, gpu in enumerate(every):
            self.inventory.observe(gpu, Subject(SubjectKind.NODE, f"n{n // 8}"), 0.0)
        start, half = 0, gpus // 2
        while start < half:
            size = min(int(rng.choice([8, 8, 8, 16, 32, 64, 256])), half - start)
            job = Subject(SubjectKind.JOB, f"ml/job-{self.jobs}")
            for n in range(size):
                rank = Subject(RANK, f"{job.name}#{n}")
                ranks.append(rank)
                self.inventory.observe(rank, job, 0.0)
                self.inventory.observe(every[start + n], rank, 0.0)
            start, self.jobs = start + size, self.jobs + 1
        for n in range(half, gpus):
            pod, server = (Subject(kind, f"ml/chat-{n // 8}") for kind in (SubjectKind.POD, SERVER))
            self.inventory.observe(every[n], pod, 0.0)
            self.inventory.observe(pod, server, 0.0)
            servers += [server] if server not in servers[-1:] else []
        self.training = {f"ml/job-{n}" for n in range(self.jobs)}
        self.places = {
            (RANK, TRAINING): ranks,
            (GPU, TRAINING): every[:half],
            (GPU, SERVING): every[half:],
            (SERVER, SERVING): servers,
        }
        containers = [Subject(SubjectKind.CONTAINER, f"box-{n}") for n in range(gpus)]
        self._frames = {
            kind: Frame(
                0.0,
                SeriesIndex(kind, tuple(of)),
                (),
                np.empty((len(of), 0)),
                np.empty((1, 0)),
                np.zeros(len(of), dtype=np.int64),
            )
            for kind, of in ((GPU, every), (SubjectKind.CONTAINER, containers), (SERVER, servers))
        }
        empty = np.zeros(0, dtype=np.int64)
        self._steps = tuple(StepSeries(rank, "run", empty, np.zeros(0), {}, "log") for rank in ranks)

    def tick(self, at_s: float, stepped: bool = True) -> Tick:
        return Tick(at_s, self._frames, steps=self._steps if stepped else ())

    def populations(self, where: SubjectKind) -> Iterator[tuple[Population, list[Subject]]]:
        """The populations that hold such places, and those places."""
        for (kind, population), places in self.places.items():
            if kind is where:
                yield population, places

    def alarm(
        self, kind: FaultKind, places: Sequence[Subject], at_s: float, rng: np.random.Generator, number: int
    ) -> Finding:
        """The first alarm of a kind, at one of these places."""
        score = CERTAIN if kind.fact else float(10.0 ** rng.uniform())
        facts = {}
        if kind.states is not None:
            name, low, high = kind.states
            facts[name] = float(np.exp(rng.uniform(np.log(low), np.log(high))))
        at, since = Instant(at_s), Instant(at_s - 1e-3 * number)
        told = (kind.detector, kind.fault, places[int(rng.integers(len(places)))], State.FIRING, since, at)
        return Finding(*told, kind.severity, "drawn", score, 1.0, facts=facts)

    def false_alarm(self, source: Source, at_s: float, rng: np.random.Generator, number: int) -> Finding:
        found = self.alarm(source.kind, source.places, at_s, rng, number)
        if found.detector == LEAK:
            above = self.inventory.ancestors(found.subject, at_s)
            said = false_leaks(population_of(found.subject, above, self.training))
            found = replace(found, **said[int(rng.integers(len(said)))])
        return replace(found, score=1.0 + float(rng.pareto(1.0)))


def false_sources(fleet: Fleet, budget: Budget, mad: str) -> list[Source]:
    """Where false alarms come from; those of `mad` a hundred times as often."""
    found = []
    for name, kind in FALSE.items():
        stated, often = budget.stated[name], 100.0 if name == mad else 1.0
        series = 1 + sum(also is SubjectKind.CONTAINER for also in stated.also)  # a container beside each GPU
        for population, places in fleet.populations(kind.where):
            measured = [r for r in rates() if (r.detector, r.population) == (name, population) and r.measured]
            weekly = [rate.high * fleet.jobs for rate in measured if rate.unit is Unit.RUNS]
            days = 7.0 * series * len(places)
            weekly += [rate.high * days for rate in measured if rate.unit is Unit.DAYS]
            claim = stated.per_1000_series_days / 1000.0 * days
            found.append(Source(kind, places, often * max(weekly, default=claim)))
    return found


def true_sources(fleet: Fleet, gpus: int) -> list[Source]:
    """Where faults come from: each kind at all places that can have it."""
    found = []
    for kind in MIX:
        places = [place for _, some in fleet.populations(kind.where) for place in some]
        found.append(Source(kind, places, kind.share * PER_NODE_DAY * gpus / 8 * 7.0))
    return found


def by_hour(sources: Sequence[Source], rng: np.random.Generator) -> dict[int, list[Source]]:
    """Which sources alarm in which hour."""
    found: dict[int, list[Source]] = defaultdict(list)
    for source in sources:
        counts = rng.poisson(source.weekly / 168.0, WEEKS * 168)
        for hour in np.flatnonzero(counts).tolist():
            found[hour] += [source] * int(counts[hour])
    return found


def live(gpus: int, seed: int, answers: bool, mad: str) -> tuple[Counter[str], list[tuple[int, str]]]:
    """26 weeks of one fleet: what was counted, and (12-hour shift, place) of each page."""
    rng = np.random.default_rng(seed)
    fleet, budget = Fleet(gpus, rng), Budget(BudgetSettings(), promises([kind() for kind in ALL], {}))
    if FALSE.keys() != {name for name, of in budget.stated.items() if of.basis is RateBasis.STATISTICAL}:
        raise ValueError("FALSE does not list the statistical detectors")
    counts, pages, lives = Counter[str](), list[tuple[int, str]](), leaks()
    budget.weigh([], fleet.tick(1e9), fleet.inventory)
    false = false_sources(fleet, budget, mad)
    wrong_at, right_at = by_hour(false, rng), by_hour(true_sources(fleet, gpus), rng)
    for hour in range(WEEKS * 168):
        at_s = 1e9 + (hour + 1) * HOUR_S
        wrong = [fleet.false_alarm(s, at_s, rng, n) for n, s in enumerate(wrong_at[hour])]
        right = enumerate(right_at[hour], len(wrong))
        begun = [(s.kind, fleet.alarm(s.kind, s.places, at_s, rng, n)) for n, s in right]
        faults = [(kind, moments) for kind, first in begun if (moments := _moments(first, lives, rng))]
        counts["leaks without an alarm"] += len(begun) - len(faults)
        tick = fleet.tick(at_s)
        weighed = budget.weigh([*wrong, *(moments[0] for _, moments in faults)], tick, fleet.inventory)
        if not weighed:
            continue
        for n, (kind, moments) in enumerate(faults, len(wrong)):
            seen = [weighed[n], *(budget.weigh(moments[1:], tick, fleet.inventory) if moments[1:] else ())]
            weighed[n] = seen[-1]
            _count_fault(counts, kind, seen, fleet, mad)
        true = {finding.episode for finding in weighed[len(wrong) :]}
        for decision in correlate(weighed, [], fleet.inventory, at_s):
            counts["ignored"] += decision.verb is DecisionVerb.IGNORE
            if widest(decision.findings) is Lane.PAGE:
                pages.append((hour // 12, _place(decision, fleet.inventory, at_s)))
                if true.isdisjoint(f.episode for f in decision.findings):
                    counts.update({"false_pages": 1, f"false {decision.cause.detector}": 1})
        # it clears before the next hour's alarms are weighed
        over = fleet.tick(at_s + HOUR_S - 1.0, stepped=False)
        budget.weigh([replace(f, state=State.CLEAR) for f in weighed], over, fleet.inventory)
        for finding in weighed[: len(wrong)]:
            budget.refute([finding.episode])
        if answers:
            budget.confirm(true)
    counts["alarms_false"] = round(sum(source.weekly for source in false))
    return counts, pages


def _place(decision: CorrelationDecision, inventory: Inventory, at_s: float) -> str:
    """The job, or else the node or server, that an incident is about."""
    above = inventory.ancestors(decision.cause.subject, at_s)
    kinds = (SubjectKind.JOB, SubjectKind.NODE, SERVER)
    return str(next((s for kind in kinds for s in above if s.kind is kind), decision.cause.subject))


def _moments(first: Finding, lives: Sequence[Sequence[Said]], rng: np.random.Generator) -> list[Finding]:
    """The findings of a fault over time; for a leak, those of the detector on one of `lives`."""
    if first.detector != LEAK:
        return [first]
    return [replace(first, **said) for said in lives[int(rng.integers(len(lives)))]]


def _count_fault(counts: Counter[str], kind: FaultKind, seen: Sequence[Finding], fleet: Fleet, mad: str) -> None:
    """Counts the last lane of a true fault: a proven one, one that cost a page, or another by strength. One that
    would cost a page and was never measured where it is may only be a ticket."""
    fault, reach = seen[-1], WaitingGpus(fleet.inventory, seen[0].at.t_s)
    paged, gpus = lane_of(fault) is Lane.PAGE, reach.gpus(fault.subject)
    strength = next(name for top, name in STRENGTHS if seen[0].score <= top)
    above = fleet.inventory.ancestors(fault.subject, fault.at.t_s)
    ticket = bool(unmeasured(fault.detector, population_of(fault.subject, above, fleet.training)))
    if kind.fact or fault.fault in NEAR_FACTS:
        name = "proven"
    elif not any(gpus * lost_share(f) >= PAGE_COST and not can_wait(f) for f in seen):
        name = f"other {strength}"
    else:
        name = "costly, not measured" if ticket else f"costly {strength}"
    reached = paged if name.startswith(("proven", "costly ")) else lane_of(fault) is not Lane.DIGEST
    for each in [name, *([f"costly {fault.detector}"] if name.startswith("costly ") else [])]:
        counts.update({each: 1, f"{each} reached": int(reached)})
    counts["costly, not measured, paged"] += name == "costly, not measured" and paged
    if fault.detector != mad and name.startswith(("proven", "costly ")):
        counts.update({"unmad": int(paged), "unmad of": 1})


def rota(pages: Sequence[tuple[int, str]], persons: int) -> tuple[int, int]:
    """(median, 95th percentile) of pages per 12-hour shift and person, who share the places among them."""
    counts = np.zeros((WEEKS * 14, persons), dtype=np.int64)
    for shift, place in pages:
        counts[shift, crc32(place.encode()) % persons] += 1
    return int(np.median(counts)), int(np.quantile(counts, 0.95, method="inverted_cdf"))


def _persons(lives: Sequence[Sequence[tuple[int, str]]]) -> int:
    """The smallest rota on which each fleet holds the bar."""

    def held(persons: int) -> bool:
        return all(median <= MEDIAN and p95 <= P95 for median, p95 in (rota(pages, persons) for pages in lives))

    return next(persons for persons in range(1, 1000) if held(persons))


Life = tuple[Counter[str], list[tuple[int, str]]]


def seeds_of(gpus: int) -> tuple[int, ...]:
    return SEEDS[:1] if gpus >= LARGE else SEEDS


def row(gpus: int, answers: bool, mad: str, lives: Sequence[Life]) -> dict[str, Any]:
    """One line of the table: a fleet of each seed."""
    seeds = seeds_of(gpus)
    total: Counter[str] = sum((counts for counts, _ in lives), Counter())
    pages = [found for _, found in lives]
    alone, persons = [rota(found, 1) for found in pages], _persons(pages)
    shared = [rota(found, persons) for found in pages]
    weeks = WEEKS * len(seeds)
    names = sorted(name for name in total if name.startswith(("proven", "costly", "other")))
    names = [name for name in names if not name.endswith(("reached", "paged"))]
    return {
        "gpus": gpus,
        "seeds": seeds,
        "weeks": WEEKS,
        "answered": answers,
        "gone_mad": mad,
        "false_alarms_per_week": total["alarms_false"] / len(seeds),
        "pages_per_week": sum(map(len, pages)) / weeks,
        "false_pages_per_week": total["false_pages"] / weeks,
        "worst_fleet_interval": garwood(max(counts["false_pages"] for counts, _ in lives), WEEKS),
        "false_pages_by_detector": {name: total[f"false {name}"] for name in FALSE},
        "persons": persons,
        "shift_pages_median": max(m for m, _ in shared),
        "shift_pages_p95": max(p for _, p in shared),
        "shift_pages_of_one_person": [max(m for m, _ in alone), max(p for _, p in alone)],
        "alarms_without_incident": total["ignored"],
        "leaks_without_an_alarm": total["leaks without an alarm"],
        "faults": {
            name: {"faults": total[name], "share": total[f"{name} reached"] / total[name]} for name in names
        },
        "costly_not_measured_that_paged": total["costly, not measured, paged"],
        "page_lane_of_other_detectors": {
            "faults": total["unmad of"],
            "share": total["unmad"] / max(total["unmad of"], 1),
        },
    }


LINES = (
    *((gpus, True, "") for gpus in (16, 190, 1000, LARGE)),
    (190, False, ""),
    *((1000, True, mad) for mad in ("straggler", "hang")),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--line", type=int, nargs="*", default=range(len(LINES)), help="Lines to run anew, from 0")
    parser.add_argument("--processes", type=int, default=2)
    asked = parser.parse_args()
    at, path = commit(), RESULTS / "lane_months.json"  # before it is written: it is a tracked file too
    with ProcessPoolExecutor(asked.processes) as pool:
        waiting = {
            n: [pool.submit(live, LINES[n][0], seed, *LINES[n][1:]) for seed in seeds_of(LINES[n][0])]
            for n in asked.line
        }
        for n, lives in waiting.items():
            found = {"commit": at} | row(*LINES[n], [life.result() for life in lives])
            rows = json.loads(path.read_text())["results"]["rows"] if path.exists() else [None] * len(LINES)
            rows[n] = found
            write("lane_months", {"rows": rows})


if __name__ == "__main__":
    main()
