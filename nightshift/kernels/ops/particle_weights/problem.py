"""The weight update of a particle filter with range sensors (Gordon, Salmond and Smith 1993), in logarithms.

Each particle's log weight gains the Gaussian log likelihood of the ranges to k landmarks; the weights are then
normalised by their log-sum-exp.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from nightshift.kernels.draw import Draw
from nightshift.kernels.problem import Axis, Case, Inputs, Problem, Rule, nearest, unusual

SIGMA = 0.5


def reference(
    position: torch.Tensor, log_weight: torch.Tensor, landmark: torch.Tensor, distance: torch.Tensor, sigma: float
) -> torch.Tensor:
    """position: (m, 2); log_weight: (m,); landmark: (k, 2); distance: (k,) → normalised log weights (m,)."""
    apart = (position[:, None, :] - landmark[None, :, :]).square().sum(-1).sqrt()
    likelihood = -0.5 * ((apart - distance) / sigma).square().sum(-1)
    updated = log_weight + likelihood
    return updated - torch.logsumexp(updated, dim=0)


def make_inputs(case: Case, draw: Draw) -> Inputs:
    m, k = case["m"], case["k"]
    position = draw.values((m, 2), case.torch_dtype)
    log_weight = draw.uniform((m,), case.torch_dtype, -4.0, 0.0)
    landmark = draw.normal((k, 2), case.torch_dtype, 3.0)
    distance = draw.uniform((k,), case.torch_dtype, 0.5, 4.0)
    return position, log_weight, landmark, distance, 0.75 if unusual(case) else SIGMA


def one_hot(case: Case, draw: Draw) -> Inputs:
    """All landmarks are in one place, and one particle is as far from it as was measured: its weight becomes 1. The
    others are 16 or 32 away, where 2 was measured."""
    m, k = case["m"], case["k"]
    here = draw.integers((1, 2), 8)
    fits = torch.arange(m, device=draw.device) == draw.integers((1,), m)
    away = torch.where(fits, 2, 16 * (1 + draw.integers((m,), 2)))
    along = draw.integers((m,), 2)
    position = here + torch.stack((away * along, away * (1 - along)), dim=-1)
    weight = torch.where(fits, 0.0, -0.25 * draw.integers((m,), 17))
    distance = torch.full((k,), 2.0, device=draw.device)
    return position.float(), weight, here.expand(k, 2).float(), distance, SIGMA


def _usual(case: Case) -> Iterator[Case]:
    """Nothing is a multiple of the other deviation, 0.75."""
    return nearest(case, "m", lambda near: not unusual(near))


PARTICLE_WEIGHTS = Problem(
    name="particle_weights",
    family="particle_weights",
    reference=reference,
    make_inputs=make_inputs,
    cases=(Case.of("float32", m=4 << 20, k=8),),
    axes=(Axis("m", (1, 7, 1021, 4096), 1, 1 << 20), Axis("k", (1, 3, 8), 1, 32)),
    compulsory_bytes=lambda case: (4 * case["m"] + 3 * case["k"]) * case.element_bytes,
    flops=lambda case: 9 * case["m"] * case["k"],
    dtypes=("float32",),
    distributions=("normal", "large_mean", "ties", "near_constant", "tiny"),
    numbers=1,
    rules=(Rule("one_hot", one_hot, _usual),),
)
