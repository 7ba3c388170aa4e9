"""A paged decode of ours as reader of memory: its share of what torch's sum reads, by size of a page.

    python -m benchmarks.serving_bandwidth FOLDER --out FILE.json    # on a GPU, alone; under a minute

The definition `DEFINITION` of FOLDER (see kernels.suites.definitions) is taken with pages of `PAGES` tokens, at
`BATCH` sequences of `CONTEXT` tokens with pages in random order: 2 GiB of keys and values. Configurations are tried
in short, for later sizes of a page the `KEPT` best of the first. The best is timed in turns with the sum of as many
bytes. Beside it are FlashInfer, where it is installed, and torch's attention over gathered pages, and how far
its outputs are at most. What may be delivered, the judge alone says.
"""

from __future__ import annotations

import concurrent.futures
import json
import statistics
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import serving_rows

DEFINITION = "gqa_paged_decode_h32_kv8_d128_ps64"
BATCH, CONTEXT, PAGES = 64, 8192, (64, 16, 1)
SPLITS = (4, 8, 16)
TURNS, TRIED_TURNS, KEPT = 31, 5, 8


def inputs_of(definition: Any, page: int) -> dict[str, Any]:
    import torch

    heads, kv, width = (definition.axes[name] for name in ("num_qo_heads", "num_kv_heads", "head_dim"))
    pages = BATCH * CONTEXT // page
    torch.manual_seed(page)
    q = torch.randn(BATCH, heads, width, dtype=torch.bfloat16, device="cuda")
    k, v = (torch.randn(pages, page, kv, width, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    offsets = torch.arange(BATCH + 1, dtype=torch.int32, device="cuda") * (CONTEXT // page)
    return {
        "q": q, "k_cache": k, "v_cache": v, "kv_indptr": offsets,
        "kv_indices": torch.randperm(pages, device="cuda").int(),
        "kv_last_page_len": torch.full((BATCH,), page, dtype=torch.int32, device="cuda"),
        "sm_scale": width**-0.5,
    }  # fmt: skip


def medians(calls: Mapping[str, Callable[[], Any]], turns: int) -> dict[str, float]:
    """In turns: none of them has the GPU warmer or cooler than the others."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(turns):
        for name, call in calls.items():
            taken[name].append(serving_rows.seconds(call))
    return {name: statistics.median(found[1:]) for name, found in taken.items()}


def row_of(definition: Any, page: int, configs: list[dict[str, Any]], folder: Path) -> dict[str, Any]:
    import torch

    from benchmarks.serving_baselines import libraries
    from nightshift.kernels.generate.template import candidate
    from nightshift.kernels.ops.serving.families import family_of
    from nightshift.kernels.problem import Case

    definition = replace(definition, axes={**definition.axes, "page_size": page})
    family = family_of(definition)
    assert family is not None
    given = inputs_of(definition, page)
    inputs = [given[name] for name in definition.inputs]
    case = Case.of("bfloat16", rows=1)
    if not configs:
        configs = [dict(c) for c in family.space(family.problem, case).configs if c["splits"] in SPLITS]
    entries = [
        serving_rows.entry_of(candidate(family, family.problem, case, config).source, folder, number)
        for number, config in enumerate(configs)
    ]

    def first(entry: Callable[..., Any]) -> Callable[..., Any] | None:
        try:  # compiles
            entry(*inputs)
            torch.cuda.synchronize()
        except Exception as error:  # noqa: BLE001  the GPU has no room for it, or a package is missing
            print(f"{type(error).__name__}: {str(error)[:100]}", flush=True)
            return None
        return entry

    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        ready = list(pool.map(first, entries))
    fit = {str(number): partial(entry, *inputs) for number, entry in enumerate(ready) if entry is not None}
    tried = medians(fit, TRIED_TURNS)
    order = sorted(tried, key=tried.__getitem__)[:KEPT]
    best = order[0]
    read = sum(x.numel() * x.element_size() for x in inputs if isinstance(x, torch.Tensor))
    values = torch.ones(read // 4, device="cuda")
    beside: dict[str, Callable[..., Any]] = {}
    for name, function in libraries(definition).items():
        if (made := first(function)) is not None:
            beside[name] = partial(made, *inputs)
    ours, theirs = fit[best](), beside["torch.padded"]()
    took = medians({"ours": fit[best], "sum": values.sum}, TURNS) | medians(beside, TRIED_TURNS)
    return {
        "page": page,
        "config": configs[int(best)],
        "bytes": read,
        "share": round(took["sum"] / took["ours"], 3),
        "us": {name: round(found * 1e6, 1) for name, found in took.items()},
        "read_gb_per_s": round(read / took["sum"] / 1e9),
        "largest_distance": float((ours[0].float() - theirs[0].float()).abs().max()),
        "largest_output": float(theirs[0].float().abs().max()),
        "tried_us": [round(tried[number] * 1e6, 1) for number in order],
        "tried": [configs[int(number)] for number in order],
        "configurations": len(configs),
    }


def main() -> None:
    from nightshift.kernels.suites.definitions import definitions_in

    args = serving_rows.parser(__doc__).parse_args()
    definition = definitions_in(args.folder)[0][DEFINITION]
    rows: dict[str, Any] = {}
    configs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for page in PAGES:
            (place := Path(folder) / str(page)).mkdir()
            rows[str(page)] = row_of(definition, page, configs, place)
            configs = rows[str(page)]["tried"]
            print(json.dumps(rows[str(page)]), flush=True)
            found = {"definition": DEFINITION, "batch": BATCH, "context": CONTEXT}
            serving_rows.save(args.out, "serving_bandwidth", "cuda", found, rows=rows)


if __name__ == "__main__":
    main()
