"""A part of a benchmark that runs beside the rest: a process of its own, on one GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path


class Part:
    """It writes its log beside the results."""

    def __init__(self, out: Path, module: str, gpu: int, *arguments: str) -> None:
        from nightshift.kernels.loop.fan_out import (
            visible,  # not before TRITON_INTERPRET is set: it brings triton along
        )

        gpus = visible(gpu, os.environ.get("CUDA_VISIBLE_DEVICES"))
        self._log = (out / f"{module}_{gpu}.log").open("w")
        workers = str(max(4, (os.cpu_count() or 8) * 3 // 8))  # the compiler's own; searches compile beside it
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"benchmarks.{module}", *arguments],
            env={"TORCHINDUCTOR_COMPILE_THREADS": workers, **os.environ, "CUDA_VISIBLE_DEVICES": gpus},
            stdout=self._log, stderr=subprocess.STDOUT,
        )  # fmt: skip

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def over(self, until_s: float) -> bool:
        """Whether it ended, or its time (Unix) is over: then it is ended."""
        if not self.ended and time.time() > until_s:
            self.end()
        return self.ended

    def end(self) -> None:
        self._process.kill()
        self._process.wait()

    def wait(self, limit_s: float) -> bool:
        """Whether it came to its end."""
        try:
            return self._process.wait(max(0.1, limit_s)) == 0
        except subprocess.TimeoutExpired:
            self.end()
            return False
