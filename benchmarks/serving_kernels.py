"""Our kernels for serving's definitions: judged, tuned, and raced against torch's own ways to compute them.

    python -m benchmarks.serving_kernels FOLDER --until 300 --out FILE.json    # on a GPU; resumable

FOLDER is read as kernels.suites.definitions reads it. Of every definition that one of `kernels.ops.serving.kernels`
fits, some of the kernel's configurations are raced quickly on the largest workload. The fastest is judged in full,
and raced on all of its workloads: 64 rows where none is published. Baselines: the reference as written, the same
under torch.compile (`COMPILED`), and `libraries`: what torch itself offers for the operation.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

ORDER = ("decode", "norm", "latent_decode", "delta", "mamba", "prefill", "softmax", "latent_prefill")
"""Kinds of kernels, each in turn: a definition of every kind before the second of any."""
COMPILED = ("norm", "softmax", "mamba")
"""Kinds whose reference torch.compile compiles as one graph. The others synchronise in every sequence or token."""
CONFIGURATIONS = 6


def libraries(definition: Any) -> dict[str, Callable[..., Any]]:
    """What torch offers for a definition, as its reference is called."""
    import torch
    from torch.nn import functional

    names = list(definition.inputs)
    if definition.kind == "rmsnorm":
        epsilon = 1e-5 if "1e-5" in definition.reference else 1e-6

        def norm(x: Any, *rest: Any) -> Any:
            total = x if len(rest) == 1 else x + rest[0]
            return functional.rms_norm(total, (total.shape[-1],), rest[-1], epsilon)

        return {"torch.rms_norm": norm}
    if definition.kind == "softmax":
        return {"torch.softmax": lambda x: torch.softmax(x, -1)}
    if "kv_indices" in names and "qo_indptr" not in names and "k_cache" in names:
        return {"torch.batched": _decode(names)}
    return {}


def _decode(names: list[str]) -> Callable[..., Any]:
    """Keys gathered by page and padded, then products and a softmax: what a server without a paged kernel runs."""
    import math

    import torch

    def decode(*inputs: Any) -> Any:
        given = dict(zip(names, inputs, strict=True))
        q, k, v = given["q"], given["k_cache"], given["v_cache"]
        offsets, pages = given["kv_indptr"].long(), given["kv_indices"].long()
        counts = (offsets[1:] - offsets[:-1]) * k.shape[1]
        if "kv_last_page_len" in given:
            counts = torch.where(counts > 0, counts - k.shape[1] + given["kv_last_page_len"][: len(q)], counts)
        most = max(1, -(-len(pages) // max(1, len(q))) * 2)  # without waiting for the device
        place = (offsets[:-1, None] + torch.arange(most, device=q.device)).clamp(max=max(0, len(pages) - 1))
        rows = pages[place]
        keys, values = k[rows].flatten(1, 2).transpose(1, 2), v[rows].flatten(1, 2).transpose(1, 2)
        grouped = q.reshape(len(q), keys.shape[1], -1, q.shape[-1])
        logits = (grouped @ keys.transpose(2, 3)).float() * given["sm_scale"]
        inside = torch.arange(keys.shape[2], device=q.device) < counts[:, None]
        logits = logits.masked_fill(~inside[:, None, None], -float("inf"))
        lse = torch.logsumexp(logits, -1) / math.log(2.0)
        weights = torch.nan_to_num(torch.softmax(logits, -1)).to(q.dtype)
        return (weights @ values).reshape(q.shape), lse.reshape(q.shape[:2])

    return decode


def row_of(court: Any, folder: Path, definition: Any, family: Any) -> dict[str, Any]:
    """A definition's kernel: tuned, judged and raced."""
    from nightshift.kernels.generate.template import candidate
    from nightshift.kernels.judge.judge import Request
    from nightshift.kernels.judge.probes.sizes import Scope
    from nightshift.kernels.judge.race.contest import QUICK
    from nightshift.kernels.suites.definitions import workloads_of
    from nightshift.kernels.suites.serving import problem_of

    problem = problem_of(definition, workloads_of(folder, definition))
    if problem.cases[0]["workload"] == 0:
        problem = replace(problem, cases=(problem.cases[0].with_(rows=64),))
    problem = replace(problem, libraries=libraries(definition))
    scope = Scope(1 << 30, 0, 0, 0, 0, benchmark=True, huge=False, repeats=4)
    pace = replace(QUICK, slot_bytes=2 << 30)
    space = family.space(problem.name, problem.cases[0])
    tried: list[tuple[float, Any]] = []
    for config in space.configs[:: max(1, len(space) // CONFIGURATIONS)][:CONFIGURATIONS]:
        made = candidate(family, problem.name, problem.cases[-1], config)
        request = Request(scope, pace, cases=problem.cases[-1:], search=True)
        found = court.verdict(made, problem, request)
        times = [c.candidate_s for c in found.comparisons]
        tried.append((min(times) if times else math.inf, config))
    best = min(tried, key=lambda item: item[0])[1]
    chosen = candidate(family, problem.name, problem.cases[-1], best)
    verdict = court.verdict(chosen, problem, Request(scope, pace))
    return {
        "kernel": family.kernel.name,
        "config": dict(best),
        "status": str(verdict.status),
        "reason": str(verdict.reason),
        "detail": verdict.detail[:300],
        "took_s": round(verdict.took_s, 1),
        "times": [
            {
                "case": c.case,
                "baseline": c.baseline,
                "tier": c.tier,
                "speedup": round(c.speedup.point, 4),
                "low": round(c.speedup.low, 4),
                "candidate_us": round(c.candidate_s * 1e6, 2),
            }
            for c in verdict.comparisons
        ],
        "not_raced": [f"{x.baseline}: {x.why.splitlines()[0][:120]}" for x in verdict.left_out],
        "tried": [[round(seconds * 1e6, 2) if math.isfinite(seconds) else None, dict(c)] for seconds, c in tried],
    }


def save(out: Path, rows: Mapping[str, Any], fitting: int) -> dict[str, Any]:
    from nightshift.kernels.judge.environment import environment
    from nightshift.version import commit

    right = {
        name: row for name, row in rows.items() if row["status"] in ("faster", "slower", "inconclusive", "correct")
    }
    worst = []
    for row in right.values():
        by_case: dict[str, list[float]] = {}
        for time_ in row["times"]:
            by_case.setdefault(time_["case"], []).append(time_["speedup"])
        worst += [min(found) for found in by_case.values()]
    result = {
        "benchmark": "serving_kernels",
        "commit": commit() or "unknown",
        "environment": environment("cuda").to_json(),
        "definitions_with_a_kernel": fitting,
        "judged": len(rows),
        "correct": len(right),
        "faster_than_all_baselines": sum(row["status"] == "faster" for row in rows.values()),
        "over_the_best_baseline": round(math.exp(sum(map(math.log, worst)) / len(worst)), 3) if worst else None,
        "below_0.97": sum(x < 0.97 for x in worst),
        "rows": dict(sorted(rows.items())),
    }
    out.write_text(json.dumps(result, indent=1) + "\n")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--until", type=float, default=1e9, help="seconds")
    args = parser.parse_args()
    from nightshift.kernels.judge.judge import Judge
    from nightshift.kernels.ops.serving.kernels import family_of
    from nightshift.kernels.suites.definitions import definitions_in

    start = time.monotonic()
    definitions, _ = definitions_in(args.folder)
    kinds: dict[str, list[Any]] = {name: [] for name in ORDER}
    for definition in definitions.values():
        if (family := family_of(definition)) is not None:
            kinds[family.kernel.name].append((definition, family))
    turns = [  # each kind in turn
        kinds[name][turn]
        for turn in range(max(map(len, kinds.values())))
        for name in ORDER
        if turn < len(kinds[name])
    ]
    rows: dict[str, Any] = json.loads(args.out.read_text())["rows"] if args.out.exists() else {}
    with Judge("cuda") as compiling, Judge("cuda", compiled=False) as plain:
        for definition, family in turns:
            court = compiling if family.kernel.name in COMPILED else plain
            if definition.name in rows or time.monotonic() - start > args.until:
                continue
            try:
                rows[definition.name] = row_of(court, args.folder, definition, family)
            except Exception as error:  # noqa: BLE001  it fails this definition alone
                rows[definition.name] = {
                    "status": "not judged",
                    "detail": f"{type(error).__name__}: {error}"[:300],
                    "times": [],
                }
            save(args.out, rows, len(turns))
            print(
                definition.name, rows[definition.name]["status"], rows[definition.name]["detail"][:100], flush=True
            )
    made = save(args.out, rows, len(turns))
    print(json.dumps({name: value for name, value in made.items() if name not in ("rows", "environment")}))


if __name__ == "__main__":
    main()
