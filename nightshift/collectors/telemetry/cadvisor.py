"""cAdvisor's and node-exporter's pages: the host memory of containers and nodes.

cAdvisor (or the kubelet's `/metrics/cadvisor`) labels its rows `namespace, pod, container, id`; rows without a
container are sums over a pod or a slice and are left out, as is the pause container `POD`. After a restart the old
and the new cgroup stand side by side: the newer timestamp wins. A limit of 0 means none.
Source: https://github.com/google/cadvisor/blob/master/docs/storage/prometheus.md
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import ClassVar

from pydantic.json_schema import SkipJsonSchema

from nightshift.collectors.frame import Reason
from nightshift.collectors.shared_settings import stated_once
from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.collectors.telemetry.exposition import Layout, Page
from nightshift.collectors.telemetry.metrics import of_kind
from nightshift.collectors.telemetry.pages import FORGET_AFTER_S, PageCollector, PagePlan, PageSettings, Relation
from nightshift.collectors.telemetry.rows import Rows, cells
from nightshift.collectors.training.workload import WorkloadRule, container_subject, pod_subject

_PAUSE, _ALL_CPUS = "POD", "total"


class CadvisorCollector(PageCollector):
    r"""One row per container and per node of all pages; NaN where a page did not say.

    >>> from nightshift.collectors.telemetry.exposition import PageParser
    >>> page = PageParser().parse(b'container_memory_rss{namespace="ml",pod="llm-0",container="main"} 64e9\n')
    >>> collector = CadvisorCollector(CadvisorCollector.Settings(urls=["http://n1:8080/metrics"]))
    >>> plan = collector.plan(page.layout, page, "n1", "n1", "n1:8080")
    >>> [str(subject) for found in plan.cells for subject in found.subjects]
    ['container:ml/llm-0/main']
    >>> sorted(f"{child} on {parent}" for child, parent in plan.relations)
    ['container:ml/llm-0/main on pod:ml/llm-0', 'pod:ml/llm-0 on job:ml/llm', 'pod:ml/llm-0 on node:n1']
    """

    plugin: ClassVar[str] = "cadvisor"

    class Settings(PageSettings):
        """Scrapes cAdvisor, a kubelet's cAdvisor page, or node-exporter."""

        workload: SkipJsonSchema[WorkloadRule] = stated_once("workload", WorkloadRule)

    def __init__(self, settings: Settings, *, clock: Callable[[], float] = time.monotonic) -> None:
        kinds = (SubjectKind.CONTAINER, SubjectKind.NODE)
        rows = {kind: Rows(kind, of_kind(kind), FORGET_AFTER_S) for kind in kinds}
        super().__init__(settings, rows, clock)
        self._workload = settings.workload

    def plan(self, layout: Layout, page: Page, host: str, node: str | None, place: str) -> PagePlan:
        entries: dict[SubjectKind, list[tuple[int, Subject, int, float]]] = defaultdict(list)
        relations: set[Relation] = set()
        rejected: Counter[Reason] = Counter()
        here = Subject(SubjectKind.NODE, node or _node_name(layout) or host)
        scales = {kind: [metric.scale for metric in of_kind(kind)] for kind in self._rows}
        for position, series in enumerate(layout.series):
            kind = next((kind for kind, rows in self._rows.items() if series.name in rows.column), None)
            if kind is None:
                continue
            column = self._rows[kind].column[series.name]
            if kind is SubjectKind.NODE:
                if not series.labels:
                    entries[kind].append((position, here, column, scales[kind][column]))
                continue
            container, pod = series.label("container"), series.label("pod")
            namespace = series.label("namespace")
            # sums over a pod or a slice, and the pause container, would be counted beside the containers themselves
            if not (container and pod and namespace) or container == _PAUSE:
                continue
            if series.label("cpu", _ALL_CPUS) != _ALL_CPUS:
                continue  # a standalone cAdvisor tells each CPU beside their sum
            try:
                subject, holder = container_subject(namespace, pod, container), pod_subject(namespace, pod)
            except ValueError:
                rejected[Reason.MALFORMED] += 1
                continue
            entries[kind].append((position, subject, column, scales[kind][column]))
            relations.add((subject, holder))
            if node is not None or _node_name(layout):
                relations.add((holder, here))
            job, _ = self._workload.place(namespace, pod)
            if job is not None:
                relations.add((holder, job))
        placed = [cells(kind, found) for kind, found in entries.items()]
        return PagePlan(layout, placed, frozenset(relations), {}, (here,), dict(rejected))


def _node_name(layout: Layout) -> str:
    """What node-exporter says of itself."""
    return next((s.label("nodename") for s in layout.series if s.name == "node_uname_info"), "")
