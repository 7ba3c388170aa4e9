"""The same fault in many places at once: one storm, one incident."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from nightshift.agent.correlation.decisions import STORM_CLUSTER, STORM_FAULTS, STORM_S, Group, Known
from nightshift.agent.correlation.kinship import STORMY, Kin, Places, first_cause, kin_of, onset_key
from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.detectors.base import Finding


class Storms:
    """Finds storms among a tick's new incidents. `known`: the incidents that there are, oldest first."""

    def __init__(self, known: Sequence[Known], places: Places) -> None:
        self._known, self._places = known, places

    def joined(self, homes: list[Group]) -> list[Group]:
        """Merges new incidents of one stormy kin under one rack, NVLink domain or cluster into one."""
        for scope, least in (
            (SubjectKind.NVLINK_DOMAIN, STORM_FAULTS),
            (SubjectKind.RACK, STORM_FAULTS),
            (SubjectKind.CLUSTER, STORM_CLUSTER),
        ):
            buckets: dict[tuple[Kin, Subject | None], list[Group]] = defaultdict(list)
            for home in homes:
                cause = first_cause(home.findings)
                if home.incident is None and kin_of(cause) in STORMY:
                    for place in self._storm_places(cause, scope):
                        buckets[kin_of(cause), place].append(home)
            merged: set[int] = set()
            for (kin, place), found in sorted(buckets.items(), key=lambda item: (item[0][0], str(item[0][1]))):
                alive = [h for h in found if id(h) not in merged]
                for burst in self._bursts(alive):
                    standing = self._standing_storm(kin, place, scope, least, burst)
                    if len(burst) < least and standing is None:
                        continue
                    head, *rest = [
                        *(h for h in homes if standing and h.incident is standing and id(h) not in merged),
                        *burst,
                    ]
                    head.incident = standing
                    head.storm = True
                    head.reason = f"storm: {kin} in {len(burst)} places of {place or scope}"
                    for home in rest:
                        head.findings += home.findings
                        merged.add(id(home))
            homes = [home for home in homes if id(home) not in merged]
        return homes

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
    ) -> Known | None:
        """An open incident that is this storm already: enough subjects of that kin at that place, near in time."""
        since_s = first_cause(burst[0].findings).since.t_s
        for incident in self._known:
            alike = [f for f in incident.findings if kin_of(f) is kin and place in self._storm_places(f, scope)]
            recent = [f for f in alike if abs(since_s - f.since.t_s) <= STORM_S]
            if not incident.resolved and recent and len({f.subject for f in alike}) >= least:
                return incident
        return None
