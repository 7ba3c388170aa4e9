"""From a search without a GPU to the gate: certified as correct, and refused with the reason at every door."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nightshift.agent.__main__ import app
from nightshift.agent.approvals.kernel_gate import KernelGate, ProposalState
from nightshift.agent.notify.slack.proposals import PlanTicket
from nightshift.agent.store.incident_store import Store
from nightshift.collectors.seal import trusted_keys
from nightshift.kernels.certification.registry import CertificateState, Registry, RegistryError
from nightshift.kernels.loop.ledger import HEAD
from tests.agent.incidents import ManualClock
from tests.agent.notify.slack.chat import ANN, a_chat
from tests.agent.notify.slack.test_proposals import clicked

WHY = ("no GPU ran it", "the certificate names no driver", "it met no baseline")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A search's folder, of two trials on Triton's interpreter."""
    folder = tmp_path_factory.mktemp("search") / "run"
    words = ["--problem", "softmax", "--device", "cpu", "--run", str(folder), "--trials", "2", "--minutes", "2"]
    done = CliRunner().invoke(app, ["kernels", "optimize", *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return folder


@pytest.mark.full
def test_a_kernel_that_no_gpu_ran_is_refused_by_registry_plan_slack_and_command_line(
    run: Path, tmp_path: Path
) -> None:
    (file,) = run.glob("tasks/*/certificate.json")
    config = tmp_path / "n.yaml"
    config.write_text(f"state_dir: {tmp_path}\n")
    clock = ManualClock()
    Store(f"sqlite:///{tmp_path}/nightshift.db", clock).close()
    where = ["--registry", str(tmp_path / "r"), "--key", str(run / "signer.pub")]

    asked = CliRunner().invoke(
        app, ["kernels", "promote", str(file), *where, "-c", str(config)], catch_exceptions=False
    )
    assert asked.exit_code == 1
    for why in WHY:
        assert f"not promotable: {why}" in asked.output, why
    assert "approve with" not in asked.output
    assert "is canary" not in asked.output

    registry = Registry(tmp_path / "r", trusted_keys([run / "signer.pub"]))
    (entry,) = registry.entries()
    assert entry.state is CertificateState.proposed
    with pytest.raises(RegistryError, match="not promotable: no GPU ran it"):
        registry.move(entry.certificate, CertificateState.canary, "ann", "", 1.0, "ab" * 32)

    plan = f"kernel/{entry.certificate[:16]}/canary"
    with a_chat(tmp_path, f"sqlite:///{tmp_path}/nightshift.db") as chat:
        gate = KernelGate(chat.gate, chat.store, chat.clock)
        known = gate.proposal(plan)
        assert known is not None
        assert known.state is ProposalState.REJECTED
        assert all(why in known.note for why in WHY)
        assert any("not promotable" in why for why in gate.objections(known.action))
        shown = clicked(chat, ANN, "command", f"show {plan}")
        assert "Refused: not promotable: no GPU ran it" in " ".join(shown.split())
        ticket = PlanTicket(plan, known.action.plan_sha256).value()
        assert clicked(chat, ANN, "approve", ticket).startswith("Not promotable: no GPU ran it")

    approved = CliRunner().invoke(app, ["kernels", "approve", plan, "-c", str(config)])
    assert approved.exit_code == 1
    assert "Not promotable: no GPU ran it" in approved.stderr
    listed = CliRunner().invoke(app, ["kernels", "registry", *where], catch_exceptions=False).stdout
    assert "gpu: none" in listed
    assert "not promotable: it met no baseline" in listed
    assert "not checked: sizes" in listed


@pytest.mark.full
def test_the_certificate_names_the_ledgers_end_and_the_judge(run: Path) -> None:
    (file,) = run.glob("tasks/*/certificate.json")
    content: Any = json.loads(base64.b64decode(json.loads(file.read_text())["payload"]))["predicate"]
    assert content["ledger"] == json.loads((file.parent / HEAD).read_text())
    assert content["judge"] == 2
    assert CliRunner().invoke(app, ["kernels", "report", str(run)]).exit_code == 0
    ledger = file.parent / "ledger.jsonl"
    whole = ledger.read_bytes()
    ledger.write_bytes(whole[: whole.rfind(b"\n", 0, -1) + 1])
    (file.parent / HEAD).unlink()
    done = CliRunner().invoke(app, ["kernels", "report", str(run)])
    assert done.exit_code == 1
    assert "cut off at the end: certificate.json names 3 lines" in done.stderr
    ledger.write_bytes(whole)
