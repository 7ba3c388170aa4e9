"""The line of a job's kernels is read as it is written, through the training-log collector too."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightshift.collectors.subject import Inventory
from nightshift.collectors.training.kernel_use import KernelUse, read_use
from nightshift.collectors.training.logs import TrainingLogsCollector
from nightshift.kernels.apply.job import state as runtime

LINE = (
    "nightshift kernels: step=1200 applied=3 calls=46800 fallbacks=2 shadow_checks=46 shadow_mismatches=1 "
    "demoted=1 rank=3 mismatched=0123456789abcdef,fedcba9876543210"
)


def test_every_count_of_the_line_is_read() -> None:
    named = ("0123456789abcdef", "fedcba9876543210")
    assert read_use(LINE) == KernelUse(1200, 3, 46800, 2, 46, 1, 1, named)
    assert read_use("[rank3] 12:00:01 INFO " + LINE) is not None


def test_what_the_runtime_writes_is_what_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "STATE", runtime.State(step=7, fallbacks={"softmax: shape": 4}))
    found = read_use(runtime.log_line())
    assert found is not None
    assert (found.step, found.fallbacks, found.applied) == (7, 4, 0)


@given(st.text(max_size=200))
def test_no_text_raises_and_none_without_all_counts_is_taken(text: str) -> None:
    assert read_use(text) is None
    assert read_use("nightshift kernels:" + text) is None


def test_the_training_log_collector_passes_the_line_on(tmp_path: Path) -> None:
    (tmp_path / "lab_gpt-0_main.log").write_text(f"step=1 loss=2.0\n{LINE}\nnothing to see\n")
    collector = TrainingLogsCollector(TrainingLogsCollector.Settings(directory=tmp_path))
    batch = collector.collect(1_795_000_000.0, Inventory(), 30.0)
    texts = [record.text for record in batch.logs]
    assert LINE in texts
    assert "nothing to see" not in texts
