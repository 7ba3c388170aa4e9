"""Puts each public report of a batch through the real collectors and the daemon.

`python -m benchmarks.field BATCH [--seed N] [--out NAME]` writes `results/field_batch_N.json`. One report is one
fresh daemon (SQLite, no model, no actuators) with one source, a file that grows as the log did. It counts as right
if an incident opened within three minutes in which title, headline or a finding's summary names the fault. A
healthy log counts as right if none opened. Nothing else of the daemon is replaced; only its clock is stepped.
"""

from __future__ import annotations

import argparse
import importlib
import random
import re
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from string import Template
from typing import Any

from benchmarks.field.report import Channel, FieldReport
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
        }
        self._step = draw.randrange(400, 4_000)

    def fill(self, line: str) -> str:
        self._step += 1
        loss = 2.2 + 60.0 / (self._step + 100.0) + self._random.gauss(0.0, 0.02)
        norm = 1.2 + self._random.gauss(0.0, 0.05)
        return Template(line).safe_substitute(self._fixed, step=self._step, loss=f"{loss:.4f}", norm=f"{norm:.3f}")


def chunks(report: FieldReport) -> Iterator[list[str]]:
    """What the log gets in each tick."""
    for _ in range(BEFORE // 2 if report.before else 2):
        yield [report.before] * 2 if report.before else []
    if len(report.lines) >= 6 and len(set(report.lines)) == 1:  # steps come as steps do
        yield from ([line] for line in report.lines)
    else:
        yield list(report.lines)
    yield from ([] for _ in range(int(WITHIN_S / TICK_S)))


def syslog(line: str, at_s: float, drawn: Drawn, program: str) -> str:
    """rsyslog's lines: a record of several lines is one line of the file for each, under one stamp."""
    stamp = datetime.fromtimestamp(at_s, UTC).isoformat(timespec="microseconds")
    head = f"{stamp} {drawn.host} {drawn.fill(program)}: "
    return "".join(f"{head}{part}\n" for part in drawn.fill(line).split("\n"))


def play(report: FieldReport, seed: int) -> dict[str, Any]:
    drawn = Drawn(seed, report.source)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        if report.channel is Channel.KERNEL:
            path = home / "kern.log"
            source: dict[str, Any] = {"type": "kernel_log", "source": "file", "path": str(path), "node": drawn.host}
        else:
            path = home / "logs" / "ml_train-0_main.log"
            path.parent.mkdir()
            source = {"type": "training_logs", "directory": str(path.parent)}
        path.touch()
        settings = Settings.model_validate(
            {"cluster": "field", "state_dir": str(home / "state"), "tick_s": TICK_S, "sources": [source],
             "actuators": [], "console": {"port": 0}}
        )  # fmt: skip
        clock = SteppedClock(START_S)
        app = App(settings, clock=clock)
        try:
            app.start()
            app.tick()
            for lines in chunks(report):
                with path.open("a") as out:
                    for line in lines:
                        kernel = report.channel is Channel.KERNEL
                        out.write(
                            syslog(line, clock.now_s(), drawn, report.program)
                            if kernel
                            else f"{drawn.fill(line)}\n"
                        )
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
    write(
        args.out or f"field_batch_{args.batch}",
        {"commit": commit(), "seed": args.seed, "reports": len(rows), "right": right,
         "share": round(right / len(rows), 3), "rows": rows},
    )  # fmt: skip


if __name__ == "__main__":
    main()
