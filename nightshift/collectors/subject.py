"""What a signal is about, and who held what when.

A `Subject` is an identity that outlives its labels: a GPU is its UUID, not its index. The `Inventory` keeps the
relations between subjects with validity intervals, because the pod that held a GPU is gone by the time its fault is
explained.
"""

from __future__ import annotations

import heapq
import itertools
import math
import threading
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from operator import attrgetter

MAX_NAME_CHARS = 512
TAKES_WORK_SINCE = "takes_work_since_s"
"""A fact of a node: when the API server was first seen to say that it is not cordoned (any more), Unix s."""

SITE, SITE_NODE = "site", "site_node"
"""Facts of a node, job or pod that another manager than Kubernetes runs: which (`slurm`), and what that calls
it."""

PEER, CABLE = "peer", "cable"
"""Facts of a port: the port at the other end of its link, as a subject, and the cable between, in words."""

FABRIC_GUID = "fabric_guid"
"""A fact of a GPU and of its NVLink ports: the GPU's GUID in the NVLink fabric, in lower case."""

IMAGE_OF = "image of "
"""Begins facts of a node: by DaemonSet that serves its GPUs, the image that runs."""

SHOWS_HELD_ONLY = "shows_held_only"
"""A fact of a node, `yes` or `no`: its exporter leaves out GPUs that no pod holds."""


class SubjectKind(StrEnum):
    CLUSTER = "cluster"
    RACK = "rack"
    NVLINK_DOMAIN = "nvlink_domain"
    NODE = "node"
    GPU = "gpu"
    MIG = "mig"
    LINK = "link"
    NIC = "nic"
    """A network interface, or a port of a host or a switch."""
    SWITCH = "switch"
    PART = "part"
    """What a BMC watches: a power supply, a fan, a sensor."""
    DISK = "disk"
    """A block device or a mounted filesystem."""
    POD = "pod"
    CONTAINER = "container"
    JOB = "job"
    RANK = "rank"
    SERVER = "server"
    """A model that an inference server serves."""
    SOURCE = "source"


_KINDS = {str(kind): kind for kind in SubjectKind}  # quicker than the enum's own look-up


@dataclass(frozen=True, slots=True, order=True)
class Subject:
    """An identity, unique within its kind in one cluster.

    Names: GPU its UUID; node its name; pod `namespace/pod`, of a Slurm job's part on a node `account/job@node`;
    container `namespace/pod/container`; job `namespace/job`; rank `namespace/job#3`; MIG the instance's UUID; link
    `<GPU UUID>/link3`; NIC `node/eth0`, `node/mlx5_0:1` or `switch/7`; part `node/PSU 1`; disk
    `node/nvme0n1` or `node:/data`; server `host:port/model`; source
    the collector's name and place, such as `dcgm_exporter http://n1:9400/metrics`.
    """

    kind: SubjectKind
    name: str

    def __post_init__(self) -> None:
        if not self.name or len(self.name) > MAX_NAME_CHARS:
            raise ValueError(f"{self.kind} name has {len(self.name)} characters, not 1 to {MAX_NAME_CHARS}")

    def __hash__(self) -> int:
        return hash(self.name)  # an enum's own hash is slow, and subjects are looked up everywhere

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"

    @classmethod
    def parse(cls, text: str) -> Subject:
        """The subject of `kind:name`, as `str` writes it. Raises ValueError where it is none.

        >>> Subject.parse("gpu:GPU-0")
        Subject(kind=<SubjectKind.GPU: 'gpu'>, name='GPU-0')
        >>> Subject.parse("GPU-0")
        Traceback (most recent call last):
            ...
        ValueError: subject 'GPU-0' is not kind:name
        """
        kind, separator, name = text.partition(":")
        if not separator:
            raise ValueError(f"subject {text!r} is not kind:name")
        return cls(_KINDS.get(kind) or SubjectKind(kind), name)


@dataclass(frozen=True, slots=True)
class Membership:
    """`child` belonged to `parent` from `since_s` until `until_s` (Unix time; inf: still, as far as was seen)."""

    child: Subject
    parent: Subject
    since_s: float
    until_s: float = math.inf

    def covers(self, at_s: float) -> bool:
        return self.since_s <= at_s < self.until_s


class Inventory:
    """Relations between subjects over time: GPU → node, pod, rank; MIG instance → GPU, pod; pod → node, job; rank →
    pod, job; node → rack; port → node, switch (its own, or the one that its link goes to).

    `exclusive` relations replace each other: a GPU on another node has left the first. A relation's kinds decide:
    every pair of kinds holds one parent at a time, except GPU → pod (time-sliced GPUs are shared).

    Collectors observe from several threads while others read: writers hold the lock, readers iterate over copies.

    >>> inventory, gpu = Inventory(), Subject(SubjectKind.GPU, "GPU-0")
    >>> inventory.observe(gpu, Subject(SubjectKind.POD, "ml/train-0"), 100.0)
    >>> inventory.observe(gpu, Subject(SubjectKind.POD, "ml/eval-0"), 200.0)
    >>> [str(inventory.above(gpu, SubjectKind.POD, at_s)) for at_s in (150.0, 250.0)]
    ['pod:ml/train-0', 'pod:ml/eval-0']
    """

    _SHARED = frozenset({(SubjectKind.GPU, SubjectKind.POD), (SubjectKind.GPU, SubjectKind.RANK)})

    def __init__(self, cluster: str = "cluster") -> None:
        self.cluster = Subject(SubjectKind.CLUSTER, cluster)
        self._up: dict[Subject, list[Membership]] = defaultdict(list)
        self._down: dict[Subject, set[Subject]] = defaultdict(set)
        self._facts: dict[Subject, dict[str, str]] = defaultdict(dict)
        self._authority: dict[tuple[Subject, SubjectKind], int] = {}
        self._ended: list[tuple[float, int, Subject]] = []
        """(end, a count that orders equal ends, child): the earliest end first."""
        self._count = itertools.count()
        self._journal: dict[tuple[Subject, Subject, float], Membership] = {}
        self._lock = threading.RLock()

    def observe(self, child: Subject, parent: Subject, at_s: float, authority: int = 0) -> None:
        """Records that the relation holds at this time; ends the one that it replaces.

        A source that knows (the API server) says so with a higher `authority` than one that infers (a pod's name):
        until it ends the relation, the lesser word on a parent of that kind is not taken.
        """
        with self._lock:
            known = self._authority.get((child, parent.kind), 0)
            if authority > known:
                self._authority[child, parent.kind] = authority
            if authority >= known:
                self._observe(child, parent, at_s)

    def _observe(self, child: Subject, parent: Subject, at_s: float) -> None:
        memberships = self._up[child]
        for position, known in enumerate(memberships):
            if known.until_s != math.inf or known.parent.kind is not parent.kind:
                continue
            if known.parent == parent:
                if at_s < known.since_s:
                    self._note(memberships, position, replace(known, since_s=at_s))
                return
            if (child.kind, parent.kind) not in self._SHARED:
                self._note(memberships, position, replace(known, until_s=max(at_s, known.since_s)))
        memberships.append(Membership(child, parent, at_s))
        self._note(memberships, -1, memberships[-1])
        self._down[parent].add(child)

    def _note(self, memberships: list[Membership], position: int, changed: Membership) -> None:
        memberships[position] = changed
        self._journal[changed.child, changed.parent, changed.since_s] = changed
        if changed.until_s != math.inf:
            heapq.heappush(self._ended, (changed.until_s, next(self._count), changed.child))

    def end(self, child: Subject, parent: Subject, at_s: float) -> None:
        """Records that the relation no longer holds; unknown relations are left alone."""
        with self._lock:
            self._authority.pop((child, parent.kind), None)
            memberships = self._up.get(child, [])
            for position, known in enumerate(memberships):
                if known.parent == parent and known.until_s == math.inf:
                    self._note(memberships, position, replace(known, until_s=max(at_s, known.since_s)))

    def exchange(
        self,
        old: Collection[tuple[Subject, Subject]],
        new: Collection[tuple[Subject, Subject]],
        at_s: float,
        authority: int = 0,
    ) -> None:
        """Ends relations (child, parent) that a source no longer tells, and observes those that it tells now, in
        their order."""
        for child, parent in set(old).difference(new) if old else ():
            self.end(child, parent, at_s)
        for child, parent in new:
            self.observe(child, parent, at_s, authority)

    def describe(self, subject: Subject, **facts: str) -> None:
        """Keeps display facts of a subject, such as a GPU's index or model; the newest wins."""
        with self._lock:
            self._facts[subject].update(facts)

    def fact(self, subject: Subject, key: str) -> str | None:
        return self._facts.get(subject, {}).get(key)

    def facts(self, subject: Subject) -> dict[str, str]:
        """All that is known to display of a subject."""
        return dict(self._facts.get(subject, {}))

    def described(self, *keys: str) -> list[tuple[Subject, dict[str, str]]]:
        """Subjects of which any of these facts is known, with those facts."""
        with self._lock:
            every = [(subject, dict(facts)) for subject, facts in self._facts.items()]
        found = ((subject, {key: facts[key] for key in keys if facts.get(key)}) for subject, facts in every)
        return [(subject, facts) for subject, facts in found if facts]

    def parents(self, child: Subject, at_s: float, kind: SubjectKind | None = None) -> list[Subject]:
        return [
            m.parent
            for m in tuple(self._up.get(child, ()))
            if m.covers(at_s) and (kind is None or m.parent.kind is kind)
        ]

    def children(self, parent: Subject, at_s: float, kind: SubjectKind | None = None) -> list[Subject]:
        return sorted(self._children(parent, at_s, kind))

    def _children(self, parent: Subject, at_s: float, kind: SubjectKind | None = None) -> Iterator[Subject]:
        for child in tuple(self._down.get(parent, ())):
            if kind is None or child.kind is kind:
                for m in tuple(self._up.get(child, ())):
                    if m.since_s <= at_s < m.until_s and m.parent == parent:
                        yield child
                        break

    def ancestors(self, subject: Subject, at_s: float) -> dict[Subject, int]:
        """Everything above a subject with its distance in relations; the subject itself at 0. Above a MIG instance
        are its own pod and its GPU, not those who hold the GPU's other instances."""
        found = {subject: 0}
        frontier = [subject]
        for nearest in frontier:  # it grows
            further = found[nearest] + 1
            shared = nearest.kind is SubjectKind.GPU and subject.kind is SubjectKind.MIG
            for m in tuple(self._up.get(nearest, ())):
                if shared and (nearest.kind, m.parent.kind) in self._SHARED:
                    continue
                if m.since_s <= at_s < m.until_s and m.parent not in found:
                    found[m.parent] = further
                    frontier.append(m.parent)
        return found

    def above(self, subject: Subject, kind: SubjectKind, at_s: float) -> Subject | None:
        """The nearest subject of that kind at or above this one, or None where it is not known."""
        return self.nearest(subject, (kind,), at_s)[0]

    def nearest(self, subject: Subject, kinds: Sequence[SubjectKind], at_s: float) -> list[Subject | None]:
        """`above` of each of the kinds, in one walk."""
        ancestors = [(distance, s) for s, distance in self.ancestors(subject, at_s).items()]
        return [min([each for each in ancestors if each[1].kind is kind], default=(0, None))[1] for kind in kinds]

    def nearest_each(
        self, subjects: Iterable[Subject], kinds: Sequence[SubjectKind], at_s: float
    ) -> Iterator[list[Subject | None]]:
        """`nearest` of each subject, none of which is of one of the kinds. What is above is walked once for all
        that have the same parents, as the GPUs of a node have that one pod holds."""
        walked: dict[tuple[SubjectKind, tuple[Subject, ...]], list[Subject | None]] = {}
        for subject in subjects:
            key = (subject.kind, tuple(self.parents(subject, at_s)))
            if key not in walked:
                walked[key] = self.nearest(subject, kinds, at_s)
            yield walked[key]

    def below(self, subject: Subject, kind: SubjectKind, at_s: float) -> list[Subject]:
        """Every subject of that kind at or under this one."""
        found, frontier = {subject}, [subject]
        while frontier:
            for child in self._children(frontier.pop(), at_s):
                if child not in found:
                    found.add(child)
                    frontier.append(child)
        mine = (s for s in found if s.kind is kind)
        if kind is SubjectKind.MIG:  # of a GPU that it shares, a pod's are those that it holds
            mine = (s for s in mine if subject in self.ancestors(s, at_s))
        return sorted(mine, key=attrgetter("name"))  # of one kind

    def gpus(self, subject: Subject, at_s: float) -> list[Subject]:
        """The GPUs that a subject is, holds, or (for a rank or pod) ran on at that time."""
        return self.below(subject, SubjectKind.GPU, at_s)

    def subjects(self, kind: SubjectKind, at_s: float) -> list[Subject]:
        """Every subject of that kind that had, or was, a parent at that time."""
        named = [s for s in tuple(self._up) if s.kind is kind]
        named += [s for s in tuple(self._down) if s.kind is kind and s not in self._up]
        # by name alone: comparing kinds, too, took longer than all the rest
        return sorted((s for s in named if self.parents(s, at_s) or self.children(s, at_s)), key=attrgetter("name"))

    def memberships(self) -> Iterator[Membership]:
        for memberships in list(self._up.values()):
            yield from tuple(memberships)

    def changes(self) -> list[Membership]:
        """Relations that began, moved or ended since the last call, as they are now."""
        with self._lock:
            changed, self._journal = self._journal, {}
        return list(changed.values())

    def load(self, memberships: Iterable[Membership]) -> None:
        """Adds stored relations as they were, without replacing any."""
        with self._lock:
            for membership in memberships:
                self._up[membership.child].append(membership)
                self._down[membership.parent].add(membership.child)
                if membership.until_s != math.inf:
                    heapq.heappush(self._ended, (membership.until_s, next(self._count), membership.child))

    def prune(self, before_s: float) -> int:
        """Forgets relations that ended before a time; returns how many."""
        with self._lock:
            return self._prune(before_s)

    def _prune(self, before_s: float) -> int:
        dropped = 0
        # a fleet has hundreds of thousands of relations, and few that ended
        while self._ended and self._ended[0][0] < before_s:
            child = heapq.heappop(self._ended)[2]
            if child not in self._up:
                continue
            kept = [m for m in self._up[child] if m.until_s >= before_s]
            dropped += len(self._up[child]) - len(kept)
            for gone in {m.parent for m in self._up[child]} - {m.parent for m in kept}:
                self._down[gone].discard(child)
            if kept:
                self._up[child] = kept
            else:
                del self._up[child]
        return dropped
