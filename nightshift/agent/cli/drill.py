"""`nightshift drill`: opens a TEST incident in the daemon's store and tells its way, until it is over."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from nightshift.agent.cli.terminal import Config, operator, stored

POLL_S = 0.3
_ASLEEP_S = 20.0


def drill(
    name: Annotated[str, typer.Argument(help="ecc or gpu-lost")] = "ecc",
    minutes: Annotated[float, typer.Option(min=0.05, help="Give up after so long without a decision (min)")] = 15.0,
    config: Config = None,
) -> None:
    """Open a TEST incident, wait for a decision in Slack, the console or here, then act on a simulated cluster.
    Nothing real is touched."""
    from nightshift.agent.drill import end_findings, stage
    from nightshift.agent.store.incident import TEST_TITLE
    from nightshift.agent.store.incident import IncidentState as S

    with stored(config) as (store, gate, now_s):
        # Whole seconds: the daemon makes the same scene from the time that the findings carry.
        told = stage(name, float(round(now_s)))
        by = operator().identity
        incident_id = store.open_incident(
            f"{TEST_TITLE}drill {name}", told.findings, by=by, note="a drill, not a fault"
        )
        typer.echo(f"{incident_id} is open: a TEST. Approve or reject it in Slack, in the console, or by")
        typer.echo(f"  nightshift approve {incident_id}")
        began_s, told_steps, cleared = time.monotonic(), 0, False
        try:
            while True:
                incident = store.incident(incident_id)
                for step in incident.history[told_steps:]:
                    typer.echo(f"  {step.heading.replace('_', ' '):<18} {step.by}: {step.note}"[:160])
                told_steps = len(incident.history)
                if incident.state is S.RESOLVED:
                    typer.echo("Drill finished. The actions are recorded in the audit log only.")
                    return
                if incident.state in (S.CONFIRMING, S.MONITORING, S.ESCALATED) and not cleared:
                    end_findings(store, incident)  # the made-up fault ends with the action, or with the refusal
                    cleared = True
                waited_s = time.monotonic() - began_s
                if incident.state is S.OPEN and waited_s > _ASLEEP_S:
                    typer.echo("The daemon did not pick it up. Check that it runs on this store.", err=True)
                    raise typer.Exit(1)
                # Once it is cleared, the rest needs time and no person.
                if waited_s > 60.0 * minutes and not cleared:
                    typer.echo("No decision in time: the drill ends here.", err=True)
                    raise typer.Exit(1)
                time.sleep(POLL_S)
        # An interrupted drill would stay open: nothing real ever clears its findings, and an Xid outlasts silence.
        finally:
            end_findings(store, store.incident(incident_id))
            if not cleared:
                gate.close(incident_id, operator(), "no decision: the drill is over")
