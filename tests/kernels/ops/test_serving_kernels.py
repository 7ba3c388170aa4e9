"""Kernels for serving's definitions: bound by inputs, and right on Triton's interpreter."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nightshift.kernels.generate.template import candidate
from nightshift.kernels.judge.judge import Judge, Request
from nightshift.kernels.judge.probes.sizes import Scope
from nightshift.kernels.judge.verdict import Status
from nightshift.kernels.ops.serving.families import KERNELS, family_of
from nightshift.kernels.suites.definitions import definition_of
from nightshift.kernels.suites.serving import problem_of
from tests.serving_definitions import (
    decode,
    delta,
    embedding,
    experts,
    norm,
    product,
    put,
    rotary,
    sample,
    silu,
    sparse,
    topk,
)


@pytest.fixture(scope="module")
def court() -> Iterator[Judge]:
    with Judge("cpu", interpret=True) as judge:
        yield judge


EACH = (decode, norm, topk, sample, sparse, delta, experts, rotary, silu, embedding, product)


def test_a_definition_has_the_kernel_of_its_inputs(tmp_path: Path) -> None:
    names = {}
    for record in (make() for make in EACH):
        family = family_of(definition_of(put(tmp_path, record)))
        names[record["name"]] = family.kernel.name if family is not None else None
    assert names == {make.__name__: make.__name__ for make in EACH} | {"sparse": "latent_decode"}


def test_another_dtype_has_no_kernel(tmp_path: Path) -> None:
    record = norm()
    record["inputs"]["hidden_states"] = {**record["inputs"]["hidden_states"], "dtype": "float8_e4m3fn"}
    assert family_of(definition_of(put(tmp_path, record))) is None


def test_every_configuration_is_a_candidate(tmp_path: Path) -> None:
    for record in (make() for make in EACH):
        definition = definition_of(put(tmp_path, record))
        family, problem = family_of(definition), problem_of(definition)
        assert family is not None
        for config in family.space(problem.name, problem.cases[0]).configs:
            assert candidate(family, problem.name, problem.cases[0], config).kind == "own_kernel"


def test_kernels_have_names_of_their_own() -> None:
    assert len({kernel.name for kernel in KERNELS}) == len(KERNELS)


def judged(
    court: Judge,
    folder: Path,
    record: dict[str, Any],
    config: dict[str, int],
    change: str = "",
    size: int = 1 << 15,
) -> Status:
    definition = definition_of(put(folder, record))
    family, problem = family_of(definition), problem_of(definition)
    assert family is not None
    made = candidate(family, problem.name, problem.cases[0], config)
    if change:
        one, other = change.split(" -> ")
        assert one in made.source
        made = replace(made, source=made.source.replace(one, other))
    scope = Scope(1 << 15, 0, 0, 0, 0, benchmark=False, huge=False, repeats=2)
    return court.verdict(made, problem, Request(scope, None)).status


@pytest.mark.full
def test_a_norm_is_right_on_the_interpreter(court: Judge, tmp_path: Path) -> None:
    config = {"wide": 8, "rows": 2, "warps": 4}
    assert judged(court, tmp_path, norm(), config) is Status.correct
    assert judged(court, tmp_path, norm(), config, "if ADD: -> if False:") is Status.wrong


def with_the_sum() -> dict[str, Any]:
    record = norm()
    record["outputs"]["updated_residual"] = dict(record["inputs"]["residual"])
    record["reference"] = record["reference"].replace("return ", "return (").rstrip() + ", x.to(residual.dtype))\n"
    return record


def test_a_norm_with_outputs_that_are_not_its_own_has_no_kernel(tmp_path: Path) -> None:
    record = with_the_sum()
    assert family_of(definition_of(put(tmp_path, record))) is not None
    record["outputs"]["scale"] = dict(record["outputs"]["output"])
    assert family_of(definition_of(put(tmp_path, record))) is None


@pytest.mark.full
def test_a_norm_gives_the_sum_as_well_on_the_interpreter(court: Judge, tmp_path: Path) -> None:
    config = {"wide": 8, "rows": 2, "warps": 4}
    assert judged(court, tmp_path, with_the_sum(), config) is Status.correct
    assert judged(court, tmp_path, with_the_sum(), config, "if SUM: -> if False:") is Status.wrong


@pytest.mark.full
def test_a_decode_is_right_on_the_interpreter(court: Judge, tmp_path: Path) -> None:
    config = {"block": 32, "splits": 4, "stages": 1, "warps": 4}
    assert judged(court, tmp_path, decode(), config) is Status.correct
    lost = "weight = tl.exp2(logarithm - low) -> weight = tl.exp2(logarithm * 0)"
    assert judged(court, tmp_path, decode(), config, lost) is Status.wrong


@pytest.mark.full
def test_kernels_are_right_on_the_interpreter_and_their_mutants_are_not() -> None:
    command = [sys.executable, "-m", "tests.kernels.ops.serving_interpreter"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3])
    found = json.loads(done.stdout)
    assert {name: told for name, (told, _) in found.items() if told} == {}
    assert [name for name, (_, told) in found.items() if not told] == []
