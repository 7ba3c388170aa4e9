"""The judge: one candidate and one problem in, one verdict out, whatever the candidate does.

Order: static read, compile, examination in stages, sanitizer where promotion asks for it, then the race. The first
fault ends it, and a candidate that failed is never timed. A library composition may be correct, and is told so; it
is never raced, because it can never be certified as a kernel. Faults of the machine are caught apart.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from nightshift.kernels.candidate import Candidate
from nightshift.kernels.judge import cuda
from nightshift.kernels.judge.environment import Environment, Nvml, environment
from nightshift.kernels.judge.gaps import unchecked
from nightshift.kernels.judge.host.launcher import Zygote
from nightshift.kernels.judge.host.process import Limits, Process, Role
from nightshift.kernels.judge.host.vram import Vram, VramBudget
from nightshift.kernels.judge.launch_plan import Plan
from nightshift.kernels.judge.probes import inputs
from nightshift.kernels.judge.probes.buffers import CudaLender
from nightshift.kernels.judge.probes.runners import HostRunner
from nightshift.kernels.judge.race.baselines import Shelf, Solo, measure, measure_again
from nightshift.kernels.judge.race.gpu_access import Quiet
from nightshift.kernels.judge.race.timing import Board
from nightshift.kernels.judge.race.track import Pool, Track
from nightshift.kernels.judge.recorded_launches import plan
from nightshift.kernels.judge.trial import JudgeTrial, Request
from nightshift.kernels.judge.verdict import FIT, STATUS_OF, JudgeBroken, Reason, Refusal, Verdict, readable
from nightshift.kernels.problem import Case, Inputs, Problem

__all__ = ["Judge", "Request", "Solo"]

_LANE_RACES = 64
_AHEAD = 64
"""Candidates whose kernels are kept from compiling ahead; the oldest go first."""


def fresh(count: int) -> bytes:
    """Bytes that nobody can foresee: the one place where the judge's chance comes from."""
    return os.urandom(count)


class Judge:
    """Judges many candidates, one after the other or from several threads; only the race itself is exclusive."""

    def __init__(
        self,
        device: str,
        interpret: bool = False,
        limits: Limits = Limits(),  # noqa: B008  frozen
        entropy: Callable[[int], bytes] | None = None,
        machine_fault: Callable[[], str | None] | None = None,
        clock: Callable[[], float] = time.perf_counter,
        compiled: bool = True,
        shelf: Path | None = None,
        quiet: Path | None = None,
        tf32_products: bool = False,
        extensions: Path | None = None,
    ) -> None:
        """`entropy`: where secrets come from, `fresh` where None. `machine_fault`: asked after every verdict, tells
        the Xid or loss that it met, if one; where None, NVML and the GPU are asked. `compiled`: race torch.compile
        too; without (it takes minutes for many problems) every verdict says that it was left out. `shelf`: a folder
        in which baselines' times alone are kept for later judges (see `kernels.judge.race.baselines`). `quiet`: a
        file that judges of other processes on the same GPU are given too, so that none races beside another's
        work. `tf32_products`: matrix products of float32 are TF32's, as with torch's matmul precision "high", in
        references, baselines and candidates alike; candidates are held to that eager's error. `extensions`: a
        folder of extensions built from candidates' sources, which their processes may read."""
        self.device = device
        self._compiled = compiled
        self.limits = limits
        self.environment: Environment = environment(device)
        self._shelf = Shelf(shelf, self.environment) if shelf is not None else None
        self._entropy = entropy or fresh
        self._clock = clock
        self._zygote = Zygote(device, interpret, tf32_products, extensions)
        self._nvml = Nvml() if device == "cuda" else None
        self._vram = (
            Vram(self._nvml.free_bytes, self._nvml.used_bytes, self._own_vram) if self._nvml is not None else None
        )
        # hosts are granted half; what is left beside the judge's share is a race's slots and the driver's
        total = torch.cuda.get_device_properties(0).total_memory if self._nvml is not None else 0
        self._room = VramBudget(total * 3 // 10) if total else None
        self._mine = threading.local()  # .hosts: the processes of this thread's verdict
        self._company = Quiet()
        self._machine_fault = machine_fault or self._ask_machine
        self._faults: list[tuple[Reason, str]] = []
        self._fault_lock = threading.Lock()
        self.board = self._nvml.board() if self._nvml else Board(0.0, 1 << 20, {})
        self._solo: dict[tuple[str, Case], Solo] = {}
        self.timing_lock = threading.RLock()
        self.large_lock = threading.Lock()  # held while a case of many GiB is examined
        self.pool = Pool([int.from_bytes(self._entropy(7), "little") for _ in range(4)])
        self.quiet = Quiet(quiet)
        self.arch = cuda.arch_of(self.environment.capability)
        self._spoiler = cuda.spoiler(self.arch) if device == "cuda" else b""
        self._ahead: dict[str, bytes] = {}
        self._lanes: dict[tuple[str, Case, tuple[int, ...], int], Track] = {}
        self._threads = torch.get_num_threads()
        if device == "cuda":  # as torch ships them, in every reference, baseline and candidate's process
            torch.backends.cuda.matmul.allow_tf32 = tf32_products
            torch.backends.cudnn.allow_tf32 = True
        if device == "cpu":  # hosts have one thread each, so a race needs baselines with one
            torch.set_num_threads(1)

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, *details: object) -> None:
        for track in self._lanes.values():
            track.process.close()
        self._zygote.close()
        torch.set_num_threads(self._threads)
        if self._nvml is not None:
            self._nvml.__exit__()

    def verdict(
        self,
        candidate: Candidate,
        problem: Problem,
        request: Request,
        secret: bytes | None = None,
        alone: bool = False,
    ) -> Verdict:
        """Judge once. `secret` decides every probe, seed and order; drawn fresh where None. `alone`: with no other
        candidate of this judge beside it.

        Where one of its processes was killed, by itself or by somebody outside (a kernel out of memory, a person),
        once more: only whose process is killed again is told that it died."""
        secret = self._entropy(16) if secret is None else secret
        with self._company.alone() if alone else self._company.shared(), self._room_for(problem, request):
            made = self._verdict(candidate, problem, request, secret)
            if made.reason is not Reason.host_died or not any(host.killed for host in self._mine.hosts):
                return made
            again = self._verdict(candidate, problem, request, secret)
            if again.reason is not Reason.host_died:
                return again
            told = f"twice, and the judge ended neither: {again.detail}"
            return replace(again, detail=told, took_s=made.took_s + again.took_s)

    def _verdict(self, candidate: Candidate, problem: Problem, request: Request, secret: bytes) -> Verdict:
        self._mine.hosts = []
        trial = JudgeTrial(self, candidate, problem, request, secret)
        start, known = self._clock(), len(self._faults)
        try:
            reason, detail, stage = trial.run()
        except Refusal as refusal:
            reason, detail, stage = refusal.reason, refusal.detail, refusal.stage
        except JudgeBroken as error:
            reason, detail, stage = error.reason, str(error), "machine"
        except torch.OutOfMemoryError as error:
            reason, detail, stage = self._out_of_memory(error)
        except (cuda.CudaError, torch.AcceleratorError) as error:
            if getattr(error, "code", None) == cuda.OUT_OF_MEMORY:
                reason, detail, stage = self._out_of_memory(error)
            else:
                reason, detail, stage = Reason.device_lost, str(error)[:500], "machine"
        except Exception as error:  # noqa: BLE001  the judge's own fault, or its own memory: it must go on
            place = traceback.extract_tb(error.__traceback__)[-1]
            told = f"{type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})"
            reason, detail, stage = Reason.judge_broken, told[:500], "machine"
        fault = self._fault_since(known)
        if fault is not None:
            (reason, detail), stage = fault, "machine"
        fit = STATUS_OF[reason] in FIT
        gaps = trial.stages, trial.probed, trial.comparisons, trial.left_out, trial.layers, trial.exact
        return Verdict(
            candidate_sha256=candidate.sha256,
            problem=problem.name,
            status=STATUS_OF[reason],
            reason=reason,
            detail=readable(detail),
            stage=stage,
            stages=tuple(trial.stages),
            errors=trial.errors,
            comparisons=tuple(trial.comparisons),
            left_out=tuple(trial.left_out),
            domain=_domain(candidate, trial, self.environment),
            isolation=trial.layers,
            exact=trial.exact,
            outputs=trial.outputs,
            work=trial.work,
            binaries=trial.binaries,
            environment=self.environment.to_json(),
            not_checked=unchecked(candidate, problem, *gaps) if fit else (),
            secret=secret.hex(),
            took_s=self._clock() - start,
        )

    def _out_of_memory(self, error: Exception) -> tuple[Reason, str, str]:
        """The judge itself found no memory: a host of this verdict that is known to have eaten it, or nobody."""
        for ended in (host.ended for host in self._mine.hosts):
            if isinstance(ended, Refusal):
                return ended.reason, ended.detail, ended.stage
        return Reason.vram_taken, str(error)[:500], "machine"

    def _ask_machine(self) -> str | None:
        """NVML's answer, and whether the GPU still computes for this process (driver errors without an Xid)."""
        told = self._nvml.fault() if self._nvml is not None else None
        if told is None and self.device == "cuda" and int(torch.ones(64, device="cuda").sum()) != 64:
            return "the GPU does not compute: 64 ones do not add up to 64"
        return told

    def _fault_since(self, known: int) -> tuple[Reason, str] | None:
        """The first fault of the machine beyond those `known`; asked after every verdict, a favourable one too.

        An Xid is told once, so it is kept for all verdicts that were under way when it came. A machine that cannot
        be asked is a fault of its own: it is no witness for or against anybody.
        """
        with self._fault_lock:
            try:
                told = self._machine_fault()
            except Exception as error:  # noqa: BLE001  whatever a driver says when its device is gone
                self._faults.append((Reason.device_lost, f"{type(error).__name__}: {error}"[:500]))
            else:
                if told is not None:
                    self._faults.append((Reason.xid if "Xid" in told else Reason.device_lost, told))
            return self._faults[known] if len(self._faults) > known else None

    def compile_ahead(self, candidate: Candidate, problem: Problem, forms: Inputs) -> None:
        """Compile a Triton candidate's kernels for inputs of these forms, in a process that ends then and sees no
        values. Its verdicts begin with them. What cannot be compiled so is compiled when it is called."""
        if self.device != "cuda" or candidate.language != "triton" or candidate.sha256 in self._ahead:
            return
        with contextlib.suppress(Refusal, JudgeBroken), self.start("candidate") as process:
            if len(self._ahead) >= _AHEAD:
                del self._ahead[next(iter(self._ahead))]
            self._ahead[candidate.sha256] = HostRunner.load(process, candidate, problem).rehearsed(forms)

    def compiled(self, candidate: Candidate) -> bytes:
        """Its kernels, where they were compiled ahead."""
        return self._ahead.get(candidate.sha256, b"")

    def compiles(self, candidate: Candidate, problem: Problem) -> None:
        """Compile a candidate and call it once, on the plan's first probe. Raises Refusal, JudgeBroken."""
        trial = JudgeTrial(self, candidate, problem, Request(inputs.QUICK_GPU, None), self._entropy(16))
        with contextlib.ExitStack() as stack:
            trial.call_once(trial.compile(stack))

    def record(self, candidate: Candidate, problem: Problem, case: Case) -> Plan:
        """The launch plan of one case, for profiling and for timing apart from a verdict. Raises Refusal."""
        trial = JudgeTrial(self, candidate, problem, Request(inputs.QUICK_GPU), self._entropy(16))
        with contextlib.ExitStack() as stack:
            made = plan(trial, trial.compile(stack), case)
        if made is None:
            raise Refusal(Reason.no_plan, "only the callable can be timed", "timing")
        return made

    def start(self, role: Role, peers: bool = False) -> Process:
        """A fresh confined process under this judge's limits; `peers`: it may read other libraries of kernels."""
        process = self._zygote.start(role, self._granted(), peers=peers)
        getattr(self._mine, "hosts", []).append(process)
        if self._vram is not None:
            process.watch_vram(self._vram)
        if role == "replay":
            process.request({"op": "spoiler"}, self.limits.call_s, self._spoiler)
        return process

    def _granted(self) -> Limits:
        """A host's limits here: never more than half of the GPU's memory, so that a shortage tells who took it."""
        if self._vram is None:
            return self.limits
        half = torch.cuda.get_device_properties(0).total_memory // 2
        return replace(self.limits, vram_bytes=min(self.limits.vram_bytes, half))

    def _room_for(self, problem: Problem, request: Request) -> contextlib.AbstractContextManager[None]:
        """Waits until the judge has the memory for the largest case's oracle, its eager value and their difference,
        in float64."""
        if self._room is None:
            return contextlib.nullcontext()
        cases = request.cases or problem.cases
        if problem.sampled_rows:
            return contextlib.nullcontext()
        return self._room.of(max(24 * problem.compulsory_bytes(c) // c.element_bytes for c in cases))

    def _own_vram(self) -> int:
        return torch.cuda.memory_reserved(0) + CudaLender.all_lent_bytes

    @contextlib.contextmanager
    def lane(self, problem: Problem, case: Case, mutates: tuple[int, ...], count: int) -> Iterator[Track]:
        """A search's standing replay process and its slots, for one race; given up when anything goes wrong in it.

        Binaries of several candidates meet in it, one after the other: good enough to rank, never to certify.
        """
        key = (problem.name, case, mutates, count)
        with self.timing_lock:
            for other in [k for k, t in self._lanes.items() if k != key or t.races >= _LANE_RACES]:
                self._lanes.pop(other).process.close()
            if key not in self._lanes:
                process = self.start("replay")
                self._lanes[key] = Track(process, problem, case, mutates, count, self.device, self.pool)
            track = self._lanes[key]
            track.races += 1
            try:
                yield track
            except BaseException:
                self._lanes.pop(key).process.close()
                raise

    def solo(self, problem: Problem, case: Case) -> Solo:
        """The baselines of one case, warmed and timed with no candidate alive; kept while this judge lives."""
        key = (problem.name, case)
        with self.timing_lock:
            if key not in self._solo:
                self._solo[key] = measure(
                    problem, case, self.device, self._compiled, self.flush, self._clock, self._shelf, self.quiet
                )
            return self._solo[key]

    def solo_again(self, problem: Problem, case: Case) -> None:
        """Measure the baselines anew, with no candidate at work."""
        with self.timing_lock, self.quiet.alone():
            solo = self._solo[problem.name, case]
            measure_again(solo, problem, case, self.device, self.flush, self._clock)

    def flush(self) -> torch.Tensor | None:
        """Memory that fills L2 twice over; None where there is no GPU."""
        if self.device != "cuda":
            return None
        return torch.empty(self.flush_bytes, dtype=torch.uint8, device="cuda")

    def give_back(self) -> None:
        """What this process keeps of the GPU's memory and does not use, to whoever else is on the GPU."""
        if self.device == "cuda":
            torch.cuda.empty_cache()

    @property
    def flush_bytes(self) -> int:
        return max(2 * self.board.l2_bytes, 128 << 20)

    @property
    def nvml(self) -> Nvml | None:
        return self._nvml

    @property
    def clock(self) -> Callable[[], float]:
        return self._clock


def _domain(candidate: Candidate, trial: JudgeTrial, where: Environment) -> dict[str, Any]:
    """What a certificate of this verdict answers for: what was declared, and between which values it was probed."""
    declared = candidate.to_json()["domain"]
    cases = trial.probed
    names = sorted({name for case in cases for name in case.sizes})
    sizes = {name: [case.sizes[name] for case in cases] for name in names}
    return {
        **declared,
        "architecture": where.capability,
        "timed": [case.to_json() for case in trial.timed],
        "probed": {
            "sizes": {name: [min(found), max(found)] for name, found in sizes.items()},
            "dtypes": sorted({case.dtype for case in cases}),
            "layouts": sorted({case.layout for case in cases}),
        },
    }
