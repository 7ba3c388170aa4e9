"""The contract under mixtures of what telemetry does: a walk is one draw, named by its seed, for one detector.

`detectors.contract.check` plays each trouble alone. Here they come together: lost, late, repeated and reordered
ticks, resets, swaps, devices that come and go, frozen and absurd values, clocks that jump, columns that an
exporter does not give, lines that come late or twice, and a restart from a snapshot, over a fleet that is broken
or perfectly well. A seed is a whole reproduction: `walk(kind, draw(seed))`.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from nightshift.collectors.frame import Frame, Reason, SeriesIndex, StepSeries
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.telemetry.derived_metrics import Deriver
from nightshift.collectors.tick import Tick
from nightshift.detectors.base import Detector, Finding, State
from nightshift.detectors.contract.streams import EXTREMES, faults
from nightshift.detectors.contract.testing import Kind, key, lawful
from nightshift.detectors.contract.world import HealthyFleet

BEGINS_AGAIN = {"source"}
"""After a restart, the time in which nobody asked is no silence: it says less at first, never more."""
LENGTH = 48
Rng = np.random.Generator
Ticks = list[Tick]
Trouble = Callable[[Ticks, Rng], Ticks]


def _stretch(ticks: Ticks, rng: Rng) -> range:
    start, stop = sorted(rng.integers(0, len(ticks) + 1, 2).tolist())
    return range(start, stop)


def _each(ticks: Ticks, rng: Rng, change: Callable[[Frame], Frame]) -> Ticks:
    """A change of the frames of a random stretch."""
    hit = _stretch(ticks, rng)
    return [
        replace(t, frames={k: change(f) for k, f in t.frames.items()}) if n in hit else t
        for n, t in enumerate(ticks)
    ]


def _steps(ticks: Ticks, rng: Rng, change: Callable[[StepSeries], StepSeries]) -> Ticks:
    hit = _stretch(ticks, rng)
    return [replace(t, steps=tuple(change(s) for s in t.steps)) if n in hit else t for n, t in enumerate(ticks)]


def _put(frame: Frame, rng: Rng, share: float, values: tuple[float, ...]) -> Frame:
    hit = rng.random(frame.values.shape) < share
    return replace(frame, values=np.where(hit, rng.choice(values, frame.values.shape), frame.values))


def missing(ticks: Ticks, rng: Rng) -> Ticks:
    """Half of all values."""
    return _each(ticks, rng, lambda f: _put(f, rng, 0.5, (np.nan,)))


def columns(ticks: Ticks, rng: Rng) -> Ticks:
    """Metrics that this exporter does not give, the others in another order."""

    def change(frame: Frame) -> Frame:
        keep = rng.permutation(len(frame.metrics))[: int(rng.integers(0, len(frame.metrics) + 1))]
        seen = frame.observed_at_s if frame.observed_at_s.shape[1] == 1 else frame.observed_at_s[:, keep]
        names = tuple(frame.metrics[n] for n in keep.tolist())
        return replace(frame, metrics=names, values=frame.values[:, keep], observed_at_s=seen)

    return _each(ticks, rng, change)


def silent(ticks: Ticks, rng: Rng) -> Ticks:
    """No source answers for a while."""
    hit = _stretch(ticks, rng)
    return [
        Tick(t.at_s, {}, (), sources=tuple(replace(s, ok=False, reason=Reason.TIMEOUT) for s in t.sources))
        if n in hit
        else t
        for n, t in enumerate(ticks)
    ]


def lost(ticks: Ticks, rng: Rng) -> Ticks:
    """Three of ten ticks."""
    return [t for t in ticks if rng.random() > 0.3]


def repeated(ticks: Ticks, rng: Rng) -> Ticks:
    """Three of ten ticks come twice."""
    return [t for tick in ticks for t in ([tick, tick] if rng.random() < 0.3 else [tick])]


def reordered(ticks: Ticks, rng: Rng) -> Ticks:
    """Ticks up to four places from their own."""
    order = np.argsort(np.arange(len(ticks)) + rng.uniform(0, 4, len(ticks)), kind="stable")
    return [ticks[n] for n in order.tolist()]


def late(ticks: Ticks, rng: Rng) -> Ticks:
    """Samples and steps that were observed up to an hour ago."""
    by_s = float(rng.uniform(1.0, 4000.0))
    ticks = _each(ticks, rng, lambda f: replace(f, observed_at_s=f.observed_at_s - by_s))
    return _steps(ticks, rng, lambda s: replace(s, t_s=s.t_s - by_s))


def lines(ticks: Ticks, rng: Rng) -> Ticks:
    """Kernel events and log lines that come in a later tick, or again in it."""
    found = list(ticks)
    for number, tick in enumerate(ticks[:-1]):
        if not (tick.events or tick.logs) or rng.random() < 0.4:
            continue
        to = int(rng.integers(number, len(ticks)))
        if rng.random() < 0.5:
            found[number] = replace(found[number], events=(), logs=())
        events, logs = (*found[to].events, *tick.events), (*found[to].logs, *tick.logs)
        found[to] = replace(found[to], events=events, logs=logs)
    return found


def reset(ticks: Ticks, rng: Rng) -> Ticks:
    """Some counters begin at zero again and stay there, with or without a new epoch."""

    def change(frame: Frame) -> Frame:
        values, own = frame.values.copy(), [n for n, m in enumerate(frame.metrics) if m.endswith("_total")]
        values[:, own] = np.where(rng.random(len(own)) < 0.7, 0.0, values[:, own])
        return replace(frame, values=values, epoch=frame.epoch + int(rng.integers(0, 2)))

    return _each(ticks, rng, change)


def swapped(ticks: Ticks, rng: Rng) -> Ticks:
    """Every GPU's row carries another UUID, in another order."""

    def change(frame: Frame) -> Frame:
        if frame.kind is not SubjectKind.GPU:
            return frame
        names = [Subject(s.kind, f"{s.name}-new") for s in frame.index.subjects]
        order = rng.permutation(len(names)).tolist()
        return replace(frame, index=SeriesIndex(frame.kind, tuple(names[n] for n in order)))

    return _each(ticks, rng, change)


def membership(ticks: Ticks, rng: Rng) -> Ticks:
    """Four of ten subjects are not there, others in every tick."""

    def change(frame: Frame) -> Frame:
        keep = np.flatnonzero(rng.random(len(frame.index)) < 0.6)
        index = SeriesIndex(frame.kind, tuple(frame.index.subjects[n] for n in keep.tolist()))
        seen = frame.observed_at_s if len(frame.observed_at_s) == 1 else frame.observed_at_s[keep]
        return replace(frame, index=index, values=frame.values[keep], epoch=frame.epoch[keep], observed_at_s=seen)

    return _each(ticks, rng, change)


def constant(ticks: Ticks, rng: Rng) -> Ticks:
    """Everything but the counters stays as it was in the first tick: a perfectly steady load."""
    return _held(ticks, rng, lambda metric: not metric.endswith("_total"))


def frozen(ticks: Ticks, rng: Rng) -> Ticks:
    """Everything stays as it was in the first tick, the counters too, as where work has stopped."""
    return _held(ticks, rng, lambda metric: True)


def _held(ticks: Ticks, rng: Rng, of: Callable[[str], bool]) -> Ticks:
    first = ticks[0].frames if ticks else {}

    def change(frame: Frame) -> Frame:
        known = first.get(frame.kind)
        if known is None or known.metrics != frame.metrics or known.values.shape != frame.values.shape:
            return frame
        return replace(frame, values=np.where([of(m) for m in frame.metrics], known.values, frame.values))

    return _each(ticks, rng, change)


def extremes(ticks: Ticks, rng: Rng) -> Ticks:
    """Any float in three of ten places."""
    ticks = _each(ticks, rng, lambda f: _put(f, rng, 0.3, EXTREMES))

    def step(series: StepSeries) -> StepSeries:
        hit = {
            n: np.where(rng.random(len(c)) < 0.4, rng.choice(EXTREMES, len(c)), c)
            for n, c in series.columns.items()
        }
        times = np.where(rng.random(len(series.t_s)) < 0.2, rng.choice(EXTREMES[:4], len(series.t_s)), series.t_s)
        return replace(series, columns=hit, t_s=times)

    return _steps(ticks, rng, step)


def rewound(ticks: Ticks, rng: Rng) -> Ticks:
    """Steps begin anew, come backwards, or are another run's."""
    back = int(rng.integers(0, 300))

    def change(series: StepSeries) -> StepSeries:
        run = series.run if rng.random() < 0.5 else f"run-{rng.integers(0, 3)}"
        order = slice(None, None, -1) if rng.random() < 0.3 else slice(None)
        found = {n: c[order] for n, c in series.columns.items()}
        return replace(series, run=run, step=series.step[order] - back, t_s=series.t_s[order], columns=found)

    return _steps(ticks, rng, change)


def jumped(ticks: Ticks, rng: Rng) -> Ticks:
    """The daemon's clock leaps, by minutes or weeks, forwards or backwards."""
    by_s = float(rng.choice([-7200.0, -30.0, 30.0, 7200.0, 1e6]))
    since = int(rng.integers(0, len(ticks) + 1))
    return ticks[:since] + [_at(t, t.at_s + by_s) for t in ticks[since:]]


def _at(tick: Tick, at_s: float) -> Tick:
    return replace(tick, at_s=at_s, frames={k: replace(f, at_s=at_s) for k, f in tick.frames.items()})


BENIGN: tuple[Trouble, ...] = (missing, columns, lost, repeated, reordered, late, reset, swapped, constant)
"""What makes no healthy fleet ill. A device that leaves and a source that falls silent may be a fault."""
TROUBLES: tuple[Trouble, ...] = (*BENIGN, frozen, silent, lines, membership, extremes, rewound, jumped)
CLAUSES = {
    "missing samples": ("missing", "columns", "silent", "lost"),
    "late samples": ("late", "lines"),
    "duplicated samples": ("repeated", "lines"),
    "reordered samples": ("reordered", "columns"),
    "a counter reset": ("reset",),
    "a UUID swap": ("swapped",),
    "devices that join and leave": ("membership",),
    "all-constant input": ("constant", "frozen"),
    "float extremes": ("extremes",),
    "clocks that jump, steps that rewind": ("jumped", "rewound"),
}
"""The contract's words, and the troubles that are walked for them."""


@dataclass(frozen=True, eq=False)
class WalkDraw:
    """What one seed gives: ticks that every detector is walked over, and after how many it is restarted."""

    told: str
    healthy: bool
    troubles: frozenset[str]
    ticks: Ticks
    inventory: Inventory
    restart: int
    lot: float
    """[0, 1): whether, and from which, an earlier version's state the walk begins."""


@dataclass(frozen=True, slots=True)
class Walked:
    """What one walk checked, counted by the contract's words, and what it broke."""

    checks: Counter[str]
    problems: tuple[str, ...]


def draw(seed: int) -> WalkDraw:
    """The walk of this seed. Counters are made rates after the troubles, as collectors do it, or before them."""
    rng = np.random.default_rng([seed, 20_261])
    healthy = bool(rng.random() < 0.3)
    chosen = BENIGN if healthy else TROUBLES
    troubles = [chosen[n] for n in rng.integers(0, len(chosen), int(rng.integers(0, 6))).tolist()]
    world, stride = HealthyFleet(seed=int(rng.integers(2**31))), int(rng.integers(1, 6))
    ticks = (world.ticks(LENGTH * stride) if healthy else list(faults(world)))[::stride]
    start = int(rng.integers(0, max(len(ticks) - LENGTH, 0) + 1))
    ticks = ticks[start : start + LENGTH]
    rates_last = healthy or bool(rng.random() < 0.5)
    if not rates_last:
        ticks = _with_rates(ticks)
    for trouble in troubles:
        ticks = trouble(ticks, rng)
    if rates_last:
        ticks = _with_rates(ticks)
    names = [trouble.__name__ for trouble in troubles]
    told = f"seed {seed} ({'well' if healthy else 'broken'}; {', '.join(names)})"
    restart = int(rng.integers(0, LENGTH))
    return WalkDraw(told, healthy, frozenset(names), ticks, world.inventory(), restart, float(rng.random()))


def _with_rates(ticks: Ticks) -> Ticks:
    deriver = Deriver()
    return [replace(t, frames={k: deriver.extend(f) for k, f in t.frames.items()}) for t in ticks]


def walk(kind: Kind, drawn: WalkDraw, earlier: Sequence[bytes] = ()) -> Walked:
    """One detector over one draw: lawful findings, the same twice, no clear in silence, no alarm of a healthy
    fleet, and a restart that changes nothing. `earlier` are states that previous versions saved: a third of the
    walks begin from one of them."""
    place = int(drawn.lot * 3 * len(earlier))
    state = earlier[place] if place < len(earlier) else None
    checks = Counter(clause for clause, own in CLAUSES.items() if drawn.troubles & set(own))
    try:
        problems = _judged(kind, drawn, state, checks)
    except Exception:  # noqa: BLE001  whatever a detector raises is what it breaks of the contract
        problems = [f"raised {traceback.format_exc(limit=-2)}"]
    return Walked(checks, tuple(f"{drawn.told}: {problem}" for problem in problems))


def _after_restart(kind: Kind, resumed: Sequence[Finding], now: Sequence[Finding]) -> str:
    """What a restart changed of one look's findings; empty where nothing that the contract forbids."""
    if kind.plugin in BEGINS_AGAIN:
        return "brings a burst" if len(resumed) > len(now) else ""
    return "" if key(resumed) == key(now) else "continues differently"


def _judged(kind: Kind, drawn: WalkDraw, state: bytes | None, checks: Counter[str]) -> list[str]:
    def begun() -> Detector:
        detector = kind()
        if state is not None:
            detector.restore(state)
        return detector

    problems: list[str] = []
    first, again, resumed = begun(), begun(), None
    said: list[Finding] = []
    for number, tick in enumerate(drawn.ticks):
        now = first.update(tick, drawn.inventory)
        said += now
        if resumed is not None:
            checks["a saved state"] = 1
            if changed := _after_restart(kind, resumed.update(tick, drawn.inventory), now):
                problems.append(f"restored after tick {drawn.restart} it {changed} at {number}")
                resumed = None
        if number == drawn.restart:
            resumed = kind()
            resumed.restore(first.snapshot())
        if not any((tick.frames, tick.steps, tick.events, tick.logs)):
            checks["no_data is never clear"] = 1
            problems += [f"cleared in silence: {f.summary}" for f in now if f.state is State.CLEAR]
    checks["determinism"] = 1
    if key([f for tick in drawn.ticks for f in again.update(tick, drawn.inventory)]) != key(said):
        problems.append("the same ticks gave other findings")
    if state is not None:
        checks["a saved state of the previous version"] = 1
        return problems + list(lawful(said, drawn.ticks, begun_earlier=True))
    if drawn.healthy:
        checks["nothing wrong, nothing said"] = 1
        problems += [f"nothing is wrong, and it said {f.fault}: {f.summary}" for f in said[:1]]
    return problems + list(lawful(said, drawn.ticks))
