"""What `nightshift policy train | evaluate` asks of a kind of policy: power and scheduling each have one such part.

The part lives in its own package and is named in `KINDS`; nothing of it is imported before it is asked for, since
training needs the extra `rl` (gymnasium, stable-baselines3, torch) and the daemon does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from collectors.base import Permanent
from controllers.policy_file import Interface, PolicyFile

KINDS: Mapping[str, str] = {"power": "controllers.power.learn", "scheduling": "controllers.scheduling.learn"}
"""Kind → module that holds `LEARNABLE`."""


class Learnable(Protocol):
    """Trains and evaluates policies of one kind."""

    @property
    def interface(self) -> Interface: ...

    def train(self, seed: int, steps: int | None, say: Any) -> PolicyFile:
        """From scratch, the same result for the same seed; `steps` of the environment, None for the full number.
        `say(text)` tells how far it is."""
        ...

    def evaluate(self, policy: PolicyFile | None, data: Sequence[Path], seeds: Sequence[int]) -> Mapping[str, Any]:
        """The kind's table: every baseline and heuristic in the same run, with the policy where one is given.

        `data`: files of measurements in the kind's format (Permanent names the file and line that is wrong).
        """
        ...


def learnable(kind: str) -> Learnable:
    """Raises Permanent for an unknown kind, or where the extra `rl` is not installed."""
    if kind not in KINDS:
        raise Permanent(f"no policies of kind {kind!r}; there are {', '.join(KINDS)}")
    try:
        found: Learnable = import_module(KINDS[kind]).LEARNABLE
    except ImportError as error:
        raise Permanent(f"{error.name} is not installed: pip install 'nightshift[rl]'") from error
    return found
