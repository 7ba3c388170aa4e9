"""A learned kernel policy on shapes it never saw: right kernels in its first samples, and its best of 32.

    python -m benchmarks.kernels_policy [--seeds 5] [--validate] [--out FILE]

It learns on the committed tables with a name of even md5 and is scored once on those of odd md5: five trained
networks, each with four seeds of its samples, beside twenty seeds of the surrogate.
A configuration's time is the table's; one that the sweep refused is refused. Of the first 8 samples those outside
the grammar cost a trial. Peers have the same 32 trials on the same measured configurations: a draw at random
(expected log time, of 200 draws) and the search's surrogate, families in turn as the search asks them. The ceiling
is the table's optimum over the random search's best of 32: no author can gain more. Wide operations have room:
on the even tables their ceilings' geometric mean is at least 1.03, the goal over the surrogate. `--validate`
learns on one part of the even tables and scores another; what was chosen, was chosen there. Checkpoints go to
artefacts/kernels/policy; a killed run resumes.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import report
from nightshift.kernels.draw import mix
from nightshift.kernels.generate.base import Config
from nightshift.kernels.generate.policy import Sampler, SentenceError, SentenceNetwork, vocabulary
from nightshift.kernels.generate.space import Space
from nightshift.kernels.generate.template import Template
from nightshift.kernels.lab.grpo import Recipe, Sentence, Shape, Table, Training, read_tables, shapes_of, split
from nightshift.kernels.ops.families import family_named
from nightshift.version import commit

ROOT = Path(__file__).resolve().parents[1]
TABLES = ROOT / "benchmarks" / "results" / "kernels_tables"
CHECKPOINTS = ROOT / "artefacts" / "kernels" / "policy"
TRIALS, BATCH, FIRST, DRAWS = 32, 8, 8, 200
SAMPLES, PEERS = 4, 20
WIDE = 1.03
MARKS = (1, 8, 32)


def folds(tables: Sequence[Table]) -> tuple[list[Shape], list[Shape]]:
    """Of the even tables: (to learn from, to choose on), by the CRC of their names."""
    even = [t for t in tables if not t.held_out]
    part = {t.name: zlib.crc32(t.name.encode()) % 2 for t in even}
    return shapes_of(t for t in even if not part[t.name]), shapes_of(t for t in even if part[t.name])


def written(network: SentenceNetwork, shape: Shape, seed: int, trials: int = TRIALS) -> list[float]:
    """Seconds of each trial of the policy; infinite where it was refused or no sentence."""
    draws = Sampler(network, shape.grammar, shape.context.features, mix(seed, zlib.crc32(shape.name.encode())))
    tried: dict[Sentence, float] = {}
    times: list[float] = []
    for number in range(trials // BATCH):

        def usable(sentence: Sentence, first: bool = not number) -> bool:
            try:
                return shape.answer(sentence) is not None
            except SentenceError:
                return first

        batch = draws.batch(list(tried.items()), BATCH, usable)
        found = [(s, shape.seconds.get(s, math.inf)) for s in batch]
        times += [s for _, s in found] + [math.inf] * (BATCH - len(batch))
        tried |= dict(found)
    return times


def drawn(shape: Shape, seed: int) -> list[float]:
    pool = list(shape.seconds.values())
    return random.Random(seed).sample(pool, min(TRIALS, len(pool)))


def surrogate(shape: Shape, seed: int) -> list[float]:
    """The search's own generators, one for each family, asked in turn as the search does."""
    authors = []
    for table in shape.tables:
        space = shape.grammar.spaces[table.family]
        known = {space.key(config): s for config, s in table.times}
        inside = Space(space.dimensions, lambda c, key=space.key, known=known: key(c) in known)  # type: ignore[misc]
        authors.append((Template(family_named(table.family), seed), inside, known, list[tuple[Config, float]]()))
    times: list[float] = []
    while len(times) < TRIALS:
        before = len(times)
        room = min(BATCH, TRIALS - len(times))
        for place, (author, space, known, seen) in enumerate(authors):
            share = -(-room // (len(authors) - place))
            chosen = author.choose(space, seen, share)
            found = [(config, known[space.key(config)]) for config, _ in chosen]
            seen.extend(found)
            times += [s for _, s in found]
            room -= len(found)
        if len(times) == before:
            break
    return times


def _log_best(times: Sequence[float], mark: int, worst: float) -> float:
    """Log of the best of the first `mark`; where none ran, of the slowest that the table has."""
    return math.log(min(*times[:mark], worst))


def _slowest(shape: Shape) -> float:
    return max(s for s in shape.seconds.values() if math.isfinite(s))


def ceiling_of(shape: Shape) -> float:
    """The optimum's speed over the random search's best of 32."""
    worst = _slowest(shape)
    return (
        math.exp(statistics.fmean(_log_best(drawn(shape, n), TRIALS, worst) for n in range(DRAWS))) / shape.best_s
    )


def wide_operations(lessons: Sequence[Shape]) -> list[str]:
    """Operations with room for an author, by the shapes that are learnt from."""
    logs: dict[str, list[float]] = {}
    for shape in lessons:
        logs.setdefault(shape.problem, []).append(math.log(ceiling_of(shape)))
    return sorted(name for name, values in logs.items() if math.exp(statistics.fmean(values)) >= WIDE)


def row_of(
    shape: Shape, networks: Sequence[SentenceNetwork], seeds: Sequence[int], learnt: set[str]
) -> dict[str, Any]:
    """One shape's figures, means of log time over the seeds. Ratios: above 1 the policy is the faster."""
    worst = _slowest(shape)
    samples = [(network, mix(seed, number)) for network, seed in zip(networks, seeds, strict=True)
               for number in range(SAMPLES)]  # fmt: skip
    runs = {
        "policy": [written(network, shape, seed) for network, seed in samples],
        "surrogate": [surrogate(shape, seed) for seed in range(PEERS)],
        "random": [drawn(shape, seed) for seed in range(DRAWS)],
    }
    logs = {n: [statistics.fmean(_log_best(t, m, worst) for t in r) for m in MARKS] for n, r in runs.items()}
    return {
        "shape": shape.name,
        "operation": shape.problem,
        "operation_learnt": shape.problem in learnt,
        "tables": [t.name for t in shape.tables],
        "points": len(shape.seconds),
        "first_8_correct": [any(math.isfinite(s) for s in t[:FIRST]) for t in runs["policy"]],
        "first_8_share": round(statistics.fmean(math.isfinite(s) for t in runs["policy"] for s in t[:FIRST]), 4),
        "over_random": {str(m): math.exp(logs["random"][i] - logs["policy"][i]) for i, m in enumerate(MARKS)},
        "over_surrogate": {str(m): math.exp(logs["surrogate"][i] - logs["policy"][i]) for i, m in enumerate(MARKS)},
        "surrogate_over_random_32": math.exp(logs["random"][-1] - logs["surrogate"][-1]),
        "ceiling": math.exp(logs["random"][-1]) / shape.best_s,
        "ceiling_over_surrogate": math.exp(logs["surrogate"][-1]) / shape.best_s,
        "by_seed": {n: [round(min(t), 9) for t in runs[n]] for n in ("policy", "surrogate")},
    }


def geometric(values: Sequence[float]) -> dict[str, Any]:
    """Geometric mean with a 90 % interval, by 2,000 bootstraps over shapes."""
    logs = [math.log(v) for v in values]
    rng = random.Random(0)
    means = sorted(statistics.fmean(rng.choices(logs, k=len(logs))) for _ in range(2000))
    return {"mean": math.exp(statistics.fmean(logs)), "interval_90": [math.exp(means[100]), math.exp(means[1899])],
            "shapes": len(logs)}  # fmt: skip


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    if not rows:
        return {}
    right = [right for r in rows for right in r["first_8_correct"]]
    made = {"operations": len({r["operation"] for r in rows}), "first_8_correct": statistics.fmean(right)}
    for name in ("over_random", "over_surrogate"):
        made[name] = {str(m): geometric([r[name][str(m)] for r in rows]) for m in MARKS}
    for name in ("surrogate_over_random_32", "ceiling", "ceiling_over_surrogate"):
        made[name] = geometric([r[name] for r in rows])
    return made


def first_eight(networks: Sequence[SentenceNetwork], shapes: Sequence[Shape]) -> float:
    """Share of (shape, seed) with a correct kernel in the first 8 trials."""
    times = [written(n, shape, seed, BATCH) for seed, n in enumerate(networks) for shape in shapes]
    return statistics.fmean(any(math.isfinite(s) for s in t[:FIRST]) for t in times)


def kept(training: Training) -> float:
    """The generalist's share of its specialists' speed over one batch of 8, on the shapes that both learnt on."""
    shares = []
    for shape in training.shapes:
        times = [written(n, shape, 0, BATCH) for n in (training.experts[shape.problem], training.network)]
        worst = _slowest(shape)
        specialist, generalist = (statistics.fmean(min(s, worst) for s in t) for t in times)
        shares.append(math.log(specialist / generalist))
    return math.exp(statistics.fmean(shares))


def learn(shapes: Sequence[Shape], spoken: Sequence[Shape], seed: int, name: str, recipe: Recipe,
          say: Callable[[str], None]) -> Training:  # fmt: skip
    CHECKPOINTS.mkdir(parents=True, exist_ok=True)
    training = Training(shapes, seed, recipe, CHECKPOINTS / f"{name}-{seed}.pt", say=say, spoken=spoken)
    training.run()
    return training


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--validate", action="store_true")
    parser.add_argument("--name", default="")
    parser.add_argument("--set", nargs="*", default=[], help="recipe fields, NAME=STEPS, with --validate")
    options = parser.parse_args()
    torch.set_num_threads(1)
    tables = read_tables(TABLES)
    lessons, scored = folds(tables) if options.validate else split(tables)
    recipe = Recipe(**{k: type(getattr(Recipe, k))(v) for k, v in (s.split("=") for s in options.set)})
    began, seeds = time.monotonic(), list(range(options.seeds))
    name = options.name or ("folds" if options.validate else "even")
    trainings = [learn(lessons, scored, s, name, recipe, lambda text: print(text, flush=True)) for s in seeds]
    print(f"learnt in {time.monotonic() - began:.0f} s", flush=True)
    networks = [training.network for training in trainings]
    learnt = {shape.problem for shape in lessons}
    wide = wide_operations(lessons)
    rows = [row_of(shape, networks, seeds, learnt) for shape in scored]
    raw = [SentenceNetwork(len(vocabulary())) for _ in seeds]
    results = {
        "commit": commit(),
        "gpus": sorted({t.gpu for t in tables}),
        "held_out": "the even tables' second part" if options.validate else "tables with a name of odd md5",
        "tables": {"learnt": sum(len(s.tables) for s in lessons), "scored": sum(len(s.tables) for s in scored)},
        "seeds": seeds,
        "samples": SAMPLES,
        "peer_seeds": PEERS,
        "trials": TRIALS,
        "recipe": vars(recipe),
        "took_s": round(time.monotonic() - began, 1),
        "groups": [training.figures for training in trainings],
        "steps": [training.done for training in trainings],
        "generalist_over_specialists": [kept(t) for t in trainings] if recipe.specialist else [],
        "untrained_first_8_correct": first_eight(raw, scored),
        "learnt_operations": summary([r for r in rows if r["operation_learnt"]]),
        "operations_never_timed": summary([r for r in rows if not r["operation_learnt"]]),
        "wide_operations": wide,
        "wide": summary([r for r in rows if r["operation"] in wide]),
        "rows": rows,
    }
    if options.validate:
        for part in ("learnt_operations", "operations_never_timed", "wide_operations", "wide"):
            print(part, results[part])
        print("untrained", results["untrained_first_8_correct"], results["generalist_over_specialists"])
        return
    report.write("kernels_policy", results)


if __name__ == "__main__":
    main()
