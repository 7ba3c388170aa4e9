"""A policy file holds numbers alone: whatever is not signed, fit and of this version is refused."""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nightshift.collectors.seal import Signer, canonical_json
from nightshift.controllers.policy_file import (
    PAYLOAD_TYPE,
    Interface,
    Network,
    Normaliser,
    PolicyFile,
    PolicyRefused,
    read,
    write,
)

SIGNER = Signer.generate()
TRUSTED = {SIGNER.key_id: SIGNER.public}
INTERFACE = Interface("power", ("draw", "cap"), ("down", "stay", "up"))


def network() -> Network:
    rng = np.random.default_rng(1)
    layers = ((rng.normal(size=(4, 2)), np.zeros(4)), (rng.normal(size=(3, 4)), np.ones(3)))
    return Network(Normaliser(np.array([1.0, 2.0]), np.array([1.0, 0.5])), layers)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    training = {"environment_sha256": "ab", "seeds": [1]}
    write(tmp_path / "p.json", PolicyFile("ppo", INTERFACE, network(), training, {"saved": 0.07}), SIGNER)
    return tmp_path / "p.json"


def rewrite(file: Path, change: Any) -> None:
    """A change by somebody who holds the key: only the checks of the content are left."""
    body = json.loads(base64.b64decode(json.loads(file.read_text())["payload"]))
    change(body)
    file.write_text(json.dumps(SIGNER.seal(PAYLOAD_TYPE, canonical_json(body))))


def test_a_policy_comes_back_as_it_was_written(file: Path) -> None:
    found = read(file, INTERFACE, TRUSTED)
    seen = np.random.default_rng(2).normal(size=(5, 2))
    np.testing.assert_allclose(found.network.logits(seen), network().logits(seen), rtol=1e-5)
    assert (found.name, found.evaluation["saved"], found.key_id) == ("ppo", 0.07, SIGNER.key_id)


def test_probabilities_are_of_allowed_actions_and_sum_to_one() -> None:
    mask = np.array([[True, False, True]])
    chances = network().probabilities(np.array([[0.3, 0.1]]), mask)
    assert chances[0, 1] == 0.0
    assert chances.sum() == pytest.approx(1.0)


def test_any_other_byte_is_refused(file: Path) -> None:
    raw = file.read_bytes()
    for at in range(0, len(raw) - 1, 97):
        file.write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
        try:
            read(file, INTERFACE, TRUSTED)
        except PolicyRefused:
            continue
        # the hint of who signed is not part of what is signed
        assert json.loads(raw)["payload"] == json.loads(file.read_bytes())["payload"]


def test_a_pickle_is_refused_and_never_run(file: Path, tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "ran",)

    for raw in (
        pickle.dumps(Bomb()),
        pickle.dumps(Bomb(), 0),
        b"PK\x03\x04torch",
        b"\x93NUMPY",
        gzip.compress(b"0" * 10**6),
    ):
        file.write_bytes(raw)
        with pytest.raises(PolicyRefused):
            read(file, INTERFACE, TRUSTED)
    assert not (tmp_path / "ran").exists()


def test_a_stranger_signature_is_refused(file: Path) -> None:
    other = Signer.generate()
    with pytest.raises(PolicyRefused, match="trusted"):
        read(file, INTERFACE, {other.key_id: other.public})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda b: b.update(version=2), "version 2"),
        (lambda b: b.update(kind="scheduling"), "kind"),
        (lambda b: b.update(features=["cap", "draw"]), "features"),
        (lambda b: b.update(actions=["down"]), "actions"),
        (lambda b: b["normaliser"].update(scale=[0, 1]), "scale"),
        (lambda b: b["normaliser"].update(mean=[0]), "mean"),
        (lambda b: b["weights"].pop("policy.1.bias"), "weights|malformed"),
        (lambda b: b["weights"]["policy.0.weight"].update(shape=[2, 4]), "shapes"),
        (
            lambda b: b["weights"]["policy.0.bias"].update(
                float32=base64.b64encode(np.full(4, np.nan, "<f4").tobytes()).decode()
            ),
            "no number",
        ),
        (lambda b: b.pop("training"), "malformed"),
        (lambda b: b["normaliser"].update(clip=-1.0), "clip"),
        (lambda b: b["weights"].update({"policy.9.weight": b["weights"]["policy.0.weight"]}), "not policy.0"),
        (lambda b: b["weights"]["policy.0.weight"].update(shape=[10**12, 2]), "malformed"),
        (lambda b: b.update(version=True), "version True"),
    ],
)
def test_an_unfit_policy_is_refused_even_where_it_is_signed(file: Path, change: Any, said: str) -> None:
    rewrite(file, change)
    with pytest.raises(PolicyRefused, match=said):
        read(file, INTERFACE, TRUSTED)


@settings(
    max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, derandomize=True
)
@given(raw=st.binary(max_size=200) | st.text(max_size=100).map(str.encode) | st.just(b"[" * 100_000))
def test_any_bytes_are_refused_by_the_one_error(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "any"
    path.write_bytes(raw)
    with pytest.raises(PolicyRefused):
        read(path, INTERFACE, TRUSTED)


def test_a_link_a_pipe_a_folder_and_a_huge_file_are_refused_by_name(file: Path, tmp_path: Path) -> None:
    """... and none of them is waited for or read whole."""
    (tmp_path / "link").symlink_to(file)
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "huge").open("wb") as huge:
        huge.truncate(1 << 30)  # sparse
    for name, said in (("link", "symbolic link"), ("pipe", "plain file"), ("huge", "larger than 16 MiB")):
        with pytest.raises(PolicyRefused, match=f"{name}: .*{said}"):
            read(tmp_path / name, INTERFACE, TRUSTED)
    with pytest.raises(PolicyRefused, match="plain file"):
        read(tmp_path, INTERFACE, TRUSTED)
    with pytest.raises(PolicyRefused, match="No such file"):
        read(tmp_path / "none", INTERFACE, TRUSTED)


junk = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**53), 2**53), st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8), st.lists(st.integers(-9, 9), max_size=4), st.dictionaries(st.text(max_size=3), st.none()),
)  # fmt: skip


@settings(
    max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, derandomize=True
)
@given(path=st.integers(0, 10**6), put=junk)
def test_whatever_stands_in_a_signed_file_is_refused_by_the_one_error_or_answers_with_numbers(
    file: Path, path: int, put: Any
) -> None:
    """One value anywhere in it is another: by somebody who holds the key, or a program with a defect."""
    body = json.loads(base64.b64decode(json.loads(file.read_text())["payload"]))
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        for key in list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ():
            places.append((node, key))
            walk(node[key])

    walk(body)
    node, key = places[path % len(places)]
    node[key] = put
    changed = file.with_name("changed")
    changed.write_text(json.dumps(SIGNER.seal(PAYLOAD_TYPE, canonical_json(body))))
    with contextlib.suppress(PolicyRefused, ValueError):  # an answer that is no number is the fallback's turn
        found = read(changed, INTERFACE, TRUSTED)
        assert np.isfinite(found.network.probabilities(np.array([[0.3, 0.1]]))).all()


def test_an_answer_that_is_no_number_is_an_error_and_weights_of_the_largest_size_still_answer(file: Path) -> None:
    huge = base64.b64encode(np.full(12, 3e38, "<f4").tobytes()).decode()
    rewrite(file, lambda body: body["weights"]["policy.1.weight"].update(float32=huge))
    network = read(file, INTERFACE, TRUSTED).network
    assert np.isfinite(network.probabilities(np.array([[0.3, 0.1]]))).all()
    with pytest.raises(ValueError, match="no number"):
        network.logits(np.array([[np.nan, 0.1]]))
