"""One simulated training job: what its GPUs and processes show and what its trainer writes, tick by tick."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from random import Random

from examples.demo.recording import Cell, Episode, Recording
from examples.demo.scenario import GIB, MIB, TICK_S, Benign, BenignKind, Fault, FaultKind, GpuPlan, JobPlan

DOWN_TICKS = 3
"""From a stop until new pods run."""
CHECKPOINT_STEPS = 300
_CURVE_STRETCH = 12
"""Steps of the demo per step of the recorded healthy run, whose level is stretched; its noise is not."""
_CURVE_START, _NOISE_START, _NOISE_STEPS = 260, 300, 800
_CURVE_LAST = 1100
_PEERS_FOLLOW_STEPS = 4
"""A corrupted weight shows on its own rank first; the others follow through the all-reduced gradient."""
_LEARNING_RATE = 3e-4
_TOKENS = 16 * 512
_DAMAGING = (FaultKind.DIVERGENCE, FaultKind.BIT_FLIP)
"""Faults that end up in the checkpoints."""
_CONTEXT_BYTES = 620 * MIB
_LOADED_AFTER = 20
"""Ticks of a start after which the model is on the GPU."""
DEVICE_BYTES = 143_771 * MIB
RESERVED_BYTES = 612 * MIB


class JobState(StrEnum):
    RUNNING = "running"
    STARTING = "starting"
    DOWN = "down"
    PENDING = "pending"
    """Not enough GPUs that may be used."""


@dataclass(slots=True)
class RankView:
    """What one rank shows in this tick."""

    cell: Cell
    memory_bytes: float
    anonymous_bytes: float
    cache_bytes: float


@dataclass(frozen=True, slots=True)
class Checkpoint:
    step: int
    tainted: bool


@dataclass
class Trouble:
    """A fault or a benign phase that is playing on this job."""

    cause: Fault | Benign
    episode: Episode
    ticks: int = 0
    steps: int = 0
    last_tick: int | None = None

    @property
    def kind(self) -> FaultKind | BenignKind:
        return self.cause.kind


@dataclass
class Job:
    """State of one job. `lines` collects what its trainers wrote since the last flush, per rank."""

    plan: JobPlan
    recording: Recording
    rng: Random
    gpus: list[GpuPlan] = field(default_factory=list)
    state: JobState = JobState.RUNNING
    ticks_in_state: int = 0
    troubles: list[Trouble] = field(default_factory=list)
    step: int = 0
    checkpoints: deque[Checkpoint] = field(default_factory=lambda: deque(maxlen=60))
    kept_memory_bytes: float = 0.0
    kept_process_bytes: float = 0.0
    start_s: float = 0.0
    generation: int = 0
    last_step_s: float = 0.0
    healthy_ticks: int = 0
    saved: int = 0
    """Checkpoints written so far."""
    views: list[RankView] = field(default_factory=list)
    lines: list[list[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gpus = self.gpus or list(self.plan.gpus)
        self.step = self.plan.first_step
        self.healthy_ticks = self.plan.offset
        self.checkpoints.append(Checkpoint(self.step // CHECKPOINT_STEPS * CHECKPOINT_STEPS, False))
        self.lines = [[] for _ in self.plan.gpus]

    @property
    def ranks(self) -> range:
        return range(len(self.plan.gpus))

    def pod(self, rank: int) -> str:
        return f"{self.plan.name}-{rank}"

    @property
    def has_pods(self) -> bool:
        return self.state in (JobState.RUNNING, JobState.STARTING)

    def begin(self, cause: Fault | Benign) -> None:
        """A fault sets in, or a benign phase begins."""
        recorded: Episode = getattr(self.recording, cause.kind.value)
        if isinstance(cause, Fault) and cause.kind is FaultKind.DATA_STALL:
            recorded = recorded.with_pauses(cause.stretch)
        rounds = cause.rounds if isinstance(cause, Benign) else None
        self.troubles.append(
            Trouble(cause, recorded, last_tick=None if rounds is None else rounds * len(recorded.cells))
        )

    def end(self, fault: Fault) -> None:
        """The fault's cause is gone, without a restart."""
        self.troubles = [t for t in self.troubles if t.cause is not fault]

    def stop(self, at_s: float, *line: str) -> None:
        """Its processes end; a controller brings new pods after `DOWN_TICKS`."""
        for text in line:
            for rank in self.ranks:
                self._write(rank, at_s, text)
        self.state, self.ticks_in_state = JobState.DOWN, 0
        self.kept_memory_bytes = self.kept_process_bytes = 0.0

    def resume(self, at_s: float, newest_step: int | None) -> list[Fault]:
        """New pods start from the newest checkpoint up to `newest_step`; says which faults that ended."""
        fits = [c for c in self.checkpoints if newest_step is None or c.step <= newest_step]
        chosen = fits[-1] if fits else self.checkpoints[0]
        kept = [t for t in self.troubles if chosen.tainted and t.kind in (FaultKind.DIVERGENCE, FaultKind.BIT_FLIP)]
        ended = [t.cause for t in self.troubles if t not in kept and isinstance(t.cause, Fault)]
        self.troubles = kept
        self.state, self.ticks_in_state = JobState.STARTING, 0
        self.step, self.start_s, self.generation = chosen.step, at_s, self.generation + 1
        world = len(self.plan.gpus)
        for rank in self.ranks:
            self._write(rank, at_s, f"Initializing process group backend=nccl rank={rank} world_size={world}")
            self._write(rank, at_s, f"Loading checkpoint step={chosen.step} rank={rank}")
        return ended

    def advance(self, at_s: float) -> None:
        """Plays the tick that ends at a time (Unix s)."""
        self.ticks_in_state += 1
        self.views = []
        if self.state is JobState.STARTING:
            self._start_up(at_s)
        elif self.state is JobState.RUNNING:
            self._run(at_s)

    def _start_up(self, at_s: float) -> None:
        episode, tick = self.recording.startup, self.ticks_in_state - 1
        cell = episode.cells[tick]
        share = 1 + cell.process_added_bytes / self.recording.settled_process_bytes
        memory = _CONTEXT_BYTES if tick < _LOADED_AFTER else self.plan.memory_bytes + cell.memory_added_bytes
        self.views = [
            RankView(cell, memory, self.plan.process_bytes * share, self.plan.cache_bytes) for _ in self.ranks
        ]
        if tick + 1 == len(episode.cells):
            self.state, self.ticks_in_state = JobState.RUNNING, 0
            self.last_step_s = at_s

    def _run(self, at_s: float) -> None:
        self.healthy_ticks += 1
        healthy = self.recording.healthy
        shared: Cell = healthy.cell(self.healthy_ticks)
        shared_by: Trouble | None = None
        memory = [self.kept_memory_bytes] * len(self.ranks)
        process = [self.kept_process_bytes] * len(self.ranks)
        for trouble in list(self.troubles):
            cell = trouble.episode.cell(trouble.ticks)
            trouble.ticks += 1
            size = trouble.cause.size
            if trouble.kind in (FaultKind.GPU_LEAK, FaultKind.HOST_LEAK):
                rank = trouble.cause.rank if isinstance(trouble.cause, Fault) else 0
                memory[rank] += size * cell.memory_added_bytes
                process[rank] += size * cell.process_added_bytes
                continue
            shared, shared_by = cell, trouble
            if trouble.kind is BenignKind.VARIABLE_LENGTH:
                memory = [m + size * cell.memory_added_bytes for m in memory]
                process = [p + size * cell.process_added_bytes for p in process]
            if trouble.ticks == trouble.last_tick:
                self.troubles.remove(trouble)
                if trouble.kind is BenignKind.VARIABLE_LENGTH:
                    self.kept_memory_bytes += size * cell.memory_added_bytes
                    self.kept_process_bytes += size * cell.process_added_bytes
        for rank in self.ranks:
            own = shared if shared_by else healthy.cell(self.healthy_ticks + 37 * rank)
            written = (self.step % (2 * CHECKPOINT_STEPS)) / CHECKPOINT_STEPS if rank == 0 else 0.0
            self.views.append(
                RankView(
                    own,
                    self.plan.memory_bytes + own.memory_added_bytes * (shared_by is None) + memory[rank],
                    self.plan.process_bytes + own.process_added_bytes * (shared_by is None) + process[rank],
                    self.plan.cache_bytes + 0.3 * GIB * written + self.rng.gauss(0, 6 * MIB),
                )
            )
        self._train(at_s, shared, shared_by)

    def _train(self, at_s: float, cell: Cell, trouble: Trouble | None) -> None:
        curve = self.recording.curves[self.plan.curve]
        world = len(self.plan.gpus)
        rate = trouble.episode.learning_rate if trouble else None
        learning_rate = _LEARNING_RATE if rate is None else rate
        size = trouble.cause.size if trouble else 0.0
        for recorded in cell.steps:
            self.step += 1
            t_s = at_s - TICK_S + recorded.at * TICK_S
            took_s, self.last_step_s = t_s - self.last_step_s, t_s
            level = min(_CURVE_START + (self.step - self.plan.first_step) // _CURVE_STRETCH, _CURVE_LAST)
            noise = _NOISE_START + (self.step + self.plan.offset) % _NOISE_STEPS
            ratio = recorded.gradient_ratio
            ratio = 1 + (ratio - 1) * size if ratio > 1 and trouble else ratio
            gradient = curve.gradient[level] * curve.gradient_residual[noise] * (ratio if trouble else 1.0)
            stamp = _stamp(t_s)
            tail = (
                f"grad_norm={gradient:.4f} lr={learning_rate:.3e} step_time={took_s:.3f}s"
                f" tokens_per_s={_TOKENS * world / took_s:.0f}"
            )
            for rank in self.ranks:
                at = _NOISE_START + (self.step + self.plan.offset + 131 * rank) % _NOISE_STEPS
                added = size * recorded.loss_added if trouble else 0.0
                if trouble and isinstance(trouble.cause, Fault) and trouble.kind is FaultKind.BIT_FLIP:
                    follows = (
                        rank != trouble.cause.rank
                        and trouble.steps < trouble.episode.healthy_steps + _PEERS_FOLLOW_STEPS
                    )
                    added = 0.0 if follows else added
                loss = max(0.01, curve.loss[level] + curve.loss_residual[at] + added)
                self.lines[rank].append(f"{stamp} INFO rank={rank} step={self.step} loss={loss:.4f} {tail}\n")
            if trouble:
                trouble.steps += 1
            if self.step % CHECKPOINT_STEPS == 0:
                damaging = [t for t in self.troubles if t.kind in _DAMAGING]
                tainted = any(t.steps > t.episode.healthy_steps for t in damaging)
                self.checkpoints.append(Checkpoint(self.step, tainted))
                self.saved += 1
                path = f"/checkpoints/{self.plan.name}/{self.step}"
                self._write(0, t_s, f"Saved checkpoint step={self.step} path={path}")

    def _write(self, rank: int, t_s: float, text: str) -> None:
        level = "ERROR" if "Error" in text else "INFO"
        self.lines[rank].append(f"{_stamp(t_s)} {level} {text}\n")


def _stamp(t_s: float) -> str:
    return datetime.fromtimestamp(t_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{int(t_s % 1 * 1000):03d}Z"
