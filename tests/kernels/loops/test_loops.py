"""Loop schedules: what breaks a dependence is refused, what is accepted computes the same to the bit."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("islpy")

from nightshift.kernels.generate.llm import Reply
from nightshift.kernels.loops import code, dependence, proposers, trial
from nightshift.kernels.loops.nest import NestError, named, names, parse
from nightshift.kernels.loops.schedule import ActionError, Schedule, applied, apply, original
from nightshift.kernels.schemes.native import compiler

needs_cc = pytest.mark.skipif(compiler() is None, reason="no C compiler")


def drawn(name: str, seed: int, count: int) -> tuple[Schedule, list[str]]:
    """A nest's small copy under drawn actions, legal or not."""
    rng, nest = random.Random(seed), trial.small(named(name))
    schedule = original(nest)
    while len(schedule.actions) < count:
        try:
            schedule = apply(schedule, proposers.moves(nest, schedule, rng, 1))
        except ActionError:
            continue
    return schedule, list(schedule.actions)


def verdicts(name: str, seed: int, count: int) -> tuple[bool, bool]:
    """(islpy accepts, the run differs) of one drawn schedule; (False, False) where isl gives up."""
    nest = trial.small(named(name))
    schedule, actions = drawn(name, seed, count)
    try:
        with dependence.bounded():
            legal = not dependence.fault_of(nest, schedule)
        with dependence.bounded():
            wrong = bool(trial.differs(nest, actions, seed))
    except dependence.library().Error:
        return False, False
    return legal, wrong


@needs_cc
@settings(max_examples=5)
@given(st.sampled_from(names()), st.integers(0, 10**6), st.integers(1, 3))
def test_no_accepted_schedule_computes_anything_else(name: str, seed: int, count: int) -> None:
    legal, wrong = verdicts(name, seed, count)
    assert not (legal and wrong)


@needs_cc
@pytest.mark.full
def test_of_many_drawn_schedules_none_that_is_accepted_differs_and_some_refused_ones_do() -> None:
    found = [verdicts(names()[seed % len(names())], seed, 1 + seed % 3) for seed in range(36)]
    assert (True, True) not in found
    assert (True, False) in found
    assert (False, True) in found


@pytest.mark.parametrize(
    ("actions", "why"),
    [
        (["interchange S1 j k"], "S0.* and S1.* run in the wrong order"),
        (["distribute S1,S0 0"], "wrong order"),
        (["parallelise S1 k"], "loop k of S1 depend on each other: no threads"),
        (["vectorise S1 k"], "no vectors"),
        (["distribute S0,S1 0", "interchange S1 j k", "tile S1 k:8 j:8", "unroll S1 i:2"], ""),
    ],
)
def test_dependences_decide_what_is_legal(actions: list[str], why: str) -> None:
    nest = trial.small(named("gemm"))
    fault = dependence.fault_of(nest, applied(nest, actions))
    assert re.search(why, fault) if why else fault == ""


@pytest.mark.parametrize(
    ("action", "why"),
    [
        ("spin S0 i", "none of tile"),
        ("tile S9 i:4", "statements: S9"),
        ("tile S0 i:1", "LOOP:SIZE"),
        ("tile S0 z:4", "no loop 'z'"),
        ("unroll S1 k:64", "at most 16"),
        ("interchange S1 i", "two loops"),
        ("fuse S0,S1 9", "depth"),
        ("fuse S0,S1 x", "expected: fuse"),
        ("tile", "expected: tile"),
        ("tile S0,S0 i:4", "named twice"),
    ],
)
def test_a_malformed_action_names_what_is_expected(action: str, why: str) -> None:
    with pytest.raises(ActionError, match=why):
        applied(named("gemm"), [action])


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("for (int i = 0; i < N; i++) A[i * i] = 1.0;", "not affine"),
        ("for (int i = 0; i < N; i++) A[B[i]] = 1.0;", "neither a counted loop"),
        ("for (int i = 0; i < N; i += 2) A[i] = 1.0;", "neither a counted loop"),
        ("for (int i = 0; i < N; i++) A[i] = z;", "'z' is no array element"),
        ("if (1) A[0] = 1.0;", "neither"),
        ("for (int i = 0; i < N; i++) { A[i] = 1.0;", "no end"),
        ("for (int i = 0; i < N; i++) A[i] = f(A[i]);", "'f' is no array element"),
        ("for (int i = 0; i < N; i++) A[i][0] = 1.0;", "so many indices"),
    ],
)
def test_c_outside_the_grammar_is_refused_with_its_line(body: str, why: str) -> None:
    with pytest.raises(NestError, match=rf"bad\.c:3: .*({why})"):
        parse("bad", f"#define N 9\nstatic double A[N];\nvoid kernel(void) {{ {body} }}")


def test_neither_a_nest_nor_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NestError, match="neither a C file"):
        named("nothing")
    path = tmp_path / "x.c"
    path.write_text("int main(void) {}")
    with pytest.raises(NestError, match="void kernel"):
        named(str(path))


def test_the_twelve_nests_are_read_and_their_own_order_is_legal() -> None:
    assert len(names()) == 12
    for name in names():
        nest = trial.small(named(name))
        assert dependence.fault_of(nest, original(nest)) == ""
        assert "void kernel(void)" in code.source_of(nest, original(nest))


@needs_cc
def test_a_dialogue_gets_verdict_and_time_back() -> None:
    court = trial.Court(trial.small(named("gemm")))
    said: list[list[tuple[str, str]]] = []
    answers = iter(["spin S1", "```\ninterchange S1 j k\n```", "```\ndistribute S0,S1 0\ninterchange S1 j k\n```"])

    def chat(messages: list[tuple[str, str]], temperature: float) -> Reply:
        said.append(messages)
        return Reply(next(answers), 10)

    made = proposers.converse(court, chat, 3)
    assert [attempt.status for attempt in made] == ["malformed", "illegal", "timed"]
    assert "distribute STATEMENTS DEPTH" in said[0][0][1]
    assert "wrong order" in said[2][-1][1]
    assert proposers.best_of(made) is made[2]


@needs_cc
def test_an_evolution_times_what_it_was_given_and_nothing_twice() -> None:
    made = proposers.evolve(trial.Court(trial.small(named("mvt"))), 4, 1)
    assert sum(attempt.status == "timed" for attempt in made) == 4
    assert len({attempt.actions for attempt in made}) == len(made)


@needs_cc
def test_a_schedule_that_computes_something_else_is_found_without_the_analysis(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dependence, "fault_of", lambda nest, schedule: "")
    attempt = trial.Court(trial.small(named("gemm"))).attempt(["distribute S1,S0 0"])
    assert (attempt.status, attempt.detail) == ("wrong", "array C differs from the C text's")
