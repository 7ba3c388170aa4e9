"""The registry: in by certificate and approved plan, out at once and for good, and jobs are told either way."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agent.cli import app
from agent.store import Store
from collectors.base import Permanent
from collectors.seal import Signer
from kernels.apply.bundle import kernel_record
from kernels.candidate_file import read_candidate
from kernels.certificate import issue
from kernels.envelope import CertificateError, certificate_sha256
from kernels.judge.verdict import Comparison, Interval, Reason, Status, Verdict
from kernels.problem import Case
from kernels.problems import named
from kernels.registry import Registry, RegistryError, State
from kernels.registry_oci import read_layout, write_layout
from tests.agent.incidents import ManualClock

SIGNER = Signer.from_bytes(bytes(range(32)))
TRUSTED = {SIGNER.key_id: SIGNER.public}
PLAN = "ab" * 32
GOOD = sorted((Path(__file__).parent / "good").glob("*softmax*.py"))[0]


def certificate(status: Status = Status.faster, note: str = "") -> dict[str, Any]:
    """A certificate of a real candidate of the gallery; its verdict is written here, as no GPU is at hand."""
    reasons = {Status.faster: Reason.clears_best, Status.slower: Reason.below_baseline}
    read = read_candidate(GOOD)
    case = Case.of("float16", m=4096, n=4096)
    raced = Comparison(str(case), "eager", "A", 2e-5, 4e-5, Interval(1.9, 2.0, 2.1), 30)
    verdict = Verdict(
        read.candidate.sha256, "softmax", status, reasons[status], note, "timing", ("static", "timing"),
        comparisons=(raced,),
        domain={"timed": [case.to_json()], "probed": {"sizes": {"m": [0, 69632], "n": [1, 2048]}}},
        environment={"gpu": "NVIDIA H200", "capability": "9.0"},
    )  # fmt: skip
    return issue(verdict, read.candidate, named("softmax"), SIGNER, "2026-11-21T00:00:00+00:00", "c0ffee")


@pytest.fixture(scope="module")
def envelope() -> dict[str, Any]:
    return certificate()


def test_a_kernel_goes_in_by_approved_plans_and_out_for_good(tmp_path: Path, envelope: Mapping[str, Any]) -> None:
    registry = Registry(tmp_path, TRUSTED)
    entry = registry.propose(envelope, "ann", "faster", 1.0)
    assert registry.propose(envelope, "bob", "again", 2.0).history == entry.history
    assert registry.records() == []
    with pytest.raises(RegistryError, match="approved plan"):
        registry.move(entry.certificate, State.canary, "ann", "", 3.0)
    with pytest.raises(RegistryError, match="cannot become active"):
        registry.move(entry.certificate, State.active, "ann", "", 3.0, PLAN)
    registry.move(entry.certificate, State.canary, "ann", "", 3.0, PLAN)
    registry.move(entry.certificate[:12], State.active, "ann", "", 4.0, PLAN)
    assert [r["certificate"] for r in registry.records()] == [entry.certificate]
    assert "2.00× over eager" in registry.entry(entry.certificate).summary
    registry.demote(entry.certificate, "cy", "odd losses", 5.0)
    assert registry.demote(entry.certificate, "cy", "again", 6.0).history[-1].why == "odd losses"
    (gone,) = json.loads((tmp_path / "demoted.json").read_text())
    assert gone["certificate"] == entry.certificate
    assert registry.records() == []
    with pytest.raises(RegistryError, match="it is demoted"):
        registry.move(entry.certificate, State.canary, "ann", "", 7.0, PLAN)
    states = [move.state for move in Registry(tmp_path, TRUSTED).entry(entry.certificate).history]
    assert states == [State.proposed, State.canary, State.active, State.demoted]


def test_what_a_jobs_shadow_check_found_demotes_the_kernel(tmp_path: Path, envelope: Mapping[str, Any]) -> None:
    registry = Registry(tmp_path, TRUSTED)
    sha256 = registry.propose(envelope, "ann", "", 1.0).certificate
    registry.move(sha256, State.canary, "ann", "", 2.0, PLAN)
    folder = tmp_path / "mismatches"
    folder.mkdir()
    (folder / "a.json").write_text('{"certificate": ')  # half-written
    (folder / "b.json").write_text(json.dumps({"certificate": "f" * 64, "why": "other registry"}))
    (folder / "c.json").write_text(json.dumps({"certificate": sha256, "why": "error 0.1", "rank": "3"}))
    (gone,) = registry.collect_mismatches(3.0)
    assert gone.state is State.demoted
    assert "rank 3: error 0.1" in gone.history[-1].why
    assert registry.collect_mismatches(4.0) == []


def test_only_certificates_that_hold_get_in(tmp_path: Path, envelope: Mapping[str, Any]) -> None:
    registry = Registry(tmp_path, TRUSTED)
    stranger = Registry(tmp_path / "other", {})
    with pytest.raises(CertificateError, match="trusted"):
        stranger.propose(envelope, "ann", "", 1.0)
    with pytest.raises(CertificateError, match="slower"):
        registry.propose(certificate(Status.slower), "ann", "", 1.0)
    entry = registry.propose(envelope, "ann", "", 1.0)
    path = tmp_path / "kernels" / entry.certificate / "certificate.json"
    path.write_text(path.read_text().replace(envelope["payload"][:40], envelope["payload"][1:41]))
    with pytest.raises(RegistryError):
        registry.entry(entry.certificate)
    with pytest.raises(RegistryError, match="0 kernels"):
        registry.entry("../" + entry.certificate)


def test_a_registry_travels_as_an_oci_layout(tmp_path: Path, envelope: Mapping[str, Any]) -> None:
    """Every digest and size is right, provenance stands in the annotations, and the other side takes nothing on
    trust: what was active there is proposed here, what was demoted there is demoted here."""
    here, there = Registry(tmp_path / "here", TRUSTED), Registry(tmp_path / "there", TRUSTED)
    other = certificate(note="other")
    for each, number in ((envelope, 1.0), (other, 2.0)):
        sha256 = here.propose(each, "ann", "", number).certificate
        here.move(sha256, State.canary, "ann", "tried", number, PLAN)
    here.propose(certificate(note="third"), "ann", "", 3.0)  # only proposed: it stays
    here.demote(certificate_sha256(other), "bob", "wrong", 4.0)
    assert write_layout(here, tmp_path / "layout") == 2
    assert write_layout(here, tmp_path / "layout") == 2
    index = json.loads((tmp_path / "layout" / "index.json").read_text())
    assert json.loads((tmp_path / "layout" / "oci-layout").read_text()) == {"imageLayoutVersion": "1.0.0"}
    tags = [item["annotations"]["org.opencontainers.image.ref.name"] for item in index["manifests"]]
    assert sorted(tag.partition("-")[0] for tag in tags) == ["canary", "demoted"]
    for item in index["manifests"]:
        blob = tmp_path / "layout" / "blobs" / "sha256" / item["digest"].removeprefix("sha256:")
        manifest = json.loads(blob.read_bytes())
        for described in (item, manifest["config"], *manifest["layers"]):
            content = (blob.parent / described["digest"].removeprefix("sha256:")).read_bytes()
            assert hashlib.sha256(content).hexdigest() == described["digest"].removeprefix("sha256:")
            assert len(content) == described["size"]
        told = manifest["annotations"]
        assert told["dev.nightshift.kernel.judge-commit"] == "c0ffee"
        assert told["dev.nightshift.kernel.gpu"] == "NVIDIA H200"
        assert told["dev.nightshift.kernel.by"] in ("ann", "bob")
    taken = read_layout(there, tmp_path / "layout", "eve", 5.0)
    assert {entry.certificate: entry.state for entry in taken} == {
        certificate_sha256(envelope): State.proposed, certificate_sha256(other): State.demoted,
    }  # fmt: skip
    assert there.records() == []
    assert read_layout(there, tmp_path / "layout", "eve", 6.0) == []


def test_a_layout_that_was_changed_is_refused_whole(tmp_path: Path, envelope: Mapping[str, Any]) -> None:
    here = Registry(tmp_path / "here", TRUSTED)
    sha256 = here.propose(envelope, "ann", "", 1.0).certificate
    here.move(sha256, State.canary, "ann", "tried", 2.0, PLAN)
    write_layout(here, tmp_path / "layout")
    stranger = Registry(tmp_path / "stranger", {})
    with pytest.raises(CertificateError, match="trusted"):
        read_layout(stranger, tmp_path / "layout", "eve", 3.0)
    blobs = tmp_path / "layout" / "blobs" / "sha256"
    victim = next(path for path in blobs.iterdir() if b"payloadType" in path.read_bytes())
    whole = victim.read_bytes()
    victim.write_bytes(whole.replace(b"payload", b"PAYLOAD", 1))
    there = Registry(tmp_path / "there", TRUSTED)
    with pytest.raises(RegistryError, match="not what its name says"):
        read_layout(there, tmp_path / "layout", "eve", 3.0)
    victim.unlink()
    with pytest.raises(RegistryError, match="No such file"):
        read_layout(there, tmp_path / "layout", "eve", 3.0)
    for text in ("", "[]", "{}", '{"manifests": [1]}'):
        (tmp_path / "layout" / "index.json").write_text(text)
        with pytest.raises(RegistryError, match=r"index\.json"):
            read_layout(there, tmp_path / "layout", "eve", 3.0)
    assert there.entries() == []


def test_the_record_for_jobs_names_where_the_kernel_was_certified(envelope: Mapping[str, Any]) -> None:
    record = kernel_record(envelope, TRUSTED)
    assert (record["problem"], record["dtype"], record["sizes"]) == ("softmax", "float16", {"m": 4096, "n": 4096})
    assert record["architecture"] == "9.0"
    assert record["largest"] == {"m": 69632, "n": 4096}
    assert record["certificate"] == certificate_sha256(envelope)


def test_the_command_line_promotes_only_what_the_gate_approved(tmp_path: Path, envelope: Mapping[str, Any]) -> None:
    file, key, config = tmp_path / "c.json", tmp_path / "k.pub", tmp_path / "n.yaml"
    file.write_text(json.dumps(envelope))
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    key.write_text(SIGNER.public.public_bytes(Encoding.Raw, PublicFormat.Raw).hex() + "\n")
    config.write_text(f"state_dir: {tmp_path}\n")
    Store(f"sqlite:///{tmp_path}/nightshift.db", ManualClock()).close()
    where = ["--registry", str(tmp_path / "r"), "--key", str(key)]
    runner = CliRunner()

    def run(*words: str) -> Any:
        return runner.invoke(app, ["kernels", *words], catch_exceptions=False)

    first = run("promote", str(file), *where, "-c", str(config))
    assert first.exit_code == 1
    assert "waiting, not approved" in first.output
    plan = f"kernel/{certificate_sha256(envelope)[:16]}/canary"
    with pytest.raises(Permanent, match="look at it again"):
        run("approve", plan, "--plan", "0000", "-c", str(config))
    assert run("approve", plan, "-c", str(config)).exit_code == 0
    second = run("promote", str(file), *where, "-c", str(config))
    assert second.exit_code == 0, second.output
    bundle = tmp_path / "nightshift_kernels.py"
    listed = run("registry", *where, "--bundle", str(bundle), "--json")
    assert json.loads(listed.output)[0]["state"] == "canary"
    assert "softmax" in bundle.read_text()
    done = run("demote", certificate_sha256(envelope)[:12], *where, "-r", "drill", "-c", str(config))
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "r" / "demoted.json").read_text())[0]["why"] == "drill"


def test_a_file_is_no_registry(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RegistryError, match="file: cannot hold a registry: Not a directory"):
        Registry(tmp_path / "file", {})
