"""The books of drawn jobs, as they were before their rules were last split: a change of any figure shows here."""

from __future__ import annotations

import hashlib
import json
import zlib

import numpy as np

from nightshift.agent.goodput.accounts import Account
from nightshift.agent.goodput.job_time import JobFault, JobMark, JobSignals, job_time
from nightshift.agent.goodput.signals import Signals
from nightshift.agent.goodput.steps import StepPoint, StepTrack
from nightshift.detectors.base import Fault
from nightshift.detectors.contract.testing import JOB, NODE, inventory, steps, tick

DRAWS = 300
FAULTS = (Fault.HANG, Fault.XID, Fault.STRAGGLER, Fault.DATA_STALL, Fault.THROTTLE)
GOLDEN = {"job_time": "cba483cddc7adf75", "tracks": "21ae6b3efcbeca3b", "signals": "a1feca7d98a39f8b"}


def _points(rng: np.random.Generator) -> list[StepPoint]:
    """Steps that repeat, rewind, slow down, pause and change their run."""
    t_s, step, run, points = 1_000.0, 0, 0, []
    for _ in range(int(rng.integers(5, 80))):
        kind = rng.integers(20)
        took_s = float(rng.normal(10.0, 0.2)) * (1.6 if kind == 1 else 1.0) + (200.0 if kind in (2, 3) else 0.0)
        t_s, step = t_s + took_s, max(0, step + (1 if kind > 3 else int(rng.integers(-9, 4))))
        run += kind == 3
        parts = (9.0, 6.0, 1.0, 1.5) if kind % 2 else (float("nan"),) * 4
        points.append(StepPoint(round(t_s, 3), step, str(run), *parts, bool(kind == 5)))
    return points


def _faults(rng: np.random.Generator) -> list[JobFault]:
    spans = rng.uniform(900.0, 2_000.0, (int(rng.integers(0, 4)), 2))
    kinds = rng.choice(len(FAULTS), len(spans))
    return [
        JobFault.of(FAULTS[kind], min(span), max(span), str(FAULTS[kind]), f"INC-{n}")
        for n, (kind, span) in enumerate(zip(kinds, spans.tolist(), strict=True))
    ]


def _hash(values: object) -> str:
    return hashlib.sha256(json.dumps(values, default=str).encode()).hexdigest()[:16]


def test_drawn_jobs_are_booked_as_before() -> None:
    rng, times, tracks = np.random.default_rng(40), [], []
    for _ in range(DRAWS):
        track = StepTrack()
        track.take("rank", _points(rng))
        stretches, pauses = track.timeline()
        faults = _faults(rng)
        marks = [JobMark(1_100.0, 1_150.0, Account.CHECKPOINTING)] if rng.random() < 0.3 else []
        begins = [1_000.0, *rng.uniform(1_000.0, 1_500.0, 2).tolist()]
        signals = JobSignals(stretches, pauses, [(980.0, 2_000.0)], begins, faults, marks, track.line_s)
        made = job_time(signals)
        times.append([[s.start_s, s.end_s, s.parts, s.cause, s.incident] for s in made.segments])
        track.fold(1_400.0)
        tracks.append(track.saved())
    assert {"job_time": _hash(times), "tracks": _hash(tracks)} == {k: GOLDEN[k] for k in ("job_time", "tracks")}


def test_what_a_restart_needs_is_stored_and_dropped_as_before() -> None:
    """Idle, exits, steps, cordons and waits; stored, loaded and forgotten at several times."""
    signals, known, stored = Signals(), inventory(), []
    for look in range(200):
        at_s = 1_790_006_400.0 + 60.0 * look
        busy = {"gpu_utilization_percent": 97.0 if look // 20 % 2 else 0.0, "gpu_memory_used_bytes": 6e10}
        rows = None if look % 50 > 45 else dict.fromkeys(range(8), busy)
        known.describe(NODE, unschedulable="true" if look // 30 % 2 else "false")
        signals.take(tick(at_s, rows, series=[steps(JOB, look, [at_s], {"loss": [1.0]})]), known)
        if look % 25 == 24:
            signals.turn(at_s, known)
            signals.fold(at_s)
            signals.forget(at_s - 3_600.0)
            again = Signals.load(signals.saved())
            stored += [json.loads(zlib.decompress(s.saved())) for s in (signals, again)]
    assert _hash(stored) == GOLDEN["signals"]
