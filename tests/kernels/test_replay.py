"""Timed replays: whatever a kernel remembers of earlier calls is of no use to it."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.judge.blend import PLAIN, blended
from kernels.judge.replay import Replayer


def _replayer(slots: int) -> tuple[Replayer, list[torch.Tensor], list[torch.Tensor]]:
    inputs = [torch.arange(4000.0).reshape(40, 100) + 10000 * n for n in range(slots)]
    outputs = [torch.zeros(3, 4) for _ in range(slots)]
    made = Replayer.__new__(Replayer)
    made._tensors = [([x, None], [y]) for x, y in zip(inputs, outputs, strict=True)]
    made._values = [[x.clone(), None] for x in inputs]
    made._scratch = [torch.zeros(8, dtype=torch.uint8)]
    made._spoiler = None
    return made, inputs, outputs


def test_every_timed_call_finds_values_that_no_earlier_call_has_seen() -> None:
    """Outputs and scratch hold NaN before it, inputs a blend of two slots' values that the judge can make again."""
    replayer, inputs, outputs = _replayer(3)
    base = [x.clone() for x in inputs]
    seen: list[torch.Tensor] = []
    for seed, slot in enumerate([0, 1, 0, 0, 2, 1, 0], 1):
        outputs[slot].fill_(7.0)
        replayer._scratch[0].fill_(7)
        replayer._unsettle(slot, seed)
        assert bool(torch.isnan(outputs[slot]).all())
        assert replayer._scratch[0].tolist() == [255] * 8
        again, number = blended((base[slot], 3), (base[(slot + 1) % 3], 3), seed)
        assert torch.equal(again, inputs[slot])
        assert number == 3
        assert not any(torch.equal(inputs[slot], old) for old in seen)
        seen.append(inputs[slot].clone())
    replayer._unsettle(1, PLAIN)
    assert torch.equal(inputs[1], base[1])


@given(st.integers(1, 2**62), st.integers(0, 3))
def test_a_blend_takes_each_element_from_one_of_two_and_about_half_from_each(seed: int, position: int) -> None:
    """So it stays in the domain of both, whatever the type."""
    first, second = torch.zeros(4, 1000, dtype=torch.int8), torch.ones(4, 1000, dtype=torch.int8)
    made = blended((first,) * (position + 1), (second,) * (position + 1), seed)[position]
    assert set(made.unique().tolist()) == {0, 1}
    assert 1700 < int(made.sum()) < 2300


def test_two_inputs_of_a_call_are_blended_by_coins_of_their_own() -> None:
    zeros, ones = torch.zeros(1000), torch.ones(1000)
    left, right = blended((zeros, zeros), (ones, ones), 5)
    assert not torch.equal(left, right)
