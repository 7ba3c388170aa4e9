# nightshift candidate
# problem: dequantise
# language: python
# kind: library
# determinism: bitwise


def entry(code, scale):
    return code * scale[:, None]
