# nightshift candidate
# problem: copy
# language: triton
# kind: own_kernel
# determinism: bitwise
# layouts: contiguous
# bounds: n 16.. /16
# needs_cuda: yes

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def copy(x, out, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Tiles through the bulk copy engine, by descriptors made on the host."""
    place = [tl.program_id(0) * ROWS, tl.program_id(1) * COLUMNS]
    out.store(place, x.load(place))


def entry(x):
    m, n = x.shape
    out = torch.empty((m, n), dtype=x.dtype, device=x.device)
    if m:
        tile = [16, 64]
        source, target = (TensorDescriptor.from_tensor(t, tile) for t in (x, out))
        copy[(triton.cdiv(m, 16), triton.cdiv(n, 64))](source, target, ROWS=16, COLUMNS=64)
    return out
