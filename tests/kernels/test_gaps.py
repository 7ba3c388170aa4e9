"""A verdict names what it does not answer for, and says nothing is unchecked that was."""

from __future__ import annotations

from dataclasses import replace

from nightshift.kernels.candidate import Candidate
from nightshift.kernels.judge.gaps import unchecked
from nightshift.kernels.judge.verdict import Comparison, Interval, LeftOut
from nightshift.kernels.ops.problems import named
from nightshift.kernels.problem import Case

SOFTMAX = named("softmax")
KERNEL = Candidate("", "entry", "triton", "own_kernel", "bitwise", differentiable=True)
STAGES = ("static", "compile", "smoke", "sweep", "replay", "sanitizer", "timing")
LARGE = SOFTMAX.huge[0]
RACED = Comparison("m=1", "eager", "A", 1e-5, 2e-5, Interval(1.9, 2.0, 2.1), 15, chained_s=8e-6)
EXACT = {"compared": {"one_hot float16": 3}, "doubted": {}}
ROOT = {"user": "uid 65533, no capabilities"}


def test_of_a_whole_verdict_only_what_was_not_drawn_is_open() -> None:
    """No plan asks every size or differentiates twice, and no verdict speaks of another GPU."""
    sizes, twice = unchecked(KERNEL, SOFTMAX, STAGES, [LARGE], [RACED], [], ROOT, EXACT)
    assert sizes.startswith("sizes, dtypes, layouts and values other than")
    assert twice.startswith("gradients of gradients")


def test_each_thing_left_out_is_named() -> None:
    """One at a time: a sentence more, about that."""
    everything = ([LARGE], [RACED], [], ROOT, EXACT)
    told = {
        "source was not read": unchecked(KERNEL, SOFTMAX, STAGES[1:], *everything),
        "compute-sanitizer": unchecked(KERNEL, SOFTMAX, [s for s in STAGES if s != "sanitizer"], *everything),
        "replayed": unchecked(KERNEL, SOFTMAX, [s for s in STAGES if s != "replay"], *everything),
        "gradients": unchecked(replace(KERNEL, differentiable=False), SOFTMAX, STAGES, *everything),
        "2^31": unchecked(KERNEL, SOFTMAX, STAGES, [Case.of("float16", m=4, n=4)], [RACED], [], ROOT, EXACT),
        "speed": unchecked(KERNEL, SOFTMAX, STAGES, [LARGE], [], [], ROOT, EXACT),
        "tier B": unchecked(KERNEL, SOFTMAX, STAGES, [LARGE], [replace(RACED, tier="B")], [], ROOT, EXACT),
        "chained": unchecked(
            KERNEL, SOFTMAX, STAGES, [LARGE], [replace(RACED, chained_s=float("nan"))], [], ROOT, EXACT
        ),
        "liger": unchecked(
            KERNEL, SOFTMAX, STAGES, [LARGE], [RACED], [LeftOut("c", "liger", "gone", True)], ROOT, EXACT
        ),
        "no probe there has one right answer": unchecked(
            KERNEL, SOFTMAX, STAGES, [LARGE], [RACED], [], ROOT, {"compared": {"mantissa float16": 1}}
        ),
        "declares itself not exact": unchecked(replace(KERNEL, exact=False), SOFTMAX, STAGES, *everything),
        "the references differ": unchecked(
            KERNEL,
            SOFTMAX,
            STAGES,
            [LARGE],
            [RACED],
            [],
            ROOT,
            {**EXACT, "doubted": {"one_hot float32": "m=1: the references differ"}},
        ),
        "judge's own": unchecked(
            KERNEL, SOFTMAX, STAGES, [LARGE], [RACED], [], {"user": "the judge's own uid 1000"}, EXACT
        ),
    }
    always = unchecked(KERNEL, SOFTMAX, STAGES, *everything)
    for word, said in told.items():
        more = [sentence for sentence in said if sentence not in always]
        assert len(more) == 1, word
        assert word in more[0]


def test_a_baseline_that_was_only_slow_leaves_nothing_open() -> None:
    slow = LeftOut("c", "compile", "2 times the best", False)
    assert len(unchecked(KERNEL, SOFTMAX, STAGES, [LARGE], [RACED], [slow], ROOT, EXACT)) == 2


def test_elements_whose_placement_was_not_required_are_counted() -> None:
    exact = {**EXACT, "unplaced": {"infinite float16": 12, "nan float16": 3}}
    said = unchecked(KERNEL, SOFTMAX, STAGES, [LARGE], [RACED], [], ROOT, exact)
    told = "placement of NaN and infinity in 15 elements, where references differ"
    assert f"{told} (infinite float16: 12, nan float16: 3)" in said
