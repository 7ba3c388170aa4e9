"""The guard: no sequence of actions passes a limit at any instant, and every refusal says why."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightshift.collectors.subject import TAKES_WORK_SINCE, Inventory, Subject, SubjectKind
from nightshift.controllers.action import Action, ActionKind, BlastRadius, Undo, kinds_where, traits_of
from nightshift.controllers.guard import RATE_S, Commitment, Limit, MaintenanceWindow, Settings, rule

K, A = SubjectKind, ActionKind
NODES, GPUS = 10, 8


def fleet() -> Inventory:
    inventory = Inventory()
    for n in range(NODES):
        node = Subject(K.NODE, f"n{n}")
        inventory.observe(node, Subject(K.RACK, f"r{n // 5}"), 0.0)
        inventory.observe(node, Subject(K.NVLINK_DOMAIN, f"d{n // 2}"), 0.0)
        for g in range(GPUS):
            gpu, pod = Subject(K.GPU, f"GPU-{n}-{g}"), Subject(K.POD, f"ml/j{n // 2}-{g + 8 * (n % 2)}")
            inventory.observe(gpu, node, 0.0)
            inventory.observe(gpu, pod, 0.0)
            inventory.observe(pod, node, 0.0)
            inventory.observe(pod, Subject(K.JOB, f"ml/j{n // 2}"), 0.0)
    return inventory


FLEET = fleet()


def action(kind: ActionKind, target: str, number: int = 0) -> Action:
    subject = Subject.parse(target)
    radius = BlastRadius(
        nodes=(subject.name,) if subject.kind is K.NODE else (),
        gpus=(subject.name,) if subject.kind is K.GPU else (),
        jobs=(subject.name,) if subject.kind is K.JOB else (),
    )
    return Action(f"a{number}-{kind}-{target}", kind, subject, "test", radius, Undo(True, "undo"), 1e9)


def done(action: Action, begun_s: float, released_s: float | None = None) -> Commitment:
    return Commitment(action, begun_s, begun_s + 1, released_s)


def test_a_slow_drip_of_cordons_is_stopped_by_what_stands_not_by_a_window() -> None:
    limits = Settings(cluster_fraction=0.2)
    standing = [done(action(A.CORDON, f"node:n{n}"), n * 86_400.0) for n in (0, 5)]
    ruling = rule(action(A.CORDON, "node:n7"), standing, FLEET, 30 * 86_400.0, limits)
    assert (ruling.allowed, ruling.limit) == (False, Limit.CLUSTER_CAPACITY)
    assert "24 of 80 GPUs" in ruling.reason
    assert "16 are allowed" in ruling.reason
    released = [replace(standing[0], released_s=1.0), standing[1]]
    assert rule(action(A.CORDON, "node:n7"), released, FLEET, 30 * 86_400.0, limits).allowed


@pytest.mark.parametrize(
    ("kind", "unschedulable", "since", "allowed"),
    [
        (A.CORDON, "false", "100.0", True),
        (A.DRAIN, "false", "100.0", True),
        (A.CORDON, "true", "100.0", False),
        (A.CORDON, "false", "0.5", False),
        (A.CORDON, "false", None, False),
        (A.TAINT, "false", "100.0", False),
    ],
)
def test_a_node_that_a_person_uncordoned_does_not_count_for_good(
    kind: ActionKind, unschedulable: str, since: str | None, allowed: bool
) -> None:
    """By the API server's word, and only what it said after our action: older words are from before our cordon."""
    inventory = fleet()
    facts = {"unschedulable": unschedulable} | ({} if since is None else {TAKES_WORK_SINCE: since})
    inventory.describe(Subject(K.NODE, "n0"), **facts)
    standing = [done(action(kind, "node:n0"), 50.0 if since == "100.0" else 1.0)]
    assert rule(action(A.CORDON, "node:n7"), standing, inventory, 9e5, Settings()).allowed is allowed


def test_an_action_that_has_ended_holds_its_node_and_not_the_job_that_it_stopped() -> None:
    """The job runs again elsewhere: counted as long as the node is out, a few drains would forbid every other."""
    drain = replace(action(A.DRAIN, "node:n0"), blast_radius=BlastRadius(("n0",), (), ("ml/j0",)))
    limits = Settings(cluster_fraction=0.2)
    assert rule(action(A.CORDON, "node:n7"), [done(drain, 0.0)], FLEET, 9e5, limits).allowed
    under_way = rule(action(A.CORDON, "node:n7"), [Commitment(drain, 0.0)], FLEET, 9e5, limits)
    assert under_way.limit is Limit.CLUSTER_CAPACITY


def test_what_people_took_out_counts_too() -> None:
    out = frozenset({Subject(K.NODE, "n0"), Subject(K.GPU, "GPU-1-1")})
    ruling = rule(action(A.CORDON, "node:n7"), [], FLEET, 0.0, Settings(), out)
    assert ruling.limit is Limit.CLUSTER_CAPACITY


def test_an_nvlink_domain_keeps_half_of_its_gpus_though_the_cluster_has_room() -> None:
    limits = Settings(cluster_fraction=0.9, rack_fraction=0.9, domain_fraction=0.5, least_nodes=0)
    standing = [done(action(A.DRAIN, "node:n0"), 0.0)]
    assert rule(action(A.DRAIN, "node:n1"), standing, FLEET, 1e5, limits).limit is Limit.DOMAIN_CAPACITY
    assert rule(action(A.DRAIN, "node:n2"), standing, FLEET, 1e5, limits).allowed


def test_the_floor_holds_even_where_shares_would_allow_more() -> None:
    limits = Settings(cluster_fraction=1, rack_fraction=1, domain_fraction=1, floor_gpus=76)
    assert rule(action(A.CORDON, "node:n0"), [], FLEET, 0.0, limits).limit is Limit.FLOOR


def test_a_job_is_not_restarted_again_and_again() -> None:
    past = [done(action(A.RESTART_JOB, "job:ml/j0", n), 100.0 * n) for n in range(2)]
    ruling = rule(action(A.RESTART_JOB, "job:ml/j0", 9), past, FLEET, 300.0)
    assert (ruling.limit, ruling.retry_at_s) == (Limit.JOB_RATE, 3600.0)
    assert rule(action(A.RESTART_JOB, "job:ml/j0", 9), past, FLEET, 3601.0).allowed


def test_one_node_has_one_action_under_way() -> None:
    under_way = [Commitment(action(A.RESET_GPU, "gpu:GPU-0-1"), 10.0)]
    assert rule(action(A.QUARANTINE_GPU, "gpu:GPU-0-2"), under_way, FLEET, 11.0).limit is Limit.BUSY
    assert rule(action(A.RESTART_JOB, "job:ml/j0"), under_way, FLEET, 11.0).limit is Limit.BUSY
    assert rule(action(A.QUARANTINE_GPU, "gpu:GPU-4-2"), under_way, FLEET, 11.0).limit is not Limit.BUSY


def test_an_action_does_not_stand_in_its_own_way() -> None:
    ours = action(A.CORDON, "node:n0")
    assert rule(ours, [Commitment(ours, 10.0)], FLEET, 11.0).allowed


def test_maintenance_and_opt_out_are_respected_from_the_node_to_the_whole_cluster() -> None:
    window = MaintenanceWindow(owner="ops", subjects=("rack:r0",), start_s=0.0, end_s=100.0, reason="cooling works")
    ruling = rule(action(A.CORDON, "node:n1"), [], FLEET, 50.0, Settings(maintenance=(window,)))
    assert (ruling.limit, ruling.retry_at_s) == (Limit.MAINTENANCE, 100.0)
    assert "cooling works" in ruling.reason
    assert rule(action(A.CORDON, "node:n1"), [], FLEET, 100.0, Settings(maintenance=(window,))).allowed
    assert rule(action(A.CORDON, "node:n9"), [], FLEET, 50.0, Settings(maintenance=(window,))).allowed
    assert (
        rule(action(A.CORDON, "node:n1"), [], FLEET, 0.0, Settings(opt_out=("node:n1",))).limit is Limit.OPTED_OUT
    )
    own = fleet()
    own.describe(Subject(K.JOB, "ml/j0"), **{"nightshift-opt-out": "true"})
    assert rule(action(A.QUARANTINE_GPU, "gpu:GPU-0-1"), [], own, 0.0).limit is Limit.OPTED_OUT


def test_what_cannot_be_counted_is_refused() -> None:
    assert rule(action(A.DRAIN, "node:never-seen"), [], FLEET, 0.0).limit is Limit.UNKNOWN_PLACE


@pytest.mark.parametrize("kind", sorted(kinds_where(lambda row: row.harmless)))
def test_what_changes_nothing_is_always_allowed(kind: ActionKind) -> None:
    nothing = Settings(cluster_rate=0, cluster_fraction=0, least_nodes=0)
    assert rule(action(kind, "job:ml/j0"), [], FLEET, 0.0, nothing).allowed


moves = st.tuples(
    st.sampled_from([A.CORDON, A.DRAIN, A.QUARANTINE_GPU, A.RESET_GPU, A.REBOOT_NODE, A.RESTART_JOB]),
    st.integers(0, NODES - 1),
    st.integers(0, GPUS - 1),
    st.sampled_from([1.0, 30.0, 400.0, 2000.0]),
    st.sampled_from(["begin", "begin", "begin", "end", "release"]),
)
limits = st.builds(
    Settings,
    cluster_fraction=st.sampled_from([0.0, 0.1, 0.3, 0.6]),
    rack_fraction=st.sampled_from([0.1, 0.5]),
    domain_fraction=st.sampled_from([0.2, 0.5, 1.0]),
    least_nodes=st.integers(0, 2),
    floor_gpus=st.sampled_from([0, 40, 70]),
    cluster_rate=st.integers(1, 8),
    rack_rate=st.integers(1, 5),
    job_rate=st.integers(1, 2),
)


@settings(max_examples=120, deadline=None)
@given(st.lists(moves, max_size=30), limits)
def test_no_sequence_passes_a_limit_at_any_instant(sequence, chosen: Settings) -> None:  # type: ignore[no-untyped-def]
    begun: list[Commitment] = []
    now_s = 0.0
    for number, (kind, node, gpu, wait_s, what) in enumerate(sequence):
        now_s += wait_s
        if what == "end" and begun:
            begun[number % len(begun)] = replace(begun[number % len(begun)], ended_s=now_s)
        elif what == "release" and begun:
            begun[number % len(begun)] = replace(begun[number % len(begun)], ended_s=now_s, released_s=now_s)
        else:
            target = {A.QUARANTINE_GPU: f"gpu:GPU-{node}-{gpu}", A.RESET_GPU: f"gpu:GPU-{node}-{gpu}"}.get(
                kind, f"job:ml/j{node // 2}" if kind is A.RESTART_JOB else f"node:n{node}"
            )
            wanted = action(kind, target, number)
            ruling = rule(wanted, begun, FLEET, now_s, chosen)
            assert ruling.reason
            assert ruling.allowed == (ruling.limit is None)
            if ruling.allowed:
                begun.append(Commitment(wanted, now_s))
        _holds(begun, now_s, chosen)


def _holds(begun: list[Commitment], now_s: float, chosen: Settings) -> None:
    """The limits, counted here anew and in another way than the guard counts them."""
    out: set[tuple[int, int]] = set()
    for held in begun:
        if held.released_s is None and traits_of(held.action.kind).takes_capacity:
            parts = held.action.target.name.split("-")
            out |= (
                {(int(parts[1]), int(parts[2]))}
                if len(parts) == 3
                else {(int(parts[0][1:]), g) for g in range(GPUS)}
            )
    whole_nodes = chosen.least_nodes * GPUS
    assert len(out) <= max(int(chosen.cluster_fraction * NODES * GPUS), whole_nodes)
    for rack in range(2):
        assert sum(n // 5 == rack for n, _ in out) <= max(int(chosen.rack_fraction * 40), whole_nodes)
    for domain in range(5):
        assert sum(n // 2 == domain for n, _ in out) <= max(int(chosen.domain_fraction * 16), whole_nodes)
    if out:
        assert NODES * GPUS - len(out) >= chosen.floor_gpus
    recent = [held for held in begun if now_s - held.begun_s < RATE_S]
    assert len(recent) <= chosen.cluster_rate
    for number in range(5):
        job = f"ml/j{number}"
        assert sum(held.action.target.name == job for held in recent) <= chosen.job_rate
    under_way = [held.action for held in begun if held.ended_s is None]
    nodes = [n for a in under_way for n in _nodes_of(a)]
    assert len(nodes) == len(set(nodes))


def _nodes_of(action: Action) -> list[int]:
    if action.target.kind is K.JOB:
        first = 2 * int(action.target.name.removeprefix("ml/j"))
        return [first, first + 1]
    return [int(action.target.name.split("-")[1] if action.target.kind is K.GPU else action.target.name[1:])]
