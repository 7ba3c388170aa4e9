"""Every detector there is: one line each."""

from __future__ import annotations

from nightshift.detectors.divergence import Divergence
from nightshift.detectors.ecc import Ecc
from nightshift.detectors.gpu_lost import GpuLost
from nightshift.detectors.hang import Hang
from nightshift.detectors.interconnect import Interconnect
from nightshift.detectors.kernel_events import KernelEvents
from nightshift.detectors.memory_leak import MemoryLeak
from nightshift.detectors.multivariate import Multivariate
from nightshift.detectors.nccl_watchdog import NcclWatchdog
from nightshift.detectors.serving import Serving
from nightshift.detectors.source import SourceLost
from nightshift.detectors.stall import DataStall
from nightshift.detectors.straggler import Straggler
from nightshift.detectors.throttle import Throttle
from nightshift.detectors.xid import XidDetector

ALL = (
    Divergence,
    Ecc,
    GpuLost,
    Hang,
    Interconnect,
    KernelEvents,
    MemoryLeak,
    Multivariate,
    NcclWatchdog,
    Serving,
    SourceLost,
    DataStall,
    Straggler,
    Throttle,
    XidDetector,
)
