"""`nightshift run`: the App as a process, with its signals.

SIGTERM, SIGINT   drain: the look and the stages under way end, states are kept, the lead is given back
SIGHUP            read the configuration again; a bad one is refused and the old one goes on

A configuration file that changed is read again, too, within some seconds: a ConfigMap is replaced under the process
by the kubelet, and nobody sends it a signal.
"""

from __future__ import annotations

import gc
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import structlog

from nightshift import spans
from nightshift.agent import logs
from nightshift.agent.app import App
from nightshift.agent.config_file import ConfigError
from nightshift.agent.settings import Settings, load

LOOK_EVERY_S = 5.0


class Changes:
    """Whether a file's content is another than when it was last asked; looks at most every few seconds. A file
    that cannot be read just now, such as between two versions of a mounted one, is no change."""

    def __init__(self, path: Path | None, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._path, self._monotonic_s = path, monotonic_s
        self._looked_s = monotonic_s()
        self._content = self._read()

    def __call__(self) -> bool:
        now_s = self._monotonic_s()
        if self._path is None or now_s - self._looked_s < LOOK_EVERY_S:
            return False
        self._looked_s = now_s
        content = self._read()
        # By content: the kubelet replaces a ConfigMap by a symlink, with a new time and often the same text.
        if content is None or content == self._content:
            return False
        self._content = content
        return True

    def _read(self) -> bytes | None:
        try:
            return None if self._path is None else self._path.read_bytes()
        except OSError:
            return None


def run(config: Path | None) -> None:
    """Runs until a signal ends it. Raises Permanent or Temporary where it cannot start."""
    settings = load(config)
    logs.configure(settings.log.level, settings.log.format)
    log = structlog.get_logger("daemon")
    _warn(settings, log)
    end_spans = spans.start(settings.cluster, settings.replica)
    app = App(settings)
    hangup = threading.Event()
    changed = Changes(config)

    def end(_number: int, _frame: FrameType | None) -> None:
        app.shut_down()

    def reload(_number: int, _frame: FrameType | None) -> None:
        hangup.set()
        # A handler does nothing more: it may run between any two instructions of the look.
        app.clock.wake()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    signal.signal(signal.SIGHUP, reload)

    def between_looks() -> None:
        if changed() or hangup.is_set():
            hangup.clear()
            _read_again(app, config, log)

    try:
        app.start()
        collect_garbage_rarely()
        app.run(between_looks)
    finally:
        app.stop()
        end_spans()


def collect_garbage_rarely() -> None:
    """Objects of the API server and frames come by the million and have no cycles: at the interpreter's own
    thresholds, a search for some took half of the time of a first list, and of a large fleet's page."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 10)


def _warn(settings: Settings, log: structlog.typing.FilteringBoundLogger) -> None:
    for warning in settings.warnings:
        log.warning("setting ignored", warning=warning)


def _read_again(app: App, config: Path | None, log: structlog.typing.FilteringBoundLogger) -> None:
    try:
        settings: Settings = load(config)
        app.reload(settings)
    except ConfigError as error:
        app.metrics.reload_ok.set(0)
        for problem in error.problems:
            log.error("configuration refused", problem=problem)
        return
    logs.configure(settings.log.level, settings.log.format)
    _warn(settings, log)
