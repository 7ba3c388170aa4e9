"""What opens although nothing failed: `FIELD_SETS=FOLDER python -m benchmarks.field.quiet jobs|lines --half odd`.

FOLDER holds public repositories as `owner+name/repo` (their git directories); none of their text is kept here.

    jobs     logs of training jobs that finished, as they grew in a daemon, and three minutes beyond their end:
             every incident is listed
    lines    normal lines: kernel and system logs labelled normal through the kernel log's parser, lines of finished
             jobs through the trainers' reader and the words of ended jobs: every event is listed, by source

A log whose name has an odd MD5 is for the score only (`--half odd`); what is mended is looked for in the others.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import os
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.field.__main__ import START_S, TICK_S, WITHIN_S
from benchmarks.report import write
from nightshift.agent.app import App
from nightshift.agent.clock import SteppedClock
from nightshift.agent.settings import Settings
from nightshift.collectors.frame import Instant, LogRecord
from nightshift.collectors.kernel_log.lines import KernelLogParser
from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.collectors.training.line import read_line
from nightshift.detectors.progress.job_crash import cause_of
from nightshift.version import commit

JOBS: Mapping[str, str] = {
    "mlcommons/training_results_v4.1": r"/results/.*/result_\d+\.txt$",
    "KellerJordan/modded-nanogpt": r"^records/.*\.txt$",
}
"""Runs whose owners published them as finished: MLPerf's rounds and a speed record's entries."""
SYSTEM: Mapping[str, str] = {
    "logpai/loghub": r"^(?:Linux|Thunderbird|BGL|HPC|Mac|OpenSSH)/\w+_2k\.log$",
    "clu6/supermicro": r"^dmesg\.txt$",
    "brehman1/Ubuntu-20.04-FIPS-logs": r"^dmesg2?\.txt$",
}
LABELLED = frozenset({"Thunderbird", "BGL"})
"""Of loghub's sets those with a label in front: `-` is normal, all others are alerts of the sites' engineers."""
AT_ONCE = 50
"""Jobs in one daemon."""
TICKS = 60
MAX_BYTES = 2**22
SHARE = {"KellerJordan/modded-nanogpt": 0.2}
"""How many of the played logs come from a set at most; its logs are twenty times as long as the others'."""
_STAMP = re.compile(rb"\b20\d\d-\d\d-\d\d([T ])\d\d:\d\d:\d\d")
_FAULT = re.compile(r"^BUG: |Oops: |Kernel panic")
_DMESG = re.compile(r"^\[ *\d+\.\d+\] ")
_SYSLOG = re.compile(r"^[A-Z][a-z]{2} +\d+ [\d:]{8} \S+ ")


@dataclass(frozen=True)
class PublicLog:
    repository: str
    path: str

    @property
    def name(self) -> str:
        return f"{self.repository}:{self.path}"

    @property
    def digest(self) -> int:
        return int(hashlib.md5(self.name.encode()).hexdigest(), 16)

    def read(self, folder: Path) -> bytes:
        return _git(folder, self.repository, "show", f"HEAD:{self.path}")


def _git(folder: Path, repository: str, *words: str) -> bytes:
    home = folder / repository.replace("/", "+") / "repo"
    return subprocess.run(["git", "-C", str(home), *words], check=True, capture_output=True).stdout


def logs(folder: Path, sets: Mapping[str, str], half: str) -> list[PublicLog]:
    """The half of each set, in an order that its names' digests give."""
    found = []
    for repository, pattern in sets.items():
        rows = (
            row.split("\t", 1)
            for row in _git(folder, repository, "ls-tree", "-r", "-l", "HEAD").decode().splitlines()
        )
        # a snapshot lacks its largest files, or tells no size of them
        sizes = {name: about.split()[3] for about, name in rows if re.search(pattern, name)}
        mine = [
            PublicLog(repository, name)
            for name, size in sizes.items()
            if size.isdecimal() and int(size) < MAX_BYTES
        ]
        found += [log for log in mine if half == "both" or log.digest % 2 == (half == "odd")]
    return sorted(found, key=lambda log: log.digest)


def play_together(group: Sequence[PublicLog], folder: Path) -> list[dict[str, str]]:
    """The incidents that a daemon opened while these jobs ran side by side and ended."""
    texts = [_STAMP.sub(b"", log.read(folder)).splitlines(keepends=True) for log in group]
    with tempfile.TemporaryDirectory() as home:
        directory = Path(home) / "logs"
        directory.mkdir()
        paths = [directory / f"ml_job{number}-0_main.log" for number in range(len(group))]
        for path in paths:
            path.touch()
        settings = Settings.model_validate(
            {"cluster": "quiet", "state_dir": f"{home}/state", "tick_s": TICK_S, "actuators": [],
             "sources": [{"type": "training_logs", "directory": str(directory)}], "console": {"port": 0}}
        )  # fmt: skip
        clock = SteppedClock(START_S)
        app = App(settings, clock=clock)
        try:
            app.start()
            for tick in range(TICKS + int(WITHIN_S / TICK_S)):
                for path, lines in zip(paths, texts, strict=True):
                    size = max(1, math.ceil(len(lines) / TICKS))
                    if part := lines[tick * size : (tick + 1) * size]:
                        with path.open("ab") as out:
                            out.writelines(part)
                clock.wait_until(clock.now_s() + TICK_S)
                look = app.tick()
                if look is not None and look.decisions:
                    app.settle()
            app.settle()
            titles = [app.store.incident(row.id).title for row in app.store.incidents()]
        finally:
            app.stop()
    found = []
    for title in titles:
        match = re.search(r"job(\d+)\b", title)
        found.append({"title": title, "log": group[int(match.group(1))].name if match else ""})
    return found


def play_jobs(folder: Path, half: str, most: int, jobs: int) -> dict[str, Any]:
    left = {name: int(SHARE.get(name, 1.0) * most) for name in JOBS}
    chosen: list[PublicLog] = []
    for log in logs(folder, JOBS, half):
        if left[log.repository] > 0 and len(chosen) < most:
            left[log.repository] -= 1
            chosen.append(log)
    groups = [chosen[start : start + AT_ONCE] for start in range(0, len(chosen), AT_ONCE)]
    with ProcessPoolExecutor(jobs) as pool:
        opened = [one for part in pool.map(play_together, groups, [folder] * len(groups)) for one in part]
    by_set = Counter(log.repository for log in chosen)
    return {"half": half, "logs": len(chosen), "by_set": dict(by_set), "incidents": len(opened), "opened": opened}


def system_lines(log: PublicLog, text: str) -> Iterator[str]:
    """Normal lines, as the kernel's own: without label and stamp."""
    is_labelled = log.path.split("/")[0] in LABELLED
    for line in text.splitlines():
        if not is_labelled:
            yield _SYSLOG.sub("", _DMESG.sub("", line))
        elif line.startswith("- "):
            parts = line.split(" ", 8)  # label, seconds, date, node, …, message
            yield parts[-1]


def read_lines(folder: Path, half: str, most: int) -> dict[str, Any]:
    """Events of the parsers in normal lines, by source: (what was told, how often, an example)."""
    counts: Counter[str] = Counter()
    events: dict[str, dict[str, list[Any]]] = {}

    def tell(source: str, what: str, line: str) -> None:
        entry = events.setdefault(source, {}).setdefault(what, [0, line[:160]])
        entry[0] += 1

    for log in logs(folder, SYSTEM, "both"):
        source = f"{log.repository} {log.path.split('/')[0]}"
        parser = KernelLogParser(Subject(SubjectKind.NODE, "n1"))
        for number, line in enumerate(system_lines(log, log.read(folder).decode(errors="replace"))):
            if _FAULT.search(line):
                break  # of a report of a bug, what comes before its fault
            counts[source] += 1
            record = LogRecord(Instant(float(number)), "kern.log", Subject(SubjectKind.NODE, "n1"), line, number)
            event = parser.read(record)
            if event is not None and "is_over" not in event.attributes:  # that a link is up is no fault
                tell(
                    source, f"{event.kind.value} {event.code or event.attributes.get('message', '')}".strip(), line
                )
    for log in logs(folder, JOBS, half):
        if sum(counts.values()) >= most:
            break
        source = log.repository
        for line in log.read(folder).decode(errors="replace").splitlines():
            counts[source] += 1
            if (cause := cause_of(line)) is not None:
                tell(source, f"ended: {cause[0].name}", line)
            read = read_line(line)
            if read is not None and any(math.isinf(value) for value in read.figures.values()):
                tell(source, "figure that is no number", line)
    return {"half": half, "lines": sum(counts.values()), "by_source": dict(counts), "events": events}


def main() -> None:
    parser = argparse.ArgumentParser(description="List what opens in logs in which nothing failed")
    parser.add_argument("what", choices=("jobs", "lines"))
    parser.add_argument("--half", choices=("odd", "even"), default="odd")
    parser.add_argument("--most", type=int, help="Logs (default 300) or lines (default 1,100,000)")
    parser.add_argument("--jobs", type=int, default=1)
    args = parser.parse_args()
    folder = Path(os.environ["FIELD_SETS"])
    if args.what == "jobs":
        result = play_jobs(folder, args.half, args.most or 300, args.jobs)
    else:
        result = read_lines(folder, args.half, args.most or 1_100_000)
    suffix = "" if args.half == "odd" else "_even"
    write(f"field_quiet_{args.what}{suffix}", {"commit": commit(), **result})


if __name__ == "__main__":
    main()
