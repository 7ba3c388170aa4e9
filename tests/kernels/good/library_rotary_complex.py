# nightshift candidate
# problem: rotary_interleaved
# language: python
# kind: library
# determinism: bitwise

import torch


def entry(x, cos, sin):
    pairs = torch.complex(x[..., 0::2].float(), x[..., 1::2].float())
    turned = pairs * torch.complex(cos.float(), sin.float())
    return torch.view_as_real(turned).flatten(-2).to(x.dtype)
