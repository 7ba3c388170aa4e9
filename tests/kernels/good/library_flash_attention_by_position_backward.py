# nightshift candidate
# problem: flash_attention_by_position_backward
# language: python
# kind: library
# determinism: bitwise

import torch


def entry(gradient, q, k, v, out, logs):
    g, q, k, v, out = (x.transpose(1, 2) for x in (gradient, q, k, v, out))
    s, scale = q.shape[-2], q.shape[-1] ** -0.5
    hidden = torch.ones(s, s, dtype=torch.bool, device=q.device).triu(1)
    weights = torch.exp((q @ k.mT).float() * scale - logs[..., None]).masked_fill(hidden, 0.0)
    delta = (g.float() * out.float()).sum(-1, keepdim=True)
    back = (weights * ((g @ v.mT).float() - delta) * scale).to(q.dtype)
    made = back @ k, back.mT @ q, weights.to(q.dtype).mT @ g
    return tuple(x.transpose(1, 2).contiguous() for x in made)
