"""What a Prometheus is asked for each kind of subject: queries keyed by the labels that name a subject, and the
subject that such labels name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.collectors.telemetry.gauge_events import EXPORTED, HEALTH, Exported
from nightshift.collectors.telemetry.gpu_labels import IDENTITY
from nightshift.collectors.telemetry.metrics import BOARD, Metric, of_kind
from nightshift.collectors.training.workload import container_subject

_GPU, _MIG, _BOX, _NODE = SubjectKind.GPU, SubjectKind.MIG, SubjectKind.CONTAINER, SubjectKind.NODE
_NIC, _DISK = SubjectKind.NIC, SubjectKind.DISK
KEYS = {
    _GPU: ("UUID",),
    _MIG: ("UUID", "GPU_I_ID"),
    _BOX: ("namespace", "pod", "container"),
    _NODE: ("nodename",),
    _NIC: ("nodename", "device", "port"),
    _DISK: ("nodename", "device", "mountpoint"),
}
_HOST = (_NODE, _NIC, _DISK)
_COUNTED_BY = ("UUID", "xid", "health_watch", "health_error_code")


def query_for(kind: SubjectKind, metric: Metric, matchers: str = "") -> str:
    """The query of one metric, its result keyed by the labels that name a subject of the kind. What is the whole
    board's is asked of its MIG instances' rows too: in MIG mode there are no others."""
    names = (metric.exported_as, *metric.aliases)
    rows = None if kind is _GPU and metric.exported_as in BOARD else kind
    return f"max by ({', '.join(KEYS[kind])}) ({_selected(rows, names, matchers)})"


def doubled_query(matchers: str = "") -> str:
    """The GPUs that more than one exporter tells of. `max` alone would hide it."""
    return f"count by (UUID) ({_selected(_GPU, (IDENTITY,), matchers)}) > 1"


def contradiction_query(matchers: str = "") -> str:
    """The GPUs of which two exporters tell memory in use that differs by more than a tenth."""
    told = _selected(_GPU, (IDENTITY,), matchers)
    return f"(max by (UUID) ({told}) - min by (UUID) ({told})) > 0.1 * max by (UUID) ({told})"


def exported_query(matchers: str = "") -> str:
    """The Xids and health watches that dcgm-exporter counts itself, in one answer."""
    by = ", ".join(("__name__", *_COUNTED_BY))
    # a fleet's zeros say nothing, and health watches have eleven of each GPU
    return f"max by ({by}) ({_selected(None, sorted(EXPORTED), matchers)}) > 0"


def exported_sample(labels: Mapping[str, str], value: float) -> Exported | None:
    """A sample of `exported_query`, or None where its labels name no GPU. Not every Prometheus-compatible server
    keeps the name when it groups by it; the labels tell the two kinds apart as well."""
    uuid = labels.get("UUID", "")
    if not uuid or not uuid.isprintable():
        return None
    counted = HEALTH if labels.get("health_watch") else "DCGM_EXP_XID_ERRORS_COUNT"
    return Subject(_GPU, uuid), labels.get("__name__") or counted, labels, value


def scrape_time_query(kind: SubjectKind, matchers: str = "") -> str:
    """When the newest sample of each subject was scraped, as its exporter's steadiest metric tells."""
    steady = {
        _BOX: ("container_memory_working_set_bytes",),
        _NODE: ("node_memory_MemTotal_bytes",),
        _NIC: ("node_network_carrier", "node_infiniband_state_id"),
        _DISK: ("node_disk_reads_completed_total", "node_filesystem_avail_bytes"),
    }
    names = steady.get(kind, (IDENTITY,))
    rows = None if kind is _GPU else kind
    return f"max by ({', '.join(KEYS[kind])}) ({_selected(rows, names, matchers, 'timestamp({})')})"


def _selected(kind: SubjectKind | None, names: Sequence[str], matchers: str, shape: str = "{}") -> str:
    own: dict[SubjectKind | None, str] = {
        _GPU: 'GPU_I_ID=""',
        _MIG: 'GPU_I_ID!=""',
        _BOX: 'container!="",container!="POD",pod!=""',
        _NIC: 'device!~"lo|veth.*|cali.*|lxc.*|docker.*|cni.*|br-.*|ifb.*|tunl.*|kube-.*"',
        _DISK: 'device!~"loop.*|ram.*|zram.*|dm-.*|tmpfs|shm|overlay"',
    }
    name, any_of = (names[0], "") if len(names) == 1 else ("", f'__name__=~"{"|".join(names)}"')
    within = ",".join(part for part in (any_of, own.get(kind, ""), matchers) if part)
    selector = shape.format(f"{name}{{{within}}}")
    if kind in _HOST:
        return f"{selector} * on (instance) group_left (nodename) node_uname_info"
    return selector


def metrics_of(kind: SubjectKind) -> tuple[Metric, ...]:
    return of_kind(_GPU if kind is _MIG else kind)


def subject_of(kind: SubjectKind, parts: tuple[str, ...]) -> Subject:
    """Raises ValueError where the labels name nothing usable."""
    needed = parts[:2] if kind in (_NIC, _DISK) else parts
    if kind is _DISK and parts[2]:
        needed = (parts[0], parts[2])
    if not all(needed) or not all(part.isprintable() for part in parts):
        raise ValueError("a key label is missing")
    if kind is _NIC:
        return Subject(kind, f"{parts[0]}/{parts[1]}" + (f":{parts[2]}" if parts[2] else ""))
    if kind is _DISK:
        return Subject(kind, f"{parts[0]}:{parts[2]}" if parts[2] else f"{parts[0]}/{parts[1]}")
    if kind is _BOX:
        return container_subject(*parts)
    return Subject(kind, f"{parts[0]}/mig{parts[1]}" if kind is _MIG else parts[0])
