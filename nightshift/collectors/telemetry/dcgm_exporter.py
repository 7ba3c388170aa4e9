"""dcgm-exporter's pages, scraped directly: GPUs, MIG instances and NVLinks, and who holds them.

Labels as dcgm-exporter writes them (NVIDIA/dcgm-exporter, internal/pkg/rendermetrics/render_metrics.go):
`gpu, UUID, pci_bus_id, device, modelName, Hostname` on GPU rows (other releases: `uuid`, `hostname`), with
`GPU_I_PROFILE, GPU_I_ID` on MIG rows; `nvlink, gpu_uuid, hostname` on link rows; `container, namespace, pod` where
it maps pods. A Prometheus in between may have renamed these to `exported_…`, which then are the true ones.

Of a GPU in MIG mode there are no rows but its instances', each of which repeats what is the whole board's: memory
errors, Xid, bus (`collectors.telemetry.metrics.BOARD`). They are the GPU's own row, the highest where they differ.

nvidia_gpu_exporter's pages are read as well: `collectors.telemetry.metrics.NVIDIA_SMI`. Its `uuid` lacks `GPU-`.
"""

from __future__ import annotations

import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import ClassVar

from pydantic.json_schema import SkipJsonSchema

from nightshift.collectors.frame import Reason
from nightshift.collectors.kernel_log.pci import PCI_FACT, canonical_pci
from nightshift.collectors.shared_settings import stated_once
from nightshift.collectors.subject import FABRIC_GUID, SHOWS_HELD_ONLY, Subject, SubjectKind
from nightshift.collectors.telemetry.equipment import plain_guid
from nightshift.collectors.telemetry.exposition import Layout, Page, Series
from nightshift.collectors.telemetry.gauge_events import EXPORTED
from nightshift.collectors.telemetry.metrics import BOARD, NVIDIA_SMI, of_kind
from nightshift.collectors.telemetry.pages import FORGET_AFTER_S, PageCollector, PagePlan, PageSettings, Relation
from nightshift.collectors.telemetry.rows import Cells, Rows, cells
from nightshift.collectors.topology import FABRIC
from nightshift.collectors.training.workload import WorkloadRule, pod_subject

_LANE = re.compile(r"(DCGM_FI_DEV_NVLINK_[A-Z_]+)_L(\d{1,2})")
# A pod of a DaemonSet ends with five letters of this alphabet (k8s.io/apimachinery, util/rand).
_EXPORTERS_POD = re.compile(r"[\w.-]*exporter[\w.-]*-[bcdfghjklmnpqrstvwxz2456789]{5}")
_HIDES = "it shows only GPUs that a pod holds: idle GPUs are not watched"
_OWN_POD = "its Hostname is the exporter's own pod: set NODE_NAME in its environment, or `nodes` here"
NODE_TIME = "nightshift_node_time_seconds"
"""What `nightshift node` adds to its page: its clock when it answered."""
KINDS = (SubjectKind.GPU, SubjectKind.MIG, SubjectKind.LINK)


class DcgmExporterCollector(PageCollector):
    r"""One row per GPU, MIG instance and NVLink of all pages; NaN where a page did not say.

    >>> from nightshift.collectors.telemetry.exposition import PageParser
    >>> page = PageParser().parse(
    ...     b'DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-1",Hostname="n1",namespace="ml",pod="llm-0"} 655.2\n'
    ... )
    >>> collector = DcgmExporterCollector(DcgmExporterCollector.Settings(urls=["http://n1:9400/metrics"]))
    >>> plan = collector.plan(page.layout, page, "n1", None, "n1:9400")
    >>> sorted(str(parent) for child, parent in plan.relations if child.name == "GPU-1")
    ['node:n1', 'pod:ml/llm-0', 'rank:ml/llm#0']
    """

    plugin: ClassVar[str] = "dcgm_exporter"
    blanks = True

    class Settings(PageSettings):
        """Scrapes dcgm-exporter, or `nightshift node`, which serves the same page."""

        workload: SkipJsonSchema[WorkloadRule] = stated_once("workload", WorkloadRule)

    def __init__(self, settings: Settings, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(settings, gpu_rows(FORGET_AFTER_S), clock)
        self._workload = settings.workload

    def plan(self, layout: Layout, page: Page, host: str, node: str | None, place: str) -> PagePlan:
        columns = {kind: rows.column for kind, rows in self._rows.items()}
        return plan_of(layout, columns, self._workload, node, host)


def gpu_rows(forget_after_s: float) -> dict[SubjectKind, Rows]:
    """Empty rows for what DCGM tells of. MIG instances have the GPU's metrics."""
    return {
        SubjectKind.GPU: Rows(SubjectKind.GPU, of_kind(SubjectKind.GPU), forget_after_s),
        SubjectKind.MIG: Rows(SubjectKind.MIG, of_kind(SubjectKind.GPU), forget_after_s),
        SubjectKind.LINK: Rows(SubjectKind.LINK, of_kind(SubjectKind.LINK), forget_after_s),
    }


def plan_of(
    layout: Layout,
    columns: Mapping[SubjectKind, Mapping[str, int]],
    workload: WorkloadRule,
    node: str | None,
    host: str,
) -> PagePlan:
    """Where the samples of DCGM series belong: `columns` by kind and exported name. `node` overrides the Hostname
    label, `host` stands in for it."""
    planner = _Planner(columns, node, host)
    for position, series in enumerate(layout.series):
        try:
            planner.take(position, series, layout.types.get(series.name))
        except ValueError:
            planner.rejected[Reason.MALFORMED] += 1
    relations = planner.relations
    _place(planner.holders, workload, relations)
    nodes = tuple(sorted({parent for _, parent in relations if parent.kind is SubjectKind.NODE}))
    hides = planner.shows_held_only
    if planner.claims:
        planner.facts |= {node: {SHOWS_HELD_ONLY: "yes" if hides else "no"} for node in nodes}
    placed: list[Cells] = []
    if planner.repeated:
        placed.append(cells(SubjectKind.GPU, planner.repeated, highest=True))
    placed += [cells(kind, found) for kind, found in planner.entries.items()]
    at = next((n for n, series in enumerate(layout.series) if series.name == NODE_TIME), None)
    # a federated page has many nodes' rows and one clock, which is none of theirs
    clock = (nodes[0], at) if len(nodes) == 1 else None
    return PagePlan(
        layout,
        placed,
        frozenset(relations),
        planner.facts,
        nodes,
        dict(planner.rejected),
        clock,
        errors=planner.errors,
        gpus=tuple({gpu for gpu, _ in relations if gpu.kind is SubjectKind.GPU}),
        note="; ".join(note for note, holds in ((_HIDES, hides), (_OWN_POD, planner.names_its_pod)) if holds),
    )


class _Planner:
    """What the series of one page say, taken one by one."""

    def __init__(self, columns: Mapping[SubjectKind, Mapping[str, int]], node: str | None, host: str) -> None:
        self._columns, self._node, self._host = columns, node, host
        self._boards = {name: column for name, column in columns[SubjectKind.GPU].items() if name in BOARD}
        self._scales = {kind: [m.scale for m in of_kind(_metrics_of(kind))] for kind in KINDS}
        self._described: set[tuple[tuple[str, str], ...]] = set()
        self.entries: dict[SubjectKind, list[tuple[int, Subject, int, float]]] = defaultdict(list)
        self.repeated: list[tuple[int, Subject, int, float]] = []
        self.relations: set[Relation] = set()
        self.facts: dict[Subject, dict[str, str]] = {}
        self.holders: dict[Subject, set[Subject]] = defaultdict(set)
        self.rejected: Counter[Reason] = Counter()
        self.claims: set[Subject] = set()
        self.names_its_pod = False
        self.errors: list[tuple[int, Subject, str, Mapping[str, str]]] = []

    @property
    def shows_held_only(self) -> bool:
        """Whether the exporter leaves out GPUs that no claim holds: with Dynamic Resource Allocation it lists
        claims, and every GPU of the page has one (NVIDIA/dcgm-exporter, `dra_…` labels)."""
        gpus = {gpu for gpu, parent in self.relations if gpu.kind is SubjectKind.GPU}
        return bool(gpus) and gpus <= self.claims

    def take(self, position: int, series: Series, metric_type: str | None) -> None:
        """Raises ValueError where a series of ours cannot be used; one that is not ours is passed over."""
        labels = dict(series.labels)
        name, factor = NVIDIA_SMI.get(series.name, (series.name, 1.0))
        if name is not series.name and not labels.get("uuid", "GPU-").startswith(("GPU-", "MIG-")):
            labels["uuid"] = f"GPU-{labels['uuid']}"
        kind, name, lane = _row_of(name, labels)
        column = self._columns[kind].get(name)
        # OpenTelemetry's collector and others end the names of counters with `_total`
        if column is None:
            name = name.removesuffix("_total")
            column = self._columns[kind].get(name)
        if column is None:
            if name in EXPORTED:
                gpu = _subject(SubjectKind.GPU, labels, None)[1]
                self.errors.append((position, gpu, name, labels))
                self._describe(gpu, gpu, labels)
            return
        if metric_type in ("histogram", "summary"):
            raise ValueError(f"{name} is a {metric_type}")
        subject, gpu = _subject(kind, labels, lane)
        scale = self._scales[kind][column] * factor
        self.entries[kind].append((position, subject, column, scale))
        # one board's health stands on each of its instances' rows: it is the GPU's, once, the highest
        if kind is SubjectKind.MIG and (of_board := self._boards.get(name)) is not None:
            self.repeated.append((position, gpu, of_board, self._scales[SubjectKind.GPU][of_board] * factor))
        # a page repeats each label set per metric; what it tells is the same each time
        if series.labels not in self._described:
            self._described.add(series.labels)
            self._describe(subject, gpu, labels)

    def _describe(self, subject: Subject, gpu: Subject, labels: Mapping[str, str]) -> None:
        node_name = self._node or _node_name(labels) or self._host
        if not node_name.isprintable():
            raise ValueError("a host's name with control characters")
        self.names_its_pod |= _EXPORTERS_POD.fullmatch(node_name) is not None
        node = Subject(SubjectKind.NODE, node_name)
        self.relations.add((gpu, node))
        if subject != gpu:
            self.relations.add((subject, gpu))
            if profile := labels.get("GPU_I_PROFILE"):
                self.facts.setdefault(subject, {})["profile"] = _plain(profile)
        self.facts.setdefault(gpu, {}).update(_facts(labels))
        if any(name.startswith("dra_") for name in labels):
            self.claims.add(gpu)
        pod = labels.get("exported_pod") or labels.get("pod") or ""
        # where both stand, `pod` is the exporter's own, added by Prometheus when it scraped
        namespace = labels.get("exported_namespace") or labels.get("namespace") or ""
        if pod and namespace:
            holder = pod_subject(namespace, pod)
            self.relations.update(((gpu, holder), (holder, node)))
            if subject.kind is SubjectKind.MIG:
                self.relations.add((subject, holder))
            self.holders[holder].add(gpu)


def _row_of(name: str, labels: Mapping[str, str]) -> tuple[SubjectKind, str, str | None]:
    """(kind of row, metric's name, NVLink) of a series: a link is named by its metric's end or by a label."""
    lane = None
    if (match := _LANE.fullmatch(name)) is not None:
        name, lane = match.groups()
    if lane is not None or "nvlink" in labels:
        return SubjectKind.LINK, name, lane
    return SubjectKind.MIG if labels.get("GPU_I_ID") else SubjectKind.GPU, name, None


def _node_name(labels: Mapping[str, str]) -> str:
    """The node that a series names; a page gathered by Prometheus' federation names it as the scraped instance."""
    # without NODE_NAME in its environment, dcgm-exporter's Hostname is its own pod; `node` is Kubernetes' word
    named = labels.get("node") or labels.get("Hostname") or labels.get("hostname")
    return named or labels.get("instance", "").rpartition(":")[0]


def _metrics_of(kind: SubjectKind) -> SubjectKind:
    return SubjectKind.GPU if kind is SubjectKind.MIG else kind


def _subject(kind: SubjectKind, labels: Mapping[str, str], lane: str | None) -> tuple[Subject, Subject]:
    """(the row's subject, its GPU). Raises ValueError where no usable UUID stands in the labels."""
    # the spelling of the label differs by row and release of dcgm-exporter; links have `gpu_uuid`
    uuid = labels.get("UUID") or labels.get("uuid") or labels.get("gpu_uuid") or ""
    if not uuid.isprintable():
        raise ValueError("UUID with control characters")
    gpu = Subject(SubjectKind.GPU, uuid)
    if kind is SubjectKind.GPU:
        return gpu, gpu
    part = f"mig{labels['GPU_I_ID']}" if kind is SubjectKind.MIG else f"link{lane or labels['nvlink']}"
    if not part.isprintable():
        raise ValueError("an instance or link with control characters")
    return Subject(kind, f"{uuid}/{part}"), gpu


def _facts(labels: Mapping[str, str]) -> dict[str, str]:
    index, address = labels.get("gpu", ""), canonical_pci(labels.get("pci_bus_id", "")) or ""
    known = {
        "index": index,
        "slot": address or index,
        "model": labels.get("modelName") or labels.get("model_name") or "",
        "driver": labels.get("DCGM_FI_DRIVER_VERSION", ""),
        "vbios": labels.get("DCGM_FI_DEV_VBIOS_VERSION", ""),
        "serial": labels.get("DCGM_FI_DEV_SERIAL", ""),
        PCI_FACT: address,
        FABRIC: _fabric(labels),
        FABRIC_GUID: plain_guid(labels.get("DCGM_FI_DEV_PLATFORM_INFINIBAND_GUID", "")),
    }
    return {key: _plain(value) for key, value in known.items() if value}


def _fabric(labels: Mapping[str, str]) -> str:
    """Fabric of a GPU in an NVLink domain of several nodes, as the label `nvidia.com/gpu.clique` has it."""
    uuid, clique = (labels.get(f"DCGM_FI_DEV_FABRIC_{name}", "") for name in ("CLUSTER_UUID", "CLIQUE_ID"))
    return f"{uuid}.{clique}".lower() if uuid.strip("0-") and clique else ""


def _plain(text: str) -> str:
    """To display: short, control characters as spaces."""
    return "".join(c if c.isprintable() else " " for c in text[:200])


def _place(holders: Mapping[Subject, set[Subject]], workload: WorkloadRule, relations: set[Relation]) -> None:
    """Jobs and ranks of the pods, by the workload rule."""
    for pod, gpus in holders.items():
        job, rank = workload.place(*pod.name.split("/", 1))
        if job is not None:
            relations.add((pod, job))
        # a pod of eight GPUs runs eight ranks, and its name tells none of theirs
        if job is not None and rank is not None and len(gpus) == 1:
            relations.update(((next(iter(gpus)), rank), (rank, pod), (rank, job)))
