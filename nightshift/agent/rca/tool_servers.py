"""Tools of the user's own for a model: Model Context Protocol servers, read-only unless a tool is named.

What a server answers is evidence like any: cut, redacted, numbered, hashed, and marked where it addresses a reader.
A server is given the arguments of the call and nothing else: it gets no sampling, no elicitation and no variable of
our environment. One that hangs, lies about a tool or answers with megabytes costs its own answer and is named.
"""

from __future__ import annotations

import asyncio
import json
import queue
import re
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from nightshift.collectors.base import Permanent, Temporary

T = TypeVar("T")
LIST_S, CALL_S, KEEP_S = 30.0, 30.0, 300.0
"""Bounds of listing a server's tools and of one call, and for how long a list is kept (s)."""
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


class ToolServers:
    """All configured servers. `tools` and `call` are safe from several threads."""

    def __init__(
        self, settings: Mapping[str, ToolServerSettings], timer: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings, self._timer = dict(settings), timer
        self._lock = threading.Lock()
        self._kept: dict[str, tuple[float, list[ServerTool]]] = {}
        self._stuck: dict[str, list[threading.Thread]] = {name: [] for name in self._settings}
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
                    found = self._bounded(name, self._list(name), LIST_S)
                except (Temporary, Permanent) as error:
                    self.problems[name] = str(error)
                self._kept[name] = (self._timer(), found)
            return [tool for _, tools in self._kept.values() for tool in tools]

    def call(self, tool: ServerTool, arguments: Mapping[str, Any]) -> str:
        """The answer as text. Raises Temporary, naming the server, where there is none."""
        text = self._bounded(tool.server, self._call(tool, arguments), CALL_S)
        return text if len(text) <= MAX_ANSWER else f"{text[:MAX_ANSWER]}… [cut: {len(text)} characters]"

    def _bounded(self, name: str, work: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """Runs a call in a loop and a thread of its own, and leaves it where it does not come back."""
        stuck = self._stuck[name] = [thread for thread in self._stuck[name] if thread.is_alive()]
        if len(stuck) >= MAX_STUCK:
            work.close()
            raise Temporary(f"tool server {name}: {len(stuck)} calls have not come back")
        told: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(1)

        def run() -> None:
            try:
                told.put((asyncio.run(asyncio.wait_for(work, timeout_s)), None))
            except BaseException as error:  # noqa: BLE001  handed over to the thread that waits
                told.put((None, error))

        thread = threading.Thread(target=run, name=f"tool-server {name}", daemon=True)
        thread.start()
        try:
            value, error = told.get(timeout=timeout_s + 5.0)
        except queue.Empty:
            stuck.append(thread)
            raise Temporary(f"tool server {name}: no answer within {timeout_s:.0f} s") from None
        if error is not None:
            raise Temporary(f"tool server {name}: {_cause(error, timeout_s)}") from error
        return value  # type: ignore[return-value]

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

    async def _list(self, name: str) -> list[ServerTool]:
        allow = self._settings[name].allow
        found = []
        for tool in await self._client(name).get_tools():
            reads = (tool.metadata or {}).get("readOnlyHint") is True
            schema = tool.args_schema if isinstance(tool.args_schema, dict) else {}
            # a name that is not plain, or a schema of megabytes, is no tool
            plain = _NAME.fullmatch(tool.name) and len(json.dumps(schema)) <= MAX_SCHEMA
            if plain and (reads or tool.name in allow):
                about = " ".join(str(tool.description).split())[:300]
                found.append(ServerTool(f"{name}__{tool.name}"[:64], name, tool.name, about, schema))
        return found[:MAX_TOOLS]

    async def _call(self, tool: ServerTool, arguments: Mapping[str, Any]) -> str:
        async with self._client(tool.server).session(tool.server) as session:
            result = await session.call_tool(tool.tool, dict(arguments))
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
