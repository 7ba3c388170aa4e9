# nightshift candidate
# problem: cross_entropy_cast
# language: python
# kind: library
# determinism: bitwise

import torch.nn.functional as F


def entry(logits, target):
    return F.cross_entropy(logits.float(), target, reduction="none")
