"""The judge's hold on a confined process: orders, deadlines, a watch on what it uses, and how it ended.

Whatever a candidate does to its process comes out here as a `Refusal` with a reason: silence is a timeout, a closed
line is a death, a bad frame is forgery, and a watch thread ends what takes too much memory, too many processes, too
much disk or says too much. The judge's own thread never waits without a deadline.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from kernels.judge import isolation
from kernels.judge.buffers import CpuLender, CudaLender, Lender
from kernels.judge.channel import Channel, ChannelClosed, ChannelForged, ChannelTimeout, Message
from kernels.judge.reach import paths
from kernels.judge.usage import folder_bytes, resident_bytes, state
from kernels.judge.verdict import SELF_REPORTED, Reason, Refusal
from kernels.judge.zygote import children

Role = Literal["candidate", "replay"]
_WATCH_S = 0.05
_VRAM_RESERVE_BYTES = 2 << 30
_STDERR_KEPT = 64 << 10


class JudgeBroken(RuntimeError):
    """The judge's own machinery failed; nobody's verdict."""


@dataclass(frozen=True)
class Limits:
    """What one host may use. `vram_bytes` counts torch's and the driver's own share too; `all_calls_s` bounds the
    answers' waiting times together, so that nobody holds the judge by being slow without ever hanging."""

    import_s: float = 60.0
    call_s: float = 60.0
    all_calls_s: float = 900.0
    cpu_s: int = 600
    memory_bytes: int = 16 << 30
    vram_bytes: int = 64 << 30
    scratch_bytes: int = 1 << 30
    file_bytes: int = 512 << 20
    processes: int = 96
    live_processes: int = 16
    output_bytes: int = 4 << 20


class Zygote:
    """Starts confined processes for one judge. Use as a context manager, or call `close`."""

    def __init__(self, device: str, interpret: bool = False) -> None:
        self.device = device
        self._root = Path(tempfile.mkdtemp(prefix="judge-"))
        self._root.chmod(0o711)
        mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])}
        environment.update(OMP_NUM_THREADS="1", TORCHINDUCTOR_COMPILE_THREADS="1", PYTHONDONTWRITEBYTECODE="1")
        environment["TRITON_INTERPRET"] = "1" if interpret else "0"
        environment["TRITON_CACHE_DIR"] = str(self._root / "warm")
        command = [sys.executable, "-m", "kernels.judge.zygote", str(its.fileno()), device]
        self._process = subprocess.Popen(command, pass_fds=(its.fileno(),), env=environment, cwd=self._root)
        its.close()
        self._line = mine
        self._lock = threading.Lock()
        self._count = 0
        mine.settimeout(120.0)
        try:
            if not mine.recv(100):
                raise JudgeBroken("zygote: it ended while warming up")
        except TimeoutError as error:
            self.close()
            raise JudgeBroken("zygote: not warm after 120 s") from error

    def __enter__(self) -> Zygote:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def start(
        self, role: Role, limits: Limits = Limits(), lender: Lender | None = None, peers: bool = False
    ) -> Process:
        """A fresh confined process; it owns `lender` (made here where None) and closes it.

        `peers`: it may read other libraries of kernels (see `kernels.judge.reach`).
        """
        with self._lock:
            self._count += 1
            number = self._count
        scratch = self._root / f"host{number}"
        uid = user_of(os.getpid(), number)
        scratch.mkdir(mode=0o700)
        if os.geteuid() == 0:
            os.chown(scratch, uid, uid)
        mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        mine.settimeout(30.0)
        output_read, output_write = os.pipe()
        status_read, status_write = os.pipe()
        key = secrets.token_bytes(32)
        lent = lender or (CudaLender() if self.device == "cuda" else CpuLender())
        written = os.memfd_create("order", os.MFD_CLOEXEC)  # it names every package here: more than a packet holds
        descriptors = [written, its.fileno(), output_write, status_write]
        if isinstance(lent, CpuLender):
            descriptors.append(lent.descriptor)
        address = None if self.device == "cuda" else limits.memory_bytes + (8 << 30)
        order = {
            "role": role,
            "key": key.hex(),
            "scratch": str(scratch),
            "environment": {},
            "limits": {
                "cpu_s": limits.cpu_s,
                "file_bytes": limits.file_bytes,
                "scratch_bytes": limits.scratch_bytes,
                "processes": limits.processes,
                "address_bytes": address,
                "uid": uid,
                **paths(self.device, peers),
            },
        }
        try:
            with os.fdopen(os.dup(written), "wb") as file:
                file.write(json.dumps(order).encode())
            with self._lock:
                socket.send_fds(self._line, [b"start"], descriptors)
                pid = int(json.loads(self._line.recv(1 << 12) or b"{}").get("pid", 0))
        except OSError as error:
            raise JudgeBroken(f"zygote: gone ({error})") from error
        finally:
            its.close()
            for descriptor in (written, output_write, status_write):
                os.close(descriptor)
        if pid == 0:
            raise JudgeBroken(f"zygote: the {role} host did not start: {_read_all(output_read)[-500:]!r}")
        return Process(role, pid, Channel(mine, key, b"J"), output_read, status_read, lent, limits, scratch)

    def close(self) -> None:
        """End the zygote and with it every process it started."""
        self._line.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._root, ignore_errors=True)


def user_of(judge: int, number: int) -> int:
    """The user of a judge's host: limits on processes count per user, so that hosts of two judges on one machine
    (`judge`: their process ids) must not share one either."""
    return isolation.NOBODY - 1 - (509 * judge + number) % 4096


def _read_all(descriptor: int) -> bytes:
    with os.fdopen(descriptor, "rb") as pipe:
        return pipe.read(_STDERR_KEPT)


@dataclass
class _Use:
    """What the watch has seen, at its highest."""

    memory_bytes: int = 0
    vram_bytes: int = 0
    processes: int = 0
    output_bytes: int = 0
    output: bytearray = field(default_factory=bytearray)


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
        self.use = _Use()
        self.layers: dict[str, str] = {}
        self._channel = channel
        self._output = output
        self._status = status
        self._scratch = scratch
        self._vram_of: Callable[[int], int] | None = None
        self._free_vram: Callable[[], int] | None = None
        self._ended: Refusal | None = None
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
            if below > self.limits.live_processes and self._ended is None:
                text = f"no answer in {timeout_s:g} s, and {below} processes"
                raise Refusal(Reason.process_limit, text, stage) from error
            reason = Reason.import_timeout if body.get("op") in ("load", "compile") else Reason.call_timeout
            refusal = self._ended or Refusal(reason, f"no answer to {body.get('op')!r} in {timeout_s:g} s", stage)
            raise refusal from error
        except ChannelForged as error:
            self.kill()
            raise Refusal(Reason.channel_forged, str(error), stage) from error
        except ChannelClosed as error:
            raise self._death(stage) from error
        if self._ended is not None:
            raise self._ended
        if answer.body.get("ok") is not True:
            word, text = str(answer.body.get("reason", "raised")), str(answer.body.get("text", ""))[:2000]
            if word not in SELF_REPORTED:
                self.kill()
                raise Refusal(Reason.channel_forged, f"its process says {word[:40]!r} of itself: {text}", stage)
            raise Refusal(Reason(word), text, stage)
        return answer

    def lend(self, sizes_bytes: Mapping[int, int]) -> None:
        """Make buffers of at least these payload sizes and have the process map the new ones."""
        made = [
            lent for index, size in sizes_bytes.items() if (lent := self.lender.ensure(index, size)) is not None
        ]
        if made:
            self.request({"op": "attach", "buffers": [asdict(lent) for lent in made]}, self.limits.call_s)

    def watch_vram(self, used_bytes: Callable[[int], int], free_bytes: Callable[[], int]) -> None:
        """Let the watch also ask for the device memory of this process, by its id, and for what is left."""
        self._free_vram = free_bytes
        self._vram_of = used_bytes

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
        return self.use.output.decode(errors="replace")

    def pause(self) -> None:
        """Stop it and its children from running until `resume`; returns once the kernel shows it stopped."""
        for pid in (self.pid, *self.descendants()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        for _ in range(1000):
            if state(self.pid) not in ("R", "S", "D"):
                return
            time.sleep(0.0002)

    def resume(self) -> None:
        for pid in (self.pid, *self.descendants()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """End it, everything below it, and give its buffers back."""
        if self._closed.is_set():
            return
        self._closed.set()
        self.kill()
        self._channel.close()
        with os.fdopen(self._status, "rb") as pipe:
            pipe.read()  # the keeper closes it once the host and all below it are gone
        for thread in self._threads:
            thread.join(5.0)
        self.lender.close()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _death(self, stage: str) -> Refusal:
        for _ in range(100):
            if self._ended is not None:
                return self._ended
            if state(self.pid) in ("Z", ""):
                break
            time.sleep(0.01)
        time.sleep(0.2)  # let the keeper write how it ended, and the watch say why it ended it
        if self._ended is not None:
            return self._ended
        os.set_blocking(self._status, False)
        try:
            ended = int(json.loads(os.read(self._status, 1 << 12) or b"{}").get("status", 0))
        except (BlockingIOError, ValueError):
            ended = 0
        words = self.said()[-300:]
        if os.WIFSIGNALED(ended):
            number = os.WTERMSIG(ended)
            known = {
                int(signal.SIGXCPU): Reason.call_timeout,
                int(signal.SIGXFSZ): Reason.disk_limit,
                int(signal.SIGKILL): Reason.host_died,
            }
            name = signal.Signals(number).name
            return Refusal(known.get(number, Reason.host_died), f"the process ended by {name}: {words}", stage)
        return Refusal(Reason.host_died, f"the process ended with code {os.WEXITSTATUS(ended)}: {words}", stage)

    def _end(self, reason: Reason, detail: str) -> None:
        if self._ended is None:
            self._ended = Refusal(reason, detail, "watch")
        self.kill()

    def _drain(self) -> None:
        """Keep the first words of what it prints, count the rest, end it when it says too much."""
        with os.fdopen(self._output, "rb", buffering=0) as pipe:
            while piece := pipe.read(1 << 16):
                self.use.output_bytes += len(piece)
                if len(self.use.output) < _STDERR_KEPT:
                    self.use.output += piece[: _STDERR_KEPT - len(self.use.output)]
                if self.use.output_bytes > self.limits.output_bytes and self._ended is None:
                    self._end(Reason.output_flood, f"printed more than {self.limits.output_bytes} bytes")

    def _watch(self) -> None:
        """End it when it takes more than its share of memory, processes or disk."""
        watched = not self.layers.get("scratch", "").startswith("tmpfs")
        while not self._closed.wait(_WATCH_S):
            below = self.descendants()
            memory = resident_bytes((self.pid, *below))
            self.use.memory_bytes = max(self.use.memory_bytes, memory)
            self.use.processes = max(self.use.processes, len(below))
            if memory > self.limits.memory_bytes:
                self._end(
                    Reason.memory_limit, f"{memory} bytes of host memory, more than {self.limits.memory_bytes}"
                )
            if len(below) > self.limits.live_processes:
                self._end(Reason.process_limit, f"{len(below)} processes, more than {self.limits.live_processes}")
            if self._vram_of is not None:
                vram = self._vram_of(self.pid)
                self.use.vram_bytes = max(self.use.vram_bytes, vram)
                if vram > self.limits.vram_bytes:
                    self._end(Reason.vram_limit, f"{vram} bytes of VRAM, more than {self.limits.vram_bytes}")
            if self._free_vram is not None and self._free_vram() < _VRAM_RESERVE_BYTES:
                self._end(Reason.vram_limit, "left the GPU less free memory than the judge needs")
            if watched and folder_bytes(self._scratch) > self.limits.scratch_bytes:
                self._end(Reason.disk_limit, f"more than {self.limits.scratch_bytes} bytes written")


def order_inputs(items: Sequence[Any]) -> list[Any]:
    """Inputs of an order: a view as its JSON, a Python number wrapped in a list."""
    return [item.to_json() if hasattr(item, "to_json") else [item] for item in items]
