"""Nodes and GPU jobs of a Slurm cluster, kept as relations over time beside what Kubernetes says of the same nodes.

What a job runs on one node stands in the inventory as a pod does (`account/4211@n1`): it belongs to the node and
the job, and holds the GPUs that Slurm gave it by index. Where Slurm runs in Kubernetes (Slinky), a node's comment
names the Kubernetes node (slurm-operator, `podinfo`): that one machine is one subject, and counts once.

What is wrong by Slurm's own word comes as the lines that Kubernetes' states are written in. A node that Slurm
itself took out of use, by a reason that it writes (`src/slurmctld`), has a fault. One that a person or a tool
drained is under maintenance, whatever its reason says. A job's end is reported while its controller
remembers it (MinJobAge); what counts as an end is Slurm's job state.

Sources: slurm.schedmd.com/job_state_codes.html, sinfo.html ("NODE STATE CODES"); reasons in src/slurmctld
(node_mgr.c, job_mgr.c, ping_nodes.c) and src/slurmd/slurmd/req.c.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Iterator
from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from nightshift.collectors.base import Permanent
from nightshift.collectors.frame import Instant, LogRecord, Reason, SourceStatus
from nightshift.collectors.kubernetes.states import RECENT_S, Trouble, recent, written
from nightshift.collectors.shared_settings import stated_once
from nightshift.collectors.slurm import CHANGES, OURS, SLURM, STATES
from nightshift.collectors.slurm.answers import SlurmJob, SlurmNode
from nightshift.collectors.slurm.client import SlurmAccess, SlurmClient, SlurmReach, SlurmRefused, SlurmSilent
from nightshift.collectors.subject import (
    SITE,
    SITE_NODE,
    TAKES_WORK_SINCE,
    Inventory,
    Subject,
    SubjectKind,
)
from nightshift.collectors.telemetry.pages import source_subject
from nightshift.collectors.tick import Batch

_BY_SLURM: tuple[tuple[str, str], ...] = (
    (r"Prolog/Epilog failure|[Pp]rolog (?:error|failed)|prolog failure", "prolog failure"),
    (r"[Ee]pilog (?:error|failed)", "epilog failure"),
    (r"Kill task failed", "kill task failed"),
    (r"batch job complete failure|Duplicate jobid|Batch launch|launch fail", "batch launch failure"),
    (r"gres/gpu.*(?:count|reported lower)|GRES .*(?:core|socket)|gres/gpu has autodetected", "GPUs reported lower"),
    (r"Node unexpectedly rebooted", "unexpected reboot"),
    (r"Low (?:RealMemory|CPUs|socket|Tmp|TmpDisk)", "resources reported lower"),
    (
        r"(?:reboot|ResumeTimeout|SuspendTimeout).*(?:timed out|reached)|[Rr]eboot (?:operation )?failed",
        "boot failure",
    ),
    (r"[Hh]ealth[ _]?[Cc]heck|^NHC\b", "health check failure"),
)
"""Reasons by which Slurm, or its health check, says that the node has a fault; and the name of each."""
_MAINTAINED = frozenset(
    {
        "MAINTENANCE",
        "REBOOT_REQUESTED",
        "REBOOT_ISSUED",
        "POWERING_UP",
        "POWERING_DOWN",
        "POWERED_DOWN",
        "POWER_DOWN",
    }
    | {"POWER_UP", "FUTURE", "POWER_DRAIN"}
)
_ENDED = {
    "NODE_FAIL": "node_failed",
    "BOOT_FAIL": "launch_failed",
    "LAUNCH_FAILED": "launch_failed",
    "OUT_OF_MEMORY": "oom",
    "TIMEOUT": "timed_out",
    "DEADLINE": "timed_out",
    "PREEMPTED": "preempted",
    "FAILED": "exited",
}
_KILLED = 9


def of_node(node: SlurmNode) -> tuple[Trouble, ...]:
    """Of a node with GPUs; nothing of one without."""
    if not node.gpus:
        return ()
    found = list(_maintenance(node))
    fault = next((name for pattern, name in _BY_SLURM if re.search(pattern, node.reason)), "")
    words = f"{'+'.join(sorted(node.states))}: {node.reason or 'no reason is given'}"
    if "INVALID_REG" in node.states or (node.states & {"DRAIN", "DOWN", "FAIL"} and fault):
        found.append(Trouble("condition", fault or "invalid registration", f"Slurm: {words}", node.reason_s))
    elif not node.is_up and not node.states & {"POWERED_DOWN", "POWERING_DOWN", "POWERING_UP", "FUTURE"}:
        silent = "NOT_RESPONDING" if "NOT_RESPONDING" in node.states else "DOWN"
        found.append(Trouble("not_ready", silent, f"Slurm: {words}", node.reason_s))
    elif "FAIL" in node.states:
        found.append(Trouble("condition", "FAIL", f"Slurm: {words}", node.reason_s))
    return tuple(found)


def _maintenance(node: SlurmNode) -> Iterator[Trouble]:
    """Who takes the node away on purpose: a person's drain, ours, a reservation, a reboot, power saving."""
    is_fault = any(re.search(pattern, node.reason) for pattern, _ in _BY_SLURM)
    if "DRAIN" in node.states and not is_fault and "INVALID_REG" not in node.states:
        by = f" by {node.reason_by}" if node.reason_by else ""
        yield Trouble("maintenance", "drained", f"the node is drained{by}: {node.reason}", node.reason_s)
    for state in sorted(node.states & _MAINTAINED):
        yield Trouble("maintenance", state, f"the node is {state}")


def of_job(job: SlurmJob, restarts_before: int | None) -> tuple[Trouble, ...]:
    """Of a job with GPUs: how it ended, or that it was requeued since it was seen last, or cannot be launched."""
    if not job.gpu_count:
        return ()
    held = re.search(r"launch failed requeued held|LaunchFailed|[Pp]rolog", job.reason)
    if "PENDING" in job.states and held:
        return (Trouble("launch_failed", "requeued and held", f"Slurm: {job.reason}", job.end_s),)
    ended = next((state for state in _ENDED if state in job.states), None)
    if ended is not None and "COMPLETING" not in job.states:
        return (_end(job, ended),)
    if restarts_before is not None and job.restarts > restarts_before and "CANCELLED" not in job.states:
        return (Trouble("requeued", f"restart {job.restarts}", f"Slurm requeued it: {job.reason or 'no reason'}"),)
    return ()


def _end(job: SlurmJob, state: str) -> Trouble:
    name, where = _ENDED[state], f" on {', '.join(job.nodes[:4])}" if job.nodes else ""
    words = f"{state}{where}: exit code {job.exit_code}, signal {job.exit_signal}"
    cause = f"exit code {job.exit_code}" if not job.exit_signal else f"signal {job.exit_signal}"
    if name == "timed_out":
        limit = f"{job.limit_min:.0f} min" if job.limit_min == job.limit_min else "its deadline"
        cause = f"time limit {limit}"
    elif name in ("node_failed", "oom"):
        cause = ", ".join(job.nodes[:4]) or state
    elif name == "launch_failed":
        cause = state
    return Trouble(name, cause, words, job.end_s)


AUTHORITY = 1
"""Of relations that the controller told, as of those that an API server told."""
REMEMBERED_S = 240.0
"""slurmctld remembers a job that has ended for so long, and longer (MinJobAge, by default 300 s)."""
_K = SubjectKind
_Relations = set[tuple[Subject, Subject]]


class SlurmSettings(BaseModel):
    """Reads nodes and jobs by Slurm's own commands."""

    model_config = ConfigDict(extra="forbid")

    access: SlurmReach = stated_once("slurm", SlurmAccess)


class SlurmCollector:
    """Asks for all nodes and jobs in each tick; their changes go into the inventory."""

    plugin: ClassVar[str] = SLURM
    Settings = SlurmSettings

    def __init__(self, settings: SlurmSettings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._client, self._clock = SlurmClient(settings.access), clock
        self._held: dict[str, _Relations] = {}
        self._told: dict[str, tuple[dict[str, str], tuple[Trouble, ...]]] = {}
        """By object: what its last lines said of it; absent where all was well."""
        self._restarts: dict[int, int] = {}
        self._out: dict[str, bool] = {}
        self._names: dict[str, str] = {}
        self._listed: set[str] = set()
        self._jobs_s, self._not_told = -math.inf, ""
        """When the jobs were read last; why those that ended before are not all known."""

    @property
    def name(self) -> str:
        return self.plugin

    def collect(self, now_s: float, inventory: Inventory, timeout_s: float) -> Batch:
        lines: list[LogRecord] = []
        nodes = self._source("nodes", now_s, lambda: self._read_nodes(inventory, now_s, lines))
        jobs = self._source("jobs", now_s, lambda: self._read_jobs(inventory, now_s, lines))
        return Batch([nodes, jobs], logs=lines)

    def close(self) -> None:
        """Nothing is held open: each question is a process of its own."""

    def _source(self, what: str, now_s: float, read: Callable[[], int]) -> SourceStatus:
        subject, began = source_subject(self.plugin, what), self._clock()
        try:
            count = read()
        except (SlurmSilent, SlurmRefused) as error:
            return SourceStatus(subject, now_s, False, error.reason, str(error), took_s=self._clock() - began)
        except Permanent as error:
            return SourceStatus(subject, now_s, False, Reason.INTERNAL, str(error))
        said = self._client.without_json
        detail = f"read as text, since this Slurm has no JSON ({said})" if said else ""
        detail = "; ".join(filter(None, (detail, self._not_told if what == "jobs" else "")))
        return SourceStatus(subject, now_s, True, None, detail, count, took_s=self._clock() - began)

    def _read_nodes(self, inventory: Inventory, now_s: float, lines: list[LogRecord]) -> int:
        nodes = self._client.nodes()
        self._names = {node.name: _kubernetes_node(node) or node.name for node in nodes}
        seen = set()
        for node in nodes:
            name = self._names[node.name]
            subject = Subject(_K.NODE, name)
            seen.add(f"node {name}")
            lines += self._changed(subject, node, now_s)
            self._describe(subject, node, inventory, now_s)
            self._replace(f"node {name}", {(subject, inventory.cluster)}, inventory, now_s)
            lines += self._said("SlurmNode", name, {}, of_node(node), subject, now_s)
        for key in [key for key in self._held if key.startswith("node ") and key not in seen]:
            subject = Subject(_K.NODE, key.removeprefix("node "))
            inventory.describe(subject, slurm="gone")
            self._replace(key, set(), inventory, now_s)
            lines += self._said("SlurmNode", subject.name, {}, (), subject, now_s)
        lines += self._first("SlurmNode", inventory, now_s)
        return len(nodes)

    def _changed(self, subject: Subject, node: SlurmNode, now_s: float) -> Iterator[LogRecord]:
        """Says that somebody drained a node that took work before. Slurm does not keep who resumes one."""
        if node.is_drained and self._out.get(subject.name) is False and not node.reason.startswith(OURS):
            text = f"Node {subject.name} unschedulable: no -> yes, by {node.reason_by or 'slurm'}"
            yield LogRecord(Instant(node.reason_s or now_s, 1.0, SLURM), CHANGES, subject, text, 0)

    def _describe(self, subject: Subject, node: SlurmNode, inventory: Inventory, now_s: float) -> None:
        out = node.is_drained or not node.is_up or "MAINTENANCE" in node.states
        facts = {
            SITE: SLURM,
            SITE_NODE: node.name,
            SLURM: "out" if out else "in",
            "slurm_state": "+".join(sorted(node.states)),
            "slurm_reason": node.reason[:200],
            "slurm_reason_by": node.reason_by,
        }
        if not out and self._out.get(subject.name) is not False:
            facts[TAKES_WORK_SINCE] = str(now_s)
        self._out[subject.name] = out
        # of a node that Kubernetes manages too, these facts are the API server's
        if inventory.fact(subject, "uid") is None:
            drained, ready = node.is_drained, node.is_up
            facts |= {"unschedulable": _word(drained), "ready": _word(ready), "gpus": str(node.gpus)}
        inventory.describe(subject, **facts)

    def _read_jobs(self, inventory: Inventory, now_s: float, lines: list[LogRecord]) -> int:
        jobs = self._client.jobs()
        jobs += self._ended_unseen(frozenset(job.id for job in jobs), now_s)
        jobs = [job for job in jobs if job.gpu_count]
        steps = self._client.steps() if any("RUNNING" in job.states for job in jobs) else {}
        seen = set()
        for job in jobs:
            subject = Subject(_K.JOB, job.key)
            facts = {"node": ",".join(self._node(name) for name in job.nodes)[:200]}
            troubles = of_job(job, self._restarts.get(job.id))
            lines += self._said("SlurmJob", job.key, facts, troubles, subject, now_s)
            self._restarts[job.id] = job.restarts
            inventory.describe(
                subject,
                **{SITE: SLURM, "uid": restart(job), "job_kind": "Slurm", "job_name": job.name[:200]},
                owner=job.user,
                queue=job.partition,
                steps=str(steps.get(job.id, 0)),
            )
            for key, relations in self._places(job, subject, inventory, now_s):
                seen.add(key)
                self._replace(key, relations, inventory, now_s)
        for key in [key for key in self._held if key.startswith("job ") and key not in seen]:
            self._replace(key, set(), inventory, now_s)
        numbers = {job.id for job in jobs}
        self._restarts = {number: count for number, count in self._restarts.items() if number in numbers}
        for key in [key for key in self._told if key.startswith("SlurmJob ")]:
            # the controller has forgotten it: an end was told for as long as an end is
            if key.removeprefix("SlurmJob ") not in {job.key for job in jobs}:
                del self._told[key]
        lines += self._first("SlurmJob", inventory, now_s)
        return len(jobs)

    def _ended_unseen(self, there: frozenset[int], now_s: float) -> list[SlurmJob]:
        """Jobs that ended while nobody read them for longer than slurmctld remembers, as while we were away."""
        away_s = min(now_s - self._jobs_s, RECENT_S)
        found: list[SlurmJob] = []
        if away_s > REMEMBERED_S:
            try:
                found = self._client.ended(away_s)
            except SlurmSilent as error:
                self._not_told = f"jobs that ended in the last {away_s / 60:.0f} min may be missing: {error}"
                return []
        self._jobs_s, self._not_told = now_s, ""
        return [job for job in found if job.id not in there]

    def _places(
        self, job: SlurmJob, subject: Subject, inventory: Inventory, now_s: float
    ) -> Iterator[tuple[str, _Relations]]:
        """What a job holds, node by node."""
        for name, held in zip(job.nodes if job.holds_nodes else (), job.gpus, strict=False):
            node = Subject(_K.NODE, self._node(name))
            pod = Subject(_K.POD, f"{job.key}@{node.name}")
            inventory.describe(pod, **{SITE: SLURM, "job_kind": "Slurm", "gpus": str(len(held or ()))})
            gpus = inventory.children(node, now_s, _K.GPU)
            mine = {gpu for gpu in gpus if held and (inventory.fact(gpu, "index") or "") in map(str, held)}
            yield f"job {pod.name}", {(pod, node), (pod, subject)} | {(gpu, pod) for gpu in mine}

    def _node(self, name: str) -> str:
        return self._names.get(name, name)

    def _said(
        self,
        kind: str,
        name: str,
        facts: dict[str, str],
        troubles: tuple[Trouble, ...],
        about: Subject,
        now_s: float,
    ) -> list[LogRecord]:
        """The lines of an object, where they differ from its last ones."""
        key, now = f"{kind} {name}", (facts, recent(troubles, now_s))
        before = self._told.pop(key, None)
        if now[1]:
            self._told[key] = now
        if now == before or (before is None and not now[1]):
            return []
        return list(written(kind, name, facts, now[1], about, now_s, source=STATES, clock=SLURM))

    def _first(self, kind: str, inventory: Inventory, now_s: float) -> Iterator[LogRecord]:
        """Says once of each kind that all of it has been read."""
        if kind not in self._listed:
            self._listed.add(kind)
            yield from written(kind, "*", {}, (), inventory.cluster, now_s, source=STATES, clock=SLURM)

    def _replace(self, key: str, relations: _Relations, inventory: Inventory, now_s: float) -> None:
        inventory.exchange(self._held.pop(key, set()), sorted(relations), now_s, AUTHORITY)
        if relations:
            self._held[key] = relations


def restart(job: SlurmJob) -> str:
    """What tells one run of a job from the next, which has its id."""
    return f"restart {job.restarts}"


def _kubernetes_node(node: SlurmNode) -> str:
    """The Kubernetes node below a Slurm node, where slurm-operator wrote it into the comment."""
    try:
        said = json.loads(node.comment) if node.comment.startswith("{") else {}
    except ValueError:
        return ""
    name = said.get("node") if isinstance(said, dict) and "podName" in said else ""
    return name if isinstance(name, str) else ""


def _word(value: bool) -> str:
    return "true" if value else "false"
