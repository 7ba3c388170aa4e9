"""`nightshift node`: the node agent as a process. It has no rights in the cluster and keeps nothing on disk."""

from __future__ import annotations

import signal
import threading
from types import FrameType

import structlog

from agent import logs
from collectors.base import Permanent
from collectors.exporter import NodeExporter, Settings
from collectors.local_kernel_log import LocalKernelLogCollector
from collectors.nvml import NvmlCollector


def run(settings: Settings, name: str = "") -> None:
    """Serves until SIGTERM or SIGINT; `name` is the node's, where that is not the host name, as in a pod.

    Raises Permanent where the port or a certificate cannot be used.
    """
    logs.configure("info", "text")
    named = {"node": name} if name else {}
    try:
        exporter = NodeExporter(
            settings,
            NvmlCollector(NvmlCollector.Settings(**named)),
            LocalKernelLogCollector(LocalKernelLogCollector.Settings(**named)),
        )
    except OSError as error:
        raise Permanent(f"{settings.host}:{settings.port}: {error}") from error

    def end(_number: int, _frame: FrameType | None) -> None:
        threading.Thread(target=exporter.stop, daemon=True).start()  # serving must go on for it to be told to end

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    structlog.get_logger("node").info("serving", host=settings.host, port=exporter.port)
    exporter.serve()
