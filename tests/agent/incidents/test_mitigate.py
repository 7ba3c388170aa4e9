"""From cause to action: the least disruptive remedy that fits, with its cost, its undo and its reasons."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightshift.agent.approvals.policy import ApprovalRule, ApprovalSettings, rule_for
from nightshift.agent.incidents.advisor import REMEDIES, choose
from nightshift.collectors.frame import Instant
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.controllers.action import STOPPED_GPUS, Action, ActionKind, Playbook, Precondition, Situation
from nightshift.controllers.playbooks.plan import Economy
from nightshift.controllers.playbooks.plugins import ALL, build
from nightshift.detectors.base import Fault, Finding, Severity, State

K, A = SubjectKind, ActionKind
PLAYBOOKS = build()


def fleet() -> Inventory:
    """Two nodes; job `ml/a` of 12 pods over both, and `serve/solo`, one pod of its own job, on the last GPU."""
    inventory = Inventory()
    for n in range(2):
        node = Subject(K.NODE, f"n{n}")
        inventory.observe(node, Subject(K.RACK, "r0"), 0.0)
        for g in range(8):
            gpu, rank = Subject(K.GPU, f"GPU-{n}-{g}"), 8 * n + g
            inventory.observe(gpu, node, 0.0)
            pod = f"ml/a-{rank}" if rank < 12 else "serve/solo" if rank == 15 else ""
            if pod:
                inventory.observe(gpu, Subject(K.POD, pod), 0.0)
                inventory.observe(Subject(K.POD, pod), node, 0.0)
                job = Subject(K.JOB, "ml/a" if rank < 12 else "serve/solo")
                inventory.observe(Subject(K.POD, pod), job, 0.0)
    return inventory


FLEET = fleet()


def situation(cause: Fault, subject: str, *also: Fault, **facts: float | str) -> Situation:
    found = tuple(
        Finding(
            "test",
            f,
            Subject.parse(subject),
            State.FIRING,
            Instant(900.0),
            Instant(1000.0),
            Severity.WARNING,
            "",
            1,
            0,
        )
        for f in (cause, *also)
    )
    return Situation("INC-7", cause, Subject.parse(subject), found, FLEET, 1000.0, facts)


def chosen(*args: object, **facts: float | str) -> Action:
    action = choose(situation(*args, **facts), PLAYBOOKS).proposal.action  # type: ignore[arg-type]
    assert action is not None
    return action


def test_a_leak_in_one_rank_restarts_its_job_from_the_newest_checkpoint() -> None:
    action = chosen(Fault.GPU_MEMORY_LEAK, "gpu:GPU-0-3", checkpoint_step=400.0, checkpoint_s=400.0)
    assert (action.kind, str(action.target)) == (A.RESTART_JOB, "job:ml/a")
    assert action.params["checkpoint_step"] == 400
    assert action.blast_radius.cost_gpu_hours == pytest.approx(12 * (600 + 600) / 3600)
    assert action.blast_radius.cost_of_waiting_gpu_hours > action.blast_radius.cost_gpu_hours
    assert len(action.blast_radius.pods) == 12


def test_a_restart_is_bound_to_the_very_job_where_its_uid_is_known() -> None:
    inventory = fleet()
    inventory.describe(Subject.parse("job:ml/a"), uid="u-1")
    case = replace(situation(Fault.GPU_MEMORY_LEAK, "gpu:GPU-0-3"), inventory=inventory)
    action = choose(case, PLAYBOOKS).proposal.action
    assert action is not None
    assert Precondition(Subject.parse("job:ml/a"), "uid", "u-1") in action.preconditions
    assert [p.fact for p in chosen(Fault.GPU_MEMORY_LEAK, "gpu:GPU-0-3").preconditions] == ["running"]


def test_a_leak_in_a_pod_that_runs_alone_restarts_only_that_pod() -> None:
    action = chosen(Fault.HOST_MEMORY_LEAK, "pod:serve/solo")
    assert (action.kind, action.target.name) == (A.RESTART_POD, "serve/solo")


def test_a_quarantine_says_why_and_blames_the_memory_only_where_it_is_the_memory() -> None:
    called = {
        "xid": 61.0,
        "recovery_action": "contact_support",
        "recovery_reason": "NVIDIA: Xid 61 → contact_support",
    }
    assert chosen(Fault.HBM_DEGRADED, "gpu:GPU-0-3").why.startswith("its memory degrades")
    action = chosen(Fault.XID, "gpu:GPU-0-3", **called)
    assert (action.kind, action.why.startswith("NVIDIA: Xid 61")) == (A.QUARANTINE_GPU, True)


def test_damaged_training_resumes_from_before_the_onset_and_keeps_what_came_later() -> None:
    action = chosen(
        Fault.LOSS_DIVERGED,
        "job:ml/a",
        onset_step=250.0,
        checkpoint_step=400.0,
        checkpoint_s=900.0,
        safe_checkpoint_step=200.0,
        safe_checkpoint_s=500.0,
    )
    params = {"keep_checkpoints": True, "checkpoint_step": 200, "save_first": False}
    assert action.params == params | {STOPPED_GPUS: 12}
    assert rule_for(action, ApprovalSettings(wide_gpus=11)) is ApprovalRule.TWO, (
        "none of them named, all of them stopped"
    )
    assert rule_for(action, ApprovalSettings(wide_gpus=12)) is ApprovalRule.ONE
    assert "must not be resumed from" in action.why


def test_without_a_checkpoint_from_before_the_onset_the_owner_decides() -> None:
    choice = choose(situation(Fault.LOSS_DIVERGED, "job:ml/a", onset_step=250.0), PLAYBOOKS)
    assert choice.proposal.action is not None
    assert choice.proposal.action.kind is A.NOTIFY_OWNER
    assert choice.considered[0][0] is A.RESTART_JOB
    assert "owner" in choice.considered[0][1]


def test_stalls_that_cost_less_than_a_restart_are_left_to_the_owner() -> None:
    small = {"lost_fraction": 0.01, "checkpoint_step": 1.0, "checkpoint_s": 900.0}
    assert chosen(Fault.DATA_STALL, "job:ml/a", **small).kind is A.NOTIFY_OWNER
    assert chosen(Fault.DATA_STALL, "job:ml/a", **(small | {"lost_fraction": 0.4})).kind is A.RESTART_JOB


@pytest.mark.parametrize(
    ("facts", "kind", "target"),
    [
        ({}, A.QUARANTINE_GPU, "gpu:GPU-0-3"),
        ({"recovery_action": "reset_gpu"}, A.RESET_GPU, "gpu:GPU-0-3"),
        ({"recovery_action": "reboot_node"}, A.REBOOT_NODE, "node:n0"),
        ({"recovery_action": "reset_gpu", "remap_failure": 1.0}, A.QUARANTINE_GPU, "gpu:GPU-0-3"),
    ],
)
def test_memory_errors_go_by_what_the_driver_calls_for(
    facts: dict[str, float | str], kind: ActionKind, target: str
) -> None:
    action = chosen(Fault.HBM_DEGRADED, "gpu:GPU-0-3", **facts)
    assert (action.kind, str(action.target)) == (kind, target)


def test_a_users_crash_restarts_the_job_and_never_the_hardware() -> None:
    assert chosen(Fault.XID, "gpu:GPU-0-3", xid=31.0, recovery_action="restart_app").kind is A.RESTART_JOB


@pytest.mark.parametrize(
    "nothing",
    [
        situation(Fault.XID, "gpu:GPU-0-3", xid=45.0),
        situation(Fault.XID, "gpu:GPU-0-3", xid=121.0, recovery_action="none"),
        situation(Fault.SOURCE_LOST, "source:dcgm_exporter n0"),
        situation(Fault.ANOMALY, "gpu:GPU-0-3"),
    ],
    ids=["follower xid alone", "xid to be ignored", "source lost", "anomaly"],
)
def test_where_nothing_is_called_for_nothing_is_done(nothing: Situation) -> None:
    choice = choose(nothing, PLAYBOOKS)
    assert choice.proposal.action is None
    assert choice.proposal.reason


def test_a_degraded_link_cordons_and_drains_only_once_a_job_suffers() -> None:
    assert chosen(Fault.NVLINK_DEGRADED, "gpu:GPU-0-3").kind is A.CORDON
    drain = chosen(Fault.NVLINK_DEGRADED, "gpu:GPU-0-3", Fault.STRAGGLER)
    assert drain.kind is A.DRAIN
    assert drain.undo.kind is A.UNCORDON


def test_only_what_an_actuator_can_do_is_proposed() -> None:
    leak = situation(Fault.GPU_MEMORY_LEAK, "gpu:GPU-0-3")
    choice = choose(leak, PLAYBOOKS, frozenset({A.NOTIFY_OWNER}))
    assert choice.proposal.action is not None
    assert choice.proposal.action.kind is A.NOTIFY_OWNER


def test_a_second_attempt_is_another_action_and_the_same_attempt_the_same() -> None:
    first, again = (chosen(Fault.HBM_DEGRADED, "gpu:GPU-0-3") for _ in range(2))
    assert first.id == again.id
    assert first.plan_sha256 == again.plan_sha256
    assert chosen(Fault.HBM_DEGRADED, "gpu:GPU-0-3", attempt=1.0).id != first.id


def test_the_catalogue_is_whole_and_in_its_order() -> None:
    order = list(ActionKind)
    kinds = [playbook.kind for playbook in PLAYBOOKS]
    assert kinds == sorted(kinds, key=order.index)
    assert len(ALL) == len(set(kinds))
    assert set(REMEDIES) == set(Fault)
    assert {k for remedies in REMEDIES.values() for k in remedies} <= set(kinds)


facts = st.dictionaries(
    st.sampled_from(
        ["checkpoint_step", "checkpoint_s", "safe_checkpoint_step", "onset_step", "lost_fraction", "xid"]
    ),
    st.floats(0, 1e6) | st.sampled_from([math.nan, math.inf]) | st.text(max_size=5),
)
subjects = st.sampled_from(
    [
        "gpu:GPU-0-3",
        "gpu:GPU-1-6",
        "gpu:unknown",
        "job:ml/a",
        "node:n1",
        "pod:serve/solo",
        "rank:ml/a#3",
        "source:x",
    ]
)


@settings(deadline=None)
@given(st.sampled_from(list(Fault)), subjects, facts, st.sampled_from(PLAYBOOKS))
def test_every_playbook_answers_every_situation_with_a_whole_plan_or_a_reason(
    cause: Fault, subject: str, known: dict[str, float | str], playbook: Playbook
) -> None:
    proposal = playbook.propose(situation(cause, subject, **known))
    assert proposal.reason
    if proposal.action is not None:
        action = proposal.action
        assert action.kind is playbook.kind
        assert action.expires_at_s == 1000.0 + Economy().expires_s
        assert action.undo.how
        assert len(action.plan_sha256) == 64
        assert not action.blast_radius.cost_gpu_hours < 0


def test_a_gpu_that_used_up_its_repairs_is_quarantined_for_return() -> None:
    """What the ladder says goes over what the Xid calls for; without an actuator for quarantine, the return is
    opened."""
    facts = {"recovery_action": "reset_gpu", "xid": 48.0, "return": "reset gpu was tried 2 times in 7 days"}
    action = chosen(Fault.XID, "gpu:GPU-0-3", **facts)
    assert action.kind is A.QUARANTINE_GPU
    assert action.why.startswith("reset gpu was tried 2 times")
    can = frozenset({A.OPEN_RMA, A.RESET_GPU})
    rma = choose(situation(Fault.XID, "gpu:GPU-0-3", **facts), PLAYBOOKS, can).proposal.action
    assert rma is not None
    assert rma.kind is A.OPEN_RMA


def test_a_node_that_is_not_ready_is_drained_once_a_job_on_it_suffers() -> None:
    assert chosen(Fault.NODE_CONDITION, "node:n0").kind is A.CORDON
    assert chosen(Fault.NODE_CONDITION, "node:n0", Fault.HANG).kind is A.DRAIN


def noticed(node: str, due_s: float | None, made_by: str = "", state: State = State.FIRING) -> Situation:
    """A cloud announces the end of a node's machine."""
    told = situation(Fault.NODE_CONDITION, f"node:{node}")
    facts = {"trouble": "notice"} | ({"due_s": due_s} if due_s is not None else {})
    finding = replace(told.findings[0], facts=facts, state=state)
    inventory = fleet()
    if made_by:
        inventory.describe(Subject(K.NODE, node), replaced_by=made_by)
    return replace(told, findings=(finding,), inventory=inventory)


def idle(told: Situation) -> Situation:
    """The same where no job runs."""
    inventory = Inventory()
    for child, parent in (("gpu:GPU-0-0", "node:n0"), ("node:n0", "rack:r0")):
        inventory.observe(Subject.parse(child), Subject.parse(parent), 0.0)
    inventory.describe(Subject(K.NODE, "n0"), replaced_by=told.inventory.fact(Subject(K.NODE, "n0"), "replaced_by"))
    return replace(told, inventory=inventory)


@pytest.mark.parametrize(
    ("told", "kind", "expires_s"),
    [
        (noticed("n0", 1600.0), A.DRAIN, 1600.0),
        (noticed("n0", 9e9), A.DRAIN, 4600.0),
        (noticed("n0", None, "gke a3"), A.DRAIN, 4600.0),
        (noticed("n0", 500.0), A.DRAIN, 4600.0),
        (idle(noticed("n0", 9e9, "gke a3")), A.START_MAINTENANCE, 4600.0),
        (idle(noticed("n0", 9e9, "aks pool1")), A.CORDON, 4600.0),
        (noticed("n0", 1600.0, state=State.CLEAR), A.CORDON, 4600.0),
    ],
)
def test_jobs_leave_a_machine_before_its_cloud_takes_it(
    told: Situation, kind: ActionKind, expires_s: float
) -> None:
    """A drain is worth nothing once the machine has gone; an idle one of GKE is maintained at once."""
    action = choose(told, PLAYBOOKS).proposal.action
    assert action is not None
    assert (action.kind, action.expires_at_s) == (kind, expires_s)
    assert action.blast_radius.jobs == (("ml/a",) if kind is A.DRAIN else ())


def test_a_notice_on_one_node_of_an_incident_moves_no_jobs_off_another() -> None:
    told = noticed("n0", 1600.0)
    other = replace(told.findings[0], subject=Subject(K.NODE, "n1"))
    mine = replace(told.findings[0], facts={"trouble": "condition"})
    action = choose(replace(told, findings=(mine, other)), PLAYBOOKS).proposal.action
    assert action is not None
    assert (action.kind, action.target.name) == (A.CORDON, "n0")


@pytest.mark.parametrize(
    ("made_by", "kind"),
    [
        ("karpenter default-x7k2p", A.REPLACE_NODE),
        ("cluster_api gpus/machine-1", A.REPLACE_NODE),
        ("gke a3", A.REPLACE_NODE),
        ("eks workers", A.QUARANTINE_GPU),
        ("", A.QUARANTINE_GPU),
    ],
)
def test_a_rented_machine_that_no_repair_mends_is_replaced(made_by: str, kind: ActionKind) -> None:
    told = situation(Fault.XID, "gpu:GPU-0-3", xid=64.0, remap_failure="Xid 64")
    inventory = fleet()
    inventory.describe(Subject(K.NODE, "n0"), **({"replaced_by": made_by} if made_by else {}))
    choice = choose(replace(told, inventory=inventory), PLAYBOOKS)
    assert choice.proposal.action is not None
    assert choice.proposal.action.kind is kind
    if kind is A.REPLACE_NODE:
        assert choice.proposal.action.blast_radius.jobs == ("ml/a",)
        lax = ApprovalSettings(default=ApprovalRule.AUTOMATIC)
        assert rule_for(choice.proposal.action, lax) is ApprovalRule.ONE
