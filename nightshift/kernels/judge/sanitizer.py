"""NVIDIA's compute-sanitizer over a candidate's launch plans: what tests on outputs cannot see.

A race that was never lost, a read beyond the edge whose value was masked away, a barrier that not every thread
reaches. The plan is replayed by `kernels.judge.sanitized`, which has neither torch nor candidate code in it, on
allocations of exactly the tensors' sizes, so that every byte beyond the edge counts. Tools and options:
https://docs.nvidia.com/compute-sanitizer/ComputeSanitizer/index.html
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from nightshift.kernels.judge.launch_plan import Plan
from nightshift.kernels.judge.verdict import JudgeBroken, Reason, Refusal
from nightshift.kernels.problem import Inputs

TOOLS = (Reason.memcheck, Reason.racecheck, Reason.initcheck, Reason.synccheck)
_SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) (?:errors?|hazards?)")
_FAULTY = 86


@dataclass(frozen=True)
class Exhibit:
    """One plan with the inputs to run it on and the bytes of its outputs."""

    plan: Plan
    inputs: Inputs
    output_bytes: tuple[int, ...]
    name: str


def find() -> str:
    """The program's path. Raises JudgeBroken where there is none: promotion cannot do without it."""
    found = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    if found is None:
        raise JudgeBroken("compute-sanitizer: not installed, and promotion asks for it")
    return found


def sanitize(exhibits: Sequence[Exhibit], timeout_s: float = 120.0) -> None:
    """Run every tool over every exhibit. Raises Refusal with the tool's first finding."""
    program = find()
    root = str(Path(__file__).resolve().parents[3])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, *sys.path])}
    with tempfile.TemporaryDirectory(prefix="sanitizer-") as folder:
        for number, exhibit in enumerate(exhibits):
            write(exhibit, Path(folder) / str(number))
        runner = [sys.executable, "-m", "nightshift.kernels.judge.sanitized", folder]
        for tool in TOOLS:
            command = [program, "--tool", tool.value, "--error-exitcode", str(_FAULTY), "--print-limit", "5"]
            try:
                done = subprocess.run(
                    [*command, *runner], env=environment, capture_output=True, timeout=timeout_s, check=False
                )
            except subprocess.TimeoutExpired as error:
                raise Refusal(Reason.call_timeout, f"{tool}: no end in {timeout_s:g} s", "sanitizer") from error
            judge_output(tool, done.returncode, (done.stdout + done.stderr).decode(errors="replace"))


def judge_output(tool: Reason, code: int, text: str) -> None:
    """Raises Refusal where a tool found something, JudgeBroken where it did not run to its summary."""
    counts = [int(match) for match in _SUMMARY.findall(text)]
    if code == _FAULTY or any(counts):
        findings = [
            line.lstrip("= ") for line in text.splitlines() if line.startswith("=========") and len(line) > 12
        ]
        told = next((line for line in findings if "COMPUTE-SANITIZER" not in line), "found errors")
        raise Refusal(tool, told[:500], "sanitizer")
    if code != 0 or not counts:
        raise JudgeBroken(f"compute-sanitizer {tool}: ended with code {code}: {text[-500:]}")


def write(exhibit: Exhibit, folder: Path) -> None:
    """Plan, binaries and dense input bytes, as `kernels.judge.sanitized` reads them."""
    folder.mkdir(parents=True)
    body, blob = exhibit.plan.to_message()
    names: list[str | None] = []
    for index, value in enumerate(exhibit.inputs):
        names.append(None)
        if isinstance(value, torch.Tensor):
            names[-1] = f"in{index}"
            data = value.detach().contiguous().view(-1).view(torch.uint8).cpu().numpy().tobytes()
            (folder / f"in{index}").write_bytes(data)
    (folder / "binaries").write_bytes(blob)
    record = {"plan": body, "inputs": names, "outputs": list(exhibit.output_bytes), "name": exhibit.name}
    (folder / "exhibit.json").write_text(json.dumps(record))
