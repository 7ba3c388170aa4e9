"""A right kernel with variables for its next call is paid nothing; no honest kernel has any."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from nightshift.kernels.candidate import Candidate
from nightshift.kernels.device_state import device_state
from nightshift.kernels.generate.base import GeneratorError, Task
from nightshift.kernels.generate.llm import BEGIN, END
from nightshift.kernels.generate.template import candidate
from nightshift.kernels.judge.gallery import Piece, read_gallery
from nightshift.kernels.judge.verdict import Reason, Status, Verdict
from nightshift.kernels.lab.language import STATE, KernelReward, lessons
from nightshift.kernels.loop.ledger import Ledger, Line
from nightshift.kernels.ops.families import ALL
from nightshift.kernels.ops.problems import named

GALLERY = Path(__file__).parent
EXPLOITS = {piece.name: piece for piece in read_gallery(GALLERY / "exploits", "cuda")}
GOOD = read_gallery(GALLERY / "good", "cuda")
MEMO = EXPLOITS["memo_in_device_globals"].file.candidate


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("__device__ int x;", ["x"]),
        ("int x;", ["x"]),  # the judge compiles with -default-device
        ("__device__ int x(0);", ["x"]),
        ("__device__ int x{1};", ["x"]),
        ("__device__ float t[2] = {1, 2}; int y;", ["t", "y"]),
        ("__align__(16) __device__ float4 rows[8];", ["rows"]),
        ("volatile unsigned done = 0;", ["done"]),
        ("namespace { int hit = 0; }", ["hit"]),
        (
            'extern "C" { int q; __global__ void k(int* p) { __shared__ int t; static constexpr int n = 3; } }',
            ["q"],
        ),
        ("struct S { int a; } s;", ["s"]),
        ("struct V { int x; };\nstruct V v;", ["v"]),
        ("struct S { static int n; int f() { return 1; } };", ["n"]),
        ("__device__ float f(float x) { static int calls; return x; }", ["calls"]),
        ("const int* p;", ["p"]),
        ("#define N 4\nunsigned rows[N][8];", ["rows"]),
        ("__device__ const float t[2] = {1, 2};", []),
        ("__constant__ float t[3]; constexpr int n = 4; int* const p = 0;", []),
        ("struct S { int a; }; struct Q; union U; typedef struct { int a; } T; using u = unsigned;", []),
        ("enum class A { B, C }; static_assert(sizeof(int) == 4);", []),
        ("template <typename T> struct V { T x; }; template <> struct V<int> { int x; };", []),
        ("struct P { float a[4]; bool operator()(int x) const { return x; } };", []),
        ("__device__ float f(float); // int x;\n/* int y; */\n#define Z int z\n", []),
        ("template <int N> __device__ int f(int i) { for (int j = 0; j < N; ++j) { i += j; } return i; }", []),
        ("__global__ void __launch_bounds__(256) k(float* a) { float v[4] = {0}; a[0] = v[0]; }", []),
        ('__device__ void f() { asm volatile("int x; {" ::: "memory"); extern __shared__ float s[]; }', []),
    ],
)
def test_what_outlives_a_call_is_found_by_its_declaration(source: str, names: list[str]) -> None:
    assert list(device_state(replace(MEMO, source=source))) == names


def test_no_good_candidate_and_no_family_has_such_a_variable() -> None:
    assert {piece.name: seen for piece in GOOD if (seen := device_state(piece.file.candidate))} == {}
    written = 0
    for family in ALL:
        for problem in family.problems:
            for case in named(problem).cases:
                try:
                    configs = family.space(problem, case).configs
                except GeneratorError:
                    continue
                made = [candidate(family, problem, case, config) for config in (configs[0], configs[-1])]
                written += made[0].language == "cuda"
                assert not any(map(device_state, made)), family.name
    assert written > 20


def accepted(piece: Piece) -> tuple[float, KernelReward, str]:
    """What a file earns where the judge finds it right."""
    problem = named(piece.file.problem)
    reward = KernelReward(
        lambda made, task: Verdict(made.sha256, problem.name, Status.correct, Reason.passed, "", "")
    )
    score = reward.mark(f"{BEGIN}\n{piece.file.candidate.source}\n{END}", Task(problem, problem.cases[0]))
    return score.reward, reward, score.said


@pytest.mark.parametrize("piece", GOOD, ids=lambda piece: piece.name)
def test_no_honest_kernel_loses_its_pay(piece: Piece) -> None:
    reward, counted, _ = accepted(piece)
    assert (reward, counted.counts) == (1.0, {"right": 1})


def test_a_memory_on_the_device_earns_nothing_though_the_race_made_it_useless() -> None:
    reward, counted, said = accepted(EXPLOITS["memo_in_device_globals"])
    assert (reward, counted.counts) == (0.0, {STATE: 1})
    assert "answers" in said


def test_no_lesson_is_made_of_it(tmp_path: Path) -> None:
    problem = named("matmul")
    task = Task(problem, problem.cases[0])
    right = Candidate("x=0", "entry", "python", "own_kernel", "bitwise")
    with Ledger(tmp_path) as ledger:
        for number, made in enumerate((MEMO, right), 1):
            ledger.keep(made)
            ledger.add(line_of(number, made, task))
    (row,) = lessons(tmp_path, task)
    assert row["completion"][0]["content"] == f"{BEGIN}\nx=0\n{END}"
    assert json.loads(row["case"]) == task.case.to_json()


def line_of(number: int, made: Candidate, task: Task) -> Line:
    return Line(
        trial=number, at_s=float(number), seed=0, commit="c0ffee", gpu="none", container="none", generator="llm",
        problem=task.problem.name, case=task.case.to_json(), config={}, hypothesis="", candidate_sha256=made.sha256,
        rung=0, decision="keep", status="correct", reason="passed", detail="", stage="",
    )  # fmt: skip
