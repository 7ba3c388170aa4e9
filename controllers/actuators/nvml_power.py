"""This machine's GPUs' power limits and clocks, through NVML (NVML API reference, "Device Commands").

Setting either needs root and CAP_SYS_ADMIN; the driver forgets both when it is unloaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pynvml

from collectors.base import Permanent, Temporary
from controllers.actuators.power_leases import Range


class NvmlPower:
    """See `power_leases.Device`."""

    def __init__(self) -> None:
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise Permanent(f"NVML: {error}") from error

    def ranges(self) -> Mapping[str, Range]:
        found = {}
        try:
            for index in range(pynvml.nvmlDeviceGetCount()):
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                low, high = pynvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)
                default = pynvml.nvmlDeviceGetPowerManagementDefaultLimit(handle)
                now = pynvml.nvmlDeviceGetEnforcedPowerLimit(handle)
                clock = pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM)
                runs = pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)
                found[str(pynvml.nvmlDeviceGetUUID(handle))] = Range(low, high, default, now, clock, runs)
        except pynvml.NVMLError as error:
            raise Temporary(f"NVML: {error}") from error
        return found

    def set_limit(self, uuid: str, limit_mw: int) -> None:
        self._do("power limits", uuid, lambda h: pynvml.nvmlDeviceSetPowerManagementLimit(h, limit_mw))

    def lock_clock(self, uuid: str, clock_mhz: int | None) -> None:
        if clock_mhz is None:
            self._do("clocks", uuid, pynvml.nvmlDeviceResetGpuLockedClocks)
        else:
            self._do("clocks", uuid, lambda h: pynvml.nvmlDeviceSetGpuLockedClocks(h, 0, clock_mhz))

    def _do(self, what: str, uuid: str, call: Callable[[Any], Any]) -> None:
        try:
            call(pynvml.nvmlDeviceGetHandleByUUID(uuid))
        except pynvml.NVMLError_NoPermission as error:
            raise Permanent(f"NVML: {error}: setting {what} needs root and CAP_SYS_ADMIN") from error
        except pynvml.NVMLError_NotSupported as error:
            raise Permanent(f"NVML: {error}: {uuid} does not let {what} be set") from error
        except pynvml.NVMLError as error:
            raise Temporary(f"NVML: {error}") from error
