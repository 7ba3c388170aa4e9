"""Operations: a folder for each, with its reference problems and the kernel families that write for it.

A module `*problem` is found by `ops.problems`, a module `*family` by `ops.families`. The judge knows problems only:
it imports neither a family nor `ops.families`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType


def modules(ending: str) -> Iterator[ModuleType]:
    """The operations' modules whose names end so, imported; by folder, then by name."""
    for folder in pkgutil.iter_modules(__path__, f"{__name__}."):
        if not folder.ispkg:
            continue
        inside = importlib.import_module(folder.name)
        for module in pkgutil.iter_modules(inside.__path__, f"{folder.name}."):
            if module.name.endswith(ending):
                yield importlib.import_module(module.name)
