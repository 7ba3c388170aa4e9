"""This machine's GPUs through NVML, with Hopper's GPM metrics where DCGM's profiling fields would stand.

A GPU that fell off the bus or a driver that went away makes values missing, never zero; the next tick looks for it
anew. NVML can hang in the kernel with a broken GPU, so it is asked in a thread of its own that is left behind when
it does not answer in time. Function and field names: NVML API reference, docs.nvidia.com/deploy/nvml-api.
"""

from __future__ import annotations

import ctypes
import math
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pynvml
from pydantic import BaseModel, ConfigDict
from pydantic.json_schema import SkipJsonSchema

from nightshift.collectors.frame import Floats, Frame, Instant, LogRecord, Reason, SourceStatus
from nightshift.collectors.kernel_log.event import KernelEvent, KernelEventKind
from nightshift.collectors.kernel_log.pci import PCI_FACT, canonical_pci
from nightshift.collectors.shared_settings import stated_once
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.telemetry.metrics import BY_NAME, of_kind
from nightshift.collectors.telemetry.pages import source_subject
from nightshift.collectors.telemetry.rows import Cells, Rows, cells
from nightshift.collectors.tick import Batch

Values = Mapping[str, float]
_NO_DRIVER = (pynvml.NVML_ERROR_UNINITIALIZED, pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
_GONE = (
    *_NO_DRIVER,
    pynvml.NVML_ERROR_GPU_IS_LOST,
    pynvml.NVML_ERROR_RESET_REQUIRED,
    pynvml.NVML_ERROR_NOT_FOUND,
    pynvml.NVML_ERROR_UNKNOWN,
)
_FIELDS = {
    pynvml.NVML_FI_DEV_MEMORY_TEMP: "gpu_memory_temperature_c",
    pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION: "gpu_recovery_action",
    pynvml.NVML_FI_DEV_PCIE_REPLAY_COUNTER: "gpu_pcie_replay_total",
    pynvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL: "gpu_nvlink_crc_errors_total",
}
_GPM = {
    pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL: "gpu_engine_active_ratio",
    pynvml.NVML_GPM_METRIC_SM_UTIL: "gpu_sm_active_ratio",
    pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL: "gpu_tensor_active_ratio",
    pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL: "gpu_dram_active_ratio",
}
_UNION = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
"""nvmlValueType_t → member of nvmlValue_t."""


def _memory(handle: Any) -> Values:
    info = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    return {"gpu_memory_used_bytes": info.used, "gpu_memory_free_bytes": info.free}


def _utilization(handle: Any) -> Values:
    rates = pynvml.nvmlDeviceGetUtilizationRates(handle)
    return {"gpu_utilization_percent": rates.gpu, "gpu_memory_utilization_percent": rates.memory}


def _remapped(handle: Any) -> Values:
    corrected, uncorrected, pending, failure = pynvml.nvmlDeviceGetRemappedRows(handle)
    return {
        "gpu_remapped_rows_correctable": corrected,
        "gpu_remapped_rows_uncorrectable": uncorrected,
        "gpu_row_remap_pending": pending,
        "gpu_row_remap_failure": failure,
    }


def _spares(handle: Any) -> Values:
    histogram = pynvml.nvmlDeviceGetRowRemapperHistogram(handle)
    return {"gpu_remap_banks_none": histogram.none, "gpu_remap_banks_low": histogram.low}


def _fields(handle: Any) -> Values:
    found = {}
    for value in pynvml.nvmlDeviceGetFieldValues(handle, list(_FIELDS)):
        # each field has a return code of its own: the call succeeds on a GPU without NVLink, and its links' fields
        # do not
        if value.nvmlReturn == pynvml.NVML_SUCCESS and value.valueType in _UNION:
            found[_FIELDS[value.fieldId]] = float(getattr(value.value, _UNION[value.valueType]))
    return found


def _ecc(handle: Any) -> Values:
    volatile = pynvml.NVML_VOLATILE_ECC
    return {
        "gpu_ecc_sbe_total": pynvml.nvmlDeviceGetTotalEccErrors(
            handle, pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, volatile
        ),
        "gpu_ecc_dbe_total": pynvml.nvmlDeviceGetTotalEccErrors(
            handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, volatile
        ),
    }


def _ecc_of(unit: str, location: int) -> Callable[[Any], Values]:
    def read(handle: Any) -> Values:
        ask, volatile = pynvml.nvmlDeviceGetMemoryErrorCounter, pynvml.NVML_VOLATILE_ECC
        return {
            f"gpu_ecc_sbe_{unit}_total": ask(handle, pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, volatile, location),
            f"gpu_ecc_dbe_{unit}_total": ask(handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, volatile, location),
        }

    return read


_READERS: tuple[Callable[[Any], Values], ...] = (
    _memory,
    _utilization,
    _remapped,
    _spares,
    _fields,
    _ecc,
    # a unit at a time: a GPU that does not count one may count the other
    _ecc_of("dram", pynvml.NVML_MEMORY_LOCATION_DRAM),
    _ecc_of("sram", pynvml.NVML_MEMORY_LOCATION_SRAM),
    lambda h: {"gpu_pcie_link_width": pynvml.nvmlDeviceGetCurrPcieLinkWidth(h)},
    lambda h: {"gpu_pcie_link_generation": pynvml.nvmlDeviceGetCurrPcieLinkGeneration(h)},
    lambda h: {"gpu_power_w": pynvml.nvmlDeviceGetPowerUsage(h) / 1000},
    lambda h: {"gpu_power_limit_w": pynvml.nvmlDeviceGetEnforcedPowerLimit(h) / 1000},
    lambda h: {"gpu_energy_j": pynvml.nvmlDeviceGetTotalEnergyConsumption(h) / 1000},
    lambda h: {"gpu_temperature_c": pynvml.nvmlDeviceGetTemperature(h, pynvml.NVML_TEMPERATURE_GPU)},
    lambda h: {"gpu_sm_clock_mhz": pynvml.nvmlDeviceGetClockInfo(h, pynvml.NVML_CLOCK_SM)},
    lambda h: {"gpu_memory_clock_mhz": pynvml.nvmlDeviceGetClockInfo(h, pynvml.NVML_CLOCK_MEM)},
    lambda h: {"gpu_throttle_reasons": pynvml.nvmlDeviceGetCurrentClocksEventReasons(h)},
)


@dataclass
class Gpm:
    """GPU performance monitoring: metrics between two samples of the hardware's counters, so none on the first."""

    before: Any
    after: Any
    has_before: bool = False
    request: Any = field(default_factory=pynvml.c_nvmlGpmMetricsGet_t)

    def read(self, handle: Any) -> Values:
        pynvml.nvmlGpmSampleGet(handle, self.after)
        found = {}
        if self.has_before:
            request = self.request
            request.version, request.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, len(_GPM)
            request.sample1, request.sample2 = self.before, self.after
            for place, number in enumerate(_GPM):
                request.metrics[place].metricId = number
            pynvml.nvmlGpmMetricsGet(request)
            for place, name in enumerate(_GPM.values()):
                if request.metrics[place].nvmlReturn == pynvml.NVML_SUCCESS:
                    found[name] = request.metrics[place].value / 100
        # the two buffers change places: a sample is allocated by the driver, and is filled again rather than freed
        self.before, self.after, self.has_before = self.after, self.before, True
        return found

    def free(self) -> None:
        for sample in (self.before, self.after):
            pynvml.nvmlGpmSampleFree(sample)


ASK_AGAIN_LOOKS = 20
"""After so many looks a GPU is asked again for what it did not support."""


@dataclass
class NvmlDevice:
    """One GPU as NVML names it. `readers` loses those that this GPU does not support now, to `resting`, which are
    asked again: in MIG mode a GPU has no utilisation and tells no remapped rows."""

    handle: Any
    uuid: str
    facts: Mapping[str, str]
    readers: list[Callable[[Any], Values]]
    gpm: Gpm | None
    resting: list[Callable[[Any], Values]] = field(default_factory=list)
    looks: int = 0


@dataclass
class _Sample:
    """What one look brought: metric → value of the GPUs that answered, in the devices' order, and the lost ones'
    indices with NVML's words."""

    devices: list[NvmlDevice] = field(default_factory=list)
    values: list[dict[str, float]] = field(default_factory=list)
    lost: dict[int, str] = field(default_factory=dict)
    error: str = ""
    is_anew: bool = False
    """The driver was loaded since the look before: its counters count anew."""
    xids: list[tuple[str, int, str]] = field(default_factory=list)
    """(UUID, Xid, MIG instance or "") of the errors since the look before."""


# An error that is told without end (a GPU that fails each launch) must not hold the look.
_MOST_EVENTS = 256
_NO_INSTANCE = 0xFFFFFFFF


class XidEvents:
    """NVML's event set of critical Xids: the driver keeps them from `watch` on, so a look takes what came since.

    A container that may not read the kernel log hears of errors only so. Where a driver knows no event set there
    are none (nvmlEventSetCreate, nvmlDeviceRegisterEvents, nvmlEventSetWait_v2 of the NVML API reference).
    """

    def __init__(self) -> None:
        self._set: Any = None
        self._uuids: dict[int, str] = {}

    def watch(self, device: NvmlDevice) -> None:
        """Has the driver keep this GPU's Xids; once per handle."""
        address = _address(device.handle)
        if self._uuids.get(address) == device.uuid:
            return
        try:
            if self._set is None:
                self._set = pynvml.nvmlEventSetCreate()
            if address not in self._uuids:
                pynvml.nvmlDeviceRegisterEvents(device.handle, pynvml.nvmlEventTypeXidCriticalError, self._set)
        except pynvml.NVMLError:
            pass  # not supported (a vGPU, an old driver): its Xids are in the kernel log alone
        self._uuids[address] = device.uuid

    def take(self) -> list[tuple[str, int, str]]:
        """(UUID, Xid, MIG instance or "") of what came since the last call."""
        found: list[tuple[str, int, str]] = []
        while self._set is not None and len(found) < _MOST_EVENTS:
            try:
                data = pynvml.nvmlEventSetWait_v2(self._set, 0)
            except pynvml.NVMLError:
                break  # none is left (a timeout), or a GPU of the set is lost: its readers say so
            uuid = self._uuids.get(_address(data.device))
            if uuid is not None and data.eventType == pynvml.nvmlEventTypeXidCriticalError:
                instance = "" if data.gpuInstanceId == _NO_INSTANCE else str(data.gpuInstanceId)
                found.append((uuid, int(data.eventData), instance))
        return found

    def free(self) -> None:
        if self._set is not None:
            pynvml.nvmlEventSetFree(self._set)
        self._set, self._uuids = None, {}


def _address(handle: Any) -> int:
    """What tells a handle from another: the library gives the same pointer for the same GPU."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


# How long a vanished GPU keeps its row; the detector of lost GPUs has spoken long before.
FORGET_AFTER_S = 3600.0


class NvmlCollector:
    """One row per GPU of this machine."""

    plugin: ClassVar[str] = "nvml"

    class Settings(BaseModel):
        """This machine's GPUs."""

        model_config = ConfigDict(extra="forbid")

        node: SkipJsonSchema[str] = stated_once("node_name", socket.gethostname)

    def __init__(self, settings: Settings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._timer = clock
        self._node = Subject(SubjectKind.NODE, settings.node)
        self._source = source_subject(self.plugin, settings.node)
        self._metrics = of_kind(SubjectKind.GPU)
        self._rows = Rows(SubjectKind.GPU, self._metrics, FORGET_AFTER_S)
        self._started = False
        self._devices: dict[int, NvmlDevice] = {}
        self._xids = XidEvents()
        self._n_events = 0
        self._cells: tuple[tuple[str, ...], Cells] | None = None
        self._thread: threading.Thread | None = None
        self._result: list[_Sample] = []
        self._told: tuple[Inventory, tuple[str, ...]] | None = None

    @property
    def name(self) -> str:
        return self.plugin

    def collect(self, now_s: float, inventory: Inventory, timeout_s: float) -> Batch:
        started = self._timer()
        if self._thread is None:
            self._result = []
            self._thread = threading.Thread(target=self._sample, args=(self._result,), daemon=True, name="nvml")
            self._thread.start()
        # NVML may block for minutes while a GPU hangs; the thread stays, and the next look waits for the same one
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            detail = f"NVML has not answered for {self._timer() - started:.1f} s"
            return self._batch(now_s, Reason.TIMEOUT, detail, 0, started, {})
        self._thread = None
        # an exception other than NVML's ends the thread without a result
        sample = self._result[0] if self._result else _Sample(error="NVML: the sampling thread ended")
        if sample.error:
            return self._batch(now_s, Reason.UNSUPPORTED, sample.error, 0, started, {})
        subjects = tuple(device.uuid for device in sample.devices)
        # a driver that was loaded again counts from 0: its rates must not span the load
        if sample.is_anew:
            self._rows.renew(Subject(SubjectKind.GPU, uuid) for uuid in subjects)
        if self._told != (inventory, subjects):
            self._observe(sample.devices, inventory, now_s)
            self._told = (inventory, subjects)
        rejected = dict(self._put(sample, subjects, now_s))
        if sample.lost:
            rejected[Reason.UNREACHABLE] = len(sample.lost)
        detail = "; ".join(f"GPU {index}: {why}" for index, why in sample.lost.items())[:300]
        reason = None
        if not subjects:
            reason = Reason.UNREACHABLE if sample.lost else Reason.NOT_FOUND
            detail = detail or "NVML names no GPU"
        return self._batch(now_s, reason, detail, len(subjects), started, rejected, self._events(sample, now_s))

    def close(self) -> None:
        if self._thread is None:
            self._forget()

    def _batch(
        self,
        now_s: float,
        reason: Reason | None,
        detail: str,
        samples: int,
        started: float,
        rejected: Mapping[Reason, int],
        events: Sequence[KernelEvent] = (),
    ) -> Batch:
        frame = self._rows.frame(now_s)
        took_s = self._timer() - started
        status = SourceStatus(
            self._source, now_s, reason is None, reason, detail, samples, rejected, took_s, (self._node,)
        )
        frames = [frame] if isinstance(frame, Frame) else []
        return Batch([status], frames, logs=[event.record for event in events], events=events)

    def _events(self, sample: _Sample, now_s: float) -> list[KernelEvent]:
        found = []
        for uuid, code, instance in sample.xids:
            self._n_events += 1
            text = f"NVML told Xid {code} of {uuid}" + (f", MIG instance {instance}" if instance else "")
            record = LogRecord(Instant(now_s), self.plugin, self._node, text, self._n_events)
            attributes = {"gpu_instance": instance} if instance else {}
            gpu = Subject(SubjectKind.GPU, uuid)
            found.append(
                KernelEvent(KernelEventKind.XID, record, self._node, code=code, gpu=gpu, attributes=attributes)
            )
        return found

    def _put(self, sample: _Sample, uuids: tuple[str, ...], now_s: float) -> Mapping[Reason, int]:
        if self._cells is None or self._cells[0] != uuids:
            width = len(self._metrics)
            entries = [
                (row * width + column, Subject(SubjectKind.GPU, uuid), column, 1.0)
                for row, uuid in enumerate(uuids)
                for column in range(width)
            ]
            self._cells = (uuids, cells(SubjectKind.GPU, entries))
        values = np.array(
            [found.get(metric.name, math.nan) for found in sample.values for metric in self._metrics], np.float64
        )
        no_times: Floats = np.full(len(values), np.nan)
        return self._rows.put(self._cells[1], values, no_times, now_s)

    def _observe(self, devices: list[NvmlDevice], inventory: Inventory, now_s: float) -> None:
        here = {device.uuid for device in devices}
        slots = {device.facts["slot"] for device in devices}
        for gpu in inventory.children(self._node, now_s, SubjectKind.GPU):
            # a lost GPU stays on its node until another board sits in its slot: its fault has to be found there
            if gpu.name not in here and inventory.fact(gpu, "slot") in slots:
                inventory.end(gpu, self._node, now_s)
        for device in devices:
            gpu = Subject(SubjectKind.GPU, device.uuid)
            inventory.observe(gpu, self._node, now_s)
            inventory.describe(gpu, **device.facts)

    def _sample(self, result: list[_Sample]) -> None:
        """Runs in its own thread; its one result is what it puts into the list."""
        sample = _Sample()
        try:
            if not self._started:
                pynvml.nvmlInit()
                self._started = sample.is_anew = True
            for index in range(pynvml.nvmlDeviceGetCount()):
                try:
                    device = self._devices.get(index) or open_device(index)
                    self._devices[index] = device
                    self._xids.watch(device)
                    sample.values.append(read_device(device))
                    sample.devices.append(device)
                except pynvml.NVMLError as error:
                    # one lost GPU leaves the others readable; without a driver there is none to read
                    if error.value in _NO_DRIVER or error.value not in _GONE:
                        raise
                    sample.lost[index] = str(error)
                    self._drop(index)
            sample.xids = self._xids.take()
        except pynvml.NVMLError as error:
            sample.error = f"NVML: {error}"
            self._forget()
        result.append(sample)

    def _drop(self, index: int) -> None:
        device = self._devices.pop(index, None)
        if device is not None and device.gpm is not None:
            _quietly(device.gpm.free)

    def _forget(self) -> None:
        for index in list(self._devices):
            self._drop(index)
        if self._started:
            self._started = False
            _quietly(self._xids.free)
            _quietly(pynvml.nvmlShutdown)


def open_device(index: int) -> NvmlDevice:
    """Names one GPU. Raises NVMLError where it is lost."""
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    pci = pynvml.nvmlDeviceGetPciInfo(handle).busId
    address = canonical_pci(pci if isinstance(pci, str) else pci.decode()) or ""
    facts = {
        "index": str(index),
        "slot": address or str(index),
        "model": pynvml.nvmlDeviceGetName(handle),
        "driver": pynvml.nvmlSystemGetDriverVersion(),
        PCI_FACT: address,
        "vbios": _told(pynvml.nvmlDeviceGetVbiosVersion, handle),
        "serial": _told(pynvml.nvmlDeviceGetSerial, handle),
    }
    return NvmlDevice(handle, pynvml.nvmlDeviceGetUUID(handle), facts, list(_READERS), _gpm(handle))


def _told(ask: Callable[[Any], str], handle: Any) -> str:
    """A text of one GPU; empty where it has none. Raises NVMLError where the GPU is gone."""
    try:
        return ask(handle)
    except pynvml.NVMLError as error:
        if error.value in _GONE:
            raise
        return ""


def read_device(device: NvmlDevice) -> dict[str, float]:
    """Metric → value of one GPU; what it does not support is left out. Raises NVMLError where the GPU is gone."""
    found: dict[str, float] = {}
    device.looks += 1
    # what a GPU does not support changes when MIG mode is switched or a driver is replaced
    if device.looks % ASK_AGAIN_LOOKS == 0:
        device.readers, device.resting = [*device.readers, *device.resting], []
    readers = list(device.readers)
    if device.gpm is not None:
        readers.append(device.gpm.read)
    for reader in readers:
        try:
            found.update(reader(device.handle))
        except pynvml.NVMLError as error:
            # a lost GPU fails every reader: what was read before it went must not pass for a look
            if error.value in _GONE:
                raise
            unsupported = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
            if error.value in unsupported and reader in device.readers:
                device.readers.remove(reader)
                device.resting.append(reader)
    return found


def _gpm(handle: Any) -> Gpm | None:
    try:
        if pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
            return Gpm(pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc())
    except pynvml.NVMLError:
        pass  # before Hopper, or a driver without GPM: these metrics stay missing
    return None


def _quietly(release: Callable[[], Any]) -> None:
    """Releases what a driver that is gone can no longer release."""
    try:
        release()
    except (pynvml.NVMLError, ctypes.ArgumentError):
        return


assert set(_FIELDS.values()) | set(_GPM.values()) <= set(BY_NAME)
