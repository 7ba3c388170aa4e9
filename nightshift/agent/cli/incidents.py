"""`nightshift incidents`, `show`, `ask` and `report`: what is open, one incident on a screen, a question about it,
its post-mortem draft."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nightshift.agent.cli.terminal import AsJson, Config, operator, print_json, print_rich, stored

if TYPE_CHECKING:
    from nightshift.agent.incidents.suppression import ActiveSuppressions
    from nightshift.agent.store.incident_store import Store

NOT_TAKEN_S, MOST_WAIT_S = 15.0, 960.0
"""How long to wait until a daemon takes a question, and for its answer."""
BULLET = "•"
IncidentId = Annotated[str, typer.Argument(help="For example INC-7")]


def incidents(
    config: Config = None,
    all_: Annotated[bool, typer.Option("--all", "-a", help="Also those that are resolved")] = False,
    limit: Annotated[int, typer.Option(min=1, help="At most so many")] = 50,
    as_json: AsJson = False,
) -> None:
    """List open incidents, and say whether actions are halted. Muted ones are marked."""
    from nightshift.agent.cli.remote import remote
    from nightshift.agent.presentation.incident_text import halt_text, incident_json, incident_table, summary_of
    from nightshift.agent.store.incident import IncidentState

    there = remote()
    if there is not None:
        told = there.incidents_json(all_, limit)
        if as_json:
            print_json(told)
            return
        if (halt := there.halt_json())["halted"]:
            print_rich(halt_text(halt.get("by", ""), halt.get("reason", "")))
        print_rich(incident_table([summary_of(row) for row in told], time.time()))
        return
    with stored(config) as (store, gate, now_s):
        states = None if all_ else [state for state in IncidentState if state is not IncidentState.RESOLVED]
        rows = store.incidents(states, limit=limit)
        standing = _standing(store, config)
        suppressed = {row.id: held for row in rows if (held := standing.of(row)) is not None}
        if as_json:
            print_json([incident_json(row, suppressed.get(row.id)) for row in rows])
            return
        if (halted := gate.halted()).halted:
            print_rich(halt_text(halted.by, halted.reason))
        print_rich(incident_table(rows, now_s, {name: held.sentence() for name, held in suppressed.items()}))


def show(incident_id: IncidentId, config: Config = None, as_json: AsJson = False) -> None:
    """Show one incident: what, why with evidence, the plan and its cost, the history."""
    from nightshift.agent.cli.remote import remote
    from nightshift.agent.presentation.incident_text import incident_json, incident_of, incident_text

    there = remote()
    if there is not None:
        told = there.incident_json(incident_id)
        if as_json:
            print_json(told)
        else:
            print_rich(incident_text(incident_of(told), time.time()))
        return
    with stored(config) as (store, _, now_s):
        incident = store.incident(incident_id)
        held = _standing(store, config).of(incident)
        if as_json:
            print_json(incident_json(incident, held))
        else:
            print_rich(incident_text(incident, now_s, "" if held is None else held.sentence()))


def ask(
    incident_id: IncidentId,
    question: Annotated[str, typer.Argument(help='For example "did the switch fail first?"')],
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Ask about one incident. Each line of the answer has its proof beside it."""
    from nightshift.agent.approvals.questions import Questions
    from nightshift.agent.cli.remote import remote
    from nightshift.agent.rca.question import asked_json
    from nightshift.agent.store.process_clock import ToldClock

    there = remote()
    if there is not None:
        asked = there.ask(incident_id, question)
        _tell_answer(lambda: there.answer(incident_id, asked["number"]), as_json)
        return
    with stored(config) as (store, _, _now_s):
        questions = Questions(store.database, ToldClock(store.database))
        number = questions.ask(store.incident(incident_id), question, operator()).number
        _tell_answer(lambda: asked_json(questions.of(incident_id, number)[0]), as_json)


def _tell_answer(look: Callable[[], dict[str, Any]], as_json: bool) -> None:
    """Waits for the answer, says how far it is, and prints it."""
    from nightshift.collectors.base import Temporary

    began, told, noted = time.monotonic(), look(), ""
    while not told["done"]:
        waited_s = time.monotonic() - began
        if told["state"] == "waiting" and waited_s > NOT_TAKEN_S:
            raise Temporary("the question is stored, but no daemon takes it: is it running, and does it lead?")
        if waited_s > MOST_WAIT_S:
            raise Temporary("there is no answer yet; the incident's page will show it")
        note = told["lines"][-1]["text"]
        if note != noted and not as_json:
            typer.echo(note, err=True)
            noted = note
        time.sleep(0.25)
        told = look()
    if as_json:
        print_json(told)
        return
    for line in told["lines"]:
        label = f"{line['label']}{'' if line['label'] == BULLET else ':'} " if line["label"] else ""
        typer.echo(label + line["text"])
        for name, text in line["quotes"]:
            typer.echo(f'    [{name}] "{text}"')


def investigate(
    kind: Annotated[str, typer.Argument(help="pod, job, node, gpu or alert")],
    name: Annotated[str, typer.Argument(help="For example ml/train-0, n7, GPU-1f3c… or KubeNodeNotReady")],
    note: Annotated[str, typer.Option(help="What you saw")] = "",
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Open a case manually. The next look gathers evidence on it and diagnoses it."""
    from nightshift.agent.cli.remote import remote
    from nightshift.agent.correlation.outside_reports import ALERT, asked_for_alert, opened_by, subject_named
    from nightshift.agent.settings import load
    from nightshift.agent.store.reports import Reports
    from nightshift.collectors.subject import Inventory

    there = remote()
    if there is not None:
        told = there.investigate(kind, name, note)
    else:
        with stored(config) as (store, _, now_s):
            by, cluster = operator().identity, load(config).cluster
            if kind == ALERT:
                found = asked_for_alert(name, by, note, cluster, now_s)
            else:
                inventory = Inventory(cluster)
                inventory.load(store.load_memberships())
                found = opened_by(subject_named(kind, name, inventory), by, note, now_s)
            Reports(store.database).put([found], now_s, by)
            told = {"episode": found.episode, "subject": str(found.subject)}
    if as_json:
        print_json(told)
    else:
        typer.echo(f"A case on {told['subject']} is on its way: `nightshift incidents` lists it at the next look.")


def report(
    incident_id: IncidentId,
    config: Config = None,
    output: Annotated[Path | None, typer.Option(help="File to write; default: standard output")] = None,
    chart: Annotated[Path | None, typer.Option(help="Also the deciding signal's chart, as PNG")] = None,
) -> None:
    """Write a post-mortem draft: timeline, evidence, actions, approvers, cost."""
    from nightshift.agent.presentation.chart_image import deciding, png
    from nightshift.agent.rca.report import post_mortem
    from nightshift.agent.store.incident_store import number_of
    from nightshift.collectors.base import Permanent

    with stored(config) as (store, _, now_s):
        incident = store.incident(incident_id)
        text = post_mortem(incident, store.audit.records(incident=number_of(incident_id)), now_s)
    signal = deciding(incident) if chart is not None else None
    # Refused before anything is written: a report without the chart that was asked for looks whole.
    if chart is not None and signal is None:
        raise Permanent(f"{incident_id}: no signal decided it, so there is no chart")
    if chart is not None and signal is not None:
        chart.write_bytes(png(signal))
    if output is None:
        typer.echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8")


def _standing(store: Store, config: Path | None) -> ActiveSuppressions:
    """What suppresses now, by the places that the daemon has stored."""
    from nightshift.agent.incidents.suppression import Suppressor
    from nightshift.agent.settings import load
    from nightshift.agent.store.process_clock import ToldClock
    from nightshift.collectors.subject import Inventory

    settings = load(config)
    inventory = Inventory(settings.cluster)
    # Places matter to maintenance windows alone, and loading them takes a moment on a large cluster.
    if settings.guard.maintenance:
        inventory.load(store.load_memberships())
    clock = ToldClock(store.database)
    return Suppressor(store, clock, lambda: settings.guard.maintenance, inventory).standing()
