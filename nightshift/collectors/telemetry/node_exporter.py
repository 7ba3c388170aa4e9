"""node_exporter's pages: a node's pressure, memory, disks, filesystems, network ports and clock.

Series are told apart by their labels: none for the node; `device` for interfaces and block devices; `device, port`
for InfiniBand; `mountpoint` for filesystems. Loopback, virtual interfaces and pseudo-filesystems are left out: a
node of Kubernetes has hundreds that nobody asks about. Label names as node_exporter v1.9 writes them.
"""

from __future__ import annotations

import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import ClassVar

from pydantic import Field, field_validator

from nightshift.collectors.frame import Reason
from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.collectors.telemetry.exposition import Layout, Page, Series
from nightshift.collectors.telemetry.metrics import of_kind
from nightshift.collectors.telemetry.pages import FORGET_AFTER_S, PageCollector, PagePlan, PageSettings
from nightshift.collectors.telemetry.rows import Rows, cells

KINDS = (SubjectKind.NODE, SubjectKind.NIC, SubjectKind.DISK)
_REAL_MOUNT = ("ext", "xfs", "btrfs", "zfs", "nfs", "lustre", "beegfs", "ceph", "fuse", "gpfs", "wekafs", "overlay")


class NodeExporterCollector(PageCollector):
    r"""One row per node, network port, disk and filesystem of all pages; NaN where a page did not say.

    >>> from nightshift.collectors.telemetry.exposition import PageParser
    >>> page = PageParser().parse(b'node_load1 3.5\nnode_network_carrier{device="mlx5_0"} 1\n')
    >>> collector = NodeExporterCollector(NodeExporterCollector.Settings(urls=["http://n1:9100/metrics"]))
    >>> plan = collector.plan(page.layout, page, "n1", None, "n1:9100")
    >>> [str(subject) for found in plan.cells for subject in found.subjects]
    ['node:n1', 'nic:n1/mlx5_0']
    """

    plugin: ClassVar[str] = "node_exporter"

    class Settings(PageSettings):
        """Scrapes node_exporter: a host's pressure, memory, disks, fabric and clock."""

        ignored_devices: str = Field(
            r"lo|veth.*|cali.*|cilium.*|lxc.*|docker.*|cni.*|flannel.*|br-.*|ifb.*|tunl.*|kube-.*|dummy.*|nodelocaldns"
            r"|loop.*|ram.*|zram.*|sr\d+|dm-\d+|nbd.*",
            description="Network and block devices to omit: a pattern of their whole name",
        )
        ignored_mounts: str = Field(
            r"/(?:dev|proc|sys|run|snap|boot)(?:/.*)?|/var/lib/(?:kubelet|containerd|docker)/.*",
            description="Mount points to omit: a pattern of their whole path",
        )

        @field_validator("ignored_devices", "ignored_mounts")
        @classmethod
        def _is_pattern(cls, text: str) -> str:
            try:
                re.compile(text)
            except re.error as error:
                raise ValueError(f"{text!r} is no pattern: {error}") from error
            return text

    def __init__(self, settings: Settings, *, clock: Callable[[], float] = time.monotonic) -> None:
        rows = {kind: Rows(kind, of_kind(kind), FORGET_AFTER_S) for kind in KINDS}
        super().__init__(settings, rows, clock)
        self._kind_of = {name: kind for kind, found in rows.items() for name in found.column}
        self._scales = {kind: [metric.scale for metric in of_kind(kind)] for kind in rows}
        self._devices = re.compile(settings.ignored_devices)
        self._mounts = re.compile(settings.ignored_mounts)

    def plan(self, layout: Layout, page: Page, host: str, node: str | None, place: str) -> PagePlan:
        entries: dict[SubjectKind, list[tuple[int, Subject, int, float]]] = defaultdict(list)
        rejected: Counter[Reason] = Counter()

        at = {series.name: position for position, series in enumerate(layout.series)}
        clock, boot = at.get("node_time_seconds"), at.get("node_boot_time_seconds")
        uname = layout.series[at["node_uname_info"]].label("nodename") if "node_uname_info" in at else ""
        try:
            here = Subject(SubjectKind.NODE, _printable(node or uname or host))
        except ValueError:
            return PagePlan(layout, (), rejected={Reason.MALFORMED: len(layout.series)})
        named: set[Subject] = set()
        for position, series in enumerate(layout.series):
            kind = self._kind_of.get(series.name)
            if kind is None:
                continue
            try:
                subject = self._subject(kind, series, here)
            except ValueError:
                rejected[Reason.MALFORMED] += 1
                continue
            if subject is not None:
                column = self._rows[kind].column[series.name]
                entries[kind].append((position, subject, column, self._scales[kind][column]))
                named.add(subject)
        named.discard(here)
        relations = frozenset((subject, here) for subject in named)
        # a reboot starts the counters of the whole host anew, its disks' and ports' too
        subjects = (here, *named)
        return PagePlan(
            layout,
            [cells(kind, found) for kind, found in entries.items()],
            relations,
            {here: firmware} if (firmware := self._firmware(layout)) else {},
            (here,),
            dict(rejected),
            (here, clock),
            None if boot is None else (subjects, boot),
        )

    def _firmware(self, layout: Layout) -> dict[str, str]:
        """The versions that the node's adapters run: by its InfiniBand collector, else by its ethtool collector."""
        for name in ("node_infiniband_info", "node_ethtool_info"):
            found = {
                version
                for series in layout.series
                if series.name == name and not self._devices.fullmatch(series.label("device"))
                and (version := series.label("firmware_version").strip()) not in ("", "N/A")
                and version.isprintable()
            }  # fmt: skip
            if found:
                return {"nic_firmware": ", ".join(sorted(found))[:200]}
        return {}

    def _subject(self, kind: SubjectKind, series: Series, here: Subject) -> Subject | None:
        """Whom a series is of, or None where it is left out. Raises ValueError where its labels name nothing."""
        if kind is SubjectKind.NODE:
            return None if series.labels else here
        mount, device = series.label("mountpoint"), series.label("device")
        if mount:
            if self._mounts.fullmatch(mount) or not series.label("fstype", "ext4").startswith(_REAL_MOUNT):
                return None
            return Subject(kind, _printable(f"{here.name}:{mount}"))
        if not device:
            raise ValueError("no device")
        if self._devices.fullmatch(device):
            return None
        port = series.label("port")
        return Subject(kind, _printable(f"{here.name}/{device}" + (f":{port}" if port else "")))


def _printable(name: str) -> str:
    if not name.isprintable():
        raise ValueError("a name with control characters")
    return name
