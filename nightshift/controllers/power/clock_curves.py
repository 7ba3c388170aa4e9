"""What a lower SM clock does to a job: made-up curves, over the clock as a share of its highest.

A kernel computes at the clock's pace and waits for memory at the memory's, as long as the SMs issue enough requests
to keep it busy; below a knee that too goes at the clock's pace. (That a kernel's time has a core side and a memory
side, and that the latter feels the core's clock too: Q. Wang, X. Chu, "GPGPU Performance Estimation with Core and
Memory Frequency Scaling", IEEE TPDS 31(12), 2020, pp. 2865-2881; the form here is a plainer one.) Its draw is
static and memory power, and dynamic power that falls with the clock to a voltage floor's power of one. Drawn wide
(domain randomisation): no curve of clocks is measured here.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np

from nightshift.controllers.power import descent
from nightshift.controllers.power.belief import STEEP, Bank
from nightshift.controllers.power.curves import Curve, monotone

FLOOR = 0.30


def synthetic_clocks(count: int, rng: np.random.Generator, noise: float = 0.01) -> list[Curve]:
    """Curves whose `limit_w` is the clock's share (0.3 to 1), and draw a share of the highest power limit."""
    curves = []
    for number in range(count):
        clock = np.linspace(FLOOR, 1.0, int(rng.integers(8, 16)))
        kernels = int(rng.integers(1, 4))
        share, host = rng.dirichlet(np.ones(kernels)), rng.choice([0.0, rng.uniform(0.0, 0.6)])
        static, peak = rng.uniform(0.08, 0.25), rng.uniform(0.35, 0.95)
        power_of, voltage_floor = rng.uniform(1.5, 3.0), rng.uniform(0.3, 0.7)
        time, energy = np.full(len(clock), host), np.full(len(clock), host * static)
        for w, compute in zip(share, rng.beta(0.8, 1.2, kernels), strict=True):
            knee = rng.uniform(0.3, 0.9)
            took = (1.0 - host) * w * (compute / clock + (1.0 - compute) * np.maximum(1.0, knee / clock))
            memory = rng.uniform(0.1, 0.5) * (1.0 - compute) * np.minimum(1.0, clock / knee)
            dynamic = np.maximum(clock, voltage_floor) ** (power_of - 1.0) * clock
            energy += took * (static + (peak - static) * (memory + (1.0 - memory[-1]) * dynamic))
            time += took
        wobble = noise * 10.0 ** rng.uniform(-1.0, 0.3)
        seen = time * (1.0 + wobble * rng.normal(size=len(clock)))
        drawn = energy / time * (1.0 + noise * rng.normal(size=len(clock)))
        curves.append(Curve("synthetic clock", str(number), clock, *monotone(clock, seen, drawn)))
    return curves


@cache
def clock_bank(count: int = 768, seed: int = 11) -> Bank:
    """What is believed of clocks before a job is seen."""
    return Bank.make(steep=STEEP, curves=synthetic_clocks(count, np.random.default_rng(seed)))


def careful(care: descent.DescentCare) -> descent.DescentCare:
    """As careful as this lever wants it. A draw far below the lowest limit is no reason to leave a job alone; and
    these curves bend less than those of limits, so a level a little over the budget hides for longer: with the
    limits' deviations 0.6 % of windows were over on 275 curves of other seeds, with these 0.3 %. They have no
    cliffs, so the first step may be a longer one."""
    return replace(care, idle=0.0, sure=care.sure + 0.5, surer=3.0, step=3, first=6, reference=1.0)
