"""Everything that may change the world."""

from __future__ import annotations

from controllers.actuators.kube_kernel_jobs import KernelJobActuator
from controllers.actuators.kube_repair import KubernetesRepairActuator
from controllers.actuators.kubernetes import KubernetesActuator
from controllers.actuators.simulated import SimulatedActuator

ALL: tuple[type[SimulatedActuator | KubernetesActuator | KubernetesRepairActuator | KernelJobActuator], ...] = (
    SimulatedActuator,
    KubernetesActuator,
    KubernetesRepairActuator,
    KernelJobActuator,
)
