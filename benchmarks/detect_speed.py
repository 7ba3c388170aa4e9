"""Every detector on a large fleet, one core: `python -m benchmarks.detect_speed [--gpus 100000] [--rivals]`.

One frame of GPUs × all GPU metrics per tick, 5 s apart. Reported per tick: median, 99th percentile and worst CPU
time of all detectors and the alarm budget together (a bucket that closes in a tick costs that tick), by detector,
nanoseconds per sample, and the state's size. About one in a thousand GPUs leaks, errs, is hot or vanishes, so that
the rare paths run too. Rivals score the same stream of frames:
River's half-space trees (sample by sample) and PyOD's isolation forest (in batches), where they are installed.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

for _threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_threads, "1")

import numpy as np  # noqa: E402

from benchmarks.report import write  # noqa: E402
from nightshift.collectors.frame import Frame, SeriesIndex, SourceStatus  # noqa: E402
from nightshift.collectors.subject import Inventory, Subject, SubjectKind  # noqa: E402
from nightshift.collectors.telemetry.metrics import METRICS  # noqa: E402
from nightshift.collectors.tick import Tick  # noqa: E402
from nightshift.detectors.alarms.budget import Budget, BudgetSettings  # noqa: E402
from nightshift.detectors.plugins import ALL  # noqa: E402

_RARE = ("gpu_remap_banks", "gpu_retired")  # not on every kind of GPU
NAMES = tuple(m.name for m in METRICS if m.kind is SubjectKind.GPU and not m.name.startswith(_RARE))[:24]


class Fleet:
    """gpus GPUs on nodes of eight; every 2,000th leaks, every 5,000th has corrected errors, every 3,000th is hot
    from the thirtieth tick on and every 9,000th vanishes then."""

    def __init__(self, gpus: int) -> None:
        self.rng = np.random.default_rng(1)
        self.index = SeriesIndex(
            SubjectKind.GPU, tuple(Subject(SubjectKind.GPU, f"GPU-{g:08d}") for g in range(gpus))
        )
        self.nodes = [Subject(SubjectKind.NODE, f"n{n}") for n in range(gpus // 8 + 1)]
        self.values = np.zeros((gpus, len(NAMES)))
        for column, name in enumerate(NAMES):
            level = 16e9 if name.endswith("_bytes") else 0.5 if "ratio" in name else 60.0
            counted = "ecc" in name or "remap" in name or "reasons" in name or "xid" in name
            self.values[:, column] = 0.0 if counted else level
        self.epoch = np.zeros(gpus, dtype=np.int64)

    def inventory(self) -> Inventory:
        known = Inventory()
        for number, gpu in enumerate(self.index.subjects):
            known.observe(gpu, self.nodes[number // 8], 0.0)
            known.describe(gpu, model="NVIDIA H200")
        return known

    def tick(self, number: int) -> Tick:
        at_s = 1.79e9 + 5.0 * number
        values = self.values
        values[:, NAMES.index("gpu_utilization_percent")] = self.rng.integers(80, 100, len(values))
        values[:, NAMES.index("gpu_power_w")] = 500.0 + self.rng.standard_normal(len(values))
        values[::2000, NAMES.index("gpu_memory_used_bytes")] += 5e7
        values[::5000, NAMES.index("gpu_ecc_sbe_total")] += number % 100 == 0
        values[:, NAMES.index("gpu_sm_clock_mhz")] = 1980.0
        if number >= 30:
            values[1::3000, NAMES.index("gpu_throttle_reasons")] = 64.0
            values[1::3000, NAMES.index("gpu_sm_clock_mhz")] = 1200.0
            values[2::9000] = np.nan
        frame = Frame(at_s, self.index, NAMES, values, np.full((1, len(NAMES)), at_s), self.epoch)
        status = SourceStatus(Subject(SubjectKind.SOURCE, "bench"), at_s, ok=True)
        return Tick(at_s, {SubjectKind.GPU: frame}, sources=(status,))


def resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure(gpus: int, ticks: int) -> dict[str, Any]:
    fleet = Fleet(gpus)
    inventory = fleet.inventory()
    before = resident_bytes()
    detectors = [kind() for kind in ALL]
    budget = Budget(BudgetSettings(), {detector.name: detector.stated for detector in detectors})
    took = np.zeros((ticks, len(detectors) + 1))
    fired: set[str] = set()
    for number in range(ticks):
        tick = fleet.tick(number)
        findings = []
        for column, detector in enumerate(detectors):
            start = time.process_time()
            findings += detector.update(tick, inventory)
            took[number, column] = time.process_time() - start
        start = time.process_time()
        budget.weigh(findings, tick, inventory)
        took[number, -1] = time.process_time() - start
        fired.update(finding.episode for finding in findings)
    total = took.sum(axis=1)[1:]
    return {
        "gpus": gpus,
        "series": gpus * len(NAMES),
        "ticks": ticks,
        "first_tick_s": float(took[0].sum()),
        "median_s": float(np.median(total)),
        "p99_s": float(np.quantile(total, 0.99)),
        "worst_s": float(total.max()),
        "state_bytes": resident_bytes() - before,
        "episodes": len(fired),
        "ns_per_sample": 1e9 * float(total.mean()) / (gpus * len(NAMES)),
        "ns_per_sample_by_detector": {
            k.plugin: 1e9 * float(took[1:, c].mean()) / (gpus * len(NAMES)) for c, k in enumerate(ALL)
        },
        "budget_median_s": float(np.median(took[1:, -1])),
        "median_s_by_detector": {k.plugin: float(np.median(took[1:, c])) for c, k in enumerate(ALL)},
        "worst_s_by_detector": {k.plugin: float(took[1:, c].max()) for c, k in enumerate(ALL)},
    }


def rivals(gpus: int) -> dict[str, Any]:
    """Seconds per tick of all series, extrapolated from what fits in a short run; None where not installed."""
    fleet, found = Fleet(gpus), {}
    values = fleet.tick(1).frames[SubjectKind.GPU].values
    try:
        from river.anomaly import HalfSpaceTrees
    except ImportError:
        found["River half-space trees"] = None
    else:
        model = HalfSpaceTrees(n_trees=10, height=8, window_size=250, seed=1)
        rows = [dict(enumerate(row)) for row in values[:2000].tolist()]
        start = time.process_time()
        for row in rows:
            model.score_one(row)
            model.learn_one(row)
        found["River half-space trees"] = (time.process_time() - start) / len(rows) * gpus
    try:
        from pyod.models.iforest import IForest
    except ImportError:
        found["PyOD isolation forest, scoring only"] = None
    else:
        forest = IForest(n_estimators=100, random_state=1, n_jobs=1).fit(values[:5000])
        start = time.process_time()
        forest.decision_function(values[:20000])
        found["PyOD isolation forest, scoring only"] = (time.process_time() - start) / 20000 * gpus
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, default=100_000)
    parser.add_argument("--ticks", type=int, default=200)
    parser.add_argument("--rivals", action="store_true")
    arguments = parser.parse_args()
    sizes = [arguments.gpus // 100, arguments.gpus // 10, arguments.gpus]
    results: dict[str, Any] = {"nightshift": [measure(size, arguments.ticks) for size in sizes]}
    if arguments.rivals:
        results["rivals, CPU seconds per tick"] = rivals(arguments.gpus)
    write("detect_speed", results)


if __name__ == "__main__":
    main()
