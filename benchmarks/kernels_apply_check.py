"""What of the job's file only a GPU can show: launches inside CUDA graphs and compiled regions, and what they cost.

    python -m benchmarks.kernels_apply_check           # one GPU, two minutes: each job in a process of its own
    python -m benchmarks.kernels_apply_check --tiny    # a CPU, Triton's interpreter: plain calls only

The kernels are the families' first configurations, uncertified: this asks whether launches are right, not how fast
kernels are. Four jobs: norms and pointwise functions; the same in CUDA C++ and 16 bits; linear layers with rotary
embeddings in between; attention of one projection, by the families that are for Hopper alone. Each plain, recorded
in a CUDA graph and replayed on new values, in a compiled region closed, open (the compiler launches the kernels)
and with mode="reduce-overhead", forward and backward; each against torch. Host time of a region's call, without
waiting for the GPU. Writes kernels_apply_check.json after every row.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from nightshift.kernels.apply.bundle import candidate_record, write_bundle
from nightshift.kernels.generate.template import Family, candidate
from nightshift.kernels.ops.families import families_of, interprets
from nightshift.kernels.ops.products.triton_family import Matmul
from nightshift.kernels.ops.products.triton_linear_family import Linear
from nightshift.kernels.ops.rotary.triton_family import Rotary
from nightshift.kernels.ops.rows.bulk_cuda_family import RowsCuda
from nightshift.kernels.problem import Case

OUT = Path(os.environ.get("OUT", Path(__file__).parent / "results"))
FILE = "kernels_apply_check.json"
JOBS = ("norms", "cuda", "products", "attention")
SHAPES = {"rmsnorm": ("m", "n"), "rmsnorm_backward": ("m", "n"), "gelu": ("m", "n"), "gelu_backward": ("m", "n"),
          "softmax": ("m", "n"), "layernorm": ("m", "n")}  # fmt: skip


def record_of(family: Family, problem: str, case: Case, architecture: str) -> dict[str, Any]:
    """As a certificate of the family's first configuration would give it."""
    written = candidate(family, problem, case, family.space(problem, case).configs[0])
    made = candidate_record(written)
    certified = {"certificate": made["candidate"], "status": "correct", "torch": "none", "triton": "none"}
    where = {"problem": problem, "dtype": case.dtype, "sizes": case.sizes, "architecture": architecture}
    return {**made, **certified, **where}


def records(rows: int, width: int, architecture: str) -> list[dict[str, Any]]:
    """A record for each operator."""
    made = []
    for problem, axes in SHAPES.items():
        case = Case.of("float32", **dict(zip(axes, (rows, width), strict=True)))
        family = next(f for f in families_of(problem) if interprets(f.name))
        made.append(record_of(family, problem, case, architecture))
    return made


def load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("nightshift_kernels", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class Net(nn.Module):
    """Norm, activation and softmax as functions and a module, in one region."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.RMSNorm(width, eps=1e-6), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.softmax(self.second(F.gelu(self.first(x))), -1)


class Block(nn.Module):
    """Two linear layers, the second with a bias, and rotary embeddings of half a head as Llama has them: every
    product is of one operator or another, every rotation is of heads that a projection's output was turned to."""

    B, S, H, G, D = 2, 256, 4, 2, 64

    def __init__(self) -> None:
        super().__init__()
        width = self.H * self.D
        self.q, self.k = nn.Linear(width, self.H * self.D, bias=False), nn.Linear(width, self.G * self.D)
        angle = torch.rand(self.S, self.D // 2) * 6 - 3
        self.register_buffer("angle", torch.cat((angle, angle), -1))

    @classmethod
    def records(cls, architecture: str, dtype: str) -> list[dict[str, Any]]:
        """Of both layers' three products, and of the rotations by position."""
        m, width, made = cls.B * cls.S, cls.H * cls.D, []
        for n, name, family in ((cls.H * cls.D, "linear", Matmul()), (cls.G * cls.D, "linear_bias", Linear())):
            layer, back = Case.of(dtype, m=m, n=n, k=width), Case.of(dtype, m=m, n=width, k=n)
            made += [(family, name, layer), (Matmul(), "linear_weight_gradient", layer), (Matmul(), "matmul", back)]
        heads = Case.of(dtype, b=cls.B, s=cls.S, h=cls.H, g=cls.G, d=cls.D)
        names = ("rotary_half_by_position", "rotary_half_by_position_backward")
        return [record_of(f, p, c, architecture) for f, p, c in (*made, *((Rotary(), n, heads) for n in names))]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        cos, sin = self.angle.cos(), self.angle.sin()

        def turned(heads: torch.Tensor) -> torch.Tensor:
            low, high = heads.chunk(2, -1)
            return heads * cos + torch.cat((-high, low), -1) * sin

        q, k = (turned(part(x).view(self.B, self.S, -1, self.D).transpose(1, 2)) for part in (self.q, self.k))
        return torch.cat((torch.tanh(q), torch.sigmoid(k)), 1).transpose(1, 2).flatten(2)


class Heads(nn.Module):
    """Causal attention whose q, k and v are slices of one projection, and the projection of what comes of it."""

    B, S, H, D = 2, 256, 4, 64

    def __init__(self) -> None:
        super().__init__()
        self.all, self.out = (nn.Linear(self.H * self.D, n * self.H * self.D, bias=False) for n in (3, 1))

    @classmethod
    def records(cls, architecture: str, dtype: str) -> list[dict[str, Any]]:
        case, made = Case.of(dtype, b=cls.B, h=cls.H, s=cls.S, d=cls.D), []
        for name in ("flash_attention_by_position", "flash_attention_by_position_backward"):
            family = next(f for f in families_of(name) if interprets(f.name) == (architecture == "none"))
            made.append(record_of(family, name, case, architecture))
        return made

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.all(x).view(self.B, self.S, 3, self.H, self.D).permute(2, 0, 3, 1, 4)
        made = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: torch.Tensor = self.out(made.transpose(1, 2).flatten(2))
        return out


def gradients(call: Callable[[torch.Tensor], torch.Tensor], net: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """The output, and the gradients of the input and of every parameter."""
    net.zero_grad()
    given = x.clone().requires_grad_(True)
    out = call(given)
    (out * torch.linspace(-1.0, 1.0, out.shape[-1], device=out.device)).sum().backward()
    found = [out.detach().clone(), given.grad, *(p.grad for p in net.parameters())]
    return [value.clone() for value in found if value is not None]


def agree(mine: list[torch.Tensor], theirs: list[torch.Tensor]) -> float:
    """The largest difference, as a share of the largest value of the same tensor; infinite where one is missing."""
    if len(mine) != len(theirs):
        return float("inf")
    return max(
        float((a - b).abs().max() / b.abs().max().clamp(min=1e-30)) for a, b in zip(mine, theirs, strict=True)
    )


def recorded(net: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """The forward pass recorded once, replayed on other values."""
    static = torch.zeros_like(x)
    with torch.no_grad():
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                net(static)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = net(static)
        static.copy_(x)
        graph.replay()
    return [out.clone()]


def launched(way: Callable[[], Any], made: list[dict[str, Any]]) -> dict[str, int]:
    """How often the GPU ran the functions of each record's source; who launched them is all the same."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        way()
        torch.cuda.synchronize()
    names = [e.name for e in seen.events()]
    found = {}
    for one in made:
        functions = re.findall(
            r"(?:@(?:triton|gluon)\.jit\ndef|__global__ void(?: __\w+__\([^)]*\))*) (\w+)\(", one["source"]
        )
        found[" ".join((one["problem"], *map(str, one["sizes"].values())))] = sum(
            re.fullmatch(f"{function}(_[0-9]+)?", name) is not None for name in names for function in functions
        )
    return found


def counted(kernels: Any) -> dict[str, int]:
    """The same as the job's file counts it, which is of no use where a compiler or a graph launches."""
    return {f"{k.problem} {k.certificate[:8]}": k.calls for k in kernels.STATE.kernels.values()}


def host_us(call: Callable[[], Any], count: int) -> float:
    """Microseconds of the host for one call."""
    for _ in range(10):
        call()
    started = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - started) / count * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--job", choices=JOBS, help="one of the jobs, in this process; its rows join the file's")
    given = parser.parse_args()
    if given.job is None:
        (OUT / FILE).unlink(missing_ok=True)
        more = ["--tiny"] if given.tiny else []
        ended = [
            subprocess.run([sys.executable, "-m", __spec__.name, "--job", job, *more], check=False).returncode
            for job in JOBS
        ]
        sys.exit(max(ended))
    device, rows, width = ("cpu", 6, 64) if given.tiny else ("cuda", 512, 1024)
    if given.tiny:
        os.environ["TRITON_INTERPRET"] = "1"
    architecture = "none" if given.tiny else ".".join(map(str, torch.cuda.get_device_capability()))
    name = torch.cuda.get_device_name() if device == "cuda" else "none"
    environment = {"gpu": name, "torch": torch.__version__, "device": device}
    result: dict[str, Any] = {"environment": environment, "rows": {}}
    if (OUT / FILE).exists():
        result["rows"] = json.loads((OUT / FILE).read_text())["rows"]
    torch.manual_seed(1)
    if given.job in ("products", "attention"):
        job: type[Block | Heads] = Block if given.job == "products" else Heads
        dtype = "bfloat16" if not given.tiny else "float32" if job is Block else "float16"
        if given.tiny:
            job.B, job.S, job.H, job.D = 1, 6, 4, 8 if job is Block else 16
        model = job().to(device, getattr(torch, dtype))
        x = torch.randn(job.B, job.S, job.H * job.D, device=device).to(getattr(torch, dtype))
        most = 1e-4 if dtype == "float32" else 5e-2
        checked(result, f"{given.job}, ", model, x, job.records(architecture, dtype), most)
        return
    net, x = Net(width).to(device), torch.randn(rows, width, device=device)
    if given.job == "norms":
        checked(result, "", net, x, records(rows, width, architecture), 1e-4)
    elif not given.tiny:  # CUDA C++ has no interpreter
        case = Case.of("bfloat16", m=rows, n=width)
        made = [record_of(RowsCuda(), name, case, architecture) for name in RowsCuda.problems]
        checked(result, "CUDA C++, ", net.bfloat16(), x.bfloat16(), made, 5e-2)


def checked(
    result: dict[str, Any], what: str, net: nn.Module, x: torch.Tensor, made: list[dict[str, Any]], most: float
) -> None:
    """One row for each way to run the net with these kernels. most: the largest difference that is right."""
    want = gradients(net, net, x)
    with tempfile.TemporaryDirectory() as folder:
        write_bundle(Path(folder) / "nightshift_kernels.py", made)
        kernels = load(Path(folder) / "nightshift_kernels.py")
        ways: dict[str, tuple[bool, Callable[[], list[torch.Tensor]]]] = {
            "plain": (False, lambda: gradients(net, net, x)),
        }
        if x.is_cuda:
            compiled: dict[str, dict[str, Any]] = {
                "closed": {},
                "open": {},
                "reduce-overhead": {"mode": "reduce-overhead"},
            }
            for name, more in compiled.items():
                ways[name] = (name != "closed", lambda more=more: gradients(torch.compile(net, **more), net, x))
            ways["recorded"] = (False, lambda: recorded(net, x))
        for name, (launches, way) in ways.items():
            torch._dynamo.reset()
            report = kernels.apply(net, log=lambda _: None, shadow_every=0, compiler_launches=launches)
            row: dict[str, Any] = {"places": len(report.applied), "skipped": report.skipped}
            try:
                mine = way()
                row["difference"] = agree(mine, want[: len(mine)] if name == "recorded" else want)
                row["launched"] = launched(way, made) if x.is_cuda else counted(kernels)
                row["right"] = row["difference"] < most and sum(row["launched"].values()) > 0
                if name in ("closed", "open"):
                    region = torch.compile(net)
                    with torch.no_grad():
                        row["host_us"] = host_us(lambda region=region: region(x), 200)
            except Exception as error:  # noqa: BLE001  one way's fault must not cost the others
                row["broken"] = f"{type(error).__name__}: {error}"[:500]
            kernels.unapply(net)
            result["rows"][what + name] = row
            OUT.mkdir(parents=True, exist_ok=True)
            (OUT / FILE).write_text(json.dumps(result, indent=1) + "\n")
            print(what + name, {k: v for k, v in row.items() if k != "skipped"}, flush=True)


if __name__ == "__main__":
    main()
