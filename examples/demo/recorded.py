"""What the demo cannot run on four simulated nodes, told from recordings: a kernel search on an H200 with its
certificate, and a turn of scheduling over a drawn queue on nodes that share GPUs. Each says in the console that it
is one.

The search is of `benchmarks/results/kernels_tables`: every time was measured on an H200, in that order. Its verdict
and its peers are the same problem's row of `benchmarks/results/kernels_table.json`. The certificate has the kernel
that was judged (`recording/rmsnorm_backward.json`) and what that row keeps of the verdict. The demo signs it with a
key of its own; it names no version of the judge, so no gate promotes it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from nightshift.agent.approvals.gate import Gate
from nightshift.agent.approvals.kernel_gate import KernelGate, promotion, search
from nightshift.agent.approvals.kernel_search import DONE, Certified, KernelSearch, evidence, put_search
from nightshift.agent.approvals.policy import ApprovalSettings
from nightshift.agent.clock import SteppedClock
from nightshift.agent.kernels.runner import keep_ledger
from nightshift.agent.store.incident_store import Store
from nightshift.agent.store.receipts import Receipts
from nightshift.collectors.seal import Signer, canonical_json
from nightshift.controllers.decision import ControlDecision, Trust
from nightshift.controllers.lab.scheduling.shapes import drawn
from nightshift.controllers.scheduling.cluster import ClusterShape
from nightshift.controllers.scheduling.controller import JobSeen, SchedulingController, Snapshot
from nightshift.controllers.scheduling.interference import load_of
from nightshift.controllers.scheduling.steer import Steer, SteerVerb
from nightshift.kernels.candidate import Candidate
from nightshift.kernels.certification.envelope import (
    PAYLOAD_TYPE,
    PREDICATE_TYPE,
    STATEMENT_TYPE,
    certificate_sha256,
    read,
)
from nightshift.kernels.certification.evidence import UNKNOWN, record_of
from nightshift.kernels.certification.registry import promotable

_RESULTS = Path(__file__).resolve().parents[2] / "benchmarks/results"
_TABLE = "kernels_tables/backward-rmsnorm_backward-m16384-n4096-bfloat16.json"
_PROBLEM = "rmsnorm_backward"
_CANDIDATE = Path(__file__).parent / "recording/rmsnorm_backward.json"
SEARCH = "recorded-on-an-h200"
_TRIAL_S = 1.6
"""Between two recorded times, as drawn: the table holds none."""
_QUEUED, _NODES = 14, 3
_RUNNING = (("vision", 8), ("simulation", 8))
"""Kind and GPUs of what runs in the drawn queue, on a node each; both opted in to a neighbour."""
_CERTIFICATE = "Replayed by the demo, which signed what was recorded of the judge's verdict"


def tell(store: Store, now_s: float) -> None:
    """Writes both recordings into a daemon's store, as ended before `now_s` (Unix s)."""
    _tell_search(store, now_s)
    Receipts(store.database).keep_all([(decision, 0.0, False) for decision in queue_decisions(now_s)])


def _tell_search(store: Store, now_s: float) -> None:
    table = json.loads((_RESULTS / _TABLE).read_text())
    rows = json.loads((_RESULTS / "kernels_table.json").read_text())["rows"]
    row = next(one for one in rows if one["problem"] == _PROBLEM and one["bytes"] == table["compulsory_bytes"])
    times = [math.inf if micro is None else micro for micro in table["microseconds"]]
    begun_s, best = now_s - _TRIAL_S * (len(times) + 1), math.inf
    lines = {}
    for number, micro in enumerate(times, 1):
        line = _line(number, begun_s, micro * 1e-6, micro < best, row)
        if micro == min(times):  # what was judged whole, later and in races of its own
            line |= {"speedup": row["speedup"], "status": row["status"], "reason": row["reason"]}
        lines[_PROBLEM, number] = line
        best = min(best, micro)
    why = f"Recorded on an {table['environment']['gpu']}, replayed: {row['detail']}. Commit {row['commit']}."
    hours = _TRIAL_S * len(times) / 3600.0
    action = search("demo", "recorded/gpt", _PROBLEM, why, hours, "low", begun_s)
    envelope, predicate = certificate(row, now_s)
    certified = Certified(
        certificate_sha256(envelope), _PROBLEM, f"{row['status']} ({row['reason']})",
        canonical_json(envelope).decode(),
    )  # fmt: skip
    made = KernelSearch(
        SEARCH, action, begun_s, gpu_hours=hours, trials=len(lines), certificates=(certified,), ended=DONE,
        ended_at_s=now_s, detail="a recording, replayed",
    )  # fmt: skip
    with store.database.write() as connection:
        put_search(connection, made, now_s)
    keep_ledger(store, SEARCH, lines)
    record = record_of(predicate)
    shown = evidence(predicate, UNKNOWN, promotable(record, UNKNOWN), now_s)
    clock = SteppedClock(now_s)
    gate = KernelGate(Gate(store, ApprovalSettings(), clock), store, clock)
    gate.propose(promotion("demo", certified.sha256, _PROBLEM, "canary", shown, now_s), record=record)


def certificate(row: dict[str, Any], now_s: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """(envelope, predicate) of a recorded row: the kernel that was judged, what the row keeps of the verdict."""
    recorded = json.loads((_RESULTS / "kernels_table.json").read_text())
    candidate = Candidate.from_json(json.loads(_CANDIDATE.read_text()))
    low, point, high = row["speedup"]
    race = {
        "case": row["case"], "baseline": row["best_peer"], "tier": "A", "candidate_s": row["ours_us"] * 1e-6,
        "baseline_s": row["peers_us"][row["best_peer"]] * 1e-6,
        "speedup": {"low": low, "point": point, "high": high},
    }  # fmt: skip
    verdict = {
        "candidate_sha256": row["candidate_sha256"], "problem": _PROBLEM, "status": row["status"],
        "reason": row["reason"], "detail": f"{_CERTIFICATE}. {row['detail']}", "stages": ["recorded"],
        "comparisons": [race], "errors": row["errors"], "environment": recorded["environment"],
        "not_checked": [f"{_CERTIFICATE}: the list of what was not checked is not part of the recording"],
    }  # fmt: skip
    digests = {"candidate": candidate.sha256, "source": candidate.source_sha256}
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in digests.items()],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "issued_at": datetime.fromtimestamp(now_s, UTC).isoformat(), "commit": row["commit"],
            "candidate": candidate.to_json(), "problem": {"name": _PROBLEM, "reference_sha256": ""}, "anchors": [],
            "verdict": verdict,
        },
    }  # fmt: skip
    signer = Signer.generate()
    envelope = signer.seal(PAYLOAD_TYPE, canonical_json(statement))
    return envelope, read(envelope, {signer.key_id: signer.public})[0]


def _line(number: int, begun_s: float, seconds: float, keep: bool, row: dict[str, Any]) -> dict[str, Any]:
    return {
        "trial": number,
        "at_s": begun_s + number * _TRIAL_S,
        "seconds": seconds if math.isfinite(seconds) else None,
        "decision": "keep" if keep else "revert",
        "baselines": {name: micro * 1e-6 for name, micro in row["peers_us"].items()},
        # the same bytes copied once: what this GPU's memory allows
        "floor_s": row["copy_us"] * 1e-6,
    }


class _Doors:
    """A queue that nothing is written to."""

    def release_overdue(self) -> Sequence[object]:
        return ()

    def open(self, gate: object) -> bool:
        return True

    def hold(self, gate: object, until_s: float) -> None:
        pass

    def prefer(self, gate: object, prefer: Sequence[str], avoid: Sequence[str]) -> None:
        pass

    def boost(self, workload: str, value: int) -> str:
        return ""

    def read_back(self, gate: object) -> Steer:
        return Steer(SteerVerb.HOLD, 0.0)


def queue_decisions(now_s: float) -> list[ControlDecision]:
    """One turn of the scheduling controller over a queue of Philly's published shape (drawn, seed 1), on nodes that
    give a GPU to two pods. All owners opted in. Loads are drawn by kind; slowdowns are those of the model that was
    fitted to an H200 (`nightshift/controllers/scheduling/interference.py`)."""
    kept: list[ControlDecision] = []

    def keep(decision: ControlDecision, *, chance: float = 0.0, treated: bool = False) -> None:
        kept.append(decision)

    jobs = drawn("philly", _QUEUED, 1)
    ends_s = max(job.submit_s for job in jobs)
    draw, queue = np.random.default_rng(1), "recorded (drawn queue)"
    seen = [
        JobSeen(
            f"recorded/{j.id}", queue, j.user, now_s - ends_s + j.submit_s, j.gpus, j.id, placeable=True,
            load=j.load, share="guest",
        )
        for j in jobs
    ]  # fmt: skip
    seen += [
        JobSeen(
            f"recorded/{kind}-{gpus}", queue, "ann", now_s - 7_200.0, gpus, kind, nodes={node: gpus},
            started_s=now_s - 3_600.0, load=load_of(kind, draw), share="host",
        )
        for node, (kind, gpus) in enumerate(_RUNNING)
    ]  # fmt: skip
    names = tuple(f"recorded-n{node + 1}" for node in range(_NODES))
    controller = SchedulingController(_Doors(), keep, np.random.default_rng(0), lambda job: Trust())
    shape, shares = ClusterShape(_NODES, 8), frozenset(range(_NODES))
    controller.turn(Snapshot(now_s, shape, seen, names=names, shares=shares))
    return kept
