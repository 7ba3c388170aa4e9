"""A look-back over servers that limit, refuse or stop: it asks for less, and says what it did not get."""

from __future__ import annotations

import json
import math
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from nightshift.agent.history.lookback import LookbackStore, OwnEvent, own_events, report
from nightshift.agent.history.lookback_report import as_json_values, as_text
from nightshift.agent.history.lookback_signals import NEEDS, blind_signals
from nightshift.collectors.base import Permanent
from nightshift.collectors.frame import Instant
from nightshift.collectors.http import SourceError
from nightshift.collectors.prometheus.live import PrometheusCollector
from nightshift.collectors.prometheus.range import RangeCost, RangeReader
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.detectors.alarms.budget import BudgetSettings
from nightshift.detectors.base import Fault, Finding, Severity, State
from tests.agent.history.test_lookback import STEP_S, server
from tests.agent.test_daemon import nightshift
from tests.conftest import PrometheusServer

__all__ = ["server"]
POINTS = 600
Answering = Callable[[str, int], tuple[int, str]]


def reader_of(url: str) -> RangeReader:
    settings = PrometheusCollector.Settings(url=url, kinds=[SubjectKind.GPU])
    return RangeReader(settings, float(STEP_S), load=1.0, sleep=lambda _: None)


def test_a_server_that_limits_samples_is_read_in_parts_and_nothing_is_lost(
    server: tuple[PrometheusServer, int],
) -> None:
    """A real Prometheus with a --query.max-samples below a whole stretch gives the same ticks as without."""
    running, start_s = server
    running.stop()
    told = []
    for limit in (50_000_000, 3000):
        running.command = [c for c in running.command if "max-samples" not in c] + [f"--query.max-samples={limit}"]
        running.start()
        reader = reader_of(running.url)
        ticks = list(reader.ticks(start_s, start_s + 14_000.0, Inventory()))
        record = [
            m.values.shape for m in reader.matrices("kube_node_spec_unschedulable", start_s, start_s + 14_000)
        ]
        if limit == 3000:  # in words, though the server packs them
            with pytest.raises(SourceError, match="too many samples"):
                reader.matrix('{__name__=~".+"}', start_s, start_s + 14_000, 60.0)
        reader.close()
        running.stop()
        assert reader.reading.failed == []
        assert sum(rows - 1 for rows, _ in record) + 1 == 14_000 // STEP_S + 1
        told.append([(t.at_s, t.frames[SubjectKind.GPU].values.tolist()) for t in ticks if t.frames])
    assert repr(told[0]) == repr(told[1])
    assert len(told[0]) == 14_000 // STEP_S + 1


@pytest.fixture
def scripted() -> Iterator[Callable[[Answering], tuple[str, list[int]]]]:
    """A server that answers by (query, points of its range); gives its URL and the points that were asked for."""
    running: list[ThreadingHTTPServer] = []

    def begin(answering: Answering) -> tuple[str, list[int]]:
        asked: list[int] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                form = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
                self.answer(urllib.parse.parse_qs(form))

            def do_GET(self) -> None:
                self.answer(urllib.parse.parse_qs(urllib.parse.urlparse(self.path).query))

            def answer(self, q: dict[str, list[str]]) -> None:
                points = 1
                if "step" in q:
                    points = int((float(q["end"][0]) - float(q["start"][0])) / float(q["step"][0])) + 1
                asked.append(points)
                status, result = answering(q["query"][0], points)
                kind = "matrix" if "step" in q else "vector"
                body = json.dumps({"status": "success", "data": {"resultType": kind, "result": json.loads(result)}})
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *_: object) -> None:
                return

        http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        running.append(http)
        threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return f"http://127.0.0.1:{http.server_port}", asked

    yield begin
    for http in running:
        http.shutdown()
        http.server_close()


@pytest.mark.parametrize("status", [422, 503])
def test_a_stretch_that_is_refused_or_not_ended_in_time_is_asked_for_in_parts(
    status: int, scripted: Callable[[Answering], tuple[str, list[int]]]
) -> None:
    """Above 200 points it fails; what is asked for shrinks below that, and nothing is missing in the end."""
    url, asked = scripted(lambda _, points: (status if points > 200 else 200, "[]"))
    reader = reader_of(url)
    parts = list(reader.matrices("up", 0.0, STEP_S * POINTS))
    ticks = list(reader.ticks(0.0, STEP_S * POINTS, Inventory()))
    reader.close()
    assert sum(part.values.shape[0] - 1 for part in parts) == POINTS
    assert len(ticks) == POINTS + 1
    assert reader.reading.failed == []
    assert max(asked) > 200
    # once by `matrices`, once by `ticks` for what exporters count
    assert status == 503 or asked.count(POINTS + 1) == 2, "what is refused as too large is not asked for thrice"


def test_a_server_that_dies_is_given_up_and_its_metrics_are_not_called_blind(
    scripted: Callable[[Answering], tuple[str, list[int]]],
) -> None:
    """Every answer is a 500: the rest is one gap, no metric is said to be missing from the exporter."""
    url, asked = scripted(lambda _, __: (500, "[]"))
    reader = reader_of(url)
    ticks = list(reader.ticks(0.0, 7.0 * STEP_S * 10_000, Inventory()))
    with pytest.raises(Permanent, match="HTTP 500"):
        reader.probe(0.0)
    reader.close()
    assert not any(tick.frames or tick.sources[0].ok for tick in ticks[:: len(ticks) // 50])
    assert "stretches in a row failed" in reader.reading.failed[-1]
    assert len(asked) < 500
    assert not any(b.signal.startswith("gpu_") for b in blind_signals(reader.reading.series, None))


def test_an_address_where_nothing_answers_is_one_sentence_at_once() -> None:
    """No minutes of failing queries, no trace."""
    done = nightshift("lookback", "--prometheus", "http://127.0.0.1:9", "--days", "1")
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert "127.0.0.1:9" in done.stderr


def test_a_record_with_holes_makes_no_cordon_of_its_own_return() -> None:
    """Cordoned, then unknown, then cordoned still: no event. First known as cordoned: it began before."""
    nan = math.nan
    above = [[-0.5, nan, -0.5], [0.5, nan, nan], [nan, 0.5, 0.5], [0.5, -0.5, nan], [-0.5, 0.5, 0.5]]
    events = own_events("cordoned", ["a", "b", "c"], [0.0, 1.0, 2.0, 3.0, 4.0], above)
    assert [(e.node, e.at_s) for e in events] == [("a", 1.0), ("c", 2.0), ("b", 4.0)]


def test_an_incident_is_told_by_what_was_wrong_and_what_is_blind_by_lines_to_paste() -> None:
    """Not by how its alarm ended; the same advice stands once, under the counters that it speaks of."""
    memory, inventory = LookbackStore(), Inventory()
    gpu, at = Subject(SubjectKind.GPU, "GPU-1"), Instant(1.0)
    firing = Finding("ecc", Fault.XID, gpu, State.FIRING, at, at, Severity.WARNING, "Xid 79", 2.0, 1.0)
    memory.take([firing], inventory, 1.0)
    for later, state in enumerate((State.NO_DATA, State.CLEAR), 2):
        memory.take([replace(firing, state=state, at=Instant(later), summary="Nothing more")], inventory, later)
    ((_, (told,), _),) = memory.incidents()
    assert (told.summary, told.state) == ("Xid 79", State.CLEAR)
    blind = blind_signals({need: 0 for needs in NEEDS.values() for need in needs}, False)
    text = as_text(report([], [], False, (0.0, 1.0), 0, BudgetSettings(), blind, []), RangeCost())
    assert text.count("counters file") == 1
    assert "    DCGM_FI_DEV_XID_ERRORS, gauge, " in text


def test_nothing_to_look_at_is_said_first_and_gives_no_rate() -> None:
    """Without a GPU and a read look: NaN as "over no time at all" and null, and no cordon is called missed."""
    day = 86400.0
    event = OwnEvent("cordoned", "n1", 3 * day)
    nothing = report([], [event], True, (0.0, 7 * day), 0, BudgetSettings(), [], [], 0, 0.0, [])
    text = as_text(nothing, RangeCost())
    assert "NO GPU WAS SEEN" in text
    assert "over no time at all" in text
    assert "no telemetry was read in the day before" in text
    assert "MISSED" not in text
    plain = as_json_values(nothing, RangeCost())
    assert plain["false_pages_per_week"] is None
    assert (plain["missed"], plain["unseen"], plain["read_days"]) == (0, 1, 0.0)
    half = report([], [event], None, (0.0, 7 * day), 8, BudgetSettings(), [], [], 0, 3.5 * day, [2.5 * day])
    assert half.missed == (event,)
    assert "3.5 of 7 days only" in as_text(half, RangeCost())
    assert "the queries failed" in as_text(half, RangeCost())
