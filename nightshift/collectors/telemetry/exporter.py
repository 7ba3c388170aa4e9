"""The node's own page: what NVML and the kernel log say, served as dcgm-exporter and `node_log` expect it.

    GET /metrics                 dcgm-exporter's series and labels: a cluster without DCGM needs nothing else; and
                                 the node's clock, by which the daemon measures it
    GET /kernel-log?after=N      JSON lines {"cursor", "t_s", "text"} after a cursor, oldest first
    GET /healthz                 200 while samples are fresh

A cursor is the line's time in microseconds, made to rise, so that it goes on over a restart of this process and a
reboot. With a certificate the page is served by TLS, with `client_ca_file` only to holders of its certificates.
"""

from __future__ import annotations

import math
import re
import socket
import ssl
import threading
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import parse_qs, urlsplit

import orjson
from pydantic import BaseModel, ConfigDict, Field, model_validator

from nightshift.collectors.frame import Frame
from nightshift.collectors.kernel_log.local import LocalKernelLogCollector
from nightshift.collectors.kernel_log.pci import PCI_FACT
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.telemetry.certificate_rotation import Renewed
from nightshift.collectors.telemetry.dcgm_exporter import NODE_TIME
from nightshift.collectors.telemetry.gauge_events import XIDS_TOTAL
from nightshift.collectors.telemetry.listening import listening
from nightshift.collectors.telemetry.metrics import METRICS, MetricType
from nightshift.collectors.telemetry.nvml import NvmlCollector

_MAX_ANSWER_LINES = 10_000
_REQUEST_TIMEOUT_S = 10.0
_CURSOR = re.compile(r"-?[0-9]{1,19}")
_STALE_PERIODS, _STALE_S = 5, 10.0
_MAX_POST_BYTES = 65_536


class Settings(BaseModel):
    """What `nightshift node` serves, and where."""

    model_config = ConfigDict(extra="forbid")

    host: str = Field("0.0.0.0", description="Address to listen on; `::`: every one, of IPv6 and IPv4")
    port: int = Field(9400, ge=0, le=65535, description="Port to listen on; 0: any free one")
    period_s: float = Field(1.0, ge=0.1, le=60, description="Time between two samples (s)")
    max_lines: int = Field(20_000, ge=100, description="Kernel log lines that are kept for those who ask")
    certificate_file: Path | None = Field(None, description="Certificate (PEM) to serve with")
    key_file: Path | None = Field(None, description="Its private key (PEM)")
    client_ca_file: Path | None = Field(None, description="Only clients with a certificate of this authority")
    client_names: tuple[str, ...] = Field(
        (), description="Allow only clients with one of these DNS names in their certificate; none: all clients"
    )

    @model_validator(mode="after")
    def _belong_together(self) -> Settings:
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("certificate_file and key_file go together")
        if self.client_ca_file is not None and self.certificate_file is None:
            raise ValueError("client_ca_file needs certificate_file")
        if self.client_names and self.client_ca_file is None:
            raise ValueError("client_names needs client_ca_file")
        return self


class KernelLines:
    """The newest kernel log lines under rising cursors."""

    def __init__(self, max_lines: int) -> None:
        self._max_lines = max_lines
        self._cursors: list[int] = []
        self._rows: list[bytes] = []
        self._lock = threading.Lock()

    def add(self, t_s: float, text: str) -> None:
        with self._lock:
            # several lines of one microsecond, or a clock that was put back: a cursor names one line all the same
            cursor = max(int(t_s * 1e6), self._cursors[-1] + 1 if self._cursors else 0)
            self._cursors.append(cursor)
            self._rows.append(orjson.dumps({"cursor": cursor, "t_s": t_s, "text": text}) + b"\n")
            # twice the limit, so that the oldest half goes in one move and not a line at each addition
            if len(self._rows) > 2 * self._max_lines:
                del self._cursors[: -self._max_lines], self._rows[: -self._max_lines]

    def after(self, cursor: int) -> bytes:
        """At most 10,000 lines; a cursor beyond the newest line means that this log began anew: all of it."""
        with self._lock:
            start = max(0, len(self._rows) - self._max_lines)
            if self._cursors and cursor <= self._cursors[-1]:
                start = max(start, bisect_right(self._cursors, cursor))
            return b"".join(self._rows[start : start + _MAX_ANSWER_LINES])


class NodeExporter:
    """Samples in a thread of its own and serves from others. `serve` blocks until `stop`."""

    def __init__(
        self,
        settings: Settings,
        gpus: NvmlCollector,
        kernel_log: LocalKernelLogCollector,
        *,
        now_s: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.monotonic,
        takes: tuple[str, Callable[[bytes], tuple[int, bytes]]] | None = None,
        tells: Callable[[], bytes] | None = None,
        each_period: Callable[[], None] = lambda: None,
        failed: Callable[[Exception], None] = lambda error: None,
    ) -> None:
        """Binds the port. `takes` is a path that answers POST, and GET with the JSON that `tells` gives;
        `each_period` is called beside each sample, and `failed` hears why one was not made. `timer` does not jump.
        Raises OSError where the port is taken or a certificate cannot be read."""
        self._settings = settings
        self._takes, self._tells, self._each_period, self._failed = takes, tells, each_period, failed
        self._gpus = gpus
        self._kernel_log = kernel_log
        self._now_s, self._timer = now_s, timer
        self._inventory = Inventory()
        self._page = b""
        self._sampled_s = -math.inf  # by a clock that does not jump
        self._xids: Counter[tuple[Subject, int]] = Counter()
        self._lines = KernelLines(settings.max_lines)
        self._stopping = threading.Event()
        self._server: ThreadingHTTPServer
        if settings.certificate_file is not None:
            self._server = _TlsServer(self._handler(), settings)
        else:
            self._server = ThreadingHTTPServer(("", 0), self._handler(), bind_and_activate=False)
        self._server.socket.close()
        self._server.socket = listening(settings.host, settings.port)
        self._server.server_address = self._server.socket.getsockname()
        self._server.server_activate()
        self._server.daemon_threads = True

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def sample(self) -> None:
        """One look at the GPUs and the kernel log."""
        now_s = self._now_s()
        batch = self._gpus.collect(now_s, self._inventory, 4 * self._settings.period_s)
        frame = next((frame for frame in batch.frames if frame.kind is SubjectKind.GPU), None)
        self._xids.update((event.gpu, event.code) for event in batch.events if event.gpu and event.code)
        self._page = b"" if frame is None else page(frame, self._inventory, self._xids)
        for record in self._kernel_log.collect(now_s, self._inventory, self._settings.period_s).logs:
            self._lines.add(record.at.t_s, record.text)
        self._sampled_s = self._timer()

    def serve(self) -> None:
        sampler = threading.Thread(target=self._sample_on, daemon=True, name="sample")
        sampler.start()
        self._server.serve_forever(poll_interval=0.2)
        sampler.join(1.0)

    def stop(self) -> None:
        self._stopping.set()
        self._server.shutdown()
        self._server.server_close()
        self._gpus.close()
        self._kernel_log.close()

    def answer(self, target: str) -> tuple[int, str, bytes]:
        """(status, content type, body) of a GET."""
        parts = urlsplit(target)
        match parts.path:
            case "/metrics":
                clock = f"# TYPE {NODE_TIME} gauge\n{NODE_TIME} {self._now_s():.6f}\n".encode()
                # what nobody samples any more would be read as of now, since a page bears no times
                fresh = self._timer() - self._sampled_s <= max(_STALE_S, _STALE_PERIODS * self._settings.period_s)
                return 200, "text/plain; version=0.0.4; charset=utf-8", (self._page if fresh else b"") + clock
            case "/kernel-log":
                text = parse_qs(parts.query).get("after", ["-1"])[0]
                if _CURSOR.fullmatch(text) is None:
                    return 400, "text/plain", b"after: no whole number\n"
                return 200, "application/x-ndjson", self._lines.after(int(text))
            case "/healthz":
                age_s = self._timer() - self._sampled_s
                if age_s > _STALE_PERIODS * self._settings.period_s:
                    return 503, "text/plain", f"no sample for {age_s:.0f} s\n".encode()
                return 200, "text/plain", b"ok\n"
        if self._takes is not None and self._tells is not None and parts.path == self._takes[0]:
            return 200, "application/json", self._tells()
        return 404, "text/plain", b"not found\n"

    def _sample_on(self) -> None:
        next_s = time.monotonic()
        while not self._stopping.is_set():
            try:
                self._each_period()
                self.sample()
            except Exception as error:  # noqa: BLE001  who samples, and ends leases, must outlive a defect of ours
                self._page = b""
                self._failed(error)
            next_s = max(next_s + self._settings.period_s, time.monotonic())
            self._stopping.wait(next_s - time.monotonic())

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        answer, takes, names = self.answer, self._takes, frozenset(self._settings.client_names)

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = _REQUEST_TIMEOUT_S

            def parse_request(self) -> bool:
                """An authority may sign for others than the agent: its name is asked for, too."""
                if not super().parse_request():
                    return False
                if names and names.isdisjoint(_names_of(self.connection)):
                    self.send_error(403, "this certificate is not the agent's")
                    return False
                return True

            def do_GET(self) -> None:
                status, kind, body = answer(self.path)
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self) -> None:
                size = self.headers.get("Content-Length", "")
                body = self.rfile.read(int(size)) if size.isdecimal() and int(size) <= _MAX_POST_BYTES else None
                if takes is None or urlsplit(self.path).path != takes[0]:
                    status, said = 404, b"not found\n"
                elif body is None:
                    status, said = 413, b"too large\n"
                else:
                    status, said = takes[1](body)
                self.send_response(status)
                self.send_header("Content-Type", "text/plain")
                self.send_header("Content-Length", str(len(said)))
                self.send_header("Connection", "close")
                self.end_headers()
                self.wfile.write(said)
                self.close_connection = True

            def log_message(self, format: str, *args: object) -> None:
                """Says nothing per request."""

        return Handler


class _TlsServer(ThreadingHTTPServer):
    """Each connection is met with the newest certificate: a renewal needs no restart and ends no connection."""

    def __init__(self, handler: type[BaseHTTPRequestHandler], settings: Settings) -> None:
        named = (settings.certificate_file, settings.key_file, settings.client_ca_file)
        self._context = Renewed([file for file in named if file is not None], lambda: _server_context(settings))
        super().__init__(("", 0), handler, bind_and_activate=False)

    def get_request(self) -> tuple[socket.socket, Any]:
        plain, address = super().get_request()
        # no handshake here: a client that never speaks would hold the thread that accepts the others
        wrapped = self._context.get().wrap_socket(plain, server_side=True, do_handshake_on_connect=False)
        return wrapped, address


def _names_of(connection: Any) -> set[str]:
    """The DNS names of the certificate that a client has shown (RFC 5280, 4.2.1.6)."""
    shown: Any = connection.getpeercert() if isinstance(connection, ssl.SSLSocket) else None
    return {str(name) for kind, name in (shown or {}).get("subjectAltName", ()) if kind == "DNS"}


def _server_context(settings: Settings) -> ssl.SSLContext:
    assert settings.certificate_file is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(settings.certificate_file, settings.key_file)
    if settings.client_ca_file is not None:
        context.load_verify_locations(settings.client_ca_file)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def page(
    frame: Frame, inventory: Inventory, xids: Mapping[tuple[Subject, int], int] = MappingProxyType({})
) -> bytes:
    """A GPU frame as dcgm-exporter would write it; what is missing has no line. `xids`: how often each GPU had
    which, since this process began."""
    parts: list[str] = []
    for metric in METRICS:
        if metric.kind is not SubjectKind.GPU or metric.name not in frame.columns:
            continue
        values = frame.column(metric.name) / metric.scale
        known = [
            (gpu, value) for gpu, value in zip(frame.index.subjects, values, strict=True) if not math.isnan(value)
        ]
        if known:
            kind = "counter" if metric.type is MetricType.COUNTER else "gauge"
            parts.append(f"# HELP {metric.exported_as} {metric.help}\n# TYPE {metric.exported_as} {kind}\n")
            parts += [
                f"{metric.exported_as}{{{_labels(gpu, inventory, frame.at_s)}}} {_number(value)}\n"
                for gpu, value in known
            ]
    if xids:
        parts.append(f"# HELP {XIDS_TOTAL} Xids that NVML told, by number\n# TYPE {XIDS_TOTAL} counter\n")
    for (gpu, code), count in xids.items():
        parts.append(f'{XIDS_TOTAL}{{{_labels(gpu, inventory, frame.at_s)},xid="{code}"}} {count}\n')
    return "".join(parts).encode()


def _labels(gpu: Subject, inventory: Inventory, at_s: float) -> str:
    facts = inventory.facts(gpu)
    node = inventory.above(gpu, SubjectKind.NODE, at_s)
    labels: Mapping[str, str] = {
        "gpu": facts.get("index", ""),
        "UUID": gpu.name,
        "pci_bus_id": f"0000{facts[PCI_FACT].upper()}.0" if facts.get(PCI_FACT) else "",
        "device": f"nvidia{facts.get('index', '')}",
        "modelName": facts.get("model", ""),
        "Hostname": "" if node is None else node.name,
        "DCGM_FI_DRIVER_VERSION": facts.get("driver", ""),
        "DCGM_FI_DEV_VBIOS_VERSION": facts.get("vbios", ""),
        "DCGM_FI_DEV_SERIAL": facts.get("serial", ""),
    }
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))
