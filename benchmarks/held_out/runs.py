"""Hangs, stalls and divergence on public training runs that ended well: MLPerf's, by their own logs.

Sets: a git directory of each of `ROUNDS` under one folder as `OWNER+NAME/repo`; then
`python -m benchmarks.held_out.runs MIRRORS FOLDER` writes `FOLDER/mlperf_progress.parquet` (name, t_s, loss): one
row per line of a log that tells of training, at the time that the line itself states. Evaluations, checkpoints and
whatever else made a run wait stay in as they were.

The logs say nothing of GPUs, so the worst is assumed: in every pause of twice the usual length the GPU idles and
its memory is held, from the last line to the next. A real evaluation keeps it at work, so the counts here are an
upper bound of those with telemetry. A log is one series, however many GPUs ran. Runs of fewer lines than a detector
needs are not counted: it would be quiet on any of them. They last minutes to hours: pauses that come once in days
are not in them.

Logs with an odd md5 are scored and were not looked at; no threshold was chosen on the even ones.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.populations import interval
from nightshift.collectors.frame import Frame, SeriesIndex, StepSeries
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.alarms.promise import Unit
from nightshift.detectors.base import Detector, State
from nightshift.detectors.loss.divergence import Divergence
from nightshift.detectors.progress.hang import Hang
from nightshift.detectors.progress.stall import DataStall

ROUNDS = tuple(f"mlcommons/training_results_{name}" for name in ("v3.1", "v4.0", "v4.1", "v5.0", "v5.1"))
TABLE = "mlperf_progress.parquet"
LOG = re.compile(r"/results/.*/result_\d+\.txt$")
TRAINS = frozenset({"tracked_stats", "train_loss", "block_stop", "epoch_stop"})
LOSSES = ("reduced_train_loss", "train_loss", "loss")
LEAST_LINES, LEAST_LOSSES = 20, 100
"""Of a run that counts: twice the ten steps that a rhythm needs, and what a loss needs to have a level."""
LOOK_S = 15.0
LOOK_LOSSES = 10
BATCH = 400
"""Runs that are replayed beside each other, as jobs of one fleet."""
HELD, FREED = 6e10, 5e8
METRICS = ("gpu_utilization_percent", "gpu_power_w", "gpu_memory_used_bytes")
WORKS, IDLES, ENDED = (97.0, 600.0, HELD), (0.0, 110.0, HELD), (0.0, 110.0, FREED)


def is_for_score(name: str) -> bool:
    return int(hashlib.md5(name.encode()).hexdigest(), 16) % 2 == 1


def extract(mirrors: Path, folder: Path) -> None:
    """Writes the lines of all logs of the git directories under `mirrors`."""
    found = [run for name in ROUNDS for run in _runs(mirrors / name.replace("/", "+") / "repo", name)]
    folder.mkdir(parents=True, exist_ok=True)
    pd.concat(found, ignore_index=True).to_parquet(folder / TABLE)


def _runs(repository: Path, name: str) -> Iterator[pd.DataFrame]:
    git = ["git", "-C", str(repository)]
    listed = subprocess.run(
        [*git, "ls-tree", "-r", "--name-only", "HEAD"], check=True, capture_output=True, text=True
    )
    for path in filter(LOG.search, listed.stdout.splitlines()):
        shown = subprocess.run([*git, "show", f"HEAD:{path}"], check=False, capture_output=True)
        rows = _lines(shown.stdout.decode(errors="replace"))  # what a partial copy lacks is empty
        if rows:
            yield pd.DataFrame(rows, columns=["t_s", "loss"]).assign(name=f"{name}/{path}")


def _lines(text: str) -> list[tuple[float, float]]:
    """(Unix s, loss or NaN) of each line on training, one per moment; of evaluations where there are few others."""
    trains: dict[float, float] = {}
    evaluates: dict[float, float] = {}
    for line in text.splitlines():
        _, _, entry = line.partition(":::MLLOG ")
        try:
            told = json.loads(entry) if entry else {}
            key, value, t_s = told.get("key"), told.get("value"), told.get("time_ms", 0) / 1000.0
        except (ValueError, TypeError, AttributeError):
            continue
        if key == "eval_accuracy":
            evaluates[t_s] = np.nan
        elif key in TRAINS and not (isinstance(value, dict) and any(name.startswith("valid") for name in value)):
            of = {key: value} if not isinstance(value, dict) else value
            losses = [of[name] for name in LOSSES if isinstance(of.get(name), int | float)]
            known = trains.get(t_s, np.nan)
            trains[t_s] = float(losses[0]) if losses else known
    return sorted((trains if len(trains) >= LEAST_LINES else trains | evaluates).items())


def load(folder: Path, score: bool) -> dict[str, pd.DataFrame]:
    """Runs of one half by name, in order of time."""
    table = pd.read_parquet(folder / TABLE)
    return {
        str(name): rows.sort_values("t_s") for name, rows in table.groupby("name") if is_for_score(name) == score
    }


def _states(t_s: np.ndarray, looks_s: np.ndarray) -> np.ndarray:
    """[looks, metrics] what the GPU of a run shows, whose lines came at `t_s` (s from its first)."""
    took = np.diff(t_s)
    after = np.searchsorted(t_s, looks_s, side="left")  # the line that ends the pause of each look
    idle = np.append(took > 2.0 * np.median(took), False)[np.clip(after - 1, 0, len(took))]
    states = np.where(idle[:, None], IDLES, WORKS)
    return np.where((looks_s > t_s[-1] + LOOK_S)[:, None], ENDED, states)


def paused(detector: Detector, runs: list[np.ndarray]) -> list[int]:
    """Runs on which a detector alarms, by their numbers. `runs`: times of lines (s from the first of each)."""
    inventory, start_s = Inventory(), 1.79e9
    gpus = tuple(Subject(SubjectKind.GPU, f"GPU-{n}") for n in range(len(runs)))
    ranks = [Subject(SubjectKind.RANK, f"bench/run-{n}#0") for n in range(len(runs))]
    for gpu, rank in zip(gpus, ranks, strict=True):
        inventory.observe(gpu, rank, start_s - 1.0)
        inventory.observe(rank, Subject(SubjectKind.JOB, rank.name.partition("#")[0]), start_s - 1.0)
    looks_s = np.arange(0.0, max(t_s[-1] for t_s in runs) + 10 * LOOK_S, LOOK_S)
    states = np.stack([_states(t_s, looks_s) for t_s in runs], axis=1)
    read = np.stack([np.searchsorted(t_s, looks_s, side="right") for t_s in runs], axis=1)
    lines = np.vstack([np.zeros(len(runs), dtype=np.int64), read])  # of each run, before each look and after all
    index, none = SeriesIndex(SubjectKind.GPU, gpus), np.zeros(len(runs), dtype=np.int64)
    found: set[int] = set()
    number = {subject: n for n, subject in enumerate(ranks)}
    for look, at in enumerate(looks_s.tolist()):
        at_s = start_s + at
        steps = []
        for n in np.flatnonzero(lines[look + 1] > lines[look]).tolist():
            first, end = int(lines[look][n]), int(lines[look + 1][n])
            t_s, log = start_s + runs[n][first:end], f"{ranks[n].name}.log"
            steps.append(StepSeries(ranks[n], "run", np.arange(first, end), t_s, {}, log))
        frame = Frame(at_s, index, METRICS, states[look], np.full((1, len(METRICS)), at_s), none)
        for finding in detector.update(Tick(at_s, {SubjectKind.GPU: frame}, steps=tuple(steps)), inventory):
            if finding.state is State.FIRING:
                found.add(number[finding.subject])
    return sorted(found)


def diverged(losses: np.ndarray) -> bool:
    """Whether the divergence detector alarms on the losses of one run."""
    detector, inventory, rank = Divergence(), Inventory(), Subject(SubjectKind.RANK, "bench/run#0")
    for first in range(0, len(losses), LOOK_LOSSES):
        part = losses[first : first + LOOK_LOSSES]
        steps = np.arange(first, first + len(part))
        series = StepSeries(rank, "run", steps, 1.79e9 + steps, {"loss": part}, "bench")
        found = detector.update(Tick(1.79e9 + float(steps[-1]), steps=(series,)), inventory)
        if any(finding.state is State.FIRING for finding in found):
            return True
    return False


def _share(names: list[str], alarmed: list[str], hours: float) -> dict[str, Any]:
    low, high = interval(Unit.RUNS, len(names), len(alarmed))
    return {
        "runs": len(names),
        "run_hours": hours,
        "alarmed": len(alarmed),
        "alarmed_logs": sorted(alarmed),
        "value": len(alarmed) / len(names),
        "interval": [low, high],
    }


def half(folder: Path, score: bool) -> dict[str, Any]:
    """Runs of one half, and how many alarm, by detector."""
    runs = load(folder, score)
    paces = {name: rows.t_s.to_numpy(float) for name, rows in runs.items() if len(rows) >= LEAST_LINES}
    # beside each other lie runs of one length, so that few looks are of ended ones
    names = sorted(paces, key=lambda name: float(np.ptp(paces[name])))
    since = {name: t_s - t_s[0] for name, t_s in paces.items()}
    hours = sum(float(t_s[-1]) for t_s in since.values()) / 3600.0
    found: dict[str, Any] = {}
    for kind in (Hang, DataStall):
        alarmed = []
        for first in range(0, len(names), BATCH):
            batch = names[first : first + BATCH]
            alarmed += [batch[n] for n in paused(kind(), [since[name] for name in batch])]
        found[kind.plugin] = _share(names, alarmed, hours)
    losses = {name: rows.loss.dropna().to_numpy(float) for name, rows in runs.items()}
    losses = {name: values for name, values in losses.items() if len(values) >= LEAST_LOSSES}
    hours = sum(float(np.ptp(runs[name].t_s)) for name in losses) / 3600.0
    found["divergence"] = _share(list(losses), [name for name, v in losses.items() if diverged(v)], hours)
    return found


def measure(folder: Path) -> dict[str, Any]:
    """The half for the score."""
    return {"MLPerf runs, odd": half(folder, score=True)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("mirrors", type=Path, help="folder of git directories, OWNER+NAME/repo each")
    parser.add_argument("folder", type=Path, help=f"folder to write {TABLE} to")
    chosen = parser.parse_args()
    extract(chosen.mirrors, chosen.folder)
