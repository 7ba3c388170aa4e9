"""A rack's plan on an actuator of single nodes: a step per node (`controllers.action.node_steps`), begun together.

Every step is read, carried out and taken back under an id of its own, so a crash between two nodes costs nothing: a
repeat finds the done ones done. The plan is done once all steps are; it is not done where none began.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from nightshift.collectors.base import Permanent
from nightshift.controllers.action import (
    Action,
    ActionKind,
    ActionOutcome,
    Actuator,
    OutcomeStatus,
    UnderWay,
    node_steps,
)

_DONE = frozenset({OutcomeStatus.DONE, OutcomeStatus.ALREADY_DONE})


class RackActuator:
    """Another actuator, and rack drains where it can drain nodes. Fulfils `controllers.action.Actuator`."""

    def __init__(self, inner: Actuator) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    @property
    def name(self) -> str:
        return self._inner.name

    def kinds(self) -> frozenset[ActionKind]:
        found = self._inner.kinds()
        return found | {ActionKind.DRAIN_RACK} if ActionKind.DRAIN in found else found

    def changed(self, action: Action) -> list[str]:
        return [sentence for part in node_steps(action) for sentence in self._inner.changed(part)]

    def execute(self, action: Action) -> ActionOutcome:
        if action.kind is not ActionKind.DRAIN_RACK:
            return self._inner.execute(action)
        return self._together(action, list(self._executed(action)))

    def _executed(self, action: Action) -> Iterator[ActionOutcome]:
        """Each step taken a step further: one that waits, or that is refused, keeps no other from its turn."""
        for part in node_steps(action):
            try:
                yield self._inner.execute(part)
            except UnderWay as waits:
                yield ActionOutcome(OutcomeStatus.UNDER_WAY, str(waits), 0.0)
            except Permanent as error:
                yield ActionOutcome(OutcomeStatus.FAILED, f"{part.target.name}: {error}", 0.0)

    def read(self, action: Action) -> ActionOutcome:
        if action.kind is not ActionKind.DRAIN_RACK:
            return self._inner.read(action)
        found = [self._inner.read(part) for part in node_steps(action)]
        statuses = {outcome.status for outcome in found}
        last_s = max(outcome.at_s for outcome in found)
        if OutcomeStatus.UNKNOWN in statuses:
            told = next(outcome for outcome in found if outcome.status is OutcomeStatus.UNKNOWN)
            return ActionOutcome(OutcomeStatus.UNKNOWN, told.detail, last_s)
        if len(statuses) == 1:
            return ActionOutcome(found[0].status, _words(found), last_s)
        return ActionOutcome(OutcomeStatus.UNDER_WAY, _words(found), last_s)

    def undo(self, action: Action) -> ActionOutcome:
        if action.kind is not ActionKind.DRAIN_RACK:
            return self._inner.undo(action)
        return self._together(action, [self._inner.undo(part) for part in node_steps(action)])

    def _together(self, action: Action, found: list[ActionOutcome]) -> ActionOutcome:
        """The outcome of all steps. Raises UnderWay while one of them runs; what failed is said once all ended."""
        if any(outcome.status is OutcomeStatus.UNDER_WAY for outcome in found):
            raise UnderWay(_words(found))
        last_s = max(outcome.at_s for outcome in found)
        bad = [outcome for outcome in found if outcome.status not in _DONE]
        if not bad:
            return ActionOutcome(OutcomeStatus.DONE, _words(found), last_s)
        left = {"cordoned": "true"} if len(bad) < len(found) or any(o.left_cordoned for o in bad) else {}
        status = OutcomeStatus.UNKNOWN if any(o.status is OutcomeStatus.UNKNOWN for o in bad) else bad[0].status
        return ActionOutcome(status, f"{_words(found)}: {bad[0].detail}", last_s, left)


def _words(found: list[ActionOutcome]) -> str:
    counts = Counter("done" if o.status in _DONE else o.status.value.replace("_", " ") for o in found)
    return f"{len(found)} nodes: " + ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
