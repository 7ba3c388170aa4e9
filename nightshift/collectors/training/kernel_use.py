"""What a job says of the certified kernels that it uses: the line that `kernels.apply` logs at step boundaries.

    nightshift kernels: step=1200 applied=3 calls=46800 fallbacks=0 shadow_checks=46 shadow_mismatches=0 demoted=0

and behind it `step_us=… gain_us=… gain_low_us=…` once the job's canary kept kernels, `rank=3` and
`mismatched=CERTIFICATE,…` where there is such, then the machine (`gpu=… driver=… torch=…
triton=…`, percent-encoded) and the file's certificates: `used=…`, `unused=…`. Files of older versions say none of
these.
"""

from __future__ import annotations

import re
from dataclasses import MISSING, dataclass, fields
from typing import Any
from urllib.parse import unquote

MARK = "nightshift kernels:"
_FIGURE = re.compile(r"\b([a-z_]+)=(\d{1,15})\b")
_LIST = re.compile(r"\b(mismatched|used|unused)=([0-9a-f,]{16,2048})")
_MACHINE = re.compile(r"\b(gpu|driver|torch|triton)=(\S{1,200})")


@dataclass(frozen=True, slots=True)
class KernelUse:
    """Counts since the job's start. `mismatched`: the certificates (16 digits of each) that were found wrong;
    `used` and `unused`: those that the job's file holds. What the line does not say of the machine is "".
    `step_us`: a step with the kernels in use, by the canary; `gain_us`, `gain_low_us`: how much longer torch alone
    takes, and the lower end of that (µs; 0: not measured)."""

    step: int
    applied: int
    calls: int
    fallbacks: int
    shadow_checks: int
    shadow_mismatches: int
    demoted: int
    mismatched: tuple[str, ...] = ()
    used: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    gpu: str = ""
    driver: str = ""
    torch: str = ""
    triton: str = ""
    step_us: int = 0
    gain_us: int = 0
    gain_low_us: int = 0


_GAINS = ("step_us", "gain_us", "gain_low_us")
_COUNTS = tuple(field.name for field in fields(KernelUse) if field.default is MISSING)


def read_use(text: str) -> KernelUse | None:
    """The counts of such a line; None where it is none, or lacks one. Never raises."""
    _, mark, rest = text.partition(MARK)
    if not mark:
        return None
    found = {name: int(value) for name, value in _FIGURE.findall(rest)}
    if not found.keys() >= set(_COUNTS):
        return None
    said: dict[str, Any] = {name: unquote(text) for name, text in _MACHINE.findall(rest)}
    said = {name: text for name, text in said.items() if text.isprintable()}
    said |= {name: tuple(x for x in text.split(",") if len(x) == 16) for name, text in _LIST.findall(rest)}
    said |= {name: found[name] for name in (*_COUNTS, *_GAINS) if name in found}
    return KernelUse(**said)
