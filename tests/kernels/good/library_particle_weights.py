# nightshift candidate
# problem: particle_weights
# language: python
# kind: library
# determinism: bitwise

import torch


def entry(position, log_weight, landmark, distance, sigma):
    apart = torch.hypot(position[:, :1] - landmark[:, 0], position[:, 1:] - landmark[:, 1])
    updated = log_weight - 0.5 * (((apart - distance) / sigma) ** 2).sum(1)
    return torch.log_softmax(updated, 0)
