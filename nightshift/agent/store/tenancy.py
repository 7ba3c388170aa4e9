"""Whose jobs a fault or a plan touches: namespaces, by name and by who held the hardware then.

It is asked when a finding or a plan is stored, not when somebody looks: by then the pods are gone.
"""

from __future__ import annotations

from collections.abc import Iterable

from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.controllers.action import Action

NAMESPACED = frozenset({SubjectKind.POD, SubjectKind.CONTAINER, SubjectKind.JOB, SubjectKind.RANK})
_OF_A_NODE = frozenset({SubjectKind.NIC, SubjectKind.DISK, SubjectKind.PART})
_EVERYTHING = frozenset({SubjectKind.CLUSTER, SubjectKind.SOURCE})
_HELD = frozenset(SubjectKind) - NAMESPACED - _EVERYTHING


def namespaces_of(subjects: Iterable[Subject]) -> list[str]:
    """The Kubernetes namespaces that subjects stand in by their names, in order, each once."""
    found = (s.name.partition("/") for s in subjects if s.kind in NAMESPACED)
    return list(dict.fromkeys(name for name, slash, _ in found if slash))


class Tenancy:
    """Answers from the inventory; without one, from names alone."""

    def __init__(self, inventory: Inventory | None) -> None:
        self._inventory = inventory

    def of(self, subject: Subject, *at_s: float) -> set[str]:
        """The namespaces of a subject at some times (Unix s): its own, or of the pods that held it or ran on it."""
        found = set(namespaces_of([subject]))
        # a cluster or a source is no team's: whoever is told of it must see everything
        if self._inventory is None or subject.kind not in _HELD:
            return found
        for moment in at_s:
            found.update(namespaces_of(self._holders(self._inventory, _hardware(subject), moment)))
        return found

    def of_action(self, action: Action, now_s: float) -> set[str]:
        """The namespaces of everybody whom a plan would hit."""
        radius = action.blast_radius
        subjects = [action.target, *(p.subject for p in action.preconditions)]
        named = {SubjectKind.JOB: radius.jobs, SubjectKind.POD: radius.pods}
        named |= {SubjectKind.NODE: radius.nodes, SubjectKind.GPU: radius.gpus}
        subjects += [Subject(kind, name) for kind, names in named.items() for name in names]
        return {name for subject in dict.fromkeys(subjects) for name in self.of(subject, now_s)}

    @staticmethod
    def _holders(inventory: Inventory, subject: Subject, at_s: float) -> list[Subject]:
        above = [s for s in inventory.ancestors(subject, at_s) if s.kind in NAMESPACED]
        if subject.kind in (SubjectKind.GPU, SubjectKind.MIG):
            return above
        below = [s for kind in (SubjectKind.POD, SubjectKind.GPU) for s in inventory.below(subject, kind, at_s)]
        for gpu in (s for s in below if s.kind is SubjectKind.GPU):
            above += [s for s in inventory.ancestors(gpu, at_s) if s.kind in NAMESPACED]
        return above + [s for s in below if s.kind in NAMESPACED]


def _hardware(subject: Subject) -> Subject:
    """The GPU of a link, the node of an interface or a disk; else the subject itself."""
    if subject.kind is SubjectKind.LINK:
        return Subject(SubjectKind.GPU, subject.name.partition("/")[0])
    if subject.kind in _OF_A_NODE:
        # node:disk and node/interface: both kinds begin with their node
        return Subject(SubjectKind.NODE, subject.name.replace(":", "/", 1).partition("/")[0])
    return subject
