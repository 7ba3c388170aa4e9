"""The problems that a job's file treats apart, by name. No torch: the daemon asks which of them need a compiler."""

from __future__ import annotations

CAST = "cross_entropy_cast"
"""Reads 16-bit logits where the model casts them first; only a compiled graph shows that it does."""
NORM = "rmsnorm_cast_backward"
"""RMSNorm's gradient of 16 bits plus the residual's; only a compiled graph shows that as well."""
MANY = "adamw_many"
"""AdamW's step over all tensors in one launch, weights' 16-bit copies with it."""

PRODUCTS = ("matmul", "linear", "linear_bias", "linear_weight_gradient", "linear_weight_gradient_wide")
"""A step multiplies matrices of many shapes: of each of these a job may hold a kernel for each shape."""

HALVES = tuple(f"rotary_half{how}{back}" for how in ("", "_by_position") for back in ("", "_backward"))
"""Rotary embeddings whose pairs lie half a width apart: heads first, or positions first."""

ATTENDED = "flash_attention_by_position"
"""Causal attention of (b, s, h, d), with what its gradients need."""

PAIRS = tuple(f"rotary_interleaved{how}{back}" for how in ("", "_by_position") for back in ("", "_backward"))
"""Rotary embeddings whose pairs lie side by side. Of each a job may hold a kernel for each number of heads: keys
often have fewer than queries."""

PASSED = (*PRODUCTS, *HALVES, *PAIRS)
"""What passes put into compiled regions, which then guard on nothing of it."""

PASSES = "passes"
"""What passes change in compiled regions without a kernel: on trial as the kernels are, as one of them."""

COMPILED_ALONE = (*PASSED, CAST, f"{CAST}_backward", NORM)
"""What no eager code calls."""
