"""What a figure or a trained policy follows from is in its hash, all of it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from benchmarks import scheduling
from nightshift.controllers.scheduling import learn, policies

PACKAGE = Path(policies.__file__).parent


def imported(file: Path) -> set[str]:
    """Files of the package that a module imports at its head or anywhere else."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            if node.module == "nightshift.controllers.scheduling":
                found |= {f"{name.name}.py" for name in node.names}
            elif node.module.startswith("nightshift.controllers.scheduling."):
                found.add(node.module.rpartition(".")[2] + ".py")
    return found


@pytest.mark.parametrize(
    ("first", "listed"),
    [(imported(Path(scheduling.__file__)), scheduling.SOURCES), ({"environment.py"}, learn.SOURCES)],
    ids=["the benchmark", "training"],
)
def test_the_hash_is_of_every_module_that_is_run(first: set[str], listed: tuple[str, ...]) -> None:
    met, new = set[str](), first
    while new:
        met |= new
        new = set().union(*(imported(PACKAGE / name) for name in new)) - met
    assert met == set(listed)
