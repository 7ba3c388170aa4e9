# nightshift candidate
# problem: quantise
# language: python
# kind: library
# determinism: bitwise

import torch


def entry(x):
    scale = x.float().abs().amax(-1).clamp(min=1e-10) / 127.0
    return torch.round(x.float() / scale[:, None]).to(torch.int8), scale
