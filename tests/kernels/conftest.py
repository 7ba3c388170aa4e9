"""One warm judge per kind for all tests: a zygote takes seconds to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kernels.judge.judge import Judge
from kernels.judge.process import Limits, Zygote

LIMITS = Limits(import_s=20.0, call_s=30.0, memory_bytes=2 << 30, scratch_bytes=64 << 20, output_bytes=1 << 20)


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    with Zygote("cpu") as made:
        yield made


@pytest.fixture(scope="session")
def cpu_judge() -> Iterator[Judge]:
    with Judge("cpu", limits=LIMITS) as made:
        yield made


@pytest.fixture(scope="session")
def interpreting_judge() -> Iterator[Judge]:
    with Judge("cpu", interpret=True, limits=LIMITS) as made:
        yield made
