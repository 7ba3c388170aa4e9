"""Commands by which a person decides, and those about who may.

They reach the daemon's store through the configured URL and ask the same gate as the console; where
`NIGHTSHIFT_API` is set, they ask the console (`agent.cli.remote`).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nightshift.agent.cli.incidents import IncidentId
from nightshift.agent.cli.terminal import AsJson, Config, operator, print_json, stored, tell

if TYPE_CHECKING:
    from nightshift.agent.approvals.answer import GateAnswer
    from nightshift.agent.approvals.gate import Gate
    from nightshift.agent.approvals.policy import Person
    from nightshift.agent.cli.remote import Remote
    from nightshift.agent.store.incident_store import Store


@dataclass(frozen=True)
class _Here:
    """The gate of the daemon's own store, asked by who sits at the terminal."""

    store: Store
    gate: Gate
    by: Person

    def plan_of(self, incident_id: str, prefix: str) -> str:
        from nightshift.agent.cli.remote import checked_plan

        action = self.store.incident(incident_id).action
        return checked_plan(incident_id, action.plan_sha256 if action is not None else "", prefix)

    def approve(self, incident_id: str, plan_sha256: str) -> GateAnswer:
        return self.gate.approve(incident_id, plan_sha256, self.by)

    def reject(self, incident_id: str, plan_sha256: str, reason: str) -> GateAnswer:
        return self.gate.reject(incident_id, plan_sha256, self.by, reason)

    def close(self, incident_id: str, note: str, not_a_fault: bool) -> GateAnswer:
        return self.gate.close(incident_id, self.by, note, not_a_fault=not_a_fault)

    def judge(self, incident_id: str, right: bool, note: str) -> GateAnswer:
        return self.gate.judge(incident_id, self.by, right=right, note=note)

    def halt(self, reason: str) -> GateAnswer:
        return self.gate.halt(self.by, reason)

    def resume(self) -> GateAnswer:
        return self.gate.resume(self.by)

    def carry_on(self, incident_id: str, give_back: bool) -> GateAnswer:
        return self.gate.carry_on(incident_id, self.by, give_back=give_back)


@contextmanager
def _asked(config: Path | None) -> Iterator[_Here | Remote]:
    # the process ends with the answer: collecting what it imports would cost a sixth of its time
    gc.disable()
    try:
        from nightshift.agent.cli.remote import remote

        there = remote()
        if there is not None:
            yield there
            return
        with stored(config) as (store, gate, _now_s):
            yield _Here(store, gate, operator())
    finally:
        gc.enable()


def approve(
    incident_id: IncidentId,
    config: Config = None,
    plan: Annotated[str, typer.Option(help="Only if the plan's sha256 begins with this")] = "",
    as_json: AsJson = False,
) -> None:
    """Approve an incident's current plan."""
    with _asked(config) as gate:
        tell(gate.approve(incident_id, gate.plan_of(incident_id, plan)), as_json)


def reject(
    incident_id: IncidentId,
    reason: Annotated[str, typer.Option("--reason", "-r", help="Why not")],
    config: Config = None,
    plan: Annotated[str, typer.Option(help="Only if the plan's sha256 begins with this")] = "",
    as_json: AsJson = False,
) -> None:
    """Reject an incident's current plan. The incident stays open and is watched."""
    with _asked(config) as gate:
        tell(gate.reject(incident_id, gate.plan_of(incident_id, plan), reason), as_json)


def close(
    incident_id: IncidentId,
    note: Annotated[str, typer.Option("--note", "-n", help="What was done")],
    not_a_fault: Annotated[
        bool, typer.Option("--not-a-fault", help="Report a false alarm: it counts against its detector")
    ] = False,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Close an incident."""
    with _asked(config) as gate:
        tell(gate.close(incident_id, note, not_a_fault), as_json)


def feedback(
    incident_id: Annotated[str, typer.Argument(help="For example INC-7; none with --export")] = "",
    right: Annotated[bool | None, typer.Option("--right/--wrong", help="Whether the diagnosis was right")] = None,
    note: Annotated[str, typer.Option("--note", "-n", help="What it was, if not")] = "",
    export: Annotated[
        Path | None, typer.Option(help="Write every judged diagnosis with its evidence here, one JSON a line")
    ] = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Judge a diagnosis as right or wrong, or export the judgements."""
    if (export is None) == (not incident_id) or (export is None) != (right is not None):
        raise typer.BadParameter("give an incident with --right or --wrong, or --export FILE alone")
    if export is None:
        assert right is not None
        with _asked(config) as gate:
            tell(gate.judge(incident_id, right, note), as_json)
        return
    from nightshift.agent.rca.feedback import judged
    from nightshift.agent.store.records import dump

    with stored(config) as (store, _, _now_s), export.open("w", encoding="utf-8") as file:
        count = 0
        for row in judged(store):
            file.write(f"{dump(row)}\n")
            count += 1
    typer.echo(f"{export}: {count} judged diagnoses")


def halt(
    reason: Annotated[str, typer.Option("--reason", "-r", help="Why")] = "",
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Halt every action (emergency stop) until `nightshift resume`."""
    with _asked(config) as gate:
        tell(gate.halt(reason), as_json)


def resume(
    incident_id: Annotated[str, typer.Argument(help="For example INC-7; none: lift the emergency stop")] = "",
    give_back: Annotated[
        bool, typer.Option("--give-back", help="Undo the action: restart its jobs, uncordon its node")
    ] = False,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Resume actions after an emergency stop, or one action with an unknown outcome."""
    if give_back and not incident_id:
        raise typer.BadParameter("--give-back needs an incident, for example INC-7")
    with _asked(config) as gate:
        tell(gate.carry_on(incident_id, give_back) if incident_id else gate.resume(), as_json)


def token(config: Config = None) -> None:
    """Print the operator's sign-in token for the console."""
    from nightshift.agent.console.sign_in import operator_token
    from nightshift.agent.settings import load

    settings = load(config)
    # The token may be asked for before the daemon has run: it is made now, and the daemon finds it.
    settings.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    typer.echo(operator_token(settings.state_dir, settings.console.secrets_dir))


def sign_out(
    person: Annotated[str, typer.Argument(help="E-mail address or login")],
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Sign a person out of every console session, at their next request."""
    from nightshift.agent.console.sessions import end_sessions

    with stored(config) as (store, _, _now_s):
        ended = end_sessions(store.database, person)
    if as_json:
        print_json({"person": person, "sessions": ended})
    else:
        typer.echo(f"{person}: {ended} sessions ended")


COMMANDS = (approve, reject, close, feedback, halt, resume, token, sign_out)
