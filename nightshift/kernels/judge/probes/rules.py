"""The plan of probes as a table of small rules: each adds probes for one kind of fault, in the order of `RULES`.

Edge cases are always asked (size 1, primes, sizes beside a power of two, empty, non-contiguous, misaligned), and so
is every distribution of values in every dtype, and numbers among the inputs that are not the usual ones: what is
refused for those must not depend on the secret.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from nightshift.kernels.candidate import PARTS, REPEATED
from nightshift.kernels.draw import TWIN, mix
from nightshift.kernels.judge.probes.exact import mantissa_bound
from nightshift.kernels.judge.probes.probe import Ground, Probe
from nightshift.kernels.judge.probes.sizes import beyond, of_each_residue, of_equal_axes, of_one_count
from nightshift.kernels.problem import Case

_GRADIENT_BYTES = 1 << 29
"""Timed cases beyond this are examined forward only: float64 gradients take many times the bytes."""
Probes = Iterator[Probe]


def smoke(on: Ground) -> Probes:
    yield Probe("smoke", on.bases[0], "normal", (on.seed(),))


def swept(on: Ground) -> Probes:
    yield from (Probe("sweep", case, "normal", (on.seed(),)) for case in on.admitted)


def residues(on: Ground) -> Probes:
    cases = of_each_residue(on.problem, on.candidate, on.rng, on.scope)
    yield from (Probe("sweep", case, "normal", (on.seed(),)) for case in cases)


def between_powers(on: Ground) -> Probes:
    yield from (Probe("sweep", case, "normal", (on.seed(),)) for case in on.parted)


def one_count(on: Ground) -> Probes:
    cases = of_one_count(on.problem, on.candidate, on.bases[0])
    yield from (Probe("sweep", case, "normal", (on.seed(),)) for case in cases)


def equal_axes(on: Ground) -> Probes:
    cases = of_equal_axes(on.problem, on.candidate, on.rng, on.scope)
    yield from (Probe("sweep", case, "normal", (on.seed(),)) for case in cases)


def whole_tiles(on: Ground) -> Probes:
    yield from (Probe("sweep", case, "normal", (on.seed(),)) for case in on.tiles)


def mixed_layouts(on: Ground) -> Probes:
    for layout, parts in PARTS.items():
        if not set(parts) <= set(on.problem.layouts):
            continue
        for case in dict.fromkeys((*(on.bases if on.scope.benchmark else [on.rng.choice(on.bases)]), *on.wide)):
            mixed = case.with_(layout=layout)
            written = layout == REPEATED and on.candidate.mutates  # an element that is many cannot be written
            if on.admits(mixed) and not written:
                yield Probe("sweep", mixed, "normal", (on.seed(),))


def distributions(on: Ground) -> Probes:
    for name in on.problem.distributions:
        chosen = [*on.bases, *(on.wide if name in ("large_mean", "large_negative", "nan") else ())]
        chosen += on.long if name in ("masked_ends", "ramps") else []
        chosen += on.others if name in ("normal", "near_constant", "tiny") else ()
        yield from (Probe("values", c, name, tuple(on.seed() for _ in range(calls_of(name)))) for c in chosen)


def one_tensor(on: Ground) -> Probes:
    if not on.candidate.mutates:
        yield Probe("values", on.rng.choice(on.bases), "normal", (on.seed(),), same=True)


def repeated(on: Ground) -> Probes:
    seed = on.seed()
    yield Probe("determinism", on.rng.choice(on.bases), "normal", (seed,) * on.scope.repeats)
    yield Probe("determinism", on.rng.choice(on.bases), "normal", (seed,) * on.scope.repeats, under_load=True)


def streams(on: Ground) -> Probes:
    if not on.candidate.mutates and on.candidate.language != "cuda":  # whose launches the judge itself makes
        yield Probe("determinism", on.rng.choice(on.bases), "normal", (on.seed(),), on_stream=True)
        for case in dict.fromkeys((on.rng.choice(on.bases), *on.wide)):
            yield Probe("determinism", case, "normal", (on.seed(),) * 2, overlapping=True)


def gradients(on: Ground) -> Probes:
    if not on.differentiates:
        return
    yield from (Probe("accuracy", case, "normal", (on.seed(),), required=True) for case in on.bases)
    yield from (Probe("accuracy", case, "normal", (on.seed(),), backward=True) for case in (*on.bases, *on.others))
    cases = of_each_residue(on.problem, on.candidate, on.rng, on.scope)
    uneven = [case for case in cases if case.layout == "contiguous"]
    yield from (Probe("accuracy", case, "normal", (on.seed(),), backward=True) for case in uneven)


def steep_gradients(on: Ground) -> Probes:
    """What overflows or cancels in the backward pass only."""
    wanted = ("large_mean", "large_negative", "zero_rows") if on.differentiates else ()
    for name in (name for name in wanted if name in on.problem.distributions):
        for case in on.bases:  # in 32 bits eager's error there is no measure, but what is finite must stay so
            wide = case.element_bytes > 2
            yield Probe("accuracy", case, name, (on.seed(),), backward=True, placed=wide)


def upstreams(on: Ground) -> Probes:
    kinds = ("expanded", "transposed", "padded", "some_zero", "scaled", "infinite") if on.differentiates else ()
    for upstream in kinds:
        for case in on.bases:
            yield Probe("accuracy", case, "normal", (on.seed(),), backward=True, upstream=upstream)


def gradient_layouts(on: Ground) -> Probes:
    """What the backward pass has kept of the inputs lies as they do."""
    for layout in on.problem.layouts if on.differentiates else ():
        turned = [case.with_(layout=layout) for case in on.bases if layout != "contiguous"]
        turned = [case for case in turned if on.admits(case)]
        if turned:
            yield Probe("accuracy", on.rng.choice(turned), "normal", (on.seed(),), backward=True)


def gradient_ties(on: Ground) -> Probes:
    """Weights of zero, too."""
    for case in on.bases if on.differentiates and "ties" in on.problem.distributions else ():
        yield Probe("accuracy", case, "ties", (on.seed(),), backward=True)


def gradient_calls(on: Ground) -> Probes:
    if not on.differentiates:
        return
    bases, rng, outputs, inputs = on.bases, on.rng, on.problem.outputs, len(on.problem.gradients)
    yield Probe("accuracy", rng.choice(bases), "normal", (on.seed(),), backward=True, twice=True)
    yield Probe("accuracy", rng.choice(bases), "normal", (on.seed(),), backward=True, overlapping=True)
    for only in range(outputs) if outputs > 1 else ():
        yield Probe("accuracy", rng.choice(bases), "normal", (on.seed(),), backward=True, only=only)
    for alone in range(inputs) if inputs > 1 else ():
        yield Probe("accuracy", rng.choice(bases), "normal", (on.seed(),), backward=True, alone=alone)
    again = (on.seed(),) * on.scope.repeats
    yield Probe("accuracy", rng.choice(bases), "normal", again, backward=True, under_load=True)


def benchmarked(on: Ground) -> Probes:
    if not on.scope.benchmark:
        return
    far = beyond(on.problem, on.candidate, on.rng, on.scope)
    yield from (Probe("accuracy", case, "normal", (on.seed(),)) for case in (*far, *on.timed))
    for case in on.timed if on.differentiates else ():
        if on.problem.compulsory_bytes(case) <= _GRADIENT_BYTES:
            yield Probe("accuracy", case, "normal", (on.seed(),), backward=True)


def huge(on: Ground) -> Probes:
    large = [case for case in on.problem.huge if on.admits(case)] if on.scope.huge else []
    yield from (Probe("accuracy", case, "normal", (on.seed(),), rows=64) for case in large)


def of_bases(on: Ground, rng: random.Random) -> list[Case]:
    return on.bases


def of_ragged_sizes(on: Ground, rng: random.Random) -> list[Case]:
    """Of every dtype a case whose last tile is never whole, and one in the layout that it was drawn with."""
    last = on.problem.axes[-1]
    ragged = [case for case in on.admitted if all(case.sizes.values()) and case[last.name] // last.multiple % 8]
    dense = [case.with_(layout="contiguous") for case in rng.sample(ragged, len(ragged))]
    turns = [c.with_(dtype=dtype) for c, dtype in zip(dense, on.problem.dtypes, strict=False)]
    return [*(case for case in turns if on.admits(case)), *rng.sample(ragged, min(1, len(ragged)))]


def of_tiles(on: Ground, rng: random.Random) -> list[Case]:
    """A case that needs no mask."""
    return rng.sample(on.tiles, min(1, len(on.tiles)))


def of_largest(on: Ground, rng: random.Random) -> list[Case]:
    asked = (*on.admitted, *on.parted, *on.tiles)
    return on.of_each_dtype(max(asked, key=lambda case: on.problem.compulsory_bytes(case) / case.element_bytes))


def of_timed(on: Ground, rng: random.Random) -> list[Case]:
    return on.timed if on.scope.benchmark else []


EXACT_CASES: tuple[Callable[[Ground, random.Random], list[Case]], ...] = (
    of_bases,
    of_ragged_sizes,
    of_tiles,
    of_largest,
    of_timed,
)
"""Where each of a problem's own rules (`kernels.problem.RULES`) is asked."""


def exact(on: Ground) -> Probes:
    """Questions with one right answer; of a candidate that declares itself not exact only those with a bound."""
    rng, asked = random.Random(on.secret + b"exact"), set[tuple[str, Case]]()
    cases = [case for rule in EXACT_CASES for case in rule(on, rng) if all(case.sizes.values())]
    for case in cases:
        for rule in on.problem.rules if on.candidate.exact else [r for r in on.problem.rules if r.terms]:
            near = (c for c in rule.near(case) if c.dtype in on.problem.dtypes and on.admits(c))
            found = next(near, None)
            if found is None or (rule.name, found) in asked:
                continue
            asked.add((rule.name, found))
            bound = mantissa_bound(rule.terms(found), on.candidate.exact) if rule.terms else 0.0
            yield Probe("exact", found, rule.name, (mix(rng.getrandbits(64)),), bound=bound)


def integrity(on: Ground) -> Probes:
    larger = [case for case in on.admitted if all(case[axis.name] > 1 for axis in on.problem.axes)]
    for case in [*on.bases, *on.rng.sample(larger, min(1, len(larger)))]:
        a, b, c = on.seed(), on.seed(), on.seed()
        yield Probe("integrity", case, "normal", (a, b, a, c, b, b + TWIN, b, a + TWIN))


RULES: tuple[Callable[[Ground], Probes], ...] = (
    smoke,
    swept,
    residues,
    between_powers,
    one_count,
    equal_axes,
    whole_tiles,
    mixed_layouts,
    distributions,
    one_tensor,
    repeated,
    streams,
    gradients,
    steep_gradients,
    upstreams,
    gradient_layouts,
    gradient_ties,
    gradient_calls,
    benchmarked,
    huge,
    exact,
    integrity,
)


def calls_of(distribution: str) -> int:
    """How many calls show a distribution. Where outputs hold NaN two, whose buffers hold NaN and something else
    before them: what is not written must not pass for a NaN that belongs there."""
    return 2 if distribution in ("nan", "masked", "masked_ends", "masked_rows", "infinite", "zeros_by_nan") else 1
