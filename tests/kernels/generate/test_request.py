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
from nightshift.kernels.generate.llm import BEGIN, END, Allowance, LanguageModel, Reply
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
BYTES = 800
"""That an element counts for, so that megabytes tell a small tensor's size."""
SIZES = (130, 256, 128, 133, 260)
"""More than the rounded megabytes of a request say: how many are missing, a verdict tells."""
KERNEL = """# idea: begin
import torch
import triton
import triton.language as tl


@triton.jit
def formula(p, out, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(p + i, mask=i < {total})
    tl.store(out + i, tl.where(i < {count}, {body}, float("nan")), mask=i < {total})


def entry(x):
    out = torch.empty({total}, dtype=x.dtype, device=x.device)
    formula[(triton.cdiv({total}, {block}),)](x, out, BLOCK={block})
    return out
"""


def task_of(number: int) -> Task:
    formula = FORMULAS[number]
    reference: Callable[[torch.Tensor], torch.Tensor] = eval(f"lambda x: {formula}")

    def inputs(case: Case, draw: Draw) -> Inputs:
        return (draw.values((case["n"],), case.torch_dtype),)

    size = SIZES[number % len(SIZES)]
    case = Case.of("float32", n=size)
    problem = Problem(
        f"formula_{number}", "none", reference, inputs, (case,), (Axis("n", (size,), size, size),),
        lambda c: BYTES * c["n"], lambda c: 4 * c["n"], dtypes=("float32",), distributions=("normal", "ties"),
        layouts=("contiguous",),
    )  # fmt: skip
    facts = {
        "source": f"def forward(self, x):\n    return {formula}",
        "compiled": f"XBLOCK : tl.constexpr = {4 << number % 2}\ntl.store(out_ptr0 + (x0), tmp3, xmask)",
        "hardware": f"A card of {2 + number % 3} multiprocessors.",
    }
    return Task(problem, case, facts=facts)


class Script:
    """A model without a model: each reply is made of what the fields of the request say, and of nothing else.

    It begins with the formula (source), the shape (inputs), the rounded number of elements (floor) and the
    compiler's own block (compiled). It adds the elements that a verdict misses (failures) to its text (last), then
    takes the next tier of the playbook that is not among the ideas. Blocks change while the traffic is low (counters)
    and eager faster (baselines). After an idea that made it slower it goes back to the fastest (best), and at last
    has a program for each multiprocessor (hardware).
    """

    def __call__(self, said: Sequence[tuple[str, str]], temperature: float) -> Reply:
        told, attempt = said[1][1], said[2][1] if len(said) > 2 and said[2][0] == "assistant" else ""
        try:
            code = self.begun(told) if len(said) == 2 else self.next(told, attempt)
        except (LookupError, ValueError) as error:
            return Reply(f"I cannot tell: {error}", 10)
        return Reply(f"{BEGIN}\n{code}{END}\n", 10)

    def begun(self, told: str) -> str:
        body = word(r"Reference \(eager PyTorch\):\ndef .*\n    return (.+)", told).replace("abs(", "tl.abs(")
        count = round(float(word(r"move at least ([\d.]+) MB", told)) * 1e6 / BYTES)
        block = word(r"torch.compile generates:\nXBLOCK : tl.constexpr = (\d+)", told)
        return KERNEL.format(body=body, count=count, total=word(r"in order: \((\d+),\) float32", told), block=block)

    def next(self, told: str, attempt: str) -> str:
        ideas = word(r"Ideas tried, and what each brought:\n((?:- .*\n?)+)", told)
        code = attempt.strip().removeprefix(BEGIN).removesuffix(END).strip() + "\n"
        if "µs" not in ideas:
            missing = int(word(r"failed on:\n\w+ \(\w+\): output 0: (\d+) elements", told))
            return with_idea(
                "all elements",
                code.replace(f"where(i < {count_of(code)}", f"where(i < {int(count_of(code)) + missing}"),
            )
        tiers = re.findall(r"^Tier \d+, (\w+):", told[told.index("Playbook:") :], re.MULTILINE)
        tier = next(name for name in [*tiers, ""] if f": {name}:" not in ideas)
        best = float(word(r"The fastest so far takes ([\d.]+) µs", told))
        if f": {tiers[0]}:" in ideas:  # it brought nothing: from the fastest again
            code = word(r"The fastest so far takes .* Beat it.\n((?:.*\n)+?    return out\n)", told + "\n")
        low = int(word(r"The fastest attempt reaches:\n(\d+) GB/s", told)) < 100
        behind = float(word(r"Baselines take:\neager ([\d.]+) µs", told)) < best
        block = int(word(r"BLOCK=(\d+)", code))
        each = int(count_of(code)) // int(word(r"(\d+) multiprocessors", told))
        chosen = block // 2 if tier == tiers[0] else 1 << max(0, each - 1).bit_length()
        return with_idea(tier, re.sub(rf"\b{block}\b", str(chosen if low and behind else block), code))


def word(pattern: str, text: str) -> str:
    """What a field says. Raises LookupError where it says nothing of the kind."""
    seen = re.search(pattern, text)
    if seen is None:
        raise LookupError(pattern)
    return seen.group(1)


def count_of(code: str) -> str:
    return word(r"where\(i < (\d+)", code)


def with_idea(idea: str, code: str) -> str:
    return re.sub("# idea: .*", f"# idea: {idea}", code)


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    with Judge("cpu", interpret=True, compiled=False) as made:
        yield made


def searched(judge: Judge, task: Task, folder: Path) -> Search:
    author = LanguageModel(Script(), allowance=Allowance(repairs=0), account=folder / "model.jsonl")
    budget = SearchBudget(trials=4, wall_s=600.0, batch=1)
    with Ledger(folder / "task") as ledger:
        search = Search(
            task, (author,), LocalExecutor([judge], 1), ledger, Provenance("c", "none", "none"), budget, ON_CPU
        )
        search.explore()
    return search


def got_better(search: Search) -> bool:
    """Refused, then right, then slower by an idea that brings nothing, then the fastest."""
    return [(o.timed, o.kept) for o in search.history] == [
        (False, False),
        (True, True),
        (True, False),
        (True, True),
    ]


@pytest.mark.full
def test_ten_tasks_without_a_family_get_better_from_verdict_to_verdict(judge: Judge, tmp_path: Path) -> None:
    for number in range(len(FORMULAS)):
        task = task_of(number)
        assert not families_of(task.problem.name)
        search = searched(judge, task, tmp_path / str(number))
        told = [(o.status.value, o.detail, o.seconds) for o in search.history]
        assert got_better(search), (FORMULAS[number], told, search.told)
        kept = [
            json.loads(line) for line in (tmp_path / str(number) / "model.jsonl").read_text().splitlines() if line
        ]
        assert [BEGIN in line["reply"] for line in kept] == [True] * 4


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
    assert not got_better(searched(judge, task_of(0), tmp_path))


TOLD = {
    "source": "def forward(self, x):\n    return x * 1.5",
    "inputs": "Inputs, contiguous, in order: (900,) float32.",
    "floor": "It must move at least 0.1 MB and calculate 0.00 GFLOP.",
    "hardware": "8 multiprocessors",
    "compiled": "XBLOCK : tl.constexpr = 256",
    "playbook": "Tier 1, memory: a.\nTier 2, fusion: b.\nTier 3, compute: c.",
    "baselines": "eager 10.0 µs.",
    "counters": "3 GB/s of compulsory traffic.",
    "failures": "Every case that an attempt failed on:\nwrong (nan_placement): output 0: 500 elements, first",
    "best": "The fastest so far takes 90.0 µs. Beat it.\n" + KERNEL.format(body="x", count=64, total=64, block=16),
    "ideas": "- llm: begin: wrong\n- llm: all elements: 90.0 µs\n- llm: memory: 99.0 µs",
}
OTHERS = {
    "source": "def forward(self, x):\n    return x * 2.5",
    "inputs": "Inputs, contiguous, in order: (700,) float32.",
    "floor": "It must move at least 0.2 MB.",
    "hardware": "2 multiprocessors",
    "compiled": "XBLOCK : tl.constexpr = 64",
    "playbook": "Tier 1, fusion: b.\nTier 2, memory: a.\nTier 3, layout: c.",
    "baselines": "eager 95.0 µs.",
    "counters": "900 GB/s of compulsory traffic.",
    "failures": TOLD["failures"].replace("500", "7"),
    "best": TOLD["best"].replace("64", "640"),
    "ideas": "- llm: all elements: 90.0 µs",
}
FIRST, REFUSED = ("source", "inputs", "floor", "compiled"), ("failures", "last")
"""What the first reply is made of, and what the reply to a refusal."""


@pytest.mark.parametrize("field", request.FIELDS)
def test_another_word_in_a_field_is_another_reply(field: str) -> None:
    """So the script reads what a field says, and not only that it is there."""
    last = f"{BEGIN}\n{KERNEL.format(body='x', count=128, total=128, block=32)}{END}"
    replies = []
    other = {**TOLD, field: OTHERS.get(field, "")}
    for fields, attempt in ((TOLD, last), (other, last.replace("128", "256"))):
        shown = {**fields, "ideas": "- llm: begin: wrong"} if field in REFUSED else fields
        said = [("system", ""), ("user", request.text_of(shown))]
        said += [("assistant", attempt if field == "last" else last)] * (field not in FIRST)
        replies.append(Script()(said, 0.2).text)
    assert all(BEGIN in reply for reply in replies), replies
    assert replies[0] != replies[1]
