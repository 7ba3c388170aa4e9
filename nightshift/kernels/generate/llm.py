"""A language model as an author, through LangChain: OpenAI-compatible, Anthropic and Ollama models alike.

It refines serially first: each attempt sees the last one with the judge's verdict. Once that brings nothing better,
it asks for several versions of the same prompt at a higher temperature. Budgets on tokens, calls and time end it.
The extra `llm` installs LangChain; without it, a search runs on its other authors.
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from nightshift.collectors.base import Temporary
from nightshift.kernels.generate.base import GeneratorError, Outcome, Proposal, Spent, Task
from nightshift.kernels.generate.prompt import ReplyError, answer_of, kernel_of, messages

_ENDED = ("finish_reason", "stop_reason", "done_reason")
"""Why a reply ended, as OpenAI, Anthropic and Ollama call it."""


@dataclass(frozen=True)
class Reply:
    """What a model said. truncated: it ran into its limit of tokens."""

    text: str
    tokens: int
    truncated: bool = False


class Chat(Protocol):
    """A model. Raises Temporary where asking again may help, GeneratorError where it cannot."""

    def __call__(self, said: Sequence[tuple[str, str]], temperature: float) -> Reply: ...


@dataclass(frozen=True)
class Allowance:
    """What one author may use. repairs: follow-up questions after a reply without a kernel."""

    tokens: int = 400_000
    calls: int = 60
    wall_s: float = 3600.0
    reply_tokens: int = 8_000
    repairs: int = 2
    serial: int = 4
    parallel: int = 4
    exemplars: int = 2


@dataclass
class LanguageModel:
    """The author. `clock` gives seconds; `name` is what the ledger carries. `account`: a file with a line for each
    reply, whatever it held, so that a search that is started again does not spend its allowance anew."""

    chat: Chat
    name: str = "llm"
    allowance: Allowance = field(default_factory=Allowance)
    clock: Callable[[], float] = time.monotonic
    account: Path | None = None
    _tokens: int = 0
    _calls: int = 0
    _began_s: float | None = None
    _counting: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __post_init__(self) -> None:
        if self.account is not None and self.account.exists():
            replies = _replies(self.account)
            self._tokens, self._calls = sum(replies), len(replies)

    def spent(self) -> Spent:
        return Spent(self._tokens, self._calls)

    def propose(self, task: Task, history: Sequence[Outcome], count: int) -> Sequence[Proposal]:
        mine = [o for o in history if o.proposal.generator == self.name]
        before = sum(o.proposal.tokens for o in {o.proposal.candidate.sha256: o for o in mine}.values())
        self._tokens = max(self._tokens, before)  # what an earlier process spent counts as well
        self._began_s = self.clock() if self._began_s is None else self._began_s
        if self._over():
            return []
        if not self._stuck(mine):
            made = self._one(task, history, mine, 0.2)
            return [made] if made is not None else []
        wanted = max(1, min(count, self.allowance.parallel))
        return self._several(wanted, task, history, mine)

    def _several(
        self, wanted: int, task: Task, history: Sequence[Outcome], mine: Sequence[Outcome]
    ) -> Sequence[Proposal]:
        """Versions of one prompt. Raises the first error where there is no kernel at all."""
        # at 0.2 a model answers one prompt alike each time; several versions have to differ
        with concurrent.futures.ThreadPoolExecutor(wanted) as pool:
            asked = [pool.submit(self._one, task, history, mine, 0.9) for _ in range(wanted)]
        failed = [error for one in asked if (error := one.exception()) is not None]
        found = [made for one in asked if one.exception() is None and (made := one.result()) is not None]
        if failed and not found:
            raise failed[0]
        return found  # what was paid for is judged, whatever became of the others

    def _over(self) -> bool:
        assert self._began_s is not None
        allowed = self.allowance
        late = self.clock() - self._began_s >= allowed.wall_s
        return late or self._tokens >= allowed.tokens or self._calls >= allowed.calls

    def _stuck(self, mine: Sequence[Outcome]) -> bool:
        """Serial refinement has had its turns, and the last two brought nothing better of this author's own."""
        if len(mine) < self.allowance.serial:
            return False
        times = [o.seconds if o.timed else float("inf") for o in mine]
        return min(times[-2:]) >= min(times[:-2], default=float("inf"))

    def _one(
        self, task: Task, history: Sequence[Outcome], mine: Sequence[Outcome], temperature: float
    ) -> Proposal | None:
        """One kernel, asked for again when a reply holds none; None when the budget or the patience ends."""
        said = messages(task, history, mine, self.allowance.exemplars)
        judged = {outcome.proposal.candidate.sha256 for outcome in history}
        used = 0
        for _ in range(1 + self.allowance.repairs):
            if self._over():
                return None
            with self._counting:
                self._calls += 1
            reply = self.chat(said, temperature)
            self._count(reply.tokens)
            used += reply.tokens
            try:
                made = kernel_of(reply.text, task, reply.truncated)
                if made.sha256 in judged:
                    raise ReplyError("That file was judged already, to the letter: write another.")
            except ReplyError as error:
                said = [*said, ("assistant", answer_of(reply.text)[:4000] or "(nothing)"), ("user", str(error))]
                continue
            kind = "refines its last attempt" if mine else "first attempt"
            why = f"{self.name}: {kind}" if temperature < 0.5 else f"{self.name}: another version of it"
            return Proposal(made, self.name, {}, why, used)
        return None

    def _count(self, tokens: int) -> None:
        with self._counting:
            self._tokens += tokens
            if self.account is not None:
                self.account.parent.mkdir(parents=True, exist_ok=True)
                with self.account.open("a") as file:
                    file.write("\n" + json.dumps({"tokens": tokens}) + "\n")  # whatever the line before ended with


def _replies(account: Path) -> list[int]:
    """Tokens of each reply. A line that a killed process left half-written counts as a reply of unknown length."""
    found = []
    for line in filter(None, account.read_text(errors="replace").splitlines()):
        try:
            found.append(max(0, int(json.loads(line)["tokens"])))
        except (ValueError, TypeError, KeyError):
            found.append(0)
    return found


def connect(model: str, base_url: str | None = None, key_variable: str = "", reply_tokens: int = 8_000) -> Chat:
    """A LangChain chat model as a `Chat`. `model` may name its provider, as in ``openai:gpt-…``.

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
        return Reply(text, tokens, not {"length", "max_tokens"}.isdisjoint(reasons))

    return ask
