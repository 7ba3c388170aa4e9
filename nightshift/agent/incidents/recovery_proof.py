"""Proof beyond a detector that is clear: a job that was restarted makes steps again, from the checkpoint that
was named.

A restart that begins at step 0, or that never begins, silences most detectors: what is gone cannot leak or
diverge. So a restarted job counts as recovered only once its log shows a step at or past the checkpoint; and
where its weights may have been damaged, only once it was seen at a step from before the damage. A job whose
steps were never seen cannot be proved this way; that is said.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from nightshift.agent.store.incident import Incident, IncidentState, entered_s
from nightshift.collectors.history import History
from nightshift.collectors.subject import Subject
from nightshift.controllers.action import Action, ActionKind, ActionOutcome, OutcomeStatus, UnderWay
from nightshift.controllers.playbooks.restart_job import DAMAGED

# Steps this recent before the action show that the job's log is read. A job that hangs may have made its last one
# hours before somebody approved its restart.
BEFORE_S = 86_400.0


@dataclass(frozen=True)
class ResumedProgress:
    """Fulfils `agent.incidents.stages.RecoveryProbe`. `history` is asked by a call: a reload's is the one that
    answers."""

    history: Callable[[], History]
    now_s: Callable[[], float]

    def __call__(self, incident: Incident) -> ActionOutcome:
        """DONE with the proof, or with why there can be none; UnderWay until the log shows it."""
        action = incident.action
        if action is None or action.kind is not ActionKind.RESTART_JOB:
            return self._done("")
        begun_s = max(entered_s(incident.history, IncidentState.ACTING), default=0.0)
        seen = self._steps(action.target, begun_s - BEFORE_S)
        if seen is None:
            return self._done(f"no step of {action.target.name} was ever read: its progress is not proved")
        t_s, step = seen
        # entered: when the action was done; steps of the job that was stopped come before
        after = step[t_s > incident.entered_s]
        if not len(after):
            raise UnderWay(f"{action.target.name} has made no step since its restart")
        checkpoint, newest = _number(action, "checkpoint_step"), int(after[-1])
        if checkpoint is not None and newest < checkpoint:
            raise UnderWay(f"{action.target.name} is at step {newest}, below its checkpoint of step {checkpoint}")
        onset = incident.diagnosis.facts.get("onset_step") if incident.diagnosis else None
        if incident.diagnosis and incident.diagnosis.cause in DAMAGED and onset is not None:
            # from its beginning, since the job may have passed the damage before the action had ended
            lowest = int(step[t_s > begun_s].min())
            if lowest > float(onset):
                raise UnderWay(
                    f"{action.target.name} has not made step {float(onset):.0f} again, where the damage was"
                )
        past = "" if checkpoint is None else f", past its checkpoint of step {checkpoint}"
        return self._done(f"{action.target.name} makes steps again: {newest}{past}")

    def _steps(self, job: Subject, start_s: float) -> tuple[np.ndarray, np.ndarray] | None:
        """(times, steps) of the job and its ranks since then, in order of time."""
        history, now_s = self.history(), self.now_s()
        # without the inventory: a restarted job's pods have new names, and its ranks' keep the job's
        mates = [s for s in history.step_subjects() if s.name == job.name or s.name.rpartition("#")[0] == job.name]
        found = [steps for mate in mates if (steps := history.steps(mate, start_s, now_s)) is not None]
        if not found:
            return None
        t_s = np.concatenate([steps.t_s for steps in found])
        order = np.argsort(t_s, kind="stable")
        return t_s[order], np.concatenate([steps.step for steps in found])[order]

    def _done(self, detail: str) -> ActionOutcome:
        return ActionOutcome(OutcomeStatus.DONE, detail, self.now_s())


def _number(action: Action, name: str) -> int | None:
    value = action.params.get(name)
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
