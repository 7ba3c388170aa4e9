"""Every detector there is: one line each."""

from __future__ import annotations

from nightshift.detectors.cluster import ClusterFaults
from nightshift.detectors.ecc.detector import Ecc
from nightshift.detectors.hardware.equipment import Equipment
from nightshift.detectors.hardware.gpu_lost import GpuLost
from nightshift.detectors.hardware.interconnect import Interconnect
from nightshift.detectors.hardware.kernel_events import KernelEvents
from nightshift.detectors.hardware.throttle import Throttle
from nightshift.detectors.hardware.xid import XidDetector
from nightshift.detectors.loss.divergence import Divergence
from nightshift.detectors.loss.gradient_witness import LocalGradients
from nightshift.detectors.memory.leak import MemoryLeak
from nightshift.detectors.progress.hang import Hang
from nightshift.detectors.progress.job_crash import JobCrash
from nightshift.detectors.progress.nccl_watchdog import NcclWatchdog
from nightshift.detectors.progress.stall import DataStall
from nightshift.detectors.progress.straggler import Straggler
from nightshift.detectors.serving import Serving
from nightshift.detectors.source_lost import SourceLost

ALL = (
    ClusterFaults,
    Divergence,
    Ecc,
    Equipment,
    GpuLost,
    Hang,
    Interconnect,
    JobCrash,
    KernelEvents,
    LocalGradients,
    MemoryLeak,
    NcclWatchdog,
    Serving,
    SourceLost,
    DataStall,
    Straggler,
    Throttle,
    XidDetector,
)
