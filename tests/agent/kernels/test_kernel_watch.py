"""A new trace leads to one explained proposal, only where asked for, within the week's GPU-hours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from nightshift.agent.approvals.gate import Gate
from nightshift.agent.approvals.kernel_gate import KernelGate, search
from nightshift.agent.approvals.policy import ApprovalSettings, Person, Role
from nightshift.agent.kernels.watch import KernelWatch, order
from nightshift.agent.store.incident_store import Store
from nightshift.collectors.base import Permanent
from nightshift.collectors.frame import Instant, LogRecord
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.training.kineto import KinetoCollector
from nightshift.controllers.action import ActionKind
from nightshift.controllers.actuators.kube_kernel_jobs import arguments
from nightshift.kernels.profile.hotspots import Profile, profile
from nightshift.kernels.profile.roofline import Peaks
from nightshift.kernels.profile.trigger import AGAIN_DAYS, Settings
from tests.agent.incidents import ManualClock

RECORDED = Path(__file__).parents[2] / "recordings" / "h200_train_trace.json.gz"
ANN = Person("ann@example.org", frozenset({Role.APPROVER}), "console", 1_000.0)
POLICY = Settings(namespaces=("lab",), search_gpu_hours=3.0, weekly_gpu_hours=4.0)


@pytest.fixture
def gate(tmp_path: Path, clock: ManualClock) -> Iterator[KernelGate]:
    store = Store(f"sqlite:///{tmp_path}/s.sqlite", clock)
    yield KernelGate(Gate(store, ApprovalSettings(), clock), store, clock)
    store.close()


def _watch(gate: KernelGate, clock: ManualClock, policy: Settings = POLICY) -> KernelWatch:
    return KernelWatch(policy, gate, Inventory("c"), clock, "c")


@pytest.fixture(autouse=True)
def _settle_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nightshift.collectors.training.kineto.SETTLE_S", 0.0)


def _told(folder: Path, namespace: str = "lab") -> list[LogRecord]:
    """What the collector says of the recorded trace."""
    target = folder / "traces" / namespace
    target.mkdir(parents=True)
    (target / "gpt-0.json.gz").write_bytes(RECORDED.read_bytes())
    collector = KinetoCollector(KinetoCollector.Settings(path=folder / "traces"))
    import time

    return list(collector.collect(time.time(), Inventory(), 30.0).logs)


def test_a_trace_of_a_namespace_that_asked_becomes_one_explained_proposal(
    gate: KernelGate, clock: ManualClock, tmp_path: Path
) -> None:
    watch = _watch(gate, clock)
    logs = _told(tmp_path)
    assert watch.look(logs) == 1
    watch.close()
    watch.look(logs)
    watch.close()
    (proposal,) = gate.proposals()
    action = proposal.action
    assert action.kind is ActionKind.KERNEL_JOB
    assert str(action.target) == "job:lab/gpt"
    assert action.params["preemptible"] is True
    assert action.params["priority_class"] == POLICY.priority_class
    assert action.blast_radius.cost_gpu_hours == 3.0
    assert "rmsnorm m=8192 n=1024 float32" in action.why
    assert "of the roofline" in action.why
    assert gate.objections(action) == ["it is waiting, not approved"]  # a person decides


def test_the_weeks_gpu_hours_are_a_cap(gate: KernelGate, clock: ManualClock) -> None:
    watch = _watch(gate, clock)
    job = Subject(SubjectKind.JOB, "lab/gpt")
    watch.consider(RECORDED, job)
    (first,) = gate.proposals()
    gate.approve(first.action.id, first.action.plan_sha256, ANN)
    again = watch.consider(RECORDED, Subject(SubjectKind.RANK, "lab/other#3"))
    assert not again.propose
    assert "3.0 of 4 GPU-hours" in again.why
    clock.advance(8 * 86400.0)
    assert watch.consider(RECORDED, Subject(SubjectKind.RANK, "lab/other#3")).propose


def test_the_plan_says_what_the_pod_is_told_and_is_not_asked_for_twice(
    gate: KernelGate, clock: ManualClock
) -> None:
    """Rejected, it comes again only when its time is over."""
    watch, job = _watch(gate, clock), Subject(SubjectKind.JOB, "lab/gpt")
    watch.consider(RECORDED, job)
    (first,) = gate.proposals()
    told = {name: first.action.params[name] for name in ("kernel", "case", "backward")}
    assert told == {"kernel": "rmsnorm", "case": "float32 m=8192 n=1024", "backward": True}
    assert arguments(first.action)[:2] == ["kernels", "optimize"]
    gate.reject(first.action.id, first.action.plan_sha256, ANN, "not this month")
    clock.advance(86400.0)
    again = watch.consider(RECORDED, job)
    assert not again.propose
    assert "1 days ago, it is rejected: not this month" in again.why
    clock.advance(AGAIN_DAYS * 86400.0)
    assert watch.consider(RECORDED, job).propose


def test_of_a_sum_and_its_norm_the_norm_is_searched_for_which_a_job_has_a_place() -> None:
    """Llama's hottest operation; a kernel of both would come into no job."""
    norm = next(h for h in profile(RECORDED).hotspots if h.problem == "rmsnorm")
    told = order(replace(norm, problem="rmsnorm_residual"))
    assert told == order(norm)


def test_a_product_s_search_takes_its_gradients_up_within_the_same_hours(
    gate: KernelGate, clock: ManualClock
) -> None:
    """Three products divide the time that one alone would have; the pod ends at the plan's hours either way."""
    found = profile(RECORDED)
    product = max((h for h in found.hotspots if h.problem == "linear"), key=lambda h: h.total_s)
    for hotspot, count in ((product, 3), (replace(product, backward_s=0.0), 1)):
        told = order(hotspot)
        assert (told["kernel"], told["backward"], told["searches"]) == ("linear", count > 1, count)
        plan = search("c", "lab/gpt", hotspot.name, "hot", 3.0, "low", clock.now_s(), told)
        asked = arguments(plan)
        assert ("--backward" in asked) == (count > 1)
        minutes = float(asked[asked.index("--minutes") + 1])
        assert count * minutes == pytest.approx(0.85 * 180, abs=0.2)
    for odd in (0, 9, "many", True):
        wrong = search("c", "lab/gpt", product.name, "hot", 3.0, "low", clock.now_s(), {**told, "searches": odd})
        with pytest.raises(Permanent, match="are no order"):
            arguments(wrong)


def test_a_trace_without_its_gpu_proposes_nothing(gate: KernelGate, clock: ManualClock) -> None:
    """Its times are of the CPU that launches, and say nothing of a kernel."""

    def read(path: Path, peaks: Peaks | None) -> Profile:
        return replace(profile(path, peaks), on_gpu=False)

    watch = KernelWatch(POLICY, gate, Inventory("c"), clock, "c", read=read)
    decision = watch.consider(RECORDED, Subject(SubjectKind.JOB, "lab/gpt"))
    assert not decision.propose
    assert "holds no GPU activity" in decision.why
    assert gate.proposals() == []


def test_nobody_who_did_not_ask_is_bothered(gate: KernelGate, clock: ManualClock, tmp_path: Path) -> None:
    logs = _told(tmp_path, "prod")
    silent = _watch(gate, clock, Settings())
    assert silent.look(logs) == 0
    watch = _watch(gate, clock)
    watch.look(logs)
    watch.close()
    assert gate.proposals() == []
    assert "has not asked" in watch.decisions[-1].why


def test_what_jobs_say_of_their_kernels_is_kept(gate: KernelGate, clock: ManualClock) -> None:
    watch, rank = _watch(gate, clock, Settings()), Subject(SubjectKind.RANK, "lab/gpt#3")
    for wrong in (0, 1):
        text = (
            f"nightshift kernels: step=9 applied=3 calls=9 fallbacks=0 shadow_checks=1 shadow_mismatches={wrong} "
            f"demoted={wrong}"
        )
        watch.look([LogRecord(Instant(0.0), "training_logs x", rank, text, 0)])
    assert watch.uses[rank].shadow_mismatches == 1


def test_a_trace_that_is_gone_or_damaged_stops_nothing(
    gate: KernelGate, clock: ManualClock, tmp_path: Path
) -> None:
    (tmp_path / "bad.json").write_text("{")
    lines = [
        LogRecord(Instant(0.0), "kineto x", Subject(SubjectKind.JOB, "lab/gpt"), text, 0)
        for text in (
            f"profiler trace {tmp_path}/gone.json: 3 steps of 1 ms",
            f"profiler trace {tmp_path}/bad.json: 3 steps of 1 ms",
            f"profiler trace {RECORDED}: 3 steps of 28.6 ms",
            "something else",
        )
    ]
    watch = _watch(gate, clock)
    assert watch.look(lines) == 3
    watch.close()
    assert len(gate.proposals()) == 1


def test_a_trace_that_nobody_foresaw_ends_the_watch_over_no_other(
    gate: KernelGate, clock: ManualClock, tmp_path: Path
) -> None:
    """One of a shape that breaks the profiler; the next trace is profiled all the same."""
    seen: list[Path] = []

    def read(path: Path, peaks: Peaks | None) -> Profile:
        seen.append(path)
        if len(seen) == 1:
            raise TypeError("object of type 'NoneType' has no len()")
        return profile(path, peaks)

    watch = KernelWatch(POLICY, gate, Inventory("c"), clock, "c", read=read)
    told = _told(tmp_path)
    assert (watch.look(told), watch.look(told)) == (1, 1)
    watch.close()
    assert len(seen) == 2
    assert len(gate.proposals()) == 1
