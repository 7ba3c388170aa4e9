"""The way from `power.act: true` to the first limit: one approval, on the heuristic's signed evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nightshift.agent.clock import SteppedClock
from nightshift.agent.settings import Settings
from nightshift.collectors.base import Permanent
from nightshift.controllers.decision import Mode
from nightshift.controllers.power import evaluation
from nightshift.controllers.promotion import PromotionCheck, PromotionEvidence
from tests.agent.control.test_policy_path import ANN, MAX_MW, Daemon, Fleet

pytestmark = pytest.mark.usefixtures("no_dwell")

CHECK = PromotionCheck("workloads", True, -70.0, -60.0, "70 of 60 measured workloads")
EVALUATION = PromotionEvidence(Mode.ACTIVE, 0.0, 0, 70, 70 * 240, (CHECK,), "held-out workloads")


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Daemon:
    fleet = Fleet(16)
    nodes = sorted({fleet.node(u) for u in fleet.limit})
    values: dict[str, Any] = {
        "state_dir": str(tmp_path),
        "console": {"enabled": False},
        "sources": [],
        "store": {"url": f"sqlite:///{tmp_path}/s.sqlite"},
        "tick_s": 30.0,
        "power": {
            "enabled": True,
            "act": True,
            "racks": {"r": {"nodes": nodes, "budget_w": 1000.0 * fleet.gpus}},
            "nodes": {"urls": {node: f"https://{node}:9400" for node in nodes}},
            "shield": {"raise_w_per_min": 1e6},
        },
    }
    made = Daemon(Settings(**values), fleet, SteppedClock(10_000.0))
    fleet.renew_jobs(0, 10_000.0)
    monkeypatch.setattr("nightshift.agent.app.build_collectors", lambda *_: [fleet])
    monkeypatch.setattr("nightshift.agent.setup.power.PowerNodes", lambda *_: fleet)
    return made


def test_one_approval_leads_to_the_first_limit(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nightshift.agent.setup.power.shipped", lambda _sha: EVALUATION)
    daemon.start()
    try:
        daemon.windows(3)
        (plan,) = daemon.waiting()
        assert plan.id.endswith("/active")
        assert "70 held-out workloads" in plan.action.why
        assert set(daemon.fleet.limit.values()) == {MAX_MW}  # not a watt before people said so
        gate = daemon.app.policies.gate
        assert gate.approve(plan.id, plan.action.plan_sha256, ANN).ok
        daemon.windows(14)
        assert daemon.mode() is Mode.ACTIVE
        assert sum(mw < MAX_MW for mw in daemon.fleet.limit.values()) > 8
        # Whoever takes it back is not asked again by the daemon, but may have it back.
        assert gate.undo("power", ANN, "not today").ok
        daemon.windows(3)
        assert daemon.waiting() == []
        assert gate.stand_in("power", EVALUATION, ANN.identity).next is Mode.ACTIVE
    finally:
        daemon.app.stop()


def test_an_evaluation_that_is_not_the_projects_leaves_the_rule_in_shadow(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_sha: str) -> None:
        raise Permanent(f"{evaluation.SHIPPED}: signed by nobody known")

    monkeypatch.setattr("nightshift.agent.setup.power.shipped", refused)
    daemon.start()
    try:
        daemon.windows(3)
        assert daemon.waiting() == []
        assert daemon.mode() is Mode.SHADOW
        assert daemon.app.policies.gate.standing("power").next is Mode.TRIAL
    finally:
        daemon.app.stop()


def test_a_step_down_by_nightshift_is_for_good(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nightshift.agent.setup.power.shipped", lambda _sha: EVALUATION)
    daemon.start()
    try:
        daemon.windows(3)
        (plan,) = daemon.waiting()
        gate = daemon.app.policies.gate
        assert gate.approve(plan.id, plan.action.plan_sha256, ANN).ok
        daemon.windows(2)
        daemon.fleet.hot = True
        daemon.windows(2)
        assert daemon.mode() is Mode.SHADOW
        assert gate.stand_in("power", EVALUATION, ANN.identity).next is Mode.TRIAL
    finally:
        daemon.app.stop()
