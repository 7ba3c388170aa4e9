"""The families of parametric kernels: every class with `problems` that a module `*family` of an operation holds."""

from __future__ import annotations

from nightshift.kernels.generate.template import Family
from nightshift.kernels.ops import modules


def _found() -> tuple[Family, ...]:
    values = [(module, value) for module in modules("family") for value in vars(module).values()]
    made: list[Family] = [
        value()
        for module, value in values
        if isinstance(value, type) and value.__module__ == module.__name__ and hasattr(value, "problems")
    ]
    # searches ask the families of a problem in turn: in an order that no file's name decides
    return tuple(sorted(made, key=lambda family: family.name))


ALL: tuple[Family, ...] = _found()


def families_of(problem: str) -> tuple[Family, ...]:
    """All families that write kernels for a problem; empty where none does."""
    return tuple(family for family in ALL if problem in family.problems)


def family_named(name: str) -> Family:
    """Raises StopIteration where none has that name."""
    return next(family for family in ALL if family.name == name)


def interprets(name: str) -> bool:
    """Whether a family's kernels run without a GPU, on Triton's interpreter: CUDA C++ and Gluon do not."""
    return not name.endswith(("_cuda", "_hopper"))
