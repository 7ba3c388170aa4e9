"""Correctness of the best configurations of measured tables, by the judge, without a race: a quick look.

python -m benchmarks.kernels_smoke TABLES.jsonl [--families rows_cuda …] [--seconds 60]
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from nightshift.kernels.generate.template import candidate
from nightshift.kernels.judge.judge import Judge, Request
from nightshift.kernels.judge.probes.inputs import QUICK_GPU
from nightshift.kernels.ops.families import family_named
from nightshift.kernels.ops.problems import named
from nightshift.kernels.problem import Case


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", type=Path)
    parser.add_argument("--families", nargs="*", default=[])
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    began = time.time()
    with Judge("cuda") as judge:
        for text in options.tables.read_text().splitlines():
            table = json.loads(text)
            ran = [(m, r) for m, r in zip(table["microseconds"], table["configs"], strict=True) if m]
            if not ran or (options.families and table["family"] not in options.families):
                continue
            if time.time() - began > options.seconds:
                break
            names = list(table["dimensions"])
            config = {n: table["dimensions"][n][i] for n, i in zip(names, min(ran)[1], strict=True)}
            case = Case.of(table["case"]["dtype"], **table["case"]["params"])
            family = family_named(table["family"])
            made = candidate(family, table["problem"], case, config)
            verdict = judge.verdict(made, named(table["problem"]), Request(QUICK_GPU, None, cases=(case,)))
            told = f"{verdict.status} {verdict.reason} {verdict.detail[:200]} {verdict.took_s:.1f} s"
            print(f"{table['label']}: {told}", flush=True)


if __name__ == "__main__":
    main()
