"""Candidate files: the header is read whole, and a bad one is told by file and key."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels.candidate import Bound, CandidateError, Launch
from kernels.candidate_file import parse_candidate, read_candidate

TEXT = """# nightshift candidate
# problem: softmax
# kind: own_kernel
# dtypes: float16 bfloat16
# bounds: n 8..4096 /8, m 1..
# differentiable: yes
# class: none of the known ones

def entry(x):
    return x
"""


def test_a_header_becomes_a_declaration_and_notes() -> None:
    file = parse_candidate(TEXT)
    assert file.problem == "softmax"
    assert file.candidate.domain.bounds == (Bound("n", 8, 4096, 8), Bound("m", 1))
    assert file.candidate.domain.dtypes == ("float16", "bfloat16")
    assert file.candidate.differentiable
    assert file.candidate.source == TEXT
    assert file.notes == {"class": "none of the known ones"}


def test_a_cuda_launch_is_read() -> None:
    line = "// launch: k | cdiv(m, 4), min(n, 2) | 32, 4 | n * 4 | in0; out0; i32:n"
    text = f"// nightshift candidate\n// problem: copy\n// language: cuda\n{line}\n\nvoid k() {{}}\n"
    launch = parse_candidate(text).candidate.launches[0]
    assert launch == Launch(
        "k", ("cdiv(m, 4)", "min(n, 2)", "1"), ("32", "4", "1"), ("in0", "out0", "i32:n"), "n * 4"
    )


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ("# nightshift candidate\n", "", ":1:"),
        ("# problem: softmax\n", "", "no problem"),
        ("8..4096 /8", "8-4096", "bounds"),
        ("yes", "maybe", "differentiable"),
        ("own_kernel", "in_place", "mutates"),
        ("# kind", "# mutates: one\n# kind", "invalid literal"),
        ("# kind", "# launch: k | 1\n# kind", "launch"),
        ("# kind", "# kind: library\n# kind", ":4: 'kind' is given a second time"),
    ],
)
def test_a_bad_header_is_told(old: str, new: str, word: str, tmp_path: Path) -> None:
    path = tmp_path / "one.py"
    path.write_text(TEXT.replace(old, new, 1))
    with pytest.raises(CandidateError, match=r"one\.py") as caught:
        read_candidate(path)
    assert word in str(caught.value)


def test_a_header_ends_its_lines_where_python_does() -> None:
    """What an editor shows as one comment is one: no key hides behind another kind of line end."""
    for mark in ("\x0c", "\x1c", "\x85", "\u2028"):
        file = parse_candidate(TEXT.replace("# class: none", f"# class: none{mark}# entry: another"))
        assert file.candidate.entry == "entry"
    assert parse_candidate(TEXT.replace("\n", "\r\n")).candidate.domain == parse_candidate(TEXT).candidate.domain


def test_a_byte_order_mark_is_no_part_of_the_source(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_bytes(b"\xef\xbb\xbf" + TEXT.encode())
    assert read_candidate(tmp_path / "x.py").candidate.source == TEXT


def test_a_file_that_is_not_text_is_told(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_bytes(b"\xff\xfe")
    with pytest.raises(CandidateError, match=r"x\.py"):
        read_candidate(tmp_path / "x.py")
