"""Recurrent states: the gated delta rule and Mamba-2, a token or a sequence at a time, states in float32 registers.

A program holds `rows` rows of one head's state, for all of its keys; rows are apart from each other, so that no
program waits. Gated delta rule (Yang et al., arXiv 2412.06464): S ← g·S, S ← S + β·(v − S·k)·kᵀ, o = scale · S·q.
"""

from __future__ import annotations

DELTA = """
import torch
import triton
import triton.language as tl


$softplus
@triton.jit
def delta(
    q, k, v, state, a_log, a, dt_bias, b, offsets, out, new_state, steps, scale,
    HEADS: tl.constexpr, KEYS: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, RAGGED: tl.constexpr,
    HAS_STATE: tl.constexpr, VALUES_LAST: tl.constexpr, GIVEN: tl.constexpr,
):
    batch = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, D)
    shared = head // (HEADS // KEYS)
    if RAGGED:
        first = tl.load(offsets + batch).to(tl.int64)
        last = tl.load(offsets + batch + 1).to(tl.int64)
    else:
        first = batch * steps
        last = first + steps
    if VALUES_LAST:
        inner = row[:, None] + column[None, :] * D
    else:
        inner = row[:, None] * D + column[None, :]
    place = (batch * HEADS + head) * D * D + inner
    if HAS_STATE:
        held = tl.load(state + place)
    else:
        held = tl.zeros((ROWS, D), tl.float32)
    if RAGGED:  # an empty sequence has a state of zeros, whatever it began with
        held = tl.where(last > first, held, 0.0)
    if not GIVEN:  # gates in float64: they are few, and the GPU's own exp2 errs by two units in every row alike
        decay = -tl.exp(tl.load(a_log + head).to(tl.float64))
        bias = tl.load(dt_bias + head).to(tl.float64)
    for token in range(first, last):
        gate = tl.load(a + token * HEADS + head).to(tl.float32)
        beta = tl.load(b + token * HEADS + head).to(tl.float32)
        if not GIVEN:
            x = gate.to(tl.float64) + bias
            gate = tl.exp(decay * softplus(x)).to(tl.float32)
            beta = (1.0 / (1.0 + tl.exp(-beta.to(tl.float64)))).to(tl.float32)
        key = tl.load(k + (token * KEYS + shared) * D + column).to(tl.float32)
        query = tl.load(q + (token * KEYS + shared) * D + column).to(tl.float32)
        value = tl.load(v + (token * HEADS + head) * D + row).to(tl.float32)
        held = held * gate
        old = tl.sum(held * key[None, :], 1)
        held += (beta * (value - old))[:, None] * key[None, :]
        made = scale * tl.sum(held * query[None, :], 1)
        tl.store(out + (token * HEADS + head) * D + row, made.to(out.dtype.element_ty))
    tl.store(new_state + place, held)


def entry($arguments):
    count, state, steps = $count, $state, $steps
    out = torch.empty_like(v)
    new_state = torch.empty((count, $heads, $width, $width), dtype=torch.float32, device=q.device)
    if scale is None or scale == 0.0:
        scale = $width ** -0.5
    if count:
        delta[(count, $heads, $width // $rows)](
            q, k, v, state if state is not None else q, $gates, $offsets, out, new_state, steps,
            scale,
            HEADS=$heads, KEYS=$keys, D=$width, ROWS=$rows, RAGGED=$ragged, HAS_STATE=state is not None,
            VALUES_LAST=$values_last, GIVEN=$given, num_warps=$warps,
        )
    return out, new_state
"""

MAMBA = """
import torch
import triton
import triton.language as tl


$softplus
@triton.jit
def mamba(
    state, x, dt, a, b, c, d, dt_bias, slots, out, new_state,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, D: tl.constexpr, N: tl.constexpr, ROWS: tl.constexpr,
):
    batch = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, N)
    group = head // (HEADS // GROUPS)
    slot = tl.load(slots + batch).to(tl.int64)
    place = ((slot * HEADS + head) * D + row)[:, None] * N + column[None, :]
    known = slot >= 0  # a row of padding has none
    held = tl.load(state + place, mask=known, other=0.0).to(tl.float32)
    of_row = (batch * HEADS + head) * D + row
    value = tl.load(x + of_row).to(tl.float32)
    step = tl.load(dt + of_row).to(tl.float32) + tl.load(dt_bias + head * D + row).to(tl.float32)
    step = softplus(step)
    decay = tl.exp(tl.load(a + (head * D + row)[:, None] * N + column[None, :]).to(tl.float32) * step[:, None])
    into = tl.load(b + (batch * GROUPS + group) * N + column).to(tl.float32)
    from_ = tl.load(c + (batch * GROUPS + group) * N + column).to(tl.float32)
    held = held * decay + (step * value)[:, None] * into[None, :]
    made = tl.sum(held * from_[None, :], 1) + tl.load(d + head * D + row).to(tl.float32) * value
    tl.store(out + of_row, tl.where(known, made, 0.0).to(out.dtype.element_ty))
    tl.store(new_state + place, held.to(new_state.dtype.element_ty), mask=known)


def entry(state, x, dt, A, B, C, D, dt_bias, state_batch_indices):
    out = torch.empty_like(x)
    new_state = state.clone()
    if len(x):
        mamba[(len(x), $heads, $width // $rows)](
            state, x, dt, A, B, C, D, dt_bias, state_batch_indices, out, new_state,
            HEADS=$heads, GROUPS=$groups, D=$width, N=$states, ROWS=$rows, num_warps=$warps,
        )
    return out, new_state
"""

_SOFTPLUS = """@triton.jit
def softplus(x):
    # log(1 + e^x), exact to the last bits where e^x is far below 1 (Kahan's logarithm)
    small = tl.exp(tl.minimum(x, 20.0))
    more = 1.0 + small
    rounded = more - 1.0
    near = tl.where(rounded > 0.0, tl.log(more) * (small / tl.where(rounded > 0.0, rounded, 1.0)), small)
    return tl.where(x > 20.0, x, near)


"""
DELTA, MAMBA = (text.replace("$softplus\n", _SOFTPLUS) for text in (DELTA, MAMBA))
