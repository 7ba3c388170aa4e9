"""Active probes of a repaired GPU or node: does the part that failed do its work again?

    dcgm   NVIDIA's diagnostic (`dcgmi diag -r 2`): memory, PCIe, stress; what it prints last is what is told
    nccl   `all_reduce_perf` of nvidia/nccl-tests over the node's GPUs: no wrong value, and its bus bandwidth
    gemm   a large matrix product on each GPU with torch: equal results on equal GPUs, none slower than the rest

Each is a command that runs in an image of the operator's registry, ends with 0 or not, and leaves its last words as
the container's termination message (kubernetes.io, "Determine the reason for Pod failure"). Without an image a
probe is not run, and the outcome says so.

Sources: docs.nvidia.com/datacenter/dcgm (run levels), github.com/NVIDIA/nccl-tests (`#wrong`, Avg bus bandwidth).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

_DCGM = """\
nv-hostengine > /dev/null 2>&1 || true
dcgmi diag -r 2 > /tmp/said 2>&1; code=$?
grep -iE 'fail|warn|error' /tmp/said > /tmp/bad || echo 'dcgmi diag -r 2: no failure' > /tmp/bad
tail -c 2000 /tmp/bad > /dev/termination-log; exit $code
"""
_NCCL = """\
gpus=$(nvidia-smi -L | wc -l)
all_reduce_perf -b 8M -e 256M -f 2 -g "$gpus" -c 1 > /tmp/said 2>&1; code=$?
grep -E 'Out of bounds|Avg bus bandwidth|NCCL failure|error' /tmp/said | tail -c 2000 > /dev/termination-log
grep -q 'Out of bounds values : 0 OK' /tmp/said || exit 5
exit $code
"""
_GEMM = """\
import sys, time, torch
n, rates, sums = 8192, [], []
for i in range(torch.cuda.device_count()):
    d = torch.device("cuda", i)
    g = torch.Generator(device=d).manual_seed(1)
    a = torch.randn(n, n, device=d, generator=g, dtype=torch.bfloat16)
    b = torch.randn(n, n, device=d, generator=g, dtype=torch.bfloat16)
    c = a @ b
    torch.cuda.synchronize(d)
    t = time.perf_counter()
    for _ in range(50):
        c = a @ b
    torch.cuda.synchronize(d)
    rates.append(50 * 2 * n**3 / (time.perf_counter() - t) / 1e12)
    sums.append(float(c.double().sum().cpu()))
median = sorted(rates)[len(rates) // 2] if rates else 0.0
slow = [i for i, r in enumerate(rates) if r < 0.85 * median]
wrong = [i for i, s in enumerate(sums) if s != sorted(sums)[len(sums) // 2] or s != s]
said = f"{n}x{n} bf16 GEMM TFLOP/s: {[round(r, 1) for r in rates]}; slow: {slow}; wrong: {wrong}"
open("/dev/termination-log", "w").write(said)
sys.exit(1 if slow or wrong or not rates else 0)
"""


class ProbeJob(BaseModel):
    """One probe."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    image: str = Field(default="", description="Image from your registry; empty: this probe is not run")
    command: tuple[str, ...] = Field(default=(), description="Ends with 0 where the part works; empty: ours")


COMMANDS: Mapping[str, tuple[str, ...]] = {
    "dcgm": ("sh", "-c", _DCGM),
    "nccl": ("sh", "-c", _NCCL),
    "gemm": ("python3", "-c", _GEMM),
}


ProbeName = Literal["dcgm", "nccl", "gemm"]


def probe_job(probes: Mapping[ProbeName, ProbeJob], name: str) -> ProbeJob | None:
    """The probe of that name with its command; None where no image is set for it."""
    found = next((probe for key, probe in probes.items() if key == name and probe.image), None)
    if found is None or found.command:
        return found
    return ProbeJob(image=found.image, command=COMMANDS[name])
