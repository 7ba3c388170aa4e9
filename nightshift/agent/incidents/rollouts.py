"""Versions by node, their changes, and whether a fault began with a rollout.

What sources tell of a node's software and firmware is compared every five minutes; each change is remembered for
four weeks. A rollout is the same new version of one component on several nodes. A fault began with it where
nodes that fail are more frequent, per node and hour, among changed nodes after their change than among all others
and before, by a binomial test: each node counts once on either side. Incidents are counted in the same way, more
strictly. Each counts by the node of its first cause, so one storm is one. A version that cannot be read is unknown,
and no change.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Any

import sqlalchemy as sa
import structlog

from nightshift.agent.correlation.kinship import first_cause, xid_of
from nightshift.agent.store.incident import Incident, findings_of
from nightshift.agent.store.incident_store import Store, number_of
from nightshift.agent.store.records import load
from nightshift.agent.store.tables import findings
from nightshift.collectors.base import Permanent, Temporary
from nightshift.collectors.frame import Instant, LogRecord
from nightshift.collectors.subject import IMAGE_OF, Inventory, Subject, SubjectKind
from nightshift.detectors.base import Fault, Finding
from nightshift.detectors.tails import binomial_tail

EVERY_S, DAY_S = 300.0, 86_400.0
COMPARED_S, REMEMBERED_S = 14 * DAY_S, 28 * DAY_S
MOST_LINES = 50
LEAST_NODES = 3
"""So many changed nodes must fail: two are a coincidence."""
CHANCE, REPEATS = 1e-4, 100.0
"""Blamed by chance, per incident; counted by incidents, so many times rarer: a bad node fails again and again."""
OF_NODE = ("kernel", "container_runtime", "kubelet", "os_image", "cuda", "bios", "bmc", "nic_firmware")
OF_GPU, OF_JOB = ("driver", "vbios"), ("nccl",)
OF_SWITCH, OF_PORTS = "switch_firmware", "nic_firmware"
"""Facts of a node, of its GPUs and of the jobs on them; of the switches that its ports lead to, and of the ports.
Beside them a node's `IMAGE_OF`. A job's own image is no version of a node: it changes with every job."""
_KEPT = "rollouts"
_NUMBER = re.compile(r"\d+")
_NOISE = re.compile(r"^(?:(?:version|firmware|release|nvidia|bios|bmc|nccl|ver\.?|fw|rev\.?|v)[\s:=]*)+(?=\d)")


@lru_cache(maxsize=4096)
def spelled(version: str) -> str:
    """One spelling of a version: without case, prefix, blanks and leading zeros.

    >>> {spelled(text) for text in ("v570.086.10", "570.86.10 ", "Version: 570.86.10", "FW 570.086.10")}
    {'570.86.10'}
    """
    text = _NOISE.sub("", " ".join(version.lower().split()))
    return _NUMBER.sub(lambda match: str(int(match[0])), text)


@dataclass(frozen=True, slots=True)
class VersionChange:
    """One node's component changed between two looks; `at_s` is the later one (Unix s)."""

    node: str
    component: str
    before: str
    after: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Blame:
    """A rollout that a fault began with, and the figures that say so."""

    component: str
    version: str
    before: str
    changed: int
    failed_changed: int
    others: int
    failed_others: int
    first_change_s: float
    chance: float


def blamed(
    changes: Iterable[VersionChange],
    failures: Sequence[tuple[str, float]],
    nodes: Iterable[str],
    node: str,
    onset_s: float,
    at_s: float,
) -> Blame | None:
    """The rollout that a fault on a node began with, or None. `failures`: (node, onset) of incidents of that fault
    in the compared time, this one among them. Decides purely."""
    start_s, fleet = at_s - COMPARED_S, set(nodes) | {name for name, _ in failures}
    rollouts = _stays([change for change in changes if start_s <= change.at_s <= at_s], at_s)
    found: list[tuple[Blame, bool]] = []
    for (component, _), (reached, changed_s) in rollouts.items():
        of_it = [name for name, t_s in failures if _is_within(reached.get(name, ()), t_s)]
        after = set(of_it)
        if len(after) < LEAST_NODES:
            continue
        elsewhere = {name for name, t_s in failures if not _is_within(reached.get(name, ()), t_s)}
        share = min(changed_s / max(len(fleet) * COMPARED_S, 1.0), 1.0)
        # as many or more of them by chance: the binomial's tail
        by_node = binomial_tail(len(after), len(after) + len(elsewhere), share)
        by_incident = binomial_tail(len(of_it), len(failures), share)
        chance = min(by_node, by_incident * REPEATS) * len(rollouts)
        if chance < CHANCE:
            first = min((change for stays in reached.values() for change, _ in stays), key=lambda one: one.at_s)
            counts = len(reached), len(after), len(fleet) - len(reached), len(elsewhere - after)
            blame = Blame(component, first.after, first.before, *counts, first.at_s, chance)
            # a fault that was there before the change did not begin with it
            found.append((blame, _is_within(reached.get(node, ()), onset_s)))
    # the one that explains most: a harmless version beside it reached some of the same nodes
    best, is_mine = min(found, key=lambda pair: pair[0].chance, default=(None, False))
    return best if is_mine else None


Stays = dict[str, list[tuple[VersionChange, float]]]
"""By node: changes to one version, each with the time (Unix s) until which the node had it."""


def _stays(changes: Iterable[VersionChange], at_s: float) -> dict[tuple[str, str], tuple[Stays, float]]:
    """By component and version how long each node had it, and all together (s): a version that was reverted counts
    until then."""
    found: dict[tuple[str, str], tuple[Stays, list[float]]] = {}
    next_s: dict[tuple[str, str], float] = {}
    for change in sorted(changes, key=attrgetter("at_s"), reverse=True):
        node, component, since_s = change.node, change.component, change.at_s
        until_s = next_s.get((node, component), at_s)
        next_s[node, component] = since_s
        key = component, spelled(change.after)
        if key not in found:
            found[key] = {}, []
        stays, lengths = found[key]
        lengths.append(until_s - since_s)
        if node in stays:
            stays[node].append((change, until_s))
        else:
            stays[node] = [(change, until_s)]
    return {key: (stays, sum(lengths)) for key, (stays, lengths) in found.items()}


def _is_within(stays: Sequence[tuple[VersionChange, float]], t_s: float) -> bool:
    # the end counts: it is the time of this look where the node has the version still
    return any(change.at_s <= t_s <= until_s for change, until_s in stays)


class Rollouts:
    """Followed by the replica that leads; what was seen outlives a restart."""

    def __init__(self, store: Store, inventory: Inventory) -> None:
        self._store, self._inventory = store, inventory
        self._known: dict[str, dict[str, str]] = {}
        self.changes: list[VersionChange] = []
        self._next_s = float("-inf")
        self._log = structlog.get_logger("rollouts")

    def resume(self) -> None:
        """Takes up what was seen before, also by another replica."""
        kept = self._store.recall(_KEPT)
        if kept is not None:
            told = json.loads(kept[1])
            self._known = told["known"]
            self.changes = [VersionChange(**change) for change in told["changes"]]

    def turn(self, now_s: float) -> None:
        """Compares every node's versions with what was seen before."""
        # both bounds: a clock that was set back must not put the next look off
        if self._next_s - EVERY_S <= now_s < self._next_s:
            return
        self._next_s = now_s + EVERY_S
        changed = False
        for node, versions in self.versions(now_s).items():
            known = self._known.setdefault(node, {})
            for component, version in versions.items():
                before = known.get(component)
                if before is not None and spelled(before) != spelled(version):
                    self.changes.append(VersionChange(node, component, before, version, now_s))
                changed = changed or before != version
                known[component] = version
        self.changes = [change for change in self.changes if change.at_s > now_s - REMEMBERED_S]
        if changed:
            try:
                told = {"known": self._known, "changes": [asdict(change) for change in self.changes]}
                self._store.keep({_KEPT: json.dumps(told).encode()})
            except (Temporary, Permanent) as error:
                self._next_s = now_s
                self._log.warning("versions not stored", error=str(error))

    def versions(self, now_s: float) -> dict[str, dict[str, str]]:
        """By node what the sources tell of each component; of GPUs that differ, all of theirs."""
        found: dict[str, dict[str, str]] = {}
        for node in self._inventory.subjects(SubjectKind.NODE, now_s):
            facts = self._inventory.facts(node)
            mine = {
                name: text
                for name, text in facts.items()
                if text and (name in OF_NODE or name.startswith(IMAGE_OF))
            }
            found[node.name] = mine
            for component, fact, owners in self._components(node, now_s):
                told = {self._inventory.fact(owner, fact) for owner in owners if owner is not None}
                if versions := sorted(version for version in told if version):
                    mine.setdefault(component, ", ".join(versions))
        return found

    def _components(self, node: Subject, now_s: float) -> list[tuple[str, str, Iterable[Subject | None]]]:
        """What a node's GPUs and ports tell: (component, the fact of its version, the subjects that have it)."""
        gpus = self._inventory.children(node, now_s, SubjectKind.GPU)
        ports = self._inventory.children(node, now_s, SubjectKind.NIC)
        jobs = {self._inventory.above(gpu, SubjectKind.JOB, now_s) for gpu in gpus}
        switches = {self._inventory.above(port, SubjectKind.SWITCH, now_s) for port in ports}
        return [
            *((name, name, gpus) for name in OF_GPU),
            *((name, name, jobs) for name in OF_JOB),
            (OF_SWITCH, "firmware", switches),
            (OF_PORTS, "firmware", ports),
        ]

    def of(self, incident: Incident, now_s: float) -> list[VersionChange]:
        """What changed on the nodes of an incident, in the compared time before its onset and since."""
        found = findings_of(incident)
        start_s = min(one.since.t_s for one in found) - COMPARED_S
        nodes = {self._node_of(one.subject, t_s) for one in found for t_s in (one.since.t_s, now_s)}
        return [change for change in self.changes if change.node in nodes and change.at_s >= start_s]

    def lines(self, incident: Incident, now_s: float) -> list[LogRecord]:
        """The same as lines, the newest `MOST_LINES`: evidence of what changed, whatever the fault began with."""
        return [
            LogRecord(
                Instant(change.at_s, EVERY_S), "versions", Subject(SubjectKind.NODE, change.node), text, number
            )
            for number, change in enumerate(self.of(incident, now_s)[-MOST_LINES:])
            for text in (f"{change.component} of {change.node} changed from {change.before} to {change.after}",)
        ]

    def minorities(self, now_s: float) -> list[tuple[str, str, int, list[str]]]:
        """(component, version, count of nodes, their names where another version has more nodes)."""
        by: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        shown: dict[str, str] = {}
        for node, versions in sorted(self.versions(now_s).items()):
            for component, version in versions.items():
                shown.setdefault(spelled(version), version)
                by[component][spelled(version)].append(node)
        rows = []
        for component, found in sorted(by.items()):
            most = max(map(len, found.values()))
            for version, names in sorted(found.items(), key=lambda pair: -len(pair[1])):
                rows.append((component, shown[version], len(names), names if len(names) < most else []))
        return rows

    def before(self, incident: Incident, now_s: float) -> dict[str, Any] | None:
        """What is known of an incident's rollout, as evidence; None where none is to blame."""
        cause = first_cause(findings_of(incident))
        node = self._inventory.above(cause.subject, SubjectKind.NODE, cause.since.t_s)
        if node is None or not any(change.node == node.name for change in self.changes):
            return None
        failures = [*self._failures(incident, cause, now_s), (node.name, cause.since.t_s)]
        nodes = [one.name for one in self._inventory.subjects(SubjectKind.NODE, now_s)]
        found = blamed(self.changes, failures, nodes, node.name, cause.since.t_s, now_s)
        return None if found is None else asdict(found)

    def _failures(self, incident: Incident, cause: Finding, now_s: float) -> list[tuple[str, float]]:
        """(node, onset) of the other incidents of the same fault in the compared time."""
        query = sa.select(findings.c.incident, findings.c.subject, findings.c.since_s, findings.c.body).where(
            findings.c.fault == str(cause.fault),
            findings.c.since_s > now_s - COMPARED_S,
            findings.c.incident != number_of(incident.id),
        )
        with self._store.database.read() as connection:
            rows = connection.execute(query.order_by(findings.c.since_s)).all()
        first: dict[int, tuple[str, float]] = {}
        for row in rows:
            if row.incident in first:
                continue
            # of Xids, each code is a fault of its own
            if cause.fault is Fault.XID and xid_of(load(Finding, row.body)) != xid_of(cause):
                continue
            if (node := self._node_of(Subject.parse(row.subject), row.since_s)) is not None:
                first[row.incident] = node, row.since_s
        return list(first.values())

    def _node_of(self, subject: Subject, at_s: float) -> str | None:
        node = self._inventory.above(subject, SubjectKind.NODE, at_s)
        return None if node is None else node.name
