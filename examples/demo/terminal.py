"""What a person sees of a run: incidents going through their states, the latest events, and what to do next."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from examples.demo.run import Demo
from examples.demo.scenario import GPUS_PER_NODE, NODES
from examples.demo.score import Report
from nightshift.agent.store.incident import Incident, IncidentState

_S = IncidentState
_LOOK = {
    _S.OPEN: "yellow",
    _S.DIAGNOSED: "yellow",
    _S.AWAITING_APPROVAL: "bold magenta",
    _S.APPROVED: "cyan",
    _S.ACTING: "cyan",
    _S.CONFIRMING: "blue",
    _S.MONITORING: "yellow",
    _S.ESCALATED: "bold red",
    _S.UNDOING: "red",
    _S.RESOLVED: "green",
}
_EVENTS = 9
_REFRESH_S = 0.25


def clock(t_s: float) -> str:
    return datetime.fromtimestamp(t_s, UTC).strftime("%H:%M:%S")


class Terminal:
    """A live screen where the output is a terminal; one line per event elsewhere."""

    def __init__(self, console: Console, *, live: bool, approves_itself: bool) -> None:
        self._console = console
        self._approves_itself = approves_itself
        self._live = Live(console=console, auto_refresh=False) if live else None
        self._versions: dict[str, int] = {}
        self._incidents: dict[str, Incident] = {}
        self._events: list[str] = []
        self._drawn_s = -1.0
        self._began_s = time.monotonic()

    @property
    def waits_for_a_person(self) -> bool:
        """Whether a plan waits and the demo will not approve it by itself."""
        waiting = any(i.state is _S.AWAITING_APPROVAL for i in self._incidents.values())
        return waiting and not self._approves_itself

    def start(self) -> None:
        if self._live is not None:
            self._live.start()

    def stop(self) -> None:
        if self._live is not None:
            self._live.stop()

    def watch(self, demo: Demo) -> None:
        """Takes up what changed in the store since the last call, and shows it."""
        for summary in demo.app.store.incidents():
            if self._versions.get(summary.id) == summary.version:
                continue
            incident = demo.app.store.incident(summary.id)
            known = self._incidents.get(summary.id)
            for step in incident.history[len(known.history) if known else 0 :]:
                self._event(f"{clock(step.at_s)}  {incident.id}  {step.after:<18} {step.note or step.cause}")
            self._versions[summary.id], self._incidents[summary.id] = summary.version, incident
        now_s = time.monotonic()
        if self._live is not None and now_s - self._drawn_s >= _REFRESH_S:
            self._drawn_s = now_s
            self._live.update(self._screen(demo), refresh=True)

    def _event(self, line: str) -> None:
        self._events.append(line)
        if self._live is None:
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _screen(self, demo: Demo) -> Group:
        world = demo.world
        speed = world.elapsed_s / max(time.monotonic() - self._began_s, 1e-3)
        head = Text.assemble(
            ("Nightshift", "bold"),
            f"  {len(NODES)} nodes × {GPUS_PER_NODE} GPUs, {len(world.jobs)} jobs   ",
            (clock(world.now_s), "bold"),
            f" simulated, {speed:.0f}× real time   seed {demo.scenario.seed}",
        )
        events = Text("\n".join(self._events[-_EVENTS:]), overflow="ellipsis", no_wrap=True)
        return Group(head, self._table(), Panel(events, title="events", title_align="left"), self._next(demo))

    def _table(self) -> Table:
        table = Table(expand=True, title_justify="left")
        for name in ("incident", "since", "state", "what", "plan"):
            table.add_column(name, no_wrap=True, overflow="ellipsis", ratio=4 if name == "what" else None)
        for incident in sorted(self._incidents.values(), key=lambda i: i.opened_s):
            headline = incident.diagnosis.headline if incident.diagnosis else incident.title
            plan = f"{incident.action.kind}" if incident.action else ""
            state = Text(str(incident.state).replace("_", " "), style=_LOOK[incident.state])
            table.add_row(incident.id, clock(incident.opened_s), state, headline, plan)
        if not self._incidents:
            table.add_row("", "", "", Text("all quiet: the fleet is being learned", style="dim"), "")
        return table

    def _next(self, demo: Demo) -> Text:
        lines = [f"console  {demo.app.sign_in_link()}", f"status   nightshift status --config {demo.config}"]
        if demo.app.server is not None:
            lines.append(f"tour     {demo.app.server.url}/?tour")
        waiting = [i for i in self._incidents.values() if i.state is _S.AWAITING_APPROVAL]
        for incident in waiting:
            assert incident.action is not None
            plan = f"{incident.id} waits for approval: {incident.action.kind} {incident.action.target.name}"
            command = f"nightshift approve {incident.id} --config {demo.config}"
            lines.append(
                f"{plan}: " + ("the demo does it" if self._approves_itself else f"click above, or: {command}")
            )
        return Text("\n".join(lines), style="magenta" if self.waits_for_a_person else "", overflow="fold")


def verdict(report: Report) -> Group:
    """The table of faults and what became of them."""
    table = Table(
        title=f"seed {report.seed}: {report.simulated_s / 60:.0f} simulated minutes in {report.wall_s:.0f} s"
    )
    asleep = bool(report.storm)
    ends = ("lane", "called") if asleep else ("action", "resolved after")
    for name in ("fault", "job", "incident", "found after", "diagnosis", *ends, "verdict"):
        table.add_column(name)
    for row in report.rows:
        table.add_row(
            row.fault,
            row.job,
            row.incident or "-",
            _minutes(row.detected_after_s),
            row.diagnosis or "-",
            *(
                (row.lane or "-", ", ".join(row.called) or "-")
                if asleep
                else (row.action or "-", _minutes(row.resolved_after_s))
            ),
            Text("; ".join(row.problems), style="red") if row.problems else Text("ok", style="green"),
        )
    benign = [Text(problem, style="red") for problem in report.problems]
    storm = [Text(f"the storm: {report.storm}")] if asleep else []
    return Group(
        table, *storm, *(benign or [Text("no benign phase alarmed, no healthy subject was touched", style="green")])
    )


def _minutes(seconds: float | None) -> str:
    return "-" if seconds is None else f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
