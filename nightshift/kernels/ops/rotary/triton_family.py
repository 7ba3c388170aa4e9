"""Rotary embedding: positions in tiles whose cosines and sines are read once for several heads.

Interleaved pairs lie in one thread's vector, so they are parted and joined in registers. Halves are two coalesced
vectors. The rotation of q and k is one launch; it may write into its inputs ("in_place"), as Liger's does.
"""

from __future__ import annotations

from nightshift.kernels.generate.base import Config
from nightshift.kernels.generate.rows import POLICIES, STORES
from nightshift.kernels.generate.space import Space
from nightshift.kernels.generate.template import render
from nightshift.kernels.problem import Case

PAIRS = """
import torch
import triton
import triton.language as tl


@triton.jit
def rotate(x, cos, sin, out, s, half, heads$more, TILE: tl.constexpr, HALF: tl.constexpr, HEADS: tl.constexpr):
    place = tl.program_id(0) * TILE + tl.arange(0, TILE)[:, None]
    pair = tl.arange(0, HALF)[None, :]
    column = tl.arange(0, 2 * HALF)[None, :]
    known = (place < s) & (pair < half)
    inside = (place < s) & (column < 2 * half)
    c = tl.load(cos + place * half + pair, mask=known, other=0.0).to(tl.float32)
    d = tl.load(sin + place * half + pair, mask=known, other=0.0).to(tl.float32)
    for turn in tl.static_range(HEADS):
        head = tl.program_id(1) * HEADS + turn
$at
        live = inside & (head + 0 * place < heads)
        v = tl.load(x + at, mask=live, other=0.0$load).to(tl.float32)
        even, odd = tl.split(tl.reshape(v, (TILE, HALF, 2)))
        y = $turned
        y = tl.reshape(y, (TILE, 2 * HALF)).to(out.dtype.element_ty)
        tl.store(out + at, y, mask=live$store)


def entry(x, cos, sin):
    $shape = x.shape
    $outputs
    if out.numel():
        half = triton.next_power_of_2(d // 2)
        grid = (triton.cdiv(s, $tile), triton.cdiv(b * h, $heads))
        rotate[grid](
            x, cos, sin, out, s, d // 2, b * h$given, TILE=$tile, HALF=half, HEADS=$heads, num_warps=$warps
        )
    $result
"""

HALVES = """
import torch
import triton
import triton.language as tl


@triton.jit
def rotate(
    q, k, cos, sin, q_out, k_out, s, half, q_heads, heads$more,
    TILE: tl.constexpr, HALF: tl.constexpr, HEADS: tl.constexpr,
):
    place = tl.program_id(0) * TILE + tl.arange(0, TILE)[:, None]
    column = tl.arange(0, HALF)[None, :]
    inside = (place < s) & (column < half)
    low = place * (2 * half) + column
    c0 = tl.load(cos + low, mask=inside, other=0.0).to(tl.float32)
    c1 = tl.load(cos + low + half, mask=inside, other=0.0).to(tl.float32)
    d0 = tl.load(sin + low, mask=inside, other=0.0).to(tl.float32)
    d1 = tl.load(sin + low + half, mask=inside, other=0.0).to(tl.float32)
    for turn in tl.static_range(HEADS):
        head = tl.program_id(1) * HEADS + turn
        queries = head < q_heads
        x = q if queries else k$of
        out = q_out if queries else k_out
        number = head if queries else head - q_heads
$at
        live = inside & (head + 0 * place < heads)
        a = tl.load(x + at, mask=live, other=0.0$load).to(tl.float32)
        b = tl.load(x + at + half, mask=live, other=0.0$load).to(tl.float32)
        first = ($first).to(out.dtype.element_ty)
        second = ($second).to(out.dtype.element_ty)
        tl.store(out + at, first, mask=live$store)
        tl.store(out + at + half, second, mask=live$store)


def entry(q, k, cos, sin):
    $shape = q.shape
    g = k.shape[$heads_at]
    $outputs
    if s:
        grid = (triton.cdiv(s, $tile), triton.cdiv(b * (h + g), $heads))
        rotate[grid](
            q, k, cos, sin, q_out, k_out, s, d // 2, b * h, b * (h + g)$given,
            TILE=$tile, HALF=triton.next_power_of_2(d // 2), HEADS=$heads, num_warps=$warps,
        )
    $result
"""
_AHEAD = {"turned": "tl.join(even * c - odd * d, even * d + odd * c)"}
_BACK = {"turned": "tl.join(even * c + odd * d, odd * c - even * d)"}
_PAIRS_BY_HEAD = {
    "shape": "b, h, s, d",
    "more": "",
    "given": "",
    "at": "        at = (head.to(tl.int64) * s + place) * (2 * half) + column",
}
_PAIRS_BY_POSITION = {
    "shape": "b, s, h, d",
    "more": ", h",
    "given": ", h",
    "at": "        at = (((head // h).to(tl.int64) * s + place) * h + head % h) * (2 * half) + column",
}
TURNED = {
    "rotary_interleaved": {**_AHEAD, **_PAIRS_BY_HEAD},
    "rotary_interleaved_backward": {**_BACK, **_PAIRS_BY_HEAD},
    "rotary_interleaved_by_position": {**_AHEAD, **_PAIRS_BY_POSITION},
    "rotary_interleaved_by_position_backward": {**_BACK, **_PAIRS_BY_POSITION},
}
NEW = "q_out, k_out = torch.empty_like(q), torch.empty_like(k)"
FORWARD = {"first": "a * c0 - b * d0", "second": "b * c1 + a * d1"}
BACKWARD = {"first": "a * c0 + b * d1", "second": "b * c1 - a * d0"}
BY_HEAD = {
    "shape": "b, h, s, d",
    "heads_at": "1",
    "more": "",
    "given": "",
    "of": "",
    "at": "        at = number.to(tl.int64) * s * (2 * half) + low",
}
BY_POSITION = {
    "shape": "b, s, h, d",
    "heads_at": "2",
    "more": ", h, g",
    "given": ", h, g",
    "of": "\n        wide = tl.where(queries, h, g).to(tl.int64)",
    "at": "        at = ((number // wide * s + place) * wide + number % wide) * (2 * half) + column",
}
"""Where a head's values lie: together, or position by position between those of the others."""
TURNED_HALVES = {
    "rotary_half": {**FORWARD, **BY_HEAD},
    "rotary_half_backward": {**BACKWARD, **BY_HEAD},
    "rotary_half_by_position": {**FORWARD, **BY_POSITION},
    "rotary_half_by_position_backward": {**BACKWARD, **BY_POSITION},
}


class Rotary:
    name = "rotary"
    problems = (*TURNED, *TURNED_HALVES)

    def space(self, problem: str, case: Case) -> Space:
        # pairs lie in one vector of the head's width; of halves a thread holds both, each of half the width
        width = case["d"] if problem in TURNED else case["d"] // 2

        def admits(config: Config) -> bool:
            held = int(config["tile"]) * width / (32 * int(config["warps"]))
            return 4 <= held <= 32

        return Space.of(
            admits,
            tile=(4, 8, 16, 32, 64),
            heads=(1, 2, 4),
            warps=(2, 4, 8),
            load=POLICIES,
            store=STORES,
            place=("new",) if "position" in problem else ("new", "in_place"),
        )

    def source(self, problem: str, case: Case, config: Config) -> str:
        pairs, written = problem in TURNED, config["place"] == "in_place"
        new, old = ("out = torch.empty_like(x)", "out = x") if pairs else (NEW, "q_out, k_out = q, k")
        result = "return out" if pairs else "return q_out, k_out"
        values = {**config, "outputs": old if written else new, "result": "" if written else result}
        values |= TURNED[problem] if pairs else TURNED_HALVES[problem]
        keys = {"bounds": "d 2..512 /2", "mutates": ("0" if pairs else "0 1") if written else ""}
        kind = "in_place" if written else "own_kernel"
        body = PAIRS if pairs else HALVES
        return render(problem, body, values, kind=kind, layouts="contiguous offset", keys=keys, like=case)
