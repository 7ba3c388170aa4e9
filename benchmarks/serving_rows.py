"""What the benchmarks of serving share: arguments, rows kept as they come, kinds in turn, and workers.

A worker is a process of its own: one order a line goes in, one row a line comes out. It is started again where it
ends or takes longer than it may.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).parents[1]
START_S = 120.0
T = TypeVar("T")


def parser(text: str | None) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("folder", type=Path)
    made.add_argument("--out", type=Path)
    made.add_argument("--until", type=float, default=1e9, help="seconds")
    return made


def rows_in(out: Path, name: str = "rows") -> dict[str, Any]:
    """The rows that a result file has; none where there is no file."""
    return dict(json.loads(out.read_text())[name]) if out.exists() else {}


def save(out: Path, benchmark: str, device: str, figures: Mapping[str, Any], **rows: Mapping[str, Any]) -> None:
    """The result file, whole or not at all."""
    from nightshift.kernels.judge.environment import environment
    from nightshift.version import commit

    head = {"benchmark": benchmark, "commit": commit() or "unknown", "environment": environment(device).to_json()}
    kept = {name: dict(sorted(found.items())) for name, found in rows.items()}
    part = out.with_suffix(".part")
    part.write_text(json.dumps({**head, **figures, **kept}, indent=1) + "\n")
    part.replace(out)


def in_turn(items: Iterable[T], kind: Callable[[T], str], order: Sequence[str] = ()) -> list[T]:
    """One of every kind before the second of any; kinds in a given order, others by name."""
    kinds: dict[str, list[T]] = {name: [] for name in order}
    for item in items:
        kinds.setdefault(kind(item), []).append(item)
    names = [*order, *sorted(kinds.keys() - set(order))]
    most = max(map(len, kinds.values()), default=0)
    return [kinds[name][turn] for turn in range(most) for name in names if turn < len(kinds[name])]


def source(folder: Path) -> dict[str, Any]:
    """Which commit of which repository a folder was made of (`benchmarks.serving_folder`)."""
    place = folder / "source.json"
    return dict(json.loads(place.read_text())) if place.exists() else {}


def serve(answer: Callable[[Mapping[str, Any]], dict[str, Any]]) -> None:
    """A worker's loop: an order that cannot be answered costs its own row, and no other."""
    from nightshift.kernels.problem import ProblemError

    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print(json.dumps({"ready": True}), file=out, flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        try:
            row = answer(order)
        except ProblemError as error:
            row = {"status": "not judged", "reason": "unfit", "detail": str(error)[:400]}
        except Exception as error:  # noqa: BLE001  one row, and the rest is judged
            row = {"status": "not judged", "reason": "judge", "detail": f"{type(error).__name__}: {error}"[:400]}
        print(json.dumps({"key": order["key"], **row}), file=out, flush=True)
        if "CUDA error" in str(row.get("detail")):
            return  # nothing more can be had from this process's GPU; the next order starts another


def entry_of(source: str, folder: Path, number: int) -> Callable[..., Any]:
    """A kernel of ours, in this process; Triton reads its text from a file."""
    path = folder / f"kernel_{number}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.entry  # type: ignore[no-any-return]


def seconds(call: Callable[[], Any]) -> float:
    """By CUDA's events."""
    import torch

    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) * 1e-3


class Worker:
    """A worker's process."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._command = [sys.executable, "-m", module, *arguments]
        self._process: subprocess.Popen[str] | None = None

    def ask(self, order: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
            )
            self._line(START_S)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        line = self._line(limit_s)
        if line is None:
            self.close()
            detail = f"{limit_s:.0f} s over"
            return {"key": order["key"], "status": "not judged", "reason": "limit", "detail": detail}
        made: dict[str, Any] = json.loads(line)
        return made

    def _line(self, limit_s: float) -> str | None:
        assert self._process is not None
        assert self._process.stdout is not None
        found: queue.Queue[str] = queue.Queue()
        threading.Thread(
            target=lambda out: found.put(out.readline()), args=[self._process.stdout], daemon=True
        ).start()
        try:
            return found.get(timeout=limit_s) or None
        except queue.Empty:
            return None

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
