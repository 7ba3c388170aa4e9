"""Whose cordon stands on a node: the fact that giving a node back rests on, and what it may say.

`cordon_of` names the ids of our actions whose cordon stands, in order, separated by commas; it says `somebody else`
as soon as anybody but us has a part in it, and `nobody` where the node takes work.
"""

from __future__ import annotations

from collections.abc import Iterable

from controllers.action import ActionKind

TAKES_OUT = frozenset({ActionKind.CORDON, ActionKind.DRAIN})
"""Mitigations that leave a node cordoned: no check runs after them, and nothing gives the node back by itself."""
CORDON_OF = "cordon_of"
NOBODY, SOMEBODY_ELSE = "nobody", "somebody else"


def cordon_ids(ids: Iterable[str]) -> str:
    """How the fact names actions."""
    return ",".join(sorted(ids))
