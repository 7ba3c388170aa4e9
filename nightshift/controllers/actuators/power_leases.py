"""Power limits of this machine's GPUs, lent for a time: without renewal they go to a fallback decided beforehand.

The agent grants a lease and renews it. When it is away, or the network between them, the lease ends here by a clock
that does not jump, and every GPU goes to its fallback limit, which the operator chose so that all nodes together
stay within the budget; its clock is free again. A lease of an earlier leader's term is refused (C. Gray, D.
Cheriton, SOSP 1989). Within a lease limits are lowered before others are raised, so that the sum is never above
both the old and the new one.

A limit that is not the one that was set here was set by a person: it is left as it is, by leases and fallback
alike, and told. At the start, when nothing was set here yet, that is any limit below the fallback that no lease
explains. One that was away and is back at its default was reset, and goes to its fallback again. A GPU that does
not answer keeps no other from its limit. A clock is locked once, not at every renewal; one that runs above the
lock that was set here, or that the agent says is a person's (`clocks_left`), is not touched, and not freed when the
lease ends.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nightshift.collectors.base import Permanent, Temporary

MAX_LEASE_S = 600.0
CLOCK_STEP_MHZ = 15
"""A clock above its lock by more is not under it: the driver rounds to supported clocks."""


@dataclass(frozen=True, slots=True)
class Range:
    """What a GPU may be limited to, and is now (mW)."""

    min_mw: int
    max_mw: int
    default_mw: int
    now_mw: int  # enforced
    max_clock_mhz: int
    clock_mhz: int = 0  # as it runs; 0: not known


class PowerDevice(Protocol):
    """The GPUs' limits. All raise Temporary or Permanent. `clock_mhz` None: the clock is free. A GPU that does not
    answer is not among the `ranges`."""

    def ranges(self) -> Mapping[str, Range]: ...
    def set_limit(self, uuid: str, limit_mw: int) -> None: ...
    def lock_clock(self, uuid: str, clock_mhz: int | None) -> None: ...


class Lease(BaseModel):
    """What the agent asks for: a limit for each GPU that it names, for `ttl_s`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str = Field(min_length=1, max_length=200)
    term: int = Field(ge=0, description="Rises with every change of leader")
    ttl_s: float = Field(gt=0, le=MAX_LEASE_S)
    limits_mw: dict[str, int] = Field(min_length=1)
    clocks_mhz: dict[str, int] = Field(default_factory=dict, description="SM clock at most, of GPUs that are named")
    clocks_left: tuple[str, ...] = Field((), description="GPUs with a clock set by a person; not changed")
    clocks_freed: tuple[str, ...] = Field(
        (),
        description="GPUs with a clock lock of the agent that must be removed; this node may not remember it",
    )
    held_mw: dict[str, int] = Field(
        default_factory=dict, description="What the agent had ordered before; this machine may have forgotten it"
    )


class LeaseRefused(Permanent):
    """The lease was not granted and nothing was changed; says why."""


class PowerLeases:
    """Grants, renews and ends leases. `fallback_mw` is each GPU's limit without one; None: its default limit."""

    def __init__(self, device: PowerDevice, fallback_mw: int | None) -> None:
        """Puts every GPU at its fallback limit. Raises Refused where one cannot have it."""
        self._device, self._lock = device, threading.Lock()
        self._lease: Lease | None = None
        self._ends_s = float("-inf")
        self._term = 0
        self._owed = False
        self._set: dict[str, int] = {}
        self._locked: dict[str, int] = {}  # by us, and not freed since; 0: it is not known whether it took
        self._clock_sure: set[str] = set()  # locked or freed by this process
        self._clock_by_hand: set[str] = set()
        self._left: frozenset[str] = frozenset()
        self._wanted_mw = fallback_mw
        self._fallback: dict[str, int] = {}
        self._read: dict[str, int] = {}  # each GPU's limit as it was read or set last
        self._away: frozenset[str] = frozenset()  # seen before, and not at the last look
        for uuid, found in device.ranges().items():
            if fallback_mw is not None and not found.min_mw <= fallback_mw <= found.max_mw:
                raise LeaseRefused(
                    f"fallback of {fallback_mw} mW: {uuid} takes {found.min_mw} to {found.max_mw} mW"
                )
        self._ranges()
        self._apply(self._fallback)
        self._owed = False

    def grant(self, body: bytes, now_s: float) -> Lease:
        """Takes a lease up, whole or not at all; `now_s` is of a clock that does not jump.

        Raises Refused where it is not one, or not of this machine; Temporary where a GPU did not take its limit:
        all are then at their fallback.
        """
        try:
            lease = Lease.model_validate_json(body)
        except ValidationError as error:
            raise LeaseRefused(
                "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
            ) from None
        with self._lock:
            if lease.term < self._term:
                raise LeaseRefused(f"term {lease.term} is over; the present one is {self._term}")
            ranges = self._ranges()
            for uuid, limit_mw in lease.limits_mw.items():
                if uuid not in ranges:
                    raise LeaseRefused(f"{uuid} is no GPU of this machine")
                if not ranges[uuid].min_mw <= limit_mw <= ranges[uuid].max_mw:
                    bounds = f"{ranges[uuid].min_mw} to {ranges[uuid].max_mw} mW"
                    raise LeaseRefused(f"{limit_mw} mW: {uuid} takes {bounds}")
            for uuid, clock_mhz in lease.clocks_mhz.items():
                if uuid not in ranges:
                    raise LeaseRefused(f"{uuid} is no GPU of this machine")
                if not 0 < clock_mhz <= ranges[uuid].max_clock_mhz:
                    raise LeaseRefused(f"{clock_mhz} MHz: {uuid} takes up to {ranges[uuid].max_clock_mhz} MHz")
            # a node agent that was restarted has forgotten what it set: where the limit is still what the daemon
            # had ordered, it is ours and no person's
            for uuid, held_mw in lease.held_mw.items():
                if uuid in ranges and uuid not in self._set and ranges[uuid].now_mw == held_mw:
                    self._set[uuid] = held_mw
            self._term, self._lease, self._ends_s = lease.term, lease, now_s + lease.ttl_s
            try:
                self._apply({**self._fallback, **lease.limits_mw})
                self._clock_by_hand -= self._left - set(lease.clocks_left)  # given back
                self._left = frozenset(lease.clocks_left)
                forgotten = {*lease.clocks_freed} & ranges.keys() - self._clock_sure - self._locked.keys()
                self._locked |= dict.fromkeys(forgotten, 0)
                self._clocks(lease.clocks_mhz)
                self._owed = False
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

    def status(self, now_s: float) -> dict[str, Any]:
        """The lease, how long it still holds, and of each GPU its range, its fallback and the limit as it is
        read."""
        with self._lock:
            ranges = self._ranges()
            left_s = max(0.0, self._ends_s - now_s) if self._lease else 0.0
            gpus = {
                uuid: {**asdict(found), "fallback_mw": self._fallback.get(uuid, found.default_mw)}
                for uuid, found in ranges.items()
            }
            by_hand = sorted(uuid for uuid, found in ranges.items() if self._by_hand(uuid, found.now_mw))
            lease = self._lease.id if self._lease else None
            told = {"lease": lease, "left_s": left_s, "term": self._term, "gpus": gpus, "by_hand": by_hand}
            return {**told, "clocks_by_hand": sorted(self._clock_by_hand)}

    def _ranges(self) -> Mapping[str, Range]:
        """The GPUs that answer now. One that is seen for the first time gets a fallback; one that was away and is
        at its default was reset meanwhile, not set by a person. Both go to their fallback with the next turn."""
        found = self._device.ranges()
        for uuid, own in found.items():
            wanted_mw, is_new = self._wanted_mw, uuid not in self._fallback
            if is_new:
                fits = wanted_mw is not None and own.min_mw <= wanted_mw <= own.max_mw
                self._fallback[uuid] = wanted_mw if fits and wanted_mw is not None else own.default_mw
            reset = uuid in self._away and own.now_mw == own.default_mw != self._read[uuid]
            # a limit below the fallback that we did not set is a person's wish for less; one above it is a budget
            # at risk
            if (is_new and own.now_mw >= self._fallback[uuid]) or reset:
                self._set[uuid] = own.now_mw
                self._owed |= self._lease is None and own.now_mw != self._fallback[uuid]
            if reset:
                self._locked.pop(uuid, None)
            self._read[uuid] = own.now_mw
        self._away = frozenset(self._fallback.keys() - found.keys())
        return found

    def _by_hand(self, uuid: str, now_mw: int) -> bool:
        return self._set.get(uuid) != now_mw

    def _clocks(self, clocks_mhz: Mapping[str, int]) -> None:
        failed: list[str] = []
        ranges = self._ranges() if self._locked else {}
        self._clock_by_hand |= self._left
        for uuid in sorted(self._locked.keys() | clocks_mhz.keys()):
            wanted_mhz, mine_mhz = clocks_mhz.get(uuid), self._locked.get(uuid, 0)
            if mine_mhz and uuid in ranges and ranges[uuid].clock_mhz > mine_mhz + CLOCK_STEP_MHZ:
                self._clock_by_hand.add(uuid)
            if uuid in self._clock_by_hand:
                self._locked.pop(uuid, None)
                continue
            if wanted_mhz is not None and wanted_mhz == mine_mhz:
                continue
            # written before the call: if that fails half-way the clock may be locked, and has to be freed in the
            # end
            self._locked[uuid] = 0
            try:
                self._device.lock_clock(uuid, wanted_mhz)
            except (Temporary, Permanent) as error:
                failed.append(f"{uuid}: {error}")
                continue
            self._clock_sure.add(uuid)
            if wanted_mhz is None:
                del self._locked[uuid]
            else:
                self._locked[uuid] = wanted_mhz
        if failed:
            raise Temporary("clocks not set: " + "; ".join(failed))

    def _end(self) -> None:
        self._lease, self._owed = None, True
        try:
            self._apply(self._fallback)
        finally:  # a GPU that does not take its limit holds no other's clock
            self._clocks({})
        self._owed = False

    def _apply(self, limits_mw: Mapping[str, int]) -> None:
        now = {uuid: found.now_mw for uuid, found in self._ranges().items()}
        mine = {u: mw for u, mw in limits_mw.items() if u in now and not self._by_hand(u, now[u])}
        wanted = {u: mw for u, mw in mine.items() if now[u] != mw}
        failed: list[str] = []
        for uuid, limit_mw in sorted(wanted.items(), key=lambda item: item[1] > now[item[0]]):
            if failed and limit_mw > now[uuid]:
                continue  # what was not lowered must not be added to
            try:
                self._device.set_limit(uuid, limit_mw)
                self._set[uuid] = self._read[uuid] = limit_mw
            except (Temporary, Permanent) as error:
                failed.append(f"{uuid}: {error}")
        if failed:
            raise Temporary("power limits not set: " + "; ".join(failed))
