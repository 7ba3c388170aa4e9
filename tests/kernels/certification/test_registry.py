"""The registry: in by certificate and approved plan, out at once and for good, and jobs are told either way."""

from __future__ import annotations

import fcntl
import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nightshift.agent.__main__ import app
from nightshift.agent.store.incident_store import Store
from nightshift.collectors.base import Permanent
from nightshift.kernels.apply.bundle import kernel_record
from nightshift.kernels.candidate_file import read_candidate
from nightshift.kernels.certification.envelope import CertificateError, certificate_sha256
from nightshift.kernels.certification.registry import CertificateState, Move, Registry, RegistryError
from nightshift.kernels.certification.registry_oci import _component, read_layout, write_layout
from nightshift.kernels.judge.verdict import Status
from nightshift.kernels.problem import Case
from tests.agent.incidents import ManualClock
from tests.kernel_certificates import ENVIRONMENT, SAME, SIGNER, TRUSTED, gpu_certificate

PLAN = "ab" * 32
GOOD = sorted((Path(__file__).parents[1] / "good").glob("*softmax*.py"))[0]


def certificate(
    status: Status = Status.faster, note: str = "", m: int = 4096, torch: str = "2.11.0+cu130"
) -> dict[str, Any]:
    """A certificate of a real candidate of the gallery."""
    sizes = {"m": [0, 69632], "n": [1, 2048]}
    return gpu_certificate(
        read_candidate(GOOD).candidate, "softmax", Case.of("float16", m=m, n=4096), status, detail=note,
        environment=ENVIRONMENT | {"torch": torch}, probed=sizes,
    )  # fmt: skip


@pytest.fixture(scope="module")
def envelope() -> dict[str, Any]:
    return certificate()


def test_a_kernel_goes_in_by_approved_plans_and_out_for_good(tmp_path: Path, envelope: Mapping[str, Any]) -> None:
    registry = Registry(tmp_path, TRUSTED)
    entry = registry.propose(envelope, "ann", "faster", 1.0)
    assert registry.propose(envelope, "bob", "again", 2.0).history == entry.history
    assert registry.records() == []
    with pytest.raises(RegistryError, match="approved plan"):
        registry.move(entry.certificate, CertificateState.canary, "ann", "", 3.0)
    with pytest.raises(RegistryError, match="cannot become active"):
        registry.move(entry.certificate, CertificateState.active, "ann", "", 3.0, PLAN)
    registry.move(entry.certificate, CertificateState.canary, "ann", "", 3.0, PLAN)
    registry.move(entry.certificate[:12], CertificateState.active, "ann", "", 4.0, PLAN, SAME)
    assert [r["certificate"] for r in registry.records()] == [entry.certificate]
    assert "2.00× over eager" in registry.entry(entry.certificate).summary
    registry.demote(entry.certificate, "cy", "odd losses", 5.0)
    assert registry.demote(entry.certificate, "cy", "again", 6.0).history[-1].why == "odd losses"
    (gone,) = json.loads((tmp_path / "demoted.json").read_text())
    assert gone["certificate"] == entry.certificate
    assert registry.records() == []
    with pytest.raises(RegistryError, match="it is demoted"):
        registry.move(entry.certificate, CertificateState.canary, "ann", "", 7.0, PLAN)
    states = [move.state for move in Registry(tmp_path, TRUSTED).entry(entry.certificate).history]
    assert states == [
        CertificateState.proposed,
        CertificateState.canary,
        CertificateState.active,
        CertificateState.demoted,
    ]


def test_what_a_jobs_shadow_check_found_demotes_the_kernel(tmp_path: Path, envelope: Mapping[str, Any]) -> None:
    registry = Registry(tmp_path, TRUSTED)
    sha256 = registry.propose(envelope, "ann", "", 1.0).certificate
    registry.move(sha256, CertificateState.canary, "ann", "", 2.0, PLAN)
    folder = tmp_path / "mismatches"
    folder.mkdir()
    (folder / "a.json").write_text('{"certificate": ')  # half-written
    (folder / "b.json").write_text(json.dumps({"certificate": "f" * 64, "why": "other registry"}))
    (folder / "c.json").write_text(json.dumps({"certificate": sha256, "why": "error 0.1", "rank": "3"}))
    (gone,) = registry.collect_mismatches(3.0)
    assert gone.state is CertificateState.demoted
    assert "rank 3: error 0.1" in gone.history[-1].why
    assert registry.collect_mismatches(4.0) == []


def test_a_demotion_that_broke_off_before_the_jobs_were_told_is_told_at_the_next_look(
    tmp_path: Path, envelope: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk or a crash between the two files: every job went on with it, until somebody demoted it again."""
    registry = Registry(tmp_path, TRUSTED)
    sha256 = registry.propose(envelope, "ann", "", 1.0).certificate
    assert registry.collect_mismatches(1.5) == []
    assert not (tmp_path / "demoted.json").exists()
    with monkeypatch.context() as patch:
        patch.setattr(
            "nightshift.kernels.certification.registry.write_whole",
            lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")),
        )
        with pytest.raises(RegistryError, match="No space left"):
            registry.demote(sha256, "cy", "odd losses", 2.0)
    assert registry.collect_mismatches(3.0) == []
    (told,) = json.loads((tmp_path / "demoted.json").read_text())
    assert (told["certificate"], told["why"]) == (sha256, "odd losses")


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


def test_a_demotion_and_a_promotion_at_once_end_in_a_demotion(tmp_path: Path, envelope: Mapping[str, Any]) -> None:
    """Whoever comes second sees what the first did; before, the later line brought the kernel back."""
    registry = Registry(tmp_path, TRUSTED)
    sha256 = registry.propose(envelope, "ann", "", 1.0).certificate
    registry.move(sha256, CertificateState.canary, "ann", "", 2.0, PLAN)
    with (tmp_path / ".lock").open("a") as lock, ThreadPoolExecutor(1) as pool:
        fcntl.flock(lock, fcntl.LOCK_EX)
        promotion = pool.submit(registry.move, sha256, CertificateState.active, "bob", "", 3.0, PLAN)
        with pytest.raises(TimeoutError):
            promotion.result(0.2)
        registry._append(sha256, Move(CertificateState.demoted, "cy", "odd losses", 3.0))
        fcntl.flock(lock, fcntl.LOCK_UN)
        with pytest.raises(RegistryError, match="it is demoted"):
            promotion.result(10.0)
    registry._append(sha256, Move(CertificateState.active, "bob", "an older version's race", 4.0))
    assert registry.entry(sha256).state is CertificateState.demoted
    assert registry.records() == []


def test_what_a_crash_left_or_somebody_damaged_keeps_no_demotion_from_the_jobs(
    tmp_path: Path, envelope: Mapping[str, Any]
) -> None:
    registry = Registry(tmp_path, TRUSTED)
    first, second, third, half = (
        registry.propose(certificate(note=note), "ann", "", 1.0).certificate for note in ("1", "2", "3", "4")
    )
    history = tmp_path / "kernels" / first / "history.jsonl"
    history.write_bytes(history.read_bytes() + b'{"at_s": 2.0, "by": "a')  # a crash within a line
    (tmp_path / "kernels" / second / "certificate.json").write_text("{}")
    (tmp_path / "kernels" / half / "history.jsonl").unlink()  # a crash while it was taken in
    (tmp_path / "kernels" / ".DS_Store").write_text("")
    registry.demote(third, "cy", "odd losses", 3.0)
    shutil.rmtree(tmp_path / "kernels" / third)
    assert registry.entry(first).state is CertificateState.proposed
    registry.demote(first, "cy", "wrong", 4.0)
    gone = {item["certificate"]: item["why"] for item in json.loads((tmp_path / "demoted.json").read_text())}
    assert set(gone) == {first, second, third}
    assert gone[second].startswith("damaged")
    assert [move.state for move in registry.entry(first).history] == [
        CertificateState.proposed,
        CertificateState.demoted,
    ]
    assert registry.propose(certificate(note="4"), "ann", "", 5.0).certificate == half
    assert [entry.certificate for entry in registry.entries()] == [half, first]
    ((name, why),) = registry.damaged().items()
    assert name == second
    assert f"{second}/certificate.json" in why
    with pytest.raises(RegistryError, match="demoted, and jobs are told"):
        registry.demote(second, "cy", "wrong as well", 6.0)  # a damaged one goes out too
    assert "wrong as well" in [item["why"] for item in json.loads((tmp_path / "demoted.json").read_text())]


def test_a_demotion_is_final_though_the_folder_was_removed(tmp_path: Path, envelope: Mapping[str, Any]) -> None:
    """Taken in again, it could be promoted, and the list for the jobs forgot it."""
    registry = Registry(tmp_path, TRUSTED)
    sha256 = registry.propose(envelope, "ann", "", 1.0).certificate
    registry.demote(sha256, "cy", "odd losses", 2.0)
    shutil.rmtree(tmp_path / "kernels" / sha256)
    assert registry.propose(envelope, "ann", "", 3.0).state is CertificateState.demoted


def test_who_demotes_with_one_signers_key_leaves_the_kernels_of_others_to_the_jobs(
    tmp_path: Path, envelope: Mapping[str, Any]
) -> None:
    """Those whose signer was not named were written down as damaged, and every job stopped using them."""
    registry = Registry(tmp_path, TRUSTED)
    sha256 = registry.propose(envelope, "ann", "", 1.0).certificate
    stranger = Registry(tmp_path, {})
    with stranger._alone():
        stranger._write_demotions()
    assert json.loads((tmp_path / "demoted.json").read_text()) == []
    assert "certificate.json" in stranger.damaged()[sha256]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("history.jsonl", "[]\n"),
        ("history.jsonl", "{}\n"),
        ("certificate.json", "[" * 100_000),
        ("certificate.json", "[]"),
    ],
)
def test_a_wrong_kernel_is_out_for_the_jobs_though_its_folder_is_damaged(
    tmp_path: Path, envelope: Mapping[str, Any], file: str, text: str
) -> None:
    """A mismatch of a damaged kernel was passed over, and the jobs went on with it."""
    registry = Registry(tmp_path, TRUSTED)
    sha256 = registry.propose(envelope, "ann", "", 1.0).certificate
    (tmp_path / "kernels" / sha256 / file).write_text(text)
    (tmp_path / "mismatches").mkdir()
    (tmp_path / "mismatches" / "a.json").write_text(json.dumps({"certificate": sha256, "why": "error 0.1"}))
    assert registry.collect_mismatches(3.0) == []
    assert [item["certificate"] for item in json.loads((tmp_path / "demoted.json").read_text())] == [sha256]
    assert file in registry.damaged()[sha256]


def test_a_job_s_file_holds_every_shape_and_version_the_newest_first(tmp_path: Path) -> None:
    registry = Registry(tmp_path, TRUSTED)
    for at_s, (m, note, torch_) in enumerate(
        [(4096, "old", "2.8"), (4096, "new", "2.8"), (4096, "other torch", "2.9"), (8192, "other case", "2.8")]
    ):
        sha256 = registry.propose(certificate(note=note, m=m, torch=torch_), "ann", "", at_s).certificate
        registry.move(sha256, CertificateState.canary, "ann", "", at_s, PLAN)
    found = [(record["sizes"]["m"], record["torch"]) for record in registry.records()]
    assert found == [(8192, "2.8"), (4096, "2.9"), (4096, "2.8")]
    kept = registry.entry(registry.records()[-1]["certificate"])
    assert kept.predicate["verdict"]["detail"] == "new"


def test_a_registry_travels_as_an_oci_layout(tmp_path: Path, envelope: Mapping[str, Any]) -> None:
    """Every digest and size is right, provenance stands in the annotations, and the other side takes nothing on
    trust: what was active there is proposed here, what was demoted there is demoted here."""
    here, there = Registry(tmp_path / "here", TRUSTED), Registry(tmp_path / "there", TRUSTED)
    other = certificate(note="other")
    for each, number in ((envelope, 1.0), (other, 2.0)):
        sha256 = here.propose(each, "ann", "", number).certificate
        here.move(sha256, CertificateState.canary, "ann", "tried", number, PLAN)
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
        certificate_sha256(envelope): CertificateState.proposed,
        certificate_sha256(other): CertificateState.demoted,
    }
    assert there.records() == []
    assert read_layout(there, tmp_path / "layout", "eve", 6.0) == []


def test_a_layout_that_was_changed_is_refused_whole(tmp_path: Path, envelope: Mapping[str, Any]) -> None:
    here = Registry(tmp_path / "here", TRUSTED)
    sha256 = here.propose(envelope, "ann", "", 1.0).certificate
    here.move(sha256, CertificateState.canary, "ann", "tried", 2.0, PLAN)
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


def test_a_layout_that_a_tool_copied_is_read_and_what_is_no_manifest_is_named(
    tmp_path: Path, envelope: Mapping[str, Any]
) -> None:
    """Copying tools keep the manifests; of the index's descriptors they need not keep the type or our tag."""
    here, there = Registry(tmp_path / "here", TRUSTED), Registry(tmp_path / "there", TRUSTED)
    here.demote(here.propose(envelope, "ann", "", 1.0).certificate, "bob", "wrong", 2.0)
    layout = tmp_path / "layout"
    write_layout(here, layout)
    index = json.loads((layout / "index.json").read_text())
    (described,) = index["manifests"]
    bare = {name: described[name] for name in ("mediaType", "digest", "size")}
    (layout / "index.json").write_text(json.dumps({**index, "manifests": [{**bare, "annotations": None}]}))
    (taken,) = read_layout(there, layout, "eve", 3.0)
    assert taken.state is CertificateState.demoted
    for text in (b"[", b"[]", b"[" * 100_000):
        digest = hashlib.sha256(text).hexdigest()
        (layout / "blobs" / "sha256" / digest).write_bytes(text)
        odd = {**bare, "digest": f"sha256:{digest}", "size": len(text)}
        (layout / "index.json").write_text(json.dumps({**index, "manifests": [odd]}))
        with pytest.raises(RegistryError, match=digest[:16]):
            read_layout(there, layout, "eve", 4.0)
    blob = layout / "blobs" / "sha256" / bare["digest"].removeprefix("sha256:")
    blob.write_bytes(b"{}")
    write_layout(here, layout)
    assert hashlib.sha256(blob.read_bytes()).hexdigest() == blob.name


@pytest.mark.parametrize("name", ["softmax", "suite/19_ReLU__.py", "a" * 300, "--", "Ünï code/x"])
def test_a_problem_s_name_is_part_of_a_tag_as_the_specification_has_it(name: str) -> None:
    tag = f"demoted-{_component(name)}-{'0' * 16}"
    assert re.fullmatch(r"[A-Za-z0-9]+(?:(?:[-._:@+]|--)[A-Za-z0-9]+)*", tag)
    assert re.fullmatch(r"\w[\w.-]{0,127}", tag)


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
    for said in (
        "gpu: NVIDIA H200",
        "driver: 580.65.06",
        "baselines met: eager, torch.compile",
        "not checked: sizes",
    ):
        assert said in first.output, said
    assert "no job has reported this kernel: gpu unknown; driver unknown" in first.output
    plan = f"kernel/{certificate_sha256(envelope)[:16]}/canary"
    with pytest.raises(Permanent, match="decide on its current plan"):
        run("approve", plan, "--plan", "0000", "-c", str(config))
    assert run("approve", plan, "-c", str(config)).exit_code == 0
    second = run("promote", str(file), *where, "-c", str(config))
    assert second.exit_code == 0, second.output
    active = run("promote", certificate_sha256(envelope), *where, "--to", "active", "-c", str(config))
    assert active.exit_code == 1
    assert "not promotable: the environment of the jobs that use it is unknown" in active.output
    bundle = tmp_path / "nightshift_kernels.py"
    listed = run("registry", *where, "--bundle", str(bundle), "--json")
    assert json.loads(listed.output)[0]["state"] == "canary"
    assert "softmax" in bundle.read_text()
    done = run("demote", certificate_sha256(envelope)[:12], *where, "-r", "drill", "-c", str(config))
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "r" / "demoted.json").read_text())[0]["why"] == "drill"
    sound = certificate(note="sound")
    Registry(tmp_path / "r", TRUSTED).propose(sound, "ann", "", 1.0)
    place = tmp_path / "r" / "kernels" / certificate_sha256(envelope) / "certificate.json"
    place.write_text("torn")
    listed = run("registry", *where)
    assert listed.exit_code == 1
    states = [line.split()[0] for line in listed.stdout.splitlines() if not line.startswith(" ")]
    assert states == ["proposed", "damaged"]
    assert str(place) in listed.stdout


def test_a_file_is_no_registry(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RegistryError, match="file: cannot hold a registry: Not a directory"):
        Registry(tmp_path / "file", {})
