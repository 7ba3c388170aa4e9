"""Builds power control from settings and the daemon's parts; None where it is off."""

from __future__ import annotations

import json
from collections.abc import Callable

import structlog

from nightshift.agent.approvals.gate import Gate
from nightshift.agent.clock import Clock
from nightshift.agent.control.policy_watch import PolicyWatch
from nightshift.agent.control.power_decision import load
from nightshift.agent.control.power_interfaces import Around
from nightshift.agent.control.power_loop import PowerLoop
from nightshift.agent.metrics import Metrics
from nightshift.agent.settings import Settings
from nightshift.agent.setup.policies import stood_up
from nightshift.agent.store import audit
from nightshift.agent.store.incident_store import Store
from nightshift.collectors.base import Permanent
from nightshift.collectors.kubernetes.node_objects import NodeObjects
from nightshift.collectors.subject import Inventory, SubjectKind
from nightshift.controllers.actuators.power_nodes import PowerNodes
from nightshift.controllers.power.evaluation import shipped
from nightshift.controllers.power.features import INTERFACE
from nightshift.controllers.promotion import PromotionEvidence

_STATE, _RELEASED = "power/state", "power/released"


def released(store: Store) -> dict[str, float]:
    """GPUs and nodes that people gave back to power control, and when (Unix s)."""
    kept = store.recall(_RELEASED)
    return {} if kept is None else {str(name): float(at_s) for name, at_s in json.loads(kept[1]).items()}


def release(store: Store, name: str, by: str, now_s: float) -> None:
    """Gives a GPU (by UUID) or a node back to power control: its next turn takes it up."""
    store.keep({_RELEASED: json.dumps({**released(store), name: now_s}).encode()})
    with store.database.write() as connection:
        audit.append(connection, at_s=now_s, kind="power_release", by=by, incident=None, body={"name": name})


def build_power(
    settings: Settings,
    inventory: Inventory,
    store: Store,
    gate: Gate,
    clock: Clock,
    metrics: Metrics,
    watch: PolicyWatch,
    term: Callable[[], int],
    leads: Callable[[], bool] = lambda: True,
) -> PowerLoop | None:
    """Raises Permanent where a policy file or a certificate is not fit."""
    power = settings.power
    if not power.enabled:
        return None

    def ill_nodes() -> frozenset[str]:
        now_s = clock.now_s()
        found = set()
        for summary in store.open_incidents():
            for subject in store.incident(summary.id).subjects:
                node = inventory.above(subject, SubjectKind.NODE, now_s)
                name = subject.name if subject.kind is SubjectKind.NODE else "" if node is None else node.name
                found.add(name)
        return frozenset(found - {""})

    def recall() -> bytes | None:
        kept = store.recall(_STATE)
        return None if kept is None else kept[1]

    def gauge(rack: str, headroom_w: float, is_open: bool) -> None:
        metrics.power_headroom.labels(rack).set(headroom_w)
        metrics.power_breaker.labels(rack).set(is_open)

    around = Around(
        keep=watch.receipts.keep_all,
        trusts=lambda: watch.trusts("power"),
        note=lambda what: watch.note("power", what),
        happened=lambda now: watch.happened("power", now.now_s, now.stretches, now.samples, now.gone),
        halted=lambda: gate.halted().halted,
        ill_nodes=ill_nodes,
        term=term,
        leads=leads,
        store=lambda state: store.keep({_STATE: state}),
        recall=recall,
        released=lambda: released(store),
        standing=None if power.access is None else NodeObjects(power.access).standing,
        count=lambda outcome: metrics.power_decisions.labels(outcome).inc(),
        gauge=gauge,
    )
    # A file that is configured comes before what was stood up: it is what the operator wrote down.
    file = load(power) or stood_up(store, INTERFACE, power.policy_keys)
    # Only nodes with a rack: without a rack's budget there is nothing to keep.
    racked = {node for rack in power.racks.values() for node in rack.nodes}
    nodes = PowerNodes(power.nodes, racked) if power.act else None
    loop = PowerLoop(power, inventory, nodes, around, file=file)
    watch.begin("power", loop.policy, loop.policy_sha256, evaluation=_evaluation(loop) if power.act else None)
    return loop


def _evaluation(loop: PowerLoop) -> PromotionEvidence | None:
    """What ships in place of the heuristic's shadow; without it, the heuristic takes each step like any policy."""
    try:
        return shipped(loop.policy_sha256)
    except Permanent as error:
        structlog.get_logger("power").error("rule evaluation refused", why=str(error))
        return None
