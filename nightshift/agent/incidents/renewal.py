"""A diagnosis follows its evidence: while its incident is open and a finding fires, its text is made again.

Only text that says more is stored, in place of what it renews: version, plan and approvals stay as they are, and
a model's reading stays beside it. What is new in it is marked (`CHANGED`). Where the renewed one calls for another
repair, the findings become news, and the lifecycle plans again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import structlog

from nightshift.agent.clock import Clock
from nightshift.agent.store.diagnosis import CHANGED, CHANGED_S, Confidence, Diagnosis
from nightshift.agent.store.incident import Incident
from nightshift.agent.store.incident_store import Conflict, Store
from nightshift.collectors.base import Permanent, Temporary

EVERY_S = 15.0
"""How often stale diagnoses are looked for."""
FIRST_S, LONGEST_S = 60.0, 900.0
"""Ages of a diagnosis at which it is made again: as old as its incident was then, within these."""
AT_ONCE = 4
_LEVELS = (Confidence.UNKNOWN, Confidence.LOW, Confidence.MEDIUM, Confidence.HIGH)


def called_for(diagnosis: Diagnosis) -> tuple[object, ...]:
    """What of a diagnosis decides which repair fits, and where."""
    return diagnosis.cause, diagnosis.facts.get("recovery_action"), diagnosis.facts.get("subject")


def renewed(present: Diagnosis, successor: Diagnosis, at_s: float) -> Diagnosis | None:
    """The later diagnosis with its changed sentences marked; None where it says nothing new, or knows less."""
    old = {claim.sentence for claim in present.claims}
    new = [claim.sentence for claim in successor.claims if claim.sentence not in old]
    same = called_for(successor) == called_for(present)
    alike = successor.confidence is present.confidence and successor.headline == present.headline
    if not new and same and alike:
        return None
    # after a restart the history is short: what was proven then is still true
    vaguer = _LEVELS.index(successor.confidence) < _LEVELS.index(present.confidence)
    if same and (vaguer or len(successor.claims) < len(present.claims)):
        return None
    return replace(successor, facts={**successor.facts, CHANGED: "\n".join(new), CHANGED_S: at_s})


class Renewals:
    """One per replica; works while it leads, in the lifecycle's thread."""

    def __init__(self, store: Store, clock: Clock, diagnose: Callable[[Incident], Diagnosis]) -> None:
        self._store, self._clock, self._diagnose = store, clock, diagnose
        self._look_s = -EVERY_S
        self._next_s: dict[int, float] = {}
        self._log = structlog.get_logger("renewal")

    def turn(self) -> int:
        """Renews what is due; returns how many diagnoses were stored."""
        now_s = self._clock.now_s()
        # 0 <=: a clock that was set back must not stop it until it has caught up
        if 0 <= now_s - self._look_s < EVERY_S:
            return 0
        self._look_s = now_s
        rows = self._store.outdated_diagnoses(now_s, FIRST_S)
        due = [row for row in rows if not now_s < self._next_s.get(row.diagnosis, 0.0) <= now_s + LONGEST_S]
        self._next_s = {row.diagnosis: self._next_s.get(row.diagnosis, 0.0) for row in rows}
        stored = 0
        for row in due[:AT_ONCE]:
            self._next_s[row.diagnosis] = now_s + min(max(now_s - row.opened_s, FIRST_S), LONGEST_S)
            with suppress(Temporary, Permanent):
                stored += self._renew(row.incident, now_s)
        return stored

    def _renew(self, incident_id: str, now_s: float) -> bool:
        incident = self._store.incident(incident_id)
        if incident.diagnosis is None:
            return False
        told = renewed(incident.diagnosis, self._diagnose(incident), now_s)
        if told is None:
            return False
        unknown = Confidence.UNKNOWN
        replan = called_for(told) != called_for(incident.diagnosis) or (
            incident.diagnosis.confidence is unknown and told.confidence is not unknown
        )
        with suppress(Conflict):
            self._store.renew(incident, told, by="renewal", news=replan)
            self._log.info("diagnosis renewed", incident=incident.id, plan_again=replan)
            return True
        return False
