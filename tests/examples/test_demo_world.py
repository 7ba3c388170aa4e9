"""The demo's world keeps the promises that make its alarms worth something: real pages, honest counters, a script
that only the scorer knows."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from examples.demo import recorded
from examples.demo.job import JobState
from examples.demo.recording import Recording, load
from examples.demo.run import Demo
from examples.demo.scenario import GPUS_PER_NODE, NODES, START_S, TICK_S, BenignKind, FaultKind, draw
from examples.demo.serving import CADVISOR, DCGM, KERNEL_LOG
from examples.demo.world import FaultRecord, World, gpu_subject, job_subject
from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.controllers.action import Action, ActionKind, BlastRadius, Undo
from nightshift.controllers.actuators.simulated import SimulatedActuator
from nightshift.kernels.candidate import Candidate
from nightshift.kernels.certification.envelope import CertificateError, read
from nightshift.kernels.certification.evidence import UNKNOWN, EvidenceReason, record_of
from nightshift.kernels.certification.registry import promotable

ROOT = Path(__file__).parents[2]
SEEDS = (*range(100, 120),)


@pytest.fixture(scope="module")
def recording() -> Recording:
    return load()


@pytest.fixture
def world(recording: Recording, tmp_path: Path) -> Iterator[World]:
    made = World(draw(100), recording, tmp_path)
    yield made
    made.close()


def page(world: World, node: str, path: str) -> str:
    with urllib.request.urlopen(world.nodes[node].url + path, timeout=120) as answer:
        text: str = answer.read().decode()
    return text


def gpu_values(world: World, metric: str) -> dict[str, float]:
    return {
        sample.labels["UUID"]: sample.value
        for node in NODES
        for family in text_string_to_metric_families(page(world, node, DCGM))
        for sample in family.samples
        if sample.name.removesuffix("_total") == metric  # the parser renames counters
    }


def record(world: World, kind: FaultKind) -> FaultRecord:
    return next(r for r in world.records if r.fault.kind is kind)


def test_the_recording_has_the_faults_that_its_readme_tells(recording: Recording) -> None:
    """The leak grows by gigabytes, the stall stops all steps, divergence and the flip raise the loss."""
    assert recording.gpu_leak.cells[-1].memory_added_bytes > 20e9
    assert recording.host_leak.cells[-1].process_added_bytes > 0.5e9
    assert max(c.memory_added_bytes for c in recording.healthy.cells) < 1e6
    longest = max(
        len(run) for run in re.findall("0+", "".join("01"[bool(c.steps)] for c in recording.data_stall.cells))
    )
    assert longest >= 10
    for episode in (recording.divergence, recording.bit_flip):
        assert all(step.loss_added > 1 for cell in episode.cells[-20:] for step in cell.steps)
    assert sum(step.loss_added > 5 for cell in recording.spikes.cells for step in cell.steps) == 2


def test_a_growing_episode_goes_on_without_a_jump(recording: Recording) -> None:
    """Looping a leak continues from where it was, at the recorded slope."""
    leak = recording.gpu_leak
    count = len(leak.cells)
    values = [leak.cell(tick).memory_added_bytes for tick in range(3 * count)]
    steps = [after - before for before, after in pairwise(values)]
    assert min(steps) >= 0
    assert max(steps) <= 2 * max(steps[: count - 1])


@pytest.mark.parametrize("seed", SEEDS)
def test_the_script_of_a_seed_is_consistent(seed: int) -> None:
    """Every fault and benign phase happens once, each on its own job; one job stays healthy; GPUs are held once."""
    scenario = draw(seed)
    assert draw(seed) == scenario
    assert {f.kind for f in scenario.faults} == set(FaultKind)
    assert {b.kind for b in scenario.benign} == set(BenignKind)
    jobs = [f.job for f in scenario.faults] + [b.job for b in scenario.benign]
    assert len(set(jobs)) == len(jobs) < len(scenario.jobs)
    held = [gpu.uuid for job in scenario.jobs for gpu in job.gpus]
    assert len(set(held)) == len(held) < len(scenario.gpus) == len(NODES) * GPUS_PER_NODE
    for fault in scenario.faults:
        assert fault.rank < len(scenario.jobs[fault.job].gpus)
    assert [e.after_s for f in scenario.faults for e in f.ecc] == sorted(
        e.after_s for f in scenario.faults for e in f.ecc
    )


def test_seeds_redraw_places_times_and_sizes() -> None:
    """Over twenty seeds no fault keeps its GPU, onset or size."""
    for kind in FaultKind:
        faults = [(s, next(f for f in s.faults if f.kind is kind)) for s in map(draw, SEEDS)]
        assert len({s.jobs[f.job].gpus[f.rank].uuid for s, f in faults}) == len(faults)
        assert len({f.onset_s for _, f in faults}) > 15


def test_pages_parse_as_expositions(world: World) -> None:
    """Both parsers that Prometheus users have accept every page, and all 32 GPUs are on them."""
    world.advance(START_S + 60)
    assert len(gpu_values(world, "DCGM_FI_DEV_FB_USED")) == 32
    for node in NODES:
        for path in (DCGM, CADVISOR):
            text = page(world, node, path)
            assert len(list(text_string_to_metric_families(text))) > 5
            if shutil.which("promtool"):
                checked = subprocess.run(
                    ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False
                )
                assert "error while linting" not in checked.stderr
        lines = page(world, node, KERNEL_LOG + "?after=0").splitlines()
        assert [json.loads(line)["cursor"] for line in lines] == list(range(1, len(lines) + 1))
        assert page(world, node, f"{KERNEL_LOG}?after={len(lines)}") == ""


@pytest.mark.full
def test_counters_never_fall(world: World) -> None:
    """Over a whole run without action no counter on any page decreases."""
    before: dict[tuple[str, str], float] = {}
    for minute in range(0, 62, 4):
        world.advance(START_S + 60 * minute)
        for node in NODES:
            for family in text_string_to_metric_families(page(world, node, DCGM)):
                if family.type != "counter":
                    continue
                for sample in family.samples:
                    key = (sample.name, sample.labels["UUID"])
                    assert sample.value >= before.get(key, 0.0), key
                    before[key] = sample.value


def test_faults_show_where_the_script_says(world: World) -> None:
    """The leaking GPU, the failing memory and the broken loss stand out on the pages, and only there."""
    start = gpu_values(world, "DCGM_FI_DEV_FB_USED")
    world.advance(START_S + 3000)
    end = gpu_values(world, "DCGM_FI_DEV_FB_USED")
    leak = record(world, FaultKind.GPU_LEAK).fault
    leaking = world.scenario.jobs[leak.job].gpus[leak.rank].uuid
    assert max(end, key=lambda uuid: end[uuid] - start[uuid]) == leaking
    sick = record(world, FaultKind.ECC).fault
    errors = gpu_values(world, "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL")
    assert max(errors, key=lambda uuid: errors[uuid]) == world.scenario.jobs[sick.job].gpus[sick.rank].uuid
    diverged = world.jobs[record(world, FaultKind.DIVERGENCE).fault.job]
    text = (world.logs / f"{diverged.plan.namespace}_{diverged.pod(0)}_trainer.log").read_text()
    losses = [float(m) for m in re.findall(r"loss=(\S+)", text)]
    assert min(losses[-50:]) > max(losses[:300])


def act(world: World, kind: ActionKind, target: Subject, **params: str | int | float | bool) -> None:
    actuator = SimulatedActuator(world.cluster.path, lambda: world.now_s)
    actuator.execute(
        Action(
            f"a{len(world.cluster.effects())}", kind, target, "", BlastRadius(), Undo(False, ""), 9e9, params=params
        )
    )


def test_a_restart_repairs_a_leak_and_rewinds_the_steps(world: World) -> None:
    """The restarted job's pods go away, its memory is that of a healthy start, and it resumes at its checkpoint."""
    leak = record(world, FaultKind.GPU_LEAK)
    job = world.jobs[leak.fault.job]
    world.advance(START_S + leak.fault.onset_s + 600)
    before = job.step
    assert job.views[leak.fault.rank].memory_bytes > job.plan.memory_bytes + 2e9
    act(world, ActionKind.RESTART_JOB, job_subject(job))
    world.advance(world.now_s + TICK_S)
    assert job.state is JobState.DOWN
    assert f'pod="{job.pod(0)}"' not in "".join(page(world, node, DCGM) for node in NODES)
    world.advance(world.now_s + 30)
    assert job.step < before
    assert leak.ended_by == "restart_job"
    world.advance(world.now_s + 300)
    assert abs(job.views[leak.fault.rank].memory_bytes - job.plan.memory_bytes) < 1e8


def test_a_restart_from_a_damaged_checkpoint_repairs_nothing(world: World) -> None:
    """Resumed from after the onset the loss stays diverged; from before it, it is healthy."""
    broken = record(world, FaultKind.DIVERGENCE)
    job = world.jobs[broken.fault.job]
    world.advance(START_S + broken.fault.onset_s + 600)
    safe = [c.step for c in job.checkpoints if not c.tainted][-1]
    act(world, ActionKind.RESTART_JOB, job_subject(job))
    world.advance(world.now_s + 240)
    assert broken.active
    act(world, ActionKind.RESTART_JOB, job_subject(job), checkpoint_step=safe)
    world.advance(world.now_s + 60)
    assert not broken.active
    assert job.step < broken.fault.onset_s * 3 + job.plan.first_step


@pytest.mark.parametrize("kind", [ActionKind.RESET_GPU, ActionKind.QUARANTINE_GPU])
def test_a_bad_gpu_is_repaired_by_reset_or_left_by_quarantine(world: World, kind: ActionKind) -> None:
    """After a reset its counters start anew and no error comes; after quarantine its job runs on a spare."""
    sick = record(world, FaultKind.ECC)
    job = world.jobs[sick.fault.job]
    gpu = job.gpus[sick.fault.rank]
    world.advance(START_S + sick.fault.onset_s + 300)
    assert gpu_values(world, "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL")[gpu.uuid] > 1
    act(world, kind, gpu_subject(gpu))
    world.advance(world.now_s + 30)
    assert not sick.active
    if kind is ActionKind.RESET_GPU:
        assert gpu_values(world, "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL")[gpu.uuid] == 0
        assert gpu in job.gpus
    else:
        assert gpu not in job.gpus
        assert job.state is JobState.STARTING
    after = gpu_values(world, "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL")[gpu.uuid]
    world.advance(world.now_s + 1200)
    assert gpu_values(world, "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL")[gpu.uuid] <= after


def test_the_pipeline_does_not_know_the_demo() -> None:
    """Nothing below `examples` imports it or names a phase of its recording or its script's kinds."""
    words = [rf"\btrain_{name}\b" for name in ("ok", "diverge", "bitflip", "gpu_leak", "host_leak", "data_stall")]
    words += [r"\bexamples\b\.demo", r"from examples", r"import examples", r"spike_recovers", r"varlen_benign"]
    words += [r"periodic_eval_benign", r"DEMO_", r"\bSEED\b"]
    pattern = re.compile("|".join(words))
    guilty = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for floor in ("agent", "collectors", "detectors", "controllers")
        for path in sorted((ROOT / "nightshift" / floor).rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line)
    ]
    assert guilty == []


def test_subjects_are_named_as_the_collectors_name_them(world: World) -> None:
    """A pod's name leads to the job under which the cluster keeps it."""
    job = world.jobs[0]
    assert job_subject(job) == Subject(SubjectKind.JOB, f"{job.plan.namespace}/{job.plan.name}")
    assert world.cluster.facts(job_subject(job))["running"] == "true"


def test_the_kernel_of_the_recorded_search_is_the_one_that_was_judged() -> None:
    """Its hash is the recorded row's; the certificate opens by its key alone and is of no present judge."""
    rows = json.loads((ROOT / "benchmarks/results/kernels_table.json").read_text())["rows"]
    (row,) = (one for one in rows if one["problem"] == "rmsnorm_backward" and one["case"].endswith("bfloat16"))
    envelope, predicate = recorded.certificate(row, 1_790_000_000.0)
    assert Candidate.from_json(predicate["candidate"]).sha256 == row["candidate_sha256"]
    assert EvidenceReason.other_judge in {one.reason for one in promotable(record_of(predicate), UNKNOWN)}
    with pytest.raises(CertificateError):
        read(envelope, {})


def test_a_demo_stopped_before_its_first_look_ends_without_an_error(tmp_path: Path) -> None:
    demo = Demo(4210, tmp_path, approve=False)
    try:
        demo.app.shut_down()
        report = demo.run()
    finally:
        demo.close()
    assert not any(line.startswith("Weekly report") for line in report.story)
