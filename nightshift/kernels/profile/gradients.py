"""What a search for a hot operation takes up: of a sum and its norm the norm, and the gradients. Without torch, for
the daemon."""

from __future__ import annotations

from collections.abc import Mapping

WEIGHT_GRADIENT = "linear_weight_gradient"
LINEAR = ("linear", "linear_bias")
PLACED = {"rmsnorm_residual": "rmsnorm"}
"""What a job's file computes of an operation that it has no place for as a whole; of the same sizes."""


def products_of(problem: str, sizes: Mapping[str, int]) -> list[tuple[str, dict[str, int]]]:
    """(problem, sizes) of the products that a product's gradients are: its input's, then its weight's."""
    if problem not in (*LINEAR, "matmul"):
        return []
    m, n, k = (sizes[name] for name in "mnk")
    same, back = {"m": m, "n": n, "k": k}, {"m": m, "n": k, "k": n}
    if problem in LINEAR:
        return [("matmul", back), (WEIGHT_GRADIENT, same)]
    return [("linear", back), (WEIGHT_GRADIENT, back)]


def searches_of(problem: str, sizes: Mapping[str, int], backward: bool) -> list[tuple[str, dict[str, int]]]:
    """(problem, sizes) of all that a search for an operation is for; with `backward`, its gradients too. Whether
    there is a problem `…_backward` the searcher knows."""
    own = dict(sizes)
    gradients = products_of(problem, sizes) or [(f"{problem}_backward", own)]
    return [(problem, own), *(gradients if backward else [])]
