"""What a search that runs elsewhere prints for whoever follows it: ledger lines, certificates and its end.

Each is one line of JSON behind a word that nothing else prints, on standard output, so that a pod's log is all that
has to be read: it needs no way out, no account and no shared folder. What is printed proves nothing by itself. A
certificate counts by its signature alone; ledger lines are kept as what the pod said.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

WORD = "nightshift-search "
_LONGEST = 1 << 20


def trial(search: str, line: Mapping[str, Any]) -> str:
    """One line of a search's ledger; `line`: as the ledger writes it."""
    return _line({"trial": line, "search": search})


def certificate(search: str, envelope: Mapping[str, Any]) -> str:
    return _line({"certificate": envelope, "search": search})


def end(reason: str) -> str:
    """The last line: the searches are over."""
    return _line({"end": reason})


def _line(value: Mapping[str, Any]) -> str:
    return WORD + json.dumps(value, sort_keys=True, allow_nan=False)


@dataclass(frozen=True)
class StreamContent:
    """What a text held. trials: by search and number; the later of two wins. end: "" where it has not ended."""

    trials: Mapping[tuple[str, int], Mapping[str, Any]]
    certificates: tuple[Mapping[str, Any], ...]
    end: str


def hear(text: str) -> StreamContent:
    """Reads what was printed. Lines of others, and those that were cut off or are none of ours, are passed over."""
    trials: dict[tuple[str, int], Mapping[str, Any]] = {}
    certificates: list[Mapping[str, Any]] = []
    ended = ""
    for line in text.split("\n"):
        # a pod's log is whatever the pod prints
        if not line.startswith(WORD) or len(line) > _LONGEST:
            continue
        try:
            value = json.loads(line.removeprefix(WORD))
        except (ValueError, RecursionError):
            continue
        if not isinstance(value, dict):
            continue
        found, search = value.get("trial"), value.get("search")
        if isinstance(found, dict) and isinstance(search, str) and type(found.get("trial")) is int:
            trials[search[:100], found["trial"]] = found
        elif isinstance(value.get("certificate"), dict):
            certificates.append(value["certificate"])
        elif isinstance(value.get("end"), str):
            ended = value["end"][:500]
    return StreamContent(trials, tuple(certificates), ended)
