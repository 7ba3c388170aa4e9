"""The field's verbs for making kernels: generate_kernel, compile, verify, benchmark, contrastive_select.

Thin and stateless: each is one question to the judge, or a choice among its past verdicts. `contrastive_select`
picks the exemplars of contrastive prompting (CUDA-L1, arXiv 2507.14111): pairs of correct kernels that look alike
and differ in speed, so that what differs in the text is what matters.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from nightshift.kernels.candidate import Candidate
from nightshift.kernels.judge.judge import Judge, Request
from nightshift.kernels.judge.probes.sizes import Scope
from nightshift.kernels.judge.race.contest import FULL, Pace
from nightshift.kernels.judge.verdict import Verdict
from nightshift.kernels.problem import Problem
from nightshift.kernels.suites.kernelbench import CORRECT, speedup

_SMOKE = Scope(1 << 14, 1 << 12, 64, 320, sweep_random=0, benchmark=False, huge=False, repeats=2)


class Author(Protocol):
    """Whoever writes kernels. `history` holds earlier trials with the judge's verdicts, oldest first."""

    def write(self, problem: Problem, history: Sequence[Trial]) -> Candidate: ...


@dataclass(frozen=True)
class Trial:
    """A candidate and what the judge said about it."""

    candidate: Candidate
    verdict: Verdict


@dataclass(frozen=True)
class Contrast:
    """Two correct kernels of one problem. `ratio`: the fast one's speed over the slow one's."""

    fast: Trial
    slow: Trial
    ratio: float
    likeness: float


def generate_kernel(author: Author, problem: Problem, history: Sequence[Trial] = ()) -> Candidate:
    """One candidate from an author, who sees what was said about the earlier ones."""
    return author.write(problem, history)


def compile(judge: Judge, candidate: Candidate, problem: Problem) -> Verdict:
    """Whether the source reads, loads and runs at all: verdict.stages holds "compile" where it did."""
    return judge.verdict(candidate, problem, Request(scope=_SMOKE, pace=None))


def verify(judge: Judge, candidate: Candidate, problem: Problem, scope: Scope) -> Verdict:
    """Correctness in all its stages, without timing."""
    return judge.verdict(candidate, problem, Request(scope=scope, pace=None))


def benchmark(judge: Judge, candidate: Candidate, problem: Problem, scope: Scope, pace: Pace = FULL) -> Verdict:
    """Correctness, then the race: a candidate that fails is never timed."""
    return judge.verdict(candidate, problem, Request(scope=scope, pace=pace))


def contrastive_select(trials: Sequence[Trial], count: int, baseline: str = "eager") -> list[Contrast]:
    """At most `count` pairs, the most telling first: log speed ratio times likeness of the texts (difflib's ratio).

    Only correct, timed trials are used, the same source once; each trial is the slow half of at most one pair, so
    that the exemplars differ.
    """
    timed = {
        t.candidate.source_sha256: t
        for t in trials
        if t.verdict.status in CORRECT and speedup(t.verdict, baseline, "point") > 0
    }
    ranked = sorted(timed.values(), key=lambda t: speedup(t.verdict, baseline, "point"), reverse=True)
    pairs = []
    for i, fast in enumerate(ranked):
        for slow in ranked[i + 1 :]:
            ratio = speedup(fast.verdict, baseline, "point") / speedup(slow.verdict, baseline, "point")
            alike = difflib.SequenceMatcher(None, fast.candidate.source, slow.candidate.source, False).ratio()
            pairs.append(Contrast(fast, slow, ratio, alike))
    pairs.sort(key=lambda pair: math.log(pair.ratio) * pair.likeness, reverse=True)
    chosen: list[Contrast] = []
    used: set[str] = set()
    for pair in pairs:
        slow_hash = pair.slow.candidate.source_sha256
        if pair.ratio > 1.0 and slow_hash not in used and len(chosen) < count:
            used.add(slow_hash)
            chosen.append(pair)
    return chosen
