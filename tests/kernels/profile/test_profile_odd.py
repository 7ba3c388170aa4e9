"""Traces that are odd: several GPUs, a GPU that is behind, no GPU, several processes, work of no operator. Whatever
is in them, a step's parts add up to the step, and no operation takes more of it than it has."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from nightshift.collectors.training.kineto_reader import read_trace
from nightshift.collectors.training.kineto_trace import TraceError
from nightshift.kernels.cli import app
from nightshift.kernels.loop.report import write_report
from nightshift.kernels.profile.hotspots import Profile, as_text, profile, profile_of
from nightshift.kernels.profile.roofline import Peaks

PEAKS = Peaks(4e12, {"float32": 5e13}, "probe")
STEP_US = 100.0


def step(number: int = 0, begin: float = 0.0, pid: int = 1) -> dict[str, Any]:
    return {
        "ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{number}", "pid": pid, "tid": 2, "ts": begin,
        "dur": STEP_US,
    }  # fmt: skip


def norm(
    number: int, launched: float, runs: float, length: float, *, device: int = 0, stream: int = 7, pid: int = 1,
    kernel: str = "layer_norm_kernel", cat: str = "kernel",
) -> list[dict[str, Any]]:  # fmt: skip
    """A layer norm of 1024 rows of 256 float32 whose kernel runs where and when it is told."""
    shapes = {
        "Input Dims": [[1024, 256], [], [256], [256], []], "Input Strides": [[256, 1], [], [1], [1], []],
        "Input type": ["float", "ScalarList", "float", "float", "Scalar"],
        "Concrete Inputs": ["", "[256]", "", "", ""],
    }  # fmt: skip
    base = {"ph": "X", "pid": pid, "tid": 2}
    args = {"correlation": number}
    return [
        {**base, "cat": "cpu_op", "name": "aten::layer_norm", "ts": launched, "dur": 1.0,
         "args": {"External id": number, **shapes}},
        {**base, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": launched + 0.2, "dur": 0.5, "args": args},
        {**base, "cat": cat, "name": kernel, "pid": device, "tid": stream, "ts": runs, "dur": length,
         "args": {**args, "External id": number, "stream": stream, "device": device}},
    ]  # fmt: skip


def read(folder: Path, *events: list[dict[str, Any]] | dict[str, Any]) -> Profile:
    listed = [one for part in events for one in (part if isinstance(part, list) else [part])]
    path = folder / "trace.json"
    path.write_text(json.dumps({"traceEvents": listed}))
    return profile(path, PEAKS)


def test_two_gpus_side_by_side_take_as_much_of_a_step_as_one(tmp_path: Path) -> None:
    one = read(tmp_path, step(), norm(1, 5.0, 10.0, 40.0))
    two = read(tmp_path, step(), norm(1, 5.0, 10.0, 40.0), norm(2, 7.0, 10.0, 40.0, device=1))
    for found, calls in ((one, 1), (two, 2)):
        (hotspot,) = found.hotspots
        assert hotspot.problem == "layernorm"
        assert hotspot.calls_per_step == calls
        assert hotspot.share == pytest.approx(0.4)
        assert (hotspot.utilisation, hotspot.gain) == pytest.approx(
            (one.hotspots[0].utilisation, one.hotspots[0].gain)
        )
        assert found.compute_s == pytest.approx(40e-6)


def test_where_the_gpu_is_behind_the_step_is_as_long_as_it_works(tmp_path: Path) -> None:
    found = read(tmp_path, step(), norm(1, 5.0, 10.0, 400.0), norm(2, 7.0, 410.0, 100.0, cat="gpu_memcpy"))
    assert found.step_s == pytest.approx(500e-6)
    assert found.idle_s == 0.0
    assert sum(h.share for h in found.hotspots) == pytest.approx(1.0)


def test_work_of_no_operator_is_told(tmp_path: Path) -> None:
    """Kernels of a CUDA graph have the correlation of its launch, which stands in no operator."""
    launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaGraphLaunch", "pid": 1, "tid": 2, "ts": 60.0,
              "dur": 5.0, "args": {"correlation": 9}}  # fmt: skip
    inside = [norm(9, 0.0, 61.0 + 10 * n, 10.0)[2] for n in range(3)]
    for activity in inside:
        del activity["args"]["External id"]
    found = read(tmp_path, step(), norm(1, 5.0, 10.0, 40.0), launch, inside)
    assert found.unmapped_s == pytest.approx(30e-6)
    assert "0.030 ms a step belong to no operator" in as_text(found)
    assert found.compute_s == pytest.approx(70e-6)


def test_what_would_be_added_up_wrongly_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"trace.json: holds operators of 2 processes \(1, 4\)"):
        read(tmp_path, step(), norm(1, 5.0, 10.0, 40.0), step(pid=4), norm(2, 5.0, 10.0, 40.0, pid=4))
    with pytest.raises(TraceError, match=r"launches 1 kernels and holds none: record ProfilerActivity.CUDA"):
        read(tmp_path, step(), norm(1, 5.0, 10.0, 40.0)[:2])
    found = read(tmp_path, step(), norm(1, 5.0, 10.0, 40.0)[:1])
    assert not found.on_gpu
    assert "no GPU in this trace" in as_text(found)


def test_steps_that_hold_no_work_are_told(tmp_path: Path) -> None:
    """Marked after everything was launched: an empty profile would say that nothing is worth a kernel."""
    with pytest.raises(TraceError, match=r"none of its 1 GPU activities was launched within a step \(marked: 3\)"):
        read(tmp_path, step(3, begin=5000.0), norm(1, 5.0, 10.0, 40.0))


def test_sizes_below_zero_are_not_taken_for_sizes(tmp_path: Path) -> None:
    """A tensor whose size is not known is recorded so."""
    events = norm(1, 5.0, 10.0, 40.0)
    events[0]["args"]["Input Dims"][0] = [-1, 256]
    (hotspot,) = read(tmp_path, step(), events).hotspots
    assert (hotspot.problem, hotspot.gain) == ("", 0.0)


@given(
    st.lists(
        st.tuples(
            st.floats(0.0, 99.0), st.floats(0.0, 300.0), st.floats(0.0, 200.0), st.integers(0, 1),
            st.integers(7, 9),
            st.sampled_from([("kernel", "k"), ("kernel", "ncclDevKernel_AllReduce"), ("gpu_memcpy", "DtoH")]),
        ),
        min_size=1, max_size=12,
    )
)  # fmt: skip
def test_whatever_runs_when_and_where_the_parts_are_the_step(
    tmp_path_factory: pytest.TempPathFactory, work: list[Any]
) -> None:
    events = [
        norm(number, begin, begin + wait, length, device=device, stream=stream, cat=cat, kernel=kernel)
        for number, (begin, wait, length, device, stream, (cat, kernel)) in enumerate(work, 1)
    ]
    found = read(tmp_path_factory.mktemp("t"), step(), *events)
    parts = (found.compute_s, found.communication_s, found.copy_s, found.idle_s)
    assert sum(parts) == pytest.approx(found.step_s)
    assert min(parts) >= 0.0
    listed = sum(hotspot.total_s for hotspot in found.hotspots) + found.unmapped_s
    assert listed == pytest.approx(found.compute_s + found.copy_s, abs=1e-12)
    assert sum(hotspot.share for hotspot in found.hotspots) <= 1.0 + 1e-9
    for hotspot in found.hotspots:
        assert hotspot.gain <= 1.0 / (1.0 - min(hotspot.share, 1.0 - 1e-12)) - 1.0 + 1e-9
        assert math.isnan(hotspot.utilisation) or 0.0 <= hotspot.utilisation <= 1.0


def test_a_recording_without_its_gpu_is_refused_too() -> None:
    trace = read_trace(Path(__file__).parents[2] / "recordings" / "h200_train_trace.json.gz")
    trace.events.category[trace.events.rows("kernel", "gpu_memcpy", "gpu_memset")] = 0
    with pytest.raises(TraceError, match=r"launches 13.. kernels and holds none"):
        profile_of(trace)


def test_peaks_that_nothing_proves_are_told_as_such_and_written_as_json(tmp_path: Path) -> None:
    """Nothing in this trace has a family: there is no rate to be seen, and NaN is no JSON."""
    events = norm(1, 5.0, 10.0, 40.0)
    events[0]["name"] = "aten::unbind"
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [step(), *events]}))
    done = CliRunner().invoke(app, ["profile", str(path)], catch_exceptions=False)
    assert "peaks (trace): none are known" in done.output
    done = CliRunner().invoke(app, ["profile", str(path), "--json"], catch_exceptions=False)

    def refuse(word: str) -> None:
        raise AssertionError(word)

    found = json.loads(done.output, parse_constant=refuse)
    assert found["peaks"]["bytes_per_s"] is None
    (tmp_path / "profile.json").write_text(done.output)
    markdown = write_report(tmp_path).markdown
    assert "No peaks are known." in markdown.read_text()


def test_a_step_that_is_marked_twice_or_reaches_into_the_next_is_counted_once(tmp_path: Path) -> None:
    """Two threads' marks, or two profilers', halved every time before, and an optimiser's size."""

    def marked(number: int, begin: float, end: float, tid: int) -> dict[str, Any]:
        return {**step(), "name": f"ProfilerStep#{number}", "ts": begin, "dur": end - begin, "tid": tid}

    work = [norm(1, 5.0, 10.0, 40.0), norm(2, 105.0, 110.0, 40.0)]
    plain = read(tmp_path, marked(7, 0.0, 100.0, 2), marked(8, 100.0, 200.0, 2), *work)
    twice = [marked(7, 0.0, 130.0, tid) for tid in (2, 3)] + [marked(8, 100.0, 200.0, tid) for tid in (2, 3)]
    odd = read(tmp_path, *twice, *work)
    for found in (plain, odd):
        assert found.steps == 2
        assert found.step_s == pytest.approx(100e-6)
        assert found.hotspots[0].total_s == pytest.approx(40e-6)
        assert found.hotspots[0].share == pytest.approx(0.4)


def test_an_optimiser_s_step_that_is_written_twice_ends_one_step(tmp_path: Path) -> None:
    """A trace that was put together of two copies had twice as many steps, of half the time."""
    ends = [{**step(begin=begin), "name": "Optimizer.step#AdamW.step", "dur": 20.0} for begin in (80.0, 180.0)]
    work = [norm(1, 0.0, 10.0, 40.0), norm(2, 105.0, 110.0, 40.0)]
    once, twice = read(tmp_path, *ends, *work), read(tmp_path, *ends, *ends, *work)
    assert once.steps == twice.steps == 2
    assert once.step_s == twice.step_s == pytest.approx(100e-6)


def test_strides_that_are_none_and_events_that_are_none_are_told_or_passed_over(tmp_path: Path) -> None:
    events = norm(1, 5.0, 10.0, 40.0)
    given = {
        "External id": 1,
        "Input Dims": [[2, 4, 8, 16]] * 3 + [[], [], []],
        "Input Strides": [None] * 6,
        "Input type": ["float"] * 3 + ["", "Scalar", "Scalar"],
        "Concrete Inputs": ["", "", "", "", "0.0", "True"],
    }
    attention = {**events[0], "name": "aten::scaled_dot_product_attention", "args": given}
    found = read(tmp_path, step(), attention, events[1:], {**events[2], "dur": -4.0})
    assert found.hotspots[0].problem == "flash_attention"
    assert "1 malformed events of the trace were left out" in as_text(found)
