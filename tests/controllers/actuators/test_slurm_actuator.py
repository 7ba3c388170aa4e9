"""Slurm's actuator on a real Slurm: what each action does there, whose drain it lifts, and what it refuses."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from nightshift.collectors.base import Permanent, Temporary
from nightshift.collectors.slurm.answers import SlurmNode
from nightshift.collectors.slurm.client import SlurmAccess, SlurmClient, SlurmRefused
from nightshift.collectors.subject import SITE_NODE, Subject, SubjectKind
from nightshift.controllers.action import Action, ActionKind, ActionOutcome, OutcomeStatus, Precondition, UnderWay
from nightshift.controllers.actuators.slurm import (
    Mark,
    SlurmActuator,
    SlurmActuatorSettings,
    SlurmNodes,
    extra_with,
    marks,
    reason_of,
)
from nightshift.controllers.cordon import CORDON_OF, NOBODY, SOMEBODY_ELSE
from tests.agent.killed_on_slurm import planned
from tests.slurm_lab import SlurmLab

A, K, S = ActionKind, SubjectKind, OutcomeStatus
NODE = Subject(K.NODE, "n1")


def actuator_on(lab: SlurmLab, client: SlurmClient | None = None, **settings: object) -> SlurmActuator:
    given = {"features": {"nvlink_degraded": ("nvlink",)}, "check_command": ("true",)} | settings
    made = SlurmActuatorSettings(access=lab.access, **given)
    return SlurmActuator(made, client or lab.client())


def an_action(kind: ActionKind, name: str = "inc-1-1", target: Subject = NODE, why: str = "") -> Action:
    made = planned(kind, target, (), name, time.time())
    return replace(made, why=why) if why else made


def until_done(actuator: SlurmActuator, action: Action) -> ActionOutcome:
    deadline = time.monotonic() + 60
    while True:
        try:
            return actuator.execute(action)
        except Temporary:
            assert time.monotonic() < deadline
            time.sleep(0.1)


# Whose drain it is ------------------------------------------------------------------------------------------------

Case = Callable[[SlurmLab, Action], object]


def _others_extra(lab: SlurmLab, action: Action) -> None:
    lab.call("scontrol", "update", "nodename=n1", "extra=nightshift:another-action:1795740000")


def _without_extra(lab: SlurmLab, action: Action) -> None:
    lab.call("scontrol", "update", "nodename=n1", "extra=")


def _person_over_ours(lab: SlurmLab, action: Action) -> None:
    lab.drain_as_person("n1", "Lüfter defekt, nicht einschalten — 修理中")


def _person_says_ours(lab: SlurmLab, action: Action) -> None:
    lab.drain_as_person("n1", "nightshift: hands off")


def _rebooted(lab: SlurmLab, action: Action) -> None:
    lab.boot("n1")


def _persons_alone(lab: SlurmLab, action: Action) -> None:
    lab.call("scontrol", "update", "nodename=n1", "state=undrain", "extra=")
    lab.await_states({"IDLE"}, "n1")
    lab.drain_as_person("n1", "maintenance")


def _resumed(lab: SlurmLab, action: Action) -> None:
    lab.call("scontrol", "update", "nodename=n1", "state=undrain", user=lab.person)
    lab.await_states({"IDLE"}, "n1")
    lab.drain_as_person("n1", "drained again")


WHOSE: Mapping[str, Case] = {
    "ours": lambda lab, action: None,
    "a person's reason over ours": _person_over_ours,
    "our reason under a person's name": _person_says_ours,
    "our reason, another action's mark": _others_extra,
    "our reason, no mark": _without_extra,
    "ours, and rebooted since": _rebooted,
    "a person's alone": _persons_alone,
    "resumed and drained again by a person": _resumed,
}
"""How a drain can stand when we mean to take ours back. Only the first is ours to lift."""


def lifted(lab: SlurmLab, case: Case) -> bool:
    """Drains by us, brings the case about, undoes: whether the node takes jobs again."""
    actuator, action = actuator_on(lab), an_action(A.CORDON)
    assert actuator.execute(action).status is S.DONE
    case(lab, action)
    before = lab.node("n1")
    outcome = actuator.undo(action)
    after = lab.node("n1")
    if "DRAIN" in after.states:
        assert outcome.status is S.REFUSED
        assert (after.reason, after.reason_by) == (before.reason, before.reason_by)
    return "DRAIN" not in after.states


_FIRST = ("ours", "a person's reason over ours", "ours, and rebooted since")


@pytest.mark.parametrize(
    "name", [name if name in _FIRST else pytest.param(name, marks=pytest.mark.full) for name in WHOSE]
)
def test_undo_lifts_a_drain_of_ours_and_no_other(slurm: SlurmLab, name: str) -> None:
    if slurm.person == SlurmNodes(slurm.client()).user and name == "our reason under a person's name":
        pytest.skip("without root, a person cannot be another user")
    assert lifted(slurm, WHOSE[name]) == (name == "ours")


class Hasty(SlurmClient):
    """Slurm, with a person who acts right between our decision and our write."""

    act: Callable[[], object] | None = None

    def write_after(self, look: str, line_of: Callable[[str], str]) -> str:
        if self.act is not None:
            act, self.act = self.act, None
            act()
        return super().write_after(look, line_of)


def _drain_of_ours(slurm: SlurmLab, actuator: SlurmActuator) -> Action:
    action = an_action(A.CORDON)
    assert actuator.execute(action).status is S.DONE
    return action


@pytest.mark.parametrize("what", ["drain", "undo", "failed check"])
def test_a_persons_drain_between_our_look_and_our_write_is_never_overwritten(slurm: SlurmLab, what: str) -> None:
    """Nothing is written then, so a crash at that moment leaves nothing half done either."""
    client = Hasty(slurm.access)
    actuator = actuator_on(slurm, client, check_command=("false",))
    action = _drain_of_ours(slurm, actuator) if what == "undo" else an_action(A.CORDON)
    theirs = "Lüfter: nicht einschalten — 修理中"

    def act() -> None:
        slurm.drain_as_person("n1", theirs)

    if what == "failed check":
        _drain_of_ours(slurm, actuator)
        action = replace(an_action(A.RETURN_NODE, "inc-1-2"), preconditions=())
        checks = ("squeue", "--noheader", "--name=inc-1-2", "--format=%A")
        while not slurm.call(*checks, "--states=all"):
            with suppress(Temporary):
                actuator.execute(action)
        slurm._await(lambda: slurm.call(*checks, "--states=FAILED"))
    client.act = act
    do = actuator.undo if what == "undo" else actuator.execute
    with pytest.raises(Temporary, match="was changed since it was read") as raised:
        do(action)
    assert theirs in str(raised.value)
    outcome = do(action)
    node = slurm.node("n1")
    assert outcome.status is (S.ALREADY_DONE if what == "drain" else S.REFUSED)
    assert "DRAIN" in node.states
    assert (node.reason, node.reason_by) == (theirs, slurm.person)


class Hastier(SlurmClient):
    """A person who acts after the answer that we compare, and before the write."""

    act: Callable[[], object] = staticmethod(lambda: None)

    def write_after(self, look: str, line_of: Callable[[str], str]) -> str:
        def acted(answer: str) -> str:
            line = line_of(answer)
            self.act()
            return line

        return super().write_after(look, acted)


@pytest.mark.parametrize("what", ["drain", "undo"])
def test_a_persons_drain_in_the_last_milliseconds_is_put_back(slurm: SlurmLab, what: str) -> None:
    client = Hastier(slurm.access)
    actuator = actuator_on(slurm, client)
    action = _drain_of_ours(slurm, actuator) if what == "undo" else an_action(A.CORDON)
    client.act = lambda: slurm.drain_as_person("n1", "Lüfter: nicht einschalten")
    outcome = (actuator.undo if what == "undo" else actuator.execute)(action)
    node = slurm.node("n1")
    assert outcome.status is (S.DONE if what == "undo" else S.ALREADY_DONE)
    assert "DRAIN" in node.states
    assert node.reason.startswith("Lüfter: nicht einschalten")
    assert actuator.undo(action).status is S.REFUSED


def test_a_scontrol_that_keeps_its_words_until_it_ends_still_answers_before_the_write(tmp_path: Path) -> None:
    """Without readline, scontrol has a full buffer before it says anything."""
    (tmp_path / "scontrol").write_text(BUFFERED)
    (tmp_path / "scontrol").chmod(0o755)
    nodes = SlurmNodes(SlurmClient(SlurmAccess(commands=tmp_path), timeout_s=10.0))
    read = SlurmNode("n1", frozenset({"IDLE"}), boot_s=1.0)
    assert nodes.update(read, {"extra": "written"}).extra == "written"


BUFFERED = f"""#!{sys.executable}
import io, sys
out, said = open(1, "wb", buffering=4096), "(null)"
for line in sys.stdin:
    if line.startswith("show node"):
        out.write(f"NodeName=n1 Arch=x\\n   State=IDLE X=1\\n   BootTime=1\\n   Extra={{said}}\\n\\n".encode())
    elif line.startswith("update"):
        said = line.split("extra=")[1].strip()
    else:
        out.write("".join(f"nightshift-end{{i}}\\n" for i in range(500)).encode())
out.flush()
"""


@pytest.mark.full
def test_undo_of_a_drain_does_not_lift_down(slurm: SlurmLab) -> None:
    """RESUME would: a node that died while we had it drained stays down for who repairs it."""
    actuator, action = actuator_on(slurm), an_action(A.CORDON)
    actuator.execute(action)
    slurm.call("scontrol", "update", "nodename=n1", "state=down", f"reason={slurm.node('n1').reason}")
    actuator.undo(action)
    assert "DOWN" in slurm.node("n1").states


def test_two_of_ours_hold_a_node_until_both_are_taken_back(slurm: SlurmLab) -> None:
    actuator = actuator_on(slurm)
    first, second = an_action(A.CORDON, "inc-1-1"), an_action(A.QUARANTINE_GPU, "inc-2-1", Subject(K.GPU, "GPU-1"))
    actuator.execute(first)
    assert actuator.execute(second).status is S.DONE
    assert "stays drained for inc-2-1" in actuator.undo(first).detail
    assert "DRAIN" in slurm.node("n1").states
    actuator.undo(second)
    assert "DRAIN" not in slurm.node("n1").states


def test_what_others_keep_in_extra_and_in_reasons_stays(slurm: SlurmLab) -> None:
    """Words of others in Extra stay around our marks; JSON of another tool is refused before anything is
    changed."""
    actuator, action = actuator_on(slurm), an_action(A.CORDON)
    slurm.call("scontrol", "update", "nodename=n1", "extra=rack 7, row 'b'")
    actuator.execute(action)
    assert slurm.node("n1").extra.startswith("rack 7, row 'b',nightshift:inc-1-1:")
    actuator.undo(action)
    assert slurm.node("n1").extra == "rack 7, row 'b'"
    slurm.call("scontrol", "update", "nodename=n2", 'extra={"rack": 7}')
    with pytest.raises(Permanent, match="JSON of another tool"):
        actuator.execute(replace(action, target=Subject(K.NODE, "n2"), params={"node": "n2"}))
    assert "DRAIN" not in slurm.node("n2").states


@pytest.mark.full
@pytest.mark.parametrize("why", ["größer als 80 °C", '"quoted" \\ and\nbroken', "日本語の理由", "a'b", "x" * 5000])
def test_a_reason_in_any_words_is_one_line_of_ours(slurm: SlurmLab, why: str) -> None:
    actuator, action = actuator_on(slurm), an_action(A.CORDON, why=why)
    assert actuator.execute(action).status is S.DONE
    node = slurm.node("n1")
    assert node.reason == reason_of(action)
    assert actuator.undo(action).status is S.DONE


def test_the_mark_survives_any_word_of_others() -> None:
    mark = Mark("nightshift", "inc-1-cordon-ab", 1795740000.0)
    for others in ("", "rack=7", "a,b", "x nightshift-like y"):
        node = SlurmNode("n1", frozenset({"IDLE"}), extra=others)
        marked = replace(node, extra=extra_with(node, (mark,)))
        assert marks(marked) == (mark,)
        assert extra_with(marked, ()) == others


def test_a_name_that_means_more_than_one_node_is_refused(slurm: SlurmLab) -> None:
    """A host list, an option or a line break would reach scontrol as such."""
    actuator = actuator_on(slurm)
    for name in ("n[1-4]", "ALL,n1", "-n1", "n1\nupdate nodename=n2 state=down"):
        with pytest.raises(Permanent, match="no name of a single Slurm node"):
            actuator.execute(replace(an_action(A.CORDON), params={"node": name}))
    assert all("DRAIN" not in slurm.node(name).states for name in slurm.names)


def test_a_slinky_node_is_drained_by_its_slurm_name(slurm: SlurmLab) -> None:
    """The plan is about the Kubernetes node; Slurm calls it otherwise."""
    action = replace(an_action(A.CORDON, target=Subject(K.NODE, "worker-a")), params={SITE_NODE: "n3"})
    assert actuator_on(slurm).execute(action).status is S.DONE
    assert "DRAIN" in slurm.node("n3").states


# Jobs
# --------------------------------------------------------------------------------------------------------------


def test_a_drain_is_refused_before_its_first_change_for_a_job_that_cannot_be_requeued(slurm: SlurmLab) -> None:
    slurm.run("--nodelist=n1", "--no-requeue")
    outcome = actuator_on(slurm).execute(an_action(A.DRAIN))
    assert outcome.status is S.REFUSED
    assert "nothing was changed" in outcome.detail
    assert "DRAIN" not in slurm.node("n1").states


def test_a_drain_of_a_node_that_a_person_drained_touches_no_job(slurm: SlurmLab) -> None:
    """They left its jobs running on purpose, or did not see them: that is said, and not called done."""
    number = slurm.run("--nodelist=n1")
    slurm.drain_as_person("n1", "mine")
    outcome = actuator_on(slurm).execute(an_action(A.DRAIN))
    assert outcome.status is S.REFUSED
    assert f"root/{number} still run there" in outcome.detail
    assert slurm.job(number, "JobState") == "RUNNING"
    assert slurm.node("n1").reason == "mine"


@pytest.mark.full
def test_a_job_that_saves_on_request_gets_its_signal_once(slurm: SlurmLab) -> None:
    """By its comment; then it is requeued, and not asked again."""
    told = slurm.home / "run" / "saved"
    told.unlink(missing_ok=True)
    script = f"trap 'echo saved >> {told}' USR1; while :; do sleep 0.1; done"
    number = slurm.run(
        "--nodelist=n1", "--comment=nightshift-save=USR1", "--signal=B:USR1@5", script=f'srun bash -c "{script}"'
    )
    time.sleep(0.5)
    actuator = actuator_on(slurm, drain={"save_wait_s": 1.0})
    action = an_action(A.RESTART_JOB, target=Subject(K.JOB, f"root/{number}"))
    with pytest.raises(UnderWay, match="asked to save by SIGUSR1"):
        actuator.execute(action)
    assert until_done(actuator, action).status is S.DONE
    assert slurm.job(number, "Restarts") == "1"
    assert told.read_text().splitlines() == ["saved"]


@pytest.mark.full
def test_a_restart_is_of_the_run_that_was_planned_for(slurm: SlurmLab) -> None:
    """A requeue of somebody else's, after the plan, has done it: it is not done again."""
    number = slurm.run()
    actuator, action = actuator_on(slurm), an_action(A.RESTART_JOB, target=Subject(K.JOB, f"root/{number}"))
    assert actuator.changed(action) == []
    slurm.call("scontrol", "requeue", str(number), user=slurm.person)
    assert until_done(actuator, action).status is S.DONE
    assert slurm.job(number, "Restarts") == "1"
    assert actuator.changed(action) == [f"job:root/{number}: uid is restart 1, expected restart 0"]


def test_a_job_that_has_ended_well_is_not_restarted(slurm: SlurmLab) -> None:
    number = slurm.submit(script="true")
    slurm._await(lambda: slurm.job(number, "JobState") == "COMPLETED")
    with pytest.raises(Permanent, match="only its owner can resubmit it"):
        actuator_on(slurm).execute(an_action(A.RESTART_JOB, target=Subject(K.JOB, f"root/{number}")))


# Nodes that come back
# ----------------------------------------------------------------------------------------------


def test_a_node_that_fails_its_check_is_drained_again(slurm: SlurmLab) -> None:
    """Nothing but the check runs there meanwhile: a job that waits for the node goes on waiting."""
    actuator = actuator_on(slurm, check_command=("false",))
    cordon = an_action(A.CORDON)
    actuator.execute(cordon)
    waiting = slurm.submit("--nodelist=n1")
    action = replace(an_action(A.RETURN_NODE, "inc-1-2"), preconditions=(Precondition(NODE, CORDON_OF, "inc-1-1"),))
    assert actuator.changed(action) == []
    outcome = until_done(actuator, action)
    assert outcome.status is S.FAILED
    assert outcome.left_cordoned
    node = slurm.node("n1")
    assert "DRAIN" in node.states
    assert "did not pass" in node.reason
    assert "ReservationName" not in slurm.call("scontrol", "show", "reservation", check=False)
    assert slurm.job(waiting, "JobState") == "PENDING"


@pytest.mark.full
def test_a_node_that_goes_down_before_its_check_is_drained_again(slurm: SlurmLab) -> None:
    """The check's job would wait for it without an end."""
    actuator = actuator_on(slurm)
    actuator.execute(an_action(A.CORDON))
    action = replace(an_action(A.RETURN_NODE, "inc-1-7"), preconditions=(Precondition(NODE, CORDON_OF, "inc-1-1"),))
    slurm.call("scontrol", "update", "partitionname=main", "state=down")  # no job begins
    try:
        said = ""
        while "is being checked" not in said:
            with pytest.raises(Temporary) as held:
                actuator.execute(action)
            said = str(held.value)
        slurm.call("scontrol", "update", "nodename=n1", "state=down", "reason=Node unexpectedly rebooted")
        outcome = until_done(actuator, action)
    finally:
        slurm.call("scontrol", "update", "partitionname=main", "state=up")
    assert outcome.status is S.FAILED
    assert "went down before its check: Node unexpectedly rebooted" in outcome.detail
    assert {"DRAIN", "DOWN"} <= slurm.node("n1").states
    assert "ReservationName" not in slurm.call("scontrol", "show", "reservation", check=False)


@pytest.mark.full
def test_whose_drain_stands_is_told_as_for_a_cordon(slurm: SlurmLab) -> None:
    nodes = SlurmNodes(slurm.client())
    assert nodes.cordon_of(nodes.get("n1")) == NOBODY
    actuator_on(slurm).execute(an_action(A.CORDON))
    assert nodes.cordon_of(nodes.get("n1")) == "inc-1-1"
    slurm.drain_as_person("n1", "mine")
    assert nodes.cordon_of(nodes.get("n1")) == SOMEBODY_ELSE


# Rights
# ------------------------------------------------------------------------------------------------------------


def test_doctor_is_told_that_this_account_may_not_change_nodes(slurm: SlurmLab) -> None:
    assert actuator_on(slurm).refused() == []
    slurm.plan("forbidden", 1, "writes")
    assert "AdminLevel=Admin" in actuator_on(slurm).refused()[0]


def test_a_missing_right_is_final_and_changes_nothing(slurm: SlurmLab) -> None:
    slurm.plan("forbidden", 1, "writes")
    with pytest.raises(SlurmRefused, match="this account has no right"):
        actuator_on(slurm).execute(an_action(A.CORDON))
    assert "DRAIN" not in slurm.node("n1").states


def test_only_what_slurm_has_is_offered() -> None:
    with pytest.raises(ValueError, match="Slurm has no reset_gpu"):
        SlurmActuatorSettings(actions=(A.RESET_GPU,))
    made = SlurmActuator(SlurmActuatorSettings(), SlurmClient(SlurmAccess()))
    assert A.TAINT not in made.kinds(), "without `features` there is nothing to take off"
