"""`nightshift policy train | evaluate`: learned policies of every kind. Which kinds there are:
`controllers.lab.learnable`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

Kind = Annotated[str, typer.Argument(help="power, scheduling or cache")]
Keys = Annotated[list[Path] | None, typer.Option("--key", help="Trusted public key (repeatable)")]


def train(
    kind: Kind,
    output: Annotated[Path, typer.Option("--output", "-o", help="Policy file to write")],
    key: Annotated[Path, typer.Option(help="Private key that signs it, as `nightshift kernels keygen` makes")],
    seed: Annotated[int, typer.Option(help="The same seed gives the same policy")] = 1,
    steps: Annotated[int, typer.Option(min=0, help="Steps of the environment, or passes over --data; 0: all")] = 0,
    data: Annotated[
        list[Path] | None,
        typer.Option(help="What to evaluate on; cache also learns from the first half (repeatable)"),
    ] = None,
    seeds: Annotated[int, typer.Option(min=0, help="Seeds of the evaluation; 0: none")] = 5,
) -> None:
    """Train a policy from scratch and write it signed, with its evaluation."""
    import os
    from dataclasses import replace

    from nightshift.collectors.base import Permanent
    from nightshift.collectors.seal import SealError, Signer
    from nightshift.controllers.lab.learnable import learnable
    from nightshift.controllers.policy_file import write

    part = learnable(kind)
    try:
        # Before the training: a key that cannot be read is found after half an hour otherwise.
        signer = Signer.from_file(key)
    except SealError as error:
        raise Permanent(str(error)) from error
    if not os.access(output.absolute().parent, os.W_OK) or output.is_dir():  # said before half an hour of training
        raise Permanent(f"--output: {output} cannot be written: is there such a folder, and may you write to it?")
    for path in data or ():
        if not path.is_file():
            raise Permanent(f"--data: {path}: no such file")
    policy = part.train(seed, steps or None, lambda text: typer.echo(text, err=True), data or ())
    written = write(output, policy, signer)  # before it is evaluated: measurements that are wrong lose no training
    found = part.evaluate(policy, data or (), range(seeds)) if seeds else {}
    written = write(output, replace(policy, evaluation=json.loads(json.dumps(found))), signer)
    typer.echo(f"{output}: {kind} policy {written[:16]}")


def evaluate(
    kind: Kind,
    policy: Annotated[Path | None, typer.Option(help="Policy file; without: baselines and heuristics")] = None,
    key: Keys = None,
    data: Annotated[
        list[Path] | None, typer.Option(help="Measurements or traces (repeatable); without: synthetic")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on standard output")] = False,
) -> None:
    """Evaluate a policy against every baseline and heuristic, on the same jobs and seeds."""
    from rich.table import Table

    from nightshift.agent.cli.terminal import print_json, print_rich
    from nightshift.collectors.base import Permanent
    from nightshift.collectors.seal import SealError, trusted_keys
    from nightshift.controllers.lab.learnable import learnable
    from nightshift.controllers.policy_file import read

    part = learnable(kind)
    if policy is not None and not key:
        raise Permanent(f"--policy: who may have signed {policy}? Name the public key (or keys) with --key")
    try:
        trusted = trusted_keys(key or [])
    except SealError as error:
        raise Permanent(str(error)) from error
    loaded = read(policy, part.interface, trusted) if policy is not None else None
    found = part.evaluate(loaded, data or (), range(seeds))
    if as_json:
        print_json(found)
        return
    rows = found["rows"]
    table = Table(*rows[0]) if rows else Table()
    for row in rows:
        table.add_row(*(_cell(value) for value in row.values()))
    print_rich(table)


def _cell(value: object) -> str:
    if isinstance(value, list):
        return " to ".join(_cell(item) for item in value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


COMMANDS = (train, evaluate)
