"""Fits a network to when leaves were asked for again: NumPy alone, so that no extra is needed to train.

Several small networks, each on requests drawn with replacement, answer as one: their mean logits are the logits of
one network with all their hidden units (L. Breiman, "Bagging predictors", 1996). One alone depends on its seed more
than on what it learnt, since a trace of an hour has few conversations.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nightshift.controllers.cache.features import ACTIONS, AGES_S, Floats
from nightshift.controllers.lab.cache.trace import CacheLessons
from nightshift.controllers.lab.learnable import normaliser
from nightshift.controllers.policy_file import Network

NETWORKS, HIDDEN, EPOCHS, BATCH, RATE, DECAY = 8, 24, 12, 1024, 5e-3, 0.05


def possible(lessons: CacheLessons) -> tuple[Floats, Floats]:
    """The first and the last action that a row may be: one where the next request was seen, all later ones than the
    end of the trace where not (right-censored)."""
    never = len(ACTIONS) - 1
    seen = np.isfinite(lessons.gap_s)
    found = np.searchsorted(AGES_S, np.where(seen, lessons.gap_s, 0.0), side="right") - 1
    past = np.searchsorted(AGES_S, np.minimum(lessons.left_s, AGES_S[-1]), side="left")
    first = np.clip(np.where(seen, found, past), 0, never)
    return first, np.where(seen, first, never)


def fit(lessons: CacheLessons, seed: int, epochs: int, say: Callable[[str], None]) -> Network:
    """The same network for the same seed."""
    scale = normaliser(lessons.seen, clip=5.0)
    rows, (first, last) = scale(lessons.seen), possible(lessons)
    parts = []
    for k in range(NETWORKS):
        random = np.random.default_rng((seed, k))
        drawn = random.integers(0, len(rows), len(rows))
        parts.append(_one(rows[drawn], first[drawn], last[drawn], lessons.weight[drawn], epochs, random))
        say(f"network {k + 1} of {NETWORKS}")
    hidden = np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
    answer = np.concatenate([part[2] for part in parts], 1) / NETWORKS, np.mean([part[3] for part in parts], 0)
    return Network(scale, (hidden, answer))


def _one(
    rows: Floats, first: Floats, last: Floats, weight: Floats, epochs: int, random: np.random.Generator
) -> list[Floats]:
    """Adam with weight decay on the censored likelihood, its rate falling to 0 (I. Loshchilov, F. Hutter, 2019)."""
    wide, actions = rows.shape[1], len(ACTIONS)
    theirs = [
        random.normal(0.0, wide**-0.5, (HIDDEN, wide)),
        np.zeros(HIDDEN),
        random.normal(0.0, HIDDEN**-0.5, (actions, HIDDEN)),
        np.zeros(actions),
    ]
    slope, square = [np.zeros_like(p) for p in theirs], [np.zeros_like(p) for p in theirs]
    weight = weight / weight.mean()
    step, steps = 0, epochs * -(-len(rows) // BATCH)
    for _ in range(epochs):
        for batch in np.array_split(random.permutation(len(rows)), -(-len(rows) // BATCH)):
            step += 1
            rate = RATE * 0.5 * (1.0 + np.cos(np.pi * step / steps))
            found = _gradients(theirs, rows[batch], first[batch], last[batch], weight[batch])
            for k, each in enumerate(found):
                slope[k] = 0.9 * slope[k] + 0.1 * each
                square[k] = 0.999 * square[k] + 0.001 * each**2
                lift = slope[k] / (1.0 - 0.9**step) / (np.sqrt(square[k] / (1.0 - 0.999**step)) + 1e-8)
                theirs[k] = theirs[k] - rate * (lift + DECAY * theirs[k])
    return theirs


def _gradients(theirs: list[Floats], rows: Floats, first: Floats, last: Floats, weight: Floats) -> list[Floats]:
    inner = np.tanh(rows @ theirs[0].T + theirs[1])
    logits = inner @ theirs[2].T + theirs[3]
    chances = np.exp(logits - logits.max(1, keepdims=True))
    at = np.arange(chances.shape[1])
    may = chances * ((at >= first[:, None]) & (at <= last[:, None]))
    chances, may = (x / np.maximum(x.sum(1, keepdims=True), 1e-300) for x in (chances, may))
    outer = (chances - may) * weight[:, None] / len(rows)
    back = (outer @ theirs[2]) * (1.0 - inner**2)
    return [back.T @ rows, back.sum(0), outer.T @ inner, outer.sum(0)]
