"""Kernels compiled ahead: without a GPU or a value, and found again by another process under paths of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import importlib.util, os, sys, time
from pathlib import Path
from triton import knobs
from triton.runtime.driver import driver
from benchmarks.kernels_compile import _NoDevice
from nightshift.kernels.judge.host import service
driver.set_active(_NoDevice(90))
folder, packed = Path(sys.argv[1]), Path(sys.argv[2])
os.environ["TRITON_CACHE_DIR"] = str(folder / "triton")
hits = []
knobs.compilation.listener = lambda **told: hits.append(told["cache_hit"])
service.put_compiled(packed.read_bytes() if packed.exists() else b"")
source = Path(sys.argv[3])
spec = importlib.util.spec_from_file_location("candidate", source)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
service.rehearse(module.entry, [[[64, 64], "float32"], 3])
assert "run" in vars(type(module.kernel0)) and module.kernel0.run.__name__ == "run"
packed.write_bytes(service.compiled())
print(hits)
"""
CANDIDATE = """
import torch
import triton
import triton.language as tl


@triton.jit
def kernel0(p, out, B: tl.constexpr):
    x = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + x, tl.load(p + x) * 2.0)


def entry(a, n):
    made = torch.empty_like(a)
    for size in (64, 128):
        kernel0[(a.numel() // size,)](a, made, B=size)
    made = torch.mm(made, made)
    if n > 3:
        raise ValueError
    return made
"""


@pytest.mark.full
def test_another_process_finds_kernels_compiled_ahead(tmp_path: Path) -> None:
    (tmp_path / "candidate.py").write_text(CANDIDATE)
    environment = {**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": os.pathsep.join(sys.path)}
    found = []
    for turn in ("first", "second"):
        place = tmp_path / turn
        place.mkdir()
        command = [sys.executable, "-c", SCRIPT, place, tmp_path / "packed", tmp_path / "candidate.py"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found.append(done.stdout.strip())
        assert list((place / "triton").rglob("*.cubin"))
    assert found == ["[False, False]", "[True, True]"]
