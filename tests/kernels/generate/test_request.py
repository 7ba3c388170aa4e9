"""A scripted model that writes its next kernel of the request's fields alone, through the real judge."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch

from nightshift.kernels.draw import Draw
from nightshift.kernels.generate import llm, request
from nightshift.kernels.generate.base import Task
from nightshift.kernels.generate.llm import BEGIN, END, LanguageModel, Reply
from nightshift.kernels.generate.strategies import PLAN_RULES, AuthorAllowance
from nightshift.kernels.judge.judge import Judge
from nightshift.kernels.loop.executor import LocalExecutor
from nightshift.kernels.loop.ledger import Ledger, Provenance
from nightshift.kernels.loop.optimise import ON_CPU
from nightshift.kernels.loop.search import Search, SearchBudget
from nightshift.kernels.ops.families import families_of
from nightshift.kernels.problem import Axis, Case, Inputs, Problem

FORMULAS = (
    "x * 1.5", "x * 0.75 * x", "abs(x) * 3.0", "abs(x) + 1.0", "1.0 / (1.0 + x * x)", "x * abs(x)",
    "x / (x * x + 1.0)", "0.5 * x / (1.0 + abs(x))", "x * x * x", "abs(x) * abs(x) + 2.0",
)  # fmt: skip
"""Of operations that no family writes."""
SIZE = 96
KERNEL = """# idea: {idea}
import torch
import triton
import triton.language as tl


@triton.jit
def formula(p, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(p + i, mask=i < n)
    tl.store(out + i, {body}, mask=i < n - 1)


def entry(x):
    out = torch.empty({shape}, dtype=x.dtype, device=x.device)
    formula[(triton.cdiv(out.numel(), {block}),)](x, out, out.numel(), BLOCK={block})
    return out
"""


def task_of(formula: str) -> Task:
    reference: Callable[[torch.Tensor], torch.Tensor] = eval(f"lambda x: {formula}")

    def inputs(case: Case, draw: Draw) -> Inputs:
        return (draw.values((case["n"],), case.torch_dtype),)

    case = Case.of("float32", n=SIZE)
    problem = Problem(
        f"formula_{FORMULAS.index(formula)}", "none", reference, inputs, (case,), (Axis("n", (SIZE,), SIZE, SIZE),),
        lambda c: 8 * c["n"], lambda c: 4 * c["n"], dtypes=("float32",), distributions=("normal", "ties"),
        layouts=("contiguous",),
    )  # fmt: skip
    facts = {
        "source": f"def forward(self, x):\n    return {formula}",
        "compiled": "tl.store(out_ptr0 + (x0), tmp3, xmask)",
    }
    return Task(problem, case, facts=facts)


class Script:
    """A model without a model: each reply follows from the fields of the request, and without one there is none."""

    def __call__(self, said: Sequence[tuple[str, str]], temperature: float) -> Reply:
        told, attempt = said[1][1], said[2][1] if len(said) > 2 and said[2][0] == "assistant" else ""
        try:
            code = self._next(told, attempt, len(said) > 2)
        except (AttributeError, IndexError, ValueError) as error:
            return Reply(f"I cannot tell: {error}", 10)
        return Reply(f"{BEGIN}\n{code}{END}\n", 10)

    def _next(self, told: str, attempt: str, later: bool) -> str:
        tried = re.search(r"Ideas tried, and what each brought:\n((?:- .*\n?)+)", told)
        if not later:
            formula = re.search(r"return (.+)", told[told.index("Reference") :])
            shape = re.search(r"in order: (\(\d+,\)) float32", told)
            least = re.search(r"move at least ([\d.]+) MB", told)
            known = "GPU:" in told and "What torch.compile generates:" in told and "Playbook:\nTier 1" in told
            if not known or least is None:
                raise IndexError("what machine, what compiler, which rules")
            body = formula.group(1).replace("abs(", "tl.abs(")  # type: ignore[union-attr]
            return KERNEL.format(idea="begin", body=body, shape=shape.group(1), block=32)  # type: ignore[union-attr]
        ideas = [line for line in tried.group(1).splitlines() if line]  # type: ignore[union-attr]
        if len(ideas) == 1:
            refused = re.search(r"failed on:\nwrong \(\w+\): .+", told)
            refused.group(0)  # type: ignore[union-attr]
            broken = attempt.strip().removeprefix(BEGIN).removesuffix(END).strip() + "\n"
            return re.sub("# idea: .*", "# idea: all elements", broken.replace("n - 1", "n"))
        best = re.search(r"The fastest so far takes .*", told)
        rate = re.search(r"The fastest attempt reaches:\n[\d]+ GB/s", told)
        eager = re.search(r"Baselines take:\neager [\d.]+ µs", told)
        for field in (best, rate, eager):
            field.group(0)  # type: ignore[union-attr]
        broken = attempt.strip().removeprefix(BEGIN).removesuffix(END).strip() + "\n"
        return re.sub("# idea: .*", "# idea: fewer programs", broken).replace("32", "128")


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with Judge("cpu", interpret=True, compiled=False) as made:
        yield made


class Planned:
    """A planner that sees the figures and writes no kernel, and a coder that does only what the plan says."""

    def __init__(self) -> None:
        self.script = Script()

    def __call__(self, said: Sequence[tuple[str, str]], temperature: float) -> Reply:
        whole = self.script(said, temperature).text
        if said[0][1] == PLAN_RULES:
            idea = re.search("# idea: (.*)", whole)
            return Reply(f"The plan is: {idea.group(1) if idea else 'unknown'}.", 10)
        planned = re.search(r"nothing beyond it:\nThe plan is: (.*)\.$", said[-1][1])
        return Reply(whole if planned and f"# idea: {planned.group(1)}" in whole else "Nothing is planned.", 10)


def searched(judge: Judge, task: Task, folder: Path, strategy: str = "serial") -> Search:
    chat = Planned() if strategy == "planner" else Script()
    allowance = AuthorAllowance(repairs=0)
    author = LanguageModel(chat, allowance=allowance, account=folder / "model.jsonl", strategy=strategy)
    budget = SearchBudget(trials=3, wall_s=120.0, batch=1)
    with Ledger(folder / "task") as ledger:
        search = Search(
            task, (author,), LocalExecutor([judge], 1), ledger, Provenance("c", "none", "none"), budget, ON_CPU
        )
        search.explore()
    return search


@pytest.mark.full
def test_ten_tasks_without_a_family_get_better_from_verdict_to_verdict(judge: Judge, tmp_path: Path) -> None:
    for number, formula in enumerate(FORMULAS):
        task = task_of(formula)
        assert not families_of(task.problem.name)
        search = searched(judge, task, tmp_path / str(number))
        told = [(o.status.value, o.timed) for o in search.history]
        assert len(told) == 3, (formula, told, search.told)
        assert [timed for _, timed in told] == [False, True, True], (formula, [o.detail for o in search.history])
        kept = [
            json.loads(line) for line in (tmp_path / str(number) / "model.jsonl").read_text().splitlines() if line
        ]
        assert [BEGIN in line["reply"] for line in kept] == [True] * 3


@pytest.mark.full
def test_a_coder_that_knows_only_the_plan_gets_better_too(judge: Judge, tmp_path: Path) -> None:
    search = searched(judge, task_of(FORMULAS[0]), tmp_path, "planner")
    assert [o.timed for o in search.history] == [False, True, True]
    assert [o.proposal.tokens for o in search.history] == [20] * 3
    assert all("by a plan" in o.proposal.hypothesis for o in search.history)
    assert search.history[2].work["moved_bytes"] == 8 * SIZE


@pytest.mark.full
@pytest.mark.parametrize("field", request.FIELDS)
def test_without_any_one_field_the_search_fails(
    field: str, judge: Judge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if field == "last":
        whole = llm.messages

        def without(*given: object) -> list[tuple[str, str]]:
            said = whole(*given)  # type: ignore[arg-type]
            return [(role, "" if role == "assistant" else text) for role, text in said]

        monkeypatch.setattr(llm, "messages", without)
    else:
        monkeypatch.setattr(request, "FIELDS", tuple(name for name in request.FIELDS if name != field))
    search = searched(judge, task_of(FORMULAS[0]), tmp_path)
    assert [o.timed for o in search.history] != [False, True, True]
