"""`nightshift kernels schedule`: search for a faster order of a loop nest in C, or talk a model through it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer


def _fail(text: str) -> typer.Exit:
    typer.echo(text, err=True)
    return typer.Exit(2)


def schedule(
    nest: Annotated[str, typer.Argument(help="C file with one nest, or one of ours; `list` lists them")],
    actions: Annotated[Path | None, typer.Option(help="Judge this list of actions, one a line, and end")] = None,
    trials: Annotated[int, typer.Option(min=1, help="Schedules that the search times")] = 24,
    threads: Annotated[int, typer.Option(min=1, help="Threads of a parallel loop")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the search")] = 0,
    llm: Annotated[str, typer.Option(help="Chat model that proposes instead: PROVIDER:MODEL")] = "",
    llm_url: Annotated[str, typer.Option(help="Base URL of an OpenAI-compatible server for --llm")] = "",
    turns: Annotated[int, typer.Option(min=1, help="Turns of the dialogue with --llm")] = 8,
    write: Annotated[Path | None, typer.Option("--write", help="Write the best schedule's C here")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the attempts as JSON")] = False,
) -> None:
    """Search for faster loops; each schedule is checked and timed. Exit code 1: none is faster."""
    from nightshift.collectors.base import Temporary
    from nightshift.kernels.generate.base import GeneratorError
    from nightshift.kernels.loops import code, proposers, trial
    from nightshift.kernels.loops.nest import NestError, named, names
    from nightshift.kernels.loops.schedule import applied
    from nightshift.kernels.schemes.native import CompilerError

    if nest == "list":
        typer.echo("\n".join(names()))
        return
    try:
        court = trial.Court(named(nest), threads)
        if actions is not None:
            made = [court.attempt(trial.actions_of(actions.read_text()))]
        elif llm:
            from nightshift.kernels.generate.llm import connect

            made = proposers.converse(court, connect(llm, llm_url or None), turns)
        else:
            made = proposers.evolve(court, trials, seed)
        best = proposers.best_of(made)
        if write is not None and best is not None:
            write.write_text(code.source_of(court.nest, applied(court.nest, best.actions)))
    except (NestError, CompilerError, GeneratorError, Temporary, OSError) as error:
        raise _fail(str(error)) from error
    if as_json:
        # JSON has no NaN: what was not timed has no times
        untimed = {"seconds", "speedup"}
        rows = [
            {
                key: value
                for key, value in asdict(attempt).items()
                if attempt.status == "timed" or key not in untimed
            }
            for attempt in made
        ]
        typer.echo(json.dumps(rows, indent=1))
    for attempt in made if not as_json else ():
        if attempt is best or attempt.status != "timed":
            typer.echo(f"{'; '.join(attempt.actions) or 'the C text'}\n  {attempt.text()}")
    if best is None or not best.speedup > 1.0:
        raise typer.Exit(1)
