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
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from string import Template
from typing import Any

from benchmarks.field.feeds import FEEDS
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
WITHIN_S = 180.0
_MIXED = 6
"""From so many lines on, a log of the same line throughout is a run's steps."""


class Drawn:
    """The values of one report. Losses fall slowly and scatter a little, as a healthy run's do."""

    def __init__(self, seed: int, source: str) -> None:
        self._random = random.Random(f"{seed}:{source}")
        draw = self._random
        self.host = f"gpu-{draw.choice('abcdef')}{draw.randrange(100):02d}"
        self._fixed = {
            "host": self.host,
            "pci": f"0000:{draw.randrange(0x03, 0xE0):02x}:00",
            "gpu": str(draw.randrange(8)),
            "pid": str(draw.randrange(1_000, 4_000_000)),
            "n": str(draw.randrange(10, 900)),
            "pod": f"train-{draw.randrange(100)}-worker-{draw.randrange(8)}",
        }
        self._step = draw.randrange(400, 4_000)
        self._booted_s = draw.uniform(1_000.0, 9e6)

    def fill(self, line: str) -> str:
        self._step += 1
        loss = 2.2 + 60.0 / (self._step + 100.0) + self._random.gauss(0.0, 0.02)
        norm = 1.2 + self._random.gauss(0.0, 0.05)
        return Template(line).safe_substitute(self._fixed, step=self._step, loss=f"{loss:.4f}", norm=f"{norm:.3f}")

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


def chunks(report: FieldReport) -> Iterator[list[str]]:
    """What the source gets in each tick."""
    for _ in range(BEFORE // 2 if report.before else 2):
        yield [report.before] * 2 if report.before else []
    if len(report.lines) >= _MIXED and len(set(report.lines)) == 1:  # steps come as steps do
        yield from ([line] for line in report.lines)
    else:
        yield list(report.lines)
    yield from ([] for _ in range(int(WITHIN_S / TICK_S)))


def play(report: FieldReport, seed: int) -> dict[str, Any]:
    drawn = Drawn(seed, report.source)
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        feed = stack.enter_context(FEEDS[report.channel](home, report, drawn))
        settings = Settings.model_validate(
            {"cluster": "field", "state_dir": str(home / "state"), "tick_s": TICK_S, "actuators": [],
             "console": {"port": 0}, **feed.settings()}
        )  # fmt: skip
        clock = SteppedClock(START_S)
        app = App(settings, clock=clock)
        try:
            app.start()
            app.tick()
            for lines in chunks(report):
                feed.put(lines, clock.now_s())
                clock.wait_until(clock.now_s() + TICK_S)
                look = app.tick()
                if look is not None and look.decisions:
                    app.settle()
            app.settle()
            incidents = [app.store.incident(row.id) for row in app.store.incidents()]
        finally:
            app.stop()
    told = [texts(one) for one in incidents]
    right = any(re.search(report.words, text) for titles in told for text in titles) if report.opens else not told
    return {
        "source": report.source,
        "channel": str(report.channel),
        "opens": report.opens,
        "right": right,
        "incidents": [titles[0] for titles in told],
        "severities": [str(one.severity) for one in incidents],
    }


def texts(incident: Incident) -> list[str]:
    """What a person reads first: title, headline, and what each finding says. No quoted line of the log counts."""
    headline = [incident.diagnosis.headline] if incident.diagnosis is not None else []
    return [incident.title, *headline, *(stored.finding.summary for stored in incident.findings)]


def main() -> None:
    parser = argparse.ArgumentParser(description="Put a batch of public reports through the daemon")
    parser.add_argument("batch", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", help="name of the result; field_batch_N by default")
    args = parser.parse_args()
    batch: Sequence[FieldReport] = importlib.import_module(f"benchmarks.field.batch_{args.batch}").BATCH
    with ProcessPoolExecutor(args.jobs) as pool:
        rows = list(pool.map(play, batch, [args.seed] * len(batch)))
    right = sum(row["right"] for row in rows)
    by_channel = {
        str(channel): f"{sum(row['right'] for row in mine)} of {len(mine)}"
        for channel in Channel
        if (mine := [row for row in rows if row["channel"] == channel])
    }
    write(
        args.out or f"field_batch_{args.batch}",
        {"commit": commit(), "seed": args.seed, "reports": len(rows), "right": right,
         "share": round(right / len(rows), 3), "by_channel": by_channel, "rows": rows},
    )  # fmt: skip


if __name__ == "__main__":
    main()
