"""Sentences that a rule should refuse or mark although their quote is real, and honest ones that it should show.

`python -m benchmarks.sentence_traps` writes `results/sentence_traps.json`. The evidence's lines are those that
drivers, NCCL, Kubernetes and file systems write. All sentences are of our making. A trap's quote is in the
evidence, byte for byte, and shares a word with the sentence; the sentence says another thing. It passes where it
is shown with none of its words marked. The kinds under `BEYOND_RULES` are about meaning alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.report import write
from benchmarks.sentence_batches import BATCHES, Batch
from nightshift.agent.store.diagnosis import FACTS, LOG, SERIES, Evidence
from nightshift.version import commit

T_S = 1_767_229_200.0
"""01:00:00 UTC, the time of the first line."""


def _log(name: str, query: str, title: str, *lines: tuple[float, str]) -> Evidence:
    content = "\n".join(f"{T_S + at:.3f}\t{text}" for at, text in lines).encode()
    return Evidence(name, f"log of {query}", query, T_S, T_S + 600, LOG, content, title)


def _json(name: str, media_type: str, query: str, title: str, value: Any) -> Evidence:
    content = json.dumps(value, separators=(",", ":")).encode()
    return Evidence(name, "inventory", query, T_S, T_S + 600, media_type, content, title)


BUS = "NVRM: Xid (PCI:0000:41:00): 79, pid=4242, name=python3, GPU has fallen off the bus."
CORRECTED = "pcieport 0000:40:01.1: AER: Corrected error received: 0000:41:00.0"
NFS, NFS_OK = "nfs: server fs1 not responding, still trying", "nfs: server fs1 OK"
DOWN, UP = "mlx5_core 0000:19:00.0 enp25s0f0: Link down", "mlx5_core 0000:19:00.0 enp25s0f0: Link up"
EDAC = "EDAC MC0: 2 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0"
WATCHDOG = (
    "[rank3]:[E] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=15, OpType=ALLREDUCE,"
    " Timeout(ms)=600000) ran for 600029 milliseconds before timing out."
)
KILLED = "RuntimeError: DataLoader worker (pid 7194) is killed by signal: Killed."
ABSENT = "[rank0]: stalled: rank 1 did not arrive at the barrier"
HEALTHY = "iteration 460631 | loss 2.31 | number of nan iterations: 0 | number of skipped iterations: 0"
PROBE, BACK_OFF = "Readiness probe succeeded", "Back-off restarting failed container trainer"
CHECKPOINT = "checkpoint of step 460600 was not saved: No space left on device"
TEMPERATURE = '"metric":"gpu_temperature_celsius"'
READY = '"ready":"False"'
EVIDENCE: tuple[Evidence, ...] = (
    _log("E1", "n1", "kernel events of n1", (0, BUS), (10, CORRECTED), (20, NFS), (80, NFS_OK)),
    _log("E2", "n2", "kernel events of n2", (30, DOWN), (42, UP), (50, EDAC)),
    _log("E3", "ml/a", "log of ml/a",
         (100, WATCHDOG), (101, KILLED), (102, HEALTHY), (103, ABSENT), (104, CHECKPOINT)),
    _log("E4", "pod:ml/a-1", "what Kubernetes says of ml/a-1", (60, BACK_OFF), (90, PROBE)),
    _json("E5", SERIES, "gpu_temperature_celsius{gpu:GPU-0001}", "gpu_temperature_celsius of GPU-0001",
          {"metric": "gpu_temperature_celsius", "subject": "gpu:GPU-0001", "t_s": [T_S, T_S + 60, T_S + 3600],
           "unit": "celsius", "values": [61, 62, 95]}),
    _json("E6", FACTS, "who held what", "topology", {"above": {
        "gpu:GPU-0001": ["job:ml/a", "node:n1", "pod:ml/a-1"],
        "rank:ml/a#3": ["job:ml/a", "node:n2", "pod:ml/a-3"]}}),
    _json("E7", FACTS, "n1", "what Kubernetes says of n1", {"driver": "550.54.15", "ready": "False"}),
)  # fmt: skip
CONTEXT = "GPU lost · GPU 0000:41:00 of node n1"

TRAPS: Mapping[str, Sequence[tuple[str, str, str]]] = {
    "denial": (
        ("The GPU did not fall off the bus.", "E1", BUS),
        ("There was no collective timeout.", "E3", WATCHDOG),
        ("The DataLoader worker was not killed.", "E3", KILLED),
        ("Rank 1 did arrive at the barrier.", "E3", ABSENT),
        ("The link never went down.", "E2", DOWN),
        ("The checkpoint was saved.", "E3", CHECKPOINT),
        ("The NFS server is responding.", "E1", NFS),
        ("The memory had an uncorrected error.", "E1", CORRECTED),
    ),
    "recovery": (
        ("The GPU is healthy again on the bus.", "E1", BUS),
        ("The link recovered.", "E2", DOWN),
        ("The NFS server answers normally.", "E1", NFS),
        ("The collective operation completed.", "E3", WATCHDOG),
        ("The container trainer is back.", "E4", BACK_OFF),
        ("The NFS server failed.", "E1", NFS_OK),
        ("The link is down.", "E2", UP),
        ("The readiness probe failed.", "E4", PROBE),
        ("The loss had nan errors in its iterations.", "E3", HEALTHY),
    ),
    "order": (
        ("The link went down before the GPU fell off the bus.", "E2", DOWN),
        ("The collective timeout came first.", "E3", WATCHDOG),
        ("The worker was killed, then the link failed.", "E3", KILLED),
        ("The NFS server stopped responding after the link went down.", "E1", NFS),
    ),
    "subject": (
        ("The link of node n1 went down.", "E2", DOWN),
        ("On n2 the GPU has fallen off the bus.", "E1", BUS),
        ("The watchdog of rank 5 caught a timeout.", "E3", WATCHDOG),
        ("Node n1 has a memory read error.", "E2", EDAC),
        ("The container trainer of ml/a-3 failed.", "E4", BACK_OFF),
    ),
    "number": (
        ("The driver logged Xid 48 for the bus.", "E1", BUS),
        ("The temperature was 62 degrees celsius.", "E5", TEMPERATURE),
        ("The collective ran for 20 minutes and timed out.", "E3", WATCHDOG),
        ("The GPU has fallen off the bus at 01:00:30.", "E1", BUS),
        ("The memory had 15 read errors.", "E2", EDAC),
        ("The DataLoader worker with pid 4242 was killed.", "E3", KILLED),
    ),
    "all and only": (
        ("All workers were killed.", "E3", KILLED),
        ("Only the bus is at fault.", "E1", BUS),
        ("Every collective operation timed out.", "E3", WATCHDOG),
    ),
    "another matter": (
        ("The cooling of the GPU is at fault.", "E1", BUS),
        ("A firmware bug of the node took the kernel down.", "E2", DOWN),
    ),
}  # fmt: skip
BEYOND_RULES: Mapping[str, Sequence[tuple[str, str, str]]] = {
    "an invented reason": (
        ("The GPU has fallen off the bus because of a loose power cable.", "E1", BUS),
        ("An operator's reboot took the link down.", "E2", DOWN),
        ("A bug of the trainer made the collective time out.", "E3", WATCHDOG),
    ),
    "a number in words": (("Three GPUs have fallen off the bus.", "E1", BUS),),
    "another subject without a digit": (("The switch lost its link.", "E2", DOWN),),
    "irony and hedges": (("The bus hardly matters here.", "E1", BUS),),
}
HONEST: Sequence[tuple[str, str, str]] = (
    ("The GPU at 0000:41:00 of node n1 has fallen off the bus.", "E1", BUS),
    ("At 01:00:00 the GPU fell off the bus (Xid 79).", "E1", BUS),
    ("The driver lost the GPU: it is gone from the bus.", "E1", BUS),
    ("The GPU of n1 is off the bus since 01:00.", "E1", BUS),
    ("A PCIe error was corrected.", "E1", CORRECTED),
    ("The NFS server fs1 does not respond.", "E1", NFS),
    ("The server fs1 stopped responding to NFS.", "E1", NFS),
    ("The NFS server was OK at 01:01:20.", "E1", NFS_OK),
    ("The NFS server fs1 recovered.", "E1", NFS_OK),
    ("The link of n2 went down at 01:00:30.", "E2", DOWN),
    ("The adapter enp25s0f0 lost its link.", "E2", DOWN),
    ("The link came back up at 01:00:42.", "E2", UP),
    ("The host's memory had 2 corrected read errors.", "E2", EDAC),
    ("A collective (ALLREDUCE) of rank 3 timed out after 10 minutes.", "E3", WATCHDOG),
    ("Rank 3 ran into the watchdog: its collective took 600 s.", "E3", WATCHDOG),
    ("The DataLoader worker 7194 was killed by a signal.", "E3", KILLED),
    ("Rank 1 never arrived at the barrier.", "E3", ABSENT),
    ("Rank 1 did not arrive, so rank 0 stalled at the barrier.", "E3", ABSENT),
    ("The loss is finite: 2.31, without nan iterations.", "E3", HEALTHY),
    ("The checkpoint of step 460600 could not be saved: the device has no space.", "E3", CHECKPOINT),
    ("The container trainer failed and is restarted with back-off.", "E4", BACK_OFF),
    ("The readiness probe of ml/a-1 succeeded at 01:01:30.", "E4", PROBE),
    ("The temperature of GPU-0001 was measured.", "E5", TEMPERATURE),
    ("Node n1 is not ready.", "E7", READY),
)

# Written when the rules were finished; no rule was changed for them.
TRAPS_AFTER: Mapping[str, Sequence[tuple[str, str, str]]] = {
    "after the rules": (
        ("The GPU stayed on the bus without trouble.", "E1", BUS),
        ("The bus never lost the GPU.", "E1", BUS),
        ("The NFS server was reachable and served requests.", "E1", NFS),
        ("NFS is still unavailable on server fs1.", "E1", NFS_OK),
        ("The link of the adapter was stable.", "E2", DOWN),
        ("The link came up within a second of going down.", "E2", UP),
        ("The memory read error was fatal to n2.", "E2", EDAC),
        ("The collective operation ended in time, without a timeout.", "E3", WATCHDOG),
        ("The watchdog waited 10 seconds for the collective.", "E3", WATCHDOG),
        ("Rank 1 arrived late at the barrier.", "E3", ABSENT),
        ("Rank 0 did not arrive at the barrier.", "E3", ABSENT),
        ("The DataLoader worker ended by an exception of its own.", "E3", KILLED),
        ("The loss became nan.", "E3", HEALTHY),
        ("The checkpoint of step 460631 was lost.", "E3", CHECKPOINT),
        ("The device has much space for the checkpoint.", "E3", CHECKPOINT),
        ("The container trainer runs since 01:01:00.", "E4", BACK_OFF),
        ("The probe shows that ml/a-1 is not ready.", "E4", PROBE),
        ("The temperature of GPU-0001 rose to 95 degrees.", "E5", TEMPERATURE),
        ("Node n1 is ready.", "E7", READY),
        ("The error was received later than the link change.", "E1", CORRECTED),
    ),
}  # fmt: skip
HONEST_AFTER: Sequence[tuple[str, str, str]] = (
    ("A GPU on n1 is not on the PCI bus any more.", "E1", BUS),
    ("The process python3 (pid 4242) used a GPU that has fallen off the bus.", "E1", BUS),
    ("The port 0000:40:01.1 received a corrected error.", "E1", CORRECTED),
    ("n1 waits for the NFS server fs1, which does not answer.", "E1", NFS),
    ("The file server fs1 is OK again since 01:01:20.", "E1", NFS_OK),
    ("Port enp25s0f0 of n2 has no link.", "E2", DOWN),
    ("The network link of n2 is down.", "E2", DOWN),
    ("The link of enp25s0f0 is up again.", "E2", UP),
    ("A DIMM of n2 has memory errors.", "E2", EDAC),
    ("An ALLREDUCE did not finish within its timeout.", "E3", WATCHDOG),
    ("The NCCL watchdog of rank 3 ended a collective operation.", "E3", WATCHDOG),
    ("A DataLoader worker of ml/a died: it was killed.", "E3", KILLED),
    ("The barrier waits for rank 1.", "E3", ABSENT),
    ("The last iteration was 460631 with a loss of 2.31.", "E3", HEALTHY),
    ("The disk is full, so the checkpoint failed.", "E3", CHECKPOINT),
    ("No space is left for the checkpoint.", "E3", CHECKPOINT),
    ("The pod ml/a-1 restarts its container again and again.", "E4", BACK_OFF),
    ("Kubernetes found the container ready: its probe succeeded.", "E4", PROBE),
    ("Kubernetes holds n1 for not ready.", "E7", READY),
    ("The driver of n1 is 550.54.15.", "E7", '"driver":"550.54.15"'),
)


BOOK = Batch(EVIDENCE, CONTEXT, HONEST, (), {})


def outcome(sentence: str, name: str, quote: str) -> str | tuple[str, ...]:
    """Why a sentence is not shown; where it is, the words that are marked as its own."""
    return BOOK.outcome(sentence, name, quote)


def _passed(rows: Mapping[str, Sequence[tuple[str, str, str]]]) -> dict[str, list[str]]:
    return {kind: [row[0] for row in traps if outcome(*row) == ()] for kind, traps in rows.items()}


def _refused(rows: Sequence[tuple[str, str, str]]) -> dict[str, str]:
    return {row[0]: said for row in rows if isinstance(said := outcome(*row), str)}


def _batch(batch: Batch) -> dict[str, Any]:
    """What the rules make of a batch now, and what they did at the first try."""
    right, wrong = ({row[0]: batch.outcome(*row) for row in rows} for rows in (batch.right, batch.wrong))
    return {
        "right": len(right),
        "right_shown": sum(not isinstance(said, str) for said in right.values()),
        "right_unmarked": sum(said == () for said in right.values()),
        "right_withheld": {text: said for text, said in right.items() if isinstance(said, str)},
        "wrong": len(wrong),
        "wrong_shown": sum(not isinstance(said, str) for said in wrong.values()),
        "wrong_unmarked": [text for text, said in wrong.items() if said == ()],
        "wrong_marked": {text: said for text, said in wrong.items() if said and not isinstance(said, str)},
        "at_first": dict(batch.at_first),
    }


def main() -> None:
    traps, after, beyond = _passed(TRAPS), _passed(TRAPS_AFTER), _passed(BEYOND_RULES)
    result = {
        "commit": commit(),
        "sentences": "written by hand; no language model was asked",
        "traps": sum(map(len, TRAPS.values())),
        "traps_by_kind": {kind: len(rows) for kind, rows in TRAPS.items()},
        "traps_passed": sum(map(len, traps.values())),
        "passed": traps,
        "traps_after_the_rules": sum(map(len, TRAPS_AFTER.values())),
        "traps_after_the_rules_passed": sum(map(len, after.values())),
        "passed_after_the_rules": after,
        "beyond_rules": sum(map(len, BEYOND_RULES.values())),
        "beyond_rules_passed": sum(map(len, beyond.values())),
        "beyond_rules_by_kind": beyond,
        "honest": len(HONEST),
        "honest_refused": _refused(HONEST),
        "honest_after_the_rules": len(HONEST_AFTER),
        "honest_after_the_rules_refused": _refused(HONEST_AFTER),
        "batches": {name: _batch(batch) for name, batch in BATCHES.items()},
    }
    write("sentence_traps", result)


if __name__ == "__main__":
    main()
