"""The judge's own examination: folders of candidates whose verdict is known, to be refused or to be accepted.

A judge is trusted on a machine because it has refused every known cheat there, for a right reason and also with the
static read switched off, and has accepted every known-good kernel. The files are candidates like any other
(`kernels.candidate_file`) with notes in their headers: `class` (the kind of cheat), `refused` (the reasons that are
right), `neutralised` (further reasons that are right because the cheat came to nothing: a slow kernel stayed slow),
`needs_cuda`, `timed` (it needs the GPU to itself: the cheat is against the clock, or for all of its memory), `huge`
(it takes more than 2³¹ elements to show), `interpreter` (the dtypes for Triton's).

A mutant is a patch: a known-good kernel with a hidden defect. Before its unified diff stand `breaks` (the defect)
and `frozen` (the commit of the judge that it was written against, without knowing what that would ask).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nightshift.kernels.candidate import CandidateError
from nightshift.kernels.candidate_file import CandidateFile, parse_candidate, read_candidate
from nightshift.kernels.judge.judge import Judge, Request
from nightshift.kernels.judge.probes.sizes import Scope
from nightshift.kernels.judge.race.contest import Pace
from nightshift.kernels.judge.verdict import Reason, Verdict
from nightshift.kernels.ops.problems import named

STATIC_REASONS = frozenset({Reason.static_refusal, Reason.library_call, Reason.syntax, Reason.entry_missing})
_SANITIZER = frozenset({Reason.memcheck, Reason.racecheck, Reason.initcheck, Reason.synccheck})


@dataclass(frozen=True)
class Piece:
    """One file. `refused` and `neutralised` are empty for a candidate that must be accepted; `breaks` and `frozen`
    where it is no mutant."""

    name: str
    file: CandidateFile
    cheat: str
    refused: frozenset[Reason]
    neutralised: frozenset[Reason]
    needs_cuda: bool
    timed: bool
    huge: bool
    breaks: str = ""
    frozen: str = ""


@dataclass(frozen=True)
class Showing:
    """What the judge said about a piece, and whether that was right."""

    name: str
    cheat: str
    static: bool
    right: bool
    verdict: Verdict

    def to_json(self) -> dict[str, Any]:
        v = self.verdict
        return {
            "name": self.name,
            "class": self.cheat,
            "static": self.static,
            "right": self.right,
            "refused": v.refused,
            "status": v.status.value,
            "reason": v.reason.value,
            "stage": v.stage,
            "detail": placeless(v.detail)[:300],
            "took_s": round(v.took_s, 3),
        }


def placeless(text: str) -> str:
    """A verdict's sentence without where this checkout and the judge's scratch folders lie: records travel."""
    return re.sub(r"/[^\s\"]*/(?=host\d+/)", "", text.replace(f"{Path(__file__).parents[3]}/", ""))


def read_gallery(folder: Path, device: str) -> list[Piece]:
    """The folder's pieces that this device can show, by name; raises CandidateError that names the file.

    On the CPU, domains shrink to the dtypes that Triton's interpreter can compute with.
    """
    pieces = []
    for path in sorted(p for p in folder.iterdir() if p.suffix in (".py", ".cu", ".patch")):
        file, mutant = read_mutant(path) if path.suffix == ".patch" else (read_candidate(path), {})
        notes = file.notes
        needs_cuda = notes.get("needs_cuda") == "yes"
        if needs_cuda and device != "cuda":
            continue
        if device != "cuda" and "interpreter" in notes:
            domain = replace(file.candidate.domain, dtypes=tuple(notes["interpreter"].split()))
            file = replace(file, candidate=replace(file.candidate, domain=domain))
        refused, neutralised = (
            frozenset(Reason(word) for word in notes.get(note, "").split()) for note in ("refused", "neutralised")
        )
        pieces.append(
            Piece(
                path.stem,
                file,
                notes.get("class", ""),
                refused,
                neutralised,
                needs_cuda,
                notes.get("timed") == "yes",
                notes.get("huge") == "yes",
                **mutant,
            )
        )
    return pieces


_HUNK = re.compile(r"@@ -(\d+)(?:,\d+)? \+\d+(?:,\d+)? @@")


def read_mutant(path: Path) -> tuple[CandidateFile, dict[str, str]]:
    """A patch's candidate, and what its head says; raises CandidateError where it does not fit the good kernel."""
    head, _, diff = path.read_text(encoding="utf-8").partition("\n--- ")
    notes = dict(line.split(": ", 1) for line in head.splitlines() if ": " in line)
    good, _, hunks = diff.split("\n", 2) if diff.count("\n") > 1 else ("", "", "")
    if notes.keys() != {"breaks", "frozen"} or not hunks:
        raise CandidateError(f"{path}: expected 'breaks: …', 'frozen: …' and a unified diff")
    text = _patched((path.parent / good).read_text(encoding="utf-8"), hunks, path)
    return parse_candidate(text, str(path)), notes


def _patched(text: str, hunks: str, path: Path) -> str:
    old, made, at = text.splitlines(), list[str](), 0
    for line in hunks.splitlines():
        mark, rest = line[:1], line[1:]
        if found := _HUNK.match(line):
            start = int(found[1]) - 1
            made, at = made + old[at:start], start
            continue
        # no fuzz: a good kernel that changes must not change its mutants unseen
        if mark in (" ", "-"):
            if old[at : at + 1] != [rest]:
                raise CandidateError(f"{path}: {rest!r} is not line {at + 1} of the good kernel")
            at += 1
        if mark in (" ", "+"):
            made.append(rest)
    return "\n".join([*made, *old[at:]]) + "\n"


def show(
    judge: Judge, piece: Piece, scope: Scope, static: bool, pace: Pace | None, secret: bytes | None = None
) -> Showing:
    """Judge one piece. It is raced only where its cheat is against the clock."""
    problem = named(piece.file.problem)
    request = Request(
        scope=replace(scope, huge=scope.huge or piece.huge),
        pace=pace if piece.timed else None,
        static=static,
        promote=judge.device == "cuda" and bool(piece.refused & _SANITIZER),
        cases=problem.cases[:1],
        gradients=False,
    )
    verdict = judge.verdict(piece.file.candidate, problem, request, secret)
    if verdict.reason is Reason.vram_taken:  # by a piece beside it, maybe: as `kernels.loop.executor` does
        verdict = judge.verdict(piece.file.candidate, problem, request, secret, alone=True)
    if piece.refused:
        allowed = piece.refused | piece.neutralised | (STATIC_REASONS if static else frozenset())
        right = verdict.reason in allowed
    else:
        right = not verdict.refused and verdict.stage != "machine"
    return Showing(piece.name, piece.cheat, static, right, verdict)
