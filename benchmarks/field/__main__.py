"""Puts each public report of a batch through the real collectors and the daemon.

`python -m benchmarks.field BATCH [--seed N] [--out NAME]` writes `results/field_batch_N.json`. One report is one
fresh daemon (SQLite, no model, no actuators) with one source: a log file that grows as the log did, an exporter's
page over HTTP, or objects at the API server of the tests. It counts as right if an incident opened within three
minutes in which title, headline or a finding's summary names the fault. A healthy report counts as right if none
opened. Nothing else of the daemon is replaced; only its clock is stepped.

`python -m benchmarks.field drawn --draws N` plays drawn kinds instead (see `benchmarks.field.kinds`).
"""

from __future__ import annotations

import argparse
import importlib
import random
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from string import Template
from typing import Any

from benchmarks.field.feeds import FEEDS
from benchmarks.field.kinds import ALL, draw
from benchmarks.field.report import Channel, FieldReport, Form
from benchmarks.report import write
from nightshift.agent.app import App
from nightshift.agent.clock import SteppedClock
from nightshift.agent.settings import Settings
from nightshift.agent.store.incident import Incident
from nightshift.version import commit

START_S = 1_795_500_000.0
TICK_S = 5.0
BEFORE = 120
"""Healthy step lines before the fault, two a tick."""
DRAWN_BEFORE = 60
WITHIN_S = 180.0
_STAMP = re.compile(r"\b20\d\d-\d\d-\d\d([T ])\d\d:\d\d:\d\d")
_MIXED = 6
"""From so many lines on, a log of the same line throughout is a run's steps."""


class Drawn:
    """The values of one report. Losses fall slowly and scatter a little, as a healthy run's do."""

    def __init__(self, seed: int, source: str) -> None:
        self._random = random.Random(f"{seed}:{source}")
        draw = self._random
        self.host = f"gpu-{draw.choice('abcdef')}{draw.randrange(100):02d}"
        self.values = {
            "host": self.host,
            "pci": f"0000:{draw.randrange(0x03, 0xE0):02x}:00",
            "gpu": str(draw.randrange(8)),
            "pid": str(draw.randrange(1_000, 4_000_000)),
            "n": str(draw.randrange(10, 900)),
            "pod": f"train-{draw.randrange(100)}-worker-{draw.randrange(8)}",
        }
        self._step = draw.randrange(400, 4_000)
        self._booted_s = draw.uniform(1_000.0, 9e6)
        self.filled: dict[str, list[str]] = {}
        """What each line of the report became, each time that it was written."""

    def fill(self, line: str, at_s: float | None = None) -> str:
        """at_s: the stamps with a year become this time's, as the line was new when it was written (Unix s)."""
        template = line
        if at_s is not None:
            at = datetime.fromtimestamp(at_s, UTC)
            line = _STAMP.sub(lambda match: f"{at:%Y-%m-%d}{match.group(1)}{at:%H:%M:%S}", line)
        self._step += 1
        loss = 2.2 + 60.0 / (self._step + 100.0) + self._random.gauss(0.0, 0.02)
        norm = 1.2 + self._random.gauss(0.0, 0.05)
        done = Template(line).safe_substitute(self.values, step=self._step, loss=f"{loss:.4f}", norm=f"{norm:.3f}")
        self.filled.setdefault(template, []).append(done)
        return done

    def stamped(self, line: str, at_s: float, report: FieldReport) -> str:
        """A record as it stands in the file: of several lines, each is one line of the file under one stamp."""
        at, program, text = datetime.fromtimestamp(at_s, UTC), self.fill(report.program), self.fill(line)
        head = {
            Form.RSYSLOG: f"{at.isoformat(timespec='microseconds')} {self.host} {program}: ",
            Form.DMESG: f"{at.isoformat(timespec='microseconds')} {self.host} {program}: "
            f"[{at_s - START_S + self._booted_s:12.6f}] ",
            Form.DMESG_T: f"[{at:%a %b %e %H:%M:%S %Y}] ",
            Form.JOURNAL: f"{at:%b %d %H:%M:%S} {self.host} {program}: ",
        }.get(report.form, "")
        return "".join(f"{head}{part}\n" for part in text.split("\n"))


def chunks(report: FieldReport, before: int = BEFORE) -> Iterator[list[str]]:
    """What the source gets in each tick."""
    for _ in range(before // 2 if report.before else 2):
        yield [report.before] * 2 if report.before else []
    if len(report.lines) >= _MIXED and len(set(report.lines)) == 1:  # steps come as steps do
        yield from ([line] for line in report.lines)
    else:
        yield list(report.lines)
    yield from ([] for _ in range(int(WITHIN_S / TICK_S)))


def play(
    report: FieldReport,
    seed: int,
    before: int = BEFORE,
    until_right: bool = False,
    fed: Callable[[FieldReport, int], Iterable[list[str]]] = chunks,
    ask: Callable[[App, Drawn], dict[str, Any]] = lambda app, drawn: {},
    more: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """One report through a daemon. before: healthy step lines. until_right: whether to stop at the right incident,
    so that what else opens within three minutes is not told. fed: what the source gets in each tick. ask: further
    figures, of the daemon as it stands at the end. more: further settings of the daemon."""
    drawn = Drawn(seed, report.source)
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        feed = stack.enter_context(FEEDS[report.channel](home, report, drawn))
        settings = Settings.model_validate(
            {"cluster": "field", "state_dir": str(home / "state"), "tick_s": TICK_S, "actuators": [],
             "console": {"port": 0}, **feed.settings(), **(more or {})}
        )  # fmt: skip
        clock = SteppedClock(START_S)
        app = App(settings, clock=clock)
        try:
            app.start()
            app.tick()
            for lines in fed(report, before):
                feed.put(lines, clock.now_s())
                clock.wait_until(clock.now_s() + TICK_S)
                look = app.tick()
                if look is not None and look.decisions:
                    app.settle()
                    if until_right and is_right(report, _told(app)):
                        break
            app.settle()
            incidents = [app.store.incident(row.id) for row in app.store.incidents()]
            told, figures = _told(app), ask(app, drawn)
        finally:
            app.stop()
    return {
        "source": report.source,
        "channel": str(report.channel),
        "opens": report.opens,
        "right": is_right(report, told) if report.opens else not told,
        "incidents": [titles[0] for titles in told],
        "severities": [str(one.severity) for one in incidents],
        **figures,
    }


def _told(app: App) -> list[list[str]]:
    return [texts(app.store.incident(row.id)) for row in app.store.incidents()]


def is_right(report: FieldReport, told: Sequence[Sequence[str]]) -> bool:
    """Whether an incident names the fault."""
    return report.opens and any(re.search(report.words, text) for titles in told for text in titles)


def texts(incident: Incident) -> list[str]:
    """What a person reads first: title, headline, and what each finding says. No quoted line of the log counts."""
    headline = [incident.diagnosis.headline] if incident.diagnosis is not None else []
    return [incident.title, *headline, *(stored.finding.summary for stored in incident.findings)]


def score(rows: Sequence[Mapping[str, Any]], field: str) -> dict[str, str]:
    """Right of all, by a field of the rows."""
    found: dict[str, list[bool]] = {}
    for row in rows:
        found.setdefault(row[field], []).append(row["right"])
    return {name: f"{sum(right)} of {len(right)}" for name, right in sorted(found.items())}


def reports(
    what: str, draws: int, seed: int, channel: str | None, kinds: Sequence[str] | None = None
) -> list[FieldReport]:
    """A batch by its number, or so many draws, each kind in turn. channel, kinds: only of these."""
    if what != "drawn":
        batch: Sequence[FieldReport] = importlib.import_module(f"benchmarks.field.batch_{int(what)}").BATCH
        return [one for one in batch if channel in (None, one.channel)]
    names = [name for name, kind in ALL.items() if channel in (None, kind.channel) and name in (kinds or ALL)]
    return [draw(names[number % len(names)], seed * 1_000_000 + number) for number in range(draws)]


def main() -> None:
    parser = argparse.ArgumentParser(description="Put public reports, or drawn ones, through the daemon")
    parser.add_argument("what", help="number of a batch, or `drawn`")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--channel", choices=[str(channel) for channel in Channel])
    parser.add_argument("--kind", action="append", choices=[*ALL], help="only draws of this kind; may be repeated")
    parser.add_argument("--out", help="name of the result; field_batch_N or field_drawn by default")
    args = parser.parse_args()
    batch = reports(args.what, args.draws, args.seed, args.channel, args.kind)
    played = partial(play, seed=args.seed)
    if args.what == "drawn":
        played = partial(play, seed=args.seed, before=DRAWN_BEFORE, until_right=True)
    with ProcessPoolExecutor(args.jobs) as pool:
        rows = list(pool.map(played, batch))
    right = sum(row["right"] for row in rows)
    result = {
        "commit": commit(), "seed": args.seed, "reports": len(rows), "right": right,
        "share": round(right / len(rows), 3), "by_channel": score(rows, "channel"),
    }  # fmt: skip
    if args.what == "drawn":
        kinds = [{**row, "kind": row["source"].partition("#")[0]} for row in rows]
        result |= {"by_kind": score(kinds, "kind"), "missed": [row for row in rows if not row["right"]]}
        write(args.out or "field_drawn", result)
        return
    write(args.out or f"field_batch_{args.what}", {**result, "rows": rows})


if __name__ == "__main__":
    main()
