"""`nightshift run`: the App as a process, with its signals.

SIGTERM, SIGINT   drain: the look and the stages under way end, states are kept, the lead is given back
SIGHUP            read the configuration again; a bad one is refused and the old one goes on
"""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from types import FrameType

import structlog

from agent import logs
from agent.app import App
from agent.config_file import ConfigError
from agent.settings import Settings, load


def run(config: Path | None) -> None:
    """Runs until a signal ends it. Raises Permanent or Temporary where it cannot start."""
    settings = load(config)
    logs.configure(settings.log.level, settings.log.format)
    log = structlog.get_logger("daemon")
    app = App(settings)
    hangup = threading.Event()

    def end(_number: int, _frame: FrameType | None) -> None:
        app.shut_down()

    def reload(_number: int, _frame: FrameType | None) -> None:
        hangup.set()
        app.clock.wake()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    signal.signal(signal.SIGHUP, reload)

    def between_looks() -> None:
        if hangup.is_set():
            hangup.clear()
            _read_again(app, config, log)

    try:
        app.start()
        app.run(between_looks)
    finally:
        app.stop()


def _read_again(app: App, config: Path | None, log: structlog.typing.FilteringBoundLogger) -> None:
    try:
        settings: Settings = load(config)
        app.reload(settings)
    except ConfigError as error:
        app.metrics.reload_ok.set(0)
        for problem in error.problems:
            log.error("configuration refused; the old one goes on", problem=problem)
        return
    logs.configure(settings.log.level, settings.log.format)
