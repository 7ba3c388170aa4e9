"""Which active probe asks what a fault broke, once it was repaired (`controllers.actuators.kube_probe` runs it)."""

from __future__ import annotations

from collections.abc import Mapping

from nightshift.detectors.base import Fault

FOR: Mapping[Fault, str] = {
    Fault.NVLINK_DEGRADED: "nccl",
    Fault.NETWORK_DEGRADED: "nccl",
    Fault.PCIE_DEGRADED: "gemm",
    Fault.THROTTLE: "gemm",
    Fault.STRAGGLER: "gemm",
}
"""Which probe asks what the fault broke; every other fault of hardware: dcgm."""


def probe_for(cause: Fault) -> str:
    """The name of the probe that belongs to a cause."""
    return FOR.get(cause, "dcgm")
