"""A job's logs as evidence: condensed over all ranks, and who spoke of trouble first, as far as clocks can tell."""

from __future__ import annotations

import json

import pytest

from nightshift.agent.rca.bundle import Bundle, EvidenceLimits
from nightshift.agent.rca.evidence import gather
from nightshift.agent.rca.redact import Redactor
from nightshift.collectors.frame import Instant, LogRecord
from nightshift.collectors.history import History
from nightshift.collectors.kubernetes.events import CHANGES, EVENTS
from nightshift.collectors.subject import Subject
from nightshift.collectors.tick import Tick
from tests.agent.rooted import INVENTORY, JOB, NODE, NOW_S, ONSET_S, RANKS, diverged, history

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
ABORT = "ERROR [Rank 0] Watchdog caught collective operation timeout: process group aborted"


def told(*lines: tuple[Subject, float, float, str], source: str = "training_logs") -> Bundle:
    """The bundle of a job whose ranks wrote chatter and these lines: (who, seconds after the onset, ±s, text)."""
    kept: History = history(every_s=60.0)
    records = [
        LogRecord(Instant(ONSET_S - 300 + 2 * n, 0.0, r.name), "training_logs", r, f"INFO step={n} loss=2.{n}", n)
        for r in RANKS
        for n in range(200)
    ]
    records += [
        LogRecord(Instant(ONSET_S + at_s, unsure_s, f"node-of-{who.name}"), source, who, text, 1000 + n)
        for n, (who, at_s, unsure_s, text) in enumerate(lines)
    ]
    kept.add(Tick(NOW_S, logs=records))
    return gather([diverged()], kept, INVENTORY, NOW_S, redact=Redactor())


def test_of_hundreds_of_lines_of_all_ranks_the_deciding_one_is_kept() -> None:
    item = told((RANKS[2], 5.0, 0.0, OOM), (RANKS[0], 9.0, 0.0, ABORT)).one("condensed", str(JOB))
    assert item is not None
    assert OOM.encode() in item.content
    assert item.content.count(b"\n") < 20


@pytest.mark.parametrize(
    ("unsure_s", "alone", "word"), [(0.1, "yes", "after"), (3.0, "no", "concurrent")], ids=["known", "not known"]
)
def test_who_was_first_across_ranks_is_said_only_as_far_as_their_clocks_tell(
    unsure_s: float, alone: str, word: str
) -> None:
    item = told((RANKS[2], 5.0, unsure_s, OOM), (RANKS[1], 9.0, unsure_s, OOM)).one("order", str(JOB))
    assert item is not None
    body = json.loads(item.content)
    assert (body["first"], body["alone"]) == (str(RANKS[2]), alone)
    assert [entry["to_first"] for entry in body["order"]] == ["first", word]


def test_a_line_that_only_follows_another_ranks_death_is_never_the_first() -> None:
    item = told((RANKS[0], 1.0, 0.0, ABORT), (RANKS[2], 5.0, 0.0, OOM)).one("order", str(JOB))
    assert item is not None
    assert json.loads(item.content)["first"] == str(RANKS[2])


def test_kubernetes_events_and_changes_of_the_day_before_are_evidence_of_their_own() -> None:
    moved = "node n1: driver 570.1 -> 580.159.04 (DaemonSet gpu-operator/driver, manager alice@example.com)"
    changed = told((NODE, -7200.0, 0.0, moved), source=f"{CHANGES} prod").one("changes")
    event = "Warning NodeNotReady node n1: kubelet stopped posting status"
    happened = told((NODE, 3.0, 0.0, event), source=f"{EVENTS} prod").one("events")
    assert changed is not None
    assert b"580.159.04" in changed.content
    assert b"alice@example.com" not in changed.content
    assert happened is not None
    assert event.encode() in happened.content


def test_a_bundle_of_very_many_lines_stays_within_its_bounds_and_says_what_was_left_out() -> None:
    kept = history(every_s=60.0)
    lines = [
        LogRecord(Instant(ONSET_S + n / 100), "training_logs", r, f"ERROR {n} " + "x" * 3000, n)
        for r in RANKS
        for n in range(1000)
    ]
    kept.add(Tick(NOW_S, logs=lines))
    limits = EvidenceLimits(max_items=20, max_item_bytes=8192)
    bundle = gather([diverged(n) for n in range(4)] * 5, kept, INVENTORY, NOW_S, limits=limits)
    assert len(bundle.items) <= limits.max_items
    assert all(len(item.content) <= limits.max_item_bytes for item in bundle.items)
    assert bundle.left_out > 0


def test_the_log_around_the_onset_is_quoted_as_it_stood_and_redacted() -> None:
    """Lines that nothing was read from may decide; what is quoted elsewhere is not quoted twice."""
    kept: History = history(every_s=60.0)
    rank = diverged().subject
    notable = LogRecord(Instant(ONSET_S + 1.0), "training_logs", rank, OOM, 3)
    lines = [
        LogRecord(Instant(ONSET_S - 300.0), "training_logs", rank, "long before", 1),
        LogRecord(
            Instant(ONSET_S - 5.0), "training_logs", rank, "resuming shard 17, token=hf_abcdefghijklmnopqrst", 2
        ),
        notable,
    ]
    kept.add(Tick(NOW_S, logs=[notable], raw=lines))
    node_line = LogRecord(Instant(ONSET_S - 2.0), "/dev/kmsg", NODE, "usb 1-1: reset", 4)
    kept.add(Tick(NOW_S, logs=[node_line]))
    bundle = gather([diverged()], kept, INVENTORY, NOW_S, redact=Redactor())
    item = bundle.one("raw_log", str(rank))
    assert item is not None
    assert b"resuming shard 17" in item.content
    assert b"hf_abc" not in item.content
    assert b"long before" not in item.content
    assert OOM.encode() not in item.content
    around = bundle.one("raw_log", str(NODE))
    assert around is not None
    assert b"usb 1-1: reset" in around.content
