"""Acts on a Slurm cluster: the second site of the contract that `kubernetes` fulfils for the first.

    cordon, quarantine_gpu   DRAIN: running jobs stay, no new one starts (Slurm gives out no less than a node)
    drain                    DRAIN, and each batch job there is requeued once: Slurm's own drain stops nothing
    uncordon                 UNDRAIN, of our own drain alone
    taint                    takes active features off that the fault breaks: jobs that ask for them start elsewhere
    restart_job              one requeue: stops the job whole and starts it from its script
    reboot_node              DRAIN, requeue, `scontrol reboot` (else power down and up), and the check
    return_node              a reservation of ours, UNDRAIN, the check as a job in it; the node is free once that
    passes

A requeue is one call that stops and starts; a job's restart count says whether it has happened, whoever asks and
after whatever crash. Nothing is held or suspended, so nothing can be left so.

A drain of ours bears the reason `nightshift: …` and, in the same write, the mark `nightshift:<action>:<boot time>`
in `Extra`. It is ours as long as reason, user, mark and boot time are. Slurm has no compare-and-set. So each write
is made by one scontrol that asks right before it: where the node is no longer as it was when we decided, nothing is
written, and the decision is made again. So a crash leaves nothing to be put back. The milliseconds from that answer
to the write are watched by a look right before the write; what a person wrote in them is put back.

Undo is UNDRAIN, never RESUME, which would also lift DOWN (src/slurmctld/node_mgr.c, update_node).
"""

from __future__ import annotations

import os
import pwd
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import ClassVar, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, field_validator

from nightshift.collectors.base import Permanent, Temporary
from nightshift.collectors.frame import Reason
from nightshift.collectors.shared_settings import stated_once
from nightshift.collectors.slurm import OURS, SLURM
from nightshift.collectors.slurm.answers import AnswerError, SlurmJob, SlurmNode, nodes_of_text
from nightshift.collectors.slurm.client import SlurmAccess, SlurmClient, SlurmReach, SlurmRefused
from nightshift.collectors.slurm.nodes_and_jobs import restart
from nightshift.collectors.subject import SITE_NODE, SubjectKind
from nightshift.controllers.action import (
    Action,
    ActionKind,
    ActionOutcome,
    OutcomeStatus,
    Precondition,
    UnderWay,
)
from nightshift.controllers.actuators.kubernetes import DrainRules, DrainSettings
from nightshift.controllers.actuators.site import Arrows, SiteActuator, word
from nightshift.controllers.cordon import CORDON_OF, NOBODY, SOMEBODY_ELSE, cordon_ids, node_of
from nightshift.detectors.base import Fault

BOOT_JITTER_S = 5.0
"""slurmd reckons its boot time anew, from the clock and the uptime, each time it registers: it differs by
seconds."""
DRAINS, GAVE_BACK, LOST_FEATURES = "nightshift", "nightshift-back", "nightshift-taint"
"""Prefixes of marks: a drain that stands, a node that was given back, and features taken off."""
_MARK = re.compile(
    rf"(?:^|(?<=[,\s]))({GAVE_BACK}|{LOST_FEATURES}|{DRAINS}):([\w-]+):(\d+)(?::([^,\s]+))?(?:[,\s]|$)"
)
_REBOOTED = re.compile(r" : reboot \w+$")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
MAX_REASON = 200


class Mark(NamedTuple):
    """One entry of ours in a node's `Extra`. more: a drain's jobs with their restarts, or a taint's features."""

    kind: str
    id: str
    boot_s: float
    more: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.id}:{self.boot_s:.0f}" + (f":{self.more}" if self.more else "")


def marks(node: SlurmNode) -> tuple[Mark, ...]:
    """Ours, in their order.

    >>> node = SlurmNode("n1", frozenset({"IDLE"}), extra="rack=7,nightshift:inc-1-cordon-ab:1795740000")
    >>> marks(node)
    (Mark(kind='nightshift', id='inc-1-cordon-ab', boot_s=1795740000.0, more=''),)
    """
    return tuple(Mark(m[1], m[2], float(m[3]), m[4] or "") for m in _MARK.finditer(node.extra))


def mark_of(node: SlurmNode, action: Action, kind: str = DRAINS) -> Mark | None:
    return next((mark for mark in marks(node) if (mark.kind, mark.id) == (kind, action.id)), None)


def extra_with(node: SlurmNode, entries: tuple[Mark, ...]) -> str:
    """`Extra` with these marks of ours and every other word of it. Raises Permanent where it is another's JSON."""
    if node.extra.lstrip().startswith(("{", "[")):
        raise Permanent(
            f"node {node.name}: its Extra holds JSON of another tool, where Nightshift can keep no mark: "
            "nothing was changed"
        )
    others = _MARK.sub("", node.extra).strip(", ")
    return ",".join([*filter(None, [others]), *map(str, entries)])


class SlurmNodes:
    """Reads and changes nodes. Raises SlurmSilent (Temporary) or SlurmRefused (Permanent)."""

    def __init__(self, client: SlurmClient) -> None:
        self._client = client
        self.user = str(os.geteuid())
        with suppress(KeyError):
            self.user = pwd.getpwuid(os.geteuid()).pw_name
        self._names = frozenset({self.user, str(os.geteuid())})

    def get(self, name: str) -> SlurmNode:
        return self._client.node(checked(name))

    def is_ours(self, node: SlurmNode) -> bool:
        """Whether the drain that stands is ours alone: by its reason, its author, our mark and the boot. Raises
        Temporary while the boot is unknown, as after a restart of slurmctld, until slurmd registers."""
        if not self.written_by_us(node):
            return False
        if not node.boot_s:
            raise Temporary(f"node {node.name} registers with slurmctld: its boot time is unknown until then")
        return any(self.is_this_boot(node, mark) for mark in _drains(node))

    def written_by_us(self, node: SlurmNode) -> bool:
        """The same whatever the boot, as after a reboot of ours."""
        # slurmctld adds to the reason what it reboots, under its own name
        named = node.reason.startswith(OURS) and (node.reason_by in self._names or _REBOOTED.search(node.reason))
        return "DRAIN" in node.states and bool(named and _drains(node))

    def is_this_boot(self, node: SlurmNode, mark: Mark) -> bool:
        return node.boot_s > 0 and abs(node.boot_s - mark.boot_s) <= BOOT_JITTER_S

    def was_rebooted(self, node: SlurmNode) -> bool:
        """Whether slurmctld says in our reason that it has sent the node into a reboot, however soon it is back."""
        return self.written_by_us(node) and _REBOOTED.search(node.reason) is not None

    def cordon_of(self, node: SlurmNode) -> str:
        """The owner of the drain (`controllers.cordon`)."""
        if not node.is_drained:
            return NOBODY
        return cordon_ids(mark.id for mark in _drains(node)) if self.is_ours(node) else SOMEBODY_ELSE

    def holder(self, node: SlurmNode) -> str:
        """For people: why a node's drain is not ours to lift."""
        if node.reason.startswith(OURS) and node.reason_by in self._names and _drains(node):
            return f"{node.name} has booted since Nightshift drained it: a person may be repairing it"
        return f"drained by {node.reason_by or 'another client'}: {node.reason or 'no reason'}"

    def drain(self, node: SlurmNode, action: Action, jobs: str = "", cause: str = "") -> SlurmNode:
        """Drains a node for an action, or adds the action's mark to a drain of ours; the node after it."""
        if not node.boot_s and "DOWN" not in node.states:
            # after an UNDRAIN, or under a new controller, its slurmd registers: until then no job is known, and
            # a mark without the boot could never be taken back
            raise Temporary(f"node {node.name} registers with slurmctld: its boot time is unknown until then", 1.0)
        mark = Mark(DRAINS, action.id, node.boot_s, jobs)
        # a node that takes jobs was undrained by someone else: its marks of drains are old
        kept = tuple(m for m in marks(node) if m.kind == LOST_FEATURES or (node.is_drained and m.kind == DRAINS))
        wanted = {"extra": extra_with(node, (*(m for m in kept if m.id != action.id), mark))}
        if not node.is_drained:
            wanted |= {"state": "drain", "reason": reason_of(action, cause)}
        return self.update(node, wanted)

    def undrain(self, node: SlurmNode, entries: tuple[Mark, ...]) -> SlurmNode:
        """Lifts our drain and leaves these marks; the node after it."""
        return self.update(node, {"state": "undrain", "extra": extra_with(node, entries)})

    def update(self, node: SlurmNode, values: Mapping[str, str]) -> SlurmNode:
        """One write onto the node as it was read, and the node after it. Raises Temporary, with nothing written,
        where it is another by now."""
        name = checked(node.name)
        if any(re.search(r"[\s\"']", value) for key, value in values.items() if key != "reason"):
            # scontrol's own reader of lines knows quotes around a reason alone
            _is_as_read(node, self.get(name))
            self._client.ask("scontrol", "update", f"nodename={name}", *(f"{k}={v}" for k, v in values.items()))
            return self.get(name)
        quoted = (f'{key}="{value}"' if key == "reason" else f"{key}={value}" for key, value in values.items())
        line = f"update nodename={name} {' '.join(quoted)}"

        def line_of(answer: str) -> str:
            found = _named(answer, name)
            if found:
                _is_as_read(node, found[0])
            return line if found else ""

        looks = _named(self._client.write_after(f"show node {name}", line_of), name)
        if len(looks) != 2:
            raise Permanent(
                f"node {name}: {len(looks)} looks of two were answered: the effect of a write is unknown"
            )
        before, after = looks
        if before.is_drained and _word_on(before) != _word_on(node) and not self.written_by_us(before):
            return self._put_back(before)
        return after

    def _put_back(self, theirs: SlurmNode) -> SlurmNode:
        """Restores a drain of another's over which we wrote; who it was is said in the reason, since Slurm takes
        the writer's name."""
        by = f" (set by {theirs.reason_by})" if theirs.reason_by and theirs.reason_by not in self._names else ""
        values = (f"reason={theirs.reason}{by}", f"extra={theirs.extra}")
        self._client.ask("scontrol", "update", f"nodename={theirs.name}", "state=drain", *values)
        return self.get(theirs.name)


def _named(text: str, name: str) -> list[SlurmNode]:
    try:
        return [node for node in nodes_of_text(text) if node.name == name]
    except AnswerError as error:
        raise Permanent(f"node {name}: Slurm's answer cannot be read: {error}") from error


def _word_on(node: SlurmNode) -> tuple[object, ...]:
    """What people and tools write on a node; slurmd alone may register meanwhile."""
    return (
        *(node.is_drained, node.reason, node.reason_by, node.reason_s, node.extra),
        *(node.features, node.active_features),
    )


def _is_as_read(read: SlurmNode, now: SlurmNode) -> None:
    """Raises Temporary where anybody has changed the node since it was read."""
    if _word_on(read) != _word_on(now):
        by = f" ({now.reason_by}: {now.reason})" if now.is_drained else ""
        raise Temporary(f"node {now.name} was changed since it was read{by}: nothing was written", 1.0)


def _drains(node: SlurmNode) -> tuple[Mark, ...]:
    return tuple(mark for mark in marks(node) if mark.kind == DRAINS)


def checked(name: str) -> str:
    """A node's name as Slurm allows one; a host list, or what a shell would read as more, is refused."""
    if not _NAME.fullmatch(name):
        raise Permanent(f"node {name!r} is no name of a single Slurm node")
    return name


def reason_of(action: Action, text: str = "") -> str:
    """On one line, without what scontrol's own reader takes for a quote."""
    words = re.sub(r"[\"'\\\s]+", " ", f"{OURS} {text or action.why}").strip()
    return f"{words[:MAX_REASON]} ({action.id})"


POLL_S = 5.0
SAVE_SIGNAL = re.compile(r"nightshift-save=(?:SIG)?([A-Z0-9]+)")
"""In a job's comment (`sbatch --comment=nightshift-save=USR1`): the signal on which its steps save a checkpoint."""
NO_NODE = "nightshift-asks-its-rights"
"""A node that no cluster has: who may change nodes is told that it does not exist, everybody else that they may
not."""
_RIGHTS: Mapping[str, tuple[str, ...]] = {
    "update nodes (needs AdminLevel=Admin, or SlurmUser; Operator is not enough)": (
        *("update", f"nodename={NO_NODE}", "comment="),
    ),
    "make reservations, requeue others' jobs, see all jobs (needs AdminLevel=Operator)": (
        *("create", "reservation", f"nodes={NO_NODE}", "starttime=now", "duration=1", "users=root"),
    ),
}
_A, _K, _O = ActionKind, SubjectKind, OutcomeStatus
_GOING = frozenset({"REBOOT_ISSUED", "REBOOT_REQUESTED", "POWERING_DOWN", "POWERING_UP", "POWER_UP", "POWER_DOWN"})
_ENDED = frozenset({"COMPLETED", "FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE"})


class SlurmActuatorSettings(BaseModel):
    """Which Slurm is acted on, and what it may be asked to do."""

    model_config = ConfigDict(extra="forbid")

    access: SlurmReach = stated_once("slurm", SlurmAccess)
    features: dict[str, tuple[str, ...]] = Field(
        default_factory=dict,
        description="Features that a fault takes off its node: `{nvlink_degraded: [nvlink]}`; none: no taint",
    )
    check_command: tuple[str, ...] = Field(
        ("dcgmi", "diag", "-r", "2"), description="Job that a repaired node must end with 0 before it returns"
    )
    drain: DrainRules = stated_once("drain", DrainSettings)
    actions: tuple[ActionKind, ...] | None = Field(
        default=None, description="Only these kinds of action; none: every kind that it knows."
    )

    @field_validator("features")
    @classmethod
    def _are_faults(cls, features: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        if unknown := sorted(set(features) - set(Fault)):
            raise ValueError(f"no fault is called {', '.join(unknown)}; there are {', '.join(sorted(Fault))}")
        return features

    @field_validator("actions")
    @classmethod
    def _are_known(cls, actions: tuple[ActionKind, ...] | None) -> tuple[ActionKind, ...] | None:
        there = SlurmActuator.TARGETS
        if unknown := [kind for kind in actions or () if kind not in there]:
            raise ValueError(f"Slurm has no {', '.join(unknown)}; there are {', '.join(there)}")
        return actions


class SlurmActuator(SiteActuator):
    """Fulfils `controllers.action.Actuator` for one Slurm cluster."""

    plugin: ClassVar[str] = SLURM
    Settings: ClassVar[type[BaseModel]] = SlurmActuatorSettings
    site: ClassVar[str] = SLURM
    """Whose nodes and jobs it acts on (`collectors.subject.SITE`)."""

    def __init__(
        self, settings: SlurmActuatorSettings, client: SlurmClient, *, now_s: Callable[[], float] = time.time
    ) -> None:
        self._settings, self._client, self._now_s = settings, client, now_s
        self._nodes = SlurmNodes(client)
        self._asked_s: dict[tuple[str, int], float] = {}
        """When a job was asked to save, by action. A restart of the daemon asks again: one checkpoint more."""

    @classmethod
    def from_settings(
        cls, settings: SlurmActuatorSettings, now_s: Callable[[], float] = time.time
    ) -> SlurmActuator:
        return cls(settings, SlurmClient(settings.access), now_s=now_s)

    def kinds(self) -> frozenset[ActionKind]:
        return super().kinds() - (frozenset() if self._settings.features else {_A.TAINT})

    def refused(self) -> list[str]:
        """What Slurm says that this account may not do, asked without doing it. Raises Temporary or Permanent."""
        refused = []
        for needs, argv in _RIGHTS.items():
            try:
                self._client.ask("scontrol", *argv)
            except SlurmRefused as error:
                if error.reason is Reason.UNAUTHORISED:
                    refused.append(needs)
                elif error.reason is not Reason.NOT_FOUND:
                    raise
        return refused

    # The plan against the world ----------------------------------------------------------------------------------

    def _is_absent(self, error: Permanent) -> bool:
        return isinstance(error, SlurmRefused) and error.reason is Reason.NOT_FOUND

    def _fact(self, action: Action, condition: Precondition) -> str | None:
        if condition.subject.kind is _K.JOB:
            job = self._job(condition.subject.name)
            return {"running": word("RUNNING" in job.states), "uid": restart(job)}.get(condition.fact)
        node = self._nodes.get(_slurm_name(action))
        match condition.fact:
            case "uid":
                # of a Kubernetes node: Slurm's own word on the machine is its boot, which the mark binds
                return condition.expected
            case "cordoned":
                return word(node.is_drained)
            case "drained":
                return word(node.is_drained and not self._client.jobs_on(node.name))
            case "tainted":
                return word(any(mark.kind == LOST_FEATURES for mark in marks(node)))
            case "quarantined":
                return word(mark_of(node, action) is not None and node.is_drained)
            case fact if fact == CORDON_OF:
                return self._nodes.cordon_of(node)
        return None

    def _job(self, name: str) -> SlurmJob:
        number = name.rpartition("/")[2]
        job = self._client.job(int(number)) if number.isdecimal() else None
        if job is None:
            raise SlurmRefused(Reason.NOT_FOUND, f"Slurm has no job {name}")
        return job

    # Acting ------------------------------------------------------------------------------------------------------

    def _drain(self, action: Action) -> ActionOutcome:
        """Keeps new jobs off the node; those that run there stay."""
        node = self._nodes.get(_slurm_name(action))
        if (over := self._drained_before(action, node)) is not None:
            return over
        return self._drained(action, self._nodes.drain(node, action))

    def _drained_before(self, action: Action, node: SlurmNode) -> ActionOutcome | None:
        """What is to say where the node was drained before, by us or by others; None where it is to be drained."""
        if mark_of(node, action) is not None:
            if node.is_drained:
                return self._outcome(_O.ALREADY_DONE, f"{action.id} drained it before")
            return self._refused(action, "a person has resumed it since; it stays resumed")
        if node.is_drained and not self._nodes.is_ours(node):
            return self._outcome(_O.ALREADY_DONE, f"{self._nodes.holder(node)}; they must resume it")
        return None

    def _drained(self, action: Action, node: SlurmNode) -> ActionOutcome:
        if self._nodes.written_by_us(node) and mark_of(node, action) is not None:
            return self._outcome(_O.DONE, f"{action.target} drained in Slurm: {node.reason}")
        if node.is_drained:
            why = f"{self._nodes.holder(node)}, at the same moment; they must resume it"
            return self._outcome(_O.ALREADY_DONE, why)
        return self._refused(action, "a person has resumed it at the same moment; it stays resumed")

    def _give_back(self, action: Action) -> ActionOutcome:
        node = self._nodes.get(_slurm_name(action))
        if not node.is_drained:
            return self._outcome(_O.ALREADY_DONE, f"{action.target} takes jobs")
        if not self._nodes.is_ours(node):
            return self._refused(action, f"{self._nodes.holder(node)}; whoever did resumes it")
        return self._undrained(action, node, (*_taints(node), Mark(GAVE_BACK, action.id, node.boot_s)))

    def _undrained(self, action: Action, node: SlurmNode, left: tuple[Mark, ...]) -> ActionOutcome:
        after = self._nodes.undrain(node, left)
        if after.is_drained:
            return self._outcome(_O.DONE, f"undrained; since then {self._nodes.holder(after)}")
        return self._outcome(_O.DONE, f"{action.target} takes jobs again")

    def _taint(self, action: Action) -> ActionOutcome:
        """Takes off active features that the fault breaks; undo restores those that the mark names."""
        node = self._nodes.get(_slurm_name(action))
        fault = str(action.params.get("value", "")).replace("-", "_")
        if (mark := mark_of(node, action, LOST_FEATURES)) is not None:
            if set(mark.more.split("+")) & set(node.active_features):
                return self._refused(action, "another client has put the features back since; they stay")
            return self._outcome(_O.ALREADY_DONE, f"{action.id} took {mark.more} off before")
        lost = [name for name in self._settings.features.get(fault, ()) if name in node.active_features]
        if not lost:
            return self._refused(action, f"it has no active feature that `features` names for {fault}")
        left = [name for name in node.active_features if name not in lost]
        mark = Mark(LOST_FEATURES, action.id, node.boot_s, "+".join(lost))
        self._nodes.update(node, _features(node, left, (*marks(node), mark)))
        return self._outcome(_O.DONE, f"{action.target} no longer offers {', '.join(lost)}")

    # Jobs --------------------------------------------------------------------------------------------------------

    def _restart(self, action: Action) -> ActionOutcome:
        """One requeue of the run that was planned for: by its restart count, which the plan names."""
        job, planned = self._job(action.target.name), _planned_run(action)
        if planned is None:
            return self._refused(action, "the plan does not name which run of the job it is about")
        if (waits := self._requeue(job, planned, action)) is not None:
            raise UnderWay(waits, retry_after_s=POLL_S)
        return self._outcome(_O.DONE, f"{action.target} stopped completely and requeued ({restart(job)})")

    def _requeue(self, job: SlurmJob, planned: int, action: Action) -> str | None:
        """What is waited for until a job has left its nodes by a requeue; None once it has. Raises Permanent where
        it cannot be requeued."""
        if job.restarts > planned:
            return f"job {job.key} stops" if "COMPLETING" in job.states else None
        if (obstacle := _unstoppable(job)) is not None:
            raise Permanent(obstacle)
        if over := job.states & {"COMPLETED", "CANCELLED"}:
            raise Permanent(f"job {job.key} has ended ({'+'.join(over)}); only its owner can resubmit it")
        if "PENDING" in job.states:
            return None  # it waits for nodes: there is nothing of it to stop
        if "COMPLETING" not in job.states:
            if (waits := self._saves(job, action)) is not None:
                return waits
            self._client.ask("scontrol", "requeue", str(job.id))
        return f"job {job.key} stops"

    def _saves(self, job: SlurmJob, action: Action) -> str | None:
        """Sends its steps the signal on which they save, once, and waits; None where it may be stopped."""
        wanted, wait_s = SAVE_SIGNAL.search(job.comment), self._settings.drain.save_wait_s
        may = action.params.get("save_first", True) is True and "RUNNING" in job.states
        if wanted is None or not may or wait_s <= 0:
            return None
        now_s, key = self._now_s(), (action.id, job.id)
        if key not in self._asked_s:
            self._client.ask("scancel", f"--signal={wanted[1]}", str(job.id))
            self._asked_s = {k: t for k, t in self._asked_s.items() if 0 <= now_s - t < 86_400.0} | {key: now_s}
            return f"job {job.key} is asked to save by SIG{wanted[1]}"
        waited_s = now_s - self._asked_s[key]
        return f"job {job.key} saves; it has {wait_s - waited_s:.0f} s left" if 0 <= waited_s < wait_s else None

    def _empty(self, action: Action) -> ActionOutcome:
        """A drain that also moves the jobs: UnderWay until none holds the node."""
        node = self._nodes.get(_slurm_name(action))
        outcome = self._emptied(action, node)
        return outcome or self._outcome(_O.DONE, f"{action.target} drained and empty; its jobs were requeued")

    def _emptied(self, action: Action, node: SlurmNode) -> ActionOutcome | None:
        """None once the node is drained by us and empty; what became of it where it ended before. Raises
        UnderWay."""
        jobs = self._jobs_on(node)
        if mark_of(node, action) is None:
            begun = self._begin_drain(action, node, jobs)
            if isinstance(begun, ActionOutcome):
                return begun
            node = begun
        elif not node.is_drained:
            return self._refused(action, "a person has resumed it during the drain; it stays resumed")
        mark = mark_of(node, action)
        planned = _planned_runs(mark.more if mark is not None else "")
        if late := [job for job in jobs if job.id not in planned]:
            # they started between the look and the drain: named before the first of them is stopped
            planned |= {job.id: job.restarts for job in late}
            node = self._nodes.drain(node, action, _written(planned))
        waits, refusals = self._requeue_all(jobs, planned, action)
        if refusals and not waits:
            why = f"drain of {action.target.name} cannot continue; the node stays drained: {'; '.join(refusals)}"
            return ActionOutcome(_O.FAILED, why, self._now_s(), {"cordoned": "true"})
        if waits or self._client.jobs_on(node.name):
            said = "; ".join([*waits, *refusals]) or "its jobs are on their way out"
            raise UnderWay(f"drain of {action.target.name}: {said}", retry_after_s=POLL_S)
        return None

    def _begin_drain(self, action: Action, node: SlurmNode, jobs: Sequence[SlurmJob]) -> SlurmNode | ActionOutcome:
        """The node, drained by us, with the runs that are to be stopped in its mark; else what became of it."""
        if (over := self._drained_before(action, node)) is not None:
            left = ", ".join(job.key for job in jobs)
            return self._refused(action, f"{over.detail}; {left} still run there") if left else over
        if obstacles := [why for job in jobs if (why := _unstoppable(job)) is not None]:
            return self._refused(action, f"nothing was changed: {'; '.join(obstacles)}")
        node = self._nodes.drain(node, action, _runs(jobs))
        outcome = self._drained(action, node)
        return node if outcome.status is _O.DONE else outcome

    def _requeue_all(
        self, jobs: Sequence[SlurmJob], planned: Mapping[int, int], action: Action
    ) -> tuple[list[str], list[str]]:
        """(what is waited for, why others cannot be requeued). planned: each job's run that is to be stopped."""
        waits, refusals = [], []
        for job in jobs:
            try:
                waits.append(self._requeue(job, planned[job.id], action))
            except Permanent as error:
                refusals.append(str(error))
        return [wait for wait in waits if wait is not None], refusals

    def _jobs_on(self, node: SlurmNode) -> list[SlurmJob]:
        found = (self._client.job(number) for number in self._client.jobs_on(node.name))
        return [job for job in found if job is not None and job.holds_nodes]

    # Nodes that go and come back ---------------------------------------------------------------------------------

    def _reboot(self, action: Action) -> ActionOutcome:
        """Drained and emptied, rebooted once, checked, and given back. The mark names the boot before."""
        node = self._nodes.get(_slurm_name(action))
        mark = mark_of(node, action)
        if mark is None:
            if mark_of(node, action, GAVE_BACK) is not None:
                return self._conclude(action, node)
            if obstacle := self._cannot_reboot(node):
                return self._refused(action, obstacle)
        # power saving lifts every drain as it takes a node down: there our reservation keeps jobs off
        powered = mark is not None and not node.is_drained and self._reserved(action)
        is_same = mark is None or self._nodes.is_this_boot(node, mark) or node.boot_s == 0
        if is_same and not self._nodes.was_rebooted(node):
            return self._cycle(action, node) if powered else self._go_down(action, node)
        if not node.is_up or node.states & _GOING:
            raise UnderWay(f"{action.target} boots: {'+'.join(sorted(node.states))}", retry_after_s=POLL_S)
        if not powered and not self._nodes.written_by_us(node):
            return self._refused(action, f"{self._nodes.holder(node)}; it has booted and stays drained")
        return self._check(action, node)

    def _cannot_reboot(self, node: SlurmNode) -> str:
        """Why Slurm cannot reboot it; empty where it can. Raises Temporary until the mark can name a boot."""
        if not self._how_to_reboot():
            return "slurm.conf has neither a RebootProgram nor a SuspendProgram and ResumeProgram"
        if node.boot_s == 0:
            raise Temporary(f"node {node.name} registers with slurmctld: its boot time is unknown until then", 1.0)
        return ""

    def _go_down(self, action: Action, node: SlurmNode) -> ActionOutcome:
        if (over := self._emptied(action, node)) is not None:
            return over
        node = self._nodes.get(node.name)
        if node.states & _GOING:
            raise UnderWay(f"{action.target} reboots: {'+'.join(sorted(node.states))}", retry_after_s=POLL_S)
        if self._how_to_reboot() == "reboot":
            self._client.ask("scontrol", "reboot", f"reason={reason_of(action)}", node.name)
        else:
            self._reserve(action, node.name)
            self._client.ask("scontrol", "update", f"nodename={node.name}", "state=power_down")
        raise UnderWay(f"{action.target} reboots", retry_after_s=POLL_S)

    def _cycle(self, action: Action, node: SlurmNode) -> ActionOutcome:
        """A node that power saving takes down and up again."""
        if "POWERED_DOWN" in node.states and not node.states & _GOING:
            self._client.ask("scontrol", "update", f"nodename={node.name}", "state=power_up")
        elif node.is_up and not node.states & _GOING:
            why = "it was powered down and up, and has not booted: does SuspendProgram turn it off?"
            self._nodes.drain(node, action, cause=why)
            self._unreserve(action)
            return self._outcome(_O.FAILED, f"{action.target}: {why} The node stays drained", cordoned="true")
        raise UnderWay(f"{action.target} boots: {'+'.join(sorted(node.states))}", retry_after_s=POLL_S)

    def _how_to_reboot(self) -> str:
        """`reboot`, `power` where only power saving can, else nothing."""
        text = self._client.ask("scontrol", "show", "config")
        has = {name for name, value in re.findall(r"(?m)^(\w+Program)\s*=\s*(\S+)", text) if value != "(null)"}
        if "RebootProgram" in has:
            return "reboot"
        return "power" if {"SuspendProgram", "ResumeProgram"} <= has else ""

    def _return(self, action: Action) -> ActionOutcome:
        node = self._nodes.get(_slurm_name(action))
        if mark_of(node, action, GAVE_BACK) is not None:
            return self._conclude(action, node)
        if not node.is_drained:
            return self._refused(action, f"{action.target} takes jobs already")
        if not self._nodes.is_ours(node):
            return self._refused(action, f"{self._nodes.holder(node)}; whoever did resumes it")
        return self._check(action, node)

    def _check(self, action: Action, node: SlurmNode) -> ActionOutcome:
        """Opens the node to our check alone: the reservation stands before the drain is lifted."""
        self._reserve(action, node.name)
        outcome = self._undrained(action, node, (*_taints(node), Mark(GAVE_BACK, action.id, node.boot_s)))
        if outcome.status is not _O.DONE:
            self._unreserve(action)
            return outcome
        return self._conclude(action, self._nodes.get(node.name))

    def _conclude(self, action: Action, node: SlurmNode) -> ActionOutcome:
        """The node is open to our reservation: runs the check once, and then opens it to all or drains it again."""
        if not self._reserved(action):
            status = _O.ALREADY_DONE if not node.is_drained else _O.FAILED
            return ActionOutcome(status, f"{action.target} was checked before", self._now_s(), _cordoned(node))
        if node.is_drained:
            self._unreserve(action)
            return self._refused(action, f"{self._nodes.holder(node)}, during the check; it stays drained")
        job = self._check_job(action)
        if job is None:
            if "NOT_RESPONDING" in node.states:
                raise UnderWay(f"{action.target} registers again", retry_after_s=POLL_S)
            self._submit_check(action, node)
            raise UnderWay(f"{action.target} is being checked", retry_after_s=POLL_S)
        if not job.states & _ENDED and "CANCELLED" not in job.states:
            if "PENDING" in job.states and "DOWN" in node.states and not node.states & _GOING:
                self._client.ask("scancel", str(job.id))
                return self._unchecked(action, node, f"{action.target} went down before its check: {node.reason}")
            raise UnderWay(f"{action.target} is being checked: job {job.id} {'+'.join(sorted(job.states))}", POLL_S)
        command = " ".join(self._settings.check_command)
        if "COMPLETED" in job.states:
            self._unreserve(action)
            return self._outcome(_O.DONE, f"`{command}` ended with 0; {action.target} takes jobs again")
        why = f"`{command}` did not pass ({'+'.join(sorted(job.states))}, exit code {job.exit_code})"
        return self._unchecked(action, node, why)

    def _unchecked(self, action: Action, node: SlurmNode, why: str) -> ActionOutcome:
        self._nodes.drain(node, action, cause=why)
        self._unreserve(action)
        return ActionOutcome(_O.FAILED, f"{why}; the node stays drained", self._now_s(), {"cordoned": "true"})

    def _reserve(self, action: Action, node: str) -> None:
        if self._reserved(action):
            return
        self._client.ask(
            *(
                "scontrol",
                "create",
                "reservation",
                f"reservationname={action.id}",
                f"nodes={node}",
                "starttime=now",
            ),
            *("duration=infinite", f"users={self._nodes.user}", "flags=maint,ignore_jobs"),
        )

    def _reserved(self, action: Action) -> bool:
        # all of them: of one that is missing, some releases say so by an exit code alone
        return f"ReservationName={action.id} " in self._client.ask("scontrol", "-o", "show", "reservations")

    def _unreserve(self, action: Action) -> None:
        """The last step of a check. A reservation that is in use by a job on its way out is asked for again."""
        if not self._reserved(action):
            return
        try:
            self._client.ask("scontrol", "delete", f"reservationname={action.id}")
        except SlurmRefused as error:
            if "in use" not in str(error):
                raise
            raise UnderWay(f"reservation {action.id} is still in use", retry_after_s=POLL_S) from error

    def _check_job(self, action: Action) -> SlurmJob | None:
        """The check's job, by its name: submitted once, also where the answer to that was lost."""
        text = self._client.ask(
            *(
                "squeue",
                "--noheader",
                "--states=all",
                f"--name={action.id}",
                f"--user={self._nodes.user}",
                "--format=%A",
            )
        )
        numbers = sorted(int(word) for word in text.split() if word.isdecimal())
        return self._client.job(numbers[-1]) if numbers else None

    def _submit_check(self, action: Action, node: SlurmNode) -> None:
        gpus = [f"--gres=gpu:{node.gpus}"] if node.gpus else []
        quoted = " ".join(f"'{word}'" for word in self._settings.check_command)
        self._client.ask(
            *("sbatch", "--parsable", f"--job-name={action.id}", f"--reservation={action.id}", "--nodes=1"),
            *(f"--nodelist={node.name}", "--exclusive", "--no-requeue", "--output=/dev/null", "--chdir=/", *gpus),
            *(["--partition=" + node.partitions[0]] if node.partitions else []),
            f"--wrap={quoted}",
        )

    # Reading back and taking back --------------------------------------------------------------------------------

    def read(self, action: Action) -> ActionOutcome:
        self._check_target(action)
        if action.kind is _A.RESTART_JOB:
            return self._read_restart(action)
        try:
            node = self._nodes.get(_slurm_name(action))
        except SlurmRefused as error:
            if error.reason is not Reason.NOT_FOUND:
                raise
            return self._outcome(_O.NOT_DONE, f"{action.target} no longer exists")
        marked = mark_of(node, action) is not None
        done = marked and node.is_drained
        status = _O.DONE if done else _O.NOT_DONE
        match action.kind:
            case _A.UNCORDON:
                back = mark_of(node, action, GAVE_BACK) is not None
                status = _O.DONE if back and not node.is_drained else _O.NOT_DONE
            case _A.TAINT:
                taken = mark_of(node, action, LOST_FEATURES)
                gone = taken is not None and not set(taken.more.split("+")) & set(node.active_features)
                status = _O.DONE if gone else _O.NOT_DONE
            case _A.DRAIN if done and self._client.jobs_on(node.name):
                status = _O.UNDER_WAY
            case _A.RETURN_NODE | _A.REBOOT_NODE:
                status = self._read_return(action, node, marked)
        observed = {**_cordoned(node), "marked": word(marked)}
        return ActionOutcome(status, f"{action.kind} of {action.target} read back", self._now_s(), observed)

    def _read_return(self, action: Action, node: SlurmNode, marked: bool) -> OutcomeStatus:
        if self._reserved(action) or (marked and action.kind is _A.REBOOT_NODE and node.is_drained):
            return _O.UNDER_WAY
        back = mark_of(node, action, GAVE_BACK) is not None
        return _O.DONE if back and not node.is_drained else _O.NOT_DONE

    def _read_restart(self, action: Action) -> ActionOutcome:
        try:
            job, planned = self._job(action.target.name), _planned_run(action)
        except SlurmRefused as error:
            if error.reason is not Reason.NOT_FOUND:
                raise
            return self._outcome(
                _O.UNKNOWN, f"Slurm has forgotten {action.target}: whether it restarted is unknown"
            )
        if planned is None or job.restarts <= planned:
            return self._outcome(_O.NOT_DONE, f"{action.target}: {restart(job)}")
        status = _O.UNDER_WAY if "COMPLETING" in job.states else _O.DONE
        return self._outcome(status, f"{action.target}: {restart(job)}")

    def _take_back(self, action: Action) -> ActionOutcome:
        node = self._nodes.get(_slurm_name(action))
        if action.kind is _A.TAINT:
            return self._untaint(action, node)
        if not node.is_drained:
            return self._outcome(_O.ALREADY_DONE, f"{action.target} takes jobs")
        if not self._nodes.is_ours(node) or mark_of(node, action) is None:
            return self._refused(
                action, f"{self._nodes.holder(node)}: not (or no longer) this action's drain alone"
            )
        left = tuple(mark for mark in marks(node) if mark.kind != GAVE_BACK and mark.id != action.id)
        if others := sorted(mark.id for mark in left if mark.kind == DRAINS):
            self._nodes.update(node, {"extra": extra_with(node, left)})
            return self._outcome(_O.DONE, f"{action.target} stays drained for {', '.join(others)}")
        return self._undrained(action, node, left)

    def _untaint(self, action: Action, node: SlurmNode) -> ActionOutcome:
        mark = mark_of(node, action, LOST_FEATURES)
        if mark is None:
            return self._outcome(_O.ALREADY_DONE, f"{action.target} has no taint of this action")
        back = [name for name in mark.more.split("+") if name in node.features and name not in node.active_features]
        left = tuple(other for other in marks(node) if other != mark)
        self._nodes.update(node, _features(node, [*node.active_features, *back], left))
        return self._outcome(_O.DONE, f"{action.target} offers {mark.more.replace('+', ', ')} again")

    ARROWS: ClassVar[Arrows] = {
        _A.RESTART_JOB: _restart,
        _A.QUARANTINE_GPU: _drain,
        _A.TAINT: _taint,
        _A.CORDON: _drain,
        _A.UNCORDON: _give_back,
        _A.RETURN_NODE: _return,
        _A.DRAIN: _empty,
        _A.REBOOT_NODE: _reboot,
    }


def _slurm_name(action: Action) -> str:
    """What Slurm calls the node: its own name, where Kubernetes has another for the machine."""
    return str(action.params.get(SITE_NODE) or node_of(action))


def _planned_run(action: Action) -> int | None:
    """The restart count that the plan names."""
    named = [c.expected for c in action.preconditions if (c.subject, c.fact) == (action.target, "uid")]
    match = re.fullmatch(r"restart (\d+)", named[0]) if named else None
    return int(match[1]) if match else None


def _unstoppable(job: SlurmJob) -> str | None:
    """Why a job cannot be requeued; None where it can."""
    if not job.is_batch:
        return f"job {job.key} is interactive: Slurm requeues batch jobs only"
    return None if job.can_requeue else f"job {job.key} was submitted with --no-requeue"


def _runs(jobs: Sequence[SlurmJob]) -> str:
    return _written({job.id: job.restarts for job in jobs})


def _written(runs: Mapping[int, int]) -> str:
    return "+".join(f"{number}.{count}" for number, count in sorted(runs.items()))


def _planned_runs(text: str) -> dict[int, int]:
    """The jobs that a drain's mark names, each with its restarts when it was written."""
    return {int(number): int(count) for number, count in re.findall(r"(\d+)\.(\d+)", text)}


def _taints(node: SlurmNode) -> tuple[Mark, ...]:
    return tuple(mark for mark in marks(node) if mark.kind == LOST_FEATURES)


def _features(node: SlurmNode, active: list[str], left: tuple[Mark, ...]) -> dict[str, str]:
    return {"activefeatures": ",".join(active), "extra": extra_with(node, left)}


def _cordoned(node: SlurmNode) -> dict[str, str]:
    return {"cordoned": word(node.is_drained)}
