"""What TRL's GRPOTrainer needs to teach a language model to write kernels: prompts, a reward, turns, and lessons.

The prompt and the answer's markers are those of the author (`kernels.generate.llm`), so that what is learnt is what
a search uses. The reward is the judge's: `kernels.lab.reward`, without its stage of 0.1. A reply without a kernel
earns 0, and so does every refusal: of known cheats half are found merely wrong, and a reward for those would pay
them. A right kernel with variables that outlive a call earns 0 too (`kernels.device_state`). Refusals are
counted by their reason. A model that does not know the format yet learns it in a stage before, which pays 0.1 for
the format alone and knows no verdict. Turns are credited as Kevin does (arXiv 2507.11948): a kernel earns its own
reward and, discounted, those of the kernels that refined it; each turn is a sample of its own, with the
conversation before it as its prompt. Nothing here imports TRL.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nightshift.kernels.candidate import Candidate
from nightshift.kernels.device_state import device_state
from nightshift.kernels.generate.base import Outcome, Proposal, Task
from nightshift.kernels.generate.llm import BEGIN, END, ReplyError, feedback, kernel_of, messages
from nightshift.kernels.judge.verdict import FIT, Status, Verdict
from nightshift.kernels.lab.reward import FORMAT, Answer, reward_of, within
from nightshift.kernels.loop.ledger import read_candidate_of, read_run
from nightshift.kernels.ops.problems import named
from nightshift.kernels.problem import Case

DISCOUNT = 0.4
"""Of a later turn's reward (Kevin's)."""

STATE = "state between calls"
"""How a kernel is counted that is right and has variables for its next call."""

Message = dict[str, str]
Judged = Callable[[Candidate, Task], Verdict]


def task_of(problem: str, case: str) -> Task:
    """A data set's row as a task; `case` is JSON. Raises ProblemError on a problem or case that is none."""
    raw = json.loads(case)
    return Task(named(problem), Case.of(raw["dtype"], raw["layout"], **raw["params"]))


def prompts(tasks: Sequence[Task], history: Sequence[Outcome] = ()) -> list[dict[str, Any]]:
    """Rows for `datasets.Dataset.from_list`: the first turn's conversation, and what the reward must know."""
    return [
        {
            "prompt": [{"role": role, "content": text} for role, text in messages(task, history, (), 2)],
            "problem": task.problem.name,
            "case": json.dumps(task.case.to_json()),
        }
        for task in tasks
    ]


def lessons(run: Path, task: Task) -> list[dict[str, Any]]:
    """Rows for supervised fine-tuning: what a search's ledger kept and the reward would pay, oldest first. Raises
    LedgerError."""
    _, lines = read_run(run)
    rows = []
    for line in lines:
        if line.decision == "keep" and line.problem == task.problem.name and line.case == task.case.to_json():
            candidate = read_candidate_of(run, line.candidate_sha256)
            if device_state(candidate):
                continue
            (row,) = prompts([task])
            answer = f"{BEGIN}\n{candidate.source}\n{END}"
            rows.append({**row, "completion": [{"role": "assistant", "content": answer}]})
    return rows


def credits(rewards: Sequence[float], discount: float = DISCOUNT) -> list[float]:
    """Each turn's own reward and the discounted ones after it."""
    made: list[float] = []
    for reward in reversed(rewards):
        made.append(reward + discount * (made[-1] if made else 0.0))
    return made[::-1]


@dataclass(frozen=True)
class ReplyScore:
    """What one reply earned. said: the words about it in the model's next prompt."""

    reward: float
    formatted: bool
    said: str
    verdict: Verdict | None = None


@dataclass
class KernelReward:
    """The reward function, by TRL's convention: called with completions and the data set's columns, as lists.

    judge: a verdict of one candidate. baseline_s: of a verdict, seconds of its fastest baseline. counts: replies
    without a kernel, cheats and other refusals by their reason, kernels found right, and those with STATE. Raises
    RewardError where the judge raises or hangs."""

    judge: Judged
    limit_s: float = 600.0
    counts: Counter[str] = field(default_factory=Counter)
    __name__ = "kernel_reward"

    def __call__(self, completions: Sequence[Any], problem: Sequence[str], case: Sequence[str],
                 credit: Sequence[float] | None = None, **more: Any) -> list[float]:  # fmt: skip
        """One reward for each completion; `credit`: what `Turns` has found already."""
        if credit is not None:
            return list(credit)
        return [
            self.mark(text_of(reply), task_of(name, where)).reward
            for reply, name, where in zip(completions, problem, case, strict=True)
        ]

    def mark(self, reply: str, task: Task) -> ReplyScore:
        try:
            candidate = kernel_of(reply, task)
        except ReplyError as error:
            self.counts["no kernel"] += 1
            return ReplyScore(0.0, False, str(error))
        verdict = within(self.limit_s, lambda: self.judge(candidate, task))
        outcome = Outcome(Proposal(candidate, "llm"), verdict.status, str(verdict.reason), verdict.detail,
                          *_times(verdict))  # fmt: skip
        if verdict.status in FIT and (names := device_state(candidate)):
            self.counts[STATE] += 1
            told = f"Correct, but it earns nothing: {', '.join(names)} outlive a call. Use scratch buffers."
            return ReplyScore(0.0, True, told, verdict)
        if verdict.status in FIT:
            self.counts["right"] += 1
            baseline = min((c.baseline_s for c in verdict.comparisons), default=math.nan)
            looks = tuple(c.candidate_s for c in verdict.comparisons)
            said = feedback(task, outcome) if outcome.timed else "Correct. It was not timed."
            return ReplyScore(reward_of(Answer(verdict.status, looks), baseline), True, said, verdict)
        self.counts[f"{verdict.status}: {verdict.reason}"] += 1
        return ReplyScore(0.0, True, feedback(task, outcome), verdict)

    def formatted(self, completions: Sequence[Any], problem: Sequence[str], case: Sequence[str],
                  **more: Any) -> list[float]:  # fmt: skip
        """The reward function of the first stage: 0.1 for a reply that holds one kernel. Nothing is judged."""
        tasks = [task_of(name, where) for name, where in zip(problem, case, strict=True)]
        return [FORMAT * holds_kernel(text_of(reply), task) for reply, task in zip(completions, tasks, strict=True)]

    @property
    def cheats(self) -> int:
        """Replies that the judge found to cheat; each has earned nothing."""
        return sum(count for name, count in self.counts.items() if name.startswith(f"{Status.cheat}:"))


def _times(verdict: Verdict) -> tuple[float]:
    return (min((c.candidate_s for c in verdict.comparisons), default=math.nan),)


def holds_kernel(reply: str, task: Task) -> bool:
    """Whether a reply has the format: one file between the markers, with a sound declaration."""
    try:
        kernel_of(reply, task)
    except ReplyError:
        return False
    return True


def text_of(reply: Any) -> str:
    """A completion as text: TRL gives a string, or a list of messages."""
    return reply if isinstance(reply, str) else "".join(str(message.get("content") or "") for message in reply)


Prompt = str | list[Message]
Generate = Callable[[Sequence[Prompt]], Sequence[tuple[list[int], list[int], str]]]
"""(prompt's tokens, completion's tokens, completion's text) of each prompt."""


def sampler(trainer: Any) -> Generate:
    """What a GRPOTrainer's model writes, by `transformers`, at the trainer's temperature and length."""
    import torch

    words = trainer.processing_class

    @torch.no_grad()
    def generate(conversations: Sequence[Prompt]) -> list[tuple[list[int], list[int], str]]:
        texts = [
            p if isinstance(p, str) else words.apply_chat_template(p, tokenize=False, add_generation_prompt=True)
            for p in conversations
        ]
        given = words(texts, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False)
        given = {k: given[k].to(trainer.model.device) for k in ("input_ids", "attention_mask")}
        made = trainer.model.generate(
            **given, do_sample=True, temperature=trainer.args.temperature, top_k=0,
            max_new_tokens=trainer.args.max_completion_length, pad_token_id=words.pad_token_id,
            eos_token_id=words.eos_token_id,
        )  # fmt: skip
        width = given["input_ids"].shape[1]
        found = []
        for ids, mask, row in zip(given["input_ids"], given["attention_mask"], made, strict=True):
            reply = row[width:].tolist()
            end = reply.index(words.eos_token_id) + 1 if words.eos_token_id in reply else len(reply)
            text = words.decode(reply[:end], skip_special_tokens=True)
            found.append((ids[mask.bool()].tolist(), reply[:end], text))
        return found

    return generate


def refined(prompt: Prompt, reply: str, answer: str) -> Prompt:
    """The conversation with a reply and its verdict behind it."""
    if isinstance(prompt, str):
        return f"{prompt} {reply} {answer}"
    answer = f"{answer}\nWrite an improved version of the whole file."
    return [*prompt, {"role": "assistant", "content": reply}, {"role": "user", "content": answer}]


@dataclass
class Turns:
    """Refinement over turns as TRL's `rollout_func`: of each group of `group` samples, `group / turns`
    conversations, every turn of them a sample with its credit.

    mark: what a reply to a prompt earns; tasks are found by the prompt's own text. refined: the conversation with a
    reply and what was said of it behind it."""

    mark: Callable[[str, Prompt], ReplyScore]
    group: int
    turns: int = 2
    discount: float = DISCOUNT
    generate_of: Callable[[Any], Generate] = sampler
    refined: Callable[[Prompt, str, str], Prompt] = refined

    def __post_init__(self) -> None:
        if self.turns < 1 or self.group % self.turns:
            raise ValueError(f"turns: {self.turns} does not divide a group of {self.group} samples")

    def __call__(self, given: Sequence[Prompt], trainer: Any) -> Mapping[str, Any]:
        """`given`: each prompt `group` times, one after the other."""
        if len(given) % self.group:
            raise ValueError(f"turns: {len(given)} prompts are no whole groups of {self.group}")
        generate = self.generate_of(trainer)
        made: dict[str, list[Any]] = {"prompt_ids": [], "completion_ids": [], "credit": []}
        for start in range(0, len(given), self.group):
            asked: list[Prompt] = [given[start]] * (self.group // self.turns)
            seen: list[Sequence[tuple[list[int], list[int], str]]] = []
            earned: list[list[float]] = [[] for _ in asked]
            for _ in range(self.turns):
                seen.append(replies := generate(asked))
                marks = [self.mark(reply[2], given[start]) for reply in replies]
                for rewards, mark in zip(earned, marks, strict=True):
                    rewards.append(mark.reward)
                asked = [self.refined(a, r[2], m.said) for a, r, m in zip(asked, replies, marks, strict=True)]
            credited = [credits(rewards, self.discount) for rewards in earned]
            for turn, replies in enumerate(seen):
                made["prompt_ids"] += [r[0] for r in replies]
                made["completion_ids"] += [r[1] for r in replies]
                made["credit"] += [c[turn] for c in credited]
        return {**made, "logprobs": None}
