"""A week in which no one answers: `python -m benchmarks.unanswered_week`.

The daemon itself, with its store, correlation and Slack (a stand-in on loopback), over fleets of 1,000 GPUs with
faults that are drawn as in `benchmarks.lane_months`. Its detectors say what was drawn, and each fault lasts to the
end: no one repairs it. The clock is simulated and moves by half an hour a look. Counted after the week: faults that
are in an incident, and pages that mentioned the second person and then the team.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.detect_held_out import commit
from benchmarks.lane_months import SEEDS, Fleet, by_hour, true_sources
from benchmarks.report import write
from examples.demo.run import called, slack_configuration
from examples.demo.score import RUNGS
from examples.slack_stand_in.server import StandIn
from nightshift.agent.app import App
from nightshift.agent.settings import load
from nightshift.collectors.frame import Instant
from nightshift.collectors.subject import Inventory
from nightshift.collectors.tick import Tick
from nightshift.detectors.alarms.lanes import Lane, widest
from nightshift.detectors.base import Detector, Finding

GPUS = 1000
START_S, LOOK_S, HOURS = 1.79e9, 1800.0, 168
AFTER_S = 3 * 3600.0
"""So long after the last fault the week is over: time for every page to have called everyone."""
DELIVERY_S = 240.0


class Scripted:
    """A detector that says what was drawn for it."""

    def __init__(self, real: Detector, faults: Sequence[Finding]) -> None:
        self.name, self.faults, self.stated = real.name, real.faults, real.stated
        self.snapshot, self.restore = real.snapshot, real.restore
        self._faults = [fault for fault in faults if fault.detector == real.name]

    def update(self, tick: Tick, inventory: Inventory) -> list[Finding]:
        begun = [fault for fault in self._faults if fault.since.t_s <= tick.at_s]
        return [replace(fault, at=Instant(tick.at_s)) for fault in begun]


class WeekClock:
    """Moves by one look as soon as all incidents have come as far as they can."""

    def __init__(self) -> None:
        self.t_s = START_S
        self.app: App | None = None

    def now_s(self) -> float:
        return self.t_s

    def wait_until(self, t_s: float) -> bool:
        assert self.app is not None
        self.app.settle(60.0)
        self.t_s = t_s
        if t_s >= START_S + HOURS * 3600.0 + AFTER_S:
            self.app.shut_down()
        return True

    def wake(self) -> None:
        pass


def drawn(fleet: Fleet, rng: np.random.Generator) -> list[Finding]:
    """The faults of a week, each from the hour of its onset on."""
    hours = by_hour(true_sources(fleet, GPUS), rng)
    found = []
    for hour in range(HOURS):
        at_s = START_S + (hour + 1) * 3600.0
        found += [fleet.alarm(s.kind, s.places, at_s, rng, n) for n, s in enumerate(hours.get(hour, []))]
    return found


def week(seed: int, folder: Path) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    fleet = Fleet(GPUS, rng)
    faults, clock = drawn(fleet, rng), WeekClock()
    with StandIn(sockets=False) as chat:
        told = slack_configuration(chat, folder)
        told["slack"] = {**told["slack"], "escalate_s": 1800.0}
        (folder / "logs").mkdir()
        settings = {
            "cluster": "week",
            "state_dir": str(folder / "state"),
            "sources": [{"type": "training_logs", "directory": str(folder / "logs")}],
            "tick_s": LOOK_S,
            "console": {"port": 0},
        }
        (folder / "nightshift.yaml").write_text(yaml.safe_dump(settings | told))
        app = clock.app = App(load(folder / "nightshift.yaml"), clock=clock)
        app.inventory.load(fleet.inventory.memberships())
        app.detection.swap([Scripted(detector, faults) for detector in app.detection.detectors])
        app.start()
        try:
            app.run()
            return counted(app, chat, faults)
        finally:
            app.stop()


def counted(app: App, chat: StandIn, faults: Sequence[Finding]) -> dict[str, Any]:
    incidents = [app.store.incident(summary.id) for summary in app.store.incidents()]
    open_now = {stored.finding.episode for incident in incidents for stored in incident.findings}
    pages = [i for i in incidents if widest(stored.finding for stored in i.findings) is Lane.PAGE]
    calls: dict[str, list[str]] = {}
    until_s = time.monotonic() + DELIVERY_S
    while time.monotonic() < until_s:
        calls = {page.id: called(chat.workspace, page.id) for page in pages}
        if all(len(whom) == len(RUNGS) for whom in calls.values()):
            break
        time.sleep(1.0)  # the clock stands still, Slack does not
    return {
        "faults": len(faults),
        "opened": sum(fault.episode in open_now for fault in faults),
        "incidents": len(incidents),
        "pages": len(pages),
        "second_person_called": sum(RUNGS[0] in whom for whom in calls.values()),
        "team_called": sum(RUNGS[1] in whom for whom in calls.values()),
    }


def main() -> None:
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    at, weeks = commit(), []
    for seed in SEEDS:
        with tempfile.TemporaryDirectory() as folder:
            weeks.append({"seed": seed, **week(seed, Path(folder))})
    write("unanswered_week", {"commit": at, "gpus": GPUS, "weeks": weeks})


if __name__ == "__main__":
    main()
