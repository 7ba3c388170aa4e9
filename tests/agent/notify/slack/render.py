"""An incident full of text from outside."""

from __future__ import annotations

import json

from nightshift.agent.store.diagnosis import SERIES, Claim, Confidence, Diagnosis, Evidence, Predicate, Quote
from nightshift.agent.store.incident import HistoryStep, Incident, IncidentState, StoredFinding
from nightshift.detectors.base import Fault, Severity, State
from tests.agent.incidents import a_finding, an_action


def with_a_series() -> Diagnosis:
    """A diagnosis whose first claim rests on a series."""
    body = {
        "t_s": [0.0, 60.0, 120.0],
        "values": [1.0, 2.0, 3.0],
        "unit": "bytes",
        "metric": "gpu_memory_used_bytes",
    }
    content = json.dumps(body | {"subject": "gpu:GPU-1"}).encode()
    item = Evidence("E1", "dcgm n1", "gpu_memory_used_bytes", 0.0, 120.0, SERIES, content, "memory")
    claim = Claim("memory rose", Predicate.ROSE, ("E1",), (), {}, {"E1": item.sha256})
    return Diagnosis(Fault.GPU_MEMORY_LEAK, "memory of GPU-1 leaks", Confidence.HIGH, (claim,), (item,))


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
    history = (HistoryStep(1.0, None, IncidentState.OPEN, "approved", said, said),)
    return Incident(
        "INC-1", IncidentState.AWAITING_APPROVAL, said, Severity.WARNING, 0.0, 1.0, 1.0, (stored,), diagnosis,
        an_action(), said, 1, None, history, 3,
    )  # fmt: skip
