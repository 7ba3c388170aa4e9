"""Write the best measured configurations where searches begin: kernels/generate/known.json, from committed tables.

    python -m benchmarks.kernels_best [--import TABLES.jsonl …] [--top 6]

--import splits files of `benchmarks.kernels_tables --single` into one file a table first. A part of a space that
was measured anew replaces those figures in its table; the others stand, where the space still has their values.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.kernels_tables import OUT
from nightshift.kernels.generate import best_measured
from nightshift.kernels.generate.base import GeneratorError
from nightshift.kernels.ops.families import family_named
from nightshift.kernels.problem import Case


def read(folder: Path = OUT) -> list[dict[str, Any]]:
    """All committed tables, by file name."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def best(table: dict[str, Any], top: int) -> list[best_measured.BestMeasured]:
    """The table's fastest configurations that its family's space still holds."""
    case = Case.of(table["case"]["dtype"], table["case"]["layout"], **table["case"]["params"])
    family = family_named(table["family"])
    try:
        space = family.space(table["problem"], case)
    except GeneratorError:
        return []
    names = list(table["dimensions"])
    found = []
    for micro, row in sorted((m, r) for m, r in zip(table["microseconds"], table["configs"], strict=True) if m):
        config = {n: table["dimensions"][n][i] for n, i in zip(names, row, strict=True)}
        if space.holds(config):
            gpu = table["environment"]["gpu"]
            found.append(best_measured.BestMeasured(gpu, table["problem"], case, family.name, config, micro * 1e-6))
        if len(found) == top:
            break
    return found


def merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The new table, and the old one's rows that it does not measure again: those whose every value is still one of
    the new table's dimensions. Both of one GPU, family, problem and case."""
    dimensions: dict[str, list[Any]] = new["dimensions"]
    if set(old["dimensions"]) != set(dimensions) or old["environment"] != new["environment"]:
        return new
    figures: dict[tuple[int, ...], tuple[float | None, str]] = {}
    for table in (old, new):
        for place, (micro, row) in enumerate(zip(table["microseconds"], table["configs"], strict=True)):
            values = [table["dimensions"][n][i] for n, i in zip(table["dimensions"], row, strict=True)]
            by_name = dict(zip(table["dimensions"], values, strict=True))
            if all(by_name[n] in dimensions[n] for n in dimensions):
                key = tuple(dimensions[n].index(by_name[n]) for n in dimensions)
                figures[key] = micro, table["failures"].get(str(place), "")
    return {
        **new,
        "configs": [list(key) for key in figures],
        "microseconds": [micro for micro, _ in figures.values()],
        "failures": {str(i): why for i, (_, why) in enumerate(figures.values()) if why},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--import", dest="imports", type=Path, nargs="*", default=[])
    parser.add_argument("--top", type=int, default=6)
    options = parser.parse_args()
    for path in options.imports:
        for text in path.read_text().splitlines():
            table = json.loads(text)
            label = table.pop("label")
            target = OUT / f"{label}.json"
            made = merged(json.loads(target.read_text()), table) if target.exists() else table
            target.write_text(json.dumps(made, separators=(",", ":")) + "\n")
    found = [k for table in read() for k in best(table, options.top)]
    target = Path(best_measured.__file__).with_name("known.json")
    lines = ",\n".join(json.dumps(item, separators=(",", ":")) for item in best_measured.to_json(found))
    target.write_text(f"[\n{lines}\n]\n")
    print(f"{len(found)} configurations of {len(read())} tables in {target}")


if __name__ == "__main__":
    main()
