"""Commands by which a person decides, and those about who may.

They reach the daemon's store through the configured URL and ask the same gate as the console.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from agent.cli_incidents import IncidentId
from agent.terminal import AsJson, Config, operator, print_json, stored, tell

if TYPE_CHECKING:
    from agent.store import Store


def approve(
    incident_id: IncidentId,
    config: Config = None,
    plan: Annotated[str, typer.Option(help="Only if the plan's sha256 begins with this")] = "",
    as_json: AsJson = False,
) -> None:
    """Approves an incident's present plan."""
    with stored(config) as (store, gate, now_s):
        sha256 = _plan_of(store, incident_id, plan)
        tell(gate.approve(incident_id, sha256, operator(now_s)), as_json)


def reject(
    incident_id: IncidentId,
    reason: Annotated[str, typer.Option("--reason", "-r", help="Why not")],
    config: Config = None,
    plan: Annotated[str, typer.Option(help="Only if the plan's sha256 begins with this")] = "",
    as_json: AsJson = False,
) -> None:
    """Declines an incident's present plan; the incident is watched."""
    with stored(config) as (store, gate, now_s):
        sha256 = _plan_of(store, incident_id, plan)
        tell(gate.reject(incident_id, sha256, operator(now_s), reason), as_json)


def close(
    incident_id: IncidentId,
    note: Annotated[str, typer.Option("--note", "-n", help="What was done")],
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Says that an incident is over."""
    with stored(config) as (_, gate, now_s):
        tell(gate.close(incident_id, operator(now_s), note), as_json)


def halt(
    reason: Annotated[str, typer.Option("--reason", "-r", help="Why")] = "",
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Emergency stop: no action starts until somebody resumes."""
    with stored(config) as (_, gate, now_s):
        tell(gate.halt(operator(now_s), reason), as_json)


def resume(config: Config = None, as_json: AsJson = False) -> None:
    """Lifts the emergency stop."""
    with stored(config) as (_, gate, now_s):
        tell(gate.resume(operator(now_s)), as_json)


def token(config: Config = None) -> None:
    """Prints the operator's sign-in token for the console."""
    from agent.console.sign_in import operator_token
    from agent.settings import load

    settings = load(config)
    settings.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    typer.echo(operator_token(settings.state_dir, settings.console.secrets_dir))


def sign_out(
    person: Annotated[str, typer.Argument(help="E-mail address or login")],
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Signs a person out of the console, everywhere, at their next click."""
    from agent.console.sessions import end_sessions

    with stored(config) as (store, _, _now_s):
        ended = end_sessions(store.database, person)
    if as_json:
        print_json({"person": person, "sessions": ended})
    else:
        typer.echo(f"{person}: {ended} sessions ended")


def _plan_of(store: Store, incident_id: str, prefix: str) -> str:
    """The hash of the plan that is meant: the present one, if it begins as was said."""
    from collectors.base import Permanent

    action = store.incident(incident_id).action
    if action is None:
        return ""
    if not action.plan_sha256.startswith(prefix):
        raise Permanent(f"the plan of {incident_id} is {action.plan_sha256}, not {prefix}…: look at it again")
    return action.plan_sha256


COMMANDS = (approve, reject, close, halt, resume, token, sign_out)
