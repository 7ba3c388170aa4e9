"""Preferences of nodes on gated pods, on an API server, ours or a real one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightshift.collectors.base import Permanent
from nightshift.controllers.actuators.kube_client import Object
from nightshift.controllers.actuators.kube_place import HOST, placed, placement
from nightshift.controllers.scheduling.steer import SteerVerb
from tests.controllers.actuators.test_kube_queue import gated_job, mine, queue_of
from tests.kubernetes_api.cluster import Cluster

OWN = {"weight": 7, "preference": {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}}
HOSTS = st.lists(st.sampled_from(["a", "b", "c"]), unique=True, max_size=3)


def waiting_pod(cluster: Cluster, name: str) -> None:
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [OWN]}}
    container = {"name": "c", "image": "registry.invalid/none"}
    spec = {
        "containers": [container],
        "schedulingGates": [{"name": "nightshift.dev/scheduling"}],
        "affinity": affinity,
    }
    cluster.core.create_namespaced_pod(cluster.namespace, {"metadata": {"name": name}, "spec": spec})


def test_a_preference_is_written_before_the_gate_comes_off_beside_the_owners_and_read_back(
    cluster: Cluster,
) -> None:
    waiting_pod(cluster, "p")
    queue = queue_of(cluster)
    (gate,) = mine(cluster, queue.gates())
    assert queue.prefer(gate, ["old"], [])
    assert queue.prefer(gate, ["one", "two"], ["ill"])
    assert queue.read_back(gate).verb is SteerVerb.HOLD
    assert queue.open(gate)
    spec = cluster.core.read_namespaced_pod("p", cluster.namespace).spec
    terms = spec.affinity.node_affinity.preferred_during_scheduling_ignored_during_execution
    said = [
        (term.weight, each.key, each.operator, each.values)
        for term in terms
        for each in term.preference.match_expressions
    ]
    assert said == [(7, "disk", "In", ["ssd"]), (50, HOST, "In", ["one", "two"]), (100, HOST, "NotIn", ["ill"])]
    again = queue.read_back(gate)
    assert (again.verb, again.prefer, again.avoid) == (SteerVerb.START, ("one", "two"), ("ill",))
    assert not queue.prefer(gate, ["late"], []), "without its gate a pod is the scheduler's"
    assert queue.read_back(gate) == again


def test_a_job_whose_gate_is_no_pods_is_refused_a_preference(cluster: Cluster) -> None:
    gated_job(cluster, "j")
    queue = queue_of(cluster)
    (gate,) = mine(cluster, queue.gates())
    with pytest.raises(Permanent, match="on pods only"):
        queue.prefer(gate, ["one"], [])


@given(st.lists(st.tuples(HOSTS, HOSTS), min_size=1, max_size=5), st.booleans())
@settings(max_examples=40, deadline=None)
def test_however_often_it_changes_only_the_newest_preference_and_the_owners_stand(
    turns: list[tuple[list[str], list[str]]], owned: bool
) -> None:
    kept = [OWN] if owned else []
    key = "preferredDuringSchedulingIgnoredDuringExecution"
    item: Object = {"metadata": {"annotations": {}}, "spec": {"affinity": {"nodeAffinity": {key: list(kept)}}}}
    for prefer, avoid in turns:
        change = placement(item, prefer, avoid)
        notes = change["metadata"]["annotations"]
        item = {"metadata": {"annotations": {k: v for k, v in notes.items() if v}}, "spec": change["spec"]}
        assert placed(item) == (tuple(prefer), tuple(avoid))
    terms = item["spec"]["affinity"]["nodeAffinity"][key] or []
    assert terms[: len(kept)] == kept
    assert len(terms) == len(kept) + bool(turns[-1][0]) + bool(turns[-1][1])


def test_an_annotation_that_somebody_wrote_over_is_no_preference_of_ours() -> None:
    for text in ("nonsense", "[1]", '{"prefer": 3}'):
        assert placed({"metadata": {"annotations": {"nightshift.dev/placement": text}}, "spec": {}}) == ((), ())
