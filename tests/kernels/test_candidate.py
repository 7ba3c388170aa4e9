"""The candidate's declaration: identity, validation and launch-plan arithmetic."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightshift.kernels.candidate import Bound, Candidate, CandidateError, Domain, Launch, evaluate

PLAIN = Candidate("def f(x): return x", "f", "python", "own_kernel", "bitwise")


def test_a_candidate_survives_json_with_the_same_hash() -> None:
    domain = Domain(("float16",), ("contiguous",), (Bound("n", 1, 4096, 8),))
    launch = Launch("k", ("cdiv(n, 256)", "1", "1"), ("256", "1", "1"), ("in0", "out0", "i32:n"))
    cuda = Candidate("…", "f", "cuda", "own_kernel", "bitwise", (), False, domain, (launch,), ("n * 4",))
    assert Candidate.from_json(json.loads(json.dumps(cuda.to_json()))) == cuda
    assert Candidate.from_json(cuda.to_json()).sha256 == cuda.sha256


def test_another_declaration_of_the_same_source_is_another_candidate() -> None:
    other = Candidate(PLAIN.source, "f", "python", "library", "bitwise")
    assert other.sha256 != PLAIN.sha256
    assert other.source_sha256 == PLAIN.source_sha256


TILES = {"kernel": "f", "grid": ["1", "1", "1"], "block": ["1", "1", "1"], "args": ["map:in0:2:m:n:8:64"]}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"entry": "f()"}, "entry"),
        ({"entry": "lambda"}, "entry"),
        ({"language": "fortran"}, "language"),
        ({"kind": "in_place"}, "mutates"),
        ({"mutates": [0]}, "mutates"),
        ({"language": "cuda"}, "launches"),
        ({"language": "cute"}, "launches"),
        ({"language": "cute", "launches": [TILES]}, "launches: a tile descriptor"),
        ({"source": "\ud800"}, "source"),
        ({"source": "#" * (1 << 20) + "#"}, "source"),
        ({"colour": "red"}, "colour"),
        ({"domain": {"layouts": ["diagonal"]}}, "layouts"),
        ({"domain": {"dtypes": [1]}}, "domain.dtypes"),
        ({"mutates": 3}, "mutates"),
    ],
)
def test_a_malformed_declaration_is_refused_by_field(change: dict[str, object], field: str) -> None:
    with pytest.raises(CandidateError, match=field):
        Candidate.from_json({**PLAIN.to_json(), **change})


def test_a_domain_admits_only_what_it_names() -> None:
    domain = Domain(("float16",), (), (Bound("n", 8, 64, 8),))
    assert domain.admits({"n": 16, "m": 3}, "float16", "padded")
    assert not domain.admits({"n": 17}, "float16", "padded")
    assert not domain.admits({"n": 16}, "float32", "padded")


@given(st.integers(0, 10**6), st.integers(1, 4096))
def test_cdiv_is_the_ceiling(n: int, block: int) -> None:
    assert (
        (evaluate("cdiv(n, b)", {"n": n, "b": block}) - 1) * block
        < max(n, 1)
        <= max(1, evaluate("cdiv(n, b)", {"n": n, "b": block})) * block
    )


@pytest.mark.parametrize(
    "text", ["__import__('os')", "n ** 9", "1.5", "m", "n.real", "n //", "n // 0", "True", "[n]"]
)
def test_a_launch_expression_is_arithmetic_and_nothing_else(text: str) -> None:
    with pytest.raises(CandidateError):
        evaluate(text, {"n": 4})
