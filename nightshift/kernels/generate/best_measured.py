"""Configurations that did well before, by GPU, problem and case: where a search of a new shape begins.

`known.json` is written from measurements (`python -m benchmarks.kernels_best`), never by hand. Neighbours are the
cases of the same problem whose sizes are nearest, in octaves; another dtype counts as one octave.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from nightshift.kernels.generate.base import Config
from nightshift.kernels.generate.rows import carry
from nightshift.kernels.generate.template import Template, Warm
from nightshift.kernels.ops.families import families_of
from nightshift.kernels.problem import Case

_FILE = Path(__file__).with_name("known.json")
_NEAR = 6
_ALIKE = {
    **dict.fromkeys(("linear", "linear_bias"), "matmul"),
    "flash_attention_by_position": "flash_attention",
    "flash_attention_by_position_backward": "flash_attention_backward",
}
"""The same work but for how an operand lies, or a row that is added: what was best there is where to begin, while
nothing was measured."""


@dataclass(frozen=True)
class BestMeasured:
    """One measured configuration. seconds: its median time then."""

    gpu: str
    problem: str
    case: Case
    family: str
    config: Config
    seconds: float


@cache
def known() -> tuple[BestMeasured, ...]:
    """All of the file, best first within a case."""
    found = []
    for item in json.loads(_FILE.read_text()):
        case = Case.of(item["case"]["dtype"], item["case"]["layout"], **item["case"]["params"])
        found.append(
            BestMeasured(item["gpu"], item["problem"], case, item["family"], dict(item["config"]), item["seconds"])
        )
    return tuple(sorted(found, key=lambda k: k.seconds))


def octaves(a: Case, b: Case) -> float:
    """How far apart two cases of one problem are."""
    sizes, others = a.sizes, b.sizes
    apart = sum(abs(math.log2((1 + sizes[k]) / (1 + others[k]))) for k in sizes if k in others)
    return apart + (a.dtype != b.dtype)


def neighbours(gpu: str, problem: str, case: Case, family: str = "") -> list[BestMeasured]:
    """The nearest cases' best configurations first; those of the same GPU before others."""
    # what was measured for the problem itself comes first; else its like's
    named = problem if any(k.problem == problem for k in known()) else _ALIKE.get(problem, problem)
    fitting = [k for k in known() if k.problem == named and family in ("", k.family)]
    return sorted(fitting, key=lambda k: (k.gpu != gpu, octaves(k.case, case), k.seconds))


def templates(gpu: str, problem: str, case: Case, seed: int = 0, warm: bool = True) -> Sequence[Template]:
    """All parametric authors for a problem, each begun from what is known of neighbouring shapes."""
    made = []
    for family in families_of(problem):
        near = neighbours(gpu, problem, case, family.name)[:_NEAR] if warm else []
        made.append(Template(family, seed, Warm(tuple(carry(k.config, k.case, case) for k in near))))
    return made


def to_json(items: Sequence[BestMeasured]) -> list[dict[str, Any]]:
    """The inverse of `known`, for the file."""
    return [
        {
            "gpu": k.gpu,
            "problem": k.problem,
            "case": k.case.to_json(),
            "family": k.family,
            "config": dict(k.config),
            "seconds": k.seconds,
        }
        for k in items
    ]
