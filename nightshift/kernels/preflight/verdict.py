"""Whether a tested GPU may work: bits first, then figures against its own history, else against the fleet's.

A figure is refused where it is worse than a limit: the prediction bound of a Student t over the logarithms of
earlier passes (`CHANCE` for each figure and run), and never nearer than the figure's `least` change. Earlier passes
count where software and level are the same, those at the same clock and temperature before others. So the stated
rate of false refusals is at most `CHANCE` times the number of figures, as far as the passes are alike. A figure
without history is not judged, and the result says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from nightshift.detectors.tails import t_quantile, t_tail
from nightshift.kernels.preflight.gpu_tests import FIGURES, GpuRun

CHANCE = 1e-5
ENOUGH, MOST = 5, 40
"""Passes that make a history, and how many of the oldest are used: a slow decline must not move the limit."""
CLOCK_MHZ, HEAT_C = 60.0, 10.0
"""Widths of the bins of clock and temperature."""
FLEET_LEAST = 0.05
"""GPUs of one model differ by more than one GPU from day to day."""
BLIND = 0.04
"""A limit that is further away than this cannot show a slow-down of four percent: the result says so."""


class PreflightState(StrEnum):
    PASSED = "passed"
    REFUSED = "refused"
    BROKEN = "broken"
    """The test failed, which says nothing of the node: no one is drained for it."""


@dataclass(frozen=True, slots=True)
class FigureLimit:
    """What a figure is compared with. `change`: the ratio from which it is refused; `of`: the passes behind it."""

    usual: float
    change: float
    of: str
    count: int
    chance: float


@dataclass(frozen=True, slots=True)
class FigureReading:
    """A figure beside its limit. `worse`: by how much (ratio; negative: better)."""

    name: str
    value: float
    worse: float
    limit: FigureLimit | None

    @property
    def refused(self) -> bool:
        return self.limit is not None and self.worse > self.limit.change


@dataclass(frozen=True, slots=True)
class EarlierPass:
    """One earlier pass of a GPU."""

    serial: str
    model: str
    software: str
    level: str
    clock_mhz: float
    temperature_c: float
    figures: Mapping[str, float]


@dataclass(frozen=True)
class GpuVerdict:
    """`reasons`: why it is refused or broken. `chance`: the stated rate of false refusals of a run."""

    state: PreflightState
    reasons: tuple[str, ...]
    readings: tuple[FigureReading, ...]
    chance: float


def judged(run: GpuRun, software: str, passes: Sequence[EarlierPass]) -> GpuVerdict:
    """The verdict on one GPU's run, with earlier passes of the whole fleet at hand."""
    if run.suspect:
        return GpuVerdict(PreflightState.BROKEN, (f"the test itself is wrong: {run.suspect}",), (), 0.0)
    readings = tuple(
        _reading(name, value, limit(name, run, software, passes))
        for name, value in run.figures.items()
        if name in FIGURES and math.isfinite(value) and value > 0
    )
    reasons = [_bits(run)] if run.wrong else []
    reasons += [_slow(reading) for reading in readings if reading.refused]
    chance = sum(reading.limit.chance for reading in readings if reading.limit is not None)
    return GpuVerdict(
        PreflightState.REFUSED if reasons else PreflightState.PASSED, tuple(reasons), readings, chance
    )


def limit(name: str, run: GpuRun, software: str, passes: Sequence[EarlierPass]) -> FigureLimit | None:
    """What a figure of this run is held to; None where nothing is known to compare with."""
    serial, model = run.facts.get("serial", ""), run.facts.get("model", "")
    same = (software, run.level)
    alike = [p for p in passes if (p.software, p.level) == same and p.figures.get(name)]
    own = [p for p in alike if p.serial == serial]
    binned = [p for p in own if _bin(p.clock_mhz, p.temperature_c) == _bin(run.clock_mhz, run.temperature_c)]
    least = FIGURES[name].least
    for chosen, of, floor in (
        (binned, "this GPU at the same clock and temperature", least),
        (own, "this GPU at other clocks or temperatures", 2 * least),
    ):
        if len(chosen) >= ENOUGH:
            return _limit([p.figures[name] for p in chosen[:MOST]], floor, of)
    fleet: dict[str, float] = {}
    for p in alike:
        if p.model == model and p.serial != serial:
            fleet.setdefault(p.serial, p.figures[name])
    if len(fleet) >= ENOUGH:
        return _limit(list(fleet.values()), max(FLEET_LEAST, 2 * least), f"{len(fleet)} other GPUs of this model")
    return None


def _bin(clock_mhz: float, temperature_c: float) -> tuple[int, int]:
    known = math.isfinite(clock_mhz) and math.isfinite(temperature_c)
    return (round(clock_mhz / CLOCK_MHZ), round(temperature_c / HEAT_C)) if known else (-1, -1)


def _limit(values: Sequence[float], floor: float, of: str) -> FigureLimit:
    logs = np.log(np.asarray(values, dtype=float))
    n, spread = len(logs), float(np.std(logs, ddof=1)) * math.sqrt(1 + 1 / len(logs))
    change = max(floor, math.expm1(t_quantile(n - 1, 1.0 - CHANCE) * spread))
    chance = t_tail(n - 1, math.log1p(change) / spread) if spread > 0 else 0.0
    return FigureLimit(float(math.exp(np.median(logs))), change, of, n, chance)


def _reading(name: str, value: float, found: FigureLimit | None) -> FigureReading:
    usual = math.nan if found is None else found.usual
    worse = value / usual - 1.0 if FIGURES[name].sign > 0 else usual / value - 1.0
    return FigureReading(name, value, worse, found)


def _bits(run: GpuRun) -> str:
    """What was wrong, and on which SM, if it was always the same."""
    first = run.wrong[0]
    total = sum(wrong.count for wrong in run.wrong)
    text = f"{first.check}: {total} wrong values in {len(run.wrong)} launches"
    text += "" if math.isnan(first.temperature_c) else f", the first at {first.temperature_c:.0f} °C"
    places = {place for wrong in run.wrong for place in wrong.places}
    if first.check != "memory" and len(places) == 1 and len(run.wrong) > 1:
        text += f", all on SM {places.pop()}"
    return text


def _slow(reading: FigureReading) -> str:
    figure, found = FIGURES[reading.name], reading.limit
    assert found is not None
    return (
        f"{figure.words}: {100 * reading.worse:.1f} % worse than {found.of} ({found.count} passes);"
        f" the limit is {100 * found.change:.1f} %"
    )


def blind(readings: Iterable[FigureReading]) -> list[str]:
    """Figures that could not have shown a slow-down of four percent, or were not judged at all."""
    return [r.name for r in readings if r.limit is None or r.limit.change > max(BLIND, FIGURES[r.name].least)]
