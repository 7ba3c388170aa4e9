"""A node of GPUs whose metrics a test sets: ticks of one frame, made by hand."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nightshift.collectors.frame import Frame, SeriesIndex, SourceStatus
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.base import Detector, Finding

START_S = 1_790_000_000.0
NODE = Subject(SubjectKind.NODE, "n1")
JOB = Subject(SubjectKind.JOB, "ml/train")
SOURCE = Subject(SubjectKind.SOURCE, "page n1")


def gpu(number: int | str) -> Subject:
    return Subject(SubjectKind.GPU, f"GPU-{number}")


def inventory(gpus: int = 8) -> Inventory:
    known = Inventory()
    for number in range(gpus):
        known.observe(gpu(number), NODE, START_S - 60)
        pod = Subject(SubjectKind.POD, f"ml/train-{number}")
        known.observe(gpu(number), pod, START_S - 60)
        known.observe(pod, JOB, START_S - 60)
    return known


def tick(
    at_s: float, rows: Mapping[int, Mapping[str, float]], kind: SubjectKind = SubjectKind.GPU, epoch: int = 0
) -> Tick:
    """rows: GPU number → metric → value; a metric that a GPU lacks is NaN."""
    metrics = tuple(dict.fromkeys(name for row in rows.values() for name in row))
    subjects = [gpu(n) if kind is SubjectKind.GPU else Subject(kind, f"GPU-{n}/link0") for n in rows]
    values = np.array([[row.get(name, np.nan) for name in metrics] for row in rows.values()]).reshape(
        len(rows), len(metrics)
    )
    frame = Frame(
        at_s,
        SeriesIndex(kind, tuple(subjects)),
        metrics,
        values,
        np.full((1, len(metrics)), at_s),
        np.full(len(rows), epoch, dtype=np.int64),
    )
    return Tick(at_s, {kind: frame}, sources=(SourceStatus(SOURCE, at_s, ok=True, covers=(NODE,)),))


def told(detector: Detector, ticks: list[Tick], known: Inventory | None = None) -> list[Finding]:
    """Every change of state of every episode, in order."""
    states: dict[str, str] = {}
    found = []
    for moment in ticks:
        for finding in detector.update(moment, known or inventory()):
            if states.get(finding.episode) != finding.state:
                states[finding.episode] = finding.state
                found.append(finding)
    return found
