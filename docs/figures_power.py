"""Power control's table of figures."""

from __future__ import annotations

from typing import Any

from figure_rows import Row, Table, number

_WHO = (
    "descent (ships)",
    "PPO, shielded",
    "PPO, unshielded",
    "plain descent",
    "Zeus MaxSlowdown",
    "Zeus ZeusCost",
    "static 90%",
    "static 80%",
    "static 70%",
)


def _scored(x: Any) -> str:
    low, high = x["of_oracle_95"]
    return (
        f"{x['of_oracle']:.1%} ({low:.1%} to {high:.1%}) of the oracle; windows over {x['over']:.2%}, beyond one "
        f"point more {x['beyond']:.3%}; GPU {x['saved']:.2%}, node {x['node_saved']:.2%}"
    )


_GOALS = {"5%": "≥ 90 %, ≤ 0.5 %, 0", "3%": "≥ 80 %, ≤ 0.5 %, 0"}
POWER = Table(
    "Energy saved within a slowdown budget, on measured sweeps that nothing was trained on",
    "power",
    "python -m benchmarks.power SWEEP.csv …",
    (
        *(
            Row(f"{who}, budget {budget}", f"results/by/{budget}/{who}", _scored, goal if "ships" in who else "")
            for budget, goal in _GOALS.items()
            for who in _WHO
        ),
        Row("decision for 10,000 GPUs, CPU", "results/decision_10000_gpus_cpu_s", number(" s"), "≤ 1 s"),
    ),
    "Two GPUs' sweeps of Zeus, two hours of job each, 1 % noise, 30 s windows, probing included; the oracle knows "
    "the curve and has a 25 W grid. The heuristic beats PPO, so it ships.",
)
