"""Load what was saved when our packages were named `agent`, `collectors`, `controllers`, `detectors`, `kernels`.

A pickle stores the name of a class's module. Inside `former_names()` the former names, which `former_names.csv`
lists where more than the prefix changed, lead to the modules of today. A name without one is of a module that was
removed.
Nothing changes outside it: `kernels` is also the name of a package of Hugging Face's, which transformers looks for.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

PACKAGES = ("agent", "collectors", "controllers", "detectors", "kernels")


@functools.cache
def moved() -> Mapping[str, str]:
    """Former module name: today's, both without `nightshift.`. Only modules that still are one."""
    return {former: today for former, today in _rows() if today}


@functools.cache
def removed() -> frozenset[str]:
    """Former names, without `nightshift.`, of modules that nothing of today stands for."""
    return frozenset(former for former, today in _rows() if not today)


def _rows() -> Iterator[tuple[str, str]]:
    text = (resources.files("nightshift") / "former_names.csv").read_text(encoding="utf-8")
    yield from ((row["former"], row["today"]) for row in csv.DictReader(text.splitlines()))


def _is_former(name: str) -> bool:
    return name.partition(".")[0] in PACKAGES


class _Former(MetaPathFinder, Loader):
    def __init__(self) -> None:
        self._specs: dict[str, ModuleSpec | None] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if _is_former(fullname) else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        if spec.name in removed():
            raise ModuleNotFoundError(f"{spec.name} was removed; CHANGELOG.md has the reason", name=spec.name)
        module = importlib.import_module(f"nightshift.{moved().get(spec.name, spec.name)}")
        if not hasattr(module, "__path__") and any(name.startswith(f"{spec.name}.") for name in moved()):
            # a former package that is one module today: without a path, importlib would not look below it
            package = ModuleType(spec.name)
            package.__dict__.update(vars(module), __name__=spec.name, __path__=[])
            module = package
        self._specs[spec.name] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # the import system has just written its own spec over the module's: it is one module under two names
        assert module.__spec__ is not None
        module.__spec__ = self._specs.pop(module.__spec__.name)


@contextlib.contextmanager
def former_names() -> Iterator[None]:
    """Resolve the former module names inside the block; afterwards they are as they were before.

    Not for several threads at once: `sys.modules` belongs to the process.

    >>> import pickle
    >>> with former_names():
    ...     pickle.loads(b"ccollectors.subject\\nSubjectKind\\n.").__module__
    'nightshift.collectors.subject'
    """
    theirs = {name: sys.modules.pop(name) for name in list(sys.modules) if _is_former(name)}
    finder = _Former()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if _is_former(name)]:
            del sys.modules[name]
        sys.modules.update(theirs)
