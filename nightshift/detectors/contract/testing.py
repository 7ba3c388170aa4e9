"""Telemetry made by hand, and what a detector says of it: for tests, for docs, and for who writes a plug-in.

One node `n1` whose GPUs belong to the job `ml/train`. A tick holds only what it is given; what a GPU or rank lacks
is missing, as in real telemetry.

>>> from nightshift.detectors.hardware.xid import XidDetector
>>> line = "NVRM: Xid (PCI:0000:9b:00): 79, pid=4242, name=python, GPU has fallen off the bus."
>>> [(f.state.value, f.fault.value) for f in changes(XidDetector(), [tick(START_S, kernel=[line])])]
[('firing', 'xid')]
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np

from nightshift.collectors.frame import Frame, Instant, LogRecord, Reason, SeriesIndex, SourceStatus, StepSeries
from nightshift.collectors.kernel_log.lines import KernelLogParser
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.base import Detector, Finding, SeriesExhibit, State
from nightshift.detectors.contract.world import START_S

NODE = Subject(SubjectKind.NODE, "n1")
JOB = Subject(SubjectKind.JOB, "ml/train")
SOURCE = Subject(SubjectKind.SOURCE, "page n1")


class Kind(Protocol):
    """A detector class, as the tuple of plug-ins holds them."""

    plugin: str

    def __call__(self) -> Detector: ...


def gpu(number: int | str) -> Subject:
    return Subject(SubjectKind.GPU, f"GPU-{number}")


def rank(number: int) -> Subject:
    return Subject(SubjectKind.RANK, f"{JOB.name}#{number}")


def inventory(gpus: int = 8) -> Inventory:
    """GPUs, pods and ranks of one job on one node."""
    known = Inventory()
    for number in range(gpus):
        pod = Subject(SubjectKind.POD, f"{JOB.name}-{number}")
        for child, parent in (
            (gpu(number), NODE),
            (gpu(number), pod),
            (gpu(number), rank(number)),
            (pod, JOB),
            (pod, NODE),
            (rank(number), pod),
            (rank(number), JOB),
        ):
            known.observe(child, parent, START_S - 60)
    return known


def frame(
    at_s: float, rows: Mapping[Subject, Mapping[str, float]], kind: SubjectKind = SubjectKind.GPU, epoch: int = 0
) -> Frame:
    """Subject → metric → value; a metric that a subject lacks is NaN.

    >>> made = frame(START_S, {gpu(0): {"gpu_power_w": 650.0}, gpu(1): {"gpu_temperature_c": 50.0}})
    >>> made.value(gpu(0), "gpu_power_w"), made.value(gpu(1), "gpu_power_w")
    (650.0, nan)
    """
    metrics = tuple(dict.fromkeys(name for row in rows.values() for name in row))
    values = np.array([[row.get(name, np.nan) for name in metrics] for row in rows.values()])
    return Frame(
        at_s,
        SeriesIndex(kind, tuple(rows)),
        metrics,
        values.reshape(len(rows), len(metrics)),
        np.full((1, len(metrics)), at_s),
        np.full(len(rows), epoch, dtype=np.int64),
    )


def steps(
    subject: Subject, first: int, at_s: Sequence[float], columns: Mapping[str, Sequence[float]], run: str = "run"
) -> StepSeries:
    """Steps `first`, `first` + 1, … of a job or rank, printed at these times (Unix s); columns: one value a
    step."""
    numbers = np.arange(first, first + len(at_s))
    values = {name: np.asarray(column, dtype=float) for name, column in columns.items()}
    return StepSeries(subject, run, numbers, np.asarray(at_s, dtype=float), values, "log")


def tick(
    at_s: float,
    rows: Mapping[int, Mapping[str, float]] | None = None,
    kind: SubjectKind = SubjectKind.GPU,
    epoch: int = 0,
    *,
    frames: Sequence[Frame] = (),
    series: Sequence[StepSeries] = (),
    kernel: Sequence[str] = (),
    logs: Sequence[str] = (),
    failed: Reason | None = None,
) -> Tick:
    """rows: GPU number → metric → value, or NVLink 0 of those GPUs where `kind` is LINK. kernel: lines of the
    node's kernel log; logs: lines of the job's. failed: why the source did not answer."""
    made = list(frames)
    if rows is not None:
        by_gpu = kind is SubjectKind.GPU
        subjects = {n: gpu(n) if by_gpu else Subject(kind, f"GPU-{n}/link0") for n in rows}
        made.append(frame(at_s, {subjects[n]: row for n, row in rows.items()}, kind, epoch))
    at = Instant(at_s, 0.0, NODE.name)
    records = [LogRecord(at, "/dev/kmsg", NODE, text, number) for number, text in enumerate(kernel)]
    _, events = KernelLogParser(NODE).sift(records, len(records))
    lines = [LogRecord(at, "log", JOB, text, number) for number, text in enumerate(logs)]
    status = SourceStatus(SOURCE, at_s, ok=failed is None, reason=failed, covers=(NODE,))
    return Tick(at_s, {f.kind: f for f in made}, series, (*records, *lines), events, (status,))


def run(detector: Detector, ticks: Sequence[Tick], inventory: Inventory) -> list[Finding]:
    """Everything that the detector says, in order."""
    return [finding for tick in ticks for finding in detector.update(tick, inventory)]


def changes(detector: Detector, ticks: Sequence[Tick], known: Inventory | None = None) -> list[Finding]:
    """Every change of state of every episode, in order."""
    states: dict[str, str] = {}
    found = []
    for finding in run(detector, ticks, known or inventory()):
        if states.get(finding.episode) != finding.state:
            states[finding.episode] = finding.state
            found.append(finding)
    return found


def show(detector: Detector, ticks: Sequence[Tick], known: Inventory | None = None) -> None:
    """Prints every change: when (s after the first tick), state, fault and subject, and its summary below.

    >>> from nightshift.detectors.source_lost import SourceLost
    >>> show(SourceLost(), [tick(START_S), tick(START_S + 200.0, failed=Reason.TIMEOUT)])
    200 s: firing source_lost source:page n1
        No good answer for 200 s (timeout); unwatched: node:n1
    """
    for f in changes(detector, ticks, known):
        print(f"{f.at.t_s - ticks[0].at_s:.0f} s: {f.state} {f.fault} {f.subject}\n    {f.summary}")


def lawful(findings: Sequence[Finding], ticks: Sequence[Tick], begun_earlier: bool = False) -> Iterator[str]:
    """What findings break of the contract by themselves. begun_earlier: episodes may be a restored state's."""
    last = max((t.at_s for t in ticks), default=math.inf)
    open_now: dict[str, State] = {}
    for finding in findings:
        yield from _odd_figures(finding, last)
        known = open_now.get(finding.episode)
        if known is None and finding.state is not State.FIRING and not begun_earlier:
            yield f"{finding.fault} of {finding.subject} is {finding.state} without having fired"
        if known is finding.state and finding.state is State.NO_DATA:
            yield f"{finding.fault} of {finding.subject} says {finding.state} twice"
        open_now[finding.episode] = finding.state
        if finding.state is State.CLEAR:
            del open_now[finding.episode]


def _odd_figures(finding: Finding, last_s: float) -> Iterator[str]:
    """What is missing of a finding, no number, or of a time after the last tick."""
    for name, value in (("since", finding.since.t_s), ("at", finding.at.t_s)):
        if not math.isfinite(value):
            yield f"{finding.summary!r}: {name} is {value}"
    if finding.at.t_s > last_s:
        yield f"{finding.summary!r} is said in the future"
    if not finding.summary or not math.isfinite(finding.score) or not math.isfinite(finding.threshold):
        yield f"{finding.fault} of {finding.subject}: no summary, or no finite score and threshold"
    for exhibit in finding.evidence:
        if isinstance(exhibit, SeriesExhibit) and not all(map(math.isfinite, (*exhibit.t_s, *exhibit.values))):
            yield f"{finding.fault} of {finding.subject}: an exhibit holds NaN or infinity"


def key(findings: Sequence[Finding]) -> list[str]:
    return [repr((f.episode, f.state, f.at, f.summary, f.score, sorted(f.facts.items()))) for f in findings]
