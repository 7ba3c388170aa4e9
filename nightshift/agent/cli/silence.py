"""`nightshift silence add | list | end`: keep messages away for a while."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from nightshift.agent.cli.terminal import AsJson, Config, operator, print_json, stored

if TYPE_CHECKING:
    from nightshift.agent.incidents.silence import Silences
    from nightshift.agent.store.incident_store import Store

app = typer.Typer(no_args_is_help=True, help="Mute notifications for a while. Faults are still found and shown.")


@app.command()
def add(
    matcher: Annotated[str, typer.Argument(help="KIND:PATTERN, e.g. node:gpu-r12-* or fault:straggler")],
    reason: Annotated[str, typer.Option("--reason", "-r", help="Why")],
    hours: Annotated[float, typer.Option(min=0.01, max=720.0, help="For how long (h)")] = 2.0,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Mute matching incidents until the silence expires. Every subject of an incident must match."""
    from nightshift.agent.incidents.silence import unmatched
    from nightshift.agent.units import full_time

    with stored(config) as (store, _, _now_s):
        silence = _silences(store).add(matcher, hours * 3600.0, operator(), reason)
        warning = unmatched(matcher, store.load_memberships)
    if as_json:
        print_json(asdict(silence))
    else:
        typer.echo(f"{silence.number}: muted {silence.matcher} until {full_time(silence.until_s)}")
    if warning:
        typer.echo(f"Warning: {warning}", err=True)


@app.command("list")
def list_(config: Config = None, as_json: AsJson = False) -> None:
    """List active silences."""
    from nightshift.agent.units import full_time

    with stored(config) as (store, _, _now_s):
        rows = _silences(store).standing()
    if as_json:
        print_json([asdict(row) for row in rows])
        return
    for row in rows:
        typer.echo(f"{row.number}: {row.matcher} until {full_time(row.until_s)}, by {row.by}: {row.reason}")
    if not rows:
        typer.echo("No silences.")


@app.command()
def end(
    number: Annotated[int, typer.Argument(help="As `nightshift silence list` says")], config: Config = None
) -> None:
    """Expire a silence now and send what it muted."""
    with stored(config) as (store, _, _now_s):
        done = _silences(store).end(number, operator())
    typer.echo(f"silence {number} ended" if done else f"no silence {number} holds", err=not done)
    if not done:
        raise typer.Exit(1)


def _silences(store: Store) -> Silences:
    from nightshift.agent.incidents.silence import Silences
    from nightshift.agent.store.process_clock import ToldClock

    return Silences(store, ToldClock(store.database))
