"""OpenTelemetry spans: a look at the fleet, the stages of an incident, an action with its calls of the API server.

Off unless OTEL_EXPORTER_OTLP_ENDPOINT (or its TRACES form) is set; the SDK reads that and every other OTEL_*
variable. Without one, OpenTelemetry's own no-op tracer costs some microseconds a span.

All stages of an incident stand in one trace, also over restarts and replicas: its id is derived from the cluster
and the incident (`trace_of`). Values of telemetry, logs, tokens and answers are in no span.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from nightshift.collectors.base import Permanent
from nightshift.version import program_version

__all__ = ["ENDPOINTS", "Attributes", "Span", "answered", "api_call", "span", "start", "trace_of", "within"]

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_STOP_MS = 5_000
"""A collector that does not answer must not hold up the drain of the daemon (ms)."""

Attributes = Mapping[str, str | int | float | bool]
_tracer = trace.get_tracer("nightshift")


def start(cluster: str, replica: str) -> Callable[[], None]:
    """Exports spans from now on, where the environment names an endpoint. Returns what ends the export.

    Raises Permanent where the exporter is not installed. What cannot be delivered is dropped, never waited for."""
    if not any(os.environ.get(name) for name in ENDPOINTS):
        return lambda: None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise Permanent(
            f"{ENDPOINTS[1]} is set, but the exporter of spans is not installed ({error}): "
            "pip install 'nightshift-oncall[spans]', or unset the variable"
        ) from error
    named = {"service.name": "nightshift", "service.version": program_version(), "service.instance.id": replica}
    provider = TracerProvider(resource=Resource.create({**named, "k8s.cluster.name": cluster}))
    batches = BatchSpanProcessor(OTLPSpanExporter())
    provider.add_span_processor(batches)
    trace.set_tracer_provider(provider)

    def stop() -> None:
        batches.force_flush(_STOP_MS)
        provider.shutdown()

    return stop


def trace_of(cluster: str, incident: str) -> str:
    """The id of an incident's trace, as 32 hexadecimal digits.

    >>> trace_of("prod", "INC-7")
    'ca490cdbef6b344d8ba8c47fda91b72c'
    """
    return hashlib.sha256(f"{cluster}/{incident}".encode()).hexdigest()[:32]


def within(trace_id: str) -> Context:
    """A context whose spans belong to that trace. Its first span has no parent that was exported."""
    parent = SpanContext(int(trace_id, 16), int(trace_id[:16], 16) or 1, True, TraceFlags(TraceFlags.SAMPLED))
    return trace.set_span_in_context(NonRecordingSpan(parent))


@contextmanager
def span(
    name: str,
    attributes: Attributes | None = None,
    *,
    parent: Context | None = None,
    kind: SpanKind = SpanKind.INTERNAL,
    waits: tuple[type[Exception], ...] = (),
) -> Iterator[Span]:
    """A span around a block. An exception marks it as failed and goes on; one of `waits` is no failure but stands
    as `nightshift.waits_for`."""
    with _tracer.start_as_current_span(
        name, parent, kind, attributes, record_exception=False, set_status_on_exception=False
    ) as opened:
        try:
            yield opened
        except waits as reason:
            opened.set_attribute("nightshift.waits_for", str(reason))
            raise
        except Exception as error:
            opened.set_status(Status(StatusCode.ERROR, str(error)))
            opened.set_attribute("error.type", type(error).__name__)
            raise


@contextmanager
def api_call(method: str, path: str) -> Iterator[Span]:
    """A span around a call of the Kubernetes API, within a look or a stage only: the watches of the sources, which
    never end, would else be traces of their own."""
    if not trace.get_current_span().get_span_context().is_valid:
        yield trace.INVALID_SPAN
        return
    named = {"http.request.method": method, "url.path": path}
    with span(f"{method} {_route(path)}", named, kind=SpanKind.CLIENT) as opened:
        yield opened


def answered(opened: Span, status: int) -> None:
    """Notes the status of an answer; 400 and more is a failed call."""
    opened.set_attribute("http.response.status_code", status)
    if status >= 400:
        opened.set_status(Status(StatusCode.ERROR))
        opened.set_attribute("error.type", str(status))


def _route(path: str) -> str:
    """A path without its names, so that calls of one kind group: collections and names alternate after the version.

    >>> _route("/api/v1/namespaces/ml/pods/train-0/eviction")
    '/api/v1/namespaces/{}/pods/{}/eviction'
    """
    parts = path.strip("/").split("/")
    version = {"api": 2, "apis": 3}.get(parts[0], len(parts))
    named = ["{}" if at % 2 else part for at, part in enumerate(parts[version:])]
    return "/" + "/".join([*parts[:version], *named])
