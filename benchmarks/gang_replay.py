"""A recorded gang through the daemon's own path: `python -m benchmarks.gang_replay FOLDER [--name gang_replay]`.

FOLDER is what `benchmarks.gang_record` wrote. Each recording is stretched in time (`--stretch`, 4: one recorded
second is four), times and durations alike, because detectors wait for minutes and a machine is lent for minutes. It
then goes through the App of `nightshift replay`: collectors, detectors, alarm budget, incidents, diagnosis, ledger.

A fault is found by a finding of its kind that fires between its first step and a minute after its last. The right
rank is the one that the finding, or the diagnosis of its incident, names, and no other. Delays are in seconds of
the replay and of the recording. What fires in a healthy or benign phase, later than that minute, is a benign alarm.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.detect_held_out import commit
from benchmarks.report import write
from nightshift.agent.app import App
from nightshift.agent.clock import SteppedClock
from nightshift.agent.goodput.accounts import WAITING
from nightshift.agent.goodput.sums import totals
from nightshift.agent.settings import Settings
from nightshift.agent.store.incident import Incident
from nightshift.collectors.frame import Frame, Instant, LogRecord, StepSeries
from nightshift.collectors.recording import RecordedTick, RecordingWriter, read, read_header
from nightshift.collectors.replay import span
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.base import Fault, Finding, State

STRETCH, LATE_S, LAST_S = 4.0, 60.0, 90.0
"""LATE_S: after its last step a fault may still be told; LAST_S: looks after the recording's last phase."""
SETTLE_EVERY = 12
BY_DIAGNOSIS = (Fault.HANG, Fault.JOB_CRASH)
DURATIONS = ("step_time_s", "compute_s", "data_s", "comm_s")
_F = Fault
EXPECTED: Mapping[str, tuple[Fault, ...]] = {
    "compute": (_F.STRAGGLER,),
    "loader": (_F.STRAGGLER,),
    "hog": (_F.STRAGGLER,),
    "copies": (_F.STRAGGLER,),
    "stall": (_F.STRAGGLER, _F.DATA_STALL),
    "leak": (_F.GPU_MEMORY_LEAK, _F.HOST_MEMORY_LEAK),
    "gradients": (_F.ANOMALY,),
    "skip": (_F.HANG,),
    "kill": (_F.JOB_CRASH,),
}


def stretched(recorded: RecordedTick, start_s: float, factor: float) -> RecordedTick:
    """The tick with its distance to `start_s`, and all durations, `factor` times as long. Rates of counters are
    worked out again where it is replayed."""

    def at(t_s: Any) -> Any:
        return start_s + factor * (t_s - start_s)

    def record(one: LogRecord) -> LogRecord:
        return replace(one, at=Instant(at(one.at.t_s), factor * one.at.uncertainty_s))

    def steps(one: StepSeries) -> StepSeries:
        columns = {n: factor * c if n in DURATIONS else c for n, c in one.columns.items()}
        return replace(one, t_s=at(one.t_s), columns=columns)

    def frame(one: Frame) -> Frame:
        return Frame(at(one.at_s), one.index, one.metrics, one.values, at(one.observed_at_s), one.epoch)

    tick = recorded.tick
    made = Tick(
        at(tick.at_s),
        {kind: frame(one) for kind, one in tick.frames.items()},
        tuple(steps(one) for one in tick.steps),
        tuple(record(one) for one in tick.logs),
        tuple(replace(event, record=record(event.record)) for event in tick.events),
        tuple(replace(status, at_s=at(status.at_s)) for status in tick.sources),
        raw=tuple(record(one) for one in tick.raw),
    )
    # what held before the first look was not seen then
    relations = tuple(
        replace(m, since_s=max(at(m.since_s), start_s), until_s=at(m.until_s)) for m in recorded.relations
    )
    return RecordedTick(made, relations, recorded.facts)


def stretch(source: Path, target: Path, factor: float, since_s: float = 0.0, until_s: float = math.inf) -> float:
    """Writes a stretched recording of what lies between two recorded times; the first that it keeps (Unix s)."""
    writer, inventory, start_s = RecordingWriter(target, factor * read_header(source).tick_s), Inventory(), 0.0
    for recorded in read(source):
        at_s = recorded.tick.at_s
        if at_s > until_s:
            break
        start_s = start_s or max(at_s, since_s)
        made = stretched(recorded, start_s, factor)
        for m in made.relations:
            inventory.observe(m.child, m.parent, m.since_s)
            if m.until_s < math.inf:
                inventory.end(m.child, m.parent, m.until_s)
        for subject, facts in (made.facts or {}).items():
            inventory.describe(subject, **facts)
        if at_s >= since_s:
            writer.add(made.tick, inventory)
    writer.close()
    return start_s


@dataclass(frozen=True)
class Fired:
    """A finding when it first fired, and the incident that has it."""

    at_s: float
    finding: Finding
    incident: Incident | None
    rank: str
    """Ranks that it names, as text; "" where it names none."""


@dataclass(frozen=True)
class Replayed:
    """fired, in order; gpu_s: GPU-seconds by account; wall_gpu_s: wall time of the looks × GPUs."""

    fired: tuple[Fired, ...]
    gpu_s: Mapping[str, float]
    wall_gpu_s: float
    held: int


def replayed(path: Path, folder: Path, look_s: float | None = None, settle_every: int = SETTLE_EVERY) -> Replayed:
    """The recording through an App of its own, with its store in `folder`; a look for each recorded one, or each
    `look_s`. Stages of incidents are waited for at decisions, and each so many looks."""
    start_s, end_s, tick_s = span(path)
    tick_s = look_s or tick_s
    settings = Settings(
        sources=[{"type": "recording", "path": path}], state_dir=folder, console={"enabled": False}, tick_s=tick_s
    )
    app = App(settings, clock=SteppedClock(start_s))
    first: dict[str, tuple[float, Finding]] = {}
    since_s: dict[Subject, float] = {}
    looks = 0
    try:
        app.start()
        while app.clock.now_s() <= end_s + LAST_S:
            look = app.tick()
            looks += 1
            if look is not None:
                frame = look.tick.frames.get(SubjectKind.GPU)
                for gpu in frame.index.subjects if frame is not None else ():
                    since_s.setdefault(gpu, look.tick.at_s)
                for finding in look.detected.findings:
                    if finding.state is State.FIRING:
                        first.setdefault(finding.episode, (look.tick.at_s, finding))
            if (look is not None and look.decisions) or looks % settle_every == 0:
                app.settle()
            app.clock.wait_until(app.clock.now_s() + tick_s)
        app.settle()
        now_s = app.clock.now_s()
        app.goodput.ledger.turn(now_s)
        with app.store.database.read() as connection:
            sums = totals(connection, start_s, now_s)
        incidents = [app.store.incident(row.id) for row in app.store.incidents()]
        fired = tuple(_fired(at_s, finding, incidents, app.inventory) for at_s, finding in first.values())
    finally:
        app.stop()
    gpu_s: dict[str, float] = {}
    for entry, spent in sums.items():
        if entry.account not in WAITING:
            gpu_s[str(entry.account)] = gpu_s.get(str(entry.account), 0.0) + spent
    return Replayed(fired, gpu_s, sum(now_s - t_s for t_s in since_s.values()), len(since_s))


def _fired(at_s: float, finding: Finding, incidents: Sequence[Incident], inventory: Inventory) -> Fired:
    of = next((i for i in incidents if any(s.episode == finding.episode for s in i.findings)), None)
    # each rank of a hanging job stands: who is at fault, only the diagnosis can tell
    rank = "" if finding.fault in BY_DIAGNOSIS else _rank_of(finding.subject, inventory, at_s)
    if not rank and of is not None and of.diagnosis is not None:
        told = " ".join([of.diagnosis.headline, *(claim.sentence for claim in of.diagnosis.claims)])
        rank = " ".join(sorted(set(re.findall(r"\brank (\d+) [a-z]", told))))
    return Fired(at_s, finding, of, rank)


def _rank_of(subject: Subject, inventory: Inventory, at_s: float) -> str:
    """The number of the rank that a subject is, holds or belongs to; "" of a job."""
    if subject.kind is SubjectKind.CONTAINER or subject.kind is SubjectKind.POD:
        match = re.search(r"-worker-(\d+)(?:/|$)", subject.name)
        return match[1] if match else ""
    rank = subject if subject.kind is SubjectKind.RANK else inventory.above(subject, SubjectKind.RANK, at_s)
    return rank.name.rpartition("#")[2] if rank is not None else ""


def _expected(phase: Mapping[str, Any]) -> tuple[Fault, ...]:
    return EXPECTED[phase["phase"].split()[0]]


def _fault_of(one: Fired, faults: Sequence[Mapping[str, Any]], at: Callable[[float], float]) -> int:
    """The number of the fault that explains a finding, among the faults active at its time; -1 where none is. First
    choice: a fault of that kind on that rank, then of that kind, then any. The newest counts among equals."""
    now = [n for n, p in enumerate(faults) if at(p["onset_s"]) <= one.at_s <= at(p["end_s"]) + LATE_S]

    def fits(number: int) -> tuple[bool, bool, int]:
        kind = one.finding.fault in _expected(faults[number])
        return kind, kind and one.rank == str(faults[number]["rank"]), number

    return max(now, key=fits, default=-1)


def scored(labels: Mapping[str, Any], found: Replayed, start_s: float, factor: float) -> dict[str, Any]:
    """Each fault, whether and when it was found and which rank was named; and what fired beside."""

    def at(t_s: float) -> float:
        return start_s + factor * (t_s - start_s)

    faults = [phase for phase in labels["phases"] if phase["is"] == "fault"]
    of: dict[int, list[Fired]] = {n: [] for n in range(-1, len(faults))}
    for one in found.fired:
        of[_fault_of(one, faults, at)].append(one)
    rows = []
    for number, phase in enumerate(faults):
        onset_s, within = at(phase["onset_s"]), of[number]
        mine = [f for f in within if f.finding.fault in _expected(phase)]
        named = sorted({f.rank for f in mine})
        right = [f for f in mine if named == [str(phase["rank"])]]
        told = right[0] if right else mine[0] if mine else None
        rows.append({
            "fault": phase["phase"], "part": labels["part"], "rank": phase["rank"], "found": bool(mine),
            "right_rank": bool(right), "named": named,
            "delay_s": None if told is None else told.at_s - onset_s,
            "delay_recorded_s": None if told is None else (told.at_s - onset_s) / factor,
            "words": "" if told is None else told.finding.summary,
            "diagnosis": [] if told is None else list(_diagnosis(told)),
            "beside": sorted({f"{f.finding.fault} {f.finding.subject}" for f in within if f not in right}),
        })  # fmt: skip
    quiet = {kind: sum(p["end_s"] - p["start_s"] for p in labels["phases"] if p["is"] == kind)
             for kind in ("healthy", "benign")}  # fmt: skip
    return {
        "ranks": labels["ranks"], "device": labels["device"], "gpu": labels["gpu"], "stretch": factor,
        "ticks": labels["ticks"], "late_ticks": labels["late_ticks"], "dumps": labels["dumps"], "faults": rows,
        "recorded_healthy_s": quiet["healthy"], "recorded_benign_s": quiet["benign"],
        "benign_alarms": [f"{f.finding.fault} {f.finding.subject}: {f.finding.summary}" for f in of[-1]],
        "gpu_s": found.gpu_s, "wall_gpu_s": found.wall_gpu_s, "gpus": found.held,
        "accounts_off": abs(sum(found.gpu_s.values()) - found.wall_gpu_s) / max(found.wall_gpu_s, 1e-9),
    }  # fmt: skip


def _diagnosis(told: Fired) -> Iterator[str]:
    if told.incident is None or told.incident.diagnosis is None:
        return
    yield f"{told.incident.diagnosis.cause}"
    for claim in told.incident.diagnosis.claims[:6]:
        yield claim.sentence


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--stretch", type=float, default=STRETCH)
    parser.add_argument("--name", default="gang_replay")
    given = parser.parse_args()
    runs = {}
    for path in sorted(path for folder in given.folders for path in folder.glob("*.nightshift.gz")):
        labels = json.loads(path.with_name(path.name.replace(".nightshift.gz", ".json")).read_text())
        with tempfile.TemporaryDirectory() as temp:
            made = Path(temp) / "stretched.gz"
            start_s = stretch(path, made, given.stretch)
            found = replayed(made, Path(temp) / "state")
        runs[f"{path.parent.name}/{labels['part']}"] = scored(labels, found, start_s, given.stretch)
    rows = [row for run in runs.values() for row in run["faults"]]
    write(given.name, {
        "commit": commit(), "faults": len(rows), "found": sum(row["found"] for row in rows),
        "found_right_rank": sum(row["right_rank"] for row in rows),
        "benign_alarms": sum(len(run["benign_alarms"]) for run in runs.values()),
        "accounts_off": max(run["accounts_off"] for run in runs.values()), "runs": runs,
    })  # fmt: skip


if __name__ == "__main__":
    main()
