"""Slurm as sites set it up, for real: a backup controller, accounting and roles, power saving, and the programs
that slurmd runs on a node. Each scene says what was seen; benchmarks/slurm.py writes the same down."""

from __future__ import annotations

import os
import pwd
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from nightshift.collectors.base import Temporary
from nightshift.collectors.slurm.client import SlurmSilent
from nightshift.collectors.slurm.nodes_and_jobs import SlurmCollector, SlurmSettings
from nightshift.collectors.subject import Inventory
from nightshift.collectors.tick import Tick
from nightshift.controllers.action import ActionKind, OutcomeStatus
from nightshift.controllers.actuators.slurm import SlurmActuator, SlurmActuatorSettings
from nightshift.detectors.base import State
from nightshift.detectors.cluster import ClusterFaults
from tests.agent.forks import run_in_process
from tests.conftest import absent
from tests.controllers.actuators.test_slurm_actuator import actuator_on, an_action
from tests.processes import READY_S
from tests.slurm_lab import running

A, S = ActionKind, OutcomeStatus
QUALIFY = Path(__file__).parents[3] / "deploy" / "slurm" / "qualify.sh"
Seen = dict[str, Any]


def failing_over() -> Seen:
    """The controller that answers is killed in the middle of a drain; its backup takes over. What the first had not
    saved yet (up to 5 s) is lost: then Slurm finds the job twice, and drains the node, or it knows of no run."""
    with running(2, backup=True) as lab:
        job = lab.run("--nodelist=n1")
        actuator, action = actuator_on(lab), an_action(A.DRAIN)
        try:
            actuator.execute(action)
        except Temporary as error:
            first = str(error)
        lab.stop("ctl1", signal.SIGKILL)
        began_s, refusals = time.monotonic(), 0
        while True:
            assert time.monotonic() - began_s < READY_S
            try:
                outcome = actuator.execute(action)
                break
            except SlurmSilent:
                refusals += 1
            except Temporary:
                pass
            time.sleep(0.2)
        return {
            "before": first,
            "detail": outcome.detail,
            "extra": lab.node("n1").extra,
            "outcome": str(outcome.status),
            "took_s": round(time.monotonic() - began_s, 1),
            "without_an_answer": refusals,
            "restarts": int(lab.job(job, "Restarts")),
            "drained": "DRAIN" in lab.node("n1").states,
            "registered": "UNKNOWN" not in lab.node("n1").states,
            "backup": "ctl2 is UP" in lab.call("scontrol", "ping", check=False),
        }


ROLES = {"games": "operator", "news": "admin", "daemon": ""}
"""Accounts of Debian that are no root, and what slurmdbd lets each do."""


def act_as(user: str, access: dict[str, Any], path: str) -> None:
    """Runs in a process of its own, as another account: what doctor says, and a drain of n1 with its undo."""
    account = pwd.getpwnam(user)
    os.setgroups([])
    os.setgid(account.pw_gid)
    os.setuid(account.pw_uid)
    actuator = SlurmActuator.from_settings(SlurmActuatorSettings(access=access))
    lines = [*actuator.refused()]
    action = an_action(A.CORDON)
    for do in (actuator.execute, actuator.undo):
        try:
            lines.append(f"{do.__name__}: {until_done_of(do, action)}")
        except Exception as error:  # noqa: BLE001  # what it says is what is looked for
            lines.append(f"{do.__name__}: {error}")
    Path(path).write_text("\n".join(lines))


def until_done_of(do: Callable[[Any], Any], action: Any) -> str:
    while True:
        try:
            return str(do(action).status)
        except Temporary:
            time.sleep(0.2)


def accounted() -> Seen:
    """slurmdbd on MariaDB: roles, and a job that ended while nobody read, after slurmctld has forgotten it."""
    with running(2, "MinJobAge=2\n", accounting=True, without="MinJobAge") as lab:
        for user, level in ROLES.items():
            if level:
                lab.call("sacctmgr", "-i", "add", "user", user, "account=root", f"adminlevel={level}")
        (lab.home / "said").mkdir(mode=0o777)
        (lab.home / "said").chmod(0o777)
        roles = {}
        for user, level in ROLES.items():
            path = lab.home / "said" / user
            assert run_in_process(act_as, user, lab.access.model_dump(), str(path)) == 0
            roles[level or "none"] = path.read_text().splitlines()
        failed = lab.submit("--job-name=a|b", script="exit 3")
        collector, inventory = SlurmCollector(SlurmSettings(access=lab.access)), Inventory()
        lab._await(lambda: "FAILED" in lab.call("sacct", "-a", "-X", "-n", "--format=State"), "an end in sacct")
        lab._await(lambda: not lab.job(failed, "JobState"), "slurmctld to forget a job")
        batch = collector.collect(time.time(), inventory, 5.0)
        told = [line.text for line in batch.logs if f"/{failed}" in line.text]
        again = collector.collect(time.time() + 5, inventory, 5.0)
        lab.stop("slurmdbd", signal.SIGKILL)
        fresh = SlurmCollector(SlurmSettings(access=lab.access)).collect(time.time(), Inventory(), 5.0)
        return {
            "roles": roles,
            "told_of_a_forgotten_job": told,
            "told_again": [line.text for line in again.logs if f"/{failed}" in line.text],
            "without_slurmdbd": [f"{source.ok}: {source.detail}" for source in fresh.sources],
        }


def powered() -> Seen:
    """A reboot on a site without RebootProgram: Slurm's power saving takes the node down, and up again."""
    lines = "SuspendProgram={home}/power\nResumeProgram={home}/power\nSuspendTime=86400\nSuspendTimeout=3\n"
    lines += "ResumeTimeout=60\n"
    with running(2, lines, without="RebootProgram") as lab:
        job = lab.run("--nodelist=n1")
        before = lab.node("n1").boot_s
        actuator, action = actuator_on(lab), an_action(A.REBOOT_NODE)
        states: list[str] = []
        deadline_s = time.monotonic() + READY_S
        while True:
            assert time.monotonic() < deadline_s, states
            node = lab.node("n1")
            states += [word for word in sorted(node.states) if word.startswith("POWER") and word not in states]
            if "POWERING_DOWN" in node.states and "n1" in lab._processes:
                lab.stop("n1", signal.SIGKILL)
            elif "POWERING_UP" in node.states and "n1" not in lab._processes:
                # a machine takes longer: Slurm does not take a node that registers in the second of its request
                time.sleep(max(2.0, before + 6.0 - time.time()))
                lab.start_node("n1", rebooted=True)
            try:
                outcome = actuator.execute(action)
                break
            except Temporary:
                time.sleep(0.2)
        node = lab.node("n1")
        return {
            "outcome": f"{outcome.status}: {outcome.detail}",
            "states": states,
            "later_boot": node.boot_s > before,
            "drained": "DRAIN" in node.states,
            "restarts": int(lab.job(job, "Restarts")),
        }


def qualified(what: str) -> Seen:
    """The shipped program in slurm.conf, with a check of the site that fails on n1 alone."""
    lines = {
        "prolog": "Prolog={home}/prolog\n",
        "epilog": "Epilog={home}/epilog\n",
        "health_check": "HealthCheckProgram={home}/health_check\nHealthCheckInterval=1\n",
    }
    with running(2, lines[what]) as lab:
        lab._script("qualify", f'#!/bin/sh\n[ "$1" = {what} ] || exit 9\n[ "$SLURMD_NODENAME" != n1 ]\n')
        link = lab.home / "links" / what
        link.parent.mkdir()
        link.symlink_to(QUALIFY)
        lab._script(
            what,
            f"#!/bin/sh\nexport SLURM_CONF={lab.conf} NIGHTSHIFT_QUALIFY={lab.home}/qualify\nexec {link}\n",
        )
        collector, detector = SlurmCollector(SlurmSettings(access=lab.access)), ClusterFaults()
        inventory, now_s = Inventory(), time.time()

        def findings(at_s: float) -> list[str]:
            batch = collector.collect(at_s, inventory, 5.0)
            found = detector.update(Tick(at_s, sources=batch.sources, logs=batch.logs), inventory)
            return [f"{f.subject}: {f.summary}" for f in found if f.state is State.FIRING]

        told = findings(now_s)
        good = lab.submit("--nodelist=n2", script="true")
        lab._await(lambda: lab.job(good, "JobState") == "COMPLETED", "a job on a good node")
        if what != "health_check":
            bad = lab.submit("--nodelist=n1", script="true")
        lab._await(lambda: "DRAIN" in lab.node("n1").states, f"the drain of a failed {what}")
        if what == "prolog":
            lab._await(lambda: lab.job(bad, "JobState") == "PENDING", "the job to be queued again")
        told += findings(now_s + 10) + findings(now_s + 120)
        undo = actuator_on(lab).execute(an_action(A.UNCORDON))
        return {
            "reason": lab.node("n1").reason,
            "findings": sorted(set(told)),
            "others_drained": "DRAIN" in lab.node("n2").states,
            "our_uncordon": str(undo.status),
        }


def right_over(seen: Seen) -> bool:
    ended = seen["outcome"] == "done" or "drained by slurm: Duplicate jobid; they must" in seen["detail"]
    return ended and seen["restarts"] <= 1 and seen["drained"] and seen["registered"] and seen["backup"]


def right_roles(seen: Seen) -> bool:
    roles, no_right = seen["roles"], "this account has no right to it"
    return (
        roles["admin"] == ["execute: done", "undo: done"]
        and [line.split(" (")[0] for line in roles["operator"][:1]] == ["update nodes"]
        and [no_right in roles[role][-2] for role in ("operator", "none")] == [True, True]
        and [len(roles[role]) for role in ("operator", "none")] == [3, 4]
        and len(seen["told_of_a_forgotten_job"]) == 1
        and not seen["told_again"]
        and all(line.startswith("True") for line in seen["without_slurmdbd"])
        and "the last 30 min may be missing: sacct" in seen["without_slurmdbd"][1]
    )


def right_power(seen: Seen) -> bool:
    went = {"POWERED_DOWN", "POWERING_UP"} <= set(seen["states"]) and seen["later_boot"]
    return bool(went and seen["outcome"].startswith("done") and not seen["drained"] and seen["restarts"] == 1)


def right_programs(seen: Seen) -> bool:
    named = any(line.startswith("node:n1") for line in seen["findings"])
    return bool(named and not seen["others_drained"] and seen["our_uncordon"] == "refused")


SITES: Mapping[str, tuple[Callable[[], Seen], Callable[[Seen], bool]]] = {
    "backup controller": (failing_over, right_over),
    "slurmdbd and roles": (accounted, right_roles),
    "power saving": (powered, right_power),
    "prolog": (lambda: qualified("prolog"), right_programs),
    "epilog": (lambda: qualified("epilog"), right_programs),
    "health check": (lambda: qualified("health_check"), right_programs),
}
"""Each with what is right in it."""
NEEDS = {"backup controller": "/usr/bin/unshare", "slurmdbd and roles": "/usr/sbin/mariadbd"}


@pytest.mark.full
@pytest.mark.parametrize("name", SITES)
def test_slurm_as_sites_set_it_up(name: str) -> None:
    for path in ("/usr/sbin/slurmctld", NEEDS.get(name, "/usr/sbin/munged")):
        if not Path(path).exists():
            absent(path)
    if name in NEEDS and os.geteuid() != 0:
        pytest.skip("needs root: daemons of several accounts, or of machines with other names")
    scene, is_right = SITES[name]
    seen = scene()
    assert is_right(seen), seen
