"""The contract under any mixture of what telemetry does: drawn by hypothesis, for every detector.

`detectors.check` plays each trouble alone. Here they come together: lost, late, repeated and reordered ticks,
resets, swaps, devices that come and go, frozen and absurd values, clocks that jump, and restarts from a snapshot.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from collectors.frame import Frame, Reason, SeriesIndex, StepSeries
from collectors.subject import Subject, SubjectKind
from collectors.tick import Tick
from detectors.base import Finding, State
from detectors.check import _key, _lawful, make
from detectors.check_streams import EXTREMES, faults, played
from detectors.plugins import ALL

EXAMPLES = int(os.environ.get("NIGHTSHIFT_WALKS", "4"))
"""The same few each time; NIGHTSHIFT_WALKS=2000 draws new ones."""
BEGINS_AGAIN = {"source"}
"""After a restart, the time in which nobody asked is no silence: it says less at first, never more."""
Rng = np.random.Generator
Ticks = list[Tick]


def _each(ticks: Ticks, rng: Rng, change: Callable[[Frame], Frame]) -> Ticks:
    """A change of the frames of a random stretch."""
    start, stop = sorted(rng.integers(0, len(ticks) + 1, 2).tolist())
    return [
        replace(t, frames={k: change(f) for k, f in t.frames.items()}) if start <= n < stop else t
        for n, t in enumerate(ticks)
    ]


def _steps(ticks: Ticks, rng: Rng, change: Callable[[StepSeries], StepSeries]) -> Ticks:
    start, stop = sorted(rng.integers(0, len(ticks) + 1, 2).tolist())
    return [
        replace(t, steps=tuple(change(s) for s in t.steps)) if start <= n < stop else t for n, t in enumerate(ticks)
    ]


def _put(frame: Frame, rng: Rng, share: float, values: tuple[float, ...]) -> Frame:
    hit = rng.random(frame.values.shape) < share
    return replace(frame, values=np.where(hit, rng.choice(values, frame.values.shape), frame.values))


def missing(ticks: Ticks, rng: Rng) -> Ticks:
    return _each(ticks, rng, lambda f: _put(f, rng, 0.5, (np.nan,)))


def silent(ticks: Ticks, rng: Rng) -> Ticks:
    """No source answers for a while."""
    start, stop = sorted(rng.integers(0, len(ticks) + 1, 2).tolist())
    gone = [
        Tick(t.at_s, {}, (), sources=tuple(replace(s, ok=False, reason=Reason.TIMEOUT) for s in t.sources))
        for t in ticks
    ]
    return [gone[n] if start <= n < stop else t for n, t in enumerate(ticks)]


def lost(ticks: Ticks, rng: Rng) -> Ticks:
    return [t for t in ticks if rng.random() > 0.3]


def repeated(ticks: Ticks, rng: Rng) -> Ticks:
    return [t for tick in ticks for t in ([tick, tick] if rng.random() < 0.3 else [tick])]


def reordered(ticks: Ticks, rng: Rng) -> Ticks:
    order = np.argsort(np.arange(len(ticks)) + rng.uniform(0, 4, len(ticks)), kind="stable")
    return [ticks[n] for n in order.tolist()]


def late(ticks: Ticks, rng: Rng) -> Ticks:
    by_s = float(rng.uniform(1.0, 4000.0))
    ticks = _each(ticks, rng, lambda f: replace(f, observed_at_s=f.observed_at_s - by_s))
    return _steps(ticks, rng, lambda s: replace(s, t_s=s.t_s - by_s))


def reset(ticks: Ticks, rng: Rng) -> Ticks:
    def change(frame: Frame) -> Frame:
        values, own = frame.values.copy(), [n for n, m in enumerate(frame.metrics) if m.endswith("_total")]
        values[:, own] = np.where(rng.random(len(own)) < 0.7, 0.0, values[:, own])
        return replace(frame, values=values, epoch=frame.epoch + int(rng.integers(0, 2)))

    return _each(ticks, rng, change)


def swapped(ticks: Ticks, rng: Rng) -> Ticks:
    def change(frame: Frame) -> Frame:
        if frame.kind is not SubjectKind.GPU:
            return frame
        names = [Subject(s.kind, f"{s.name}-new") for s in frame.index.subjects]
        order = rng.permutation(len(names)).tolist()
        return replace(frame, index=SeriesIndex(frame.kind, tuple(names[n] for n in order)))

    return _each(ticks, rng, change)


def membership(ticks: Ticks, rng: Rng) -> Ticks:
    def change(frame: Frame) -> Frame:
        keep = np.flatnonzero(rng.random(len(frame.index)) < 0.6)
        index = SeriesIndex(frame.kind, tuple(frame.index.subjects[n] for n in keep.tolist()))
        seen = frame.observed_at_s if len(frame.observed_at_s) == 1 else frame.observed_at_s[keep]
        return replace(frame, index=index, values=frame.values[keep], epoch=frame.epoch[keep], observed_at_s=seen)

    return _each(ticks, rng, change)


def frozen(ticks: Ticks, rng: Rng) -> Ticks:
    first = {k: f.values for k, f in ticks[0].frames.items()} if ticks else {}

    def change(frame: Frame) -> Frame:
        known = first.get(frame.kind)
        return replace(frame, values=known) if known is not None and known.shape == frame.values.shape else frame

    return _each(ticks, rng, change)


def extremes(ticks: Ticks, rng: Rng) -> Ticks:
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
        columns = {n: c[order] for n, c in series.columns.items()}
        return replace(series, run=run, step=series.step[order] - back, t_s=series.t_s[order], columns=columns)

    return _steps(ticks, rng, change)


def jumped(ticks: Ticks, rng: Rng) -> Ticks:
    """The daemon's clock leaps, by minutes or weeks, forwards or backwards."""
    by_s = float(rng.choice([-7200.0, -30.0, 30.0, 7200.0, 1e6]))
    since = int(rng.integers(0, len(ticks) + 1))
    return ticks[:since] + [_at(t, t.at_s + by_s) for t in ticks[since:]]


def _at(tick: Tick, at_s: float) -> Tick:
    return replace(tick, at_s=at_s, frames={k: replace(f, at_s=at_s) for k, f in tick.frames.items()})


TROUBLES = (
    missing, silent, lost, repeated, reordered, late, reset, swapped, membership, frozen, extremes, rewound, jumped,
)  # fmt: skip


@pytest.mark.parametrize("kind", ALL, ids=lambda k: k.plugin)
@given(
    st.lists(st.sampled_from(TROUBLES), max_size=5), st.integers(0, 2**31), st.integers(1, 5), st.integers(0, 40)
)
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="NIGHTSHIFT_WALKS" not in os.environ,
    phases=[Phase.explicit, Phase.generate],
)
def test_any_mixture_of_troubles_is_borne(kind, troubles, seed: int, stride: int, restart: int) -> None:  # type: ignore[no-untyped-def]
    """Lawful findings, the same twice, no clear in silence, and a restart changes nothing: so no burst either."""
    whole, inventory = played(faults)
    rng, ticks = np.random.default_rng(seed), list(whole[::stride][-40:])
    for trouble in troubles:
        ticks = trouble(ticks, rng)
    first, again, resumed = make(kind), make(kind), make(kind)
    said: list[list[Finding]] = []
    for number, tick in enumerate(ticks):
        said.append(first.update(tick, inventory))
        if number == restart:
            resumed = make(kind)
            resumed.restore(first.snapshot())
        elif number > restart:
            after = resumed.update(tick, inventory)
            if kind.plugin in BEGINS_AGAIN:
                assert len(after) <= len(said[-1]), "a restart brought a burst"
            else:
                assert _key(after) == _key(said[-1]), "a restart changed what is said"
        if not tick.frames and not tick.steps and not tick.events and not tick.logs:
            assert [f.summary for f in said[-1] if f.state is State.CLEAR] == []
    flat = [f for found in said for f in found]
    assert list(_lawful(flat, ticks)) == []
    assert _key([f for tick in ticks for f in again.update(tick, inventory)]) == _key(flat)
