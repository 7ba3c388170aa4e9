"""Where a verdict was found: the facts that a certificate stands on, and whose drift makes it stale."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from nightshift.collectors.base import Permanent
from nightshift.detectors.hardware.xid_catalogue import CATALOGUE, MEMORY, Tier
from nightshift.kernels.cute import cute_version
from nightshift.kernels.judge.race.timing import Board, board

DRIFT = ("gpu", "capability", "driver", "cuda", "torch", "triton", "container")
"""Fields whose change makes a certificate stale."""


@dataclass(frozen=True)
class Environment:
    """Versions as text; "none" where a part is absent."""

    gpu: str
    capability: str
    driver: str
    cuda: str
    torch: str
    triton: str
    container: str
    python: str
    system: str
    cutlass_dsl: str = "none"  # CuTe DSL

    def to_json(self) -> dict[str, str]:
        return asdict(self)

    def drift(self, other: Mapping[str, Any], language: str = "") -> list[str]:
        """Which facts differ from a certificate's, each said in words. language: of its candidate."""
        mine = self.to_json()
        names = (*DRIFT, "cutlass_dsl") if language == "cute" else DRIFT
        return [
            f"{name}: {other.get(name)} then, {mine[name]} now" for name in names if other.get(name) != mine[name]
        ]


def environment(device: str) -> Environment:
    """This process's own. The container's digest comes from NIGHTSHIFT_IMAGE_DIGEST, which our image sets."""
    try:
        import triton

        triton_version = str(triton.__version__)
    except ImportError:
        triton_version = "none"
    gpu = capability = driver = "none"
    if device == "cuda":
        gpu = torch.cuda.get_device_name(0)
        capability = ".".join(map(str, torch.cuda.get_device_capability(0)))
        with Nvml() as nvml:
            driver = nvml.driver
    return Environment(
        gpu=gpu,
        capability=capability,
        driver=driver,
        cuda=str(torch.version.cuda or "none"),
        torch=str(torch.__version__),
        triton=triton_version,
        container=os.environ.get("NIGHTSHIFT_IMAGE_DIGEST", "none"),
        python=platform.python_version(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        cutlass_dsl=cute_version(),
    )


def machine_xid(code: int) -> str | None:
    """The Xid in words where it is the machine's fault, None where a program can cause it."""
    entry = CATALOGUE.get(code)
    if entry is None or (entry.tier is not Tier.FATAL and code not in MEMORY):
        return None
    return f"Xid {code} ({entry.name})"


class UnknownDevice(Permanent):
    """NVML has no device that is CUDA's: whatever it said would be another card's."""


def handle_of(nvml: Any, uuid: str, bus: str) -> Any:
    """NVML's handle of the device with CUDA's UUID, or at its PCI bus id where NVML has no such UUID.

    Never by index: NVML counts every card of the machine in another order, CUDA those of CUDA_VISIBLE_DEVICES.
    Raises UnknownDevice.
    """
    bare = uuid.removeprefix("GPU-").removeprefix("MIG-")
    ways = [(nvml.nvmlDeviceGetHandleByUUID, f"{kind}-{bare}") for kind in ("GPU", "MIG")]
    for find, name in (*ways, (nvml.nvmlDeviceGetHandleByPciBusId, bus)):
        with contextlib.suppress(nvml.NVMLError):
            return find(name)
    raise UnknownDevice(f"NVML knows no device {uuid} at {bus}, which CUDA computes on")


class Nvml:
    """Read-only NVML of one CUDA device: clocks, energy, memory by process, Xids. Use as a context manager."""

    def __init__(self, device: int = 0) -> None:
        import pynvml

        self._nvml = pynvml
        pynvml.nvmlInit()
        self._properties = found = torch.cuda.get_device_properties(device)
        place = [getattr(found, f"pci_{part}_id", 0) for part in ("domain", "bus", "device")]
        self._handle = handle_of(pynvml, str(found.uuid), "{:08X}:{:02X}:{:02X}.0".format(*place))
        self._events: Any = None
        try:
            self._events = pynvml.nvmlEventSetCreate()
            pynvml.nvmlDeviceRegisterEvents(self._handle, pynvml.nvmlEventTypeXidCriticalError, self._events)
        except pynvml.NVMLError:  # not offered inside some virtual machines: a lost device still shows below
            self._events = None

    def __enter__(self) -> Nvml:
        return self

    def __exit__(self, *details: object) -> None:
        self._nvml.nvmlShutdown()

    @property
    def driver(self) -> str:
        return str(self._nvml.nvmlSystemGetDriverVersion())

    def energy_j(self) -> float:
        """The board's energy counter since the driver was loaded; NaN where it has none."""
        try:
            return float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)) * 1e-3
        except self._nvml.NVMLError:
            return float("nan")

    def fault(self) -> str | None:
        """What is wrong with the machine, where something is: a lost GPU, or an Xid since the last call that no
        program can cause (fatal, or of the GPU's memory, by the catalogue). A candidate's own Xids (13, 31, 43, …)
        are its own."""
        try:
            self._nvml.nvmlDeviceGetMemoryInfo(self._handle)
        except self._nvml.NVMLError as error:
            return f"NVML: {error}"
        while self._events is not None:
            try:
                event = self._nvml.nvmlEventSetWait_v2(self._events, 0)
            except self._nvml.NVMLError_Timeout:
                return None
            except self._nvml.NVMLError as error:
                return f"NVML: {error}"
            told = machine_xid(int(event.eventData))
            if told is not None:
                return told
        return None

    def used_bytes(self, pids: Sequence[int]) -> int:
        """Device memory of these processes; 0 where the driver does not say."""
        try:
            running = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
        except self._nvml.NVMLError:
            return 0
        return sum(int(entry.usedGpuMemory or 0) for entry in running if entry.pid in pids)

    def free_bytes(self) -> int:
        return int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).free)

    def board(self) -> Board:
        """Theoretical bandwidth and arithmetic, from the clocks that NVML calls the maximum."""
        nvml, handle = self._nvml, self._handle
        properties = self._properties
        try:
            memory_hz = nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM) * 1e6
            sm_hz = nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM) * 1e6
            bus_bits = nvml.nvmlDeviceGetMemoryBusWidth(handle)
        except nvml.NVMLError:
            return Board(0.0, int(properties.L2_cache_size), {})
        capability = (properties.major, properties.minor)
        sms = properties.multi_processor_count
        return board(memory_hz, bus_bits, int(properties.L2_cache_size), capability, sms, sm_hz)
