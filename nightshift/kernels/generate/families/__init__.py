"""The families of parametric kernels, one operation per file. A new one is a file and a line in `ALL`."""

from __future__ import annotations

from nightshift.kernels.generate.families import (
    backward,
    copy,
    cross_entropy,
    embedding_gradient,
    embedding_gradient_cuda,
    flash_attention,
    flash_backward,
    flash_backward_hopper,
    flash_hopper,
    flat,
    fused_mlp,
    gated,
    gelu,
    layernorm,
    linear,
    matmul,
    matmul_cuda,
    matmul_hopper,
    particle_weights,
    quantise,
    reduce,
    reduce_cuda,
    rmsnorm,
    rmsnorm_looped,
    rotary,
    row_backward,
    rows_cuda,
    rows_direct_cuda,
    softmax,
    softmax_gradient_looped,
    stencil,
    stencil_cuda,
    stream_cuda,
)
from nightshift.kernels.generate.template import Family

ALL: tuple[Family, ...] = (
    backward.Backward(),
    copy.Copy(),
    cross_entropy.CrossEntropy(),
    embedding_gradient.EmbeddingGradient(),
    embedding_gradient_cuda.EmbeddingGradientCuda(),
    flash_attention.FlashAttention(),
    flash_backward.FlashBackward(),
    flash_backward_hopper.FlashBackwardHopper(),
    flash_hopper.FlashHopper(),
    flat.Flat(),
    fused_mlp.FusedMlp(),
    gated.Gated(),
    gelu.Gelu(),
    layernorm.LayerNorm(),
    linear.Linear(),
    matmul.Matmul(),
    matmul_cuda.MatmulCuda(),
    matmul_hopper.MatmulHopper(),
    particle_weights.ParticleWeights(),
    quantise.Quantise(),
    reduce.Reduce(),
    reduce_cuda.ReduceCuda(),
    rmsnorm.RmsNorm(),
    rmsnorm_looped.RmsNormLooped(),
    rotary.Rotary(),
    row_backward.RowBackward(),
    rows_cuda.RowsCuda(),
    rows_direct_cuda.RowsDirectCuda(),
    softmax.Softmax(),
    softmax_gradient_looped.SoftmaxGradientLooped(),
    stencil.Stencil(),
    stencil_cuda.StencilCuda(),
    stream_cuda.StreamCuda(),
)


def families_of(problem: str) -> tuple[Family, ...]:
    """All families that write kernels for a problem; empty where none does."""
    return tuple(family for family in ALL if problem in family.problems)


def family_named(name: str) -> Family:
    """Raises StopIteration where none has that name."""
    return next(family for family in ALL if family.name == name)


def interprets(name: str) -> bool:
    """Whether a family's kernels run without a GPU, on Triton's interpreter: CUDA C++ and Gluon do not."""
    return not name.endswith(("_cuda", "_hopper"))
