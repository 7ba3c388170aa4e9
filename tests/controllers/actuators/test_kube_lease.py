"""Holding a Lease object: against an API server, with clocks that the test moves."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from kubernetes import client

from nightshift.collectors.base import Temporary
from nightshift.collectors.kubernetes.api import Refused
from nightshift.controllers.actuators.kube_client import KubeClient
from nightshift.controllers.actuators.kube_lease import RIGHTS, KubeLease
from tests.controllers.kube_scenes import client_with, rules_of
from tests.kubernetes_api.cluster import Cluster
from tests.kubernetes_api.faults import Fault

NAME = "nightshift"


@dataclass
class Clock:
    t_s: float = 1_790_000_000.0

    def __call__(self) -> float:
        return self.t_s


def stand(cluster: Cluster, holder: str, clock: Clock, *, wall_s: float = 1_790_000_000.0) -> KubeLease:
    kube, start_s = KubeClient(cluster.transport), clock()
    now_s = lambda: wall_s + clock() - start_s  # noqa: E731
    return KubeLease(kube, cluster.namespace, NAME, holder, 6.0, now_s=now_s, monotonic_s=clock)


def read(cluster: Cluster) -> client.V1LeaseSpec:
    return client.CoordinationV1Api(cluster.api).read_namespaced_lease(NAME, cluster.namespace).spec


def test_one_holds_the_other_waits_until_it_has_seen_no_renewal_for_the_lease(cluster: Cluster) -> None:
    """Taken over after exactly the holder's duration on the taker's clock, and the takeover is counted."""
    clock = Clock()
    a, b = stand(cluster, "a", clock), stand(cluster, "b", clock)
    assert (a.hold(), b.hold()) == (True, False)
    clock.t_s += 5.0
    assert (a.hold(), b.hold()) == (True, False)  # renewed
    clock.t_s += 5.9
    assert not b.hold()
    clock.t_s += 0.2
    assert b.hold()
    assert not a.hold()
    spec = read(cluster)
    assert (spec.holder_identity, spec.lease_transitions, spec.lease_duration_seconds) == ("b", 1, 6)


def test_a_holders_wrong_clock_neither_keeps_nor_loses_the_lease(cluster: Cluster) -> None:
    """The times in the object are for people: a day ahead or behind, only the lack of renewals counts."""
    clock = Clock()
    for holder, wall_s in (("ahead", 1_790_086_400.0), ("behind", 1_789_913_600.0)):
        held, other = stand(cluster, holder, clock, wall_s=wall_s), stand(cluster, f"not-{holder}", clock)
        assert held.hold()
        assert not other.hold()
        clock.t_s += 6.1
        assert other.hold()
        other.release()


def test_a_replica_that_starts_beside_a_dead_holder_waits_the_whole_lease(cluster: Cluster) -> None:
    """It cannot know since when the holder is silent."""
    clock = Clock()
    assert stand(cluster, "dead", clock).hold()
    clock.t_s += 3600.0
    late = stand(cluster, "late", clock)
    assert not late.hold()
    clock.t_s += 6.1
    assert late.hold()


def test_given_back_it_is_taken_at_once_and_never_given_back_for_another(cluster: Cluster) -> None:
    clock = Clock()
    a, b = stand(cluster, "a", clock), stand(cluster, "b", clock)
    assert a.hold()
    b.release()
    assert read(cluster).holder_identity == "a"
    a.release()
    assert b.hold()


def test_of_two_that_take_an_ended_lease_from_the_same_version_one_fails(cluster: Cluster) -> None:
    """The write holds only for the version that was read, whichever comes second."""
    clock = Clock()
    gone, a, b = (stand(cluster, name, clock) for name in ("gone", "a", "b"))
    assert gone.hold()
    assert (a.hold(), b.hold()) == (False, False)
    clock.t_s += 6.1
    put, taken = a._kube.request, []

    def after_the_other(method: str, path: str, **rest: object) -> object:
        taken.append(b.hold())
        return put(method, path, **rest)  # type: ignore[arg-type]

    a._kube.request = after_the_other  # type: ignore[method-assign, assignment]
    assert not a.hold()
    assert taken == [True]
    assert read(cluster).holder_identity == "b"


def test_with_just_its_rights_it_is_held_and_given_back(cluster: Cluster) -> None:
    """What the chart grants is enough, and each right is needed."""
    clock = Clock()
    few = client_with(cluster, [], own=rules_of(RIGHTS))
    lease = KubeLease(few, cluster.namespace, NAME, "a", 6.0, monotonic_s=clock)
    assert lease.hold()
    assert lease.hold()
    lease.release()
    for left_out in RIGHTS:
        fewer = client_with(cluster, [], own=rules_of(RIGHTS - {left_out}))
        name = NAME if left_out.verb != "create" else "new"
        with pytest.raises(Refused, match="forbidden"):
            KubeLease(fewer, cluster.namespace, name, "a", 6.0, monotonic_s=clock).hold()


def test_a_server_that_does_not_answer_is_told_and_a_lost_answer_is_found_out(cluster: Cluster) -> None:
    if cluster.server is None:
        pytest.skip("a real API server does not fail on request")
    clock = Clock()
    lease = stand(cluster, "a", clock)
    cluster.server.faults.plan(Fault.LOST_REPLY, matches=lambda method, path: method == "POST")
    with pytest.raises(Temporary):
        lease.hold()
    assert lease.hold()
    cluster.server.faults.plan(Fault.UNAVAILABLE, 1)
    with pytest.raises(Temporary):
        lease.hold()
    assert lease.hold()
    assert read(cluster).lease_transitions == 0
