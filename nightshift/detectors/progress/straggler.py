"""The one rank that makes the others wait: slower than its peers at its own work, step after step.

The step time of a synchronous job is everyone's; only what a rank does alone tells it apart: its compute and its
data time (all-reduce time holds the wait for the slowest). Ranks are compared within their pipeline stage, since
stages are not equal, and step by step, since sequences are not equal either. A rank is accused only where it is
slower in most steps, since random imbalance makes every rank slow at times, a slow GPU or loader all the time; and
only where the slow ones are few and apart from all others (`few_and_apart`): work that is shared out unevenly
(context, experts) makes many ranks slow, by degrees. Compute is compared between GPUs of one model alone. (Lin et
al., "Understanding Stragglers in Large Model Training Using What-if Analysis", OSDI 2025.)

A loader that is slow in one step of eight leaves every median alone, and may cost the job half of its time. So
beside the medians stands what the job lost by waiting for each rank: the steps in which it loads far longer than
the slowest of its peers. Chance spreads such steps over all ranks; one that has nearly all of them is named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from nightshift.collectors.frame import Floats, Frame, StepSeries
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.alarms.promise import stated
from nightshift.detectors.base import Fault, Finding, SeriesExhibit, Severity, SnapshotError, StatedRate
from nightshift.detectors.episodes import Alarm, Episodes
from nightshift.detectors.ordered import medians
from nightshift.detectors.series_table import Column, SeriesTable
from nightshift.detectors.snapshot import pack, unpack
from nightshift.detectors.tails import binomial_tail

APART = 0.04
"""A block this much slower than the rest may be a stage; less is no news to anybody."""
ALIKE = 0.5
"""Ranks of a stage differ by less than this share of the gap between the stages."""
FEW = 1.0 / 3.0
"""Slow workers are at most this share of a group, but for one, which may be one of two."""
GAP = 0.5
"""From the slowest of the others to the least slow worker, as a share of what that one is slower."""


def by_stage(own_s: Floats) -> list[list[int]]:
    """Groups of ranks that are to be compared with each other; own_s [n] are typical own times by rank (s).

    One group of all where no stage shows. The largest blocks win: of four equal stages with a slow last one, that
    one. First and last stage may both be apart, and may be faster too: they hold fewer layers where they also hold
    the embedding or the loss.

    Where the inventory does not say which stage a rank holds, ranks of all stages are compared. The stage that
    carries the loss and the vocabulary (the last) or the embedding (the first) then looks like a crowd of slow
    workers: in the traces that Lin et al. published (OSDI 2025) by a factor of 1.5 and 1.6. Where both hold fewer
    layers instead, the stages between look like one; and where only the first stage loads data, like slow loaders.
    Slow workers are few and seldom alike; a stage is a whole block of consecutive ranks, at an edge of the job, of
    a size that divides it, with ranks much more alike than the block differs from the rest. Two workers that are
    alike slow and happen to fill the last block are taken for a stage too: whoever wants them told apart says
    `pipeline_stage`.

    >>> by_stage(np.array([0.50, 0.50, 0.51, 0.50, 0.75, 0.76]))  # the last two carry the loss
    [[4, 5], [0, 1, 2, 3]]
    >>> by_stage(np.array([0.50, 0.50, 0.51, 0.50, 0.50, 0.76]))  # one slow worker is no stage
    [[0, 1, 2, 3, 4, 5]]
    """
    n = len(own_s)
    everyone = [list(range(n))]
    if n < 4 or not (np.isfinite(own_s).all() and (own_s > 0).all()):
        return everyone
    for size in range(n // 2, 1, -1):
        if n % size:
            continue
        last, first = list(range(n - size, n)), list(range(size))
        for blocks in ([first, last], [last], [first]):
            rest = [rank for rank in range(n) if not any(rank in block for block in blocks)]
            if rest and all(_apart(own_s[block], own_s[rest]) for block in blocks):
                return [*blocks, rest]
    return everyone


def _apart(block: Floats, rest: Floats) -> bool:
    """Whether all of `block` is slower, or all of it faster, than all of the rest, and alike in itself."""
    gap = max(float(block.min() - rest.max()), float(rest.min() - block.max()))
    fastest = min(float(rest.max()), float(block.max()))
    return gap > APART * fastest and float(np.ptp(block)) < ALIKE * gap


def few_and_apart(ratio: Sequence[float], slow: Sequence[bool]) -> set[int]:
    """Which of the `slow` ranks stand apart from all others, as slow workers do, and are few; ratio [n] is a rank's
    own time over its peers' (NaN where not known). As many as possible. Uneven work has no such gap.

    >>> few_and_apart([1.0, 1.3, 1.0, 1.0, 1.0, 1.0], [False, True, False, False, False, False])
    {1}
    >>> few_and_apart([1.0, 1.3, 1.25, 1.2, 1.15, 1.1], [False, True, True, True, True, True])  # uneven work
    set()
    """
    order = sorted((n for n in range(len(ratio)) if np.isfinite(ratio[n])), key=lambda n: -ratio[n])
    for count in range(min(sum(slow), int(max(1.0, FEW * len(ratio)))), 0, -1):
        if not all(slow[n] for n in order[:count]):
            continue
        least = ratio[order[count - 1]]
        others = max(ratio[order[count]], 1.0) if count < len(order) else 1.0
        if least - others >= GAP * (least - 1.0):
            return set(order[:count])
    return set()


VERSION = 1
RING = 128
SIGNALS = ("compute_s", "data_s")
COUNTED = ("alone", "alone_s", "watched", "watched_s")
"""Of each rank, of late: steps in which the job waits for it and the time of that (s); all steps and their own time
(s). `who` holds the two numbers of steps over a longer time."""
CAPPED, PEERS_ASKED = 0.97, 16
"""A power limit under this share of its peers' (of that many at most) is a cap."""
STAGE = "pipeline_stage"
"""The rank's fact in the inventory that names its stage; ranks without one are compared with each other, but for a
stage that shows (`by_stage`)."""


# Steps that a rank and its peers have to share: random imbalance averages out over so many.
STEPS = 30
# Where steps are slow, so many of the newest are compared: a few more, since some lack a rank's line.
NEWEST = 36
# ... and be slower in, at every look for this long: a neighbour's burst is over by then.
PERSIST_S = 90.0
# Slower than its peers by this factor in the median step; below it, healthy GPUs of one model differ, too.
RATIO = 1.05
# Share of steps in which it is slower at all: imbalance makes every rank slow at times, a slow GPU always.
OFTEN = 0.8
# Share of the peers' own time that the excess has to cost; less is not worth a restart.
COST = 0.03
# A job waits for a rank that loads longer than its slowest peer by this share of a typical step's own time ...
ALONE = 0.25
# ... that costs this share of the time in all ...
WAITED = 0.05
# ... in this share of the steps: more seldom come evaluations and checkpoints, which one rank does for all.
SELDOM = 0.05
# Who has nearly all of them is suspected from half of an alarm's evidence on: in a slow store all ranks have some.
NEARLY_ALL = 0.9
# How likely chance may give one rank so many of the steps in which one rank is alone: far apart from all looks.
CHANCE = 1e-4
# What they cost is counted over so long: fast steps fill the ring in seconds, slow ones need minutes for enough.
FADE_S = 150.0
# ... and which rank they fall on over so long: of two ranks, it takes fifteen such steps to tell.
WHO_S = 600.0
# Jobs are judged this often: all pairs of a job's ranks are too much work for every look.
EVERY_S = 30.0
# No step for this long says nothing of speed; hangs are another detector's.
SILENT_AFTER_S = 900.0
# A rank unseen for this long is forgotten; a job that is restarted within a day keeps its episode.
FORGET_S = 86400.0


class StragglerSettings(BaseModel):
    """When a rank is a straggler."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    strength: float = Field(
        default=1.0, gt=0, description="An excess that is this many times all three of them is an alarm"
    )


@dataclass(frozen=True, slots=True)
class Excess:
    """How much slower one rank is: the median ratio to its peers, how often, and the excess per step (s)."""

    ratio: float
    often: float
    excess_s: float
    share: float
    peers: int
    chance: float | None = None
    """Of an intermittent one: how likely its peers' steps would fall on it as well."""
    of_all: float = 0.0
    """Of an intermittent one: its share of the steps in which the job waits for one rank."""


class Straggler:
    """STRAGGLER on the rank; its GPUs are among the facts.

    >>> from nightshift.detectors.contract.testing import START_S, rank, show, steps, tick
    >>> def look(n):  # rank 3 computes for 0.6 s a step, the others for 0.5 s
    ...     at_s = START_S + 5 * n
    ...     took = {r: [0.6 if r == 3 else 0.5] for r in range(8)}
    ...     return tick(at_s, series=[steps(rank(r), n, [at_s], {"compute_s": took[r]}) for r in took])
    >>> show(Straggler(), [look(n) for n in range(100)])
    240 s: firing straggler rank:ml/train#3
        compute takes 1.20 times as long as at 7 peers (100 % of steps)
    """

    plugin: ClassVar[str] = "straggler"
    LOOSE: ClassVar[float] = 0.3
    Settings = StragglerSettings

    def __init__(self, settings: StragglerSettings | None = None) -> None:
        self.settings = settings or StragglerSettings()
        columns = {name: Column(np.float64, np.nan, (RING,)) for name in SIGNALS}
        columns |= {"step": Column(np.int64, -1, (RING,)), "last_s": Column(np.float64, -np.inf)}
        columns |= {"step_s": Column(np.float64, np.nan)}
        columns |= {"suspect_s": Column(np.float64, np.inf), "news": Column(np.bool_, 0)}
        columns |= {"counted_step": Column(np.int64, -1), "counted": Column(np.float64, 0.0, (len(COUNTED),))}
        columns |= {"who": Column(np.float64, 0.0, (2,))}
        self._table = SeriesTable(columns, FORGET_S)
        self._judged_s = -np.inf
        self._limits: dict[Subject, tuple[float, float]] = {}
        """GPU → (power limit in W, when it was seen), of ranks that were slow and of their peers."""
        self._busy: dict[Subject, tuple[float, float]] = {}
        """GPU → (sum of its utilisation in %, looks), both of late, of ranks that the job may wait for and of their
        peers."""
        self._asked: set[Subject] = set()
        self._looked_s = -np.inf
        self._episodes = Episodes(self.name, self.stated.per_1000_series_days / 1000.0)

    @property
    def name(self) -> str:
        return self.plugin

    @property
    def faults(self) -> tuple[Fault, ...]:
        return (Fault.STRAGGLER,)

    @property
    def strength(self) -> float:
        return self.settings.strength

    @property
    def stated(self) -> StatedRate:
        source = "benchmarks/detect_straggler.py: imbalance without a slow rank"
        return stated(self.plugin, 1.0, source, self.settings.strength, SubjectKind.RANK)

    def _strength(self, e: Excess) -> float:
        """The excess over what each of the three conditions asks for, by the one that it meets least."""
        if e.chance is not None:
            unlikely = np.log(max(e.chance, 1e-300)) / np.log(CHANCE)
            return float(max(min(e.share / WAITED, e.often / SELDOM, unlikely), 0.0))
        often = (e.often - 0.5) / (OFTEN - 0.5)
        return max(min((e.ratio - 1.0) / (RATIO - 1.0), often, e.share / COST), 0.0)

    def _is_worse(self, e: Excess, known: tuple[str, Excess] | None) -> bool:
        """Whether an intermittent excess is the one to tell: half of an alarm's, where its medians tell nothing."""
        told = known is not None and self._strength(known[1]) >= self.settings.strength
        return not told and self._strength(e) >= 0.5 * self.settings.strength

    @staticmethod
    def _is_as_fast(e: Excess) -> bool:
        """Whether an episode ends: an intermittent excess is only seen where half of an alarm's is there."""
        return e.chance is None and (e.ratio < 0.5 * (1.0 + RATIO) or e.often < 0.5 * (0.5 + OFTEN))

    def update(self, tick: Tick, inventory: Inventory) -> list[Finding]:
        ranks = [s for s in tick.steps if s.subject.kind is SubjectKind.RANK and self._speaks(s)]
        if ranks:
            self._table.take([series.subject for series in ranks], tick.at_s)  # a job's ranks come all at once
        for series in ranks:
            self._take(series, tick.at_s)
        findings: list[Finding] = []
        self._watch(tick.frames.get(SubjectKind.GPU), tick.at_s)
        if tick.at_s - self._judged_s >= EVERY_S or tick.at_s < self._judged_s:
            self._judged_s = tick.at_s
            self._busy = {gpu: seen for gpu, seen in self._busy.items() if gpu in self._asked}
            self._asked = set()
            oldest = tick.at_s - SILENT_AFTER_S
            self._limits = {gpu: known for gpu, known in self._limits.items() if known[1] >= oldest}
            findings += self._judge(tick.frames.get(SubjectKind.GPU), tick.at_s, inventory)
        said = {f.subject for f in findings}
        return findings + self._rest(tick.at_s, said)

    def _watch(self, gpus: Frame | None, at_s: float) -> None:
        """How busy the GPUs are of which the last judgement asked."""
        faded = float(np.exp(-max(at_s - self._looked_s, 0.0) / FADE_S))
        self._looked_s = at_s
        busy = gpus.column("gpu_utilization_percent") if gpus is not None else np.zeros(0)
        for gpu, (total, looks) in self._busy.items():
            row = gpus.index.rows.get(gpu) if gpus is not None else None
            if row is not None and 0 <= busy[row] <= 100:
                self._busy[gpu] = faded * total + float(busy[row]), faded * looks + 1.0

    @staticmethod
    def _speaks(series: StepSeries) -> bool:
        return any(name in series.columns for name in SIGNALS) and len(series.step) > 0

    def _take(self, series: StepSeries, at_s: float) -> None:
        table = self._table
        slot = table.slot(series.subject)
        place = series.step[-RING:] % RING
        table["step"][slot, place] = series.step[-RING:]
        for name in SIGNALS:
            took = series.column(name)[-RING:]
            if name == "data_s":  # who saves for all loads late: the step of a checkpoint, and the next one
                saved = np.nan_to_num(series.column("checkpoint_saved")[-RING:]) > 0
                took = np.where(saved | np.concatenate([[False], saved[:-1]]), np.nan, took)
            table[name][slot, place] = np.where((took >= 0) & (took < 1e6), took, np.nan)
        latest = series.t_s[np.isfinite(series.t_s)]
        if len(latest):  # a time of the future (another clock) keeps no rank alive that has gone
            table["last_s"][slot] = min(max(float(table["last_s"][slot]), float(latest.max())), at_s)
        table["step_s"][slot] = _step_s(series, latest)
        table["news"][slot] = True
        table.seen_s()[slot] = at_s

    def _judge(self, gpus: Frame | None, at_s: float, inventory: Inventory) -> list[Finding]:
        groups: dict[tuple[Subject, str], list[int]] = {}
        fresh = at_s - SILENT_AFTER_S
        for slot, subject in enumerate(self._table.subjects):
            job = inventory.above(subject, SubjectKind.JOB, at_s)
            if job is not None and self._table["last_s"][slot] >= fresh:
                groups.setdefault((job, inventory.fact(subject, STAGE) or ""), []).append(slot)
        findings: list[Finding] = []
        for (_, stage), slots in groups.items():
            for alike in self._stages(np.array(slots)) if not stage else [np.array(slots)]:
                if len(alike) > 1:
                    findings += self._compare(alike, gpus, at_s, inventory)
        return findings

    def _step_s(self, slots: NDArray[np.int64]) -> float:
        """How long a step of these ranks takes of late (s); next to nothing where no rank tells."""
        known = self._table["step_s"][slots]
        known = known[np.isfinite(known)]
        return max(float(np.median(known)), 1e-3) if len(known) else 1e-3

    def _stages(self, slots: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """These ranks, whose stage is not known, apart where blocks of them differ in compute, or in loading, as
        stages would."""
        names = [self._table.subjects[slot].name.rpartition("#")[2] for slot in slots.tolist()]
        if not all(name.isdecimal() for name in names):
            return [slots]
        groups = [slots[np.argsort([int(name) for name in names], kind="stable")]]
        for name in SIGNALS:
            groups = [part for group in groups for part in self._parted(group, name)]
        return groups

    def _parted(self, slots: NDArray[np.int64], name: str) -> list[NDArray[np.int64]]:
        """Ranks in their order, apart where blocks of them take unlike times of this signal."""
        step = self._table["step"][slots]
        took = np.where(step == step.max(axis=0), self._table[name][slots], np.nan)
        if (np.isfinite(took).sum(axis=1) < STEPS).any():
            return [slots]
        return [slots[group] for group in by_stage(medians(took))]

    def _compare(
        self, slots: NDArray[np.int64], gpus: Frame | None, at_s: float, inventory: Inventory
    ) -> list[Finding]:
        table = self._table
        step = table["step"][slots]
        newest = step.max(axis=0)
        took = {name: np.where(step == newest, table[name][slots], np.nan) for name in SIGNALS}
        step_s = self._step_s(slots)
        # a ring of slow steps is an hour: who has been slow for minutes is slow in the newest of them. Counted are
        # steps that were told, since many jobs tell every tenth
        told = np.sort(newest[newest >= 0])
        recent = newest >= told[-min(len(told), int(max(NEWEST, FADE_S / step_s)))]
        lately = {name: np.where(recent, took[name], np.nan) for name in SIGNALS}
        own = np.nansum([np.nan_to_num(took[name]) for name in SIGNALS], axis=0)
        typical_s = float(np.median(own[own > 0])) if (own > 0).any() else 0.0
        worst, shared_out = self._worst(slots, lately, typical_s, at_s, inventory)
        for row, e in self._waited_for(slots, took["data_s"], own, newest, typical_s).items():
            idle = min(e.share, e.often * e.excess_s / step_s)
            if self._is_worse(e, worst.get(row)) and not self._works_as_well(row, slots, idle, at_s, inventory):
                worst[row] = ("data_s", e)
        seen = np.zeros(len(slots), dtype=bool)
        seen[list(worst)] = True
        seen &= table["news"][slots]  # steps judged before say nothing new, neither slow nor as fast as its peers
        table["news"][slots] = False
        findings: list[Finding] = []
        ranks = [table.subjects[slot] for slot in slots]
        for row in np.flatnonzero(seen).tolist():
            subject, slot = ranks[row], int(slots[row])
            name, e = worst[row]
            slow = self._is_slow(subject, name, e, ranks, gpus, at_s, inventory)
            suspected = slow or e.of_all >= NEARLY_ALL
            table["suspect_s"][slot] = min(float(table["suspect_s"][slot]), at_s) if suspected else np.inf
            found: Finding | None = None
            if slow and at_s - float(table["suspect_s"][slot]) >= PERSIST_S:
                found = self._episodes.fire(self._alarm(subject, name, e, typical_s, at_s, inventory), at_s)
            elif row not in shared_out and self._is_as_fast(e):
                # half of what an alarm needs: between the two an episode neither begins nor ends
                found = self._episodes.clear(Fault.STRAGGLER, subject, at_s, "As fast as its peers again")
            findings += [found] if found else []
        return findings

    def _is_slow(
        self,
        rank: Subject,
        signal: str,
        e: Excess,
        ranks: list[Subject],
        gpus: Frame | None,
        at_s: float,
        inventory: Inventory,
    ) -> bool:
        # a power limit slows compute, never a loader
        return self._strength(e) >= self.settings.strength and not (
            signal == "compute_s" and self._held_back(rank, ranks, gpus, at_s, inventory)
        )

    def _worst(
        self,
        slots: NDArray[np.int64],
        took: Mapping[str, Floats],
        typical_s: float,
        at_s: float,
        inventory: Inventory,
    ) -> tuple[dict[int, tuple[str, Excess]], set[int]]:
        """(row → the signal in which that rank is slowest and by how much, rows that are slow among many: uneven
        work). A rank that is slow among many in one signal may still stand out in the other."""
        worst: dict[int, tuple[str, Excess]] = {}
        shared_out = set[int]()
        alike = self._kinds([self._table.subjects[slot] for slot in slots.tolist()], at_s, inventory)
        compared = [("compute_s", rows) for rows in alike] + [("data_s", np.arange(len(slots)))]
        for name, rows in compared:
            found_of = excesses(took[name][rows], typical_s, STEPS)
            strong = [e is not None and self._strength(e) >= self.settings.strength for e in found_of]
            few = few_and_apart([np.nan if e is None else e.ratio for e in found_of], strong)
            for place, (row, excess) in enumerate(zip(rows.tolist(), found_of, strict=True)):
                if excess is None:
                    continue
                if strong[place] and place not in few:
                    shared_out.add(row)
                elif row not in worst or excess.share > worst[row][1].share:
                    worst[row] = (name, excess)
        return worst, shared_out

    def _waited_for(
        self, slots: NDArray[np.int64], data_s: Floats, own_s: Floats, newest: NDArray[np.int64], typical_s: float
    ) -> dict[int, Excess]:
        """Row → what the job lost by waiting for that rank's loader, over the last minutes; data_s, own_s [ranks,
        steps of the ring] (s), newest: the number of each of these steps."""

        table, ranks = self._table, len(slots)
        counted_step = int(table["counted_step"][slots].max())
        if counted_step > int(newest.max()):
            counted_step = -1  # a run that begins again counts its steps anew
        seen = np.isfinite(data_s)
        columns = np.flatnonzero((seen.sum(axis=0) >= max(2, 0.5 * ranks)) & (newest > counted_step))
        if len(columns):
            ordered = np.sort(np.where(seen, data_s, -np.inf)[:, columns], axis=0)
            longer_s = ordered[-1] - ordered[-2]
            who = np.where(seen, data_s, -np.inf)[:, columns].argmax(axis=0)
            alone = longer_s > ALONE * typical_s
            news = np.zeros((ranks, len(COUNTED)))
            news[:, 0] = np.bincount(who[alone], minlength=ranks)
            news[:, 1] = np.bincount(who[alone], weights=longer_s[alone], minlength=ranks)
            news[:, 2], news[:, 3] = len(columns), own_s[:, columns].max(axis=0).sum()
            table["counted"][slots] = np.exp(-EVERY_S / FADE_S) * table["counted"][slots] + news
            table["who"][slots] = np.exp(-EVERY_S / WHO_S) * table["who"][slots] + news[:, [0, 2]]
            table["counted_step"][slots] = int(newest[columns].max())
        lately, lost_s, watched_lately, watched_s = table["counted"][slots].T
        steps, watched = table["who"][slots].T
        found = {}
        for row in np.flatnonzero((lost_s > 0.5 * WAITED * watched_s) & (watched >= STEPS)).tolist():
            # over the last minutes, or over a longer time, which may still hold an earlier fault of another rank
            odds = [(lately[row], lately.sum(), watched_lately[row]), (steps[row], steps.sum(), watched[row])]
            chance = min(2 * ranks * binomial_tail(round(n), round(of), 1.0 / ranks) for n, of, _ in odds)
            excess_s = float(lost_s[row] / max(lately[row], 1e-9))
            often = float(max(n / max(among, STEPS) for n, _, among in odds))
            share = float(lost_s[row] / watched_s[row])
            ratio = 1.0 + excess_s / max(typical_s, 1e-9)
            of_all = float(max(n / max(of, 1e-9) for n, of, _ in odds))
            found[row] = Excess(ratio, often, excess_s, share, ranks - 1, min(chance, 1.0), of_all)
        return found

    def _works_as_well(
        self,
        row: int,
        slots: NDArray[np.int64],
        idle: float,
        at_s: float,
        inventory: Inventory,
    ) -> bool:
        """Whether the rank's GPU is as busy as its peers', which spin while they wait for it: then it evaluates for
        all, and does not wait for data itself. idle: the share of the time for which its GPU would wait. False
        where no utilisation is known."""
        ranks = [self._table.subjects[slot] for slot in slots[:PEERS_ASKED].tolist()]
        own = self._table.subjects[int(slots[row])]
        means: dict[bool, list[float]] = {True: [], False: []}
        for rank in {own, *ranks}:
            for gpu in inventory.gpus(rank, at_s):
                self._asked.add(gpu)
                total, looks = self._busy.setdefault(gpu, (0.0, 0.0))
                if looks:
                    means[rank == own].append(total / looks)
        if not means[True] or not means[False]:
            return False
        # half of that is enough to tell the two apart
        return float(np.mean(means[True])) > (1.0 - 0.5 * idle) * float(np.mean(means[False]))

    @staticmethod
    def _kinds(ranks: list[Subject], at_s: float, inventory: Inventory) -> list[NDArray[np.int64]]:
        """Rows of the ranks by their model of GPU: an H100 beside H200s computes slower and is well. One whose
        model is not known counts to the commonest."""
        models = [
            " ".join(sorted({inventory.fact(gpu, "model") or "" for gpu in inventory.gpus(rank, at_s)}))
            for rank in ranks
        ]
        known = Counter(model for model in models if model)
        commonest = known.most_common(1)[0][0] if known else ""
        named = np.array([model or commonest for model in models])
        return [np.flatnonzero(named == model) for model in np.unique(named)]

    def _held_back(
        self, subject: Subject, ranks: list[Subject], gpus: Frame | None, at_s: float, inventory: Inventory
    ) -> bool:
        """Whether its GPUs may draw less power than those of its peers: who caps one GPU of a job, as we may
        ourselves, has decided that its rank is slower. A limit that is missing now is the one that was seen within
        `SILENT_AFTER_S`: an exporter that is down makes no capped rank a slow one."""
        theirs = [self._limit_w(rank, gpus, at_s, inventory) for rank in ranks[:PEERS_ASKED] if rank != subject]
        known = [one for one in theirs if np.isfinite(one)]
        own = self._limit_w(subject, gpus, at_s, inventory)
        return bool(known) and own < CAPPED * float(np.median(known))

    def _limit_w(self, rank: Subject, gpus: Frame | None, at_s: float, inventory: Inventory) -> float:
        """The lowest power limit of a rank's GPUs (W); NaN where none is known."""
        if gpus is not None:
            limits = gpus.column("gpu_power_limit_w")
            for gpu in inventory.gpus(rank, at_s):
                row = gpus.index.rows.get(gpu)
                if row is not None and np.isfinite(limits[row]):
                    self._limits[gpu] = (float(limits[row]), at_s)
        oldest = at_s - SILENT_AFTER_S
        seen = [self._limits.get(gpu, (np.nan, -np.inf)) for gpu in inventory.gpus(rank, at_s)]
        return min((limit_w for limit_w, seen_s in seen if seen_s >= oldest), default=np.nan)

    def _alarm(
        self, subject: Subject, name: str, e: Excess, typical_s: float, at_s: float, inventory: Inventory
    ) -> Alarm:
        slot = self._table.slot(subject)
        recent = self._table[name][slot]
        seen = np.isfinite(recent)
        order = np.argsort(self._table["step"][slot][seen])
        gpus = " ".join(g.name for g in inventory.gpus(subject, at_s)[:8])
        work = "compute" if name == "compute_s" else "data loading"
        exhibit = SeriesExhibit(
            subject,
            name,
            "s",
            tuple(self._table["step"][slot][seen][order].astype(float).tolist()),
            tuple(recent[seen][order].tolist()),
            float(np.median(recent[seen])) - e.excess_s,
            "",
            "by step number; the reference is what its peers take",
        )
        return Alarm(
            Fault.STRAGGLER,
            subject,
            at_s,
            Severity.WARNING,
            f"{work} takes {e.ratio:.2f} times as long as at {e.peers} peers ({100 * e.often:.0f} % of steps)"
            if e.chance is None
            else f"The job waits {e.excess_s:.2g} s for its {work} in {100 * e.often:.0f} % of steps: "
            f"{100 * e.share:.0f} % of the time",
            score=self._strength(e),
            threshold=self.settings.strength,
            evidence=(exhibit,),
            facts={
                "resource": "compute" if name == "compute_s" else "data",
                "ratio": e.ratio,
                "slower_share_of_steps": e.often,
                "excess_s_per_step": e.excess_s if e.chance is None else e.excess_s * e.often,
                "lost_share": e.share,
                "typical_own_time_s": typical_s,
                "peers": float(e.peers),
                "gpus": gpus,
            },
        )

    def _rest(self, at_s: float, said: set[Subject]) -> list[Finding]:
        findings: list[Finding] = []
        for fault, subject in tuple(self._episodes):
            if subject in said:
                continue
            slot = self._table.slot(subject)
            silent = slot is None or at_s - self._table["last_s"][slot] > SILENT_AFTER_S
            found = (
                self._episodes.no_data(fault, subject, at_s, "No new step of this rank")
                if silent
                else self._episodes.again(fault, subject, at_s)
            )
            findings += [found] if found else []
        return findings

    def snapshot(self) -> bytes:
        subjects, arrays = self._table.saved()
        meta = {"subjects": subjects, "judged_s": self._judged_s, "episodes": self._episodes.saved()}
        meta["limits"] = {str(gpu): list(known) for gpu, known in self._limits.items()}
        return pack(self.name, VERSION, meta, arrays)

    def restore(self, state: bytes) -> None:
        _, meta, arrays = unpack(state, self.name, (VERSION,))
        fresh = Straggler(self.settings)
        try:
            fresh._table.load(meta["subjects"], arrays)
            fresh._judged_s = float(meta["judged_s"])
            fresh._episodes.load(meta["episodes"])
            limits = {Subject.parse(gpu): (float(w), float(at)) for gpu, (w, at) in meta.get("limits", {}).items()}
        except (KeyError, TypeError, ValueError) as error:
            raise SnapshotError(f"{self.name}: {error!r}") from error
        self._table, self._judged_s, self._episodes = fresh._table, fresh._judged_s, fresh._episodes
        self._limits = limits


def _step_s(series: StepSeries, stamps_s: Floats) -> float:
    """Seconds of a step, as the job says it, else by the times of its steps; NaN where neither is there."""
    told = series.column("step_time_s")
    told = told[np.isfinite(told) & (told > 0)]
    if len(told):
        return float(np.median(told))
    return float(np.ptp(stamps_s)) / (len(stamps_s) - 1) if len(stamps_s) > 1 else np.nan


def excesses(took: Floats, typical_s: float, steps: int) -> list[Excess | None]:
    """Each rank of `took` [ranks, steps] (s, NaN = not known) against the others in the same steps.

    The reference of a rank is the median of the *other* ranks, so that of two ranks the slower is told. None where
    a rank shares fewer than `steps` steps with another. `share` is the excess over `typical_s`.
    """
    found: list[Excess | None] = []
    many = len(took) > 16
    seen = np.isfinite(took)
    filled = np.where(seen, took, 0.0)
    alone = seen.sum(axis=0) < 2
    whole = np.full(took.shape[1], np.nan)
    if many and (~alone).any():
        whole[~alone] = medians(took[:, ~alone].T)
    for row in range(len(took)):
        if many:
            reference = whole
        else:
            others = np.delete(took, row, axis=0)
            known = np.isfinite(others).any(axis=0)
            reference = np.full(took.shape[1], np.nan)
            if known.any():
                reference[known] = medians(others[:, known].T)
        shared = seen[row] & (reference > 0)
        if shared.sum() < steps:
            found.append(None)
            continue
        own, theirs = filled[row, shared], reference[shared]
        excess_s = float(np.median(own - theirs))
        found.append(
            Excess(
                ratio=float(np.median(np.minimum(own / np.maximum(theirs, 1e-9), 1e6))),
                often=float((own > theirs).mean()),
                excess_s=excess_s,
                share=excess_s / typical_s if typical_s > 0 else 0.0,
                peers=len(took) - 1,
            )
        )
    return found
