"""What jobs do to their GPUs, from telemetry."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nightshift.agent.control.scheduling_loads import Loads
from nightshift.collectors.frame import Frame, SeriesIndex
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick


def test_a_load_is_told_from_telemetry_and_unknown_where_a_metric_is_missing() -> None:
    inventory = Inventory("c")
    gpus = [Subject(SubjectKind.GPU, name) for name in ("g0", "g1")]
    for gpu, job in zip(gpus, ("t/whole", "t/part"), strict=True):
        inventory.observe(gpu, Subject(SubjectKind.JOB, job), 0.0)
    loads = Loads(inventory)
    names = ("gpu_utilization_percent", "gpu_sm_active_ratio", "gpu_dram_active_ratio",
             "gpu_memory_used_bytes", "gpu_memory_free_bytes")  # fmt: skip
    values = np.array([[50.0, 0.3, 0.2, 4e10, 4e10], [50.0, np.nan, 0.2, 4e10, 4e10]])
    index = SeriesIndex(SubjectKind.GPU, tuple(gpus))
    loads.take(
        Tick(1.0, {SubjectKind.GPU: Frame(1.0, index, names, values, np.ones((1, 1)), np.zeros(2, np.int64))})
    )
    found = loads.of("t/whole")
    assert (found.gpu_duty, found.sm, found.memory) == pytest.approx((0.5, 0.6, 0.5))
    assert found.host == found.network == 0.5, "what is not the GPU's is at most theirs"
    assert math.isnan(loads.of("t/part").sm)
