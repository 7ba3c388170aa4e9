# nightshift candidate
# problem: permute
# language: python
# kind: library
# determinism: bitwise


def entry(x):
    return x.transpose(1, 2).contiguous()
