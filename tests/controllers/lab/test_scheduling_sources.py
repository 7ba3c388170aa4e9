"""What a figure or a trained policy follows from is in its hash, all of it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from benchmarks import scheduling, scheduling_order
from nightshift.controllers.lab.learnable import CONTROLLERS
from nightshift.controllers.lab.scheduling import learn

PREFIX = "nightshift.controllers."


def imported(file: Path) -> set[str]:
    """Files of both rooms of scheduling that a module imports at its head or anywhere else."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith(PREFIX):
            module = node.module.removeprefix(PREFIX).replace(".", "/")
            names = [f"{module}.py", *(f"{module}/{name.name}.py" for name in node.names)]
            found |= {name for name in names if "scheduling/" in name and (CONTROLLERS / name).is_file()}
    return found


@pytest.mark.parametrize(
    ("first", "listed"),
    [
        (imported(Path(scheduling.__file__)), scheduling.SOURCES),
        (imported(Path(scheduling.__file__)) | imported(Path(scheduling_order.__file__)), scheduling_order.SOURCES),
        ({"lab/scheduling/learn.py"}, learn.SOURCES),
    ],
    ids=["the benchmark", "other orders", "training"],
)
def test_the_hash_is_of_every_module_that_is_run(first: set[str], listed: tuple[str, ...]) -> None:
    met, new = set[str](), first
    while new:
        met |= new
        new = set().union(*(imported(CONTROLLERS / name) for name in new)) - met
    assert met == set(listed)
