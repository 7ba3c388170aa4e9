"""What each stage of an incident does: decides from what is stored and what the world says, acts, stores what came.

A stage may be run again from its start at any moment (a crash, a new leader, a retry). So none of them remembers:
each begins by reading the incident, and where an intent is stored, by reading the world. An action is carried out
only after its intent is on disk, and only once per action id.

    open        diagnose     a diagnosis is stored
    diagnosed   plan         a plan is proposed, or the reason why there is none
    approved    act          checks again, stores the intent, carries out, stores the outcome
    acting      act          after a crash: reads the world first
    confirming  confirm      the detector is clear and stayed clear; the probe agrees
    undoing     undo         takes the action back
    escalated   look         where an outcome is unknown: reads what the world says of it by now
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType

from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Connection

from nightshift import spans
from nightshift.agent.approvals.gate import Gate
from nightshift.agent.approvals.policy import rule_for
from nightshift.agent.clock import Clock
from nightshift.agent.correlation.silent_faults import is_unrepaired, open_findings
from nightshift.agent.incidents.breaker import Breaker
from nightshift.agent.incidents.node_return import LOOK_AGAIN_S, GivingBack, stays
from nightshift.agent.incidents.renewal import called_for
from nightshift.agent.incidents.vendor_evidence import VendorEvidence
from nightshift.agent.store.diagnosis import Diagnosis
from nightshift.agent.store.incident import Cause, Incident, IncidentState, half_done, world_says
from nightshift.agent.store.incident_store import IncidentMove, Store, number_of
from nightshift.agent.store.intents import commitments, end_intent, has_intent, store_intent
from nightshift.collectors.base import Permanent, Temporary
from nightshift.controllers.action import (
    Action,
    ActionKind,
    ActionOutcome,
    ActionProposal,
    Actuator,
    ApprovalRule,
    OutcomeStatus,
    UnderWay,
    one_look,
    traits_of,
)
from nightshift.controllers.guard import Commitment, GuardRuling
from nightshift.detectors.alarms.lanes import doubtful
from nightshift.detectors.base import State

# Told after so long (s), and again at twice as long each time: more notes would bury the incident's history.
FIRST_NOTE_S = 300.0


def note_waiting(store: Store, incident: Incident, reason: str, waited_s: float, by: str) -> None:
    """Notes in the incident's own history what a begun action has waited for (s), where that is due.

    A drain that a disruption budget holds up is no failure and nothing is tried harder for it; but whoever approved
    it should not first hear of it when `act_timeout_s` is over."""
    told = sum(step.cause == Cause.UNDER_WAY and step.at_s >= incident.entered_s for step in incident.history)
    if waited_s >= FIRST_NOTE_S * 2**told:
        store.remark(incident, Cause.UNDER_WAY, by, f"{waiting_word(incident)} for {waited_s:.0f} s: {reason}")


def waiting_word(incident: Incident) -> str:
    """What an action does while the world gives no answer: an approved one has not begun."""
    return "waiting" if incident.state is IncidentState.APPROVED else "running"


def cut_off(
    action: Action,
    actuator: Actuator,
    reason: str,
    now_s: float,
    status_of: Mapping[OutcomeStatus, OutcomeStatus] = MappingProxyType({}),
    otherwise: OutcomeStatus = OutcomeStatus.UNKNOWN,
) -> ActionOutcome:
    """What becomes of an action that is given up: where it reads back as begun and not done, a person has to look
    at what it leaves; else what `status_of` makes of what was read, or `otherwise`."""
    # it may be out of reach, which is perhaps why it is given up: what it left is unknown then
    with suppress(Temporary, Permanent):
        found = actuator.read(action)
        if found.status is OutcomeStatus.UNDER_WAY:
            # whoever takes over must know that the node takes no work, though the action failed
            if found.observed.get("cordoned") == "true" and "stays cordoned" not in reason:
                reason += "; the node stays cordoned"
            return ActionOutcome(OutcomeStatus.UNKNOWN, f"left half-way: {found.detail}; {reason}", now_s)
        otherwise = status_of.get(found.status, otherwise)
    return ActionOutcome(otherwise, reason, now_s)


# Wait before a stage's second try; it doubles each time.
RETRY_S = 5.0
# Longest wait between two tries of a stage: an API server that is back is used within it.
RETRY_MAX_S = 300.0
# Longest wait between two looks at a world that gives no answer to an action under way.
LONGEST_WAIT_S = 60.0
# Longest wait between two looks at an action that waits for the same all the while: a look is some requests.
LONGEST_PACE_S = 120.0
_TIMES = re.compile(r"\d+ s\b")
"""Times in what an action waits for: they alone are no progress."""
# Stages that run at the same time. They wait for other systems, and the guard limits actions anyhow.
WORKERS = 4
# Most plans for one incident before a person must take over: a ladder has three rungs.
MAX_PLANS = 5
# Tries of one stage before the incident is escalated: with the waits above, two and a half minutes.
MAX_TRIES = 5


class LifecycleSettings(BaseModel):
    """Settings of the incident's way. Times are in the daemon's clock."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    quiet_s: float = Field(
        default=120.0,
        ge=0,
        description="How long every finding must stay clear before the incident is resolved (s).",
    )
    confirm_timeout_s: float = Field(
        default=1800.0, gt=0, description="After an action, how long to wait for recovery before undoing it."
    )
    act_timeout_s: float = Field(
        default=3600.0,
        gt=0,
        description="A drain, restart or reboot that still runs after this is escalated to a person (s).",
    )


Diagnose = Callable[[Incident], Diagnosis]
"""Finds the cause of an incident. May raise Temporary or Permanent."""
Planner = Callable[[Incident], ActionProposal]
"""Chooses the least disruptive fitting mitigation, with a new action id for each `incident.attempt`."""
RecoveryProbe = Callable[[Incident], ActionOutcome]
"""Actively tests that the action worked: DONE where it did, FAILED where not; UnderWay to be asked again."""
ActionGuard = Callable[[Action, Sequence[Commitment]], GuardRuling]
"""Whether an action may begin now, given those that have: asked in the transaction that stores the intent."""


@dataclass(frozen=True)
class StageParts:
    """What the stages work with; built once in `agent.app`."""

    store: Store
    gate: Gate
    clock: Clock
    diagnose: Diagnose
    plan: Planner
    actuator_for: Callable[[Incident], Actuator]
    settings: LifecycleSettings
    probe: RecoveryProbe | None = None
    guard: ActionGuard | None = None
    breaker: Breaker | None = None
    evidence: VendorEvidence | None = None
    not_earned: Callable[[Action], str] | None = None
    """Why a kind that is automatic by policy has not earned it yet; empty where it has."""
    giving_back: GivingBack | None = None
    """When a node that we cordoned or drained is given back; None: it is left to people, and nobody is told."""


_S, _C, _O = IncidentState, Cause, OutcomeStatus


class Stage(StrEnum):
    DIAGNOSE = "diagnose"
    PLAN = "plan"
    ACT = "act"
    CONFIRM = "confirm"
    UNDO = "undo"
    LOOK = "look"


STAGE_OF = {
    _S.OPEN: Stage.DIAGNOSE,
    _S.DIAGNOSED: Stage.PLAN,
    _S.APPROVED: Stage.ACT,
    _S.ACTING: Stage.ACT,
    _S.CONFIRMING: Stage.CONFIRM,
    _S.UNDOING: Stage.UNDO,
    _S.ESCALATED: Stage.LOOK,
}
"""The stage that an incident in a state needs; in the other states it waits for a person or for the signals. Of
those escalated, only one whose outcome is unknown has a stage."""

WORLD_WORDS = {
    ("act", _O.DONE): "succeeded",
    ("act", _O.UNDER_WAY): "running",
    ("act", _O.NOT_DONE): "not started",
    ("undo", _O.DONE): "not taken back",
    ("undo", _O.UNDER_WAY): "half taken back",
    ("undo", _O.NOT_DONE): "taken back",
}
"""What the world says of an action, or of taking it back, once its outcome was unknown."""
_KNOWN_BY_NOW = {
    ("act", _O.DONE): _O.DONE,
    ("act", _O.NOT_DONE): _O.NOT_DONE,
    ("undo", _O.NOT_DONE): _O.DONE,
}
"""The outcome that such an answer is. The guard and the ladder count by it."""

ACTS_ON_THE_WORLD = frozenset({Stage.ACT, Stage.UNDO})
_MAY_BE_IN_VAIN = frozenset({_S.ACTING, _S.CONFIRMING, _S.UNDOING})
_WAITS_FOR_THE_WORLD = frozenset({_S.APPROVED, _S.ACTING, _S.CONFIRMING, _S.UNDOING})
"""States in which a failure that may pass is waited for: a person has approved, or something has begun."""


class NotAllowedToAct(Exception):
    """This replica no longer leads, or people have halted: the stage stops before it touches the world."""


class Later(Exception):
    """The stage is right but not now; it is run again at `at_s`, which does not count as a try."""

    def __init__(self, reason: str, at_s: float) -> None:
        super().__init__(reason)
        self.at_s = at_s


class _Stopped(Exception):
    """Nightshift stops itself: the reason."""


class _Refused(Exception):
    def __init__(self, ruling: GuardRuling) -> None:
        super().__init__(ruling.reason)
        self.ruling = ruling


class Stages:
    """Runs one stage of one incident. `may_act` says whether this replica still leads."""

    def __init__(self, parts: StageParts, may_act: Callable[[], bool], runner: str) -> None:
        self._parts = parts
        self._store = parts.store
        self._may_act = may_act
        self._runner = runner
        self._paces: dict[str, tuple[str, float, float]] = {}
        """By incident: what its action waited for at the last look, for how long it was then left alone (s), and
        when that look was (s). A hint: without it the next look is soon."""

    def run(self, incident: Incident) -> None:
        """Runs the stage that the incident's state needs and stores its result.

        Raises Temporary where another try may help, Permanent where not, Later or NotAllowedToAct where it has to
        wait. Nothing is half-done in any case.
        """
        pace = self._paces.pop(incident.id, ("", 0.0, 0.0))
        try:
            self._run(incident)
        except Temporary as error:
            at = self._store.incident(incident.id)  # an act that stored its intent is in another state than it was
            if at.state not in _WAITS_FOR_THE_WORLD:
                raise
            self._wait(at, error, pace)

    def _wait(self, incident: Incident, error: Temporary, pace: tuple[str, float, float]) -> None:
        """Raises Later while the incident's state may wait for the world, Permanent after that.

        From an approval on, a failure that may pass is never counted as a try: an API server that is away for ten
        minutes would else leave nodes cordoned and jobs stopped, half-way through a plan that can still be kept."""
        settings, now_s = self._parts.settings, self._now()
        # by looks, not by the clock: one that jumps, or an emergency stop, would end what still works
        waited_s = self._store.position(number_of(incident.id)).waited_s
        limit_s = settings.act_timeout_s
        if incident.state is _S.CONFIRMING:  # the stage itself ends it first: this bounds a store that is away
            limit_s = settings.confirm_timeout_s + RETRY_MAX_S
        if waited_s >= limit_s:
            raise Permanent(f"still {waiting_word(incident)} after {waited_s:.0f} s: {error}") from error
        note_waiting(self._store, incident, str(error), waited_s, self._runner)
        # whatever stays as it is, is looked at the more rarely the longer it lasts
        wait_s = min(max(RETRY_S, waited_s / 4), LONGEST_WAIT_S)
        if isinstance(error, UnderWay):
            words, before_s = _TIMES.sub("", str(error)), pace[1]
            wait_s = min(2 * before_s, LONGEST_PACE_S) if words == pace[0] else RETRY_S
            # of others, only what is looked at again: a wait that a person or another replica ended never is
            kept = {of: last for of, last in list(self._paces.items()) if abs(now_s - last[2]) <= RETRY_MAX_S}
            self._paces = {**kept, incident.id: (words, wait_s, now_s)}
        raise Later(str(error), now_s + max(wait_s, error.retry_after_s or 0.0)) from error

    def _run(self, incident: Incident) -> None:
        match STAGE_OF[incident.state]:
            case Stage.DIAGNOSE:
                self._store.save_diagnosis(incident, self._parts.diagnose(incident), by=Stage.DIAGNOSE)
            case Stage.PLAN:
                self._plan(incident)
            case Stage.ACT:
                self._act(incident)
            case Stage.CONFIRM:
                self._confirm(incident)
            case Stage.UNDO:
                self._undo(incident)
            case Stage.LOOK:
                self._look(incident)

    def _move(
        self,
        incident: Incident,
        cause: Cause,
        note: str,
        also: Callable[[Connection, int], None] | None = None,
    ) -> None:
        by = STAGE_OF[incident.state]
        self._store.change(incident.id, IncidentMove(cause, by, note, incident.version), also)
        if self._parts.breaker is not None and incident.state in _MAY_BE_IN_VAIN:
            self._parts.breaker.turn()

    def abandon(self, incident: Incident, reason: str) -> None:
        """Escalates an incident whose stage cannot go on; if an act was begun, with what the world says of it."""
        if incident.state not in (_S.ACTING, _S.UNDOING):
            self._move(incident, _C.STAGE_FAILED, reason)
            return
        action = _plan_of(incident)
        if incident.state is _S.UNDOING:
            self._conclude_undo(incident, action, ActionOutcome(_O.UNKNOWN, reason, self._now()))
            return
        actuator = self._parts.actuator_for(incident)
        outcome = cut_off(action, actuator, reason, self._now(), {_O.NOT_DONE: _O.FAILED})
        self._conclude(incident, action, outcome)

    # Plan -------------------------------------------------------------------------------------------------------

    def _plan(self, incident: Incident) -> None:
        giving = self._parts.giving_back
        if giving is not None and giving.is_due(incident):
            self._plan_return(incident, giving)
            return
        if incident.attempt >= MAX_PLANS:
            self._move(incident, _C.GUARD_REFUSED, f"{incident.attempt} plans were made; a person must take over")
            return
        proposal = self._parts.plan(incident)
        if proposal.action is not None and (gone := self._vanished(incident, proposal.action)):
            self._move(incident, _C.GUARD_REFUSED, f"{proposal.action.kind} is not proposed: {'; '.join(gone)}")
        elif proposal.action is not None:
            rule, reason = rule_for(proposal.action, self._parts.gate.policy), proposal.reason
            if rule is ApprovalRule.AUTOMATIC and (why := self._not_by_itself(incident, proposal.action)):
                rule, reason = ApprovalRule.ONE, f"{reason}. A person decides, since {why}"
            self._store.save_plan(incident, proposal.action, reason, by=Stage.PLAN, rule=rule)
        elif proposal.outdated:
            self._move(incident, _C.NEW_EVIDENCE, proposal.reason)
        elif proposal.refused:
            self._move(incident, _C.GUARD_REFUSED, proposal.reason)
        else:
            self._move(incident, _C.NO_PLAN, proposal.reason)

    def _not_by_itself(self, incident: Incident, action: Action) -> str:
        """Why a plan that policy lets run automatically needs a person all the same; empty where it does not."""
        if doubtful(stored.finding for stored in incident.findings):
            return "too many alarms as strong as its own are false"
        # policy allows it, but the record of such plans may not do so yet
        return self._parts.not_earned(action) if self._parts.not_earned is not None else ""

    def _vanished(self, incident: Incident, action: Action) -> list[str]:
        """What a plan names that is gone, or another object of its name by now. Raises Later for a minute: what we
        know of the cluster lags behind it. While the world gives no answer, nothing is known to be gone."""
        same = tuple(condition for condition in action.preconditions if condition.fact == "uid")
        gone: list[str] = []
        with suppress(Temporary, Permanent):
            actuator = self._parts.actuator_for(replace(incident, action=action))
            gone = actuator.changed(replace(action, preconditions=same)) if same else []
        if gone and self._now() - incident.entered_s < LONGEST_WAIT_S:
            raise Later("; ".join(gone), self._now() + RETRY_S)
        return gone

    def _plan_return(self, incident: Incident, giving: GivingBack) -> None:
        """Proposes to give the node back; waits while it may not be; ends where nothing of ours is out of use."""
        standing = giving.standing(number_of(incident.id))
        if not standing or not giving.offered() or incident.attempt >= MAX_PLANS:
            self._move(incident, _C.CLEARED_BY_ITSELF, f"every finding is clear{stays(standing)}")
            return
        node, action = standing[-1].target, giving.plan(incident, standing)
        actuator = self._parts.actuator_for(replace(incident, action=action))
        if action.kind not in actuator.kinds():  # a drill's
            self._move(incident, _C.CLEARED_BY_ITSELF, f"every finding is clear{stays(standing)}")
            return
        if any(item.state is State.FIRING for item in incident.findings):
            self._move(incident, _C.CONTAINMENT_KEPT, f"the fault is back; {node.name} stays cordoned")
            return
        if hindrances := giving.hindrances(incident, node):
            raise Later("; ".join(hindrances), self._now() + LOOK_AGAIN_S)
        left = self._left_alone(action)
        if left is not None and left.retry_at_s is not None:
            raise Later(left.reason, left.retry_at_s)
        if changed := [*actuator.changed(action), *([left.reason] if left else [])]:
            told = f"every finding is clear; {node.name} is not given back by us: {'; '.join(changed)}"
            self._move(incident, _C.CLEARED_BY_ITSELF, told)
            return
        rule = rule_for(action, self._parts.gate.policy)
        self._store.save_plan(incident, action, action.why, by=Stage.PLAN, rule=rule)

    # Act --------------------------------------------------------------------------------------------------------

    def _act(self, incident: Incident) -> None:
        actuator = self._parts.actuator_for(incident)
        with one_look(actuator):
            self._act_by(incident, actuator)

    def _act_by(self, incident: Incident, actuator: Actuator) -> None:
        action = _plan_of(incident)
        if incident.state is _S.APPROVED:
            if not self._still_right(incident, action, actuator):
                return
            self._stop_unless_allowed()
            if not self._intend(incident, action):
                return
            # its version and the time of entry are of the state ACTING now
            incident = self._store.incident(incident.id)
        elif not self._goes_on(incident, action, actuator):
            return
        self._collect_evidence(incident, action)
        self._stop_unless_allowed()
        try:
            with _span("execute", action):
                outcome = actuator.execute(action)
        except Temporary as error:
            outcome = self._interrupted(action, actuator, error)
        except Permanent as error:
            outcome = cut_off(action, actuator, str(error), self._now(), {}, _O.REFUSED)
        self._conclude(incident, action, outcome)

    def _collect_evidence(self, incident: Incident, action: Action) -> None:
        """Has what the vendor asks for collected. Raises Later meanwhile, at a pace of its own: it has a minute."""
        if self._parts.evidence is not None:
            try:
                self._parts.evidence.collect(incident, action, self._runner)
            except UnderWay as error:
                raise Later(str(error), self._now()) from error

    def _goes_on(self, incident: Incident, action: Action, actuator: Actuator) -> bool:
        """Whether to carry out an action whose intent is older than this run; False where it ended instead."""
        outcome = actuator.read(action)
        if outcome.status is _O.NOT_DONE:
            return self._still_right(incident, action, actuator)
        if outcome.status is _O.UNDER_WAY:
            hindrances = self._hindrances(incident, action, begun=True)
            if not hindrances:
                return True  # its own effects break its preconditions by now, and half of it is worse than all
            outcome = ActionOutcome(_O.REFUSED, "; ".join(hindrances), self._now())
        self._conclude(incident, action, outcome)
        return False

    def _interrupted(self, action: Action, actuator: Actuator, error: Temporary) -> ActionOutcome:
        """What became of an action whose answer was lost. Raises the error while it may go on or has not begun."""
        if isinstance(error, UnderWay):
            raise error
        outcome = actuator.read(action)
        if outcome.status in (_O.NOT_DONE, _O.UNDER_WAY):
            raise error
        return outcome

    def _intend(self, incident: Incident, action: Action) -> bool:
        """Stores the intent if the guard allows it, both in one transaction. False where it was refused."""

        def store(connection: Connection, number: int) -> None:
            # in the transaction of the intent: two actions that fit alone and not together cannot both pass
            begun = commitments(connection, before_an_intent=True)
            if self._parts.breaker is not None and (why := self._parts.breaker.objection(connection, action)):
                raise _Stopped(why)
            ruling = self._parts.guard(action, begun) if self._parts.guard is not None else None
            if ruling is not None and not ruling.allowed:
                raise _Refused(ruling)
            store_intent(connection, number, action, "act", self._now(), self._runner)

        try:
            self._move(incident, _C.INTENT_STORED, f"{action.kind} {action.target} as {action.id}", store)
        except _Stopped as stopped:
            assert self._parts.breaker is not None
            self._parts.breaker.trip(str(stopped))
            raise NotAllowedToAct(str(stopped)) from stopped
        except _Refused as refused:
            if refused.ruling.retry_at_s is not None:
                raise Later(refused.ruling.reason, refused.ruling.retry_at_s) from refused
            self._move(incident, _C.GUARD_REFUSED, refused.ruling.reason)
            return False
        return True

    def _still_right(self, incident: Incident, action: Action, actuator: Actuator) -> bool:
        """Asks again, right before acting: approval, expiry, preconditions. False where it moved instead."""
        objections = self._parts.gate.objections(incident)
        if not objections:  # a withdrawn or expired approval ends it though the world gives no answer
            objections = [(_C.WORLD_CHANGED, sentence) for sentence in actuator.changed(action)]
        if action.kind is ActionKind.RETURN_NODE:
            objections += [(_C.WORLD_CHANGED, sentence) for sentence in self._hindrances(incident, action)]
        elif incident.clear_since_s is not None and not is_unrepaired(incident):
            objections.append((_C.WORLD_CHANGED, "every finding has become clear since the plan was made"))
        if objections:
            reason = "; ".join(sentence for _, sentence in objections)
            # an intent that came to nothing has ended, or the guard would count its node as out of use for ever
            ended = ActionOutcome(_O.NOT_DONE, reason, self._now()) if incident.state is _S.ACTING else None
            also = (lambda c, n: end_intent(c, n, action, "act", ended)) if ended else None
            self._move(incident, objections[0][0], reason, also)
        return not objections

    def _hindrances(self, incident: Incident, action: Action, *, begun: bool = False) -> list[str]:
        """Why a node may not be given back, as of now; empty for every other action. Once begun, a place that has
        been put into maintenance or has opted out meanwhile is one; before, the guard is asked with the intent."""
        if action.kind is not ActionKind.RETURN_NODE:
            return []
        if self._parts.giving_back is None:
            return ["no configured actuator can return nodes to service"]
        found = self._parts.giving_back.hindrances(self._store.incident(incident.id), action.target)
        left = self._left_alone(action) if begun else None
        return found + ([left.reason] if left else [])

    def _left_alone(self, action: Action) -> GuardRuling | None:
        """The guard's no whatever else is under way: maintenance, or an opt-out; None where it says none."""
        ruling = self._parts.guard(action, ()) if self._parts.guard is not None else None
        return None if ruling is None or ruling.allowed else ruling

    def _stop_unless_allowed(self) -> None:
        if not self._may_act():
            raise NotAllowedToAct("another replica is the leader now")
        halt = self._parts.gate.halted()
        if halt.halted:
            raise NotAllowedToAct(f"halted by {halt.by}")

    def _conclude(self, incident: Incident, action: Action, outcome: ActionOutcome) -> None:
        done = {_O.DONE: _C.ACTION_DONE, _O.ALREADY_DONE: _C.ACTION_DONE, _O.UNKNOWN: _C.OUTCOME_UNKNOWN}
        # these failed, but the node takes no work: escalated for good, not until the signals are clear
        kept = outcome.left_cordoned or action.kind is ActionKind.RETURN_NODE
        failed = _C.CONTAINMENT_KEPT if kept else _C.ACTION_FAILED
        cause = done.get(outcome.status, failed)
        self._move(incident, cause, outcome.detail, lambda c, n: end_intent(c, n, action, "act", outcome))

    # Confirm ----------------------------------------------------------------------------------------------------

    def _confirm(self, incident: Incident) -> None:
        settings, action = self._parts.settings, _plan_of(incident)
        quiet_since, for_s = quiet_since_s(incident), self._now() - incident.entered_s
        if quiet_since is not None and self._now() - quiet_since >= settings.quiet_s:
            self._confirm_quiet(incident, action, self._now() - quiet_since)
        elif action.kind is ActionKind.RETURN_NODE and any(f.state is State.FIRING for f in incident.findings):
            self._move(incident, _C.NEW_EVIDENCE, f"the fault is back since {action.target.name} was given back")
        elif for_s >= settings.confirm_timeout_s:
            self._not_confirmed(
                incident, action, f"not recovered {settings.confirm_timeout_s:.0f} s after the action"
            )
        elif incident.news:
            self._take_up_news(incident, action)

    def _confirm_quiet(self, incident: Incident, action: Action, for_s: float) -> None:
        """Ends a confirmation whose findings have all been clear for long enough."""
        # What is open though all are clear is a fatal Xid since the action. Its silence proves nothing: a GPU that
        # fell off the bus logs that once. Only what the action keeps out of use may go on failing there.
        contained = action.named if traits_of(action.kind).contains else frozenset()
        if any(finding.subject not in contained for finding in open_findings(incident)):
            note = f"a fatal Xid since {action.kind} of {action.target} fell silent without a repair"
            self._move(incident, _C.NEW_EVIDENCE, note)
            return
        proof = f"every finding has been clear for {for_s:.0f} s"
        tested = self._tested(incident)
        if tested.status in (_O.DONE, _O.ALREADY_DONE):
            cause, left = self._recovered(incident)
            self._move(incident, cause, proof + (f"; {tested.detail}" if tested.detail else "") + left)
        else:
            self._not_confirmed(incident, action, f"{proof}, but the probe says: {tested.detail}")

    def _tested(self, incident: Incident) -> ActionOutcome:
        """What the probe says; DONE where there is none. Raises Temporary while it may still answer."""
        if self._parts.probe is None:
            return ActionOutcome(_O.DONE, "", self._now())
        try:
            return self._parts.probe(incident)
        except Temporary as error:
            if self._now() - incident.entered_s < self._parts.settings.confirm_timeout_s:
                raise
            return ActionOutcome(_O.FAILED, str(error), self._now())

    def _not_confirmed(self, incident: Incident, action: Action, why: str) -> None:
        if traits_of(action.kind).contains:  # taking it back would put the fault back to work
            self._move(incident, _C.CONTAINMENT_KEPT, f"{why}; {action.kind} of {action.target} stays in place")
        else:
            self._move(incident, _C.NOT_CONFIRMED, why)

    def _recovered(self, incident: Incident) -> tuple[Cause, str]:
        """Over, and what it leaves behind; or what is next is giving the node back."""
        giving = self._parts.giving_back
        standing = giving.standing(number_of(incident.id)) if giving is not None else []
        if giving is None or not standing or not giving.offered():
            return _C.CONFIRMED, stays(standing)
        more = incident.attempt < MAX_PLANS
        return (_C.RETURN_DUE, "") if more else (_C.CONFIRMED, stays(standing))

    def _take_up_news(self, incident: Incident, action: Action) -> None:
        """Diagnose again with what came after the action. The confirmation ends only if the new diagnosis calls for
        another action: it names another cause, place or repair. A cordon leaves jobs alone, so after one a job that
        suffers since then may call for another action as well."""
        before, told = incident.diagnosis, self._parts.diagnose(incident)
        if before is None or called_for(told) != called_for(before) or action.kind is ActionKind.CORDON:
            wanted = self._parts.plan(replace(incident, diagnosis=told)).action
            if wanted is not None and (wanted.kind, wanted.target) != (action.kind, action.target):
                note = (
                    f"what came after {action.kind} of {action.target} calls for {wanted.kind} of {wanted.target}"
                )
                self._move(incident, _C.NEW_EVIDENCE, note)
                return
        # the probe proves recovery by the facts of the place that was acted on
        moved = before is not None and told.facts.get("subject") != before.facts.get("subject")
        self._store.learn(incident, None if moved else told, by=Stage.CONFIRM)

    # Undo -------------------------------------------------------------------------------------------------------

    def _undo(self, incident: Incident) -> None:
        action = _plan_of(incident)
        if not action.undo.possible:
            self._move(incident, _C.ACTION_FAILED, f"cannot be undone: {action.undo.how}")
            return
        actuator = self._parts.actuator_for(incident)
        # an earlier run meant to take it back and may have: asked of the world, or it would be done twice
        if has_intent(self._store.database, action, "undo"):
            outcome = actuator.read(action)
            if outcome.status is _O.NOT_DONE:  # the action is gone, so it was taken back
                self._conclude_undo(incident, action, replace(outcome, status=_O.DONE))
                return
            if outcome.status is _O.UNKNOWN:
                self._conclude_undo(incident, action, outcome)
                return
        self._stop_unless_allowed()
        with self._store.database.write() as connection:
            store_intent(connection, number_of(incident.id), action, "undo", self._now(), self._runner)
        try:
            with _span("undo", action):
                outcome = actuator.undo(action)
        except Temporary:
            outcome = actuator.read(action)
            if outcome.status is not _O.NOT_DONE:
                raise
            # the answer was lost, but the world shows no trace of the action: it was taken back
            outcome = replace(outcome, status=_O.DONE)
        except Permanent as error:
            outcome = ActionOutcome(_O.REFUSED, str(error), self._now())
        self._conclude_undo(incident, action, outcome)

    def _conclude_undo(self, incident: Incident, action: Action, outcome: ActionOutcome) -> None:
        done = {_O.DONE: _C.UNDONE, _O.ALREADY_DONE: _C.UNDONE, _O.UNKNOWN: _C.OUTCOME_UNKNOWN}
        cause = done.get(outcome.status, _C.ACTION_FAILED)
        self._move(incident, cause, outcome.detail, lambda c, n: end_intent(c, n, action, "undo", outcome))

    # Look -------------------------------------------------------------------------------------------------------

    def _look(self, incident: Incident) -> None:
        """Notes what the world says of an action whose outcome is unknown, where that is news. Always raises Later:
        what is done about it, a person decides."""
        with suppress(Temporary, Permanent):
            action = _plan_of(incident)
            found, phase = self._parts.actuator_for(incident).read(action), half_done(incident)
            words, known = WORLD_WORDS.get((phase, found.status), ""), _KNOWN_BY_NOW.get((phase, found.status))
            if words and not world_says(incident).startswith(words):
                note = f"{words}: {action.kind} of {action.target} ({found.detail})"
                outcome = replace(found, status=known or _O.UNKNOWN)
                self._store.remark(
                    incident, _C.WORLD_READ, Stage.LOOK, note, lambda c, n: end_intent(c, n, action, phase, outcome)
                )
        waited_s = self._store.position(number_of(incident.id)).waited_s
        raise Later("looked", self._now() + min(max(LONGEST_WAIT_S, waited_s / 4), RETRY_MAX_S))

    def _now(self) -> float:
        return self._parts.clock.now_s()


def quiet_since_s(incident: Incident) -> float | None:
    """Since when a confirming incident is quiet: all clear, and counted from after the action. None: it is not."""
    return None if incident.clear_since_s is None else max(incident.clear_since_s, incident.entered_s)


def _span(verb: str, action: Action) -> AbstractContextManager[spans.Span]:
    named = {"nightshift.action": action.id, "nightshift.target": str(action.target)}
    return spans.span(f"{verb} {action.kind}", named, waits=(UnderWay,))


def _plan_of(incident: Incident) -> Action:
    if incident.action is None:
        raise Permanent(f"{incident.id} is {incident.state} without a plan")
    return incident.action
