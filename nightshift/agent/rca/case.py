"""An incident as its rules see it, and the pieces of which a claim is drafted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from nightshift.agent.rca.bundle import Bundle
from nightshift.agent.rca.figures import Figure, Sentence, Ungrounded, figure_of, series_of
from nightshift.agent.store.diagnosis import FIGURES, Claim, Evidence, Predicate, Quote
from nightshift.agent.units import clock_time
from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.detectors.base import Finding


@dataclass(frozen=True)
class FaultPlace:
    """Where a fault sits, as the inventory knew it at the onset; empty where it is not known."""

    gpus: tuple[str, ...] = ()
    ranks: tuple[str, ...] = ()
    pods: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    whole_job: bool = False
    """Several ranks of the job show it alike, so that no one rank can be named."""
    others: tuple[str, ...] = ()
    """Further jobs that stop or wait alike in the same incident."""

    def sentence(self, subject: Subject) -> str:
        """Such as `rank 3 of ml/a (GPU-1f3c…, node n1)`."""
        return self._first(subject) + (f", and jobs {few(self.others, 8)}" if self.others else "")

    def _first(self, subject: Subject) -> str:
        if self.whole_job and len(self.jobs) == 1:
            place = f" ({len(self.gpus)} GPUs on {', '.join(self.nodes[:4])})" if self.gpus and self.nodes else ""
            return f"job {self.jobs[0]}{place}"
        head, inside = self._head(subject)
        if (len(self.gpus) == 1 and subject.kind is not SubjectKind.GPU) or (len(self.ranks) == 1 and self.gpus):
            inside.append(short(self.gpus[0]))
        if len(self.nodes) == 1 and subject.kind is not SubjectKind.NODE:
            inside.append(f"node {self.nodes[0]}")
        return f"{head} ({', '.join(inside)})" if inside else head

    def _head(self, subject: Subject) -> tuple[str, list[str]]:
        """The subject's own name for people, and what is known of where it is: its job, for another kind."""
        # people know a rank by its number in its job, not by its subject's name
        if len(self.ranks) == 1:
            job, _, number = self.ranks[0].rpartition("#")
            return f"rank {number} of {job}", []
        if subject.kind is SubjectKind.SOURCE:
            return subject.name, []
        if subject.kind in (SubjectKind.JOB, SubjectKind.NODE, SubjectKind.GPU):
            return f"{subject.kind} {short(subject.name)}", []
        return f"{subject.kind} {subject.name}", [f"job {job}" for job in self.jobs[:1]]


def few(names: Sequence[str], limit: int) -> str:
    """The first of some names, and how many more there are."""
    more = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {more} more" if more > 0 else "")


def short(name: str) -> str:
    """A GPU's UUID as people say it."""
    # eight hexadecimal digits tell a cluster's GPUs apart
    return f"{name[:12]}…" if name.startswith("GPU-") and len(name) > 16 else name


@dataclass(frozen=True)
class DiagnosisCase:
    """An incident as its rules see it: its first cause, everything found, the evidence, and where it sits."""

    cause: Finding
    findings: tuple[Finding, ...]
    bundle: Bundle
    where: FaultPlace

    def said(self, finding: Finding | None = None) -> Evidence | None:
        return self.bundle.one("finding", (finding or self.cause).episode)

    def figure(self, name: str, form: str | Callable[[float], str], finding: Finding | None = None) -> Figure:
        """A figure of a finding's own facts; `form` is a format, or writes the value. Empty where it is unknown."""
        item = self.said(finding)
        return Figure("", "") if item is None else figure_of(item, f"facts.{name}", form)

    def moment(self, name: str) -> Figure:
        """When the first cause began (`since_s`), or was last evaluated (`at_s`)."""
        item = self.said()
        return Figure("", "") if item is None else figure_of(item, name, clock_time)

    def fact(self, name: str, finding: Finding | None = None) -> float:
        value = (finding or self.cause).facts.get(name, math.nan)
        return float(value) if isinstance(value, int | float) and math.isfinite(float(value)) else math.nan


Drafts = Iterator[Claim | None]


def claim(
    predicate: Predicate,
    sentence: str | Sentence,
    *items: Evidence | None,
    quotes: tuple[Quote, ...] = (),
    **arguments: object,
) -> Claim | None:
    # builders name what they would like to cite: without it there is no claim
    if any(item is None for item in items):
        return None
    plain = {k: v if isinstance(v, str) else float(v) for k, v in arguments.items()}  # type: ignore[arg-type]
    said = sentence if isinstance(sentence, Sentence) else Sentence(sentence)
    plain[FIGURES] = said.lines
    return Claim(said.text, predicate, tuple(i.id for i in items if i is not None), quotes, plain)


def equals(
    case: DiagnosisCase, name: str, sentence: str | Sentence, finding: Finding | None = None
) -> Claim | None:
    """That a figure is what its detector says; None where it says none, whatever the sentence made of that."""
    finding = finding or case.cause
    value = finding.facts.get(name)
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return None
    return claim(Predicate.EQUALS, sentence, case.said(finding), path=f"facts.{name}", value=value)


def stretch(case: DiagnosisCase, tag: str, about: str, split_s: float) -> tuple[Evidence, float] | None:
    """The first such series that reaches to both sides of the split, and the time of its last value up to that."""
    for item in case.bundle.of(tag, about):
        try:
            times = [t for t, _ in series_of(item)]
        except Ungrounded:
            continue
        if times[0] <= split_s < times[-1]:
            return item, max(t for t in times if t <= split_s)
        # an exhibit begins at the onset as its detector sees it: then its first value is the "before"
        if times[0] < times[-1] and tag == "exhibit":
            return item, times[0]
    return None


def sides(item: Evidence, split_s: float) -> tuple[list[float], list[float]]:
    try:
        pairs = series_of(item)
    except Ungrounded:
        return [], []
    return [v for t, v in pairs if t <= split_s], [v for t, v in pairs if t > split_s]


def units_of(findings: Iterable[Finding]) -> str:
    """The units of memory that findings name, else "unit unknown": an error in SRAM is none of HBM."""
    named = {unit for f in findings for unit in str(f.facts.get("unit", "unit unknown")).split(", ")}
    return ", ".join(sorted(named - {"unit unknown"})) or "unit unknown"
