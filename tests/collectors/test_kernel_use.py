"""The line of a job's kernels is read as it is written, through the training-log collector too."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
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


def test_the_canary_s_gain_is_read_where_the_runtime_writes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    gain = {"step_us": 60_000, "gain_us": 9_000, "gain_low_us": 8_400}
    monkeypatch.setattr(runtime, "STATE", runtime.JobState(step=7, gain=gain))
    found = read_use(runtime.log_line())
    assert found is not None
    assert (found.step_us, found.gain_us, found.gain_low_us) == (60_000, 9_000, 8_400)


def test_a_kernel_that_is_disabled_takes_the_gain_of_its_set_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = runtime.Kernel({"problem": "softmax", "certificate": "a" * 64}, print)
    monkeypatch.setattr(runtime, "STATE", runtime.JobState(kernels={"softmax": kernel}, gain={"gain_us": 9}))
    runtime.disable(kernel, "demoted in the registry")
    found = read_use(runtime.log_line())
    assert found is not None
    assert found.gain_us == 0


def test_what_the_runtime_writes_is_what_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "STATE", runtime.JobState(step=7, fallbacks={"softmax: shape": 4}))
    found = read_use(runtime.log_line())
    assert found is not None
    assert (found.step, found.fallbacks, found.applied) == (7, 4, 0)


def test_the_machine_and_the_certificates_of_the_file_are_read_as_the_runtime_writes_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A GPU's name has spaces, and may have anything: nothing in it can be taken for a count."""
    used, idle, wrong = ("a" * 64, "b" * 64, "c" * 64)
    records = [{"problem": "softmax", "certificate": one} for one in (used, idle, wrong)]
    kernels = {one: runtime.Kernel({"problem": "softmax", "certificate": one}, print) for one in (used, wrong)}
    kernels[wrong].disabled, kernels[wrong].shadow_mismatches = "wrong", 1
    machine = {"gpu": "NVIDIA step=9 used=ffffffffffffffff", "driver": "580.65.06", "torch": "2.11.0+cu130"}
    monkeypatch.setattr(runtime, "KERNELS", records)
    monkeypatch.setattr(runtime, "STATE", runtime.JobState(kernels=kernels, step=7))
    monkeypatch.setattr(runtime, "machine", lambda: machine)
    found = read_use(runtime.log_line())
    assert found is not None
    assert (found.step, found.applied, found.mismatched) == (7, 1, ("c" * 16,))
    assert (found.used, found.unused) == (("a" * 16,), ("b" * 16, "c" * 16))
    assert {name: getattr(found, name) for name in machine} == machine
    assert found.triton == ""


def test_the_machine_names_torch_and_triton_and_no_driver_that_it_cannot_read() -> None:
    found = runtime.machine()
    assert found["torch"] == torch.__version__
    assert found["triton"] == runtime.triton_version()
    assert ("driver" in found) == (torch.cuda.is_available() and Path("/sys/module/nvidia/version").exists())


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
