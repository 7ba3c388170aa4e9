"""Which nodes a waiting pod should go to, if it can: a preference on the pod, written before its gate comes off.

A pod with scheduling gates may still be given node affinity (KEP-3838); `preferredDuringScheduling` lets the
cluster's scheduler do otherwise, so a preference that is wrong or out of date keeps no pod waiting. What the pod's
owner prefers stays; ours stands beside it, and in an annotation, so that it is known and taken off again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from nightshift.controllers.actuators.kube_client import Object

PLACED = "nightshift.dev/placement"
HOST = "kubernetes.io/hostname"
PREFER_WEIGHT, AVOID_WEIGHT = 50, 100
"""Of 100: to keep off a node with an incident goes before the nodes that our order chose."""
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def placement(item: Object, prefer: Sequence[str], avoid: Sequence[str]) -> Object:
    """The change (JSON merge patch) that makes a gated pod prefer these hosts and keep off those; the owner's own
    preferences stay, what we wrote before goes."""
    before = _terms(*_noted(item))
    kept = [term for term in _preferred(item) if term not in before]
    terms = [*kept, *_terms(prefer, avoid)]
    note = json.dumps({"prefer": list(prefer), "avoid": list(avoid)}) if prefer or avoid else None
    return {
        "metadata": {"annotations": {PLACED: note}},
        "spec": {"affinity": {"nodeAffinity": {_PREFERRED: terms or None}}},
    }


def placed(item: Object) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Hosts that a pod prefers and keeps off by our doing, as its spec has it."""
    prefer, avoid = _noted(item)
    there = _preferred(item)
    return (
        tuple(prefer) if all(term in there for term in _terms(prefer, ())) else (),
        tuple(avoid) if all(term in there for term in _terms((), avoid)) else (),
    )


def _terms(prefer: Sequence[str], avoid: Sequence[str]) -> list[Object]:
    named = ((PREFER_WEIGHT, "In", prefer), (AVOID_WEIGHT, "NotIn", avoid))
    return [
        {"weight": weight, "preference": {"matchExpressions": [{"key": HOST, "operator": how, "values": [*hosts]}]}}
        for weight, how, hosts in named
        if hosts
    ]


def _preferred(item: Object) -> list[Object]:
    affinity = (item.get("spec") or {}).get("affinity") or {}
    return list((affinity.get("nodeAffinity") or {}).get(_PREFERRED) or [])


def _noted(item: Object) -> tuple[list[str], list[str]]:
    """What our annotation says; nothing where somebody else wrote over it."""
    try:
        note = json.loads((item["metadata"].get("annotations") or {}).get(PLACED, "{}"))
        return [str(host) for host in note.get("prefer", ())], [str(host) for host in note.get("avoid", ())]
    except (ValueError, TypeError, AttributeError):
        return [], []
