"""What an order is worth, told by epochs of the whole queue: a hold helps *other* jobs, so no job's own outcome can
tell it. "Did it run?" always favours starting, and a job in the baseline's arm gains from its neighbour's hold.

    epoch      an hour of the cluster; one coin for every job in it (a switchback trial), and the unit of statistics
    receipt    made at the first turn in which policy and baseline would do different things. Up to then both arms
               live through the same, so which hours have a receipt, and since when, says nothing of the arm
    outcome    jobs that waited since then: when they started, or would if plain backfill took over when the hour
               ended, against plain backfill played from the state at the receipt with the same arrivals

The play is the same whatever the arm was: it knows when whatever ran at the receipt ended (steering stops nothing
and puts nobody beside anybody, so that is nobody's doing), and what waited or came lasts as long as was predicted
when it was first seen. Wrong predictions make it a bad guess in both arms alike: noise, no bias. What it leaves
behind is charged to it (jobs put off go on waiting in the play that follows), so nothing is gained by deferral; the
sum over epochs of what each is worth over the baseline is what the policy is worth (Kakade and Langford 2002, the
performance difference lemma).

Epochs follow each other in one cluster and their outcomes depend on each other, but each coin is drawn afresh: what
an epoch's doubly robust score is off by has mean zero given all that came before, so scores of different epochs are
uncorrelated and a bound that takes the epoch as the cluster holds, for the mean effect of an epoch's arm given
the past as it was (Bojinov, Simchi-Levi and Zhao 2023). What it does not say is what a policy does to jobs that
come after the epoch.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from nightshift.collectors.seal import fingerprint
from nightshift.controllers.decision import ControlDecision, Trust, plain
from nightshift.controllers.outcome import Sample, Stretch
from nightshift.controllers.scheduling.controller import JobSeen, Keep, Snapshot
from nightshift.controllers.scheduling.policies import Steering
from nightshift.controllers.scheduling.predict import Durations
from nightshift.controllers.scheduling.state import RUNS_ON
from nightshift.controllers.scheduling.whatif import PlayedJob, starts_s

EPOCH_S = 3600.0
"""Long against a hold (120 s), so that an arm has time to act; short enough for 300 of them in a fortnight."""
GAP_S = 300.0
"""Not looked for longer than this, nobody can say when jobs started: no outcome."""
SHORT_S = 600.0
"""Completion times below this count as this (bounded slowdown: Feitelson et al. 1997)."""
REMEMBERED = 50
MOST_JOBS = 5000
"""With more jobs a play takes too long (4,700 jobs on 10,000 GPUs: 5 s of CPU, four times an hour): such an hour
has no receipt."""
UNIT = "queue"


def epoch_of(at_s: float) -> str:
    """The name of the epoch: what coins are drawn for, and statistics resample."""
    return f"epoch/{int(at_s // EPOCH_S)}"


@dataclass(frozen=True, slots=True)
class EpochOutcomes:
    """What one turn says of outcomes, for `agent.control.policy_watch`."""

    stretches: tuple[Stretch, ...] = ()
    samples: tuple[Sample, ...] = ()


@dataclass
class _Open:
    """An epoch with a receipt. `waits`: everybody who waited since, as first seen, with the length predicted then;
    `began_s` those that started; `ended_s` those that ran at the receipt and ended."""

    epoch: str
    trust: Trust
    treated: bool
    start: Snapshot
    predicted: float
    last_s: float
    waits: dict[str, tuple[JobSeen, float, float]] = field(default_factory=dict)
    began_s: dict[str, float] = field(default_factory=dict)
    ended_s: dict[str, float] = field(default_factory=dict)
    whole: bool = True
    violated: bool = False

    def note_start(self, job: JobSeen, at_s: float) -> None:
        if job.nodes and job.name in self.waits:
            # a start from before it was seen waiting is that of an earlier run, one after now is of a clock that
            # runs ahead, and none at all is NaN: then the look itself is the best that is known
            is_credible = self.waits[job.name][1] <= job.started_s <= at_s
            self.began_s.setdefault(job.name, job.started_s if is_credible else at_s)

    @property
    def until_s(self) -> float:
        return (self.start.at_s // EPOCH_S + 1.0) * EPOCH_S


@dataclass
class Epochs:
    """`turn` once after each turn of the controller. `overdue_s`: a gate that is shut so long after its job was
    submitted breaks the bound on waiting."""

    keep: Keep
    policy: str
    baseline: str
    overdue_s: float
    _open: _Open | None = field(default=None, init=False)
    _parted: str = field(default="", init=False)
    """The newest epoch in which the arms may have done different things before now."""
    _off: dict[bool, deque[float]] = field(
        default_factory=lambda: {arm: deque(maxlen=REMEMBERED) for arm in (False, True)}, init=False
    )
    """By arm: how far slowdowns were above what the play said, lately."""

    def turn(self, snapshot: Snapshot, trust: Trust, durations: Durations, differs: Sequence[str]) -> EpochOutcomes:
        """`trust`: in the epoch of now, its chance 0 or 1; `differs`: jobs for which policy and baseline would have
        done different things in this turn, in shadow too."""
        stretches, samples = list[Stretch](), list[Sample]()
        now = self._open
        if now is not None:
            self._follow(now, snapshot, trust, durations)
            if epoch_of(snapshot.at_s) != now.epoch:
                samples.append(self._settled(now, snapshot, durations))
                self._open = now = None
        epoch = epoch_of(snapshot.at_s)
        self._parted = self._parted or epoch  # who began in the middle of an hour knows not what was done in it
        if now is None and differs and epoch != self._parted:
            self._parted = epoch  # tried once: from here on the arms' clusters differ
            if len(snapshot.jobs) <= MOST_JOBS:
                stretches.append(self._begin(snapshot, trust, durations, differs))
        return EpochOutcomes(tuple(stretches), tuple(samples))

    def _begin(self, snapshot: Snapshot, trust: Trust, durations: Durations, differs: Sequence[str]) -> Stretch:
        epoch, treated = epoch_of(snapshot.at_s), trust.chance >= 1.0
        parts = _parts(snapshot, durations)
        # both arms are played from the same state, by the same predictions
        shape, closed, at_s = snapshot.shape, snapshot.closed, snapshot.at_s
        plainly = starts_s(shape, closed, parts, at_s)
        steered = starts_s(shape, closed, parts, at_s, Steering(share=False))
        gain, slowdown = _compared({part.name: part for part in parts}, steered, plainly)
        said = {arm: (slowdown if arm else 1.0) + _mean(self._off[arm]) for arm in (False, True)}
        seen = _seen(snapshot, parts, plainly)
        what = {"verb": "steer", "first": differs[0], "jobs": len(differs)}
        nothing = {"verb": "as_without_us"}
        executed = what if treated else nothing
        receipt = ControlDecision(
            "", "scheduling", at_s, trust.mode, UNIT, epoch, self.policy, "", seen, what, 1.0, (), executed,
            trust.designed if treated else 1.0 - trust.designed, nothing, self.baseline,
            plain({"slowdown": said[True], "slowdown_executed": said[treated], "gain": gain}),
            f"from here to the end of the hour the whole queue is {'steered' if treated else 'left alone'}",
            arm="policy" if treated else "baseline",
        )  # fmt: skip
        receipt = replace(receipt, id=fingerprint(plain(receipt))[:16])
        self.keep(receipt, chance=trust.designed, treated=treated)
        predicted = slowdown if treated else 1.0
        now = self._open = _Open(epoch, trust, treated, snapshot, predicted, at_s)
        self._follow(now, snapshot, trust, durations)
        return Stretch(receipt.id, UNIT, epoch, at_s, now.until_s)

    def _follow(self, now: _Open, snapshot: Snapshot, trust: Trust, durations: Durations) -> None:
        """What happened to the jobs since the turn before. What comes after the epoch's end is not its own."""
        at_s, is_over = snapshot.at_s, epoch_of(snapshot.at_s) != now.epoch
        was_blind = not 0.0 <= at_s - now.last_s <= GAP_S
        if was_blind or (trust != now.trust and not is_over):  # an hour under two policies is worth neither's
            now.whole = False
        now.last_s = at_s
        for job in snapshot.jobs:
            now.note_start(job, at_s)
        running = {job.name for job in snapshot.jobs if job.nodes}
        for job in now.start.jobs:
            if job.nodes and job.name not in running:
                now.ended_s.setdefault(job.name, at_s)
        if not is_over:
            self._note_waiting(now, snapshot, durations)

    def _note_waiting(self, now: _Open, snapshot: Snapshot, durations: Durations) -> None:
        for job in snapshot.jobs:
            if not job.nodes and job.gpus and job.name not in now.waits:
                now.waits[job.name] = (job, snapshot.at_s, _guess_s(job, durations))
            late = job.gate is not None and snapshot.at_s - job.submitted_s > self.overdue_s
            now.violated |= now.treated and late

    def _settled(self, now: _Open, snapshot: Snapshot, durations: Durations) -> Sample:
        from_s = now.start.at_s
        sample = Sample(now.epoch, from_s, now.until_s, math.nan, math.nan, now.violated)
        if not now.whole:
            return sample
        still = {job.name for job in snapshot.jobs if not job.nodes}
        mine = {
            name: PlayedJob(name, job.gpus, seen_s, job.submitted_s, lasts_s, job.priority)
            for name, (job, seen_s, lasts_s) in now.waits.items()
            if name in now.began_s or name in still  # who was taken back waits in neither
        }
        ran = [
            PlayedJob(
                job.name, job.gpus, from_s, job.submitted_s,
                now.ended_s[job.name] - from_s if job.name in now.ended_s
                else snapshot.at_s - from_s + _left_s(job, snapshot.at_s, durations),
                job.priority, job.nodes,
            )
            for job in now.start.jobs
            if job.nodes
        ]  # fmt: skip
        plainly = starts_s(now.start.shape, now.start.closed, [*ran, *mine.values()], from_s)
        later = starts_s(snapshot.shape, snapshot.closed, _parts(snapshot, durations), snapshot.at_s)
        really = {name: now.began_s[name] if name in now.began_s else later[name] for name in mine}
        reward, slowdown = _compared(mine, really, plainly)
        if math.isfinite(slowdown):
            # wrong predictions of lengths put the plays of many hours off alike: the next figure is moved by that
            self._off[now.treated].append(slowdown - now.predicted)
        return replace(sample, reward=reward, slowdown=slowdown)


def _compared(
    parts: Mapping[str, PlayedJob], really_s: Mapping[str, float], plainly_s: Mapping[str, float]
) -> tuple[float, float]:
    """(share of the jobs' completion time that was saved, mean over the jobs of how many times longer each took).
    Jobs that plain backfill would never have started do not count; NaN where another one never starts, (0, 1)
    where nobody waits."""
    names = [name for name, part in parts.items() if not part.nodes and math.isfinite(plainly_s[name])]
    if not names:
        return 0.0, 1.0
    there = {n: max(plainly_s[n] - parts[n].submitted_s + parts[n].lasts_s, SHORT_S) for n in names}
    here = {n: max(really_s[n] - parts[n].submitted_s + parts[n].lasts_s, SHORT_S) for n in names}
    # without an end its slowdown is no number: better none than one that leaves out who waits longest
    if not all(map(math.isfinite, here.values())):
        return math.nan, math.nan
    saved_s = math.fsum(there[n] - here[n] for n in names)
    return saved_s / math.fsum(there.values()), math.fsum(here[n] / there[n] for n in names) / len(names)


def _seen(snapshot: Snapshot, parts: Sequence[PlayedJob], plainly_s: Mapping[str, float]) -> dict[str, float]:
    """The queue as numbers, for the outcome's model."""
    waiting = [part for part in parts if not part.nodes]
    waits_s = [plainly_s[p.name] - p.submitted_s for p in waiting if math.isfinite(plainly_s[p.name])]
    lasts_s = [part.lasts_s for part in waiting]
    return {
        "waiting": float(len(waiting)),
        "waiting_gpus": float(sum(part.gpus for part in waiting)),
        "busy_gpus": float(sum(sum(job.nodes.values()) for job in snapshot.jobs)),
        "expected_wait_s": math.fsum(waits_s) / len(waits_s) if waits_s else 0.0,
        "expected_length_s": math.fsum(lasts_s) / len(lasts_s) if lasts_s else 0.0,
        "left_s": EPOCH_S - snapshot.at_s % EPOCH_S,
    }


def _parts(snapshot: Snapshot, durations: Durations) -> list[PlayedJob]:
    """Everybody as seen now, by what is predicted now."""
    return [
        PlayedJob(
            job.name, job.gpus, snapshot.at_s, job.submitted_s,
            _left_s(job, snapshot.at_s, durations) if job.nodes else _guess_s(job, durations),
            job.priority, job.nodes,
        )
        for job in snapshot.jobs
        if job.nodes or job.gpus
    ]  # fmt: skip


def _guess_s(job: JobSeen, durations: Durations) -> float:
    return durations.quantile(job.user, job.gpus, job.submitted_s, 0.5, name=job.label)


def _left_s(job: JobSeen, now_s: float, durations: Durations) -> float:
    age_s = now_s - job.started_s if math.isfinite(job.started_s) else 0.0
    whole_s = durations.quantile(job.user, job.gpus, job.submitted_s, RUNS_ON, age_s, job.label)
    return max(whole_s - age_s, 1.0)


def _mean(values: deque[float]) -> float:
    """With some weight on nothing, so that the first few do not swing it."""
    return math.fsum(values) / (len(values) + 5.0)
