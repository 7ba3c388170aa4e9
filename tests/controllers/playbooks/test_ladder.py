"""Application → reset → reboot → return: each rung has its budget, and a repeat offender goes to the vendor."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.controllers.action import Action, ActionKind, BlastRadius, Precondition, Undo
from nightshift.controllers.guard import Commitment
from nightshift.controllers.playbooks.ladder import OFFENCES, RUNGS, Record, RepairLadder, record_of, rung

A = ActionKind
GPU, OTHER, NODE = (
    Subject(SubjectKind.GPU, "GPU-1"),
    Subject(SubjectKind.GPU, "GPU-2"),
    Subject(SubjectKind.NODE, "n1"),
)
DAY_S = 86_400.0


def did(kind: ActionKind, target: Subject, at_s: float, **params: str) -> Commitment:
    action = Action(f"{kind}-{at_s}", kind, target, "", BlastRadius(), Undo(False, ""), at_s + 60, params)
    return Commitment(action, at_s, at_s + 10, at_s + 10)


def test_a_fresh_device_gets_what_its_error_calls_for() -> None:
    assert rung(A.RESET_GPU, Record(), RepairLadder()).kind is A.RESET_GPU
    assert rung(A.REBOOT_NODE, Record(), RepairLadder()).kind is A.REBOOT_NODE


def test_each_rung_gives_way_to_the_next_when_its_budget_is_spent_and_says_so() -> None:
    up = rung(A.RESET_GPU, Record(resets=2), RepairLadder())
    assert (up.kind, up.reason) == (A.REBOOT_NODE, "reset gpu was tried 2 times in 7 days")
    top = rung(A.RESET_GPU, Record(resets=2, reboots=1), RepairLadder())
    assert top.kind is A.OPEN_RMA
    assert "reboot node was tried 1 times" in top.reason


def test_a_repeat_offender_goes_to_the_vendor_whatever_is_called_for() -> None:
    found = rung(A.RESET_GPU, Record(offences=2), RepairLadder())
    assert (found.kind, found.reason) == (
        A.OPEN_RMA,
        "repeat offender: 3 hardware faults of this GPU within 30 days",
    )


def test_a_record_counts_this_device_within_its_windows() -> None:
    """Another GPU's reset, a reboot for another GPU, and what was long ago do not count."""
    inventory = Inventory()
    inventory.observe(GPU, NODE, 0.0)
    now_s = 40 * DAY_S
    begun = [
        did(A.RESET_GPU, GPU, now_s - DAY_S),
        did(A.RESET_GPU, OTHER, now_s - DAY_S),
        did(A.RESET_GPU, GPU, now_s - 8 * DAY_S),
        did(A.REBOOT_NODE, NODE, now_s - DAY_S, gpu="GPU-1"),
        did(A.REBOOT_NODE, NODE, now_s - DAY_S, gpu="GPU-2"),
    ]
    offences_s = [now_s - DAY_S, now_s - 29 * DAY_S, now_s - 31 * DAY_S]
    assert record_of(GPU, begun, offences_s, inventory, now_s, RepairLadder()) == Record(1, 1, 2)


def test_a_reboot_of_the_machine_that_had_the_name_before_is_no_try_of_this_one() -> None:
    inventory = Inventory()
    inventory.observe(GPU, NODE, 0.0)
    inventory.describe(NODE, uid="new")
    begun = [
        replace(item, action=replace(item.action, preconditions=(Precondition(NODE, "uid", uid),)))
        for uid in ("old", "old", "new")
        for item in [did(A.REBOOT_NODE, NODE, DAY_S)]
    ]
    assert record_of(GPU, begun, [], inventory, 2 * DAY_S, RepairLadder()).reboots == 1


@given(
    st.sampled_from(RUNGS[:2]),
    st.builds(Record, *(st.integers(0, 5) for _ in range(3))),
    st.builds(RepairLadder, gpu_resets=st.integers(0, 4), node_reboots=st.integers(0, 4)),
)
def test_no_budget_is_ever_exceeded_and_nothing_goes_down(
    called_for: A, record: Record, ladder: RepairLadder
) -> None:
    """The rung is never below what is called for, never one whose budget is spent, and always one of the ladder."""
    found = rung(called_for, record, ladder).kind
    assert RUNGS.index(found) >= RUNGS.index(called_for)
    assert found is not A.RESET_GPU or record.resets < ladder.gpu_resets
    assert found is not A.REBOOT_NODE or record.reboots < ladder.node_reboots
    assert found is A.OPEN_RMA or record.offences + 1 < OFFENCES
