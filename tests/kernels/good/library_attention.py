# nightshift candidate
# problem: flash_attention
# language: python
# kind: library
# determinism: bitwise

import torch.nn.functional as F


def entry(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)
