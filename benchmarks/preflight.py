"""Preflight on a real GPU, with faults that are made: what it finds, how long it takes, how often it is wrong.

    python -m benchmarks.preflight [--until 340] [--out FILE]
    TRITON_INTERPRET=1 python -m benchmarks.preflight --device cpu   # that every part works

Made: a kernel beside it that slows products by four percent; one flipped product in 10^15 (drawn for each launch,
one of the four lowest bits); flips on one SM alone; flips above a temperature alone; and copies beside it that take
a part of the host link. The flips are in a build of their own of the same kernel; what finds them is the check
that ships. Good runs are judged against passes of the same GPU. The file is written after every piece, and a
further call continues it, on another GPU or at another commit as well: `parts` says what each call added.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.detect_held_out import commit
from benchmarks.report import RESULTS, environment
from nightshift.kernels.preflight.gpu_tests import QUICK, Flip, GpuRun, GpuTests, Sensors, SweepLaunch, TestLevel
from nightshift.kernels.preflight.verdict import EarlierPass, PreflightState, blind, judged

RATE, SM_RATE, WARM_RATE = 1e-15, 1e-13, 1e-13
"""Flips for each product: on the whole chip, on one SM, and above a temperature."""
SLOWED = 0.04
HISTORY, GOOD = 12, 200
REPEATS = {"slowed": 10, "throttled link": 10, "one in 10^15": 10, "one SM": 6, "only when warm": 2}
SMALL = TestLevel("quick", 3e5, 6.0, 0.2, 0.9, 2, 3, 3600.0)
"""On a CPU; rates are raised by as much as products are fewer."""


class DrawnSensors:
    """A GPU's sensors where there is none: it warms from 30 to 60 °C."""

    def __init__(self) -> None:
        self.began_s = time.monotonic()

    def facts(self) -> Mapping[str, str]:
        return {"serial": "drawn-1", "uuid": "GPU-drawn", "model": "drawn", "driver": "none"}

    def temperature_c(self) -> float:
        return 60.0 - 30.0 * math.exp(-(time.monotonic() - self.began_s) / 1.0)

    def clock_mhz(self) -> float:
        return 1000.0


class Flips:
    """Draws flips: `rate` for each product, on one SM or the whole chip, above a temperature."""

    def __init__(self, rng: np.random.Generator, rate: float, sm: int = -1, above_c: float = -1.0) -> None:
        self.rng, self.rate, self.sm, self.above_c = rng, rate, sm, above_c
        self.made = 0

    def __call__(self, launch: SweepLaunch) -> Flip | None:
        if launch.temperature_c < self.above_c:
            return None
        share = 1.0 / launch.sms if self.sm >= 0 else 1.0
        if self.rng.poisson(launch.products * share * self.rate) == 0:
            return None
        self.made += 1
        place = self.sm if self.sm >= 0 else int(self.rng.integers(launch.programs))
        by = float(self.rng.choice([-1, 1]) * 2 ** self.rng.integers(4))
        after, element = int(self.rng.integers(launch.repeats)), int(self.rng.integers(launch.side**2))
        return Flip(place, self.sm >= 0, after, element, by)


@contextmanager
def beside(work: Callable[[], None], gap_s: Callable[[], float], priority: int = 0) -> Iterator[None]:
    """Work in another stream, again and again, with gaps."""
    stop, device = threading.Event(), torch.cuda.current_device()

    def loop() -> None:
        torch.cuda.set_device(device)  # a thread of its own begins on the first
        stream = torch.cuda.Stream(priority=priority)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            while not stop.is_set():
                work()
                stream.synchronize()
                time.sleep(gap_s())

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        torch.cuda.synchronize()


class Session:
    """The benchmark on one device; what it brings is kept piece by piece."""

    def __init__(self, device: str, out: Path, until_s: float) -> None:
        self.device, self.out, self.until_s, self.began_s = device, out, until_s, time.monotonic()
        self.level = QUICK if device == "cuda" else SMALL
        self.scale = 1.0 if device == "cuda" else QUICK.products / SMALL.products
        self.sensors = self._sensors()
        self.record: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {
            "environment": environment(), "results": {"commit": commit(), "facts": dict(self.sensors.facts())},
        }  # fmt: skip
        self.found: dict[str, Any] = self.record["results"]
        self.part: dict[str, Any] = {"commit": commit(), "facts": dict(self.sensors.facts()), "added": {}}
        self.found.setdefault("parts", []).append(self.part)
        self.gap = [0.036]
        self.rng = np.random.default_rng(len(json.dumps(self.found)))
        earlier = [EarlierPass(**row) for row in self.found.get("history", [])]
        self.passes = [made for made in earlier if made.serial == self.part["facts"]["serial"]]

    def _sensors(self) -> Sensors:
        if self.device == "cpu":
            return DrawnSensors()
        from nightshift.kernels.preflight.node import NvmlSensors, uuids

        return NvmlSensors(uuids()[0])

    def left_s(self) -> float:
        return self.until_s - (time.monotonic() - self.began_s)

    def save(self) -> None:
        self.out.parent.mkdir(parents=True, exist_ok=True)
        made = self.out.with_suffix(".partial")
        made.write_text(json.dumps(self.record, indent=1) + "\n")
        made.replace(self.out)

    def tests(self, flips: Callable[[SweepLaunch], Flip | None] | None = None) -> GpuTests:
        return GpuTests(self.device, self.sensors, self.level, flips)

    # Pieces -------------------------------------------------------------------------------------------------

    def quick(self) -> None:
        """One whole quick test, as a node runs it."""
        began_s, cold_c = time.monotonic(), self.sensors.temperature_c()
        run = self.tests().all()
        self.found["quick"] = {
            "took_s": time.monotonic() - began_s, "parts_s": run.took_s, "wrong": len(run.wrong),
            "suspect": run.suspect, "products": run.products, "memory_bytes": run.memory_bytes,
            "sms": [run.sms_covered, run.sms], "from_c": cold_c, "to_c": run.temperature_c,
            "clock_mhz": run.clock_mhz, "figures": run.figures,
        }  # fmt: skip

    def short(self) -> GpuRun:
        """The figures alone, on a chip kept warm."""
        tests = self.tests()
        tests.level = replace_products(self.level, 0.15 if self.device == "cuda" else 0.1)
        tests.sweep(tests.main, 0.0, tests.level.sweep_s)
        tests.level = self.level
        tests.speeds()
        return tests.run

    def verdict(self, run: GpuRun) -> Any:
        return judged(run, "benchmark", self.passes)

    def history(self) -> None:
        for _ in range(HISTORY):
            run, facts = self.short(), self.sensors.facts()
            made = EarlierPass(
                facts["serial"],
                facts["model"],
                "benchmark",
                run.level,
                run.clock_mhz,
                run.temperature_c,
                run.figures,
            )
            self.passes.append(made)
            self.found.setdefault("history", []).append(asdict(made))

    def good(self) -> None:
        """Good runs until the time is up; the rate of false refusals, counted and stated."""
        fresh = {"runs": 0, "refused": 0, "stated_chance": [], "reasons": [], "blind": {}}
        told = self.found.setdefault("good", fresh)
        while told["runs"] < GOOD and self.left_s() > 3.0:
            self._count("good")
            run = self.short()
            verdict = self.verdict(run)
            told["runs"] += 1
            told["refused"] += verdict.state is not PreflightState.PASSED
            told["reasons"] += verdict.reasons
            told["stated_chance"].append(verdict.chance)
            for name in blind(verdict.readings):
                told["blind"][name] = told["blind"].get(name, 0) + 1
            for reading in verdict.readings:
                told.setdefault("worse", {}).setdefault(reading.name, []).append(round(reading.worse, 5))

    def flips(self, kind: str) -> None:
        rate = {"one in 10^15": RATE, "one SM": SM_RATE, "only when warm": WARM_RATE}[kind] * self.scale
        tests = self.tests()
        sm = int(self.rng.integers(tests.sms)) if kind == "one SM" else -1
        cold_c = self._cooled() if kind == "only when warm" else self.sensors.temperature_c()
        settled_c = self.found["quick"]["to_c"]
        above_c = -1.0
        if kind == "only when warm":
            above_c = float(self.rng.uniform(cold_c + 1, max(cold_c + 2, settled_c - 1)))
        made = Flips(self.rng, rate, sm, above_c)
        tests = self.tests(made)
        began_s = time.monotonic()
        tests.sweep(tests.main, self.level.products, self.level.sweep_s)
        verdict, places = self.verdict(tests.run), {p for w in tests.run.wrong for p in w.places}
        self._add(kind, {
            "found": verdict.state is PreflightState.REFUSED, "took_s": time.monotonic() - began_s,
            "flips_made": made.made,
            "first_s": tests.run.wrong[0].moment_s if tests.run.wrong else None, "reasons": list(verdict.reasons),
            "products": tests.run.products, "sm": sm, "sms_named": sorted(places)[:4], "from_c": cold_c,
            "above_c": above_c, "to_c": tests.run.temperature_c,
        })  # fmt: skip

    def _cooled(self) -> float:
        """Waits until the chip is well below its settled temperature, 25 s at most."""
        until_s = time.monotonic() + (25.0 if self.device == "cuda" else 0.0)
        if isinstance(self.sensors, DrawnSensors):
            self.sensors.began_s = time.monotonic()
        while time.monotonic() < until_s and self.sensors.temperature_c() > self.found["quick"]["from_c"] + 4:
            time.sleep(0.5)
        return self.sensors.temperature_c()

    def slowed(self) -> None:
        """A kernel of another stream, which the GPU prefers, holds it for four percent of the time."""
        a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
        c = torch.empty_like(a)
        count, share, tests = [0], 0.0, self.tests()

        def work() -> None:
            torch.mm(a, a, out=c)
            count[0] += 1

        work()
        burst_s = sorted(tests.timed(work) for _ in range(9))[4]
        with beside(work, lambda: self.gap[0], priority=-1):
            for _ in range(6):
                count[0], began_s = 0, time.monotonic()
                tests.sweep(tests.main, 0.0, 1.0)
                share = count[0] * burst_s / (time.monotonic() - began_s)
                if abs(share - SLOWED) < 0.004:
                    break
                self.gap[0] = float(np.clip(self.gap[0] * share / SLOWED, 2e-4, 0.2))
            count[0], began_s = 0, time.monotonic()
            verdict = self.verdict(self.short())
        self._add("slowed", {
            "found": verdict.state is PreflightState.REFUSED, "held_share": share, "burst_s": burst_s,
            "gap_s": self.gap[0],
            "reasons": list(verdict.reasons), "worse": {r.name: r.worse for r in verdict.readings},
        })  # fmt: skip

    def link(self) -> None:
        """Copies of another stream in one direction, without a pause: both share the link."""
        size = 1 << int(self.rng.integers(25, 29))
        host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        there = torch.empty(size, dtype=torch.uint8, device="cuda")
        to_gpu = bool(self.rng.integers(2))

        def work() -> None:
            for _ in range(4):
                there.copy_(host, non_blocking=True) if to_gpu else host.copy_(there, non_blocking=True)

        with beside(work, lambda: 0.0):
            verdict = self.verdict(self.short())
        self._add("throttled link", {
            "found": verdict.state is PreflightState.REFUSED, "to_gpu": to_gpu, "bytes": size,
            "reasons": list(verdict.reasons), "worse": {r.name: r.worse for r in verdict.readings},
        })  # fmt: skip

    def _count(self, kind: str) -> None:
        self.part["added"][kind] = self.part["added"].get(kind, 0) + 1

    def _add(self, kind: str, row: dict[str, Any]) -> None:
        self._count(kind)
        self.found.setdefault("made", {}).setdefault(kind, []).append(row)
        print(f"[{time.monotonic() - self.began_s:.0f} s] {kind}: {row}", flush=True)

    def pieces(self) -> Iterator[tuple[str, Callable[[], None], float]]:
        """What is not done yet: name, work, and about how long it takes (s)."""
        made = self.found.get("made", {})
        if "quick" not in self.found:
            yield "quick", self.quick, 60.0 if self.device == "cuda" else 10.0
        if len(self.passes) < HISTORY:
            yield "history", self.history, 20.0
        if "good" in self.found:  # the rest of an earlier call's
            yield "good", self.good, 3.0
        sweep_s, cool_s = (20.0, 60.0) if self.device == "cuda" else (4.0, 8.0)
        works: dict[str, tuple[Callable[[], None], float]] = {
            "slowed": (self.slowed, 6.0),
            "throttled link": (self.link, 3.0),
            "one in 10^15": (partial(self.flips, "one in 10^15"), sweep_s),
            "one SM": (partial(self.flips, "one SM"), sweep_s),
            "only when warm": (partial(self.flips, "only when warm"), cool_s),
        }
        for kind, (work, about_s) in works.items():
            if self.device == "cpu" and kind in ("slowed", "throttled link"):
                continue  # there is no stream beside, and no link
            for _ in range(REPEATS[kind] - len(made.get(kind, []))):
                yield kind, work, about_s
        yield "good", self.good, 3.0

    def run(self) -> None:
        for name, work, about_s in self.pieces():
            if (name != "quick" and "quick" not in self.found) or self.left_s() < about_s:
                continue
            work()
            self.summary()
            self.save()
            print(f"[{time.monotonic() - self.began_s:.0f} s] {name} done", flush=True)
        self.found["spent_s"] = self.found.get("spent_s", 0.0) + time.monotonic() - self.began_s
        self.save()

    def summary(self) -> None:
        made = self.found.get("made", {})
        counts = {kind: [sum(row["found"] for row in rows), len(rows)] for kind, rows in made.items()}
        right, of = (sum(c[n] for c in counts.values()) for n in (0, 1))
        self.found["found"] = counts | {"all": right / of if of else math.nan}
        if good := self.found.get("good"):
            from scipy.stats import beta

            n, k = good["runs"], good["refused"]
            bound = float(beta.ppf(0.95, k + 1, n - k)) if n > k else 1.0
            good["upper_95"], good["stated_worst_chance"] = bound, max(good["stated_chance"], default=math.nan)


def replace_products(level: TestLevel, sweep_s: float) -> TestLevel:
    return level._replace(sweep_s=sweep_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--until", type=float, default=340.0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    name = "preflight" if given.device == "cuda" else "preflight_interpreter"
    if given.device == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        parser.error("--device cpu needs TRITON_INTERPRET=1")
    Session(given.device, given.out or RESULTS / f"{name}.json", given.until).run()


if __name__ == "__main__":
    main()
