"""Cases that a person or an Alertmanager opens: real incidents, joined to what stands there, told once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from nightshift.agent.__main__ import app as command
from nightshift.agent.app import App
from nightshift.agent.clock import SteppedClock
from nightshift.agent.console.settings import Settings
from nightshift.agent.correlation.correlate import DecisionVerb, correlate
from nightshift.agent.correlation.outside_reports import (
    alerts_of,
    asked_for_alert,
    opened_by,
    subject_named,
    with_alerts,
)
from nightshift.agent.setup.console import build_console
from nightshift.agent.store.incident import IncidentState
from nightshift.agent.store.reports import Reports
from nightshift.collectors.base import Permanent
from nightshift.collectors.prometheus.alert import AlertmanagerAlert
from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.detectors.base import Fault, Finding, State
from tests.agent.correlation.test_correlate import fleet, known, xid
from tests.agent.fleet import Exporter
from tests.agent.story import BOX, Story
from tests.agent.tenants import Cluster, token_of
from tests.agent.test_app import GPU, START_S, build, step
from tests.agent.test_hostile import INJECTIONS

NODE_0, NOW_S = Subject(SubjectKind.NODE, "n0"), 1000.0


def payload(*alerts: dict[str, Any], **more: Any) -> dict[str, Any]:
    """As Alertmanager 0.28 sends it (template.Data with version and groupKey)."""
    return {
        "receiver": "nightshift", "status": "firing", "alerts": list(alerts), "groupLabels": {}, "commonLabels": {},
        "commonAnnotations": {}, "externalURL": "http://alertmanager:9093", "version": "4",
        "groupKey": '{}:{alertname="NodeDiskFull"}', "truncatedAlerts": 0, **more,
    }  # fmt: skip


def alert(
    fingerprint: str = "a1b2c3d4e5f60718",
    status: str = "firing",
    starts: str = "1970-01-01T00:15:00Z",
    **labels: str,
) -> dict[str, Any]:
    return {
        "status": status, "labels": {"alertname": "NodeDiskFull", "severity": "warning", "node": "n0", **labels},
        "annotations": {"summary": "the disk is full"}, "startsAt": starts, "endsAt": "0001-01-01T00:00:00Z",
        "generatorURL": "http://prometheus:9090/graph", "fingerprint": fingerprint,
    }  # fmt: skip


def heard(*alerts: dict[str, Any], now_s: float = NOW_S) -> list[Finding]:
    return alerts_of(payload(*alerts), "prod", now_s)[0]


def test_an_alert_is_a_finding_of_its_subject_and_ends_with_it() -> None:
    (firing,) = heard(alert())
    assert (firing.subject, firing.fault, firing.since.t_s) == (NODE_0, Fault.ANOMALY, 900.0)
    assert firing.summary == "alert NodeDiskFull: the disk is full"
    (again,), (over,) = heard(alert(), now_s=1060.0), heard(alert(status="resolved"), now_s=1120.0)
    assert again.episode == over.episode == firing.episode
    (opened,) = correlate([firing], [], fleet(), NOW_S)
    assert opened.verb is DecisionVerb.OPEN
    assert correlate([again], [known(firing)], fleet(), 1060.0)[0].verb is not DecisionVerb.OPEN
    (closed,) = correlate([over], [known(firing)], fleet(), 1120.0)
    assert (closed.verb, closed.findings[0].state) == (DecisionVerb.UPDATE, State.CLEAR)
    (stray,) = correlate([over], [], fleet(), 1120.0)
    assert stray.verb is DecisionVerb.IGNORE


def test_a_report_joins_what_stands_there_and_a_fault_joins_a_report() -> None:
    gpu = xid(79, "gpu:GPU-0-0", 950.0)
    on_gpu = opened_by(Subject(SubjectKind.GPU, "GPU-0-0"), "ada", "odd", NOW_S)
    (joined,) = correlate([on_gpu], [known(gpu)], fleet(), NOW_S)
    assert (joined.verb, joined.incident_id) == (DecisionVerb.ATTACH, "INC-1")
    (explains,) = correlate([gpu], [known(on_gpu)], fleet(), NOW_S)
    assert (explains.verb, explains.news) == (DecisionVerb.ATTACH, True)
    node = opened_by(NODE_0, "ada", "", NOW_S)
    assert correlate([node], [known(gpu)], fleet(), NOW_S)[0].verb is DecisionVerb.OPEN
    other = opened_by(Subject(SubjectKind.POD, "ml/b-0"), "ada", "", NOW_S)
    assert correlate([other], [known(gpu)], fleet(), NOW_S)[0].verb is DecisionVerb.OPEN


def test_one_group_of_alerts_is_one_incident_now_and_later() -> None:
    first = heard(alert("a1"), alert("b2", node="n1"), alert("c3", node=""))
    (opened,) = correlate(first, [], fleet(), NOW_S)
    assert len(opened.findings) == 3
    (later,) = correlate(heard(alert("d4", node="n2")), [known(*first)], fleet(), NOW_S + 60)
    assert later.verb is DecisionVerb.ATTACH
    apart = alerts_of(payload(alert("e5", node="n3"), groupKey="another"), "prod", NOW_S)[0]
    assert correlate(apart, [known(*first)], fleet(), NOW_S)[0].verb is DecisionVerb.OPEN


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ([], "version 4"),
        ({"version": "3", "alerts": []}, "version"),
        ({"version": "4"}, "alerts"),
        (payload(alert() | {"status": "maybe"}), "alerts.0.status"),
        (payload(alert(), alert() | {"startsAt": "yesterday"}), "alerts.1.startsAt"),
        (payload(alert() | {"labels": {"node": 7}}), "alerts.0.labels.node"),
        (payload(alert() | {"fingerprint": "../../etc"}), "alerts.0.fingerprint"),
        (payload(*[alert()] * 501), "alerts"),
    ],
)
def test_a_bad_payload_is_named_and_nothing_of_it_counts(body: Any, named: str) -> None:
    with pytest.raises(Permanent, match=named):
        alerts_of(body, "prod", NOW_S)


def test_our_own_alert_is_not_heard_back_and_hostile_text_is_text() -> None:
    found, ours = alerts_of(payload(alert(alertname="NightshiftIncident"), alert()), "prod", NOW_S)
    assert (len(found), ours) == (1, 1)
    for text in INJECTIONS:
        hostile = alert(alertname=text[:3000], severity=text[:300], note=text[:300])
        hostile["annotations"] = {"summary": text}
        (told,) = heard(hostile)
        assert told.summary.isprintable()
        assert len(told.summary) < 800
        assert told.subject == NODE_0


def test_an_alert_that_is_asked_for_by_name_is_placed_where_it_fires() -> None:
    asked = asked_for_alert("GpuHot", "ada", "", "prod", NOW_S)
    firing = AlertmanagerAlert("GpuHot", "f1", NODE_0, 1.0, 2.0, "warning", "hot", {})
    (placed,) = with_alerts([asked], [firing, replace(firing, name="Other")])
    assert (placed.subject, placed.summary) == (NODE_0, "node n0: opened by ada: alert GpuHot: hot")
    (nowhere,) = with_alerts([asked], [])
    assert "no source reports as firing" in nowhere.summary


def test_a_name_that_is_not_known_is_answered_with_what_is_like_it() -> None:
    assert subject_named("pod", "a-0", fleet()) == Subject(SubjectKind.POD, "ml/a-0")
    for kind, name, said in (("pod", "ml/a-99", "like it: ml/a-9"), ("node", "x", "no node 'x' is known"),
                             ("rack", "r0", "not one of pod, job, node, gpu, alert")):  # fmt: skip
        with pytest.raises(Permanent, match=said):
            subject_named(kind, name, fleet())


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    exporter = Exporter()
    yield exporter
    exporter.close()


def test_a_case_becomes_an_incident_that_says_who_opened_it(tmp_path: Path, exporter: Exporter) -> None:
    clock = SteppedClock(START_S)
    app: App = build(tmp_path, exporter, clock=clock)
    app.start()
    step(app)
    told = opened_by(GPU, "ada", "it is loud", clock.now_s())
    reports = Reports(app.store.database)
    for _ in range(2):
        reports.put([told], clock.now_s(), "ada")
        step(app)
        assert app.settle()
    assert reports.waiting() == []
    (row,) = app.store.open_incidents()
    incident = app.store.incident(row.id)
    assert incident.state is IncidentState.MONITORING
    assert incident.diagnosis is not None
    assert incident.diagnosis.headline.startswith(f"gpu {GPU.name}: opened by ada: it is loud")
    assert incident.action is None
    app.stop()


def test_a_report_that_joins_a_plan_that_waits_leaves_it_as_it_is(tmp_path: Path) -> None:
    story = Story(tmp_path)
    name = story.tell()
    before = story.store.incident(name)
    story.store.attach(name, opened_by(BOX, "ada", "swapping", story.clock.now_s()))
    after = story.store.incident(name)
    assert (after.news, after.version, after.state) == (False, before.version, before.state)
    assert len(after.findings) == 2
    story.store.close()


def test_who_may_open_a_case_and_who_learns_nothing(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    web = TestClient(build_console(cluster.parts, Settings(host="0.0.0.0")), base_url="http://127.0.0.1")

    def post(path: str, who: str, body: Any) -> tuple[int, str]:
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {token_of(who)}", "Content-Type": "application/json"}
        answer = web.post(f"/api/v1{path}", content=sent, headers=headers)
        return answer.status_code, answer.text

    red, wide = "red-responder@example.org", "wide-approver@example.org"
    mine = {"kind": "pod", "name": "red/antelope-7", "note": "slow"}
    theirs = {"kind": "pod", "name": "blue/zebra-7"}
    assert post("/investigate", red, mine)[0] == 200
    assert post("/investigate", wide, theirs)[0] == 200
    status, said = post("/investigate", red, theirs)
    assert (status, "like it" in said) == (409, False)
    assert post("/investigate", red, {"kind": "node", "name": "n1"})[0] == 403
    assert post("/investigate", "wide-viewer@example.org", mine)[0] == 403
    hook = "/webhooks/alertmanager"
    assert post(hook, wide, payload(alert())) == (200, '{"taken":1,"ours":0}')
    assert post(hook, wide, payload(alert()))[0] == 200
    assert post(hook, red, payload(alert()))[0] == 403
    assert post(hook, wide, b"{not json")[0] == 400
    assert post(hook, wide, b"[" * 60_000)[0] == 400
    assert post(hook, wide, payload(alert() | {"status": 1}))[0] == 400
    assert post(hook, "nobody at all", payload(alert()))[0] == 401
    waiting = Reports(cluster.store.database).waiting()
    assert sorted(str(found.subject) for found in waiting) == ["node:n0", "pod:blue/zebra-7", "pod:red/antelope-7"]
    assert next(r.by for r in cluster.store.audit.records() if r.kind == "reported") == red
    cluster.store.close()


def test_the_command_line_opens_a_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(tmp_path)
    cluster.store.save_memberships(cluster.inventory.memberships())
    monkeypatch.setenv("NIGHTSHIFT_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("NIGHTSHIFT_STORE__URL", f"sqlite:///{tmp_path / 'tenants.db'}")
    told = CliRunner().invoke(command, ["investigate", "node", "n1", "--note", "fans"])
    assert told.exit_code == 0, told.output
    assert "A case on node:n1 is on its way" in told.output
    (found,) = Reports(cluster.store.database).waiting()
    assert found.summary.endswith(": fans")
    missing = CliRunner().invoke(command, ["investigate", "pod", "blue/zebra-8"])
    assert "like it: blue/zebra-7" in str(missing.exception)
    cluster.store.close()
