"""Preflight in a gang: `python -m benchmarks.preflight_gang`, on a machine with 2 GPUs or more, about 2.5 minutes.

1. `nightshift preflight` as a node runs it, on all GPUs at once: how long it takes, and its verdicts.
2. Six short passes of every GPU, one after the other, with all-reduce and copies between neighbours: their history.
3. A slow GPU: on one GPU a product in another stream, which the GPU prefers, holds it for 4 % of the time.
4. A throttled link: one GPU copies to its neighbour in another stream without a pause; then one from its host.
5. Good passes again, as long as time is left: none may be refused.

Each GPU is one process of the gang, as in a job. What judges is the check that ships. `--device cpu` runs all but
the faults on N processes over gloo and Triton's interpreter, to try it.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, redirect_stdout
from dataclasses import asdict
from typing import Any

import torch

from benchmarks.detect_held_out import commit
from benchmarks.preflight import SLOWED, SMALL, DrawnSensors, beside, replace_products
from benchmarks.report import write
from nightshift.kernels.preflight.gpu_tests import QUICK, GpuRun, GpuTests, Sensors
from nightshift.kernels.preflight.node import NvmlSensors, rank_program, run_of, uuids
from nightshift.kernels.preflight.verdict import EarlierPass, PreflightState, judged

PASSES, LINK_BYTES, FIRST_PORT = 6, 1 << 28, 20_000
SLOW, COPY, HOST = "slowed", "throttled link", "throttled host link"


class GangMember:
    """One process: a GPU of the gang, which passes on order, with a fault beside or none."""

    def __init__(self, rank: int, world: int, device: str) -> None:
        self.rank, self.world, self.on_gpu = rank, world, device == "cuda"
        self.device = f"cuda:{rank}" if self.on_gpu else "cpu"
        self.sensors: Sensors = DrawnSensors()
        if self.on_gpu:
            torch.cuda.set_device(rank)
            self.sensors = NvmlSensors(uuids()[rank])
        self.level = QUICK if self.on_gpu else SMALL

    def run(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """A short pass; what of the time the fault held, where there is one."""
        fault = order["fault"] if order["at"] == self.rank else ""
        told: dict[str, float] = {}
        with ExitStack() as stack:
            if fault == SLOW:
                told = self._slow(stack)
            elif fault:
                self._copies(stack, fault)
            tests = GpuTests(self.device, self.sensors, replace_products(self.level, 0.15 if self.on_gpu else 0.1))
            tests.sweep(tests.main, 0.0, tests.level.sweep_s)
            tests.level = self.level
            tests.speeds()
            began_s = time.monotonic()
            links = self._links(int(order["port"]))
            links_s = time.monotonic() - began_s
        tests.run.figures |= links
        return {"run": asdict(tests.run), "links_s": links_s, "held_share": told.get("held_share")}

    def _links(self, port: int) -> dict[str, float]:
        """This rank's figures; the gang's are the least of all."""
        mine = {"RANK": str(self.rank), "LOCAL_RANK": str(self.rank), "WORLD_SIZE": str(self.world)}
        os.environ.update({**mine, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "NCCL_NVLS_ENABLE": "0"})
        with redirect_stdout(io.StringIO()) as said:
            rank_program("cuda" if self.on_gpu else "cpu", LINK_BYTES if self.on_gpu else 1 << 20)
        found: dict[str, float] = {}
        for line in said.getvalue().splitlines():
            found |= json.loads(line)["links"] if line.startswith('{"links"') else {}
        return found

    def _slow(self, stack: ExitStack) -> dict[str, float]:
        a = torch.randn(8192, 8192, device=self.device, dtype=torch.bfloat16)
        c = torch.empty_like(a)
        taken = []
        for _ in range(9):
            began_s = time.perf_counter()
            torch.mm(a, a, out=c)
            torch.cuda.synchronize()
            taken.append(time.perf_counter() - began_s)
        burst_s, begun_s, count = min(taken), time.perf_counter(), [0]

        def gap_s() -> float:
            count[0] += 1
            return max(0.0, count[0] * burst_s / SLOWED - (time.perf_counter() - begun_s))

        told: dict[str, float] = {}
        stack.callback(lambda: told.update(held_share=count[0] * burst_s / (time.perf_counter() - begun_s)))
        stack.enter_context(beside(lambda: torch.mm(a, a, out=c), gap_s, priority=-1))
        return told

    def _copies(self, stack: ExitStack, fault: str) -> None:
        where = "cpu" if fault == HOST else f"cuda:{(self.rank + 1) % self.world}"
        source = torch.empty(LINK_BYTES, dtype=torch.uint8, device=self.device)
        target = torch.empty(LINK_BYTES, dtype=torch.uint8, device=where, pin_memory=fault == HOST)
        if fault == HOST:
            source, target = target, source

        def work() -> None:
            for _ in range(4):
                target.copy_(source, non_blocking=True)

        stack.enter_context(beside(work, lambda: 0.0))

    def serve(self) -> None:
        for line in sys.stdin:
            answer = self.run(json.loads(line))
            print("answer " + json.dumps(answer), flush=True)


class PreflightGang:
    """The processes of all GPUs, and what they passed before."""

    def __init__(self, world: int, device: str) -> None:
        command = [sys.executable, "-m", "benchmarks.preflight_gang", "--device", device, "--ranks", str(world)]
        self.members = [
            subprocess.Popen(
                [*command, "--member", str(rank)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for rank in range(world)
        ]
        self.passes: list[EarlierPass] = []
        self.rounds = 0

    def round(self, fault: str = "", at: int = -1) -> dict[str, Any]:
        """One pass of all: states, reasons and figures by rank."""
        self.rounds += 1  # below the ports that a kernel gives to who names none
        port = FIRST_PORT + self.rounds
        began_s = time.monotonic()
        for member in self.members:
            assert member.stdin is not None
            member.stdin.write(json.dumps({"fault": fault, "at": at, "port": port}) + "\n")
            member.stdin.flush()
        answers = [self._answer(member) for member in self.members]
        runs = [run_of(answer["run"]) for answer in answers]
        names = ("peer_bytes_per_s", "all_reduce_bytes_per_s")
        shared = {name: min(run.figures[name] for run in runs if name in run.figures) for name in names}
        for run in runs:
            run.figures |= shared
        verdicts = [judged(run, "benchmark", self.passes) for run in runs]
        found = {
            "fault": fault, "at": at, "took_s": time.monotonic() - began_s,
            "links_s": max(answer["links_s"] for answer in answers),
            "held_share": next((a["held_share"] for a in answers if a["held_share"] is not None), None),
            "states": [str(v.state) for v in verdicts], "reasons": [list(v.reasons) for v in verdicts],
            "shared": shared,
        }  # fmt: skip
        if not fault and all(v.state is PreflightState.PASSED for v in verdicts):
            self.passes += [self._earlier(run) for run in runs]
        return found

    @staticmethod
    def _answer(member: subprocess.Popen[str]) -> dict[str, Any]:
        assert member.stdout is not None
        for line in member.stdout:
            if line.startswith("answer "):
                return dict(json.loads(line[7:]))
        raise RuntimeError(f"a member of the gang ended with {member.wait()}")

    @staticmethod
    def _earlier(run: GpuRun) -> EarlierPass:
        facts = run.facts
        return EarlierPass(
            facts["serial"], facts["model"], "benchmark", run.level, run.clock_mhz, run.temperature_c, run.figures
        )

    def end(self) -> None:
        for member in self.members:
            assert member.stdin is not None
            member.stdin.close()
            try:
                member.wait(20)
            except subprocess.TimeoutExpired:
                member.kill()


def whole() -> dict[str, Any]:
    """`nightshift preflight` itself."""
    with tempfile.TemporaryDirectory() as folder:
        began_s = time.monotonic()
        command = [sys.executable, "-m", "nightshift.agent", "preflight", "--force", "--json", "--folder", folder]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env={**os.environ, "NCCL_NVLS_ENABLE": "0"}
        )
        took_s = time.monotonic() - began_s
    try:
        states = [record["state"] for record in json.loads(done.stdout)]
    except (ValueError, KeyError, TypeError):
        states = []
    return {"took_s": took_s, "states": states, "exit": done.returncode, "said": done.stderr[-500:]}


def found_of(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of each fault: whether the GPU at fault was refused; a link's figures are all GPUs' alike."""
    found: dict[str, list[bool]] = {}
    for one in rounds:
        refused = [rank for rank, state in enumerate(one["states"]) if state == PreflightState.REFUSED]
        only = refused == [one["at"]] if one["fault"] in (SLOW, HOST) else bool(refused)
        found.setdefault(one["fault"], []).append(only)
    return {fault: [sum(rows), len(rows)] for fault, rows in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--ranks", type=int, default=0, help="0: one for each GPU")
    parser.add_argument("--until", type=float, default=170.0, help="seconds")
    parser.add_argument("--member", type=int, default=-1, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
    if given.member >= 0:
        GangMember(given.member, given.ranks, given.device).serve()
        return
    began_s = time.monotonic()
    on_gpu = given.device == "cuda"
    world = given.ranks or torch.cuda.device_count()
    figures: dict[str, Any] = {"commit": commit(), "gpus": world, "device": given.device}
    figures["gpu"] = torch.cuda.get_device_name() if on_gpu else "none"
    figures["preflight"] = whole() if on_gpu else None
    print(f"whole: {figures['preflight']}", flush=True)
    gang = PreflightGang(world, given.device)
    cases = [(SLOW, 1 % world), (COPY, world - 1), (HOST, 0), (SLOW, world - 1), (COPY, 0)] if on_gpu else []
    figures |= {"history": [], "faults": [], "good": [], "failed": ""}
    try:
        figures["history"] += [gang.round() for _ in range(PASSES)]
        for fault, at in cases:
            figures["faults"].append(gang.round(fault, at))
        usual_s = statistics.median(one["took_s"] for one in figures["history"])
        while time.monotonic() - began_s + 1.5 * usual_s < given.until:
            figures["good"].append(gang.round())
    except (RuntimeError, OSError) as error:  # what was measured before is still worth its minutes
        figures["failed"] = repr(error)
    finally:
        gang.end()
    figures["found"] = found_of(figures["faults"])
    passes = [state for one in [*figures["history"], *figures["good"]] for state in one["states"]]
    figures["good_refused"] = [sum(state == PreflightState.REFUSED for state in passes), len(passes)]
    write("preflight_gang" if on_gpu else "preflight_gang_cpu", figures)


if __name__ == "__main__":
    main()
