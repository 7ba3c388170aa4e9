"""Commands on what is kept: what plans have earned, the archive for a vendor, and the store's schema."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nightshift.agent.cli.terminal import AsJson, Config, print_json, print_rich, stored

store_app = typer.Typer(no_args_is_help=True, help="Show or downgrade the database's schema.")


def scoreboard(config: Config = None, as_json: AsJson = False) -> None:
    """Show approval history by action kind and namespace, and which kinds may run automatically."""
    from dataclasses import asdict

    from rich.table import Table

    from nightshift.agent.approvals.scoreboard import LEVELS, Scoreboard
    from nightshift.agent.settings import load

    settings = load(config).autonomy
    with stored(config) as (store, _, now_s):
        ratings = Scoreboard(store.database, settings).ratings(now_s)
    if as_json:
        print_json([asdict(rating) for rating in ratings])
        return
    table = Table(
        "action",
        "namespace",
        "plans",
        "agreed",
        "declined",
        "manually",
        "worked",
        "did not",
        "earned",
        "why not more",
    )
    for rating in ratings:
        s = rating.score
        counts = (s.proposed, s.agreed, s.disagreed, s.by_hand, s.confirmed, s.failed)
        table.add_row(str(s.kind), s.namespace, *map(str, counts), str(rating.level), rating.reason)
    print_rich(table)
    for level in (level for level in LEVELS if any(rating.level is level for rating in ratings)):
        typer.echo(f"{level}: {LEVELS[level]}")
    if ratings and not settings.required:
        typer.echo("autonomy.required is off: the approval policy alone decides what runs automatically")


def rma(
    gpu: Annotated[str, typer.Argument(help="UUID of the GPU")],
    output: Annotated[Path, typer.Option(help="File to write, e.g. GPU.tar.gz")],
    config: Config = None,
) -> None:
    """Write one archive for a return to the vendor: logs, counters and history of a GPU."""
    from nightshift.agent.incidents.rma import bundle

    with stored(config) as (store, _, now_s):
        output.write_bytes(bundle(store, gpu, now_s))
    typer.echo(f"{output}: {output.stat().st_size} bytes")


@store_app.command()
def version(config: Config = None, as_json: AsJson = False) -> None:
    """Show the database's schema version and the versions that this release supports."""
    from nightshift.agent.settings import load
    from nightshift.agent.store.database import Database, schemas

    database = Database(load(config).store_url, migrate=False)
    found = {"schema": database.schema(), "program": schemas()}
    database.close()
    if as_json:
        print_json(found)
    else:
        typer.echo(f"schema {found['schema'] or 'none'}; this program makes {', '.join(schemas())}")


@store_app.command()
def downgrade(
    to: Annotated[str, typer.Argument(help="Schema version that the earlier release needs, e.g. 0002")],
    config: Config = None,
) -> None:
    """Downgrade the schema for an earlier release. Stop every replica first. Data in newer tables is dropped."""
    from nightshift.agent.settings import load
    from nightshift.agent.store.database import Database

    database = Database(load(config).store_url, migrate=False)
    try:
        before = database.downgrade(to)
    finally:
        database.close()
    # Any command of this program that opens the store would migrate it up again.
    typer.echo(f"schema {before} -> {to}; start the earlier program now: this one would upgrade it again")


def certificates(
    namespace: Annotated[str, typer.Option(help="Namespace of the Secrets")],
    name: Annotated[str, typer.Option(help="Their names' beginning: NAME-authority, NAME-server, NAME-client")],
    server_name: Annotated[list[str], typer.Option(help="DNS name in the node agents' certificate")],
    days: Annotated[float, typer.Option(min=0.01, help="Life of a certificate (days)")] = 30.0,
    authority_days: Annotated[float, typer.Option(min=0.1, help="Life of the authority (days)")] = 365.0,
    settle_s: Annotated[float, typer.Option(min=0, help="A step of the authority waits for so long (s)")] = 3600.0,
    kubeconfig: Annotated[Path | None, typer.Option(help="None: the pod's service account")] = None,
) -> None:
    """Create and renew the chart's certificates, in Secrets. Run it more often than they expire."""
    import time

    from nightshift.collectors.kubernetes.api import AccessSettings
    from nightshift.controllers.actuators.kube_client import KubeClient
    from nightshift.controllers.authority import CertificateNames, keep

    day_s = 86_400.0
    names = (f"{name}-authority", f"{name}-server", f"{name}-client")
    wanted = CertificateNames(namespace, *names, tuple(server_name), authority_days * day_s, days * day_s, settle_s)
    kube = KubeClient.connect(AccessSettings(kubeconfig=kubeconfig))
    for said in keep(kube, wanted, time.time()) or ["nothing is due"]:
        typer.echo(said)


COMMANDS = (scoreboard, rma, certificates)
