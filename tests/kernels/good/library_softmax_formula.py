# nightshift candidate
# problem: softmax
# language: python
# kind: library
# determinism: bitwise


def entry(x):
    wide = x.float()
    e = (wide - wide.amax(dim=-1, keepdim=True)).exp()
    return (e / e.sum(dim=-1, keepdim=True)).to(x.dtype)
