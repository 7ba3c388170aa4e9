"""Fits what each statistical detector promises, from telemetry in which hardly anything is wrong.

Every graded detector is run at its LOOSE strength, at which healthy telemetry alarms now and then. The strongest
moment of each such episode, and the days for which each series was watched, give a tail (`detectors.alarms.tail`).
Series differ more than a series' own days do, and the next series is another one: so the rate is the upper
quantile over resampled series, and where there are few episodes the tail falls slower than any that was measured.

What is truly wrong in the telemetry counts as false, except where the operator's own record excuses it: the promise
is then kept with room to spare, never the other way round.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from nightshift.collectors.base import Permanent
from nightshift.collectors.frame import SeriesIndex
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.alarms.tail import Tail, fit, read
from nightshift.detectors.base import CERTAIN, Detector, State

DAY_S = 86400.0
FEW, CAUTION = 10, 0.25
"""Fewer episodes than FEW have no tail of their own: its scale is the threshold, its shape at least CAUTION."""
SURE, RESAMPLED = 0.9, 400
GAP_S = 3600.0
"""Looks further apart than this do not watch what is between them."""
STEPPERS = (SubjectKind.RANK, SubjectKind.JOB)


class CalibrationError(Permanent):
    """There is nothing to calibrate on, or the file is none."""


@dataclass(frozen=True)
class Loosened:
    """A graded detector at a strength at which healthy telemetry alarms too."""

    detector: Detector
    strength: float


@dataclass
class LooseAlarms:
    """What one loosened detector said: strongest score by episode, and days watched by series."""

    threshold: float
    peaks: dict[str, tuple[Subject, float, float]] = field(default_factory=dict)
    """Episode → (subject, score, when it began)."""
    days: dict[Subject, float] = field(default_factory=dict)

    def only(self, keep: Callable[[Subject], bool], from_s: float = -np.inf, to_s: float = np.inf) -> list[float]:
        """Peaks of the episodes of these series that began in this time."""
        return [score for subject, score, at_s in self.peaks.values() if keep(subject) and from_s <= at_s < to_s]


class WatchedDays:
    """Series-days by series, of frames and of training steps."""

    def __init__(self) -> None:
        self._index: dict[SubjectKind, tuple[SeriesIndex, NDArray[np.float64]]] = {}
        self._days: dict[SubjectKind, dict[Subject, float]] = {}
        self._stepped_s: dict[Subject, float] = {}
        self._last_s: float | None = None

    def look(self, tick: Tick) -> None:
        since_s = 0.0 if self._last_s is None else tick.at_s - self._last_s
        self._last_s = tick.at_s if self._last_s is None else max(tick.at_s, self._last_s)
        since_s = since_s if 0 < since_s <= GAP_S else 0.0
        for kind, frame in tick.frames.items():
            known = self._index.get(kind)
            if known is None or known[0] is not frame.index:
                self._flush(kind)
                known = self._index[kind] = (frame.index, np.zeros(len(frame.index)))
            known[1][:] += np.isfinite(frame.values).any(axis=1) * since_s
        for series in tick.steps:
            before_s = self._stepped_s.get(series.subject, tick.at_s)
            stepped_s = tick.at_s - before_s
            if 0 < stepped_s <= GAP_S:
                days = self._days.setdefault(series.subject.kind, {})
                days[series.subject] = days.get(series.subject, 0.0) + stepped_s / DAY_S
            self._stepped_s[series.subject] = tick.at_s

    def _flush(self, kind: SubjectKind) -> None:
        known = self._index.pop(kind, None)
        if known is None:
            return
        days = self._days.setdefault(kind, {})
        for subject, seconds in zip(known[0].subjects, known[1].tolist(), strict=True):
            if seconds > 0:
                days[subject] = days.get(subject, 0.0) + seconds / DAY_S

    def days(self, kinds: Iterable[SubjectKind]) -> dict[Subject, float]:
        """Days by series of these kinds; ranks and jobs are both what steps."""
        for kind in list(self._index):
            self._flush(kind)
        wanted = dict.fromkeys(k for kind in kinds for k in (STEPPERS if kind in STEPPERS else (kind,)))
        return {s: d for kind in wanted for s, d in self._days.get(kind, {}).items()}


def loosened(kinds: Iterable[Any], own: Mapping[str, BaseModel] | None = None) -> list[Loosened]:
    """Those of these detector classes that are graded, at LOOSE strength; `own` are settings by name."""
    found = []
    for kind in kinds:
        if hasattr(kind, "LOOSE"):
            settings = (own or {}).get(kind.plugin) or kind.Settings()
            found.append(Loosened(kind(settings.model_copy(update={"strength": kind.LOOSE})), kind.LOOSE))
    return found


def listen(
    loose: Iterable[Loosened],
    ticks: Iterable[Tick],
    inventory: Inventory,
    excused: Callable[[Subject, float], bool] = lambda _subject, _at_s: False,
) -> dict[str, LooseAlarms]:
    """What each of these detectors says of the ticks, by name."""
    watched, loose = WatchedDays(), list(loose)
    made = {one.detector.name: one.detector for one in loose}
    heard = {one.detector.name: LooseAlarms(one.strength) for one in loose}
    for tick in ticks:
        watched.look(tick)
        for name, detector in made.items():
            peaks = heard[name].peaks
            for finding in detector.update(tick, inventory):
                if finding.state is not State.FIRING or excused(finding.subject, tick.at_s):
                    continue
                if finding.score >= CERTAIN:
                    continue  # an event: no statistics stand behind it, and none can weigh it
                known = peaks.get(finding.episode, (finding.subject, -np.inf, tick.at_s))
                peaks[finding.episode] = (finding.subject, max(known[1], finding.score), known[2])
    for name, detector in made.items():
        heard[name].days = watched.days((detector.stated.series, *detector.stated.also))
    return heard


def tail_of(
    peaks: Mapping[Subject, list[float]],
    days: Mapping[Subject, float],
    threshold: float,
    source: str,
    seed: int = 0,
) -> Tail:
    """The tail of false episodes of series like these. Raises CalibrationError where none was watched."""
    total = sum(days.values())
    if not total > 0:
        raise CalibrationError("no series was watched")
    scores = np.array([score for found in peaks.values() for score in found], dtype=np.float64)
    tail = fit(scores, total, threshold, source)
    series = sorted(set(days) | set(peaks))
    count = np.array([sum(s >= threshold for s in peaks.get(one, ())) for one in series], dtype=np.float64)
    watched = np.array([days.get(one, 0.0) for one in series])
    drawn = np.random.default_rng(seed).integers(0, len(series), (RESAMPLED, len(series)))
    rates = (count[drawn].sum(axis=1) + 1.0) / np.maximum(watched[drawn].sum(axis=1), 1e-9)
    tail = replace(tail, rate_per_1000=max(tail.rate_per_1000, 1000.0 * float(np.quantile(rates, SURE))))
    if tail.episodes < FEW:
        tail = replace(tail, scale=max(tail.scale, threshold), shape=max(tail.shape, CAUTION))
    return tail


def fitted(heard: Mapping[str, LooseAlarms], telemetry: str) -> dict[str, Tail]:
    """A tail for every detector whose series were watched at all, by name."""
    found = {}
    for name, what in heard.items():
        if not sum(what.days.values()) > 0:
            continue
        peaks: dict[Subject, list[float]] = {}
        for subject, score, _ in what.peaks.values():
            peaks.setdefault(subject, []).append(score)
        source = f"{telemetry}: {len(what.days)} series, GPD over {what.threshold:g}"
        found[name] = tail_of(peaks, what.days, what.threshold, source)
    return found


def save(path: Path, tails: Mapping[str, Tail]) -> None:
    """Writes what `detectors.alarms.tail.read` takes back."""
    text = json.dumps({name: asdict(tail) for name, tail in sorted(tails.items())}, indent=1)
    path.write_text(text + "\n", encoding="utf-8")


def load(path: Path) -> dict[str, Tail]:
    """Tails by detector. Raises CalibrationError that names the file and what is wrong in it."""
    try:
        return read(path)
    except OSError as error:
        raise CalibrationError(f"{path}: {error.strerror or error}") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise CalibrationError(f"{path}: no calibration, as `nightshift calibrate` writes it: {error}") from error
