"""What the gate answers; on its own, since the command line knows it without the gate and its store."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GateAnswer:
    """What became of a click, as a sentence for the clicker. `changed` is False where the click did nothing."""

    ok: bool
    message: str
    changed: bool = False
