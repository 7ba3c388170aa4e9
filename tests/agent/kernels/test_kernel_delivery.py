"""The daemon carries an approved promotion out, the job's file follows the registry, and its gain is counted."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from nightshift.agent.approvals.kernel_gate import KernelProposal, ProposalState, promotion
from nightshift.agent.approvals.kernel_search import evidence
from nightshift.agent.kernels.delivery import standings
from nightshift.agent.kernels.gain import gains
from nightshift.kernels.apply.bundle import FILE
from nightshift.kernels.certification.evidence import UNKNOWN
from nightshift.kernels.certification.registry import CertificateState
from tests.agent.incidents import ManualClock
from tests.agent.kernels.test_kernel_drift import ANN, Scene, line
from tests.kernel_certificates import predicate, signed


@pytest.fixture
def scene(tmp_path: Path, clock: ManualClock) -> Iterator[Scene]:
    made = Scene(tmp_path, clock)
    yield made
    made.store.close()


def proposed(scene: Scene) -> KernelProposal:
    """A promotion to canary that waits, of a certificate that the registry holds."""
    entry = scene.registry.propose(signed(predicate()), "ann", "", scene.clock.now_s())
    shown = evidence(entry.predicate, UNKNOWN, (), scene.clock.now_s())
    plan = promotion("c", entry.certificate, entry.problem, "canary", shown, scene.clock.now_s())
    return scene.gate.propose(plan, record=entry.record)


def certificates(scene: Scene) -> list[str]:
    """Those that the job's file holds."""
    text = (scene.registry.folder / FILE).read_text()
    ast.parse(text)
    return [one for one in (e.certificate for e in scene.registry.entries()) if one in text]


def test_an_approved_promotion_moves_within_one_turn_and_comes_into_the_job_s_file(scene: Scene) -> None:
    waiting = proposed(scene)
    certificate = str(waiting.action.params["certificate"])
    scene.turn()
    assert scene.state(certificate) is CertificateState.proposed, "a person decides"
    assert certificates(scene) == [], "the file is there before the first kernel"
    assert scene.gate.approve(waiting.id, waiting.action.plan_sha256, ANN).ok
    scene.turn()
    assert scene.state(certificate) is CertificateState.canary
    assert scene.registry.entry(certificate).history[-1].plan_sha256 == waiting.action.plan_sha256
    assert certificates(scene) == [certificate]
    assert scene.gate.proposal(waiting.id).state is ProposalState.DONE  # type: ignore[union-attr]
    scene.turn(line(certificate, driver="590.44.01"))
    assert scene.state(certificate) is CertificateState.demoted
    assert certificates(scene) == []


def test_a_daemon_that_was_killed_after_the_move_finishes_it(scene: Scene) -> None:
    waiting = proposed(scene)
    assert scene.gate.approve(waiting.id, waiting.action.plan_sha256, ANN).ok
    certificate = str(waiting.action.params["certificate"])
    scene.registry.move(
        certificate, CertificateState.canary, "nightshift", "", 9.0, waiting.action.plan_sha256
    )  # fmt: skip
    scene.turn()
    assert scene.gate.proposal(waiting.id).state is ProposalState.DONE  # type: ignore[union-attr]
    assert len(scene.registry.entry(certificate).history) == 2


def test_what_was_approved_waits_while_it_may_not_and_says_why_once(scene: Scene) -> None:
    waiting = proposed(scene)
    assert scene.gate.approve(waiting.id, waiting.action.plan_sha256, ANN).ok
    scene.gate.gate.halt(ANN, "maintenance")
    with structlog.testing.capture_logs() as logs:
        scene.turn()
        scene.turn()
    delayed = [one["why"] for one in logs if one["event"] == "approved kernel promotion delayed"]
    assert delayed == [f"halted by {ANN.identity}"]
    assert scene.state(str(waiting.action.params["certificate"])) is CertificateState.proposed


def test_a_kernel_whose_jobs_run_another_driver_is_not_promoted(scene: Scene) -> None:
    waiting = proposed(scene)
    certificate = str(waiting.action.params["certificate"])
    assert scene.gate.approve(waiting.id, waiting.action.plan_sha256, ANN).ok
    scene.turn(line(certificate, driver="590.44.01"))
    assert scene.state(certificate) is CertificateState.proposed
    assert certificates(scene) == []


def measured(certificate: str, step: int, gain_us: int = 1_000) -> str:
    text = line(certificate).replace("step=100 ", f"step={step} ")
    return text + f" step_us=10000 gain_us={gain_us} gain_low_us={gain_us * 9 // 10}"


def test_each_step_between_two_lines_of_one_gain_counts_and_a_restart_loses_none(scene: Scene) -> None:
    certificate = scene.used()
    scene.turn(line(certificate))
    assert gains(scene.store) == {}, "no canary measured it"
    scene.turn(measured(certificate, 100), measured(certificate, 300))
    scene.watch = scene.another()
    scene.turn(measured(certificate, 400), measured(certificate, 500))
    scene.turn(measured(certificate, 20), measured(certificate, 120, gain_us=500))
    found = gains(scene.store)["lab/gpt"]
    assert (found.steps, round(found.saved_s, 6), round(found.saved_low_s, 6)) == (300, 0.3, 0.27)
    (shown,) = standings(scene.store)
    assert shown.gain == (
        "lab/gpt: torch alone takes 5.0% longer a step (at least 4.5%); 0.3 GPU-seconds saved in 300 steps"
    )


def test_a_count_that_the_store_did_not_take_waits(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = scene.used()
    with monkeypatch.context() as away:
        away.setattr(scene.store, "keep", _away)
        scene.turn(measured(certificate, 100), measured(certificate, 300))
    assert gains(scene.store) == {}
    scene.turn(measured(certificate, 400))
    assert gains(scene.store)["lab/gpt"].steps == 300


def _away(_: object) -> None:
    raise OSError("the store is away")
