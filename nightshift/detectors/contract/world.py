"""A small fleet that is perfectly well: what the contract of detectors is checked on."""

from __future__ import annotations

import numpy as np

from nightshift.collectors.frame import Frame, SeriesIndex, SourceStatus, StepSeries
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.telemetry.metrics import METRICS, MetricType
from nightshift.collectors.tick import Tick

START_S = 1_790_000_000.0
TICK_S = 5.0


class HealthyFleet:
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
            SubjectKind.PART: [Subject(SubjectKind.PART, "n1/Fan 1")],
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
            "local_grad_norm": np.full(5, 2.0),
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
    if name in ("gpu_throttle_reasons", "gpu_xid_last", "gpu_recovery_action"):
        return 0.0
    if "ratio" in name:
        return 0.8
    if name.endswith("_bytes"):
        return 64e9 if "limit" in name or "free" in name or "total" in name else 16e9
    return _LEVELS.get(name, 60.0)


_RARE = ("error", "replay", "down", "recover", "drops", "failed")
_LEVELS = {
    "part_health": 0.0,
    "nic_rx_power_dbm": -2.0,
    "gpu_utilization_percent": 96.0,
    "gpu_power_w": 655.0,
    "gpu_power_limit_w": 700.0,
    "gpu_temperature_c": 52.0,
    "gpu_sm_clock_mhz": 1980.0,
}
"""An H200 that trains, as recorded, so that a detector trained on one knows it."""
