"""The post-mortem draft says what happened, what was proven, who decided and what it cost, from the store alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from nightshift.agent.incidents.advisor import Advisor
from nightshift.agent.rca.report import post_mortem
from nightshift.agent.store.incident import Cause
from nightshift.agent.store.incident_store import Store
from nightshift.controllers.action import ActionKind
from nightshift.controllers.playbooks.plugins import build
from tests.agent.rooted import INVENTORY, NOW_S, XID_LINES, history, xid_burst


class SteppedClock:
    def now_s(self) -> float:
        return NOW_S


def test_a_post_mortem_holds_timeline_proof_actions_and_cost(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path}/s.sqlite", SteppedClock())
    name = store.open_incident("GPU error", [xid_burst(*XID_LINES)])
    advisor = Advisor(history(XID_LINES, every_s=30.0), INVENTORY, build(), frozenset(ActionKind), lambda: NOW_S)
    store.save_diagnosis(store.incident(name), advisor.diagnose(store.incident(name)), by="rules")
    proposal = advisor.plan(store.incident(name))
    assert proposal.action is not None
    store.save_plan(store.incident(name), proposal.action, proposal.reason, by="plan")
    store.remark(store.incident(name), Cause.JUDGED_RIGHT, "ana", "GPU memory errors")
    incident, records = store.incident(name), store.audit.records(incident=1)
    text = post_mortem(incident, records, NOW_S)
    for part in (
        "# INC-1: GPU memory errors",
        "## Timeline (UTC)",
        "new → open",
        "judged right: GPU memory errors | ana",
        "Xid 48 \\(Double Bit ECC Error\\)",
        "`NVRM: Xid (PCI:0000:9b:00): 48",
        "proposed: reboot\\_node n1; cost ",
        proposal.action.plan_sha256[:16],
        "## For people to add",
    ):
        assert part in text, part
    assert incident.diagnosis is not None
    assert all(item.sha256[:16] in text for item in incident.diagnosis.evidence)
    rotten = tuple(replace(e, content=e.content + b" ") for e in incident.diagnosis.evidence)
    damaged = post_mortem(replace(incident, diagnosis=replace(incident.diagnosis, evidence=rotten)), records, NOW_S)
    assert "drafted claims failed their check and are omitted" in damaged
    store.close()
