"""Parametric families: every problem has one, its space holds what it promises, and its kernels are right."""

from __future__ import annotations

import random

import pytest

from nightshift.kernels.generate.base import GeneratorError, Task
from nightshift.kernels.generate.best_measured import octaves, templates
from nightshift.kernels.generate.space import Space
from nightshift.kernels.generate.template import Family, Template, Warm, candidate
from nightshift.kernels.judge import static
from nightshift.kernels.judge.judge import Judge, Request
from nightshift.kernels.judge.probes.inputs import INTERPRETER
from nightshift.kernels.judge.static import misfit
from nightshift.kernels.ops.families import ALL, families_of, interprets
from nightshift.kernels.ops.problems import ALL as PROBLEMS
from nightshift.kernels.ops.problems import named
from nightshift.kernels.problem import Case

TINY = {
    "adamw": {"n": 700},
    "adamw_cast": {"n": 700},
    "adamw_many": {"n": 700},
    "copy": {"m": 3, "n": 40},
    "permute": {"b": 2, "m": 9, "n": 35},
    "cross_entropy": {"m": 3, "v": 300},
    "dropout_add": {"m": 3, "n": 40},
    "embedding_gradient": {"t": 20, "d": 24, "v": 8},
    "flash_attention": {"b": 1, "h": 2, "s": 75, "d": 32},
    "flash_attention_backward": {"b": 1, "h": 2, "s": 75, "d": 32},
    "flash_attention_by_position": {"b": 2, "h": 2, "s": 75, "d": 32},
    "flash_attention_by_position_backward": {"b": 2, "h": 2, "s": 75, "d": 32},
    "fused_mlp": {"m": 20, "d": 32, "f": 48},
    "gelu": {"m": 3, "n": 40},
    "gelu_backward": {"m": 3, "n": 40},
    "cross_entropy_cast": {"m": 3, "v": 300},
    "cross_entropy_cast_backward": {"m": 3, "v": 300},
    "swiglu": {"m": 3, "n": 40},
    "geglu": {"m": 3, "n": 40},
    "layernorm": {"m": 3, "n": 40},
    **{f"linear_{act}": {"m": 17, "n": 24, "k": 40} for act in ("bias", "gelu", "gelu_tanh", "relu")},
    "matmul": {"m": 33, "n": 48, "k": 64},
    "linear": {"m": 33, "n": 48, "k": 64},
    "linear_weight_gradient": {"m": 64, "n": 40, "k": 48},
    "linear_weight_gradient_wide": {"m": 64, "n": 40, "k": 48},
    "particle_weights": {"m": 700, "k": 3},
    "quantise": {"m": 3, "n": 40},
    "dequantise": {"m": 3, "n": 40},
    "reduce_sum": {"m": 3, "n": 300},
    "max": {"m": 3, "n": 300},
    "rmsnorm": {"m": 3, "n": 40},
    "rmsnorm_residual": {"m": 3, "n": 40},
    "rotary_interleaved": {"b": 2, "h": 3, "s": 5, "d": 12},
    "rotary_interleaved_by_position": {"b": 2, "h": 3, "s": 5, "d": 12},
    "rotary_interleaved_by_position_backward": {"b": 2, "h": 3, "s": 5, "d": 12},
    "rotary_half": {"b": 2, "h": 4, "g": 2, "s": 5, "d": 12},
    "softmax": {"m": 3, "n": 40},
    "rmsnorm_backward": {"m": 3, "n": 40},
    "rmsnorm_cast_backward": {"m": 3, "n": 40},
    "cross_entropy_backward": {"m": 3, "v": 300},
    "softmax_backward": {"m": 3, "n": 40},
    "layernorm_backward": {"m": 3, "n": 40},
    "swiglu_backward": {"m": 3, "n": 40},
    "rotary_half_by_position": {"b": 2, "h": 4, "g": 2, "s": 5, "d": 12},
    "rotary_half_by_position_backward": {"b": 2, "h": 4, "g": 2, "s": 5, "d": 12},
    "rotary_half_backward": {"b": 2, "h": 4, "g": 2, "s": 5, "d": 12},
    "rotary_interleaved_backward": {"b": 2, "h": 3, "s": 5, "d": 12},
    "stencil_3x3": {"c": 2, "h": 9, "w": 36, "k": 3},
    "stencil_5x5": {"c": 2, "h": 9, "w": 36, "k": 5},
}
PAIRS = [(family, name) for family in ALL for name in family.problems]


def _tiny(name: str) -> Case:
    dtypes = named(name).dtypes
    return Case.of("float16" if "float16" in dtypes else dtypes[0], **TINY[name])


def test_every_reference_problem_has_a_family() -> None:
    """No problem is left to the language model alone."""
    assert {name for _, name in PAIRS} == {problem.name for problem in PROBLEMS}
    assert [families_of("no such problem")] == [()]


@pytest.mark.parametrize(("family", "name"), PAIRS, ids=lambda x: x if isinstance(x, str) else x.name)
def test_a_space_is_finite_and_each_of_its_points_reads_as_an_own_kernel(family: Family, name: str) -> None:
    """Points are distinct, their sources pass the static read, and their declared domain admits the case."""
    for case in named(name).cases:
        space = family.space(name, case)
        assert 16 <= len(space) <= 5000
        assert len({space.key(c) for c in space}) == len(space)
        for config in random.Random(1).sample(list(space), 4):
            made = candidate(family, name, case, config)
            assert static.read(made) == ()
            assert misfit(made, named(name)) == ""
            assert made.domain.admits(case.sizes, case.dtype, case.layout)
            assert made.kind != "library"


@pytest.mark.parametrize(
    ("family", "name"),
    [pair for pair in PAIRS if interprets(pair[0].name)],
    ids=lambda x: x if isinstance(x, str) else x.name,
)
def test_a_family_s_kernels_pass_the_judge_on_the_interpreter(
    interpreting_judge: Judge, family: Family, name: str
) -> None:
    """A configuration drawn from the space of the benchmarked case computes a tiny case rightly, padded too."""
    case = _tiny(name)
    space = family.space(name, named(name).cases[0])
    config = random.Random(name).choice([c for c in space if int(c.get("bm", 64)) <= 128])
    made = candidate(family, name, case, config)
    layouts = [layout for layout in ("contiguous", "padded") if layout in made.domain.layouts]
    cases = tuple(case.with_(layout=layout) for layout in layouts if layout in named(name).layouts)
    request = Request(INTERPRETER, None, cases=cases, search=True)
    verdict = interpreting_judge.verdict(made, named(name), request)
    assert verdict.status == "correct", (dict(config), verdict.detail)


def test_a_case_that_fits_no_configuration_is_refused_in_words() -> None:
    """An empty space is an error of the author, not an empty search."""
    space = Space.of(lambda c: False, warps=(1, 2))
    with pytest.raises(GeneratorError, match="no admitted combination of warps"):
        len(space)
    with pytest.raises(GeneratorError, match="does not write softmax"):
        Template(families_of("matmul")[0]).propose(Task(named("softmax"), Case.of("float16", m=4, n=4)), [], 1)


def test_a_warm_start_begins_with_what_was_best_elsewhere() -> None:
    """BestMeasured configurations are proposed first, and none is proposed twice."""
    task = Task(named("softmax"), Case.of("float16", m=4096, n=4096))
    family = families_of("softmax")[0]
    configs = [dict(c) for c in family.space("softmax", task.case).configs[10:13]]
    first = Template(family, warm=Warm(tuple(configs))).propose(task, [], 5)
    assert [dict(p.config) for p in first[:3]] == configs
    assert len({p.candidate.sha256 for p in first}) == 5
    assert templates("NVIDIA H200", "softmax", task.case, warm=False)[0].warm == Warm()


def test_distance_between_cases_counts_octaves() -> None:
    """Twice a size is one octave, another dtype one more."""
    one = Case.of("float16", m=1023, n=511)
    assert octaves(one, Case.of("float16", m=2047, n=511)) == pytest.approx(1.0)
    assert octaves(one, Case.of("bfloat16", m=1023, n=511)) == pytest.approx(1.0)
