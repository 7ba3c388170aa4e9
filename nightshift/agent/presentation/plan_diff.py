"""What a plan changes, as a diff: the world before and after it, and what differs from the plan before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nightshift.agent.units import gpu_hours, sentence
from nightshift.controllers.action import Action, traits_of


@dataclass(frozen=True, slots=True)
class DiffLine:
    """One line: `sign` is -, + or a space."""

    sign: str
    text: str


def effect(action: Action) -> list[DiffLine]:
    """The target before and after; then what the plan sets. Empty where it changes nothing."""
    found: list[DiffLine] = []
    for name, before, after in traits_of(action.kind).changes:
        target = action.target.name
        found += [DiffLine("-", f"{target}: {name}: {before}"), DiffLine("+", f"{target}: {name}: {after}")]
    if found:
        found += [DiffLine("+", f"{sentence(name)}: {value}") for name, value in action.params.items()]
    return found


def against(previous: Action, current: Action) -> list[DiffLine]:
    """How a plan differs from the one that was made before it; lines that both have are left out."""
    old, new = list(_lines(previous)), list(_lines(current))
    gone = [DiffLine("-", text) for text in old if text not in new]
    return gone + [DiffLine("+", text) for text in new if text not in old]


def _lines(action: Action) -> Iterator[str]:
    radius = action.blast_radius
    yield f"{sentence(action.kind)} {action.target.name}"
    yield f"Why: {action.why}"
    yield from (f"{sentence(name)}: {value}" for name, value in action.params.items())
    parts: Sequence[tuple[str, tuple[str, ...]]] = (
        ("jobs", radius.jobs), ("nodes", radius.nodes), ("GPUs", radius.gpus), ("pods", radius.pods)
    )  # fmt: skip
    yield from (f"Touches {word}: {', '.join(names)}" for word, names in parts if names)
    yield f"Costs {gpu_hours(radius.cost_gpu_hours)}"
    yield f"Undo: {action.undo.how}"
    yield from (f"Holds while {p.subject.name} {p.fact} = {p.expected}" for p in action.preconditions)
