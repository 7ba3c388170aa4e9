"""Whose cordon stands on a node: the fact that giving a node back rests on, and what it may say.

`cordon_of` names the ids of our actions whose cordon stands, in order, separated by commas; it says `another
client` as soon as anybody but us has a part in it, and `nobody` where the node takes work.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from nightshift.controllers.action import Action, kinds_where

TAKES_OUT = kinds_where(lambda row: row.cordons and not row.gives_back_itself)
"""Mitigations that leave a node cordoned: no check runs after them, and nothing gives the node back by itself."""
CORDON_OF = "cordon_of"
NOBODY, SOMEBODY_ELSE = "nobody", "another client"


def node_of(action: Action) -> str:
    """The name of the node that an action on it, or on one of its GPUs, is about."""
    return str(action.params.get("node", action.target.name))


def of_other_incidents(ids: Iterable[str], action_id: str) -> list[str]:
    """Those of these actions that are not of this action's incident (`INCIDENT-KIND-…`, playbooks.plan), sorted."""
    mine = _incident_of(action_id)
    return sorted(other for other in ids if _incident_of(other) != mine)


def _incident_of(action_id: str) -> str:
    found = re.match(r"inc-\d+(?=-)", action_id)
    return found[0] if found else action_id


def cordon_ids(ids: Iterable[str]) -> str:
    """How the fact names actions."""
    return ",".join(sorted(ids))
