"""The judge's hold on a confined process: orders, deadlines, a watch on what it uses, and how it ended.

Whatever a candidate does to its process comes out here as a `Refusal` with a reason: silence is a timeout, a closed
line is a death, a bad frame is forgery, and a watch thread ends what takes too much memory, too many processes, too
much disk or says too much. The judge's own thread never waits without a deadline.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from nightshift.kernels.judge.host import isolation
from nightshift.kernels.judge.host.channel import Channel, ChannelClosed, ChannelForged, ChannelTimeout, Message
from nightshift.kernels.judge.host.usage import children, exceeds, folder_bytes, state
from nightshift.kernels.judge.host.vram import Vram
from nightshift.kernels.judge.probes.buffers import Lender
from nightshift.kernels.judge.verdict import SELF_REPORTED, JudgeBroken, Reason, Refusal

Role = Literal["candidate", "replay"]
_WATCH_S = 0.05
STDERR_KEPT = 64 << 10


@dataclass(frozen=True)
class Limits:
    """What one host may use. `rehearse_s` is for compiling a candidate's kernels apart from any call: a network has
    hundreds. `vram_bytes` counts torch's and the driver's own share too; `all_calls_s` bounds the
    answers' waiting times together, so that nobody holds the judge by being slow without ever hanging."""

    import_s: float = 60.0
    call_s: float = 60.0
    rehearse_s: float = 300.0
    all_calls_s: float = 900.0
    cpu_s: int = 600
    memory_bytes: int = 16 << 30
    vram_bytes: int = 64 << 30
    scratch_bytes: int = 1 << 30
    file_bytes: int = 512 << 20
    processes: int = 96
    live_processes: int = 16
    output_bytes: int = 4 << 20


@dataclass
class _Said:
    """What it has printed: how much, and the first words of it."""

    count: int = 0
    first: bytearray = field(default_factory=bytearray)


class Process:
    """One confined process. `request` raises Refusal for whatever the candidate did to it."""

    def __init__(
        self,
        role: Role,
        pid: int,
        channel: Channel,
        output: int,
        status: int,
        lender: Lender,
        limits: Limits,
        scratch: Path,
    ) -> None:
        self.role = role
        self.pid = pid
        self.lender = lender
        self.limits = limits
        self._said = _Said()
        self.layers: dict[str, str] = {}
        self.killed = False  # by SIGKILL, which nobody here sent
        self._channel = channel
        self._output = output
        self._status = status
        self._scratch = scratch
        self._vram: Vram | None = None
        self._ended: Refusal | JudgeBroken | None = None
        self._deciding = threading.RLock()  # held while it is found out why it must end
        self._stops, self._signalling = 0, threading.Lock()
        self._waited_s = 0.0
        self._closed = threading.Event()
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._drain, self._watch)]
        for thread in self._threads:
            thread.start()
        try:
            layers = self._channel.receive(60.0).body["layers"]
            self.layers = {str(name): str(text) for name, text in layers.items()}
        except (ChannelClosed, ChannelTimeout, KeyError) as error:
            self.close()
            raise JudgeBroken(f"host: not confined ({error}): {self.said()[-800:]}") from error
        if isolation.filters_in_force(pid) < 1 or not set(isolation.FLOOR) <= set(self.layers):
            self.close()
            raise JudgeBroken("host: the kernel shows no seccomp filter on it")

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def request(self, body: Mapping[str, Any], timeout_s: float, blob: bytes = b"", stage: str = "") -> Message:
        """One order and its answer. Raises Refusal (the candidate's fault)."""
        start = time.monotonic()
        try:
            self._channel.send(body, blob)
            answer = self._channel.receive(timeout_s)
            self._waited_s += time.monotonic() - start
            if self._waited_s > self.limits.all_calls_s:
                self.kill()
                text = f"its answers took {self._waited_s:.0f} s, more than {self.limits.all_calls_s:g} in all"
                raise Refusal(Reason.call_timeout, text, stage)
        except ChannelTimeout as error:
            below = len(self.descendants())
            self.kill()
            if below > self.limits.live_processes and self.ended is None:
                text = f"no answer in {timeout_s:g} s, and {below} processes"
                raise Refusal(Reason.process_limit, text, stage) from error
            reason = Reason.import_timeout if body.get("op") in ("load", "compile") else Reason.call_timeout
            refusal = self.ended or Refusal(reason, f"no answer to {body.get('op')!r} in {timeout_s:g} s", stage)
            raise refusal from error
        except ChannelForged as error:
            self.kill()
            raise Refusal(Reason.channel_forged, str(error), stage) from error
        except ChannelClosed as error:
            raise self._death(stage) from error
        if self.ended is not None:
            raise self.ended
        if answer.body.get("ok") is not True:
            word, text = str(answer.body.get("reason", "raised")), str(answer.body.get("text", ""))[:2000]
            if word not in SELF_REPORTED:
                self.kill()
                raise Refusal(Reason.channel_forged, f"its process says {word[:40]!r} of itself: {text}", stage)
            refused = Refusal(Reason(word), text, stage)
            raise self._found_none(refused, start) if refused.reason is Reason.out_of_memory else refused
        return answer

    def lend(self, sizes_bytes: Mapping[int, int]) -> None:
        """Make buffers of at least these payload sizes and have the process map the new ones."""
        made = [
            lent for index, size in sizes_bytes.items() if (lent := self.lender.ensure(index, size)) is not None
        ]
        if made:
            self.request({"op": "attach", "buffers": [asdict(lent) for lent in made]}, self.limits.call_s)

    def watch_vram(self, vram: Vram) -> None:
        """Let the watch also ask for the device memory of this process, and for what is left."""
        vram.enter(self)
        self._vram = vram

    @property
    def ended(self) -> Refusal | JudgeBroken | None:
        """Why the watch ended it, if it did; waits where that is being found out."""
        with self._deciding:
            return self._ended

    def pids(self) -> list[int]:
        return [self.pid, *self.descendants()]

    def lent_bytes(self) -> int:
        return self.lender.lent_bytes()

    def descendants(self) -> list[int]:
        """Every live process below the host, by the kernel's lists."""
        found, frontier = [], [self.pid]
        while frontier:
            below = [child for pid in frontier for child in children(pid)]
            found += below
            frontier = below
        return found

    def said(self) -> str:
        """The beginning of what it printed."""
        return self._said.first.decode(errors="replace")

    def pause(self) -> None:
        """Stop it and its children until as many `resume`s; returns once the kernel shows it stopped."""
        with self._signalling:
            self._stops += 1
            self._signal(signal.SIGSTOP)
        for _ in range(1000):
            if state(self.pid) not in ("R", "S", "D"):
                return
            time.sleep(0.0002)

    def resume(self) -> None:
        """Undo one `pause`."""
        with self._signalling:
            assert self._stops, "resumed more often than paused: the next pause would last for ever"
            self._stops -= 1
            if not self._stops:
                self._signal(signal.SIGCONT)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Stopped within."""
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def _signal(self, number: signal.Signals) -> None:
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def end(self, timeout_s: float) -> bool:
        """Kill it and wait until it and all below it are gone; whether they are."""
        below, deadline = self.descendants(), time.monotonic() + timeout_s
        self.kill()
        while any(state(pid) not in ("Z", "") for pid in (self.pid, *below)):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """End it, everything below it, and give its buffers back."""
        if self._closed.is_set():
            return
        if self._vram is not None and self._vram.short():  # before it is gone and nothing of it can come back
            self._settle()
        self._closed.set()
        self.kill()
        if self._vram is not None:
            self._vram.leave(self)
        self._channel.close()
        with os.fdopen(self._status, "rb") as pipe:
            pipe.read()  # the keeper closes it once the host and all below it are gone
        for thread in self._threads:
            thread.join(5.0)
        self.lender.close()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _death(self, stage: str) -> Refusal | JudgeBroken:
        for _ in range(100):
            if self.ended is not None:
                return self.ended
            if state(self.pid) in ("Z", ""):
                break
            time.sleep(0.01)
        time.sleep(0.2)  # let the keeper write how it ended, and the watch say why it ended it
        if self.ended is not None:
            return self.ended
        os.set_blocking(self._status, False)
        try:
            told = json.loads(os.read(self._status, 1 << 12) or b"{}")
        except (BlockingIOError, ValueError):
            told = {}
        ended = int(told.get("status", 0))
        words = self.said()[-300:]
        if os.WIFSIGNALED(ended):
            number = os.WTERMSIG(ended)
            if number in (signal.SIGKILL, signal.SIGXCPU) and told["cpu_s"] > self.limits.cpu_s - 1:
                text = f"it used {told['cpu_s']:.0f} s of a processor, and {self.limits.cpu_s} are granted"
                return Refusal(Reason.call_timeout, text, stage)
            known = {int(signal.SIGXFSZ): Reason.disk_limit}
            self.killed = number == signal.SIGKILL
            name = signal.Signals(number).name
            return Refusal(known.get(number, Reason.host_died), f"the process ended by {name}: {words}", stage)
        return Refusal(Reason.host_died, f"the process ended with code {os.WEXITSTATUS(ended)}: {words}", stage)

    def _end(self, reason: Reason, detail: str) -> None:
        with self._deciding:
            if self._ended is None:
                self._ended = Refusal(reason, detail, "watch")
            self.kill()

    def _settle(self) -> None:
        """Find out whose a shortage of VRAM is, which the watch has met; this may end it."""
        with self._deciding:
            if self._vram is not None and self._ended is None:
                self._ended = self._vram.settle(self, self.limits.vram_bytes)

    def _exceeds(self) -> None:
        """End it: by the driver's word it has more VRAM than it may; what comes back tells whether it had."""
        with self._deciding:
            if self._vram is not None and self._ended is None:
                self._ended = self._vram.beyond(self, self.limits.vram_bytes)

    def _found_none(self, refusal: Refusal, since_s: float) -> Refusal | JudgeBroken:
        """Whose the shortage of VRAM is that the candidate has met, by its own word."""
        with self._deciding:
            if self._vram is not None and self._ended is None:
                self._ended = self._vram.found_none(self, self.limits.vram_bytes, refusal, since_s)
            return self._ended or refusal

    def _drain(self) -> None:
        """Keep the first words of what it prints, count the rest, end it when it says too much."""
        with os.fdopen(self._output, "rb", buffering=0) as pipe:
            while piece := pipe.read(1 << 16):
                self._said.count += len(piece)
                if len(self._said.first) < STDERR_KEPT:
                    self._said.first += piece[: STDERR_KEPT - len(self._said.first)]
                if self._said.count > self.limits.output_bytes and self._ended is None:
                    self._end(Reason.output_flood, f"printed more than {self.limits.output_bytes} bytes")

    def _watch(self) -> None:
        """End it when it takes more than its share of memory, processes or disk."""
        watched = not self.layers.get("scratch", "").startswith("tmpfs")
        while not self._closed.wait(_WATCH_S):
            below = self.descendants()
            if memory := exceeds((self.pid, *below), self.limits.memory_bytes):
                self._end(
                    Reason.memory_limit, f"{memory} bytes of host memory, more than {self.limits.memory_bytes}"
                )
            if len(below) > self.limits.live_processes:
                self._end(Reason.process_limit, f"{len(below)} processes, more than {self.limits.live_processes}")
            if self._vram is not None and self._ended is None:
                vram = self._vram.used(self)
                if vram > self.limits.vram_bytes:
                    self._exceeds()
                elif self._vram.short():
                    self._settle()
            if watched and folder_bytes(self._scratch) > self.limits.scratch_bytes:
                self._end(Reason.disk_limit, f"more than {self.limits.scratch_bytes} bytes written")


def order_inputs(items: Sequence[Any]) -> list[Any]:
    """Inputs of an order: a view as its JSON, a Python number wrapped in a list."""
    return [item.to_json() if hasattr(item, "to_json") else [item] for item in items]
