"""The `nightshift` command: puts the command line together, runs it and says errors as sentences.

Every command that tells something also tells it as JSON (`--json`) and as YAML (`--output yaml`). Modules of
commands import what they work with inside each command, so that `nightshift --help` is quick and no command loads
what another needs. Commands on incidents reach the daemon's store through the configured URL and ask the same gate
as the console.

Exit codes: 0 done, 1 the answer is no, 2 the user has to change something, 75 (EX_TEMPFAIL) trying again may work.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from io import TextIOWrapper
from typing import Annotated, Any

import typer

from nightshift.agent.cli import (
    audit,
    configuration,
    decisions,
    goodput,
    history,
    incidents,
    kernels,
    policy,
    policy_steps,
    preflight,
    recordings,
    retention,
    serve,
    status,
    top,
)
from nightshift.agent.cli.drill import drill
from nightshift.agent.cli.silence import app as silence_app
from nightshift.agent.cli.terminal import with_output
from nightshift.collectors.base import Permanent, Temporary
from nightshift.kernels.cli import app as kernels_app

# numpy loads later and reads it then. Our matrices are small: OpenBLAS's other threads would only spin.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

_ABOUT = "The on-call engineer for GPU clusters: detects, proves, proposes, acts after approval, confirms recovery."
_POLICY = "Manage learned policies for power, scheduling and KV caches."


def _filled(group: typer.Typer, *commands: Callable[..., Any]) -> typer.Typer:
    """The group with these commands, in the order in which help lists them."""
    for command in commands:
        group.command(command.__name__.rstrip("_").replace("_", "-"))(command)
    return group


def _group(about: str, *commands: Callable[..., Any]) -> typer.Typer:
    return _filled(typer.Typer(no_args_is_help=True, help=about), *commands)


app = _filled(
    # Typer's tracebacks show local variables, and those may hold tokens.
    typer.Typer(
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        help=_ABOUT,
        context_settings={"help_option_names": ["-h", "--help"]},
    ),
    status.status,
    top.top,
    drill,
    incidents.incidents,
    incidents.show,
    incidents.ask,
    incidents.investigate,
    goodput.goodput,
    *history.COMMANDS,
    *decisions.COMMANDS,
    *retention.COMMANDS,
    serve.run,
    serve.node,
    incidents.report,
    recordings.replay,
    recordings.record,
    configuration.doctor,
    preflight.preflight,
)
for _name, _commands in (
    ("config", _group("Check the configuration file.", configuration.check)),
    ("audit", _group("Verify the audit log.", audit.keygen, audit.verify)),
    ("kernels", _filled(kernels_app, *kernels.COMMANDS)),
    ("silence", silence_app),
    ("policy", _group(_POLICY, *policy_steps.COMMANDS, *policy.COMMANDS)),
    ("store", retention.store_app),
):
    app.add_typer(_commands, name=_name)


def _print_version(wanted: bool) -> None:
    if wanted:
        from nightshift.version import line

        typer.echo(line())
        raise typer.Exit


for _group_of in (app, *(group.typer_instance for group in app.registered_groups)):
    for _registered in _group_of.registered_commands if _group_of else ():
        _registered.callback = with_output(_registered.callback) if _registered.callback else None


@app.callback()
def options(
    version: Annotated[  # eager: no command is required beside it
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit")
    ] = False,
) -> None:
    pass


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        # in a locale without UTF-8 a sign becomes "?": an answer with one missing is better than none
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        app()
    except Permanent as error:
        _say(error)
        sys.exit(2)
    except Temporary as error:
        _say(error)
        # sysexits.h, EX_TEMPFAIL: a script may try again on this one alone.
        sys.exit(75)
    except OSError as error:  # a home or a disk that cannot be written
        if error.filename is None:
            raise
        aside = ". Source what `nightshift --show-completion` prints" if "--install-completion" in sys.argv else ""
        _say(Permanent(f"{error.filename}: {error.strerror}{aside}"))
        sys.exit(2)


def _say(error: Exception) -> None:
    for line in str(error).splitlines() or [type(error).__name__]:
        print(f"nightshift: {line}", file=sys.stderr)


if __name__ == "__main__":
    main()
