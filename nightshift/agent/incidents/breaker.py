"""Stops every action where Nightshift, or what it relies on, seems to be at fault; a person allows actions again.

`controllers.guard.overrun` decides. The stop is the emergency stop itself (`Gate.stop_itself`): it holds for every
process, survives a restart and ends by `nightshift resume`. A critical incident pages for as long as it lasts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import structlog
from sqlalchemy import Connection

from nightshift.agent.approvals.gate import NIGHTSHIFT, Gate, halt_of
from nightshift.agent.clock import Clock
from nightshift.agent.store.incident import findings_of
from nightshift.agent.store.incident_store import Store
from nightshift.agent.store.intents import deeds
from nightshift.collectors.frame import Instant
from nightshift.collectors.subject import Subject
from nightshift.controllers.action import Action
from nightshift.controllers.guard import Settings, overrun
from nightshift.detectors.base import CERTAIN, Fault, Finding, Severity, State

# An older repair in vain says nothing of the sources of today.
REMEMBERED_S = 86_400.0


class Breaker:
    """Asked before every action, after each that did not help, and at every look."""

    def __init__(
        self,
        store: Store,
        gate: Gate,
        clock: Clock,
        cluster: Subject,
        settings: Callable[[], Settings],
        ignores: Callable[[Action], bool] = lambda action: False,
    ) -> None:
        """`ignores`: actions that touch nothing real, such as a drill's."""
        self._store, self._gate, self._clock = store, gate, clock
        self._cluster, self._settings, self._ignores = cluster, settings, ignores
        self._alarms: list[Finding] | None = None
        """Those that were told and not ended; None: not read yet."""
        self._log = structlog.get_logger("breaker")

    def objection(self, connection: Connection, action: Action | None = None) -> str:
        """Why nothing may be done from now on; empty where it may. Before an action it is asked in the transaction
        of the intent: a stop that came between the gate's last look and that transaction holds as well."""
        now_s, halt = self._clock.now_s(), halt_of(connection)
        if action is not None and self._ignores(action):
            return ""
        if halt.halted:
            return "" if action is None else f"actions are stopped by {halt.by}: {halt.reason}"
        # whoever resumed has seen what was done before
        since_s = max(now_s - REMEMBERED_S, halt.at_s)
        begun = [deed for deed in deeds(connection, since_s) if not self._ignores(deed.action)]
        return overrun(begun, now_s, self._settings(), action)

    def turn(self) -> None:
        """Stops where what was done so far says so."""
        with self._store.database.read() as connection:
            why = self.objection(connection)
        if why:
            self.trip(why)

    def trip(self, reason: str) -> None:
        if self._gate.stop_itself(reason):
            self._log.error("actions stopped", reason=reason)

    def findings(self, now_s: float) -> list[Finding]:
        """The alarm of the stop while it lasts, and its end."""
        halt = self._gate.halted()
        if halt.halted and halt.by == NIGHTSHIFT:
            self._alarms = [self._alarm(halt.reason, halt.at_s, now_s)]
            return self._alarms
        before, self._alarms = self._stored() if self._alarms is None else self._alarms, []
        return [replace(alarm, state=State.CLEAR, at=Instant(now_s)) for alarm in before]

    def _stored(self) -> list[Finding]:
        """The alarm that another process left open."""
        mine = lambda found: found.fault is Fault.ACTIONS_STOPPED and found.state is State.FIRING  # noqa: E731
        open_ = [one.id for one in self._store.open_incidents() if any(map(mine, one.findings))]
        return [found for name in open_ for found in filter(mine, findings_of(self._store.incident(name)))]

    def _alarm(self, reason: str, since_s: float, now_s: float) -> Finding:
        summary = f"Nightshift stopped all of its actions: {reason}"
        told = (NIGHTSHIFT, Fault.ACTIONS_STOPPED, self._cluster, State.FIRING, Instant(since_s), Instant(now_s))
        return Finding(*told, Severity.CRITICAL, summary, CERTAIN, 1.0)
