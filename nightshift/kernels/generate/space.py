"""A structured space of configurations: named dimensions with a few values each, and what may not be combined."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from nightshift.kernels.generate.base import Config, GeneratorError, Value


def _anything(config: Config) -> bool:
    return True


@dataclass(frozen=True)
class Dimension:
    """One choice. ordered: neighbouring values behave alike (tile sizes, warps), else each is its own kind."""

    name: str
    values: tuple[Value, ...]
    ordered: bool = True


@dataclass(frozen=True)
class Space:
    """All admitted combinations, in a fixed order."""

    dimensions: tuple[Dimension, ...]
    admits: Callable[[Config], bool] = _anything

    @classmethod
    def of(cls, admits: Callable[[Config], bool] = _anything, **values: tuple[Value, ...]) -> Space:
        """Numbers are ordered dimensions, words are not."""
        made = [Dimension(n, v, all(isinstance(x, int) for x in v)) for n, v in values.items()]
        return cls(tuple(made), admits)

    @cached_property
    def configs(self) -> tuple[dict[str, Value], ...]:
        names = [d.name for d in self.dimensions]
        points = (dict(zip(names, p, strict=True)) for p in itertools.product(*(d.values for d in self.dimensions)))
        found = tuple(point for point in points if self.admits(point))
        if not found:
            raise GeneratorError(f"space: no admitted combination of {', '.join(names)}")
        return found

    def __len__(self) -> int:
        return len(self.configs)

    def __iter__(self) -> Iterator[dict[str, Value]]:
        return iter(self.configs)

    def key(self, config: Config) -> tuple[Value, ...]:
        """Hashable identity. Raises GeneratorError on a value outside the space."""
        made = []
        for d in self.dimensions:
            if config.get(d.name) not in d.values:
                raise GeneratorError(f"space: {d.name} = {config.get(d.name)!r} is none of {d.values}")
            made.append(config[d.name])
        return tuple(made)

    def holds(self, config: Config) -> bool:
        named = set(config) == {d.name for d in self.dimensions}
        return named and all(config[d.name] in d.values for d in self.dimensions) and self.admits(config)

    @cached_property
    def points(self) -> NDArray[np.float64]:
        """(configs, features) in [0, 1]: an ordered dimension is one column (its rank), another one per value."""
        return self.encode(self.configs)

    def encode(self, configs: tuple[dict[str, Value], ...]) -> NDArray[np.float64]:
        columns: list[list[float]] = []
        for d in self.dimensions:
            if d.ordered:
                top = max(1, len(d.values) - 1)
                columns.append([d.values.index(c[d.name]) / top for c in configs])
            else:
                columns += [[math.sqrt(0.5) * (c[d.name] == v) for c in configs] for v in d.values]
        return np.array(columns, dtype=np.float64).T

    @cached_property
    def groups(self) -> NDArray[np.int64]:
        """Which dimension each feature column belongs to."""
        numbers = [[i] * (1 if d.ordered else len(d.values)) for i, d in enumerate(self.dimensions)]
        return np.array([n for group in numbers for n in group], dtype=np.int64)


def differences(a: Mapping[str, Value], b: Mapping[str, Value]) -> str:
    """In words, what b changes of a."""
    return ", ".join(f"{k} {a[k]} → {b[k]}" for k in b if k in a and a[k] != b[k]) or "nothing"
