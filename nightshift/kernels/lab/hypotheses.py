"""What was believed before it was measured, what would refute it, and the verdict that the measurements give.

A hypothesis is about a mean log ratio over units (tables, or seeds). It holds where the whole 90 % interval of that
mean (bootstrapped over units) is above its bar, is refuted where the whole interval is at or below it, and else is
undecided. `least_ratio_shown` is what so many units would show in four of five runs, from the spread seen;
`units_to_show` is how many would show the ratio that was seen.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

DRAWS = 2000


@dataclass(frozen=True)
class Hypothesis:
    """claim, measure: in words. bar: the ratio that it must be above. needs: what a run lacks here; empty where it
    runs. protocol: how it is run where that is there."""

    name: str
    claim: str
    measure: str
    refuted_if: str
    bar: float = 1.0
    needs: str = ""
    protocol: str = ""


_MODEL = "a language model of at least 7 B parameters"
REGISTER: tuple[Hypothesis, ...] = (
    Hypothesis(
        "H1", "Contrastive exemplars help a language model", "best of 16 with two pairs over best of 16 with none",
        "the 90 % interval of the mean ratio is at or below 1", needs=_MODEL,
        protocol="The author of `kernels.generate.llm` with exemplars=2 and with 0, on 20 problems, 5 seeds each, "
        "equal tokens. With a spread of 10 % between problems, 20 of them show a ratio of 1.06.",
    ),
    Hypothesis(
        "H2", "A neighbouring shape's table makes the first trials better",
        "best of 8 cold over best of 8 warm, on tables for the score with a neighbour that is not",
        "the 90 % interval of the mean ratio is at or below 1",
    ),
    Hypothesis(
        "H3", "The surrogate beats random search", "best of 32 at random over best of 32 by the surrogate, on all "
        "tables, as it learns from none",
        "the 90 % interval of the mean ratio is at or below 1",
    ),
    Hypothesis(
        "H4", "A table of an H100 tells what is fast on an H200, and the other way", "as H2, from "
        "the other GPU's table of the same case", "the 90 % interval of the mean ratio is at or below 1",
        needs="tables of an H100: all 99 are of an H200",
        protocol="`python -m benchmarks.kernels_tables` on an H100, the same cases and limits, then H2's measure "
        "both ways. Every table has a partner, so 99 units.",
    ),
    Hypothesis(
        "H5", "Serial refinement beats parallel samples at equal tokens", "best of 16 in serial turns over best of "
        "16 in parallel", "the 90 % interval of the mean ratio is at or below 1", needs=_MODEL,
        protocol="`AuthorAllowance(serial=16)` and `(serial=0, parallel=16)` with the same tokens, on 20 problems, "
        "5 seeds each. With a spread of 10 % between problems, 20 of them show a ratio of 1.06.",
    ),
    Hypothesis(
        "H6", "A distilled generalist keeps 95 % of its specialists' speed", "time of 8 samples of the specialist "
        "over 8 of the generalist", "the 90 % interval of the mean ratio is at or below 0.95", bar=0.95,
        needs=_MODEL,
        protocol="`kernels.lab.language`: one adapter for each of 8 operations, then one adapter taught by their "
        "ledgers, on held-out shapes, 5 seeds. With a spread of 10 %, 40 units show a ratio of 0.99.",
    ),
    Hypothesis(
        "H7", "A robust reward lets fewer false speed-ups through",
        "share of paid speed-ups that the table denies, one raw look over three looks robustly",
        "the 90 % interval of the mean ratio is at or below 1",
    ),
    Hypothesis(
        "H8", "The learned policy beats the surrogate", "best of 32 by the surrogate over that of the policy, "
        "on tables for the score", "the 90 % interval of the mean ratio is at or below 1",
    ),
)  # fmt: skip
BY_NAME = {hypothesis.name: hypothesis for hypothesis in REGISTER}


def verdict_on(hypothesis: Hypothesis, logs: Sequence[float], lines: Sequence[int]) -> dict[str, Any]:
    """The row of a report. logs: one log ratio for each unit; lines: the ledger's lines that they are of.

    Raises ValueError where a hypothesis that cannot run here is given figures, or one that can is given none."""
    if bool(hypothesis.needs) == bool(logs):
        raise ValueError(f"{hypothesis.name}: {'cannot run here' if hypothesis.needs else 'has no figures'}")
    row: dict[str, Any] = {"name": hypothesis.name, "claim": hypothesis.claim, "measure": hypothesis.measure,
                           "refuted_if": hypothesis.refuted_if}  # fmt: skip
    if hypothesis.needs:
        return {**row, "verdict": "not run", "needs": hypothesis.needs, "protocol": hypothesis.protocol}
    rng = random.Random(hypothesis.name)
    means = sorted(statistics.fmean(rng.choices(logs, k=len(logs))) for _ in range(DRAWS))
    low, high = means[int(0.05 * DRAWS)], means[int(0.95 * DRAWS) - 1]
    bar = math.log(hypothesis.bar)
    word = "holds" if low > bar else "refuted" if high <= bar else "undecided"
    # 1.645 for the interval's end, 0.842 for four of five
    reach = (1.645 + 0.842) * statistics.pstdev(logs)
    mean = statistics.fmean(logs)
    needed = None if mean == bar else math.ceil((reach / (mean - bar)) ** 2)
    return {
        **row, "verdict": word, "ratio": math.exp(mean),
        "interval_90": [math.exp(low), math.exp(high)], "units": len(logs), "units_to_show": needed,
        "least_ratio_shown": math.exp(bar + reach / math.sqrt(len(logs))), "lines": list(lines),
    }  # fmt: skip
