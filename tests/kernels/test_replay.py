"""Timed replays: whatever a kernel remembers of earlier calls is of no use to it."""

from __future__ import annotations

import torch

from kernels.judge.replay import Replayer


def _replayer(slots: int) -> tuple[Replayer, list[torch.Tensor], list[torch.Tensor]]:
    inputs = [torch.arange(12.0).reshape(3, 4) + 100 * n for n in range(slots)]
    outputs = [torch.zeros(3, 4) for _ in range(slots)]
    made = Replayer.__new__(Replayer)
    made._tensors = [([x], [y]) for x, y in zip(inputs, outputs, strict=True)]
    made._scratch = [torch.zeros(8, dtype=torch.uint8)]
    return made, inputs, outputs


def test_only_a_slots_last_timed_call_sees_the_values_that_the_judge_knows() -> None:
    """Before every other call one element of the input differs; outputs and scratch never hold what they held."""
    order = [0, 1, 0, 0, 2, 1, 0]
    replayer, inputs, outputs = _replayer(3)
    base = [x.clone() for x in inputs]
    changed = []
    for number, (slot, action) in enumerate(zip(order, replayer._unsettled(order), strict=True)):
        outputs[slot].fill_(7.0)
        replayer._scratch[0].fill_(7)
        action()
        assert bool(torch.isnan(outputs[slot]).all())
        assert replayer._scratch[0].tolist() == [255] * 8
        changed.append(int((inputs[slot] != base[slot]).sum()))
        assert changed[-1] == (0 if slot not in order[number + 1 :] else 1)
    assert changed == [1, 1, 1, 1, 0, 0, 0]
    assert all(torch.equal(x, y) for x, y in zip(inputs, base, strict=True))


def test_inputs_of_an_operation_in_place_are_left_alone() -> None:
    replayer, inputs, _ = _replayer(1)
    replayer._tensors = [([inputs[0]], [])]
    before = inputs[0].clone()
    for action in replayer._unsettled([0, 0, 0]):
        action()
        assert torch.equal(inputs[0], before)
