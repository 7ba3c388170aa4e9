"""What is said before any kernel: drawn traces in which the GPU waits for one thing, and an H200's recording."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nightshift.kernels.profile.hotspots import Profile, as_text, first, left_out, profile

RECORDED = Path(__file__).parents[2] / "recordings" / "h200_train_trace.json.gz"


class Drawing:
    """A trace of one step of 1,000 µs, one CPU thread, one GPU."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = [self._event("user_annotation", "ProfilerStep#1", 0, 1000)]
        self._calls = 0

    def _event(self, kind: str, name: str, ts: float, dur: float, tid: int = 1, **args: Any) -> dict[str, Any]:
        return {"ph": "X", "cat": kind, "name": name, "ts": ts, "dur": dur, "pid": tid, "tid": tid, "args": args}

    def kernel(
        self, launched: float, begin: float, dur: float, name: str = "elementwise", by: str = "cudaLaunchKernel"
    ) -> None:
        self._calls += 1
        n = self._calls
        self.events.append(self._event("cpu_op", "aten::mul", launched - 0.5, 2, **{"External id": n}))
        self.events.append(self._event("cuda_runtime", by, launched, 1, correlation=n, **{"External id": n}))
        told = {"correlation": n, "External id": n, "device": 0, "stream": 7}
        self.events.append(self._event("kernel", name, begin, dur, 900, **told))

    def loader(self, begin: float, dur: float) -> None:
        name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        self.events.append(self._event("user_annotation", name, begin, dur))

    def read(self, folder: Path) -> Profile:
        path = folder / "trace.json"
        device = {"id": 0, "name": "NVIDIA H200"}
        path.write_text(json.dumps({"deviceProperties": [device], "traceEvents": self.events}))
        return profile(path)


def test_a_gpu_that_waits_for_launches_is_told_of_with_its_share(tmp_path: Path) -> None:
    """Ten kernels of 50 µs, each launched 50 µs after the one before had ended."""
    drawing = Drawing()
    for n in range(10):
        drawing.kernel(100 * n + 5, 100 * n + 10, 50)
    found = drawing.read(tmp_path)
    assert found.waits.launch_s == pytest.approx(9 * 50e-6)
    (line,) = first(found)
    assert line.startswith(
        "1. launch-bound: the GPU waits for launches, 0.45 of 1.00 ms a step (45%; at most 1.82×"
    )
    assert "10 launches a step. Measure torch.compile first" in line
    assert line in as_text(found)


def test_kernels_that_were_launched_in_time_are_no_reason_to_compile(tmp_path: Path) -> None:
    """The same gaps; all launches were made in the first 60 µs, so what the GPU waits for is not in the trace."""
    drawing = Drawing()
    for n in range(10):
        drawing.kernel(4 * n + 1, 100 * n + 50, 50)
    found = drawing.read(tmp_path)
    assert found.idle_s > 4e-4
    assert first(found) == ()


def test_a_compiled_step_is_told_of_graphs_and_one_with_graphs_of_their_breaks(tmp_path: Path) -> None:
    for name, by, said in (
        ("triton_poi_fused_mul_0", "cudaLaunchKernel", "compiled without CUDA graphs"),
        ("triton_poi_fused_mul_0", "cudaGraphLaunch", "10 of them CUDA graphs"),
    ):
        drawing = Drawing()
        for n in range(10):
            drawing.kernel(100 * n + 5, 100 * n + 10, 50, name, by)
        (line,) = first(drawing.read(tmp_path))
        assert said in line


def test_waits_for_data_and_exposed_communication_come_in_the_order_of_their_size(tmp_path: Path) -> None:
    """A loader of 300 µs, and 200 µs of a collective that nothing runs beside."""
    drawing = Drawing()
    drawing.kernel(1, 5, 295)
    drawing.loader(300, 300)
    drawing.kernel(600, 602, 198)
    drawing.kernel(601, 800, 200, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL")
    data, exposed = first(drawing.read(tmp_path))
    assert data.startswith("1. the GPU waits for data, 0.30 of 1.00 ms a step (30%")
    assert exposed.startswith(
        "2. exposed communication, mostly in ncclDevKernel_AllReduce_Sum_bf16_RING_LL, 0.20 of"
    )


def test_a_cuda_graphs_kernels_are_told_of_only_where_the_trace_holds_a_graph(tmp_path: Path) -> None:
    for by, said in (("cudaLaunchKernel", False), ("cudaGraphLaunch", True)):
        drawing = Drawing()
        drawing.kernel(1, 5, 500, by=by)
        drawing.events = [event for event in drawing.events if event["cat"] != "cpu_op"]
        drawing.events.append(drawing._event("cpu_op", "aten::mul", 900, 2, **{"External id": 99}))
        found = drawing.read(tmp_path)
        assert found.unmapped_s == pytest.approx(500e-6)
        (line,) = left_out(found)
        assert ("CUDA graph" in line) == said


def test_the_recordings_step_is_launch_bound_by_a_third() -> None:
    """Eager, profiled with shapes: 10.1 of its 28.6 ms wait for launches, of 11.4 ms idle."""
    found = profile(RECORDED)
    assert found.waits.launch_s == pytest.approx(10.1e-3, rel=0.01)
    assert found.waits.data_s == 0.0
    assert found.waits.launch_s < found.idle_s
    (line,) = first(found)
    assert "launch-bound" in line
    assert "555 launches a step. Measure torch.compile first" in line
