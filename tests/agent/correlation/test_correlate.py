"""One fault, one incident: what belongs together, what is kept apart, and what comes back."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightshift.agent.correlation.correlate import CorrelationDecision, DecisionVerb, KnownIncident, correlate
from nightshift.agent.correlation.kinship import EFFECTS, SAME, STAGE, Kin, first_cause, kin_of
from nightshift.agent.store.incident import IncidentState
from nightshift.collectors.frame import Instant
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.controllers.action import KINDS, Action, ActionKind, BlastRadius, Undo
from nightshift.controllers.guard import Commitment
from nightshift.detectors.base import Fault, Finding, Severity, State

K = SubjectKind
NODES, GPUS_PER_NODE = 4, 8


def fleet() -> Inventory:
    """Four nodes of eight GPUs; job a runs on nodes 0 and 1, job b on node 2, job c on the first half of node 3."""
    inventory = Inventory()
    for n in range(NODES):
        node = Subject(K.NODE, f"n{n}")
        inventory.observe(node, Subject(K.RACK, f"r{n // 2}"), 0.0)
        for g in range(GPUS_PER_NODE):
            gpu = Subject(K.GPU, f"GPU-{n}-{g}")
            inventory.observe(gpu, node, 0.0)
            job = {0: "a", 1: "a", 2: "b", 3: "c" if g < 4 else ""}[n]
            if job:
                rank = g + GPUS_PER_NODE * (n if job == "a" else 0)
                pod, member = Subject(K.POD, f"ml/{job}-{rank}"), Subject(K.RANK, f"ml/{job}#{rank}")
                inventory.observe(gpu, pod, 0.0)
                inventory.observe(pod, node, 0.0)
                inventory.observe(pod, Subject(K.JOB, f"ml/{job}"), 0.0)
                inventory.observe(member, pod, 0.0)
                inventory.observe(member, Subject(K.JOB, f"ml/{job}"), 0.0)
    return inventory


def finding(fault: Fault, subject: str, since_s: float, at_s: float | None = None, **facts: float | str) -> Finding:
    return Finding(
        detector=fault.value,
        fault=fault,
        subject=Subject.parse(subject),
        state=State.FIRING,
        since=Instant(since_s),
        at=Instant(since_s + 5 if at_s is None else at_s),
        severity=Severity.WARNING,
        summary=f"{fault} on {subject}",
        score=2.0,
        threshold=1.0,
        facts=facts,
    )


def xid(code: int, subject: str, since_s: float) -> Finding:
    return replace(finding(Fault.XID, subject, since_s, xid=float(code)), detector=f"xid{code}")


def known(
    *findings: Finding, state: IncidentState = IncidentState.OPEN, begun: tuple[Commitment, ...] = (), **more: float
) -> KnownIncident:
    return KnownIncident("INC-1", state, findings, min(f.since.t_s for f in findings), begun=begun, **more)


def act(kind: ActionKind, target: str, begun_s: float, **radius: tuple[str, ...]) -> Commitment:
    """An action of ours, done 10 s after it began."""
    subject = Subject.parse(target)
    node = {"node": f"n{subject.name.split('-')[1]}"} if subject.kind is K.GPU else {}
    action = Action("a1", kind, subject, "test", BlastRadius(**radius), Undo(False, ""), 1e9, node)  # type: ignore[arg-type]
    return Commitment(action, begun_s, begun_s + 10.0)


def opened(decisions: list[CorrelationDecision]) -> list[frozenset[Finding]]:
    assert {d.verb for d in decisions} <= {DecisionVerb.OPEN}
    return [frozenset(f.episode for f in d.findings) for d in decisions]  # type: ignore[misc]


def test_effects_run_up_the_stages_so_that_causes_never_form_a_ring() -> None:
    for rule in EFFECTS:
        for cause in rule.causes:
            for effect in rule.effects:
                if cause is not effect and STAGE[cause] >= STAGE[effect]:
                    assert cause is Kin.FOLLOWER or STAGE[cause] < STAGE[effect], (cause, effect)
    assert set(STAGE) == set(Kin)
    assert all(rule.window_s > 0 for rule in SAME)


def test_memory_errors_and_their_xids_on_one_gpu_are_one_incident() -> None:
    found = [
        finding(Fault.HBM_DEGRADED, "gpu:GPU-0-3", 1000.0),
        xid(63, "gpu:GPU-0-3", 1900.0),
        xid(94, "gpu:GPU-0-3", 1901.0),
        xid(45, "gpu:GPU-0-3", 1901.5),
        xid(154, "gpu:GPU-0-3", 1902.0),
        finding(Fault.HANG, "job:ml/a", 1930.0),
    ]
    found = [replace(f, at=Instant(1940.0)) for f in found]
    (decision,) = correlate(found, [], fleet(), 1940.0)
    assert decision.verb is DecisionVerb.OPEN
    assert len(decision.findings) == len(found)
    assert decision.cause.fault is Fault.HBM_DEGRADED


def test_a_leaking_rank_and_another_jobs_divergence_on_its_node_are_two_incidents() -> None:
    inventory = fleet()
    for g in range(4, 8):
        inventory.observe(Subject(K.GPU, f"GPU-3-{g}"), Subject(K.POD, "ml/d-0"), 0.0)
    inventory.observe(Subject(K.POD, "ml/d-0"), Subject(K.NODE, "n3"), 0.0)
    inventory.observe(Subject(K.POD, "ml/d-0"), Subject(K.JOB, "ml/d"), 0.0)
    found = [finding(Fault.GPU_MEMORY_LEAK, "gpu:GPU-3-1", 100.0), finding(Fault.LOSS_DIVERGED, "job:ml/d", 110.0)]
    assert len(opened(correlate(found, [], inventory, 120.0))) == 2


def test_a_users_illegal_access_on_a_gpu_with_old_memory_errors_is_its_own_incident() -> None:
    hbm = finding(Fault.HBM_DEGRADED, "gpu:GPU-0-3", 1000.0, 9000.0)
    (decision,) = correlate([xid(31, "gpu:GPU-0-3", 9000.0)], [known(hbm)], fleet(), 9005.0)
    assert decision.verb is DecisionVerb.OPEN


def test_one_follower_xid_alone_opens_an_incident_and_one_after_its_cause_does_not() -> None:
    (alone,) = correlate([xid(45, "gpu:GPU-0-3", 50.0)], [], fleet(), 60.0)
    assert alone.verb is DecisionVerb.OPEN
    (after,) = correlate([xid(45, "gpu:GPU-0-3", 50.0)], [known(xid(79, "gpu:GPU-0-3", 49.0))], fleet(), 60.0)
    assert after.verb is DecisionVerb.ATTACH
    assert not after.news


def test_a_cause_read_late_joins_the_incident_of_its_effect_and_becomes_the_cause() -> None:
    hang = finding(Fault.HANG, "job:ml/a", 1030.0, 1040.0)
    (decision,) = correlate([xid(79, "gpu:GPU-1-2", 1000.0)], [known(hang)], fleet(), 1045.0)
    assert (decision.verb, decision.incident_id, decision.news) == (DecisionVerb.ATTACH, "INC-1", True)


def test_a_job_stop_long_after_a_gpu_error_is_not_blamed_on_it() -> None:
    decisions = correlate(
        [finding(Fault.HANG, "job:ml/a", 9000.0)], [known(xid(79, "gpu:GPU-1-2", 10.0))], fleet(), 9e3
    )
    assert [d.verb for d in decisions] == [DecisionVerb.OPEN]


def test_correctable_memory_errors_alone_do_not_take_a_divergence_that_began_before_them() -> None:
    loss = finding(Fault.LOSS_DIVERGED, "job:ml/a", 1000.0, 4000.0)
    decisions = correlate([finding(Fault.HBM_DEGRADED, "gpu:GPU-1-2", 4000.0)], [known(loss)], fleet(), 4005.0)
    assert [d.verb for d in decisions] == [DecisionVerb.OPEN]


def test_a_host_leak_takes_the_oom_kill_that_ends_it() -> None:
    leak = finding(Fault.HOST_MEMORY_LEAK, "pod:ml/b-4", 100.0, 20_000.0)
    (decision,) = correlate([finding(Fault.OOM_KILL, "pod:ml/b-4", 20_010.0)], [known(leak)], fleet(), 20_015.0)
    assert decision.verb is DecisionVerb.ATTACH
    assert "limit" in decision.reason


def test_a_lost_source_suppresses_the_silence_of_what_it_covers_but_not_another_fault() -> None:
    lost = finding(Fault.SOURCE_LOST, "source:dcgm_exporter http://n2", 500.0, 600.0, covers="node:n2")
    gone, xid79 = finding(Fault.GPU_LOST, "gpu:GPU-2-1", 520.0), xid(119, "gpu:GPU-2-5", 590.0)
    decisions = correlate([gone, xid79], [known(lost)], fleet(), 600.0)
    verbs = {d.findings[0].fault: d.verb for d in decisions}
    assert verbs[Fault.GPU_LOST] is DecisionVerb.ATTACH
    (other,) = correlate([finding(Fault.LOSS_DIVERGED, "job:ml/b", 590.0)], [known(lost)], fleet(), 600.0)
    assert other.verb is DecisionVerb.OPEN


def test_several_sources_of_one_node_are_one_incident() -> None:
    lost = [
        finding(Fault.SOURCE_LOST, f"source:{name} n2", 500.0 + 5 * i, 520.0, covers="node:n2")
        for i, name in enumerate(("dcgm_exporter", "cadvisor", "node_log"))
    ]
    assert len(correlate(lost, [], fleet(), 520.0)) == 1


def test_a_fault_that_returns_reopens_its_incident_and_one_after_the_window_does_not() -> None:
    leak = replace(finding(Fault.GPU_MEMORY_LEAK, "gpu:GPU-0-1", 100.0, 900.0), state=State.CLEAR)
    past = known(leak, state=IncidentState.RESOLVED, resolved_s=1000.0)
    (soon,) = correlate([finding(Fault.GPU_MEMORY_LEAK, "gpu:GPU-0-1", 1500.0)], [past], fleet(), 1505.0)
    assert (soon.verb, soon.incident_id) == (DecisionVerb.REOPEN, "INC-1")
    (late,) = correlate([finding(Fault.GPU_MEMORY_LEAK, "gpu:GPU-0-1", 9500.0)], [past], fleet(), 9505.0)
    assert late.verb is DecisionVerb.OPEN


def test_an_incident_closed_by_a_person_is_not_reopened_by_the_alarm_that_goes_on() -> None:
    leak = finding(Fault.GPU_MEMORY_LEAK, "gpu:GPU-0-1", 100.0, 900.0)
    past = known(leak, state=IncidentState.RESOLVED, resolved_s=1000.0)
    decisions = correlate([replace(leak, at=Instant(1100.0))], [past], fleet(), 1100.0)
    assert [d.verb for d in decisions] == [DecisionVerb.UPDATE]


def test_a_change_of_state_is_stored_at_once_and_an_unchanged_alarm_only_now_and_then() -> None:
    leak = finding(Fault.GPU_MEMORY_LEAK, "gpu:GPU-0-1", 100.0, 900.0)
    again, gone = replace(leak, at=Instant(905.0)), replace(leak, at=Instant(905.0), state=State.NO_DATA)
    assert correlate([again], [known(leak)], fleet(), 905.0) == []
    (decision,) = correlate([gone], [known(leak)], fleet(), 905.0)
    assert decision.verb is DecisionVerb.UPDATE
    assert decision.findings[0].state is State.NO_DATA


def test_a_further_xid_in_a_burst_is_stored_at_once_and_is_news() -> None:
    burst = replace(xid(63, "gpu:GPU-0-1", 100.0), at=Instant(110.0))
    more = replace(
        burst, at=Instant(115.0), facts={"xid": 63.0, "codes": "63 94", "announced_recovery": "Drain and Reset"}
    )
    (decision,) = correlate([more], [known(burst)], fleet(), 115.0)
    assert (decision.verb, decision.news) == (DecisionVerb.UPDATE, True)


def test_the_stop_that_our_own_restart_causes_belongs_to_its_incident() -> None:
    leak = finding(Fault.GPU_MEMORY_LEAK, "gpu:GPU-0-1", 100.0, 900.0)
    acting = known(leak, state=IncidentState.CONFIRMING, begun=(act(ActionKind.RESTART_JOB, "job:ml/a", 920.0),))
    (decision,) = correlate([finding(Fault.HANG, "job:ml/a", 925.0)], [acting], fleet(), 960.0)
    assert decision.verb is DecisionVerb.ATTACH


def reboot_of_n0(begun_s: float) -> Commitment:
    return act(ActionKind.REBOOT_NODE, "node:n0", begun_s, jobs=("ml/a",), nodes=("n0",))


@pytest.mark.parametrize(
    ("found", "joins"),
    [
        (finding(Fault.HANG, "job:ml/a", 1030.0), True),
        (xid(45, "gpu:GPU-1-3", 1030.0), True),  # the stopped job's process on another node
        (finding(Fault.GPU_LOST, "gpu:GPU-0-5", 1030.0), True),
        (finding(Fault.SOURCE_LOST, "source:dcgm n0", 1030.0, covers="node:n0"), True),
        (finding(Fault.GPU_LOST, "gpu:GPU-1-5", 1030.0), False),
        (xid(79, "gpu:GPU-0-5", 1030.0), False),
        (xid(79, "gpu:GPU-1-5", 1030.0), False),
        (finding(Fault.SOURCE_LOST, "source:dcgm n1", 1030.0, covers="node:n1"), False),
        (finding(Fault.HANG, "job:ml/b", 1030.0), False),
        (finding(Fault.HANG, "job:ml/a", 1000.0), False),  # before it
        (finding(Fault.HANG, "job:ml/a", 1700.0), False),  # long after it
    ],
)
def test_only_what_our_action_can_cause_where_it_acted_is_its_consequence(found: Finding, joins: bool) -> None:
    cause = finding(Fault.PCIE_DEGRADED, "gpu:GPU-0-1", 100.0, 110.0)
    acting = known(cause, state=IncidentState.CONFIRMING, begun=(reboot_of_n0(1020.0),))
    (decision,) = correlate([found], [acting], fleet(), 1710.0)
    assert (decision.verb is DecisionVerb.ATTACH) is joins


def test_a_gpu_that_falls_off_the_bus_beside_what_our_reboot_explains_is_a_fault_of_its_own() -> None:
    cause = finding(Fault.PCIE_DEGRADED, "gpu:GPU-0-1", 100.0, 110.0)
    acting = known(cause, state=IncidentState.CONFIRMING, begun=(reboot_of_n0(1020.0),))
    found = [finding(Fault.GPU_LOST, "gpu:GPU-0-5", 1030.0), xid(79, "gpu:GPU-0-5", 1031.0)]
    (decision,) = correlate(found, [acting], fleet(), 1040.0)
    assert (decision.verb, len(decision.findings)) == (DecisionVerb.OPEN, 2)


def test_a_gpu_lost_on_another_node_soon_after_a_quarantine_is_no_consequence_of_it() -> None:
    """One job over two nodes: a label on a GPU of one stops nothing on the other."""
    first = replace(xid(48, "gpu:GPU-1-5", 100.0), state=State.CLEAR)
    quarantine = act(ActionKind.QUARANTINE_GPU, "gpu:GPU-1-5", 164.0, gpus=("GPU-1-5",), jobs=("ml/a",))
    acting = known(first, state=IncidentState.CONFIRMING, acted_s=164.0, begun=(quarantine,))
    found = [
        finding(Fault.GPU_LOST, "gpu:GPU-0-4", 671.0),
        xid(79, "gpu:GPU-0-4", 675.0),
        replace(finding(Fault.GPU_LOST, "gpu:GPU-0-4", 675.0), detector="kernel_events"),
    ]
    for arrived in ([found[0]], [found[1]], [found[2]], found):
        (decision,) = correlate(arrived, [acting], fleet(), 680.0)
        assert (decision.verb, decision.incident_id) == (DecisionVerb.OPEN, None)


@given(
    st.sampled_from(sorted(ActionKind)),
    st.sampled_from(["node:n0", "node:n2", "gpu:GPU-0-1", "gpu:GPU-2-1", "job:ml/a", "job:ml/b", "pod:ml/b-3"]),
    st.sampled_from(sorted(Fault)),
    st.sampled_from(["node:n1", "node:n0", "gpu:GPU-0-6", "gpu:GPU-1-1", "gpu:GPU-2-1", "job:ml/a", "job:ml/b"]),
    st.sampled_from([13, 43, 45, 48, 74, 79, 154]),
    st.floats(900.0, 2000.0),
)
def test_no_fault_is_blamed_on_an_action_that_did_not_reach_it(
    kind: ActionKind, target: str, fault: Fault, subject: str, code: int, since_s: float
) -> None:
    jobs = ("ml/a",) if target in ("node:n0", "gpu:GPU-0-1") else ("ml/b",)
    ours = act(kind, target, 1000.0, jobs=jobs if KINDS[kind].stops_jobs else ())
    old = finding(Fault.ANOMALY, "gpu:GPU-3-7", 1.0, 2.0)
    new = finding(fault, subject, since_s, **({"xid": float(code)} if fault is Fault.XID else {}))
    (decision,) = correlate([new], [known(old, begun=(ours,))], fleet(), 2000.0)
    if decision.verb is not DecisionVerb.ATTACH:
        return
    assert 1000.0 <= since_s <= 1610.0
    assert fault in (Fault.HANG, Fault.JOB_CRASH, Fault.GPU_LOST, Fault.SOURCE_LOST) or code in (43, 45, 154)
    side = {"a": ("n0", "n1", "GPU-0-6", "GPU-1-1", "ml/a"), "b": ("GPU-2-1", "ml/b")}
    assert subject.partition(":")[2] in side["a" if target in ("node:n0", "gpu:GPU-0-1", "job:ml/a") else "b"]
    if fault is Fault.GPU_LOST and not subject.startswith("job:"):  # no detector loses a GPU at a job
        assert (kind, target, subject) in {
            (k, t, s)
            for k in (ActionKind.RESET_GPU, ActionKind.REBOOT_NODE)
            for t, s in (
                ("node:n0", "node:n0"), ("node:n0", "gpu:GPU-0-6"), ("node:n2", "gpu:GPU-2-1"),
                ("gpu:GPU-0-1", "node:n0"), ("gpu:GPU-0-1", "gpu:GPU-0-6"), ("gpu:GPU-2-1", "gpu:GPU-2-1"),
            )
        }  # fmt: skip


def test_a_hang_after_two_gpu_faults_joins_one_and_leaves_the_faults_apart() -> None:
    found = [
        xid(94, "gpu:GPU-0-1", 1000.0),
        xid(79, "gpu:GPU-1-1", 1002.0),
        finding(Fault.HANG, "job:ml/a", 1030.0),
    ]
    decisions = correlate(found, [], fleet(), 1040.0)
    assert sorted(len(d.findings) for d in decisions) == [1, 2]


def big_fleet(nodes: int) -> Inventory:
    inventory = Inventory()
    for n in range(nodes):
        inventory.observe(Subject(K.NODE, f"n{n}"), Subject(K.RACK, f"r{n // 16}"), 0.0)
    return inventory


def test_a_storm_is_one_incident_and_its_later_waves_join_it() -> None:
    inventory = big_fleet(200)

    def wave(nodes: range, at_s: float) -> list[Finding]:
        return [
            finding(Fault.SOURCE_LOST, f"source:dcgm_exporter n{n}", at_s, at_s + 1, covers=f"node:n{n}")
            for n in nodes
        ]

    (first,) = correlate(wave(range(120), 100.0), [], inventory, 101.0)
    assert first.verb is DecisionVerb.OPEN
    assert len(first.findings) == 120
    storm = KnownIncident("INC-9", IncidentState.OPEN, first.findings, 101.0)
    (later,) = correlate(wave(range(120, 200), 130.0), [storm], inventory, 131.0)
    assert (later.verb, later.incident_id) == (DecisionVerb.ATTACH, "INC-9")


def test_ten_thousand_findings_are_correlated_within_seconds() -> None:
    inventory = big_fleet(2000)
    lost = [
        finding(Fault.SOURCE_LOST, f"source:s{s} n{n}", 100.0 + s, 110.0, covers=f"node:n{n}")
        for n in range(2000)
        for s in range(5)
    ]
    began = time.process_time()
    decisions = correlate(lost, [], inventory, 110.0)
    assert sum(len(d.findings) for d in decisions) == 10_000
    assert time.process_time() - began < 20.0


places = st.one_of(
    st.builds(lambda n, g: f"gpu:GPU-{n}-{g}", st.integers(0, 3), st.integers(0, 7)),
    st.sampled_from(["job:ml/a", "job:ml/b", "job:ml/c", "rank:ml/a#3", "pod:ml/b-2", "node:n1", "gpu:unknown"]),
)
any_finding = st.one_of(
    st.builds(
        finding,
        st.sampled_from([f for f in Fault if f is not Fault.XID]),
        places,
        st.integers(0, 40).map(lambda n: 100.0 * n),
        st.just(4000.0),
    ),
    st.builds(
        xid,
        st.sampled_from([13, 31, 43, 45, 48, 63, 74, 79, 94, 95, 119, 154]),
        places,
        st.integers(0, 40).map(lambda n: 100.0 * n),
    ),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(any_finding, max_size=12), st.lists(any_finding, max_size=5), st.randoms(use_true_random=False))
def test_decisions_do_not_depend_on_the_order_and_lose_nothing(new, old, random) -> None:  # type: ignore[no-untyped-def]
    incidents = [KnownIncident(f"INC-{i}", IncidentState.OPEN, (f,), 10.0 * i) for i, f in enumerate(old)]
    shuffled, turned = random.sample(new, len(new)), random.sample(incidents, len(incidents))
    decisions = correlate(new, incidents, fleet(), 4000.0)
    assert decisions == correlate(shuffled, turned, fleet(), 4000.0)
    stored = {f.episode for f in old}
    placed = [f.episode for d in decisions if d.verb is not DecisionVerb.UPDATE for f in d.findings]
    assert sorted(placed) == sorted({f.episode for f in new} - stored)
    assert all(d.incident_id is None or d.verb is not DecisionVerb.OPEN for d in decisions)


@settings(max_examples=100, deadline=None)
@given(st.lists(any_finding, min_size=1, max_size=8))
def test_a_follower_is_never_the_first_cause_where_anything_else_is_there(found: list[Finding]) -> None:
    if any(kin_of(f) not in (Kin.FOLLOWER, Kin.ANOMALY) for f in found):
        assert kin_of(first_cause(found)) not in (Kin.FOLLOWER, Kin.ANOMALY)


def test_an_alarm_that_does_not_page_opens_joins_and_storms_like_any_other() -> None:
    """Alone it opens an incident; beside an open one it is attached; in many places it is a storm."""
    weak = replace(finding(Fault.STRAGGLER, "rank:ml/a#3", 100.0), pages=False)
    (alone,) = correlate([weak], [], fleet(), 105.0)
    assert (alone.verb, alone.findings[0].pages) == (DecisionVerb.OPEN, False)
    (beside,) = correlate([weak], [known(xid(74, "gpu:GPU-0-3", 90.0))], fleet(), 105.0)
    assert beside.verb is DecisionVerb.ATTACH
    many = [replace(finding(Fault.THROTTLE, f"gpu:GPU-{n}-0", 100.0), pages=False) for n in range(4)]
    many += [replace(finding(Fault.THROTTLE, f"gpu:GPU-{n}-1", 100.0), pages=False) for n in range(4)]
    inventory = fleet()
    for n in range(NODES):
        inventory.observe(Subject(K.NODE, f"n{n}"), Subject(K.RACK, "r0"), 1.0)
    (storm,) = correlate(many, [], inventory, 105.0)
    assert (storm.verb, any(found.pages for found in storm.findings)) == (DecisionVerb.OPEN, True)
