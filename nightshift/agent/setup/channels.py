"""Where people are told: Slack and the outlets, built, started and stopped as one, and what keeps them quiet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fastapi import FastAPI

from nightshift.agent.approvals.gate import Gate
from nightshift.agent.approvals.people import Directory
from nightshift.agent.clock import Clock
from nightshift.agent.incidents.suppression import Suppressor
from nightshift.agent.metrics import Metrics
from nightshift.agent.notify.outlets.courier import OutletParts
from nightshift.agent.notify.outlets.room import Outlets
from nightshift.agent.notify.outlets.settings import build as build_outlets
from nightshift.agent.notify.slack.room import Slack
from nightshift.agent.settings import Settings
from nightshift.agent.store.incident_store import Store
from nightshift.collectors.base import Permanent
from nightshift.collectors.subject import Inventory
from nightshift.controllers.guard import MaintenanceWindow


@dataclass(frozen=True)
class ChannelParts:
    """What the doors work with. `windows` gives the maintenance windows of the present settings."""

    store: Store
    gate: Gate
    clock: Clock
    directory: Directory
    inventory: Inventory
    metrics: Metrics
    leads: Callable[[], bool]
    wake: Callable[[], None]
    windows: Callable[[], Sequence[MaintenanceWindow]]


class Channels:
    """Every configured door. Raises Permanent where one cannot be built, such as for a secret that is not there."""

    def __init__(self, settings: Settings, parts: ChannelParts) -> None:
        self._parts = parts
        self.suppressor = Suppressor(parts.store, parts.clock, parts.windows, parts.inventory)
        self.outlets = self._build_outlets(settings) if settings.outlets.enabled else None
        self.slack = self._build_slack(settings) if settings.slack.enabled else None
        self._all = [door for door in (self.slack, self.outlets) if door is not None]

    def start(self) -> None:
        for door in self._all:
            door.start()

    def wake(self) -> None:
        """There is news: compares now rather than at the next poll."""
        for door in self._all:
            door.wake()

    def stop(self) -> None:
        for door in self._all:
            door.stop()

    def add_to(self, console: FastAPI) -> None:
        """Routes that Slack (in HTTP mode) and PagerDuty call."""
        for door in self._all:
            door.add_to(console)

    def _build_outlets(self, settings: Settings) -> Outlets:
        calls = self._parts.metrics.outlet_calls
        parts = OutletParts(
            store=self._parts.store,
            clock=self._parts.clock,
            outlets=build_outlets(settings.outlets),
            settings=settings.outlets,
            cluster=settings.cluster,
            suppressor=self.suppressor,
            leads=self._parts.leads,
            count=lambda outlet, what, outcome: calls.labels(outlet, what, outcome).inc(),
        )
        return Outlets(parts)

    def _build_slack(self, settings: Settings) -> Slack:
        if settings.slack.mode == "http" and not settings.console.enabled:
            raise Permanent("slack.mode http needs the console's port: console.enabled is false")
        outlets = self.outlets
        return Slack(
            settings.slack,
            store=self._parts.store,
            gate=self._parts.gate,
            clock=self._parts.clock,
            directory=self._parts.directory,
            leads=self._parts.leads,
            wake=self._parts.wake,
            suppressor=self.suppressor,
            inventory=self._parts.inventory,
            pager=outlets.pager if outlets is not None else lambda incident_id: "",
            count=lambda what, outcome: self._parts.metrics.chat_calls.labels(what, outcome).inc(),
        )
