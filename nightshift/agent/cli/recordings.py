"""`nightshift replay` and `nightshift record`: the past through the daemon's own pipeline."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from nightshift.agent.cli.terminal import AsJson, Config, print_json, print_rich, progress_line


def replay(
    recording: Annotated[Path | None, typer.Argument(help="A recording, as `nightshift record` writes it")] = None,
    prometheus: Annotated[str, typer.Option(help="URL of a Prometheus, instead of a recording")] = "",
    start: Annotated[
        str, typer.Option("--from", help="Start of its range (ISO 8601, e.g. 2026-11-21T02:00Z)")
    ] = "",
    end: Annotated[str, typer.Option("--to", help="End of its range")] = "",
    config: Config = None,
    keep: Annotated[Path | None, typer.Option(help="Keep the replay's store in this folder")] = None,
    as_json: AsJson = False,
) -> None:
    """Replay a recording or a Prometheus range, faster than real time. Takes no action."""
    import tempfile

    from nightshift.agent import logs
    from nightshift.agent.presentation.incident_text import incident_json, incident_text
    from nightshift.agent.replay import replay as run_replay
    from nightshift.agent.settings import Settings, load

    if (recording is None) == (not prometheus):
        raise typer.BadParameter("name either a recording or --prometheus URL")
    logs.configure("warning")
    base = load(config)
    if recording is not None:
        from nightshift.collectors.replay import span

        start_s, end_s, tick_s = span(recording)
        source: dict[str, Any] = {"type": "recording", "path": recording}
    else:
        start_s, end_s, tick_s = _moment(start, "--from"), _moment(end, "--to"), base.tick_s
        # At the stepped clock's time; the live source asks for now.
        source = {"type": "prometheus", "url": prometheus, "at_clock": True}
    with tempfile.TemporaryDirectory(prefix="nightshift-replay-") as folder:
        # Its own store, no console and no actuators: a replay that acted would act on today's cluster.
        values = base.model_dump(exclude={"sources", "actuators", "store", "console", "state_dir", "tick_s"})
        settings = Settings(
            **values, sources=[source], state_dir=keep or Path(folder), console={"enabled": False}, tick_s=tick_s
        )
        shown = sys.stderr.isatty() and not as_json
        found = run_replay(settings, start_s, end_s, progress_line(start_s, end_s, shown))
    if as_json:
        print_json([incident_json(incident) for incident in found])
        return
    for incident in found:
        print_rich(incident_text(incident, end_s))
        typer.echo("")
    typer.echo(f"{len(found)} incidents in {(end_s - start_s) / 60:.0f} minutes of telemetry")


def record(
    path: Annotated[Path, typer.Argument(help="File to write, e.g. night.jsonl.gz")],
    minutes: Annotated[float, typer.Option("--minutes", "-m", min=0.01, help="How long")] = 60.0,
    config: Config = None,
) -> None:
    """Record the configured sources into a file for `nightshift replay`."""
    import signal
    import threading

    from nightshift.agent.replay import record as run_record
    from nightshift.agent.settings import load

    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    ticks = run_record(load(config), path, minutes * 60.0, stop)
    typer.echo(f"{path}: {ticks} ticks")


def _moment(text: str, option: str) -> float:
    """Unix seconds of an ISO 8601 time; one without a zone is UTC."""
    from datetime import UTC, datetime

    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise typer.BadParameter(
            f"{text!r} is not an ISO 8601 time, e.g. 2026-11-21T02:00Z", param_hint=option
        ) from error
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
