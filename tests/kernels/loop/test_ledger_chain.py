"""The chain: whatever is changed, removed, moved or cut off in a ledger is named by line and field."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from nightshift.collectors.seal import canonical_json, fingerprint
from nightshift.kernels.cli import app
from nightshift.kernels.loop.ledger import HEAD, Ledger, LedgerError, read_audit, read_run
from nightshift.kernels.loop.ledger_chain import Audit, LedgerHead, audit, sealed
from tests.kernels.loop.test_ledger import LINE

COUNT = 5
FIELDS = {"schema", *LINE.to_json()}


def written(folder: Path, count: int = COUNT) -> bytes:
    """A search's ledger of so many lines."""
    with Ledger(folder, {"task": "softmax", "seed": 7}) as ledger:
        for number in range(len(ledger.lines) + 1, count + 1):
            ledger.add(replace(LINE, trial=number, at_s=100.0 + number, hypothesis=f"größer {number}"))
    return (folder / "ledger.jsonl").read_bytes()


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, dict[str, LedgerHead]]:
    folder = tmp_path_factory.mktemp("run")
    data = written(folder)
    return data, {HEAD: LedgerHead.of(json.loads((folder / HEAD).read_text()))}


def looked(data: bytes, heads: dict[str, LedgerHead]) -> Audit:
    return audit(data, {"task": "softmax", "seed": 7}, heads, FIELDS)


def test_a_ledger_as_it_was_written_has_no_finding_and_no_note(scene: tuple[bytes, dict[str, LedgerHead]]) -> None:
    found = looked(*scene)
    assert (found.findings, found.notes, found.unchained) == ([], [], 0)
    assert found.head == scene[1][HEAD]


@settings(max_examples=600, deadline=None)
@given(data=st.data())
def test_any_one_byte_that_is_changed_is_named_by_its_line_and_field(
    scene: tuple[bytes, dict[str, LedgerHead]], data: st.DataObject
) -> None:
    """The line that holds the byte, and the field that does; or that the line is none any more."""
    original, heads = scene
    place = data.draw(st.integers(0, len(original) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda value: value != original[place]))
    changed = original[:place] + bytes([byte]) + original[place + 1 :]
    found = looked(changed, heads)
    assert found.findings
    first, number = found.findings[0], original.count(b"\n", 0, place) + 1
    assert first.line == number
    begin = original.rfind(b"\n", 0, place) + 1
    holder = field_at(original[begin : original.index(b"\n", begin)], place - begin)
    renamed = ("unknown", "missing", "missing: the line is not chained")
    no_line = "malformed" in first.what or "cut off" in first.what
    assert no_line or first.what in renamed or holder in {one.field for one in found.findings}


def field_at(text: bytes, offset: int) -> str:
    """The field that holds this byte of a line."""
    at = 1
    record = json.loads(text)
    for name in sorted(record):
        at += len(canonical_json({name: record[name]})) - 1
        if offset < at:
            return name
    return ""


@settings(max_examples=300, deadline=None)
@given(
    number=st.integers(1, COUNT), name=st.sampled_from(sorted(FIELDS)), value=st.sampled_from([0, 7.25, "x", None])
)
def test_an_edited_field_is_named_though_the_line_is_still_canonical(
    scene: tuple[bytes, dict[str, LedgerHead]], number: int, name: str, value: object
) -> None:
    original, heads = scene
    lines = original.splitlines(keepends=True)
    record = json.loads(lines[number - 1])
    if fingerprint(record[name]) == fingerprint(value):
        return
    lines[number - 1] = canonical_json({**record, name: value}) + b"\n"
    (finding,) = looked(b"".join(lines), heads).findings
    assert (finding.line, finding.field) == (number, name)


@given(number=st.integers(1, COUNT))
def test_a_removed_line_is_named_where_it_is_missing(
    scene: tuple[bytes, dict[str, LedgerHead]], number: int
) -> None:
    lines = scene[0].splitlines(keepends=True)
    del lines[number - 1]
    found = looked(b"".join(lines), scene[1])
    assert found.findings[0].line == number
    assert found.findings[0].field == ("previous" if number < COUNT else "")


@given(pair=st.lists(st.integers(0, COUNT - 1), min_size=2, max_size=2, unique=True))
def test_lines_that_changed_places_are_named(scene: tuple[bytes, dict[str, LedgerHead]], pair: list[int]) -> None:
    lines = scene[0].splitlines(keepends=True)
    one, other = sorted(pair)
    lines[one], lines[other] = lines[other], lines[one]
    found = looked(b"".join(lines), scene[1]).findings
    assert (found[0].line, found[0].field) == (one + 1, "previous")


@given(at=st.integers(0, COUNT), taken=st.integers(0, COUNT - 1))
def test_an_inserted_line_is_named(scene: tuple[bytes, dict[str, LedgerHead]], at: int, taken: int) -> None:
    """Even one with whole links of its own."""
    lines = scene[0].splitlines(keepends=True)
    lines.insert(at, lines[taken])
    assert looked(b"".join(lines), scene[1]).findings
    record = {k: v for k, v in json.loads(lines[taken]).items() if k not in ("hash", "previous", "digests")}
    lines[at] = canonical_json(sealed(record, "0" * 64)) + b"\n"
    assert looked(b"".join(lines), scene[1]).findings


@given(size=st.integers(0, 1 << 20))
def test_lines_cut_off_at_the_end_are_named_by_the_head(
    scene: tuple[bytes, dict[str, LedgerHead]], size: int
) -> None:
    """However many bytes, also where the rest of a line is left, as a crash would leave it."""
    kept = scene[0][: size % len(scene[0])]
    whole = kept.count(b"\n")
    (finding,) = looked(kept, scene[1]).findings
    assert (finding.line, finding.field) == (whole + 1, "")
    assert "cut off at the end: head.json names 5 lines" in finding.what


def test_a_whole_chain_that_was_forged_anew_is_seen_by_the_certificates_head(
    scene: tuple[bytes, dict[str, LedgerHead]], tmp_path: Path
) -> None:
    with Ledger(tmp_path, {"task": "softmax", "seed": 7}) as ledger:
        for number in range(1, COUNT + 1):
            ledger.add(replace(LINE, trial=number, seconds=1e-9))
    heads = {HEAD: ledger.head, "certificate.json": scene[1][HEAD]}
    (finding,) = looked((tmp_path / "ledger.jsonl").read_bytes(), heads).findings
    assert "certificate.json" in finding.what


def test_the_question_that_was_asked_is_in_the_chain_too(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "run.json").write_text(json.dumps({"task": "gelu", "seed": 7}))
    with pytest.raises(LedgerError, match=r"line 1, field previous: .*run.json changed"):
        read_run(tmp_path)


def test_a_half_written_last_line_is_noted_and_the_run_goes_on(tmp_path: Path) -> None:
    """kill -9 between the first and the last byte of a line: no tampering, and said."""
    data = written(tmp_path, 2)
    with (tmp_path / "ledger.jsonl").open("ab") as file:
        file.write(data[:300])
    _, lines, found = read_audit(tmp_path)
    assert len(lines) == 2
    assert found.findings == []
    assert found.notes == ["line 3: half-written when the process ended; nothing was done upon it"]
    assert len(written(tmp_path, 3).splitlines()) == 3
    assert read_audit(tmp_path)[2].notes == []


def test_a_kill_between_a_line_and_its_head_is_no_tampering(tmp_path: Path) -> None:
    written(tmp_path, 1)
    before = (tmp_path / HEAD).read_text()
    written(tmp_path, 2)
    (tmp_path / HEAD).write_text(before)
    assert read_audit(tmp_path)[2].findings == []
    assert len(written(tmp_path, 3).splitlines()) == 3
    (tmp_path / HEAD).unlink()
    with pytest.raises(LedgerError, match="no file names the last line"):
        read_run(tmp_path)


def test_a_ledger_of_an_older_version_is_read_said_to_be_unchained_and_chained_from_there(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    old = [json.dumps(replace(LINE, trial=number).to_json()) + "\n" for number in (1, 2)]
    path.write_text("".join(old))
    _, lines, found = read_audit(tmp_path)
    assert [line.trial for line in lines] == [1, 2]
    assert found.findings == []
    assert found.notes == ["lines 1 to 2: unchained, of an older version: an edit cannot be seen"]
    written(tmp_path / "other", 1)
    with Ledger(tmp_path) as ledger:
        ledger.add(replace(LINE, trial=3))
        ledger.add(replace(LINE, trial=4))
    assert read_audit(tmp_path)[2].findings == []
    path.write_bytes(path.read_bytes().replace(b"first", b"later", 1))
    (finding,) = read_audit(tmp_path)[2].findings
    assert (finding.line, finding.field) == (3, "previous")  # what came before it is not what it followed


def test_a_chain_that_was_taken_off_is_no_older_version(tmp_path: Path) -> None:
    data = written(tmp_path)
    bare = [{k: v for k, v in json.loads(text).items() if k in FIELDS} for text in data.splitlines()]
    (tmp_path / "ledger.jsonl").write_text("".join(json.dumps(one) + "\n" for one in bare))
    with pytest.raises(LedgerError, match="its links were removed"):
        read_run(tmp_path)


def test_a_clock_that_was_set_back_is_noted_and_order_is_the_chains(tmp_path: Path) -> None:
    with Ledger(tmp_path) as ledger:
        ledger.add(replace(LINE, at_s=2_000.0))
        ledger.add(replace(LINE, trial=2, at_s=500.0))
    _, lines, found = read_audit(tmp_path)
    assert [line.trial for line in lines] == [1, 2]
    assert found.findings == []
    assert found.notes == ["line 2: its time is 1500 s before the line above: a clock was set back"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"lines": true}', '{"lines": -1}'])
def test_a_damaged_head_is_named(tmp_path: Path, text: str) -> None:
    written(tmp_path)
    (tmp_path / HEAD).write_text(text)
    with pytest.raises(LedgerError, match=r"head\.json: "):
        read_run(tmp_path)


def run_of(folder: Path) -> Path:
    task = folder / "tasks" / "softmax"
    task.mkdir(parents=True)
    written(task)
    return task / "ledger.jsonl"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda lines: [lines[0], lines[1].replace(b'"seed":7', b'"seed":8'), *lines[2:]], "line 2, field seed"),
        (lambda lines: lines[:1] + lines[2:], "line 2, field previous"),
        (lambda lines: lines[:-1], "line 5, whole line: line 5 cut off at the end"),
        (lambda lines: [*lines[:3], lines[4], lines[3]], "line 4, field previous"),
        (lambda lines: [lines[0], lines[1][:-3] + b"\n", *lines[2:]], "line 2, whole line: malformed"),
    ],
)  # fmt: skip
def test_report_names_line_and_field_and_fails(tmp_path: Path, change: Any, said: str) -> None:
    path = run_of(tmp_path)
    assert CliRunner().invoke(app, ["report", str(tmp_path)]).exit_code == 0
    assert "5 of 5 lines are chained and unchanged" in (tmp_path / "report.md").read_text()
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))
    done = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert done.exit_code == 1
    assert f"{path}: {said}" in done.stderr + str(done.exception)
