"""`nightshift audit …`: the audit log's keys, and whether its chain holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nightshift.agent.cli.terminal import AsJson, Config, print_json, stored


def keygen(
    private: Annotated[Path, typer.Argument(help="New file for the private half (keeping.anchor_key)")],
    public: Annotated[Path, typer.Argument(help="New file for the public half (audit verify --trust)")],
) -> None:
    """Create a key that signs the audit log's anchors. To rotate it, create another and trust both."""
    from nightshift.agent.store.anchors import make_key

    typer.echo(f"key {make_key(private, public)}")


def verify(
    config: Config = None,
    anchor: Annotated[str, typer.Option(help="NUMBER:SHA256 that was kept elsewhere")] = "",
    anchors: Annotated[Path | None, typer.Option(help="File of anchors, as keeping.anchor_file writes it")] = None,
    trust: Annotated[
        list[Path] | None, typer.Option(help="Public key; one of these must have signed each anchor (repeatable)")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Verify the whole audit chain. Exit code 1: broken; shows the first bad record."""
    from nightshift.agent.store.anchors import anchors as read_anchors
    from nightshift.agent.store.audit import AuditHead
    from nightshift.collectors.seal import SealError, trusted_keys

    try:
        trusted = trusted_keys(trust) if trust else None
    except SealError as error:
        raise typer.BadParameter(str(error), param_hint="--trust") from error
    if trusted is not None and anchors is None:
        raise typer.BadParameter(
            "checks the signatures of a file of anchors: also give --anchors", param_hint="--trust"
        )
    try:
        heads = [AuditHead.parse(anchor)] if anchor else []
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--anchor") from error
    with stored(config) as (store, _, _now_s):
        told = read_anchors(anchors, trusted) if anchors else []
        # Where a file of anchors is given, only it says which cuts were retention's; any other gap is a break.
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
