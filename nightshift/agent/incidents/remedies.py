"""From a diagnosed cause to one action: the least disruptive remedy of a fixed catalogue that fits.

The list per cause holds only what can repair that cause, mildest first; each playbook says whether it fits, and
every refusal is kept, so that the plan can say why nothing milder was chosen. Where nothing fits, the owner is
told. Free text never becomes an action: a cause is a `Fault`, an action a playbook's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from nightshift.agent.correlation.kinship import APPLICATION_XIDS, FOLLOWER_XIDS
from nightshift.controllers.action import KINDS, Action, ActionKind, Playbook, Proposal, Situation
from nightshift.controllers.playbooks.plan import number
from nightshift.detectors.base import Fault

_A, _F = ActionKind, Fault
REMEDIES: Mapping[Fault, tuple[ActionKind, ...]] = {
    fault: tuple(
        kind
        for _, kind in sorted(
            (row.order, kind) for kind, row in KINDS.items() if row.order is not None and fault in row.repairs
        )
    )
    for fault in Fault
}
"""What can repair each cause. Hardware goes by what its Xid calls for: a playbook that is not called for refuses,
so the order among reset, reboot and quarantine is the order of being called for, not of preference."""
BACK_AFTER_S = 20.0
"""A step this long after a crash was made by the job that came back."""


@dataclass(frozen=True)
class Choice:
    """The proposal, and what was considered before it with the reason against it."""

    proposal: Proposal
    considered: tuple[tuple[ActionKind, str], ...] = ()


def choose(
    situation: Situation,
    playbooks: Sequence[Playbook],
    can: frozenset[ActionKind] | None = None,
    objection: Callable[[Action], str] = lambda _: "",
) -> Choice:
    """The remedy for a situation. `can` are the kinds that some actuator carries out (None: all of them);
    `objection` says why a proposed action does not fit the evidence, empty where it does."""
    by_kind = {playbook.kind: playbook for playbook in playbooks}
    considered: list[tuple[ActionKind, str]] = []
    watch = watched_only(situation)
    if watch is not None:
        return Choice(Proposal(None, watch))
    for kind in (*remedies(situation), _A.SUGGEST_SCALING, _A.NOTIFY_OWNER):
        if kind not in KINDS:
            considered.append((kind, "what it does is not known"))
        elif kind not in by_kind:
            considered.append((kind, "no playbook for it is installed"))
        elif can is not None and kind not in can:
            considered.append((kind, "no actuator here can do it"))
        else:
            proposal = by_kind[kind].propose(situation)
            reason = proposal.reason if proposal.action is None else objection(proposal.action)
            if proposal.action is not None and not reason:
                return Choice(proposal, tuple(considered))
            considered.append((kind, reason))
    reasons = "; ".join(f"{kind}: {reason}" for kind, reason in considered)
    return Choice(Proposal(None, f"watched only ({reasons})"), tuple(considered))


def watched_only(situation: Situation) -> str | None:
    """Why nothing at all is to be done, or None. The incident itself tells people; it closes when it is clear."""
    if situation.cause is _F.ANOMALY:
        return "unusual, but no fault is named: watched, nothing is done"
    if situation.cause is _F.SOURCE_LOST:
        return "the cluster's operators restore the source; nothing is done to what it watches"
    if situation.cause is _F.XID and number(situation, "xid") in FOLLOWER_XIDS:
        return "this Xid only ever follows another error, and none was seen"
    if situation.cause is _F.XID and number(situation, "xid") in APPLICATION_XIDS:
        back_s = number(situation, "last_step_s") - number(situation, "since_s")
        if back_s > BACK_AFTER_S:
            return f"its job is back by itself: it made steps {back_s:.0f} s after the crash"
    if situation.cause is _F.XID and situation.facts.get("recovery_action") == _A.NONE.value:
        return "NVIDIA's catalogue asks for nothing to be done"
    return None


def remedies(situation: Situation) -> tuple[ActionKind, ...]:
    """The kinds to try for a situation, mildest fitting first."""
    if situation.cause is _F.XID and number(situation, "xid") in APPLICATION_XIDS:
        return (_A.RESTART_POD, _A.RESTART_JOB)
    if "remap_failure" in situation.facts or "return" in situation.facts:
        return (_A.QUARANTINE_GPU, _A.OPEN_RMA)
    return REMEDIES[situation.cause]
