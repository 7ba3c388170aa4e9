"""An incident as its rules see it, and the pieces of which a claim is drafted."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from nightshift.agent.rca.bundle import Bundle
from nightshift.agent.rca.grounding import Ungrounded, series_of
from nightshift.agent.store.diagnosis import Claim, Evidence, Predicate, Quote
from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.detectors.base import Finding

GIB = float(2**30)
_P = Predicate


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
        inside = []
        # people know a rank by its number in its job, not by its subject's name
        if len(self.ranks) == 1:
            head = f"rank {self.ranks[0].rpartition('#')[2]} of {self.ranks[0].rpartition('#')[0]}"
        elif subject.kind in (SubjectKind.JOB, SubjectKind.NODE, SubjectKind.GPU, SubjectKind.SOURCE):
            head = (
                f"{subject.kind} {short(subject.name)}" if subject.kind is not SubjectKind.SOURCE else subject.name
            )
        else:
            head = f"{subject.kind} {subject.name}"
            inside += [f"job {job}" for job in self.jobs[:1]]
        if (len(self.gpus) == 1 and subject.kind is not SubjectKind.GPU) or (len(self.ranks) == 1 and self.gpus):
            inside.append(short(self.gpus[0]))
        if len(self.nodes) == 1 and subject.kind is not SubjectKind.NODE:
            inside.append(f"node {self.nodes[0]}")
        return f"{head} ({', '.join(inside)})" if inside else head


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

    def fact(self, name: str, finding: Finding | None = None) -> float:
        value = (finding or self.cause).facts.get(name, math.nan)
        return float(value) if isinstance(value, int | float) and math.isfinite(float(value)) else math.nan


Drafts = Iterator[Claim | None]


def claim(
    predicate: Predicate,
    sentence: str,
    *items: Evidence | None,
    quotes: tuple[Quote, ...] = (),
    **arguments: object,
) -> Claim | None:
    # builders name what they would like to cite: without it there is no claim
    if any(item is None for item in items):
        return None
    plain = {k: v if isinstance(v, str) else float(v) for k, v in arguments.items()}  # type: ignore[arg-type]
    return Claim(sentence, predicate, tuple(i.id for i in items if i is not None), quotes, plain)


def equals(case: DiagnosisCase, name: str, sentence: str, finding: Finding | None = None) -> Claim | None:
    """That a figure is what its detector says; None where it says none, whatever the sentence made of that."""
    finding = finding or case.cause
    value = finding.facts.get(name)
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return None
    return claim(_P.EQUALS, sentence, case.said(finding), path=f"facts.{name}", value=value)


def rise(case: DiagnosisCase, tag: str, about: str, split_s: float, least: float, sentence: str) -> Claim | None:
    """A rise in the first such series that reaches to both sides of the split."""
    for item in case.bundle.of(tag, about):
        try:
            times = [t for t, _ in series_of(item)]
        except Ungrounded:
            continue
        if times[0] <= split_s < times[-1]:
            return claim(_P.ROSE, sentence, item, split_s=split_s, at_least=least)
        # an exhibit begins at the onset as its detector sees it: then its first value is the "before"
        if times[0] < times[-1] and tag == "exhibit":
            return claim(_P.ROSE, sentence, item, split_s=times[0], at_least=least)
    return None


def span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def size(value: float) -> str:
    return f"{value / GIB:.2f} GiB" if abs(value) >= GIB / 10 else f"{value / 2**20:.0f} MiB"


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
