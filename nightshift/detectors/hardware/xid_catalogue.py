"""What NVIDIA's Xid numbers mean and what to do about each: facts, with the sources' disagreements kept.

Sources. `nvidia`: NVIDIA's Xid catalogue (docs.nvidia.com/deploy/xid-errors, Xid-Catalog.xlsx, as embedded in
NVSentinel, July 2026, and as the page lists it): the immediate and the investigatory bucket, word for word, of
every number in use since Ampere. `gpud`: leptonai/gpud (components/accelerator/nvidia/xid/xid.go, August 2026): its
repair actions of the numbers in NVSentinel. `tier` and `action` are our reading: NVIDIA's immediate bucket where it
has one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources

LINK_XIDS = frozenset({74, 121, 136, 137, *range(144, 151), 155})
"""Errors of an NVLink, of either end."""


class Tier(StrEnum):
    APP = "app"
    """The application's fault or loss; the GPU is well."""
    WARNING = "warning"
    FATAL = "fatal"
    """The GPU needs a reset or more before it can be trusted."""
    BY_SUBCODE = "by_subcode"


class Recovery(StrEnum):
    NONE = "none"
    RESTART_APP = "restart_app"
    RESET_GPU = "reset_gpu"
    DRAIN_AND_RESET = "drain_and_reset"
    DRAIN_P2P = "drain_p2p"
    REBOOT_NODE = "reboot_node"
    CONTACT_SUPPORT = "contact_support"
    FOLLOW_OTHER_XID = "follow_other_xid"
    PARSE_RECOVERY_ACTION = "parse_recovery_action"
    DECODE_INTRINFO = "decode_intrinfo"
    RESET_GPU_IF_UVM = "reset_gpu_if_uvm"


@dataclass(frozen=True, slots=True)
class Xid:
    """One number. `announced` says that the driver follows it with an Xid 154 naming the recovery action."""

    code: int
    name: str
    meaning: str
    tier: Tier
    action: Recovery
    nvidia: tuple[str | None, str | None]
    gpud: tuple[str, ...]
    gpus: tuple[str, ...]
    announced: bool
    note: str = ""

    @property
    def disagreement(self) -> str:
        """Where gpud says something else than NVIDIA's immediate bucket; empty where they agree."""
        immediate = self.nvidia[0]
        if immediate is None or not self.gpud or immediate in self.gpud:
            return ""
        return f"NVIDIA: {immediate}; gpud: {', '.join(self.gpud)}"


SYMPATHETIC = frozenset({45})
"""Never a first cause: the tear-down that follows another Xid."""

RECOVERY_ACTION_CHANGED = 154
"""The driver's announcement of the recovery action that a GPU needs now."""

GRAVITY = ("", "corrected", "nonfatal", "fatal")
"""What a line may say of an error's severity, mildest first; empty: nothing."""

MEMORY = frozenset({48, 63, 64, 92, 94, 95, 140, 156, 157, 171, 172})
"""Xids about the GPU's own memory."""


def _load() -> dict[int, Xid]:
    text = (resources.files("nightshift.detectors.hardware") / "xid_catalogue.json").read_text(encoding="utf-8")
    rows: dict[int, Xid] = {}
    for entry in json.loads(text):
        rows[entry["code"]] = Xid(
            code=entry["code"],
            name=entry["name"],
            meaning=entry["meaning"],
            tier=Tier(entry["tier"]),
            action=Recovery(entry["action"]),
            nvidia=(entry["nvidia"][0], entry["nvidia"][1]),
            gpud=tuple(entry["gpud"]),
            gpus=tuple(entry["gpus"]),
            announced=entry["announced"],
            note=entry["note"],
        )
    return rows


CATALOGUE = _load()


def action_of(code: int, severity: str = "") -> Recovery | None:
    """What a number calls for: of NVLink 5's (144 to 150) by the severity that its line tells, a person where the
    line tells none. None: a number that is not in the catalogue.

    >>> action_of(79).value, action_of(31).value
    ('reboot_node', 'restart_app')
    """
    entry = CATALOGUE.get(code)
    if entry is None or entry.action is not Recovery.DECODE_INTRINFO:
        return entry.action if entry else None
    told = {"fatal": Recovery.RESET_GPU, "nonfatal": Recovery.NONE, "corrected": Recovery.NONE}
    return told.get(severity, Recovery.CONTACT_SUPPORT)


def announced_action(text: str) -> Recovery | None:
    """The recovery action that an Xid 154 names, such as "GPU Reset Required"; None where it names none. What a
    newer driver calls otherwise is asked of a person: it asked for something.

    >>> announced_action("Node Reboot Required").value, announced_action("Recover Warp Core").value
    ('reboot_node', 'contact_support')
    """
    said = text.lower().strip()
    found = next((action for words, action in _ANNOUNCED if words in said), None)
    return found if found is not None or not said else Recovery.CONTACT_SUPPORT


# nvmlDeviceGpuRecoveryAction_t (nvml.h of 615) in words, its longest first. A reboot resets the bus, too; of an
# IMEX domain, the other nodes' daemons have to be started again, which no action here does.
_ANNOUNCED = (
    ("drain and reset", Recovery.DRAIN_AND_RESET),
    ("drain p2p", Recovery.DRAIN_P2P),
    ("imex", Recovery.CONTACT_SUPPORT),
    ("bus reset", Recovery.REBOOT_NODE),
    ("reset bus", Recovery.REBOOT_NODE),
    ("reboot", Recovery.REBOOT_NODE),
    ("gpu reset", Recovery.RESET_GPU),
    ("pf flr", Recovery.RESET_GPU),
    ("none", Recovery.NONE),
)
