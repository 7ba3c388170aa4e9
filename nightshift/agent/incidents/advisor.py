"""Answers the lifecycle's two questions about an incident: what is the cause, and what should be done?

Gathers the evidence, lets the rules diagnose, turns the diagnosis into a situation, lets the catalogue choose, and
asks the guard. Changes nothing: what it answers is stored, shown, approved and carried out elsewhere.

The remedy is the least disruptive that fits of a fixed catalogue. The list per cause holds only what can repair
that cause, mildest first; each playbook says whether it fits, and every refusal is kept, so that the plan can say
why nothing milder was chosen. Where nothing fits, the owner is told. Free text never becomes an action: a cause is
a `Fault`, an action a playbook's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from nightshift.agent.approvals.visibility import IncidentWindow
from nightshift.agent.correlation.kinship import APPLICATION_XIDS, FOLLOWER_XIDS, first_cause
from nightshift.agent.correlation.silent_faults import is_unrepaired, open_findings
from nightshift.agent.rca.briefing import ROOM_TOKENS, Brief, brief, deciding_lines, first_room, names_of
from nightshift.agent.rca.bundle import Bundle, EvidenceLimits, PastIncident, as_it_is
from nightshift.agent.rca.evidence import gather
from nightshift.agent.rca.grounding import reground
from nightshift.agent.rca.investigate import PROMPT_TOKENS_SHARE, Allowance, Investigator, ModelSpending, Stream
from nightshift.agent.rca.log_stores import LogStores
from nightshift.agent.rca.lookup import Lookup, RangeQuery
from nightshift.agent.rca.question import NO_MODEL, Briefing, answered, named, without_model
from nightshift.agent.rca.rules import RECOVERY_FACTS, diagnose, fault_of, recovery_facts
from nightshift.agent.rca.runbooks import Runbooks
from nightshift.agent.rca.targets import at_issue, objection
from nightshift.agent.rca.tool_servers import ToolServers
from nightshift.agent.store.diagnosis import Answer, Confidence, Diagnosis, Reading
from nightshift.agent.store.incident import Incident, IncidentState, entered_s, findings_of, plan_name
from nightshift.collectors.frame import LogRecord
from nightshift.collectors.history import History
from nightshift.collectors.slurm import SLURM
from nightshift.collectors.subject import SITE, Inventory, Subject, SubjectKind
from nightshift.controllers.action import KINDS, Action, ActionKind, ActionProposal, Playbook, Situation
from nightshift.controllers.guard import Commitment, GuardRuling, rule
from nightshift.controllers.guard import Settings as GuardSettings
from nightshift.controllers.playbooks.ladder import RepairLadder, record_of, rung
from nightshift.controllers.playbooks.plan import number, place_of
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
# A step this long after a crash (s) was made by the job that came back; a sooner one may have been on its way.
BACK_AFTER_S = 20.0


@dataclass(frozen=True)
class RemedyChoice:
    """The proposal, and what was considered before it with the reason against it."""

    proposal: ActionProposal
    considered: tuple[tuple[ActionKind, str], ...] = ()


def choose(
    situation: Situation,
    playbooks: Sequence[Playbook],
    can: frozenset[ActionKind] | None = None,
    objection: Callable[[Action], str] = lambda _: "",
) -> RemedyChoice:
    """The remedy for a situation. `can` are the kinds that some actuator carries out (None: all of them);
    `objection` says why a proposed action does not fit the evidence, empty where it does."""
    by_kind = {playbook.kind: playbook for playbook in playbooks}
    considered: list[tuple[ActionKind, str]] = []
    # before any playbook: some would fit by the fault alone
    watch = watched_only(situation)
    if watch is not None:
        return RemedyChoice(ActionProposal(None, watch))
    # last, whatever the cause: advice, and telling the owner
    for kind in (*remedies(situation), _A.SUGGEST_SCALING, _A.NOTIFY_OWNER):
        if kind not in KINDS:
            considered.append((kind, "its effect is unknown"))
        elif kind not in by_kind:
            considered.append((kind, "no playbook for it is installed"))
        elif can is not None and kind not in can:
            considered.append((kind, "no actuator here can do it"))
        else:
            proposal = by_kind[kind].propose(situation)
            reason = proposal.reason if proposal.action is None else objection(proposal.action)
            if proposal.action is not None and not reason:
                return RemedyChoice(proposal, tuple(considered))
            considered.append((kind, reason))
    reasons = "; ".join(f"{kind}: {reason}" for kind, reason in considered)
    return RemedyChoice(ActionProposal(None, f"watched only ({reasons})"), tuple(considered))


def watched_only(situation: Situation) -> str | None:
    """Why nothing at all is to be done, or None. The incident itself tells people; it closes when it is clear."""
    if situation.cause is _F.ANOMALY:
        return "unusual, but no fault is named: watched, nothing is done"
    if situation.cause is _F.SOURCE_LOST:
        return "the cluster's operators restore the source; nothing is done to what it watches"
    if situation.cause is _F.ACTIONS_STOPPED:
        return "a person checks the sources and the last actions, then allows actions again: `nightshift resume`"
    if situation.cause is _F.LEMON:
        return "a person decides: exchange the part between slots, or take the node out of use for its vendor"
    asked = situation.facts.get("recovery_action")
    follows = situation.cause is _F.XID and number(situation, "xid") in FOLLOWER_XIDS
    # what the driver calls for by Xid 154 stands, though the error that it follows was not seen
    if follows and asked not in (_A.RESET_GPU.value, _A.REBOOT_NODE.value):
        return "this Xid only ever follows another error, and none was seen"
    if situation.cause is _F.XID and number(situation, "xid") in APPLICATION_XIDS:
        back_s = number(situation, "last_step_s") - number(situation, "since_s")
        if back_s > BACK_AFTER_S:
            return f"its job recovered automatically: it made steps {back_s:.0f} s after the crash"
    if situation.cause is _F.XID and asked == _A.NONE.value:
        return "NVIDIA's catalogue requires no action"
    return None


def remedies(situation: Situation) -> tuple[ActionKind, ...]:
    """The kinds to try for a situation, mildest fitting first."""
    if situation.cause is _F.XID and number(situation, "xid") in APPLICATION_XIDS:
        return (_A.RESTART_POD, _A.RESTART_JOB)
    # a GPU that cannot remap rows, or whose repairs were all tried, is not repaired by a further reset
    if "remap_failure" in situation.facts or "return" in situation.facts:
        return (_A.REPLACE_NODE, _A.QUARANTINE_GPU, _A.OPEN_RMA)
    return REMEDIES[situation.cause]


@dataclass(frozen=True)
class Advisor:
    """`now_s` is the daemon's clock; `can` the kinds that its actuators carry out, `elsewhere` those on other
    sites than Kubernetes; `begun` the actions that have
    begun; `past` incidents that resemble one."""

    history: History
    inventory: Inventory
    playbooks: Sequence[Playbook]
    can: frozenset[ActionKind] | None
    now_s: Callable[[], float]
    guard_settings: GuardSettings = field(default_factory=GuardSettings)
    begun: Callable[[], Sequence[Commitment]] = list
    past: Callable[[Incident], Iterable[PastIncident]] = lambda _: ()
    rollout: Callable[[Incident], Mapping[str, Any] | None] = lambda _: None
    versions: Callable[[Incident], Sequence[LogRecord]] = lambda _: ()
    limits: EvidenceLimits = field(default_factory=EvidenceLimits)
    ladder: RepairLadder = field(default_factory=RepairLadder)
    redact: Callable[[str], str] | None = None
    investigate: Investigator | None = None
    promql: RangeQuery | None = None
    elsewhere: Mapping[str, frozenset[ActionKind]] = field(default_factory=dict)
    runbooks: Runbooks | None = None
    servers: ToolServers | None = None
    stores: LogStores | None = None

    def diagnose(self, incident: Incident) -> Diagnosis:
        """The rules' diagnosis as of now, with its evidence. A model is asked later, and nothing waits for it."""
        found, open_ = at_issue(incident), open_findings(incident)
        return diagnose(found, self._bundle(incident), self.inventory, open_)

    def _bundle(self, incident: Incident) -> Bundle:
        found, past = at_issue(incident), list(self.past(incident))
        parts = found, self.history, self.inventory, self.now_s(), past, self.limits
        rollout, versions = self.rollout(incident), self.versions(incident)
        return gather(*parts, redact=self.redact, rollout=rollout, versions=versions)

    def brief(self, incident: Incident, characters: int, bundle: Bundle | None = None) -> Brief:
        """The first message of a request about an incident, within so many characters."""
        assert incident.diagnosis is not None
        found, at_s = at_issue(incident), self.now_s()
        bundle, onset_s = bundle or self._bundle(incident), first_cause(found).since.t_s
        plan = f"{incident.action.kind} {incident.action.target}: {incident.action.why}" if incident.action else ""
        names = names_of(self.history, self.inventory, [f.subject for f in found], at_s)
        return brief(
            incident.diagnosis, bundle, onset_s, characters, plan=plan, names=names, redact=self.redact or as_it_is
        )

    def deciding_lines(self, incident: Incident) -> tuple[str, ...]:
        """The kinds of lines that tell of trouble by now (as hashes): new ones are a reason to ask again."""
        return deciding_lines(self._bundle(incident))

    def read(
        self,
        incident: Incident,
        earlier: Reading | None = None,
        allowance: Allowance | None = None,
        stream: Stream = lambda reading, spent: None,
    ) -> tuple[Reading, ModelSpending]:
        """What the configured model makes of a diagnosed incident, over the evidence as of now. Takes minutes.
        Raises nothing that the model causes."""
        assert self.investigate is not None
        assert incident.diagnosis is not None
        found, past, at_s = at_issue(incident), list(self.past(incident)), self.now_s()
        bundle, onset_s = self._bundle(incident), first_cause(found).since.t_s
        lookup = Lookup(
            bundle, self.history, self.inventory, onset_s, at_s, past, self.promql, self.redact, self.limits,
            self.runbooks, self.servers, self.stores,
        )  # fmt: skip
        if self.runbooks is not None:
            lookup.call("runbooks", {"query": incident.diagnosis.headline[:400]})
        reading, spent = self.investigate(
            incident.diagnosis,
            lookup,
            earlier,
            allowance,
            stream,
            plan=plan_name(incident.action) if incident.action is not None else "",
            about=lambda room: self.brief(incident, room, lookup.ledger.bundle()),
        )
        # all that was there, not only what fitted: else the same lines would be a reason to ask again
        return replace(reading, lines=tuple(sorted({*reading.lines, *deciding_lines(bundle)}))), spent

    def lookup(self, incident: Incident, window: IncidentWindow) -> Lookup:
        """The look-ups around an incident, as far as `window` shows things."""
        found, at_s, whole = at_issue(incident), self.now_s(), not window.person.is_tenant
        bundle, onset_s = self._bundle(incident), first_cause(found).since.t_s
        items = tuple(item for item in bundle.items if window.may_show(item))
        return Lookup(
            replace(bundle, items=items),
            self.history,
            self.inventory,
            onset_s,
            at_s,
            list(self.past(incident)) if whole else (),
            # a query names what it likes: its answer is of the whole cluster
            self.promql if whole else None,
            self.redact,
            self.limits,
            self.runbooks,
            # what a user's own server may tell of is not known: it is for those who see the cluster
            self.servers if whole else None,
            self.stores if whole or self.stores is None else self.stores.of_pods_only(),
            reads=lambda subject: window.may_look_up(subject, incident),
            shows=window.may_show,
        )

    def answer(
        self,
        incident: Incident,
        question: str,
        window: IncidentWindow,
        earlier: Sequence[tuple[str, Answer]] = (),
        allowance: Allowance | str = "",
        stream: Callable[[Answer, ModelSpending], None] = lambda answer, spent: None,
    ) -> tuple[Answer, ModelSpending]:
        """The answer to a question about an incident as `window` shows it. `allowance`: what a model may take, or
        why none is asked. Takes minutes with a model. Raises nothing that the model causes."""
        lookup = self.lookup(incident, window)
        onset_s, at_s = lookup.ledger.onset_s, lookup.ledger.at_s
        for subject in named(question, self.inventory, at_s):
            span = {"start_s": onset_s - self.limits.before_s, "end_s": max(at_s, onset_s + 1.0)}
            lookup.call("logs", {"subject": str(subject), **span})
        if self.runbooks is not None:
            lookup.call("runbooks", {"query": question[:400]})
        if self.investigate is None:
            return without_model(question, lookup, NO_MODEL), ModelSpending()
        if isinstance(allowance, str):
            return without_model(question, lookup, allowance), ModelSpending()
        room = first_room(min(ROOM_TOKENS, int(PROMPT_TOKENS_SHARE * allowance.tokens)), len(question) + 2000)
        first = self.brief(incident, room, lookup.ledger.bundle()).text if incident.diagnosis else ""
        return answered(self.investigate, Briefing(question, first, earlier), lookup, allowance, stream)

    def plan(self, incident: Incident) -> ActionProposal:
        """The least disruptive fitting action that the guard allows now, or none; either way with the reason."""
        if incident.diagnosis is None:
            return ActionProposal(None, "there is no diagnosis yet")
        if incident.clear_since_s is not None and not is_unrepaired(incident):
            return ActionProposal(None, "every finding has become clear: nothing is done, it is watched")
        if incident.diagnosis.confidence is Confidence.UNKNOWN:
            return ActionProposal(None, "the cause is too uncertain to act on: watched")
        if is_outdated(incident):
            return ActionProposal(
                None, "what the diagnosis is about is over, and something else is open", outdated=True
            )
        open_, now_s = open_findings(incident), self.now_s()
        situation = self._situation(incident)
        site = self._site(situation)
        can = self.can if self.can is None or not site else self.elsewhere.get(site, frozenset())
        choice = choose(situation, self.playbooks, can, lambda a: objection(a, open_, self.inventory, now_s))
        action = choice.proposal.action
        if action is None:
            return choice.proposal
        ruling = self.guard(action, self.begun())
        # a limit that gives way in time does not refuse: the plan is shown with what it waits for
        if not ruling.allowed and ruling.retry_at_s is None:
            return ActionProposal(
                None, f"{action.kind} of {action.target.name} is refused: {ruling.reason}", refused=True
            )
        reason = choice.proposal.reason
        if not ruling.allowed:
            reason += f". It must wait: {ruling.reason}"
        milder = "; ".join(f"not {kind}: {why}" for kind, why in choice.considered)
        return ActionProposal(action, f"{reason} ({milder})" if milder else reason)

    def _situation(self, incident: Incident) -> Situation:
        """With when the job was last seen to make a step: it may have come back by itself."""
        situation = situation_of(incident, self.inventory, self.now_s())
        job = situation.facts.get("job")
        mates = [
            subject
            for subject in self.history.step_subjects()
            if subject.name.rpartition("#")[0] == job or subject.name == job
        ]
        # four ranks suffice: in data-parallel training no rank makes a step without the others
        seen = [self.history.steps(subject, situation.at_s - 600.0, situation.at_s) for subject in mates[:4]]
        times = [float(steps.t_s[-1]) for steps in seen if steps is not None]
        facts = {**situation.facts, **({"last_step_s": max(times)} if times else {})}
        return self._up_the_ladder(incident, replace(situation, facts=facts))

    def _site(self, situation: Situation) -> str:
        """Who manages the incident's subject, or the node that it is on; empty: Kubernetes, or not known."""
        near = self.inventory.ancestors(situation.subject, situation.at_s)
        sites = (self.inventory.fact(subject, SITE) for subject in sorted(near, key=near.__getitem__))
        return next(filter(None, sites), "")

    def _up_the_ladder(self, incident: Incident, situation: Situation) -> Situation:
        """Where the error calls for a repair of hardware: what was tried on this GPU before decides how far to
        go."""
        called_for = situation.facts.get("recovery_action")
        gpu = place_of(situation, SubjectKind.GPU)
        # only these two have a rung above them that repairs the same error by more force
        if gpu is None or called_for not in (ActionKind.RESET_GPU.value, ActionKind.REBOOT_NODE.value):
            return situation
        offences_s = [past.opened_s for past in self.past(incident) if past.subject == str(gpu)]
        record = record_of(gpu, self.begun(), offences_s, self.inventory, situation.at_s, self.ladder)
        found = rung(ActionKind(called_for), record, self.ladder)
        facts: dict[str, str | float] = {"gpu": gpu.name}
        if found.kind is ActionKind.OPEN_RMA:
            facts |= {"return": found.reason}
        elif found.kind is not ActionKind(called_for):
            facts |= {"recovery_action": found.kind.value, "recovery_reason": found.reason}
        return replace(situation, facts={**situation.facts, **facts})

    def guard(self, action: Action, commitments: Sequence[Commitment]) -> GuardRuling:
        """Whether an action may begin now: asked here for the plan, and by the lifecycle where it stores intent."""
        now_s = self.now_s()
        return rule(
            action, commitments, self.inventory, now_s, self.guard_settings, out_of_use(self.inventory, now_s)
        )


def out_of_use(inventory: Inventory, at_s: float) -> frozenset[Subject]:
    """Nodes that take no work by the API server's or Slurm's word, whoever cordoned them: they count against the
    limits."""
    return frozenset(
        node
        for node in inventory.subjects(SubjectKind.NODE, at_s)
        if inventory.fact(node, "unschedulable") == "true"
        or inventory.fact(node, "ready") == "false"
        or inventory.fact(node, SLURM) == "out"
    )


def is_outdated(incident: Incident) -> bool:
    """Whether a diagnosis speaks of another place or fault than what is at issue now."""
    diagnosis = incident.diagnosis
    if diagnosis is None or "subject" not in diagnosis.facts:
        return False
    found = at_issue(incident)
    now = (str(first_cause(found).subject), fault_of(found))
    return (diagnosis.facts["subject"], diagnosis.cause) != now


def situation_of(incident: Incident, inventory: Inventory, at_s: float) -> Situation:
    """What the playbooks look at: the diagnosed cause and its facts, never text."""
    if incident.diagnosis is None:
        raise ValueError(f"{incident.id} has no diagnosis")
    found = at_issue(incident)
    cause = first_cause(found)
    repaired = len(entered_s(incident.history, IncidentState.CONFIRMING))
    # what the Xids ask for is read again: since the diagnosis one may have cleared
    told = {name: value for name, value in incident.diagnosis.facts.items() if name not in RECOVERY_FACTS}
    asked = recovery_facts(cause, open_findings(incident))
    facts = {**told, **asked, "attempt": float(incident.attempt), "repairs": float(repaired)}
    subject = cause.subject
    if incident.diagnosis.cause is Fault.OOM_KILL and "job" in facts:
        # the kernel names a node for the kill; what is to be restarted is the job
        subject = Subject(SubjectKind.JOB, str(facts["job"]))
    return Situation(incident.id, incident.diagnosis.cause, subject, tuple(found), inventory, at_s, facts)


def resembling(incident: Incident, incidents: Iterable[Incident], limit: int = 5) -> list[PastIncident]:
    """Past incidents with the same first fault, those on the same subject first, then the newest."""
    cause = first_cause(findings_of(incident))
    alike = [
        other
        for other in incidents
        if other.id != incident.id and any(s.finding.fault is cause.fault for s in other.findings)
    ]
    alike.sort(key=lambda o: (cause.subject not in o.subjects, -o.opened_s))
    return [
        PastIncident(
            id=other.id,
            cause=str(other.diagnosis.cause) if other.diagnosis else "not diagnosed",
            subject=str(other.subjects[0]),
            opened_s=other.opened_s,
            action=str(other.action.kind) if other.action else "none",
            outcome=str(other.state),
            post_mortem=_post_mortem(other),
        )
        for other in alike[:limit]
    ]


def _post_mortem(incident: Incident) -> tuple[str, ...]:
    """What its post-mortem says: the headline, what proved it, and what people and the daemon noted."""
    diagnosis = incident.diagnosis
    found = [] if diagnosis is None else [diagnosis.headline, *(c.sentence for c in reground(diagnosis).claims[:3])]
    # the newest notes: how it ended tells more than how it began
    noted = [f"{step.after.replace('_', ' ')}: {step.note}" for step in incident.history if step.note][-4:]
    return tuple(sentence[:200] for sentence in [*found, *noted])
