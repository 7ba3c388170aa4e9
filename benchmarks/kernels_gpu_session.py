"""What the judge's next GPU minutes are for, in the order of what they teach: at most ten minutes, one command.

    python -m benchmarks.kernels_gpu_session --out FOLDER [--commit COMMIT] [--seconds 570]

1. All known-good candidates and all mutants, without the static read (`kernels_exploits.json`; written after every
   verdict): whether calls that overlap on two streams refuse the shared scratch buffer and nobody else, and whether
   the plans that ask every distribution in every dtype refuse a good kernel.
2. Two verdicts with other secrets of at least 30 own kernels, on the quick plan, raced in full
   (`kernels_judge.json`; written after every kernel): they must agree unless one is inconclusive.

Each part gets its share of the time and begins nothing after it. Copy what came back over benchmarks/results (the
first through `python -m benchmarks.kernels_exploits_merge`), then `python docs/generate.py`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.kernels_exploits import MUTANTS
from nightshift.kernels.judge.gallery import read_gallery
from nightshift.kernels.ops.problems import named

GOOD = Path(__file__).resolve().parents[1] / "tests" / "kernels" / "good"


def agreeing() -> list[str]:
    """The own kernels of the gallery, which alone are raced: one of each problem before a second of any, and those
    of small cases first."""
    own = [piece for piece in read_gallery(GOOD, "cuda") if piece.file.candidate.kind != "library"]
    turn: dict[str, int] = {}
    ranked = []
    for piece in own:
        turn[piece.file.problem] = turn.get(piece.file.problem, 0) + 1
        problem = named(piece.file.problem)
        size = max(problem.compulsory_bytes(case) for case in problem.cases)
        ranked.append((turn[piece.file.problem], size, piece.name))
    return [name for _, _, name in sorted(ranked)]


def commands(out: Path, commit: str, seconds: float) -> list[tuple[list[str], float]]:
    """(module and arguments, seconds after which it is ended)."""
    first, second = 0.58 * seconds, 0.38 * seconds
    exploits = ["benchmarks.kernels_exploits", "--threads", "8", "--until", f"{first - 45:.0f}", "--commit", commit]
    exploits += ["--out", str(out / "kernels_exploits.json"), "--parts", "good", *reversed(MUTANTS)]
    judge = [
        "benchmarks.kernels_judge",
        "--pairs",
        "0",
        "--races",
        "0",
        "--configurations",
        "0",
        "--plain",
        "--quick",
    ]
    judge += ["--seconds", f"{second - 40:.0f}", "--commit", commit, "--out", str(out / "kernels_judge.json")]
    return [(exploits, first), ([*judge, "--verdicts", *agreeing()], second)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--commit", default="")
    parser.add_argument("--seconds", type=float, default=570.0)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    for words, limit_s in commands(options.out, options.commit, options.seconds):
        print(f"{time.monotonic() - start:.0f} s:", " ".join(words[:8]), flush=True)
        try:
            code = subprocess.run([sys.executable, "-m", *words], timeout=limit_s, check=False).returncode
            print(f"{time.monotonic() - start:.0f} s: ended with {code}", flush=True)
        except subprocess.TimeoutExpired:
            print(f"{time.monotonic() - start:.0f} s: ended for its time; what it wrote stands", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
