"""A tiny real fleet for tests of the daemon: one node's exporter page over loopback HTTP, changed by the test."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

GIB = 2**30


class Exporter:
    """Serves a dcgm-exporter page. `used_mib` per GPU is the test's to change; while `down` it answers 500."""

    def __init__(self, gpus: int = 2) -> None:
        self.used_mib = [20_000.0] * gpus
        self.down = False
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/metrics"

    def page(self) -> bytes:
        lines = []
        for name, value in (("DCGM_FI_DEV_FB_FREE", 80_000.0), ("DCGM_FI_DEV_POWER_USAGE", 400.0)):
            lines += [f"{name}{{{self._labels(i)}}} {value}" for i in range(len(self.used_mib))]
        lines += [f"DCGM_FI_DEV_FB_USED{{{self._labels(i)}}} {used}" for i, used in enumerate(self.used_mib)]
        return ("\n".join(lines) + "\n").encode()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _labels(self, i: int) -> str:
        return (
            f'gpu="{i}",UUID="GPU-{i:08x}-0000-0000-0000-000000000000",pci_bus_id="00000000:{i + 1:02x}:00.0",'
            f'device="nvidia{i}",modelName="NVIDIA H200",Hostname="n1",container="trainer",namespace="sft",'
            f'pod="job-{i}"'
        )

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        exporter = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = b"" if exporter.down else exporter.page()
                self.send_response(500 if exporter.down else 200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        return Handler


def values(state_dir: Path, *exporters: Exporter, **changes: Any) -> dict[str, Any]:
    """A configuration as a YAML file would give it."""
    found: dict[str, Any] = {
        "state_dir": str(state_dir),
        "console": {"port": 0},
        "sources": [{"type": "dcgm_exporter", "urls": [exporter.url]} for exporter in exporters],
    }
    return found | changes
