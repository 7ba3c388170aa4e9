"""Give a node back: probe it, and uncordon it where the probe passes.

Not among the remedies of a fault: it is drawn up when a fault is gone and only our own cordon or drain still keeps
its node out of use (`agent.incidents.node_return`). It rests on that cordon: a node that somebody else cordoned,
or whose cordon is of another incident, is not what was approved any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nightshift.collectors.subject import SITE
from nightshift.controllers.action import Action, ActionKind, Precondition, Situation, Undo
from nightshift.controllers.cordon import CORDON_OF, cordon_ids
from nightshift.controllers.playbooks.plan import Economy, draw_up
from nightshift.controllers.playbooks.probes import probe_for
from nightshift.controllers.playbooks.spares import AS_SPARE, lacking

_WAITS_S = 12 * 3600.0
"""Nothing grows worse while this waits, and all that it rests on is read again before it begins."""


def return_node(situation: Situation, actions: Sequence[Action], economy: Economy | None = None) -> Action:
    """The plan for the node that the last of these actions took out of use. Raises ValueError without any."""
    if not actions:
        raise ValueError(f"{situation.incident_id}: no node is out of use through Nightshift")
    economy = economy or Economy()
    node, probe = actions[-1].target, probe_for(situation.cause)
    actions = [action for action in actions if action.target == node]  # an incident may have cordoned several
    # Slurm's nodes have no taints
    spare = situation.inventory.fact(node, SITE) is None and lacking(situation.inventory, situation.at_s) > 0
    action = draw_up(
        situation,
        economy,
        ActionKind.RETURN_NODE,
        node,
        why=f"its fault has cleared, and only Nightshift's {actions[-1].kind} keeps it out of use: the "
        f"{probe} probe must pass first",
        undo=Undo(False, "a node that fails again is cordoned by a new plan"),
        nodes=(node,),
        gpus=tuple(situation.inventory.gpus(node, situation.at_s)),
        note="nothing runs there but the probe; if it fails, the node stays cordoned"
        + ("; it returns as a warm spare" if spare else ""),
        params={"probe": probe, **({AS_SPARE: True} if spare else {})},
        preconditions=(Precondition(node, CORDON_OF, cordon_ids([action.id for action in actions])),),
    )
    return replace(action, expires_at_s=situation.at_s + max(economy.expires_s, _WAITS_S))
