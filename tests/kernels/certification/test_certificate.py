"""A certificate holds for whoever checks it, and breaks or goes stale for exactly one reason at a time."""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nightshift.collectors.seal import Signer, canonical_json
from nightshift.kernels.candidate import Candidate, Domain
from nightshift.kernels.certification.certificate import issue, verify
from nightshift.kernels.certification.envelope import CertificateError, read
from nightshift.kernels.cli import app
from nightshift.kernels.judge.environment import Environment
from nightshift.kernels.judge.sanitizer import judge_output
from nightshift.kernels.judge.verdict import Comparison, Interval, JudgeBroken, Reason, Refusal, Status, Verdict
from nightshift.kernels.ops.problems import named

COPY = named("copy")
SIGNER = Signer.from_bytes(bytes(range(32)))
TRUSTED = {SIGNER.key_id: SIGNER.public}
HERE = Environment("NVIDIA H200", "9.0", "580", "13.0", "2.11", "3.6", "none", "3.12", "Linux")
SOURCE = "def entry(x):\n    return x.clone()\n"
CANDIDATE = Candidate(SOURCE, "entry", "python", "library", "bitwise", domain=Domain(("float32", "int8")))
FOUND = Comparison("m=1", "eager", "A", 1e-5, 2e-5, Interval(1.9, 2.0, 2.1), 15)
VERDICT = Verdict(
    CANDIDATE.sha256,
    "copy",
    Status.faster,
    Reason.clears_best,
    "2x",
    "timing",
    comparisons=(FOUND,),
    environment=HERE.to_json(),
)


@pytest.fixture(scope="module")
def envelope() -> dict[str, Any]:
    return issue(VERDICT, CANDIDATE, COPY, SIGNER, "2026-11-21T00:00:00+00:00", "abc")


def reseal(envelope: dict[str, Any], change: Any, signer: Signer = SIGNER) -> dict[str, Any]:
    statement = json.loads(base64.b64decode(envelope["payload"]))
    change(statement)
    return signer.seal(envelope["payloadType"], json.dumps(statement).encode())


def test_a_fresh_certificate_is_valid_where_it_was_made(envelope: dict[str, Any]) -> None:
    found = verify(envelope, TRUSTED, named, HERE)
    assert found.valid
    assert not found.stale
    assert sum(check.name.startswith("anchor") for check in found.checks) == 2


def test_the_statement_is_in_toto_and_names_candidate_and_source(envelope: dict[str, Any]) -> None:
    statement = json.loads(base64.b64decode(envelope["payload"]))
    assert envelope["payloadType"] == "application/vnd.in-toto+json"
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert [entry["digest"]["sha256"] for entry in statement["subject"]] == [
        CANDIDATE.sha256,
        CANDIDATE.source_sha256,
    ]


def test_one_changed_byte_breaks_the_signature(envelope: dict[str, Any]) -> None:
    payload = bytearray(base64.b64decode(envelope["payload"]))
    payload[len(payload) // 2] ^= 1
    with pytest.raises(CertificateError, match="trusted key"):
        read({**envelope, "payload": base64.b64encode(payload).decode()}, TRUSTED)


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where every value of a JSON document stands."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    yield path
    for key, item in items:
        yield from _leaves(item, (*path, key))


def _set(value: Any, path: tuple[Any, ...], made: Any) -> Any:
    if not path:
        return made
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = _set(value[path[0]], path[1:], made)
    return copy


def test_whatever_value_of_a_certificate_is_changed_the_signature_breaks(envelope: dict[str, Any]) -> None:
    """Every field at every depth, and everything of the envelope round it."""
    payload = json.loads(base64.b64decode(envelope["payload"]))
    paths = list(_leaves(payload))
    assert len(paths) > 60
    for path, made in itertools.product(paths, ("tampered", None, 7, [], {})):
        changed = _set(payload, path, made)
        if changed == payload:
            continue
        text = base64.b64encode(canonical_json(changed)).decode()
        with pytest.raises(CertificateError, match="trusted key"):
            read({**envelope, "payload": text}, TRUSTED)
    for path, made in itertools.product(_leaves(envelope), ("tampered", "", None, 7, [], {})):
        changed = _set(envelope, path, made)
        if changed != envelope and path[-1:] != ("keyid",):  # a hint for whoever looks for the key, no more
            with pytest.raises(CertificateError):
                read(changed, TRUSTED)


def test_a_strangers_signature_is_not_trusted(envelope: dict[str, Any]) -> None:
    with pytest.raises(CertificateError, match="trusted key"):
        read(reseal(envelope, lambda s: None, Signer.generate()), TRUSTED)


def test_a_signed_certificate_with_another_candidate_is_broken(envelope: dict[str, Any]) -> None:
    def change(statement: Any) -> None:
        statement["predicate"]["candidate"]["source"] += "# more"

    with pytest.raises(CertificateError, match="subject"):
        read(reseal(envelope, change), TRUSTED)


@pytest.mark.parametrize("name", ["candidate", "anchors", "verdict", "commit"])
def test_a_missing_field_is_named(envelope: dict[str, Any], name: str) -> None:
    with pytest.raises(CertificateError, match=name):
        read(reseal(envelope, lambda s: s["predicate"].pop(name)), TRUSTED)


def test_other_inputs_or_outputs_than_the_anchored_ones_break_it(envelope: dict[str, Any]) -> None:
    def inputs(statement: Any) -> None:
        statement["predicate"]["anchors"][0]["inputs_sha256"] = "0" * 64

    def outputs(statement: Any) -> None:
        anchor = statement["predicate"]["anchors"][0]
        anchor["outputs_sha256"] = "0" * 64
        anchor["sample"][0] += 1.0

    for change, told in ((inputs, "inputs"), (outputs, "other outputs")):
        found = verify(reseal(envelope, change), TRUSTED, named, HERE)
        assert not found.valid
        assert any(told in check.detail for check in found.checks if check.state == "broken")


def test_an_oracle_that_rounds_otherwise_is_still_the_same_oracle(envelope: dict[str, Any]) -> None:
    def change(statement: Any) -> None:
        statement["predicate"]["anchors"][0]["outputs_sha256"] = "0" * 64

    found = verify(reseal(envelope, change), TRUSTED, named, HERE)
    assert found.valid
    assert any(check.detail == "equal within rounding" for check in found.checks)


@pytest.mark.parametrize("name", ["driver", "torch", "triton", "capability", "gpu", "container"])
def test_drift_of_the_environment_makes_it_stale_and_says_what_drifted(envelope: dict[str, Any], name: str) -> None:
    found = verify(envelope, TRUSTED, named, replace(HERE, **{name: "other"}))
    assert found.valid
    assert found.stale
    assert any(name in check.detail for check in found.checks if check.state == "stale")


def test_a_kernel_in_cute_is_stale_under_another_version_of_its_compiler_and_no_other_is() -> None:
    then = HERE.to_json()
    now = replace(HERE, cutlass_dsl="4.9")
    assert now.drift(then, "cute") == ["cutlass_dsl: none then, 4.9 now"]
    assert now.drift(then, "triton") == now.drift(then) == []


@pytest.mark.parametrize(
    ("now", "state"),
    [
        (Status.faster, "ok"),
        (Status.inconclusive, "ok"),
        (Status.slower, "stale"),
        (Status.wrong, "broken"),
        (Status.machine_fault, "stale"),
    ],
)
def test_a_fresh_verdict_is_held_against_the_certified_one(
    envelope: dict[str, Any], now: Status, state: str
) -> None:
    reasons = {
        Status.faster: Reason.clears_best,
        Status.inconclusive: Reason.straddles,
        Status.slower: Reason.below_baseline,
        Status.wrong: Reason.rmse,
        Status.machine_fault: Reason.xid,
    }
    again = replace(VERDICT, status=now, reason=reasons[now])
    found = verify(envelope, TRUSTED, named, HERE, lambda *_: again)
    assert found.checks[-1].state == state


def test_a_refused_candidate_gets_no_certificate() -> None:
    refused = replace(VERDICT, status=Status.cheat, reason=Reason.state_kept)
    with pytest.raises(CertificateError, match="cheat"):
        issue(refused, CANDIDATE, COPY, SIGNER, "", "")
    with pytest.raises(CertificateError, match="another"):
        issue(replace(VERDICT, problem="softmax"), CANDIDATE, COPY, SIGNER, "", "")


def test_the_command_line_judges_certifies_and_verifies(tmp_path: Path) -> None:
    run = CliRunner()
    file = Path(__file__).parents[1] / "good" / "library_copy.py"
    private, public, certificate = tmp_path / "key", tmp_path / "key.pub", tmp_path / "cert.json"
    assert run.invoke(app, ["keygen", str(private), str(public)]).exit_code == 0
    assert private.stat().st_mode & 0o077 == 0
    options = ["--device", "cpu", "--certificate", str(certificate), "--key", str(private)]
    judged = run.invoke(app, ["judge", str(file), *options])
    assert judged.exit_code == 0, judged.output
    assert "correct" in judged.output
    checked = run.invoke(app, ["verify", str(certificate), "--key", str(public)])
    assert checked.exit_code == 0, checked.output
    certificate.write_text(certificate.read_text().replace('"payload": "', '"payload": "AAAA'))
    assert run.invoke(app, ["verify", str(certificate), "--key", str(public)]).exit_code == 1
    assert run.invoke(app, ["judge", str(tmp_path / "none.py")]).exit_code == 2


CLEAN = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"
RACE = "========= COMPUTE-SANITIZER\n========= Error: Race reported between Write and Read\n========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)\n"  # noqa: E501


def test_the_sanitizers_words_are_read_and_its_silence_is_not_approval() -> None:
    judge_output(Reason.memcheck, 0, CLEAN)
    with pytest.raises(Refusal, match="Race reported"):
        judge_output(Reason.racecheck, 86, RACE)
    with pytest.raises(JudgeBroken, match="code 1"):
        judge_output(Reason.memcheck, 1, "========= COMPUTE-SANITIZER\n")
    with pytest.raises(JudgeBroken):
        judge_output(Reason.memcheck, 0, "")


HASHES = ({"probe": "normal, m=1", "sha256": "0a"}, {"probe": "one_hot, m=1", "sha256": "0b"})


@pytest.mark.parametrize(
    ("certified", "now", "state", "told"),
    [
        ((), HASHES, "ok", "no output hash"),
        (HASHES, HASHES, "ok", "same bits on 2 probes"),
        (HASHES, HASHES[::-1], "ok", "same bits on 2 probes"),
        (HASHES, ({**HASHES[0], "sha256": "0c"}, HASHES[1]), "stale", "other bits: normal, m=1"),
        (HASHES, HASHES[:1], "stale", "not run: one_hot, m=1"),
    ],
)
def test_a_rerun_names_each_probe_whose_output_has_other_bits(
    certified: Any, now: Any, state: str, told: str
) -> None:
    made = issue(replace(VERDICT, outputs=certified), CANDIDATE, COPY, SIGNER, "2026-11-21T00:00:00+00:00", "abc")
    found = verify(made, TRUSTED, named, HERE, lambda *_: replace(VERDICT, outputs=now))
    check = next(check for check in found.checks if check.name == "outputs")
    assert (check.state, check.detail) == (state, told)
    assert found.valid
    assert found.stale is (state == "stale")


def test_without_a_rerun_hashes_of_outputs_are_told_and_a_malformed_one_breaks() -> None:
    made = issue(replace(VERDICT, outputs=HASHES), CANDIDATE, COPY, SIGNER, "2026-11-21T00:00:00+00:00", "abc")
    assert verify(made, TRUSTED, named, HERE).checks[-1].detail == "hashes of 2 probes; --rerun compares them"
    for bad in ([{"probe": "normal"}], ["normal"], 7):
        broken = reseal(made, lambda s, bad=bad: s["predicate"]["verdict"].update(outputs=bad))
        assert not verify(broken, TRUSTED, named, HERE).valid


def test_a_certificate_of_before_output_hashes_is_read_and_says_so(envelope: dict[str, Any]) -> None:
    """Its verdict has neither hashes nor what was compared bit for bit; its candidate no word about exactness."""

    def older(statement: dict[str, Any]) -> None:
        for name in ("outputs", "exact"):
            del statement["predicate"]["verdict"][name]

    found = verify(reseal(envelope, older), TRUSTED, named, HERE)
    assert found.valid
    assert not found.stale
    assert [check.detail for check in found.checks if check.name == "outputs"] == ["no output hash"]


def test_a_certificate_of_another_judge_is_stale_and_one_of_the_future_is_said_to_be(
    envelope: dict[str, Any], tmp_path: Path
) -> None:
    """Both are read."""

    def change(statement: dict[str, Any]) -> None:
        del statement["predicate"]["judge"]
        statement["predicate"]["issued_at"] = "2999-01-01T00:00:00+00:00"

    odd = reseal(envelope, change)
    found = verify(odd, TRUSTED, named, HERE)
    assert found.valid
    assert [(check.name, check.state) for check in found.checks if check.state != "ok"] == [("judge", "stale")]
    file, key = tmp_path / "c.json", tmp_path / "k.pub"
    file.write_text(json.dumps(odd))
    key.write_text(SIGNER.public.public_bytes_raw().hex() + "\n")
    done = CliRunner().invoke(app, ["verify", str(file), "--key", str(key)])
    assert done.exit_code == 4
    assert "in the future: a clock was set wrong" in done.output
