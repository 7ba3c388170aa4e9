"""Examples in docstrings run, and give what they show."""

from __future__ import annotations

import doctest
from importlib import import_module
from pathlib import Path

import pytest

import nightshift
from nightshift.collectors.plugins import ALL as COLLECTORS
from nightshift.detectors.plugins import ALL as DETECTORS

ROOT = Path(nightshift.__file__).parent
NEEDS_A_SERVER = frozenset(
    {
        *("alertmanager", "kubernetes", "kubernetes_events", "node_agents", "node_log", "nvml", "prometheus"),
        *("redfish", "slurm", "training_metrics"),
    }
)
"""Collectors that only a server or a driver can answer: an example would be a stub of it."""


def modules() -> list[str]:
    """Modules with an example. Files are searched first: importing all of them to look would take a minute."""
    found = [path for path in sorted(ROOT.rglob("*.py")) if ">>>" in path.read_text()]
    return [".".join(("nightshift", *path.relative_to(ROOT).with_suffix("").parts)) for path in found]


@pytest.mark.parametrize("name", modules())
def test_the_examples_of_a_module_give_what_they_show(name: str) -> None:
    """A file with `>>>` of which doctest finds nothing has an example that nobody runs."""
    module = import_module(name.removesuffix(".__init__"))
    tests = [test for test in doctest.DocTestFinder(exclude_empty=True).find(module) if test.examples]
    said: list[str] = []
    runner = doctest.DocTestRunner()
    for test in tests:
        runner.run(test, out=said.append)
    assert runner.failures == 0, "".join(said)
    assert runner.tries > 0


@pytest.mark.parametrize(
    "kind",
    [*DETECTORS, *(kind for kind in COLLECTORS if kind.plugin not in NEEDS_A_SERVER)],
    ids=lambda kind: kind.plugin,
)
def test_a_plug_in_shows_what_goes_in_and_what_comes_out(kind: type) -> None:
    assert ">>>" in (kind.__doc__ or "")
