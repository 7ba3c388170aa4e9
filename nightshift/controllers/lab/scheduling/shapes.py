"""Traces drawn from what is published of four kinds of clusters; no value is fitted to a trace, none is copied.

A *shape* is a few numbers: how wide gangs are, how long users' jobs run, how alike repeated ones are, how arrivals
follow the day. Sources, and what was taken from each:

    philly   Jeon et al., ATC'19: Microsoft, two months: most jobs one GPU, a few wide gangs with much of the time,
             durations over five orders of magnitude, wider ones longer, about a third killed or failed, many early.
    helios   Hu et al., SC'21: SenseTime: more than half of the jobs one GPU, median of minutes, hours in the mean,
             jobs of 8 and more GPUs use most of the time; a few users most of it; strong hours of the day; the same
             names submitted over and over, alike in length.
    pai      Weng et al., NSDI'22: Alibaba: gangs the rule, about two in three tasks recur; median of tens of
             minutes, a tenth beyond hours; GPUs idle while hosts work. Who asks for part of a card gets one here.
    ours     `trace.draw`: bursts, width and length apart, nothing known of the day.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from nightshift.collectors.base import Permanent
from nightshift.controllers.lab.scheduling import trace
from nightshift.controllers.lab.scheduling.trace import TraceJob
from nightshift.controllers.scheduling.interference import KINDS, load_of

DAY_S = 86400.0


@dataclass(frozen=True, slots=True)
class TraceShape:
    """`widths`: GPUs → share of jobs. A user has `templates` (Poisson, at least one), each a kind, a width and a
    typical length: lognormal around `median_s` with `across` (in the logarithm) among templates and `within` among
    runs of one; `wider`: power of the width in it. `early`: share that ends early, uniformly in its length.
    `again`: chance that a submission is followed by another of the same. `night`: how much less is submitted at the
    lowest hour of the day (1: nothing). `kinds`: shares of `KINDS`."""

    widths: dict[int, float]
    median_s: float
    across: float
    within: float
    wider: float
    early: float
    again: float
    night: float
    kinds: tuple[float, ...]
    users: int = 60
    templates: float = 4.0
    zipf: float = 1.6
    longest_s: float = 3 * DAY_S


SHAPES = {
    "philly": TraceShape(
        {1: 0.70, 2: 0.07, 4: 0.09, 8: 0.09, 16: 0.04, 32: 0.01},
        1500.0, 1.7, 1.0, 0.25, 0.30, 0.45, 0.4, (0.3, 0.4, 0.2, 0.1),
    ),
    "helios": TraceShape(
        {1: 0.56, 2: 0.08, 4: 0.11, 8: 0.19, 16: 0.04, 32: 0.02},
        400.0, 1.9, 0.7, 0.35, 0.25, 0.65, 0.7, (0.25, 0.55, 0.15, 0.05),
    ),
    "pai": TraceShape(
        {1: 0.45, 2: 0.20, 4: 0.15, 8: 0.12, 16: 0.06, 32: 0.02},
        1400.0, 1.4, 0.6, 0.10, 0.15, 0.65, 0.5, (0.2, 0.2, 0.45, 0.15),
    ),
}  # fmt: skip
NAMES = (*SHAPES, "ours")


def drawn(name: str, count: int, seed: int) -> list[TraceJob]:
    """A trace of a shape. Raises Permanent for a name that is none of `NAMES`."""
    if name == "ours":
        return trace.draw(count, seed)
    if name not in SHAPES:
        raise Permanent(f"shape {name!r} is none of {', '.join(NAMES)}")
    shape = SHAPES[name]
    random = np.random.default_rng((seed, 0x54A9E, *name.encode()))
    widths, chances = list(shape.widths), np.asarray(list(shape.widths.values()))
    templates: dict[int, list[tuple[str, str, int, float]]] = {}
    # Zipf's first user is drawn anew with each seed, and with it which lengths make up most of the load
    rank = random.permutation(shape.users)
    jobs: list[TraceJob] = []
    now_s = 0.0
    while len(jobs) < count:
        now_s = _next_s(now_s, shape.night, random)
        user = int(rank[(int(random.zipf(shape.zipf)) - 1) % shape.users])
        if user not in templates:
            templates[user] = []
            for number in range(1 + int(random.poisson(shape.templates - 1.0))):
                width = int(random.choice(widths, p=chances / chances.sum()))
                typical_s = shape.median_s * math.exp(random.normal(0.0, shape.across)) * width**shape.wider
                templates[user].append(
                    (f"job-{number}", str(random.choice(KINDS, p=shape.kinds)), width, typical_s)
                )
        label, kind, width, typical_s = templates[user][int(random.integers(len(templates[user])))]
        while len(jobs) < count:
            length_s = typical_s * math.exp(random.normal(0.0, shape.within))
            # killed or failed: such jobs end anywhere in their length, many at once
            if random.random() < shape.early:
                length_s *= random.random()
            duration_s = min(max(length_s, 5.0), shape.longest_s)
            load = load_of(kind, random)
            jobs.append(TraceJob(f"{name}-{len(jobs)}", now_s, width, duration_s, load, f"user-{user}", name=label))
            if random.random() >= shape.again:
                break
            now_s += float(random.exponential(60.0))
    return jobs


def _next_s(now_s: float, night: float, random: np.random.Generator) -> float:
    """The next arrival of a Poisson process that follows the day (thinning: Lewis and Shedler 1979)."""
    while True:
        now_s += float(random.exponential(300.0))
        if random.random() >= night * (0.5 + 0.5 * math.cos(2.0 * math.pi * now_s / DAY_S)):
            return now_s
