"""The language model that may investigate, if one is configured: which, where, its limits, and how it fails.

Nothing is sent anywhere unless `llm.provider` names one. A call is bounded in wall time from outside, because a
server that sends one byte every few seconds never trips a read timeout. Every way to fail has a name that people
are told; none of them raises beyond this module's `Failed`.
"""

from __future__ import annotations

import json
import math
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from opentelemetry.trace import SpanKind
from pydantic import BaseModel, ConfigDict, Field, model_validator

from nightshift import spans
from nightshift.agent.rca.tool_servers import ToolServerSettings
from nightshift.collectors.base import Permanent

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage, BaseMessage

# Calls that never came back before no more are made: a thread that waits for a socket cannot be ended.
MAX_STUCK = 4
MIN_REST_S, MAX_REST_S = 60.0, 1800.0
_BASE_URL = {
    "openai": "https://api.openai.com/v1",
    "anthropic": "https://api.anthropic.com",
    "ollama": "http://localhost:11434",
}
CHARS_PER_TOKEN = 4.0
"""For servers that do not say how many tokens they counted."""


class Failure(StrEnum):
    """Why the model's part is missing: the closed set that people and metrics are told, each with its words."""

    says: str

    def __new__(cls, value: str, says: str) -> Self:
        made = str.__new__(cls, value)
        made._value_, made.says = value, says
        return made

    NOT_INSTALLED = "not_installed", "the packages of the extra `llm` are not installed"
    UNREACHABLE = "unreachable", "its server could not be reached"
    DENIED = "denied", "its server refused our key or the model's name"
    BUSY = "busy", "its server is overloaded, or earlier calls have not come back"
    TIMEOUT = "timeout", "it did not answer in time"
    BAD_ANSWER = "bad_answer", "its server's answer could not be read"
    TRUNCATED = "truncated", "its answer was cut off"
    NOT_JSON = "not_json", "its answer was not in the agreed form"
    REFUSED = "refused", "it refused to answer"
    LOOPS = "loops", "it repeated the same request"
    STEPS = "steps", "it did not come to an end within its steps"
    TOKENS = "tokens", "it used up its tokens"
    COST = "cost", "it used up its money"
    NO_CLAIM_HELD = "no_claim_held", "none of its claims held when they were checked"
    DEFECT = "defect", "a defect of Nightshift ended it"


TRANSIENT = frozenset({Failure.TIMEOUT, Failure.UNREACHABLE, Failure.BUSY})
"""Failures of the server rather than of an answer: it is left alone for a while and asked again."""


class Failed(Exception):
    """The model's part is missing, and why."""

    def __init__(self, failure: Failure, detail: str = "") -> None:
        super().__init__(f"{failure.says}{f' ({detail})' if detail else ''}")
        self.failure = failure


# Most answers of the model per incident; `max_tokens` and `timeout_s` are what an operator pays by.
MAX_STEPS = 8
# Most look-ups per incident: three for each answer.
MAX_TOOL_CALLS = 24
# Most tokens of one answer. A diagnosis with its citations fits.
MAX_ANSWER_TOKENS = 2_000


class ModelSettings(BaseModel):
    """Which language model may look at an incident's evidence, and within what limits. Off by default."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    provider: str = Field(
        default="none",
        pattern="^[a-z][a-z0-9_]{1,40}$",
        description="A provider of LangChain's `init_chat_model` (`azure_openai`, `bedrock_converse`, …). `openai` "
        "is any OpenAI-compatible endpoint (vLLM, TGI, LiteLLM, …); `none`: rules only",
    )
    model: str = Field(default="", description="The model's name, as its server knows it")
    base_url: str = Field(default="", description="The server's address; empty: the provider's own")
    api_key_file: Path | None = Field(default=None, description="File that holds the key; none: no key is sent")
    options: dict[str, str | int | float | bool] = Field(
        default_factory=dict,
        description="Further arguments of the provider's client, e.g. `azure_endpoint`, `temperature`",
    )
    embeddings: str = Field(
        "", description="Embedding model at the same server, to find runbooks by meaning too; empty: by words alone"
    )
    requests_per_minute: float | None = Field(
        default=None, gt=0, description="Most requests in a minute, of all incidents together; none: no limit"
    )
    max_tokens: int = Field(default=60_000, ge=500, description="Most tokens per incident, both ways together")
    max_tokens_per_day: int = Field(
        default=2_000_000, ge=500, description="Most tokens of all incidents in 24 h; later ones wait"
    )
    timeout_s: float = Field(
        default=300.0, gt=0, le=900, description="Most wall time per request about an incident (s)"
    )
    max_cost_usd: float = Field(
        default=0.5, gt=0, description="Most money per incident (USD), where prices are set"
    )
    max_cost_usd_per_day: float = Field(
        default=20.0, gt=0, description="Most money in 24 h (USD), where prices are set; later incidents wait"
    )
    usd_per_million_input: float = Field(default=0.0, ge=0, description="Price of a million tokens sent (USD)")
    usd_per_million_output: float = Field(default=0.0, ge=0, description="Price of a million tokens answered (USD)")

    tool_servers: dict[Annotated[str, Field(pattern="^[a-z0-9_-]{1,20}$")], ToolServerSettings] = Field(
        default_factory=dict,
        description="Model Context Protocol servers of your own by name; their tools that only read may be called",
    )

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if self.provider != "none" and not self.model:
            raise ValueError("model: name the model, as its server knows it")
        return self

    @property
    def enabled(self) -> bool:
        return self.provider != "none"

    @property
    def address(self) -> str:
        return self.base_url or _BASE_URL.get(self.provider, "")


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """One answer of the model with the tokens it took (counted by the server, else estimated)."""

    message: AIMessage
    input_tokens: int
    output_tokens: int


class Model:
    """A configured model. `say` is one turn; `turn` is one investigation. `timer` is monotonic (s)."""

    def __init__(self, settings: ModelSettings, timer: Callable[[], float] = time.monotonic) -> None:
        self.settings = settings
        self._timer = timer
        self._lock = threading.Lock()
        self._stuck: list[threading.Thread] = []
        self._rests_until_s, self._rest_s = -math.inf, 0.0
        self._lacks: set[str] = set()
        """What the server said that this model does not take."""
        self._limiter: Any = None

    @property
    def rests_s(self) -> float:
        """For how long the server is still left alone, since it did not answer (s)."""
        return max(0.0, self._rests_until_s - self._timer())

    @property
    def lacks(self) -> str:
        """What the server said that this model does not take, in words."""
        return ", ".join(sorted(self._lacks))

    @contextmanager
    def turn(self) -> Iterator[None]:
        """One investigation. A server that does not answer is left alone for a while, twice as long each time:
        raises Failed meanwhile."""
        if self.rests_s > 0:
            raise Failed(Failure.BUSY, f"it failed just now and is asked again in {self.rests_s:.0f} s")
        failure: Failure | None = None
        try:
            yield
        except Failed as why:
            failure = why.failure
            raise
        finally:
            with self._lock:
                # these say that the server is ill; all others are about one answer
                down = failure in TRANSIENT
                self._rest_s = min(MAX_REST_S, max(MIN_REST_S, 2 * self._rest_s)) if down else 0.0
                self._rests_until_s = self._timer() + self._rest_s if down else -math.inf

    def say(self, messages: Sequence[BaseMessage], tools: Sequence[Any], timeout_s: float) -> ModelAnswer:
        """The model's next message, within `timeout_s` of wall time. Raises Failed."""
        self._stuck = [thread for thread in self._stuck if thread.is_alive()]
        if len(self._stuck) >= MAX_STUCK:
            raise Failed(Failure.BUSY, f"{len(self._stuck)} calls have not come back")
        if timeout_s <= 0:
            raise Failed(Failure.TIMEOUT)
        told: queue.Queue[tuple[Any, BaseException | None]] = queue.Queue(1)

        def ask() -> None:
            try:
                told.put((self._invoke(messages, tools, timeout_s), None))
            except BaseException as error:  # noqa: BLE001  handed over to the thread that waits
                told.put((None, error))

        # a server that sends a byte every few seconds never trips the client's read timeout
        thread = threading.Thread(target=ask, name="language model", daemon=True)
        thread.start()
        try:
            message, error = told.get(timeout=timeout_s)
        except queue.Empty:
            self._stuck.append(thread)
            raise Failed(Failure.TIMEOUT, f"{timeout_s:.0f} s") from None
        if error is not None:
            raise error if isinstance(error, Failed) else failed(error)
        return _counted(message, messages)

    def _invoke(self, messages: Sequence[BaseMessage], tools: Sequence[Any], timeout_s: float) -> AIMessage:
        from langchain_core.messages import AIMessage
        from langsmith import tracing_context

        settings = self.settings
        named: dict[str, str | int] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": settings.provider,
            "gen_ai.request.model": settings.model,
            "gen_ai.request.max_tokens": MAX_ANSWER_TOKENS,
        }
        # evidence goes to the configured endpoint and nowhere else, and of a span only the counts
        with (
            tracing_context(enabled=False),
            spans.span(f"chat {settings.model}", named, kind=SpanKind.CLIENT) as at,
        ):
            answer = self._adapted(messages, tools, timeout_s)
            if not isinstance(answer, AIMessage):
                raise Failed(Failure.BAD_ANSWER, type(answer).__name__)
            told, usage = answer.response_metadata, dict(answer.usage_metadata or {})
            at.set_attribute("gen_ai.response.model", str(told.get("model_name") or told.get("model") or ""))
            for name in ("input_tokens", "output_tokens"):
                count = usage.get(name)
                at.set_attribute(f"gen_ai.usage.{name}", count if isinstance(count, int) else 0)
        return answer

    def _adapted(self, messages: Sequence[BaseMessage], tools: Sequence[Any], timeout_s: float) -> object:
        """The answer; once more, without it, for each thing that the server says that this model does not take."""
        deadline_s = self._timer() + timeout_s
        while True:
            left_s = deadline_s - self._timer()
            try:
                return self._chat(tools, left_s).invoke(self._fitted(messages, tools), **self._cache())
            except Exception as error:
                lacks = _lacking(error, bool(tools)) - self._lacks
                if not lacks or left_s <= 0:
                    raise
                self._lacks |= lacks

    def _chat(self, tools: Sequence[Any], timeout_s: float) -> Any:
        """The client with its tools."""
        if self.settings.requests_per_minute is not None and self._limiter is None:
            from langchain_core.rate_limiters import InMemoryRateLimiter

            self._limiter = InMemoryRateLimiter(requests_per_second=self.settings.requests_per_minute / 60)
        chat = connect(self.settings, timeout_s, self._limiter, self._lacks)
        return chat.bind_tools(list(tools)) if self._takes(tools) else chat

    def _takes(self, tools: Sequence[Any]) -> bool:
        return bool(tools) and "tool" not in self._lacks

    def _fitted(self, messages: Sequence[BaseMessage], tools: Sequence[Any]) -> list[BaseMessage]:
        """The messages as this model takes them: without tools it is told the form of the answer; without a system
        prompt that stands first in what a person says."""
        from langchain_core.messages import HumanMessage, SystemMessage

        fitted = list(messages)
        if tools and not self._takes(tools):
            form = json.dumps(tools[-1]["function"]["parameters"])
            fitted.append(
                HumanMessage(f"You have no tools. Answer with one JSON object of this schema alone: {form}")
            )
        if "system" in self._lacks and fitted and isinstance(fitted[0], SystemMessage):
            fitted[:2] = [HumanMessage("\n\n".join(str(message.content) for message in fitted[:2]))]
        return fitted

    def _cache(self) -> dict[str, Any]:
        """Anthropic caches a prompt where it is asked to; the others do by themselves, or not at all."""
        asks = self.settings.provider == "anthropic" and "cache" not in self._lacks
        return {"cache_control": {"type": "ephemeral"}} if asks else {}


def _lacking(error: Exception, tools: bool) -> set[str]:
    """What a model does not take, by its server's words."""
    words = str(error).lower()
    if isinstance(error, NotImplementedError):
        return {"tool"} if tools else set()
    if getattr(error, "status_code", None) not in (400, 404, 422, 501):
        return set()
    marks = {
        "tool": ("tool", "function call"),
        "temperature": ("temperature",),
        "system": ("system",),
        "cache": ("cache",),
    }
    return {
        name for name, said in marks.items() if any(word in words for word in said) and (tools or name != "tool")
    }


def connect(
    settings: ModelSettings,
    timeout_s: float,
    limiter: Any = None,
    without: Iterable[str] = (),
) -> BaseChatModel:
    """The provider's client, without the options that its server does not take. Raises Failed where packages are
    missing or it refuses its arguments, Permanent where its key is."""
    try:
        from langchain import chat_models
    except ImportError as error:
        raise Failed(Failure.NOT_INSTALLED, str(error)) from error
    given: dict[str, Any] = {"rate_limiter": limiter} if limiter is not None else {}
    if settings.address:
        given["base_url"] = settings.address
    key = _key(settings)
    if settings.provider == "ollama":
        given |= {"num_predict": MAX_ANSWER_TOKENS, "client_kwargs": {"timeout": timeout_s}}
    elif settings.provider in _BASE_URL:
        # the SDKs' own retries would double the time that an operator set
        given |= {"timeout": timeout_s, "max_retries": 0, "max_tokens": MAX_ANSWER_TOKENS}
        # the SDK refuses to start without a key; vLLM and others take any
        given["api_key"] = key or "none"
    elif key:
        given["api_key"] = key
    if settings.provider == "openai":
        # only OpenAI itself serves the Responses API; compatible servers have chat completions
        given["use_responses_api"] = False
    # some models refuse any temperature
    options = {name: value for name, value in settings.options.items() if name not in without}
    build: Callable[..., BaseChatModel] = chat_models.init_chat_model
    try:
        return build(settings.model, model_provider=settings.provider, **(given | options))
    except ImportError as error:
        raise Failed(Failure.NOT_INSTALLED, str(error)) from error
    except (TypeError, ValueError) as error:
        # pydantic repeats what it was given, and that may be a key
        places = getattr(error, "errors", None)
        said = "; ".join(f"{e['loc']}: {e['msg']}" for e in places()) if callable(places) else str(error)
        raise Failed(Failure.DENIED, said.replace(key, "…")[:300] if key else said[:300]) from error


def embedding(settings: ModelSettings, timeout_s: float) -> Callable[[Sequence[str]], Sequence[Sequence[float]]]:
    """Texts to vectors, by the embedding model at the model's server. What is raised there is LangChain's and the
    provider's own; the client is made at the first call."""

    def vectors(texts: Sequence[str]) -> Sequence[Sequence[float]]:
        from langchain.embeddings import init_embeddings

        given: dict[str, Any] = {"base_url": settings.address} if settings.address else {}
        key = _key(settings)
        if settings.provider == "openai":
            # compatible servers take texts, not OpenAI's tokens
            given |= {"timeout": timeout_s, "max_retries": 0, "check_embedding_ctx_length": False}
            given["api_key"] = key or "none"
        elif settings.provider == "ollama":
            given["client_kwargs"] = {"timeout": timeout_s}
        elif key:
            given["api_key"] = key
        client: Any = init_embeddings(settings.embeddings, provider=settings.provider, **given)
        found: list[list[float]] = client.embed_documents(list(texts))
        return found

    return vectors


def _key(settings: ModelSettings) -> str:
    if settings.api_key_file is None:
        return ""
    try:
        return settings.api_key_file.read_text().strip()
    except OSError as error:
        raise Permanent(f"llm.api_key_file: {settings.api_key_file}: {error.strerror}") from error


def failed(error: BaseException) -> Failed:
    """Which failure a client's exception is, by its name and status: three libraries, three exception trees."""
    status = getattr(error, "status_code", None)
    name = type(error).__name__.lower()
    detail = type(error).__name__ + (f" {status}" if status else "")
    if isinstance(error, Permanent):
        return Failed(Failure.DENIED, str(error))
    if "timeout" in name:
        return Failed(Failure.TIMEOUT, detail)
    # 404 is what most servers answer to a model that they do not have
    if status in (401, 403, 404):
        return Failed(Failure.DENIED, detail)
    if status in (408, 429, 503, 529):
        return Failed(Failure.BUSY, detail)
    if "connect" in name or isinstance(error, ConnectionError):
        return Failed(Failure.UNREACHABLE, detail)
    return Failed(Failure.BAD_ANSWER, detail)


def _counted(message: AIMessage, messages: Sequence[BaseMessage]) -> ModelAnswer:
    """With the server's own count, else an estimate: a limit must not rest on what is absent."""
    usage: dict[str, Any] = dict(message.usage_metadata or {})
    sent = sum(len(str(m.content)) for m in messages) / CHARS_PER_TOKEN
    got = (len(str(message.content)) + len(str(message.tool_calls))) / CHARS_PER_TOKEN
    counts = [int(usage.get(key) or 0) for key in ("input_tokens", "output_tokens")]
    return ModelAnswer(message, counts[0] or int(sent) + 1, counts[1] or int(got) + 1)


def try_out(model: Model) -> ModelAnswer:
    """One short question. Raises Failed."""
    from importlib.util import find_spec

    # asked before the import, so that it is told as a setting and not as a crash
    if find_spec("langchain_core") is None:
        raise Failed(Failure.NOT_INSTALLED)
    from langchain_core.messages import HumanMessage

    return model.say([HumanMessage("Answer with the word ready.")], [], min(20.0, model.settings.timeout_s))
