"""False alarms on public telemetry of GPUs at work: eight H100 a node, trained on and served from.

Set: the git directory of `REPOSITORY` under one folder as `OWNER+NAME/repo`; then
`python -m benchmarks.held_out.gpus MIRRORS FOLDER` writes `FOLDER/h100_sessions.parquet`: of each session and GPU
every LOOK_S the last sample of ten a second (utilisation, power, temperature, memory, reasons that hold the clock).
A session lasts five minutes, so this is a fraction of a series-day, and says so. It has no clocks and no steps: the
throttle detector judges by the reasons alone, and a climb in memory is compared with the node's other GPUs, which
are the ranks of one job. No choice was made on any of these sessions, so all of them count.
"""

from __future__ import annotations

import argparse
import io
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.populations import interval
from nightshift.collectors.frame import Frame, SeriesIndex
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.alarms.promise import Unit
from nightshift.detectors.base import Detector, State
from nightshift.detectors.hardware.throttle import Throttle
from nightshift.detectors.memory.leak import MemoryLeak

REPOSITORY = "atharvanihalani/gpu-telemetry-exploration"
TABLE = "h100_sessions.parquet"
LOOK_S, START_S, DAY_S, MIB = 5.0, 1.79e9, 86400.0, 2.0**20
METRICS = {
    "gpu_utilization_percent": "gpu_util_pct",
    "gpu_power_w": "power_w",
    "gpu_temperature_c": "temp_c",
    "gpu_memory_used_bytes": "mem_used_mib",
    "gpu_memory_free_bytes": "mem_free_mib",
    "gpu_throttle_reasons": "throttle_reasons",
}


def extract(mirrors: Path, folder: Path) -> None:
    """Writes the samples of all sessions. Raises CalledProcessError."""
    git = ["git", "-C", str(mirrors / REPOSITORY.replace("/", "+") / "repo")]
    listed = subprocess.run(
        [*git, "ls-tree", "-r", "--name-only", "HEAD", "data"], check=True, capture_output=True, text=True
    )
    parts = []
    for path in filter(lambda name: name.endswith("_telemetry.csv"), listed.stdout.splitlines()):
        shown = subprocess.run([*git, "show", f"HEAD:{path}"], check=False, capture_output=True)
        if not shown.stdout:
            continue  # what a partial copy lacks is empty
        table = pd.read_csv(io.BytesIO(shown.stdout)).sort_values("timestamp")
        table["look"] = ((table.timestamp - table.timestamp.min()) // LOOK_S).astype(int)
        table["mem_free_mib"] = table.mem_total_mib - table.mem_used_mib
        last = table.groupby(["gpu", "look"])[list(METRICS.values())].last().reset_index()
        parts.append(last.assign(name=Path(path).stem.removesuffix("_telemetry")))
    folder.mkdir(parents=True, exist_ok=True)
    pd.concat(parts, ignore_index=True).to_parquet(folder / TABLE)


def alarmed(detector: Detector, session: pd.DataFrame) -> int:
    """GPUs of a session on which a detector alarms."""
    gpus = {int(n): Subject(SubjectKind.GPU, f"GPU-{n}") for n in sorted(session.gpu.unique())}
    inventory, job = Inventory(), Subject(SubjectKind.JOB, "bench/session")
    for number, gpu in gpus.items():
        rank = Subject(SubjectKind.RANK, f"{job.name}#{number}")
        inventory.observe(gpu, rank, START_S - 1.0)
        inventory.observe(rank, job, START_S - 1.0)
    index, none = SeriesIndex(SubjectKind.GPU, tuple(gpus.values())), np.zeros(len(gpus), dtype=np.int64)
    found = set()
    for look, rows in session.groupby("look"):
        values = rows.set_index("gpu").reindex(list(gpus))[list(METRICS.values())].to_numpy(float)
        values[:, [3, 4]] *= MIB
        at_s = START_S + LOOK_S * float(look)
        frame = Frame(at_s, index, tuple(METRICS), values, np.full((1, len(METRICS)), at_s), none)
        said = detector.update(Tick(at_s, {SubjectKind.GPU: frame}), inventory)
        found |= {finding.subject for finding in said if finding.state is State.FIRING}
    return len(found)


def measure(folder: Path) -> dict[str, Any]:
    """Alarms by detector. Raises FileNotFoundError where the set was not extracted."""
    sessions = [rows for _, rows in pd.read_parquet(folder / TABLE).groupby("name")]
    days = sum(LOOK_S * len(rows) for rows in sessions) / DAY_S
    found: dict[str, Any] = {}
    for kind in (Throttle, MemoryLeak):
        counts = [alarmed(kind(), rows) for rows in sessions]
        low, high = interval(Unit.DAYS, days, sum(counts))
        found[kind.plugin] = {
            "sessions": len(sessions),
            "series_days": days,
            "alarms": sum(counts),
            "value": 1000.0 * sum(counts) / days,
            "interval": [1000.0 * low, 1000.0 * high],
        }
    return {"H100 nodes at work": found}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("mirrors", type=Path, help="folder of git directories, OWNER+NAME/repo each")
    parser.add_argument("folder", type=Path, help=f"folder to write {TABLE} to")
    chosen = parser.parse_args()
    extract(chosen.mirrors, chosen.folder)
