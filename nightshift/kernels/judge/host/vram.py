"""Whose the GPU's memory is when it runs out: a host is blamed for what comes back when it ends, and for no more.

NVML often does not say what one process holds (inside virtual machines, for one). But memory that returns with a
process's death was that process's. So where memory is short, or a candidate says that it is, its host is ended
while all other hosts of this judge stand still, and what comes back is counted; the judge's own allocations are
known and do not disturb the count. A host that had its limit, or could have had it, is refused. Where it had less,
somebody else holds the rest: that is nobody's verdict (`vram_taken`), and the executor has it judged again, at last
with no other candidate beside it on this judge.
"""

from __future__ import annotations

import collections
import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from nightshift.kernels.judge.verdict import JudgeBroken, Reason, Refusal

# What the judge needs for its references: less than this left, and somebody must go.
RESERVE_BYTES = 2 << 30
# Changes below this are the driver's own.
_SLACK_BYTES = 64 << 20
_STILL_S, _GONE_S, _STEADY, _KEPT = 0.1, 10.0, 3, 20_000


class Tenant(Protocol):
    """A host, as far as its memory goes."""

    def pids(self) -> list[int]:
        """The host and all below it."""

    def lent_bytes(self) -> int:
        """The judge's own memory that the host has mapped."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def end(self, timeout_s: float) -> bool:
        """Kill it and wait until the kernel has taken it down; whether it is gone."""


class VramBudget:
    """The judge's own part of a GPU's memory, shared out among the verdicts under way: who finds none left waits.

    Eight oracles of a vocabulary's logits in float64 at once fill a GPU, and the candidates would be told that they
    did it. A verdict that wants more than there is gets it once nobody else holds any.
    """

    def __init__(self, total_bytes: int) -> None:
        self._total_bytes = total_bytes
        self._held = 0
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def of(self, bytes_: int) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._held or self._held + bytes_ <= self._total_bytes)
            self._held += bytes_
        try:
            yield
        finally:
            with self._changed:
                self._held -= bytes_
                self._changed.notify_all()


class Vram:
    """The memory of one GPU as one judge sees it."""

    def __init__(
        self,
        free_bytes: Callable[[], int],
        used_bytes: Callable[[Sequence[int]], int],
        own_bytes: Callable[[], int],
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """free_bytes: of the whole GPU. used_bytes: by these processes, 0 where the driver does not say.
        own_bytes: what the judge itself holds."""
        self._free_bytes = free_bytes
        self._used_bytes = used_bytes
        self._own_bytes = own_bytes
        self._sleep, self._clock = sleep, clock
        self._settling = threading.Lock()
        self._tenants: list[Tenant] = []
        self._left_at = -math.inf  # when a host was last given back
        self._seen: collections.deque[tuple[float, int]] = collections.deque(maxlen=_KEPT)
        self._list = threading.Lock()

    def enter(self, tenant: Tenant) -> None:
        with self._list:
            self._tenants.append(tenant)

    def leave(self, tenant: Tenant) -> None:
        with self._list, contextlib.suppress(ValueError):
            self._tenants.remove(tenant)
            self._left_at = self._clock()

    def short(self) -> bool:
        """Whether less is free than the judge needs; each watch asks often, and what it saw is kept for a while."""
        free = self._free_bytes()
        self._seen.append((self._clock(), free))
        return free < RESERVE_BYTES

    def used(self, tenant: Tenant) -> int:
        """The driver's own figure, 0 where it has none; less what the judge has lent it, which a driver may count
        for whoever maps it."""
        return max(0, self._used_bytes(tenant.pids()) - tenant.lent_bytes())

    def beyond(self, tenant: Tenant, limit_bytes: int) -> Refusal | JudgeBroken:
        """The driver says that it has more than its limit. Ends the host; it is refused if that much comes back."""
        with self._settling:
            told = f"{self.used(tenant)} bytes of VRAM by the driver's word, more than {limit_bytes}"
            mine, _ = self._returned(tenant)
            told += f"; {mine} came back with its end"
            if mine + _SLACK_BYTES >= limit_bytes:
                return Refusal(Reason.vram_limit, told, "watch")
            return JudgeBroken(told, Reason.vram_taken)

    def settle(self, tenant: Tenant, limit_bytes: int) -> Refusal | JudgeBroken | None:
        """The watch found memory short. Ends the host; None where the shortage is over before anybody had to go."""
        with self._settling:
            if not self.short():
                return None
            free = self._free_bytes()
            mine, others = self._end(tenant)
            told = "the GPU ran out of memory"
            return self._decided(Reason.vram_limit, told, mine, free, others, limit_bytes)

    def found_none(
        self, tenant: Tenant, limit_bytes: int, refusal: Refusal, since_s: float
    ) -> Refusal | JudgeBroken:
        """A candidate says, in a call begun at `since_s`, that there was no memory. Ends its host unless there was
        enough for its limit all the time. What it gives back itself does not count for it where nobody of ours was
        beside it."""
        with self._settling:
            free = self._free_bytes()
            lowest = min([free, *(seen for at, seen in list(self._seen) if at >= since_s)])
            if lowest >= limit_bytes:
                return refusal
            with self._list:
                alone = self._left_at < since_s and all(other is tenant for other in self._tenants)
            mine, others = self._end(tenant)
            there = free if alone else lowest
            return self._decided(refusal.reason, refusal.detail, mine, there, others, limit_bytes)

    def _end(self, tenant: Tenant) -> tuple[int, int]:
        """Ends the host: what it held, and what others gave back while it and all of ours stood still."""
        mine = self.used(tenant)
        if not mine:
            return self._returned(tenant)
        tenant.end(_GONE_S)
        return mine, 0

    def _returned(self, tenant: Tenant) -> tuple[int, int]:
        """What came back with its death; and what had come back before it, while it and all of ours stood still."""
        with self._list:
            others = [other for other in self._tenants if other is not tenant]
        for other in others:
            other.pause()
        try:
            tenant.pause()
            first = self._available()
            self._sleep(_STILL_S)
            before = self._available()
            tenant.end(_GONE_S)
            return max(0, self._steady() - before), before - first
        finally:
            for other in others:
                other.resume()

    def _available(self) -> int:
        """Free memory and the judge's own: what the judge takes and gives back meanwhile does not change it."""
        return self._free_bytes() + self._own_bytes()

    def _steady(self) -> int:
        """What is available once it has stopped rising: a driver takes its time with a dead process's memory."""
        last, same = self._available(), 0
        for _ in range(round(_GONE_S / _STILL_S)):
            self._sleep(_STILL_S)
            now = self._available()
            same = same + 1 if now <= last + _SLACK_BYTES else 0
            last = max(last, now)
            if same >= _STEADY:
                break
        return last

    def _decided(
        self, reason: Reason, told: str, mine: int, free: int, others: int, limit_bytes: int
    ) -> Refusal | JudgeBroken:
        """A host that held its limit, or could have, is refused; else somebody else holds what was missing."""
        held = f"{mine >> 20} MiB were its own and {free >> 20} MiB free, of {limit_bytes >> 20} that it may have"
        if others > _SLACK_BYTES:
            text = f"{told}: {held}; {others >> 20} MiB of others' came back meanwhile"
            return JudgeBroken(text, Reason.vram_taken)
        if mine + free >= limit_bytes:
            return Refusal(reason, f"{told}: {held}", "watch")
        # who holds it decides what to do: stop another program, or search with fewer candidates at once
        own = f"the judge holds {self._own_bytes() >> 20} MiB, {len(self._tenants)} other candidates of its run"
        return JudgeBroken(f"{told}: {held}; {own}; other programs hold the rest", Reason.vram_taken)
