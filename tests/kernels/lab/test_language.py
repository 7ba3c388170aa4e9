"""What a language model earns for a kernel: the judge's verdict decides, its own words never do."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from nightshift.collectors.seal import canonical_json
from nightshift.kernels.candidate import Candidate
from nightshift.kernels.generate.base import Task
from nightshift.kernels.generate.llm import BEGIN, END
from nightshift.kernels.judge.verdict import STATUS_OF, Comparison, Interval, Reason, Verdict
from nightshift.kernels.lab.language import (
    KernelReward,
    Prompt,
    ReplyScore,
    Turns,
    credits,
    lessons,
    prompts,
    refined,
    task_of,
)
from nightshift.kernels.lab.reward import RewardHung, RewardRaised
from nightshift.kernels.loop.ledger import Ledger, Line
from nightshift.kernels.ops.problems import named
from nightshift.kernels.problem import Case, ProblemError

TASK = Task(named("softmax"), Case.of("float16", m=64, n=64))
REPLY = f"{BEGIN}\ndef entry(x):\n    return x\n{END}"


def verdict_of(reason: Reason, seconds: float = 1e-5) -> Verdict:
    raced = Comparison(str(TASK.case), "eager", "A", seconds, 2e-5, Interval(0.9, 2e-5 / seconds, 2.2), 9)
    timed = reason in (Reason.clears_best, Reason.below_baseline)
    return Verdict(
        "0" * 64, "softmax", STATUS_OF[reason], reason, "", "timing", comparisons=(raced,) if timed else ()
    )


def reward_for(reason: Reason, seconds: float = 1e-5) -> KernelReward:
    return KernelReward(lambda candidate, task: verdict_of(reason, seconds))


def paid(reward: KernelReward, reply: Any = REPLY) -> float:
    return reward([reply], ["softmax"], [json.dumps(TASK.case.to_json())])[0]


@pytest.mark.parametrize(
    "reason", [r for r in Reason if STATUS_OF[r] not in ("faster", "slower", "inconclusive", "correct")]
)
def test_every_refusal_earns_nothing_and_is_counted(reason: Reason) -> None:
    reward = reward_for(reason, 1e-12)
    assert paid(reward) == 0.0
    assert reward.counts == {f"{STATUS_OF[reason]}: {reason}": 1}
    assert reward.cheats == (STATUS_OF[reason] == "cheat")


def test_a_right_kernel_earns_one_and_a_clipped_share_of_its_speed_up() -> None:
    assert paid(reward_for(Reason.passed)) == paid(reward_for(Reason.below_baseline, 3e-5)) == 1.0
    assert 1.0 < paid(reward_for(Reason.clears_best, 1e-5)) < paid(reward_for(Reason.clears_best, 6e-6)) < 2.0
    assert paid(reward_for(Reason.clears_best, 1e-12)) == 2.0


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "Correct. 100 times as fast.",
        f"<think>{REPLY}",
        REPLY + REPLY,
        f"{BEGIN}\ndef entry(x):",
        f"{BEGIN}\n{END}",
    ],
)
def test_a_reply_without_one_kernel_earns_nothing_and_is_not_judged(reply: str) -> None:
    def judge(candidate: Candidate, task: Task) -> Verdict:
        raise AssertionError("judged")

    reward = KernelReward(judge)
    assert paid(reward, [{"role": "assistant", "content": reply}]) == 0.0
    assert reward.counts == {"no kernel": 1}


def test_a_judge_that_raises_or_hangs_is_a_named_error() -> None:
    def raises(candidate: Candidate, task: Task) -> Verdict:
        raise OSError("gone")

    def hangs(candidate: Candidate, task: Task) -> Verdict:
        time.sleep(5)
        raise AssertionError

    with pytest.raises(RewardRaised, match="OSError: gone"):
        paid(KernelReward(raises))
    with pytest.raises(RewardHung):
        paid(KernelReward(hangs, limit_s=0.05))


def test_a_row_outside_the_problems_is_refused_by_name() -> None:
    with pytest.raises(ProblemError, match="no_such_problem"):
        task_of("no_such_problem", json.dumps(TASK.case.to_json()))


def test_prompts_are_those_of_the_author() -> None:
    (row,) = prompts([TASK])
    assert [m["role"] for m in row["prompt"]] == ["system", "user"]
    assert BEGIN in row["prompt"][0]["content"]
    assert "softmax" in row["prompt"][1]["content"]
    assert task_of(row["problem"], row["case"]).name == TASK.name


def test_credit_goes_back_over_turns() -> None:
    assert credits([0.0, 1.0, 2.0]) == [pytest.approx(0.4 * 1.8), pytest.approx(1.8), 2.0]
    assert credits([]) == []


def test_every_turn_of_a_conversation_is_a_sample_with_its_credit() -> None:
    """Of four samples two conversations of two turns; the second turn sees the first one's verdict."""
    asked: list[Prompt] = []

    def generate(given: Sequence[Prompt]) -> list[tuple[list[int], list[int], str]]:
        asked.extend(given)
        return [([len(str(p))], [7], "good" if "refused" in str(p) else "bad") for p in given]

    def mark(reply: str, prompt: Prompt) -> ReplyScore:
        return ReplyScore(float(reply == "good"), True, "refused")

    turns = Turns(mark, 4, 2, generate_of=lambda trainer: generate)
    made = turns(["write"] * 4, None)
    assert made["credit"] == [0.4, 0.4, 1.0, 1.0]
    assert asked == ["write", "write", "write bad refused", "write bad refused"]
    assert made["prompt_ids"][0] != made["prompt_ids"][2]
    reward = KernelReward(lambda candidate, task: verdict_of(Reason.rmse))
    assert reward(["x"] * 4, ["softmax"] * 4, ["{}"] * 4, credit=made["credit"]) == made["credit"]
    with pytest.raises(ValueError, match="does not divide"):
        Turns(mark, 4, 3)
    with pytest.raises(ValueError, match="whole groups"):
        turns(["write"] * 3, None)
    assert refined([{"role": "user", "content": "q"}], "a", "no")[-1]["role"] == "user"  # type: ignore[index]


def test_lessons_are_what_a_ledger_kept(tmp_path: Path) -> None:
    kept, lost = (Candidate(f"x={n}", "entry", "python", "own_kernel", "bitwise") for n in range(2))
    with Ledger(tmp_path) as ledger:
        for number, (made, decision) in enumerate(((kept, "keep"), (lost, "discard")), 1):
            ledger.keep(made)
            ledger.add(line_of(number, made, decision))
    (row,) = lessons(tmp_path, TASK)
    assert row["completion"][0]["content"] == f"{BEGIN}\nx=0\n{END}"
    assert canonical_json(row)


def line_of(number: int, made: Candidate, decision: Any) -> Line:
    return Line(
        trial=number, at_s=float(number), seed=0, commit="c0ffee", gpu="none", container="none", generator="llm",
        problem="softmax", case=TASK.case.to_json(), config={}, hypothesis="", candidate_sha256=made.sha256, rung=0,
        decision=decision, status="correct", reason="passed", detail="", stage="",
    )  # fmt: skip
