"""Host lists as Slurm writes them (`gpu[01-03,7]-ib[0-1],login1`), expanded to names.

Source: slurm.schedmd.com/scontrol.html ("show hostnames"), src/common/hostlist.c: numbers keep their width.
"""

from __future__ import annotations

import itertools
import re

MAX_HOSTS = 200_000
"""More than any cluster has: a list that names more is a mistake, and would fill the memory."""
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def expand(text: str, limit: int = MAX_HOSTS) -> tuple[str, ...]:
    """The names of a host list, in its order. Raises ValueError where it is none, or names more than `limit`.

    >>> expand("gpu[08-10],login1")
    ('gpu08', 'gpu09', 'gpu10', 'login1')
    >>> expand("r[1-2]n[1-2]")
    ('r1n1', 'r1n2', 'r2n1', 'r2n2')
    >>> expand("gpu[3-1]")
    Traceback (most recent call last):
        ...
    ValueError: host list 'gpu[3-1]': 3-1 is no range
    """
    found: list[str] = []
    for part in _parts(text):
        pieces = re.split(r"\[([^\[\]]*)\]", part)
        choices = [_numbers(piece, text, limit) if odd % 2 else [piece] for odd, piece in enumerate(pieces)]
        if any(re.search(r"[\[\]\s]", piece) for piece in pieces[::2]):
            raise ValueError(f"host list {text[:80]!r}: brackets do not match")
        for names in itertools.product(*choices):
            found.append("".join(names))
            if len(found) > limit:
                raise ValueError(f"host list {text[:80]!r}: more than {limit} hosts")
    return tuple(found)


def _parts(text: str) -> list[str]:
    """Split at the commas that stand outside brackets."""
    return [part for part in re.split(r",(?![^\[\]]*\])", text.strip()) if part]


def _numbers(piece: str, text: str, limit: int) -> list[str]:
    found: list[str] = []
    for item in piece.split(","):
        match = _RANGE.fullmatch(item)
        first, last = (match[1], match[2] or match[1]) if match else ("", "")
        if match is None or int(last) < int(first):
            raise ValueError(f"host list {text[:80]!r}: {item} is no range")
        if int(last) - int(first) >= limit:
            raise ValueError(f"host list {text[:80]!r}: more than {limit} hosts")
        found += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return found
