"""The one gate before every action: who approved which exact plan, until when; and the emergency stop.

Console, CLI, chat and the demo all call this, so that there is no other way to an action. An approval binds the
plan's hash, the person, their role and an expiry. A click is one transaction with the incident's row locked: a
double click, a replay, two people at once and a click after expiry each have one outcome, told to the clicker
alone; only a click that changes something is told to everybody. At execution everything is checked again.

    click                                       answer
    first, plan as shown, in time               approved (or 1 of 2)
    the same person again                       ok, nothing changes
    another person after it was approved        ok is False: who approved, and what it does now
    plan changed since it was shown             refused: look again
    after expiry                                refused: a new plan is on its way
    while halted                                refused: who halted, and when
    a model contests the plan                   not yet: what it says; the same person's next click approves
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass

import sqlalchemy as sa
from sqlalchemy import Connection

from nightshift.agent.approvals.access import Permission, Sight, may, sight
from nightshift.agent.approvals.answer import GateAnswer
from nightshift.agent.approvals.people import Directory
from nightshift.agent.approvals.policy import PEOPLE, ApprovalSettings, Person, Role, may_not_approve, rule_for
from nightshift.agent.clock import Clock
from nightshift.agent.store import audit
from nightshift.agent.store.incident import CLOSABLE, POLICY, Cause, Incident, IncidentState, contest_of, half_done
from nightshift.agent.store.incident_store import Conflict, IncidentMove, NoSuchIncident, Store, number_of
from nightshift.agent.store.intents import reopen_intent
from nightshift.agent.store.records import dump, load
from nightshift.agent.store.tables import approvals, controls
from nightshift.controllers.action import Action, ApprovalRule, traits_of

_S = IncidentState
_DECIDED = (_S.APPROVED, _S.ACTING, _S.CONFIRMING, _S.UNDOING)
_PENDING = (_S.AWAITING_APPROVAL, *_DECIDED)
_NAMED = 5
CONFIRM_AFTER_S = 1.0
"""A second click on a contested plan confirms it from this time on (s)."""
VALID_S = 3600.0
"""An approval counts for this long (s), and never beyond the plan's own end (`economy.expires_s`), which sites set:
a person approved one state of the world, and an hour later that is another."""
NIGHTSHIFT = "nightshift"
"""Who asks for plans that nobody asked for."""

_ITSELF = Person(NIGHTSHIFT, frozenset(), NIGHTSHIFT)


@dataclass(frozen=True, slots=True)
class Approval:
    """Who approved which plan. It counts until `expires_s`."""

    person: str
    role: Role
    channel: str
    plan_sha256: str
    at_s: float
    expires_s: float
    groups: tuple[str, ...] | None = None
    """Groups by which the directory gave the role; None where the role was not the directory's word."""


@dataclass(frozen=True, slots=True)
class Halt:
    """The emergency stop as it stands."""

    halted: bool
    by: str = ""
    reason: str = ""
    at_s: float = 0.0


JUDGED = {True: Cause.JUDGED_RIGHT, False: Cause.JUDGED_WRONG}


class Gate:
    """Approves, rejects, closes, halts and resumes. Stateless: everything is in the store."""

    def __init__(
        self, store: Store, policy: ApprovalSettings, clock: Clock, directory: Directory | None = None
    ) -> None:
        """`directory`: judges approvers again when their approval is used; None: their role is not asked again."""
        self._store = store
        self._directory = directory
        self.policy = policy
        self._clock = clock

    # Clicks -----------------------------------------------------------------------------------------------------

    def approve(self, incident_id: str, plan_sha256: str, by: Person, now_s: float | None = None) -> GateAnswer:
        """Approves the plan with that hash, if it is still the incident's plan and the person may."""
        now = self._clock.now_s() if now_s is None else now_s
        return self._decided(incident_id, by, lambda incident: self._approve(incident, plan_sha256, by, now))

    def _decided(self, incident_id: str, by: Person, decide: Callable[[Incident], GateAnswer]) -> GateAnswer:
        """Decides on an incident as it is; again where it changed between the look and the write."""
        for _ in range(3):
            try:
                return decide(self._shown(incident_id, by))
            except Conflict:
                continue
        return GateAnswer(False, f"{incident_id} keeps changing. Reload it and decide again.")

    def _shown(self, incident_id: str, by: Person) -> Incident:
        """The incident, if this person may know of it. Raises NoSuchIncident where there is none or they may not:
        a refusal that tells the two apart would tell of another team's incident."""
        incident = self._store.incident(incident_id)
        # Without an identity the refusal comes later, and says to sign in.
        if by.identity and sight(by, incident.namespaces) is Sight.NOTHING:
            raise NoSuchIncident(f"there is no {incident.id}")
        return incident

    def _approve(self, incident: Incident, plan_sha256: str, by: Person, now: float) -> GateAnswer:
        action = incident.action
        given = [item for item in self.approvals(incident.id) if item.plan_sha256 == plan_sha256]
        if self._is_again(incident, plan_sha256, [item for item in given if item.person == by.identity], now):
            return GateAnswer(True, f"You approved this already; {incident.id} is {_words(incident.state)}.")
        refusal = self._refusal(incident, plan_sha256, by, given, now)
        if refusal:
            self._note_refusal(incident.id, "approve", by, plan_sha256, refusal)
            return GateAnswer(False, refusal)
        assert action is not None
        if not given and (contested := self._contested(incident, action, by, now)):
            return GateAnswer(False, contested)
        approval = self.grant(action, by, now)
        standing = [*self.counting(given, incident.namespaces, now), approval]
        if missing := self.missing(action, standing):
            # Before the second approval nothing moves, so that the row and a new version are all that changes.
            self._record(incident, approval)
            return GateAnswer(True, missing, True)
        names = " and ".join(item.person for item in standing)
        move = IncidentMove(
            Cause.APPROVED, by.identity, f"{by.channel}: {action.kind} by {names}", incident.version
        )
        self._store.change(incident.id, move, lambda c, number: self._insert(c, number, approval))
        return GateAnswer(True, f"Approved: {action.kind} {action.target} starts now.", True)

    def _contested(self, incident: Incident, action: Action, by: Person, now: float) -> str:
        """What a language model says against the plan, where this person was not shown it yet; empty where they
        were, and their next click approves. Asked once a plan: whoever approves after them is not asked again."""
        contest = contest_of(incident)
        if contest is None:
            return ""
        note = f"plan {action.plan_sha256[:16]}"
        shown = [s for s in incident.history if (s.cause, s.by, s.note) == (Cause.CONTEST_SHOWN, by.identity, note)]
        # a double click is one click
        if shown and not 0 <= now - shown[-1].at_s < CONFIRM_AFTER_S:
            return ""
        if not shown:
            self._store.remark(incident, Cause.CONTEST_SHOWN, by.identity, note)
        return (
            f"Not approved yet. The language model contests this plan: {contest.reason}"
            f' It quotes: "{contest.quote.text}". Approve again to confirm.'
        )

    def _is_again(self, incident: Incident, plan_sha256: str, mine: Sequence[Approval], now: float) -> bool:
        """Whether a person approves what they have approved: a double click, or Slack's repeat of one."""
        # Once it is decided an approval need not be fresh: the click that came twice did what it was to do.
        counts = incident.state in _DECIDED or any(item.expires_s > now for item in mine)
        return bool(mine) and counts and incident.state in _PENDING and _is_plan(incident.action, plan_sha256)

    # What counts, for repairs, kernels and policies -------------------------------------------------------------

    def grant(self, action: Action, by: Person, now_s: float) -> Approval:
        """A person's approval of exactly this plan, as it is stored."""
        expires_s = min(action.expires_at_s, now_s + VALID_S)
        return Approval(by.identity, by.role, by.channel, action.plan_sha256, now_s, expires_s, by.groups)

    def counting(self, approvals: Iterable[Approval], namespaces: Collection[str], now_s: float) -> list[Approval]:
        """Those that count now. An approval by policy is no person's: where the rule has become stricter since, it
        counts for nothing."""
        fresh = [item for item in approvals if item.expires_s > now_s and item.person != POLICY]
        return [item for item in fresh if self.still_approves(item, namespaces)]

    def missing(self, action: Action, approvals: Iterable[Approval]) -> str:
        """What a plan lacks where these count, as a sentence for whoever gave the last; empty where nothing."""
        so_far, needed = len(self.people(approvals)), self.needed(action)
        return "" if so_far >= needed else f"Recorded: {so_far} of {needed}. A second person must approve."

    def needed(self, action: Action) -> int:
        """How many different people a plan's rule asks for."""
        return PEOPLE[rule_for(action, self.policy)]

    def _refusal(self, incident: Incident, plan_sha256: str, by: Person, given: list[Approval], now: float) -> str:
        """Why this click does not approve; empty where it does."""
        action = incident.action
        # Before any state is told: who approved, and that it was halted, is not for a team that sees a part of
        # it.
        if by.is_tenant and not (allowed := may(by, Permission.APPROVE, incident.namespaces)):
            return allowed.reason
        if incident.state in _DECIDED:
            names = " and ".join(item.person for item in given) or POLICY
            return f"Approved already by {names}; {incident.id} is {_words(incident.state)}."
        if incident.state is not _S.AWAITING_APPROVAL or action is None:
            return f"{incident.id} is {_words(incident.state)}; there is nothing to approve."
        if not _is_plan(action, plan_sha256):
            return f"The plan of {incident.id} has changed since you saw it. Reload it and decide again."
        if now >= action.expires_at_s:
            return f"The plan of {incident.id} has expired; a new one is on its way."
        halt = self.halted()
        if halt.halted:
            return f"{_halted(halt)}; nothing is approved until it is resumed."
        return may_not_approve(by, action, self.policy, NIGHTSHIFT, now, incident.namespaces)

    def approve_by_policy(self, incident: Incident) -> bool:
        """Approves a plan whose rule is automatic. False where it is not, or somebody was faster."""
        action, now = incident.action, self._clock.now_s()
        if incident.state is not _S.AWAITING_APPROVAL or action is None or now >= action.expires_at_s:
            return False
        if rule_for(action, self.policy) is not ApprovalRule.AUTOMATIC or self.halted().halted:
            return False
        expires_s = min(action.expires_at_s, now + VALID_S)
        approval = Approval(POLICY, Role.APPROVER, POLICY, action.plan_sha256, now, expires_s)
        move = IncidentMove(Cause.APPROVED, POLICY, f"{action.kind} is automatic by policy", incident.version)
        try:
            self._store.change(incident.id, move, lambda c, number: self._insert(c, number, approval))
        except Conflict:
            return False
        return True

    def reject(
        self, incident_id: str, plan_sha256: str, by: Person, reason: str, now_s: float | None = None
    ) -> GateAnswer:
        """Declines the plan; the incident is watched. An approved plan is stopped as long as it has not begun."""
        now = self._clock.now_s() if now_s is None else now_s
        return self._decided(incident_id, by, lambda incident: self._reject(incident, plan_sha256, by, reason, now))

    def _reject(self, incident: Incident, plan_sha256: str, by: Person, reason: str, now: float) -> GateAnswer:
        refusal = ""
        if not (allowed := may(by, Permission.REJECT, incident.namespaces)):
            refusal = allowed.reason
        elif incident.state not in (_S.AWAITING_APPROVAL, _S.APPROVED):
            refusal = f"{incident.id} is {_words(incident.state)}; there is nothing to reject."
            if incident.state is _S.ACTING:
                refusal += " `nightshift halt` stops what has not happened yet."
        elif not _is_plan(incident.action, plan_sha256):
            refusal = f"The plan of {incident.id} has changed since you saw it. Reload it and decide again."
        if refusal:
            self._note_refusal(incident.id, "reject", by, plan_sha256, refusal)
            return GateAnswer(False, refusal)
        body = {"plan_sha256": plan_sha256, "reason": reason, "channel": by.channel, "role": by.role}

        def noted(connection: Connection, number: int) -> None:
            audit.append(connection, at_s=now, kind="rejected", by=by.identity, incident=number, body=body)

        self._store.change(incident.id, IncidentMove(Cause.REJECTED, by.identity, reason, incident.version), noted)
        return GateAnswer(True, f"Rejected; {incident.id} is watched until it clears.", True)

    def close(self, incident_id: str, by: Person, note: str, *, not_a_fault: bool = False) -> GateAnswer:
        """A person says that it is over, or that nothing was wrong: then its alarms were false. An action that is
        approved or under way cannot be closed away."""
        cause = Cause.NOT_A_FAULT if not_a_fault else Cause.CLOSED_BY_PERSON
        return self._decided(incident_id, by, lambda incident: self._close(incident, by, note, cause))

    def _close(self, incident: Incident, by: Person, note: str, cause: Cause) -> GateAnswer:
        if not (allowed := may(by, Permission.CLOSE, incident.namespaces)):
            return GateAnswer(False, allowed.reason)
        if incident.state not in CLOSABLE:
            return GateAnswer(False, f"{incident.id} is {_words(incident.state)}; it cannot be closed now.")
        self._store.change(incident.id, IncidentMove(cause, by.identity, f"{by.channel}: {note}", incident.version))
        how = " as not a fault" if cause is Cause.NOT_A_FAULT else ""
        return GateAnswer(True, f"{incident.id} is closed{how}.", True)

    def judge(self, incident_id: str, by: Person, *, right: bool, note: str = "") -> GateAnswer:
        """A person says whether the diagnosis is right. It moves nothing; their later word counts."""
        return self._decided(incident_id, by, lambda incident: self._judge(incident, by, right, note))

    def _judge(self, incident: Incident, by: Person, right: bool, note: str) -> GateAnswer:
        if not (allowed := may(by, Permission.CLOSE, incident.namespaces)):
            return GateAnswer(False, allowed.reason)
        if incident.diagnosis is None:
            return GateAnswer(False, f"{incident.id} has no diagnosis yet.")
        word = "right" if right else "wrong"
        said = f"{incident.diagnosis.headline[:200]}{f': {note[:1000]}' if note else ''}"
        mine = [s for s in incident.history if s.by == by.identity and s.cause in JUDGED.values()]
        if mine and (mine[-1].cause, mine[-1].note) == (JUDGED[right], said):
            return GateAnswer(True, f"You called the diagnosis of {incident.id} {word} already.")
        self._store.remark(incident, JUDGED[right], by.identity, said)
        return GateAnswer(True, f"Noted: the diagnosis of {incident.id} is {word}.", True)

    def carry_on(self, incident_id: str, by: Person, *, give_back: bool = False) -> GateAnswer:
        """Finishes an action whose outcome was unknown, or with `give_back` takes back what it left. What was
        interrupted while it was taken back is taken back either way. As for an approval, its rule is asked."""
        return self._decided(incident_id, by, lambda incident: self._carry_on(incident, by, give_back))

    def _carry_on(self, incident: Incident, by: Person, give_back: bool) -> GateAnswer:
        action, phase = incident.action, half_done(incident)
        undo = give_back or phase == "undo"
        if refusal := self._not_carried_on(incident, by, undo):
            sha256 = "" if action is None else action.plan_sha256
            self._note_refusal(incident.id, "resume", by, sha256, refusal)
            return GateAnswer(False, refusal)
        assert action is not None
        cause = Cause.UNDO_REQUESTED if undo else Cause.RESUMED
        move = IncidentMove(cause, by.identity, f"{by.channel}: {action.kind} {action.target}", incident.version)

        def reopened(connection: Connection, number: int) -> None:
            # to take a half-done action back is an intent of its own
            if undo == (phase == "undo"):
                reopen_intent(connection, action, phase)

        self._store.change(incident.id, move, reopened)
        does = "taken back" if undo else "read again and finished"
        return GateAnswer(True, f"Resumed: {action.kind} {action.target} is {does}.", True)

    def _not_carried_on(self, incident: Incident, by: Person, undo: bool) -> str:
        """Why an incident's action is not taken up again; empty where it may be."""
        action, halt = incident.action, self.halted()
        if by.is_tenant and not (allowed := may(by, Permission.APPROVE, incident.namespaces)):
            return allowed.reason
        if action is None or not half_done(incident):
            return f"{incident.id} is {_words(incident.state)} and has no action with an unknown outcome to resume."
        if halt.halted:
            return f"{_halted(halt)}; nothing is resumed until `nightshift resume` lifts the stop."
        if undo and not action.undo.possible:
            return f"{action.kind} cannot be given back: {action.undo.how}. Resume it without giving it back."
        return may_not_approve(by, action, self.policy, NIGHTSHIFT, self._clock.now_s(), incident.namespaces)

    # At execution -----------------------------------------------------------------------------------------------

    def objections(self, incident: Incident) -> list[tuple[Cause, str]]:
        """Why an approved plan may not be carried out now, each with the cause of the move; empty where it may.

        `halted` is not among them: a halted plan waits.
        """
        action, now = incident.action, self._clock.now_s()
        if action is None:
            return [(Cause.WORLD_CHANGED, "there is no plan")]
        if now >= action.expires_at_s:
            return [(Cause.EXPIRED, "the plan expired before it began")]
        rule = rule_for(action, self.policy)
        if rule is ApprovalRule.NEVER:
            return [(Cause.WORLD_CHANGED, f"policy no longer allows {action.kind}")]
        given = [item for item in self.approvals(incident.id) if item.plan_sha256 == action.plan_sha256]
        if not given:
            return [(Cause.WORLD_CHANGED, "the plan is not the one that was approved")]
        standing = self.counting(given, incident.namespaces, now)
        people = self.people(standing)
        if len(people) >= PEOPLE[rule]:
            return []
        fresh = {item.person for item in given if item.expires_s > now} - {POLICY}
        gone = sorted(fresh - {item.person for item in standing})
        why = f"; {' and '.join(gone)} may no longer approve it" if gone else ""
        return [(Cause.EXPIRED, f"{len(people)} of {PEOPLE[rule]} approvals still count{why}")]

    def people(self, approvals: Iterable[Approval]) -> set[str]:
        """The different people behind approvals: somebody's token and account are one (`people.same`)."""
        return {self.one(item.person) for item in approvals}

    def one(self, identity: str) -> str:
        """Whom an identity counts as where different people are asked for."""
        return identity if self._directory is None else self._directory.one(identity)

    def still_approves(self, approval: Approval, namespaces: Collection[str]) -> bool:
        """Whether who gave an approval might give it now, as the directory knows them: a person who was taken out,
        or a group that lost its role, takes their approvals along. What only the identity provider knows, such as
        who left a group, is asked at the next sign-in."""
        if self._directory is None or approval.groups is None:
            return True
        person = self._directory.person(approval.person, approval.channel, None, approval.groups)
        return person.may(Role.APPROVER, namespaces)

    def approvals(self, incident_id: str) -> list[Approval]:
        """Every approval of an incident's plans, oldest first."""
        query = sa.select(approvals).where(approvals.c.incident == number_of(incident_id))
        with self._store.database.read() as connection:
            rows = connection.execute(query.order_by(approvals.c.at_s)).all()
        return [
            Approval(
                r.person, Role(r.role), r.channel, r.plan_sha256, r.at_s, r.expires_s,
                None if r.groups is None else tuple(json.loads(r.groups)),
            )
            for r in rows
        ]  # fmt: skip

    # Emergency stop ---------------------------------------------------------------------------------------------

    def halted(self) -> Halt:
        """Whether actions are frozen, read from the database: it holds for every process from its commit on."""
        with self._store.database.read() as connection:
            return halt_of(connection)

    def halt(self, by: Person, reason: str = "") -> GateAnswer:
        """Freezes every action that has not reached the world. Whoever may respond may halt."""
        if not (allowed := may(by, Permission.HALT)):
            return GateAnswer(False, allowed.reason)
        now = self.halted()
        if now.halted:
            return GateAnswer(True, f"{_halted(now)}.")
        with self._store.database.write() as connection:
            _set_halt(connection, Halt(True, by.identity, reason, self._clock.now_s()), by)
        said = "Halted: no action starts until an approver resumes."
        held = self.held()
        return GateAnswer(True, f"{said} Paused: {', '.join(held)}." if held else said, True)

    def stop_itself(self, reason: str) -> bool:
        """The same stop by Nightshift: actions start again once an approver resumes. False where they were stopped
        already."""
        with self._store.database.write() as connection:
            if halt_of(connection).halted:
                return False
            _set_halt(connection, Halt(True, NIGHTSHIFT, reason, self._clock.now_s()), _ITSELF)
        return True

    def held(self) -> list[str]:
        """What had begun and is not finished, as `INC-7 (drain of node:n1; stays stopped: ml/llm)`.
        Under a stop it takes no further step: what it has done stays done, such as a cordon, and it goes
        on, or a person is asked, after somebody resumes."""
        # Approved plans are not listed: they wait at `objections`, and leave nothing half-way.
        rows = self._store.incidents([_S.ACTING, _S.UNDOING])
        return [_left(self._store.incident(row.id)) for row in reversed(rows)]

    def resume(self, by: Person) -> GateAnswer:
        """Lets actions start again. Needs an approver: lifting a stop is a decision to act."""
        if not (allowed := may(by, Permission.RESUME)):
            return GateAnswer(False, allowed.reason)
        if not self.halted().halted:
            return GateAnswer(True, "Nothing was halted.")
        with self._store.database.write() as connection:
            _set_halt(connection, Halt(False, by.identity, "", self._clock.now_s()), by)
        return GateAnswer(True, "Resumed: approved actions continue, each after its checks.", True)

    # Rows -------------------------------------------------------------------------------------------------------

    def _record(self, incident: Incident, approval: Approval) -> None:
        """The first of two approvals: a row and a new version, so that of two at once one has to look again."""
        with self._store.database.write() as connection:
            self._store.touch(connection, incident)
            self._insert(connection, number_of(incident.id), approval)

    def _insert(self, connection: Connection, number: int, approval: Approval) -> None:
        groups = None if approval.groups is None else json.dumps(approval.groups)
        row = {"incident": number, **asdict(approval), "groups": groups}
        same = (
            (approvals.c.incident == number)
            & (approvals.c.plan_sha256 == approval.plan_sha256)
            & (approvals.c.person == approval.person)
        )
        # Approved again after it expired: the newer one takes its place, with the role that the person has now.
        connection.execute(sa.delete(approvals).where(same))
        connection.execute(sa.insert(approvals).values(row))
        audit.append(
            connection,
            at_s=approval.at_s,
            kind="approval",
            by=approval.person,
            incident=number,
            body=asdict(approval),
        )

    def _note_refusal(self, incident_id: str, what: str, by: Person, plan_sha256: str, why: str) -> None:
        body = {"what": what, "plan_sha256": plan_sha256[:64], "role": by.role, "channel": by.channel, "why": why}
        with self._store.database.write() as connection:
            audit.append(
                connection,
                at_s=self._clock.now_s(),
                kind="refused",
                by=by.identity,
                incident=number_of(incident_id),
                body=body,
            )


def halt_of(connection: Connection) -> Halt:
    """The emergency stop as a transaction sees it; after a resume, by whom and when."""
    body = connection.execute(sa.select(controls.c.body).where(controls.c.name == "halt")).scalar()
    return Halt(False) if body is None else load(Halt, body)


def _set_halt(connection: Connection, state: Halt, by: Person) -> None:
    row = {"at_s": state.at_s, "by": state.by, "body": dump(state)}
    known = connection.execute(sa.update(controls).where(controls.c.name == "halt").values(row)).rowcount
    if not known:
        connection.execute(sa.insert(controls).values(name="halt", **row))
    body = asdict(state) | {"channel": by.channel, "role": by.role}
    kind = "halted" if state.halted else "resumed"
    audit.append(connection, at_s=state.at_s, kind=kind, by=state.by, incident=None, body=body)


def _is_plan(action: Action | None, plan_sha256: str) -> bool:
    return action is not None and action.plan_sha256 == plan_sha256


def _left(incident: Incident) -> str:
    """An incident whose action a stop holds, with what that may leave standing still."""
    action = incident.action
    if action is None:
        return incident.id
    undo = "undoing " if incident.state is _S.UNDOING else ""
    said = f"{undo}{action.kind.replace('_', ' ')} of {action.target}"
    jobs = action.blast_radius.jobs
    if traits_of(action.kind).stops_jobs and jobs and not undo:
        more = f" and {len(jobs) - _NAMED} more jobs" if len(jobs) > _NAMED else ""
        said += f"; stays stopped: {', '.join(jobs[:_NAMED])}{more}"
    return f"{incident.id} ({said})"


def _words(state: IncidentState) -> str:
    return state.value.replace("_", " ")


def _halted(halt: Halt) -> str:
    return f"Halted by {halt.by}" + (f" ({halt.reason})" if halt.reason else "")
