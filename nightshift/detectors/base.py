"""The contract of every detector: a tick in, findings out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Protocol, runtime_checkable

from nightshift.collectors.frame import Instant, LogRecord
from nightshift.collectors.seal import fingerprint
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.alarms.tail import Tail

CERTAIN = 1e15
"""The score of what hardware or software says of itself (an uncorrected error, a loss that is no number): an event,
which no budget weighs. What is found by statistics scores less, however strong."""


class State(StrEnum):
    FIRING = "firing"
    CLEAR = "clear"
    NO_DATA = "no_data"
    """The signal went away while firing: never read as clear."""


class Fault(StrEnum):
    """What a finding claims: the closed vocabulary that correlation, rules and playbooks speak."""

    GPU_MEMORY_LEAK = "gpu_memory_leak"
    HOST_MEMORY_LEAK = "host_memory_leak"
    LOSS_DIVERGED = "loss_diverged"
    LOSS_NONFINITE = "loss_nonfinite"
    DATA_STALL = "data_stall"
    HANG = "hang"
    STRAGGLER = "straggler"
    HBM_IMMINENT = "hbm_imminent"
    """Of stored incidents alone: on devices that its rule had not seen it held in 66 %, so no detector says it."""
    HBM_DEGRADED = "hbm_degraded"
    """Memory errors of a GPU. The fact `unit` says whether of DRAM, SRAM, or of an unknown unit."""
    XID = "xid"
    DRIVER_ERROR = "driver_error"
    """The GPU driver, or what it needs, says without an Xid that it does not work."""
    HOST_ERROR = "host_error"
    """The host's own hardware or kernel: memory, processors, disks, heat."""
    PART_FAILED = "part_failed"
    """A part around the host, as its BMC says: power supply, fan, air, leak. No action of ours mends one, and the
    node works meanwhile."""
    GPU_LOST = "gpu_lost"
    NVLINK_DEGRADED = "nvlink_degraded"
    PCIE_DEGRADED = "pcie_degraded"
    NETWORK_DEGRADED = "network_degraded"
    THROTTLE = "throttle"
    OOM_KILL = "oom_kill"
    JOB_CRASH = "job_crash"
    POD_START = "pod_start"
    """Pods of a job, or of what serves GPUs, cannot start."""
    NODE_CONDITION = "node_condition"
    """The node is not ready, offers fewer GPUs than it has, a monitor says on it that something is wrong, or its
    cloud announces that the machine goes."""
    SOURCE_LOST = "source_lost"
    ACTIONS_STOPPED = "actions_stopped"
    """Nightshift stopped its own actions: it, or what it relies on, may be at fault."""
    LEMON = "lemon"
    """Jobs fail there more often than on its peers, over weeks."""
    ANOMALY = "anomaly"


class Severity(StrEnum):
    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


@dataclass(frozen=True, slots=True)
class SeriesExhibit:
    """A stretch of a signal that shows the alarm: parallel t_s (Unix s) and values; `reference` is what it left."""

    subject: Subject
    metric: str
    unit: str
    t_s: tuple[float, ...]
    values: tuple[float, ...]
    reference: float | None
    source: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class LogExhibit:
    """A line that shows the alarm."""

    record: LogRecord
    note: str = ""


Exhibit = SeriesExhibit | LogExhibit


@dataclass(frozen=True, slots=True)
class Finding:
    """A detector's word on one subject at one moment.

    score is on the detector's own scale and fires above `threshold`; `p_value` where the method has one.
    `budget_cost` is what it costs of the false-alarm budget: the false alarms at least this strong that are
    expected per week on this fleet (`detectors.alarms.budget`). `facts` are figures for people and rules (`eta_s`).
    """

    detector: str
    fault: Fault
    subject: Subject
    state: State
    since: Instant
    at: Instant
    severity: Severity
    summary: str
    score: float
    threshold: float
    p_value: float | None = None
    budget_cost: float = 0.0
    evidence: tuple[Exhibit, ...] = ()
    facts: Mapping[str, float | str] = field(default_factory=dict)
    pages: bool = True
    """False: its incident is a ticket or in the digest, by the facts `lane` and `lane_reason`
    (`detectors.alarms.lanes`)."""

    @property
    def episode(self) -> str:
        """Names this alarm over all its updates: same detector, fault, subject and onset."""
        return _episode(self.detector, self.fault, self.subject, self.since.t_s)


# every stage of a look asks for it, and a fleet has thousands of alarms open
@lru_cache(maxsize=65_536)
def _episode(detector: str, fault: Fault, subject: Subject, since_s: float) -> str:
    return fingerprint([detector, fault, str(subject), repr(since_s)])[:32]


class RateBasis(StrEnum):
    STATISTICAL = "statistical"
    """Calibrated: the detector holds this rate on healthy telemetry."""
    EVENT = "event"
    """An event is an event: the rate is how often it happens without a fault behind it."""


@dataclass(frozen=True, slots=True)
class StatedRate:
    """The false-alarm rate that a detector promises, per 1,000 series-days, and where the figure comes from.

    `series` is what is counted. A STATISTICAL rate with a `tail` is measured and can be made stricter: the tail
    tells how much rarer a stronger alarm is, on the scale of `Finding.score`. For an EVENT the rate is the base
    rate of the event itself, and `precision` the share of such events with the fault behind them (None: unknown).
    """

    per_1000_series_days: float
    basis: RateBasis
    source: str
    series: SubjectKind = SubjectKind.GPU
    tail: Tail | None = None
    also: tuple[SubjectKind, ...] = ()
    """Further kinds of series that it watches, counted beside `series`."""
    precision: float | None = None
    own: bool = False
    """The tail is of the operator's own telemetry (`nightshift calibrate`)."""


class SnapshotError(ValueError):
    """A saved state cannot be used; the detector starts fresh and says so."""


@runtime_checkable
class Detector(Protocol):
    """Decides purely: the same ticks give the same findings. One instance serves the whole fleet."""

    @property
    def name(self) -> str: ...

    @property
    def faults(self) -> tuple[Fault, ...]: ...

    @property
    def stated(self) -> StatedRate: ...

    def update(self, tick: Tick, inventory: Inventory) -> list[Finding]:
        """Every episode that is firing now, and each episode's one change to clear or no_data.

        A firing episode is returned on every tick on which its signal was observed, with its onset unchanged.
        An episode whose signal is missing is returned once as NO_DATA, and as FIRING or CLEAR when it is back.
        """
        ...

    def snapshot(self) -> bytes:
        """The whole state, versioned; JSON or NumPy's npz without objects, never a pickle."""
        ...

    def restore(self, state: bytes) -> None:
        """Takes back a snapshot of this or the previous version. Raises SnapshotError and stays fresh."""
        ...
