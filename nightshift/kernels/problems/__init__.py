"""Reference problems: one operation per file, the benchmarked shapes with it.

A problem file holds the torch code that users write (the reference), the input generator, the shapes and what the
operation must at least move and calculate. A new one is a file and a line in `ALL`.
"""

from __future__ import annotations

from nightshift.kernels.problem import Problem, ProblemError
from nightshift.kernels.problems import (
    adamw,
    backward,
    copies,
    cross_entropy,
    cross_entropy_cast,
    dropout_add,
    embedding_gradient,
    flash_attention,
    flash_attention_backward,
    fused_mlp,
    gated,
    gelu,
    layernorm,
    linear,
    matmul,
    particle_weights,
    quantise,
    reductions,
    rmsnorm,
    rmsnorm_cast,
    rotary,
    row_backward,
    softmax,
    stencil,
)

ALL: tuple[Problem, ...] = (
    adamw.ADAMW,
    adamw.ADAMW_CAST,
    adamw.ADAMW_MANY,
    backward.RMSNORM_BACKWARD,
    backward.CROSS_ENTROPY_BACKWARD,
    copies.COPY,
    copies.PERMUTE,
    cross_entropy.CROSS_ENTROPY,
    cross_entropy_cast.CROSS_ENTROPY_CAST,
    cross_entropy_cast.CROSS_ENTROPY_CAST_BACKWARD,
    dropout_add.DROPOUT_ADD,
    embedding_gradient.EMBEDDING_GRADIENT,
    flash_attention.FLASH_ATTENTION,
    flash_attention.FLASH_ATTENTION_BY_POSITION,
    flash_attention_backward.FLASH_ATTENTION_BACKWARD,
    flash_attention_backward.FLASH_ATTENTION_BY_POSITION_BACKWARD,
    fused_mlp.FUSED_MLP,
    gated.SWIGLU,
    gated.SWIGLU_BACKWARD,
    gated.GEGLU,
    gelu.GELU,
    gelu.GELU_BACKWARD,
    layernorm.LAYERNORM,
    *linear.ALL,
    matmul.MATMUL,
    matmul.LINEAR,
    matmul.LINEAR_WEIGHT_GRADIENT,
    matmul.LINEAR_WEIGHT_GRADIENT_WIDE,
    particle_weights.PARTICLE_WEIGHTS,
    quantise.QUANTISE,
    quantise.DEQUANTISE,
    reductions.REDUCE_SUM,
    reductions.MAX,
    rmsnorm.RMSNORM,
    rmsnorm.RMSNORM_RESIDUAL,
    rmsnorm_cast.RMSNORM_CAST_BACKWARD,
    rotary.ROTARY_INTERLEAVED,
    rotary.ROTARY_HALF,
    rotary.ROTARY_INTERLEAVED_BACKWARD,
    rotary.ROTARY_HALF_BACKWARD,
    rotary.ROTARY_INTERLEAVED_BY_POSITION,
    rotary.ROTARY_INTERLEAVED_BY_POSITION_BACKWARD,
    rotary.ROTARY_HALF_BY_POSITION,
    rotary.ROTARY_HALF_BY_POSITION_BACKWARD,
    row_backward.SOFTMAX_BACKWARD,
    row_backward.LAYERNORM_BACKWARD,
    softmax.SOFTMAX,
    stencil.STENCIL_3X3,
    stencil.STENCIL_5X5,
)

BY_NAME: dict[str, Problem] = {problem.name: problem for problem in ALL}


def named(name: str) -> Problem:
    """The problem of that name. Raises ProblemError that lists the names."""
    try:
        return BY_NAME[name]
    except KeyError:
        raise ProblemError(f"problem: {name!r} is none of {', '.join(sorted(BY_NAME))}") from None
