"""Kernel lines over HTTP: each once, in order, with gaps and restarts told."""

from __future__ import annotations

import json
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from nightshift.collectors.check import check_collect
from nightshift.collectors.frame import Reason
from nightshift.collectors.kernel_log.event import KernelEventKind
from nightshift.collectors.kernel_log.node_log import NodeAddress, NodeLogCollector
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Batch

NOW = 1_795_260_000.0
XID = "NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus."


class Log:
    """A node agent's endpoint over a list of texts."""

    def __init__(self) -> None:
        self.lines: list[tuple[int, float, str]] = []

    def __call__(self, handler: BaseHTTPRequestHandler) -> None:
        after = int(parse_qs(urlsplit(handler.path).query)["after"][0])
        if self.lines and self.lines[-1][0] < after:
            after = -1
        rows = ({"cursor": c, "t_s": t, "text": x} for c, t, x in self.lines if c > after)
        body = "".join(json.dumps(row) + "\n" for row in rows).encode()
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)


@pytest.fixture
def collector(opened: Any, page_server: Any) -> Callable[..., NodeLogCollector]:
    def make(path: str = "/k", **settings: Any) -> NodeLogCollector:
        url = page_server.at(path)
        made: NodeLogCollector = opened(
            NodeLogCollector(NodeLogCollector.Settings(urls=[url], nodes={url: "n1"}, **settings))
        )
        return made

    return make


def take(of: NodeLogCollector) -> Batch:
    return check_collect(of, NOW, Inventory(), 30.0)


def test_every_line_arrives_once(collector: Any, page_server: Any) -> None:
    log, of = Log(), collector()
    page_server.pages["/k"] = log
    log.lines = [(n, NOW - 10 + n, f"line {n}") for n in range(3)]
    assert [r.text for r in take(of).logs] == ["line 0", "line 1", "line 2"]
    log.lines.append((3, NOW - 1, XID))
    batch = take(of)
    assert [r.offset for r in batch.logs] == [3]
    (event,) = batch.events
    assert (event.kind, event.code, event.node) == (KernelEventKind.XID, 79, Subject(SubjectKind.NODE, "n1"))
    assert event.record.at.t_s == NOW - 1
    assert take(of).logs == []


def test_a_log_that_began_anew_is_read_from_its_start_and_told(collector: Any, page_server: Any) -> None:
    log, of = Log(), collector()
    page_server.pages["/k"] = log
    log.lines = [(n, NOW, "x") for n in range(100)]
    take(of)
    log.lines = [(0, NOW, "Linux version 6.1.0 (x)"), (1, NOW, XID)]
    assert [e.kind for e in take(of).events] == [KernelEventKind.GAP, KernelEventKind.BOOT, KernelEventKind.XID]
    assert take(of).events == () or take(of).events == []


def test_a_flood_keeps_every_event_drops_plain_lines_and_says_so(
    collector: Any, page_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nightshift.collectors.kernel_log.node_log.MAX_LINES", 10)
    log, of = Log(), collector()
    page_server.pages["/k"] = log
    log.lines = [(n, NOW, XID if n % 100 == 50 else "noise") for n in range(1000)]
    batch = take(of)
    assert sum(e.kind is KernelEventKind.XID for e in batch.events) == 10
    assert batch.events[-1].kind is KernelEventKind.GAP
    assert len(batch.logs) <= 20
    assert batch.sources[0].rejected[Reason.TOO_LARGE] == 1000 - len(batch.logs)


def test_lines_that_are_none_are_counted_and_the_others_used(collector: Any, page_server: Any) -> None:
    good = json.dumps({"cursor": 5, "t_s": NOW, "text": XID})
    bad = [
        "nonsense",
        "[]",
        '{"cursor": "1", "t_s": 1, "text": "x"}',
        '{"cursor": 1}',
        '{"cursor":1,"t_s":1,"text":2}',
    ]
    page_server.pages["/k"] = ("\n".join([*bad, good]) + "\n").encode()
    batch = take(collector())
    assert batch.sources[0].rejected == {Reason.MALFORMED: 5}
    assert len(batch.events) == 1


def test_a_time_that_cannot_be_is_replaced_by_now_with_its_uncertainty(collector: Any, page_server: Any) -> None:
    page_server.pages["/k"] = (json.dumps({"cursor": 1, "t_s": 1e12, "text": XID}) + "\n").encode()
    batch = take(collector())
    assert batch.events[0].record.at.t_s == NOW
    assert batch.events[0].record.at.uncertainty_s > 0
    assert batch.sources[0].rejected == {Reason.CLOCK: 1}


def test_a_faulty_node_is_told_and_never_becomes_an_event(
    collector: Any, faulty: tuple[Any, str, set[str], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nightshift.collectors.kernel_log.node_log.MAX_BYTES", 100_000)
    _, path, _, timeout_s = faulty
    batch = check_collect(collector(path), NOW, Inventory(), timeout_s)
    (status,) = batch.sources
    assert not status.ok or status.rejected or status.samples == 0
    assert not batch.events


def test_a_restarted_daemon_goes_on_where_it_was(collector: Any, page_server: Any, tmp_path: Path) -> None:
    """Nothing that was taken up comes again, nothing that was not is lost, and GPUs' addresses are still known."""
    log, state = Log(), tmp_path / "cursors.json"
    page_server.pages["/k"] = log
    told = "NVRM: GPU at PCI:0000:9b:00: GPU-11111111-2222-3333-4444-555555555555"
    log.lines = [(1, NOW - 90, told), (2, NOW - 9, XID)]
    of = collector(state_file=state)
    assert len(take(of).events) == 1
    of.close()
    log.lines.append((3, NOW - 8, XID))
    again = collector(state_file=state)
    (event,) = take(again).events
    assert event.record.offset == 3
    assert event.gpu == Subject(SubjectKind.GPU, "GPU-11111111-2222-3333-4444-555555555555")


def test_a_node_whose_agent_is_replaced_goes_on_where_it_was_also_over_a_restart(
    collector: Any, page_server: Any, tmp_path: Path
) -> None:
    """While its pod is replaced nothing of it is read: no Xid of before comes again, none of meanwhile is lost."""
    log, state = Log(), tmp_path / "cursors.json"
    page_server.pages["/k"] = log
    log.lines = [(1, NOW - 800, XID)]
    of = collector(state_file=state)
    here = NodeAddress(page_server.at("/k"), "n7")
    of.retarget([here])
    assert [event.record.offset for event in take(of).events] == [1]
    of.retarget([])
    of.close()
    log.lines.append((2, NOW - 1000, XID))
    again = collector(state_file=state)
    again.retarget([])
    again.retarget([here])
    assert [event.record.offset for event in take(again).events] == [2]


def test_a_crash_tells_the_last_look_again_and_loses_none(collector: Any, page_server: Any, tmp_path: Path) -> None:
    log, state = Log(), tmp_path / "cursors.json"
    page_server.pages["/k"] = log
    of = collector(state_file=state)
    for n in range(3):
        log.lines.append((n, NOW - 9, XID))
        take(of)
    crashed = collector(state_file=state)  # `of` was never closed
    assert [event.record.offset for event in take(crashed).events] == [2]


def test_events_of_a_node_that_was_never_read_are_told_only_while_they_are_new(
    collector: Any, page_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nightshift.collectors.kernel_log.node_log.SINCE_S", 60)
    log, of = Log(), collector()
    page_server.pages["/k"] = log
    log.lines = [(1, NOW - 600, XID), (2, NOW - 5, XID)]
    assert [(e.record.offset, e.attributes.get("old")) for e in take(of).events] == [(1, "yes"), (2, None)]


@pytest.mark.parametrize("kept", [b"", b"[]", b'{"x', b"null", b'{"URL": {"cursor": "a"}}', b'{"URL": 7}'])
def test_a_damaged_state_file_is_said_and_the_log_read_from_its_start(
    collector: Any, page_server: Any, tmp_path: Path, kept: bytes
) -> None:
    log, state = Log(), tmp_path / "cursors.json"
    page_server.pages["/k"] = log
    log.lines = [(1, NOW - 5, XID)]
    state.write_bytes(kept.replace(b"URL", page_server.at("/k").encode()))
    batch = take(collector(state_file=state))
    assert len(batch.events) == 1


def test_a_state_that_cannot_be_written_is_said(collector: Any, page_server: Any, tmp_path: Path) -> None:
    log = Log()
    page_server.pages["/k"] = log
    log.lines = [(1, NOW - 5, XID)]
    of = collector(state_file=tmp_path / "absent" / "cursors.json")
    take(of)
    batch = take(of)
    assert batch.sources[0].ok
    assert "cannot be kept" in batch.sources[0].detail


@pytest.mark.parametrize("lines", [2, 4, 40])
def test_a_record_of_several_lines_fails_no_look_and_keeps_their_order(
    collector: Any, page_server: Any, lines: int
) -> None:
    """As the driver prints an API mismatch: one record, whose lines outnumber the records."""
    log, of = Log(), collector()
    page_server.pages["/k"] = log
    text = "\n".join(
        ["NVRM: API mismatch: the client has the version 580.95.05, but", *["NVRM: further"] * (lines - 1)]
    )
    log.lines = [(1, NOW - 5, text)]
    batch = take(of)
    assert batch.sources[0].rejected == {}
    assert [record.text for record in batch.logs] == text.split("\n")
    assert [event.attributes["message"] for event in batch.events] == ["api_mismatch"]
