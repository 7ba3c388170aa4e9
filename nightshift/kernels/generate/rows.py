"""What families of row operations share: how rows are dealt out to programs, and how memory is asked for.

A program takes `rows` whole rows at a time. waves = 0: one program for each such tile; else a persistent grid of
`waves` programs for each multiprocessor, which walk the tiles with `stages` loads in flight. load and store are
eviction hints: data that is used once need not push anything else out of L2. Where every tile is whole there are
no masks, and a program that has one tile asks for its rows before it asks for the weights.
"""

from __future__ import annotations

import string

from nightshift.kernels.generate.base import Config, Value
from nightshift.kernels.generate.bulk import SHARED_BYTES
from nightshift.kernels.generate.space import Space
from nightshift.kernels.problem import Case

ROW_HOST = """tiles = triton.cdiv(m, $rows)
        units = torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else 2
        programs = min(tiles, $waves * units) if $waves else tiles
        even = m % $rows == 0 and n == triton.next_power_of_2(n)"""
"""Sets `programs` and `even` from `m` and `n`: host lines of an entry."""
MASKS = """if EVEN:
            inside = tl.full((ROWS, BLOCK), True, tl.int1)
        else:
            inside = (row < m) & (column < n)"""

SUMMING_HOST = "programs = max(min(triton.cdiv(m, $rows), $waves * units), triton.cdiv(m, $rows * 256))"
"""Sets `programs` from `m` where each of them sums over its rows: a grid of `waves`, but no more than 256 additions
one after the other, whose errors would grow with the number of rows."""

POLICIES = ("", "evict_first")
STORES = (*POLICIES, "streaming")


_HELD = 128
"""Values of a row that a thread holds at most: beyond, registers spill, and ptxas takes half a minute for 512."""


def row_bounds(config: Config, case: Case, row_bytes: int, widest: int = 32768) -> str:
    """The rows that a configuration is offered for: what it has in flight lies in shared memory, what a thread
    holds in registers. row_bytes: of all tensors in flight, for each column."""
    rows, warps, stages = (int(config[k]) for k in ("rows", "warps", "stages"))
    flying = stages * rows * row_bytes if int(config["waves"]) and stages > 1 else 0
    while widest > case["n"] and (flying * widest > SHARED_BYTES or rows * widest > 32 * warps * _HELD):
        widest //= 2
    return f"n 1..{max(widest, case['n'])}"


def row_space(case: Case, registers: int = 96, name: str = "n") -> Space:
    """Tiles whose values fit the registers: at most `registers` of 32 bits a thread, at least 2."""
    width = _width(case[name])

    def admits(config: Config) -> bool:
        rows, warps, waves, stages = (int(config[k]) for k in ("rows", "warps", "waves", "stages"))
        held = rows * width / (32 * warps)
        # only a persistent program has a loop whose loads can be in flight ahead
        return 4 <= held <= registers and (waves > 0 or stages == 1)

    return Space.of(
        admits,
        rows=(1, 2, 4),
        warps=(1, 2, 4, 8, 16),
        waves=(0, 4, 8),
        stages=(1, 3),
        load=POLICIES,
        store=STORES,
    )


LOOP = "for turn in tl.range(tl.program_id(0), tl.cdiv(m, ROWS), tl.num_programs(0), num_stages=STAGES):"
ONCE = """turn = tl.program_id(0)
    if STAGES > 0:"""


def row_values(config: Config, weights: str = "") -> dict[str, Value]:
    """The placeholders of a row kernel's body: the configuration, `grid` (host lines that set `programs`), `walk`
    (the loop over tiles, or none where each program has one) and `masks`; `before` or `after` the first rows are
    asked for come the `weights` (name and pointer, by words), as float32."""
    loads = [
        f"{name} = tl.load({pointer} + column, mask=known, other=0.0).to(tl.float32)"
        for name, pointer in (word.split(":") for word in weights.split())
    ]
    known = "known = tl.full((1, BLOCK), True, tl.int1) if EVEN else column < n"
    lines = [known, *loads] if loads else []
    looped = bool(config["waves"])
    return {
        **config,
        "grid": string.Template(ROW_HOST).substitute(config),
        "walk": LOOP if looped else ONCE,
        "masks": MASKS,
        "before": "\n    ".join(lines) if looped else "",
        "after": "" if looped else "\n        ".join(lines),
    }


def carry(config: Config, neighbour: Case, case: Case) -> Config:
    """A row family's configuration for rows of another width: as many values a thread as before."""
    if not {"rows", "warps", "waves"} <= set(config) or "n" not in neighbour.sizes or "n" not in case.sizes:
        return config
    factor = _width(case["n"]) / _width(neighbour["n"])
    return {**config, "warps": min(16, max(1, round(int(config["warps"]) * factor)))}


def _width(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()
