"""What a diagnosis is made of: evidence that can be hashed, claims that code re-evaluates, and labelled prose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from nightshift.collectors.seal import sha256_hex
from nightshift.detectors.base import Fault

SERIES = "application/vnd.nightshift.series+json"
LOG = "text/plain; charset=utf-8"
FACTS = "application/json"


@dataclass(frozen=True, slots=True)
class Evidence:
    """One numbered item of an incident's bundle (`E1`, `E2`, …). `content` is what was seen, byte for byte, by
    `media_type`: `SERIES` is JSON `{"t_s": […], "values": […], "unit": …, "metric": …, "subject": …}`; `LOG` is one
    line `<Unix s>[±<s>][@<clock>]\\t<text>` per record, with the time's uncertainty and whose clock it was; `FACTS`
    is JSON of any shape."""

    id: str
    source: str
    query: str
    start_s: float
    end_s: float
    media_type: str
    content: bytes
    title: str = ""

    @property
    def sha256(self) -> str:
        return sha256_hex(self.content)


class Predicate(StrEnum):
    """What a claim may say; each is re-evaluated by `agent.rca.grounding`."""

    ROSE = "rose"
    FELL = "fell"
    PRECEDED = "preceded"
    CO_LOCATED = "co_located"
    ABSENT = "absent"
    EQUALS = "equals"
    REPEATED = "repeated"


@dataclass(frozen=True, slots=True)
class Quote:
    """Bytes that stand in the evidence, exactly."""

    evidence_id: str
    text: str


@dataclass(frozen=True, slots=True)
class Claim:
    """One sentence with its proof: a predicate over evidence, its arguments, and quotes. `evidence_sha256` (by
    evidence id) is what the evidence hashed to when the claim was made: one changed byte and the claim falls."""

    sentence: str
    predicate: Predicate
    evidence_ids: tuple[str, ...]
    quotes: tuple[Quote, ...] = ()
    arguments: Mapping[str, str | float] = field(default_factory=dict)
    evidence_sha256: Mapping[str, str] = field(default_factory=dict)


class Confidence(StrEnum):
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The first cause, with claims that all held when they were re-evaluated. `dropped` counts those that did not.
    `caveats` is what we are not sure of; `hypothesis` is prose beyond the claims and is shown under that label."""

    cause: Fault
    headline: str
    confidence: Confidence
    claims: tuple[Claim, ...]
    evidence: tuple[Evidence, ...]
    caveats: tuple[str, ...] = ()
    hypothesis: str = ""
    dropped: int = 0
    author: str = "rules"
    model: str | None = None
    prompt_sha256: str | None = None
    facts: Mapping[str, str | float] = field(default_factory=dict)
