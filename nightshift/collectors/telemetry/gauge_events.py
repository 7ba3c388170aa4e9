"""Errors that a GPU's gauges tell: the last Xid, which never clears, and the recovery action, which is a state.

DCGM's `DCGM_FI_DEV_XID_ERRORS` holds the last Xid until the driver is loaded again, so its change is the event;
that the same Xid came again is not to be seen there. What it shows at the first look happened earlier, nobody
knows when. `DCGM_FI_DEV_GPU_RECOVERY_ACTION` (NVML field 230) says what the GPU needs now, as Xid 154 does when it
changes; what it shows at the first look still holds.

The same class serves the daemon, a recording and a Prometheus range, so that all three open the same incidents.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from nightshift.collectors.frame import Floats, Frame, Instant, LogRecord, SeriesIndex
from nightshift.collectors.kernel_log.event import KernelEvent, KernelEventKind
from nightshift.collectors.kernel_log.lines import recovery_words
from nightshift.collectors.subject import Inventory, Subject, SubjectKind

XID, RECOVERY = "gpu_xid_last", "gpu_recovery_action"
RECOVERY_ACTION_CHANGED = 154
_SOURCE = "gauge"
_MOST_CODE = 1_000


class GaugeEvents:
    """Remembers each GPU's gauges from look to look.

    >>> index = SeriesIndex(SubjectKind.GPU, (Subject(SubjectKind.GPU, "GPU-0"),))
    >>> def look(t_s, xid):
    ...     when, epoch = np.array([[t_s]]), np.zeros(1, dtype=np.int64)
    ...     return Frame(t_s, index, ("gpu_xid_last",), np.array([[xid]]), when, epoch)
    >>> inventory, gauges = Inventory(), GaugeEvents()
    >>> inventory.observe(index.subjects[0], Subject(SubjectKind.NODE, "n1"), 0.0)
    >>> looks = [look(0, 0), look(5, 79), look(9, 79)]
    >>> [[event.code for event in gauges.take(frame, inventory)] for frame in looks]
    [[], [79], []]
    """

    def __init__(self) -> None:
        self._last: dict[str, tuple[SeriesIndex, Floats]] = {}
        self._count = 0

    def take(
        self, frame: Frame, inventory: Inventory, events: Iterable[KernelEvent] = ()
    ) -> tuple[KernelEvent, ...]:
        """The events of this look, without those of `events` (the kernel log of the same look)."""
        known = {(event.gpu, event.code) for event in events}
        found = [
            event
            for metric in (XID, RECOVERY)
            if metric in frame.columns
            for event in self._changes(metric, frame, inventory)
            if (event.gpu, event.code) not in known
        ]
        return tuple(found)

    def _changes(self, metric: str, frame: Frame, inventory: Inventory) -> Sequence[KernelEvent]:
        now = frame.column(metric)
        last = self._aligned(metric, frame.index)
        # a GPU whose first value is 0 has nothing to tell; most of a fleet is never looked at one by one
        quiet = np.isnan(last) & (now == 0)
        last[quiet] = 0.0
        found = []
        for row in np.flatnonzero(np.isfinite(now) & (now != last)).tolist():
            gpu, code, before = frame.index.subjects[row], float(now[row]), float(last[row])
            node = inventory.above(gpu, SubjectKind.NODE, frame.at_s)
            # whose node is told a look later (a Prometheus's labels) is heard then
            if node is None or not code.is_integer():
                continue
            last[row] = code
            event = self._event(metric, gpu, node, before, int(code), float(frame.times_s(metric)[row]))
            found += [event] if event is not None else []
        return found

    def _event(
        self, metric: str, gpu: Subject, node: Subject, before: float, code: int, at_s: float
    ) -> KernelEvent | None:
        is_first = np.isnan(before)
        attributes = {"old": "yes"} if is_first and metric == XID else {}
        if metric == XID:
            if not 0 < code < _MOST_CODE:
                return None  # cleared with the driver's next load
            text = (
                f"DCGM_FI_DEV_XID_ERRORS of {gpu.name}: {'first seen as' if is_first else f'{before:.0f} →'} {code}"
            )
        else:
            words = [recovery_words(f"{value:x}") for value in (0 if is_first else int(before), code)]
            gauge = f"DCGM_FI_DEV_GPU_RECOVERY_ACTION of {gpu.name}"
            text = f"{gauge}: GPU recovery action changed from {words[0]} to {words[1]}"
            attributes = {"recovery_before": words[0], "recovery_action": words[1]}
            code = RECOVERY_ACTION_CHANGED
        self._count += 1
        record = LogRecord(Instant(at_s), _SOURCE, node, text, self._count)
        return KernelEvent(KernelEventKind.XID, record, node, code=code, gpu=gpu, attributes=attributes)

    def _aligned(self, metric: str, index: SeriesIndex) -> Floats:
        """[n_rows] the last value of each row's GPU, NaN where it was never seen."""
        before, last = self._last.get(metric, (SeriesIndex(index.kind, ()), np.empty(0)))
        if before is index:
            return last
        values: Floats = np.full(len(index), np.nan)
        for row, gpu in enumerate(index.subjects):
            if gpu in before.rows:
                values[row] = last[before.rows[gpu]]
        self._last[metric] = index, values
        return values


# dcgm-exporter's own metrics (its docs, "Exporter counters"), which it makes of what DCGM tells.
XIDS_TOTAL = "DCGM_EXP_XID_ERRORS_TOTAL"
COUNTED = ("DCGM_EXP_XID_ERRORS_COUNT", XIDS_TOTAL)
HEALTH = "DCGM_EXP_GPU_HEALTH_STATUS"
EXPORTED = frozenset({*COUNTED, HEALTH})
# dcgm_structs.h, dcgmHealthWatchResults_enum: 0 pass, 10 warning, 20 failure.
_FAILED = 20.0
# What of DCGM's errors (dcgm_errors.h) is an Xid's: DCGM works these out of the Xid or of the counter behind it.
_XID_OF_ERROR = {
    "DCGM_FR_VOLATILE_DBE_DETECTED": 48,
    "DCGM_FR_DBE_VIOLATION": 48,
    "DCGM_FR_PENDING_ROW_REMAP": 63,
    "DCGM_FR_UNCORRECTABLE_ROW_REMAP": 63,
    "DCGM_FR_ROW_REMAP_FAILURE": 64,
    "DCGM_FR_FALLEN_OFF_BUS": 79,
    "DCGM_FR_CONTAINED_ERROR": 94,
    "DCGM_FR_UNCONTAINED_ERROR": 95,
}
Exported = tuple[Subject, str, Mapping[str, str], float]
"""GPU, metric, labels, value."""


class ExportedEvents:
    """Xids and failed health watches that dcgm-exporter counts itself: a count that rises is an event, also one
    that appears on a page that was read before (a series comes with its first error). A count of a sliding window
    falls by itself, and the series of an Xid that left its window is gone: the next one of its number is new."""

    def __init__(self) -> None:
        self._last: dict[tuple[Subject, str, str], float] = {}
        """Counts above 0; all others are 0."""
        self._seen: set[Subject] = set()
        self._count = 0

    def take(
        self,
        samples: Iterable[Exported],
        inventory: Inventory,
        at_s: float,
        shown: Iterable[Subject] = (),
        partial: bool = False,
    ) -> list[KernelEvent]:
        """The events of a look. `shown`: every GPU of it, also one without a sample of these metrics: not every
        exporter writes zeros. `partial`: samples may be missing, so what is not there has not ended."""
        found: list[KernelEvent | None] = []
        gpus, now = set(shown), set()
        for gpu, metric, labels, value in samples:
            gpus.add(gpu)
            if value == 0:
                continue
            what = labels.get("health_error_code", "") if metric == HEALTH else labels.get("xid", "")
            key = (gpu, metric, f"{what} {labels.get('health_watch', '')}")
            now.add(key)
            before = self._last.get(key, 0.0)
            rose = before < _FAILED <= value if metric == HEALTH else value > before
            node = inventory.above(gpu, SubjectKind.NODE, at_s) if rose else None
            # as with the gauges: what rose before its node was told is heard a look later
            if not rose or node is not None:
                self._last[key] = value
            if node is not None:
                old = {} if gpu in self._seen else {"old": "yes"}
                found.append(self._event(gpu, node, metric, labels, at_s, old))
        for key in [] if partial else [key for key in self._last if key not in now and key[0] in gpus]:
            del self._last[key]
        # a GPU counts as read once its whole page was: two series of one first look are both old
        self._seen |= gpus
        return [event for event in found if event is not None]

    def _event(
        self, gpu: Subject, node: Subject, metric: str, labels: Mapping[str, str], at_s: float, old: dict[str, str]
    ) -> KernelEvent | None:
        error = labels.get("health_error_code", "")
        number = labels.get("xid", "")
        code = _XID_OF_ERROR.get(error) if metric == HEALTH else int(number) if number.isdecimal() else None
        if metric != HEALTH and (code is None or not 0 < code < _MOST_CODE):
            return None  # the exporter's placeholder of a GPU without any Xid
        self._count += 1
        said = (
            f"health watch {labels.get('health_watch', '')} failed: {error}" if metric == HEALTH else f"Xid {code}"
        )
        record = LogRecord(Instant(at_s), _SOURCE, node, f"DCGM {said} ({metric} of {gpu.name})"[:500], self._count)
        if code is None:
            # one that was there at the first look still holds, but may be repaired for all that is known
            kind, attributes = KernelEventKind.MESSAGE, {"message": "dcgm_health", **old}
            return KernelEvent(kind, record, node, gpu=gpu, attributes=attributes)
        return KernelEvent(KernelEventKind.XID, record, node, code=code, gpu=gpu, attributes=old)
