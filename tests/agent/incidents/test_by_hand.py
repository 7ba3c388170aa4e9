"""What people did themselves counts as their decision: the same as was proposed, or something else."""

from __future__ import annotations

from pathlib import Path

import pytest

from nightshift.agent.approvals.manual_fixes import ByHand, Fix, is_same, read
from nightshift.agent.approvals.scoreboard import Scoreboard, Settings
from nightshift.agent.incidents.lifecycle import Lifecycle
from nightshift.collectors.frame import Instant, LogRecord
from nightshift.collectors.kubernetes.events import CHANGES, EVENTS
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.controllers.action import ActionKind
from tests.agent.approvals.test_interleavings import AtOnce
from tests.agent.incidents import NODE, ManualClock, a_finding, an_action
from tests.agent.world import World

A = ActionKind


def line(text: str, source: str = CHANGES, subject: Subject = NODE, at_s: float = 1_005.0) -> LogRecord:
    return LogRecord(Instant(at_s), f"{source} prod", subject, text, 1)


CORDONED = "Node n1: unschedulable: no -> yes, by alice-kubectl"


@pytest.mark.parametrize(
    ("told", "fix"),
    [
        (line(CORDONED), Fix(A.CORDON, NODE, "alice-kubectl", 1_005.0)),
        (line(CORDONED.replace("no -> yes", "yes -> no")), Fix(A.UNCORDON, NODE, "alice-kubectl", 1_005.0)),
        (
            line("Warning Rebooted Node n1: Node n1 has been rebooted [kubelet]", EVENTS),
            Fix(A.REBOOT_NODE, NODE, "unknown", 1_005.0),
        ),
        (line(CORDONED.replace("alice-kubectl", "nightshift")), None),
        (line(CORDONED.replace("alice-kubectl", "kube-controller-manager")), None),
        (line("Node n1: unschedulable: no -> yes"), None),
        (line(CORDONED, "kernel_log"), None),
        (line(CORDONED, subject=Subject(SubjectKind.POD, "a/b")), None),
    ],
)
def test_a_persons_change_is_told_from_a_programs_and_from_other_lines(told: LogRecord, fix: Fix | None) -> None:
    assert read(told) == fix


def test_a_cordon_begins_a_drain_and_is_no_restart() -> None:
    fix = Fix(A.CORDON, NODE, "alice", 0.0)
    same = {kind for kind in A if is_same(fix, an_action(kind=kind, target=NODE))}
    assert same == {A.CORDON, A.DRAIN, A.REBOOT_NODE, A.REPLACE_NODE}


@pytest.mark.parametrize(("kind", "counts"), [(A.DRAIN, (1, 0)), (A.UNCORDON, (0, 1))])
def test_an_undecided_plan_is_decided_by_what_people_did_once(
    tmp_path: Path, kind: ActionKind, counts: tuple[int, int]
) -> None:
    """A cordon by hand while a plan waits: agreement with a drain, disagreement with an uncordon; told twice, or
    before the incident, it counts no more; and it stands in the audit log."""
    clock = ManualClock()
    world = World(f"sqlite:///{tmp_path}/store.sqlite", tmp_path, clock)
    world.action = lambda incident: an_action(f"{incident.id}-1".lower(), kind, NODE)
    lifecycle = Lifecycle(world.parts(), new_queue=AtOnce)
    lifecycle._stand()
    name = world.store.open_incident("fault", [a_finding(subject=NODE)])
    for _ in range(4):
        lifecycle.advance(clock.now_s())
    board = Scoreboard(world.store.database, Settings())

    def score() -> tuple[int, int, int]:
        (rating,) = board.ratings(clock.now_s())
        return rating.score.agreed, rating.score.disagreed, rating.score.by_hand

    hands = ByHand(world.store, Inventory())
    before = [line(CORDONED, at_s=10.0), line(CORDONED, subject=Subject(SubjectKind.NODE, "n2"))]
    assert hands.look(before) == []
    assert score() == (0, 0, 0)
    assert [incident.id for incident in hands.look([line(CORDONED)])] == [name] * counts[0]
    hands.look([line(CORDONED)])
    assert score() == (*counts, 1)
    (record,) = [r for r in world.store.audit.records() if r.kind == "by_hand"]
    assert (record.by, record.body["did"], record.body["proposed"]) == ("alice-kubectl", "cordon", str(kind))
    assert world.store.audit.verify().ok
    assert world.store.incident(name).action is not None
    lifecycle._leadership.abandon()
    world.store.close()
