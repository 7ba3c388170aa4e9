"""A drill goes the whole way through the real channels and touches nothing real."""

from __future__ import annotations

import re
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from nightshift.agent.__main__ import app as command_line
from nightshift.agent.app import App
from nightshift.agent.approvals.policy import Person, Role
from nightshift.agent.approvals.scoreboard import Scoreboard
from nightshift.agent.drill import FACT, FORGOTTEN_S, MARK, SCRIPTS, end_forgotten, is_drill, is_drills, stage
from nightshift.agent.rca.summary import headline_of
from nightshift.agent.settings import load
from nightshift.agent.store.incident import IncidentState
from nightshift.collectors.base import Permanent
from nightshift.controllers.action import ActionKind
from tests.agent.fleet import Exporter, values
from tests.agent.incidents import NODE, an_action
from tests.agent.notify.slack.render import an_incident

ANN = Person("ann@example.org", frozenset({Role.APPROVER}), "console", 2e9)


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_real_detectors_find_what_a_drill_scripts(name: str) -> None:
    told = stage(name, 1_790_000_000.0)
    assert all(MARK in finding.subject.name for finding in told.findings)
    assert all(finding.summary.startswith("TEST: ") for finding in told.findings)
    assert {finding.severity for finding in told.findings} >= {"critical"}


def test_a_drill_that_does_not_exist_is_refused_by_name() -> None:
    with pytest.raises(Permanent, match="there is no drill 'fire': ecc, gpu-lost"):
        stage("fire", 0.0)


@pytest.fixture
def daemon(tmp_path: Path) -> Any:
    exporter = Exporter()
    settings = values(tmp_path / "state", exporter, lifecycle={"quiet_s": 0.0}, approval={"fresh_sign_in": []})
    world = tmp_path / "cluster.sqlite"
    settings["actuators"] = [{"type": "simulated", "path": str(world)}]
    config = tmp_path / "nightshift.yaml"
    config.write_text(yaml.safe_dump(settings))
    app = App(load(config))
    app.start()
    ticking = threading.Thread(target=app.run)
    ticking.start()
    yield app, config
    app.shut_down()
    ticking.join()
    app.stop()
    exporter.close()


@pytest.mark.parametrize("decision", ["approve", "reject", ""])
def test_a_drill_is_diagnosed_decided_and_closed_on_a_simulated_actuator(daemon: Any, decision: str) -> None:
    """Without a decision it ends by itself, and nothing was done. It is a TEST in every channel's headline."""
    app, config = daemon
    result: list[Any] = []
    asked = ["drill", "ecc", "--config", str(config), *([] if decision else ["--minutes", "0.05"])]
    run = threading.Thread(target=lambda: result.append(CliRunner().invoke(command_line, asked)))
    run.start()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (waiting := app.store.incidents([IncidentState.AWAITING_APPROVAL])):
        time.sleep(0.05)
    incident = app.store.incident(waiting[0].id)
    assert is_drill(incident)
    assert incident.diagnosis is not None
    assert incident.diagnosis.claims
    assert incident.action is not None
    assert is_drills(incident.action)
    assert {waiting[0].title[:6], headline_of(incident)[:6]} == {"TEST: "}
    if decision == "approve":
        assert app.gate.approve(incident.id, incident.action.plan_sha256, ANN).ok
    elif decision:
        assert app.gate.reject(incident.id, incident.action.plan_sha256, ANN, "seen enough").ok
    run.join(60)
    assert result[0].exit_code == (0 if decision else 1), result[0].output
    while time.monotonic() < deadline and app.store.incident(incident.id).state is not IncidentState.RESOLVED:
        time.sleep(0.05)
    assert app.store.incident(incident.id).state is IncidentState.RESOLVED
    (fleet,) = app.practice.actuators
    assert fleet.cluster.effects() == []
    assert len(app.practice.drills.actuator.cluster.effects()) == (decision == "approve")
    assert app.practice._begun() == []


def test_a_drill_that_everyone_forgot_ends_by_itself_and_no_figure_counts_it(daemon: Any) -> None:
    """Its command was killed, and no one decides."""
    app, _ = daemon
    now_s = app.clock.now_s()
    told = stage("ecc", float(round(now_s)))
    incident = app.store.open_incident("TEST: drill ecc", told.findings, note="a drill")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not app.store.incidents([IncidentState.AWAITING_APPROVAL]):
        time.sleep(0.05)
    assert end_forgotten(app.store, app.gate, now_s + FORGOTTEN_S - 60.0) == 0
    counted = re.findall(rb'^nightshift_incidents\{state="(\w+)"\} (\S+)', app.metrics_page(), re.M)
    assert counted
    assert {float(count) for _, count in counted} == {0.0}
    assert Scoreboard(app.store.database, app.settings.autonomy).ratings(now_s + 60.0) == []
    assert end_forgotten(app.store, app.gate, now_s + FORGOTTEN_S + 60.0) == 1
    assert app.store.incident(incident).state is IncidentState.RESOLVED


def test_a_real_incident_is_never_sent_to_the_drill_s_cluster(daemon: Any) -> None:
    app, _ = daemon
    incident = replace(an_incident("x"), action=an_action(kind=ActionKind.CORDON, target=NODE))
    assert not is_drill(incident)
    assert not is_drills(incident.action)
    assert app.practice.actuator_for(incident) is app.practice.actuators[0]
    mixed = replace(incident.findings[0].finding, facts={FACT: 1.0, "drill": "ecc"})
    assert is_drill(replace(incident, findings=(replace(incident.findings[0], finding=mixed),)))
    both = (replace(incident.findings[0], finding=mixed), incident.findings[0])
    assert not is_drill(replace(incident, findings=both)), "one real finding makes it real"
