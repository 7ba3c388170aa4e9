"""One run of the demo: the world, a configuration file for it, the daemon built from that file, and who approves.

The daemon is `agent.app.App` as `nightshift run` builds it; the demo hands it a clock and reads its store. What the
script holds stays on this side.
"""

from __future__ import annotations

import json
import math
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from examples.demo import recorded, recording
from examples.demo.scenario import TICK_S, BenignKind, Scenario, draw
from examples.demo.score import ESCALATE_S, RUNGS, Report, is_due, score, score_asleep
from examples.demo.serving import CADVISOR, DCGM, KERNEL_LOG
from examples.demo.world import World, gpu_subject
from examples.slack_stand_in.server import StandIn
from examples.slack_stand_in.workspace import TEAM, Workspace
from nightshift.agent.app import App
from nightshift.agent.approvals.gate import Gate
from nightshift.agent.approvals.kernel_gate import KernelGate
from nightshift.agent.approvals.policy import Person, Role
from nightshift.agent.console.control_pages import newest_by_job, power_rows
from nightshift.agent.goodput.report import as_json as goodput_json
from nightshift.agent.goodput.report import make as make_goodput
from nightshift.agent.notify.slack.blocks import ChatMessage
from nightshift.agent.notify.slack.weekly import message as weekly_message
from nightshift.agent.settings import load as load_settings
from nightshift.agent.store.incident import Incident, IncidentState
from nightshift.agent.store.incident_store import Store
from nightshift.agent.store.receipts import Receipts
from nightshift.collectors.frame import Instant
from nightshift.collectors.subject import Inventory, Subject
from nightshift.collectors.tick import Tick
from nightshift.detectors.base import Detector, Fault, Finding, Severity, State, StatedRate

CONFIG = "nightshift.yaml"
LIMIT_S = 7_200.0
"""A run ends after this much simulated time, whatever is still open."""
GRACE_S = 2_700.0
"""... or this long after the last onset: what was not found by then was missed."""
RACK_W = 24_000.0
"""What the demo's rack may draw: four nodes of eight GPUs at their highest limit, and their hosts."""
_QUIET_END_S = 180.0
_RECEIPTS = 1000
_READS_FOR_S = 20.0
"""How long the demo's approver looks at a plan (simulated)."""
_SETTLE_TIMEOUT_S = 20.0
_CHANNEL, _ANN = "C0ONCALL", "U0ANN"
ASLEEP_S = 3_600.0
"""Without an answer a run is an hour."""
_STORM_FROM_S, _STORM_EVERY_S = 300.0, 45.0
_DELIVERY_TIMEOUT_S = 120.0
_ON_CALL = tuple(Person(name, frozenset({Role.ADMIN}), "demo") for name in ("on-call@demo", "lead@demo"))


def configuration(world: World, folder: Path, port: int) -> dict[str, object]:
    """The daemon's settings for the world's sources: what a user would write."""
    urls = {node: server.url for node, server in world.nodes.items()}

    def pages(path: str) -> list[str]:
        return [url + path for url in urls.values()]

    names = {url + path: node for node, url in urls.items() for path in (CADVISOR, KERNEL_LOG)}
    return {
        "cluster": "demo",
        "tick_s": 2 * TICK_S,
        "node_names": names,
        "state_dir": str(folder / "state"),
        "sources": [
            {"type": "dcgm_exporter", "urls": pages(DCGM)},
            {"type": "cadvisor", "urls": pages(CADVISOR)},
            {"type": "node_log", "urls": pages(KERNEL_LOG)},
            {"type": "training_logs", "directory": str(world.logs)},
        ],
        "actuators": [{"type": "simulated", "path": str(world.cluster.path)}],
        # in shadow: what power control would set is shown, and nothing is set
        "power": {
            "enabled": True,
            "racks": {"rack-1": {"nodes": list(urls), "budget_w": RACK_W, "host_w": 700.0 * len(urls)}},
        },
        # a port that the file tells, so that `nightshift status` finds the console
        "console": {"port": port or _free_port()},
    }


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def slack_configuration(stand_in: StandIn, folder: Path) -> dict[str, object]:
    """Settings of a Slack that is the stand-in, called back at the console's port. Its secrets are files."""
    for name, text in (("bot-token", "xoxb-demo"), ("signing-secret", stand_in.signing_secret)):
        (folder / name).write_text(text)
    stand_in.workspace.channels[_CHANNEL] = []
    stand_in.workspace.add_user(_ANN, "ann@demo.example")
    return {
        "slack": {
            "enabled": True,
            "mode": "http",
            "bot_token_file": str(folder / "bot-token"),
            "signing_secret_file": str(folder / "signing-secret"),
            "workspace": TEAM,
            "channel": _CHANNEL,
            "api_url": stand_in.api_url,
            "escalate_s": ESCALATE_S,
            "escalate_to": list(RUNGS),
        },
        "people": {"roles": {"ann@demo.example": "admin"}},
    }


def plain_text(message: ChatMessage) -> list[str]:
    """A message's lines without their marks."""
    lines = (line for block in message.blocks for line in block["elements"])
    return ["".join(one["text"] for one in line["elements"]).rstrip() for line in lines]


class GoneMad:
    """A detector that also calls healthy GPUs critical, one more every `_STORM_EVERY_S`, and never stops."""

    def __init__(self, real: Detector, gpus: Sequence[Subject], from_s: float) -> None:
        self._real = real
        self._gpus = {gpu: from_s + n * _STORM_EVERY_S for n, gpu in enumerate(gpus)}
        self.snapshot, self.restore = real.snapshot, real.restore

    @property
    def name(self) -> str:
        return self._real.name

    @property
    def faults(self) -> tuple[Fault, ...]:
        return self._real.faults

    @property
    def stated(self) -> StatedRate:
        return self._real.stated

    def update(self, tick: Tick, inventory: Inventory) -> list[Finding]:
        found = self._real.update(tick, inventory)
        for gpu, since_s in self._gpus.items():
            if since_s <= tick.at_s:
                told = (self.name, self.faults[0], gpu, State.FIRING, Instant(since_s), Instant(tick.at_s))
                found.append(Finding(*told, Severity.CRITICAL, "The clock is low without a cause", 50.0, 1.0))
        return found


def called(room: Workspace, incident: str) -> list[str]:
    """Whom the threads of an incident's messages mention."""
    names = re.compile(rf"\b{incident}\b")
    cards = [message for message in room.messages(_CHANNEL) if names.search(json.dumps(message))]
    said = json.dumps([room.thread(_CHANNEL, card["ts"]) for card in cards])
    return [whom for whom in RUNGS if whom in said]


@dataclass
class Approver:
    """Approves every plan after reading it for a while, through the same gate as everybody."""

    store: Store
    gate: Gate
    _seen_s: dict[str, float] = field(default_factory=dict)

    def look(self, now_s: float) -> int:
        """Approves what it has read; returns how many plans it decided."""
        decided = 0
        for summary in self.store.incidents((IncidentState.AWAITING_APPROVAL,)):
            plan = summary.plan_sha256
            if plan is None or now_s - self._seen_s.setdefault(plan, now_s) < _READS_FOR_S:
                continue
            for person in _ON_CALL:
                if self.gate.approve(summary.id, plan, person).changed:
                    decided += 1
                if self.store.incident(summary.id).state is not IncidentState.AWAITING_APPROVAL:
                    break
        return decided


class DemoClock:
    """The demo's time, an `agent.clock.Clock`: as fast as the daemon asks for it, or slowly enough to watch.

    Before time moves on, everything that is due at the present time happens (`Demo.between_ticks`), so that a run
    on a slow machine tells the same story.
    """

    def __init__(self, world: World, between_ticks: Callable[[], None], pace_s: Callable[[], float]) -> None:
        self._world = world
        self._between_ticks = between_ticks
        self._pace_s = pace_s
        self._woken = threading.Event()

    def now_s(self) -> float:
        return self._world.now_s

    def wait_until(self, t_s: float) -> bool:
        began_s = time.monotonic()
        self._between_ticks()
        left_s = self._pace_s() - (time.monotonic() - began_s)
        if self._woken.wait(max(0.0, left_s)):
            self._woken.clear()
            return False
        self._world.advance(t_s)
        return True

    def wake(self) -> None:
        self._woken.set()


class Demo:
    """Builds a run in a folder. `approve`: the demo approves by itself. `slack`: also tells a stand-in for Slack,
    shown at its `url`. `asleep`: no one answers for an hour, and the detector `mad` alarms on every GPU. `watch` is
    called every tick. `settings`: more of the daemon's settings."""

    def __init__(
        self,
        seed: int,
        folder: Path,
        *,
        approve: bool,
        port: int = 0,
        slack: bool = False,
        asleep: bool = False,
        mad: str = "throttle",
        pace_s: Callable[[Demo], float] = lambda _: 0.0,
        watch: Callable[[Demo], None] = lambda _: None,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        self.folder = folder
        self.scenario: Scenario = draw(seed)
        self._recording = recording.load()
        self.world = World(self.scenario, self._recording, folder)
        self.config = folder / CONFIG
        self.stand_in = StandIn(sockets=False) if slack or asleep else None
        values = configuration(self.world, folder, port)
        if self.stand_in is not None:
            self.stand_in.__enter__()
            values |= slack_configuration(self.stand_in, folder)
        values |= settings or {}
        self.config.write_text(yaml.safe_dump(values, sort_keys=False))
        self.clock = DemoClock(self.world, self.between_ticks, lambda: pace_s(self))
        self.app = App(load_settings(self.config), clock=self.clock)
        self.mad = mad if asleep else ""
        if asleep:
            gpus, from_s = [gpu_subject(gpu) for gpu in self.scenario.gpus], self.world.start_s + _STORM_FROM_S
            parts = self.app.detection.detectors
            self.app.detection.swap([GoneMad(d, gpus, from_s) if d.name == mad else d for d in parts])
        if self.stand_in is not None and self.app.server is not None:
            self.stand_in.shown = (_CHANNEL, _ANN, f"{self.app.server.url}/slack/events")
        self.unsettled = 0
        self._approver = Approver(self.app.store, self.app.gate) if approve else None
        self._watch = watch
        self._began_s = time.monotonic()
        self._quiet_since_s: float | None = None

    def run(self) -> Report:
        """Runs the daemon until the story is over; the App stays up until `close`."""
        self._began_s = time.monotonic()
        recorded.tell(self.app.store, self.world.start_s)
        self.app.start()
        self.app.run()
        if self.mad:
            self._deliver()
            noisy, calls = self.app.detection.budget.noisy(), self.calls()
            report = score_asleep(self.world, self.incidents(), self.mad, noisy.get(self.mad, ""), calls)
        else:
            report = score(self.world, self.incidents())
        wall_s = round(time.monotonic() - self._began_s, 1)
        return replace(report, wall_s=wall_s, unsettled=self.unsettled, story=self.story())

    def goodput(self) -> dict[str, Any]:
        """Where the GPU time of the run went, as `nightshift goodput --by cause --json` tells it."""
        with self.app.store.database.read() as connection:
            report = make_goodput(connection, self.world.start_s, self.world.now_s, None)
        return goodput_json(report, "cause")

    def story(self) -> tuple[str, ...]:
        """What else the night shows, a line each, as the console has it: power, co-location, a kernel, the week."""
        store, now_s = self.app.store, self.world.now_s
        receipts = Receipts(store.database)
        power = power_rows(receipts.newest("power", _RECEIPTS), self.app.history, self.app.inventory, now_s)
        pairs = [(row.before_w, row.after_w) for row in power if math.isfinite(row.before_w + row.after_w)]
        before_w, after_w = (
            (math.fsum(side) for side in zip(*pairs, strict=True)) if pairs else (math.nan, math.nan)
        )
        clipped = sum(bool(row.decision.clips) for row in power)
        shared = [row for row in newest_by_job(receipts.newest("scheduling", _RECEIPTS)) if row.seen.get("shares")]
        (search,) = KernelGate(self.app.gate, store, self.clock).searches()
        week = f"{datetime.fromtimestamp(now_s, UTC):%G-W%V}"
        with store.database.read() as connection:
            report = make_goodput(connection, self.world.start_s, now_s, None)
        # as the daemon sends it: none of a week in which nothing was booked
        weekly = plain_text(weekly_message(report, week, "")) if report.wall_gpu_s > 0 else []
        power_line = (
            f"Power, in shadow: limits of {len(pairs)} jobs {before_w:,.0f} W, proposed {after_w:,.0f} W, "
            f"{clipped} proposals limited by the shield"
        )
        return (
            power_line,
            *(f"Co-location, a drawn queue: {row.job} {row.why.partition(': ')[2]}" for row in shared),
            *(
                f"Kernel, recorded on an H200: {one.problem} {one.verdict}, certificate {one.sha256[:16]}"
                for one in search.certificates
            ),
            *("Weekly report: " + line for line in weekly),
        )

    def calls(self) -> dict[str, list[str]]:
        """Whom the threads of Slack mention, by incident."""
        if self.stand_in is None:
            return {}
        return {incident.id: called(self.stand_in.workspace, incident.id) for incident in self.incidents()}

    def _deliver(self) -> None:
        """Waits until every page that is due for it has called everyone: the clock stands still, Slack does not."""
        until_s = time.monotonic() + _DELIVERY_TIMEOUT_S
        while time.monotonic() < until_s:
            calls = self.calls()
            if all(len(calls[i.id]) == len(RUNGS) for i in self.incidents() if is_due(i, self.world.now_s)):
                return
            time.sleep(0.5)

    def close(self) -> None:
        self.app.stop()
        self.world.close()
        if self.stand_in is not None:
            self.stand_in.__exit__()

    def incidents(self) -> list[Incident]:
        """Everything that the daemon stored, oldest first."""
        store = self.app.store
        return sorted((store.incident(s.id) for s in store.incidents()), key=lambda i: i.opened_s)

    def between_ticks(self) -> None:
        """Lets everything happen that is due now; ends the run when the story is over."""
        self._settle()
        if self._approver is not None and self._approver.look(self.world.now_s):
            self._settle()
        self._watch(self)
        if self._over():
            self.app.shut_down()

    def _settle(self) -> None:
        if not self.app.settle(_SETTLE_TIMEOUT_S):
            self.unsettled += 1

    def _over(self) -> bool:
        world = self.world
        if self.mad:
            return world.elapsed_s >= ASLEEP_S
        last_onset_s = max(fault.onset_s for fault in self.scenario.faults)
        if world.elapsed_s > min(LIMIT_S, last_onset_s + GRACE_S):
            return True
        told = (
            all(record.ended_s is not None for record in world.records) and world.elapsed_s > self._benign_end_s()
        )
        if not told or self.app.store.open_incidents():
            self._quiet_since_s = None
            return False
        if self._quiet_since_s is None:
            self._quiet_since_s = world.now_s
        return world.now_s - self._quiet_since_s >= _QUIET_END_S

    def _benign_end_s(self) -> float:
        lengths = {kind: len(getattr(self._recording, kind.value).cells) * TICK_S for kind in BenignKind}
        return max(b.onset_s + b.rounds * lengths[b.kind] for b in self.scenario.benign)
