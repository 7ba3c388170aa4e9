"""What a search learns: it finds a space's best with few looks, never looks twice, and survives failures."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightshift.kernels.generate.base import GeneratorError
from nightshift.kernels.generate.rows import carry
from nightshift.kernels.generate.space import Space, differences
from nightshift.kernels.generate.surrogate import Prior, Surrogate
from nightshift.kernels.generate.template import Template, Warm
from nightshift.kernels.ops.softmax.triton_family import Softmax
from nightshift.kernels.problem import Case

ROOT = Path(__file__).resolve().parents[2]
SPACE = Space.of(
    lambda c: int(c["warps"]) * int(c["rows"]) <= 32,
    rows=(1, 2, 4, 8),
    warps=(1, 2, 4, 8, 16),
    waves=(0, 1, 2, 4),
    load=("", "evict_first"),
)


def seconds(config: dict[str, int | str]) -> float:
    """A smooth bowl with a discrete choice, and a corner that does not run."""
    rows, warps, waves = (math.log2(int(config[k]) + 1) for k in ("rows", "warps", "waves"))
    if config["load"] == "" and int(config["rows"]) == 8:
        return math.inf
    return 1e-5 * math.exp(
        0.2 * (rows - 2) ** 2 + 0.1 * (warps - 3) ** 2 + 0.05 * waves + 0.1 * (config["load"] == "")
    )


def look(author: Template, trials: int) -> list[tuple[dict[str, int | str], float]]:
    tried: list[tuple[dict[str, int | str], float]] = []
    while len(tried) < trials:
        tried += [(dict(c), seconds(dict(c))) for c, _ in author.choose(SPACE, tried, 4)]
    return tried


@pytest.mark.parametrize("seed", range(3))
def test_the_best_of_a_smooth_space_is_found_within_a_third_of_it(seed: int) -> None:
    """With a corner of failures in it."""
    best = min(seconds(dict(c)) for c in SPACE)
    found = min(s for _, s in look(Template(Softmax(), seed), len(SPACE) // 3))
    assert found <= 1.01 * best


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(min_value=0, max_value=2**32), count=st.integers(min_value=1, max_value=9))
def test_a_search_never_looks_at_a_configuration_twice(seed: int, count: int) -> None:
    """Until the space is empty; then there is nothing more."""
    author = Template(Softmax(), seed)
    tried: list[tuple[dict[str, int | str], float]] = []
    small = Space.of(rows=(1, 2), warps=(1, 2, 4), waves=(0, 1), load=("",))
    while chosen := author.choose(small, tried, count):
        tried += [(dict(c), seconds(dict(c))) for c, _ in chosen]
    assert len({small.key(c) for c, _ in tried}) == len(tried) == len(small)


def test_a_neighbour_s_table_leads_the_first_guesses() -> None:
    """With the other shape's times as its prior, a search needs fewer trials to the best."""
    table = {SPACE.key(c): math.log(1.3 * seconds(dict(c))) for c in SPACE if math.isfinite(seconds(dict(c)))}
    best = min(seconds(dict(c)) for c in SPACE)
    warm = look(Template(Softmax(), 5, Warm((SPACE.configs[0],), (table,))), 12)
    assert min(s for _, s in warm) <= 1.001 * best


def test_the_model_is_told_of_nothing_that_ran() -> None:
    """Nothing to learn from is said, not guessed at."""
    model = Surrogate(SPACE.points, SPACE.groups)
    with pytest.raises(ValueError, match="nothing ran yet"):
        model.fit(np.array([1, 2]), np.array([math.inf, math.inf]))


def test_a_prior_shifts_what_is_expected_where_nothing_was_tried() -> None:
    """Expectations far from the tried points are those of the prior."""
    log_s = np.linspace(-1, 1, len(SPACE))
    tried = np.arange(0, len(SPACE), 5)
    model = Surrogate(SPACE.points, SPACE.groups, 1, Prior(log_s))
    model.fit(tried, log_s[tried] - 9.0)
    mean, spread = model.predict()
    assert np.abs(mean - (log_s - 9.0)).max() < 0.05
    assert (spread > 0).all()


def test_a_configuration_outside_the_space_is_refused_by_its_dimension() -> None:
    """Values are named in the error."""
    with pytest.raises(GeneratorError, match="warps = 3"):
        SPACE.key({**SPACE.configs[0], "warps": 3})
    assert differences(SPACE.configs[0], {**SPACE.configs[0], "warps": 4}) == "warps 1 → 4"


def test_rows_are_carried_over_by_values_a_thread() -> None:
    """Half the width takes half the warps; other families' configurations stay as they are."""
    near, here = Case.of("bfloat16", m=8192, n=8192), Case.of("bfloat16", m=16384, n=4096)
    assert carry({"rows": 1, "warps": 16, "waves": 0}, near, here)["warps"] == 8
    assert carry({"rows": 1, "warps": 8, "waves": 0}, here, near)["warps"] == 16
    assert carry({"tile": 8, "warps": 4}, near, here) == {"tile": 8, "warps": 4}


def test_the_committed_tables_hold_one_figure_for_each_configuration() -> None:
    """Every table names its environment, and its rows point into its dimensions."""
    paths = sorted((ROOT / "benchmarks" / "results" / "kernels_tables").glob("*.json"))
    assert len(paths) >= 40
    for path in paths:
        table = json.loads(path.read_text())
        sizes = [len(values) for values in table["dimensions"].values()]
        assert len(table["configs"]) == len(table["microseconds"]) <= table["space"], path.name
        assert all(0 <= i < n for row in table["configs"] for i, n in zip(row, sizes, strict=True)), path.name
        assert table["environment"]["gpu"].startswith("NVIDIA"), path.name
