# nightshift candidate
# problem: cross_entropy
# language: python
# kind: library
# determinism: bitwise
# differentiable: yes

import torch


def entry(logits, target):
    scores = torch.log_softmax(logits.float(), dim=-1)
    return -scores.gather(1, target[:, None])[:, 0].to(logits.dtype)
