"""Which signals of memory errors a model of GPU has at all, by the name that its driver gives.

What a GPU cannot tell is no blind spot that a line in a counters file would mend: a V100 retires pages and remaps
no rows, an A100 the reverse. Source: NVIDIA, GPU Memory Error Management (table of supported GPUs, row remapping)
and Dynamic Page Retirement; NVML API reference (`nvmlDeviceGetRemappedRows`: Ampere or newer, not while MIG
instances are active). No model tells the row or the bank of an error by a counter: only lines of the kernel log do,
where they do (`detectors.ecc.clusters`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nightshift.detectors.ecc.counters import (
    BANKS_LOW,
    BANKS_NONE,
    CORRECTED,
    FAILURE,
    PENDING,
    REMAPPED,
    REMAPPED_UNCORRECTED,
    RETIRED,
    RETIRED_PENDING,
    RETIRED_UNCORRECTED,
    SIGNALS,
    UNCORRECTED,
)

COUNTS = (CORRECTED, UNCORRECTED)
REMAPPING = (REMAPPED, REMAPPED_UNCORRECTED, FAILURE, PENDING, BANKS_NONE, BANKS_LOW)
RETIREMENT = (RETIRED, RETIRED_UNCORRECTED, RETIRED_PENDING)


@dataclass(frozen=True, slots=True)
class GpuFamily:
    """GPUs of one design. contains: an error ends only its own program (Xid 94, or 95 where that failed)."""

    name: str
    models: str
    """A regular expression over the names of its models."""
    examples: str
    signals: tuple[str, ...]
    contains: bool


FAMILIES = (
    GpuFamily(
        "Volta, Turing and before",
        r"\b(V100|T4|P100|P40|P4|K80|M40|M60|Quadro RTX)\b",
        "V100, T4, P100",
        (*COUNTS, *RETIREMENT),
        False,
    ),
    GpuFamily("Ampere GA100", r"\b(A100|A100X|A800|A30|A30X)\b", "A100, A30", (*COUNTS, *REMAPPING), True),
    GpuFamily(
        "Ampere GA10x",
        r"\b(A10|A10G|A10M|A16|A2|A40|RTX A\d{4})\b",
        "A10, A16, A40, RTX A6000",
        (*COUNTS, *REMAPPING),
        False,
    ),
    GpuFamily(
        "Ada AD10x", r"\b(L4|L20|L40|L40S|L40G|RTX \d{4} Ada)\b", "L4, L40, L40S", (*COUNTS, *REMAPPING), False
    ),
    GpuFamily("Hopper GH100", r"\b(H100|H200|H800|H20|GH200)\b", "H100, H200, GH200", (*COUNTS, *REMAPPING), True),
    GpuFamily("Blackwell GB10x", r"\b(B100|B200|B300|GB200|GB300)\b", "B200, GB200", (*COUNTS, *REMAPPING), True),
)


def family_of(model: str) -> GpuFamily | None:
    """The design of a model, as `nvidia-smi` and DCGM name it ("NVIDIA A100-SXM4-80GB"); None where not known."""
    spaced = model.replace("-", " ")
    return next((family for family in FAMILIES if re.search(family.models, spaced)), None)


def cannot_have(models: Iterable[str]) -> frozenset[str]:
    """Signals that none of these models has; nothing where one of them is not known, or there is none."""
    known = [family_of(model) for model in models]
    if not known or None in known:
        return frozenset()
    return frozenset(SIGNALS).difference(*(family.signals for family in known if family is not None))


def told_of(model: str, series: Mapping[str, int]) -> str:
    """One sentence on a model: what of its signals is read here, what is not, and what it does not have."""
    family = family_of(model)
    if family is None:
        seen = ", ".join(name for name in SIGNALS if series.get(name, 0) > 0)
        return f"{model}: unknown which signals it has; read: {seen or 'none'}"
    read = [name for name in family.signals if series.get(name, 0) > 0]
    missing = [name for name in family.signals if series.get(name) == 0]
    lacks = "row remapping" if RETIRED in family.signals else "page retirement"
    contained = "" if family.contains else " and no error containment (Xid 94 and 95)"
    return (
        f"{model} ({family.name}): {len(read)} of {len(family.signals)} signals are read"
        f"{'; not read: ' + ', '.join(missing) if missing else ''}. It has no {lacks}"
        f"{contained}; rows and banks are in log lines only"
    )


def page() -> str:
    """The table of the reference, in Markdown."""

    def has(family: GpuFamily, signals: tuple[str, ...]) -> str:
        return "yes" if set(signals) <= set(family.signals) else "no"

    head = (
        "| design | for example | corrected and uncorrected errors | remapped rows, pending, failed, spare rows | "
        "retired pages, pending | Xid 94, 95 | row and bank |"
    )
    lines = [
        head,
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {f.name} | {f.examples} | {has(f, COUNTS)} | {has(f, REMAPPING)} | {has(f, RETIREMENT)} | "
        f"{'yes' if f.contains else 'no'} | where a log line tells them |"
        for f in FAMILIES
    ]
    return "\n".join(lines)
