"""The reference problems: every `Problem` that a module `*problem` of an operation's folder holds.

Such a module holds the torch code that users write (the reference), the input generator, the benchmarked shapes and
what the operation must at least move and calculate. A new one is found here by its name.
"""

from __future__ import annotations

from nightshift.kernels.ops import modules
from nightshift.kernels.problem import Problem, ProblemError


def _found() -> tuple[Problem, ...]:
    values = (value for module in modules("problem") for value in vars(module).values())
    # a problem is often derived from another one, which its module then imports: each counts once
    named = {problem.name: problem for problem in values if isinstance(problem, Problem)}
    return tuple(named[name] for name in sorted(named))


ALL: tuple[Problem, ...] = _found()
BY_NAME: dict[str, Problem] = {problem.name: problem for problem in ALL}


def named(name: str) -> Problem:
    """The problem of that name. Raises ProblemError that lists the names."""
    try:
        return BY_NAME[name]
    except KeyError:
        raise ProblemError(f"problem: {name!r} is none of {', '.join(sorted(BY_NAME))}") from None
