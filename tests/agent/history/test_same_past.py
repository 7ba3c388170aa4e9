"""`run`, `replay` and `lookback` name the same incidents of the same telemetry, however it reached them.

A drawn past of gauges, counts and health watches is served as an exporter's page to the daemon (which is recorded
meanwhile), by its recording, and as a Prometheus that had scraped that page.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any
from urllib.parse import parse_qs

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightshift.agent.app import App
from nightshift.agent.clock import SteppedClock
from nightshift.agent.construct import build_detectors
from nightshift.agent.correlation.kinship import first_cause
from nightshift.agent.history.lookback import look_back
from nightshift.agent.replay import replay
from nightshift.agent.settings import Settings
from nightshift.agent.store.incident import Incident
from nightshift.collectors.base import Collector
from nightshift.collectors.merge import Merger
from nightshift.collectors.prometheus.live import PrometheusCollector
from nightshift.collectors.prometheus.range import RangeReader
from nightshift.collectors.recording import RecordingWriter
from nightshift.collectors.subject import Inventory, SubjectKind
from nightshift.collectors.telemetry.dcgm_exporter import DcgmExporterCollector
from nightshift.collectors.tick import Tick
from nightshift.detectors.base import Finding

TICK_S, LOOKS = 30.0, 12
START_S = 1_795_266_000.0
# the metrics of the past: all of them at each look would be a thousand queries
QUERIED: dict[str, Any] = {
    "kinds": [SubjectKind.GPU],
    "metrics": ["gpu_memory_used_bytes", "gpu_xid_last", "gpu_recovery_action"],
    "at_clock": True,
}
Labels = tuple[tuple[str, str], ...]
Sample = tuple[str, Labels, float]
Told = tuple[str, str, float]


@dataclass(frozen=True)
class Past:
    """The samples of each look; a look whose page was not answered has none."""

    looks: tuple[tuple[Sample, ...], ...]

    def at(self, at_s: float) -> tuple[Sample, ...]:
        number = round((at_s - START_S) / TICK_S)
        return self.looks[number] if 0 <= number < len(self.looks) else ()

    def page(self, at_s: float) -> bytes:
        rows = []
        for name, labels, value in self.at(at_s):
            inner = ",".join(f'{key}="{text}"' for key, text in labels)
            rows.append(f"{name}{{{inner}}} {value}\n")
        return "".join(rows).encode()


def changes(values: st.SearchStrategy[float]) -> st.SearchStrategy[list[float]]:
    """What a gauge shows at each look: a value, and a few changes of it."""
    runs = st.lists(st.tuples(values, st.integers(1, LOOKS)), min_size=1, max_size=3)
    return runs.map(lambda found: ([v for v, n in found for _ in range(n)] + [found[-1][0]] * LOOKS)[:LOOKS])


gpu_pasts: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "xid": changes(st.sampled_from([0.0, 0.0, 13.0, 31.0, 45.0, 48.0, 63.0, 79.0, 95.0, 119.0])),
        "action": st.none() | changes(st.sampled_from([0.0, 0.0, 1.0, 2.0, 4.0, 5.0, 7.0, 9.0])),
        "count": st.none()
        | st.tuples(st.sampled_from(["31", "48", "79", "94"]), changes(st.sampled_from([0.0, 0.0, 1.0, 2.0]))),
        "health": st.none()
        | st.tuples(
            st.sampled_from(["DCGM_FR_UNCONTAINED_ERROR", "DCGM_FR_PCI_REPLAY_RATE"]),
            changes(st.sampled_from([0.0, 0.0, 10.0, 20.0])),
        ),
    }
)


@st.composite
def pasts(draw: st.DrawFn) -> Past:
    drawn = draw(st.lists(gpu_pasts, min_size=1, max_size=3))
    missed = draw(st.sets(st.integers(0, LOOKS - 1), max_size=2))
    looks = []
    for look in range(LOOKS):
        samples: list[Sample] = []
        for number, gpu in enumerate(drawn):
            labels: Labels = (("gpu", str(number)), ("UUID", f"GPU-{number}"), ("Hostname", f"n{number % 2}"))
            samples += [
                ("DCGM_FI_DEV_FB_USED", labels, 40_000.0),
                ("DCGM_FI_DEV_XID_ERRORS", labels, gpu["xid"][look]),
            ]
            if gpu["action"] is not None:
                samples.append(("DCGM_FI_DEV_GPU_RECOVERY_ACTION", labels, gpu["action"][look]))
            if gpu["count"] is not None:
                code, counts = gpu["count"]
                # the exporter writes a row without `xid` where it counted none
                counted = (*labels, ("xid", code)) if counts[look] else labels
                samples.append(("DCGM_EXP_XID_ERRORS_COUNT", counted, counts[look]))
            if gpu["health"] is not None:
                code, healths = gpu["health"]
                watch = (*labels, ("health_watch", "ALL"), ("health_error_code", code if healths[look] else ""))
                samples.append(("DCGM_EXP_GPU_HEALTH_STATUS", watch, healths[look]))
        looks.append(() if look in missed else tuple(samples))
    return Past(tuple(looks))


def has_error(past: Past) -> bool:
    """Whether a grave Xid comes in the middle, so that there is something to name."""
    grave = [number for number, look in enumerate(past.looks) for _, _, value in look if value == 95.0]
    return bool(grave) and min(grave) > 2


class Served:
    """The past over HTTP: `/metrics` as of `now_s`, and the Prometheus that scraped it."""

    def __init__(self) -> None:
        self.past, self.now_s = Past(()), START_S
        served = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._send(200 if served.past.at(served.now_s) else 500, served.past.page(served.now_s))

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                form = {key: one[0] for key, one in parse_qs(body.decode()).items()}
                answer = served.range(form) if self.path.endswith("query_range") else served.instant(form)
                self._send(200, orjson.dumps({"status": "success", "data": answer}))

            def _send(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def instant(self, form: Mapping[str, str]) -> dict[str, object]:
        at_s = float(form["time"])
        found = self._evaluated(form["query"], at_s)
        rows = [{"metric": dict(labels), "value": [at_s, str(value)]} for labels, value in found.items()]
        return {"resultType": "vector", "result": rows}

    def range(self, form: Mapping[str, str]) -> dict[str, object]:
        series: dict[Labels, list[object]] = {}
        at_s, end_s, step_s = float(form["start"]), float(form["end"]), float(form["step"])
        while at_s <= end_s + 1e-6:
            for labels, value in self._evaluated(form["query"], at_s).items():
                series.setdefault(labels, []).append([at_s, str(value)])
            at_s += step_s
        rows = [{"metric": dict(labels), "values": values} for labels, values in series.items()]
        return {"resultType": "matrix", "result": rows}

    def _evaluated(self, query: str, at_s: float) -> dict[Labels, float]:
        """The few forms of query that the collector and the range reader write."""
        above = -math.inf
        if query.endswith(" > 0"):
            query, above = query.removesuffix(" > 0"), 0.0
        if " > " in query or "nodename" in query or "container" in query:
            return {}
        named = re.search(r'__name__=~"([^"]+)"', query)
        names = named.group(1).split("|") if named else re.findall(r"DCGM_\w+", query)
        grouped = re.search(r"by \(([^)]*)\)", query)
        keys = [key.strip() for key in grouped.group(1).split(",")] if grouped else None
        found: dict[Labels, float] = {}
        for name, labels, value in self.past.at(at_s):
            if name in names:
                every = (("__name__", name), *labels)
                key = tuple(pair for pair in every if keys is None or pair[0] in keys)
                found[key] = max(found.get(key, -math.inf), at_s if "timestamp(" in query else value)
        if query.startswith("count("):
            return {(): float(len(found))} if found else {}
        return {key: value for key, value in found.items() if value > above}


@pytest.fixture(scope="module")
def served() -> Served:
    return Served()


def ran(served: Served, folder: Path, recording: Path) -> set[Told]:
    """The daemon on the exporter's page; what it saw is recorded."""
    source = {"type": "dcgm_exporter", "urls": [f"{served.url}/metrics"]}
    app = App(Settings.model_validate(config(folder, source)), clock=SteppedClock(START_S))
    writer = RecordingWriter(recording, TICK_S)
    try:
        app.start()
        for number in range(LOOKS):
            served.now_s = START_S + number * TICK_S
            look = app.tick()
            assert look is not None
            writer.add(look.tick, app.inventory)
            app.clock.wait_until(served.now_s + TICK_S)
        app.settle()
        return told(app)
    finally:
        writer.close()
        app.stop()


def told(app: App) -> set[Told]:
    return {of_incident(app.store.incident(row.id)) for row in app.store.incidents()}


def of_incident(incident: Incident) -> Told:
    return named(first_cause([stored.finding for stored in incident.findings]), incident.opened_s)


def named(cause: Finding, opened_s: float) -> Told:
    return str(cause.fault), str(cause.subject), opened_s


def config(folder: Path, source: Mapping[str, object]) -> dict[str, object]:
    detectors = {"disabled": ["source"]}
    return {
        "state_dir": str(folder),
        "tick_s": TICK_S,
        "console": {"port": 0},
        "sources": [source],
        "detectors": detectors,
    }


def replayed(folder: Path, source: Mapping[str, object]) -> set[Told]:
    end_s = START_S + (LOOKS - 1) * TICK_S
    found = replay(Settings.model_validate(config(folder, source)), START_S, end_s)
    return set(map(of_incident, found))


def looked_back(served: Served) -> set[Told]:
    reader = RangeReader(PrometheusCollector.Settings(url=served.url, kinds=[SubjectKind.GPU]), TICK_S, load=1.0)
    inventory = Inventory()
    end_s = START_S + (LOOKS - 1) * TICK_S
    try:
        found = found_in(reader.ticks(START_S, end_s, inventory), inventory)
    finally:
        reader.close()
    assert reader.reading.failed == []
    return found


def found_in(ticks: Iterable[Tick], inventory: Inventory) -> set[Told]:
    """The incidents of ticks, with the detectors and the correlation of a look-back."""
    chosen = Settings.model_validate({"detectors": {"disabled": ["source"]}})
    seen, *_ = look_back(ticks, inventory, build_detectors(chosen.detectors), chosen.budget)
    return {named(one.cause, one.opened_s) for one in seen}


def ticks_of(served: Served, collector: Collector, inventory: Inventory) -> Iterator[Tick]:
    """The looks of a collector as the daemon makes them."""
    merger = Merger()
    try:
        for number in range(LOOKS):
            served.now_s = START_S + number * TICK_S
            yield merger.merge([collector.collect(served.now_s, inventory, 60.0)], served.now_s, inventory)
    finally:
        collector.close()


@pytest.mark.full
@settings(max_examples=6, deadline=None)
@given(pasts())
def test_pages_live_queries_and_ranges_name_the_same_incidents(served: Served, past: Past) -> None:
    served.past = past
    back = looked_back(served)
    pages = DcgmExporterCollector(DcgmExporterCollector.Settings(urls=[f"{served.url}/metrics"]))
    queries = PrometheusCollector.Settings(url=served.url, **QUERIED)
    for collector in (pages, PrometheusCollector(queries)):
        inventory = Inventory()
        assert found_in(ticks_of(served, collector, inventory), inventory) == back


@settings(max_examples=1, deadline=None)
@given(pasts().filter(has_error))
def test_run_replay_and_lookback_name_the_same_incidents(served: Served, past: Past) -> None:
    """The same through the whole daemon, its store and its recordings."""
    served.past = past
    with TemporaryDirectory() as name:
        folder = Path(name)
        live = ran(served, folder / "run", folder / "past.gz")
        assert live
        assert replayed(folder / "replay", {"type": "recording", "path": str(folder / "past.gz")}) == live
        ranged = {"type": "prometheus", "url": served.url, **QUERIED}
        assert replayed(folder / "range", ranged) == live
        assert looked_back(served) == live
