"""The daemon's scheduling when its surroundings or we ourselves fail: nobody is held for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from nightshift.agent.control.scheduling_loads import Loads
from nightshift.agent.control.scheduling_loop import SchedulingLoop, Surroundings
from nightshift.collectors.base import Temporary
from nightshift.collectors.kubernetes.api import Refused
from nightshift.collectors.subject import Inventory
from nightshift.collectors.tick import Tick
from nightshift.controllers.actuators.kube_queue_follow import StaleView
from nightshift.controllers.scheduling.settings import SchedulingSettings
from tests.controllers.scheduling.test_scheduling_controller import Api, doors_on, path_of


class Failing(Api):
    """A view and an API server in one, whose every snapshot fails."""

    def __init__(self, error: Exception, *names: str) -> None:
        super().__init__(*names)
        self._error = error

    def start(self, wait_s: float = 0.0) -> None: ...
    def close(self) -> None: ...

    def snapshot(self, *_: Any) -> Any:
        raise self._error


def loop_on(api: Failing, counted: Callable[[str, int], None]) -> SchedulingLoop:
    around = Surroundings(lambda *_, **__: None, count=counted)
    settings = SchedulingSettings(enabled=True, act=True)
    return SchedulingLoop(settings, api, doors_on(api), Loads(Inventory("c")), around)  # type: ignore[arg-type]


@pytest.mark.parametrize("error", [KeyError("a defect of ours"), StaleView("nodes: no answer"), Temporary("store")])
def test_its_thread_outlives_any_turn_that_fails_and_opens_by_age_what_it_held(error: Exception) -> None:
    api, failed = Failing(error, "a", "b"), threading.Semaphore(0)
    api.broken = {path_of("a"): Refused("denied by a webhook", 403)}
    loop = loop_on(api, lambda outcome, _n: failed.release() if outcome == "failed" else None)
    loop.start()
    try:
        for api.now_s in (0.0, 4000.0):
            loop.take(Tick(api.now_s, {}))
            assert failed.acquire(timeout=30.0)
        assert [gate.name for gate in api.gates()] == ["n/a"], "the one that cannot be written keeps no other shut"
    finally:
        loop.close()


def test_turns_go_on_when_the_clock_was_set_back() -> None:
    """Or what is held would stay shut for as long as it was set back."""
    api, failed = Failing(StaleView("nodes: no answer"), "a"), threading.Semaphore(0)
    loop = loop_on(api, lambda outcome, _n: failed.release() if outcome == "failed" else None)
    loop.start()
    try:
        for now_s in (10_000.0, 6400.0):
            loop.take(Tick(now_s, {}))
            assert failed.acquire(timeout=30.0)
    finally:
        loop.close()
