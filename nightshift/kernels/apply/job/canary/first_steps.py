"""The canary that runs unless a job forbids it: the job's own first steps decide which kernels stay.

`canary` runs a step that it is given, as often as it likes. Here nothing is run: the optimiser's step hook counts
the job's steps, sets of kernels change between two of them, and marks in the GPU's own stream say how long each
took. The host waits for the GPU at the end of a stage alone. Three stages: steps with all kernels, which compile
and warm up; one short block without each place, which proposes a set; that set and torch alone in turns, which
decides as `canary` does. The first steps after each change are not read: three where a set's regions are compiled.

Of several ranks the first one's readings count. It leaves each stage in the job's store, and all ranks take it up
at the same later step: no rank ever waits for another, however many steps it makes.
"""

from __future__ import annotations

import atexit
import itertools
import json
import math
import statistics
import time
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import torch

from nightshift.kernels.apply.job.canary.readings import (
    MIN_GAIN,
    Kernels,
    gain_us,
    group_of,
    less,
    named,
    on_trial,
    over_torch,
    put_by_passes,
    use,
)
from nightshift.kernels.apply.job.checks import capturing
from nightshift.kernels.apply.job.copies import COPIES, FIRST_LOOKS
from nightshift.kernels.apply.job.names import PASSED, PASSES
from nightshift.kernels.apply.job.state import STATE, Report, kernels_sha256

LIMIT = 60
"""Most steps of a job that are measured."""
WARM = 3
"""Steps in which regions are compiled, and CUDA graphs recorded."""
LAG = 1
"""Steps from the first rank's message to the step after which all ranks follow it."""
FULL = 0.75
"""Of a GPU's memory: where steps take more, one without the passes that save memory may not fit, and they stay."""
_TURNS = 4
_READ = 3
_GLANCE = 2
"""Steps that are read in a block that decides, and in one that only proposes."""
_RUNS = "_nightshift_canaries"
Block = tuple[Sequence[str], int, int]
"""(the kernels' slots, steps that are not read, steps that are)."""
Course = Generator[dict[str, Any], list[list[float]], None]


def host_clock() -> float:
    """Seconds, where no GPU is measured."""
    return time.perf_counter()


def measure_first_steps(optimizer: torch.optim.Optimizer, report: Report) -> None:
    """Begins it; the report says why where it cannot be."""
    ranked = torch.distributed.is_available() and torch.distributed.is_initialized()
    alone = not ranked or torch.distributed.get_world_size() == 1
    store = None if alone else _store_of_ranks()
    why = "" if alone or store is not None else "the ranks have no store in which to agree"
    if torch.are_deterministic_algorithms_enabled() and any(k.problem in PASSED for k in STATE.kernels.values()):
        why = why or "under torch's deterministic algorithms compiled regions cannot be told apart"
    report.canary = why or f"the next {LIMIT} steps at most say which kernels stay; until then all are on trial"
    STATE.log(f"nightshift kernels: canary: {report.canary}")
    if not why:
        STATE.first_steps = FirstSteps(optimizer, report, store)


def _store_of_ranks() -> Any:
    try:
        from torch.distributed.distributed_c10d import _get_default_store

        return _get_default_store()
    except (ImportError, RuntimeError, ValueError, KeyError):
        return None


class FirstSteps:
    """Counts a job's steps, changes kernels between them, and decides. store: of a job of several ranks. whole: all
    kernels that are on trial; running: until the choice, or `end`; graphs: compiled before the job's first step."""

    def __init__(self, optimizer: torch.optim.Optimizer, report: Report, store: Any = None) -> None:
        self.optimizer: torch.optim.Optimizer | None = optimizer  # not kept alive by what it said
        self.running, self.steps = True, 0
        # under deterministic algorithms nothing tells a region with passes from one without: they stay
        self._report, self._store = report, store
        self.whole = dict(STATE.kernels) if torch.are_deterministic_algorithms_enabled() else on_trial()
        self._rank = 0 if store is None else torch.distributed.get_rank()
        first = next((p for group in optimizer.param_groups for p in group["params"]), None)
        self._device = torch.device("cpu") if first is None else first.device
        self._on_gpu = self._device.type == "cuda"
        self._marks: list[Any] = []
        # copies are compared with their weights in the first steps: no other step is as slow
        warm = FIRST_LOOKS + 1 if len(COPIES) else WARM
        # after a second `apply` the regions of all kernels are there already
        self.graphs = _graphs() if STATE.first_steps is None else STATE.first_steps.graphs
        self._course: Course | None = None
        if self._rank == 0:
            self._course = _course(self.whole, warm, store is None, self.graphs, self._device)
            next(self._course)
        # on torch itself: another such file in this process must not read what was said of this one
        run = getattr(torch.library, _RUNS, 0)
        setattr(torch.library, _RUNS, run + 1)
        self._key = f"nightshift_kernels/{kernels_sha256()[:16]}/{run}"
        self._stage, self._said, self._due = 0, "", 0
        config = torch._dynamo.config
        self._recompile_limit = config.recompile_limit
        # a region holds one piece of code for each set, and past the limit it would run in eager mode
        config.recompile_limit = self._recompile_limit + 12
        atexit.register(self._job_ended)
        self._begin([(list(self.whole), warm, 0)])

    def end(self, reason: str) -> None:
        """All kernels are in use again, and nothing more is measured."""
        if self.running:
            self._stop()
            STATE.log(f"nightshift kernels: canary ended after {self.steps} steps without a choice: {reason}")
            self._report.canary = f"ended without a choice: {reason}"
        use(self.whole, passing=True)
        torch._dynamo.config.recompile_limit = self._recompile_limit
        if put_by_passes(self.whole):
            _mark_regions(passed=True)

    def stepped(self) -> None:
        """After each step of the optimiser: one that is skipped, or accumulates gradients, is part of the next."""
        if capturing():  # what is recorded now keeps the kernels that it has
            return
        self.steps += 1
        if self._due:
            if self.steps >= self._due:
                self._listen()
            return
        self._at += 1
        self._mark()
        if self._at < len(self._plan):
            self._use(self._plan[self._at][1])
            return
        self._due = self.steps + LAG
        if self._course is not None:
            self._say(self._course.send(self._readings()))
        if self._store is None:
            self._follow(self._said)

    def _begin(self, blocks: Sequence[Block]) -> None:
        self._plan = [
            (number, names, at >= skip)
            for number, (names, skip, read) in enumerate(blocks)
            for at in range(skip + read)
        ]
        self._at, self._due = 0, 0
        self._marks.clear()
        self._mark()
        self._use(self._plan[0][1])

    def _use(self, names: Sequence[str]) -> None:
        """A region guards on the kernels that it asked for, so that each set is compiled once."""
        chosen, passing = {name: self.whole[name] for name in names}, PASSES in names or PASSES not in self.whole
        if [*STATE.kernels] == [name for name in names if name != PASSES] and STATE.passing == passing:
            return
        use(chosen, passing)
        if put_by_passes(self.whole):
            if torch.are_deterministic_algorithms_enabled() and self.running:
                self.end("torch's deterministic algorithms were switched on")
            _mark_regions(put_by_passes(chosen))

    def _mark(self) -> None:
        if self._course is None:
            return
        if self._on_gpu:
            mark: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            mark.record(torch.cuda.current_stream(self._device))
            self._marks.append(mark)
        else:
            self._marks.append(host_clock())

    def _readings(self) -> list[list[float]]:
        """Seconds of the steps that are read, of each block."""
        if self._on_gpu:
            self._marks[-1].synchronize()
        found: list[list[float]] = [[] for _ in range(self._plan[-1][0] + 1)]
        for (number, _, is_read), (before, after) in zip(self._plan, itertools.pairwise(self._marks), strict=True):
            if is_read:
                took_s = before.elapsed_time(after) / 1e3 if self._on_gpu else after - before
                found[number].append(max(took_s, 1e-9))  # a logarithm is taken of it
        return found

    def _say(self, message: Mapping[str, Any]) -> None:
        """Sends to all ranks by the store. It is no collective, so a rank that has ended blocks no other."""
        self._said = json.dumps(message)
        if self._store is not None:
            try:
                self._store.set(f"{self._key}/{self._stage}", self._said)
            except RuntimeError as error:
                self._said = json.dumps({"keep": [], "text": f"the ranks' store is lost: {error}"[:200]})

    def _listen(self) -> None:
        """Takes up what the first rank said. Where ranks exchange gradients it has: it made that step before."""
        if self._course is None:
            self._said = ""
            if self._on_gpu and self.steps == self._due:  # the host may be steps ahead of its GPU, and of that rank
                torch.cuda.synchronize(self._device)
            try:
                if self._store.check([f"{self._key}/{self._stage}"]):
                    self._said = self._store.get(f"{self._key}/{self._stage}").decode()
            except RuntimeError as error:
                self._said = json.dumps({"keep": [], "text": f"the ranks' store is lost: {error}"[:200]})
            if not self._said and self.steps >= self._due + LIMIT:
                self._said = json.dumps({"keep": [], "text": "the first rank did not say what to keep"})
        if self._said:
            self._follow(self._said)

    def _follow(self, text: str) -> None:
        message = json.loads(text)
        self._stage += 1
        if "keep" in message:
            self._decide(message)
        else:
            self._begin(message["blocks"])

    def _decide(self, message: Mapping[str, Any]) -> None:
        kept, every, report = message["keep"], named(self.whole), self._report
        self._use(kept)
        if not self.running:
            return
        self._stop()
        sound = not any(self.whole[name].disabled for name in kept)
        STATE.gain = gain_us(message["seconds"]) if "seconds" in message and kept and sound else {}
        report.gains = message.get("gains", {})
        report.canary = (
            f"keeps {', '.join(kept) or 'none'} of {', '.join(every) or 'none'} after {self.steps} steps: "
            f"{message['text']}"
        )
        used = {self.whole[name].certificate for name in kept}
        for name in every:
            if name not in kept:
                what = f"{name} {self.whole[name].certificate[:16]}".strip()
                report.skipped.append((what, "the canary gave it back to torch"))
        report.applied[:] = [place for place in report.applied if place[2] in used]
        STATE.log(f"nightshift kernels: canary {report.canary}")

    def _stop(self) -> None:
        self.running, self.optimizer = False, None
        self._marks.clear()
        atexit.unregister(self._job_ended)

    def _job_ended(self) -> None:
        used = ", ".join(STATE.kernels) or "none"
        STATE.log(
            f"nightshift kernels: the job ended in step {self.steps} of its canary: no choice, last used: {used}"
        )


def _mark_regions(passed: bool) -> None:
    """What a pass puts into a compiled region that guards on nothing; all regions guard on this flag, and while
    deterministic algorithms are off it does nothing. To forget what was compiled instead would free the memory of
    a CUDA graph's outputs, of a loss that the job may read next."""
    if not torch.are_deterministic_algorithms_enabled():
        torch._C._set_deterministic_algorithms(False, warn_only=not passed)


def _graphs() -> int:
    """How many graphs torch has compiled in this process."""
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def memory_share(device: torch.device) -> float:
    """Of the GPU's memory, what this process held at most; 0 where there is no GPU."""
    if device.type != "cuda":
        return 0.0
    return torch.cuda.max_memory_allocated(device) / torch.cuda.get_device_properties(device).total_memory


def _course(whole: Kernels, warm: int, alone: bool, graphs: int, device: torch.device) -> Course:
    """What the ranks are to do next, after the readings of what they did: blocks, at last what to keep."""
    before = {name: kernel.uses for name, kernel in whole.items()}
    yield {}
    every = _called_in(whole, before, all_seen=alone and not STATE.open)
    is_full = PASSES in every and memory_share(device) > FULL
    if is_full:
        del every[PASSES]
    decided = _decided(whole, every, warm, alone, _graphs() != graphs)
    yield from _with_passes(decided) if is_full else decided


def _with_passes(course: Course) -> Course:
    """The same, with the passes in each set."""
    message = next(course)
    while "keep" not in message:
        blocks = [([*names, PASSES], skip, read) for names, skip, read in message["blocks"]]
        message = course.send((yield {"blocks": blocks}))
    text = f"{message['text']}; passes stay untried, since the GPU's memory is nearly full"
    yield {**message, "keep": [*message["keep"], PASSES], "text": text}


def _decided(whole: Kernels, every: Kernels, warm: int, alone: bool, is_compiled: bool) -> Course:
    """The course after the warm steps. every: what they used."""
    fresh = WARM if is_compiled else 1
    room = LIMIT - warm - (2 * _TURNS * (_READ + 1) + 2 * (fresh - 1)) - (0 if alone else 3 * LAG)
    places = _measured_apart(every, is_compiled, (room - fresh - 1 - 2 * _GLANCE) // (fresh + _GLANCE))
    known = len(every) == len(whole)
    gains, noise = yield from _proposed(every, places, 1 if known else fresh, fresh)
    harmful = [group for place, gain in gains.items() if gain < -noise for group in places[place]]
    chosen = less(every, harmful)
    apart = {place: gain for place, gain in gains.items() if abs(gain) > noise}
    if chosen:
        first = 1 if len(chosen) == len(every) else fresh
        took = yield from _in_alternation(list(chosen), first, fresh)
        yield _verdict(list(chosen), *took, apart, places)
    else:
        yield {"keep": [], "gains": apart, "text": _told(apart, places) if every else "no step used one"}


def _in_alternation(
    chosen: list[str], first: int, fresh: int
) -> Generator[dict[str, Any], list[list[float]], tuple[list[float], list[float]]]:
    """Seconds of torch alone and of a set, by turn. first, fresh: steps that are not read before the set's and
    before torch's first reading."""
    blocks: list[Block] = []
    for turn in range(_TURNS):
        blocks += [([], 1 if turn else fresh, _READ), (chosen, 1 if turn else first, _READ)]
    # the median: a step in which the job saves or evaluates is as long as many
    found = [statistics.median(seconds) for seconds in (yield {"blocks": blocks})]
    return found[::2], found[1::2]


def _proposed(
    every: Kernels, places: Mapping[str, Sequence[str]], first: int, fresh: int
) -> Generator[dict[str, Any], list[list[float]], tuple[dict[str, float], float]]:
    """(by how much longer a step is without each place, the noise): of one place alone nothing is asked. first,
    fresh: steps that are not read of all kernels, and after each change."""
    if len(places) < 2:
        return {}, MIN_GAIN
    begin, end = (list(every), first, _GLANCE), (list(every), 1, _GLANCE)
    middle = [(list(less(every, groups)), fresh, _GLANCE) for groups in places.values()]
    return _each(list(places), (yield {"blocks": [begin, *middle, end]}))


def _called_in(whole: Kernels, before: Mapping[str, int], all_seen: bool) -> Kernels:
    """Those that the warm steps called; a kernel and its gradient's count as one. The rest is named in the log.
    all_seen: no other rank called kernels, nor did a compiled region by itself."""
    called = {group_of(name) for name, k in whole.items()
              if k.uses > before[name] or not (all_seen or name == PASSES)}  # fmt: skip
    if idle := [name for name in whole if group_of(name) not in called and name != PASSES]:
        why = ", ".join(f"{reason} ({count})" for reason, count in sorted(STATE.fallbacks.items()))
        STATE.log(f"nightshift kernels: no step called {', '.join(idle)}; left to torch: {why or 'nothing'}")
    return {name: kernel for name, kernel in whole.items() if group_of(name) in called}


def _measured_apart(every: Kernels, is_compiled: bool, most: int) -> dict[str, list[str]]:
    """Groups of kernels that are measured as one, by name: no more than the steps allow. In compiled regions what
    passes put there is one: they guard on all of it together."""
    single: dict[str, set[str]] = {}
    for name, kernel in every.items():
        one = PASSES if is_compiled and kernel.problem in PASSED else group_of(name)
        single.setdefault(one, set()).add(group_of(name))
    count = max(1, min(len(single), most))
    # neighbours by name are often shapes of one product
    parts = [sorted(single)[at * len(single) // count : (at + 1) * len(single) // count] for at in range(count)]
    return {" + ".join(part): sorted(set().union(*(single[one] for one in part))) for part in parts if part}


def _each(places: Sequence[str], readings: Sequence[Sequence[float]]) -> tuple[dict[str, float], float]:
    """(by how much longer a step is without each place, the noise) of one block with all, one without each, and one
    with all again."""
    took = [min(seconds) for seconds in readings]
    first, *without, again = took
    spread = statistics.median(abs(math.log(seconds[0] / seconds[1])) for seconds in readings)
    noise = max(MIN_GAIN, abs(math.log(again / first)), 2.0 * spread)
    found = {}
    for number, (place, seconds_s) in enumerate(zip(places, without, strict=True), 1):
        found[place] = seconds_s / (first + number / (len(places) + 1) * (again - first)) - 1.0
    return found, noise


def _verdict(
    chosen: list[str],
    none_s: Sequence[float],
    kept_s: Sequence[float],
    apart: Mapping[str, float],
    places: Mapping[str, Sequence[str]],
) -> dict[str, Any]:
    """The set stays if the 5 % limit of its ratio to torch is above 1."""
    point, low = over_torch(none_s, kept_s)
    none, kept = statistics.median(none_s), statistics.median(kept_s)
    gain, gain_low = math.expm1(point), math.expm1(low)
    wins = low > 0.0 and point > MIN_GAIN
    text = f"{kept * 1e3:.3f} ms a step, torch alone {none * 1e3:.3f} (gain {gain:.1%}, not below {gain_low:.1%})"
    return {
        "keep": chosen if wins else [],
        "seconds": {"none": none, "kept": kept, "gain": gain, "gain_low": gain_low},
        "gains": dict(apart),
        "text": f"{text if wins else f'not surely faster, {text}'}; {_told(apart, places)}",
    }


def _told(apart: Mapping[str, float], places: Mapping[str, Sequence[str]]) -> str:
    """Each place's own gain; those that the steps did not tell apart together."""
    said = [f"{place} {gain:+.1%}" for place, gain in apart.items()]
    if together := [place for place in places if place not in apart]:
        said.append(f"measured together: {', '.join(together)}")
    return ", ".join(said)
