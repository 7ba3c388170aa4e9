"""Candidate files: the header is read whole, and a bad one is told by file and key."""

from __future__ import annotations

from pathlib import Path

import pytest

from nightshift.kernels.candidate import Bound, CandidateError, Launch
from nightshift.kernels.candidate_file import parse_candidate, read_candidate

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
    assert parse_candidate(TEXT.replace("float16 b", "float16, b")).candidate.domain == file.candidate.domain
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
        ("8..4096 /8", "8-4096", ":5: bounds"),
        ("8..4096 /8", "8..4096 /0", ":5: bounds"),
        ("8..4096 /8", "9..8", ":5: bounds"),
        ("8..4096 /8", "8..99999999999999999999", ":5: bounds"),
        ("yes", "maybe", ":6: differentiable"),
        ("own_kernel", "in_place", "mutates"),
        ("own_kernel", "fast", ":3: kind"),
        ("# kind", "# mutates: one\n# kind", ":3: mutates: 'one' is not the position"),
        ("# kind", "# launch: k | 1\n# kind", ":3: launch"),
        ("# kind", "# scratch_bytes: n\n# kind", ":3: scratch_bytes"),
        ("# kind", "# layouts: diagonal\n# kind", ":3: domain.layouts"),
        ("# dtypes", "# dtype", ":4: 'dtype' is no key; 'dtypes' is"),
        ("# kind", "# a fast one\n# kind", ":4: 'kind' is not read: line 3 has no key"),
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
    """With the line; and neither what is no file nor what is longer than any source is read to its end."""
    path = tmp_path / "x.py"
    path.write_bytes(TEXT.encode() + b"# caf\xe9\n")
    with pytest.raises(CandidateError, match=r"x\.py:11: not UTF-8"):
        read_candidate(path)
    path.write_bytes(TEXT.encode() + b"#" * (1 << 20))
    with pytest.raises(CandidateError, match=r"x\.py: more than 1048576 bytes"):
        read_candidate(path)
    for odd in (tmp_path, Path("/dev/zero")):
        with pytest.raises(CandidateError, match="not a file"):
            read_candidate(odd)
    with pytest.raises(CandidateError, match=r"gone\.py: No such file"):
        read_candidate(tmp_path / "gone.py")
