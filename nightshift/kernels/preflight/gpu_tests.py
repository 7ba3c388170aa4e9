"""The tests of one GPU: products with a known answer, memory patterns, and how fast both, and the host link, are.

Everything runs at the clocks as they are. A figure that time alone would blur (a clock that follows power) is
counted in the SM's own cycles. With `TRITON_INTERPRET=1` the same code runs on a CPU, in sizes for that.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch

from nightshift.kernels.preflight.candidates.pattern_check import BLOCK, pattern_check, pattern_fill
from nightshift.kernels.preflight.candidates.product_sweep import product_sweep

SETTLED_C, SETTLED_S = 1.0, 5.0
"""A GPU is warm once its temperature rises by less than this in so long."""
MOST_WRONG = 64
BURST = 10
"""Copies to one reading of memory's speed."""


class Sensors(Protocol):
    """What a GPU says of itself while it is tested."""

    def facts(self) -> Mapping[str, str]:
        """serial, uuid, model, driver."""
        ...

    def temperature_c(self) -> float: ...

    def clock_mhz(self) -> float: ...


class TestLevel(NamedTuple):
    """How much is tested. `products`: at least so many in 16 bits, `sweep_s` at most; `memory`: share of what is
    free; `valid_s`: how long a pass counts."""

    name: str
    products: float
    sweep_s: float
    other_s: float
    memory: float
    patterns: int
    repeats: int
    valid_s: float


QUICK = TestLevel("quick", 4.7e15, 40.0, 2.0, 0.9, 2, 7, 24 * 3600.0)
"""4.7·10¹⁵ products: one flip in 10¹⁵ is met with 99 %."""
LONG = TestLevel("long", 2e17, 600.0, 60.0, 0.97, 12, 25, 30 * 24 * 3600.0)
LEVELS = {level.name: level for level in (QUICK, LONG)}


class SweepLaunch(NamedTuple):
    """One launch of the sweep: what a made fault may go by."""

    products: float
    programs: int
    repeats: int
    side: int
    sms: int
    temperature_c: float


class Flip(NamedTuple):
    """A made fault: in the program (or on the SM) `place`, after so many repeats, one element is off by `by`."""

    place: int
    by_sm: bool
    after: int
    element: int
    by: float


@dataclass(frozen=True, slots=True)
class Wrong:
    """Bits that were not as they must be. `places`: SM → how many; `moment_s`: after the test began."""

    check: str
    count: int
    places: Mapping[int, int]
    temperature_c: float
    moment_s: float


@dataclass
class GpuRun:
    """What one test of one GPU brought. `figures`: see `FIGURES`; `suspect`: the test is wrong, and not the GPU."""

    facts: Mapping[str, str]
    level: str
    wrong: list[Wrong] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    temperature_c: float = math.nan
    clock_mhz: float = math.nan
    products: dict[str, float] = field(default_factory=dict)
    memory_bytes: int = 0
    sms: int = 0
    sms_covered: int = 0
    suspect: str = ""
    took_s: dict[str, float] = field(default_factory=dict)


class FigureKind(NamedTuple):
    """How a figure is read. `sign`: +1 where more is worse. `least`: a change that is never refused (ratio)."""

    unit: str
    sign: int
    least: float
    words: str


FIGURES: dict[str, FigureKind] = {
    "product_cycles": FigureKind("cycles", 1, 0.015, "Matrix products, cycles of the median SM"),
    "product_wall": FigureKind("ratio", 1, 0.015, "Matrix products, wall time over time on the SMs"),
    "slowest_sm": FigureKind("ratio", 1, 0.03, "Matrix products, slowest SM over the median"),
    "vector_cycles": FigureKind("cycles", 1, 0.02, "float32 products, cycles of the median SM"),
    "memory_bytes_per_s": FigureKind("B/s", -1, 0.02, "GPU memory, copy"),
    "to_gpu_bytes_per_s": FigureKind("B/s", -1, 0.06, "Host to GPU"),
    "to_host_bytes_per_s": FigureKind("B/s", -1, 0.06, "GPU to host"),
    "peer_bytes_per_s": FigureKind("B/s", -1, 0.05, "GPU to GPU"),
    "all_reduce_bytes_per_s": FigureKind("B/s", -1, 0.10, "All-reduce, bus bandwidth"),
    "disk_write_bytes_per_s": FigureKind("B/s", -1, 0.5, "Disk, write"),
    "disk_read_bytes_per_s": FigureKind("B/s", -1, 0.5, "Disk, read"),
    "network_bits_per_s": FigureKind("bit/s", -1, 0.01, "Network links, stated speed"),
}


class Tile(NamedTuple):
    """Sides of the tiles of one kind of products, programs to an SM, and repeats to a launch."""

    side: int
    depth: int
    to_sm: int
    repeats: int


class GpuTests:
    """The tests of one GPU, each on its own. `flips`: faults that are made, for benchmarks and tests."""

    def __init__(
        self,
        device: str,
        sensors: Sensors,
        level: TestLevel,
        flips: Callable[[SweepLaunch], Flip | None] | None = None,
    ) -> None:
        self.device, self.sensors, self.level, self._flips = torch.device(device), sensors, level, flips
        self.on_gpu = self.device.type == "cuda"
        self.sms = torch.cuda.get_device_properties(self.device).multi_processor_count if self.on_gpu else 4
        # Triton's interpreter multiplies bfloat16 as if its bits were integers
        self.main = torch.bfloat16 if self.on_gpu else torch.float16
        self.run = GpuRun(sensors.facts(), level.name, sms=self.sms)
        self._began_s = time.monotonic()
        self._covered: set[int] = set()

    # All together -------------------------------------------------------------------------------------------

    def all(self) -> GpuRun:
        """Every test; ends early where bits are wrong: no speed matters then."""
        held = self.part("memory_fill", self.fill)
        self.part("products", lambda: self.sweep(self.main, self.level.products, self.level.sweep_s))
        for dtype in (torch.float16, torch.float32):
            if not self.run.wrong:
                self.part(f"products_{str(dtype)[6:]}", partial(self.sweep, dtype, 0.0, self.level.other_s))
        self.part("memory_check", partial(self.check, held))
        held.clear()
        if self.on_gpu:
            torch.cuda.empty_cache()
        if not self.run.wrong:
            self.speeds()
        return self.run

    def speeds(self) -> None:
        """The figures that are compared with history."""
        self.part("speed", self.product_speed)
        self.part("memory_speed", self.memory_speed)
        self.part("host_link", self.host_link)

    def part(self, name: str, test: Callable[[], Any]) -> Any:
        began_s = time.monotonic()
        found = test()
        self.run.took_s[name] = time.monotonic() - began_s
        return found

    # Products -----------------------------------------------------------------------------------------------

    def tile(self, dtype: torch.dtype) -> Tile:
        if not self.on_gpu:
            return Tile(16, 16, 1, 2)
        return Tile(64, 32, 2, 8192) if dtype is torch.float32 else Tile(128, 128, 2, 16384)

    def sweep(self, dtype: torch.dtype, products: float, most_s: float) -> float:
        """Products until so many are done and the GPU is warm, or the time is up; returns how many.

        One launch is under way while the one before is read, so the matrix units never wait for the host."""
        tile, name = self.tile(dtype), f"products {str(dtype)[6:]}"
        data = operands(dtype, tile, self.device)
        each = float(self.sms * tile.to_sm) * tile.side**2 * tile.depth * tile.repeats
        done, began_s, warm = 0.0, time.monotonic(), Warmth()
        ahead: list[tuple[torch.Tensor, torch.Tensor, float]] = []
        clocks = []
        for turn in range(1 << 30):
            now_s, heat = time.monotonic(), self.sensors.temperature_c()
            settled = warm.settled(now_s, heat)
            enough = 0 < products <= done and settled
            if turn and (enough or now_s - began_s >= most_s or self._seen_enough(name)):
                break
            ahead.append((*self._launch(dtype, tile, data, turn, each, heat), heat))
            clocks.append(self.sensors.clock_mhz())
            if len(ahead) > 1 and self._read(name, turn - 1, *ahead.pop(0)):
                break
            done += each
        for left in ahead:
            self._read(name, -1, *left)
        self.run.products[name] = self.run.products.get(name, 0.0) + done
        self.run.temperature_c = self.sensors.temperature_c()
        if dtype is self.main:
            self.run.clock_mhz = sorted(clocks)[len(clocks) // 2]
        self.run.sms_covered = len(self._covered)
        return done

    def _launch(
        self, dtype: torch.dtype, tile: Tile, data: Operands, turn: int, products: float, heat: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        flip = None
        if self._flips is not None:
            flip = self._flips(
                SweepLaunch(products, self.sms * tile.to_sm, tile.repeats, tile.side, self.sms, heat)
            )
        counts = self._counts(tile)
        self._run(tile, data, turn, counts, flip)
        return counts.wrong, counts.sm

    def _counts(self, tile: Tile) -> Counts:
        programs = self.sms * tile.to_sm
        made = [torch.zeros(programs, dtype=kind, device=self.device) for kind in (torch.int32, torch.int64) * 2]
        return Counts(made[0], made[2], made[1], made[3])

    def _run(self, tile: Tile, data: Operands, turn: int, counts: Counts, flip: Flip | None = None) -> None:
        made, side = flip or Flip(0, False, 0, 0, 0.0), tile.side
        product_sweep[(len(counts.wrong),)](
            *data, *counts, tile.repeats, turn, len(data.a), side, side, tile.depth, made.place, made.after,
            made.element, made.by, M=side, N=side, K=tile.depth, ON_GPU=self.on_gpu, FLIP=flip is not None,
            FLIP_BY_SM=made.by_sm, num_warps=8,
        )  # fmt: skip

    def _read(self, name: str, turn: int, wrong: torch.Tensor, sm: torch.Tensor, heat: float) -> bool:
        """Takes a launch's counts in; whether nearly everything was wrong at once: that is the test's fault."""
        counts, places = wrong.tolist(), sm.tolist()
        self._covered.update(places)
        bad = [(place, count) for place, count in zip(places, counts, strict=True) if count]
        if not bad:
            return False
        if len(bad) > len(counts) // 2:
            self.run.suspect = f"{name}: {len(bad)} of {len(counts)} programs are wrong in one launch"
            return True
        by: dict[int, int] = {}
        for place, count in bad:
            by[place] = by.get(place, 0) + count
        moment_s = time.monotonic() - self._began_s
        self.run.wrong.append(Wrong(name, sum(by.values()), by, heat, moment_s))
        return False

    def _seen_enough(self, name: str) -> bool:
        """Further errors for a second after the first: they say whether one SM makes them all."""
        mine = [wrong for wrong in self.run.wrong if wrong.check == name]
        late = bool(mine) and time.monotonic() - self._began_s > mine[0].moment_s + 1.0
        return late or len(mine) >= MOST_WRONG

    def product_speed(self) -> None:
        """Cycles of a tile on each SM, and wall time over the time on the SMs: what else runs on the GPU shows in
        the one or in the other. Neither moves with the clock. Warm from the sweep before."""
        for dtype, name in ((self.main, "product_cycles"), (torch.float32, "vector_cycles")):
            tile = self.tile(dtype)
            data = operands(dtype, tile, self.device)
            series = [self._counts(tile) for _ in range(3 * self.level.repeats)]
            self._run(tile, data, 0, series[0])
            wall_s = self.timed(partial(self._run_all, tile, data, series))
            per = []
            for counts in series:
                heat_c = self.sensors.temperature_c()
                self._read(f"products {str(dtype)[6:]}", -1, counts.wrong, counts.sm, heat_c)
                by: dict[int, list[float]] = {}
                for place, value in zip(counts.sm.tolist(), counts.cycles.tolist(), strict=True):
                    by.setdefault(place, []).append(value / tile.repeats)
                per.append({place: sum(values) / len(values) for place, values in by.items()})
            middle = [_median(list(launch.values())) for launch in per]
            self.run.figures[name] = sum(middle) / len(middle)
            if name == "product_cycles":
                pairs = zip(per, middle, strict=True)
                ratios = [max(launch.values()) / mid if mid else 1.0 for launch, mid in pairs]
                self.run.figures["slowest_sm"] = _median(ratios)
                on_sms_s = sum(float(counts.nanoseconds.max()) for counts in series) / 1e9
                self.run.figures["product_wall"] = wall_s / on_sms_s if on_sms_s else 1.0

    def _run_all(self, tile: Tile, data: Operands, series: list[Counts]) -> None:
        for turn, counts in enumerate(series):
            self._run(tile, data, turn, counts)

    # Memory -------------------------------------------------------------------------------------------------

    def fill(self) -> list[tuple[torch.Tensor, int]]:
        """Writes patterns over most of the free memory: (words, seed) by block. They stay while products heat
        it."""
        free = torch.cuda.mem_get_info(self.device)[0] if self.on_gpu else 1 << 16
        left, piece = int(free * self.level.memory), 1 << 32 if self.on_gpu else 1 << 15
        blocks: list[tuple[torch.Tensor, int]] = []
        while left >= BLOCK * 4:
            count = min(left, piece) // 4
            blocks.append((torch.empty(count, dtype=torch.int32, device=self.device), len(blocks) + 1))
            left -= count * 4
        for words, seed in blocks:
            self._fill(words, seed)
        self.run.memory_bytes = sum(4 * words.numel() for words, _ in blocks)
        return blocks

    def _fill(self, words: torch.Tensor, seed: int) -> None:
        pattern_fill[(-(-words.numel() // BLOCK),)](words, words.numel(), seed, SIZE=BLOCK, num_warps=8)

    def check(
        self, blocks: list[tuple[torch.Tensor, int]], spoil: Callable[[torch.Tensor], None] | None = None
    ) -> None:
        """Reads the patterns back; then others, so that each bit was 0 and 1. `spoil`: for tests."""
        for turn in range(self.level.patterns):
            for words, seed in blocks:
                mine = seed + 1000 * turn
                if turn:
                    self._fill(words, mine)
                if spoil is not None:
                    spoil(words)
                count = words.numel()
                wrong = torch.empty(-(-count // BLOCK), dtype=torch.int32, device=self.device)
                at = torch.tensor([mine], dtype=torch.int32, device=self.device)
                pattern_check[(len(wrong),)](words, wrong, count, at, SIZE=BLOCK, num_warps=8)
                total, bad = int(wrong.sum()), torch.nonzero(wrong).flatten().tolist()
                if len(bad) > len(wrong) // 2:
                    self.run.suspect = f"memory: {len(bad)} of {len(wrong)} blocks are wrong at once"
                    return
                if total:
                    moment_s, heat = time.monotonic() - self._began_s, self.sensors.temperature_c()
                    self.run.wrong.append(Wrong("memory", total, dict.fromkeys(bad[:8], 1), heat, moment_s))

    def memory_speed(self) -> None:
        size = 1 << 30 if self.on_gpu else 1 << 16
        source, to = (torch.empty(size, dtype=torch.uint8, device=self.device).zero_() for _ in range(2))
        self.run.figures["memory_bytes_per_s"] = 2 * size / self._usual_s(lambda: to.copy_(source), BURST)

    def host_link(self) -> None:
        if not self.on_gpu:
            return
        size = 1 << 28
        host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        there = torch.empty(size, dtype=torch.uint8, device=self.device)
        for name, to, of in (("to_gpu_bytes_per_s", there, host), ("to_host_bytes_per_s", host, there)):
            self.run.figures[name] = size / self._usual_s(partial(to.copy_, of, non_blocking=True), 1)

    def _usual_s(self, work: Callable[[], Any], burst: int) -> float:
        """Seconds of one piece of work: the lower quartile over bursts. A hiccup of the host lengthens a few, and
        a fault all."""
        work()
        taken = [self.timed(lambda: [work() for _ in range(burst)]) for _ in range(2 * self.level.repeats)]
        return sorted(taken)[len(taken) // 4] / burst

    def timed(self, work: Callable[[], Any]) -> float:
        """Seconds of work on the GPU, by its own events."""
        if not self.on_gpu:
            began_s = time.perf_counter()
            work()
            return time.perf_counter() - began_s
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        work()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3


class Counts(NamedTuple):
    """What a launch says of each of its programs."""

    wrong: torch.Tensor
    sm: torch.Tensor
    cycles: torch.Tensor
    nanoseconds: torch.Tensor


class Operands(NamedTuple):
    """a: (s, m, k), b: (s, k, n), expected: (s, m, n)."""

    a: torch.Tensor
    b: torch.Tensor
    expected: torch.Tensor


PATTERNS = 8


def operands(dtype: torch.dtype, tile: Tile, device: torch.device) -> Operands:
    """Half of the patterns hold few bits, and sums that grow; the others need all bits of a product, and their
    sums cancel: each partial sum stays an integer below 2²⁴."""
    draw = torch.Generator().manual_seed(1)

    def whole(reach: int, *shape: int) -> torch.Tensor:
        return torch.randint(-reach, reach + 1, shape, generator=draw).to(torch.float64)

    pairs = []
    for number in range(PATTERNS):
        half = tile.depth // 2
        if number % 2:
            x, y = whole(127, tile.side, half), whole(127, half, tile.side)
            pairs.append((torch.cat((x, x), 1), torch.cat((y, -y), 0)))
        else:
            pairs.append((whole(3, tile.side, tile.depth), whole(3, tile.depth, tile.side)))
    a, b = (torch.stack(parts) for parts in zip(*pairs, strict=True))
    expected = a @ b
    assert float(expected.abs().max()) * tile.repeats < 1 << 24
    return Operands(a.to(device, dtype), b.to(device, dtype), expected.to(device, torch.float32))


class Warmth:
    """Whether a temperature has settled."""

    def __init__(self) -> None:
        self._known: list[tuple[float, float]] = []

    def settled(self, now_s: float, heat_c: float) -> bool:
        self._known.append((now_s, heat_c))
        while now_s - self._known[0][0] > SETTLED_S:
            if heat_c - self._known[0][1] <= SETTLED_C:
                return True
            self._known.pop(0)
        return math.isnan(heat_c)


def _median(values: list[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else math.nan
