"""`nightshift top`: the fleet and what is open, renewed every few seconds, until `q`."""

from __future__ import annotations

from typing import Annotated

import typer

from nightshift.agent.cli.terminal import Config


def top(
    config: Config = None,
    every_s: Annotated[float, typer.Option("--every", min=0.5, help="Time between two answers (s)")] = 2.0,
) -> None:
    """Show the fleet and its open incidents live. q: quit, Enter: show the incident."""
    from nightshift.agent.cli.remote import remote
    from nightshift.agent.cli.status import beside
    from nightshift.collectors.base import Permanent

    try:
        from nightshift.agent.presentation.live_screen import LiveFleet
    except ModuleNotFoundError as error:
        raise Permanent(f"{error.name} is missing: pip install 'nightshift-oncall[top]'") from error
    there = remote() or beside(config)
    there.status_json()  # a daemon that does not answer is named before the screen changes
    LiveFleet(there, every_s).run()
