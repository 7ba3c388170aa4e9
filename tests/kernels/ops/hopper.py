"""Compiles what the families write for a Hopper, on a machine without one: faults as JSON lines.

`python -m tests.kernels.ops.hopper COUNT PROBLEM…`, in a process of its own: it takes Triton's driver away. Of each
family as many configurations, those known to be best first, each at the case it is tuned for and at the far end of
each axis of its own domain. Nothing is launched; what Triton would refuse at launch for want of shared memory is
looked for as well.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch

os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ.pop("TRITON_INTERPRET", None)

from benchmarks.kernels_compile import _NoDevice, like, load
from nightshift.kernels.candidate import Candidate
from nightshift.kernels.generate.base import Task
from nightshift.kernels.generate.best_measured import templates
from nightshift.kernels.generate.bulk import SHARED_BYTES
from nightshift.kernels.ops.problems import named
from nightshift.kernels.problem import Case, Problem

SMALL = 16
"""Rows, at the far end of another axis."""


def far(problem: Problem, case: Case, made: Candidate) -> Iterator[Case]:
    """The case, and each axis at its highest that the domain admits, the rows few."""
    yield case
    for axis in problem.axes:
        few = {"m": SMALL} if "m" in case.sizes and axis.name != "m" else {}
        for value in sorted({axis.high, *axis.edges}, reverse=True):
            other = case.with_(**{**few, axis.name: value})
            if made.domain.admits(other.sizes, other.dtype, other.layout):
                yield other
                break


def main(count: int, problems: list[str]) -> None:
    from triton.runtime.driver import driver
    from triton.runtime.jit import JITFunction

    driver.set_active(_NoDevice(90))
    run, shared = JITFunction.run, []

    def warm(self: Any, *args: Any, grid: Any = None, warmup: bool = False, **named_: Any) -> Any:
        made = run(self, *args, grid=grid, warmup=True, **named_)
        shared.append(made.metadata.shared)

    JITFunction.run = warm
    torch.cuda.get_device_properties = lambda device=None: SimpleNamespace(multi_processor_count=132)  # an H200's
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = folder
        for name in problems:
            problem = named(name)
            for case in problem.cases:
                for author in templates("NVIDIA H200", name, case, 0):
                    if author.name.endswith("_cuda"):
                        continue
                    seen = 0
                    for proposal in author.propose(Task(problem, case), [], count):
                        for other in far(problem, case, proposal.candidate):
                            shared.clear()
                            seen += 1
                            fault = ""
                            try:
                                load(proposal.candidate, folder)(*like(problem, other))
                            except Exception as error:  # noqa: BLE001  whatever it is, it is told
                                fault = f"{type(error).__name__}: {str(error)[:300]}"
                            if not fault and max(shared, default=0) > SHARED_BYTES:
                                fault = f"{max(shared)} bytes of shared memory"
                            if fault:
                                line = {"case": str(other), "config": dict(proposal.config), "fault": fault}
                                print(json.dumps({"problem": name, "family": author.name, **line}), flush=True)
                    print(json.dumps({"problem": name, "family": author.name, "compiled": seen}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
