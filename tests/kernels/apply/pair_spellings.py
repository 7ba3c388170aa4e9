"""Rotary embeddings of pairs as models write them. Imports torch alone: a job's process reads this too."""

from __future__ import annotations

from collections.abc import Callable

import torch

Write = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def sliced(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Su et al., and most who write it out."""
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


def unflattened(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """torchtune."""
    y = x.unflatten(-1, (-1, 2))
    return torch.stack((y[..., 0] * cos - y[..., 1] * sin, y[..., 1] * cos + y[..., 0] * sin), -1).flatten(3)


def unbound(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    even, odd = x.reshape(*x.shape[:-1], -1, 2).unbind(-1)
    return torch.stack((cos * even - sin * odd, cos * odd + sin * even), -1).reshape(x.shape)


def chunked(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    even, odd = x.unflatten(-1, (-1, 2)).chunk(2, -1)
    cos, sin = cos[..., None], sin[..., None]
    return torch.cat((even * cos - odd * sin, odd * cos + even * sin), -1).flatten(-2)


def every_two(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """GPT-J and Cohere: tables of the whole width, each value twice."""
    cos, sin = (t.repeat_interleave(2, -1) for t in (cos, sin))
    turned = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    return x * cos + turned * sin


def of_complex(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Llama's reference."""
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * torch.complex(cos, sin)).flatten(3)


def of_given_complex(x: torch.Tensor, turn: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """The same with a table that came as complex numbers."""
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turn).reshape(x.shape)


def written(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    out[..., ::2] = x[..., ::2] * cos - x[..., 1::2] * sin
    out[..., 1::2] = x[..., ::2] * sin + x[..., 1::2] * cos
    return out


SPELLINGS: tuple[Write, ...] = (sliced, unflattened, unbound, chunked, every_two, of_complex, of_given_complex)


def cut(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Halves, as Llama has them in transformers."""
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


def cut_in_two(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    low, high = x.chunk(2, -1)
    return cos * x + sin * torch.cat((high.neg(), low), -1)


def taken_away(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    low, high = x.chunk(2, -1)
    return x * cos - torch.cat((high, -low), -1) * sin


HALVED: tuple[Write, ...] = (cut, cut_in_two, taken_away)
