"""The accounts of the ledger: a closed table. Each GPU-second of the fleet is in one of them.

They nest: wall time is held or not held; held time is in a step or not; a step survived or was computed again. What
waiting jobs ask for is no time of the fleet: it stands beside the sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from nightshift.detectors.base import Fault


class Nest(StrEnum):
    """Where an account stands in wall time."""

    SURVIVED = "surviving steps"
    REPEATED = "steps computed again"
    NO_STEP = "held, not in a step"
    NOT_HELD = "not held"
    WAITING = "jobs waiting (beside the fleet's time)"


class Account(StrEnum):
    """Where a GPU-second went."""

    PRODUCTIVE = "productive"
    UNATTRIBUTED = "unattributed"
    DATA_WAIT = "data_wait"
    EXPOSED_COMM = "exposed_communication"
    STRAGGLING = "straggling"
    RECOMPUTED = "recomputed"
    CHECKPOINTING = "checkpointing"
    INITIALISING = "initialising"
    HUNG = "hung"
    IDLE_HELD = "idle_held"
    NO_STEPS = "no_steps"
    UNEXPLAINED = "unexplained"
    UNHEALTHY = "unhealthy"
    IN_REPAIR = "in_repair"
    MAINTENANCE = "maintenance"
    UNOBSERVED = "unobserved"
    FREE = "free"
    QUEUED = "queued"
    PREEMPTED = "preempted"


@dataclass(frozen=True, slots=True)
class AccountRow:
    """Where an account nests, and what is in it, for people."""

    nest: Nest
    words: str


_N = Nest
ACCOUNTS: dict[Account, AccountRow] = {
    Account.PRODUCTIVE: AccountRow(_N.SURVIVED, "Computing, as the job measured it, in steps that survived"),
    Account.UNATTRIBUTED: AccountRow(_N.SURVIVED, "In steps that survived; the job measures no split of its steps"),
    Account.DATA_WAIT: AccountRow(_N.SURVIVED, "Waiting for data: measured, or in excess during a data stall"),
    Account.EXPOSED_COMM: AccountRow(_N.SURVIVED, "Communication that nothing hides, as the job measured it"),
    Account.STRAGGLING: AccountRow(_N.SURVIVED, "Steps slower than usual while a slow rank or device is known"),
    Account.RECOMPUTED: AccountRow(_N.REPEATED, "Steps computed again after a restart from a checkpoint"),
    Account.CHECKPOINTING: AccountRow(_N.NO_STEP, "Pauses beside a saved checkpoint, or marked by the job"),
    Account.INITIALISING: AccountRow(_N.NO_STEP, "From getting the GPUs to the first step"),
    Account.HUNG: AccountRow(_N.NO_STEP, "Stopped by a hang, a crash or a fault, GPUs still held"),
    Account.IDLE_HELD: AccountRow(_N.NO_STEP, "Held without a step, and the GPU does nothing"),
    Account.NO_STEPS: AccountRow(_N.NO_STEP, "Busy, but the job reports no steps: never counted as productive"),
    Account.UNEXPLAINED: AccountRow(
        _N.NO_STEP, "Between steps for a reason that no signal tells (evaluation, exit)"
    ),
    Account.UNHEALTHY: AccountRow(_N.NOT_HELD, "The GPU or its node has a fault"),
    Account.IN_REPAIR: AccountRow(_N.NOT_HELD, "Cordoned, reset, rebooted or returned to the vendor for a fault"),
    Account.MAINTENANCE: AccountRow(
        _N.NOT_HELD, "In a maintenance window, or cordoned by a person without a fault"
    ),
    Account.UNOBSERVED: AccountRow(_N.NOT_HELD, "No telemetry: neither free nor healthy as far as is known"),
    Account.FREE: AccountRow(_N.NOT_HELD, "No job holds it"),
    Account.QUEUED: AccountRow(_N.WAITING, "GPUs that pending jobs request × time"),
    Account.PREEMPTED: AccountRow(_N.WAITING, "GPUs that preempted jobs wait to get back × time"),
}
SURVIVED = frozenset(a for a, row in ACCOUNTS.items() if row.nest is Nest.SURVIVED)
WAITING = frozenset(a for a, row in ACCOUNTS.items() if row.nest is Nest.WAITING)
HELD = frozenset(a for a, row in ACCOUNTS.items() if row.nest not in (Nest.NOT_HELD, Nest.WAITING))
NOT_KNOWN = frozenset({Account.NO_STEPS, Account.UNEXPLAINED, Account.UNOBSERVED})
"""Time that may have been useful or not: the width of ETTR's interval."""

_F = Fault
_STOP = (
    *(_F.GPU_LOST, _F.XID, _F.HBM_DEGRADED, _F.HBM_IMMINENT, _F.DRIVER_ERROR, _F.HOST_ERROR, _F.NODE_CONDITION),
    *(_F.OOM_KILL, _F.GPU_MEMORY_LEAK, _F.HOST_MEMORY_LEAK, _F.LOSS_NONFINITE, _F.LOSS_DIVERGED),
    *(_F.HANG, _F.JOB_CRASH),
)
STOPS: dict[Fault, Account] = {
    **dict.fromkeys(_STOP, Account.HUNG),
    _F.DATA_STALL: Account.DATA_WAIT,
    _F.POD_START: Account.INITIALISING,
}
"""Where a pause goes that a fault explains. In order: of two that do, the first names the cause."""
_SLOW = (_F.STRAGGLER, _F.THROTTLE, _F.NVLINK_DEGRADED, _F.PCIE_DEGRADED, _F.NETWORK_DEGRADED)
SLOWS: dict[Fault, Account] = {
    _F.DATA_STALL: Account.DATA_WAIT,
    **dict.fromkeys(_SLOW, Account.STRAGGLING),
}
"""Where the excess of slow steps goes while a fault stands."""
UNFIT = frozenset(
    {
        *(_F.GPU_LOST, _F.XID, _F.HBM_DEGRADED, _F.HBM_IMMINENT, _F.DRIVER_ERROR, _F.HOST_ERROR, _F.LEMON),
        *(_F.NODE_CONDITION, _F.NVLINK_DEGRADED, _F.PCIE_DEGRADED, _F.NETWORK_DEGRADED, _F.THROTTLE),
    }
)
"""Faults that make a GPU that no job holds unhealthy."""
