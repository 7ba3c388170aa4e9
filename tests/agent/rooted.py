"""A small fleet with a history of twenty minutes, and findings on it, for tests of root-cause analysis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from nightshift.agent.store.diagnosis import Diagnosis
from nightshift.agent.store.incident import Incident, IncidentState, StoredFinding
from nightshift.collectors.frame import Frame, Instant, LogRecord, SeriesIndex, SourceStatus, StepSeries
from nightshift.collectors.history import History
from nightshift.collectors.kernel_log.event import KERNEL_LOGS
from nightshift.collectors.kernel_log.lines import KernelLogParser
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.base import Fault, Finding, LogExhibit, SeriesExhibit, Severity, State

K = SubjectKind
NODE, JOB = Subject(K.NODE, "n1"), Subject(K.JOB, "ml/a")
GPUS = [Subject(K.GPU, f"GPU-0000000{i}-aaaa-bbbb-cccc-dddddddddddd") for i in range(4)]
RANKS = [Subject(K.RANK, f"ml/a#{i}") for i in range(4)]
ONSET_S, NOW_S = 10_000.0, 10_300.0


def fleet() -> Inventory:
    inventory = Inventory()
    for gpu, rank in zip(GPUS, RANKS, strict=True):
        pod = Subject(K.POD, f"ml/a-{rank.name[-1]}")
        inventory.observe(gpu, NODE, 0.0)
        inventory.observe(gpu, pod, 0.0)
        inventory.observe(pod, NODE, 0.0)
        inventory.observe(pod, JOB, 0.0)
        inventory.observe(rank, pod, 0.0)
        inventory.observe(rank, JOB, 0.0)
    return inventory


INVENTORY = fleet()
INDEX = SeriesIndex(K.GPU, tuple(GPUS))


def history(
    lines: Sequence[tuple[float, str]] = (), log_ok: bool = True, jump: bool = False, every_s: float = 5.0
) -> History:
    """Twenty minutes: GPU 1 leaks and has corrected errors from the onset on; training diverges at the onset."""
    kept = History()
    parser = KernelLogParser(NODE)
    parser.uuid_of["0000:9b:00"] = GPUS[1].name
    source = Subject(K.SOURCE, f"{KERNEL_LOGS[0]} http://n1/kernel-log")
    t_s, step = NOW_S - 1200.0, 0
    while t_s <= NOW_S:
        late = max(0.0, t_s - ONSET_S)
        values = np.array([[4e10 + (1e7 * late if i == 1 else 0.0), 5.0 + (i == 1) * late / 10] for i in range(4)])
        metrics = ("gpu_memory_used_bytes", "gpu_ecc_sbe_total")
        frame = Frame(t_s, INDEX, metrics, values, np.full((1, 2), t_s), np.zeros(4, dtype=np.int64))
        records = [LogRecord(Instant(at), source.name, NODE, text, i) for i, (at, text) in enumerate(lines)]
        events = [e for r in records if t_s - every_s < r.at.t_s <= t_s and (e := parser.read(r)) is not None]
        columns = {
            "loss": np.array([2.0 + (late > 0) * 5.0]),
            "learning_rate": np.array([3e-4 if late <= 0 or not jump else 0.05]),
            "checkpoint_saved": np.array([1.0 if step % 60 == 0 else math.nan]),
        }
        steps = [StepSeries(r, "run", np.array([step]), np.array([t_s]), columns, "training_logs") for r in RANKS]
        kept.add(Tick(t_s, {K.GPU: frame}, steps, [], events, [SourceStatus(source, t_s, log_ok, covers=(NODE,))]))
        t_s, step = t_s + every_s, step + 1
    return kept


def finding(fault: Fault, subject: Subject, **more: object) -> Finding:
    when = (Instant(ONSET_S), Instant(NOW_S))
    made = Finding("test", fault, subject, State.FIRING, *when, Severity.CRITICAL, f"{fault}", 2.0, 1.0)
    return replace(made, **more)  # type: ignore[arg-type]


def leak() -> Finding:
    t_s = tuple(float(t) for t in range(int(ONSET_S), int(NOW_S), 20))
    exhibit = SeriesExhibit(
        GPUS[1], "gpu_memory_used_bytes", "bytes", t_s, tuple(4e10 + 1e7 * (t - ONSET_S) for t in t_s), 4e10, "x"
    )
    facts = {"growth_bytes": 3e9, "slope_bytes_per_h": 3.6e10, "peers": 3.0, "peer_growth_bytes": 0.0, "eta_s": 9e3}
    return finding(Fault.GPU_MEMORY_LEAK, GPUS[1], evidence=(exhibit,), facts=facts)


def diverged(rank: int = 0) -> Finding:
    facts = {"onset_step": 180.0, "baseline_loss": 2.0, "loss": 7.0, "hardware_events": 0.0}
    return finding(Fault.LOSS_DIVERGED, RANKS[rank], facts=facts)


_XID = "NVRM: Xid (PCI:0000:9b:00):"
XID_LINES = [
    (ONSET_S + 60.0, f"{_XID} 48, pid='<unknown>', name=<unknown>, An uncorrectable double bit error"),
    (ONSET_S + 60.1, f"{_XID} 94, pid=7194, name=python3, Contained: SM (0x1). RST: No"),
    (ONSET_S + 60.2, f"{_XID} 45, pid=7194, name=python3, Ch 00000008"),
    (ONSET_S + 61.0, f"{_XID} 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"),
]  # fmt: skip


def xid_burst(*lines: tuple[float, str]) -> Finding:
    records = [LogRecord(Instant(t), "node_log", NODE, text, i) for i, (t, text) in enumerate(lines)]
    codes = [int(text.split("): ")[1].split(",")[0]) for _, text in lines]
    facts: dict[str, float | str] = {"xid": float(codes[0]), "codes": " ".join(map(str, sorted(set(codes))))}
    if 154 in codes:
        facts["announced_recovery"] = "Node Reboot Required"
    return finding(
        Fault.XID, GPUS[1], since=Instant(lines[0][0]), evidence=tuple(LogExhibit(r) for r in records), facts=facts
    )


def incident(*found: Finding, diagnosis: Diagnosis | None = None) -> Incident:
    stored = tuple(StoredFinding(f, State.FIRING, NOW_S, NOW_S) for f in found)
    return Incident(
        id="INC-7", state=IncidentState.AWAITING_APPROVAL, title="x", severity=Severity.CRITICAL, opened_s=NOW_S,
        updated_s=NOW_S, entered_s=NOW_S, findings=stored, diagnosis=diagnosis, action=None, plan_reason="",
        attempt=0, clear_since_s=None, history=(), version=1,
    )  # fmt: skip
