"""Any detector against labelled events: `python -m nightshift.detectors.contract.backtest DETECTOR RECORDING
EVENTS.csv`.

RECORDING is a file that `nightshift record` wrote. EVENTS.csv has the columns series, start_s, end_s (Unix s): a
fault of `series` (a subject such as `gpu:GPU-1234` or `rank:ml/train#0`) that can be found from start_s and is of
use until end_s. Prints delay, recall, false alarms per 1,000 series-days with exact intervals, and whether the
detector's stated rate was held; null where a figure has no base. `--settings` takes its settings as JSON.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nightshift.collectors.recording import RecordedTick, RecordingError, read
from nightshift.collectors.subject import Inventory, SubjectKind
from nightshift.detectors.base import Detector, State
from nightshift.detectors.contract.evaluate import AlarmAt, Evaluation, Event, score
from nightshift.detectors.plugins import ALL

_STEPPERS = (SubjectKind.RANK, SubjectKind.JOB)
LONGEST_GAP_S = 600.0
"""A series unseen for longer was not watched in between."""


class EventsError(ValueError):
    """The file of labelled events cannot be used; names the file and the line."""


def load_events(path: Path) -> list[Event]:
    """The labelled events of a CSV file. Raises EventsError."""
    found = []
    try:
        with path.open(newline="") as file:
            for number, row in enumerate(csv.DictReader(file), start=2):
                try:
                    event = Event(row["series"], float(row["start_s"]), float(row["end_s"]))
                except (KeyError, TypeError, ValueError) as error:
                    raise EventsError(f"{path}, line {number}: needs series, start_s, end_s: {error!r}") from error
                if not event.start_s <= event.end_s < math.inf:
                    raise EventsError(f"{path}, line {number}: start_s {event.start_s} to end_s {event.end_s}")
                found.append(event)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise EventsError(f"{path}: {error}") from error
    return found


def run(detector: Detector, ticks: Iterable[RecordedTick]) -> tuple[list[AlarmAt], dict[str, float]]:
    """(alarms, seconds watched by series) of a detector over recorded ticks.

    An alarm is the beginning of an episode. Watched are the series that the detector's stated rate counts, while
    they were seen at least every ten minutes, and every series that alarmed.
    """
    inventory, kind = Inventory(), detector.stated.series
    alarms: list[AlarmAt] = []
    firing: set[str] = set()
    watched: dict[str, float] = {}
    last_s: dict[str, float] = {}
    for recorded in ticks:
        for relation in recorded.relations:
            inventory.observe(relation.child, relation.parent, relation.since_s)
            if relation.until_s < math.inf:
                inventory.end(relation.child, relation.parent, relation.until_s)
        tick = recorded.tick
        seen = {str(s.subject) for s in tick.steps if kind in _STEPPERS}
        if kind in tick.frames:
            seen |= {str(subject) for subject in tick.frames[kind].index.subjects}
        for finding in detector.update(tick, inventory):
            name = str(finding.subject)
            seen.add(name)
            if finding.state is State.FIRING and finding.episode not in firing:
                firing.add(finding.episode)
                alarms.append(AlarmAt(name, finding.at.t_s))
            elif finding.state is State.CLEAR:
                firing.discard(finding.episode)
        for name in seen:
            gap_s = tick.at_s - last_s.get(name, tick.at_s)
            watched[name] = watched.get(name, 0.0) + (gap_s if 0 < gap_s <= LONGEST_GAP_S else 0.0)
            last_s[name] = tick.at_s
    return alarms, watched


def report(detector: Detector, found: Evaluation) -> dict[str, Any]:
    """The score as JSON: null where a figure has no base."""
    stated = detector.stated
    plain = {**asdict(found), "stated_per_1000_series_days": stated.per_1000_series_days}
    plain |= {"counted": stated.series.value, "budget": found.held(stated.per_1000_series_days)}
    return {name: _plain(value) for name, value in plain.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def main(arguments: list[str] | None = None) -> int:
    kinds: dict[str, Any] = {kind.plugin: kind for kind in ALL}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("detector", choices=sorted(kinds))
    parser.add_argument("recording", type=Path)
    parser.add_argument("events", type=Path)
    parser.add_argument("--settings", default="{}", help="the detector's settings as JSON")
    a = parser.parse_args(arguments)
    kind = kinds[a.detector]
    try:
        detector: Detector = kind(kind.Settings.model_validate_json(a.settings))
        events = load_events(a.events)
        alarms, watched = run(detector, read(a.recording))
    except (EventsError, RecordingError, ValueError) as error:
        parser.error(str(error))
    print(json.dumps(report(detector, score(events, alarms, watched)), indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
