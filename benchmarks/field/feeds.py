"""The sources of a played report: a file that grows, a page over HTTP, objects at an API server.

A feed is a context: `settings()` names its sources in a configuration, `put(lines, at_s)` adds what a tick brings.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import yaml

from benchmarks.field.report import Channel, FieldReport
from tests.kubernetes_api.server import ApiServer

WATCH_S = 0.15
"""Wall time in which a change at the API server reaches a watch on this machine."""


class Values(Protocol):
    """Who fills in the drawn values of a line, and stamps a record of a system's log."""

    host: str

    def fill(self, line: str, at_s: float | None = None) -> str: ...

    def stamped(self, line: str, at_s: float, report: FieldReport) -> str: ...


class Feed:
    def __init__(self, home: Path, report: FieldReport, drawn: Values) -> None:
        self._home, self._report, self._drawn = home, report, drawn

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        pass

    def settings(self) -> dict[str, Any]:
        raise NotImplementedError

    def put(self, lines: Sequence[str], at_s: float) -> None:
        raise NotImplementedError


class KernelFeed(Feed):
    def __enter__(self) -> Self:
        self._path = self._home / "kern.log"
        self._path.touch()
        return self

    def settings(self) -> dict[str, Any]:
        source = {"type": "kernel_log", "source": "file", "path": str(self._path), "node": self._drawn.host}
        return {"sources": [source]}

    def put(self, lines: Sequence[str], at_s: float) -> None:
        with self._path.open("a") as out:
            out.writelines(self._drawn.stamped(line, at_s, self._report) for line in lines)


class JobFeed(Feed):
    def __enter__(self) -> Self:
        self._path = self._home / "logs" / "ml_train-0_main.log"
        self._path.parent.mkdir()
        self._path.touch()
        return self

    def settings(self) -> dict[str, Any]:
        return {"sources": [{"type": "training_logs", "directory": str(self._path.parent)}]}

    def put(self, lines: Sequence[str], at_s: float) -> None:
        with self._path.open("a") as out:
            out.writelines(f"{self._drawn.fill(line, at_s)}\n" for line in lines)


_BESIDE = (
    'DCGM_FI_DEV_GPU_TEMP{gpu="$gpu",UUID="GPU-$n",Hostname="$host"} 41',
    'DCGM_FI_DEV_POWER_USAGE{gpu="$gpu",UUID="GPU-$n",Hostname="$host"} 93.4',
)
"""What every page shows besides. Before the fault the page has the fault's own series at 0 or not at all."""


class PageFeed(Feed):
    """The exporter's page. A gauge of Xids stands at 0 before; a count of them is not there yet."""

    def __enter__(self) -> Self:
        self._lines = list(_BESIDE)
        self._lines += [
            f"{line.rpartition(' ')[0]} 0"
            for line in self._report.lines
            if line.startswith("DCGM_FI_DEV_XID_ERRORS")
        ]
        self._body = self._page()
        feed = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(feed._body)))
                self.end_headers()
                self.wfile.write(feed._body)

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    def _page(self) -> bytes:
        return "".join(f"{self._drawn.fill(line)}\n" for line in self._lines).encode()

    def settings(self) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self._http.server_address[1]}/metrics"
        return {"sources": [{"type": "dcgm_exporter", "urls": [url]}]}

    def put(self, lines: Sequence[str], at_s: float) -> None:
        names = {line.rpartition(" ")[0] for line in lines}
        self._lines = [line for line in self._lines if line.rpartition(" ")[0] not in names] + list(lines)
        self._body = self._page()


class KubernetesFeed(Feed):
    """Objects as kubelets and controllers write them. A healthy node with its GPUs is there from the start."""

    def __enter__(self) -> Self:
        self._server = ApiServer()
        self._server.__enter__()
        kubeconfig = self._home / "kubeconfig"
        kubeconfig.write_text(yaml.safe_dump(self._server.kubeconfig()))
        self._events = 0
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "KubeletReady",
            "message": "kubelet is posting ready status",
        }
        self._write({"kind": "Node", "metadata": {"name": "$host"}, "status": {"conditions": [ready]}}, time.time())
        return self

    def __exit__(self, *error: Any) -> None:
        self._server.__exit__(*error)

    def settings(self) -> dict[str, Any]:
        return {
            "kubernetes": {"here": {"kubeconfig": str(self._home / "kubeconfig")}},
            "sources": [{"type": "kubernetes", "access": "here"}, {"type": "kubernetes_events", "access": "here"}],
        }

    def put(self, lines: Sequence[str], at_s: float) -> None:
        for line in lines:
            self._write(json.loads(line), at_s)
        if lines:
            time.sleep(WATCH_S)

    def _write(self, thing: Mapping[str, Any], at_s: float) -> None:
        thing = json.loads(self._drawn.fill(json.dumps(thing)))
        kind, at = (
            thing["kind"],
            datetime.fromtimestamp(at_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        )
        status: dict[str, Any] = thing.setdefault("status", {}) if kind != "Event" else {}
        if kind == "Event":
            self._events += 1
            thing["metadata"]["name"] += f".{self._events:x}"
            thing |= {"firstTimestamp": at, "lastTimestamp": at}
        if kind == "Node":
            for key in ("capacity", "allocatable"):
                status.setdefault(key, {"cpu": "192", "nvidia.com/gpu": "8"})
            thing.setdefault("spec", {})
        for one in status.get("conditions", []):
            one |= {"lastTransitionTime": at, "lastHeartbeatTime": at}
        thing["metadata"].setdefault("creationTimestamp", at)
        thing["metadata"].setdefault("uid", f"uid-{thing['metadata']['name']}")
        storage, resource = self._server.api.storage, self._server.api.by_kind[kind]
        storage.write(resource, dict(thing))


FEEDS: Mapping[Channel, type[Feed]] = {
    Channel.KERNEL: KernelFeed,
    Channel.JOB: JobFeed,
    Channel.EXPORTER: PageFeed,
    Channel.KUBERNETES: KubernetesFeed,
}
