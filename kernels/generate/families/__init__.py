"""The families of parametric kernels, one operation per file. A new one is a file and a line in `ALL`."""

from __future__ import annotations

from kernels.generate.families import softmax
from kernels.generate.template import Family

ALL: tuple[Family, ...] = (softmax.Softmax(),)


def families_of(problem: str) -> tuple[Family, ...]:
    """All families that write kernels for a problem; empty where none does."""
    return tuple(family for family in ALL if problem in family.problems)
