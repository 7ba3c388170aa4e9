"""A language model as an author, through LangChain: OpenAI-compatible, Anthropic and Ollama models alike.

A strategy chooses its turns (`kernels.generate.strategies`): serial refinement, islands, planner and coder. Budgets
on tokens, money, calls and time end it. The extra `llm` installs LangChain; without it, a search runs on its other
authors.

The prompt holds the task (the reference's own source, shapes, the roofline), the rules that the judge applies, a
few contrastive pairs (two correct kernels that look alike, the faster and the slower, with what differs: CUDA-L1,
arXiv 2507.14111) and what the judge said about the latest attempt. Code is taken from between two markers, or from
the one fenced block of a reply; anything else is no kernel, and what a reasoning model thought before its answer is
not read. Nothing that a model says is believed: it is judged.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import difflib
import itertools
import json
import math
import os
import re
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from nightshift.collectors.base import Temporary
from nightshift.kernels.candidate import Bound, Candidate, CandidateError, Domain
from nightshift.kernels.candidate_file import FIRST_LINE, parse_candidate
from nightshift.kernels.cute import cute_version
from nightshift.kernels.generate.base import GeneratorError, Outcome, Proposal, Spent, Task
from nightshift.kernels.generate.request import PLAYBOOK, SHOWN_CHARS, changing, gathered, text_of
from nightshift.kernels.generate.space import differences
from nightshift.kernels.generate.strategies import PLAN_RULES, STRATEGIES, AuthorAllowance, Turn
from nightshift.kernels.profile.roofline import Peaks

BEGIN, END = "### BEGIN KERNEL", "### END KERNEL"
_FENCE = re.compile(r"```[\w+-]*[ \t]*\n(.*?)```", re.DOTALL)
_MARK = re.compile(r"#{2,} *(BEGIN) KERNEL[#*` \t]*$|^[*` \t]*#{2,} *(END) KERNEL", re.MULTILINE | re.IGNORECASE)
_THINKS = re.compile(r"\s*(?:<(?:think|thinking|reasoning)>|\[THINK\])")
_THOUGHT = re.compile(r"</(?:think|thinking|reasoning)>|\[/THINK\]|<\|channel\|>final<\|message\|>")
_MAX_CHARS, _MAX_PLAN = 60_000, 2_000

CUTE = """
- A file in CuTe DSL begins with the same lines after `#`, with `language: cute` and, for the kernel below,
  `launch: double | cdiv(m * n, 256) | 256 | 0 | in0; out0; i32:m * n`. It imports cutlass alone and holds
  `@cute.kernel` functions, no host code: the judge compiles each for the threads of its `launch`. A buffer is a
  `cute.Pointer` to elements of its dtype (tmp0: Uint8), i32 a `cutlass.Int32`, i64 `Int64`, f32 `Float32`:
  import cutlass
  from cutlass import cute

  @cute.kernel
  def double(x: cute.Pointer, out: cute.Pointer, count: cutlass.Int32):
      i = cute.arch.block_idx()[0] * 256 + cute.arch.thread_idx()[0]
      if i < count:
          value = cute.make_tensor(x, count)[i].to(cutlass.Float32)
          cute.make_tensor(out, count)[i] = (2.0 * value).to(out.dtype)"""
"""What the prompt says of CuTe DSL. Only where it is installed, for such kernels are refused without it."""
_HAS_CUTE = cute_version() != "none"
RULES = f"""You write GPU kernels for one NVIDIA GPU: the fastest wins. Choose the language: Triton 3.6 or newer,
Gluon{", CUDA C++ or CuTe DSL" if _HAS_CUTE else " or CUDA C++"}.
Reply with one complete file between a line `{BEGIN}` and a line `{END}`, and nothing else after it.
A Python file defines `entry(*inputs)`: it takes the inputs listed below and returns the outputs (one or a tuple).
A judge that you cannot see runs it in a sandbox and decides; it holds every claim against a float64 reference.
- Only torch (allocation: empty, empty_like, zeros; attributes), triton and triton.language may be imported.
- All arithmetic happens in your own @triton.jit kernels: no torch operators, no library calls, no try/except.
- No state between calls, no other streams or threads, no reading of files, environment or other objects.
- Inputs must stay unchanged, every output element must be written, NaN and infinity must come out as in torch.
- Accumulate in float32. Results must repeat bit for bit: no floating-point atomics.
- Say in a first comment `# idea: …` what is new in it, in one line.
- A file in CUDA C++ holds `extern "C" __global__` functions alone. It begins with these lines, and a `launch` for
  each kernel: name | grid | threads | shared bytes | arguments (in0, out0, i32:a size or number):
  // nightshift candidate
  // problem: the operation's name
  // language: cuda
  // kind: own_kernel
  // determinism: bitwise
  // dtypes: float32
  // layouts: contiguous offset
  // launch: total | m | 256 | 0 | in0; out0; i32:n{CUTE if _HAS_CUTE else ""}
- Fast means few bytes moved, wide coalesced accesses, enough loads in flight and no second pass over memory."""


class ReplyError(ValueError):
    """A reply holds no kernel. The message is what the model is told."""


@dataclass(frozen=True)
class SpeedContrast:
    """Two correct kernels of one task. ratio: the slow one's time over the fast one's. why: what differs."""

    fast: Outcome
    slow: Outcome
    ratio: float
    why: str


def contrasts(history: Sequence[Outcome], count: int) -> list[SpeedContrast]:
    """The most telling pairs: log of the time ratio, times the likeness of the texts; each slow half once."""
    timed: dict[str, Outcome] = {}
    for outcome in history:
        if outcome.timed:
            timed[outcome.proposal.candidate.source_sha256] = outcome
    ranked = sorted(timed.values(), key=lambda o: o.seconds)[
        :24
    ]  # pairs grow with the square, each a comparison of texts
    pairs = []
    for i, fast in enumerate(ranked):
        for slow in ranked[i + 1 :]:
            ratio = slow.seconds / fast.seconds
            if ratio < 1.05:
                continue
            a, b = fast.proposal.candidate.source, slow.proposal.candidate.source
            alike = difflib.SequenceMatcher(None, a[:4000], b[:4000], autojunk=True).quick_ratio()
            pairs.append((math.log(ratio) * alike, fast, slow, ratio))
    chosen: list[SpeedContrast] = []
    used: set[int] = set()
    for _, fast, slow, ratio in sorted(pairs, key=lambda p: -p[0]):
        if id(slow) not in used and len(chosen) < count:
            used.add(id(slow))
            chosen.append(SpeedContrast(fast, slow, ratio, _why(fast, slow)))  # only of these: it takes its time
    return chosen


def _why(fast: Outcome, slow: Outcome) -> str:
    a, b = slow.proposal.config, fast.proposal.config
    if a and "island" not in a and set(a) == set(b):
        return f"changed {differences(a, b)}"
    old, new = (outcome.proposal.candidate.source.splitlines() for outcome in (slow, fast))
    lines = itertools.islice(difflib.unified_diff(old, new, n=0, lineterm=""), 2, None)  # behind the files' names
    changed = [line for line in lines if line[:1] in "+-" and line[1:].strip() and not line[1:].startswith("#")]
    return "changed these lines:\n" + "\n".join(f"{line[0]} {line[1:]}" for line in changed[:12])


def feedback(task: Task, outcome: Outcome) -> str:
    """What the judge said about one attempt, and where its time lies."""
    if not outcome.timed:
        return f"The judge refused it: {outcome.status} ({outcome.reason}). {outcome.detail}"
    seconds = outcome.seconds
    rate = task.problem.compulsory_bytes(task.case) / seconds / 1e9
    text = f"Correct. It takes {seconds * 1e6:.1f} µs: {rate:.0f} GB/s of compulsory traffic"
    if math.isfinite(task.floor_s) and task.floor_s > 0:
        text += f", {task.floor_s / seconds:.0%} of the roofline"
    return text + f". {outcome.detail}"


def example_text(contrast: SpeedContrast) -> str:
    fast, slow = contrast.fast, contrast.slow
    return (
        f"Of two correct kernels the second is {contrast.ratio:.2f} times as fast ({slow.seconds * 1e6:.1f} → "
        f"{fast.seconds * 1e6:.1f} µs); it {contrast.why}\nThe faster one:\n"
        f"{fast.proposal.candidate.source[:SHOWN_CHARS]}"
    )


def messages(
    task: Task,
    history: Sequence[Outcome],
    attempts: Sequence[Outcome],
    exemplars: int,
    fixed: Mapping[str, str] | None = None,
) -> list[tuple[str, str]]:
    """(role, text) pairs: rules, every field of the request and exemplars, then the latest attempt of this author
    with its verdict. fixed: `gathered(task)`, where it is known already."""
    fields = {**(fixed or gathered(task)), **changing(task, history, attempts), "playbook": PLAYBOOK}
    parts = [text_of(fields)]
    parts += [example_text(c) for c in contrasts(history, exemplars)]
    said = [("system", RULES), ("user", "\n\n".join(parts))]
    if attempts:
        last = attempts[-1]
        said.append(("assistant", f"{BEGIN}\n{last.proposal.candidate.source}\n{END}"))
        said.append(("user", feedback(task, last) + "\nWrite an improved version of the whole file."))
    return said


def idea_of(code: str) -> str:
    """What a file's author says it tries: the first comment `# idea: …`, or `// idea: …`."""
    comments = (line.lstrip("#/ ") for line in code.splitlines() if line.startswith(("#", "//")))
    return next((line[5:].strip()[:200] for line in comments if line.lower().startswith("idea:")), "")


def kernel_of(reply: str, task: Task, truncated: bool = False) -> Candidate:
    """The candidate in a reply. Raises ReplyError: no code, more than one, cut off, or a malformed declaration.

    Without a header of its own it answers for the timed case alone.
    """
    answer = answer_of(reply)
    if len(answer) > _MAX_CHARS:
        raise ReplyError(f"The reply has {len(answer)} characters; at most {_MAX_CHARS} are read.")
    code = _between(answer)
    if not code.strip():
        why = "It was cut off before its end: be shorter." if truncated else "Nothing else is read."
        raise ReplyError(f"No file stands between {BEGIN!r} and {END!r}. {why}")
    try:
        if code.startswith((f"# {FIRST_LINE}", f"// {FIRST_LINE}")):
            return parse_candidate(code, "reply").candidate
        case, problem = task.case, task.problem
        bounds = tuple(Bound(name, value, value) for name, value in case.params)
        return Candidate(
            code,
            "entry",
            "triton",
            "in_place" if problem.mutates else "own_kernel",
            "bitwise",
            mutates=problem.mutates,
            domain=Domain((case.dtype,), ("contiguous",), bounds),
        )
    except CandidateError as error:
        raise ReplyError(f"The declaration is malformed: {error}") from error


def answer_of(reply: str) -> str:
    """A reply without what a reasoning model thought before it; empty where it was still thinking."""
    thought = max((mark.end() for mark in _THOUGHT.finditer(reply)), default=0)
    answer = reply[thought:].replace("\r\n", "\n")
    return "" if _THINKS.match(answer) else answer


def _between(answer: str) -> str:
    """The file between the lines that mark it, else the only block that has an entry; empty where there is none."""
    marks = list(_MARK.finditer(answer))
    if len(marks) > 2:
        raise ReplyError("The file holds the markers themselves, or there are several: send one.")
    if marks:
        if len(marks) < 2 or not marks[0][1] or not marks[1][2]:
            return ""
        code = answer[marks[0].end() : marks[1].start()]
        fenced = _FENCE.findall(code)
        return (fenced[0] if len(fenced) == 1 else code).strip() + "\n"
    blocks = [block for block in _FENCE.findall(answer) if "def entry" in block]
    if len(blocks) > 1:
        raise ReplyError(f"{len(blocks)} blocks define entry: send one file.")
    return blocks[0].strip() + "\n" if blocks else ""


_ENDED = ("finish_reason", "stop_reason", "done_reason")
"""Why a reply ended, as OpenAI, Anthropic and Ollama call it."""


@dataclass(frozen=True)
class Reply:
    """What a model said. truncated: it ran into its limit of tokens. usd: what it cost, where prices are known."""

    text: str
    tokens: int
    truncated: bool = False
    usd: float = 0.0


class Chat(Protocol):
    """A model. Raises Temporary where asking again may help, GeneratorError where it cannot."""

    def __call__(self, said: Sequence[tuple[str, str]], temperature: float) -> Reply: ...


@dataclass
class LanguageModel:
    """The author. `clock` gives seconds; `name` is what the ledger carries. `account`: a file with a line for each
    reply, whatever it held, so that a search that is started again does not spend its allowance anew. `strategy`: a
    name of `STRATEGIES`. `peaks`: what the GPU was measured at."""

    chat: Chat
    name: str = "llm"
    allowance: AuthorAllowance = field(default_factory=AuthorAllowance)
    clock: Callable[[], float] = time.monotonic
    account: Path | None = None
    strategy: str = "serial"
    peaks: Peaks | None = None
    _spent: Spent = field(default_factory=Spent)
    _began_s: float | None = None
    _fixed: dict[str, str] = field(default_factory=dict, repr=False)
    _counting: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __post_init__(self) -> None:
        if self.account is not None and self.account.exists():
            self._spent = _account(self.account)

    def spent(self) -> Spent:
        return self._spent

    def propose(self, task: Task, history: Sequence[Outcome], count: int) -> Sequence[Proposal]:
        mine = [o for o in history if o.proposal.generator == self.name]
        before = sum(o.proposal.tokens for o in {o.proposal.candidate.sha256: o for o in mine}.values())
        # what an earlier process spent counts as well
        self._spent = replace(self._spent, tokens=max(self._spent.tokens, before))
        self._began_s = self.clock() if self._began_s is None else self._began_s
        if self._over():
            return []
        judged = {outcome.proposal.candidate.sha256 for outcome in history}
        turns = STRATEGIES[self.strategy](history, mine, count, self.allowance)
        return self._several(task, turns, judged)

    def _several(self, task: Task, turns: Sequence[Turn], judged: Collection[str]) -> Sequence[Proposal]:
        """A kernel for each turn, written at a time. Raises the first error where there is no kernel at all."""
        with concurrent.futures.ThreadPoolExecutor(len(turns)) as pool:
            asked = [pool.submit(self._one, task, turn, judged) for turn in turns]
        failed = [error for one in asked if (error := one.exception()) is not None]
        found = [made for one in asked if one.exception() is None and (made := one.result()) is not None]
        if failed and not found:
            raise failed[0]
        return found  # what was paid for is judged, whatever became of the others

    def _over(self) -> bool:
        assert self._began_s is not None
        allowed = self.allowance
        spent = self._spent
        used_up = spent.tokens >= allowed.tokens or spent.calls >= allowed.calls or spent.usd >= allowed.usd
        return used_up or self.clock() - self._began_s >= allowed.wall_s

    def _one(self, task: Task, turn: Turn, judged: Collection[str]) -> Proposal | None:
        """One kernel, asked for again when a reply holds none; None when the budget or the patience ends."""
        with self._counting:
            self._fixed = self._fixed or gathered(task, self.peaks)  # an author works on one task
        said = messages(task, turn.history, turn.attempts, self.allowance.exemplars, self._fixed)
        used = 0
        if turn.planned:
            role, text = said[-1]
            planner = [("system", PLAN_RULES), *said[1:-1], (role, f"{text}\n\nReply with the plan of it alone.")]
            reply = self._reply(planner, turn.heat)
            used += reply.tokens
            said = _with_plan(said, answer_of(reply.text))
        for _ in range(1 + self.allowance.repairs):
            if self._over():
                return None
            reply = self._reply(said, turn.heat)
            used += reply.tokens
            try:
                made = kernel_of(reply.text, task, reply.truncated)
                if made.sha256 in judged:
                    raise ReplyError("That file was judged already, to the letter: write another.")
            except ReplyError as error:
                said = [*said, ("assistant", answer_of(reply.text)[:4000] or "(nothing)"), ("user", str(error))]
                continue
            idea, why = idea_of(made.source), f"{self.name}: {turn.why}"
            return Proposal(made, self.name, turn.config, f"{why}: {idea}" if idea else why, used)
        return None

    def _reply(self, said: Sequence[tuple[str, str]], temperature: float) -> Reply:
        """What the model says, counted and kept."""
        with self._counting:
            self._spent = replace(self._spent, calls=self._spent.calls + 1)
        reply = self.chat(said, temperature)
        with self._counting:
            spent = self._spent
            self._spent = replace(spent, tokens=spent.tokens + reply.tokens, usd=spent.usd + reply.usd)
            if self.account is not None:
                self.account.parent.mkdir(parents=True, exist_ok=True)
                kept = {"tokens": reply.tokens, "usd": reply.usd, "reply": reply.text}
                with self.account.open("a") as file:
                    file.write(f"\n{json.dumps(kept)}\n")  # whatever the line before ended with
        return reply


def _with_plan(said: Sequence[tuple[str, str]], plan: str) -> list[tuple[str, str]]:
    """The same messages, the last one with the plan of what is to be written."""
    if not plan.strip():
        return [*said]
    role, text = said[-1]
    told = f"{text}\n\nThe plan, carry it out and nothing beyond it:\n{plan.strip()[:_MAX_PLAN]}"
    return [*said[:-1], (role, told)]


def _account(account: Path) -> Spent:
    """Of all replies. A line that a killed process left half-written counts as a reply of unknown length."""
    spent = Spent()
    for line in filter(None, account.read_text(errors="replace").splitlines()):
        tokens, usd = 0, 0.0
        with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
            kept = json.loads(line)
            tokens, usd = max(0, int(kept["tokens"])), max(0.0, float(kept.get("usd", 0.0)))
        spent = Spent(spent.tokens + tokens, spent.calls + 1, spent.usd + usd)
    return spent


def connect(
    model: str,
    base_url: str | None = None,
    key_variable: str = "",
    reply_tokens: int = 8_000,
    prices: tuple[float, float] = (0.0, 0.0),
) -> Chat:
    """A LangChain chat model as a `Chat`. `model` may name its provider, as in ``openai:gpt-…``. prices: USD for a
    million tokens sent and answered.

    The key is read from the environment variable and goes nowhere else: from OPENAI_API_KEY for a server at
    `base_url`, else from the provider's own. Raises GeneratorError where LangChain is not installed or the model
    cannot be made.
    """
    try:
        from langchain.chat_models import init_chat_model
    except ImportError as error:
        raise GeneratorError("llm: LangChain is not installed. In the checkout: pip install '.[llm]'") from error
    options: dict[str, Any] = {"max_retries": 2, "timeout": 120.0, "max_tokens": reply_tokens}
    if base_url is not None:
        options |= {"base_url": base_url, "model_provider": "openai"}
    if base_url is not None or key_variable:  # else LangChain takes the provider's: no other's key goes there
        options["api_key"] = os.environ.get(key_variable or "OPENAI_API_KEY") or "none"  # one's own may ask none
    try:
        chat: Any = init_chat_model(model, **options)
    except Exception as error:  # each provider raises its own classes for a missing key or a wrong name
        raise GeneratorError(f"llm: {model}: {type(error).__name__}: {str(error)[:200]}") from error

    takes = {"temperature"}  # a reasoning model may take none, and say so of the first request

    def ask(said: Sequence[tuple[str, str]], temperature: float) -> Reply:
        heat = dict.fromkeys(takes, temperature)
        try:
            answer = chat.invoke(list(said), **heat)
        except Exception as error:  # providers raise their own classes; their status says whether to try again
            status = getattr(error, "status_code", None)
            if status in (400, 422) and heat and "temperature" in str(error).lower():
                takes.clear()
                return ask(said, temperature)
            if status in (400, 401, 403, 404, 422):
                raise GeneratorError(f"llm: {model} refused the request ({status})") from error
            raise Temporary(f"llm: {model}: {type(error).__name__}") from error
        usage = answer.usage_metadata or {}
        text = answer.content if isinstance(answer.content, str) else str(answer.text)
        text = text.encode(errors="replace").decode()  # half a surrogate pair could not be sent back or kept
        reasons = [str(answer.response_metadata.get(name, "")) for name in _ENDED]
        tokens = int(usage.get("total_tokens") or 0)
        if tokens <= 0:  # not told, or nonsense that would stretch the allowance
            tokens = (len(text) + sum(len(t) for _, t in said)) // 4
        sent, answered = int(usage.get("input_tokens") or 0), int(usage.get("output_tokens") or 0)
        if sent + answered <= 0:  # which of them is not told: the dearer
            sent, answered = (tokens, 0) if prices[0] > prices[1] else (0, tokens)
        usd = (max(0, sent) * prices[0] + max(0, answered) * prices[1]) / 1e6
        return Reply(text, tokens, not {"length", "max_tokens"}.isdisjoint(reasons), usd)

    return ask
