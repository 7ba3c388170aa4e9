"""How busy each GPU was lately: its idle share and mean draw in buckets of time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nightshift.collectors.frame import Floats, Frame
from nightshift.detectors.series_table import Column, SeriesTable

IDLE_PERCENT = 5.0


class Activity:
    """A ring of `count` buckets of `width_s` per GPU. Utilisation counts as idle below IDLE_PERCENT."""

    def __init__(self, width_s: float = 15.0, count: int = 64, forget_s: float = 3600.0) -> None:
        self.width_s, self.count, self.bucket = width_s, count, -1
        ring = (count,)
        self.table = SeriesTable(
            {
                "n": Column(np.int32, 0),
                "idle_n": Column(np.int32, 0),
                "power_n": Column(np.int32, 0),
                "power_sum": Column(np.float32, 0.0),
                "idle": Column(np.float32, np.nan, ring),
                "power": Column(np.float32, np.nan, ring),
                "memory": Column(np.float64, np.nan),
                "bucket_held": Column(np.float64, np.nan),
                "held": Column(np.float32, np.nan, ring),
            },
            forget_s,
        )

    def add(self, frame: Frame, at_s: float) -> None:
        table = self.table
        bucket = int(at_s // self.width_s)
        if self.bucket >= 0 and bucket > self.bucket:
            self._close(bucket)
        self.bucket = max(self.bucket, bucket)
        rows = table.rows(frame.index, at_s)
        util, power = frame.column("gpu_utilization_percent"), frame.column("gpu_power_w")
        seen = (util >= 0) & (util <= 100)
        table["n"][rows] += seen
        with np.errstate(invalid="ignore"):
            table["idle_n"][rows] += seen & (util < IDLE_PERCENT)
        drawn = (power >= 0) & (power < 1e5)  # by itself: a draw that is not read is no draw of zero
        table["power_n"][rows] += drawn
        table["power_sum"][rows] += np.where(drawn, power, 0.0)
        used = frame.column("gpu_memory_used_bytes")
        used = np.where((used >= 0) & (used < 2.0**53), used, np.nan)
        table["memory"][rows] = used
        table["bucket_held"][rows] = np.fmax(table["bucket_held"][rows], used)

    def _close(self, bucket: int) -> None:
        table = self.table
        column = self.bucket % self.count
        for name, total, count in (("idle", "idle_n", "n"), ("power", "power_sum", "power_n")):
            n = table[count]
            table[name][:, column] = np.where(n > 0, table[total] / np.maximum(n, 1), np.nan)
        table["held"][:, column] = table["bucket_held"]
        table["bucket_held"][:] = np.nan
        for skipped in range(self.bucket + 1, min(bucket, self.bucket + 1 + self.count)):
            table["idle"][:, skipped % self.count] = np.nan
            table["power"][:, skipped % self.count] = np.nan
            table["held"][:, skipped % self.count] = np.nan
        for name in ("n", "idle_n", "power_n", "power_sum"):
            table[name][:] = 0

    def _columns(self, start_s: float, end_s: float) -> NDArray[np.int64]:
        first = max(int(start_s // self.width_s), self.bucket - self.count)
        last = min(int(end_s // self.width_s), self.bucket - 1)
        return np.arange(first, last + 1) % self.count

    def idle(self, slots: list[int], start_s: float, end_s: float) -> Floats:
        """[len(slots)] share of observed time without a kernel in closed buckets; NaN where none was observed."""
        return _mean(
            self.table["idle"][np.array(slots, dtype=np.int64)[:, None], self._columns(start_s, end_s)[None, :]]
        )

    def power_w(self, slots: list[int], start_s: float, end_s: float) -> Floats:
        """[len(slots)] mean draw; NaN where none was observed."""
        return _mean(
            self.table["power"][np.array(slots, dtype=np.int64)[:, None], self._columns(start_s, end_s)[None, :]]
        )

    def held_bytes(self, slot: int, start_s: float, end_s: float) -> float:
        """The most that a GPU held in the buckets between these times, or else in the last one of them (bytes); NaN
        where none was observed. A bucket that began before may hold what another job left."""
        last = int(end_s // self.width_s)
        first = min(int(np.ceil(start_s / self.width_s)), last)
        places = np.arange(max(first, self.bucket - self.count), min(last, self.bucket - 1) + 1) % self.count
        seen = self.table["held"][slot, places]
        if last >= self.bucket:
            seen = np.append(seen, self.table["bucket_held"][slot])
        return float(np.nanmax(seen)) if np.isfinite(seen).any() else float("nan")


def _mean(x: NDArray[np.float32]) -> Floats:
    seen = np.isfinite(x)
    count = seen.sum(axis=1)
    total = np.where(seen, x, 0.0).sum(axis=1)
    found: Floats = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return found
