"""Whether `nightshift calibrate` on a week of one's own telemetry states what the next week brings.

Sets: those of `benchmarks.held_out.leak`, in the same folder. Each of three fleets is calibrated on its first week
as the command does it: the loosened detector listens, a tail is fitted to what it says of this fleet, and the
promise at the default strength follows from it. Then a fresh detector sees the second week of the same machines,
and its alarms are counted. No strength is changed between the two.

A look comes every five minutes (`--step-s 300`); the fleets share the looks, and nothing else. Leaks alone have two
weeks of public telemetry of the same machines. Nothing is chosen on these figures.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from benchmarks.detect_leak import Series
from benchmarks.held_out.leak import DAY_S, by_device, drawn, lifted, replay, subjects, ticks, tidal
from nightshift.collectors.subject import Inventory
from nightshift.detectors.alarms.calibration import LooseAlarms, fitted, listen, loosened
from nightshift.detectors.alarms.promise import promises
from nightshift.detectors.contract.evaluate import garwood
from nightshift.detectors.memory.leak import MemoryLeak

WEEK_S, STEP_S = 7 * DAY_S, 300.0
TOLERATED = 2.0


def between(many: list[Series], from_s: float, to_s: float) -> list[Series]:
    """The same series from `from_s` to `to_s`, which becomes their start; those that have nothing there go."""
    found = []
    for s in many:
        at = (s.t_s >= from_s) & (s.t_s < to_s)
        if at.sum() > 1:
            found.append(replace(s, t_s=s.t_s[at] - from_s, used=s.used[at]))
    return found


def apart(fleets: dict[str, list[Series]]) -> dict[str, slice]:
    """Where each fleet is among the series of all of them."""
    ends = list(accumulate(len(many) for many in fleets.values()))
    return {name: slice(end - len(many), end) for (name, many), end in zip(fleets.items(), ends, strict=True)}


def own_tails(fleets: dict[str, list[Series]]) -> dict[str, tuple[float, int, float]]:
    """What each fleet's own tail states (alarms per 1,000 series-days), from how many episodes and series-days."""
    every, plugin = [s for many in fleets.values() for s in many], MemoryLeak.plugin
    heard = listen(loosened([MemoryLeak]), ticks(every, STEP_S), Inventory())[plugin]
    known = subjects(every)
    found: dict[str, tuple[float, int, float]] = {}
    for name, part in apart(fleets).items():
        of = set(known[part])
        own = LooseAlarms(heard.threshold)
        own.peaks = {key: peak for key, peak in heard.peaks.items() if peak[0] in of}
        own.days = {subject: days for subject, days in heard.days.items() if subject in of}
        tails = fitted({plugin: own}, "the week before")
        rate = promises([MemoryLeak()], tails)[plugin].per_1000_series_days
        found[name] = rate, tails[plugin].episodes, sum(own.days.values())
    return found


def next_week(fleets: dict[str, list[Series]]) -> dict[str, Any]:
    """Of each fleet: the rate that a tail of the first week states, and what the second week brings."""
    stated = own_tails({name: between(many, 0.0, WEEK_S) for name, many in fleets.items()})
    later = {name: between(many, WEEK_S, 2 * WEEK_S) for name, many in fleets.items()}
    told = replay([s for many in later.values() for s in many], STEP_S).alarms
    shipped = MemoryLeak().stated.per_1000_series_days
    found: dict[str, Any] = {}
    for name, part in apart(later).items():
        alarms = [len(times) for times in told[part]]
        days = [float(s.t_s[-1] - s.t_s[0]) / DAY_S for s in later[name]]
        rate, episodes, watched = stated[name]
        expected = rate * sum(days) / 1000.0
        found[name] = {
            "calibrated_on_series_days": watched,
            "episodes_of_the_loosened_detector": episodes,
            "stated_per_1000": rate,
            "shipped_states_per_1000": shipped,
            "series_days": sum(days),
            "alarms": sum(alarms),
            "expected": expected,
            "count_interval_per_1000": [1000.0 * end for end in garwood(sum(alarms), sum(days), 0.9)],
            "realised_per_1000": by_device([float(count) for count in alarms], days, 1000.0),
            "within_twice_the_stated": bool(sum(alarms) <= TOLERATED * expected),
        }
    return found


def measure(folder: Path, score: bool = True) -> dict[str, Any]:
    """The three fleets of the half for the score. Raises FileNotFoundError where a set was not extracted."""
    machines = tidal(folder, score, days=14.0)
    tides = [replace(s, t_s=s.t_s[::5], used=s.used[::5]) for s in drawn(folder, score, days=14.0)]
    return next_week(
        {
            "Bitbrains VMs with a tide": machines,
            "Bitbrains VMs lifted to 97 %": lifted(machines),
            "drawn on Alibaba 2018's mean tide": tides,
        }
    )
