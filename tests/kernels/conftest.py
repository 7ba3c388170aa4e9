"""One warm judge per kind for all tests (a zygote takes seconds to start), and draws that follow from a test's
name: what a test says of a judge must not depend on a secret that nobody can draw again."""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from nightshift.kernels.judge.host.launcher import Zygote
from nightshift.kernels.judge.host.process import Limits
from nightshift.kernels.judge.judge import Judge
from tests.kernels.apply.torch_kernels import Job, of_a_file

LIMITS = Limits(import_s=300.0, call_s=300.0, memory_bytes=2 << 30, scratch_bytes=64 << 20, output_bytes=1 << 20)
"""Times that only what hangs reaches: at 30 s a call, a busy machine had a good kernel refused."""


# Memory that a tensor leaves stays the process's: else each next one is paged in anew, a fifth of a verdict's time.
# glibc's M_TRIM_THRESHOLD and M_MMAP_THRESHOLD (mallopt(3)), in bytes.
if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
    mallopt(-1, 256 << 20)
    mallopt(-3, 32 << 20)


def by_test(count: int) -> bytes:
    """The same bytes in each run of the running test; for a fixture that several tests share, always the same."""
    name, _, phase = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")
    return hashlib.sha256(b"" if phase == "(setup)" else name.encode()).digest()[:count]


@pytest.fixture(scope="session", autouse=True)
def fixed_draws() -> Iterator[None]:
    """For every judge that a test makes and every verdict that it asks for without a secret."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nightshift.kernels.judge.judge.fresh", by_test)
        yield


@pytest.fixture(scope="session", autouse=True)
def warm_zygotes() -> Iterator[Callable[..., Zygote]]:
    """One zygote of each kind for all judges of a session: to warm one takes four seconds of a processor, and none
    of them keeps anything of a host that it started. It ends with the session, not with the judge that asked."""
    made: dict[tuple[Any, ...], Zygote] = {}

    def warm(device: str, *how: Any) -> Zygote:
        kind = (device, *how, *(False, False, None)[len(how) :])
        if kind not in made or made[kind]._process.poll() is not None:
            made[kind] = Shared(*kind)
        return made[kind]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nightshift.kernels.judge.judge.Zygote", warm)
        yield warm
    for zygote in made.values():
        Zygote.close(zygote)


class Shared(Zygote):
    """A zygote that outlives its judges."""

    def close(self) -> None:
        """The session ends it."""


@pytest.fixture(scope="session")
def zygote(warm_zygotes: Callable[..., Zygote]) -> Zygote:
    return warm_zygotes("cpu")


@pytest.fixture(scope="session")
def cpu_judge() -> Iterator[Judge]:
    with Judge("cpu", limits=LIMITS) as made:
        yield made


@pytest.fixture(scope="session")
def interpreting_judge() -> Iterator[Judge]:
    with Judge("cpu", interpret=True, limits=LIMITS) as made:
        yield made


_NUMBERS = itertools.count()
"""No name twice in a process: compilers remember what they saw under one."""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    """A file with these kernels, that takes the CPU for a GPU."""
    made: list[Any] = []

    def build(*records: dict[str, Any]) -> Any:
        module = of_a_file(tmp_path, f"nightshift_kernels_{next(_NUMBERS)}")
        made.append(module)
        monkeypatch.setattr(module, "ON_CPU", True)
        module.KERNELS.extend(records)
        return module

    yield build
    for module in reversed(made):
        module.unapply(nn.Identity())
        if module.STATE.folder is not None:
            module.STATE.folder.cleanup()
        del sys.modules[module.__name__]
