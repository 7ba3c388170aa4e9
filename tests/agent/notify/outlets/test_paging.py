"""One place pages, never two, and never twice: whatever befalls a call, the process or the vendor."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from examples.pager_stand_in.server import Fault, StandIn
from nightshift.agent.approvals.policy import Person, Role
from nightshift.agent.drill import stage
from nightshift.agent.notify.delivery import DeliveryPace, DeliveryRefused
from nightshift.agent.notify.outlets.letter import AlertPhase, Letter, key_of, read_key
from nightshift.agent.notify.outlets.settings import Settings
from nightshift.agent.store.incident import Cause, IncidentState
from nightshift.detectors.base import Severity
from tests.agent.incidents import a_finding
from tests.agent.notify.outlets.ward import StandInAlertmanager, Ward, a_ward

ANN = Person("ann@example.org", frozenset({Role.APPROVER}), "console")
FAILOVER = {"to": "opsgenie", "after_s": 60}


@pytest.fixture
def ward(tmp_path: Path) -> Iterator[Ward]:
    with a_ward(tmp_path) as made:
        yield made


def test_an_incident_pages_one_outlet_by_its_severity_and_the_others_show_it(ward: Ward) -> None:
    grave = ward.opened()
    warning = ward.opened(a_finding())
    note = ward.store.open_incident("a note", [a_finding(severity=Severity.INFO)])
    ward.once(3, 5.0)
    assert ward.services.pagerduty.pages == [f"nightshift/alpha/{grave}/1"]
    assert ward.services.opsgenie.pages == [f"nightshift/alpha/{warning}/1"]
    shown = ward.services.opsgenie.shown
    assert shown == [f"nightshift/alpha/{grave}/1/shown", f"nightshift/alpha/{note}/1/shown"]
    assert [said.partition(":")[0] for said in ward.services.pagerduty.changes] == [warning, note]


def test_an_incident_that_becomes_grave_pages_whom_grave_ones_page(ward: Ward) -> None:
    """Once, and no longer where the warning went; one that nobody was paged for too."""
    warned = ward.opened(a_finding())
    noted = ward.store.open_incident("a note", [a_finding(severity=Severity.INFO)])
    ward.once(2, 5.0)
    for name in (warned, noted):
        ward.clock.advance(10)
        grave = a_finding(severity=Severity.CRITICAL, at_s=ward.clock.now_s())
        ward.store.update_finding(name, grave)
    ward.once(3, 5.0)
    pages = [f"nightshift/alpha/{name}/1" for name in (warned, noted)]
    assert ward.services.pagerduty.pages == pages
    assert [ward.services.pagerduty.alerts[page].level for page in pages] == ["critical", "critical"]
    assert ward.services.opsgenie.pages == [pages[0]]
    assert ward.services.opsgenie.alerts[pages[0]].state == "closed"


def test_an_alert_says_what_where_and_how_grave(ward: Ward) -> None:
    name = ward.opened()
    ward.once()
    alert = ward.services.pagerduty.alerts[f"nightshift/alpha/{name}/1"]
    assert alert.summary.startswith(f"{name}: ")
    assert alert.level == "critical"
    other = ward.services.opsgenie.alerts[f"nightshift/alpha/{name}/1/shown"]
    assert other.level == "P5"


def test_an_approval_acknowledges_and_recovery_resolves(ward: Ward) -> None:
    name = ward.opened()
    ward.once()
    plan = ward.store.incident(name).action
    assert plan is not None
    assert ward.gate.approve(name, plan.plan_sha256, ANN).ok
    ward.once()
    alert = ward.services.pagerduty.alerts[f"nightshift/alpha/{name}/1"]
    assert alert.state == "acknowledged"
    for cause in (Cause.INTENT_STORED, Cause.ACTION_DONE, Cause.CONFIRMED):
        ward.moved(name, cause)
    ward.once()
    assert alert.state == "closed"
    assert {a.state for a in ward.services.opsgenie.alerts.values()} == {"closed"}
    before = len(ward.services.calls)
    ward.once(3)
    assert len(ward.services.calls) == before, "nothing is sent again when nothing changed"


def test_what_is_over_before_it_was_told_pages_nobody(ward: Ward) -> None:
    name = ward.opened()
    ward.cleared(name)
    ward.once(2)
    assert ward.services.calls == []


def test_a_relapse_and_a_failure_after_an_approval_each_page_once_more(ward: Ward) -> None:
    name = ward.opened()
    ward.once()
    ward.cleared(name)
    ward.once()
    ward.relapsed(name)
    ward.once(3, 5.0)
    assert ward.services.pagerduty.pages == [f"nightshift/alpha/{name}/{turn}" for turn in (1, 2)]
    other = ward.opened()
    plan = ward.store.incident(other).action
    assert plan is not None
    ward.once()
    assert ward.gate.approve(other, plan.plan_sha256, ANN).ok
    ward.once()
    for cause in (Cause.INTENT_STORED, Cause.ACTION_FAILED):
        ward.moved(other, cause)
    assert ward.store.incident(other).state is IncidentState.ESCALATED
    ward.once(3, 5.0)
    assert [key for key in ward.services.pagerduty.pages if f"/{other}/" in key] == [
        f"nightshift/alpha/{other}/{turn}" for turn in (1, 2)
    ]
    assert ward.services.pagerduty.alerts[f"nightshift/alpha/{other}/1"].state == "closed"


def test_somebody_who_has_it_already_is_not_called(ward: Ward) -> None:
    """Approved in the chat while the pager could not be reached: a page would come too late to help."""
    ward.services.away.add("pagerduty")
    name = ward.opened()
    plan = ward.store.incident(name).action
    assert plan is not None
    assert ward.gate.approve(name, plan.plan_sha256, ANN).ok
    ward.services.away.clear()
    ward.once(3, 40.0)
    assert ward.services.pages() == []


@pytest.mark.parametrize("kind", ["limited", "broken", "lost_request", "lost_answer"])
@pytest.mark.parametrize("service", ["pagerduty", "opsgenie"])
def test_whatever_befalls_a_call_there_is_one_page_and_one_end(ward: Ward, kind: str, service: str) -> None:
    severity = Severity.CRITICAL if service == "pagerduty" else Severity.WARNING
    name = ward.opened(a_finding(severity=severity))
    ward.services.faults[service].extend([Fault(kind), Fault(kind)])
    ward.once(8, 10.0)
    ward.cleared(name)
    ward.services.faults[service].append(Fault(kind))
    ward.once(8, 10.0)
    pager = getattr(ward.services, service)
    assert ward.services.pages() == [f"nightshift/alpha/{name}/1"]
    assert pager.alerts[f"nightshift/alpha/{name}/1"].state == "closed"
    assert ward.outlets.courier.problem == ""


def test_a_pager_that_is_away_keeps_the_other_outlets_from_nothing(ward: Ward) -> None:
    ward.services.away.add("pagerduty")
    names = [ward.opened() for _ in range(3)]
    ward.once(2, 1.0)
    assert len(ward.services.opsgenie.shown) == 3
    assert "PagerDuty did not answer" in ward.outlets.courier.problem
    ward.services.away.clear()
    ward.once(3, 40.0)
    assert ward.services.pagerduty.pages == [f"nightshift/alpha/{name}/1" for name in names]


def test_a_letter_that_an_outlet_will_not_have_keeps_no_other_from_it(
    ward: Ward, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PagerDuty says 400 to one event again and again: whoever comes after it is called all the same."""
    bad, pager = ward.opened(), ward.outlets.courier._outlets["pagerduty"]
    send = pager.send

    def strict(letters: Sequence[Letter]) -> None:
        if any(letter.incident == bad for letter in letters):
            raise DeliveryRefused("400 Event object is invalid", "PagerDuty")
        send(letters)

    monkeypatch.setattr(pager, "send", strict)
    names = [ward.opened() for _ in range(3)]
    ward.once(2, 1.0)
    assert ward.services.pagerduty.pages == [f"nightshift/alpha/{name}/1" for name in names]
    monkeypatch.undo()
    ward.once(2, 61.0)
    assert f"nightshift/alpha/{bad}/1" in ward.services.pagerduty.pages


def test_an_alert_that_spoils_a_renewal_lets_no_other_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alertmanager takes or refuses what it is sent together, and forgets what is not sent again."""
    with StandInAlertmanager() as manager:
        more = {"alertmanager": {"urls": [manager.url]}, "pages": []}
        with a_ward(tmp_path, **more) as ward:
            bad, *names = [ward.opened() for _ in range(3)]
            ward.once()
            outlet = ward.outlets.courier._outlets["alertmanager"]
            send, renewed = outlet.send, set[str]()

            def strict(letters: Sequence[Letter]) -> None:
                if any(letter.incident == bad for letter in letters):
                    raise DeliveryRefused("400 bad label", "Alertmanager")
                send(letters)
                renewed.update(letter.incident for letter in letters)

            monkeypatch.setattr(outlet, "send", strict)
            ward.wall[0] += outlet.renew_s + 1
            ward.once(2, 1.0)
            assert renewed == {*names}


def test_a_page_that_cannot_be_placed_changes_hands_and_is_withdrawn(tmp_path: Path) -> None:
    with a_ward(tmp_path, failover=FAILOVER) as ward:
        ward.services.away.add("pagerduty")
        name = ward.opened()
        ward.once(3, 10.0)
        assert ward.services.pages() == []
        ward.once(6, 15.0)
        key = f"nightshift/alpha/{name}/1"
        assert ward.services.opsgenie.pages == [key]
        assert ward.services.opsgenie.alerts[f"{key}/shown"].state == "closed", "it is shown no more: it pages"
        ward.services.away.clear()
        ward.once(4, 40.0)
        assert ward.services.pages() == [key]
        assert ward.services.pagerduty.alerts == {}
        assert ward.outlets.pager(name) == "opsgenie"


def test_a_page_that_the_first_outlet_took_without_an_answer_is_closed_there(tmp_path: Path) -> None:
    with a_ward(tmp_path, failover=FAILOVER) as ward:
        ward.services.faults["pagerduty"].append(Fault("lost_answer"))
        name = ward.opened()
        ward.once()
        ward.services.away.add("pagerduty")
        ward.once(8, 15.0)
        ward.services.away.clear()
        ward.once(4, 40.0)
        key = f"nightshift/alpha/{name}/1"
        assert ward.services.pagerduty.alerts[key].state == "closed"
        assert ward.services.opsgenie.alerts[key].state == "triggered"


def test_a_pager_that_refuses_fails_over_at_once(tmp_path: Path) -> None:
    with a_ward(tmp_path, failover=FAILOVER) as ward:
        ward.services.faults["pagerduty"].append(Fault("refused"))
        name = ward.opened()
        ward.once(3, 1.0)
        assert ward.services.pages() == [f"nightshift/alpha/{name}/1"]
        assert ward.services.opsgenie.pages


@pytest.mark.full
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    faults=st.lists(st.sampled_from(["", "limited", "broken", "lost_request", "lost_answer"]), max_size=6),
    crashes=st.sets(st.integers(0, 6)),
)
def test_no_order_of_faults_and_crashes_pages_twice_or_never(
    tmp_path_factory: pytest.TempPathFactory, faults: list[str], crashes: set[int]
) -> None:
    with a_ward(tmp_path_factory.mktemp("ward")) as ward:
        name = ward.opened()
        ward.services.faults["pagerduty"].extend(Fault(kind or "none", 0.1) for kind in faults)
        ledger: Any = ward.outlets.courier._ledger
        real = ledger.told
        calls = [0]

        def told(*arguments: Any) -> None:
            calls[0] += 1
            if calls[0] - 1 in crashes:
                raise KeyboardInterrupt
            real(*arguments)

        ledger.told = told
        for _ in range(24):
            try:
                ward.once(1, 31.0)
            except KeyboardInterrupt:
                ward.wall[0] += 31.0
        assert ward.services.pages() == [f"nightshift/alpha/{name}/1"]
        assert ward.services.pagerduty.alerts[f"nightshift/alpha/{name}/1"].state == "triggered"


KILLED = """
import os, sys
from pathlib import Path
from tests.agent.notify.outlets.ward import outlet_settings
from nightshift.agent.notify.outlets.pages import PageCourier, OutletParts
from nightshift.agent.notify.outlets.settings import build
from nightshift.agent.store.incident_store import Store
from nightshift.agent.incidents.suppression import Suppressor
from tests.agent.incidents import ManualClock

folder, url, when = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
clock = ManualClock()
store = Store(f"sqlite:///{folder}/store.sqlite", clock)
settings = outlet_settings(folder, url)
courier = PageCourier(OutletParts(store=store, clock=clock, outlets=build(settings), settings=settings,
                              cluster="alpha", suppressor=Suppressor(store, clock), leads=lambda: True))
if when == "after":
    courier._ledger.told = lambda *a: os._exit(9)
else:
    courier._outlets["pagerduty"].send = lambda letters: os._exit(9)
courier.once()
os._exit(0)
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_process_that_is_killed_around_a_call_pages_exactly_once(tmp_path: Path, when: str) -> None:
    """Killed after the page was written down, before it was sent; or after it was sent, before that was noted."""
    services = StandIn()
    with a_ward(tmp_path, services=services) as ward:
        name = ward.opened()
        command = [sys.executable, "-c", KILLED, str(tmp_path), services.url, when]
        assert subprocess.run(command, check=False, timeout=240, cwd=Path(__file__).parents[4]).returncode == 9
        assert len(services.pages()) == (when == "after")
        ward.once(3, 10.0)
        assert services.pages() == [f"nightshift/alpha/{name}/1"]
        ward.cleared(name)
        ward.once()
        assert services.pagerduty.alerts[f"nightshift/alpha/{name}/1"].state == "closed"


def test_with_all_three_outlets_an_incident_is_paged_once(tmp_path: Path) -> None:
    """Any outlet may be the one that pages; the other two show it, and Alertmanager's label says so."""
    for pager in ("pagerduty", "opsgenie", "nobody"):
        folder = tmp_path / pager
        folder.mkdir()
        with StandInAlertmanager() as alertmanager:
            more = {"pages": [{"outlet": pager}], "alertmanager": {"urls": [alertmanager.url]}}
            with a_ward(folder, **more) as ward:
                name = ward.opened()
                ward.once(4, 10.0)
                assert len(ward.services.pages()) == (pager != "nobody"), pager
                assert {alert["labels"]["page"] for alert in alertmanager.alerts} == {"no"}
                assert {alert["labels"]["incident"] for alert in alertmanager.alerts} == {name}


def test_a_drill_pages_marked_as_a_test(ward: Ward) -> None:
    """So that the phone rings once before a fault does."""
    name = ward.store.open_incident("TEST: drill ecc", stage("ecc", 1_000_000.0).findings)
    ward.once(2, 5.0)
    (key,) = ward.services.pages()
    service = ward.services.pagerduty if ward.services.pagerduty.pages else ward.services.opsgenie
    assert service.alerts[key].summary.startswith(f"{name}: TEST: drill ecc")


def test_an_outlet_that_pages_has_to_be_configured() -> None:
    with pytest.raises(ValueError, match=r"pages\[0\].outlet is pagerduty, which is not configured"):
        Settings.model_validate({"pages": [{"outlet": "pagerduty"}]})
    with pytest.raises(ValueError, match=r"failover\.to is opsgenie, which is not configured"):
        Settings.model_validate({"failover": {"to": "opsgenie"}})


@pytest.mark.parametrize("key", ["INC-1/1", "nightshift/a/INC-1", "nightshift/a/INC-1/x", "other/a/INC-1/1", ""])
def test_a_key_that_is_not_ours_is_not_read(key: str) -> None:
    assert read_key(key_of("a/b", "INC-7", 2)) == ("INC-7", 2)
    with pytest.raises(ValueError, match="not an alert"):
        read_key(key)


def test_phases_are_the_vendors_words() -> None:
    assert [str(phase) for phase in AlertPhase] == ["triggered", "acknowledged", "closed"]


def test_a_clock_that_is_set_back_holds_no_page_up() -> None:
    """A service that is left alone for seconds after an outage is not left alone for the hour of a correction."""
    pace = DeliveryPace()
    for_s = pace.away(10_000.0)
    pace.leave("all", 10_000.0, 3 * for_s)
    assert not pace.may("all", 10_000.0 + for_s)
    assert pace.may("all", 10_000.0 + 3 * for_s)
    assert pace.may("all", 10_000.0 - 3600.0)
