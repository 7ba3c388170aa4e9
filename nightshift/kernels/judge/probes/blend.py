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
SMALL = 1 << 20
"""Elements of a tensor that takes its coins from one draw for all such: a network has hundreds of parameters."""


def blend_into(target: torch.Tensor, first: torch.Tensor, second: torch.Tensor, seed: int, position: int) -> None:
    """Fill `target` (contiguous) from two tensors of its form; `position` is the input's, so that coins differ."""
    if not target.numel():
        return
    if seed == PLAIN:
        target.copy_(first)
        return
    generator = _generator(target.device, seed, position)
    for part, one, other in zip(*(torch.split(x.reshape(-1), PART) for x in (target, first, second)), strict=True):
        torch.where(_heads(part.numel(), generator), one, other, out=part)


def blend_each(targets: Sequence[Any], firsts: Sequence[Any], seconds: Sequence[Any], seed: int) -> None:
    """`blend_into` for each input of a call; what is no tensor stays as it is."""
    small: dict[torch.device, list[tuple[torch.Tensor, ...]]] = {}
    for position, (target, one, other) in enumerate(zip(targets, firsts, seconds, strict=True)):
        if not all(isinstance(x, torch.Tensor) for x in (target, one, other)):
            continue
        if seed == PLAIN or target.numel() > SMALL:
            blend_into(target, one, other, seed, position)
        elif target.numel():
            small.setdefault(target.device, []).append((target, one, other))
    for device, together in small.items():
        sizes = [target.numel() for target, *_ in together]
        heads = _heads(sum(sizes), _generator(device, seed, len(targets)))
        for (target, one, other), of_one in zip(together, torch.split(heads, sizes), strict=True):
            torch.where(of_one.view(target.shape), one, other, out=target)


def _generator(device: torch.device, seed: int, position: int) -> torch.Generator:
    return torch.Generator(device=device).manual_seed(mix(seed, position) >> 1)


def _heads(count: int, generator: torch.Generator) -> torch.Tensor:
    coins = torch.empty(count, dtype=torch.uint8, device=generator.device)
    return coins.random_(generator=generator) < 128


def blended(first: Sequence[Any], second: Sequence[Any], seed: int) -> tuple[Any, ...]:
    """A whole call's inputs: tensors blended, numbers (which depend on the case alone) as they are."""
    made = tuple(
        torch.empty(x.shape, dtype=x.dtype, device=x.device) if isinstance(x, torch.Tensor) else x for x in first
    )
    blend_each(made, first, second, seed)
    return made
