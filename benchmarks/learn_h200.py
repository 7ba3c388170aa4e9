"""The example model of the multivariate detector, from our own H200 recordings: `python -m benchmarks.learn_h200`.

Healthy phases only; the first half of every phase is fitted, the second calibrates. A few minutes of one board are
an example, not a fleet: its tail is extrapolated, as its file says. `nightshift learn` makes one of a fleet's own.
"""

from __future__ import annotations

import numpy as np

from nightshift.detectors.outliers.density import BUILT_IN
from nightshift.detectors.outliers.learning import METRICS, LearningPlan, learn_from
from tests.recordings.replay import GPU_METRICS, TICK_S, h200, h200_rank

PHASES = ("idle", "gemm_bf16", "copy_hbm", "sdpa", "train_ok", "train_spike_recovers", "train_varlen_benign")
EVAL = "train_periodic_eval_benign"
RANKS = ("healthy", "varlen_benign", "eval_rank0_benign")


def main() -> None:
    plan = LearningPlan("H200", settle=4)
    columns = [GPU_METRICS.index(name) for name in METRICS]
    phases = [h200(name) for name in (*PHASES, EVAL)] + [h200_rank(n, r) for n in RANKS for r in range(2)]
    width = int(plan.look_s / TICK_S)
    train, calibrate = [], []
    for phase in phases:
        samples = phase.gpu[:, columns]
        looks = np.array([samples[n : n + width].mean(axis=0) for n in range(0, len(samples) - width + 1, width)])
        train.append(looks[: len(looks) // 2])
        calibrate.append(looks[len(looks) // 2 :])
    model = learn_from(train, calibrate, plan, "benchmarks/learn_h200.py: minutes of one H200, extrapolated")
    model.save(BUILT_IN / "h200.json")
    print(
        f"{len(model.weights)} classes, tail {model.tail}, threshold at 10 per 1,000: {model.tail.score(10.0):.1f}"
    )


if __name__ == "__main__":
    main()
