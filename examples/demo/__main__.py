"""`make demo`: watch four simulated nodes fail and be repaired. `make demo ONCE=1`: the same as a test, as JSON.

SEED=n             redraws which faults happen where, when, and how large
ONCE=1             unattended and unpaced; prints JSON; exit status 1 where anything was missed or needless
SLACK=1            also shows the messages that Slack would get, on a stand-in's page, with their buttons
ASLEEP=1           no one answers for an hour, and one detector alarms everywhere: who is paged and called, for what
DEMO_APPROVE=auto  the demo approves plans by itself; else click in the console, or `nightshift approve ID`
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
import tempfile
import threading
from pathlib import Path
from typing import Annotated

import structlog
import typer
from rich.console import Console

from examples.demo.run import Demo
from examples.demo.terminal import Terminal, verdict
from nightshift.agent.cli.goodput import screen as goodput_screen
from nightshift.collectors.base import Permanent

WATCHABLE_TICK_S = 0.09
WAITING_TICK_S = 1.0
"""Wall time of a tick: 5 s pass in 0.09 s, or in 1 s while a person has a plan to read."""
_SEED = 4210
"""A short night."""


def run(
    once: Annotated[
        bool, typer.Option(help="Unattended: prints JSON, exit status 1 where something failed")
    ] = False,
    seed: Annotated[int, typer.Option(help="Redraws the faults")] = _SEED,
    approve: Annotated[str, typer.Option(envvar="DEMO_APPROVE", help="auto or click")] = "",
    port: Annotated[int, typer.Option(help="Port of the console; 0 any free one")] = 0,
    slack: Annotated[bool, typer.Option(help="Also show Slack's messages, on a stand-in's page")] = False,
    asleep: Annotated[
        bool, typer.Option(envvar="ASLEEP", help="No one answers for an hour; one detector goes mad")
    ] = False,
    keep: Annotated[bool, typer.Option(help="Keep the run's folder")] = False,
) -> None:
    """Runs the demo."""
    if approve not in ("", "auto", "click"):
        raise typer.BadParameter(f"DEMO_APPROVE is {approve!r}; it is auto or click")
    try:
        folder = Path(tempfile.mkdtemp(prefix="nightshift-demo-"))
    except OSError as error:
        raise typer.BadParameter(
            f"no folder for the demo: {error}. Set TMPDIR to one that you can write"
        ) from error
    automatic = not asleep and (once or approve == "auto")
    screen = Console(stderr=once)
    terminal = Terminal(screen, live=screen.is_terminal and not once, approves_itself=automatic)

    def pace_s(demo: Demo) -> float:
        if once or demo.world.elapsed_s < demo.scenario.faults[0].onset_s:  # a healthy fleet is no sight
            return 0.0
        return WAITING_TICK_S if terminal.waits_for_a_person and not asleep else WATCHABLE_TICK_S

    with (folder / "nightshift.log").open("w") as log:
        structlog.configure(logger_factory=structlog.WriteLoggerFactory(file=log))
        try:
            demo = Demo(
                seed,
                folder,
                approve=automatic,
                port=port,
                slack=slack,
                asleep=asleep,
                pace_s=pace_s,
                watch=terminal.watch,
            )
        except Permanent as error:
            shutil.rmtree(folder)
            raise typer.BadParameter(f"{error}. Choose another port, or none for any free one") from error
        screen.print(f"console: {demo.app.sign_in_link()}", soft_wrap=True, highlight=False)
        if demo.app.server is not None:
            screen.print(f"tour: {demo.app.server.url}/?tour", soft_wrap=True, highlight=False)
        if demo.stand_in is not None:
            screen.print(f"slack: {demo.stand_in.url}/", soft_wrap=True, highlight=False)
        screen.print(f"configuration and logs: {folder}", soft_wrap=True, highlight=False)
        stopped = _stop_on_signals(demo)
        try:
            terminal.start()
            try:
                report = demo.run()
            finally:
                terminal.stop()
            status = 0 if report.ok else 1
            if stopped.is_set():
                status = 130
                screen.print("stopped before the story was over: no verdict")
            elif once:
                print(json.dumps(report.to_json(), indent=2))
            else:
                screen.print(verdict(report))
                screen.print("\nWhere the GPU time of this night went:")
                screen.print(goodput_screen(demo.goodput()))
                screen.print("\nThe rest of the night, in the console: Power, Scheduling, Kernels, Goodput")
                screen.print("\n".join(report.story), highlight=False, markup=False, soft_wrap=True)
                screen.print(
                    f"post-mortem of a fault: nightshift report INC-1 --config {demo.config}", soft_wrap=True
                )
                _linger(screen)
        finally:
            demo.close()
            structlog.reset_defaults()
    if keep or status == 1:
        screen.print(f"kept: {folder}", highlight=False)
    else:
        shutil.rmtree(folder)
    raise typer.Exit(status)


def _stop_on_signals(demo: Demo) -> threading.Event:
    """Ends the run after the tick under way; the event says that it was a signal."""
    stopped = threading.Event()

    def stop(*_: object) -> None:
        stopped.set()
        demo.app.shut_down()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    return stopped


def _linger(screen: Console) -> None:
    """Keeps the console up for a look around, where somebody is there to end it."""
    if not (screen.is_terminal and sys.stdin.isatty()):
        return
    screen.print("The console stays up. Ctrl-C ends the demo.")
    over = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: over.set())
    over.wait()


if __name__ == "__main__":
    typer.run(run)
