"""The screen of `nightshift top`: Textual, from the extra `top`."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

from rich.markup import escape
from rich.text import Text
from textual.app import App, ComposeResult
from textual.widgets import DataTable, Footer, Static

from nightshift.agent.presentation.incident_text import incident_of, incident_text
from nightshift.agent.rca.summary import plain as one_line
from nightshift.agent.units import clock_time
from nightshift.collectors.base import Permanent, Temporary

_MOST_ROWS = 200
_COLOURS = {"critical": "bold red", "warning": "yellow", "no_data": "magenta", "info": "cyan", "ok": "green"}
_COLUMNS = {
    "racks": ("rack", "GPUs"),
    "incidents": ("incident", "state", "severity", "opened", "title"),
}


class FleetAnswers(Protocol):
    """A console's API, as far as the screen asks it. Raises Permanent or Temporary."""

    def status_json(self) -> dict[str, Any]: ...

    def incidents_json(self, everything: bool, limit: int) -> list[dict[str, Any]]: ...

    def incident_json(self, incident_id: str) -> dict[str, Any]: ...


class LiveFleet(App[None]):
    """The fleet by rack and the open incidents, from one console's API."""

    TITLE = "nightshift top"
    CSS = """
    #head, #detail {height: auto; padding: 0 1}
    #racks {height: auto; max-height: 40%}
    #incidents {height: 1fr}
    """
    BINDINGS: ClassVar = [("q", "quit", "Quit"), ("escape", "hide", "Close the incident")]

    def __init__(self, there: FleetAnswers, every_s: float) -> None:
        super().__init__()
        self._there, self._every_s, self._now_s = there, every_s, 0.0

    def compose(self) -> ComposeResult:
        yield Static(id="head")
        for name in _COLUMNS:
            yield DataTable(id=name, cursor_type="row")
        yield Static(id="detail")
        yield Footer()

    def on_mount(self) -> None:
        for name, columns in _COLUMNS.items():
            self.query_one(f"#{name}", DataTable).add_columns(*columns)
        self.query_one("#incidents").focus()
        self.set_interval(self._every_s, self.look)
        self.look()

    def look(self) -> None:
        self.run_worker(self._ask, thread=True, exclusive=True)

    def _ask(self) -> None:
        try:
            found, rows = self._there.status_json(), self._there.incidents_json(False, _MOST_ROWS)
        except (Permanent, Temporary) as error:
            self.call_from_thread(self.query_one("#head", Static).update, Text(str(error), "bold red"))
            return
        self.call_from_thread(self.show, found, rows)

    def show(self, status: dict[str, Any], rows: list[dict[str, Any]]) -> None:
        self._now_s = status["now_s"]
        self.query_one("#head", Static).update(Text.from_markup(_head(status)))
        racks = [
            (rack["name"], Text(rack["name"]), Text(rack["told"], _COLOURS.get(rack["worst"], "")))
            for rack in status["racks"]
        ]
        self._fill("racks", racks)
        self._fill(
            "incidents",
            [
                (
                    row["id"],
                    Text(row["id"]),
                    Text(row["state"].replace("_", " ")),
                    Text(row["severity"], _COLOURS.get(row["severity"], "")),
                    Text(clock_time(row["opened_s"])),
                    Text(one_line(row["title"])),
                )
                for row in rows
            ],
        )

    def _fill(self, name: str, rows: list[tuple[Any, ...]]) -> None:
        table = self.query_one(f"#{name}", DataTable)
        at = table.cursor_row
        table.clear()
        for key, *cells in rows:
            table.add_row(*cells, key=key)
        table.move_cursor(row=min(at, max(0, len(rows) - 1)))

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        if event.data_table.id == "incidents" and event.row_key.value:
            shown = incident_of(self._there.incident_json(event.row_key.value))
            self.query_one("#detail", Static).update(incident_text(shown, self._now_s))

    def action_hide(self) -> None:
        self.query_one("#detail", Static).update("")


def _head(found: dict[str, Any]) -> str:
    state = "[green]works[/]" if found["ready"] else f"[bold red]{escape('; '.join(found['reasons']))}[/]"
    halted = f" · [bold yellow]halted by {escape(one_line(found['halted_by']))}[/]" if found["halted"] else ""
    gpus = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in sorted(found["gpus"].items()))
    failed = sum(not one["ok"] for one in found["sources"])
    return (
        f"[bold]{escape(found['cluster'])}[/] {clock_time(found['now_s'])} UTC · {state}{halted}\n"
        f"{sum(found['gpus'].values())} GPUs on {found['nodes']} nodes: {gpus or 'none seen'} · "
        f"{len(found['waiting'])} plans wait · {failed} of {len(found['sources'])} sources fail"
    )
