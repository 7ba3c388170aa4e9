"""What is wrong with a node or a job by Slurm's own word, as the lines that Kubernetes' states are written in.

A node that Slurm itself took out of use, by a reason that it writes (`src/slurmctld`), has a fault. One that a
person or a tool drained is being maintained, whatever language the reason is in. A job's end is told while its
controller remembers it (MinJobAge); what counts as an end is Slurm's job state.

Sources: slurm.schedmd.com/job_state_codes.html, sinfo.html ("NODE STATE CODES"); reasons in src/slurmctld
(node_mgr.c, job_mgr.c, ping_nodes.c) and src/slurmd/slurmd/req.c.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from nightshift.collectors.kubernetes.states import Trouble
from nightshift.collectors.slurm.answers import SlurmJob, SlurmNode

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
