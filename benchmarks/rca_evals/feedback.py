"""What your people said of diagnoses, as incidents of an evaluation: `nightshift feedback --export FILE` writes
them.

One JSON object a line. Read are `incident` (its name), `headline` or `diagnosis` (what was judged), `evidence`
(items as they are stored, redacted) and `feedback` (a list of `{right, note, by, at_s}`), or in short `verdict`
("right" or "wrong"), `by` and `at`. What was judged right is the truth; of what was judged wrong, the note that
says what it was. The model is asked over the stored evidence, and its answer is read by the same scorer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.rca_evals.scorer import Truth, causes_in, judge
from nightshift.agent.rca.bundle import Bundle
from nightshift.agent.rca.investigate import Investigator
from nightshift.agent.rca.lookup import Lookup
from nightshift.agent.rca.model import Model, ModelSettings
from nightshift.agent.rca.redact import Redactor
from nightshift.agent.store.diagnosis import FACTS, LOG, SERIES, Confidence, Diagnosis, Evidence, quoted_sentences
from nightshift.agent.store.records import load
from nightshift.collectors.history import History
from nightshift.collectors.subject import Inventory
from nightshift.detectors.base import Fault

_TAG = {LOG: "raw_log", SERIES: "signal", FACTS: "topology"}


@dataclass(frozen=True)
class Judged:
    """A diagnosis that people judged. `truth` is None where their words name no cause that the scorer knows."""

    incident: str
    headline: str
    fault: Fault
    evidence: tuple[Evidence, ...]
    truth: Truth | None


def read(path: Path) -> Iterator[Judged]:
    """Raises ValueError that names file and line."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            yield _judged(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path}:{number}: {type(error).__name__}: {error}") from error


def _judged(row: Mapping[str, Any]) -> Judged:
    said = str(row.get("headline") or row.get("diagnosis") or "")
    words = row.get("feedback") or [{"right": _verdict(row["verdict"]), "note": row.get("note", "")}]
    last = words[-1]
    # a person's own word for what it was counts more than the headline
    told = str(last.get("note") or "") if not last["right"] else said
    names = causes_in(told)
    truth = Truth(names[0], (), tuple(names[1:])) if names else None
    evidence = tuple(load(Evidence, json.dumps(item)) for item in row.get("evidence", ()))
    fault = Fault(row["cause"]) if row.get("cause") else Fault.ANOMALY
    return Judged(str(row["incident"]), said, fault, evidence, truth)


def _verdict(word: object) -> bool:
    if word not in ("right", "wrong"):
        raise ValueError(f"verdict: {word!r} is neither right nor wrong")
    return word == "right"


def ask(judged: Judged, settings: ModelSettings) -> dict[str, Any]:
    """A row as for any other incident."""
    tags = {item.id: (_TAG.get(item.media_type, "raw_log"), "") for item in judged.evidence}
    onset_s = min((item.end_s for item in judged.evidence), default=0.0)
    lookup = Lookup(Bundle(judged.evidence, tags), History(), Inventory(), onset_s, onset_s)
    # the answer that was judged is not shown: it is what the model is measured by
    told = Diagnosis(judged.fault, "an alert fired", Confidence.UNKNOWN, (), judged.evidence)
    reading, spent = Investigator(Model(settings), Redactor())(told, lookup)
    shown = " ".join(sentence.text for sentence in quoted_sentences(reading))
    assert judged.truth is not None
    return {
        "case": judged.incident, "origin": "feedback", "cause": judged.truth.cause, "opened": True, "shown": shown,
        "verdict": asdict(judge(shown, judged.truth)), "unsupported": 0, "tokens": spent.tokens,
        "usd": spent.usd(settings), "seconds": round(spent.seconds, 3),
        "failure": str(reading.facts.get("model_failure", "")),
    }  # fmt: skip
