"""The rendered roles against the program's own list of rights, and that list against what an API server is
asked."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import yaml

from nightshift.controllers.action import ActionKind
from nightshift.controllers.actuators.kube_rights import (
    LEASE_RIGHTS,
    OWN_RIGHTS,
    POWER_RIGHTS,
    RIGHTS,
    SOURCE_RIGHTS,
    Right,
    scheduling_rights,
)
from tests.helm.chart import SETS, objects

KINDS = list(RIGHTS)
QUIET = {"kubernetes": {"events": False}}
NO_SOURCE = {"kubernetes": {"enabled": False, "events": False}}
OBSERVE = SOURCE_RIGHTS["kubernetes"]
IMAGE = {"image": {"repository": "nvidia/cuda"}}


def granted(roles: list[dict[str, Any]]) -> set[Right]:
    found = set()
    for rule in (rule for role in roles for rule in role["rules"]):
        assert set(rule) == {"apiGroups", "resources", "verbs"}
        for group, name, verb in itertools.product(rule["apiGroups"], rule["resources"], rule["verbs"]):
            resource, _, subresource = name.partition("/")
            found.add(Right(verb, group, resource, subresource))
    return found


@pytest.mark.parametrize("kinds", [KINDS, *([kind] for kind in KINDS)], ids=",".join)
def test_the_roles_grant_what_the_named_actions_need_and_no_more(kinds: list[ActionKind]) -> None:
    """Of every single action, and of all of them."""
    values = {"mode": "act", "actions": [str(kind) for kind in kinds], "repair": IMAGE, "sources": QUIET}
    values |= {"kernelSearch": {"signerSecret": "signer"}}
    own = frozenset[Right]().union(*(OWN_RIGHTS.get(kind, frozenset()) for kind in kinds))
    roles = objects(values, "Role")
    assert granted(roles) == own
    assert {role["metadata"]["namespace"] for role in roles} == ({"ops"} if own else set())
    wanted = OBSERVE.union(*(RIGHTS[kind] for kind in kinds))
    assert granted(objects(values, "ClusterRole")) == wanted
    assert not any("*" in right for right in wanted)


def test_held_to_namespaces_only_nodes_are_written_cluster_wide() -> None:
    """With rbac.namespaces, pods and jobs can be touched there and nowhere else."""
    values = {"mode": "act", "rbac": {"namespaces": ["a", "b"]}, "sources": QUIET}
    # giving a machine back is granted only where it is named
    kinds = [kind for kind in KINDS if kind not in OWN_RIGHTS and kind is not ActionKind.REPLACE_NODE]
    everything = frozenset[Right]().union(*(RIGHTS[kind] for kind in kinds))
    wide = granted(objects(values, "ClusterRole"))
    assert wide == OBSERVE | {right for right in everything if not right.namespaced}
    roles = objects(values, "Role")
    assert [role["metadata"]["namespace"] for role in roles] == ["a", "b"]
    for role in roles:
        assert granted([role]) == {right for right in everything if right.namespaced}
    config = yaml.safe_load(objects(values, "ConfigMap")[0]["data"]["nightshift.yaml"])
    assert [actuator["access"] for actuator in config["actuators"]] == ["pod"]
    assert config["kubernetes"] == {"pod": {"namespaces": ["a", "b"]}}  # what doctor asks for


@pytest.mark.parametrize("chosen", [("kubernetes",), ("kubernetes_events",), tuple(SOURCE_RIGHTS)[:2], ()])
@pytest.mark.parametrize("agents", [False, True], ids=["", "agents"])
def test_observing_is_what_the_chosen_sources_ask_for(chosen: tuple[str, ...], agents: bool) -> None:
    """A source that is off grants nothing, and one that is listed by hand grants what it needs."""
    switches = {"enabled": "kubernetes" in chosen, "events": "kubernetes_events" in chosen}
    values = {"sources": {"kubernetes": switches}, "node": {"enabled": agents}}
    wanted = [*chosen, *(["node_agents"] if agents else [])]
    rights = frozenset[Right]().union(*(SOURCE_RIGHTS[name] for name in wanted))
    assert granted(objects(values, "ClusterRole")) == rights
    by_hand = {"sources": {**NO_SOURCE, "extra": [{"type": name} for name in chosen]}, "node": {"enabled": agents}}
    assert granted(objects(by_hand, "ClusterRole")) == rights


def test_an_election_by_lease_may_write_leases_of_its_own_namespace_and_nothing_else() -> None:
    """The one write verb beside those of actions, asked for by name; without it observing has none at all."""
    roles = objects(SETS["two replicas by a Lease"], "Role")
    assert [role["metadata"]["namespace"] for role in roles] == ["ops"]
    assert granted(roles) == LEASE_RIGHTS
    assert objects(SETS["three replicas"], "Role") == []


@pytest.mark.parametrize("kinds", [["Job"], ["Job", "JobSet", "PyTorchJob", "RayJob"], []], ids=str)
@pytest.mark.parametrize("kueue", [False, True], ids=["plain", "kueue"])
@pytest.mark.parametrize("act", [False, True], ids=["watches", "acts"])
def test_scheduling_is_granted_what_it_asks_for_and_no_more(act: bool, kueue: bool, kinds: list[str]) -> None:
    """Whatever is followed; and watching has no verb that writes."""
    chosen = {"enabled": True, "act": act, "kueue": kueue, "kinds": kinds}
    mode = {"mode": "act", "actions": ["cordon"]} if act else {}
    values = {**mode, "sources": QUIET, "scheduling": chosen}
    wanted = scheduling_rights(act=act, kueue=kueue, kinds=kinds)
    others = OBSERVE | (RIGHTS[ActionKind.CORDON] if act else frozenset())
    assert granted(objects(values, "ClusterRole")) == wanted | others
    if not act:
        assert {right.verb for right in wanted} == {"list", "watch"}
        return
    spaced = {**values, "rbac": {"namespaces": ["a"]}}
    (role,) = objects(spaced, "Role")
    assert granted([role]) == {r for r in wanted if r.namespaced and r.verb in ("get", "patch")}
    wide = granted(objects(spaced, "ClusterRole"))
    assert {r for r in wide if r.verb == "patch"} == {Right("patch", "", "nodes")}


@pytest.mark.parametrize("act", [False, True], ids=["watches", "acts"])
def test_power_asks_the_api_server_for_nodes_and_pods_and_writes_nothing(act: bool) -> None:
    """Where agents are and which nodes are deleted is listed; leases go to the agents, not to the API server."""
    chosen = SETS["power acts" if act else "power in shadow"]
    others = RIGHTS[ActionKind.SUGGEST_SCALING] if act else frozenset()
    asked = POWER_RIGHTS | (SOURCE_RIGHTS["node_agents"] if chosen.get("node") else frozenset()) | others
    assert granted(objects({**chosen, "sources": QUIET}, "ClusterRole")) == OBSERVE | asked
    assert granted(objects({**chosen, "sources": NO_SOURCE}, "ClusterRole")) == asked


def test_scheduling_that_acts_needs_the_mode_that_acts() -> None:
    with pytest.raises(Exception, match=r"scheduling\.act"):
        objects({"scheduling": {"enabled": True, "act": True}}, "ClusterRole")
