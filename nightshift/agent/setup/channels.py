"""Where people are told: Slack, the outlets and the ticket system, built, started and stopped as one, and what
keeps them quiet."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fastapi import FastAPI

from nightshift.agent.approvals.gate import Gate
from nightshift.agent.approvals.people import Directory
from nightshift.agent.clock import Clock
from nightshift.agent.incidents.suppression import Suppressor
from nightshift.agent.metrics import Metrics
from nightshift.agent.notify.ledger import DeliveryLedger
from nightshift.agent.notify.outlets.pages import OutletParts
from nightshift.agent.notify.outlets.service import Outlets
from nightshift.agent.notify.outlets.settings import build as build_outlets
from nightshift.agent.notify.outlets.web import secret_of
from nightshift.agent.notify.slack.clicks import Desk, DeskParts
from nightshift.agent.notify.slack.members import WorkspaceMembers
from nightshift.agent.notify.slack.messages import ChatCourier, SlackParts
from nightshift.agent.notify.slack.proposals import Promotions, Teller
from nightshift.agent.notify.slack.service import Slack, secret_now
from nightshift.agent.notify.slack.settings import TIMEOUT_S
from nightshift.agent.notify.slack.settings import Settings as SlackSettings
from nightshift.agent.notify.slack.web import SlackWeb
from nightshift.agent.notify.slack.weekly import WeeklyReport
from nightshift.agent.notify.tickets.lane import TicketCourier, TicketParts
from nightshift.agent.notify.tickets.settings import build as build_tickets
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
        self.suppressor = Suppressor(parts.store, parts.clock, parts.windows, parts.inventory, parts.gate)
        self.outlets = self._build_outlets(settings) if settings.outlets.enabled else None
        self.slack = self._build_slack(settings) if settings.slack.enabled else None
        self.tickets = self._build_tickets(settings) if settings.ticketing is not None else None
        self._all = [door for door in (self.slack, self.outlets, self.tickets) if door is not None]

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
        for door in (self.slack, self.outlets):
            if door is not None:
                door.add_to(console)

    def _build_tickets(self, settings: Settings) -> TicketCourier:
        assert settings.ticketing is not None
        calls = self._parts.metrics.outlet_calls
        parts = TicketParts(
            store=self._parts.store,
            clock=self._parts.clock,
            suppressor=self.suppressor,
            leads=self._parts.leads,
            count=lambda outlet, what, outcome: calls.labels(outlet, what, outcome).inc(),
            system=build_tickets(settings.ticketing),
            settings=settings.ticketing,
            cluster=settings.cluster,
            gate=self._parts.gate,
            directory=self._parts.directory,
            console_url=settings.console.public_url,
        )
        return TicketCourier(parts)

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
        # Slack would call a port where nothing listens, and people would see clicks that do nothing.
        if settings.slack.mode == "http" and not settings.console.enabled:
            raise Permanent("slack.mode http needs the console's port: console.enabled is false")
        outlets = self.outlets
        return build_slack(
            settings.slack,
            store=self._parts.store,
            gate=self._parts.gate,
            clock=self._parts.clock,
            directory=self._parts.directory,
            leads=self._parts.leads,
            wake=self._parts.wake,
            suppressor=self.suppressor,
            inventory=self._parts.inventory,
            price=settings.economy.gpu_hour_price,
            pager=outlets.pager if outlets is not None else lambda incident_id: "",
            count=lambda what, outcome: self._parts.metrics.chat_calls.labels(what, outcome).inc(),
        )


def build_slack(
    settings: SlackSettings,
    *,
    store: Store,
    gate: Gate,
    clock: Clock,
    directory: Directory,
    leads: Callable[[], bool],
    count: Callable[[str, str], None],
    wake: Callable[[], None] = lambda: None,
    suppressor: Suppressor | None = None,
    pager: Callable[[str], str] = lambda incident_id: "",
    inventory: Inventory | None = None,
    price: float | None = None,
) -> Slack:
    """`wake` is called after each click, so that what it approved starts at once; `pager` says which outlet paged
    for an incident. Raises Permanent where a secret's file cannot be read."""
    token, ready = "slack.bot_token_file", threading.Event()
    web = SlackWeb(
        secret_of(token, settings.bot_token_file), settings.api_url, settings.proxy, TIMEOUT_S,
        lambda: secret_now(token, settings.bot_token_file),
    )  # fmt: skip
    suppressor = suppressor or Suppressor(store, clock)
    courier = ChatCourier(
        SlackParts(
            store=store,
            clock=clock,
            web=web,
            settings=settings,
            directory=directory,
            suppressor=suppressor,
            promotions=Teller(Promotions(gate, store, clock), gate, DeliveryLedger(store.database), settings),
            weekly=WeeklyReport(store, DeliveryLedger(store.database), settings, price),
            pager=pager,
            leads=lambda: ready.is_set() and leads(),  # nothing is posted into a workspace that is not proven
            count=lambda outlet, what, outcome: count(what, outcome),
        )
    )

    def clicked() -> None:
        wake()
        courier.wake()

    members = WorkspaceMembers(web, settings.workspace)
    desk = Desk(DeskParts(store, gate, clock, web, settings, directory, suppressor, members, clicked, inventory))
    return Slack(settings, web, courier, desk, ready)
