"""Workers that collect all tests each begin in another folder: what one has rewritten, the others read.

Else each of three rewrites every assertion of a fresh checkout itself. They hand in the same order all the same.
"""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent
BEGINS = ("agent", "collectors", "kernels")
"""A third of the tests' text lies between each of these and the next."""


def _entries() -> list[str]:
    folders = {path.relative_to(HERE).parts[0] for path in HERE.glob("*/**/test_*.py")}
    return sorted(folders | {path.name for path in HERE.glob("test_*.py")})


def pytest_configure(config: pytest.Config) -> None:
    worker = getattr(config, "workerinput", None)
    if worker is None or [Path(config.rootpath, arg).resolve() for arg in config.args] != [HERE]:
        return
    entries = _entries()
    first = entries.index(BEGINS[int(worker["workerid"].removeprefix("gw")) % len(BEGINS)])
    config.args[:] = [str(HERE / name) for name in (*entries[first:], *entries[:first])]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {name: number for number, name in enumerate(_entries())}
    items.sort(key=lambda item: order.get(item.path.relative_to(HERE).parts[0], -1))
