"""The contract that every detector passes, whatever its method: `problems(kind)` lists what it breaks.

Telemetry comes missing, late, twice and out of order; counters start anew; GPUs are swapped, join and leave. A
detector that raises, invents a fault or forgets one over any of that cannot be on call. A detector is checked by
adding it to `detectors.plugins.ALL`; nothing here knows any detector by name.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import pairwise
from types import FrameType

from nightshift.collectors.frame import SourceStatus
from nightshift.collectors.tick import Tick
from nightshift.detectors.base import Detector, Finding, SnapshotError, State
from nightshift.detectors.contract.streams import HOSTILE, SILENT, faults, played, silence_after_faults
from nightshift.detectors.contract.testing import Kind, key, lawful, run
from nightshift.detectors.contract.world import START_S, TICK_S, HealthyFleet


def problems(kind: Kind) -> list[str]:
    """What a detector class breaks of the contract; empty where it keeps it."""
    found: list[str] = []
    if kind().name != kind.plugin or not kind().faults:
        found.append("its name is not its plug-in's name, or it names no fault")
    for stream in (*SILENT, *HOSTILE):
        ticks, inventory = played(stream)
        findings = run(kind(), ticks, inventory)
        found += [f"{stream.__name__}: {problem}" for problem in lawful(findings, ticks)]
        if stream in SILENT and findings:
            found.append(f"{stream.__name__}: nothing is wrong, and it said {findings[0].summary!r}")
        # in silent ones there is nothing to compare; of the faults' stream, `_snapshots` compares
        if stream in HOSTILE and key(run(kind(), ticks, inventory)) != key(findings):
            found.append(f"{stream.__name__}: the same ticks gave other findings")
    detector, (ticks, inventory) = kind(), played(faults)
    findings = run(detector, ticks, inventory)
    return found + _no_data(detector, findings) + _snapshots(kind, findings) + _columnar(kind)


CONTRACT = {
    "missing samples": "missing",
    "late samples": "late",
    "duplicated samples": "duplicated",
    "reordered samples": "reordered",
    "a counter reset": "counter_reset",
    "a UUID swap": "swapped",
    "devices that join and leave": "membership",
    "all-constant input": "constant",
    "float extremes": "extremes",
    "slow scrapes": "slow_scrapes",
    "a saved state, never a pickle": "_snapshots",
    "determinism": "problems",
    "time per sample": "_columnar",
    "no_data is never clear": "_no_data",
}
"""Every item of the contract and what checks it here. That a state of the previous version is taken back is checked
on files which that version wrote (tests/detectors/snapshots)."""


def _columnar(kind: Kind) -> list[str]:
    """The work of a tick must not grow series by series. Calls are counted: a stopwatch would time the machine."""
    few, many = (calls(kind, HealthyFleet(gpus=gpus)) for gpus in (8, 256))
    if many <= 1.5 * few + 200:
        return []
    return [f"columnar: {few} calls for 30 ticks of 8 GPUs, {many} for 256"]


def calls(kind: Kind, world: HealthyFleet) -> int:
    """Python calls of 30 healthy ticks after five of warm-up; frames keep their index, as collectors do."""
    detector, inventory = kind(), world.inventory()
    first = {frame_kind: world.frame(frame_kind, 0, START_S) for frame_kind in world.kinds}
    count = 0

    def called(frame: FrameType, event: str, arg: object) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    for number in range(35):
        at_s = START_S + number * TICK_S
        fresh = {k: world.frame(k, number, at_s) for k in world.kinds}
        frames = {
            k: replace(first[k], at_s=at_s, values=f.values, observed_at_s=f.observed_at_s)
            for k, f in fresh.items()
        }
        tick = Tick(at_s, frames, sources=(SourceStatus(world.source, at_s, ok=True, covers=(world.node,)),))
        if number >= 5:
            sys.setprofile(called)
        try:
            detector.update(tick, inventory)
        finally:
            sys.setprofile(before)
    return count


def _no_data(detector: Detector, findings: list[Finding]) -> list[str]:
    """`findings`: what the detector has said of the faults."""
    ticks, inventory = played(faults)
    found = [f"faults: {problem}" for problem in lawful(findings, ticks)]
    if not findings:
        found.append("faults: it found nothing where everything is broken")
    quiet = run(detector, played(silence_after_faults)[0], inventory)
    found += [f"silence: {f.fault} of {f.subject} cleared without data" for f in quiet if f.state is State.CLEAR]
    return found


def _snapshots(kind: Kind, findings: list[Finding]) -> list[str]:
    """`findings`: what a detector that never saved has said of the faults."""
    found: list[str] = []
    (ticks, inventory), whole = played(faults), kind()
    detector, saves, said = kind(), (37, 120, 180), []
    for begin, end in pairwise((0, *saves, len(ticks))):
        said.append((begin, detector.snapshot(), run(detector, ticks[begin:end], inventory)))
    if key([finding for _, _, said_then in said for finding in said_then]) != key(findings):
        found.append("faults: the same ticks gave other findings, where its state was saved between them")
    for number, (half, saved, _) in enumerate(said[1:], 1):
        resumed = kind()
        if saved[:2] != b"PK":
            found.append("snapshot: not an npz")
        resumed.restore(saved)
        goes_on = [finding for _, _, said_then in said[number:] for finding in said_then]
        if key(run(resumed, ticks[half:], inventory)) != key(goes_on):
            found.append(f"snapshot: restored after {half} ticks it continues differently")
    for broken in (b"", b"PK\x03\x04", saved[: len(saved) // 2], b"\x80\x04N."):
        try:
            whole.restore(broken)
        except SnapshotError:
            continue
        found.append(f"snapshot: {broken[:8]!r}… was taken for a state")
    return found
