"""What a kernel takes of a multiprocessor, as its GPU binary (ELF) says: registers, stack, shared memory.

The bytes are a candidate's, so they are read here, in a language that cannot be made to write elsewhere, and what
cannot be read is no usage. NVIDIA documents the tool that prints these numbers (`cuobjdump -res-usage`), not the
section they lie in; a test holds this reader to that tool.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_REGISTERS, _STACK = 0x2F, 0x11  # of a record in .nv.info: format, attribute, 16 bits of size, then the payload
_LONGEST, _MOST = 4096, 1 << 16
"""Bytes of a name and of all records that are read."""


@dataclass(frozen=True)
class KernelUsage:
    """registers: of a thread. stack_bytes: of a thread, in local memory: spilled registers and arrays.
    shared_bytes: of a block, static; what a launch adds is the launch's to say."""

    registers: int
    stack_bytes: int
    shared_bytes: int


def usage_of(cubin: bytes) -> dict[str, KernelUsage]:
    """By kernel name; empty where the bytes are no such binary."""
    try:
        return _usage_of(cubin)
    except (struct.error, ArithmeticError, ValueError, LookupError):
        return {}


def _usage_of(cubin: bytes) -> dict[str, KernelUsage]:
    if cubin[:5] != b"\x7fELF\x02":
        return {}
    (start,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    rows = [_SECTION.unpack_from(cubin, start + n * size) for n in range(count)]
    parts = {_word(cubin, rows[names][4] + row[0]): row for row in rows}
    symbols, texts, told = parts[".symtab"], parts[".strtab"], parts[".nv.info"]
    found: dict[str, dict[int, int]] = {}
    for attribute, number, value in _records(cubin[told[4] : told[4] + min(told[5], _MOST)]):
        name, *_ = _SYMBOL.unpack_from(cubin, symbols[4] + number * _SYMBOL.size)
        found.setdefault(_word(cubin, texts[4] + name), {})[attribute] = value
    shared = {name: row[5] for name, row in parts.items()}
    return {
        name: KernelUsage(of[_REGISTERS], of.get(_STACK, 0), shared.get(f".nv.shared.{name}", 0))
        for name, of in found.items()
        if _REGISTERS in of
    }


def _records(told: bytes) -> list[tuple[int, int, int]]:
    """(attribute, number of a symbol, value) of each record that holds two words."""
    place, found = 0, []
    while place + 4 <= len(told):
        form, attribute, size = struct.unpack_from("<BBH", told, place)
        size = size if form == 4 else 0  # other forms keep their value in place of the size
        if size == 8:
            found.append((attribute, *struct.unpack_from("<II", told, place + 4)))
        place += 4 + size
    return found


def _word(cubin: bytes, place: int) -> str:
    return cubin[place : cubin.index(b"\0", place, place + _LONGEST)].decode("ascii", "replace")
