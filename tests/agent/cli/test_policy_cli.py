"""`nightshift policy train | evaluate`: one command each, and what is unfit is refused with its place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from typer.testing import CliRunner

from nightshift.agent.__main__ import app
from nightshift.collectors.base import Permanent
from nightshift.collectors.seal import Signer
from nightshift.controllers.policy_file import PolicyRefused, read
from nightshift.controllers.power.features import INTERFACE


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    signer = Signer.generate()
    private, public = tmp_path / "key", tmp_path / "key.pub"
    private.write_text(signer.to_bytes().hex())
    public.write_text(signer.public.public_bytes(Encoding.Raw, PublicFormat.Raw).hex())
    return private, public


@pytest.mark.full
def test_training_is_one_command_and_gives_the_same_policy_again(tmp_path: Path, keys: tuple[Path, Path]) -> None:
    signer = Signer.from_file(keys[0])
    files = []
    for name in ("a", "b"):
        out = tmp_path / name
        words = f"policy train power -o {out} --key {keys[0]} --steps 7680 --seeds 0".split()
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
        files.append(read(out, INTERFACE, {signer.key_id: signer.public}))
    assert files[0].sha256 == files[1].sha256
    assert files[0].training["seeds"] == [1]


def test_an_unknown_kind_and_an_untrusted_file_are_refused(tmp_path: Path, keys: tuple[Path, Path]) -> None:
    done = CliRunner().invoke(app, ["policy", "evaluate", "cooling"])
    assert isinstance(done.exception, Permanent)
    file = tmp_path / "p.json"
    file.write_text(json.dumps(Signer.generate().seal("application/x", b"{}")))
    done = CliRunner().invoke(app, ["policy", "evaluate", "power", "--policy", str(file)])
    assert "--key" in str(done.exception)
    done = CliRunner().invoke(app, ["policy", "evaluate", "power", "--policy", str(file), "--key", str(keys[1])])
    assert isinstance(done.exception, PolicyRefused)
    assert "p.json" in str(done.exception)


def test_training_that_could_not_be_written_or_judged_is_refused_before_it_begins(
    tmp_path: Path, keys: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def began(*_: object) -> None:
        raise AssertionError("training began")

    monkeypatch.setattr("nightshift.controllers.lab.power.learn.PowerLearnable.train", began)
    good = tmp_path / "p.json"
    for words, said in (
        (["-o", str(tmp_path / "none/p.json")], "--output"),
        (["-o", str(tmp_path)], "--output"),
        (["-o", str(good), "--data", str(tmp_path / "none.csv")], "none.csv"),
    ):
        done = CliRunner().invoke(app, ["policy", "train", "power", "--key", str(keys[0]), *words])
        assert isinstance(done.exception, Permanent)
        assert said in str(done.exception)
    assert not good.exists()


@pytest.mark.full
def test_measurements_that_are_wrong_lose_no_training(tmp_path: Path, keys: tuple[Path, Path]) -> None:
    wrong = tmp_path / "wrong.csv"
    wrong.write_text("no,such\n1,2\n")
    out = tmp_path / "p.json"
    words = f"policy train power -o {out} --key {keys[0]} --steps 7680 --seeds 1 --data {wrong}".split()
    done = CliRunner().invoke(app, words)
    assert isinstance(done.exception, Permanent)
    assert "wrong.csv" in str(done.exception)
    signer = Signer.from_file(keys[0])
    kept = read(out, INTERFACE, {signer.key_id: signer.public})
    assert set(kept.training["envelope"]) == set(INTERFACE.features)


def test_scheduling_is_evaluated_on_a_trace_and_shown_as_a_table_and_as_json(tmp_path: Path) -> None:
    lines = ["submit_s,gpus,duration_s,user,kind"]
    lines += [f"{300 * at},{1 + at % 8},{600 + 100 * at},user-{at % 3},vision" for at in range(25)]
    (tmp_path / "mine.csv").write_text("\n".join(lines))
    words = ["policy", "evaluate", "scheduling", "--data", str(tmp_path / "mine.csv"), "--seeds", "2"]
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 0, shown.output
    assert "steering" in shown.output
    told = CliRunner().invoke(app, [*words, "--json"])
    rows = json.loads(told.output)["rows"]
    assert {(row["trace"], row["policy"]) for row in rows} == {("mine", "steering")}
    assert all(0 < row["mean_jct_s"] < 2 for row in rows)
