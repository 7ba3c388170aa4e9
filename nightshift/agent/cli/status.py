"""`nightshift status`: one screen on whether the daemon works, what is open and what waits for a person."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from nightshift.agent.cli.terminal import AsJson, Config, print_json, print_rich

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import RenderableType

    from nightshift.agent.cli.remote import Remote

MOST_SOURCES = 12
"""Sources that work and stand on the screen; those that fail all do."""


def status(config: Config = None, as_json: AsJson = False) -> None:
    """Show whether Nightshift works, what is open and what waits for you. Exit code 1: it does not work; 75: no
    daemon answers."""
    from nightshift.agent.cli.remote import remote
    from nightshift.collectors.base import Temporary

    there = remote()
    try:
        found = (there or beside(config)).status_json()
    except Temporary as error:
        if there is not None:
            raise
        raise Temporary(
            f"no daemon with this configuration answers on this machine: {error}. Start it: nightshift run"
        ) from error
    if as_json:
        print_json(found)
    else:
        print_rich(_screen(found))
    if not found["ready"]:
        raise typer.Exit(1)


def beside(config: Path | None) -> Remote:
    """The console of this machine's daemon, with the operator's token."""
    from nightshift.agent.cli.remote import Remote
    from nightshift.agent.console.sign_in import operator_token
    from nightshift.agent.settings import load
    from nightshift.collectors.base import Permanent

    settings = load(config)
    console = settings.console
    if not console.enabled or not console.port:
        raise Permanent("console.port: the daemon has no fixed port to ask; set NIGHTSHIFT_API to its console")
    if not settings.state_dir.exists():
        raise Permanent(f"{settings.state_dir} does not exist: has the daemon run with this configuration?")
    every = {"0.0.0.0": "127.0.0.1", "::": "::1"}
    host = every.get(console.host, console.host)
    shown = f"[{host}]" if ":" in host else host
    return Remote(f"http://{shown}:{console.port}", operator_token(settings.state_dir, console.secrets_dir))


def _screen(found: dict[str, Any]) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    from nightshift.agent.presentation.incident_text import halt_text
    from nightshift.agent.rca.summary import plain as one_line

    lines = [Text(f"{found['version']} · cluster {found['cluster']}", style="bold")]
    if found["ready"]:
        lines.append(Text("Works.", style="green"))
    else:
        lines.append(Text(f"Does not work: {'; '.join(found['reasons'])}", style="bold red"))
    if found["halted"]:
        lines.append(halt_text(found["halted_by"], found["halted_because"]))
    counts = [f"{count} {severity}" for severity, count in reversed(found["open"].items()) if count]
    lines.append(Text(f"Open incidents: {', '.join(counts) or 'none'}"))
    if found["waiting"]:
        lines.append(Text(f"Plans that wait for approval: {', '.join(found['waiting'][:20])}", style="yellow"))
    failed = [one for one in found["sources"] if not one["ok"]]
    working = [one for one in found["sources"] if one["ok"]]
    lines.append(Text(f"Sources: {len(working)} of {len(found['sources'])} work"))
    for one in failed:
        detail = f" ({one_line(one['detail'])})" if one["detail"] else ""
        lines.append(Text(f"  ✕ {one['name']}: {one['problem'].replace('_', ' ')}{detail}", style="red"))
    for one in working[:MOST_SOURCES]:
        lines.append(Text(f"  ✓ {one['name']}: {one['samples']} samples", style="dim"))
    if len(working) > MOST_SOURCES:
        lines.append(Text(f"  and {len(working) - MOST_SOURCES} more that work", style="dim"))
    return Group(*lines)
