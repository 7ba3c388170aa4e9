"""Tools of the user's own for a model: Model Context Protocol servers, read-only unless a tool is named.

What a server answers is evidence like any: cut, redacted, numbered, hashed, and marked where it addresses a reader.
A server is given the arguments of the call and nothing else: it gets no sampling, no elicitation and no variable of
our environment. One that hangs, lies about a tool or answers with megabytes costs its own answer and is named.

A server that is a command is started once and kept over the calls of a case: until it is idle, too old, or fails.
"""

from __future__ import annotations

import asyncio
import json
import queue
import re
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from nightshift.collectors.base import Permanent, Temporary

T = TypeVar("T")
LIST_S, CALL_S, KEEP_S = 30.0, 30.0, 300.0
"""Bounds of starting a server or listing its tools and of one call, and for how long a list is kept (s)."""
IDLE_S, LIFE_S = 60.0, 900.0
"""A started server ends after so long without a call, and at this age in any case (s)."""
MAX_TOOLS, MAX_ANSWER, MAX_SCHEMA = 32, 24_000, 8_000
MAX_STUCK = 4
"""Calls that never came back before a server is left alone: a thread that waits cannot be ended."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class ToolServerSettings(BaseModel):
    """A Model Context Protocol server: an address, or a command that is started."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str = Field("", description="Address of a server of streamable HTTP")
    command: tuple[str, ...] = Field((), description="Command of a server that speaks on its standard streams")
    token_file: Path | None = Field(None, description="File with a bearer token for `url`")
    allow: frozenset[str] = Field(
        frozenset(), description="Tools that a model may call though they do not say that they only read"
    )

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if bool(self.url) == bool(self.command):
            raise ValueError("give a url or a command, one of them")
        return self


@dataclass(frozen=True, slots=True)
class ServerTool:
    """A tool as a model gets it. `name`: `server__tool`."""

    name: str
    server: str
    tool: str
    about: str
    schema: Mapping[str, Any]


Work = Callable[[Any], Coroutine[Any, Any, T]]
"""What is done with an open session."""


class _KeptSession:
    """A session with a server, in a loop and a thread of its own. It ends when idle, when old, by `end`, and with
    the server. Raises what its start raises, TimeoutError where that does not come to an end."""

    def __init__(self, name: str, opened: Callable[[], AbstractAsyncContextManager[Any]], timeout_s: float) -> None:
        self._told: queue.Queue[Any] = queue.Queue(1)
        self._calls, self._ended = 0, False
        self._start_s = timeout_s
        self.thread = threading.Thread(target=self._run, args=(opened,), name=f"tool-server {name}", daemon=True)
        self.thread.start()
        try:
            told = self._told.get(timeout=timeout_s + 5.0)
        except queue.Empty:
            raise TimeoutError from None
        if isinstance(told, BaseException):
            raise told
        self._session = told

    @property
    def is_open(self) -> bool:
        return self.thread.is_alive() and not self._ended

    def run(self, work: Work[T], timeout_s: float) -> T:
        """Raises what the work raises, TimeoutError where it does not come back."""
        waited = asyncio.wait_for(self._counted(work), timeout_s)
        return asyncio.run_coroutine_threadsafe(waited, self._loop).result(timeout_s + 5.0)

    def end(self) -> None:
        self._ended = True
        # the loop may be closing by itself
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._over.set)

    async def _counted(self, work: Work[T]) -> T:
        self._calls += 1
        try:
            return await work(self._session)
        finally:
            self._calls -= 1
            self._last_s = self._loop.time()

    def _run(self, opened: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
        try:
            asyncio.run(self._serve(opened))
        except BaseException as error:  # noqa: BLE001  handed over to the thread that waits
            if self._told.empty():
                self._told.put(error)

    async def _serve(self, opened: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        async with AsyncExitStack() as stack:
            async with asyncio.timeout(self._start_s):
                session = await stack.enter_async_context(opened())
            began_s = self._last_s = self._loop.time()
            self._told.put(session)
            while not self._over.is_set():
                now_s = self._loop.time()
                if not self._calls and (now_s - self._last_s >= IDLE_S or now_s - began_s >= LIFE_S):
                    self._ended = True
                    return
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._over.wait(), 0.5)


class ToolServers:
    """All configured servers. `tools` and `call` are safe from several threads."""

    def __init__(
        self, settings: Mapping[str, ToolServerSettings], timer: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings, self._timer = dict(settings), timer
        self._lock = threading.Lock()
        self._kept: dict[str, tuple[float, list[ServerTool]]] = {}
        self._stuck: dict[str, list[threading.Thread]] = {name: [] for name in self._settings}
        self._sessions: dict[str, _KeptSession] = {}
        self._starts = {name: threading.Lock() for name in self._settings}
        self.problems: dict[str, str] = {}
        """By server: why its tools are missing now."""

    def tools(self) -> list[ServerTool]:
        """The tools that a model may call now; a server that does not answer has none, and `problems` says why."""
        with self._lock:
            for name in self._settings:
                at_s, _ = self._kept.get(name, (float("-inf"), []))
                if self._timer() - at_s < KEEP_S:
                    continue
                self.problems.pop(name, None)
                found: list[ServerTool] = []
                try:
                    found = self._asked(name, partial(self._list, name), LIST_S)
                except (Temporary, Permanent) as error:
                    self.problems[name] = str(error)
                self._kept[name] = (self._timer(), found)
            return [tool for _, tools in self._kept.values() for tool in tools]

    def call(self, tool: ServerTool, arguments: Mapping[str, Any]) -> str:
        """The answer as text. Raises Temporary, naming the server, where there is none."""
        text = self._asked(tool.server, partial(_call, tool.tool, dict(arguments)), CALL_S)
        return text if len(text) <= MAX_ANSWER else f"{text[:MAX_ANSWER]}… [cut: {len(text)} characters]"

    def end(self) -> None:
        """Ends all servers that were started here."""
        for session in list(self._sessions.values()):
            session.end()

    def _asked(self, name: str, work: Work[T], timeout_s: float) -> T:
        """Does the work with the server, and leaves it where it does not come back. Raises Temporary."""
        stuck = self._stuck[name] = [thread for thread in self._stuck[name] if thread.is_alive()]
        if len(stuck) >= MAX_STUCK:
            raise Temporary(f"tool server {name}: {len(stuck)} calls have not come back")
        session: _KeptSession | None = None
        try:
            session = self._session(name)
            return session.run(work, timeout_s)
        except (Temporary, Permanent):
            raise
        except BaseException as error:
            # what it said as an answer is no failure of the connection
            if session is not None and not isinstance(error, ValueError):
                session.end()
                stuck.append(session.thread)
            raise Temporary(f"tool server {name}: {_cause(error, timeout_s)}") from error
        finally:
            if session is not None and not self._settings[name].command:
                session.end()

    def _session(self, name: str) -> _KeptSession:
        """The open session with a started server, or a new one; an address gets a new one each time."""
        if not self._settings[name].command:
            return _KeptSession(name, partial(self._client(name).session, name), LIST_S)
        with self._starts[name]:
            session = self._sessions.get(name)
            if session is None or not session.is_open:
                session = _KeptSession(name, partial(self._client(name).session, name), LIST_S)
                self._sessions[name] = session
            return session

    def _client(self, name: str) -> Any:
        try:
            from langchain_mcp_adapters.client import MultiServerMCPClient
        except ImportError as error:
            raise Permanent("llm.tool_servers needs the packages of the extra `llm`") from error
        settings = self._settings[name]
        if settings.command:
            command, *rest = settings.command
            there: Any = {"transport": "stdio", "command": command, "args": rest}
        else:
            there = {"transport": "streamable_http", "url": settings.url}
            if settings.token_file is not None:
                there["headers"] = {"Authorization": f"Bearer {_token(name, settings.token_file)}"}
        return MultiServerMCPClient({name: there})

    async def _list(self, name: str, session: Any) -> list[ServerTool]:
        from langchain_mcp_adapters.tools import load_mcp_tools

        allow = self._settings[name].allow
        found = []
        for tool in await load_mcp_tools(session):
            reads = (tool.metadata or {}).get("readOnlyHint") is True
            schema = tool.args_schema if isinstance(tool.args_schema, dict) else {}
            # a name that is not plain, or a schema of megabytes, is no tool
            plain = _NAME.fullmatch(tool.name) and len(json.dumps(schema)) <= MAX_SCHEMA
            if plain and (reads or tool.name in allow):
                about = " ".join(str(tool.description).split())[:300]
                found.append(ServerTool(f"{name}__{tool.name}"[:64], name, tool.name, about, schema))
        return found[:MAX_TOOLS]


async def _call(tool: str, arguments: dict[str, Any], session: Any) -> str:
    result = await session.call_tool(tool, arguments)
    text = "\n".join(str(getattr(part, "text", f"({part.type})")) for part in result.content)
    if result.isError:
        raise ValueError(text[:300] or "an error without words")
    return text


def _token(name: str, path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError as error:
        raise Permanent(f"llm.tool_servers.{name}.token_file: {path}: {error.strerror}") from error


def _cause(error: BaseException, timeout_s: float) -> str:
    """An error in words; of a group that of its first part, which is what went wrong."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout_s:.0f} s"
    return f"{type(error).__name__}: {str(error)[:300]}"
