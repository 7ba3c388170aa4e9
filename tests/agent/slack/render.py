"""An incident full of text from outside."""

from __future__ import annotations

from agent.incident import Incident, IncidentState, Step, StoredFinding
from agent.rca.diagnosis import Claim, Confidence, Diagnosis, Evidence, Predicate, Quote
from detectors.base import Fault, Severity, State
from tests.agent.incidents import a_finding, an_action


def an_incident(said: str) -> Incident:
    """Every field that may hold text from outside holds `said`."""
    content = said.encode(errors="replace")
    item = Evidence("E1", said or "s", said, 0.0, 1.0, "text/plain; charset=utf-8", content, said)
    quotes = (Quote("E1", said[:50]),) if said[:50].strip() else ()
    claim = Claim(said, Predicate.EQUALS, ("E1",), quotes, {}, {"E1": item.sha256})
    diagnosis = Diagnosis(
        Fault.XID, said, Confidence.LOW, (claim,), (item,), (said,), said, facts={"job": said, "owner": said}
    )
    stored = StoredFinding(a_finding(), State.FIRING, 1.0, 1.0)
    history = (Step(1.0, None, IncidentState.OPEN, "approved", said, said),)
    return Incident(
        "INC-1", IncidentState.AWAITING_APPROVAL, said, Severity.WARNING, 0.0, 1.0, 1.0, (stored,), diagnosis,
        an_action(), said, 1, None, history, 3,
    )  # fmt: skip
