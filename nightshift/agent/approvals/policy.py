"""Who may let an action happen: people and their roles, and the rule that each plan falls under.

Decides purely; `agent.approvals.gate` stores. A rule is found from the action's kind and blast radius, never from
what the clicker sends.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase

from pydantic import BaseModel, ConfigDict, Field

from nightshift.controllers.action import STOPPED_GPUS, Action, ActionKind, ApprovalRule, kinds_where, traits_of


class Role(StrEnum):
    """What a person may do; each role may do all that the ones before it may."""

    VIEWER = "viewer"
    RESPONDER = "responder"
    """Rejects, closes and halts: the safe direction."""
    APPROVER = "approver"
    """Approves and resumes."""
    ADMIN = "admin"


ORDER = list(Role)
# A sign-in may look this much in the future: the identity provider's clock is not ours.
SKEW_S = 60.0
# Longest age of a fresh sign-in: long enough to read a plan, shorter than a coffee away from an open screen.
FRESH_SIGN_IN_S = 300.0
# A plan that touches more nodes is wide: as many as hold `wide_gpus` by default, eight GPUs each.
WIDE_NODES = 8


@dataclass(frozen=True, slots=True)
class RoleGrant:
    """A role over the workloads of some namespaces, with shell patterns (`research-*`)."""

    role: Role
    namespaces: tuple[str, ...]

    def covers(self, namespace: str) -> bool:
        return any(fnmatchcase(namespace, pattern) for pattern in self.namespaces)


@dataclass(frozen=True, slots=True)
class Person:
    """Who is asking, as a channel has authenticated them. `name` is one identity over all channels (an e-mail
    address or a login); `roles` hold for the whole cluster, `grants` for some namespaces; `signed_in_s` is when
    they last proved who they are, None where the channel cannot tell. `groups` are those by which the directory
    (`agent.approvals.people`) knew them, None where their role is not its word: the operator's, a token's own."""

    name: str
    roles: frozenset[Role]
    channel: str
    signed_in_s: float | None = None
    grants: tuple[RoleGrant, ...] = ()
    groups: tuple[str, ...] | None = None

    @property
    def identity(self) -> str:
        """The name in one spelling, so that nobody is two people."""
        # NFKC: full-width letters and ligatures spell the same name, and an identity provider may send either.
        return unicodedata.normalize("NFKC", self.name).strip().casefold()

    @property
    def role(self) -> Role:
        """The highest that they have anywhere: for sentences and records, never for a decision."""
        return max((*self.roles, *(grant.role for grant in self.grants)), key=ORDER.index, default=Role.VIEWER)

    @property
    def is_tenant(self) -> bool:
        """Has no role over the cluster: sees what belongs to some namespaces, or nothing."""
        return not self.roles

    def may(self, needed: Role, namespaces: Collection[str] = ()) -> bool:
        """Whether their role suffices over *all* of these namespaces; over the cluster where none is named."""
        if any(ORDER.index(role) >= ORDER.index(needed) for role in self.roles):
            return True
        # Each namespace by a grant of its own: a role that reaches one team's part of an incident decides nothing
        # about the rest.
        strong = [grant for grant in self.grants if ORDER.index(grant.role) >= ORDER.index(needed)]
        return bool(namespaces) and all(any(grant.covers(name) for grant in strong) for name in namespaces)


PEOPLE: Mapping[ApprovalRule, int] = {ApprovalRule.AUTOMATIC: 0, ApprovalRule.ONE: 1, ApprovalRule.TWO: 2}
_STRICTNESS = list(ApprovalRule)


class ApprovalSettings(BaseModel):
    """Approval policy: how many people an action needs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    default: ApprovalRule = Field(
        default=ApprovalRule.ONE, description="Rule of every action kind that is not named in `kinds`."
    )
    kinds: dict[ActionKind, ApprovalRule] = Field(
        default_factory=dict, description="Rule by action kind: automatic, one, two (different people) or never."
    )
    places: dict[str, ApprovalRule] = Field(
        default_factory=dict,
        description="Rule of a plan that touches subjects of a pattern (`job:prod-*`), where it is stricter.",
    )
    wide_gpus: int = Field(
        default=64,
        ge=1,
        description='Plans affecting more than this many GPUs use the "wide" approval rule.',
    )
    wide: ApprovalRule = Field(
        default=ApprovalRule.TWO, description="Rule of a wide plan, where it is stricter than its kind's."
    )
    fresh_sign_in: frozenset[ActionKind] = Field(
        default=kinds_where(lambda row: row.fresh_sign_in),
        description="Action kinds that require a fresh sign-in of the approver.",
    )


def lacks(person: Person, needed: Role, doing: str, namespaces: Collection[str]) -> str:
    """The refusal of somebody whose role does not reach. Names no namespace that they may not know of."""
    if not person.is_tenant or not person.grants:
        return f"You are {person.role}; {doing} needs the role {needed}."
    own = [name for name in namespaces if any(grant.covers(name) for grant in person.grants)]
    if namespaces and own and person.may(needed, own):
        return f"It reaches beyond your team, so {doing} needs the role {needed} for the whole cluster."
    where = "for your team's jobs" if own else "for the whole cluster"
    return f"You are {person.role}; {doing} needs the role {needed} {where}."


def rule_for(action: Action, policy: ApprovalSettings) -> ApprovalRule:
    """The rule that a plan falls under: the strictest of its kind's, its places' and, if wide, the wide one. Never
    for a kind without a row in `controllers.action.KINDS`."""
    traits = traits_of(action.kind)
    named, rule = policy.kinds.get(action.kind), policy.default
    asks_nobody = traits.approval is ApprovalRule.AUTOMATIC and not action.needs_approval
    if rule is ApprovalRule.ONE and (traits.approval is not ApprovalRule.AUTOMATIC or asks_nobody):
        rule = traits.approval
    # What is configured by name counts, before anything is made stricter below.
    rule = named or rule
    radius = action.blast_radius
    # A drain touches one node, and may stop a job that holds GPUs on a hundred.
    gpus = max(len(set(radius.gpus)), int(action.params.get(STOPPED_GPUS, 0)))
    wide = gpus > policy.wide_gpus or len(set(radius.nodes)) > WIDE_NODES
    # The strictest of all: no setting can lower what a kind needs at least.
    rules = [rule, traits.least_approval, *([policy.wide] if wide else [])]
    touched = [str(subject) for subject in action.named]
    rules += [r for pattern, r in policy.places.items() if any(fnmatchcase(name, pattern) for name in touched)]
    return max(rules, key=_STRICTNESS.index)


def automatic_kinds(policy: ApprovalSettings) -> frozenset[ActionKind]:
    """The kinds of which a plan may be approved by policy; whether one is, depends on its places and its width."""
    rules = {kind: (policy.kinds.get(kind, policy.default), traits_of(kind).least_approval) for kind in ActionKind}
    return frozenset(kind for kind, found in rules.items() if set(found) == {ApprovalRule.AUTOMATIC})


def may_not_approve(
    person: Person,
    action: Action,
    policy: ApprovalSettings,
    requester: str,
    now_s: float,
    namespaces: Collection[str] = (),
) -> str:
    """Why a person may not approve a plan that touches these namespaces, as a sentence for them; empty where they
    may. Whether they may know of it at all is `agent.approvals.access`'s question, and asked before."""
    rule = rule_for(action, policy)
    if not person.identity:
        return "You are not signed in."
    if rule is ApprovalRule.NEVER:
        return f"Policy never allows nightshift to carry out {action.kind}. Do it manually."
    if not person.may(Role.APPROVER, namespaces):
        return lacks(person, Role.APPROVER, "approving", namespaces)
    # Two people judge what a third asked for; for one approval a person may approve what they asked for.
    if rule is ApprovalRule.TWO and person.identity == Person(requester, frozenset(), "").identity:
        return "You requested this plan, so two other people must approve it."
    if must_sign_in_again(person, action, policy, now_s):
        within = f"{action.kind} needs a sign-in of the last {FRESH_SIGN_IN_S:.0f} s"
        if person.signed_in_s is None:
            return f"{within}, which only the console shows: sign in again in the console and approve it there."
        return f"{within}: sign in again in the console."
    return ""


def must_sign_in_again(person: Person, action: Action, policy: ApprovalSettings, now_s: float) -> bool:
    """Whether a plan asks for a sign-in that is fresher than the person's, or than anybody can tell."""
    if action.kind not in policy.fresh_sign_in:
        return False
    age_s = float("inf") if person.signed_in_s is None else now_s - person.signed_in_s
    return not -SKEW_S <= age_s <= FRESH_SIGN_IN_S
