"""Learned policies at the gate: a step up needs its statistics and then people; a step down needs neither.

One policy of a kind stands at a time (rows `policy-standing/KIND`); its steps are plans (`policy/KIND/…`) that bind
the evidence that was shown, so later evidence needs its own approval. Everything is in the audit log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from nightshift.agent.approvals.access import Permission, may
from nightshift.agent.approvals.answer import GateAnswer
from nightshift.agent.approvals.gate import NIGHTSHIFT, Gate
from nightshift.agent.approvals.kernel_gate import VALID_S, KernelGate, KernelProposal, ProposalState
from nightshift.agent.approvals.policy import Person
from nightshift.agent.clock import Clock
from nightshift.agent.store import audit
from nightshift.agent.store.incident_store import Store
from nightshift.agent.store.records import dump, load, plain
from nightshift.agent.store.tables import controls
from nightshift.collectors.base import Permanent
from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.controllers.action import Action, ActionKind, BlastRadius, Undo
from nightshift.controllers.decision import Mode
from nightshift.controllers.estimate import TrialTurn
from nightshift.controllers.promotion import (
    CRITERIA,
    STEPS,
    Criteria,
    PolicyHealth,
    PolicyStanding,
    PromotionEvidence,
    Tally,
    assess,
    demotion,
    moved,
)

_ROW = "policy-standing/"
_TALLY = "policy-tally/"


def promotion(
    cluster: str, policy: PolicyStanding, evidence: PromotionEvidence, criteria: Criteria, now_s: float
) -> Action:
    """The plan of a step up, with every figure that an approver has to see."""
    share = {
        Mode.TRIAL: "jobs with opted-in owners, drawn at random",
        Mode.CANARY: f"{criteria.canary_share:.0%} of {criteria.unit}",
    }
    who = share.get(evidence.to, f"all {criteria.unit} but the holdout of {criteria.holdout_share:.0%}")
    return Action(
        f"policy/{policy.kind}/{policy.manifest_sha256[:16]}/{evidence.to}",
        ActionKind.PROMOTE_POLICY,
        Subject(SubjectKind.CLUSTER, cluster),
        f"{policy.policy}: {policy.mode} → {evidence.to}; {evidence.words}",
        BlastRadius(note=f"{policy.kind} of {who}, always within the shield"),
        Undo(True, f"nightshift policy undo {policy.kind}: the baseline controls from the next decision on"),
        now_s + VALID_S,
        {
            "kind": policy.kind,
            "policy": policy.policy,
            "manifest": policy.manifest_sha256,
            "to": str(evidence.to),
            "look": evidence.look,
            **{f"check {check.name}": check.words for check in evidence.checks},
        },
    )


@dataclass
class PolicyGate:
    """Stands policies up, looks, proposes, carries out, demotes. Stateless: everything is in the store."""

    gate: Gate
    store: Store
    clock: Clock
    cluster: str
    criteria: Criteria | None = None
    """Of every kind; without: each kind's own."""

    def __post_init__(self) -> None:
        self.plans = KernelGate(self.gate, self.store, self.clock, family="policy")

    def criteria_of(self, kind: str) -> Criteria:
        return self.criteria or CRITERIA.get(kind, Criteria())

    # What stands -------------------------------------------------------------------------------------------------

    def standings(self) -> list[PolicyStanding]:
        """Every kind's policy."""
        query = sa.select(controls.c.body).where(controls.c.name.like(f"{_ROW}%")).order_by(controls.c.name)
        with self.store.database.read() as connection:
            return [load(PolicyStanding, row.body) for row in connection.execute(query)]

    def standing(self, kind: str) -> PolicyStanding:
        """Raises Permanent where no policy of the kind stands."""
        for found in self.standings():
            if found.kind == kind:
                return found
        others = ", ".join(each.kind for each in self.standings()) or "none of any kind"
        raise Permanent(f"no policy of kind {kind!r} is loaded: the baseline controls (loaded: {others})")

    def proposals(self) -> list[KernelProposal]:
        """Steps up, those that wait first."""
        return self.plans.proposals()

    def stand(self, kind: str, policy: str, manifest_sha256: str, by: str = NIGHTSHIFT) -> PolicyStanding:
        """Puts a policy into shadow. The same one again changes nothing; another takes the old one's place, and
        begins at the bottom."""
        now_s = self.clock.now_s()
        with self.store.database.write() as connection:
            known = _read(connection, kind)
            if known is not None and known.manifest_sha256 == manifest_sha256:
                return known
            # In the same transaction: an approval of the old policy's step would else move the new one.
            self.plans.withdraw(connection, f"policy/{kind}/", f"{policy} took its place", now_s)
            made = PolicyStanding(kind, policy, manifest_sha256, Mode.SHADOW, now_s)
            before = "" if known is None else f"{known.policy} ({known.mode})"
            self._write(connection, made, by, "policy_stands", {"replaces": before})
        return made

    # Steps up ----------------------------------------------------------------------------------------------------

    def look(
        self,
        kind: str,
        turns: Sequence[TrialTurn],
        fallback_share: float,
        seed: int = 0,
        lost: tuple[float, float] = (0.0, 0.0),
    ) -> PromotionEvidence:
        """One counted look at the next step: looks are what the 5 % is divided by, so each is stored."""
        standing = self.standing(kind)
        evidence = assess(standing, turns, fallback_share, self.criteria_of(kind), self.clock.now_s(), seed, lost)
        with self.store.database.write() as connection:
            now = self._same(connection, standing)
            # Stored even where it fails: a look that does not count could be repeated until chance lets it pass.
            made = replace(now, looks=evidence.look, evidence=evidence)
            self._write(connection, made, NIGHTSHIFT, "policy_looked_at", {"evidence": plain(evidence)})
        return evidence

    def stand_in(self, kind: str, evaluation: PromotionEvidence, by: str = NIGHTSHIFT) -> PolicyStanding:
        """Takes a rule's signed held-out evaluation in place of its shadow: its next step is the evaluation's.
        Changes nothing where the evaluation does not hold or counts already, nor after a step down: if Nightshift
        took it, for good; if a person took it, until a person (`by`) wants it back."""
        standing, now_s = self.standing(kind), self.clock.now_s()
        mine = standing.evidence
        counts = mine is not None and mine.to is evaluation.to and now_s - mine.at_s < VALID_S
        refused = bool(standing.demotion) and NIGHTSHIFT in (by, standing.history[-1].by)
        if standing.mode is not Mode.SHADOW or counts or refused or not evaluation.ready:
            return standing
        with self.store.database.write() as connection:
            made = replace(self._same(connection, standing), evidence=replace(evaluation, at_s=now_s))
            self._write(connection, made, by, "policy_looked_at", {"evidence": plain(made.evidence)})
        return made

    def propose(self, kind: str, by: str = NIGHTSHIFT) -> KernelProposal:
        """Puts the next step before people. Raises Permanent where the statistics do not carry it."""
        standing = self.standing(kind)
        evidence = standing.evidence
        if standing.next is None:
            raise Permanent(f"{standing.policy} is active: there is no further step")
        if evidence is None:
            raise Permanent(f"{standing.policy} is {standing.mode} and has no evidence yet")
        if not evidence.ready:
            raise Permanent(f"{standing.policy} stays {standing.mode}: {evidence.words}")
        return self.plans.propose(
            promotion(self.cluster, standing, evidence, self.criteria_of(kind), evidence.at_s), by
        )

    def approve(self, plan_id: str, plan_sha256: str, by: Person) -> GateAnswer:
        return self.plans.approve(plan_id, plan_sha256, by)

    def reject(self, plan_id: str, plan_sha256: str, by: Person, reason: str) -> GateAnswer:
        return self.plans.reject(plan_id, plan_sha256, by, reason)

    def carry_out(self, kind: str, by: str) -> PolicyStanding:
        """Takes an approved step. Everything is asked again: the evidence, the plan's hash, people, the stop.

        Raises Permanent saying what is missing; a plan whose evidence is no longer the newest counts for nothing.
        """
        standing = self.standing(kind)
        plan = self.propose(kind, by).action
        # Proposed again first: where the evidence moved, the plan has another hash and its approvals count for
        # nothing.
        objections = self.plans.objections(plan)
        if objections:
            raise Permanent(f"{plan.id}: {'; '.join(objections)}")
        with self.store.database.write() as connection:
            now = self._same(connection, standing)
            evidence = now.evidence
            assert evidence is not None
            made = moved(now, evidence.to, by, plan.why, self.clock.now_s())
            self._write(connection, made, by, "policy_promoted", {"plan": plan.id, "plan_sha256": plan.plan_sha256})
        self.plans.done(plan, by, f"{made.policy} is {made.mode}")
        return made

    def carry_out_approved(self, kind: str) -> PolicyStanding | None:
        """Takes the step that people have approved, on whatever door; None where there is none. A step that was
        taken by a process that died before it noted so is noted now."""
        standing = self.standing(kind)
        mine = f"policy/{kind}/{standing.manifest_sha256[:16]}/"
        for plan in self.plans.proposals():
            if plan.state is not ProposalState.APPROVED or not plan.id.startswith(mine):
                continue
            to = Mode(plan.id.removeprefix(mine))
            # `carry_out` writes the step and then that the plan is done, in two transactions.
            if STEPS.index(to) <= STEPS.index(standing.mode):
                self.plans.done(plan.action, NIGHTSHIFT, f"{standing.policy} is {standing.mode}")
            # A step that is two away was approved before a demotion, and is not skipped to.
            elif to is standing.next and not self.plans.objections(plan.action):
                return self.carry_out(kind, plan.approvals[-1].person)
        return None

    # Steps down --------------------------------------------------------------------------------------------------

    def watch(self, kind: str, health: PolicyHealth) -> str:
        """Demotes at once where health asks for it; returns why, empty where the policy may stay."""
        with self.store.database.write() as connection:
            standing = _read(connection, kind)
            # Read and judged under the row's lock: of two replicas that see the same violation, one demotes.
            why = demotion(standing, health, self.criteria_of(kind)) if standing is not None else ""
            if why and standing is not None:
                self._take_down(connection, standing, NIGHTSHIFT, why)
        return why

    def note(self, kind: str, what: PolicyHealth) -> str:
        """Adds what happened just now (counts of this moment, not of the day) to the day's tally and demotes where
        it is too much, in one transaction: a process that dies has noted both or neither. Returns why."""
        now_s = self.clock.now_s()
        with self.store.database.write() as connection:
            standing = _read(connection, kind)
            if standing is None:
                return ""
            tally = _tally(connection, standing).add(now_s, what)
            body = {"at_s": now_s, "by": NIGHTSHIFT, "body": dump(tally)}
            _put(connection, _TALLY + kind, body)
            why = demotion(standing, tally.health(now_s, what), self.criteria_of(kind))
            if why:
                self._take_down(connection, standing, NIGHTSHIFT, why)
        return why

    def undo(self, kind: str, by: Person, reason: str) -> GateAnswer:
        """Back to shadow: the safe direction, so whoever may halt may do it and nobody has to approve."""
        if not (allowed := may(by, Permission.TAKE_BACK)):
            return GateAnswer(False, allowed.reason)
        standing = self.standing(kind)
        if standing.mode is Mode.SHADOW:
            return GateAnswer(True, f"{standing.policy} is in shadow: the baseline controls already.")
        self._down(standing, by.identity, reason or "taken back")
        return GateAnswer(True, f"{standing.policy} is in shadow: the baseline controls from now on.", True)

    def _down(self, standing: PolicyStanding, by: str, why: str) -> None:
        with self.store.database.write() as connection:
            self._take_down(connection, _read(connection, standing.kind) or standing, by, why)

    def _take_down(self, connection: Connection, known: PolicyStanding, by: str, why: str) -> None:
        now_s = self.clock.now_s()
        made = moved(known, Mode.SHADOW, by, why, now_s)
        self._write(connection, made, by, "policy_demoted", {"why": why, "from": str(known.mode)})
        self.plans.withdraw(connection, f"policy/{known.kind}/", f"demoted: {why}", now_s)

    # Rows --------------------------------------------------------------------------------------------------------

    def _same(self, connection: Connection, standing: PolicyStanding) -> PolicyStanding:
        """The row, locked; raises Permanent where somebody changed it since it was read."""
        known = _read(connection, standing.kind)
        same = known is not None and (known.manifest_sha256, known.mode, known.looks) == (
            standing.manifest_sha256, standing.mode, standing.looks,
        )  # fmt: skip
        if known is None or not same:
            raise Permanent(f"{standing.kind}: its mode changed since you saw it; check it and retry")
        return known

    def _write(
        self, connection: Connection, standing: PolicyStanding, by: str, kind: str, body: dict[str, Any]
    ) -> None:
        now_s = self.clock.now_s()
        row = {"at_s": now_s, "by": by, "body": dump(standing)}
        _put(connection, _ROW + standing.kind, row)
        facts = {"kind": standing.kind, "policy": standing.policy, "mode": str(standing.mode), **body}
        audit.append(connection, at_s=now_s, kind=kind, by=by, incident=None, body=facts)


def _read(connection: Connection, kind: str) -> PolicyStanding | None:
    query = sa.select(controls.c.body).where(controls.c.name == _ROW + kind).with_for_update()
    body = connection.execute(query).scalar()
    return None if body is None else load(PolicyStanding, body)


def _tally(connection: Connection, standing: PolicyStanding) -> Tally:
    """The day's counts of what stands now; those of another policy or mode are not its own."""
    body = connection.execute(sa.select(controls.c.body).where(controls.c.name == _TALLY + standing.kind)).scalar()
    known = None if body is None else load(Tally, body)
    fresh = Tally(standing.manifest_sha256, standing.since_s)
    return known if known is not None and (known.policy, known.since_s) == (fresh.policy, fresh.since_s) else fresh


def _put(connection: Connection, name: str, row: dict[str, Any]) -> None:
    if not connection.execute(sa.update(controls).where(controls.c.name == name).values(row)).rowcount:
        connection.execute(sa.insert(controls).values(name=name, **row))
