"""This machine's GPUs' power limits and clocks, through NVML (NVML API reference, "Device Commands").

Setting either needs root and CAP_SYS_ADMIN; the driver forgets both when it is unloaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pynvml

from nightshift.collectors.base import Permanent, Temporary
from nightshift.controllers.actuators.power_leases import Range


def _range(index: int) -> tuple[str, Range]:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    low, high = pynvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)
    default = pynvml.nvmlDeviceGetPowerManagementDefaultLimit(handle)
    # what the driver enforces, after a limit that was set out of band (by the BMC) too; the one that was asked for
    # may be higher
    now = pynvml.nvmlDeviceGetEnforcedPowerLimit(handle)
    clock = pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM)
    runs = pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)
    return str(pynvml.nvmlDeviceGetUUID(handle)), Range(low, high, default, now, clock, runs)


class NvmlPower:
    """See `power_leases.PowerDevice`."""

    def __init__(self) -> None:
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise Permanent(f"NVML: {error}") from error

    def ranges(self) -> Mapping[str, Range]:
        """Of the GPUs that answer: one that is lost keeps no other from its fallback. Raises Temporary where none
        does."""
        found, failed = {}, None
        try:
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            raise Temporary(f"NVML: {error}") from error
        for index in range(count):
            try:
                uuid, own = _range(index)
            except pynvml.NVMLError as error:
                failed = error
                continue
            found[uuid] = own
        if failed is not None and not found:
            raise Temporary(f"NVML: {failed}") from failed
        return found

    def set_limit(self, uuid: str, limit_mw: int) -> None:
        self._do("power limits", uuid, lambda h: pynvml.nvmlDeviceSetPowerManagementLimit(h, limit_mw))

    def lock_clock(self, uuid: str, clock_mhz: int | None) -> None:
        if clock_mhz is None:
            self._do("clocks", uuid, pynvml.nvmlDeviceResetGpuLockedClocks)
        else:
            # from 0: only the upper bound is ours, and an idle GPU may still fall
            self._do("clocks", uuid, lambda h: pynvml.nvmlDeviceSetGpuLockedClocks(h, 0, clock_mhz))

    def _do(self, what: str, uuid: str, call: Callable[[Any], Any]) -> None:
        try:
            call(pynvml.nvmlDeviceGetHandleByUUID(uuid))
        except pynvml.NVMLError_NoPermission as error:
            raise Permanent(f"NVML: {error}: setting {what} needs root and CAP_SYS_ADMIN") from error
        except pynvml.NVMLError_NotSupported as error:
            raise Permanent(f"NVML: {error}: {uuid} does not allow setting {what}") from error
        except pynvml.NVMLError as error:
            raise Temporary(f"NVML: {error}") from error
