"""How a model's turns are chosen: islands that do not see each other, plans, and money."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nightshift.kernels.candidate import Candidate
from nightshift.kernels.cli import app
from nightshift.kernels.generate.base import Outcome, Proposal, Spent, Task
from nightshift.kernels.generate.llm import BEGIN, END, LanguageModel, Reply, connect, messages
from nightshift.kernels.generate.request import counters, measured
from nightshift.kernels.generate.strategies import ISLANDS, PATIENCE, PLAN_RULES, AuthorAllowance, islands
from nightshift.kernels.judge.verdict import Status
from nightshift.kernels.loop.ledger import Line
from nightshift.kernels.ops.problems import named
from nightshift.kernels.problem import Case
from nightshift.kernels.profile.roofline import Peaks
from tests.kernels.generate.scripted_model import Answer, served

TASK = Task(named("softmax"), Case.of("float16", m=6, n=40), floor_s=1e-6)
CODE = "import torch\n\n\ndef entry(x):\n    return torch.empty_like(x)  # {}\n"


def tried(word: str, seconds: float, island: int | None = None, author: str = "llm") -> Outcome:
    made = Candidate(CODE.format(word), "entry", "triton", "own_kernel", "bitwise")
    config = {} if island is None else {"island": island}
    status = Status.slower if math.isfinite(seconds) else Status.wrong
    return Outcome(Proposal(made, author, config, f"llm: {word}"), status, "why", "where", seconds)


class Chat:
    """Answers with the next file, and keeps what it was told."""

    def __init__(self, *texts: str, tokens: int = 10, usd: float = 0.0) -> None:
        self.texts, self.tokens, self.usd = list(texts), tokens, usd
        self.told: list[Sequence[tuple[str, str]]] = []

    def __call__(self, said: Sequence[tuple[str, str]], temperature: float) -> Reply:
        self.told.append(said)
        text = self.texts[min(len(self.told), len(self.texts)) - 1]
        return Reply(text, self.tokens, usd=self.usd)


def file_of(word: str) -> str:
    return f"{BEGIN}\n{CODE.format(word)}{END}\n"


def test_an_island_refines_its_own_best_and_knows_nothing_of_the_others() -> None:
    theirs = tried("template", 5e-6, author="rows")
    mine = [tried(f"k{n}", 1e-5 - n * 1e-7, n % ISLANDS) for n in range(6)]
    history = [theirs, *mine]
    turns = islands(history, mine, 8, AuthorAllowance(parallel=3))
    assert [turn.config["island"] for turn in turns] == [2, 3, 0]
    assert [turn.attempts[-1].proposal.hypothesis for turn in turns] == ["llm: k2", "llm: k3", "llm: k4"]
    assert turns[2].history == [theirs, mine[0], mine[4]]
    text = "\n".join(text for _, text in messages(TASK, turns[2].history, turns[2].attempts, 2))
    assert all((f"# k{n}" in text) == (n in (0, 4)) for n in range(6))
    assert "# template" in text


def test_an_island_that_is_stuck_takes_the_best_of_all() -> None:
    mine = [tried("first", 9e-6, 0), *(tried(f"worse{n}", math.inf, 0) for n in range(PATIENCE)),
            tried("elsewhere", 3e-6, 1)]  # fmt: skip
    (turn,) = [t for t in islands(mine, mine, 8, AuthorAllowance(parallel=4)) if t.config["island"] == 0]
    assert turn.attempts[-1].proposal.hypothesis == "llm: elsewhere"
    assert mine[-1] in turn.history
    fresh = replace(mine[1], status=Status.slower, seconds=1e-6)  # it has found something since
    (turn,) = [t for t in islands(mine, [*mine[:1], *mine[2:], fresh], 8, AuthorAllowance(parallel=4))
               if t.config["island"] == 0]  # fmt: skip
    assert turn.attempts[-1] is fresh


def test_islands_go_on_from_the_ledger(tmp_path: Path) -> None:
    """The island is kept with the proposal, so a search that was killed deals on."""
    chat = Chat(*(file_of(f"f{n}") for n in range(9)))
    author = LanguageModel(chat, strategy="islands", allowance=AuthorAllowance(parallel=2))
    made = author.propose(TASK, [], 2)
    assert sorted(p.config["island"] for p in made) == [0, 1]
    history = [Outcome(p, Status.slower, "", "", 1e-5, trial=n + 1) for n, p in enumerate(made)]
    again = LanguageModel(chat, strategy="islands", allowance=AuthorAllowance(parallel=2))
    assert sorted(p.config["island"] for p in again.propose(TASK, history, 2)) == [2, 3]


def test_a_planner_plans_from_the_figures_and_the_coder_is_told_the_plan() -> None:
    chat = Chat("<think>hm</think>Halve the passes.", file_of("planned"))
    (made,) = LanguageModel(chat, strategy="planner").propose(TASK, [], 4)
    assert [said[0][1] == PLAN_RULES for said in chat.told] == [True, False]
    assert "roofline" in chat.told[0][1][1]
    assert chat.told[1][-1][1].endswith("nothing beyond it:\nHalve the passes.")
    assert (made.tokens, made.hypothesis) == (20, "llm: first attempt, by a plan")
    silent = Chat("", file_of("unplanned"))
    LanguageModel(silent, strategy="planner").propose(TASK, [], 4)
    assert "plan, carry it out" not in silent.told[1][-1][1]


def test_money_ends_an_author_and_counts_after_a_restart(tmp_path: Path) -> None:
    account, allowance = tmp_path / "model.jsonl", AuthorAllowance(usd=0.05, repairs=0)
    chat = Chat("Sorry?", usd=0.02)
    first = LanguageModel(chat, allowance=allowance, account=account)
    assert [list(first.propose(TASK, [], 1)) for _ in range(2)] == [[], []]
    again = LanguageModel(chat, allowance=allowance, account=account)
    assert again.spent() == Spent(20, 2, 0.04)
    again.propose(TASK, [], 1)
    assert again.spent().calls == 3
    again.propose(TASK, [], 1)
    assert again.spent().calls == 3


def test_a_reply_costs_what_its_tokens_cost_each_way() -> None:
    pytest.importorskip("langchain_openai")
    with served([Answer(file_of("x"))]) as (url, _):  # 100 tokens sent, 50 answered
        reply = connect("scripted", url, prices=(2.0, 8.0))([("user", "?")], 0.2)
    assert reply.usd == pytest.approx((100 * 2.0 + 50 * 8.0) / 1e6)


def test_the_model_is_told_registers_spills_and_shared_memory_of_the_fastest() -> None:
    work = {"registers": 96, "stack_bytes": 128, "shared_bytes": 49152, "scratch_bytes": 2_000_000}
    told = counters(TASK, replace(tried("x", 2e-6), work=work))
    assert "96 registers and 128 B of local memory (spills) a thread, 48.0 KiB of shared memory a block" in told
    assert "2.0 MB beside inputs and outputs" in told
    assert "registers" not in counters(TASK, tried("x", 2e-6))


def test_the_model_is_told_what_the_gpu_was_measured_at() -> None:
    peaks = Peaks(4.1e12, {"float32": 5.2e13, "bfloat16": 7.8e14}, "probe")
    assert (
        measured(peaks)
        == "Measured on it: 4.10 TB/s of copies, 780.0 TFLOP/s in bfloat16, 52.0 TFLOP/s in float32."
    )
    assert measured(Peaks(math.nan, {"float32": 1e12}, "trace")).startswith("Seen on it, so at least: 1.0 TFLOP/s")


def test_a_ledgers_line_keeps_the_work_and_older_lines_have_none() -> None:
    line = Line(1, 0.0, 0, "c", "g", "n", "llm", "p", {"params": {}, "dtype": "float32", "layout": "contiguous"},
                {}, "", "a" * 64, 0, "keep", "slower", "below_baseline", "")  # fmt: skip
    assert "work" not in line.to_json()
    assert Line.from_json(line.to_json()).work == {}
    kept = Line.from_json(replace(line, work={"registers": 40}).to_json())
    assert kept.work == {"registers": 40}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--llm-strategy guess", "--llm-strategy: 'guess' is none of serial, islands, planner"),
        ("--llm-usd 2", "--llm-usd: without --llm-prices nothing is known of what a token costs"),
        ("--llm-usd 2 --llm-prices 1 -3", "--llm-prices: -3 is no price"),
    ],
)
def test_options_of_a_model_are_refused_by_their_names_before_anything_runs(words: str, told: str) -> None:
    asked = ["optimize", "--problem", "softmax", "--device", "cpu", "--llm", "m", *words.split()]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code != 0
    assert told in f"{done.output}{done.exception}"
