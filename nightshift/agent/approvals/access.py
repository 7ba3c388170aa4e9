"""Who may see and do what: the one decision that every door asks (console, JSON API, Slack, command line, gate).

    a person sees          what
    everything             with a role over the cluster
    an incident, whole     every namespace that it touches is theirs (a grant covers it)
    an incident, in part   some are theirs: what is shared is shown, everything of others is withheld
    nothing                none is theirs, or it touches nobody's jobs: as if it did not exist

To *do* something to an incident, a role has to reach over all that it touches: who sees a part decides nothing.
What an incident touches was written down when its findings and its plan were stored (`agent.store.tenancy`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from nightshift.agent.approvals.policy import Person, Role, lacks


class Permission(StrEnum):
    """What a person may ask for."""

    SEE = "see"
    SEE_CLUSTER = "see_cluster"
    """What belongs to no job: sources, policies, promotions, the audit log's own records, all GPUs."""
    SNOOZE = "snooze"
    SILENCE = "silence"
    INVESTIGATE = "investigate"
    """Open a case by hand, or as another system's webhook."""
    REJECT = "reject"
    CLOSE = "close"
    APPROVE = "approve"
    HALT = "halt"
    RESUME = "resume"
    TAKE_BACK = "take_back"
    """A learned policy, to where the baseline controls: the safe direction."""
    STAND = "stand"
    """A learned policy up, into shadow: it proposes and nothing of it is executed."""


NEEDS = MappingProxyType(
    {
        Permission.SEE: Role.VIEWER,
        Permission.SEE_CLUSTER: Role.VIEWER,
        # The safe direction (hold, decline, stop) takes a responder; whatever leads to an action takes an
        # approver.
        Permission.SNOOZE: Role.RESPONDER,
        Permission.SILENCE: Role.RESPONDER,
        Permission.INVESTIGATE: Role.RESPONDER,
        Permission.REJECT: Role.RESPONDER,
        Permission.CLOSE: Role.RESPONDER,
        Permission.APPROVE: Role.APPROVER,
        Permission.HALT: Role.RESPONDER,
        Permission.RESUME: Role.APPROVER,
        Permission.TAKE_BACK: Role.RESPONDER,
        Permission.STAND: Role.APPROVER,
    }
)
# Verbs that reach everybody's jobs, so that a role over one team's does not do.
OF_THE_CLUSTER = frozenset(
    {Permission.SEE_CLUSTER, Permission.HALT, Permission.RESUME, Permission.TAKE_BACK, Permission.STAND}
)
_DOING = {
    Permission.SEE: "seeing it",
    Permission.SEE_CLUSTER: "this page",
    Permission.SNOOZE: "snoozing",
    Permission.SILENCE: "a silence",
    Permission.INVESTIGATE: "opening a case",
    Permission.REJECT: "rejecting",
    Permission.CLOSE: "closing",
    Permission.APPROVE: "approving",
    Permission.HALT: "halting",
    Permission.RESUME: "resuming",
    Permission.TAKE_BACK: "taking a policy back",
    Permission.STAND: "standing a policy up",
}


class Sight(StrEnum):
    WHOLE = "whole"
    PART = "part"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class AccessDecision:
    """Whether, and if not, why: a sentence for the person, which names nothing that they may not know of."""

    allowed: bool
    reason: str = ""

    def __bool__(self) -> bool:
        return self.allowed


def sight(person: Person, namespaces: Collection[str]) -> Sight:
    """How much a person sees of what touches these namespaces."""
    if not person.identity:
        return Sight.NOTHING
    if person.may(Role.VIEWER, namespaces):
        return Sight.WHOLE
    if any(person.may(Role.VIEWER, (name,)) for name in namespaces):
        return Sight.PART
    return Sight.NOTHING


def may(person: Person, verb: Permission, namespaces: Collection[str] = ()) -> AccessDecision:
    """Whether a person may do this to what touches these namespaces. Approving is judged further by the gate: by
    the plan's rule, the two people and the age of the sign-in."""
    needed = NEEDS[verb]
    # No namespaces is the cluster: a grant over some of them never covers it.
    reach = () if verb in OF_THE_CLUSTER else namespaces
    if not person.identity:
        return AccessDecision(False, "You are not signed in.")
    if person.may(needed, reach):
        return AccessDecision(True)
    return AccessDecision(False, lacks(person, needed, _DOING[verb], reach))
