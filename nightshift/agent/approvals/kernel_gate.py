"""Kernels at the gate: what may search for one, and what may let one in, is approved like any repair.

A promotion and a search are Actions, so the same hash binds what was shown, the same policy says how many people it
needs, the same emergency stop holds them, and the same audit log keeps every click. They belong to no incident, so
their proposals and approvals stand in rows of their own (`controls`, named `kernel/…`). Steps of learned policies
pass the same way, as another family (`agent.approvals.policy_gate`, rows named `policy/…`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from nightshift.agent.approvals.access import Permission, Sight, may, sight
from nightshift.agent.approvals.answer import GateAnswer
from nightshift.agent.approvals.gate import NIGHTSHIFT, Approval, Gate
from nightshift.agent.approvals.kernel_search import (
    ANSWERED,
    SEARCH,
    KernelSearch,
    fleet_view,
    put_search,
    search_of,
)
from nightshift.agent.approvals.policy import Person, may_not_approve, rule_for
from nightshift.agent.clock import Clock
from nightshift.agent.store import audit
from nightshift.agent.store.incident_store import Store
from nightshift.agent.store.records import dump, load
from nightshift.agent.store.tables import controls
from nightshift.agent.store.tenancy import namespaces_of
from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.controllers.action import Action, ActionKind, ApprovalRule, BlastRadius, Undo
from nightshift.kernels.certification.evidence import FleetView, environment_of
from nightshift.kernels.certification.registry import CertificateState, promotable

VALID_S = 7 * 86400.0
_PREFIX = "kernel/"


class ProposalState(StrEnum):
    WAITING = "waiting"
    APPROVED = "approved"
    REJECTED = "rejected"
    DONE = "done"
    RUNNING = "running"
    """A search that was begun; rejecting it ends it."""
    STOPPED = "stopped"
    """A search that was cut short, not by anything that it found: it may be proposed again."""


@dataclass(frozen=True)
class KernelProposal:
    """One proposal with its approvals. `by`: who asked for it; `note`: why it was rejected, or what came of it.
    `record`: a promotion's evidence (`kernels.certification.evidence`) as JSON, from which it is decided again."""

    action: Action
    by: str
    at_s: float
    state: ProposalState = ProposalState.WAITING
    approvals: tuple[Approval, ...] = ()
    note: str = ""
    record: str = ""

    @property
    def id(self) -> str:
        return self.action.id


def promotion(
    cluster: str, certificate: str, problem: str, to: str, evidence: Mapping[str, str | float], now_s: float
) -> Action:
    """The plan of a promotion. `certificate`: the envelope's hash; `evidence`: what the approver has to see."""
    summary = str(evidence.get("verdict", ""))
    return Action(
        f"{_PREFIX}{certificate[:16]}/{to}",
        ActionKind.PROMOTE_KERNEL,
        Subject(SubjectKind.CLUSTER, cluster),
        f"{problem}: {summary}",
        BlastRadius(note="jobs that apply kernels take it at their next start, behind guards and shadow checks"),
        Undo(True, "demote it: jobs compute with torch from their next step on"),
        now_s + VALID_S,
        {"certificate": certificate, "problem": problem, "to": to, **evidence},
    )


def search(
    cluster: str,
    job: str,
    problem: str,
    reason: str,
    gpu_hours: float,
    priority_class: str,
    now_s: float,
    order: Mapping[str, str | bool | int] | None = None,
) -> Action:
    """The plan of a kernel search on the cluster: one GPU, exclusive, preemptible, for a bounded time. `order`:
    what the pod is told (`controllers.actuators.kube_kernel_jobs.arguments`)."""
    return Action(
        f"{_PREFIX}search/{job}/{problem}"[:200],
        ActionKind.KERNEL_JOB,
        Subject(SubjectKind.JOB, job),
        reason,
        BlastRadius(cost_gpu_hours=gpu_hours, note="takes a GPU that no job uses, and gives it back when one asks"),
        Undo(True, "delete the search's Job; its ledger is kept"),
        now_s + VALID_S,
        {
            "problem": problem,
            "gpus": 1,
            "gpu_hours": gpu_hours,
            "preemptible": True,
            "priority_class": priority_class,
            "power_cap": False,
            "cluster": cluster,
            **(order or {}),
        },
    )


@dataclass
class KernelGate:
    """Proposes, approves, rejects. Carrying out asks `objections` again, at the last moment."""

    gate: Gate
    store: Store
    clock: Clock
    family: str = "kernel"
    """What the plans' names begin with, and their records in the audit log."""

    def propose(
        self, action: Action, by: str = NIGHTSHIFT, record: Mapping[str, Any] | None = None
    ) -> KernelProposal:
        """Puts a plan before people. The same plan again changes nothing; another one for the same kernel takes the
        old one's place, and its approvals do not count. record: a promotion's evidence; one that is not enough is
        written down as rejected, with the reason."""
        now_s = self.clock.now_s()
        view = fleet_view(self.store, now_s)
        with self.store.database.write() as connection:
            known = _get(connection, action.id, self.family)
            if known is not None and known.action.plan_sha256 == action.plan_sha256:
                return known
            unchanged = known is not None and replace(
                known.action, expires_at_s=action.expires_at_s
            ).plan_sha256 == action.plan_sha256  # fmt: skip
            if known is not None and known.state is ProposalState.RUNNING:
                return known
            open_ = known is not None and known.state in (ProposalState.WAITING, ProposalState.APPROVED)
            if known is not None and unchanged and open_ and known.action.expires_at_s > now_s:
                return known
            made = KernelProposal(action, by, now_s, record=dump(record or {}))
            if why := not_promotable(made, view):
                made = replace(made, state=ProposalState.REJECTED, note=why)
            _put(connection, made, now_s, by)
            body = {"plan": action.id, "plan_sha256": action.plan_sha256, "why": action.why, "note": made.note}
            audit.append(connection, at_s=now_s, kind=f"{self.family}_proposed", by=by, incident=None, body=body)
        return made

    def proposals(self, of: Person | None = None) -> list[KernelProposal]:
        """Those that wait first, then the newest; all, or what a person may see."""
        query = sa.select(controls.c.body).where(controls.c.name.like(f"{self.family}/%"))
        with self.store.database.read() as connection:
            found = [load(KernelProposal, row.body) for row in connection.execute(query)]
        if of is not None:
            found = [item for item in found if sight(of, namespaces(item.action)) is Sight.WHOLE]
        return sorted(found, key=lambda p: (p.state is not ProposalState.WAITING, -p.at_s, p.id))

    def proposal(self, plan_id: str) -> KernelProposal | None:
        with self.store.database.read() as connection:
            return _get(connection, plan_id, self.family)

    def approve(self, plan_id: str, plan_sha256: str, by: Person) -> GateAnswer:
        """One click. What was shown is what is approved: another hash is refused."""
        now_s = self.clock.now_s()
        view = fleet_view(self.store, now_s)
        with self.store.database.write() as connection:
            known = self._shown(connection, plan_id, by)
            refusal = self._refusal(known, plan_sha256, by, now_s, view)
            if refusal or known is None:
                self._note(connection, "approve", plan_id, plan_sha256, by, refusal, now_s)
                return GateAnswer(False, refusal)
            if any(a.person == by.identity and a.expires_s > now_s for a in known.approvals):
                return GateAnswer(True, f"You approved this already; it is {known.state}.")
            given = self.gate.grant(known.action, by, now_s)
            others = [a for a in known.approvals if a.person != by.identity]
            standing = [*self.gate.counting(others, namespaces(known.action), now_s), given]
            missing = self.gate.missing(known.action, standing)
            state = ProposalState.WAITING if missing else ProposalState.APPROVED
            _put(connection, replace(known, approvals=tuple(standing), state=state), now_s, by.identity)
            body = {"plan": plan_id, "plan_sha256": plan_sha256, "role": by.role, "channel": by.channel}
            audit.append(connection, at_s=now_s, kind="approval", by=by.identity, incident=None, body=body)
        return GateAnswer(True, missing or f"Approved: {known.action.kind} {known.action.why}", True)

    def reject(self, plan_id: str, plan_sha256: str, by: Person, reason: str) -> GateAnswer:
        """Declines a plan that has not been carried out; a search under way is ended."""
        now_s = self.clock.now_s()
        with self.store.database.write() as connection:
            known = self._shown(connection, plan_id, by)
            refusal = ""
            over = (ProposalState.DONE, ProposalState.REJECTED, ProposalState.STOPPED)
            if known is None or known.state in over:
                refusal = f"{plan_id}: there is nothing to reject."
            elif not (allowed := may(by, Permission.REJECT, namespaces(known.action))):
                refusal = allowed.reason
            elif known.action.plan_sha256 != plan_sha256:
                refusal = "The plan has changed since you saw it. Reload it and decide again."
            if refusal or known is None:
                self._note(connection, "reject", plan_id, plan_sha256, by, refusal, now_s)
                return GateAnswer(False, refusal)
            _put(connection, replace(known, state=ProposalState.REJECTED, note=reason), now_s, by.identity)
            body = {"plan": plan_id, "plan_sha256": plan_sha256, "reason": reason, "role": by.role}
            audit.append(connection, at_s=now_s, kind="rejected", by=by.identity, incident=None, body=body)
        return GateAnswer(True, "Rejected.", True)

    def objections(self, action: Action) -> list[str]:
        """Why a plan may not be carried out now; empty where it may."""
        now_s = self.clock.now_s()
        known = self.proposal(action.id)
        if known is None or known.action.plan_sha256 != action.plan_sha256:
            return ["the plan is not the one that was proposed"]
        halt = self.gate.halted()
        found = [f"halted by {halt.by}"] if halt.halted else []
        if known.state is not ProposalState.APPROVED:
            found.append(f"it is {known.state}, not approved")
        if now_s >= known.action.expires_at_s:
            found.append("the plan expired")
        if why := self.not_promotable(known):
            found.append(why)
        rule = rule_for(known.action, self.gate.policy)
        if rule is ApprovalRule.NEVER:
            found.append(f"policy never allows {known.action.kind}")
        elif known.state is ProposalState.APPROVED:
            # Never 0: a rule may make a repair automatic; what jobs run and what controls them a person decides.
            needed = max(1, self.gate.needed(known.action))
            counting = self.gate.counting(known.approvals, namespaces(known.action), now_s)
            if (so_far := len(self.gate.people(counting))) < needed:
                found.append(f"{so_far} of {needed} approvals still count")
        return found

    def done(self, action: Action, by: str, note: str) -> None:
        """Notes that a plan was carried out."""
        now_s = self.clock.now_s()
        with self.store.database.write() as connection:
            known = _get(connection, action.id, self.family)
            if known is not None:
                _put(connection, replace(known, state=ProposalState.DONE, note=note), now_s, by)
            body = {"plan": action.id, "plan_sha256": action.plan_sha256, "note": note}
            audit.append(connection, at_s=now_s, kind=f"{self.family}_done", by=by, incident=None, body=body)

    def withdraw(self, connection: Connection, prefix: str, note: str, now_s: float) -> None:
        """Takes back what nobody has carried out yet, in the caller's transaction: what it rested on is gone."""
        query = sa.select(controls.c.name).where(controls.c.name.like(f"{self.family}/%"))
        for name in connection.execute(query).scalars().all():
            known = _get(connection, name, self.family) if name.startswith(prefix) else None
            if known is not None and known.state in (ProposalState.WAITING, ProposalState.APPROVED):
                _put(connection, replace(known, state=ProposalState.REJECTED, note=note), now_s, NIGHTSHIFT)

    def used_gpu_hours(self, since_s: float) -> float:
        """What counts against the cap of a week: what searches that ended since then have used, and all that those
        under way, or approved and still to come, may use."""
        coming = [
            p.action.blast_radius.cost_gpu_hours
            for p in self.proposals()
            if p.action.kind is ActionKind.KERNEL_JOB
            and p.state is ProposalState.APPROVED
            and not self.objections(p.action)
        ]
        begun = [one.counted_gpu_hours for one in self.searches() if not one.ended or one.ended_at_s >= since_s]
        return math.fsum(hours for hours in (*coming, *begun) if math.isfinite(hours))

    def searches(self) -> list[KernelSearch]:
        """Every search that was begun, the newest first."""
        query = sa.select(controls.c.body).where(controls.c.name.like(f"{SEARCH}%"))
        with self.store.database.read() as connection:
            found = [load(KernelSearch, row.body) for row in connection.execute(query)]
        return sorted(found, key=lambda one: (-one.begun_at_s, one.name))

    def begin(self, action: Action, name: str) -> KernelSearch | None:
        """Writes down that an approved search is begun, before anything is asked of the cluster; None where it may
        not be any more, or was begun before."""
        if self.objections(action):
            return None
        now_s = self.clock.now_s()
        with self.store.database.write() as connection:
            known = _get(connection, action.id, self.family)
            if known is None or known.action.plan_sha256 != action.plan_sha256:
                return None
            # Asked again under the lock: `objections` read before it, and another replica may have begun the
            # search since.
            if known.state is not ProposalState.APPROVED or search_of(connection, name) is not None:
                return None
            made = KernelSearch(name, action, now_s, looked_at_s=now_s)
            put_search(connection, made, now_s)
            _put(connection, replace(known, state=ProposalState.RUNNING), now_s, NIGHTSHIFT)
            body = {"plan": action.id, "plan_sha256": action.plan_sha256, "search": name}
            audit.append(
                connection, at_s=now_s, kind="kernel_search_begun", by=NIGHTSHIFT, incident=None, body=body
            )
        return made

    def keep(self, search: KernelSearch) -> None:
        """Writes down how far a search is; one that has ended stays as it ended."""
        now_s = self.clock.now_s()
        with self.store.database.write() as connection:
            before = search_of(connection, search.name)
            # A late look of a runner that lost the lead must not reopen what the new one ended.
            if before is None or before.ended:
                return
            put_search(connection, search, now_s)
            if not search.ended:
                return
            known = _get(connection, search.action.id, self.family)
            if known is not None and known.state is ProposalState.RUNNING:
                state = ProposalState.DONE if search.ended in ANSWERED else ProposalState.STOPPED
                note = f"{search.ended}: {search.detail}"
                _put(connection, replace(known, state=state, note=note), now_s, NIGHTSHIFT)
            body = {"plan": search.action.id, "plan_sha256": search.action.plan_sha256, "search": search.name}
            body |= {"ended": search.ended, "detail": search.detail, "gpu_hours": f"{search.gpu_hours:.3f}"}
            body |= {"certificates": ", ".join(one.sha256 for one in search.certificates)}
            audit.append(
                connection, at_s=now_s, kind="kernel_search_ended", by=NIGHTSHIFT, incident=None, body=body
            )

    def not_promotable(self, proposal: KernelProposal) -> str:
        """Why a promotion's evidence, or where its jobs run now, refuses it; "" where it does not, or it is
        none."""
        return not_promotable(proposal, fleet_view(self.store, self.clock.now_s()))

    def _refusal(
        self, known: KernelProposal | None, plan_sha256: str, by: Person, now_s: float, view: FleetView | None
    ) -> str:
        if known is None:
            return "There is no such plan."
        if known.action.plan_sha256 != plan_sha256:
            return "The plan has changed since you saw it. Reload it and decide again."
        open_ = (ProposalState.WAITING, ProposalState.APPROVED, ProposalState.REJECTED)
        if known.state in open_ and (why := not_promotable(known, view)):
            return f"{why[0].upper()}{why[1:]}."
        if known.state not in (ProposalState.WAITING, ProposalState.APPROVED):
            return f"It is {known.state}; there is nothing to approve."
        if now_s >= known.action.expires_at_s:
            return "The plan has expired. Propose it again."
        halt = self.gate.halted()
        if halt.halted:
            return f"Halted by {halt.by}; nothing is approved until it is resumed."
        # By the one person behind their names: a token of one's own would else be the second approver of what one
        # asked for.
        who, asked = replace(by, name=self.gate.one(by.identity)), self.gate.one(known.by)
        return may_not_approve(who, known.action, self.gate.policy, asked, now_s, namespaces(known.action))

    def _shown(self, connection: Connection, plan_id: str, by: Person) -> KernelProposal | None:
        """The proposal, if this person may know of it; to anybody else there is none."""
        known = _get(connection, plan_id, self.family)
        if known is None or (by.identity and sight(by, namespaces(known.action)) is not Sight.WHOLE):
            return None
        return known

    def _note(
        self, connection: Connection, what: str, plan_id: str, plan_sha256: str, by: Person, why: str, now_s: float
    ) -> None:
        body: dict[str, Any] = {"what": what, "plan": plan_id[:200], "plan_sha256": plan_sha256[:64], "why": why}
        body |= {"role": by.role, "channel": by.channel}
        audit.append(connection, at_s=now_s, kind="refused", by=by.identity, incident=None, body=body)


def not_promotable(proposal: KernelProposal, view: FleetView | None) -> str:
    """Why a promotion of a kernel is refused, as one text; "" where it is not, or the plan is no such promotion."""
    action = proposal.action
    if action.kind is not ActionKind.PROMOTE_KERNEL:
        return ""
    record = json.loads(proposal.record or "{}")
    environment = environment_of(view, str(action.params.get("certificate", "")), record)
    found = promotable(record, environment, CertificateState(str(action.params.get("to", CertificateState.canary))))
    return f"not promotable: {'; '.join(map(str, found))}" if found else ""


def namespaces(action: Action) -> tuple[str, ...]:
    """Whose a proposal is: a search's job's team; a promotion is everybody's, so the cluster's."""
    return tuple(namespaces_of([action.target]))


def _get(connection: Connection, plan_id: str, family: str) -> KernelProposal | None:
    # Locked: two people who approve at once must see each other's approval.
    query = sa.select(controls.c.body).where(controls.c.name == plan_id).with_for_update()
    body = connection.execute(query).scalar()
    return None if body is None or not plan_id.startswith(f"{family}/") else load(KernelProposal, body)


def _put(connection: Connection, proposal: KernelProposal, now_s: float, by: str) -> None:
    row = {"at_s": now_s, "by": by, "body": dump(proposal)}
    there = connection.execute(sa.update(controls).where(controls.c.name == proposal.id).values(row)).rowcount
    if not there:
        connection.execute(sa.insert(controls).values(name=proposal.id, **row))
