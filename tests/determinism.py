"""The same draws in every run: a test that fails by luck stops everybody's work and says nothing about theirs.

Drawn examples come from the test's own source; `random`, NumPy and PyTorch begin each module and each test at the
same state; hashes are those of one seed in xdist's workers and in every process that a test starts.
`pytest --hypothesis-profile=explore` draws new examples.
"""

from __future__ import annotations

import os
import random
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("PYTHONHASHSEED", "0")  # for those that this process starts: its own is drawn already

settings.register_profile(
    "same",
    derandomize=True,
    database=None,  # a failure kept on disk would make the next run another one
    deadline=None,  # how long an example takes is the machine's affair
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.register_profile("explore", settings.get_profile("same"), derandomize=False)
settings.load_profile("same")

# Hypothesis also draws the constants of whatever modules of ours are loaded: other examples after each commit, and
# for each order of tests in which modules are imported.
pytest.MonkeyPatch().setattr("hypothesis.internal.conjecture.providers.is_local_module_file", lambda _: False)


def _begin_anew() -> None:
    random.seed(0)
    np.random.seed(0)  # what others' code draws from
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.manual_seed(0)  # tests run on the CPU


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Values that a module draws while it is imported are the same whichever files are collected before."""
    if isinstance(collector, pytest.Module):
        _begin_anew()


@pytest.fixture(autouse=True)
def _seeded() -> None:
    _begin_anew()
