"""The power heuristic on workloads that it was not tuned on, in their first run and in their second.

    python -m benchmarks.power_memory A40.csv V100.csv [--sign] [--name power_memory]

The sweeps are of Zeus's format (ml-energy/zeus, NSDI'23, research_reproducibility/zeus_nsdi23/trace). Tuned
on P100, RTX6000 and made-up curves; A40 and V100 are for the score. Per sweep and slowdown budget, over `--seeds`:

- `first`, `first_four_hours`: a workload that was never seen, in 240 windows of 30 s and (budget 5 %) in 480;
- `second`: the same workload again, in 240 windows, from what the first run left;
- `another_card`: the same (two seeds) on another card (one deviation: cost 10 %, draw 1 %, pace 2 %);
- `renamed`: another workload of the sweep (two seeds), as fast as the first was, under the first one's name.

`over`: share of windows beyond the budget, `clearly`: by over a quarter of a point, `beyond`: by more than one;
`excess`: slowdown beyond the budget, the mean over all windows. `of_oracle`: share of the GPU energy that the best
limit of a 25 W grid saves. `--sign` also writes the evaluation that ships with the heuristic, signed by a new key,
of which only the public half is printed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from benchmarks.report import write
from nightshift.collectors.seal import Signer, canonical_json, fingerprint
from nightshift.controllers.decision import plain
from nightshift.controllers.lab.power.learn import JUDGED_BUDGETS, Descent, summary
from nightshift.controllers.lab.power.simulate import EnergyLedger, ledger
from nightshift.controllers.lab.power.sweeps import read_sweeps
from nightshift.controllers.power import descent
from nightshift.controllers.power.belief import Bank, LevelWindows
from nightshift.controllers.power.curves import Curve
from nightshift.controllers.power.evaluation import PAYLOAD_TYPE, SHIPPED

HOURS_2, HOURS_4 = 240, 480
FOUR_HOURS_AT = 0.05
FEW = 2
"""Seeds of what nothing is held to."""
COST, DRAW, PACE = 0.1, 0.01, 0.02
"""How one card differs from another of its model: deviations of the logarithm."""


def another_card(curve: Curve, random: np.random.Generator) -> Curve:
    cost, draw = np.exp(random.normal(0.0, (COST, DRAW)))
    drawn = np.minimum(curve.draw_w * draw, np.maximum(curve.limit_w, curve.draw_w))
    return Curve(curve.gpu, curve.workload, curve.limit_w, 1.0 + (curve.time - 1.0) * cost, drawn)


def _of_first(jobs: descent.Jobs, count: int) -> descent.Jobs:
    """The first so many of the jobs."""
    found: dict[str, Any] = {}
    for field in fields(jobs):
        whole = getattr(jobs, field.name)
        parts = [getattr(whole, each.name)[:count] for each in fields(whole)] if is_dataclass(whole) else []
        found[field.name] = LevelWindows(*parts) if parts else whole[:count]
    return descent.Jobs(**found)


def rows(curves: Sequence[Curve], budget: float, seeds: int, bank: Bank) -> dict[str, Any]:
    """Run → score. All seeds run beside each other, as jobs of one simulation."""
    many, care = list(curves) * seeds, descent.DescentCare()
    random = np.random.default_rng(0)
    pace = random.uniform(0.5, 200.0, len(many))

    def scored(run: EnergyLedger, blocks: int = seeds) -> dict[str, Any]:
        return dict(summary([each.of() for each in run.split(blocks)])) | {"curves": len(curves)}

    def again(seed: int, jobs: Sequence[Curve], pace: np.ndarray) -> dict[str, Any]:
        one = Descent(bank, care, _of_first(former, len(jobs)))
        found = scored(ledger(jobs, one, budget, seed, HOURS_2, pace=pace), len(jobs) // len(curves))
        return found | {"remembered": round(float((one.jobs.past.count > 0).any(1).mean()), 4)}

    first = Descent(bank, care)
    found = {"first": scored(ledger(many, first, budget, 1, HOURS_2, pace=pace))}
    former = first.jobs
    found["second"] = again(2, many, pace)
    few = len(curves) * min(seeds, FEW)
    cards = [another_card(curve, random) for curve in many[:few]]
    found["another_card"] = again(3, cards, pace[:few] * np.exp(random.normal(0.0, PACE, few)))
    others = [*curves[-1:], *curves[:-1]] * min(seeds, FEW)
    found["renamed"] = again(4, others, pace[:few])
    if budget == FOUR_HOURS_AT:
        found["first_four_hours"] = scored(ledger(many, Descent(bank, care), budget, 5, HOURS_4, pace=pace))
    return found


def sign(results: dict[str, Any]) -> None:
    """Writes the evaluation that ships; prints the public key."""
    signer = Signer.generate()
    body = {
        "rule_sha256": results["rule_sha256"],
        "windows": HOURS_2,
        "data": "ml-energy/zeus, zeus_nsdi23/trace: sweeps that the rule was not tuned on",
        "held_out": {
            name: {budget: runs["first"] for budget, runs in budgets.items()}
            for name, budgets in results["sweeps"].items()
        },
    }
    SHIPPED.write_text(json.dumps(signer.seal(PAYLOAD_TYPE, canonical_json(body))) + "\n", encoding="utf-8")
    print("SHIPPED_KEY =", signer.public.public_bytes(Encoding.Raw, PublicFormat.Raw).hex())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("sweeps", type=Path, nargs="+")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--sign", action="store_true", help="also write the signed evaluation that ships")
    parser.add_argument("--name", default="power_memory")
    given = parser.parse_args()
    bank = Bank.make()
    results: dict[str, Any] = {"rule_sha256": fingerprint(plain(descent.DescentCare())), "seeds": given.seeds}
    results["sweeps"] = {
        path.stem.removeprefix("summary_power_"): {
            f"{budget:.0%}": rows(read_sweeps(path), budget, given.seeds, bank) for budget in JUDGED_BUDGETS
        }
        for path in given.sweeps
    }
    write(given.name, results)
    if given.sign:
        sign(results)


if __name__ == "__main__":
    main()
