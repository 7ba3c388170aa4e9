"""A kernel in use whose machines or judge are not those of its certificate goes out by itself, within one turn."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import structlog

from nightshift.agent.approvals.gate import Gate
from nightshift.agent.approvals.kernel_gate import KernelGate, ProposalState, promotion
from nightshift.agent.approvals.kernel_search import evidence, fleet_view
from nightshift.agent.approvals.policy import ApprovalRule, ApprovalSettings, Person, Role
from nightshift.agent.kernels.delivery import LINE_S, standings
from nightshift.agent.kernels.watch import TURN_S, KernelWatch
from nightshift.agent.store.incident_store import Store
from nightshift.collectors.frame import Instant, LogRecord
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.controllers.action import ActionKind
from nightshift.controllers.actuators.kube_kernel_jobs import arguments
from nightshift.kernels.certification.evidence import UNKNOWN, environment_of
from nightshift.kernels.certification.registry import CertificateState, Registry, RegistryError, promotable
from nightshift.kernels.profile.trigger import Settings
from tests.agent.incidents import ManualClock
from tests.kernel_certificates import ENVIRONMENT, GPU, SIGNER, TRUSTED, predicate, signed

RANK = Subject(SubjectKind.RANK, "lab/gpt#0")
ANN = Person("ann@example.org", frozenset({Role.APPROVER}), "console", 1_000.0)
PLAN = "ab" * 32
TIMED = predicate()["verdict"]["domain"]["timed"]


class Scene:
    """A registry with one kernel in use, and a daemon's watch over it."""

    def __init__(self, folder: Path, clock: ManualClock, **policy: Any) -> None:
        self.clock, self.inventory = clock, Inventory("c")
        self.store = Store(f"sqlite:///{folder}/s.sqlite", clock)
        self.gate = KernelGate(Gate(self.store, ApprovalSettings(**policy), clock), self.store, clock)
        key = folder / "signer.pub"
        key.write_text(SIGNER.public.public_bytes_raw().hex() + "\n")
        self.settings = Settings(namespaces=("lab",), registry=folder / "r", trusted_keys=(key,))
        self.registry = Registry(folder / "r", TRUSTED)
        self.watch = self.another()

    def another(self) -> KernelWatch:
        return KernelWatch(self.settings, self.gate, self.inventory, self.clock, "c")

    def used(self, content: dict[str, Any] | None = None) -> str:
        """A kernel that became canary while its judge was the present one; its certificate."""
        content = content or predicate()
        entry = self.registry.propose(signed(content), "ann", "", self.clock.now_s())
        self.registry._append(entry.certificate, _canary(self.clock.now_s()))
        return entry.certificate

    def turn(self, *lines: str) -> None:
        self.watch.look([LogRecord(Instant(0.0), "training_logs x", RANK, text, 0) for text in lines])
        self.watch.close()
        self.clock.advance(TURN_S)

    def state(self, certificate: str) -> CertificateState:
        return self.registry.entry(certificate).state

    def why(self, certificate: str) -> str:
        return self.registry.entry(certificate).history[-1].why


def _canary(at_s: float) -> Any:
    from nightshift.kernels.certification.registry import Move

    return Move(CertificateState.canary, "ann", "", at_s, PLAN)


def line(certificate: str, used: bool = True, **changes: str) -> str:
    """What a job's file logs."""
    machine = {name: ENVIRONMENT[name] for name in ("gpu", "driver", "torch", "triton")} | changes
    said = " ".join(f"{name}={quote(value)}" for name, value in machine.items() if value)
    counts = f"step=100 applied={int(used)} calls=9 fallbacks=0 shadow_checks=1 shadow_mismatches=0 demoted=0"
    held = "used" if used else "unused"
    return f"nightshift kernels: {counts} rank=0 {said} {held}={certificate[:16]}"


OLD_LINE = "nightshift kernels: step=9 applied=1 calls=9 fallbacks=0 shadow_checks=1 shadow_mismatches=0 demoted=0"


@pytest.fixture
def scene(tmp_path: Path, clock: ManualClock) -> Iterator[Scene]:
    made = Scene(tmp_path, clock)
    yield made
    made.store.close()


def test_a_kernel_stays_where_its_jobs_run_as_certified(scene: Scene) -> None:
    certificate = scene.used()
    for _ in range(3):
        scene.turn(line(certificate))
    assert scene.state(certificate) is CertificateState.canary
    (shown,) = standings(scene.store)
    assert (shown.state, shown.why) == ("canary", "")
    assert shown.environment == (
        "by the jobs that use it: gpu NVIDIA H200; driver 580.65.06; torch 2.11.0+cu130; triton 3.6.0 (lab/gpt)"
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"gpu": "NVIDIA H100 80GB HBM3"}, "another GPU than the certified one"),
        ({"driver": "590.44.01"}, "another driver than the certified one"),
        ({"torch": "2.12.0+cu130"}, "another torch than the certified one"),
        ({"triton": "3.7.0"}, "another Triton than the certified one"),
    ],
)
def test_a_change_under_a_kernel_in_use_demotes_it_within_one_turn_and_asks_for_a_search(
    scene: Scene, changes: dict[str, str], said: str
) -> None:
    certificate = scene.used()
    with structlog.testing.capture_logs() as logs:
        scene.turn(line(certificate, **changes))
    assert scene.state(certificate) is CertificateState.demoted
    assert said in scene.why(certificate)
    (told,) = json.loads((scene.registry.folder / "demoted.json").read_text())
    assert told["certificate"] == certificate
    (demoted,) = [one for one in logs if one["event"] == "kernel demoted"]
    assert said in demoted["why"]
    (plan,) = scene.gate.proposals()
    assert plan.id == demoted["search"]
    assert (plan.action.kind, plan.state) == (ActionKind.KERNEL_JOB, ProposalState.WAITING)
    assert plan.action.params["case"] == "float16 m=4096 n=4096"
    (record,) = [one for one in scene.store.audit.records() if one.kind == "kernel_demoted"]
    assert (record.by, record.body["search"]) == ("nightshift", plan.id)
    assert said in str(record.body["reason"])
    scene.turn(line(certificate, **changes))
    assert len(scene.gate.proposals()) == 1


def test_a_search_that_certifies_again_has_a_folder_of_its_own(scene: Scene) -> None:
    """In the old one lies the certificate that no longer counts: the search would end with it."""
    certificate = scene.used()
    scene.turn(line(certificate, driver="590.44.01"))
    (plan,) = scene.gate.proposals()
    again = arguments(plan.action)
    before = arguments(plan.action.__class__(**{**vars_of(plan.action), "params": without_again(plan.action)}))
    place = again.index("--run") + 1
    assert again[place] != before[place]
    assert [*again[:place], *again[place + 1 :]] == [*before[:place], *before[place + 1 :]]


def vars_of(action: Any) -> dict[str, Any]:
    from dataclasses import fields

    return {one.name: getattr(action, one.name) for one in fields(action)}


def without_again(action: Any) -> dict[str, Any]:
    return {name: value for name, value in action.params.items() if name != "again"}


@pytest.mark.parametrize("judge", [None, 1])
def test_a_newer_judge_than_the_certificates_demotes_an_active_kernel(scene: Scene, judge: int | None) -> None:
    content = predicate() | {"judge": judge}
    if judge is None:
        del content["judge"]
    certificate = scene.used(content)
    scene.turn(line(certificate))
    assert scene.state(certificate) is CertificateState.demoted
    assert "another version of the judge" in scene.why(certificate)


def test_a_kernel_that_an_older_version_let_in_without_a_gpu_or_a_race_goes_out(scene: Scene) -> None:
    nothing = {"environment": {"gpu": "none", "driver": "none", "torch": "2.11", "triton": "3.6"}}
    certificate = scene.used(predicate(status="correct", comparisons=[], domain={"timed": TIMED}, **nothing))
    scene.turn()
    assert scene.state(certificate) is CertificateState.demoted
    assert "no GPU ran it" in scene.why(certificate)
    assert "it met no baseline" in scene.why(certificate)


def test_an_unknown_environment_demotes_nothing_is_said_and_makes_nothing_active(scene: Scene) -> None:
    """Missing data is never unchanged, and no change either."""
    certificate = scene.used()
    scene.turn()
    assert scene.state(certificate) is CertificateState.canary
    (shown,) = standings(scene.store)
    assert shown.environment == (
        "no job has reported this kernel: gpu unknown; driver unknown; torch unknown; triton unknown"
    )
    assert "environment of the jobs that use it is unknown" in shown.why
    entry = scene.registry.entry(certificate)
    view = fleet_view(scene.store, scene.clock.now_s())
    assert view is not None
    environment = environment_of(view, certificate, entry.record)
    with pytest.raises(RegistryError, match=r"unknown: collect their logs .gpu, driver, torch, triton"):
        scene.registry.move(certificate, CertificateState.active, "ann", "", 9.0, PLAN, environment)
    scene.turn(line(certificate, driver=""))
    assert "driver unknown" in standings(scene.store)[0].environment
    assert scene.state(certificate) is CertificateState.canary


def test_what_a_job_said_long_ago_is_unknown_now(scene: Scene) -> None:
    certificate = scene.used()
    scene.turn(line(certificate))
    scene.clock.advance(LINE_S)
    scene.turn()
    assert "no job has reported" in standings(scene.store)[0].environment
    scene.clock.advance(3600.0)
    assert fleet_view(scene.store, scene.clock.now_s()) is None, "the daemon has not looked for an hour"


def gpu_of_the_job(scene: Scene, driver: str) -> None:
    gpu, pod = Subject(SubjectKind.GPU, "GPU-1"), Subject(SubjectKind.POD, "lab/gpt-0")
    at_s = scene.clock.now_s() - 1.0
    scene.inventory.observe(gpu, pod, at_s)
    scene.inventory.observe(RANK, pod, at_s)
    scene.inventory.observe(gpu, RANK, at_s)
    scene.inventory.describe(gpu, model=GPU, driver=driver)


def test_the_exporters_driver_counts_where_the_jobs_line_names_none(scene: Scene) -> None:
    """Files of older versions say neither what they use nor where."""
    certificate = scene.used()
    gpu_of_the_job(scene, ENVIRONMENT["driver"])
    scene.turn(OLD_LINE)
    assert scene.state(certificate) is CertificateState.canary
    assert "driver 580.65.06; torch unknown" in standings(scene.store)[0].environment
    gpu_of_the_job(scene, "590.44.01")
    scene.turn(OLD_LINE)
    assert scene.state(certificate) is CertificateState.demoted
    assert "certified with 580.65.06" in scene.why(certificate)


def test_a_job_of_many_that_leaves_the_kernel_out_demotes_it_for_none(scene: Scene) -> None:
    """Its file saw another torch at its start: torch computes there, and the others run as certified; also where
    the daemon restarted, and only that one has spoken since."""
    certificate = scene.used()
    scene.turn(line(certificate))
    scene.watch = scene.another()
    other = Subject(SubjectKind.RANK, "lab/new#0")
    scene.watch.look(
        [LogRecord(Instant(0.0), "x", other, line(certificate, used=False, torch="2.12.0"), 0)]
    )  # fmt: skip
    scene.turn()
    assert scene.state(certificate) is CertificateState.canary
    scene.clock.advance(LINE_S)
    scene.watch.look([LogRecord(Instant(0.0), "x", other, line(certificate, used=False, torch="2.12.0"), 0)])
    scene.turn()
    assert "another torch" in scene.why(certificate), "nobody uses it any more"


def test_a_shadow_check_that_failed_demotes_without_a_command(scene: Scene) -> None:
    certificate = scene.used()
    folder = scene.registry.folder / "mismatches"
    folder.mkdir()
    (folder / "a.json").write_text(json.dumps({"certificate": certificate, "why": "error 0.1", "rank": "3"}))
    scene.turn(line(certificate))
    assert "rank 3: error 0.1" in scene.why(certificate)
    assert scene.gate.proposals() == [], "a kernel that was wrong is not asked for again"


@pytest.mark.parametrize(
    ("policy", "settings", "said"),
    [
        ({"kinds": {ActionKind.KERNEL_JOB: ApprovalRule.NEVER}}, {}, "policy never allows"),
        ({}, {"weekly_gpu_hours": 0.5}, "0.5 GPU-hours are left this week"),
        ({}, {"namespaces": ("other",)}, "no job of a namespace in kernels.namespaces"),
    ],
)
def test_where_no_search_may_be_asked_for_it_is_demoted_all_the_same_and_said(
    tmp_path: Path, clock: ManualClock, policy: dict[str, Any], settings: dict[str, Any], said: str
) -> None:
    scene = Scene(tmp_path, clock, **policy)
    scene.settings = scene.settings.model_copy(update=settings)
    scene.watch = scene.another()
    certificate = scene.used()
    scene.turn(line(certificate, driver="590.44.01"))
    assert scene.state(certificate) is CertificateState.demoted
    (record,) = [one for one in scene.store.audit.records() if one.kind == "kernel_demoted"]
    assert said in str(record.body["search"])
    assert scene.gate.proposals() == []
    scene.store.close()


def test_a_clock_that_is_set_back_delays_no_turn_and_a_registry_that_is_away_is_tried_again(scene: Scene) -> None:
    certificate = scene.used()
    scene.turn(line(certificate))
    scene.clock.advance(-7200.0)
    scene.settings.registry.rename(scene.settings.registry.with_name("away"))  # type: ignore[union-attr]
    scene.settings.registry.write_text("")  # type: ignore[union-attr]
    with structlog.testing.capture_logs() as logs:
        scene.turn(line(certificate, driver="590.44.01"))
    assert "kernel registry check failed" in [one["event"] for one in logs]
    scene.settings.registry.unlink()  # type: ignore[union-attr]
    scene.settings.registry.with_name("away").rename(scene.settings.registry)  # type: ignore[arg-type,union-attr]
    scene.turn(line(certificate, driver="590.44.01"))
    assert scene.state(certificate) is CertificateState.demoted


def test_a_plan_that_waits_while_the_driver_changes_can_no_longer_be_approved(scene: Scene) -> None:
    """What was true when it was asked for is asked again at each click and when it is carried out."""
    entry = scene.registry.propose(signed(predicate()), "ann", "", scene.clock.now_s())
    shown = evidence(entry.predicate, UNKNOWN, (), scene.clock.now_s())
    plan = promotion("c", entry.certificate, entry.problem, "canary", shown, scene.clock.now_s())
    waiting = scene.gate.propose(plan, record=entry.record)
    assert waiting.state is ProposalState.WAITING
    scene.turn(line(entry.certificate, driver="590.44.01"))
    answer = scene.gate.approve(plan.id, plan.plan_sha256, ANN)
    assert not answer.ok
    assert answer.message.startswith("Not promotable: jobs run with another driver than the certified one")
    assert any("another driver" in why for why in scene.gate.objections(plan))
    scene.turn(line(entry.certificate))
    assert scene.gate.approve(plan.id, plan.plan_sha256, ANN).ok
    assert promotable(entry.record, UNKNOWN) == ()


def test_an_approved_promotion_to_active_is_the_same_plan_when_another_job_starts(scene: Scene) -> None:
    """On the same machines; on others it is another plan, and the approval does not count."""
    certificate = scene.used()
    scene.turn(line(certificate))
    before = _to_active(scene, certificate)
    scene.watch.look(
        [LogRecord(Instant(0.0), "x", Subject(SubjectKind.RANK, "lab/b#0"), line(certificate), 0)]
    )  # fmt: skip
    scene.turn()
    assert _to_active(scene, certificate) == before
    assert scene.state(certificate) is CertificateState.canary
    moved = scene.registry.move(
        certificate, CertificateState.active, "ann", "", 9.0, PLAN, _environment(scene, certificate)
    )
    assert moved.state is CertificateState.active


def _environment(scene: Scene, certificate: str) -> Any:
    return environment_of(
        fleet_view(scene.store, scene.clock.now_s()), certificate, scene.registry.entry(certificate).record
    )


def _to_active(scene: Scene, certificate: str) -> dict[str, Any]:
    entry, environment = scene.registry.entry(certificate), _environment(scene, certificate)
    objections = promotable(entry.record, environment, CertificateState.active)
    assert objections == ()
    return evidence(entry.predicate, environment, objections, scene.clock.now_s())
