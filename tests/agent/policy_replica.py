"""A daemon in a process of its own for `test_policy_replicas`: it looks when it is told to, at a fleet that lives
in the test's process, and can be killed or frozen at any moment."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from nightshift.agent import app as app_module
from nightshift.agent.app import App
from nightshift.agent.clock import SteppedClock
from nightshift.agent.settings import Settings
from nightshift.collectors.subject import Inventory, Subject
from nightshift.collectors.tick import Batch
from nightshift.controllers.actuators.power_nodes import LeaseAnswer, NodeStatus
from nightshift.controllers.power import shield
from tests.agent.control.test_policy_path import CRITERIA, WINDOW_S, Fleet


@dataclass
class Far:
    """Calls the fleet in the test's process."""

    calls: Connection
    _one: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, method: str, *arguments: Any) -> Any:
        with self._one:
            self.calls.send((method, arguments))
            return self.calls.recv()


@dataclass
class Nodes:
    """The fleet's nodes, as this daemon reaches them. `dies`: killed while it sends leases."""

    fleet: Far
    dies: bool = False

    def status(self) -> Mapping[str, NodeStatus]:
        return dict(self.fleet("status"))

    def grant(self, leases: Mapping[str, Mapping[str, Any]]) -> Mapping[str, LeaseAnswer]:
        if self.dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return dict(self.fleet("grant", leases))

    def close(self) -> None: ...


@dataclass
class Eyes:
    """The fleet's telemetry, as this daemon collects it."""

    fleet: Far
    name: str = "simulated"
    _told: dict[str, Subject] = field(default_factory=dict)

    def collect(self, now_s: float, inventory: Inventory, timeout_s: float) -> Batch:
        return Fleet.batch(self.fleet("measure", now_s), self._told, now_s, inventory)


def serve(orders: Connection, calls: Connection, settings: dict[str, Any], now_s: float) -> None:
    """Obeys ("look", Unix s) → (leads, mode), ("die",) or ("live",) → None, ("stop",) → None until told to stop."""
    fleet = Far(calls)
    nodes, eyes, clock = Nodes(fleet), Eyes(fleet), SteppedClock(now_s)
    shield.DWELL_S = 0.0
    app_module.build_collectors = lambda *_: [eyes]  # type: ignore[assignment,list-item]
    app = App(Settings(**settings), clock=clock)
    app.policies.gate.criteria = CRITERIA
    power = app.power
    assert power is not None
    power._nodes = nodes
    turned, turn = [math.nan], power.turn

    def noted(at_s: float) -> Any:
        try:
            return turn(at_s)
        finally:
            turned[0] = at_s

    power.turn = noted  # type: ignore[method-assign]
    app.start()
    orders.send("ready")
    while (order := orders.recv())[0] != "stop":
        if order[0] in ("die", "live"):
            nodes.dies = order[0] == "die"
            orders.send(None)
            continue
        clock.wait_until(order[1])
        due = WINDOW_S <= clock.now_s() - power._closed_s < math.inf
        due &= power._looked_in == app.lifecycle.term
        look = app.tick()
        deadline = time.monotonic() + 120.0
        while look is not None and due and turned[0] != look.tick.at_s and time.monotonic() < deadline:
            time.sleep(0.002)
        orders.send((look is not None, str(app.policies.gate.standing("power").mode)))
    app.stop()
    orders.send(None)
