"""Every detector there is: one line each."""

from __future__ import annotations

from detectors.divergence import Divergence
from detectors.ecc import Ecc
from detectors.gpu_lost import GpuLost
from detectors.hang import Hang
from detectors.interconnect import Interconnect
from detectors.kernel_events import KernelEvents
from detectors.memory_leak import MemoryLeak
from detectors.multivariate import Multivariate
from detectors.nccl_watchdog import NcclWatchdog
from detectors.serving import Serving
from detectors.source import SourceLost
from detectors.stall import DataStall
from detectors.straggler import Straggler
from detectors.throttle import Throttle
from detectors.xid import XidDetector

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
