# nightshift candidate
# problem: adamw
# language: python
# kind: library
# determinism: bitwise

import torch


def entry(parameter, gradient, first, second, rate, beta1, beta2, eps, decay, step):
    """New values instead of changed ones: the same operation as a function."""
    mean = torch.lerp(first, gradient, 1 - beta1)
    square = torch.addcmul(second * beta2, gradient, gradient, value=1 - beta2)
    root = square.sqrt().div_((1 - beta2**step) ** 0.5).add_(eps)
    return torch.addcdiv(parameter * (1 - rate * decay), mean, root, value=-rate / (1 - beta1**step)), mean, square
