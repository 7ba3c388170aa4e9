"""Spans as a collector receives them, and which calls of the API server an incident's trace shows."""

from __future__ import annotations

import gzip
import signal
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from nightshift import spans
from nightshift.agent.store.incident import IncidentState
from nightshift.collectors.base import Permanent
from tests.agent.fleet import Exporter, values
from tests.agent.incidents.test_under_way import Scene, scene
from tests.agent.test_daemon import Daemon

__all__ = ["scene"]  # a fixture


class OtlpCollector:
    """OTLP over HTTP on loopback. `status`: what it answers."""

    def __init__(self, status: int = 200) -> None:
        self.spans: list[Any] = []
        self.service: dict[str, str] = {}
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    outer.service = {a.key: a.value.string_value for a in resource.resource.attributes}
                    outer.spans += [span for scope in resource.scope_spans for span in scope.spans]
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    kept, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    monkeypatch.setattr(spans, "_tracer", provider.get_tracer("nightshift"))
    yield kept
    provider.shutdown()


@pytest.fixture
def config(tmp_path: Path) -> Iterator[Path]:
    exporter, path = Exporter(), tmp_path / "nightshift.yaml"
    path.write_text(yaml.safe_dump(values(tmp_path / "state", exporter, tick_s=0.5)))
    yield path
    exporter.close()


def test_the_daemon_exports_each_look_with_its_sources_and_detectors(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collector = OtlpCollector()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    try:
        daemon = Daemon(config)
        daemon.ready()
        assert daemon.end(signal.SIGTERM) == 0
    finally:
        collector.close()
    looks = [span for span in collector.spans if span.name == "look"]
    assert looks, {span.name for span in collector.spans}
    inside = {span.name for span in collector.spans if span.parent_span_id == looks[0].span_id}
    assert {"collect dcgm_exporter", "detect xid", "detect hang"} <= inside, inside
    assert (collector.service["service.name"], collector.service["k8s.cluster.name"]) == ("nightshift", "cluster")


@pytest.mark.full
def test_a_collector_that_is_away_holds_up_neither_the_daemon_nor_its_end(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collector = OtlpCollector(status=503)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    try:
        daemon = Daemon(config)
        daemon.ready()
        began_s = time.monotonic()
        assert daemon.end(signal.SIGTERM) == 0
        assert time.monotonic() - began_s < 60
    finally:
        collector.close()


def test_an_incident_is_one_trace_with_its_actions_calls(scene: Scene, exported: InMemorySpanExporter) -> None:
    """A budget holds the drain up: refused evictions are failed calls, and waiting is no failure."""
    scene.pass_time(120.0)
    found = exported.get_finished_spans()
    stages = [span for span in found if span.name.startswith("incident ")]
    assert {span.name for span in stages} == {"incident diagnose", "incident plan", "incident act"}
    assert {f"{span.context.trace_id:032x}" for span in found} == {spans.trace_of("cluster", scene.name)}
    by_id = {span.context.span_id: span for span in found}
    evictions = [span for span in found if span.name == "POST /api/v1/namespaces/{}/pods/{}/eviction"]
    assert {span.attributes["http.response.status_code"] for span in evictions} == {429}
    assert {span.status.status_code for span in evictions} == {StatusCode.ERROR}
    drain = by_id[evictions[0].parent.span_id]
    assert drain.name == "execute drain"
    assert "disruption budget" in drain.attributes["nightshift.waits_for"]
    assert drain.status.status_code is StatusCode.UNSET
    assert by_id[drain.parent.span_id].name == "incident act"
    # what the server counted is what the trace shows: no call of an action is outside it
    asked = [entry for entry in scene.server.requests if entry[1].subresource == "eviction"]
    assert len(asked) == len(evictions)
    assert scene.world.store.incident(scene.name).state is IncidentState.ACTING


def test_a_failure_is_marked_and_calls_outside_a_look_are_no_traces(exported: InMemorySpanExporter) -> None:
    with spans.api_call("GET", "/api/v1/nodes/n1") as opened:
        spans.answered(opened, 200)
    assert exported.get_finished_spans() == ()
    with pytest.raises(ValueError, match="broken"), spans.span("look"), spans.api_call("GET", "/api/v1/nodes/n1"):
        raise ValueError("broken")
    call, look = exported.get_finished_spans()
    assert (call.name, look.status.status_code) == ("GET /api/v1/nodes/{}", StatusCode.ERROR)
    assert call.attributes is not None
    assert call.attributes["error.type"] == "ValueError"


def test_without_an_endpoint_nothing_is_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in spans.ENDPOINTS:
        monkeypatch.delenv(name, raising=False)
    before = trace.get_tracer_provider()
    spans.start("c", "r")()
    assert trace.get_tracer_provider() is before


def test_an_exporter_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(spans.ENDPOINTS[0], "http://127.0.0.1:9")
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(Permanent, match=r"pip install .nightshift-oncall\[spans\]"):
        spans.start("c", "r")
