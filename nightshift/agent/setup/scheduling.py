"""Builds scheduling from settings and the daemon's parts; None where it is off."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from nightshift.agent.approvals.gate import Gate
from nightshift.agent.clock import Clock
from nightshift.agent.control.policy_watch import PolicyWatch
from nightshift.agent.control.scheduling_loads import Loads
from nightshift.agent.control.scheduling_loop import SchedulingLoop, Surroundings
from nightshift.agent.incidents.coming_back import coming_back, words_of
from nightshift.agent.metrics import Metrics
from nightshift.agent.settings import Settings
from nightshift.agent.store.incident_store import Store
from nightshift.collectors.subject import Inventory, SubjectKind
from nightshift.controllers.actuators.kube_client import KubeClient
from nightshift.controllers.actuators.kube_queue import KubernetesQueue
from nightshift.controllers.actuators.kube_queue_follow import GangDoors, QueueView


def build_scheduling(
    settings: Settings,
    inventory: Inventory,
    store: Store,
    gate: Gate,
    clock: Clock,
    metrics: Metrics,
    watch: PolicyWatch,
    connect: Callable[[], KubeClient] | None = None,
) -> SchedulingLoop | None:
    """`connect`: to the API server; none: as the settings say. Raises Permanent where that cannot be used."""
    chosen = settings.scheduling
    if not chosen.enabled:
        return None

    def reach() -> KubeClient:
        return KubeClient.connect(chosen.access)

    connect = connect or reach

    def ill() -> Mapping[str, int]:
        """GPUs under an open incident, by node; all of a node's where the node itself is under one."""
        now_s, gpus, nodes = clock.now_s(), set(), set()
        for summary in store.open_incidents():
            for subject in store.incident(summary.id).subjects:
                if subject.kind is SubjectKind.NODE:
                    nodes.add(subject.name)
                elif subject.kind is SubjectKind.GPU:
                    node = inventory.above(subject, SubjectKind.NODE, now_s)
                    if node is not None:
                        gpus.add((node.name, subject.name))
        # The node's own incident last: it counts for all its GPUs, whatever single ones have.
        return {**Counter(node for node, _ in gpus), **dict.fromkeys(nodes, -1)}

    def gauge(waiting: int, gates: int) -> None:
        metrics.scheduling_waiting.set(waiting)
        metrics.scheduling_gates.set(gates)

    def coming() -> str:
        with store.database.read() as connection:
            return words_of(coming_back(connection, inventory, clock.now_s()))

    around = Surroundings(
        keep=watch.receipts.keep,
        trusts=lambda: watch.trusts("scheduling"),
        happened=lambda now_s, told: watch.happened("scheduling", now_s, told.stretches, told.samples, ()),
        halted=lambda: gate.halted().halted,
        ill=ill,
        count=lambda outcome, n: metrics.scheduling_decisions.labels(outcome).inc(n),
        gauge=gauge,
        coming=coming,
    )
    view = QueueView(connect, chosen)
    doors = GangDoors(KubernetesQueue(connect(), chosen.queue, now_s=clock.now_s), view) if chosen.act else None
    loop = SchedulingLoop(chosen, view, doors, Loads(inventory), around)
    watch.begin("scheduling", loop.policy, loop.policy_sha256)
    return loop
