# nightshift candidate
# problem: layernorm_backward
# language: python
# kind: library
# determinism: bitwise


def entry(gradient, x, weight, mean, scale):
    g, w, r = gradient.float(), weight.float(), scale.float()[:, None]
    normal = (x.float() - mean.float()[:, None]) * r
    gw = g * w
    inner, middle = (gw * normal).mean(-1, keepdim=True), gw.mean(-1, keepdim=True)
    dx = r * (gw - middle - normal * inner)
    return dx.to(x.dtype), (g * normal).sum(0).to(weight.dtype), g.sum(0).to(weight.dtype)
