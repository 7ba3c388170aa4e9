"""Who sits where and holds what, from the labels of one series per GPU: kept up node by node.

A fleet's labels change a few nodes at a time, so only nodes whose label sets are new objects are worked out again,
and of a whole new fleet as many per tick as the time allows. The rest keeps what was last told.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.telemetry.dcgm_exporter import plan_of
from nightshift.collectors.telemetry.exposition import Layout, Series
from nightshift.collectors.telemetry.pages import PagePlan, tell
from nightshift.collectors.training.workload import WorkloadRule

# The metric whose labels are read: every exporter has it, for MIG instances too.
IDENTITY = "DCGM_FI_DEV_FB_USED"
_COLUMNS = {kind: {IDENTITY: 0} for kind in (SubjectKind.GPU, SubjectKind.MIG, SubjectKind.LINK)}
_HOST_LABELS = ("Hostname", "hostname", "node", "instance")


@dataclass(frozen=True, eq=False)
class _Node:
    labels: tuple[Mapping[str, str], ...]
    plan: PagePlan


class GpuLabels:
    """The label sets of all GPUs by node. The same objects must come again while they are unchanged."""

    def __init__(self, workload: WorkloadRule, timer: Callable[[], float]) -> None:
        self._workload = workload
        self._timer = timer
        self._nodes: dict[str, _Node] = {}
        self._due: dict[str, list[Mapping[str, str]]] = {}
        self._inventory: Inventory | None = None

    @property
    def is_behind(self) -> bool:
        """Some nodes' labels are not worked out yet."""
        return bool(self._due)

    def nodes(self) -> tuple[Subject, ...]:
        return tuple(node for known in self._nodes.values() for node in known.plan.nodes)

    def notes(self) -> str:
        """What the exporters leave out, each once."""
        return "; ".join(sorted({known.plan.note for known in self._nodes.values() if known.plan.note}))

    def gpus_by_node(self) -> dict[Subject, tuple[Subject, ...]]:
        return {
            known.plan.nodes[0]: known.plan.gpus for known in self._nodes.values() if len(known.plan.nodes) == 1
        }

    def take(self, labels: Sequence[Mapping[str, str]]) -> None:
        """The label sets of a new answer. A node that it does not name keeps its own: its exporter may be away."""
        by_host: dict[str, list[Mapping[str, str]]] = {}
        for one in labels:
            by_host.setdefault(next((v for name in _HOST_LABELS if (v := one.get(name))), ""), []).append(one)
        for host, found in by_host.items():
            known = self._nodes.get(host)
            same = (
                known is not None
                and len(known.labels) == len(found)
                and all(map(operator.is_, known.labels, found))
            )
            if same:
                self._due.pop(host, None)
            else:
                self._due[host] = found

    def tell(self, inventory: Inventory, at_s: float, budget_s: float) -> None:
        """Brings the inventory up to the labels taken, for at most `budget_s`; what is left is told next time."""
        started = self._timer()
        # an inventory that is new (a restart, a replay) has heard nothing of what was told before
        if self._inventory is not inventory:
            self._due = {host: list(known.labels) for host, known in self._nodes.items()} | self._due
            self._nodes.clear()
            self._inventory = inventory
        while self._due and self._timer() - started < budget_s:
            host, labels = self._due.popitem()
            series = tuple(Series(IDENTITY, tuple(one.items())) for one in labels)
            plan = plan_of(Layout(series, {}, {}), _COLUMNS, self._workload, None, "")
            before = self._nodes.get(host)
            tell(inventory, None if before is None else before.plan, plan, at_s)
            self._nodes[host] = _Node(tuple(labels), plan)
