# nightshift candidate
# problem: flash_attention_by_position
# language: python
# kind: library
# determinism: bitwise

import torch
import torch.nn.functional as F


def entry(q, k, v):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    s = q.shape[-2]
    hidden = torch.ones(s, s, dtype=torch.bool, device=q.device).triu(1)
    scores = (q.float() @ k.float().mT * q.shape[-1] ** -0.5).masked_fill(hidden, -torch.inf)
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return out.transpose(1, 2).contiguous(), torch.logsumexp(scores, -1)
