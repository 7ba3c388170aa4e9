"""cAdvisor's and node-exporter's pages: the host memory of containers and nodes.

cAdvisor (or the kubelet's `/metrics/cadvisor`) labels its rows `namespace, pod, container, id`; rows without a
container are sums over a pod or a slice and are left out, as is the pause container `POD`. After a restart the old
and the new cgroup stand side by side: the newer timestamp wins. A limit of 0 means none.
Source: https://github.com/google/cadvisor/blob/master/docs/storage/prometheus.md
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import ClassVar

from pydantic.json_schema import SkipJsonSchema

from nightshift.collectors.frame import Reason
from nightshift.collectors.shared_settings import stated_once
from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.collectors.telemetry.exposition import Layout, Page, Series
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
        self._kind_of = {name: kind for kind, found in rows.items() for name in found.column}
        self._scales = {kind: [metric.scale for metric in of_kind(kind)] for kind in rows}
        self._workload = settings.workload

    def plan(self, layout: Layout, page: Page, host: str, node: str | None, place: str) -> PagePlan:
        entries: dict[SubjectKind, list[tuple[int, Subject, int, float]]] = defaultdict(list)
        relations: set[Relation] = set()
        rejected: Counter[Reason] = Counter()
        here = Subject(SubjectKind.NODE, node or _node_name(layout) or host)
        for position, series in enumerate(layout.series):
            kind = self._kind_of.get(series.name)
            if kind is None:
                continue
            column = self._rows[kind].column[series.name]
            try:
                subject = _container(series) if kind is SubjectKind.CONTAINER else _whole_node(series, here)
            except ValueError:
                rejected[Reason.MALFORMED] += 1
                continue
            if subject is not None:
                entries[kind].append((position, subject, column, self._scales[kind][column]))
        # a page behind a service's address is of any node: its host name would be a node that does not exist
        known = here if node is not None or _node_name(layout) else None
        for container in {subject for _, subject, _, _ in entries[SubjectKind.CONTAINER]}:
            relations.update(self._relations(container, known))
        placed = [cells(kind, found) for kind, found in entries.items() if found]
        return PagePlan(layout, placed, frozenset(relations), {}, (here,), dict(rejected))

    def _relations(self, container: Subject, node: Subject | None) -> Iterator[Relation]:
        namespace, pod, _ = container.name.split("/", 2)
        holder = pod_subject(namespace, pod)
        yield container, holder
        if node is not None:
            yield holder, node
        job, _ = self._workload.place(namespace, pod)
        if job is not None:
            yield holder, job


def _whole_node(series: Series, here: Subject) -> Subject | None:
    """Of node-exporter's names here, those with labels are parts of the node (a disk, a CPU)."""
    return None if series.labels else here


def _container(series: Series) -> Subject | None:
    """The container that a series is of, None where it is of none. Raises ValueError where it cannot be named."""
    container, pod, namespace = (series.label(name) for name in ("container", "pod", "namespace"))
    # sums over a pod or a slice, and the pause container, would be counted beside the containers themselves
    if not (container and pod and namespace) or container == _PAUSE:
        return None
    # a standalone cAdvisor tells each CPU beside their sum
    if series.label("cpu", _ALL_CPUS) != _ALL_CPUS:
        return None
    return container_subject(namespace, pod, container)


def _node_name(layout: Layout) -> str:
    """What node-exporter says of itself."""
    return next((s.label("nodename") for s in layout.series if s.name == "node_uname_info"), "")
