"""Variables of a CUDA source that outlive a call: what one call leaves there, the next can find.

A right kernel needs none: what its launches hand to one another lies in scratch buffers, which the judge spoils
between calls. The judge's read refuses the same in Python (`global`, an empty container of a module), and its race
takes such a memory's use away; the reward does not pay for the attempt. This reads declarations, not what is done
with them: a variable behind a macro is missed, and is paid as what the race leaves of it.
"""

from __future__ import annotations

import re

from nightshift.kernels.candidate import Candidate

_TEXTS = re.compile(
    r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|^[ \t]*\#(?:\\\n|[^\n])*""", re.S | re.M
)
"""Comments, literals and lines of the preprocessor."""
_ALIGNED = re.compile(r"\b(?:__align__|alignas|__launch_bounds__|__attribute__)\s*\(+[^)]*\)+|\boperator\b\W+")
_PIECES = re.compile(r"[{};]|[^{};]+")
_FUNCTION = re.compile(r"[^=]*?\(\s*(?![\d.\s])")
_NO_VARIABLE = re.compile(
    r"\s*(?:using\b|typedef\b|static_assert\b|friend\b|(?:template\s*<[^;]*>\s*)?"
    r"(?:struct|class|union|enum(?:\s+class)?)\s+\w+\s*(?::[\w\s]+)?$)"
)
_FIXED = re.compile(r"\b(?:constexpr|__constant__|__shared__)\b")
_TYPE = re.compile(r"\b(?:struct|class|union|enum)\b[^=]*$")


def device_state(candidate: Candidate) -> tuple[str, ...]:
    """Names of the variables that a CUDA candidate could write in one call and read in the next, in their order;
    empty for other languages: of those the judge reads the host code, and CuTe has no such variables."""
    if candidate.language != "cuda":
        return ()
    names: list[str] = []
    head, scopes = "", ["file"]
    for piece in _PIECES.findall(_ALIGNED.sub(" ", _TEXTS.sub(" ", candidate.source))):
        if piece == "{":
            kind = _opened(head, scopes[-1])
            names += _lasting(head, scopes[-1]) if kind == "value" else []
            scopes.append(kind)
            # behind a type's end may stand a variable of it, behind a value's only more of the same
            head = ""
        elif piece == "}":
            kind = scopes.pop() if len(scopes) > 1 else "file"
            head = {"type": "type ", "value": "using "}.get(kind, "")
        elif piece == ";":
            names += _lasting(head, scopes[-1])
            head = ""
        else:
            head += piece
    return tuple(dict.fromkeys(names))


def _opened(head: str, scope: str) -> str:
    """What a brace begins: a namespace ("file"), a type, a function's or loop's body, or a variable's value."""
    if scope in ("body", "value"):
        return "value" if scope == "value" or re.search(r"\bstatic\b[^(]*$", head) else "body"
    if "namespace" in head.split() or head.strip() in ("", "extern"):
        return "file"
    if _FUNCTION.match(head):
        return "body"
    return "type" if _TYPE.search(head) and "typedef" not in head.split() else "value"


def _lasting(head: str, scope: str) -> list[str]:
    """The name that a statement declares for longer than a call; empty where it declares none."""
    declared = head.partition("=")[0].partition("[")[0]
    names = re.findall(r"[A-Za-z_]\w*", declared)
    outlives = scope == "file" or (scope in ("type", "body") and "static" in names)
    fixed = _FIXED.search(head) or re.search(r"\bconst\b", declared.rpartition("*")[2])
    function = scope != "body" and _FUNCTION.match(head)
    if not outlives or len(names) < 2 or fixed or function or _NO_VARIABLE.match(head):
        return []
    return names[-1:]
