"""What a job says of the certified kernels that it uses: the line that `kernels.apply` logs at step boundaries.

    nightshift kernels: step=1200 applied=3 calls=46800 fallbacks=0 shadow_checks=46 shadow_mismatches=0 demoted=0

and behind it `rank=3` and `mismatched=CERTIFICATE,…` where there is such.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields

MARK = "nightshift kernels:"
_FIGURE = re.compile(r"\b([a-z_]+)=(\d{1,15})\b")
_WRONG = re.compile(r"\bmismatched=([0-9a-f,]{16,400})")


@dataclass(frozen=True, slots=True)
class KernelUse:
    """Counts since the job's start. `mismatched`: the certificates (16 digits of each) that were found wrong."""

    step: int
    applied: int
    calls: int
    fallbacks: int
    shadow_checks: int
    shadow_mismatches: int
    demoted: int
    mismatched: tuple[str, ...] = ()


_COUNTS = tuple(field.name for field in fields(KernelUse) if field.name != "mismatched")


def read_use(text: str) -> KernelUse | None:
    """The counts of such a line; None where it is none, or lacks one. Never raises."""
    _, mark, rest = text.partition(MARK)
    if not mark:
        return None
    found = {name: int(value) for name, value in _FIGURE.findall(rest)}
    if not found.keys() >= set(_COUNTS):
        return None
    wrong = _WRONG.search(rest)
    named = tuple(part for part in wrong[1].split(",") if len(part) == 16) if wrong else ()
    return KernelUse(**{name: found[name] for name in _COUNTS}, mismatched=named)
