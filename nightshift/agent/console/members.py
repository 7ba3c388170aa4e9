"""Other clusters' agents: what each last said of itself, and how far that holds.

A summary is read with a viewer's token, and nothing else of another agent is called. An agent that does not answer,
has not looked for two minutes or runs another version is marked: missing data is never health.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

import structlog
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nightshift.collectors.frame import Reason
from nightshift.collectors.http import Fetcher, HttpRequest, HttpSettings, SourceError
from nightshift.detectors.base import Severity

POLL_S, TIMEOUT_S = 15.0, 5.0
SILENT_S = 60.0
"""An agent without a good answer for so long is silent (four polls)."""
STALE_S = 120.0
"""An agent that has not looked for so long, by its own clock, is stale."""
MAX_BYTES = 2**20


class MemberIncident(BaseModel):
    """An open incident of a cluster. `namespaces`: the work that it touches."""

    model_config = ConfigDict(frozen=True)

    id: str = Field(max_length=20)
    title: str = Field(max_length=400)
    severity: Severity
    waits: bool
    opened_s: float
    namespaces: tuple[str, ...] = ()


class ClusterSummary(BaseModel):
    """What an agent says of its cluster. None: it does not know. `incidents`: the most urgent `MOST_INCIDENTS`."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    version: str = Field(max_length=200)
    cluster: str = Field(max_length=200)
    now_s: float
    looked_s: float | None
    ready: bool
    halted: bool
    gpus: int = Field(ge=0)
    gpus_seen: int = Field(ge=0)
    watts: float | None
    sources: int = Field(ge=0)
    sources_silent: int = Field(ge=0)
    opened: dict[Severity, int]
    waiting: int = Field(ge=0)
    gpus_out: int = Field(ge=0)
    gpus_out_limit: int = Field(ge=0)
    false_pages_left: float
    false_pages_a_week: float
    ettr: float | None
    incidents: tuple[MemberIncident, ...]


class MemberState(StrEnum):
    """How far an agent's word holds now."""

    CURRENT = "current"
    NOT_READY = "not ready"
    STALE = "stale"
    OTHER_VERSION = "other version"
    SILENT = "silent"


COUNTED: frozenset[MemberState] = frozenset({MemberState.CURRENT, MemberState.OTHER_VERSION})
"""Agents of which the figures are in the sums."""


@dataclass(frozen=True, slots=True)
class Member:
    """One agent. `said`: its last good answer, and when that came (monotonic s); `problem`: why the last one was
    none."""

    url: str
    said: ClusterSummary | None = None
    at_s: float = -math.inf
    problem: str = "no answer yet"

    def state(self, now_s: float, version: str) -> MemberState:
        """As of a time (monotonic s). Silence counts first: of what an agent said before nothing holds then."""
        said = self.said
        if said is None or now_s - self.at_s > SILENT_S:
            return MemberState.SILENT
        age_s = math.inf if said.looked_s is None else said.now_s - said.looked_s + now_s - self.at_s
        if age_s > STALE_S:
            return MemberState.STALE
        if not said.ready:
            return MemberState.NOT_READY
        return MemberState.CURRENT if said.version == version else MemberState.OTHER_VERSION


def read(body: bytes) -> ClusterSummary:
    """An agent's answer; one with fields that we do not know is fine. Raises ValueError where it is no summary."""
    try:
        return ClusterSummary.model_validate(json.loads(body))
    except (ValidationError, RecursionError) as error:
        first = error.errors()[0] if isinstance(error, ValidationError) else {"loc": (), "msg": "too deep"}
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"not a summary of this version: {where}: {first['msg']}"[:200]) from error


class Members:
    """Asks every agent each `POLL_S` in one thread; readers see what is known by then."""

    def __init__(self, agents: Mapping[str, HttpSettings], clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._stopping = clock, threading.Event()
        self._members = {url: Member(url) for url in agents}
        self._fetchers = {
            url: Fetcher(settings, max_bytes=MAX_BYTES, accept="application/json", parallel=1)
            for url, settings in agents.items()
        }
        self._threads = [
            threading.Thread(target=self._follow, args=(url,), name="federation", daemon=True) for url in agents
        ]
        self._log = structlog.get_logger("federation")

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopping.set()

    def all(self) -> list[Member]:
        return list(self._members.values())

    def _follow(self, url: str) -> None:
        """One agent's thread: another one that hangs costs it nothing."""
        while not self._stopping.is_set():
            self.ask(url)
            self._stopping.wait(POLL_S)
        self._fetchers[url].close()

    def ask(self, url: str) -> None:
        """Asks one agent now."""
        before = self._members[url]
        try:
            (answer,) = self._fetchers[url].fetch([HttpRequest(f"{url}/api/v1/summary")], TIMEOUT_S)
            said, problem = (None, str(answer)) if isinstance(answer, SourceError) else (read(answer.body), "")
        except ValueError as error:
            said, problem = None, f"{Reason.MALFORMED}: {error}"
        except Exception as error:  # noqa: BLE001  a defect here must not make an agent look as it last was for ever
            said, problem = None, f"{Reason.INTERNAL}: {error}"
        if said is not None:
            self._members[url] = Member(url, said, self._clock(), "")
        else:
            self._members[url] = Member(url, before.said, before.at_s, problem)
        if bool(problem) != bool(before.problem):
            self._log.info("agent changed", url=url, problem=problem or "answers")
