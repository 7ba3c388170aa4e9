"""What every command of the command line shares: the daemon's store, who sits at the terminal, and how to answer.

Imports are inside the functions, as in `agent.__main__`, so that `nightshift --help` is quick.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from functools import wraps
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer

if TYPE_CHECKING:
    from nightshift.agent.approvals.answer import GateAnswer
    from nightshift.agent.approvals.gate import Gate
    from nightshift.agent.approvals.kernel_gate import KernelGate
    from nightshift.agent.approvals.policy import Person
    from nightshift.agent.store.incident_store import Store

Config = Annotated[
    Path | None,
    typer.Option("--config", "-c", envvar="NIGHTSHIFT_CONFIG", help="YAML file; without: defaults and environment"),
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON on standard output")]
Output = Annotated[Literal["table", "json", "yaml"], typer.Option(help="How to print the answer")]


def with_output(command: Callable[..., None]) -> Callable[..., None]:
    """The command; where it tells something as JSON, it takes `--output table|json|yaml` too."""
    signature = inspect.signature(command)
    if "as_json" not in signature.parameters:
        return command
    hints = get_type_hints(command, include_extras=True)

    @wraps(command)
    def run(*, as_json: bool, output: str, **values: Any) -> None:
        if output != "yaml":
            command(as_json=as_json or output == "json", **values)
            return
        told = StringIO()
        try:
            with redirect_stdout(told):
                command(as_json=True, **values)
        finally:  # exit codes are exceptions, and come after the answer
            typer.echo(_as_yaml(told.getvalue()), nl=False)

    own = [p.replace(annotation=hints[name]) for name, p in signature.parameters.items()]
    extra = inspect.Parameter("output", inspect.Parameter.KEYWORD_ONLY, default="table", annotation=Output)
    run.__signature__ = signature.replace(parameters=[*own, extra])  # type: ignore[attr-defined]
    run.__annotations__ = {**hints, "output": Output}
    return run


def _as_yaml(text: str) -> str:
    import yaml

    if not text.startswith(("{", "[")):
        return text
    return str(yaml.safe_dump(json.loads(text), sort_keys=False, allow_unicode=True))


@contextmanager
def stored(config: Path | None) -> Iterator[tuple[Store, Gate, float]]:
    """The daemon's store and gate, and what time it is for the daemon."""
    from nightshift.agent.approvals.gate import Gate
    from nightshift.agent.approvals.people import Directory
    from nightshift.agent.gate_settings import load
    from nightshift.agent.store.database import Database, parse_url
    from nightshift.agent.store.incident_store import Store
    from nightshift.agent.store.process_clock import ToldClock
    from nightshift.collectors.base import Permanent

    settings = load(config)
    url = parse_url(settings.store_url)
    # SQLite would make an empty file there, and answer that there are no incidents.
    if url.get_backend_name() == "sqlite" and not Path(str(url.database)).exists():
        raise Permanent(
            f"{url.database} does not exist: has the daemon run with this configuration (--config FILE)?"
        )
    database = Database(settings.store_url)
    try:
        clock = ToldClock(database)
        store = Store(database, clock)
        yield store, Gate(store, settings.approval, clock, Directory(settings.people)), clock.now_s()
    finally:
        database.close()


def operator() -> Person:
    """Who sits at the terminal, by user id (variables such as USER prove nothing); behind sudo, who called it.

    Whoever can open the store can change it, so the command line gives every role. A terminal that was left open
    proves nobody's presence, so it is no fresh sign-in: what needs one is approved in the console.
    """
    import os
    import pwd

    from nightshift.agent.approvals.policy import Person, Role

    uid = os.getuid()
    # The audit log names a person: of ten who may sudo, root is none. Root can lie here, and could change the
    # store anyway.
    if uid == 0 and os.environ.get("SUDO_UID", "").isdecimal():
        uid = int(os.environ["SUDO_UID"])
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        # A container's user often has no entry in passwd.
        name = f"uid {uid}"
    return Person(name, frozenset({Role.ADMIN}), "cli")


def tell(answer: GateAnswer, as_json: bool) -> None:
    if as_json:
        print_json({"ok": answer.ok, "changed": answer.changed, "message": answer.message})
    else:
        typer.echo(answer.message, err=not answer.ok)
    if not answer.ok:
        raise typer.Exit(1)


def answer_plan(plans: KernelGate, plan: str, sha256: str, who: Person, reason: str | None, listing: str) -> None:
    """A person's answer to a plan that waits: approved, or rejected for a reason; only if its hash begins so."""
    from nightshift.collectors.base import Permanent

    known = plans.proposal(plan)
    if known is None:
        raise Permanent(f"{plan}: there is no such plan; `{listing}` lists them")
    present = known.action.plan_sha256
    # What was read on the screen is what is approved: a plan that changed since has another hash.
    if not present.startswith(sha256):
        raise Permanent(
            f"the plan of {plan} is {present}, not {sha256}…: show it again and decide on its current plan"
        )
    answer = plans.approve(plan, present, who) if reason is None else plans.reject(plan, present, who, reason)
    tell(answer, as_json=False)


def progress_line(start_s: float, end_s: float, shown: bool) -> Callable[[float], None]:
    """Shows on standard error, once a second, how far a reading of a time range is, and how long it will take."""
    import time

    from nightshift.agent.units import duration

    began = last = time.monotonic()

    def progress(at_s: float) -> None:
        nonlocal last
        now = time.monotonic()
        share = (at_s - start_s) / max(end_s - start_s, 1e-9)
        if not shown or now - last < 1.0 or not 0 < share <= 1:
            return
        last = now
        left = duration((now - began) * (1 - share) / share)
        typer.echo(f"\r{100 * share:3.0f} %, {left} left".ljust(40), nl=False, err=True)

    return progress


def print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_rich(what: Any) -> None:
    from rich.console import Console

    # No wrapping at 80 columns where the output is a pipe; no colours for numbers, which would stand for nothing.
    Console(highlight=False, soft_wrap=True).print(what)
