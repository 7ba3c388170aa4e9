"""Commands that read the past: `nightshift lookback` and `calibrate`. Neither changes the cluster."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Container, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nightshift.agent.cli.terminal import AsJson, Config, progress_line

if TYPE_CHECKING:
    from nightshift.agent.history.lookback import LookbackReport, OwnEvent
    from nightshift.collectors.prometheus.range import RangeCost, RangeReader
    from nightshift.collectors.tick import Tick
    from nightshift.detectors.base import Detector


def lookback(
    prometheus: Annotated[str, typer.Option(help="URL of your Prometheus (Thanos, Mimir, VictoriaMetrics)")],
    days: Annotated[float, typer.Option(min=0.01, max=400, help="How far back to look")] = 10.0,
    step_s: Annotated[float, typer.Option(min=1, help="Time between two looks (s)")] = 60.0,
    load: Annotated[
        float, typer.Option(min=0.01, max=1, help="Largest share of the time that queries may take")
    ] = 0.5,
    matchers: Annotated[str, typer.Option(help='Label matchers for every query, e.g. cluster="prod-1"')] = "",
    config: Config = None,
    reports: Annotated[
        list[Path] | None,
        typer.Option("--report", help="Also write the report to this .html or .md file (repeatable)"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what Nightshift would have reported in the past days. Needs Prometheus, no rights in the cluster."""
    from nightshift.agent.construct import build_detectors
    from nightshift.agent.history import lookback_pages
    from nightshift.agent.history.lookback import look_back, models, report
    from nightshift.agent.history.lookback_signals import blind_signals
    from nightshift.agent.settings import load as load_settings
    from nightshift.collectors.subject import Inventory
    from nightshift.detectors.ecc.sku import told_of

    _check_reports(reports or (), lookback_pages.FORMATS)
    settings = load_settings(config)
    reader, start_s, end_s = _opened(prometheus, matchers, days, step_s, load)
    inventory = Inventory(settings.cluster)
    progress = progress_line(start_s, end_s, sys.stderr.isatty() and not as_json)
    try:
        reader.probe(end_s)
        own, has_record = _own_record(reader, start_s, end_s)
        detectors = build_detectors(_without_sources(settings.detectors))
        _expect(detectors, step_s)
        incidents, gpus, waited, read_s = look_back(
            reader.ticks(start_s, end_s, inventory), inventory, detectors, settings.budget, progress, own
        )
    finally:
        reader.close()
    seen = models(inventory)
    blind = blind_signals(reader.reading.series, has_record, seen)
    span_s, failed = (start_s, end_s), reader.reading.failed
    told = report(
        incidents,
        own,
        has_record,
        span_s,
        gpus,
        settings.budget,
        blind,
        failed,
        waited,
        step_s * len(read_s),
        read_s,
        [told_of(model, reader.reading.series) for model in seen],
    )
    for path in reports or ():
        path.write_text(lookback_pages.FORMATS[path.suffix](told, reader.reading, settings.cluster))
    typer.echo(_printed(told, reader.reading, as_json), nl=False)


def _printed(report: LookbackReport, cost: RangeCost, as_json: bool) -> str:
    from nightshift.agent.history.lookback_report import as_json_values, as_text

    if as_json:
        return json.dumps(as_json_values(report, cost), indent=2, ensure_ascii=False) + "\n"
    return as_text(report, cost)


def _check_reports(reports: Iterable[Path], formats: Container[str]) -> None:
    """Refuses, before hours of reading, a report that could not be written at their end."""
    for path in reports:
        if path.suffix not in formats or not path.parent.is_dir():
            raise typer.BadParameter(
                f"{path}: name a .html or .md file in a folder that exists", param_hint="--report"
            )


def _opened(
    prometheus: str, matchers: str, days: float, step_s: float, load: float
) -> tuple[RangeReader, float, float]:
    """A reader of the last `days`, and from when to when they are (Unix s), in whole steps."""
    from nightshift.collectors.base import Permanent
    from nightshift.collectors.http import checked_url
    from nightshift.collectors.prometheus.live import PrometheusCollector
    from nightshift.collectors.prometheus.range import RangeReader

    try:
        source = PrometheusCollector.Settings(url=checked_url(prometheus), matchers=matchers)
    except Permanent as error:
        raise Permanent(f"--prometheus: {error}") from error
    # Whole steps: two runs within one ask for the same points, which a query cache in front of it then has.
    end_s = time.time() // step_s * step_s
    return RangeReader(source, step_s, load=load), end_s - days * 86400.0, end_s


def _expect(detectors: Iterable[Detector], step_s: float) -> None:
    """Tells the detector of leaks how far apart the looks are; a bucket of its test against peers is no shorter."""
    from nightshift.detectors.memory.leak import MemoryLeak

    for detector in detectors:
        if isinstance(detector, MemoryLeak):
            detector.expect(step_s)


def _without_sources(entries: Any) -> Any:
    """A gap is reported as such, so the detector of lost sources has no part in a look back."""
    return entries.model_copy(update={"disabled": entries.disabled | {"source"}})


def _own_record(reader: RangeReader, start_s: float, end_s: float) -> tuple[list[OwnEvent], bool | None]:
    """Cordons and unready nodes by kube-state-metrics, and whether it is there; None: that could not be read."""
    import numpy as np

    from nightshift.agent.history.lookback import own_events
    from nightshift.agent.history.lookback_signals import CORDONS, READY
    from nightshift.collectors.http import SourceError

    asks = (
        ("cordoned", f"max by (node) ({CORDONS})", 0.5),
        ("not ready", f'1 - max by (node) ({READY}{{condition="Ready",status="true"}})', 0.5),
    )
    found: list[OwnEvent] = []
    known: bool | None = False
    for kind, query, above in asks:
        try:
            for matrix in reader.matrices(query, start_s, end_s):
                known = known or (kind == "cordoned" and bool(np.isfinite(matrix.values).any()))
                names = [str(labels.get("node", "")) for labels in matrix.labels]
                found += own_events(kind, names, matrix.t_s.tolist(), (matrix.values - above).tolist())
        except SourceError as error:
            reader.reading.failed.append(f"{kind} nodes: {error}")
            # Unknown is not "none": the report must not say that nothing was cordoned.
            known = None if kind == "cordoned" else known
    return sorted(found, key=lambda e: (e.at_s, e.node)), known


def calibrate(
    prometheus: Annotated[str, typer.Option(help="URL of your Prometheus (Thanos, Mimir, VictoriaMetrics)")],
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write (JSON)")],
    days: Annotated[float, typer.Option(min=0.01, max=400, help="How far back to read")] = 14.0,
    step_s: Annotated[float, typer.Option(min=1, help="Time between two looks (s)")] = 60.0,
    load: Annotated[
        float, typer.Option(min=0.01, max=1, help="Largest share of the time that queries may take")
    ] = 0.5,
    matchers: Annotated[str, typer.Option(help='Label matchers for every query, e.g. cluster="prod-1"')] = "",
    config: Config = None,
) -> None:
    """Calibrate the statistical detectors' false-alarm rates on your own telemetry. Needs no rights in the cluster.

    Alarms on a node within a day of its own cordon or unreadiness are excluded. All others count as false.
    """
    from nightshift.agent.history.calibration import excused_by, table
    from nightshift.agent.settings import load as load_settings
    from nightshift.collectors.base import Permanent
    from nightshift.collectors.http import checked_url
    from nightshift.collectors.subject import Inventory
    from nightshift.detectors.alarms.calibration import fitted, listen, loosened, save
    from nightshift.detectors.plugins import ALL

    settings = load_settings(config)
    reader, start_s, end_s = _opened(prometheus, matchers, days, step_s, load)
    inventory = Inventory(settings.cluster)
    progress = progress_line(start_s, end_s, sys.stderr.isatty())
    try:
        reader.probe(end_s)
        own, _ = _own_record(reader, start_s, end_s)
        entries = settings.detectors
        # Below their thresholds: at those, months of telemetry would hold too few alarms to fit a tail.
        loose = loosened(ALL, {kind.plugin: getattr(entries, kind.plugin) for kind in ALL})
        _expect((one.detector for one in loose), step_s)
        ticks = _telling(reader.ticks(start_s, end_s, inventory), progress)
        heard = listen(loose, ticks, inventory, excused_by(own, inventory))
    finally:
        reader.close()
    tails = fitted(heard, f"{checked_url(prometheus)}, {days:g} days to {time.strftime('%F', time.gmtime(end_s))}")
    if not tails:
        raise Permanent(f"--prometheus: nothing that a detector watches was found in {days:g} days")
    save(output, tails)
    strengths = {one.detector.name: getattr(entries, one.detector.name).strength for one in loose}
    typer.echo(table(tails, strengths, settings.budget), nl=False)
    typer.echo(f"{output} is written. Set budget.calibration to it.")


def _telling(ticks: Iterator[Tick], progress: Callable[[float], None]) -> Iterator[Tick]:
    for tick in ticks:
        progress(tick.at_s)
        yield tick


COMMANDS: tuple[Any, ...] = (lookback, calibrate)
