"""What a diagnosis is made of: evidence that can be hashed, claims that code re-evaluates, and labelled prose."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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


FIGURES = "figures"
"""The argument of a claim that says where each number of its sentence comes from: a line per number."""


CHANGED, CHANGED_S = "changed", "changed_s"
"""In a renewed diagnosis's facts: its sentences that are new, one a line, and when it was renewed (Unix s)."""


class ReadingState(StrEnum):
    """How far a language model is with a diagnosis."""

    WAITING = "waiting"
    READING = "reading"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Contest:
    """Why a model thinks a plan wrong: one sentence, and bytes of the evidence (`quote` names an item of the
    reading's own). `plan` is the action's kind and target."""

    plan: str
    reason: str
    quote: Quote


@dataclass(frozen=True, slots=True)
class QuotedSentence:
    """A sentence of a model's own, and bytes of the evidence that it rests on (`quote` names an item of the
    reading's own). The quote stands there; that the sentence follows from it is not proven."""

    text: str
    quote: Quote
    beyond: tuple[str, ...] = ()
    """Words of the sentence that are not in what it rests on: the model's own."""

    @property
    def marked(self) -> str:
        """The sentence as people see it: the words that its quote does not have are between ‹ and ›."""
        return marked(self.text, self.beyond)


def marked(text: str, terms: Iterable[str]) -> str:
    """A text with these of its words between ‹ and ›."""
    for term in terms:
        text = re.sub(rf"(?<![\w‹-]){re.escape(term)}(?![\w›-])", f"‹{term}›", text)
    return text.replace("› ‹", " ")


def suggestion(sentences: Sequence[QuotedSentence]) -> str:
    """What a model suggests, as one paragraph, with what its marks mean; empty where it says nothing."""
    if not sentences:
        return ""
    marks = " (words in ‹ › are not in its quotes)" if any(one.beyond for one in sentences) else ""
    return f"the model suggests{marks}: {' '.join(one.marked for one in sentences)}"


@dataclass(frozen=True, slots=True)
class Reading:
    """What a language model made of a diagnosis. It stands beside the diagnosis, so neither cause nor plan can
    change by it. `claims` held when they were re-evaluated over `evidence`, which has numbers of its own. `cause`
    is the nearest of our labels, `sentences` its own words for it, `checks` what a person can check next; none of
    the three is proven. `account` are words without quotes, as older versions stored them: they are not shown.
    `note` says what it does now or why it failed. `lines` are the decisive lines it was asked about (as hashes),
    `asked` how often it was asked."""

    state: ReadingState
    model: str
    claims: tuple[Claim, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    cause: str = ""
    account: str = ""
    sentences: tuple[QuotedSentence, ...] = ()
    checks: tuple[str, ...] = ()
    contest: Contest | None = None
    dropped: int = 0
    note: str = ""
    prompt_sha256: str = ""
    lines: tuple[str, ...] = ()
    asked: int = 0
    facts: Mapping[str, str | float] = field(default_factory=dict)


class Verdict(StrEnum):
    """What a model says to a question that can be answered so."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"
    """It cannot be told from the evidence, or the question is of another kind."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What there is to say to a question. `found` are lines that bear the question's words, with or without a
    model. `claims` held when they were re-evaluated over `evidence`; `said` has for each the model's own sentence,
    empty where that said more than its evidence. `note` says why there is no more."""

    state: ReadingState
    model: str = ""
    verdict: Verdict = Verdict.UNKNOWN
    found: tuple[Quote, ...] = ()
    claims: tuple[Claim, ...] = ()
    said: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    dropped: int = 0
    note: str = ""
    prompt_sha256: str = ""
    facts: Mapping[str, str | float] = field(default_factory=dict)


def with_reading(diagnosis: Diagnosis, reading: Reading) -> Diagnosis:
    """The diagnosis with a reading's claims and doubts beside its own, as it is shown. Cause, headline, confidence
    and the rules' claims and facts stay to the letter."""
    evidence, claims = joined_evidence(diagnosis.evidence, reading.claims, reading.evidence)
    known = {identity_of(claim) for claim in diagnosis.claims}
    fresh = tuple(claim for claim in claims if identity_of(claim) not in known)
    caveats = list(diagnosis.caveats)
    if reading.cause not in ("", str(diagnosis.cause), "unknown"):
        caveats.insert(0, f"the model reads it as {reading.cause.replace('_', ' ')}: the rules' cause remains")
    if reading.note:
        caveats.insert(0, reading.note)
    return replace(
        diagnosis,
        claims=(*diagnosis.claims, *fresh),
        evidence=evidence,
        caveats=tuple(caveats),
        hypothesis="; ".join(filter(None, [diagnosis.hypothesis, suggestion(quoted_sentences(reading))])),
        dropped=diagnosis.dropped + reading.dropped,
        author="rules and model" if fresh else diagnosis.author,
        model=reading.model,
        prompt_sha256=reading.prompt_sha256 or None,
        facts={**diagnosis.facts, **reading.facts},
    )


def quoted_sentences(reading: Reading) -> tuple[QuotedSentence, ...]:
    """A reading's sentences of which the quote still stands in the evidence, byte for byte."""
    content = {item.id: item.content for item in reading.evidence}
    return tuple(
        sentence
        for sentence in reading.sentences
        if sentence.quote.text.encode(errors="replace") in content.get(sentence.quote.evidence_id, b"")
    )


def joined_evidence(
    base: Sequence[Evidence], claims: Iterable[Claim], evidence: Sequence[Evidence]
) -> tuple[tuple[Evidence, ...], list[Claim]]:
    """`base` with what the claims cite of `evidence`, and the claims by the numbers of the whole: an item that
    `base` holds byte for byte keeps that number, another gets the next one."""
    items, names = list(base), {}
    cited = {name for claim in claims for name in claim.evidence_ids}
    same = {(item.query, item.media_type, item.sha256): item.id for item in base}
    last = max((int(item.id[1:]) for item in base if item.id[1:].isdecimal()), default=0)
    for item in evidence:
        if item.id not in cited:
            continue
        known = same.get((item.query, item.media_type, item.sha256))
        if known is None:
            last += 1
            known = f"E{last}"
            items.append(replace(item, id=known))
        names[item.id] = known
    return tuple(items), [_renamed(claim, names) for claim in claims if set(claim.evidence_ids) <= names.keys()]


def _renamed(claim: Claim, names: Mapping[str, str]) -> Claim:
    return replace(
        claim,
        evidence_ids=tuple(names[name] for name in claim.evidence_ids),
        quotes=tuple(Quote(names.get(q.evidence_id, q.evidence_id), q.text) for q in claim.quotes),
        evidence_sha256={names[name]: sha for name, sha in claim.evidence_sha256.items() if name in names},
        arguments={k: _renumbered(v, names) if k == FIGURES else v for k, v in claim.arguments.items()},
    )


def _renumbered(lines: str | float, names: Mapping[str, str]) -> str:
    """The figures' lines with the evidence's other numbers."""
    return "\n".join(
        f"{text}={' '.join(names.get(word, word) for word in how.split(' '))}"
        for text, _, how in (line.partition("=") for line in str(lines).split("\n") if line)
    )


def identity_of(claim: Claim) -> tuple[object, ...]:
    """By what two claims that say the same are equal, whatever their sentences."""
    return (
        claim.predicate,
        claim.evidence_ids,
        claim.quotes,
        tuple(sorted((item for item in claim.arguments.items() if item[0] != FIGURES), key=str)),
    )
