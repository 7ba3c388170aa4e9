"""Profiler traces: read whole, in bounded pieces, with clear errors; steps and times as the recording has them."""

from __future__ import annotations

import gzip
import json
import random
import socket
import struct
import threading
import time
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from nightshift.collectors.base import Permanent, Temporary
from nightshift.collectors.check import check_collect
from nightshift.collectors.frame import Reason
from nightshift.collectors.subject import Inventory
from nightshift.collectors.training.dynolog import request_trace
from nightshift.collectors.training.kineto import KinetoCollector
from nightshift.collectors.training.kineto_reader import TraceReader, read_trace
from nightshift.collectors.training.kineto_steps import activities_of, exclusive_ns, step_times
from nightshift.collectors.training.kineto_trace import CATEGORIES, TraceError
from nightshift.kernels.cli import app

RECORDED = Path(__file__).parents[1] / "recordings" / "h200_train_trace.json.gz"


def _event(name: str = "aten::mm", **more: Any) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": "cpu_op",
        "name": name,
        "pid": 1,
        "tid": 2,
        "ts": 10.5,
        "dur": 2.25,
        "args": {},
        **more,
    }


def _write(path: Path, events: list[Any], **head: Any) -> Path:
    path.write_text(json.dumps({**head, "traceEvents": events, "traceName": "x"}))
    return path


def test_the_recorded_trace_has_every_event_that_json_load_finds() -> None:
    document = json.loads(gzip.decompress(RECORDED.read_bytes()))
    complete = [e for e in document["traceEvents"] if e["ph"] == "X" and e["cat"] != "Trace"]
    trace = read_trace(RECORDED)
    events = trace.events
    assert [trace.names[i] for i in events.name] == [e["name"][:1024] for e in complete]
    assert [CATEGORIES[i] for i in events.category] == [e["cat"] for e in complete]
    assert events.begin_ns.tolist() == [round(e["ts"] * 1000) for e in complete]
    assert events.dur_ns.tolist() == [round(e["dur"] * 1000) for e in complete]
    assert events.correlation.tolist() == [e.get("args", {}).get("correlation", -1) for e in complete]
    flows = [e for e in document["traceEvents"] if e["ph"] in "sf"]
    assert len(trace.flows.id) == len(flows)
    shaped = next(i for i, e in enumerate(complete) if e["name"] == "aten::nll_loss_backward")
    signature = trace.signatures[events.signature[shaped]]
    assert signature.dims[1] == (8192, 8192)
    assert signature.dtypes[1] == "float"
    assert trace.devices[0]["name"] == "NVIDIA H200"
    assert not trace.rejected


def test_the_gpu_time_of_the_recorded_steps_is_the_profilers_own_total() -> None:
    trace = read_trace(RECORDED)
    activities = activities_of(trace)
    times = step_times(trace, activities)
    assert len(times.number) == 3
    assert activities.exclusive_ns.sum() == pytest.approx(51.740e6, rel=1e-4)  # "Self CUDA time total: 51.740ms"
    assert (activities.launch >= 0).all()
    assert (times.compute_s + times.copy_s < times.length_s).all()


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
@pytest.mark.parametrize("style", ["kineto", "compact", "array", "spaced"])
def test_any_layout_of_the_same_events_reads_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, style: str
) -> None:
    monkeypatch.setattr("nightshift.collectors.training.kineto_reader.CHUNK_BYTES", 700)  # many cuts
    rng = random.Random(7)
    hostile = 'a}, {"b": "traceEvents": [ \\" é ] },{ '
    events = [
        _event(
            f"{hostile}{i}" * rng.randint(1, 4),
            ts=float(i),
            args={"External id": i, "nested": [{"a": 1}, {"b": 2}], "Input Dims": [[i % 3, 2], []]},
        )
        for i in range(200)
    ]
    head = {"note": '"traceEvents": [', "deviceProperties": [{"id": 0}, {"id": 1}]}
    text = {
        "kineto": json.dumps({**head, "traceEvents": events, "tail": [{"a": 1}, {"b": 2}]}, indent=2),
        "compact": json.dumps({**head, "traceEvents": events}, separators=(",", ":")),
        "array": json.dumps(events),
        "spaced": json.dumps({**head, "traceEvents": events}, indent=7).replace(",", " ,"),
    }[style]
    if style == "spaced":
        events = json.loads(text)["traceEvents"]
    path = tmp_path / f"t{suffix}"
    path.write_bytes(gzip.compress(text.encode()) if suffix.endswith("gz") else text.encode())
    trace = read_trace(path)
    assert [trace.names[i] for i in trace.events.name] == [e["name"] for e in events]
    assert trace.events.external_id.tolist() == list(range(200))
    assert len(trace.signatures) == 3
    assert len(trace.devices) == (0 if style == "array" else 2)


def test_every_cut_of_a_trace_is_a_clear_error(tmp_path: Path) -> None:
    whole = json.dumps({"schemaVersion": 1, "traceEvents": [_event(f"op{i}") for i in range(5)]}).encode()
    path = tmp_path / "t.json"
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        with pytest.raises(TraceError, match=r"t\.json"):
            read_trace(path)
    squeezed = gzip.compress(RECORDED.read_bytes()[:5000] * 3)
    gz = tmp_path / "t.json.gz"
    for end in (3, 12, len(squeezed) // 2, len(squeezed) - 1):
        gz.write_bytes(squeezed[:end])
        with pytest.raises(TraceError, match=r"t\.json\.gz"):
            read_trace(gz)
    gz.write_bytes(RECORDED.read_bytes()[:-1000])
    with pytest.raises(TraceError) as cut:
        read_trace(gz)
    assert cut.value.reason is Reason.TRUNCATED


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_damaged_trace_is_read_or_refused_with_its_place(data: st.DataObject, tmp_path_factory: Any) -> None:
    whole = bytearray(json.dumps({"traceEvents": [_event(f"op{i}", args={"bytes": i}) for i in range(6)]}).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(whole) - 1))
        whole[at : at + data.draw(st.integers(0, 5))] = data.draw(st.binary(max_size=6))
    path = tmp_path_factory.mktemp("fuzz") / "t.json"
    path.write_bytes(bytes(whole))
    try:
        trace = read_trace(path)
    except TraceError as error:
        assert str(path) in str(error)  # noqa: PT017
    else:
        assert (trace.events.dur_ns >= 0).all()


@pytest.mark.parametrize(
    "bad",
    [
        {"ts": None},
        {"ts": float("nan")},
        {"dur": float("inf")},
        {"dur": -5.0},
        {"ts": 1e300},
        {"name": None},
        {"name": ["x"]},
        {"args": [1]},
        {"args": "x"},
        {"ph": 3, "cat": {}},
    ],
)
def test_an_event_that_makes_no_sense_is_counted_and_the_rest_is_used(tmp_path: Path, bad: dict[str, Any]) -> None:
    trace = read_trace(_write(tmp_path / "t.json", [_event(), {**_event(), **bad}, "text", None, 5, _event()]))
    assert len(trace.events) == 2
    assert trace.rejected[Reason.MALFORMED] >= 3


def test_half_a_surrogate_pair_in_a_name_can_be_printed(tmp_path: Path) -> None:
    trace = read_trace(_write(tmp_path / "t.json", [_event("aten::\ud800mm")]))
    assert trace.names == ("aten::?mm",)


def test_a_zip_bomb_ends_at_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents": [' + b" " * (64 << 20)))
    with pytest.raises(TraceError, match="more than") as refused:
        read_trace(path, max_bytes=8 << 20)
    assert refused.value.reason is Reason.TOO_LARGE


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30), st.integers(0, 2)), max_size=12))
def test_shares_add_up_to_the_union_of_the_intervals(intervals: list[tuple[int, int, int]]) -> None:
    begin = np.array([b for b, _, _ in intervals], dtype=np.int64)
    end = begin + np.array([n for _, n, _ in intervals], dtype=np.int64)
    kind = np.array([k for _, _, k in intervals], dtype=np.uint8)
    covered = {t for b, e in zip(begin.tolist(), end.tolist(), strict=True) for t in range(b, e)}
    share = exclusive_ns(begin, end, kind)
    assert share.sum() == pytest.approx(len(covered))
    computing = {t for (b, n, k) in intervals if k == 0 for t in range(b, b + n)}
    assert share[kind == 0].sum() == pytest.approx(len(computing))


@pytest.fixture(autouse=True)
def _settle_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nightshift.collectors.training.kineto.SETTLE_S", 0.0)


def _collector(path: Path, **more: Any) -> KinetoCollector:
    return KinetoCollector(KinetoCollector.Settings(path=path, **more))


def test_a_folder_of_traces_becomes_the_ranks_steps_once(tmp_path: Path) -> None:
    folder = tmp_path / "lab" / "profiles"
    folder.mkdir(parents=True)
    (folder / "gpt-worker-3_417.17000000.pt.trace.json.gz").write_bytes(RECORDED.read_bytes())
    collector = _collector(tmp_path)
    now_s = time.time()
    batch = check_collect(collector, now_s, Inventory(), 30.0, expect_ok=True)
    (series,) = batch.steps
    assert str(series.subject) == "rank:lab/gpt#3"
    assert series.column("step_time_s") == pytest.approx([0.0345, 0.0252, 0.0261], abs=1e-4)
    assert series.column("compute_s") == pytest.approx([0.017] * 3, abs=1e-4)
    assert "3 steps of 28.6 ms on NVIDIA H200" in batch.logs[0].text
    assert not check_collect(collector, now_s + 5, Inventory(), 30.0, expect_ok=True).steps


def test_a_large_trace_is_read_over_several_ticks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nightshift.collectors.training.kineto_reader.CHUNK_BYTES", 1 << 18)
    (tmp_path / "a-0.json.gz").write_bytes(RECORDED.read_bytes())
    at = iter(np.arange(0.0, 1e6, 0.5))
    settings = KinetoCollector.Settings(path=tmp_path)
    collector = KinetoCollector(settings, timer=lambda: float(next(at)))
    batches = [collector.collect(time.time(), Inventory(), 2.0) for _ in range(40)]
    assert sum(len(batch.steps) for batch in batches) == 1
    assert not batches[0].steps


def test_a_bad_trace_is_a_reason_and_the_good_one_beside_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "a-0.json").write_text('{"traceEvents": [{"ph": "X"')
    _write(tmp_path / "b-1.json", [_event(), _event("k", cat="kernel", ts=11.0, dur=5.0)])
    (tmp_path / "c-2.json.gz").write_bytes(b"\x1f\x8bnot gzip at all")
    batch = check_collect(_collector(tmp_path), time.time(), Inventory(), 30.0, expect_ok=True)
    assert len(batch.steps) == 1
    assert batch.sources[0].rejected == {Reason.TRUNCATED: 1, Reason.MALFORMED: 1}
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "x.json").write_text("no JSON")
    refused = check_collect(_collector(alone), time.time(), Inventory(), 30.0, expect_ok=False)
    assert "x.json" in refused.sources[0].detail


def test_reading_is_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nightshift.collectors.training.kineto_reader.CHUNK_BYTES", 1 << 19)
    assert len(list(TraceReader(RECORDED).steps())) >= 6


def _daemon(answer: bytes) -> tuple[int, list[dict[str, Any]], threading.Thread]:
    """dynolog's side of one exchange."""
    listener = socket.create_server(("127.0.0.1", 0))
    asked: list[dict[str, Any]] = []

    def serve() -> None:
        with listener, listener.accept()[0] as connection:
            (length,) = struct.unpack("=i", connection.recv(4, socket.MSG_WAITALL))
            asked.append(json.loads(connection.recv(length, socket.MSG_WAITALL)))
            connection.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    return listener.getsockname()[1], asked, thread


def test_a_trace_is_asked_for_in_dynologs_protocol() -> None:
    reply = json.dumps({"processesMatched": [41, 42]}).encode()
    port, asked, thread = _daemon(struct.pack("=i", len(reply)) + reply)
    files = request_trace("127.0.0.1", PurePosixPath("/tmp/t.json"), job_id=7, port=port, process_limit=2)
    thread.join()
    assert files == ["/tmp/t_41.json", "/tmp/t_42.json"]
    assert asked[0]["fn"] == "setKinetOnDemandRequest"
    assert "PROFILE_REPORT_INPUT_SHAPES=true" in asked[0]["config"]


def test_the_command_line_asks_for_a_trace() -> None:
    reply = json.dumps({"processesMatched": [41]}).encode()
    port, asked, thread = _daemon(struct.pack("=i", len(reply)) + reply)
    command = ["trace", "127.0.0.1", "/profiles/gpt.json", "--job-id", "7", "--port", str(port)]
    done = CliRunner().invoke(app, command, catch_exceptions=False)
    thread.join()
    assert done.output == "/profiles/gpt_41.json\n"
    assert asked[0]["job_id"] == 7


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", Temporary),
        (struct.pack("=i", -5), Permanent),
        (struct.pack("=i", 1 << 30), Permanent),
        (struct.pack("=i", 3) + b"no!", Permanent),
        (struct.pack("=i", 2) + b"{}", Permanent),
        (struct.pack("=i", 24) + b'{"processesMatched": []}', Permanent),
    ],
)
def test_a_daemon_that_answers_badly_is_told_apart(answer: bytes, error: type[Exception]) -> None:
    port, _, thread = _daemon(answer)
    with pytest.raises(error, match="dynolog at"):
        request_trace("127.0.0.1", PurePosixPath("/tmp/t.json"), port=port)
    thread.join()
