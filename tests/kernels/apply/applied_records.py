"""Records of certified kernels, small enough for Triton's interpreter, that the tests put into a job's file."""

from __future__ import annotations

import hashlib
from typing import Any

from nightshift.kernels.apply.job.names import PRODUCTS
from nightshift.kernels.apply.job.problems import BENT
from nightshift.kernels.generate.template import Family, candidate
from nightshift.kernels.ops.adamw.flat_family import Flat
from nightshift.kernels.ops.attention.triton_family import FlashAttention
from nightshift.kernels.ops.attention.triton_gradient_family import FlashBackward
from nightshift.kernels.ops.cross_entropy.triton_family import CrossEntropy
from nightshift.kernels.ops.embedding_gradient.triton_family import EmbeddingGradient
from nightshift.kernels.ops.fused_mlp.triton_family import FusedMlp
from nightshift.kernels.ops.gated.triton_family import Gated
from nightshift.kernels.ops.gelu.triton_family import Gelu
from nightshift.kernels.ops.layernorm.triton_family import LayerNorm
from nightshift.kernels.ops.products.triton_family import Matmul
from nightshift.kernels.ops.products.triton_linear_family import Linear
from nightshift.kernels.ops.rmsnorm.triton_family import RmsNorm
from nightshift.kernels.ops.rotary.triton_family import TURNED, TURNED_HALVES, Rotary
from nightshift.kernels.ops.rows.summing_gradient_family import Backward
from nightshift.kernels.ops.softmax.triton_family import Softmax
from nightshift.kernels.problem import Case

RMS = """
import torch
import triton
import triton.language as tl


@triton.jit
def norm(x, weight, out, n, eps, wrong, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    v = tl.load(x + row * n + column, mask=column < n, other=0.0).to(tl.float32)
    w = tl.load(weight + column, mask=column < n, other=0.0).to(tl.float32)
    y = v * tl.rsqrt(tl.sum(v * v, 0) / n + eps) * w * wrong
    tl.store(out + row * n + column, y.to(out.dtype.element_ty), mask=column < n)


def entry(x, weight, eps):
    out = torch.empty_like(x)
    norm[(x.shape[0],)](x, weight, out, x.shape[1], eps, WRONG, BLOCK=triton.next_power_of_2(x.shape[1]))
    return out
"""
LOSS = """
import torch
import triton
import triton.language as tl


@triton.jit
def loss(x, target, out, v, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    z = tl.load(x + row * v + column, mask=column < v, other=-float("inf")).to(tl.float32)
    hit = tl.load(x + row * v + tl.load(target + row)).to(tl.float32)
    peak = tl.max(z, 0)
    tl.store(out + row, tl.log(tl.sum(tl.exp(z - peak), 0)) + peak - hit)


def entry(logits, target):
    out = torch.empty(logits.shape[:1], dtype=logits.dtype, device=logits.device)
    loss[(logits.shape[0],)](logits, target, out, logits.shape[1], BLOCK=triton.next_power_of_2(logits.shape[1]))
    return out
"""
TABLE = """
import torch
import triton
import triton.language as tl


@triton.jit
def gather(gradient, index, out, t, d, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for token in range(0, t):
        mine = tl.load(index + token) == row
        total += tl.where(mine, tl.load(gradient + token * d + column, mask=column < d, other=0.0), 0.0)
    tl.store(out + row * d + column, total, mask=column < d)


def entry(gradient, index, rows):
    t, d = gradient.shape
    out = torch.empty((rows, d), dtype=gradient.dtype, device=gradient.device)
    gather[(rows,)](gradient, index, out, t, d, BLOCK=triton.next_power_of_2(d))
    return out
"""


def record(problem: str, source: str, **sizes: int) -> dict[str, Any]:
    sha256 = hashlib.sha256(source.encode()).hexdigest()
    return {
        "problem": problem,
        "certificate": hashlib.sha256(f"{problem} {sha256}".encode()).hexdigest(),
        "candidate": sha256,
        "source": source,
        "source_sha256": sha256,
        "entry": "entry",
        "dtype": "float32",
        "sizes": sizes,
        "bounds": [],
        "status": "correct",
        "architecture": "none",
        "torch": "none",
        "triton": "none",
    }


def records(wrong: float = 1.0) -> list[dict[str, Any]]:
    case = Case.of("float32", m=12, n=64)
    backward = candidate(
        Backward(), "rmsnorm_backward", case, Backward().space("rmsnorm_backward", case).configs[0]
    )
    return [
        record("rmsnorm", RMS.replace("WRONG", str(wrong)), m=12, n=64),
        record("rmsnorm_backward", backward.source, m=12, n=64),
        record("cross_entropy", LOSS, m=12, v=48),
        record("embedding_gradient", TABLE, t=12, d=64, v=48),
        record("reduce_sum", "", m=1, n=1),
    ]


def narrow_records() -> list[dict[str, Any]]:
    """bfloat16 kernels of a compiled step: GELU, and the loss of logits that are cast to float32."""
    loss, rows = Case.of("bfloat16", m=12, v=48), Case.of("bfloat16", m=12, n=64)
    made = []
    for family, problem, case in (
        (CrossEntropy(), "cross_entropy_cast", loss),
        (Backward(), "cross_entropy_cast_backward", loss),
        (Gelu(), "gelu", rows),
    ):
        source = candidate(family, problem, case, family.space(problem, case).configs[0]).source
        made.append({**record(problem, source, **case.sizes), "dtype": "bfloat16"})
    return made


def made_of(family: Family, problem: str, case: Case) -> dict[str, Any]:
    """A record of the family's first configuration for a case; what no search has chosen is right as well."""
    made = candidate(family, problem, case, family.space(problem, case).configs[0])
    return {**record(problem, made.source, **case.sizes), "dtype": case.dtype, "entry": made.entry}


PRODUCTS_OF: dict[str, Family] = {name: Linear() if name == "linear_bias" else Matmul() for name in PRODUCTS}


def _kind(product: str) -> str:
    return "float16" if product.endswith("_wide") else "float32"


def every_record() -> list[dict[str, Any]]:
    """A kernel of ours for every place in a job's file."""
    rows, logits = Case.of("float32", m=6, n=64), Case.of("float32", m=6, v=48)
    narrow = Case.of("bfloat16", m=6, v=48)
    return [
        made_of(RmsNorm(), "rmsnorm", rows),
        made_of(Backward(), "rmsnorm_backward", rows),
        made_of(Backward(), "rmsnorm_cast_backward", Case.of("bfloat16", m=6, n=64)),
        made_of(LayerNorm(), "layernorm", rows),
        made_of(Softmax(), "softmax", rows),
        made_of(CrossEntropy(), "cross_entropy", logits),
        made_of(Backward(), "cross_entropy_backward", logits),
        made_of(CrossEntropy(), "cross_entropy_cast", narrow),
        made_of(Backward(), "cross_entropy_cast_backward", narrow),
        made_of(Gelu(), "gelu", rows),
        made_of(Gelu(), "gelu_backward", rows),
        *(made_of(Gated(), name, rows) for name in ("swiglu", "swiglu_backward", "geglu")),
        made_of(FusedMlp(), "fused_mlp", Case.of("float32", m=6, d=16, f=32)),
        *(made_of(Linear(), name, Case.of("float32", m=6, n=32, k=16)) for name in BENT),
        *(made_of(of, name, Case.of(_kind(name), m=6, n=32, k=16)) for name, of in PRODUCTS_OF.items()),
        *rotary_records(b=1, s=6, h=4, g=2),
        made_of(EmbeddingGradient(), "embedding_gradient", Case.of("float32", t=6, d=64, v=48)),
        attention_record(),
        *attention_records(Case.of("float16", b=1, h=2, s=16, d=16)),
        adamw_record(),
        made_of(Flat(), "adamw_cast", Case.of("bfloat16", n=40)),
        made_of(Flat(), "adamw_many", Case.of("bfloat16", n=40)),
    ]


def rotary_records(**sizes: int) -> list[dict[str, Any]]:
    """Of heads of eight, every rotation and its gradient."""
    halves = Case.of("float32", d=8, **sizes)
    made = [made_of(Rotary(), name, halves) for name in TURNED_HALVES]
    return made + pair_records(**{n: sizes[n] for n in "bsh"})


def pair_records(**sizes: int) -> list[dict[str, Any]]:
    """Of heads of eight, the rotations of pairs that lie side by side."""
    return [made_of(Rotary(), name, Case.of("float32", d=8, **sizes)) for name in TURNED]


def attention_record() -> dict[str, Any]:
    return made_of(FlashAttention(), "flash_attention", Case.of("float16", b=1, h=2, s=16, d=16))


def attention_records(case: Case) -> list[dict[str, Any]]:
    """By position, with what the gradients need, and the gradients; certified for both layouts."""
    made = [made_of(FlashAttention(), "flash_attention_by_position", case)]
    made.append(made_of(FlashBackward(), "flash_attention_by_position_backward", case))
    return [{**one, "layouts": ["contiguous", "sliced"]} for one in made]


def adamw_record(wrong: str = "") -> dict[str, Any]:
    made = made_of(Flat(), "adamw", Case.of("float32", n=40))
    if not wrong:
        return made
    source = made["source"].replace("- scale * mean", wrong)
    return {**made, "source": source, "source_sha256": hashlib.sha256(source.encode()).hexdigest()}
