"""`nightshift node`: the node agent as a process. It has no rights in the cluster and keeps nothing on disk."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

import structlog

from nightshift.agent import logs
from nightshift.collectors.base import Permanent, Temporary
from nightshift.collectors.kernel_log.local import LocalKernelLogCollector
from nightshift.collectors.telemetry.exporter import NodeExporter, Settings
from nightshift.collectors.telemetry.nvml import NvmlCollector
from nightshift.controllers.actuators.power_leases import LeaseRefused, PowerDevice, PowerLeases


def run(settings: Settings, name: str = "", power: Power | None = None) -> None:
    """Serves until SIGTERM or SIGINT; `name` is the node's, where that is not the host name, as in a pod.

    Raises Permanent where the port or a certificate cannot be used, or power leases cannot be taken.
    """
    logs.configure("info", "text")
    named = {"node": name} if name else {}
    log = structlog.get_logger("node")
    leases = None
    if power is not None:
        # Whoever can post a lease can slow every GPU of the node down.
        if settings.client_ca_file is None:
            raise Permanent(
                "power leases are taken by mutual TLS alone: name certificate, key and client authority"
            )
        leases = PowerLeases(power.device, power.fallback_mw)
    try:
        exporter = NodeExporter(
            settings,
            NvmlCollector(NvmlCollector.Settings(**named)),
            LocalKernelLogCollector(LocalKernelLogCollector.Settings(**named)),
            takes=None if leases is None else ("/power-lease", lambda body: answer_lease(leases, body)),
            tells=None if leases is None else lambda: tell_lease(leases, name),
            each_period=lambda: None if leases is None else end_in_time(leases, log),
            failed=lambda error: log.error("sample failed", error=f"{type(error).__name__}: {error}"),
        )
    except OSError as error:
        raise Permanent(f"{settings.host}:{settings.port}: {error}") from error

    def end(_number: int, _frame: FrameType | None) -> None:
        threading.Thread(target=exporter.stop, daemon=True).start()  # serving must go on for it to be told to end

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    structlog.get_logger("node").info("node exporter started", host=settings.host, port=exporter.port)
    exporter.serve()
    if leases is not None:
        leases.close()


@dataclass(frozen=True)
class Power:
    """GPUs whose limits may be lent; `fallback_mw` is their limit without a lease, None their default."""

    device: PowerDevice
    fallback_mw: int | None


def answer_lease(
    leases: PowerLeases, body: bytes, now_s: Callable[[], float] = time.monotonic
) -> tuple[int, bytes]:
    """(status, text) of a POST to /power-lease: 200 granted, 409 refused, 503 where a GPU did not take its
    limit."""
    try:
        lease = leases.grant(body, now_s())
    except LeaseRefused as error:
        return 409, f"{error}\n".encode()
    except (Temporary, Permanent) as error:
        return 503, f"{error}\n".encode()
    return 200, f"{lease.id} for {lease.ttl_s:g} s\n".encode()


def tell_lease(leases: PowerLeases, node: str = "", now_s: Callable[[], float] = time.monotonic) -> bytes:
    """JSON of `PowerLeases.status` and whose it is, or of why it cannot be told."""
    try:
        return json.dumps({"node": node, **leases.status(now_s())}).encode()
    except (Temporary, Permanent) as error:
        return json.dumps({"error": str(error)}).encode()


def end_in_time(leases: PowerLeases, log: structlog.typing.FilteringBoundLogger) -> None:
    """Falls back where a lease was not renewed; what a GPU does not take is tried again the next time."""
    try:
        if leases.turn(time.monotonic()):
            log.warning("power lease expired")
    except (Temporary, Permanent) as error:
        log.error("fallback limit write failed", error=str(error))
