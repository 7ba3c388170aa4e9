"""What people said of diagnoses, right or wrong, as cases for an evaluation. The evidence is stored redacted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nightshift.agent.rca.summary import as_shown
from nightshift.agent.store.archive import Archive
from nightshift.agent.store.diagnosis import quoted_sentences
from nightshift.agent.store.incident import Cause, HistoryStep, Incident
from nightshift.agent.store.records import plain

_WORDS = {Cause.JUDGED_RIGHT: True, Cause.JUDGED_WRONG: False}


def judged(store: Archive) -> Iterator[dict[str, Any]]:
    """Every incident whose diagnosis somebody judged, the oldest first; of each person the latest word."""
    for row in reversed(store.incidents()):
        incident = as_shown(store.incident(row.id))
        words = {step.by: step for step in incident.history if step.cause in _WORDS}
        if words and incident.diagnosis is not None:
            yield _case(incident, words)


def _case(incident: Incident, words: dict[str, HistoryStep]) -> dict[str, Any]:
    diagnosis, reading = incident.diagnosis, incident.reading
    assert diagnosis is not None
    return {
        "incident": incident.id,
        "opened_s": incident.opened_s,
        "headline": diagnosis.headline,
        "cause": diagnosis.cause,
        "confidence": diagnosis.confidence,
        "claims": [claim.sentence for claim in diagnosis.claims],
        "model": diagnosis.model,
        "model_cause": reading.cause if reading is not None else "",
        "model_account": " ".join(one.text for one in quoted_sentences(reading)) if reading is not None else "",
        "findings": [stored.finding.summary for stored in incident.findings],
        "evidence": [plain(item) for item in diagnosis.evidence],
        "feedback": [
            {"right": _WORDS[Cause(step.cause)], "note": step.note, "by": who, "at_s": step.at_s}
            for who, step in words.items()
        ],
    }
