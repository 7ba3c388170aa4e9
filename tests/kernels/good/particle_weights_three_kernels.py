# nightshift candidate
# problem: particle_weights
# language: triton
# kind: own_kernel
# determinism: bitwise

import torch
import triton
import triton.language as tl


@triton.jit
def update(position, log_weight, landmark, distance, updated, m, k, sigma, pm, pc, lk, lc, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(position + i * pm, mask=i < m, other=0.0)
    y = tl.load(position + i * pm + pc, mask=i < m, other=0.0)
    total = tl.zeros((BLOCK,), tl.float32)
    for mark in range(k):
        dx = x - tl.load(landmark + mark * lk)
        dy = y - tl.load(landmark + mark * lk + lc)
        off = (tl.sqrt_rn(dx * dx + dy * dy) - tl.load(distance + mark)) / sigma
        total += off * off
    tl.store(updated + i, tl.load(log_weight + i, mask=i < m, other=0.0) - 0.5 * total, mask=i < m)


@triton.jit
def reduce(values, high, total, count, BLOCK: tl.constexpr):
    """Each program's maximum and sum of exponentials below it."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(values + i, mask=i < count, other=-float("inf"))
    peak = tl.max(v, 0)
    tl.store(high + tl.program_id(0), peak)
    tl.store(total + tl.program_id(0), tl.sum(tl.exp(v - peak), 0))


@triton.jit
def normalise(updated, high, total, out, m, parts, BLOCK: tl.constexpr, PARTS: tl.constexpr):
    part = tl.arange(0, PARTS)
    peaks = tl.load(high + part, mask=part < parts, other=-float("inf"))
    peak = tl.max(peaks, 0)
    whole = tl.sum(tl.load(total + part, mask=part < parts, other=0.0) * tl.exp(peaks - peak), 0)
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(updated + i, mask=i < m, other=0.0)
    tl.store(out + i, v - (peak + tl.log(whole)), mask=i < m)


def entry(position, log_weight, landmark, distance, sigma):
    m, k = position.shape[0], landmark.shape[0]
    updated = torch.empty((m,), dtype=torch.float32, device=position.device)
    out = torch.empty((m,), dtype=torch.float32, device=position.device)
    strides = (*position.stride(), *landmark.stride())
    update[(triton.cdiv(m, 1024),)](
        position, log_weight, landmark, distance, updated, m, k, sigma, *strides, BLOCK=1024
    )
    parts = triton.cdiv(m, 4096)
    high = torch.empty((parts,), dtype=torch.float32, device=position.device)
    total = torch.empty((parts,), dtype=torch.float32, device=position.device)
    reduce[(parts,)](updated, high, total, m, BLOCK=4096)
    normalise[(triton.cdiv(m, 4096),)](
        updated, high, total, out, m, parts, BLOCK=4096, PARTS=triton.next_power_of_2(parts)
    )
    return out
