"""A fault that an automatic action repairs pages no one; whatever keeps it from being repaired pages at once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from examples.pager_stand_in.server import StandIn
from nightshift.agent.approvals.policy import ApprovalSettings, Person, Role
from nightshift.agent.incidents.suppression import CLEAR_S, PLAN_S, REPAIR_S, page_waits_until_s
from nightshift.agent.store.incident import TRANSITIONS, Cause, IncidentState
from nightshift.collectors.subject import Inventory
from nightshift.controllers.action import ActionKind, ApprovalRule, BlastRadius
from nightshift.detectors.base import Fault, Finding, Severity, State
from tests.agent.incidents import GPU, JOB, NODE, a_diagnosis, a_finding, an_action
from tests.agent.notify.outlets.ward import CRITICAL, Ward, a_ward
from tests.agent.notify.slack.chat import a_chat, text_of

C = Cause
ANN = Person("ann@example.org", frozenset({Role.APPROVER}), "console")
RESTARTS = ApprovalSettings(kinds={ActionKind.RESTART_JOB: ApprovalRule.AUTOMATIC})
LOST = a_finding(Fault.GPU_LOST, severity=Severity.CRITICAL)


def place() -> Inventory:
    inventory = Inventory("alpha")
    inventory.observe(GPU, NODE, 0.0)
    inventory.observe(GPU, JOB, 0.0)
    return inventory


def ward_in(folder: Path, policy: ApprovalSettings = RESTARTS, **more: object) -> AbstractContextManager[Ward]:
    return a_ward(folder, policy=policy, inventory=place(), **more)  # type: ignore[arg-type]


def approved(ward: Ward, *found: Finding) -> str:
    """An incident with a plan that policy has approved, looked at before and after."""
    name = ward.opened(*found)
    ward.once()
    assert ward.gate.approve_by_policy(ward.store.incident(name))
    ward.once()
    return name


def moves(ward: Ward, name: str, *causes: Cause) -> None:
    for cause in causes:
        ward.moved(name, cause)
        ward.once()


def test_a_fault_that_is_repaired_automatically_is_shown_and_pages_no_one(tmp_path: Path) -> None:
    with ward_in(tmp_path) as ward:
        name = approved(ward)
        moves(ward, name, C.INTENT_STORED, C.ACTION_DONE, C.CONFIRMED)
        ward.clock.advance(2 * REPAIR_S)
        ward.once(3, 10.0)
        assert ward.services.pages() == []
        assert ward.services.opsgenie.alerts[f"nightshift/alpha/{name}/1/shown"].state == "closed"


def test_an_incident_waits_for_its_automatic_plan_for_a_minute_only(tmp_path: Path) -> None:
    with ward_in(tmp_path) as ward:
        name = ward.store.open_incident("leak", [CRITICAL])
        ward.clock.advance(PLAN_S - 1)
        ward.once()
        assert ward.services.pages() == []
        ward.clock.advance(1)
        ward.once()
        assert ward.services.pages() == [f"nightshift/alpha/{name}/1"]


@pytest.mark.parametrize(
    "way",
    [
        (C.GUARD_REFUSED,),
        (C.STAGE_FAILED,),
        (C.INTENT_STORED, C.ACTION_FAILED),
        (C.INTENT_STORED, C.OUTCOME_UNKNOWN),
        (C.INTENT_STORED, C.ACTION_DONE, C.NOT_CONFIRMED),
        (C.INTENT_STORED, C.ACTION_DONE, C.STAGE_FAILED),
    ],
    ids="-".join,
)
def test_a_repair_that_is_refused_or_fails_pages_at_once(tmp_path: Path, way: Sequence[Cause]) -> None:
    with ward_in(tmp_path) as ward:
        name = approved(ward)
        moves(ward, name, *way[:-1])
        assert ward.services.pages() == []
        moves(ward, name, way[-1])
        assert ward.services.pages() == [f"nightshift/alpha/{name}/1"]


def test_a_stop_of_all_actions_pages_what_waits(tmp_path: Path) -> None:
    with ward_in(tmp_path) as ward:
        name = approved(ward)
        assert ward.gate.halt(ANN, "freeze").ok
        ward.clock.advance(5)
        ward.once()
        assert ward.services.pages() == [f"nightshift/alpha/{name}/1"]


def test_a_job_that_its_restart_has_stopped_is_still_where_the_alarm_was(tmp_path: Path) -> None:
    inventory = place()
    with a_ward(tmp_path, policy=RESTARTS, inventory=inventory) as ward:
        name = approved(ward)
        moves(ward, name, C.INTENT_STORED, C.ACTION_DONE)
        ward.clock.advance(5)
        inventory.end(GPU, JOB, ward.clock.now_s())
        ward.clock.advance(5)
        ward.once()
        assert ward.services.pages() == []


def test_a_late_repair_pages_and_one_that_is_clear_is_waited_for(tmp_path: Path) -> None:
    with ward_in(tmp_path) as ward:
        name, clears = approved(ward), approved(ward, replace(CRITICAL, detector="other"))
        for each in (name, clears):
            moves(ward, each, C.INTENT_STORED, C.ACTION_DONE)
        over = replace(CRITICAL, detector="other", state=State.CLEAR)
        begun_s = ward.store.incident(name).opened_s
        ward.clock.wait_until(begun_s + REPAIR_S - 1)
        ward.store.update_finding(clears, over)
        ward.once()
        assert ward.services.pages() == []
        ward.clock.advance(1)
        ward.once(3, 5.0)
        assert ward.services.pages() == [f"nightshift/alpha/{name}/1"]
        ward.clock.advance(CLEAR_S)
        ward.once()
        assert ward.services.pages() == [f"nightshift/alpha/{each}/1" for each in (name, clears)]


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        (ActionKind.RESTART_JOB, [LOST]),
        (ActionKind.RESTART_JOB, [CRITICAL, LOST]),
        (ActionKind.CORDON, [LOST]),
        (ActionKind.RESTART_JOB, [CRITICAL, replace(CRITICAL, subject=replace(GPU, name="GPU-9"))]),
    ],
    ids=["not its repair", "another fault beside it", "contained only", "another place beside it"],
)  # fmt: skip
def test_what_the_action_does_not_repair_pages_at_once(
    tmp_path: Path, kind: ActionKind, found: Sequence[Finding]
) -> None:
    policy = ApprovalSettings(kinds={kind: ApprovalRule.AUTOMATIC})
    with ward_in(tmp_path, policy) as ward:
        name = ward.store.open_incident("fault", found)
        ward.store.save_diagnosis(ward.store.incident(name), a_diagnosis(), by="rules")
        target = JOB if kind is ActionKind.RESTART_JOB else NODE
        plan = replace(an_action(f"{name}-1", kind, target), blast_radius=BlastRadius(jobs=(JOB.name,)))
        ward.store.save_plan(ward.store.incident(name), plan, "", by="mitigate")
        ward.once()
        assert ward.services.pages() == [f"nightshift/alpha/{name}/1"]


def test_a_critical_fault_that_joins_while_the_repair_is_under_way_pages_at_once(tmp_path: Path) -> None:
    """Not the crash of the very job that the restart stopped."""
    with ward_in(tmp_path) as ward:
        name = approved(ward)
        moves(ward, name, C.INTENT_STORED)
        at_s = ward.clock.now_s()
        crash = a_finding(Fault.JOB_CRASH, JOB, at_s=at_s, since_s=at_s, severity=Severity.CRITICAL)
        ward.store.attach(name, crash)
        ward.once()
        assert ward.services.pages() == []
        ward.clock.advance(1)
        ward.store.attach(name, replace(LOST, at=crash.at, since=crash.since))
        ward.once()
        assert ward.services.pages() == [f"nightshift/alpha/{name}/1"]


def test_without_an_automatic_kind_nothing_waits(tmp_path: Path) -> None:
    with ward_in(tmp_path, ApprovalSettings()) as ward:
        name = ward.store.open_incident("leak", [CRITICAL])
        ward.once()
        assert ward.services.pages() == [f"nightshift/alpha/{name}/1"]


def test_a_relapse_after_a_repair_waits_once_more_and_pages_where_that_fails(tmp_path: Path) -> None:
    with ward_in(tmp_path) as ward:
        name = approved(ward)
        moves(ward, name, C.INTENT_STORED, C.ACTION_DONE, C.CONFIRMED)
        ward.clock.advance(REPAIR_S)
        ward.relapsed(name)
        ward.once()
        assert ward.services.pages() == []
        ward.clock.advance(PLAN_S)
        ward.once()
        assert len(ward.services.pages()) == 1


KILLED = """
import os, sys
from pathlib import Path
from nightshift.agent.approvals.gate import Gate
from tests.agent.notify.outlets.test_repaired_pages import RESTARTS, place
from tests.agent.notify.outlets.ward import outlet_settings
from nightshift.agent.notify.outlets.pages import PageCourier, OutletParts
from nightshift.agent.notify.outlets.settings import build
from nightshift.agent.store.incident_store import Store
from nightshift.agent.incidents.suppression import Suppressor
from tests.agent.incidents import ManualClock

folder, url, now_s, name = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]), sys.argv[4]
clock = ManualClock(now_s)
store = Store(f"sqlite:///{folder}/store.sqlite", clock)
settings = outlet_settings(folder, url)
suppressor = Suppressor(store, clock, inventory=place(), gate=Gate(store, RESTARTS, clock))
courier = PageCourier(OutletParts(store=store, clock=clock, outlets=build(settings), settings=settings,
                              cluster="alpha", suppressor=suppressor, leads=lambda: True))
method = getattr(courier._ledger, name)
def killed(*a, **k):
    method(*a, **k)
    os._exit(9)
setattr(courier._ledger, name, killed)
courier.once()
os._exit(0)
"""


@pytest.mark.full
@pytest.mark.parametrize(
    ("at", "way"),
    [
        ("put", ()),
        ("trying", (C.INTENT_STORED,)),
        ("told", (C.INTENT_STORED, C.ACTION_DONE)),
        ("round", (C.INTENT_STORED, C.ACTION_DONE)),
    ],
)
def test_a_kill_at_any_write_neither_loses_a_page_nor_pages_what_is_repaired(
    tmp_path: Path, at: str, way: Sequence[Cause]
) -> None:
    services = StandIn()

    def kill(ward: Ward) -> None:
        arguments = [str(tmp_path), services.url, str(ward.clock.now_s()), at]
        command = [sys.executable, "-c", KILLED, *arguments]
        subprocess.run(command, check=False, timeout=240, cwd=Path(__file__).parents[4])

    with ward_in(tmp_path, services=services) as ward:
        name = ward.opened()
        assert ward.gate.approve_by_policy(ward.store.incident(name))
        for cause in way:
            ward.moved(name, cause)
        kill(ward)
        ward.once(2, 10.0)
        assert services.pages() == []
        ward.clock.wait_until(ward.store.incident(name).opened_s + REPAIR_S)
        kill(ward)
        ward.once(2, 10.0)
        assert services.pages() == [f"nightshift/alpha/{name}/1"]


WAYS = st.lists(st.sampled_from([*Cause, None]), max_size=12)


@pytest.mark.full
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(way=WAYS, step_s=st.floats(0.0, 200.0))
def test_whatever_happens_an_open_incident_that_no_automatic_repair_holds_is_paged_within_its_bound(
    tmp_path_factory: pytest.TempPathFactory, way: Sequence[Cause | None], step_s: float
) -> None:
    """Random histories of one incident: once its bound is over, or its state is no step of a repair, it is due."""
    with ward_in(tmp_path_factory.mktemp("way")) as ward:
        name = ward.opened()
        ward.gate.approve_by_policy(ward.store.incident(name))
        for cause in way:
            incident = ward.store.incident(name)
            ward.clock.advance(step_s)
            if cause is not None and (incident.state, cause) in TRANSITIONS:
                ward.store.move(name, cause, "lifecycle", "", incident.version)
            incident, now_s = ward.store.incident(name), ward.clock.now_s()
            until_s = page_waits_until_s(incident, RESTARTS, False, lambda s, at_s: [s, JOB], now_s)
            if until_s is not None:
                assert incident.state not in (IncidentState.ESCALATED, IncidentState.MONITORING)
                relapses = [s.at_s for s in incident.history if s.cause == Cause.RELAPSED]
                assert now_s < until_s <= max([incident.opened_s, *relapses]) + REPAIR_S


def test_the_chat_says_that_a_repair_is_under_way_and_when_it_pages(tmp_path: Path) -> None:
    with a_chat(tmp_path, f"sqlite:///{tmp_path}/s.db", policy=RESTARTS, inventory=place()) as chat:
        name = chat.opened(CRITICAL)
        assert chat.gate.approve_by_policy(chat.store.incident(name))
        chat.once()
        assert "Ticket, no page: an automatic repair. Pages at " in text_of(chat.card(name))
        chat.store.move(name, C.GUARD_REFUSED, "guard", "limit", chat.store.incident(name).version)
        chat.once()
        assert "no page" not in text_of(chat.card(name))


def test_in_the_chat_no_one_is_reminded_while_the_plan_of_a_repair_is_waited_for(tmp_path: Path) -> None:
    quick = {"escalate_s": 60.0}
    with a_chat(tmp_path, f"sqlite:///{tmp_path}/s.db", policy=RESTARTS, inventory=place(), **quick) as chat:
        name = chat.opened(CRITICAL)
        chat.once()
        chat.clock.advance(PLAN_S - 1)
        chat.once()
        assert not any("no decision yet" in said for said in chat.thread(name))
        chat.clock.advance(6)
        chat.once()
        assert any("no decision yet" in said for said in chat.thread(name))


def test_in_the_chat_a_late_repair_reminds(tmp_path: Path) -> None:
    quick = {"escalate_s": 60.0}
    with a_chat(tmp_path, f"sqlite:///{tmp_path}/s.db", policy=RESTARTS, inventory=place(), **quick) as chat:
        name = chat.opened(CRITICAL)
        assert chat.gate.approve_by_policy(chat.store.incident(name))
        chat.once()
        for late_s, reminded in ((REPAIR_S - 1, False), (6.0, True)):
            chat.clock.advance(late_s)
            chat.once()
            assert any("not acknowledged" in said for said in chat.thread(name)) == reminded
