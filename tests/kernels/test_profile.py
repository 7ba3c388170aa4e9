"""From a trace to what is worth a search: every nanosecond accounted, families found, decisions with reasons."""

from __future__ import annotations

import json
import math
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nightshift.collectors.training.kineto_reader import read_trace
from nightshift.kernels.candidate import Candidate
from nightshift.kernels.judge.probes import inputs
from nightshift.kernels.problem import Case, ProblemError
from nightshift.kernels.profile.hotspots import Hotspot, Profile, as_text, profile, profile_of, timed_sizes
from nightshift.kernels.profile.operators import operators_of
from nightshift.kernels.profile.problem_file import load_problem, write_problem
from nightshift.kernels.profile.roofline import Peaks, PeaksError, probe
from nightshift.kernels.profile.trigger import Settings, Stake, consider, decide

RECORDED = Path(__file__).parents[1] / "recordings" / "h200_train_trace.json.gz"
H200 = Peaks(4.16e12, {"bfloat16": 7.5e14, "float32": 5.3e13}, "probe")


@pytest.fixture(scope="module")
def recorded() -> Profile:
    return profile(RECORDED, H200)


def test_all_gpu_time_of_the_recording_belongs_to_an_operation(recorded: Profile) -> None:
    listed_s = sum(hotspot.total_s for hotspot in recorded.hotspots)
    assert listed_s == pytest.approx(51.7405e-3 / 3, rel=1e-3)
    assert recorded.unmapped_s == 0.0
    parts = recorded.compute_s + recorded.communication_s + recorded.copy_s + recorded.idle_s
    assert parts == pytest.approx(recorded.step_s)


def test_the_recordings_hot_operations_are_found_with_their_shapes(recorded: Profile) -> None:
    top = recorded.hotspots[0]
    assert (top.problem, top.sizes, top.dtype) == ("rmsnorm", {"m": 8192, "n": 1024}, "float32")
    assert top.calls_per_step == 13  # two in each of six blocks and the last one
    assert top.backward_s > top.forward_s > 0
    found = {(h.problem, *h.sizes.values()) for h in recorded.hotspots if h.problem}
    assert ("adamw", 92_288_000) in found  # the parameters of the recorded model
    assert ("flash_attention_by_position", 16, 16, 512, 64) in found
    assert (
        next(h for h in recorded.hotspots if "flash" in h.problem).layout == "sliced"
    )  # one projection of all three
    assert ("cross_entropy_cast", 8192, 8192) in found
    assert ("gelu", 8192, 4096) in found
    assert ("embedding_gradient", 8192, 1024, 8192) in found
    products = [h for h in recorded.hotspots if h.problem == "linear"]
    assert {h.dtype for h in products} == {"bfloat16"}  # what autocast made of them
    assert all(0.7 < h.utilisation <= 1.0 for h in products)
    unmatched = next(h for h in recorded.hotspots if h.operators == "aten::unbind")
    assert (unmatched.problem, unmatched.gain) == ("", 0.0)
    assert "no family" in unmatched.why
    assert "rmsnorm m=8192 n=1024 float32" in as_text(recorded)


def test_without_a_probe_the_trace_proves_its_own_lower_bounds() -> None:
    found = profile(RECORDED)
    assert found.peaks.source == "trace"
    assert 3.0e12 < found.peaks.bytes_per_s < 4.9e12  # an H200's memory
    assert 5e14 < found.peaks.flops_per_s["bfloat16"] < 1e15
    assert found.hotspots[0].problem == "rmsnorm"


def test_ids_lost_by_the_profiler_are_made_up_for_by_correlation_and_nesting() -> None:
    trace = read_trace(RECORDED)
    gpu = trace.events.rows("kernel", "gpu_memcpy", "gpu_memset")
    trace.events.external_id[gpu] = -1
    lost = profile_of(trace, H200)
    whole = profile(RECORDED, H200)
    assert lost.unmapped_s == 0.0
    by_name = {h.name: h.total_s for h in whole.hotspots}
    assert {h.name: h.total_s for h in lost.hotspots} == pytest.approx(by_name, rel=0.02)


def test_backward_time_is_found_by_sequence_numbers_where_there_are_no_arrows() -> None:
    trace = read_trace(RECORDED)
    trace.flows.kind[:] = 9
    lost, whole = profile_of(trace, H200), profile(RECORDED, H200)
    by_name = {h.name: h.backward_s for h in whole.hotspots if h.problem}
    assert {h.name: h.backward_s for h in lost.hotspots if h.problem} == pytest.approx(by_name, rel=0.02)


def test_collectives_are_counted_apart_and_only_where_nothing_computes(tmp_path: Path) -> None:
    def gpu(name: str, ts: float, dur: float, stream: int, correlation: int) -> list[dict[str, Any]]:
        base = {"ph": "X", "pid": 1, "tid": 2}
        args = {"correlation": correlation}
        return [
            {**base, "cat": "cpu_op", "name": "aten::mm", "ts": ts - 5, "dur": 3.0,
             "args": {"External id": correlation}},
            {**base, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": ts - 4, "dur": 1.0, "args": args},
            {**base, "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": ts, "dur": dur,
             "args": {**args, "External id": correlation, "stream": stream, "device": 0}},
        ]  # fmt: skip

    events = [
        {
            "ph": "X",
            "cat": "user_annotation",
            "name": "ProfilerStep#3",
            "pid": 1,
            "tid": 2,
            "ts": 0.0,
            "dur": 100.0,
        },
        *gpu("gemm", 10.0, 20.0, 7, 1),
        *gpu("ncclDevKernel_AllReduce_Sum", 20.0, 30.0, 9, 2),
        *gpu("gemm", 90.0, 20.0, 7, 3),
        *gpu("gemm", 200.0, 20.0, 7, 4),  # of no step
    ]
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": events}))
    found = operators_of(read_trace(path))
    assert found.wall_s == pytest.approx(100e-6)
    assert found.compute_s == pytest.approx(40e-6)
    assert found.communication_s == pytest.approx(20e-6)  # 30 of it beside a product of 10


def test_a_probe_measures_this_machine_and_survives_a_file(tmp_path: Path) -> None:
    found = probe("cpu", copy_bytes=1 << 22, side=64, repeats=2)
    path = tmp_path / "peaks.json"
    path.write_text(json.dumps(found.to_json()))
    again = Peaks.read(path)
    assert again == found
    assert again.bytes_per_s > 0
    assert set(again.flops_per_s) == {"float32", "bfloat16", "float16"}
    for bad in ("{}", "[]", "no", '{"bytes_per_s": -1, "flops_per_s": {}, "source": "x"}'):
        path.write_text(bad)
        with pytest.raises(PeaksError, match="peaks"):
            Peaks.read(path)


POLICY = Settings(namespaces=("lab-*",))
STAKE = Stake("lab-nlp", "gpt", gpu_hours_week=500.0)


@pytest.mark.parametrize(
    ("change", "stake", "policy", "why"),
    [
        ({}, replace(STAKE, namespace="prod"), POLICY, "has not asked"),
        ({}, STAKE, Settings(), "has not asked"),
        ({"problem": ""}, STAKE, POLICY, "no family"),
        ({"utilisation": math.nan}, STAKE, POLICY, "not known"),
        ({"share": 0.01}, STAKE, POLICY, "1.0% of the step, less than 3.0%"),
        ({"utilisation": 0.8}, STAKE, POLICY, "80% of the roofline, more than 70%"),
        ({"gain": 0.005}, STAKE, POLICY, "gain 0.5%, less than 1.0%"),
        ({}, replace(STAKE, gpu_hours_week=50.0), POLICY, "50 GPU-hours a week run it"),
        ({}, replace(STAKE, gpu_hours_week=math.nan), POLICY, "GPU-hours a week run it"),
        ({"gain": 0.011}, STAKE, Settings(namespaces=("*",), search_gpu_hours=40.0), "won back"),
        ({}, replace(STAKE, used_gpu_hours=7.5), POLICY, "7.5 of 8 GPU-hours"),
    ],
)
def test_every_condition_of_the_policy_refuses_with_its_figures(
    recorded: Profile, change: dict[str, Any], stake: Stake, policy: Settings, why: str
) -> None:
    decision = consider(replace(recorded.hotspots[0], **change), stake, policy)
    assert not decision.propose
    assert why in decision.why


def test_the_recordings_norm_is_proposed_and_the_sentence_says_what_it_brings(recorded: Profile) -> None:
    decision = decide(recorded.hotspots, STAKE, POLICY)
    assert decision.propose
    assert decision.hotspot is recorded.hotspots[0]
    for part in ("rmsnorm m=8192 n=1024", "lab-nlp/gpt", "16.0% of the step", "GPU-hours a week", "preemptible"):
        assert part in decision.why
    nothing = decide((), STAKE, POLICY)
    assert not nothing.propose
    assert "no operation" in nothing.why


def test_a_hotspot_becomes_a_problem_file_that_the_judge_can_plan_for(recorded: Profile, tmp_path: Path) -> None:
    for hotspot in recorded.hotspots:
        if not hotspot.problem:
            continue
        path = tmp_path / f"{hotspot.problem}.py"
        problem = write_problem([hotspot], path, str(RECORDED.name))
        assert problem.name == hotspot.problem
        assert problem.cases == (Case.of(hotspot.dtype, "contiguous", **timed_sizes(hotspot)),)
        assert load_problem(path).cases == problem.cases
        written = path.read_text()
        assert "nightshift.kernels.ops.problems" not in written  # it stands alone
        probes = inputs.plan(problem, Candidate("x", "entry", "triton", "own_kernel", "bitwise"), b"s", inputs.CPU)
        assert probes


def test_a_problem_file_written_again_at_once_is_read_as_it_is(
    recorded: Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Same size, same time to the second: what Python keeps of a module would be the one before."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    problem = next(h for h in recorded.hotspots if h.problem)
    path = tmp_path / "again.py"
    write_problem([problem], path, RECORDED.name)
    first = load_problem(path).cases[0]
    text = path.read_text()
    name, value = first.params[0]
    other = value + 1
    assert len(str(other)) == len(str(value))
    at = path.stat()
    path.write_text(text.replace(f"{name}={value}", f"{name}={other}"))
    os.utime(path, ns=(at.st_atime_ns, at.st_mtime_ns))
    assert dict(load_problem(path).cases[0].params)[name] == other


def test_hotspots_without_a_problem_have_no_file(recorded: Profile, tmp_path: Path) -> None:
    unmatched = next(h for h in recorded.hotspots if not h.problem)
    with pytest.raises((ProblemError, KeyError)):
        write_problem([unmatched], tmp_path / "x.py")
    mixed: list[Hotspot] = [h for h in recorded.hotspots if h.problem][:2]
    with pytest.raises(ProblemError, match="one problem"):
        write_problem(mixed, tmp_path / "x.py")
    odd = replace(mixed[0], dtype="float64")
    with pytest.raises(ProblemError, match="float64"):
        write_problem([odd], tmp_path / "x.py")
