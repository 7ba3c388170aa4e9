"""A job's step on a clock of its own, in which each kernel gains or loses what a test says."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from nightshift.kernels.apply.bundle import bundle
from tests.kernels.apply.applied import load

NAMES = ("rmsnorm", "rmsnorm_backward", "cross_entropy", "gelu")


@dataclass
class World:
    """A step that takes 1 s, less what each kernel gains, and "passes"; noise: of each reading, drift: of each
    second."""

    state: Any
    gains: dict[str, float]
    noise: float = 0.0
    drift: float = 0.0
    seed: int = 0
    breaks: str = ""
    idle: tuple[str, ...] = ()
    now: float = 0.0
    _key: Any = None
    _level: float = 1.0
    held: list[tuple[str, ...]] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    report: Any = None

    def __post_init__(self) -> None:
        self._dice = random.Random(self.seed)

    def step(self) -> None:
        used = tuple(self.state.kernels)
        if self.state.passing and "passes" in self.gains:
            self.state.rewritten["a pass"] = 1
            used = (*used, "passes")
        if self.breaks in used:
            raise RuntimeError("does not compile")
        for name, kernel in self.state.kernels.items():
            kernel.calls += name not in self.idle
        if used != self._key:  # one reading: what a recompilation and the machine's mood bring
            self._key, self._level = used, math.exp(self._dice.gauss(0.0, self.noise))
            self.held.append(used)
        gain = sum(self.gains.get(name, 0.0) for name in used)
        self.now += (1.0 - gain) * self._level * (1.0 + self.drift * self.now)

    def clock(self) -> float:
        return self.now


def worlds(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Any, World]]:
    """Makes (a job's file, its world) of kernels' names and a World's figures."""
    path = folder / "nightshift_kernels.py"
    path.write_text(bundle([]))
    runtime = load(str(path))

    def build(names: tuple[str, ...] = NAMES, **given: Any) -> tuple[Any, World]:
        state = runtime.JobState(log=lambda _: None)
        for name in names:
            state.kernels[name] = runtime.Kernel({"problem": name, "certificate": name}, print)
        monkeypatch.setattr(runtime, "STATE", state)
        return runtime, World(state, **given)

    return build
