"""The recording, cut into cells: one recorded sample with the training steps that ended in it.

A cell lasts one scrape (5 s) in the demo. An episode is the list of cells from a phase's onset on; what it adds to
the healthy state (memory, loss) is kept as a difference, so that a scenario can redraw its size.
"""

from __future__ import annotations

import csv
import gzip
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

FOLDER = Path(__file__).parent / "recording"
_SETTLED_S = 1.4
"""Recorded seconds after the first step until power and clocks have reached their level."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """A step that ended at a fraction of its cell: what it adds to a healthy loss, and times a healthy gradient."""

    at: float
    loss_added: float
    gradient_ratio: float


@dataclass(frozen=True, slots=True)
class Cell:
    """One recorded sample. `*_added_bytes` is beyond the level right before the episode."""

    memory_added_bytes: float
    process_added_bytes: float
    power_w: float
    temperature_c: float
    sm_clock_mhz: float
    memory_clock_mhz: float
    throttle_reasons: int
    utilization_percent: float
    memory_utilization_percent: float
    engine_active_ratio: float
    sm_active_ratio: float
    tensor_active_ratio: float
    dram_active_ratio: float
    steps: tuple[RecordedStep, ...]


@dataclass(frozen=True)
class Episode:
    """Cells from a phase's onset; after the last it goes on at `loop_from`. `grows`: each loop adds to the last."""

    cells: tuple[Cell, ...]
    loop_from: int = 0
    grows: bool = False
    learning_rate: float | None = None
    """What the trainer prints meanwhile, where the recorded fault changed it."""
    healthy_steps: int = 0
    """Steps of the first cell before the one with the fault: a checkpoint of those is still good."""

    def cell(self, tick: int) -> Cell:
        """The cell of a tick since the onset, which is 0."""
        count = len(self.cells)
        if tick < count:
            return self.cells[tick]
        rounds, offset = divmod(tick - self.loop_from, count - self.loop_from)
        cell = self.cells[self.loop_from + offset]
        if not self.grows:
            return cell
        first, last = self.cells[self.loop_from], self.cells[-1]
        memory = rounds * (last.memory_added_bytes - first.memory_added_bytes)
        process = rounds * (last.process_added_bytes - first.process_added_bytes)
        return replace(
            cell,
            memory_added_bytes=cell.memory_added_bytes + memory,
            process_added_bytes=cell.process_added_bytes + process,
        )

    def with_pauses(self, factor: float) -> Episode:
        """The same with every run of samples without a step made longer or shorter."""
        cells: list[Cell] = []
        for paused, run in groupby(self.cells, key=lambda cell: not cell.steps):
            held = list(run)
            count = max(1, round(len(held) * factor)) if paused else len(held)
            cells += [held[k * len(held) // count] for k in range(count)]
        return replace(self, cells=tuple(cells))


@dataclass(frozen=True)
class LossCurve:
    """A healthy run by recorded step: smooth level and the residuals around it, of loss and of gradient norm (as a
    ratio)."""

    loss: Floats
    loss_residual: Floats
    gradient: Floats
    gradient_residual: Floats


@dataclass(frozen=True)
class Recording:
    """Everything that the demo replays."""

    idle: Episode
    startup: Episode
    healthy: Episode
    divergence: Episode
    bit_flip: Episode
    gpu_leak: Episode
    host_leak: Episode
    data_stall: Episode
    spikes: Episode
    variable_length: Episode
    periodic_evaluation: Episode
    curves: tuple[LossCurve, ...]
    settled_process_bytes: float
    """Memory of the recorded process once it had started."""


Columns = dict[str, Floats]


def load(folder: Path = FOLDER) -> Recording:
    """Reads the three files. Raises OSError or ValueError where one is missing or damaged."""
    samples = _groups(folder / "telemetry.csv.gz", "phase")
    steps = _groups(folder / "steps.csv.gz", "phase")
    healthy_loss = _smooth(steps["train_ok"]["loss"])
    healthy_gradient = _smooth(steps["train_ok"]["grad_norm"])

    def cells(phase: str, start: int, stop: int | None = None, *, base: int | None = None) -> tuple[Cell, ...]:
        return _cells(samples[phase], steps.get(phase), start, stop, start if base is None else base)

    def since_step(phase: str, step: int, **shape: object) -> Episode:
        """The episode from the sample in which a step ended, with its loss against the healthy run's."""
        start = int(np.searchsorted(samples[phase]["t_s"], steps[phase]["t_s"][step]))
        first = int(np.searchsorted(steps[phase]["t_s"], samples[phase]["t_s"][start - 1], side="right"))
        return Episode(cells(phase, start, base=start - 1), healthy_steps=step - first, **shape)  # type: ignore[arg-type]

    for phase in ("train_diverge", "train_bitflip", "train_spike_recovers"):
        own = steps[phase]
        count = len(own["loss"])
        own["loss_added"] = own["loss"] - healthy_loss[:count]
        own["gradient_ratio"] = own["grad_norm"] / healthy_gradient[:count]

    ok_t_s, first_step_s = samples["train_ok"]["t_s"], steps["train_ok"]["t_s"][0]
    released = int(np.argmax(samples["train_ok"]["power_mw"] < 130_000))
    settled = int(np.searchsorted(ok_t_s, first_step_s + _SETTLED_S))
    idle = int(np.argmax(samples["idle"]["sm_clock_mhz"] > 1000))
    return Recording(
        idle=Episode(cells("idle", 1, idle)),  # GPM needs two samples: the first has no activity
        startup=Episode(cells("train_ok", released, settled, base=settled)),
        healthy=Episode(cells("train_ok", settled)),
        divergence=since_step("train_diverge", 250, loop_from=60, learning_rate=0.05),
        bit_flip=since_step("train_bitflip", 200, loop_from=30),
        gpu_leak=since_step("train_gpu_leak", 100, grows=True),
        host_leak=since_step("train_host_leak", 50, grows=True),
        data_stall=since_step("train_data_stall", 119),
        spikes=since_step("train_spike_recovers", 190),
        variable_length=since_step("train_varlen_benign", 2),
        periodic_evaluation=since_step("train_periodic_eval_benign", 140),
        curves=tuple(_curve(run) for run in _groups(folder / "healthy_loss.csv.gz", "run").values()),
        settled_process_bytes=float(samples["train_ok"]["process_memory_bytes"][settled]),
    )


def _groups(path: Path, key: str) -> dict[str, Columns]:
    """Columns of a CSV file by the value of one of them, in order."""
    with gzip.open(path, "rt", newline="") as file:
        rows = list(csv.DictReader(file))
    groups: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        groups.setdefault(row.pop(key), []).append(row)
    return {
        name: {column: np.array([float(row[column] or "nan") for row in group]) for column in group[0]}
        for name, group in groups.items()
    }


def _cells(samples: Columns, steps: Columns | None, start: int, stop: int | None, base: int) -> tuple[Cell, ...]:
    t_s = samples["t_s"]
    return tuple(
        Cell(
            memory_added_bytes=float(samples["memory_used_bytes"][i] - samples["memory_used_bytes"][base]),
            process_added_bytes=float(samples["process_memory_bytes"][i] - samples["process_memory_bytes"][base]),
            power_w=float(samples["power_mw"][i] / 1e3),
            temperature_c=float(samples["temperature_c"][i]),
            sm_clock_mhz=float(samples["sm_clock_mhz"][i]),
            memory_clock_mhz=float(samples["memory_clock_mhz"][i]),
            throttle_reasons=int(samples["throttle_reasons"][i]),
            utilization_percent=float(samples["utilization_percent"][i]),
            memory_utilization_percent=float(samples["memory_utilization_percent"][i]),
            engine_active_ratio=float(samples["engine_active_percent"][i] / 100),
            sm_active_ratio=float(samples["sm_active_percent"][i] / 100),
            tensor_active_ratio=float(samples["tensor_active_percent"][i] / 100),
            dram_active_ratio=float(samples["dram_active_percent"][i] / 100),
            steps=() if steps is None or i == 0 else _steps_between(steps, t_s[i - 1], t_s[i]),
        )
        for i in range(start, len(t_s) if stop is None else stop)
    )


def _steps_between(steps: Columns, since_s: float, until_s: float) -> tuple[RecordedStep, ...]:
    first, last = np.searchsorted(steps["t_s"], [since_s, until_s], side="right")
    return tuple(
        RecordedStep(
            at=float((steps["t_s"][k] - since_s) / (until_s - since_s)),
            loss_added=float(steps["loss_added"][k]) if "loss_added" in steps else 0.0,
            gradient_ratio=float(steps["gradient_ratio"][k]) if "gradient_ratio" in steps else 1.0,
        )
        for k in range(first, last)
    )


def _curve(run: Columns) -> LossCurve:
    loss, gradient = _smooth(run["loss"]), _smooth(run["grad_norm"])
    return LossCurve(loss, run["loss"] - loss, gradient, run["grad_norm"] / gradient)


def _smooth(values: Floats, width: int = 101) -> Floats:
    """Running median; the ends repeat."""
    padded = np.pad(values, width // 2, mode="edge")
    return np.asarray(np.median(np.lib.stride_tricks.sliding_window_view(padded, width), axis=1), dtype=np.float64)
