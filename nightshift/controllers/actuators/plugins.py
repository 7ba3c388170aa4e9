"""Everything that may change the world."""

from __future__ import annotations

from nightshift.controllers.actuators.kube_kernel_jobs import KernelJobActuator
from nightshift.controllers.actuators.kube_repair import KubernetesRepairActuator
from nightshift.controllers.actuators.kubernetes import KubernetesActuator
from nightshift.controllers.actuators.simulated import SimulatedActuator

ALL: tuple[type[SimulatedActuator | KubernetesActuator | KubernetesRepairActuator | KernelJobActuator], ...] = (
    SimulatedActuator,
    KubernetesActuator,
    KubernetesRepairActuator,
    KernelJobActuator,
)
