"""Hypotheses about learning to write kernels, each with what would refute it, its verdict and the lines behind it.

    python -m benchmarks.kernels_policy        # first: H8's figures are its rows
    python -m benchmarks.kernels_hypotheses [--seeds 5]

What is claimed, measured and would refute it is written in `kernels.lab.hypotheses`, which was committed before
this ran. H2 replays the search on the tables with a name of odd md5; a neighbour is the nearest case of the same
problem and family with a name of even md5. H3 is on the shapes of all tables, since the surrogate learns from none
of them: 20 seeds against 200 random draws. H7 trains two policies by GRPO on even tables under a clock of our own:
a look is off by 1 % (one standard deviation), and one in 20 is 0.3 to 0.7 of the truth. The naive reward believes
the first look; the robust one takes three. Counted are paid speed-ups over 5 % that the table denies (below 2 %).
Every unit is a line, numbered, with its seconds. Writes benchmarks/results/kernels_hypotheses.json.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from benchmarks import report
from benchmarks.kernels_policy import DRAWS, PEERS, TABLES, TRIALS, drawn, surrogate
from benchmarks.kernels_search import Table as Searched
from benchmarks.kernels_search import surrogate as searched
from benchmarks.kernels_search import warm_of
from nightshift.kernels.generate.best_measured import octaves
from nightshift.kernels.generate.space import Space
from nightshift.kernels.judge.verdict import Status
from nightshift.kernels.lab.grpo import (
    Recipe,
    Sentence,
    Shape,
    Table,
    Training,
    read_tables,
    shapes_of,
    table_clock,
)
from nightshift.kernels.lab.hypotheses import BY_NAME, REGISTER, verdict_on
from nightshift.kernels.lab.reward import Answer, naive_reward_of, reward_of, robust_s
from nightshift.version import commit

FIRST = 8
NOISE, FALSE, PAID, DENIED = 0.01, 0.05, 1.05, 1.02

Line = dict[str, Any]


def narrowed(table: Table) -> Searched:
    """The table as `benchmarks.kernels_search` replays it, in the part of its space that was measured."""
    made = Searched(json.loads((TABLES / f"{table.name}.json").read_text()))
    whole, known = made.space, made.seconds
    made.space = Space(whole.dimensions, lambda c: whole.holds(c) and whole.key(c) in known)
    return made


def warm_starts(tables: Sequence[Table], seeds: Sequence[int]) -> list[Line]:
    """H2: mean log best of 8, cold and warm."""
    lines = []
    for table in (t for t in tables if t.held_out):
        near = [t for t in tables if not t.held_out and (t.family, t.problem) == (table.family, table.problem)]
        if not near:
            continue
        nearest = min(near, key=lambda t: octaves(t.case, table.case))
        mine, other = narrowed(table), narrowed(nearest)
        warm = warm_of(other, mine)
        best = {
            name: [searched(mine.space, mine.seconds, FIRST, s, mine.family, how)[-1] for s in seeds]
            for name, how in (("cold", None), ("warm", warm))
        }
        logs = [math.log(c / w) for c, w in zip(best["cold"], best["warm"], strict=True) if math.isfinite(c + w)]
        lines.append({"hypothesis": "H2", "unit": table.name, "from": nearest.name, **best,
                      "log_ratio": statistics.fmean(logs)})  # fmt: skip
    return lines


def surrogates(tables: Sequence[Table]) -> list[Line]:
    """H3: mean log best of 32, of random draws and of the surrogate."""
    lines = []
    for shape in shapes_of(tables):
        best = {
            "surrogate": [min(surrogate(shape, seed)) for seed in range(PEERS)],
            "random": [min(drawn(shape, seed)) for seed in range(DRAWS)],
        }
        means = {name: statistics.fmean(map(math.log, seconds)) for name, seconds in best.items()}
        lines.append({"hypothesis": "H3", "unit": shape.name, "surrogate": best["surrogate"],
                      "random_s": math.exp(means["random"]),
                      "log_ratio": means["random"] - means["surrogate"]})  # fmt: skip
    return lines


def policies() -> list[Line]:
    """H8: the rows of `kernels_policy.json`."""
    rows = json.loads((report.RESULTS / "kernels_policy.json").read_text())["results"]["rows"]
    return [
        {
            "hypothesis": "H8",
            "unit": row["shape"],
            **row["by_seed"],
            "log_ratio": math.log(row["over_surrogate"][str(TRIALS)]),
        }
        for row in rows
    ]


def noisy(rng: random.Random, looks: int) -> Callable[[Shape, Sentence], Answer | None]:
    """The table's answer through the made-up clock."""

    def look(shape: Shape, sentence: Sentence) -> Answer | None:
        true = table_clock(shape, sentence)
        if true is None or true.status is not Status.correct:
            return true
        off = [rng.uniform(0.3, 0.7) if rng.random() < FALSE else 1.0 for _ in range(looks)]
        return Answer(Status.correct, tuple(true.looks[0] * rng.lognormvariate(0, NOISE) * o for o in off))

    return look


def false_share(
    training: Training, seen: Callable[[Answer], float], rng: random.Random, looks: int
) -> tuple[float, float]:
    """(share of paid speed-ups that the table denies, mean true speed-up of what the policy writes)."""
    paid, false, true = 0, 0, list[float]()
    clock = noisy(rng, looks)
    for shape in training.shapes:
        contexts = [training._seen(shape, ()) for _ in range(128)]
        for sentence in training.network.sample(contexts, training.draws):
            answer = clock(shape, sentence)
            if answer is None or answer.status is not Status.correct:
                continue
            real = shape.baseline_s / shape.seconds[sentence]
            true.append(math.log(real))
            if shape.baseline_s / seen(answer) > PAID:
                paid += 1
                false += real < DENIED
    return (false + 0.5) / (paid + 1), math.exp(statistics.fmean(true or [0.0]))


def first_of(answer: Answer) -> float:
    return answer.looks[0]


def robust_of(answer: Answer) -> float:
    return robust_s(answer.looks)


def rewards(shapes: Sequence[Shape], seeds: Sequence[int]) -> list[Line]:
    """H7: one line for each seed."""
    recipe = Recipe(grammar=100, ledger=0, specialist=0, generalist=25, contexts=4, group=24, batch=32)
    lines = []
    for seed in seeds:
        spoken = Training(shapes, seed, replace(recipe, generalist=0)).run()
        told = {}
        for name, reward, seen, looks in (
            ("naive", naive_reward_of, first_of, 1),
            ("robust", reward_of, robust_of, 3),
        ):
            clock = noisy(random.Random(seed), looks)
            training = Training(shapes, seed, replace(recipe, grammar=0), clock=clock, reward=reward)
            training.network = copy.deepcopy(spoken)
            training.run()
            told[name] = false_share(training, seen, random.Random(seed + 100), looks)
        lines.append({"hypothesis": "H7", "unit": f"seed {seed}",
                      **{k: {"false_share": v[0], "true_speed_up": v[1]} for k, v in told.items()},
                      "log_ratio": math.log(told["naive"][0] / told["robust"][0])})  # fmt: skip
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    tables, seeds = read_tables(TABLES), range(options.seeds)
    noisy_shapes = shapes_of(t for t in tables if not t.held_out and t.problem == "softmax")
    found = [*warm_starts(tables, seeds), *surrogates(tables), *policies(), *rewards(noisy_shapes, seeds)]
    lines = [{"line": number, **line} for number, line in enumerate(found, 1)]
    rows = []
    for hypothesis in REGISTER:
        own = [line for line in lines if line["hypothesis"] == hypothesis.name]
        rows.append(verdict_on(hypothesis, [line["log_ratio"] for line in own], [line["line"] for line in own]))
    assert len(rows) == len(BY_NAME)
    report.write(
        "kernels_hypotheses", {"commit": commit(), "seeds": len(seeds), "hypotheses": rows, "lines": lines}
    )


if __name__ == "__main__":
    main()
