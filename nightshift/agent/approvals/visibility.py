"""Incidents as one person may see them: whole, in part, or not at all. Every door reads incidents through this.

Of an incident that touches several teams' jobs, each team sees what is shared (that it is, where it stands, the
hardware, the kind of fault and of plan) and what is its own (its signals, its jobs in the blast radius). Prose and
evidence are withheld: a log line, a headline or a quote may name anybody's work, and no filter reads prose.

Of an incident that is a team's own, it sees everything but what names other teams' work: past incidents that
resemble it, and texts in which a foreign namespace stands.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from nightshift.agent.approvals.access import Sight, sight
from nightshift.agent.approvals.gate import Approval, Gate
from nightshift.agent.approvals.policy import Person, Role
from nightshift.agent.approvals.questions import Question, Questions
from nightshift.agent.clock import WallClock
from nightshift.agent.store.archive import EVERYTHING, IncidentQuery, NoSuchIncident, name_of, number_of
from nightshift.agent.store.audit import AuditRecord
from nightshift.agent.store.diagnosis import Diagnosis, Evidence, Reading, quoted_sentences
from nightshift.agent.store.incident import HistoryStep, Incident, IncidentState, IncidentSummary, StoredFinding
from nightshift.agent.store.incident_store import Store
from nightshift.agent.store.tenancy import NAMESPACED, namespaces_of
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.controllers.action import Action, BlastRadius, Undo

OTHERS = "other teams' work"
WITHHELD = f"(withheld: it names {OTHERS})"
_NAMED = (SubjectKind.POD, SubjectKind.JOB)
_WORD = re.compile(r"\w(?:[\w.-]*\w)?")
# A team's newest incidents among which its words are looked for.
_SEARCHED = 5_000
PAST_INCIDENTS = "incident store"
"""The source of evidence that tells of other incidents."""


@dataclass
class IncidentWindow:
    """What `person` sees of the store. Cheap to make; one per request."""

    store: Store
    person: Person
    inventory: Inventory | None = None
    now_s: float = 0.0

    # Incidents --------------------------------------------------------------------------------------------------

    def incident(self, incident_id: str) -> Incident:
        """Raises NoSuchIncident where there is none *or* it is not theirs: the same answer, to the letter."""
        incident = self.store.incident(incident_id)
        seen = self.sight(incident)
        if seen is Sight.NOTHING:
            # In canonical spelling, as the store itself says it: an echo of `inc-007` would tell a hidden
            # incident from none.
            raise NoSuchIncident(f"there is no {name_of(number_of(incident_id))}")
        if not self.person.is_tenant:
            return incident
        return self._in_part(incident) if seen is Sight.PART else self._own(incident)

    def incidents(
        self,
        states: Iterable[IncidentState] | None = None,
        *,
        limit: int | None = None,
        offset: int = 0,
        query: IncidentQuery = EVERYTHING,
    ) -> list[IncidentSummary]:
        """Summaries, newest first. Pages, counts and what a search finds are of what the person sees, so they tell
        of nothing else."""
        if self._blind:
            return []
        if not self.person.is_tenant:
            return self.store.incidents(states, limit=limit, offset=offset, search=query)
        if not query.text:
            rows = self.store.incidents(states, limit=limit, offset=offset, touching=self._is_mine, search=query)
            return [self._summary(row) for row in rows]
        rows = self.store.incidents(
            # Searched in what is shown, not in the database: a hit in a withheld title would tell what stands in
            # it.
            states,
            touching=self._is_mine,
            search=replace(query, text=""),
            limit=_SEARCHED,
        )
        found = [row for row in map(self._summary, rows) if _says(row, query.text)]
        return found[offset : None if limit is None else offset + limit]

    def open_incidents(self) -> list[IncidentSummary]:
        return self.incidents([state for state in IncidentState if state is not IncidentState.RESOLVED])

    def sight(self, incident: Incident | IncidentSummary) -> Sight:
        return sight(self.person, incident.namespaces)

    def own(self, namespaces: Iterable[str]) -> list[str] | None:
        """Those of some namespaces that are theirs; None: whoever sees the whole cluster needs no choice."""
        return [name for name in namespaces if self._is_mine(name)] if self.person.is_tenant else None

    # What belongs to incidents ----------------------------------------------------------------------------------

    def approvals(self, gate: Gate, incident_id: str) -> list[Approval]:
        """Who approved what; nothing of an incident that is not wholly theirs."""
        whole = self.sight(self.store.incident(incident_id)) is Sight.WHOLE
        return gate.approvals(incident_id) if whole else []

    def questions(self, incident_id: str) -> list[Question]:
        """What was asked about an incident; of a team, what was answered within what it may see."""
        incident = self.incident(incident_id)
        asked = Questions(self.store.database, WallClock()).of(incident.id)
        return [item for item in asked if item.may_be_read_by(self.person)]

    def audit(self, limit: int) -> list[AuditRecord]:
        """The newest records: all, or those of incidents that are wholly theirs."""
        if not self.person.is_tenant:
            return self.store.audit.records(limit=limit, newest_first=True)
        found: list[AuditRecord] = []
        for row in self.incidents(limit=limit):
            if self.sight(row) is Sight.WHOLE:
                found += self.store.audit.records(incident=number_of(row.id), limit=limit, newest_first=True)
        # The audit log has one order over all incidents; each was read by itself.
        newest = sorted(found, key=lambda record: -record.number)[:limit]
        return [record for record in newest if not self._names_others(str(record.body))]

    # Hardware ---------------------------------------------------------------------------------------------------

    def gpus(self) -> frozenset[Subject] | None:
        """The GPUs that their jobs hold now; None: all."""
        if not self.person.is_tenant:
            return None
        if self.inventory is None:
            return frozenset()
        pods = [
            # By pods, since a GPU belongs to no namespace: it is theirs for as long as a pod of theirs holds it.
            s
            for s in self.inventory.subjects(SubjectKind.POD, self.now_s)
            if self._is_mine(*namespaces_of([s]))
        ]
        return frozenset(gpu for pod in pods for gpu in self.inventory.gpus(pod, self.now_s))

    def may_name(self, subject: Subject) -> bool:
        """Whether a subject is shared, as hardware is, or theirs."""
        return not self.person.is_tenant or self._shared_or_mine(subject)

    def may_look_up(self, subject: Subject, incident: Incident) -> bool:
        """Whether signals and logs of a subject may be read for a question about an incident: of a team's, what is
        theirs, the GPUs that they hold, and where the incident sits."""
        if not self.person.is_tenant:
            return True
        if subject.kind in NAMESPACED:
            return self._shared_or_mine(subject)
        near = {*incident.subjects}
        if self.inventory is not None:
            for found in incident.findings:
                near |= set(self.inventory.ancestors(found.finding.subject, found.finding.since.t_s))
        return subject in near or subject in (self.gpus() or ())

    def held_since_s(self, gpu: Subject) -> float:
        """Since when their pods hold a GPU (Unix s): of its values before, a tenant sees none."""
        if not self.person.is_tenant or self.inventory is None:
            return float("-inf")
        held = [
            m.since_s
            for m in self.inventory.memberships()
            if m.child == gpu
            and m.parent.kind is SubjectKind.POD
            and m.covers(self.now_s)
            and self._is_mine(*namespaces_of([m.parent]))
        ]
        return min(held, default=float("inf"))

    # Redaction --------------------------------------------------------------------------------------------------

    @property
    def _blind(self) -> bool:
        return self.person.is_tenant and not self.person.grants

    def _is_mine(self, namespace: str = "") -> bool:
        return bool(namespace) and self.person.may(Role.VIEWER, (namespace,))

    def _shared_or_mine(self, subject: Subject) -> bool:
        """Hardware is shared; a pod, a job, a rank is somebody's."""
        return subject.kind not in NAMESPACED or any(map(self._is_mine, namespaces_of([subject])))

    @cached_property
    def _foreign(self) -> re.Pattern[str]:
        """Matches the name of something in a namespace that is not theirs."""
        known = set(self.store.namespaces())
        if self.inventory is not None:
            known.update(namespaces_of(self.inventory.subjects(SubjectKind.POD, self.now_s)))
        others = "|".join(re.escape(name) for name in sorted(known) if not self._is_mine(name))
        # Followed by a slash or a quote, as `ns/pod` and `"ns"` are: a team that is called `data` would else have
        # every sentence withheld.
        return re.compile(rf"(?<![\w.-])(?:{others})(?=[/\"'])" if others else r"(?!)")

    @cached_property
    def _foreign_names(self) -> frozenset[str]:
        """Names of other teams' pods and jobs without their namespace, as a log may give them; not plain words."""
        if self.inventory is None:
            return frozenset()
        found = [s for kind in _NAMED for s in self.inventory.subjects(kind, self.now_s)]
        names = {s.name.partition("/")[2] for s in found if not self._shared_or_mine(s)}
        # A job that is called `train` would have every text withheld that says `train`.
        return frozenset(name for name in names if not name.isalpha())

    def _names_others(self, text: str) -> bool:
        return self._foreign.search(text) is not None or not self._foreign_names.isdisjoint(_WORD.findall(text))

    def _plain(self, text: str) -> str:
        return WITHHELD if self._names_others(text) else text

    def _summary(self, row: IncidentSummary) -> IncidentSummary:
        seen = self.sight(row)
        if not self.person.is_tenant:
            return row
        found = tuple(f for f in row.findings if self._shared_or_mine(f.subject))
        if seen is Sight.WHOLE:
            return replace(row, title=self._plain(row.title), findings=found)
        return replace(
            row,
            title=_shared_title(str(row.cause or (found[0].fault if found else "fault"))),
            findings=found,
            namespaces=self._own_namespaces(row.namespaces),
            # Without the hash, a plan seen in part cannot be approved from a list.
            plan_sha256=None,
        )

    def _own_namespaces(self, namespaces: Collection[str]) -> tuple[str, ...]:
        own = tuple(name for name in namespaces if self._is_mine(name))
        return own if len(own) == len(namespaces) else (*own, OTHERS)  # so that what is seen in part stays in part

    def _own(self, incident: Incident) -> Incident:
        """A team's own incident, without what names others."""
        diagnosis, reading = incident.diagnosis, incident.reading
        own = None if reading is None else self._own_reading(reading)
        if diagnosis is not None and reading is not None and own is not None:
            # a sentence is shown with its quote or not at all
            for sentence in set(reading.sentences) - set(quoted_sentences(own)):
                diagnosis = replace(diagnosis, hypothesis=diagnosis.hypothesis.replace(sentence.marked, WITHHELD))
        return replace(
            incident,
            title=self._plain(incident.title),
            diagnosis=None if diagnosis is None else self._own_diagnosis(diagnosis),
            reading=own,
            plan_reason=self._plain(incident.plan_reason),
            history=tuple(replace(step, note=self._plain(step.note)) for step in incident.history),
            findings=tuple(f for f in incident.findings if not self._names_others(f.finding.summary)),
        )

    def _own_diagnosis(self, diagnosis: Diagnosis) -> Diagnosis:
        kept = tuple(item for item in diagnosis.evidence if self.may_show(item))
        ids = {item.id for item in kept}
        return replace(
            diagnosis,
            headline=self._plain(diagnosis.headline),
            claims=tuple(
                claim
                for claim in diagnosis.claims
                # A claim without its evidence is a bare assertion, which is never shown.
                if set(claim.evidence_ids) | {quote.evidence_id for quote in claim.quotes} <= ids
                and not self._names_others(claim.sentence)
            ),
            evidence=kept,
            caveats=tuple(map(self._plain, diagnosis.caveats)),
            hypothesis=self._plain(diagnosis.hypothesis),
            facts={key: value for key, value in diagnosis.facts.items() if not self._names_others(str(value))},
        )

    def _own_reading(self, reading: Reading) -> Reading:
        """Its claims are shown with the diagnosis; of the rest, what names no other tenant."""
        contest = reading.contest
        if contest is not None and self._names_others(f"{contest.reason}\n{contest.quote.text}\n{contest.plan}"):
            # that it is contested is theirs to know, since they approve it
            contest = replace(contest, reason=WITHHELD, quote=replace(contest.quote, text=WITHHELD))
        evidence = tuple(item for item in reading.evidence if self.may_show(item))
        kept = tuple(s for s in reading.sentences if not self._names_others(f"{s.text}\n{s.quote.text}"))
        cited = {sentence.quote.evidence_id for sentence in kept}
        return replace(
            reading,
            claims=(),
            evidence=tuple(item for item in evidence if item.id in cited),
            account="",
            sentences=kept,
            checks=tuple(map(self._plain, reading.checks)),
            contest=contest,
            note=self._plain(reading.note),
            facts={},
        )

    def may_show(self, item: Evidence) -> bool:
        """Whether a team may see an item of evidence: it names no other team's work."""
        if not self.person.is_tenant:
            return True
        text = f"{item.source}\n{item.query}\n{item.title}\n{item.content.decode('utf-8', 'replace')}"
        return item.source != PAST_INCIDENTS and not self._names_others(text)

    def _in_part(self, incident: Incident) -> Incident:
        """What several teams share, and what is this one's own."""
        diagnosis, action = incident.diagnosis, incident.action
        cause = str(diagnosis.cause if diagnosis is not None else _first_fault(incident))
        shown = tuple(map(self._shared_finding, filter(self._finding_is_shown, incident.findings)))
        return replace(
            incident,
            title=_shared_title(cause),
            # Never none: that there is a fault is shared, on whoever's work it is.
            findings=shown or tuple(map(_of_others, incident.findings[:1])),
            diagnosis=None,
            reading=None,
            action=None if action is None else self._shared_action(action),
            plan_reason="",
            # Who did what and the notes are prose of people, about work that may be another team's.
            history=tuple(HistoryStep(s.at_s, s.before, s.after, s.cause, "", "") for s in incident.history),
            namespaces=self._own_namespaces(incident.namespaces),
        )

    def _finding_is_shown(self, stored: StoredFinding) -> bool:
        return self._shared_or_mine(stored.finding.subject)

    def _shared_finding(self, stored: StoredFinding) -> StoredFinding:
        """Their own signal as it is; of the hardware's, that it is, and no word or exhibit."""
        finding = stored.finding
        if finding.subject.kind in NAMESPACED and not self._names_others(finding.summary):
            return stored
        said = f"{str(finding.fault).replace('_', ' ').capitalize()} on {finding.subject.name}"
        return replace(stored, finding=replace(finding, summary=said, evidence=(), facts={}))

    def _shared_action(self, action: Action) -> Action:
        """The plan's kind and what it does to them. Its hash is not the plan's, so it cannot be approved with."""
        radius = action.blast_radius
        hidden = Subject(action.target.kind, OTHERS)
        jobs, pods = (self._mine_of(names) for names in (radius.jobs, radius.pods))
        others = len(radius.jobs) - len(jobs)
        return Action(
            id=action.id,
            kind=action.kind,
            target=action.target if self._shared_or_mine(action.target) else hidden,
            why="",
            blast_radius=BlastRadius(
                radius.nodes, radius.gpus, jobs, pods, note=f"and {others} jobs of other teams" if others else ""
            ),
            undo=Undo(action.undo.possible, "", action.undo.kind),
            expires_at_s=action.expires_at_s,
            needs_approval=action.needs_approval,
        )

    def _mine_of(self, names: Iterable[str]) -> tuple[str, ...]:
        return tuple(name for name in names if self._is_mine(name.partition("/")[0]))


def _says(row: IncidentSummary, words: str) -> bool:
    """Whether each word stands in what is shown of an incident."""
    shown = " ".join([row.id, row.title, *(f"{f.fault} {f.subject}" for f in row.findings)]).lower()
    return all(word in shown for word in words.lower().split())


def _first_fault(incident: Incident) -> str:
    return str(incident.findings[0].finding.fault) if incident.findings else "fault"


def _of_others(stored: StoredFinding) -> StoredFinding:
    """A finding on somebody else's work: that there is one, and of what kind."""
    finding = stored.finding
    hidden = Subject(finding.subject.kind, OTHERS)
    said = f"{str(finding.fault).replace('_', ' ').capitalize()} on {OTHERS}"
    return replace(stored, finding=replace(finding, subject=hidden, summary=said, evidence=(), facts={}))


def _shared_title(cause: str) -> str:
    return f"{cause.replace('_', ' ').capitalize()} that touches several teams' jobs"
