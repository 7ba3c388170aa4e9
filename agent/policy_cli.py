"""`nightshift policy`: learned control of power and scheduling."""

from __future__ import annotations

import typer

from agent import policy_steps_cli

app = typer.Typer(
    no_args_is_help=True, help="Learned control of power and scheduling: how far it is trusted, and why."
)
policy_steps_cli.add_to(app)
