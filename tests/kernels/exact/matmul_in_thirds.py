# nightshift candidate
# problem: matmul
# language: python
# kind: library
# determinism: bitwise
# dtypes: float32
# exact: no


def entry(a, b):
    """A product that is rounded where its sum is not, as one of Winograd's kind is by the thirds of its
    transforms."""
    return (a / 3.0) @ b * 3.0
