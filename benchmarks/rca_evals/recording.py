"""An incident as its sources wrote it, for other programs: the text that a daemon gets, line by line.

Noise and red herring are the same as in the product's evaluation. Cases of the cluster are not here: their
telemetry is no text.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.field.__main__ import START_S, TICK_S, Drawn
from benchmarks.field.report import Channel
from benchmarks.rca_evals.cases import Case, place_words, truth_of
from benchmarks.rca_evals.evaluation import BEFORE, with_herring
from benchmarks.rca_evals.scorer import Truth

_FILE = {
    Channel.KERNEL: "kern.log",
    Channel.JOB: "train.log",
    Channel.EXPORTER: "metrics.prom",
    Channel.KUBERNETES: "objects.jsonl",
}


@dataclass(frozen=True)
class Recording:
    """`file` names what `text` is; `place` is the answer's place, in words."""

    case: str
    cause: str
    file: str
    text: str
    place: str
    truth: Truth


def record(case: Case) -> Recording:
    """Raises ValueError for a case of the cluster."""
    report = case.report
    if report is None:
        raise ValueError(f"{case.name}: its telemetry is no text")
    drawn, parts, at_s = Drawn(1, report.source), [], START_S
    for lines in with_herring(case, report, BEFORE):
        for line in lines:
            if report.channel is Channel.KERNEL:
                parts.append(drawn.stamped(line, at_s, report))
            else:
                parts.append(drawn.fill(line, at_s) + "\n")
        at_s += TICK_S
    return Recording(
        case.name,
        case.cause,
        _FILE[report.channel],
        "".join(parts),
        place_words(case, drawn),
        truth_of(case, drawn),
    )
