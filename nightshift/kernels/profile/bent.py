"""A linear layer with GELU or ReLU behind it, where the job's file has a place for both as one kernel.

That place is a block down(act(up(x))) of two linear layers, the first with a bias, where nothing is differentiated
and nothing cast: other linear layers and their activations are taken one by one, as in training. A compiled region
names its pointwise kernel by the operators in it, and takes the bias out of the product where that pays
(`triton_poi_fused_addmm_gelu_0` behind `aten::mm`). Strings are not recorded with shapes, so which form of GELU was
called is read off the kernel's name; where that does not say, torch's default is taken, and the note says so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from nightshift.kernels.profile.operators import Unit
from nightshift.kernels.profile.pattern import DTYPES, Found, Pattern, dims, dtype, layout, strides

_FORM = re.compile(r"Gelu\w*Impl\([^)]*\)::\{lambda\(\)#(\d)\}")
"""ATen's ActivationGeluKernel.cu: the first function is the tanh form's, the second the exact one's."""
_PART = "(?:_unsafe_view|view|addmm|gelu|relu)"
_FUSED = re.compile(rf"triton_poi_fused_({_PART}(?:_{_PART})*)_\d+")
UNKNOWN_FORM = "which form of GELU was not recorded; taken as the exact one"


def gelu_form(unit: Unit) -> str:
    """tanh or none, as torch calls them; empty where the trace does not say."""
    found = _FORM.search(unit.kernel)
    return {"1": "tanh", "2": "none"}.get(found[1], "") if found else ""


def _linear_act(units: Sequence[Unit]) -> Found | None:
    up, act = units[:2]
    *_, down = (unit for unit in units if unit.base != "mul")
    fused = _FUSED.fullmatch(act.base)
    inside = fused[1] if fused else act.base
    first, second = _layer(up), _layer(down)
    if first is None or second is None or ("gelu" in inside) == ("relu" in inside):
        return None
    x, (n, k), kind, biased = first
    if not (biased or "addmm" in inside) or second[0][-1:] != (n,) or second[1] != (k, n) or second[2] != kind:
        return None
    if units[-1] is not down and n == k:
        return None  # a gate and what it is multiplied by
    if math.prod(second[0]) != math.prod(x[:-1]) * n or not (fused or dims(act, 0) == (*x[:-1], n)):
        return None
    form = gelu_form(act) if "gelu" in inside else "none"
    name = "linear_relu" if "relu" in inside else "linear_gelu_tanh" if form == "tanh" else "linear_gelu"
    sizes = {"m": math.prod(x[:-1]), "n": n, "k": k}
    return Found(name, sizes, kind, layout(up, int(up.base == "addmm")), "" if form else UNKNOWN_FORM)


def _layer(unit: Unit) -> tuple[tuple[int, ...], tuple[int, int], str, bool] | None:
    """(sizes of x, (n, k), dtype, whether a bias is added) of an `nn.Linear`; None where it is none, or is cast."""
    x_at = int(unit.base == "addmm")
    x, w = dims(unit, x_at), dims(unit, x_at + 1)
    if len(w) != 2 or not x:
        return None
    if unit.base == "linear":
        n, k = w
        bias_at = 2
    else:
        k, n = w
        bias_at = 0 if unit.base == "addmm" else -1
        if strides(unit, x_at + 1) != (1, k) and k != 1 and n != 1:
            return None  # its weight does not lie as a linear layer's
    bias = bias_at >= 0 and dims(unit, bias_at) == (n,)
    kinds = {dtype(unit, x_at), dtype(unit, x_at + 1), *((dtype(unit, bias_at),) if bias else ())}
    kinds |= {DTYPES[unit.computed]} if unit.computed in DTYPES else set()
    if x[-1] != k or len(kinds) != 1 or not (kind := kinds.pop()):
        return None
    return x, (n, k), kind, bias


UNTRAINED_PATTERNS: tuple[Pattern, ...] = (
    Pattern(("linear|addmm", "gelu|relu"), _linear_act, ahead=("dropout?", "linear|addmm|mm", "mul?")),
    Pattern(("addmm|mm", "triton_poi_fused_*"), _linear_act, ahead=("addmm|mm",)),
)
"""Asked first, and only of traces in which nothing is differentiated."""
