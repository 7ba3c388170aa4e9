"""Python's collector walks what tests make, not the million objects of modules and collected tests.

Measured: collecting the tests spent 10 of 32 s in it, and each full round after that took 0.75 s.
"""

from __future__ import annotations

import gc

import pytest

_USUAL = gc.get_threshold()
gc.set_threshold(50_000, *_USUAL[1:])  # what imports make is hardly ever garbage


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """From here on, all of it counts as permanent; a test that leaks is measured as before."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_USUAL)
