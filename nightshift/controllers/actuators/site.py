"""What the actuators of every site do alike: which kinds they carry out, on what, and the plan against the world.

A site's actuator is its table `ARROWS`, of kind and method; this is the one place that goes by it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from nightshift.collectors.base import Permanent
from nightshift.collectors.subject import SubjectKind
from nightshift.controllers.action import (
    Action,
    ActionKind,
    ActionOutcome,
    OutcomeStatus,
    Precondition,
    target_of,
    traits_of,
)

Arrows = Mapping[ActionKind, Callable[[Any, Action], ActionOutcome]]
"""By kind: the method that carries it out, and finds a repeat done."""


class SiteActuator:
    """Fulfils `controllers.action.Actuator`, but for `read` and what each arrow does."""

    plugin: ClassVar[str]
    ARROWS: ClassVar[Arrows]
    TARGETS: ClassVar[dict[ActionKind, SubjectKind]] = {}
    _settings: Any
    """With `actions`: the kinds that people allow; None: all."""
    _now_s: Callable[[], float]

    def __init_subclass__(cls) -> None:
        cls.TARGETS = {kind: target_of(kind) for kind in cls.ARROWS}

    @property
    def name(self) -> str:
        return self.plugin

    def kinds(self) -> frozenset[ActionKind]:
        named = self._settings.actions
        return frozenset(self.TARGETS if named is None else set(named) & set(self.TARGETS))

    def changed(self, action: Action) -> list[str]:
        sentences = []
        for condition in action.preconditions:
            try:
                found = self._fact(action, condition)
            except Permanent as error:
                if not self._is_absent(error):
                    raise
                sentences.append(f"{condition.subject} no longer exists")
                continue
            if found != condition.expected:
                read = f"{condition.fact} is {found or 'not known'}, expected {condition.expected}"
                sentences.append(f"{condition.subject}: {read}")
        return sentences

    def _fact(self, action: Action, condition: Precondition) -> str | None:
        """What the world says of a condition; None where it is not known."""
        raise NotImplementedError

    def _is_absent(self, error: Permanent) -> bool:
        """Whether this says that what was asked for does not exist."""
        raise NotImplementedError

    def execute(self, action: Action) -> ActionOutcome:
        self._check_target(action)
        return self.ARROWS[action.kind](self, action)

    def _check_target(self, action: Action) -> None:
        expected = self.TARGETS.get(action.kind)
        if expected is None or action.kind not in self.kinds():
            raise Permanent(f"action {action.id}: this actuator does no {action.kind}")
        if action.target.kind is not expected:
            raise Permanent(f"action {action.id}: {action.kind} is for a {expected}, not {action.target}")

    def undo(self, action: Action) -> ActionOutcome:
        """Takes back what is ours alone; never another's."""
        self._check_target(action)
        if not action.undo.possible or not traits_of(action.kind).contains:
            return self._refused(action, f"{action.kind} cannot be undone")
        return self._take_back(action)

    def _take_back(self, action: Action) -> ActionOutcome:
        raise NotImplementedError

    def _outcome(self, status: OutcomeStatus, detail: str, **observed: str) -> ActionOutcome:
        return ActionOutcome(status, detail, self._now_s(), observed)

    def _refused(self, action: Action, why: str) -> ActionOutcome:
        return self._outcome(OutcomeStatus.REFUSED, f"{action.kind} of {action.target}: {why}")


def word(value: bool) -> str:
    """How a fact of the world is written."""
    return "true" if value else "false"
