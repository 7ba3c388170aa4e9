"""A device that is lost in the middle of a verdict is nobody's failure and nobody's success."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

from nightshift.kernels.judge.judge import Judge, Request
from nightshift.kernels.judge.probes.inputs import INTERPRETER
from nightshift.kernels.judge.verdict import Reason, Status
from nightshift.kernels.loop.executor import Job, LocalExecutor
from nightshift.kernels.ops.problems import named
from tests.kernels.conftest import LIMITS
from tests.kernels.test_judge import TINY, library

SOFTMAX = named("softmax")
RIGHT = library("return torch.softmax(x, -1)")
WRONG = library("return torch.softmax(x, -1) * 2")
pytestmark = pytest.mark.full
REQUEST = Request(TINY, None, static=False)


class Machine:
    """Answers like NVML: a fault is told once, when it has come."""

    def __init__(self) -> None:
        self.told: list[str | Exception] = []

    def __call__(self) -> str | None:
        fault = self.told.pop(0) if self.told else None
        if isinstance(fault, Exception):
            raise fault
        return fault


@pytest.fixture(scope="module")
def machine() -> Machine:
    return Machine()


@pytest.fixture(scope="module")
def judge(machine: Machine) -> Iterator[Judge]:
    with Judge("cpu", limits=LIMITS, machine_fault=machine) as made:
        yield made


@pytest.mark.parametrize("candidate", [RIGHT, WRONG], ids=["right", "wrong"])
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("Xid 79: GPU has fallen off the bus", Reason.xid),
        ("NVML: GPU is lost", Reason.device_lost),
        (OSError("libnvidia-ml: cannot be asked"), Reason.device_lost),
    ],
    ids=["xid", "lost", "silent"],
)
def test_a_fault_during_a_verdict_neither_accepts_nor_blames(
    judge: Judge, machine: Machine, candidate: object, fault: str | Exception, reason: Reason
) -> None:
    """A candidate that was found right before the device went may have been right by accident."""
    machine.told.append(fault)
    verdict = judge.verdict(candidate, SOFTMAX, REQUEST)  # type: ignore[arg-type]
    assert (verdict.status, verdict.reason, verdict.stage) == (Status.machine_fault, reason, "machine")
    assert not verdict.refused
    again = judge.verdict(candidate, SOFTMAX, REQUEST)  # type: ignore[arg-type]
    assert again.status is (Status.correct if candidate is RIGHT else Status.wrong)


def _lost_after(calls: int, error: Callable[[str], Exception]) -> Callable[[torch.Tensor], torch.Tensor]:
    """An eager softmax whose device is gone after so many calls, for good."""
    seen = []

    def reference(x: torch.Tensor) -> torch.Tensor:
        seen.append(1)
        if len(seen) > calls:
            raise error("CUDA error: GPU is lost")
        return torch.softmax(x, -1)

    return reference


@pytest.mark.parametrize("calls", [0, 1, 9, 40])
@pytest.mark.parametrize("error", [torch.AcceleratorError, RuntimeError], ids=["accelerator", "runtime"])
def test_a_device_lost_under_the_judges_own_hands_is_a_machine_fault_at_any_stage(
    judge: Judge, calls: int, error: Callable[[str], Exception]
) -> None:
    problem = replace(
        SOFTMAX, name="softmax lost", reference=_lost_after(calls, error), oracle=torch.nn.Softmax(-1)
    )
    verdict = judge.verdict(RIGHT, problem, REQUEST)
    assert verdict.status is Status.machine_fault, verdict.detail
    assert "GPU is lost" in verdict.detail


def test_every_verdict_under_way_hears_of_a_fault_that_is_told_once(judge: Judge, machine: Machine) -> None:
    """NVML hands an Xid out once; the verdicts of the other threads were made on the same broken GPU."""
    begun, mine = threading.Barrier(2), threading.local()

    def reference(x: torch.Tensor) -> torch.Tensor:
        if not getattr(mine, "begun", False):
            mine.begun = True
            begun.wait(60)
        return torch.softmax(x, -1)

    problem = replace(SOFTMAX, name="softmax pair", reference=reference)
    machine.told.append("Xid 48: double-bit ECC error")
    with ThreadPoolExecutor(2) as pool:
        verdicts = list(pool.map(lambda c: judge.verdict(c, problem, REQUEST), (RIGHT, RIGHT)))
    assert [v.status for v in verdicts] == [Status.machine_fault] * 2


def test_a_job_that_met_a_machine_fault_is_judged_on_another_gpu(judge: Judge, machine: Machine) -> None:
    machine.told.append("Xid 79: GPU has fallen off the bus")
    with Judge("cpu", limits=LIMITS) as other:
        jobs = [Job("0", RIGHT, SOFTMAX, replace(REQUEST, scope=replace(INTERPRETER, sweep_random=1)))]
        ((_, verdict),) = LocalExecutor([judge, other], 1).run(jobs)
    assert verdict.status is Status.correct
