"""The head, proven on one GPU in nine minutes: `make gpu-check`, before any claim about kernels.

    python -m benchmarks.kernels_gpu_check [--seed 0] [--until 530] [--out FILE]     # on every card that is there
    python -m benchmarks.kernels_gpu_check --device cpu --families 1 --good 1 --exploits 1   # that every part works

1. Each shipped family's best kernel (`kernels/generate/known.json` for this GPU, else where its search would begin)
   through the whole judge, with its race: none may be refused.
2. Known-good kernels and exploits, drawn by seed, as `benchmarks.kernels_exploits` judges them: each with a right
   reason.
3. One model of `benchmarks.kernels_zoo`: torch.compile's loss and gradients against eager's in float32.

Written after every verdict, with the commit and a hash of the judge's sources: a judge that has changed since is
another judge. What the time cut off stands under "not_run", and the exit code is 1 then, as where anything was not
as expected.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from nightshift.kernels.judge.verdict import Reason

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
FILE = "kernels_gpu_check.json"
PARTS = ("families", "good", "exploits", "zoo")
SHARE = 0.72
"""Of the time, after which the first two parts begin nothing more: the last one needs two minutes."""


@dataclass
class Book:
    """What the file holds. Every change of it is written at once."""

    path: Path
    until_s: float
    record: dict[str, Any]
    began: float = field(default_factory=time.monotonic)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def spent_s(self) -> float:
        return time.monotonic() - self.began

    def add(self, part: str, row: dict[str, Any]) -> None:
        with self._lock:
            self.record[part].append(row)
            if row.get("not_run"):
                self.record["not_run"].append(f"{part}: {row['name']}")
            self.record["took_s"] = round(self.spent_s(), 1)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            unfinished = self.path.with_suffix(".partial")
            unfinished.write_text(json.dumps(self.record, indent=1) + "\n")
            unfinished.replace(self.path)
        word = "left" if row.get("not_run") else "right" if row["right"] else "WRONG"
        print(f"[{self.spent_s():.0f} s] {word} {part} {row['name']} {row.get('reason', '')}", flush=True)

    def each(self, pieces: Sequence[Piece], threads: int, share: float = SHARE) -> None:
        """In one pool: none waits for the slowest of another part. After that share of the time no more is begun.
        One that found the GPU's memory taken is judged again, with one beside it."""
        again: list[Piece] = []

        def run(piece: Piece, last: bool) -> None:
            row = {"not_run": True, "right": False} if self.spent_s() > share * self.until_s else piece.row()
            if row.get("reason") == Reason.vram_taken and not last:
                again.append(piece)
            else:
                self.add(piece.part, {"name": piece.name, **row})

        for asked, count, last in ((pieces, threads, False), (again, 2, True)):
            with ThreadPoolExecutor(count) as pool:
                list(pool.map(run, list(asked), [last] * len(asked)))


@dataclass(frozen=True)
class Piece:
    """One thing to judge. row: judges it."""

    part: str
    name: str
    row: Callable[[], dict[str, Any]]


def slowest_first(pieces: Sequence[Piece], path: Path) -> list[Piece]:
    """By the seconds that each took in the committed run; one that had none comes first."""
    last = json.loads(path.read_text()) if path.exists() else {}
    parts = ("families", "good", "exploits")
    took = {(part, row["name"]): row.get("took_s") for part in parts for row in last.get(part, [])}
    return sorted(pieces, key=lambda piece: -(took.get((piece.part, piece.name)) or math.inf))


def judge_sha256() -> str:
    """Of the judge's sources: the rules that a certificate of this commit was given by."""
    digest = hashlib.sha256()
    folder = ROOT / "nightshift" / "kernels" / "judge"
    for path in sorted([*folder.rglob("*.py"), *folder.rglob("*.cu"), *folder.rglob("*.c")]):
        digest.update(f"{path.relative_to(folder)}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def best_of(family: Any, gpu: str, device: str) -> tuple[Any, Any, Any] | None:
    """(problem, case, candidate) of a family's best known kernel; None where it writes none for any case known."""
    from nightshift.kernels.generate.base import GeneratorError, Task
    from nightshift.kernels.generate.best_measured import known, templates
    from nightshift.kernels.generate.template import candidate
    from nightshift.kernels.loop.cli import _tiny
    from nightshift.kernels.loop.optimise import work_of
    from nightshift.kernels.ops.problems import named

    measured = [k for k in known() if k.family == family.name and k.problem in family.problems]
    for k in sorted(measured, key=lambda k: (k.gpu != gpu, family.problems.index(k.problem))):
        if device == "cuda":
            return named(k.problem), k.case, candidate(family, k.problem, k.case, k.config)
    for name in family.problems:
        for case in named(name).cases:
            work = work_of(named(name), case, "gpu-check", None, 0)
            task: Task = _tiny(work).task if device == "cpu" else work.task
            author = next((a for a in templates(gpu, name, task.case) if a.name == family.name), None)
            try:
                made = author.propose(task, [], 1) if author is not None else ()
            except GeneratorError:
                continue
            if made:
                return task.problem, task.case, made[0].candidate
    return None


def families(judge: Any, given: argparse.Namespace) -> list[Piece]:
    from nightshift.kernels.loop.optimise import ON_CPU
    from nightshift.kernels.loop.search import Ladder
    from nightshift.kernels.ops.families import ALL, interprets

    full = (Ladder() if given.device == "cuda" else ON_CPU).full
    chosen = [f for f in ALL if given.device == "cuda" or interprets(f.name)][: given.families or None]

    def one(family: Any) -> dict[str, Any]:
        found = best_of(family, judge.environment.gpu, given.device)
        if found is None:
            return {"right": False, "reason": "writes no kernel for a case of its problems"}
        problem, case, made = found
        verdict = judge.verdict(made, problem, replace(full, cases=(case,)))
        return {
            "problem": problem.name, "case": str(case),
            "right": not verdict.refused and verdict.stage != "machine", "status": verdict.status.value,
            "reason": verdict.reason.value, "detail": verdict.detail[:300], "took_s": round(verdict.took_s, 1),
        }  # fmt: skip

    return [Piece("families", family.name, partial(one, family)) for family in chosen]


def gallery(judge: Any, given: argparse.Namespace) -> list[Piece]:
    from benchmarks.kernels_exploits import pieces_of
    from nightshift.kernels.judge.gallery import show
    from nightshift.kernels.judge.probes.inputs import CPU, INTERPRETER, QUICK_GPU
    from nightshift.kernels.judge.race.contest import QUICK

    draw, found = random.Random(given.seed), []
    on_cpu = given.device == "cpu"
    for part, folder, count in (("good", "good", given.good), ("exploits", "static_off", given.exploits)):
        # pieces against the clock want the GPU to themselves; a check of minutes draws of the others
        there = [p for p in pieces_of(folder, given.device) if not (p.timed or p.huge)]

        def one(piece: Any, static: bool = part == "good") -> dict[str, Any]:
            triton = piece.file.candidate.language == "triton"
            scope = QUICK_GPU if not on_cpu else INTERPRETER if triton else CPU
            return show(judge, piece, scope, static, QUICK).to_json()

        drawn = draw.sample(there, min(count, len(there)))
        found += [Piece(part, piece.name, partial(one, piece)) for piece in drawn]
    return found


def zoo(book: Book, given: argparse.Namespace) -> None:
    """A model of the zoo in a process of its own: its contestants must be right, none may fall out."""
    out = book.path.with_suffix("")
    left_s = book.until_s - book.spent_s()
    words = ["--only", given.model, "--parts", "race", "--contestants", "compile", "--out", str(out)]
    words += ["--until", f"{left_s - 5:.0f}", "--rounds", "5", "--device", given.device, "--commit", given.commit]
    words += ["--tiny"] if given.device == "cpu" else []
    if left_s < 40.0:
        return book.add("zoo", {"name": given.model, "not_run": True, "right": False})
    code = subprocess.run([sys.executable, "-m", "benchmarks.kernels_zoo", *words], check=False).returncode
    path = out / f"{given.model}.race.json"
    told = json.loads(path.read_text()) if path.exists() else {"contestants": {}}
    contestants = told["contestants"]
    wrong = {name: one["left_out"] for name, one in contestants.items() if "left_out" in one}
    steps = {name: one["step_s"] for name, one in contestants.items() if "step_s" in one}
    right = code == 0 and not wrong and len(steps) == 2
    return book.add("zoo", {"name": given.model, "right": right, "reason": str(wrong or ""), "step_s": steps})


def spread(given: argparse.Namespace) -> dict[str, Any]:
    """One process for each card, each with its share of the pieces; the first also has the model."""
    from benchmarks.part import Part

    given.out.parent.mkdir(parents=True, exist_ok=True)
    files = [given.out.with_suffix(f".{card}.json") for card in range(given.cards)]
    own = ["--cards", str(given.cards), "--commit", given.commit]
    parts = [
        Part(given.out.parent, "kernels_gpu_check", n, *sys.argv[1:], *own, "--share", str(n), "--out", str(file))
        for n, file in enumerate(files)
    ]
    until_s = time.time() + given.until + 60.0
    while not all(part.over(until_s) for part in parts):
        time.sleep(0.5)
    if lost := [str(file) for file in files if not file.exists()]:
        raise SystemExit(f"no check: {', '.join(lost)} was not written; the logs in {given.out.parent} say why")
    records = [json.loads(file.read_text()) for file in files]
    whole: dict[str, Any] = records[0] | {"cards": given.cards, "took_s": max(r["took_s"] for r in records)}
    for key in (*PARTS, "not_run"):
        whole[key] = [row for record in records for row in record[key]]
    given.out.write_text(json.dumps(whole, indent=1) + "\n")
    return whole


def told(record: dict[str, Any], out: Path) -> int:
    """The exit code, and the last line."""
    rows = [row for part in PARTS for row in record[part]]
    right = sum(row["right"] for row in rows)
    print(f"{right} of {len(rows)} as expected, {len(record['not_run'])} not run; {out}")
    return 0 if right == len(rows) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--seed", type=int, default=0, help="Draws the pieces of the galleries")
    parser.add_argument("--until", type=float, default=530.0, help="Seconds for all of it")
    parser.add_argument("--families", type=int, default=0, help="The first so many; 0: all")
    parser.add_argument("--good", type=int, default=20)
    parser.add_argument("--exploits", type=int, default=10)
    parser.add_argument("--model", default="llama3", help="Of benchmarks.kernels_zoo")
    parser.add_argument("--threads", type=int, default=0, help="Default: 8, on a CPU 1")
    parser.add_argument("--commit", default="", help="Where the checkout has no .git")
    parser.add_argument("--cards", type=int, default=0, help="0: all")
    parser.add_argument("--share", type=int, default=-1, help=argparse.SUPPRESS)
    results = Path(os.environ.get("OUT", RESULTS))
    parser.add_argument("--out", type=Path, default=results / FILE)
    given = parser.parse_args()
    if given.device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
    import torch

    from nightshift.kernels.judge.host.process import Limits
    from nightshift.kernels.judge.judge import Judge
    from nightshift.version import commit

    given.commit = given.commit or commit() or "unknown"
    given.threads = given.threads or (8 if given.device == "cuda" else 1)
    given.cards = given.cards or (torch.cuda.device_count() if given.device == "cuda" else 1)
    if given.cards > 1 and given.share < 0:
        return told(spread(given), given.out)
    # Triton's interpreter takes minutes for what a GPU does in a second
    limits = Limits(import_s=300.0, call_s=300.0) if given.device == "cpu" else Limits()
    with Judge(given.device, interpret=given.device == "cpu", compiled=False, limits=limits) as judge:
        book = Book(given.out, given.until, {
            "commit": given.commit, "judge_sha256": judge_sha256(), "seed": given.seed,
            "environment": judge.environment.to_json(), **{part: [] for part in PARTS}, "not_run": [],
        })  # fmt: skip
        pieces = [*families(judge, given), *gallery(judge, given)]
        mine = slowest_first(pieces, RESULTS / FILE)[max(given.share, 0) :: given.cards]
        book.each(mine, given.threads, SHARE if given.share < 1 else 1.0)
    if given.share < 1:  # its own process has the GPU to itself
        zoo(book, given)
    return told(book.record, given.out)


if __name__ == "__main__":
    raise SystemExit(main())
