"""Runs inside a judge-owned process: replays a launch plan on lent buffers and times it.

No candidate Python is here. The only foreign thing is its GPU binary, which is why this process is confined like a
host: a kernel that writes where it pleases ends or falsifies only this process, and the judge checks times against
its own clock and outputs against its own copies.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from nightshift.kernels.judge import cuda, launch_plan
from nightshift.kernels.judge.host.channel import Channel
from nightshift.kernels.judge.host.interference import load_beside
from nightshift.kernels.judge.probes.blend import blend_each
from nightshift.kernels.judge.probes.buffers import Borrower, Lent, View, flat_cuda

_IDLE_S = 3600.0
# Of either side of a race, whose host may be held up: `timed` begins again behind a longer wait.
TRIES = 3
_POISON = 0xFF
Call = list[Callable[[int], None]]
Tensors = tuple[list[torch.Tensor | None], list[torch.Tensor]]


def serve(channel: Channel, device: str, arena: int | None) -> None:
    """Answer the judge until it hangs up."""
    if device != "cuda":
        raise RuntimeError("replay: launch plans need a CUDA device")
    torch.cuda.init()  # type: ignore[no-untyped-call]
    replayer = Replayer(Borrower(device, arena))
    while True:
        message = channel.receive(_IDLE_S)
        try:
            body = replayer.answer(message.body, message.blob)
        except (cuda.CudaError, launch_plan.PlanError, RuntimeError, ctypes.ArgumentError) as error:
            fault = (
                "illegal" in str(error).lower()
                or "LAUNCH_FAILED" in str(error)
                or "misaligned" in str(error).lower()
            )
            reason = "illegal_access" if fault else "raised"
            body = {"ok": False, "reason": reason, "text": f"{type(error).__name__}: {error}"[:2000]}
        channel.send(body)


class Replayer:
    """One plan, made ready for several sets of buffers ("slots")."""

    def __init__(self, borrower: Borrower) -> None:
        self._borrower = borrower
        self._plan = launch_plan.Plan((), ())
        self._modules: list[cuda.Module] = []
        self._scratch: list[torch.Tensor] = []
        self._functions: dict[tuple[int, str, int], ctypes.c_void_p] = {}
        self._slots: list[Call] = []
        self._placed: dict[int, launch_plan.Placed] = {}  # by step what torch makes in memory of its own
        self._tensors: list[Tensors] = []
        self._values: list[list[torch.Tensor | None]] = []  # each slot's own, to blend
        self._flush: torch.Tensor | None = None
        self._chains: dict[tuple[tuple[int, ...], bool], torch.cuda.CUDAGraph | None] = {}
        self._spoiler: cuda.Spoiler | None = None
        self._lines: torch.Tensor | None = None  # of every slot, for `_give_back`

    def answer(self, order: Mapping[str, Any], blob: bytes) -> dict[str, Any]:
        match order["op"]:
            case "attach":
                for lent in order["buffers"]:
                    self._borrower.attach(Lent(**lent))
            case "plan":
                self._take(launch_plan.Plan.from_message(order["plan"], blob))
            case "slots":
                self._take_slots(order["slots"])
            case "keep":
                self._keep(order["slot"])
            case "spoiler":
                self._spoiler = cuda.Spoiler(blob)
            case "run":
                self._run(order["order"], bool(order.get("load")), bool(order.get("spoil")))
            case "chain":
                return {"ok": True, "captured": self._chain(order["order"], order["times"], order["empty"])}
            case "time":
                seconds, on_time = self._time(order["order"], order["seeds"], order["flush_bytes"], order["wait"])
                return {"ok": True, "seconds": seconds, "on_time": on_time}
            case other:
                raise launch_plan.PlanError(f"replay: no order {other!r}")
        return {"ok": True}

    def _take(self, plan: launch_plan.Plan) -> None:
        self._plan = plan
        self._modules = [cuda.Module(binary) for binary in plan.binaries]
        self._functions.clear()
        self._slots.clear()
        self._placed.clear()
        self._scratch = [
            torch.full((max(1, size),), _POISON, dtype=torch.uint8, device="cuda") for size in plan.scratch_bytes
        ]

    def _take_slots(self, slots: Sequence[Mapping[str, Any]]) -> None:
        self._chains.clear()  # a captured graph holds addresses of the slots before
        self._lines = None
        if not self._placed and slots:
            self._placed = launch_plan.place_results(self._plan, self._resolver(slots[0]), self._move)
        self._slots = [self._ready(slot) for slot in slots]
        self._tensors = [self._lent(slot) for slot in slots]
        self._values = [[] for _ in slots]
        if len(slots) > 1:  # a race's; an examination sends one slot a call
            for number in range(len(slots)):
                self._keep(number)

    def _run(self, order: Sequence[int], load: bool, spoil: bool) -> None:
        with load_beside("cuda") if load else contextlib.nullcontext():
            for index in order:
                if spoil and self._spoiler is not None:
                    self._spoiler()
                self._fire(self._slots[index])
        torch.cuda.synchronize()

    def _resolver(self, slot: Mapping[str, Any]) -> launch_plan.Resolve:
        """Where a plan's pointers lead with one slot's buffers."""
        rooms: dict[str, list[int]] = {
            room: [
                self._borrower.tensor(View.from_json(item)).data_ptr() if isinstance(item, Mapping) else 0
                for item in slot[room]
            ]
            for room in ("in", "out")
        }

        def resolve(pointer: launch_plan.Pointer) -> int:
            addresses = rooms.get(pointer.room) or [tensor.data_ptr() for tensor in self._scratch]
            if pointer.index >= len(addresses):
                raise launch_plan.PlanError(f"plan: points at {pointer.room}{pointer.index}, which is not there")
            return addresses[pointer.index] + pointer.offset_bytes

        return resolve

    def _move(self, index: int, result: torch.Tensor) -> None:
        """A scratch buffer lies where torch has made this result, and no longer where it lay."""
        self._scratch[index] = flat_cuda(result.data_ptr(), result.untyped_storage().nbytes())

    def _ready(self, slot: Mapping[str, Any]) -> Call:
        def function(binary: int, name: str, shared_bytes: int) -> ctypes.c_void_p:
            key = (binary, name, shared_bytes)
            if key not in self._functions:
                self._functions[key] = self._modules[binary].function(name, shared_bytes)
            return self._functions[key]

        return launch_plan.prepare(self._plan, function, self._resolver(slot), self._placed)

    @staticmethod
    def _fire(actions: Call) -> None:
        for action in actions:
            action(0)

    def _time(
        self, order: Sequence[int], seeds: Sequence[int], flush_bytes: int, wait: int
    ) -> tuple[list[float], bool]:
        if self._flush is None or self._flush.numel() != flush_bytes:
            self._flush = torch.empty(flush_bytes, dtype=torch.uint8, device="cuda")
        calls = [lambda i=i: self._fire(self._slots[i]) for i in order]
        before = [functools.partial(self._unsettle, slot, seed) for slot, seed in zip(order, seeds, strict=True)]
        told = timed_once(calls, self._flush, before, wait)
        self._give_back()
        return told

    def _chain(self, order: Sequence[int], times: int, empty: bool) -> bool:
        """Make an order's calls so many times over, back to back and without Python in between; False where they
        cannot be captured. `empty`: only what spoils the outputs before each of them."""
        key = (tuple(order), empty)
        if key not in self._chains:
            self._chains[key] = self._captured(order, empty)
        graph = self._chains[key]
        if graph is None:
            return False
        for _ in range(times):
            graph.replay()
        torch.cuda.synchronize()
        return True

    def _captured(self, order: Sequence[int], empty: bool) -> torch.cuda.CUDAGraph | None:
        if self._placed:  # a graph's memory is its own
            return None
        before, graph = torch.cuda.current_stream(), torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                stream = torch.cuda.current_stream().cuda_stream
                for slot in order:
                    for tensor in self._tensors[slot][1]:
                        _spoil(tensor)
                    for action in () if empty else self._slots[slot]:
                        action(stream)
        except (RuntimeError, cuda.CudaError):
            torch.cuda.set_stream(before)
            return None
        return graph

    def _lent(self, slot: Mapping[str, Any]) -> Tensors:
        """A slot's input tensors (None for a number) and its outputs."""
        views = {
            room: [
                self._borrower.tensor(View.from_json(item)) if isinstance(item, Mapping) else None
                for item in slot[room]
            ]
            for room in ("in", "out")
        }
        return views["in"], [x for x in views["out"] if x is not None]

    def _keep(self, slot: int) -> None:
        """Copy a slot's values, as the judge has just written them."""
        self._values[slot] = [None if x is None else x.clone() for x in self._tensors[slot][0]]

    def _unsettle(self, slot: int, seed: int) -> None:
        """Before a timed call: nothing that was remembered of an earlier call may be of use.

        L2's lines are given back, so that the flush which follows evicts them; first, because a walk over every
        slot leaves caches of addresses cold. Then the inputs become a blend that only this call sees, and outputs
        and scratch are filled with NaN: traffic like that before a baseline's call (`contestants.Stir`).
        """
        self._give_back()
        inputs, outputs = self._tensors[slot]
        first, second = self._values[slot], self._values[(slot + 1) % len(self._values)]
        blend_each(inputs, first, second, seed)
        for tensor in self._scratch:
            tensor.fill_(_POISON)
        for tensor in outputs:
            _spoil(tensor)

    def _give_back(self) -> None:
        """No slot's line is held in L2 because a kernel asked for it (evict_last): one that is would be found there
        by its own slot's next call, and take room from every other's, a baseline's among them."""
        if self._spoiler is None:
            return
        if self._lines is None:
            lent = [x for inputs, outputs in self._tensors for x in (*inputs, *outputs) if x is not None]
            ranges = {(x.data_ptr(), x.numel() * x.itemsize) for x in (*lent, *self._scratch)}
            self._lines = torch.tensor(cuda.lines_of(sorted(ranges)), dtype=torch.int64).reshape(-1, 2).cuda()
        self._spoiler.give_back(self._lines)


def timed(
    calls: Sequence[Callable[[], Any]],
    flush: torch.Tensor,
    preparations: Sequence[Callable[[], None]] = (),
    tries: int = 1,
) -> tuple[list[float], bool]:
    """Seconds of each call by CUDA events, each after an L2 flush, queued behind a wait: none waits for Python. And
    whether that held: else the times may be the host's.

    `preparations`: one action for each call, outside its time and before the flush. `tries`: how often to begin
    again, with a wait twice as long, where the GPU had overtaken the host at half of the calls or more. Calls that
    it had overtaken are left out, unless they are that many to the end: their time may be the host's.

    The same clock times candidates and baselines, so both sides of a ratio are measured alike.
    """
    for attempt in range(tries):
        seconds, on_time = timed_once(calls, flush, preparations, 2**attempt)
        if on_time:
            break
    return seconds, on_time


def timed_once(
    calls: Sequence[Callable[[], Any]], flush: torch.Tensor, preparations: Sequence[Callable[[], None]], wait: int
) -> tuple[list[float], bool]:
    """The seconds of those calls that had not begun on the GPU before the host had queued all of them, and True
    where they are more than half; else those of all. wait: how much longer than usual."""
    events = [(_event(), _event()) for _ in calls]
    late = []
    torch.cuda.synchronize()
    torch.cuda._sleep(wait * _cycles(len(calls)))  # type: ignore[no-untyped-call]
    for call, (start, end), action in zip(calls, events, preparations or [_nothing] * len(calls), strict=True):
        action()
        flush.zero_()
        start.record()
        call()
        end.record()
        late.append(start.query())
    torch.cuda.synchronize()
    seconds = [start.elapsed_time(end) * 1e-3 for start, end in events]
    if 2 * sum(late) >= len(calls):
        return seconds, False
    return [value for value, was in zip(seconds, late, strict=True) if not was], True


def _spoil(output: torch.Tensor) -> None:
    output.fill_(math.nan if output.is_floating_point() else -1)


def _nothing() -> None:
    """Where nothing is suspected of remembering, nothing needs to be done."""


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _cycles(calls: int) -> int:
    """GPU clock cycles that cover the queueing of that many calls (≈ 150 µs each at 2 GHz, a few ms at most)."""
    return min(calls, 40) * 300_000


def wall(action: Callable[[], Any]) -> float:
    """Seconds of an action by the host's monotonic clock, GPU idle before and after."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    action()
    torch.cuda.synchronize()
    return time.perf_counter() - start
