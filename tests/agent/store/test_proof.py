"""A restarted job is recovered once it makes steps at or past its checkpoint, and not because nothing is heard
of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nightshift.agent.incidents.recovery_proof import ResumedProgress
from nightshift.agent.store.incident import HistoryStep, Incident, IncidentState
from nightshift.collectors.frame import StepSeries
from nightshift.collectors.history import History
from nightshift.collectors.subject import Subject
from nightshift.collectors.tick import Tick
from nightshift.controllers.action import ActionKind, OutcomeStatus, UnderWay
from nightshift.detectors.base import Fault, Severity
from tests.agent.incidents import JOB, a_diagnosis, an_action

RANK = Subject.parse("rank:team/job#0")


def incident(cause: Fault = Fault.GPU_MEMORY_LEAK, checkpoint: int | None = 400, **facts: float) -> Incident:
    """Acting since 1000 s, confirming since 1100 s."""
    action = an_action("INC-1-1", ActionKind.RESTART_JOB, JOB)
    params = {} if checkpoint is None else {"checkpoint_step": checkpoint}
    history = (HistoryStep(1000.0, IncidentState.APPROVED, IncidentState.ACTING, "intent_stored", "act"),)
    return Incident(
        id="INC-1",
        state=IncidentState.CONFIRMING,
        title="",
        severity=Severity.WARNING,
        opened_s=900.0,
        updated_s=1100.0,
        entered_s=1100.0,
        findings=(),
        diagnosis=replace(a_diagnosis(cause), facts=facts),
        action=replace(action, params=params),
        plan_reason="",
        attempt=1,
        clear_since_s=1100.0,
        history=history,
        version=5,
    )


def history(*points: tuple[float, int]) -> History:
    """Steps (time, number) of the job's first rank."""
    made = History()
    if points:
        t_s, step = (np.array(column) for column in zip(*points, strict=True))
        series = StepSeries(RANK, "r", step.astype(np.int64), t_s.astype(np.float64), {}, "log")
        made.add(Tick(1200.0, steps=[series]))
    return made


def proved(known: History, case: Incident) -> str:
    outcome = ResumedProgress(lambda: known, lambda: 1200.0)(case)
    assert outcome.status is OutcomeStatus.DONE
    return outcome.detail


def waits(known: History, case: Incident, why: str) -> None:
    with pytest.raises(UnderWay, match=why):
        ResumedProgress(lambda: known, lambda: 1200.0)(case)


def test_steps_past_the_checkpoint_prove_it() -> None:
    assert "makes steps again: 412, past its checkpoint of step 400" in proved(
        history((990.0, 450), (1150.0, 401), (1190.0, 412)), incident()
    )


def test_silence_after_a_restart_is_no_recovery() -> None:
    waits(history((990.0, 450)), incident(), "no step since its restart")


def test_a_restart_that_was_approved_hours_after_the_last_step_is_not_proved_by_silence() -> None:
    hung = replace(incident(Fault.HANG), entered_s=21_100.0)
    hung = replace(hung, history=(replace(hung.history[0], at_s=21_000.0),))
    known = history((990.0, 450))
    with pytest.raises(UnderWay, match="no step since its restart"):
        ResumedProgress(lambda: known, lambda: 21_300.0)(hung)


def test_a_job_that_began_at_zero_has_not_resumed() -> None:
    waits(
        history((990.0, 450), (1150.0, 1), (1190.0, 7)), incident(), "at step 7, below its checkpoint of step 400"
    )


def test_damaged_training_has_to_be_seen_before_the_damage() -> None:
    """Going on from a later checkpoint would train on with the same damage."""
    damaged = incident(Fault.LOSS_DIVERGED, 300, onset_step=420.0)
    waits(history((990.0, 450), (1150.0, 451), (1190.0, 460)), damaged, "not made step 420 again")
    assert "makes steps" in proved(history((990.0, 450), (1150.0, 301), (1190.0, 310)), damaged)


def test_a_job_whose_log_is_not_read_is_said_to_be_unproved() -> None:
    assert "was ever read: its progress is not proved" in proved(history(), incident())


def test_other_actions_are_not_asked_for_steps() -> None:
    case = incident()
    assert case.action is not None
    assert proved(history(), replace(case, action=replace(case.action, kind=ActionKind.CORDON))) == ""
