"""A problem's baselines on one case: made, compared with the oracle, warmed and timed with no candidate alive.

Kept for as long as a judge lives. Across judges a folder keeps what each took alone, by problem, case and
environment: what was far slower than the best need not be compiled again to lose again, which is most of the
minutes that torch.compile takes. Nothing else is believed of an earlier day: whatever may be raced, and whatever
could not run, is tried anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import math
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from nightshift.kernels.draw import mix
from nightshift.kernels.judge.environment import DRIFT, Environment
from nightshift.kernels.judge.probes.correctness import compare
from nightshift.kernels.judge.probes.inputs import Probe
from nightshift.kernels.judge.probes.oracle import expected
from nightshift.kernels.judge.race.contestants import Baseline, baseline_modes
from nightshift.kernels.judge.race.gpu_access import Quiet
from nightshift.kernels.judge.verdict import JudgeBroken, LeftOut
from nightshift.kernels.problem import Case, Inputs, Problem, ProblemError, as_outputs

_NEAR = 1.25
"""A baseline this much slower than the best one, run alone, is not raced again."""
_HOPELESS = 30.0
"""Eager, which every race has, is not raced where it is this much slower than the best: a reference of loops."""
_SLOW_S = 1.0
"""Calls to learn how long one takes end after this."""
_FAR = 1.6
"""One this much slower on an earlier day is not run again."""
_DAYS = 30.0
# packages whose kernels are among the baselines: a new version may be faster than what is kept
_LIBRARIES = ("liger_kernel", "flash_attn", "flashinfer-python", "xformers", "nvidia-cudnn-cu13", "nvidia-cublas")
_FAULTS = (ImportError, RuntimeError, TypeError, NotImplementedError, ProblemError, AttributeError)


@dataclass
class Solo:
    """A problem's baselines on one case: callables, made and warmed once, and their times alone.

    missing: baselines that could not run there or computed something else, and why. seconds holds also those that
    were far slower than the best on an earlier day, which have no callable.
    """

    functions: dict[str, Callable[..., Any]]
    seconds: dict[str, float]
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def near(self) -> dict[str, Callable[..., Any]]:
        """The baselines worth racing: eager, unless another is far faster, and whatever is close to the best."""
        best = min(self.seconds.values())
        limits = {"eager": _HOPELESS}
        return {n: f for n, f in self.functions.items() if self.seconds[n] <= limits.get(n, _NEAR) * best}

    def left_out(self, case: str) -> list[LeftOut]:
        """Every baseline that a race on this case goes without, with the reason."""
        best = min(self.seconds.values())
        slow = [
            LeftOut(case, name, f"{seconds / best:.2f} times the best baseline's time, alone", False)
            for name, seconds in self.seconds.items()
            if name not in self.near
        ]
        return slow + [LeftOut(case, name, why, True) for name, why in self.missing.items()]


def shelf_folder() -> Path:
    """Where this user's judges keep what baselines took alone (XDG's cache folder)."""
    root = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(root) / "nightshift" / "baselines"


@dataclass(frozen=True)
class SoloTime:
    """A baseline's time alone, and when it was measured (seconds since the epoch)."""

    seconds: float
    measured: float


@dataclass(frozen=True)
class Shelf:
    """Times alone of earlier judges, one file for each problem, case and environment. Never in a candidate's reach:
    a host may write to its scratch folder only. A file that cannot be read counts as none."""

    folder: Path
    environment: Environment
    now: Callable[[], float] = time.time

    def read(self, problem: Problem, case: Case) -> Mapping[str, SoloTime]:
        """What is known of each baseline, and not too old."""
        place = self._place(problem, case)
        try:
            told = json.loads(place.read_text())["baselines"] if place else {}
            known = {str(name): SoloTime(float(s), float(when)) for name, (s, when) in told.items()}
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return {}
        if not all(math.isfinite(k.seconds) and k.seconds > 0 for k in known.values()):
            return {}
        return {name: k for name, k in known.items() if 0 <= self.now() - k.measured < 86400 * _DAYS}

    def write(self, problem: Problem, case: Case, times: Mapping[str, SoloTime]) -> None:
        """Whole or not at all; a folder that cannot be written costs the next judge its time, nothing else."""
        place = self._place(problem, case)
        if place is None:
            return
        body = {"problem": problem.name, "case": str(case), "environment": self.environment.to_json()}
        half = place.with_suffix(f".{os.getpid()}")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            told = {name: (k.seconds, k.measured) for name, k in times.items()}
            half.write_text(json.dumps({**body, "baselines": told}, indent=1) + "\n")
            half.replace(place)
        except OSError:
            with contextlib.suppress(OSError):
                half.unlink()

    def _place(self, problem: Problem, case: Case) -> Path | None:
        """None where the problem's code cannot be read: a name alone does not say what it computes."""
        digest = hashlib.sha256(json.dumps([problem.name, case.to_json()], sort_keys=True).encode())
        facts = self.environment.to_json()
        digest.update(repr([facts[name] for name in DRIFT]).encode())
        for library in _LIBRARIES:
            try:
                digest.update(f"{library} {metadata.version(library)}".encode())
            except metadata.PackageNotFoundError:
                continue
        functions = [problem.reference, problem.oracle, problem.make_inputs, *problem.libraries.values()]
        try:
            for function in functions:
                if function is not None:
                    digest.update(Path(inspect.getsourcefile(inspect.unwrap(function)) or "").read_bytes())
        except (OSError, TypeError):
            return None
        return self.folder / f"{digest.hexdigest()[:40]}.json"


def far_slower(times: Mapping[str, SoloTime]) -> dict[str, SoloTime]:
    """Those not worth another run: never eager, which every verdict needs."""
    best = min((k.seconds for k in times.values()), default=0.0)
    return {name: k for name, k in times.items() if name != "eager" and k.seconds > _FAR * best}


def measure_again(
    solo: Solo,
    problem: Problem,
    case: Case,
    device: str,
    flush: Callable[[], torch.Tensor | None],
    clock: Callable[[], float],
) -> None:
    """The times alone of those worth racing, as they are today: a GPU's clocks may have gone down since."""
    values = [problem.inputs(case, "normal", mix(7, n), device) for n in range(2)]
    for name, function in solo.near.items():
        solo.seconds[name] = _alone(Baseline(name, function, _copies(values), flush(), clock))


def _copies(values: Sequence[Inputs]) -> list[Inputs]:
    return [tuple(x.clone() if isinstance(x, torch.Tensor) else x for x in made) for made in values]


def _alone(baseline: Baseline) -> float:
    """Seconds a call: the median of several medians, after a few calls to warm up. Of one that waits for its host,
    those that did not; the least, where all did."""
    for n in (0, 1):
        baseline.call(n)
    # the least of three: one call of a process that was put to sleep says nothing
    began, alone_s = baseline.clock(), math.inf
    for _ in range(3):
        start = baseline.clock()
        baseline.run([0])
        alone_s = min(alone_s, baseline.clock() - start)
        if baseline.clock() - began > _SLOW_S:
            break
    baseline.alone_s = alone_s
    found = [baseline.seconds([0, 1, 0, 1, 0, 1, 1, 0, 0, 1]) for _ in range(5)]
    late = baseline.late or [False] * len(found)
    on_time = [seconds for seconds, was in zip(found, late, strict=True) if not was]
    return statistics.median(on_time) if on_time else min(found)


@dataclass
class _Trial:
    """Compares baselines while other tasks run, then times those that compute the same with the GPU alone."""

    problem: Problem
    case: Case
    device: str
    flush: Callable[[], torch.Tensor | None]
    clock: Callable[[], float]
    solo: Solo
    quiet: Quiet

    def __post_init__(self) -> None:
        problem, case = self.problem, self.case
        with self.quiet.shared():
            self.values = [problem.inputs(case, "normal", mix(7, n), self.device) for n in range(2)]
            probe = Probe("accuracy", case, "normal", (mix(7, 0),), rows=problem.sampled_rows)
            self.want = expected(problem, probe, mix(7, 0), self.values[0])

    def run(self, functions: Mapping[str, Callable[..., Any]]) -> None:
        ready = {name: made for name, f in functions.items() if (made := self._compared(name, f)) is not None}
        with self.quiet.alone() if ready else contextlib.nullcontext():
            for name, baseline in ready.items():
                try:
                    self.solo.seconds[name] = _alone(baseline)
                except _FAULTS as error:
                    self.solo.missing[name] = f"{type(error).__name__}: {error}"[:300]
                else:
                    self.solo.functions[name] = baseline.function

    def _compared(self, name: str, function: Callable[..., Any]) -> Baseline | None:
        baseline = Baseline(name, function, _copies(self.values), self.flush(), self.clock)
        try:
            with self.quiet.shared():
                found = compare(self.want, as_outputs(baseline.call(0)))
        except _FAULTS as error:
            self.solo.missing[name] = f"{type(error).__name__}: {error}"[:300]
            return None
        # every race needs eager, whatever it computes: it is what users run today
        if found.reason is not None and name != "eager":
            self.solo.missing[name] = f"computes something else: {found.reason}: {found.detail}"[:300]
            return None
        return baseline


def measure(
    problem: Problem,
    case: Case,
    device: str,
    compiled: bool,
    flush: Callable[[], torch.Tensor | None],
    clock: Callable[[], float],
    shelf: Shelf | None = None,
    quiet: Quiet | None = None,
) -> Solo:
    """Every baseline, compared and timed alone. Raises JudgeBroken where not even eager runs."""
    solo = Solo({}, {})
    trial = _Trial(problem, case, device, flush, clock, solo, quiet or Quiet())
    modes = baseline_modes(problem, device)
    earlier = far_slower(shelf.read(problem, case)) if shelf is not None else {}
    wanted = {name: f for name, f in modes.items() if compiled or not name.startswith("compile")}
    solo.missing.update(dict.fromkeys(modes.keys() - wanted.keys(), "left out by this judge's settings"))
    trial.run({name: f for name, f in wanted.items() if name not in earlier})
    if "eager" not in solo.functions:
        raise JudgeBroken(f"baselines: eager does not run on {problem.name}, {case}: {solo.missing['eager']}")
    best = min(solo.seconds.values())
    now = shelf.now() if shelf is not None else math.nan
    known = {name: SoloTime(s, now) for name, s in solo.seconds.items()}
    for name, then in earlier.items():
        if name not in modes or name in solo.missing:
            continue
        if then.seconds > _FAR * best:
            solo.seconds[name], known[name] = then.seconds, then
            continue
        trial.run({name: modes[name]})  # what was faster then is not so today
        if name in solo.seconds:
            known[name] = SoloTime(solo.seconds[name], now)
    if shelf is not None:
        shelf.write(problem, case, known)
    return solo
