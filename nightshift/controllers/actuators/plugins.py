"""Everything that may change the world."""

from __future__ import annotations

from nightshift.controllers.actuators.kube_kernel_jobs import KernelJobActuator
from nightshift.controllers.actuators.kube_repair import KubernetesRepairActuator
from nightshift.controllers.actuators.kubernetes import KubernetesActuator
from nightshift.controllers.actuators.simulated import SimulatedActuator
from nightshift.controllers.actuators.slurm import SlurmActuator

ALL: tuple[
    type[SimulatedActuator | KubernetesActuator | KubernetesRepairActuator | KernelJobActuator | SlurmActuator], ...
] = (
    SimulatedActuator,
    KubernetesActuator,
    KubernetesRepairActuator,
    KernelJobActuator,
    SlurmActuator,
)
