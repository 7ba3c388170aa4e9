"""What the judge does on hardware beside refusing and racing: training steps, tier B, peers, huge tensors, re-runs.

    python -m benchmarks.kernels_hardware [--parts …] [--until SECONDS] [--commit COMMIT] [--out FILE]

training: known-good kernels with a backward pass, raced as training steps. tier_b: a kernel without a launch plan
and one with, on the same work. peers: which baselines were raced on a problem, and why not the others.
huge: kernels with right and wrong indices beyond 2^31 elements. l2: what asking L2 to hold lines gains under the
judge's clock. graphs: a baseline that no CUDA graph can capture leaves torch as it was. rerun: a certificate issued
here, verified with --rerun, and again with a drifted environment. machine: a judge whose own GPU context dies.
vram: a good candidate and one that eats the GPU's memory, alone, beside each other and beside another program.
Needs a CUDA GPU. Writes benchmarks/results/kernels_hardware.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from typer.testing import CliRunner

from nightshift.collectors.seal import Signer
from nightshift.kernels.candidate import Candidate
from nightshift.kernels.candidate_file import CandidateFile, read_candidate
from nightshift.kernels.certification.certificate import issue, verify
from nightshift.kernels.judge.judge import Judge, Request
from nightshift.kernels.judge.probes import inputs
from nightshift.kernels.judge.race.contest import FULL
from nightshift.kernels.judge.race.contestants import Baseline, graphed
from nightshift.kernels.judge.verdict import Verdict
from nightshift.kernels.loop.executor import Job, LocalExecutor
from nightshift.kernels.ops.problems import ALL, named

ROOT = Path(__file__).resolve().parents[1]
GALLERY = ROOT / "tests" / "kernels"


def _file(folder: str, name: str) -> CandidateFile:
    return read_candidate(next((GALLERY / folder).glob(f"{name}.*")))


def _row(name: str, verdict: Verdict) -> dict[str, Any]:
    record = verdict.to_json()
    kept = ("status", "reason", "detail", "stage", "stages", "comparisons", "left_out", "took_s")
    return {"name": name, **{key: record[key] for key in kept}}


def _quick(judge: Judge, file: CandidateFile, **changes: Any) -> Verdict:
    problem = named(file.problem)
    request = Request(
        inputs.QUICK_GPU, replace(FULL, energy_s=0.0, max_rounds=30), cases=problem.cases[:1], **changes
    )
    return judge.verdict(file.candidate, problem, request)


def training(judge: Judge) -> list[dict[str, Any]]:
    names = ("softmax_backward", "rmsnorm_backward", "layernorm_backward")
    return [_row(name, _quick(judge, _file("good", name))) for name in names]


def tier_b(judge: Judge) -> list[dict[str, Any]]:
    """The same kernel with a clone before it, which no plan holds; and the plain one."""
    file = _file("good", "softmax_row")
    cloned = replace(file.candidate, source=file.candidate.source.replace("def entry(x):", "def plain(x):", 1))
    cloned = replace(cloned, source=cloned.source + "\n\ndef entry(x):\n    return plain(x.clone())\n")
    rows = [_row("softmax_row, tier A", _quick(judge, file, gradients=False))]
    verdict = _quick(judge, replace(file, candidate=cloned), static=False, gradients=False)
    return [*rows, _row("softmax_row behind a clone, tier B", verdict)]


def peers(judge: Judge) -> list[dict[str, Any]]:
    rows = []
    for problem in ALL:
        case = problem.cases[0]
        start = time.time()
        solo = judge.solo(problem, case)
        told = [vars(entry) for entry in solo.left_out(str(case))]
        times = {name: s * 1e6 for name, s in solo.seconds.items()}
        row = {"problem": problem.name, "case": str(case), "microseconds": times, "left_out": told}
        rows.append({**row, "took_s": round(time.time() - start, 1)})
        print(problem.name, {n: round(t, 1) for n, t in times.items()}, solo.missing, flush=True)
    return rows


def huge(judge: Judge) -> list[dict[str, Any]]:
    scope = replace(inputs.QUICK_GPU, huge=True, sweep_random=0)
    rows = []
    for folder, name in (("good", "copy_rows"), ("good", "softmax_row"), ("exploits", "overflows_past_2_31")):
        file = _file(folder, name)
        rows.append(_row(name, judge.verdict(file.candidate, named(file.problem), Request(scope, None))))
    return rows


def l2(judge: Judge) -> list[dict[str, Any]]:
    """A kernel whose input fits in L2, without and with evict_last."""
    file = _file("good", "softmax_row")
    source = file.candidate.source.replace(
        'other=-float("inf")', 'other=-float("inf"), eviction_policy="evict_last"'
    )
    held: Candidate = replace(file.candidate, source=source)
    rows = [_row("plain", _quick(judge, file, gradients=False))]
    return [*rows, _row("evict_last", _quick(judge, replace(file, candidate=held), gradients=False))]


def graphs(judge: Judge) -> dict[str, Any]:
    """A baseline that waits for the GPU cannot be captured; afterwards torch must draw, run and capture again."""
    before = torch.cuda.current_stream()
    x = torch.randn(1024, device="cuda")
    waits = Baseline("waits", lambda v: v * v.sum().item(), [(x,)], None)
    fits = Baseline("fits", lambda v: v * 2, [(x,)], None)
    graphed(waits)([0, 0])
    drawn = torch.randn(8, device="cuda")
    torch.nn.functional.dropout(x, 0.5)
    run = graphed(fits)
    run([0])
    torch.cuda.synchronize()
    return {
        "draws_after_a_failed_capture": bool(torch.isfinite(drawn).all()),
        "stream_is_back": torch.cuda.current_stream() == before,
        "captures_again": run != fits._run,
    }


def rerun(judge: Judge) -> dict[str, Any]:
    """Issue, verify by the command line with --rerun, then with another driver noted: stale."""
    from nightshift.kernels.cli import app

    file = _file("good", "reduce_sum_row")
    problem = named(file.problem)
    verdict = judge.verdict(file.candidate, problem, Request(inputs.FULL_GPU, FULL, promote=True))
    signer = Signer.generate()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        runner = CliRunner()
        runner.invoke(app, ["keygen", str(folder / "key"), str(folder / "pub")], catch_exceptions=False)
        signer = Signer.from_bytes(bytes.fromhex((folder / "key").read_text().strip()))
        made = issue(verdict, file.candidate, problem, signer, "2026-11-21T00:00:00+00:00", "benchmark")
        (folder / "cert").write_text(json.dumps(made))
        told = runner.invoke(app, ["verify", str(folder / "cert"), "--key", str(folder / "pub"), "--rerun"])
        drifted = replace(verdict, environment={**verdict.environment, "driver": "570.00", "triton": "3.5.0"})
        made = issue(drifted, file.candidate, problem, signer, "2026-11-21T00:00:00+00:00", "benchmark")
        found = verify(made, {signer.key_id: signer.public}, named, judge.environment)
    checks = [f"{check.state} {check.name}: {check.detail}" for check in found.checks]
    return {
        "first": _row(file.candidate.sha256[:12], verdict),
        "exit_code": told.exit_code,
        "said": told.output.splitlines(),
        "drifted": {"stale": found.stale, "valid": found.valid, "checks": checks},
    }


@contextlib.contextmanager
def another_program(leaves_bytes: int) -> Iterator[int]:
    """A process of somebody else that holds all of the GPU's free memory but so much; gives what it holds."""
    source = "import sys, torch\nfree, _ = torch.cuda.mem_get_info()\nsize = free - int(sys.argv[1])\n"
    source += (
        "held = torch.empty(size, dtype=torch.uint8, device='cuda')\nprint(size, flush=True)\nsys.stdin.read()"
    )
    command = [sys.executable, "-c", source, str(leaves_bytes)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        yield int(other.stdout.readline())
        other.communicate()


def vram(judge: Judge) -> dict[str, Any]:
    """Who is blamed for memory that is short. `driver_tells`: whether NVML names what this process holds."""
    good, eater = _file("good", "softmax_row"), _file("exploits", "eats_vram_by_driver")
    jobs = {
        name: Job(name, file.candidate, named(file.problem), Request(inputs.QUICK_GPU, None, static=False))
        for name, file in (("good", good), ("eater", eater))
    }

    def ask(*names: str) -> list[dict[str, Any]]:
        executor = LocalExecutor([judge], threads_per_judge=len(names))
        rows = [_row(job.key, verdict) for job, verdict in executor.run([jobs[name] for name in names])]
        kept = ("name", "status", "reason", "detail", "stage", "took_s")
        return [{key: row[key] for key in kept} for row in sorted(rows, key=lambda row: str(row["name"]))]

    nvml = judge.nvml
    torch.ones(1, device="cuda")  # before it has a context, no driver could name what it holds
    told: dict[str, Any] = {"driver_tells": bool(nvml and nvml.used_bytes([os.getpid()])), "alone": ask("eater")}
    told["beside"] = ask("eater", "good")
    torch.cuda.empty_cache()
    with another_program(3 << 29) as held:
        told["full"] = {"held_bytes": held, "verdicts": ask("good")}
    with another_program(40 << 30) as held:
        told["crowded"] = {"held_bytes": held, "verdicts": [*ask("good"), *ask("eater")]}
    told["after"] = ask("good")
    return told


def machine(judge: Judge) -> dict[str, Any]:
    """A judge in a process of its own, before and after its GPU context is lost to an index far out of bounds in a
    computation of its own; then this judge, on the same GPU."""
    command = [sys.executable, "-m", "benchmarks.kernels_hardware", "--lose"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    file = _file("good", "softmax_row")
    after = judge.verdict(file.candidate, named(file.problem), Request(inputs.QUICK_GPU, None))
    told = [json.loads(line) for line in lines]
    return {"lost": told, "code": done.returncode, "said": done.stderr[-800:], "after": _row("after", after)}


def lose() -> None:
    """Good and wrong candidates before and after: machine faults afterwards, whoever is judged."""
    torch.empty(1, device="cuda")
    with Judge("cuda", compiled=False) as judge:

        def tell(when: str) -> None:
            for folder, name in (("good", "softmax_row"), ("exploits", "softmax_constant_denominator")):
                file = _file(folder, name)
                request = Request(inputs.QUICK_GPU, None, static=False)
                verdict = judge.verdict(file.candidate, named(file.problem), request)
                row = _row(name, verdict)
                kept = {key: row[key] for key in ("name", "status", "reason", "detail", "stage", "took_s")}
                print(json.dumps({"when": when, **kept}), flush=True)

        tell("before")
        try:
            torch.zeros(4, device="cuda")[torch.tensor([1 << 40], device="cuda")].cpu()
        except RuntimeError as error:
            print(f"lost: {str(error).splitlines()[0]}", file=sys.stderr, flush=True)
        tell("after")


PARTS: dict[str, Callable[[Judge], Any]] = {
    "graphs": graphs,
    "huge": huge,
    "rerun": rerun,
    "machine": machine,
    "tier_b": tier_b,
    "l2": l2,
    "training": training,
    "peers": peers,
    "vram": vram,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="*", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "kernels_hardware.json")
    parser.add_argument("--until", type=float, default=float("inf"), help="begin no part after so many seconds")
    parser.add_argument("--commit", default="")
    parser.add_argument("--plain", action="store_true", help="without torch.compile's baselines: quick")
    parser.add_argument("--lose", action="store_true", help="what `machine` runs in a process of its own")
    options = parser.parse_args()
    if options.lose:
        lose()
        return
    record: dict[str, Any] = {"commit": options.commit}
    begun = time.time()
    with Judge("cuda", compiled=not options.plain) as judge:
        record["environment"] = judge.environment.to_json()
        for name in options.parts:
            start = time.time()
            if start - begun > options.until:
                record.setdefault("not_run", []).append(name)
                continue
            try:
                record[name] = PARTS[name](judge)
            except (RuntimeError, ValueError, OSError) as error:  # the others' figures are worth having
                record[name] = f"{type(error).__name__}: {error}"
                print(name, record[name], flush=True)
            record.setdefault("took_s", {})[name] = round(time.time() - start, 1)
            options.out.write_text(json.dumps(record, indent=1) + "\n")
            print(name, record["took_s"][name], "s", flush=True)
            if isinstance(record[name], dict):
                print(" ", json.dumps(record[name])[:3000], flush=True)
            for row in record[name] if isinstance(record[name], list) else []:
                if "status" in row:
                    print(" ", row["name"], row["status"], row["reason"], row["detail"][:300], flush=True)


if __name__ == "__main__":
    main()
