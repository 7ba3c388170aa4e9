"""A real node agent on the NVML stub, over mutual TLS, that takes power limits; it can be made to lie."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

from nightshift.agent.node_agent import answer_lease, tell_lease
from nightshift.collectors.http import HttpSettings
from nightshift.collectors.kernel_log.local import LocalKernelLogCollector
from nightshift.collectors.telemetry.exporter import NodeExporter
from nightshift.collectors.telemetry.exporter import Settings as ExporterSettings
from nightshift.collectors.telemetry.nvml import NvmlCollector
from nightshift.controllers.actuators import power_nodes
from nightshift.controllers.actuators.nvml_power import NvmlPower
from nightshift.controllers.actuators.power_leases import PowerLeases
from nightshift.controllers.actuators.power_nodes import Settings as NodeSettings
from tests.certificates import Authority


@dataclass
class NodeAgent:
    """`lies`: it answers that it carried a lease out, and does nothing."""

    leases: PowerLeases
    library: ctypes.CDLL
    settings: NodeSettings = field(default_factory=NodeSettings)
    lies: bool = False

    def take(self, body: bytes) -> tuple[int, bytes]:
        return (200, b"done\n") if self.lies else answer_lease(self.leases, body)


@contextmanager
def serving(library: ctypes.CDLL, folder: Path, fallback_mw: int) -> Iterator[NodeAgent]:
    """Node n0 with the stub's eight GPUs, their limits as the factory set them."""
    library.stub_reset()
    authority = Authority.new()
    names = {}
    for name, client in (("server", False), ("client", True)):
        pem, key = authority.issue("localhost" if not client else "agent", client=client)
        names[name] = (folder / f"{name}.pem", folder / f"{name}.key")
        names[name][0].write_bytes(pem)
        names[name][1].write_bytes(key)
    (folder / "ca.pem").write_bytes(authority.pem)
    agent = NodeAgent(PowerLeases(NvmlPower(), fallback_mw), library)
    exporter = NodeExporter(
        ExporterSettings(
            host="127.0.0.1",
            port=0,
            certificate_file=names["server"][0],
            key_file=names["server"][1],
            client_ca_file=folder / "ca.pem",
        ),
        NvmlCollector(NvmlCollector.Settings()),
        LocalKernelLogCollector(LocalKernelLogCollector.Settings()),
        takes=("/power-lease", agent.take),
        tells=lambda: tell_lease(agent.leases),
    )
    agent.settings = NodeSettings(
        urls={"n0": f"https://localhost:{exporter.port}"},
        connection=HttpSettings(
            ca_file=folder / "ca.pem", certificate_file=names["client"][0], key_file=names["client"][1]
        ),
    )
    thread = threading.Thread(target=exporter.serve, daemon=True)
    thread.start()
    try:
        with patch.object(power_nodes, "TIMEOUT_S", 30.0):  # a busy machine is no silent node
            yield agent
    finally:
        exporter.stop()
        thread.join(5.0)
        library.stub_reset()
