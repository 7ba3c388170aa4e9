"""Power limits of this machine's GPUs, lent for a time: without renewal they go to a fallback decided beforehand.

The agent grants a lease and renews it. When it is away, or the network between them, the lease ends here by a clock
that does not jump, and every GPU goes to its fallback limit, which the operator chose so that all nodes together
stay within the budget. A lease of an earlier leader's term is refused (C. Gray, D. Cheriton, SOSP 1989). Within a
lease limits are lowered before others are raised, so that the sum is never above both the old and the new one.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import pynvml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from collectors.base import Permanent, Temporary

MAX_LEASE_S = 600.0


@dataclass(frozen=True, slots=True)
class Range:
    """What a GPU may be limited to, and is now (mW)."""

    min_mw: int
    max_mw: int
    default_mw: int
    now_mw: int


class Device(Protocol):
    """The GPUs' limits. Both raise Temporary or Permanent."""

    def ranges(self) -> Mapping[str, Range]: ...
    def set_limit(self, uuid: str, limit_mw: int) -> None: ...


class Lease(BaseModel):
    """What the agent asks for: a limit for each GPU that it names, for `ttl_s`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str = Field(min_length=1, max_length=200)
    term: int = Field(ge=0, description="Rises with every change of leader")
    ttl_s: float = Field(gt=0, le=MAX_LEASE_S)
    limits_mw: dict[str, int] = Field(min_length=1)


class Refused(Permanent):
    """The lease was not granted and nothing was changed; says why."""


class PowerLeases:
    """Grants, renews and ends leases. `fallback_mw` is each GPU's limit without one; None: its default limit."""

    def __init__(self, device: Device, fallback_mw: int | None) -> None:
        """Puts every GPU at its fallback limit. Raises Refused where one cannot have it."""
        self._device, self._lock = device, threading.Lock()
        self._lease: Lease | None = None
        self._ends_s = float("-inf")
        self._term = 0
        self._owed = False
        ranges = device.ranges()
        for uuid, found in ranges.items():
            if fallback_mw is not None and not found.min_mw <= fallback_mw <= found.max_mw:
                raise Refused(f"fallback of {fallback_mw} mW: {uuid} takes {found.min_mw} to {found.max_mw} mW")
        self._fallback = {u: r.default_mw if fallback_mw is None else fallback_mw for u, r in ranges.items()}
        self._apply(self._fallback)

    def grant(self, body: bytes, now_s: float) -> Lease:
        """Takes a lease up, whole or not at all; `now_s` is of a clock that does not jump.

        Raises Refused where it is not one, or not of this machine; Temporary where a GPU did not take its limit:
        all are then at their fallback.
        """
        try:
            lease = Lease.model_validate_json(body)
        except ValidationError as error:
            raise Refused(
                "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
            ) from None
        with self._lock:
            if lease.term < self._term:
                raise Refused(f"term {lease.term} is over; the present one is {self._term}")
            ranges = self._device.ranges()
            for uuid, limit_mw in lease.limits_mw.items():
                if uuid not in ranges:
                    raise Refused(f"{uuid} is no GPU of this machine")
                if not ranges[uuid].min_mw <= limit_mw <= ranges[uuid].max_mw:
                    bounds = f"{ranges[uuid].min_mw} to {ranges[uuid].max_mw} mW"
                    raise Refused(f"{limit_mw} mW: {uuid} takes {bounds}")
            self._term, self._lease, self._ends_s = lease.term, lease, now_s + lease.ttl_s
            try:
                self._apply({**self._fallback, **lease.limits_mw})
            except (Temporary, Permanent):
                self._end()
                raise
        return lease

    def turn(self, now_s: float) -> bool:
        """Ends a lease whose time is over, and tries again what did not succeed; True where it went to fallback."""
        with self._lock:
            if (self._lease is not None and now_s >= self._ends_s) or self._owed:
                self._end()
                return True
        return False

    def close(self) -> None:
        """Ends the lease: whoever is not there to renew does not hold one."""
        with self._lock:
            self._end()

    def status(self, now_s: float) -> dict[str, object]:
        """The lease, how long it still holds, and the limits as they are read."""
        with self._lock:
            limits = {uuid: found.now_mw for uuid, found in self._device.ranges().items()}
            left_s = max(0.0, self._ends_s - now_s) if self._lease else 0.0
            return {"lease": self._lease.id if self._lease else None, "left_s": left_s, "limits_mw": limits}

    def _end(self) -> None:
        self._lease, self._owed = None, True
        self._apply(self._fallback)
        self._owed = False

    def _apply(self, limits_mw: Mapping[str, int]) -> None:
        now = {uuid: found.now_mw for uuid, found in self._device.ranges().items()}
        wanted = {u: mw for u, mw in limits_mw.items() if u in now and now[u] != mw}
        failed: list[str] = []
        for uuid, limit_mw in sorted(wanted.items(), key=lambda item: item[1] > now[item[0]]):
            if failed and limit_mw > now[uuid]:
                continue  # what was not lowered must not be added to
            try:
                self._device.set_limit(uuid, limit_mw)
            except (Temporary, Permanent) as error:
                failed.append(f"{uuid}: {error}")
        if failed:
            raise Temporary("power limits not set: " + "; ".join(failed))


class NvmlPower:
    """This machine's GPUs through NVML. Setting a limit needs root (nvmlDeviceSetPowerManagementLimit)."""

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
                now = pynvml.nvmlDeviceGetPowerManagementLimit(handle)
                found[str(pynvml.nvmlDeviceGetUUID(handle))] = Range(low, high, default, now)
        except pynvml.NVMLError as error:
            raise Temporary(f"NVML: {error}") from error
        return found

    def set_limit(self, uuid: str, limit_mw: int) -> None:
        try:
            pynvml.nvmlDeviceSetPowerManagementLimit(pynvml.nvmlDeviceGetHandleByUUID(uuid), limit_mw)
        except pynvml.NVMLError_NoPermission as error:
            raise Permanent(f"NVML: {error}: setting power limits needs root and CAP_SYS_ADMIN") from error
        except pynvml.NVMLError as error:
            raise Temporary(f"NVML: {error}") from error
