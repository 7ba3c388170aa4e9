"""Every mitigation, in the order of the catalogue: least disruptive first."""

from __future__ import annotations

from nightshift.controllers.action import Playbook
from nightshift.controllers.playbooks.cordon import Cordon
from nightshift.controllers.playbooks.drain import Drain
from nightshift.controllers.playbooks.drain_rack import DrainRack
from nightshift.controllers.playbooks.notify_owner import NotifyOwner
from nightshift.controllers.playbooks.open_rma import OpenRma
from nightshift.controllers.playbooks.plan import Economy
from nightshift.controllers.playbooks.quarantine_gpu import QuarantineGpu
from nightshift.controllers.playbooks.reboot_node import RebootNode
from nightshift.controllers.playbooks.replace_node import ReplaceNode
from nightshift.controllers.playbooks.reset_gpu import ResetGpu
from nightshift.controllers.playbooks.restart_job import RestartJob
from nightshift.controllers.playbooks.restart_pod import RestartPod
from nightshift.controllers.playbooks.start_maintenance import StartMaintenance
from nightshift.controllers.playbooks.suggest_scaling import SuggestScaling
from nightshift.controllers.playbooks.taint import Taint

ALL = (
    NotifyOwner,
    SuggestScaling,
    RestartJob,
    RestartPod,
    QuarantineGpu,
    Taint,
    Cordon,
    Drain,
    DrainRack,
    ResetGpu,
    RebootNode,
    StartMaintenance,
    ReplaceNode,
    OpenRma,
)


def build(economy: Economy | None = None) -> tuple[Playbook, ...]:
    return tuple(playbook(economy) for playbook in ALL)
