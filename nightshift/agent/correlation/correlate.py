"""One fault, one incident: decides what each finding of a tick means for the incidents that are known.

Pure: the same findings, incidents and inventory give the same decisions in whatever order they are handed over.
Findings of one kin that touch the same place within a stated window are one fault
(`agent.correlation.kinship.SAME`); a finding that another explains joins that one's incident as a symptom
(`EFFECTS`); what an action of ours can cause, on what it touched (`controllers.action.KINDS`), joins the incident
that it acted for; a fault that comes back soon after its incident was resolved re-opens it; jobs that wait for one
storage server are one fault (`agent.correlation.storage_outage`); the same fault in many places at once is one
storm (`Storms`).

Limits: two incidents that are open already are never merged, even when a later finding explains both; the finding
then joins the one that opened first.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from nightshift.agent.correlation.decisions import (
    REFRESH_S,
    RELAPSE_S,
    SETTLE_S,
    SLACK_S,
    STORM_CLUSTER,
    STORM_FAULTS,
    STORM_S,
    CorrelationDecision,
    DecisionVerb,
    Group,
    KnownIncident,
)
from nightshift.agent.correlation.kinship import (
    EFFECTS,
    SAME,
    STORMY,
    CauseEffect,
    FindingPlaces,
    Kin,
    Same,
    causal_key,
    first_cause,
    gap_s,
    in_order,
    kin_of,
    onset_key,
    xids_of,
)
from nightshift.agent.correlation.outside_reports import GROUP
from nightshift.agent.correlation.storage_outage import Events, StorageWaits, no_events
from nightshift.agent.store.reports import is_report
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.controllers.action import traits_of
from nightshift.controllers.guard import Commitment
from nightshift.detectors.alarms.lanes import Lane, Proof, at_least, in_lane, lane_of, proof_of, widest
from nightshift.detectors.base import Fault, Finding, State


class Storms:
    """Finds storms among a tick's new incidents. `known`: the incidents that there are, oldest first."""

    def __init__(self, known: Sequence[KnownIncident], places: FindingPlaces) -> None:
        self._known, self._places = known, places

    def joined(self, homes: list[Group]) -> list[Group]:
        """Merges new incidents of one stormy kin under one rack, NVLink domain or cluster into one."""
        # narrowest first: what one NVLink domain explains counts once in its rack and in the cluster
        homes = self._joined_under(SubjectKind.NVLINK_DOMAIN, STORM_FAULTS, homes)
        homes = self._joined_under(SubjectKind.RACK, STORM_FAULTS, homes)
        return self._joined_under(SubjectKind.CLUSTER, STORM_CLUSTER, homes)

    def _joined_under(self, scope: SubjectKind, least: int, homes: list[Group]) -> list[Group]:
        merged: set[Group] = set()
        for (kin, place), found in self._by_place(homes, scope):
            for burst in self._bursts([h for h in found if h not in merged]):
                standing = self._standing_storm(kin, place, scope, least, burst)
                if len(burst) < least and standing is None:
                    continue
                theirs = [h for h in homes if standing and h.incident is standing and h not in merged]
                head, *rest = [*theirs, *burst]
                head.incident = standing
                head.storm = True
                head.reason = f"storm: {kin} in {len(burst)} places of {place or scope}"
                for home in rest:
                    head.findings += home.findings
                    merged.add(home)
        return [home for home in homes if home not in merged]

    def _by_place(
        self, homes: Iterable[Group], scope: SubjectKind
    ) -> list[tuple[tuple[Kin, Subject | None], list[Group]]]:
        """New incidents of stormy kin by the places of a scope that they touch, in a fixed order."""
        found: dict[tuple[Kin, Subject | None], list[Group]] = defaultdict(list)
        for home in homes:
            cause = first_cause(home.findings)
            if home.incident is None and kin_of(cause) in STORMY:
                for place in self._storm_places(cause, scope):
                    found[kin_of(cause), place].append(home)
        return sorted(found.items(), key=lambda item: (item[0][0], str(item[0][1])))

    def _storm_places(self, finding: Finding, scope: SubjectKind) -> list[Subject | None]:
        if scope is SubjectKind.CLUSTER:
            return [None]
        return [s for s in self._places.of(finding) if s.kind is scope]

    def _bursts(self, homes: list[Group]) -> list[list[Group]]:
        ordered = sorted(homes, key=lambda h: onset_key(first_cause(h.findings)))
        bursts: list[list[Group]] = []
        last_s = -math.inf
        for home in ordered:
            since_s = first_cause(home.findings).since.t_s
            if since_s - last_s > STORM_S:
                bursts.append([])
            bursts[-1].append(home)
            last_s = since_s
        return bursts

    def _standing_storm(
        self, kin: Kin, place: Subject | None, scope: SubjectKind, least: int, burst: list[Group]
    ) -> KnownIncident | None:
        """An open incident that is this storm already: enough subjects of that kin at that place, near in time."""
        # the first cause's onset, since the consequences of a storm trail behind for minutes
        since_s = first_cause(burst[0].findings).since.t_s
        for incident in self._known:
            alike = [f for f in incident.findings if kin_of(f) is kin and place in self._storm_places(f, scope)]
            recent = [f for f in alike if abs(since_s - f.since.t_s) <= STORM_S]
            if not incident.resolved and recent and len({f.subject for f in alike}) >= least:
                return incident
        return None


__all__ = ["CorrelationDecision", "DecisionVerb", "KnownIncident", "correlate"]

_Rule = TypeVar("_Rule", Same, CauseEffect)
_WIDE = frozenset({SubjectKind.CLUSTER, SubjectKind.RACK})


def correlate(
    findings: Iterable[Finding],
    incidents: Iterable[KnownIncident],
    inventory: Inventory,
    at_s: float,
    events: Events = no_events,
) -> list[CorrelationDecision]:
    """Decisions for one tick's findings, given the incidents that are open or were resolved within `RELAPSE_S`, and
    the nodes' kernel events."""
    return _Correlation(list(incidents), inventory, at_s, events).decide(_latest(findings))


def _latest(findings: Iterable[Finding]) -> list[Finding]:
    newest: dict[str, Finding] = {}
    for finding in findings:
        # a restart replays what was owed: of one episode only the newest word counts
        known = newest.setdefault(finding.episode, finding)
        newest[finding.episode] = max(known, finding, key=lambda f: (f.at.t_s, f.state, f.summary))
    return sorted(newest.values(), key=onset_key)


class _Correlation:
    def __init__(self, known: list[KnownIncident], inventory: Inventory, at_s: float, events: Events) -> None:
        self._known = sorted(known, key=lambda k: (k.opened_s, k.id))
        self._at_s = at_s
        self._places = FindingPlaces(inventory)
        self._waiting = StorageWaits(self._places, events, at_s)
        self._acts = [(i, act) for i in self._known if not i.resolved for act in i.begun]
        self._grouped: dict[object, list[tuple[KnownIncident, Finding]]] = defaultdict(list)
        self._live: dict[Subject, list[tuple[KnownIncident, Finding]]] = defaultdict(list)
        for incident in self._known:
            for finding in incident.findings:
                for place in self._near(finding):
                    self._live[place].append((incident, finding))
                if GROUP in finding.facts and not incident.resolved:
                    self._grouped[finding.facts[GROUP]].append((incident, finding))

    def _near(self, finding: Finding) -> list[Subject]:
        return [place for place in self._places.of(finding) if place.kind not in _WIDE]

    def decide(self, findings: list[Finding]) -> list[CorrelationDecision]:
        members = {f.episode: (incident, f) for incident in self._known for f in incident.findings}
        decisions: list[CorrelationDecision] = []
        fresh: list[Finding] = []
        for finding in findings:
            if finding.episode in members:
                decisions += self._update(finding, *members[finding.episode])
            elif finding.state is State.FIRING:
                fresh.append(finding)
            else:
                why = f"{finding.state} of an alarm that is not ours"
                decisions.append(CorrelationDecision(DecisionVerb.IGNORE, (finding,), why))
        return decisions + self._place(fresh)

    def _update(self, finding: Finding, incident: KnownIncident, stored: Finding) -> list[CorrelationDecision]:
        # a finding that was owed while the store was away arrives after newer ones
        if finding.at.t_s < stored.at.t_s:
            return [CorrelationDecision(DecisionVerb.IGNORE, (finding,), "older than what is stored", incident.id)]
        finding = at_least(finding, stored)
        louder = lane_of(finding) is not lane_of(stored)
        if finding.state is stored.state:
            # a burst is one episode: a further Xid changes what is called for, though not the state
            if _events(finding) != _events(stored):
                news = not incident.resolved
                return [CorrelationDecision(DecisionVerb.UPDATE, (finding,), "further events", incident.id, news)]
            # ten thousand alarms that go on would else be ten thousand writes every look
            due = finding.at.t_s - stored.at.t_s >= REFRESH_S or finding.severity != stored.severity or louder
            on = CorrelationDecision(DecisionVerb.UPDATE, (finding,), "still firing", incident.id, louder=louder)
            return [on] if due else []
        # a resolved incident that fires again keeps its history, so that what did not help is not tried first
        if incident.resolved and finding.state is State.FIRING:
            why = f"{finding.fault} fires again on {finding.subject}"
            return [CorrelationDecision(DecisionVerb.REOPEN, (finding,), why, incident.id)]
        why = f"{stored.state} → {finding.state}"
        return [CorrelationDecision(DecisionVerb.UPDATE, (finding,), why, incident.id)]

    def _place(self, fresh: list[Finding]) -> list[CorrelationDecision]:
        # causes before their effects, so that an effect finds its cause placed; onset alone would miss a cause
        # that was read late
        groups = sorted(self._same(fresh), key=lambda g: (g.stage, onset_key(g.findings[0])))
        homes: list[Group] = []
        placed: dict[Subject, list[tuple[Group, Finding]]] = defaultdict(list)
        for group in groups:
            home = self._home(group) or self._new_home(group, placed)
            if home is None:
                group.reason = f"{group.findings[0].fault} on {group.findings[0].subject}"
                homes.append(home := group)
            elif home is not group:
                home.findings += group.findings
            else:
                homes.append(group)
            for finding in group.findings:
                for place in self._near(finding):
                    placed[place].append((home, finding))
        homes = self._waiting.joined(homes, self._known)
        storms = Storms(self._known, self._places)
        return [self._decision(home) for home in storms.joined(homes)]

    def _same(self, fresh: list[Finding]) -> list[Group]:
        """Joins findings that `SAME` calls one fault: single linkage in order of onset, per rule and place."""
        parent = list(range(len(fresh)))

        def root(i: int) -> int:
            while parent[i] != i:
                parent[i] = i = parent[parent[i]]
            return i

        for (number, _), rows in self._buckets(fresh).items():
            # of ongoing faults the one that was seen last reaches furthest: an alarm that goes on for hours is
            # still the same as what joins it at its end
            longest = rows[0]
            for row in rows[1:]:
                alike = SAME[number] if number >= 0 else None
                if alike is None or gap_s(fresh[longest], fresh[row], alike.ongoing) <= alike.window_s:
                    parent[max(root(longest), root(row))] = min(root(longest), root(row))
                if alike is None or not alike.ongoing or fresh[row].at.t_s > fresh[longest].at.t_s:
                    longest = row
        groups: dict[int, list[Finding]] = defaultdict(list)
        for i, finding in enumerate(fresh):
            groups[root(i)].append(finding)
        return [Group(found) for found in groups.values()]

    def _buckets(self, fresh: list[Finding]) -> dict[tuple[int, object], list[int]]:
        """Rows of findings that may be one fault, by rule of `SAME` (below 0: without a window) and place."""
        buckets: dict[tuple[int, object], list[int]] = defaultdict(list)
        for i, finding in enumerate(fresh):
            kin = kin_of(finding)
            # several detectors, or sources, may tell of the same fault on the same subject: no window for these
            buckets[-1, (finding.subject, finding.fault, kin)].append(i)
            if GROUP in finding.facts:
                buckets[-2, finding.facts[GROUP]].append(i)
            for number, rule in enumerate(SAME):
                if kin in rule.kin and not is_report(finding):
                    for place in self._places.scoped(finding, rule.scope):
                        buckets[number, place].append(i)
        return buckets

    def _home(self, group: Group) -> Group | None:
        """The known incident that the group belongs to: `group` itself with its incident set, or None."""
        best: tuple[int, float, str] | None = None
        for finding in group.findings:
            near = {(id(i), id(m)): (i, m) for p in self._near(finding) for i, m in self._live.get(p, ())}
            near |= {(id(i), id(m)): (i, m) for i, m in self._grouped.get(finding.facts.get(GROUP), ())}
            for incident, member in near.values():
                verdict = self._relation(finding, incident, member)
                if verdict is not None:
                    rank, reason = verdict
                    # two open incidents may both fit: the closest relation, then the older one
                    if best is None or (rank, incident.opened_s, incident.id) < best:
                        best = (rank, incident.opened_s, incident.id)
                        group.incident, group.reason = incident, reason
        return self._consequence(group) if best is None else group

    def _relation(self, new: Finding, incident: KnownIncident, member: Finding) -> tuple[int, str] | None:
        """How a new finding relates to a known incident's finding: (rank, why), the lowest rank the closest."""
        identical = (new.fault, kin_of(new), new.subject) == (member.fault, kin_of(member), member.subject)
        if incident.resolved:
            # a resolved incident takes back only its own fault: what else it might explain is over with it
            if incident.resolved_s is None or self._at_s - incident.resolved_s > RELAPSE_S:
                return None
            back = identical or self._is_alike(new, member)
            return (1, f"{new.fault} is back on {new.subject}") if back else None
        if identical:
            return 0, f"{new.fault} on {new.subject} again"
        same = self._matching(SAME, lambda r: {kin_of(new), kin_of(member)} <= r.kin, new, member)
        if any(gap_s(*in_order(new, member), rule.ongoing) <= rule.window_s for rule in same):
            return 2, f"the same fault as {member.fault} on {member.subject}"
        if (why := self._why_follows(member, new)) is not None:
            return 3, f"follows from {member.fault} on {member.subject}: {why}"
        if (why := self._why_follows(new, member)) is not None:
            return 4, f"explains {member.fault} on {member.subject}: {why}"
        if (why := self._why_reported(new, member)) is not None:
            return 5, why
        return None

    def _why_reported(self, new: Finding, member: Finding) -> str | None:
        """Why a report joins what stands on its subject, or what a detector finds there joins the report; reports
        of one group of alerts are one. None where neither is so."""
        if not (is_report(new) or is_report(member)):
            return None
        if new.facts.get(GROUP, "") == member.facts.get(GROUP) != "":
            return "of the same group of alerts"
        for report, other in ((new, member), (member, new)):
            # a GPU's fault is on its node, but not every report of the node is about it
            near = self._places.of(other) if report.subject.kind is not SubjectKind.NODE else {other.subject}
            if is_report(report) and report.subject in near and report.subject.kind not in _WIDE:
                return f"reported of {report.subject}"
        return None

    def _is_alike(self, new: Finding, member: Finding) -> bool:
        """Whether a resolved fault is back in its job or on its GPU. A node's other GPUs fail for themselves."""
        return new.fault is member.fault and any(
            self._places.scoped(new, rule.scope) & self._places.scoped(member, rule.scope)
            for rule in SAME
            if kin_of(new) in rule.kin and rule.scope in (SubjectKind.JOB, SubjectKind.GPU)
        )

    def _why_follows(self, cause: Finding, effect: Finding) -> str | None:
        """Why one finding can follow from another, in place and time; None where it cannot."""
        fits = lambda r: kin_of(cause) in r.causes and kin_of(effect) in r.effects  # noqa: E731
        rules = self._matching(EFFECTS, fits, cause, effect)
        return next((rule.why for rule in rules if self._follows(cause, effect, rule)), None)

    def _matching(
        self, rules: Sequence[_Rule], wanted: Callable[[_Rule], bool], one: Finding, other: Finding
    ) -> list[_Rule]:
        found = [rule for rule in rules if wanted(rule)]
        return [r for r in found if self._places.scoped(one, r.scope) & self._places.scoped(other, r.scope)]

    def _follows(self, cause: Finding, effect: Finding, rule: CauseEffect) -> bool:
        slack_s = SLACK_S + cause.since.uncertainty_s + effect.since.uncertainty_s
        if effect.since.t_s < cause.since.t_s - slack_s:
            return False
        left_s = cause.facts.get("eta_low_s") if rule.at_limit else None
        if isinstance(left_s, float) and cause.at.t_s + left_s > effect.since.t_s + rule.window_s:
            return False
        return gap_s(cause, effect, rule.ongoing) <= rule.window_s

    def _consequence(self, group: Group) -> Group | None:
        """The group with the incident of an action of ours that can have caused all of it, or None. All, because a
        GPU that falls off the bus while we reboot its node is a fault, though the reboot explains that it is gone.
        """
        # last, after every other relation: a fault must not hide behind an action that happened at the time
        for incident, act in self._acts:
            if all(self._can_cause(act, finding) for finding in group.findings):
                group.incident = incident
                group.reason = f"our own {act.action.kind} of {act.action.target} caused it"
                return group
        return None

    def _can_cause(self, act: Commitment, finding: Finding) -> bool:
        """Whether the action's kind can cause such a finding, in time, on a subject that the action touched."""
        # an action that has not ended, or whose end was lost, may still be at work
        ended_s = self._at_s if act.ended_s is None else act.ended_s
        if not act.begun_s <= finding.since.t_s <= ended_s + SETTLE_S:
            return False
        node = act.action.params.get("node")  # of the GPU that it is about
        touched = act.action.named | ({Subject(SubjectKind.NODE, str(node))} if node is not None else set())
        here = {subject.kind for subject in self._places.of(finding) & touched}
        codes = xids_of(finding)
        return any(
            finding.fault is cause.fault
            # one code beyond those that a stopped process leaves, and the burst is an error of its own
            and (finding.fault is not Fault.XID or (codes and codes <= cause.codes))
            and cause.through in here
            for cause in traits_of(act.action.kind).causes
        )

    def _new_home(self, group: Group, placed: dict[Subject, list[tuple[Group, Finding]]]) -> Group | None:
        """The home among this tick's earlier groups whose finding explains this one; the earliest cause wins."""
        found: list[tuple[tuple[int, float, int, tuple[float, str, str, str]], Group]] = []
        for finding in group.findings:
            near = {id(m): (h, m) for p in self._near(finding) for h, m in placed.get(p, ())}
            for home, member in near.values():
                if self._why_follows(member, finding) or self._why_reported(finding, member):
                    found.append((causal_key(member), home))
        return min(found, key=lambda pair: pair[0])[1] if found else None

    def _decision(self, home: Group) -> CorrelationDecision:
        found = tuple(sorted(home.findings, key=onset_key))
        if home.incident is None:
            return CorrelationDecision(DecisionVerb.OPEN, _aloud(found) if home.storm else found, home.reason)
        news = causal_key(first_cause(found))[0] < causal_key(first_cause(home.incident.findings))[0]
        verb = DecisionVerb.REOPEN if home.incident.resolved else DecisionVerb.ATTACH
        return CorrelationDecision(verb, found, home.reason, home.incident.id, news)


def _aloud(found: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """A storm's findings: so many at once are no chance, so its first cause pages. Not where the rate of chance is
    unknown, nor of a detector that alarms too often."""
    first = first_cause(found)
    if widest(found) is Lane.PAGE or proof_of(first) in (Proof.NOISY, Proof.UNMEASURED):
        return found
    return tuple(in_lane(finding, Lane.PAGE) if finding is first else finding for finding in found)


def _events(finding: Finding) -> tuple[object, ...]:
    """What an event finding says that a plan may rest on."""
    return tuple(finding.facts.get(name) for name in ("codes", "announced_recovery"))
