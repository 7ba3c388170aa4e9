"""A candidate as one text file: the source, with its declaration in a comment header.

The header is every leading line `# key: value` after the first, which must be ``# nightshift candidate`` (for CUDA
C++, `//` instead of `#`). The header stays part of the source, so the hash covers it. Example::

    # nightshift candidate
    # problem: softmax
    # language: triton
    # kind: own_kernel
    # determinism: bitwise
    # dtypes: float16 bfloat16
    # bounds: n 1..4096 /8, m 1..

Keys: problem, entry (default ``entry``), language, kind, determinism, exact (default ``yes``; ``no`` for products
of Winograd's or Strassen's kind, which are not checked bit for bit), mutates, differentiable, dtypes, layouts,
bounds (``name low..high /multiple``, high and multiple optional), launch (repeated; see `_launch`), scratch_bytes.
Each but `launch` is given once. Any other key is a note: kept, not interpreted, unless it is nearly one of these.
"""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nightshift.kernels.candidate import MAX_SOURCE_BYTES, Bound, Candidate, CandidateError, Domain, Launch

FIRST_LINE = "nightshift candidate"
_KNOWN = frozenset(
    re.findall(
        r"\w+",
        "bounds determinism differentiable dtypes entry exact kind language launch layouts mutates problem "
        "scratch_bytes",
    )
)
_BOUND = re.compile(r"(\w+)\s+(\d+)\.\.(\d*)(?:\s*/(\d+))?")


@dataclass(frozen=True)
class CandidateFile:
    """A file's candidate, the problem that it claims to solve, and the header's remaining notes."""

    candidate: Candidate
    problem: str
    notes: Mapping[str, str]


def read_candidate(path: Path) -> CandidateFile:
    """Raises CandidateError that names the file and the line or key."""
    try:
        if not path.is_file() and path.exists():
            raise CandidateError(f"{path}: not a file")
        with path.open("rb") as file:
            data = file.read(MAX_SOURCE_BYTES + 1)  # a device or a pipe may have no end
        text = data.decode("utf-8-sig")
    except OSError as error:
        raise CandidateError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        # of a file that was cut off, the last character may be half of one: its size is the mistake
        if len(data) <= MAX_SOURCE_BYTES:
            raise CandidateError(f"{path}:{line}: not UTF-8 ({error.reason})") from error
    if len(data) > MAX_SOURCE_BYTES:
        raise CandidateError(f"{path}: more than {MAX_SOURCE_BYTES} bytes")
    return parse_candidate(text, str(path))


def parse_candidate(text: str, name: str = "candidate") -> CandidateFile:
    """The candidate of a file's text; `name` is how errors call it."""
    header, lines = _header(text, name)
    keys = {key: values[-1] for key, values in header.items()}
    if "problem" not in keys:
        raise CandidateError(f"{name}: the header names no problem")
    try:
        candidate = Candidate(
            source=text,
            entry=keys.get("entry", "entry"),
            language=keys.get("language", "triton"),  # type: ignore[arg-type]
            kind=keys.get("kind", "own_kernel"),  # type: ignore[arg-type]
            determinism=keys.get("determinism", "bitwise"),  # type: ignore[arg-type]
            mutates=tuple(_position(word) for word in _listed(keys.get("mutates", ""))),
            differentiable=_flag("differentiable", keys.get("differentiable", "no")),
            exact=_flag("exact", keys.get("exact", "yes")),
            domain=Domain(
                _listed(keys.get("dtypes", "")),
                _listed(keys.get("layouts", "")),
                tuple(_bound(item) for item in keys.get("bounds", "").split(",") if item.strip()),
            ),
            launches=tuple(_launch(line) for line in header.get("launch", ())),
            scratch_bytes=tuple(item.strip() for item in keys.get("scratch_bytes", "").split(";") if item.strip()),
        )
    except CandidateError as error:
        field = str(error).partition(":")[0].removeprefix("domain.")
        line = lines.get(field.replace("launches", "launch"))
        raise CandidateError(f"{name}:{line}: {error}" if line else f"{name}: {error}") from error
    notes = {key: value for key, value in keys.items() if key not in _KNOWN}
    return CandidateFile(candidate, keys["problem"], notes)


def candidate_text(candidate: Candidate, problem: str) -> str:
    """A candidate as a file's text: what it declares as a header, then its source. `parse_candidate` reads the same
    declaration from it.

    >>> from nightshift.kernels.candidate import Candidate
    >>> print(candidate_text(Candidate("entry = max", "entry", "triton", "own_kernel", "bitwise"), "softmax"))
    # nightshift candidate
    # problem: softmax
    # entry: entry
    # language: triton
    # kind: own_kernel
    # determinism: bitwise
    <BLANKLINE>
    entry = max
    """
    domain = candidate.domain
    bounds = [
        f"{b.name} {b.low}..{b.high if b.high < 2**53 else ''}" + (f" /{b.multiple}" if b.multiple > 1 else "")
        for b in domain.bounds
    ]
    rows = [
        ("problem", problem),
        ("entry", candidate.entry),
        ("language", candidate.language),
        ("kind", candidate.kind),
        ("determinism", candidate.determinism),
        ("mutates", " ".join(map(str, candidate.mutates))),
        ("differentiable", "yes" if candidate.differentiable else ""),
        ("exact", "" if candidate.exact else "no"),
        ("dtypes", " ".join(domain.dtypes)),
        ("layouts", " ".join(domain.layouts)),
        ("bounds", ", ".join(bounds)),
        ("scratch_bytes", "; ".join(candidate.scratch_bytes)),
        *(
            (
                "launch",
                " | ".join((x.kernel, ", ".join(x.grid), ", ".join(x.block), x.shared_bytes, "; ".join(x.args))),
            )
            for x in candidate.launches
        ),
    ]
    mark = "//" if candidate.language == "cuda" else "#"
    header = [FIRST_LINE, *(f"{key}: {value}" for key, value in rows if value)]
    return "\n".join([*(f"{mark} {line}" for line in header), "", candidate.source])


def _header(text: str, name: str) -> tuple[dict[str, list[str]], dict[str, int]]:
    """The values of each key, and the line of its last."""
    lines = re.split(r"\r\n|\r|\n", text)  # where Python ends a line, so that reader and machine see one header
    if not lines or lines[0].lstrip("#/ ").strip() != FIRST_LINE:
        raise CandidateError(f"{name}:1: expected '# {FIRST_LINE}'")
    header: dict[str, list[str]] = {}
    places: dict[str, int] = {}
    ended = 0  # by a comment without a key
    comments = itertools.takewhile(lambda line: line.startswith(("#", "//")), lines[1:])
    for number, line in enumerate(comments, 2):
        key, colon, value = (part.strip() for part in line.lstrip("#/ ").partition(":"))
        # a declaration that is not read would leave the wider default, unseen
        if ended and colon and key in _KNOWN:
            raise CandidateError(
                f"{name}:{number}: {key!r} is not read: line {ended} has no key and ends the header"
            )
        ended = ended or (0 if colon else number)
        if ended:
            continue
        if key in header and key in _KNOWN - {"launch"}:
            raise CandidateError(f"{name}:{number}: {key!r} is given a second time")
        # any key may be a note, but a misspelt one would narrow nothing
        near = difflib.get_close_matches(key, _KNOWN, 1, 0.8)
        if near and key not in _KNOWN:
            raise CandidateError(f"{name}:{number}: {key!r} is no key; {near[0]!r} is")
        header.setdefault(key, []).append(value)
        places[key] = number
    return header, places


def _listed(text: str) -> tuple[str, ...]:
    """Words, with commas between them or without."""
    return tuple(text.replace(",", " ").split())


def _position(word: str) -> int:
    if not word.isdecimal():
        raise CandidateError(f"mutates: {word!r} is not the position of an input, from 0")
    return int(word)


def _flag(key: str, text: str) -> bool:
    if text not in ("yes", "no"):
        raise CandidateError(f"{key}: {text!r} is neither yes nor no")
    return text == "yes"


def _bound(text: str) -> Bound:
    match = _BOUND.fullmatch(text.strip())
    if match is None:
        raise CandidateError(f"bounds: {text.strip()!r} is not 'name low..high /multiple'")
    name, low, high, multiple = match.groups()
    return Bound(name, int(low), int(high) if high else 2**53, int(multiple or 1))


def _launch(text: str) -> Launch:
    """``kernel | gridx, gridy, gridz | blockx, blocky, blockz | shared bytes | argument; argument…``."""
    parts = [part.strip() for part in text.split("|")]
    if len(parts) != 5:
        raise CandidateError(f"launch: {text!r} has {len(parts)} parts, expected 5")
    grid, block = (_three(part) for part in parts[1:3])
    return Launch(parts[0], grid, block, tuple(a.strip() for a in parts[4].split(";") if a.strip()), parts[3])


def _three(text: str) -> tuple[str, str, str]:
    """Up to three expressions, separated by commas outside parentheses; missing ones are 1."""
    parts, depth = [""], 0
    for letter in text:
        # the comma of cdiv(m, 4) separates no dimensions
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    filled = [part.strip() for part in parts] + ["1", "1"]
    if len(parts) > 3:
        raise CandidateError(f"launch: {text!r} has more than three dimensions")
    return filled[0], filled[1], filled[2]
