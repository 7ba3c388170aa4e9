"""Values for a timed call that no earlier call has seen, made in a few tenths of a millisecond.

A race cannot draw every timed call's inputs anew and hold each against the oracle. So each call gets a *blend*:
every element comes, by a coin of the call's secret seed, from one of two slots' values. A blend stays inside the
problem's domain (each element is one that the generator made), shares no checksum, order or sum with another, and
any call may be the one whose output is checked; so neither remembering earlier answers nor telling old values from
new ones pays. The process that replays the candidate's binaries makes blends between calls, the judge makes the
same again from the seed and compares bit for bit: the same generator on the same device gives the same coins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from nightshift.kernels.draw import mix

PLAIN = 0
"""The seed that takes every element from the first slot."""
PART = 1 << 28
"""Elements at a time: coins for a tensor of many GiB would take as much again."""


def blend_into(target: torch.Tensor, first: torch.Tensor, second: torch.Tensor, seed: int, position: int) -> None:
    """Fill `target` (contiguous) from two tensors of its form; `position` is the input's, so that coins differ."""
    if not target.numel():
        return
    if seed == PLAIN:
        target.copy_(first)
        return
    generator = torch.Generator(device=target.device)
    generator.manual_seed(mix(seed, position) >> 1)
    for part, one, other in zip(*(torch.split(x.reshape(-1), PART) for x in (target, first, second)), strict=True):
        coins = torch.empty(part.shape, dtype=torch.uint8, device=target.device).random_(generator=generator)
        torch.where(coins < 128, one, other, out=part)


def blended(first: Sequence[Any], second: Sequence[Any], seed: int) -> tuple[Any, ...]:
    """A whole call's inputs: tensors blended, numbers (which depend on the case alone) as they are."""
    made: list[Any] = []
    for position, (x, y) in enumerate(zip(first, second, strict=True)):
        if not isinstance(x, torch.Tensor) or not isinstance(y, torch.Tensor):
            made.append(x)
            continue
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        blend_into(out, x.contiguous(), y.contiguous(), seed, position)
        made.append(out)
    return tuple(made)
