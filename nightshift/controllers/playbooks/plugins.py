"""Every mitigation, in the order of the catalogue: least disruptive first."""

from __future__ import annotations

from controllers.action import Playbook
from controllers.playbooks.cordon import Cordon
from controllers.playbooks.drain import Drain
from controllers.playbooks.notify_owner import NotifyOwner
from controllers.playbooks.open_rma import OpenRma
from controllers.playbooks.plan import Economy
from controllers.playbooks.quarantine_gpu import QuarantineGpu
from controllers.playbooks.reboot_node import RebootNode
from controllers.playbooks.reset_gpu import ResetGpu
from controllers.playbooks.restart_job import RestartJob
from controllers.playbooks.restart_pod import RestartPod
from controllers.playbooks.suggest_scaling import SuggestScaling
from controllers.playbooks.taint import Taint

ALL = (
    NotifyOwner,
    SuggestScaling,
    RestartJob,
    RestartPod,
    QuarantineGpu,
    Taint,
    Cordon,
    Drain,
    ResetGpu,
    RebootNode,
    OpenRma,
)


def build(economy: Economy | None = None) -> tuple[Playbook, ...]:
    return tuple(playbook(economy) for playbook in ALL)
