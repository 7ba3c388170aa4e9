# nightshift candidate
# problem: reduce_sum
# language: python
# kind: library
# determinism: bitwise
# differentiable: yes


def entry(x):
    return x.sum(dim=-1)
