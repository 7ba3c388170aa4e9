"""Rows of the table that are close to their best peer: further configurations, and races on other memory.

A race's interval tells of its rounds, which all use the same buffers; where those lie in the GPU's memory counts
too, for either side. So a close row is raced again on other buffers, and told by all of its races together.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.kernels_rows import ANCHORS, losing, told
from nightshift.kernels.candidate import Candidate
from nightshift.kernels.generate.template import candidate
from nightshift.kernels.judge.judge import Judge, Request
from nightshift.kernels.judge.probes.inputs import QUICK_GPU, Scope
from nightshift.kernels.judge.race.contest import FULL
from nightshift.kernels.judge.race.timing import interval
from nightshift.kernels.judge.verdict import Comparison, Status, Verdict
from nightshift.kernels.loop.search import CAREFUL
from nightshift.kernels.ops.families import family_named
from nightshift.kernels.ops.problems import named
from nightshift.kernels.problem import Case
from nightshift.kernels.suites.kernelbench import CORRECT

Choice = tuple[str, dict[str, int | str]]
Note = Callable[[str, Any], None]
CLOSE = 0.03
"""Nearer to its best peer than this, on either side, and a row is raced again."""
RACES = 6
"""Of a close row: the fewest of which a signed-rank interval of 95 % can be told."""
BALLAST_BYTES = 1 << 30


@dataclass
class Done:
    """A row that was judged, and the configurations that it has not tried."""

    made: dict[str, Any]
    problem: str
    case: Case
    choices: list[Choice]

    @property
    def raced(self) -> bool:
        return bool(self.made.get("speedup"))

    @property
    def lead(self) -> float:
        return told(self.made)

    def judge(self, judge: Judge, choice: Choice, request: Request) -> Verdict:
        return judge.verdict(written(self.problem, self.case, choice), named(self.problem), request)


def written(problem: str, case: Case, choice: Choice) -> Candidate:
    return candidate(family_named(choice[0]), problem, case, choice[1])


def row_json(
    problem: str, case: Case, judge: Judge, verdict: Verdict, choice: Choice, passes_s: tuple[float, float]
) -> dict[str, Any]:
    solo = judge.solo(named(problem), case)
    raced = {c.baseline: c for c in verdict.comparisons}
    peers = {n: raced[n].baseline_s if n in raced else s for n, s in solo.seconds.items()}
    ours = statistics.median(c.candidate_s for c in verdict.comparisons) if raced else math.nan
    best = min(peers, key=lambda n: peers[n])
    size = named(problem).compulsory_bytes(case)
    speed = raced[best].speedup if best in raced else None
    return {
        "problem": problem,
        "case": str(case),
        "anchor": problem in ANCHORS,
        "bytes": size,
        "flops": named(problem).flops(case),
        "peers_us": {n: s * 1e6 for n, s in peers.items()},
        "missing": dict(solo.missing),
        "best_peer": best,
        "ours_us": ours * 1e6 if raced else None,
        "speedup": [speed.low, speed.point, speed.high] if speed else None,
        "copy_us": passes_s[0] * 1e6,
        "in_place_us": passes_s[1] * 1e6,
        "of_copy": passes_s[0] / ours if raced else None,
        "status": verdict.status.value,
        "certified": verdict.status in CORRECT and verdict.status is not Status.correct,
        "reason": verdict.reason.value,
        "detail": verdict.detail,
        "kind": written(problem, case, choice).kind,
        "family": choice[0],
        "config": choice[1],
        "candidate_sha256": verdict.candidate_sha256,
        "errors": dict(verdict.errors),
        "took_s": verdict.took_s,
    }


def improve(judge: Judge, rows: Sequence[Done], note: Note, scope: Scope, until_s: float) -> None:
    """While time is left: rows that lose, the closest first, race further configurations and are judged anew."""
    slower = (d for d in rows if d.raced and losing([d.made]))
    for row in sorted(slower, key=lambda d: -d.lead):
        raced: list[tuple[float, Choice]] = []
        for choice in row.choices:
            if time.time() > until_s:
                return
            verdict = row.judge(judge, choice, Request(QUICK_GPU, CAREFUL, cases=(row.case,), search=True))
            if verdict.comparisons:  # a ratio of neighbours: clocks drift
                raced.append((min(c.speedup.point for c in verdict.comparisons), choice))
        raced.sort(key=lambda r: -r[0])
        note("tried", f"{row.problem} {row.case}: {[round(r[0], 4) for r in raced]} after {row.lead:.4f}")
        if not raced or raced[0][0] < 1.001 * row.lead or time.time() > until_s:
            continue
        choice = raced[0][1]
        verdict = row.judge(judge, choice, Request(scope, FULL, cases=(row.case,)))
        if not verdict.refused and verdict.comparisons:
            passes_s = row.made["copy_us"] * 1e-6, row.made["in_place_us"] * 1e-6
            found = row_json(row.problem, row.case, judge, verdict, choice, passes_s)
            if told(found) > row.lead:
                row.made |= found
                note("row", row.made)


def elsewhere(judge: Judge, rows: Sequence[Done], note: Note, until_s: float) -> None:
    """Race close rows again, each time in a new process and on other memory, the closest first."""
    rng = random.Random(20261123)
    near = [d for d in rows if d.raced and abs(math.log(d.lead)) < CLOSE]
    for row in sorted(near, key=lambda d: abs(math.log(d.lead))):
        raced: list[Sequence[Comparison]] = []
        while len(raced) < RACES and time.time() < until_s:
            judge.give_back()
            ballast = torch.empty(rng.randrange(BALLAST_BYTES), dtype=torch.uint8, device=judge.device)
            choice = row.made["family"], row.made["config"]
            verdict = row.judge(judge, choice, Request(QUICK_GPU, FULL, cases=(row.case,)))
            del ballast
            if not verdict.comparisons:  # told, and no more asked of it: the row keeps what its own verdict said
                note("tried", f"{row.problem} {row.case}: {verdict.reason} on other memory: {verdict.detail}")
                break
            raced.append(verdict.comparisons)
        if len(raced) == RACES:
            row.made |= pooled(row.made, raced)
            note("row", row.made)


def pooled(made: dict[str, Any], raced: Sequence[Sequence[Comparison]]) -> dict[str, Any]:
    """What a row's races say together. Peers that not every race had are told as before."""
    peers = set.intersection(*({c.baseline for c in race} for race in raced))
    logs = {n: [math.log(c.speedup.point) for race in raced for c in race if c.baseline == n] for n in peers}
    ratios = {n: interval(logs[n], confidence=0.95) for n in peers}
    best = min(peers, key=lambda n: ratios[n].point)
    times = {n: statistics.median(c.baseline_s for race in raced for c in race if c.baseline == n) for n in peers}
    ours_s = statistics.median(race[0].candidate_s for race in raced)
    return {
        "best_peer": best,
        "speedup": [ratios[best].low, ratios[best].point, ratios[best].high],
        "races": [math.exp(x) for x in logs[best]],
        "peers_us": made["peers_us"] | {n: s * 1e6 for n, s in times.items()},
        "ours_us": ours_s * 1e6,
        "of_copy": made["copy_us"] * 1e-6 / ours_s,
    }
