"""What Slurm says: answers of each release, host lists, states as lines, and a source that is away.

The answers of 22.05 were recorded from a real Slurm; those of later releases are written after the documentation
(`slurm_answers/README.md`). Where a real one runs, the same is read from it.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightshift.agent.approvals.manual_fixes import read as fix_of
from nightshift.agent.incidents.advisor import out_of_use
from nightshift.collectors.frame import Reason
from nightshift.collectors.slurm import CHANGES
from nightshift.collectors.slurm.answers import (
    AnswerError,
    SlurmFailure,
    SlurmJob,
    SlurmNode,
    ended_of_text,
    expand,
    jobs_of_text,
    nodes_of_text,
    read_jobs,
    read_nodes,
)
from nightshift.collectors.slurm.client import SlurmAccess, SlurmClient, SlurmRefused, SlurmSilent
from nightshift.collectors.slurm.nodes_and_jobs import SlurmCollector, SlurmSettings, of_job, of_node
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.controllers.action import Action, ActionKind, BlastRadius, Situation, Undo
from nightshift.controllers.guard import Settings as GuardSettings
from nightshift.controllers.guard import rule
from nightshift.controllers.playbooks.plan import Reach
from nightshift.detectors.base import Fault, State
from nightshift.detectors.cluster import ClusterFaults
from tests.slurm_lab import SlurmLab

K = SubjectKind
ANSWERS = Path(__file__).parent / "slurm_answers"
LATER = sorted(path.stem for path in ANSWERS.glob("2*.*.json") if "-" not in path.stem)


def answer(name: str) -> str:
    return (ANSWERS / name).read_text()


# Answers
# -----------------------------------------------------------------------------------------------------------


def test_json_and_text_of_one_slurm_say_the_same() -> None:
    """Recorded from 22.05 at one moment: state flags, a reason in two other languages, who and when, GPU
    indices."""
    nodes, jobs = read_nodes(answer("22.05-sinfo.json")), read_jobs(answer("22.05-squeue.json"))
    assert nodes == nodes_of_text(answer("22.05-nodes.txt"))
    drained = nodes[3]
    assert drained.states == {"IDLE", "DRAIN"}
    assert drained.reason == "Grafikkarte kaputt: größer als 80 °C (修理中)"
    assert drained.reason_by == "root"
    assert drained.extra == "rack=7,nightshift:inc-1-cordon-ab:1795740000"
    by_text = {job.id: job for job in jobs_of_text(answer("22.05-jobs.txt"))}
    for job in jobs:
        same = ("name", "user", "states", "nodes", "gpus", "gpu_count", "restarts", "can_requeue", "is_batch")
        same += ("exit_code", "exit_signal", "comment", "partition", "account")
        assert [getattr(job, name) for name in same] == [getattr(by_text[job.id], name) for name in same]
    held = {job.name: job.gpus for job in jobs if "RUNNING" in job.states}
    assert held == {"pretrain": (frozenset(range(8)),) * 2, "eval": (frozenset({0, 1}),)}


@pytest.mark.parametrize("release", LATER)
def test_each_later_release_is_read_alike(release: str) -> None:
    nodes, jobs = read_nodes(answer(f"{release}.json")), read_jobs(answer(f"{release}.json"))
    assert [n.states for n in nodes] == [{"MIXED"}, {"IDLE", "DRAIN"}, {"DOWN", "NOT_RESPONDING"}]
    assert (nodes[1].reason_by, nodes[1].boot_s, nodes[2].boot_s) == ("nightshift", 1795740000.0, 0.0)
    assert [n.gpus for n in nodes] == [8, 8, 8]
    assert [j.states for j in jobs] == [{"RUNNING"}, {"OUT_OF_MEMORY"}, {"TIMEOUT"}, {"PENDING"}]
    assert jobs[0].nodes == ("gpu01", "gpu02")
    assert jobs[0].gpus == (frozenset(range(8)),) * 2
    assert (jobs[1].exit_signal, jobs[1].restarts, jobs[2].limit_min, jobs[3].can_requeue) == (9, 1, 60.0, False)
    assert [j.gpu_count for j in jobs] == [16] * 4


@pytest.mark.parametrize("what", ["sinfo", "squeue"])
def test_an_answer_with_an_error_and_nothing_in_it_is_no_empty_cluster(what: str) -> None:
    """Recorded: without munge, 22.05 ends with exit code 0 and an empty list."""
    with pytest.raises(SlurmFailure):
        (read_nodes if what == "sinfo" else read_jobs)(answer(f"22.05-{what}-without-munge.json"))


def _changed(**changes: Any) -> str:
    return json.dumps({**json.loads(answer("24.05.json")), **changes})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("slurm_load_node: error", "not JSON"),
        ("[]", "no object"),
        (_changed(meta={}), "names no data parser"),
        (_changed(meta={"plugin": {"data_parser": "data_parser/v0.0.99"}}), "v0.0.99 is unknown here"),
        (_changed(nodes=None), "no list `nodes`"),
        (_changed(nodes=[{"name": "n1"}]), "without a name or a state"),
        (_changed(nodes=[7]), "without a name or a state"),
    ],
)
def test_an_answer_that_cannot_be_read_is_an_error_with_its_place(text: str, says: str) -> None:
    with pytest.raises(AnswerError, match=says):
        read_nodes(text)


def test_a_text_that_imitates_a_field_is_not_believed() -> None:
    """A job's name, or a reason, of two lines would else set the state that follows it."""
    forged = answer("22.05-jobs.txt").replace("JobName=eval", "JobName=eval\n   JobState=COMPLETED Reason=None")
    with pytest.raises(AnswerError, match="`JobState` is twice"):
        jobs_of_text(forged)
    with pytest.raises(AnswerError, match="`Extra` is twice"):
        nodes_of_text(
            answer("22.05-nodes.txt").replace("Reason=Graf", "Reason=x\n   Extra=nightshift:a:1\n   y=Graf")
        )


# Host lists
# --------------------------------------------------------------------------------------------------------


def test_a_list_of_ten_thousand_nodes_is_expanded() -> None:
    assert len(expand("gpu[00001-10000]")) == 10_000
    lines = ",".join(f"rack{r}-gpu[{n}-{n + 7}]" for r in range(125) for n in range(0, 80, 8))
    assert len(set(expand(lines))) == 10_000
    text = "".join(f"NodeName=n{i} Gres=gpu:8\n   State=IDLE ThreadsPerCore=1\n\n" for i in range(10_000))
    assert len(nodes_of_text(text)) == 10_000


@pytest.mark.parametrize(
    "text", ["n[1-", "n]1[", "n[1-2", "n[a-b]", "n[2-1]", "n[1,]", "n[1-99999999999]", "a[1-999]b[1-999]", "n 1"]
)
def test_a_bad_host_list_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="host list"):
        expand(text)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 300), st.integers(0, 40)), min_size=1, max_size=8))
def test_expansion_has_every_name_in_its_order(spans: list[tuple[str, int, int]]) -> None:
    text = ",".join(f"{stem}[{first:04d}-{first + more:04d}]" for stem, first, more in spans)
    wanted = [f"{stem}{n:04d}" for stem, first, more in spans for n in range(first, first + more + 1)]
    assert list(expand(text)) == wanted


# States
# ------------------------------------------------------------------------------------------------------------


def a_node(*states: str, reason: str = "", by: str = "root") -> SlurmNode:
    return SlurmNode("n1", frozenset(states), reason=reason, reason_by=by, gpus=8)


@pytest.mark.parametrize(
    ("node", "troubles"),
    [
        (a_node("IDLE"), []),
        (a_node("MIXED", "DRAIN", reason="Wartung am Kühlkreis", by="ann"), ["maintenance"]),
        (a_node("IDLE", "DRAIN", reason="nightshift: memory (inc-1)"), ["maintenance"]),
        (a_node("DOWN", "NOT_RESPONDING", reason="Not responding", by="slurm"), ["not_ready"]),
        (a_node("IDLE", "DRAIN", reason="Prolog error", by="root"), ["condition"]),
        (a_node("IDLE", "DRAIN", reason="Epilog error"), ["condition"]),
        (a_node("IDLE", "DRAIN", reason="Kill task failed"), ["condition"]),
        (a_node("DOWN", reason="Node unexpectedly rebooted"), ["condition"]),
        (a_node("UNKNOWN", "DRAIN", "INVALID_REG", reason="gres/gpu count reported lower than configured (7 < 8)"),
         ["condition"]),
        (a_node("IDLE", "POWERED_DOWN"), ["maintenance"]),
        (a_node("DOWN", "POWERED_DOWN"), ["maintenance"]),
        (a_node("DOWN", "REBOOT_ISSUED", reason="nightshift: x : reboot issued"), ["maintenance", "not_ready"]),
        (a_node("IDLE", "MAINTENANCE", "RESERVED"), ["maintenance"]),
    ],
)  # fmt: skip
def test_a_nodes_state_is_a_fault_or_maintenance(node: SlurmNode, troubles: list[str]) -> None:
    assert [trouble.name for trouble in of_node(node)] == troubles


def a_job(state: str, **changes: Any) -> SlurmJob:
    return SlurmJob(7, "train", "ann", "llm", frozenset({state}), gpu_count=8, **{"nodes": ("n1",), **changes})


@pytest.mark.parametrize(
    ("job", "before", "trouble"),
    [
        (a_job("RUNNING"), 0, []),
        (a_job("COMPLETED"), 0, []),
        (a_job("CANCELLED"), 0, []),
        (a_job("FAILED", exit_code=3), 0, ["exited [exit code 3]"]),
        (a_job("NODE_FAIL"), 0, ["node_failed [n1]"]),
        (a_job("OUT_OF_MEMORY", exit_signal=9), 0, ["oom [n1]"]),
        (a_job("TIMEOUT", limit_min=60.0), 0, ["timed_out [time limit 60 min]"]),
        (a_job("BOOT_FAIL"), 0, ["launch_failed [BOOT_FAIL]"]),
        (a_job("PREEMPTED"), 0, ["preempted [exit code 0]"]),
        (a_job("PENDING", restarts=1), 0, ["requeued [restart 1]"]),
        (a_job("PENDING", restarts=1), 1, []),
        (a_job("PENDING", restarts=1), None, []),
        (a_job("PENDING", reason="launch failed requeued held"), 0, ["launch_failed [requeued and held]"]),
    ],
)
def test_a_jobs_end_or_requeue_is_told(job: SlurmJob, before: int | None, trouble: list[str]) -> None:
    assert [f"{found.name} [{found.cause}]" for found in of_job(job, before)] == trouble


# Commands
# ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def stand_in(tmp_path: Path) -> Any:
    """A folder of commands that answer as they are told, for releases and states that no real one here is in."""

    def make(**commands: str) -> SlurmAccess:
        for name in ("scontrol", "sinfo", "squeue"):
            path = tmp_path / name
            path.write_text(f"#!/bin/sh\n{commands.get(name, 'exit 1')}\n")
            path.chmod(0o755)
        return SlurmAccess(commands=tmp_path)

    return make


def _says(text: str, code: int = 1) -> str:
    return f"case \"$*\" in *version*) echo slurm 22.05.8; exit 0;; esac\ncat >&2 <<'END'\n{text}\nEND\nexit {code}"


@pytest.mark.parametrize(
    ("text", "reason", "advice"),
    [
        (
            "slurm_load_node error: Unable to contact slurm controller (connect failure)",
            Reason.UNREACHABLE,
            "is down",
        ),
        ("slurm_load_node error: Slurm backup controller in standby mode", Reason.UNREACHABLE, "failing over"),
        (
            "error: Munge encode failed: Expired credential\nProtocol authentication error",
            Reason.UNAUTHORISED,
            "clocks",
        ),
        ("slurm_load_node error: Zero Bytes were transmitted or received", Reason.UNAUTHORISED, "expired"),
        ("slurm_load_node error: Access/permission denied", Reason.UNAUTHORISED, "has no right"),
        ("fatal: Unable to process configuration file", Reason.UNSUPPORTED, "configuration file"),
    ],
)
def test_each_failure_has_a_reason_and_says_what_to_do(
    stand_in: Any, text: str, reason: Reason, advice: str
) -> None:
    access = stand_in(scontrol=_says(text), sinfo=_says(text), squeue=_says(text))
    batch = SlurmCollector(SlurmSettings(access=access)).collect(1.0, Inventory(), 5.0)
    assert [(s.ok, s.reason) for s in batch.sources] == [(False, reason)] * 2
    assert all(advice in s.detail for s in batch.sources)
    assert batch.logs == [], "a source that is away says nothing of any node"


def test_missing_commands_are_named() -> None:
    nowhere = SlurmSettings(access=SlurmAccess(commands=Path("/nowhere")))
    batch = SlurmCollector(nowhere).collect(1.0, Inventory(), 5.0)
    assert batch.sources[0].reason is Reason.NOT_FOUND
    assert "install Slurm's commands, or set `slurm.commands`" in batch.sources[0].detail


def test_a_slurm_without_json_is_read_as_text_and_says_so(stand_in: Any) -> None:
    asked = 'case "$*" in *version*) echo slurm 20.11.9;; *nodes*) cat %s;; *) cat %s;; esac'
    no_json = "echo \"sinfo: unrecognized option '--json'\" >&2; exit 1"
    access = stand_in(
        scontrol=asked % (ANSWERS / "22.05-nodes.txt", ANSWERS / "22.05-jobs.txt"),
        sinfo=no_json,
        squeue=f'case "$*" in *--json*) {no_json};; esac',
    )
    batch = SlurmCollector(SlurmSettings(access=access)).collect(1.0, Inventory(), 5.0)
    assert [(s.ok, s.samples) for s in batch.sources] == [(True, 4), (True, 4)]
    assert "read as text" in batch.sources[0].detail


@pytest.mark.parametrize("release", LATER)
def test_a_later_release_is_asked_for_its_nodes_by_scontrol(stand_in: Any, release: str) -> None:
    """There `sinfo --json` groups nodes; `scontrol show nodes --json` lists them."""
    path = ANSWERS / f"{release}.json"
    access = stand_in(
        scontrol=f'case "$*" in *version*) echo slurm {release}.1;; *--json*) cat {path};; *) exit 1;; esac',
        squeue=f'case "$*" in *--json*) cat {path};; esac',
    )
    client = SlurmClient(access)
    assert len(client.nodes()) == 3
    assert len(client.jobs()) == 4


@pytest.mark.parametrize("states", ["IDLE+DRAIN", "IDLE+MAINTENANCE+RESERVED", "DOWN*", "IDLE"])
def test_a_node_that_slurm_gives_no_work_counts_against_the_guards_limits(stand_in: Any, states: str) -> None:
    """Whoever took it out: one of four is allowed, and a second drain is refused while it is out."""
    record = "NodeName={} Gres=gpu:8\\n   State={} X=1\\n   BootTime=1795740000\\n\\n"
    text = "".join(record.format(f"n{n}", states if n == 1 else "IDLE") for n in range(1, 5))
    access = stand_in(scontrol=f"case \"$*\" in *version*) echo slurm 20.11.9;; *) printf '{text}';; esac")
    collector = SlurmCollector(SlurmSettings(access=access))
    collector._client.without_json = "as asked"
    inventory = Inventory()
    for n in range(1, 5):
        for gpu in range(8):
            inventory.observe(Subject(K.GPU, f"GPU-{n}-{gpu}"), Subject(K.NODE, f"n{n}"), 0.0)
    collector.collect(1.0, inventory, 5.0)
    plan = Action("a", ActionKind.CORDON, Subject(K.NODE, "n2"), "", BlastRadius(), Undo(True, ""), 1e9)
    limits = GuardSettings(cluster_fraction=0.25)
    ruling = rule(plan, [], inventory, 2.0, limits, unavailable=out_of_use(inventory, 2.0))
    assert ruling.allowed == (states == "IDLE")


def test_a_cluster_without_nodes_is_no_data(stand_in: Any) -> None:
    """What PrivateData=nodes makes of it for an account that may not see them."""
    access = stand_in(scontrol='case "$*" in *version*) echo slurm 20.11.9;; esac', squeue="exit 1")
    collector = SlurmCollector(SlurmSettings(access=access))
    collector._client.without_json = "as asked"
    (nodes, _) = collector.collect(1.0, Inventory(), 5.0).sources
    assert (nodes.ok, nodes.reason) == (False, Reason.NOT_FOUND)
    assert "PrivateData" in nodes.detail


def test_what_accounting_says_of_ends_is_read() -> None:
    """Recorded from sacct of 22.05; a name with the separator, a job that never had a node, one of components."""
    told = (
        "1|root|root|FAILED|3:0|n1|1795776855|billing=1,cpu=1,gres/gpu=8,node=1|main|525600|a|b\n"
        "2|ann|llm|OUT_OF_MEMORY|0:125|n[1-2]|1795776900|billing=1,gres/gpu=16,gres/gpu:h100=16|main|60|train\n"
        "3|ann|llm|DEADLINE|0:0|None assigned|1795776900||main|60|late\n"
        "4+1|ann|llm|FAILED|1:0|n1|1795776900|gres/gpu=8|main|60|part\n"
    )
    first, second, third = ended_of_text(told)
    assert (first.name, first.exit_code, first.gpu_count, first.nodes) == ("a|b", 3, 8, ("n1",))
    assert [f"{t.name} [{t.cause}]" for t in of_job(second, None)] == ["oom [n1, n2]"]
    assert (third.nodes, third.gpu_count) == ((), 0)
    with pytest.raises(AnswerError, match="with 2 fields"):
        ended_of_text("slurmdbd|away")


def test_a_hanging_command_is_a_time_out(stand_in: Any) -> None:
    with pytest.raises(SlurmSilent, match="did not answer within"):
        SlurmClient(stand_in(scontrol="exec sleep 60"), timeout_s=0.3).node("n1")


def test_bytes_that_are_no_utf8_do_not_hide_the_rest(stand_in: Any) -> None:
    text = r"printf 'NodeName=n1 Gres=gpu:8\n   State=IDLE+DRAIN X=1\n   Reason=gr\374n [root@1795741000]\n'"
    assert SlurmClient(stand_in(scontrol=text)).node("n1").reason == "gr�n"


# A real Slurm
# ------------------------------------------------------------------------------------------------------


def test_a_cluster_is_seen_as_it_is(slurm: SlurmLab) -> None:
    """Nodes, a job over two of them with its GPUs by index, a person's drain, and what a plan makes of it."""
    gpus = [Subject(K.GPU, f"GPU-{index}") for index in range(3)]
    inventory, now_s = Inventory(), time.time()
    for index, gpu in enumerate(gpus):
        inventory.observe(gpu, Subject(K.NODE, "n1"), now_s - 100)
        inventory.describe(gpu, index=str(index))
    collector = SlurmCollector(SlurmSettings(access=slurm.access))
    collector.collect(now_s - 10, inventory, 5.0)
    number = slurm.run("--nodelist=n1,n2", "--gres=gpu:2", nodes=2, gpus=2)
    slurm.drain_as_person("n3", "Kühlung — 修理中")
    batch = collector.collect(now_s, inventory, 5.0)
    assert all(source.ok for source in batch.sources)
    job, node = Subject(K.JOB, f"root/{number}"), Subject(K.NODE, "n3")
    assert inventory.gpus(job, now_s) == gpus[:2]
    assert inventory.fact(job, "uid") == "restart 0"
    assert out_of_use(inventory, now_s) == {node}
    (line,) = [line for line in batch.logs if line.source == CHANGES]
    assert line.text == f"Node n3 unschedulable: no -> yes, by {slurm.person}"
    fix = fix_of(replace(line, text="Node n3 unschedulable: no -> yes, by ann"))
    assert fix is not None
    assert (fix.node, fix.kind.value, fix.by) == (node, "cordon", "ann")
    situation = Situation("INC-1", Fault.XID, gpus[0], (), inventory, now_s)
    assert [s.name for s in Reach.of(situation, gpus[0]).jobs] == [job.name]
    slurm.call("scancel", str(number))
    slurm._await(lambda: slurm.job(number, "JobState") == "CANCELLED")
    batch = collector.collect(now_s + 10, inventory, 5.0)
    assert inventory.gpus(job, now_s + 10) == []
    assert not [line for line in batch.logs if "SlurmJob" in line.text], "what its owner ended is no fault"


def test_how_jobs_end_becomes_findings(slurm: SlurmLab) -> None:
    """An exit code, a time limit of a requeued job and a node that is down, through the detector of clusters."""
    inventory, now_s = Inventory(), time.time()
    collector, detector = SlurmCollector(SlurmSettings(access=slurm.access)), ClusterFaults()
    detector.update(_tick(collector, inventory, now_s), inventory)
    failed = slurm.submit(script="exit 3")
    again = slurm.run("--nodelist=n2")
    detector.update(_tick(collector, inventory, now_s + 5), inventory)
    slurm._await(lambda: slurm.job(failed, "JobState") == "FAILED")
    slurm.call("scontrol", "requeue", str(again))
    slurm.call("scontrol", "update", "nodename=n4", "state=down", "reason=Not responding")
    found = detector.update(_tick(collector, inventory, now_s + 10), inventory)
    found += detector.update(_tick(collector, inventory, now_s + 100), inventory)
    told = {(str(f.subject), f.summary) for f in found if f.state is State.FIRING}
    assert (f"job:root/{failed}", "Job ended: its container ended with an error (exit code 3)") in told
    assert (f"job:root/{again}", "Job ended: requeued by Slurm (restart 1)") in told
    assert ("node:n4", "Node not ready (DOWN)") in told


def _tick(collector: SlurmCollector, inventory: Inventory, now_s: float) -> Tick:
    batch = collector.collect(now_s, inventory, 5.0)
    return Tick(now_s, sources=batch.sources, logs=batch.logs)


def test_a_node_of_slinky_is_the_kubernetes_node_and_counts_once(slurm: SlurmLab) -> None:
    """By the comment that slurm-operator writes. What the API server says of the node stays."""
    node = Subject(K.NODE, "worker-a")
    inventory, now_s = Inventory(), time.time()
    inventory.observe(node, inventory.cluster, now_s - 100, 1)
    inventory.describe(node, uid="u-1", unschedulable="false", ready="true")
    comment = '{"namespace":"slurm","podName":"gpu-0","node":"worker-a"}'
    slurm.call("scontrol", "update", "nodename=n1", f"comment={comment}")
    collector = SlurmCollector(SlurmSettings(access=slurm.access))
    collector.collect(now_s, inventory, 5.0)
    assert [s.name for s in inventory.subjects(K.NODE, now_s)] == ["n2", "n3", "n4", "worker-a"]
    assert inventory.fact(node, "site_node") == "n1"
    slurm.drain_as_person("n1", "x")
    collector.collect(now_s + 5, inventory, 5.0)
    assert inventory.fact(node, "unschedulable") == "false", "that is the API server's to say"
    assert node in out_of_use(inventory, now_s + 5)


def test_a_controller_that_is_away_is_no_data_and_comes_back(slurm: SlurmLab) -> None:
    collector, inventory = SlurmCollector(SlurmSettings(access=slurm.access)), Inventory()
    assert collector.collect(1.0, inventory, 5.0).sources[0].ok
    slurm.plan("expired", 9)
    batch = collector.collect(2.0, inventory, 5.0)
    assert [s.reason for s in batch.sources] == [Reason.UNAUTHORISED] * 2
    slurm.clear()
    assert collector.collect(3.0, inventory, 5.0).sources[0].ok


@pytest.mark.full
def test_munge_that_is_away_is_named_by_a_real_slurm(slurm: SlurmLab) -> None:
    """22.05 then answers with exit code 0 and no nodes."""
    (slurm.home / "munge.sock").rename(slurm.home / "munge.away")
    try:
        with pytest.raises(SlurmSilent, match="is munged running"):
            slurm.client().nodes()
    finally:
        (slurm.home / "munge.away").rename(slurm.home / "munge.sock")


@pytest.mark.full
def test_an_expired_credential_is_named_by_a_real_slurm(slurm: SlurmLab) -> None:
    """One second of life, and a controller that reads it after three: as with clocks that differ."""
    short = slurm.home / "short.conf"
    short.write_text(slurm.conf.read_text().replace("munge.sock", "munge.sock,ttl=1"))
    slurm.freeze("slurmctld")
    threading.Timer(3.0, lambda: slurm.freeze("slurmctld", frozen=False)).start()
    with pytest.raises(SlurmSilent, match="expired or foreign munge credential"):
        SlurmClient(SlurmAccess(conf=short)).node("n1")


def test_a_node_that_is_unknown_is_refused(slurm: SlurmLab) -> None:
    with pytest.raises(SlurmRefused, match="not found"):
        slurm.client().node("n99")
