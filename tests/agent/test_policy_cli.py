"""`nightshift policy train | evaluate`: one command each, and what is unfit is refused with its place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from typer.testing import CliRunner

from agent.cli import app
from collectors.base import Permanent
from collectors.seal import Signer
from controllers.policy_file import PolicyRefused, read
from controllers.power.features import INTERFACE


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


def test_an_unknown_kind_and_an_untrusted_file_are_refused(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["policy", "evaluate", "cooling"])
    assert isinstance(done.exception, Permanent)
    file = tmp_path / "p.json"
    file.write_text(json.dumps(Signer.generate().seal("application/x", b"{}")))
    done = CliRunner().invoke(app, ["policy", "evaluate", "power", "--policy", str(file)])
    assert isinstance(done.exception, PolicyRefused)
    assert "p.json" in str(done.exception)
