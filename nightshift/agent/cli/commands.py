"""The command line. Every command that tells something also tells it as JSON (`--json`).

Imports are inside the commands, so that `nightshift --help` is quick and no command loads what another needs. The
commands on incidents reach the daemon's store through the configured URL and ask the same gate as the console.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nightshift.agent.cli import kernels
from nightshift.agent.cli.decisions import COMMANDS as DECISIONS
from nightshift.agent.cli.drill import drill
from nightshift.agent.cli.history import COMMANDS
from nightshift.agent.cli.incidents import IncidentId, incidents, show
from nightshift.agent.cli.policy import app as policy_app
from nightshift.agent.cli.retention import COMMANDS as KEEPING
from nightshift.agent.cli.retention import store_app
from nightshift.agent.cli.silence import app as silence_app
from nightshift.agent.cli.terminal import AsJson, Config, print_json, print_rich, stored
from nightshift.kernels.cli import app as kernels_app

if TYPE_CHECKING:
    pass

_ABOUT = "The on-call engineer for GPU clusters: detects, proves, proposes, acts after approval, confirms recovery."
app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=_ABOUT)
config_app = typer.Typer(no_args_is_help=True, help="The configuration file.")
audit_app = typer.Typer(no_args_is_help=True, help="The audit log.")
app.add_typer(config_app, name="config")
app.add_typer(audit_app, name="audit")
kernels.add_to(kernels_app)
app.add_typer(kernels_app, name="kernels")
app.add_typer(silence_app, name="silence")
app.add_typer(policy_app, name="policy")
app.add_typer(store_app, name="store")
for _command in (drill, incidents, show, *COMMANDS, *DECISIONS, *KEEPING):
    app.command()(_command)


@app.command()
def run(config: Config = None) -> None:
    """Runs the daemon until SIGTERM; SIGHUP reads the configuration again."""
    from nightshift.agent.daemon import run as run_daemon

    run_daemon(config)


@app.command()
def node(
    host: Annotated[str, typer.Option(help="Address to listen on (:: is every one, of IPv6 and IPv4)")] = "0.0.0.0",
    port: Annotated[int, typer.Option(help="Port to listen on")] = 9400,
    period_s: Annotated[float, typer.Option(help="Time between two samples (s)")] = 1.0,
    certificate: Annotated[Path | None, typer.Option(help="Certificate (PEM) to serve with")] = None,
    key: Annotated[Path | None, typer.Option(help="Its private key (PEM)")] = None,
    client_ca: Annotated[Path | None, typer.Option(help="Only clients of this authority (PEM)")] = None,
    client_name: Annotated[
        list[str] | None, typer.Option(help="Of them only who bears this DNS name; may be given again")
    ] = None,
    name: Annotated[str, typer.Option(envvar="NODE_NAME", help="This node's name; without: its host name")] = "",
    power_leases: Annotated[bool, typer.Option(help="Take power limits from the agent, for a time")] = False,
    power_fallback_w: Annotated[float, typer.Option(help="Limit without a lease (W); 0: each GPU's default")] = 0.0,
) -> None:
    """Serves this machine's GPUs as a dcgm-exporter page, and its kernel log, until SIGTERM."""
    from nightshift.agent.cli.node import Power
    from nightshift.agent.cli.node import run as run_node
    from nightshift.collectors.telemetry.exporter import Settings

    run_node(
        Settings(
            host=host,
            port=port,
            period_s=period_s,
            certificate_file=certificate,
            key_file=key,
            client_ca_file=client_ca,
            client_names=tuple(client_name or ()),
        ),
        name,
        Power(_nvml_power(), int(power_fallback_w * 1000) or None) if power_leases else None,
    )


def _nvml_power() -> Any:
    from nightshift.controllers.actuators.nvml_power import NvmlPower

    return NvmlPower()


@app.command()
def report(
    incident_id: IncidentId,
    config: Config = None,
    output: Annotated[
        Path | None, typer.Option(help="File to write; standard output where it is not given")
    ] = None,
    chart: Annotated[Path | None, typer.Option(help="Also the deciding signal's chart, as PNG")] = None,
) -> None:
    """Writes a post-mortem draft: timeline, evidence, actions, who approved, cost."""
    from nightshift.agent.presentation.chart_image import deciding, png
    from nightshift.agent.rca.report import post_mortem
    from nightshift.agent.store.incident_store import number_of
    from nightshift.collectors.base import Permanent

    with stored(config) as (store, _, now_s):
        incident = store.incident(incident_id)
        text = post_mortem(incident, store.audit.records(incident=number_of(incident_id)), now_s)
    signal = deciding(incident) if chart is not None else None
    if chart is not None and signal is None:
        raise Permanent(f"{incident_id}: no signal decided it, so there is no chart")
    if chart is not None and signal is not None:
        chart.write_bytes(png(signal))
    if output is None:
        typer.echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8")


@app.command()
def replay(
    recording: Annotated[Path | None, typer.Argument(help="A recording, as `nightshift record` writes it")] = None,
    prometheus: Annotated[str, typer.Option(help="URL of a Prometheus, instead of a recording")] = "",
    start: Annotated[
        str, typer.Option("--from", help="Start of its range (ISO 8601, such as 2026-11-21T02:00Z)")
    ] = "",
    end: Annotated[str, typer.Option("--to", help="End of its range")] = "",
    config: Config = None,
    keep: Annotated[Path | None, typer.Option(help="Keep the replay's store in this folder")] = None,
    as_json: AsJson = False,
) -> None:
    """Sees a recording or a Prometheus time range again, faster than real time; nothing is carried out."""
    import tempfile

    from nightshift.agent import logs
    from nightshift.agent.cli.replay import replay as run_replay
    from nightshift.agent.presentation.incident_text import incident_json, incident_text
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
        source = {"type": "prometheus", "url": prometheus, "at_clock": True}
    with tempfile.TemporaryDirectory(prefix="nightshift-replay-") as folder:
        values = base.model_dump(exclude={"sources", "actuators", "store", "console", "state_dir", "tick_s"})
        settings = Settings(
            **values, sources=[source], state_dir=keep or Path(folder), console={"enabled": False}, tick_s=tick_s
        )
        found = run_replay(settings, start_s, end_s)
    if as_json:
        print_json([incident_json(incident) for incident in found])
        return
    for incident in found:
        print_rich(incident_text(incident, end_s))
        typer.echo("")
    typer.echo(f"{len(found)} incidents in {(end_s - start_s) / 60:.0f} minutes of telemetry")


@app.command()
def record(
    path: Annotated[Path, typer.Argument(help="File to write, such as night.jsonl.gz")],
    minutes: Annotated[float, typer.Option("--minutes", "-m", min=0.01, help="How long")] = 60.0,
    config: Config = None,
) -> None:
    """Writes what the configured sources say into a file that `nightshift replay` reads."""
    import signal
    import threading

    from nightshift.agent.cli.replay import record as run_record
    from nightshift.agent.settings import load

    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    ticks = run_record(load(config), path, minutes * 60.0, stop)
    typer.echo(f"{path}: {ticks} ticks")


@app.command()
def doctor(config: Config = None, as_json: AsJson = False) -> None:
    """Says of each source, secret and permission: works, or why not. Exits 1 where one does not."""
    from dataclasses import asdict

    from rich.text import Text

    from nightshift.agent.cli.doctor import examine
    from nightshift.agent.settings import load

    done = []
    for check in examine(load(config)):
        done.append(check)
        if not as_json:
            mark = ("✓ ", "green") if check.ok else ("✕ ", "bold red")
            hint = f"\n    {check.hint}" if check.hint and not check.ok else ""
            print_rich(Text.assemble(mark, (check.name, "bold"), f"  {check.detail}", (hint, "yellow")))
    if as_json:
        print_json([asdict(check) for check in done])
    if not all(check.ok for check in done):
        raise typer.Exit(1)


@config_app.command("check")
def config_check(
    file: Annotated[Path, typer.Argument(help="YAML file")],
    as_json: AsJson = False,
) -> None:
    """Reads a configuration and says every mistake with its file, line and field."""
    from nightshift.agent.config_file import ConfigError
    from nightshift.agent.settings import load

    try:
        settings = load(file)
    except ConfigError as error:
        if not as_json:
            raise
        print_json({"ok": False, "problems": list(error.problems)})
        raise typer.Exit(2) from None
    found = f"{len(settings.sources)} sources, {len(settings.actuators)} actuators"
    if as_json:
        warnings = list(settings.warnings)
        print_json({"ok": True, "warnings": warnings, "settings": settings.model_dump(mode="json")})
    else:
        for warning in settings.warnings:
            typer.echo(f"warning: {warning}")
        typer.echo(f"{file}: good ({found})")


@audit_app.command("keygen")
def audit_keygen(
    private: Annotated[Path, typer.Argument(help="New file for the private half (keeping.anchor_key)")],
    public: Annotated[Path, typer.Argument(help="New file for the public half (audit verify --trust)")],
) -> None:
    """Makes a key that signs the audit log's anchors; to rotate it, make another, and trust both."""
    from nightshift.agent.store.anchors import make_key

    typer.echo(f"key {make_key(private, public)}")


@audit_app.command("verify")
def audit_verify(
    config: Config = None,
    anchor: Annotated[str, typer.Option(help="NUMBER:SHA256 that was kept elsewhere")] = "",
    anchors: Annotated[Path | None, typer.Option(help="File of anchors, as keeping.anchor_file writes it")] = None,
    trust: Annotated[
        list[Path] | None, typer.Option(help="Public key: every anchor has to be signed by one of these")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Checks the whole chain; exits 1 and names the first record that does not hold."""
    from nightshift.agent.store.anchors import anchors as read_anchors
    from nightshift.agent.store.audit import Head
    from nightshift.collectors.seal import SealError, trusted_keys

    try:
        trusted = trusted_keys(trust) if trust else None
    except SealError as error:
        raise typer.BadParameter(str(error), param_hint="--trust") from error
    if trusted is not None and anchors is None:
        raise typer.BadParameter("it says whose anchors count: give the file with --anchors", param_hint="--trust")
    try:
        heads = [Head.parse(anchor)] if anchor else []
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--anchor") from error
    with stored(config) as (store, _, _now_s):
        told = read_anchors(anchors, trusted) if anchors else []
        report = store.audit.verify([*heads, *told], [a for a in told if a.cut] if anchors else None)
        facts = {"ok": report.ok, "records": report.records, "head": str(report.head), "broken": report.broken,
                 "reason": report.reason}  # fmt: skip
        if as_json:
            print_json(facts)
        elif report.ok:
            typer.echo(f"{report.records} records hold; the log ends at {report.head}")
        else:
            typer.echo(f"record {report.broken} does not hold: {report.reason}", err=True)
        if not report.ok:
            raise typer.Exit(1)


# Shared -----------------------------------------------------------------------------------------------------------


def _moment(text: str, option: str) -> float:
    """Unix seconds of an ISO 8601 time; one without a zone is UTC."""
    from datetime import UTC, datetime

    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is no time such as 2026-11-21T02:00Z", param_hint=option) from error
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
