"""Racks from a file: which nodes, which parts serve them, and which nodes are spares.

    spare_share: 0.05
    racks:
      r7:
        nodes: [gpu-r7-00, gpu-r7-01]
        spares: [gpu-r7-01]
        parts:
          r7-shelf-1: {kind: power_shelf, feeds: [gpu-r7-00]}
          r7-switch-3: {kind: switch_tray}

`spare_share`: the share of all nodes to be kept as warm spares (`controllers.playbooks.spares`). A part's name is
the one under which its BMC is configured. The file outweighs labels. Where labels contradict the
file, or the GPUs' own fabric, nothing is done to the node (`conflict`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from nightshift.collectors.frame import Reason, SourceStatus
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.telemetry.pages import source_subject
from nightshift.collectors.tick import Batch

AUTHORITY = 2
"""Over labels, which the API server tells with 1."""
PART, FEEDS, SPARE, MEMBERS = "rack_part", "feeds", "spare", "members"
RACK_LABEL, CLIQUE_LABEL, FABRIC = "rack_label", "clique_label", "fabric"
"""Facts of a node (what its labels say), and of a GPU: `cluster UUID.clique`, as its driver says."""
SPARE_SHARE = "spare_share"
"""A fact of the cluster: the stated share of nodes that are kept as warm spares."""
SPARE_TAINT = "nightshift.dev/spare"
"""Key of the taint that keeps a warm spare free."""
POWER_SHELF, SWITCH_TRAY, COOLANT = "power_shelf", "switch_tray", "coolant"
_K = SubjectKind


class RackPart(BaseModel):
    """A part that serves several nodes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["power_shelf", "switch_tray", "coolant"]
    feeds: tuple[str, ...] = ()


class Rack(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    nodes: tuple[str, ...] = Field(min_length=1)
    spares: tuple[str, ...] = ()
    parts: Mapping[str, RackPart] = {}

    @model_validator(mode="after")
    def _is_whole(self) -> Rack:
        named = {*self.spares, *(name for part in self.parts.values() for name in part.feeds)}
        if unknown := sorted(named - set(self.nodes)):
            raise ValueError(f"no node of the rack: {', '.join(unknown)}")
        return self


class TopologyFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    spare_share: float = Field(0.0, ge=0, lt=1)
    racks: Mapping[str, Rack]

    @model_validator(mode="after")
    def _is_a_tree(self) -> TopologyFile:
        of: dict[str, str] = {}
        for name, rack in self.racks.items():
            for node in rack.nodes:
                if of.setdefault(node, name) != name:
                    raise ValueError(f"{node} is in two racks: {of[node]} and {name}")
        return self


class TopologySettings(BaseModel):
    """Reads racks from a file."""

    model_config = ConfigDict(extra="forbid")

    path: Path = Field(description="YAML file with racks, their nodes, parts and spares")


class TopologyCollector:
    """Reads the file again when it changes; a file that is no good leaves the last topology as it was.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "racks.yaml"
    >>> file.write_text("racks: {r7: {nodes: [n1, n2], parts: {shelf-1: {kind: power_shelf, feeds: [n1]}}}}") > 0
    True
    >>> inventory = Inventory()
    >>> collector = TopologyCollector(TopologySettings(path=file))
    >>> collector.collect(0.0, inventory, 1.0).sources[0].ok
    True
    >>> [str(rack) for rack in inventory.nearest(Subject(SubjectKind.NODE, "n1"), (SubjectKind.RACK,), 0.0)]
    ['rack:r7']
    """

    plugin: ClassVar[str] = "topology"
    Settings = TopologySettings

    def __init__(self, settings: TopologySettings) -> None:
        self._path = settings.path
        self._read_ns = -1
        self._held: tuple[tuple[Subject, Subject], ...] = ()
        self._count = 0

    @property
    def name(self) -> str:
        return self.plugin

    def collect(self, now_s: float, inventory: Inventory, timeout_s: float) -> Batch:
        subject = source_subject(self.plugin, str(self._path))
        try:
            changed_ns = self._path.stat().st_mtime_ns
            if changed_ns != self._read_ns:
                told = TopologyFile.model_validate(yaml.safe_load(self._path.read_bytes()))
                self._take(told, inventory, now_s)
                self._read_ns = changed_ns
        except OSError as error:
            fault = f"{self._path}: {error.strerror}"
            return Batch([SourceStatus(subject, now_s, False, Reason.NOT_FOUND, fault, self._count)])
        except (yaml.YAMLError, ValidationError) as error:
            words = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
            return Batch(
                [SourceStatus(subject, now_s, False, Reason.MALFORMED, f"{self._path}: {words}", self._count)]
            )
        return Batch([SourceStatus(subject, now_s, True, None, "", self._count)])

    def close(self) -> None:
        """Nothing is held open."""

    def _take(self, told: TopologyFile, inventory: Inventory, now_s: float) -> None:
        inventory.describe(inventory.cluster, **{SPARE_SHARE: str(told.spare_share)})
        relations = tuple(dict.fromkeys(_relations(told, inventory)))
        inventory.exchange(self._held, relations, now_s, AUTHORITY)
        self._held = relations
        self._count = sum(len(rack.nodes) for rack in told.racks.values())


def _relations(told: TopologyFile, inventory: Inventory) -> Iterator[tuple[Subject, Subject]]:
    for name, rack in told.racks.items():
        place = Subject(_K.RACK, name)
        inventory.describe(place, **{MEMBERS: str(len(rack.nodes))})
        for node in rack.nodes:
            inventory.describe(Subject(_K.NODE, node), **{SPARE: "true" if node in rack.spares else "false"})
            yield Subject(_K.NODE, node), place
        for part, served in rack.parts.items():
            subject = Subject(_K.PART, part)
            inventory.describe(subject, **{PART: served.kind, FEEDS: " ".join(sorted(served.feeds))})
            yield subject, place


def conflict(inventory: Inventory, node: Subject, at_s: float) -> str:
    """Why it is unknown where a node stands: its labels contradict the file, or its GPUs' fabric; empty: it is
    not."""
    rack, label = inventory.above(node, _K.RACK, at_s), inventory.fact(node, RACK_LABEL)
    if rack is not None and label and label != rack.name:
        return f"its label says rack {label}, the topology file {rack.name}"
    clique = inventory.fact(node, CLIQUE_LABEL)
    fabrics = {fabric for gpu in inventory.gpus(node, at_s) if (fabric := inventory.fact(gpu, FABRIC))}
    if len(fabrics) > 1:
        return f"its GPUs are in several fabrics: {', '.join(sorted(fabrics))}"
    if clique and fabrics and clique.lower() not in fabrics:
        return f"its label says NVLink domain {clique}, its GPUs {', '.join(fabrics)}"
    return ""
