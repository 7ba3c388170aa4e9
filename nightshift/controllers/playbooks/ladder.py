"""The ladder for a device that keeps failing: application → GPU reset → node reboot → return to the vendor.

Each rung has a budget per device and window; a rung that is used up is not tried again, the next one is. A
device that offends too often in a longer window is a repeat offender: it goes to the vendor whatever the newest
error calls for, because each repair that holds for a day costs its jobs more than an exchange. Purely a
decision, from counts of what was done.

Sources: NVIDIA's "GPU debug guidelines" (reset, then reboot, then RMA), and Xid 154's recovery actions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field

from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.controllers.action import KINDS, Action, ActionKind
from nightshift.controllers.guard import Commitment

RUNGS = tuple(kind for _, kind in sorted((row.rung, kind) for kind, row in KINDS.items() if row.rung is not None))


# Repairs of one device are counted over a week: a fault that a reset cures for longer is cured.
WINDOW_S = 7 * 86_400.0
# Hardware faults of one GPU are counted over a month: rare ones count together.
OFFENCES_WINDOW_S = 30 * 86_400.0
# Two may be one repair that did not hold; the third says that the device is at fault.
OFFENCES = 3


class RepairLadder(BaseModel):
    """How often each repair is tried on one device."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    gpu_resets: int = Field(default=2, ge=0, description="Resets of one GPU per window before its node is rebooted")
    node_reboots: int = Field(default=1, ge=0, description="Reboots for one GPU per window before it is returned")


@dataclass(frozen=True, slots=True)
class Record:
    """What was done for a device, within the windows of the ladder."""

    resets: int = 0
    reboots: int = 0
    offences: int = 0
    """Hardware faults before this one."""


@dataclass(frozen=True, slots=True)
class Rung:
    """The repair to try, and why not a milder one."""

    kind: ActionKind
    reason: str


def rung(called_for: ActionKind, record: Record, ladder: RepairLadder) -> Rung:
    """Where a device stands: at what its error calls for, or as far above as what was tried has led."""
    # before what the error calls for: each repair that holds for a day costs its jobs more than an exchange
    if record.offences + 1 >= OFFENCES:
        days = OFFENCES_WINDOW_S / 86_400
        return Rung(
            ActionKind.OPEN_RMA,
            f"repeat offender: {record.offences + 1} hardware faults of this GPU within {days:.0f} days",
        )
    used = {ActionKind.RESET_GPU: (record.resets, ladder.gpu_resets)}
    used |= {ActionKind.REBOOT_NODE: (record.reboots, ladder.node_reboots), ActionKind.OPEN_RMA: (0, 1)}
    reasons: list[str] = []
    for kind in RUNGS[RUNGS.index(called_for) :]:
        done, most = used.get(kind, (0, 0))  # a rung without a budget is not tried
        if done < most:
            return Rung(kind, "; ".join(reasons))
        reasons.append(f"{kind.replace('_', ' ')} was tried {done} times in {WINDOW_S / 86_400:.0f} days")
    return Rung(ActionKind.OPEN_RMA, "; ".join(reasons))


def _is_of(action: Action, node: Subject | None, inventory: Inventory) -> bool:
    """Whether an action reached the machine that bears the node's name now, as far as its uid is known."""
    uid = None if node is None else inventory.fact(node, "uid")
    return all(
        p.expected == uid for p in action.preconditions if uid is not None and (p.subject, p.fact) == (node, "uid")
    )


def record_of(
    gpu: Subject,
    commitments: Iterable[Commitment],
    offences_s: Iterable[float],
    inventory: Inventory,
    at_s: float,
    ladder: RepairLadder,
) -> Record:
    """The record of a GPU: `commitments` are actions that were begun, `offences_s` when its earlier hardware faults
    were."""
    node = inventory.above(gpu, SubjectKind.NODE, at_s)
    # begun counts, ended or not: a repair that failed was a try; one from the future is of a clock set back
    recent = [c.action for c in commitments if 0 <= at_s - c.begun_s <= WINDOW_S]
    return Record(
        resets=sum(a.kind is ActionKind.RESET_GPU and a.target == gpu for a in recent),
        reboots=sum(
            # a reboot for another GPU of its node is that one's try; one that names none counts for each
            a.kind is ActionKind.REBOOT_NODE and a.target == node and a.params.get("gpu", gpu.name) == gpu.name
            for a in recent
            if _is_of(a, node, inventory)
        ),
        offences=sum(0 <= at_s - t_s <= OFFENCES_WINDOW_S for t_s in offences_s),
    )
