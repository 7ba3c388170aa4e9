"""A Prometheus-compatible API for `benchmarks/collectors_speed.py` that costs the measured process nothing."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

import numpy as np


def serve_api(n_gpus: int, ready: Any) -> None:
    """Answers every query from bodies made beforehand, so that the server costs the measured process nothing."""
    rng = np.random.default_rng(1)
    uuids = [f"GPU-{n:08d}-1111-2222-3333-444444444444" for n in range(n_gpus)]
    labels = [
        f'{{"__name__":"DCGM_FI_DEV_FB_USED","UUID":"{u}","gpu":"{n % 8}","pci_bus_id":"00000000:{n % 8:02X}:00.0",'
        f'"modelName":"NVIDIA H200","Hostname":"n{n // 8}","namespace":"ml","pod":"job{n // 64}-{n % 64}"}}'
        for n, u in enumerate(uuids)
    ]
    now = time.time()

    def body(metrics: list[str], values: list[str]) -> bytes:
        rows = ",".join(f'{{"metric":{m},"value":[{now:.3f},"{v}"]}}' for m, v in zip(metrics, values, strict=True))
        document = f'{{"status":"success","data":{{"resultType":"vector","result":[{rows}]}}}}'.encode()
        return (
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(document)
            + document
        )

    keys = [f'{{"UUID":"{u}"}}' for u in uuids]
    some = [body(keys, [f"{v:.4f}" for v in rng.uniform(0.001, 1, n_gpus)]) for _ in range(4)]
    stamps = body(keys, [f"{now - 3:.3f}"] * n_gpus)
    identity = body(labels, ["5"] * n_gpus)
    nothing = body([], [])
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    ready(listener.getsockname()[1])
    lock, count = threading.Lock(), [0]

    def one(connection: socket.socket) -> None:
        with connection:
            data = b""
            while True:
                while b"\r\n\r\n" not in data:
                    part = connection.recv(65536)
                    if not part:
                        return
                    data += part
                head, _, rest = data.partition(b"\r\n\r\n")
                length = next(
                    int(h.split(b":")[1]) for h in head.lower().split(b"\r\n") if h.startswith(b"content-length")
                )
                while len(rest) < length:
                    rest += connection.recv(65536)
                form, data = rest[:length], rest[length:]
                with lock:
                    count[0] += 1
                if b"count+by" in form or b"min+by" in form:
                    connection.sendall(nothing)  # no GPU is told twice
                elif b"timestamp" in form:
                    connection.sendall(stamps)
                elif b"max+by" in form:
                    connection.sendall(some[count[0] % 4])
                else:
                    connection.sendall(identity)

    while True:
        connection, _ = listener.accept()
        threading.Thread(target=one, args=(connection,), daemon=True).start()
