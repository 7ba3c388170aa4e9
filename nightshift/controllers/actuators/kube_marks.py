"""Marks on objects: what an action did, under its id, written in the very patch that does it.

So a repeat, or a reader after a crash, finds its own work; and what is somebody else's is told apart.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from nightshift.controllers.action import Action, ActionKind
from nightshift.controllers.actuators.kube_client import KubeClient, Object
from nightshift.controllers.actuators.kube_nodes import is_cordoned
from nightshift.controllers.cordon import TAKES_OUT

MARKER = "nightshift.dev/action."
"""Prefix of annotations, one for each kind: JSON `{"id", "at_s", "phase", "undone"}` of the newest such action.
The phase says what the object shows: a drain's node is `cordoned`; the jobs' own marks tell how far they are."""


def cordoning(node: Object, kind: ActionKind) -> Object:
    """The change that cordons a node for an action of a kind. Where it is not cordoned, marks of other kinds are of
    cordons that somebody has ended: this one is not to be taken for theirs."""
    over = {} if is_cordoned(node) else {MARKER + other: None for other in sorted(TAKES_OUT - {kind})}
    return {"spec": {"unschedulable": True}, "metadata": {"annotations": over}}


class Marks:
    """Reads and writes marks."""

    def __init__(self, kube: KubeClient, field_manager: str, now_s: Callable[[], float]) -> None:
        self._kube, self._manager, self._now_s = kube, field_manager, now_s

    def patch(
        self,
        path: str,
        obj: Object,
        action: Action,
        change: Object,
        *,
        phase: str = "done",
        undone: bool = False,
        jobs: list[str] | None = None,
        theirs: bool = False,
    ) -> Object:
        """One write: the change and the mark together. Holds only for the version that was read. `theirs`: the node
        was cordoned by somebody else before, so that the cordon is not ours to take back."""
        facts = {"id": action.id, "at_s": self._now_s(), "phase": phase, "undone": undone}
        more = ({"jobs": jobs} if jobs else {}) | ({"theirs": True} if theirs else {})
        mark = json.dumps(facts | more)
        meta = change.get("metadata", {})
        annotations = {**meta.get("annotations", {}), MARKER + action.kind: mark}
        body = {**change, "metadata": {**meta, "annotations": annotations}}
        version = str(obj["metadata"]["resourceVersion"])
        return self._kube.merge(path, body, version=version, manager=self._manager)

    def of(self, obj: Object, kind: ActionKind) -> dict[str, Any] | None:
        """The newest mark of a kind; None where there is none, or its action was taken back."""
        text = (obj["metadata"].get("annotations") or {}).get(MARKER + kind)
        try:
            mark = json.loads(text) if text else None
        except ValueError:
            return None
        return mark if isinstance(mark, dict) and not mark.get("undone") else None

    def has(self, obj: Object, action: Action) -> bool:
        mark = self.of(obj, action.kind)
        return mark is not None and mark.get("id") == action.id

    def phase(self, obj: Object, action: Action) -> str | None:
        """How far an action of several steps is; None where it has not begun on this object."""
        mark = self.of(obj, action.kind)
        return str(mark.get("phase")) if mark is not None and mark.get("id") == action.id else None
