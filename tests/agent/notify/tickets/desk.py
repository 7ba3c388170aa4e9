"""A store, a gate and one ticket system on loopback, for the tests of tickets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from examples.ticket_stand_in.server import StandIn, System
from examples.ticket_stand_in.systems import PROJECT, TOKEN, USER, JiraStandIn, ServiceNowStandIn, WebhookStandIn
from nightshift.agent.approvals.gate import Gate
from nightshift.agent.approvals.people import Directory
from nightshift.agent.approvals.people import Settings as People
from nightshift.agent.approvals.policy import ApprovalSettings
from nightshift.agent.incidents.suppression import Suppressor
from nightshift.agent.notify.tickets.lane import TicketCourier, TicketParts
from nightshift.agent.notify.tickets.settings import Settings, build
from nightshift.agent.store.incident import Cause
from nightshift.agent.store.incident_store import Store
from nightshift.detectors.alarms.lanes import Lane, Proof, in_lane
from nightshift.detectors.base import Finding, State
from tests.agent.incidents import ManualClock, a_finding

SYSTEMS = ("jira_cloud", "jira_data_center", "servicenow", "webhook")
TICKET = in_lane(a_finding(), Lane.TICKET, Proof.FACT, "it can wait for the working day")
PEOPLE = People.model_validate(
    {"roles": {"ann@example.org": "admin"}, "owners": [{"team": "ml", "namespaces": ["team"]}]}
)


def a_system(name: str) -> System:
    if name == "servicenow":
        return ServiceNowStandIn()
    return WebhookStandIn() if name == "webhook" else JiraStandIn(cloud=name == "jira_cloud")


def settings_for(name: str, folder: Path, url: str, **more: Any) -> Settings:
    (folder / "token").write_text(TOKEN)
    values: dict[str, Any] = {"system": name, "url": url, "token_file": folder / "token"}
    if name in ("jira_cloud", "servicenow"):
        values["user"] = USER
    if name.startswith("jira"):
        values["project"] = PROJECT
    return Settings.model_validate(values | more)


@dataclass
class Desk:
    """One daemon's tickets. `wall` is their wall clock (Unix s)."""

    store: Store
    clock: ManualClock
    courier: TicketCourier
    stand_in: StandIn
    wall: list[float]

    def opened(self, *found: Finding) -> str:
        return self.store.open_incident("leak", found or [TICKET])

    def once(self, times: int = 1, apart_s: float = 1.0) -> None:
        for _ in range(times):
            self.courier.once()
            self.wall[0] += apart_s

    def moved(self, name: str, cause: Cause) -> None:
        self.clock.advance(1)
        self.store.move(name, cause, "lifecycle", "", self.store.incident(name).version)

    def ended(self, name: str) -> None:
        self.moved(name, Cause.STAGE_FAILED)
        self.moved(name, Cause.CLEARED_BY_ITSELF)

    def relapsed(self, name: str) -> None:
        self.clock.advance(60)
        finding = self.store.incident(name).findings[0].finding
        self.store.update_finding(name, replace(finding, state=State.FIRING, at=replace(finding.at, t_s=2000.0)))

    def notes(self, name: str) -> list[str]:
        return [step.note for step in self.store.incident(name).history if step.cause == Cause.TICKETED]


def a_courier(store: Store, clock: ManualClock, settings: Settings, wall: list[float]) -> TicketCourier:
    directory = Directory(PEOPLE)
    parts = TicketParts(
        store=store,
        clock=clock,
        suppressor=Suppressor(store, clock),
        leads=lambda: True,
        wall_s=lambda: wall[0],
        system=build(settings),
        settings=settings,
        cluster="alpha",
        gate=Gate(store, ApprovalSettings(), clock, directory),
        directory=directory,
        console_url="https://nightshift.example",
    )
    return TicketCourier(parts)


@cache
def fresh_store() -> bytes:
    """A database with its tables: making them takes longer than a test."""
    with TemporaryDirectory() as folder:
        Store(f"sqlite:///{folder}/store.sqlite", ManualClock()).close()
        return Path(folder, "store.sqlite").read_bytes()


@contextmanager
def a_desk(name: str, folder: Path, **more: Any) -> Iterator[Desk]:
    """Tickets whose thread is not running: `once` compares."""
    clock, wall = ManualClock(), [1_000_000.0]
    if not (folder / "store.sqlite").exists():
        (folder / "store.sqlite").write_bytes(fresh_store())
    store = Store(f"sqlite:///{folder}/store.sqlite", clock)
    with StandIn(a_system(name)) as stand_in:
        courier = a_courier(store, clock, settings_for(name, folder, stand_in.url, **more), wall)
        try:
            yield Desk(store, clock, courier, stand_in, wall)
        finally:
            courier.stop()
            store.close()
