"""`nightshift goodput`: where the GPU time of the last days went, on one screen or as a file."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nightshift.agent.cli.terminal import AsJson, Config, print_json, print_rich, stored

if TYPE_CHECKING:
    from rich.console import RenderableType

DAY_S = 86_400.0


class Split(StrEnum):
    """What the table is split by."""

    JOB = "job"
    TEAM = "team"
    NODE = "node"
    CAUSE = "cause"
    INCIDENT = "incident"


def goodput(
    days: Annotated[int, typer.Option(min=1, max=366, help="How far back")] = 7,
    by: Annotated[Split, typer.Option(help="What the table is split by")] = Split.JOB,
    csv: Annotated[Path | None, typer.Option(help="Write all entries to this file (-: standard output)")] = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Show where GPU time went: accounts, ETTR, faults and the largest losses."""
    from nightshift.agent.cli.remote import remote
    from nightshift.collectors.base import Permanent

    there = remote()
    if there is not None:
        if csv is not None:
            raise Permanent("--csv reads the store: unset NIGHTSHIFT_API, or fetch /goodput.csv from the console")
        found = there.goodput_json(days, by)
    else:
        from nightshift.agent.goodput.report import as_csv, make
        from nightshift.agent.goodput.report import as_json as values
        from nightshift.agent.settings import load

        with stored(config) as (store, _, now_s), store.database.read() as connection:
            report = make(connection, now_s - days * DAY_S, now_s, load(config).economy.gpu_hour_price)
        if csv is not None:
            text = as_csv(report)
            typer.echo(text, nl=False) if str(csv) == "-" else csv.write_text(text)
            return
        found = values(report, by)
    if as_json:
        print_json(found)
    else:
        print_rich(screen(found))


def screen(report: dict[str, Any]) -> RenderableType:
    """A report's JSON values for a terminal."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from nightshift.agent.units import gpu_hours, sentence

    wall = report["wall_gpu_s"]
    if not wall:
        return Text("Nothing was booked in this time. The first hour appears five minutes after the daemon starts.")

    def time(gpu_s: float) -> str:
        return f"{gpu_hours(gpu_s / 3600.0)} ({100 * gpu_s / wall:.1f} %)"

    facts = Table("", "", box=None, show_header=False)
    for words, value in _ratios(report):
        facts.add_row(words, value)
    heads = ["Account", "GPU time", *(["Cost"] if report["price"] is not None else [])]
    accounts = Table(*heads, box=None)
    for row in report["accounts"]:
        if row["gpu_s"]:
            cost = [f"{row['cost']:,.0f}"] if report["price"] is not None else []
            accounts.add_row(sentence(row["account"]), time(row["gpu_s"]), *cost)
    faults = Table("Cause", "Incidents", "GPU time lost", "Mean time between", "Mean time to repair", box=None)
    for row in report["faults"]:
        between, repair = _span(row["mtbf_s"]), _span(row["mttr_s"])
        faults.add_row(sentence(row["cause"]), str(row["count"]), time(row["lost_gpu_s"]), between, repair)
    losses = Table(sentence(report["by"]), "Lost", "Largest accounts", box=None)
    for row in report["rows"]:
        most = sorted(row["gpu_s"].items(), key=lambda item: -item[1])[:3]
        words = ", ".join(f"{sentence(account)} {gpu_hours(spent / 3600.0)}" for account, spent in most)
        losses.add_row(row["name"], gpu_hours(row["lost_gpu_s"] / 3600.0), words)
    tables = [accounts, faults, losses] if report["faults"] else [accounts, losses]
    return Group(facts, *[part for table in tables for part in (Text(""), table)])


def _ratios(report: dict[str, Any]) -> list[tuple[str, str]]:
    from nightshift.agent.units import duration, gpu_hours

    response = report["response"]
    rows = [
        ("Wall time × GPUs", gpu_hours(report["wall_gpu_s"] / 3600.0)),
        ("ETTR without queueing", _share(report["ettr"])),
        ("ETTR with queueing", _share(report["ettr_with_queueing"])),
        ("Unattributed inside steps", _percent(report["unattributed"])),
        ("Onset to detection", _span(response["detected_s"])),
        ("Onset to our action", _span(response["acted_s"])),
        ("Sooner with Nightshift", _span(response["saved_s"])),
    ]
    span = duration(report["end_s"] - report["start_s"])
    return [("Time", span), *rows]


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def _share(figure: dict[str, Any]) -> str:
    if figure["value"] is None:
        return "–"
    between = f"{_percent(figure['low'])} to {_percent(figure['high'])}"
    return f"{_percent(figure['value'])} ({between}, n = {figure['n']})"


def _span(figure: dict[str, Any]) -> str:
    """A duration with its interval; a negative one keeps its sign."""
    from nightshift.agent.units import duration

    def show(value: float) -> str:
        return f"-{duration(-value)}" if value < 0 else duration(value)

    if figure["value"] is None:
        return "–" if figure["low"] is None else f"more than {show(figure['low'])}"
    between = "" if figure["low"] is None else f"{show(figure['low'])} to {show(figure['high'])}, "
    return f"{show(figure['value'])} ({between}n = {figure['n']})"
