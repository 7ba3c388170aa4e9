"""The contract that every detector passes, whatever its method: `problems(kind)` lists what it breaks.

Telemetry comes missing, late, twice and out of order; counters start anew; GPUs are swapped, join and leave. A
detector that raises, invents a fault or forgets one over any of that cannot be on call. A detector is checked by
adding it to `detectors.plugins.ALL`; nothing here knows any detector by name.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from types import FrameType
from typing import Protocol

import numpy as np

from collectors.frame import Floats, Frame, Instant, LogRecord, Reason, SeriesIndex, SourceStatus, StepSeries
from collectors.kernel_event import KernelEvent, KernelEventKind
from collectors.metrics import METRICS, MetricType
from collectors.subject import Inventory, Subject, SubjectKind
from collectors.tick import Tick
from detectors.base import Detector, Finding, SeriesExhibit, SnapshotError, State

START_S = 1_790_000_000.0
TICK_S = 5.0


class Kind(Protocol):
    """A detector class, as the tuple of plug-ins holds them."""

    plugin: str

    def __call__(self) -> Detector: ...


class World:
    """A small fleet that is perfectly well: constant levels, steady counters, steps with a falling loss."""

    def __init__(self, seed: int = 0, gpus: int = 8) -> None:
        self.rng = np.random.default_rng(seed)
        self.node = Subject(SubjectKind.NODE, "n1")
        self.job = Subject(SubjectKind.JOB, "ml/train")
        self.source = Subject(SubjectKind.SOURCE, "page n1")
        self.gpus = [Subject(SubjectKind.GPU, f"GPU-{g}") for g in range(gpus)]
        self.ranks = [Subject(SubjectKind.RANK, f"ml/train#{g}") for g in range(gpus)]
        self.boxes = [Subject(SubjectKind.CONTAINER, f"ml/train-{g}/main") for g in range(gpus)]
        self.others = {
            SubjectKind.NODE: [self.node],
            SubjectKind.LINK: [Subject(SubjectKind.LINK, "GPU-0/link0")],
            SubjectKind.NIC: [Subject(SubjectKind.NIC, "n1/mlx5_0")],
            SubjectKind.SERVER: [Subject(SubjectKind.SERVER, "http://n1:8000/chat")],
        }
        self.kinds = (SubjectKind.GPU, SubjectKind.CONTAINER, *self.others)

    def inventory(self) -> Inventory:
        known = Inventory()
        for gpu, rank, box in zip(self.gpus, self.ranks, self.boxes, strict=True):
            pod = Subject(SubjectKind.POD, box.name.rpartition("/")[0])
            known.describe(gpu, model="NVIDIA H200")
            for child, parent in (
                (gpu, self.node),
                (gpu, pod),
                (gpu, rank),
                (pod, self.node),
                (pod, self.job),
                (box, pod),
                (rank, pod),
                (rank, self.job),
            ):
                known.observe(child, parent, START_S - 60.0)
        return known

    def subjects(self, kind: SubjectKind) -> list[Subject]:
        return list({SubjectKind.GPU: self.gpus, SubjectKind.CONTAINER: self.boxes, **self.others}[kind])

    def frame(self, kind: SubjectKind, number: int, at_s: float) -> Frame:
        subjects = self.subjects(kind)
        metrics = tuple(m.name for m in METRICS if m.kind is kind)
        values = np.empty((len(subjects), len(metrics)))
        for column, metric in enumerate(m for m in METRICS if m.kind is kind):
            values[:, column] = _healthy(metric.name, metric.type, number)
        epoch = np.zeros(len(subjects), dtype=np.int64)
        return Frame(
            at_s, SeriesIndex(kind, tuple(subjects)), metrics, values, np.full((1, len(metrics)), at_s), epoch
        )

    def steps(self, number: int, at_s: float) -> tuple[StepSeries, ...]:
        step = np.arange(5 * number, 5 * number + 5)
        t_s = at_s + np.arange(-4.0, 1.0, dtype=np.float64) * (TICK_S / 5.0)
        loss = 2.0 + 3.0 * np.exp(-step / 200.0) + 0.02 * self.rng.standard_normal(5)
        columns = {
            "loss": loss,
            "grad_norm": np.ones(5),
            "learning_rate": np.full(5, 1e-3),
            "data_s": np.full(5, 0.01),
        }
        own = 0.5 + 0.02 * self.rng.standard_normal((len(self.ranks), 5))
        return tuple(
            StepSeries(rank, "run", step, t_s, {**columns, "compute_s": own[r]}, "log")
            for r, rank in enumerate(self.ranks)
        )

    def tick(self, number: int) -> Tick:
        at_s = START_S + number * TICK_S
        frames = {kind: self.frame(kind, number, at_s) for kind in self.kinds}
        status = SourceStatus(self.source, at_s, ok=True, covers=(self.node,))
        return Tick(at_s, frames, self.steps(number, at_s), sources=(status,))

    def ticks(self, count: int) -> list[Tick]:
        return [self.tick(number) for number in range(count)]


def _healthy(name: str, kind: MetricType, number: int) -> float:
    if name in ("gpu_ecc_sbe_total", "gpu_ecc_dbe_total") or any(w in name for w in ("remap", "retired", "oom")):
        return 0.0
    if kind is MetricType.COUNTER:
        return 1000.0 if any(word in name for word in _RARE) else 1000.0 + 500.0 * number
    if name in ("gpu_throttle_reasons", "gpu_xid_last"):
        return 0.0
    if "ratio" in name:
        return 0.8
    if name.endswith("_bytes"):
        return 64e9 if "limit" in name or "free" in name or "total" in name else 16e9
    return _LEVELS.get(name, 60.0)


_RARE = ("error", "replay", "down", "recover", "drops", "failed")
_LEVELS = {
    "gpu_utilization_percent": 96.0,
    "gpu_power_w": 655.0,
    "gpu_power_limit_w": 700.0,
    "gpu_temperature_c": 52.0,
    "gpu_sm_clock_mhz": 1980.0,
}
"""An H200 that trains, as recorded, so that a detector trained on one knows it."""


def make(kind: Kind) -> Detector:
    """The detector as it is checked: by `for_check` where it is of no use without a trained model."""
    built: Detector = getattr(kind, "for_check", kind)()
    return built


def run(detector: Detector, ticks: Sequence[Tick], inventory: Inventory) -> list[Finding]:
    return [finding for tick in ticks for finding in detector.update(tick, inventory)]


def _changed(tick: Tick, change: Callable[[Frame], Frame]) -> Tick:
    return replace(tick, frames={kind: change(frame) for kind, frame in tick.frames.items()})


def _values(frame: Frame, values: Floats) -> Frame:
    return replace(frame, values=values)


def missing(world: World) -> Iterator[Tick]:
    """A third of all values, then whole columns, then whole frames and the steps are not there."""
    for number, tick in enumerate(world.ticks(120)):
        if number % 40 > 30:
            yield Tick(tick.at_s, {}, (), sources=(replace(tick.sources[0], ok=False, reason=Reason.TIMEOUT),))
        else:
            yield _changed(
                tick, lambda f: _values(f, np.where(world.rng.random(f.values.shape) < 0.3, np.nan, f.values))
            )


def late(world: World) -> Iterator[Tick]:
    """Samples and steps that were observed up to two minutes ago."""
    for tick in world.ticks(120):
        steps = tuple(replace(s, t_s=s.t_s - 120.0) for s in tick.steps)
        yield replace(_changed(tick, lambda f: replace(f, observed_at_s=f.observed_at_s - 120.0)), steps=steps)


def duplicated(world: World) -> Iterator[Tick]:
    """Every tick comes twice, with the same steps and the same time."""
    for tick in world.ticks(120):
        yield tick
        yield tick


def reordered(world: World) -> Iterator[Tick]:
    """Neighbouring ticks swapped in time, and steps in reverse order."""
    ticks = world.ticks(120)
    for first, second in zip(ticks[::2], ticks[1::2], strict=True):
        yield second
        yield replace(first, steps=tuple(_reversed(s) for s in first.steps))


def _reversed(series: StepSeries) -> StepSeries:
    columns = {name: values[::-1] for name, values in series.columns.items()}
    return replace(series, step=series.step[::-1], t_s=series.t_s[::-1], columns=columns)


def counter_reset(world: World) -> Iterator[Tick]:
    """All counters start at zero again half way, in a new epoch."""
    counters = {m.name for m in METRICS if m.type is MetricType.COUNTER}
    for number, tick in enumerate(world.ticks(120)):
        if number < 60:
            yield tick
            continue
        yield _changed(tick, lambda f: _reset(f, counters))


def _reset(frame: Frame, counters: set[str]) -> Frame:
    values = frame.values.copy()
    for column, name in enumerate(frame.metrics):
        if name in counters:
            values[:, column] = 0.0
    return replace(frame, values=values, epoch=frame.epoch + 1)


def swapped(world: World) -> Iterator[Tick]:
    """Half way every GPU's row carries another UUID, and rows change their order."""
    for number, tick in enumerate(world.ticks(120)):
        if number >= 60:
            world.gpus = [Subject(SubjectKind.GPU, f"GPU-new-{g}") for g in reversed(range(len(world.gpus)))]
        yield replace(tick, frames={kind: world.frame(kind, number, tick.at_s) for kind in world.kinds})


def membership(world: World) -> Iterator[Tick]:
    """Devices join and leave in every tick, down to none."""
    everyone, boxes = list(world.gpus), list(world.boxes)
    for number, tick in enumerate(world.ticks(120)):
        size = [8, 3, 0, 5, 8, 1][number % 6]
        world.gpus, world.boxes = everyone[:size], boxes[:size]
        yield replace(tick, frames={kind: world.frame(kind, number, tick.at_s) for kind in world.kinds})
    world.gpus, world.boxes = everyone, boxes


def constant(world: World) -> Iterator[Tick]:
    """Everything constant, the loss and all counters too."""
    for tick in world.ticks(240):
        steps = tuple(replace(s, columns={**s.columns, "loss": np.full(len(s.step), 2.0)}) for s in tick.steps)
        yield replace(_changed(tick, lambda f: world.frame(f.kind, 0, f.at_s)), steps=steps)


EXTREMES = (np.inf, -np.inf, np.nan, 1e308, -1e308, 5e-324, 0.0, 2.0**63, float(2**31 - 16))


def extremes(world: World) -> Iterator[Tick]:
    """Any float in any place, times and losses too: no exception, and only finite times and finite onsets."""
    for tick in world.ticks(120):
        steps = tuple(
            replace(s, columns={name: world.rng.choice(EXTREMES, len(s.step)) for name in s.columns})
            for s in tick.steps
        )
        yield replace(_changed(tick, lambda f: _values(f, world.rng.choice(EXTREMES, f.values.shape))), steps=steps)


def slow_scrapes(world: World) -> Iterator[Tick]:
    """A healthy fleet that is scraped once a minute."""
    for number, tick in enumerate(world.ticks(120)):
        at_s = START_S + number * 60.0
        steps = tuple(replace(s, t_s=at_s + np.arange(-4.0, 1.0, dtype=np.float64) * 12.0) for s in tick.steps)
        frames = {kind: world.frame(kind, 12 * number, at_s) for kind in world.kinds}
        yield Tick(at_s, frames, steps, sources=(replace(tick.sources[0], at_s=at_s),))


SILENT: tuple[Callable[[World], Iterator[Tick]], ...] = (
    late,
    duplicated,
    reordered,
    counter_reset,
    swapped,
    membership,
    constant,
    slow_scrapes,
)
"""Streams in which nothing is wrong: no finding may come."""

HOSTILE: tuple[Callable[[World], Iterator[Tick]], ...] = (missing, extremes)
"""Streams that may be called faulty, but must be survived."""


def faults(world: World) -> Iterator[Tick]:
    """A burst of everything: rank 0 leaks and is slow, all diverge, stall and stop; errors, Xids, a lost source.

    After sample 200 nothing is observed any more: whatever fires must become no_data, never clear.
    """
    for number, tick in enumerate(world.ticks(200)):
        yield replace(
            _changed(tick, lambda f, n=number: _faulty(f, n)),  # type: ignore[misc]
            steps=tuple(_diverged(s, number) for s in tick.steps if not _stopped(number)),
            events=_events(world, tick.at_s) if number % 20 == 0 else (),
            logs=_logs(world, tick.at_s) if number % 20 == 0 else (),
            sources=(*tick.sources, SourceStatus(Subject(SubjectKind.SOURCE, "gone"), tick.at_s, ok=False)),
        )


def _faulty(frame: Frame, number: int) -> Frame:
    values = frame.values.copy()
    for name, slope in (
        ("gpu_memory_used_bytes", 1e8),
        ("container_memory_anonymous_bytes", 1e7),
        ("container_memory_working_set_bytes", 1e7),
        ("gpu_ecc_dbe_total", 0.1),
    ):
        if name in frame.columns and len(values):
            values[0, frame.columns[name]] += slope * number
    for name, row, level in _HARDWARE:
        if name in frame.columns and len(values) > row and number >= 20:
            before = values[row, frame.columns[name]]
            values[row, frame.columns[name]] = before + level * number if name.endswith("total") else level
    for name, level in (("gpu_utilization_percent", 0.0), ("gpu_power_w", 100.0)):
        if name in frame.columns and _stopped(number):
            values[:, frame.columns[name]] = level
    if frame.kind is SubjectKind.SERVER and _stopped(number):
        stood = min(number - number % 10 + 4, 149)
        for name in ("server_generated_tokens_total", "server_requests_done_total"):
            values[:, frame.columns[name]] = 1000.0 + 500.0 * stood
    frame = replace(frame, values=values)
    return frame if frame.kind is not SubjectKind.GPU or number < 40 else _without_last(frame)


_HARDWARE = (
    ("gpu_throttle_reasons", 1, 64.0),
    ("gpu_sm_clock_mhz", 1, 30.0),
    ("gpu_pcie_replay_total", 2, 100.0),
    ("gpu_nvlink_crc_errors_total", 3, 1e5),
)
"""(metric, row, level or rise per tick) from tick 20 on: heat on one GPU, bad links on two others."""


def _without_last(frame: Frame) -> Frame:
    """The page goes on with one device fewer."""
    index = SeriesIndex(frame.kind, frame.index.subjects[:-1])
    return replace(frame, index=index, values=frame.values[:-1], epoch=frame.epoch[:-1])


def _stopped(number: int) -> bool:
    """Stalls of 25 s from sample 60 on, and no step at all after sample 150."""
    return number >= 150 or (number >= 60 and number % 10 >= 5)


def _diverged(series: StepSeries, number: int) -> StepSeries:
    if number < 60:
        return series
    slow = 1.5 if series.subject.name.endswith("#0") else 1.0
    changed = {"loss": series.column("loss") + 20.0, "compute_s": series.column("compute_s") * slow}
    return replace(series, columns={**series.columns, **changed})


def _logs(world: World, at_s: float) -> tuple[LogRecord, ...]:
    """A collective that did not end, in the watchdog's words."""
    text = (
        "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=15, OpType=ALLREDUCE, NumelIn=1, "
        "NumelOut=1, Timeout(ms)=600000) ran for 600029 milliseconds before timing out."
    )
    return (LogRecord(Instant(at_s), "log", world.job, text, int(at_s)),)


def _events(world: World, at_s: float) -> tuple[KernelEvent, ...]:
    found = []
    for kind, code in ((KernelEventKind.XID, 48), (KernelEventKind.XID, 79), (KernelEventKind.OOM_KILL, None)):
        record = LogRecord(Instant(at_s), "kernel", world.node, f"{kind} {code}", int(at_s))
        gpu = world.gpus[0] if code is not None else None
        found.append(KernelEvent(kind, record, world.node, code=code, gpu=gpu))
    return tuple(found)


def silence(world: World, from_number: int, count: int) -> Iterator[Tick]:
    """Ticks in which no source answers and nothing is observed."""
    for number in range(from_number, from_number + count):
        at_s = START_S + number * TICK_S
        status = SourceStatus(world.source, at_s, ok=False, reason=Reason.UNREACHABLE, covers=(world.node,))
        gone = SourceStatus(Subject(SubjectKind.SOURCE, "gone"), at_s, ok=False, reason=Reason.UNREACHABLE)
        yield Tick(at_s, {}, (), sources=(status, gone))


def _lawful(findings: Sequence[Finding], ticks: Sequence[Tick]) -> Iterator[str]:
    last = max((t.at_s for t in ticks), default=math.inf)
    open_now: dict[str, State] = {}
    for finding in findings:
        for name, value in (("since", finding.since.t_s), ("at", finding.at.t_s)):
            if not math.isfinite(value):
                yield f"{finding.summary!r}: {name} is {value}"
        if finding.at.t_s > last:
            yield f"{finding.summary!r} is said in the future"
        if not finding.summary or not math.isfinite(finding.score) or not math.isfinite(finding.threshold):
            yield f"{finding.fault} of {finding.subject}: no summary, or no finite score and threshold"
        for exhibit in finding.evidence:
            if isinstance(exhibit, SeriesExhibit) and not all(map(math.isfinite, (*exhibit.t_s, *exhibit.values))):
                yield f"{finding.fault} of {finding.subject}: an exhibit holds NaN or infinity"
        known = open_now.get(finding.episode)
        if known is None and finding.state is not State.FIRING:
            yield f"{finding.fault} of {finding.subject} is {finding.state} without having fired"
        if known is finding.state and finding.state is State.NO_DATA:
            yield f"{finding.fault} of {finding.subject} says {finding.state} twice"
        open_now[finding.episode] = finding.state
        if finding.state is State.CLEAR:
            del open_now[finding.episode]


def _key(findings: Sequence[Finding]) -> list[str]:
    return [repr((f.episode, f.state, f.at, f.summary, f.score, sorted(f.facts.items()))) for f in findings]


def _silence_after_faults(world: World) -> Iterator[Tick]:
    return silence(world, 200, 240)


@cache
def _played(stream: Callable[[World], Iterator[Tick]]) -> tuple[list[Tick], Inventory]:
    """A stream's ticks and its inventory: made once, since detectors change neither."""
    world = World()
    return list(stream(world)), world.inventory()


def problems(kind: Kind) -> list[str]:
    """What a detector class breaks of the contract; empty where it keeps it."""
    found: list[str] = []
    if make(kind).name != kind.plugin or not make(kind).faults:
        found.append("its name is not its plug-in's name, or it names no fault")
    for stream in (*SILENT, *HOSTILE):
        ticks, inventory = _played(stream)
        findings = run(make(kind), ticks, inventory)
        found += [f"{stream.__name__}: {problem}" for problem in _lawful(findings, ticks)]
        if stream in SILENT and findings:
            found.append(f"{stream.__name__}: nothing is wrong, and it said {findings[0].summary!r}")
        if _key(run(make(kind), ticks, inventory)) != _key(findings):
            found.append(f"{stream.__name__}: the same ticks gave other findings")
    return found + _no_data(kind) + _snapshots(kind) + _columnar(kind)


CONTRACT = {
    "missing samples": "missing",
    "late samples": "late",
    "duplicated samples": "duplicated",
    "reordered samples": "reordered",
    "a counter reset": "counter_reset",
    "a UUID swap": "swapped",
    "devices that join and leave": "membership",
    "all-constant input": "constant",
    "float extremes": "extremes",
    "slow scrapes": "slow_scrapes",
    "a saved state, never a pickle": "_snapshots",
    "determinism": "problems",
    "time per sample": "_columnar",
    "no_data is never clear": "_no_data",
}
"""Every item of the contract and what checks it here. That a state of the previous version is taken back is checked
on files which that version wrote (tests/detectors/snapshots)."""


def _columnar(kind: Kind) -> list[str]:
    """The work of a tick must not grow series by series. Calls are counted: a stopwatch would time the machine."""
    few, many = (_calls(kind, World(gpus=gpus)) for gpus in (8, 256))
    if many <= 1.5 * few + 200:
        return []
    return [f"columnar: {few} calls for 30 ticks of 8 GPUs, {many} for 256"]


def _calls(kind: Kind, world: World) -> int:
    """Python calls of 30 healthy ticks after five of warm-up; frames keep their index, as collectors do."""
    detector, inventory = make(kind), world.inventory()
    first = {frame_kind: world.frame(frame_kind, 0, START_S) for frame_kind in world.kinds}
    count = 0

    def called(frame: FrameType, event: str, arg: object) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    for number in range(35):
        at_s = START_S + number * TICK_S
        fresh = {k: world.frame(k, number, at_s) for k in world.kinds}
        frames = {
            k: replace(first[k], at_s=at_s, values=f.values, observed_at_s=f.observed_at_s)
            for k, f in fresh.items()
        }
        tick = Tick(at_s, frames, sources=(SourceStatus(world.source, at_s, ok=True, covers=(world.node,)),))
        if number >= 5:
            sys.setprofile(called)
        try:
            detector.update(tick, inventory)
        finally:
            sys.setprofile(before)
    return count


def _no_data(kind: Kind) -> list[str]:
    (ticks, inventory), detector = _played(faults), make(kind)
    findings = run(detector, ticks, inventory)
    found = [f"faults: {problem}" for problem in _lawful(findings, ticks)]
    if not findings:
        found.append("faults: it found nothing where everything is broken")
    quiet = run(detector, _played(_silence_after_faults)[0], inventory)
    found += [f"silence: {f.fault} of {f.subject} cleared without data" for f in quiet if f.state is State.CLEAR]
    return found


def _snapshots(kind: Kind) -> list[str]:
    found: list[str] = []
    (ticks, inventory), whole = _played(faults), make(kind)
    for half in (37, 120, 180):
        detector, resumed = make(kind), make(kind)
        run(detector, ticks[:half], inventory)
        saved = detector.snapshot()
        if saved[:2] != b"PK":
            found.append("snapshot: not an npz")
        resumed.restore(saved)
        if _key(run(resumed, ticks[half:], inventory)) != _key(run(detector, ticks[half:], inventory)):
            found.append(f"snapshot: restored after {half} ticks it goes on differently")
    for broken in (b"", b"PK\x03\x04", saved[: len(saved) // 2], b"\x80\x04N."):
        try:
            whole.restore(broken)
        except SnapshotError:
            continue
        found.append(f"snapshot: {broken[:8]!r}… was taken for a state")
    return found
