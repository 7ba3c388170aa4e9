"""`nightshift config check` and `nightshift doctor`: is a configuration right, and does it work here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nightshift.agent.cli.terminal import AsJson, Config, print_json, print_rich


def doctor(config: Config = None, as_json: AsJson = False) -> None:
    """Check each source, secret and permission, and show why one fails. Exit code 1: at least one failed."""
    from dataclasses import asdict

    from rich.text import Text

    from nightshift.agent.doctor import examine
    from nightshift.agent.settings import load

    done = []
    # Said as they are done: a source that does not answer takes its whole timeout.
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


def check(
    file: Annotated[Path, typer.Argument(envvar="NIGHTSHIFT_CONFIG", help="YAML file")],
    as_json: AsJson = False,
) -> None:
    """Check a configuration file and show each error with its line and field."""
    from nightshift.agent.config_file import ConfigError
    from nightshift.agent.settings import load

    try:
        settings = load(file)
    except ConfigError as error:
        if not as_json:
            raise
        print_json({"ok": False, "problems": list(error.problems)})
        # The exit code of a mistake that a person has to mend, as without --json.
        raise typer.Exit(2) from None
    found = f"{len(settings.sources)} sources, {len(settings.actuators)} actuators"
    if as_json:
        warnings = list(settings.warnings)
        print_json({"ok": True, "warnings": warnings, "settings": settings.model_dump(mode="json")})
    else:
        for warning in settings.warnings:
            typer.echo(f"warning: {warning}")
        typer.echo(f"{file}: good ({found})")
