"""Reads a profiler trace of 100 MB and more: ours against json.load, which HTA and most tools use.

    python -m benchmarks.kineto_speed

The trace is the recorded one of an H200, repeated in time with fresh correlation and external ids, so that names,
shapes and nesting are real. Every reader runs in a process of its own; its peak memory is what the kernel says of
that process (VmHWM) and its time is CPU time.
"""

from __future__ import annotations

import argparse
import gzip
import json
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RECORDED = Path(__file__).parents[1] / "tests" / "recordings" / "h200_train_trace.json.gz"
RESULT = Path(__file__).parent / "results" / "kineto_speed.json"
IDS = {"External id": 1 << 20, "correlation": 1 << 20, "Ev Idx": 1 << 20}


def repeat(target: Path, size_bytes: int) -> int:
    """Writes a trace of at least that size; the number of complete events in it."""
    document = json.loads(gzip.decompress(RECORDED.read_bytes()))
    events = document.pop("traceEvents")
    span_us = max(e["ts"] + e.get("dur", 0) for e in events) - min(e["ts"] for e in events)
    count = copies = 0
    with target.open("w") as out:
        out.write(json.dumps(document, indent=2)[:-2] + ',\n  "traceEvents": [\n')
        while out.tell() < size_bytes:
            for event in events:
                shifted = {**event, "ts": round(event["ts"] + copies * span_us, 3)}
                if "args" in event:
                    args = event["args"].items()
                    shifted["args"] = {k: v + copies * IDS[k] if k in IDS else v for k, v in args}
                if "id" in event:
                    shifted["id"] = event["id"] + copies * (1 << 20)
                out.write(("" if count == 0 else ",\n") + "  " + json.dumps(shifted, indent=2))
                count += 1
            copies += 1
        out.write("\n]}\n")
    return copies * sum(e["ph"] == "X" and e.get("cat") != "Trace" for e in events)


def ours(path: Path) -> int:
    from nightshift.collectors.training.kineto_reader import read_trace

    return len(read_trace(path).events)


def ours_with_steps(path: Path) -> int:
    from nightshift.collectors.training.kineto_reader import read_trace
    from nightshift.collectors.training.kineto_steps import activities_of, step_times

    trace = read_trace(path)
    step_times(trace, activities_of(trace))
    return len(trace.events)


def json_load(path: Path) -> int:
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
        events = json.load(stream)["traceEvents"]
    return sum(e["ph"] == "X" and e.get("cat") != "Trace" for e in events)


def json_load_columns(path: Path) -> int:
    """What HTA's parser does before its own work: json, then a pandas frame of the complete events."""
    import pandas as pd

    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
        frame = pd.DataFrame(json.load(stream)["traceEvents"])
    return int(((frame["ph"] == "X") & (frame["cat"] != "Trace")).sum())


READERS = {f.__name__: f for f in (ours, ours_with_steps, json_load, json_load_columns)}


def _one(reader: str, path: Path) -> None:
    begun = resource.getrusage(resource.RUSAGE_SELF)
    started = time.perf_counter()
    events = READERS[reader](path)
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = used.ru_utime + used.ru_stime - begun.ru_utime - begun.ru_stime
    wall_s = time.perf_counter() - started
    print(json.dumps({"events": events, "cpu_s": cpu_s, "wall_s": wall_s, "peak_bytes": used.ru_maxrss * 1024}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--output", type=Path, default=RESULT)
    parser.add_argument("--one", nargs=2, metavar=("READER", "FILE"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        _one(given.one[0], Path(given.one[1]))
        return
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "trace.json"
        events = repeat(plain, given.megabytes * 1_000_000)
        trace_bytes = plain.stat().st_size
        squeezed = Path(folder) / "trace.json.gz"
        squeezed.write_bytes(gzip.compress(plain.read_bytes(), 6))
        for path in (plain, squeezed):
            for reader in READERS:
                command = [sys.executable, "-m", "benchmarks.kineto_speed", "--one", reader, str(path)]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                found = json.loads(done.stdout)
                assert found["events"] == events, (reader, found, events)
                packing = "gzip" if path.suffix == ".gz" else "plain"
                rows[f"{reader} {packing}"] = found
                print(
                    f"{reader:18} {packing:6} {found['cpu_s']:6.2f} s CPU "
                    f"{found['peak_bytes'] / 2**20:7.0f} MiB  {found['events']} events"
                )
    result = {
        "environment": {"python": platform.python_version(), "machine": platform.machine()},
        "trace_bytes": trace_bytes,
        "goal": {"cpu_s": 10.0, "peak_bytes": 2**30},
        "rows": rows,
    }
    given.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
