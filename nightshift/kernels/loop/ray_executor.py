"""A search's jobs on the GPUs of a Ray cluster: one actor for each GPU, each with a judge of its own.

Used where an address is given; without one, `kernels.loop.executor.LocalExecutor` judges on this machine. A race is
exclusive on its GPU, so an actor holds a whole GPU and takes one job at a time, once it has started: one that waits
for a GPU which somebody else holds keeps no job waiting. A job whose actor died or hung, or that met a machine
fault, goes to another actor; only when every try did is it given back as a machine fault. GPUs that join later are
used too.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Any

from nightshift.collectors.base import Permanent
from nightshift.kernels.judge.judge import Judge
from nightshift.kernels.judge.verdict import Reason, Status, Verdict
from nightshift.kernels.loop.executor import Job

_LOOK_S = 1.0


class _Bench:
    """Lives in a Ray worker: one judge on the one GPU that Ray shows it."""

    def __init__(self, device: str, interpret: bool, entropy: Callable[[int], bytes] | None) -> None:
        self._judge = Judge(device, interpret=interpret, entropy=entropy)

    def judge(self, job: Job) -> Verdict:
        return self._judge.verdict(job.candidate, job.problem, job.request)

    def gpu(self) -> str:
        return self._judge.environment.gpu


@dataclass(frozen=True)
class _UnderWay:
    job: Job
    attempt: int
    number: int
    since_s: float


class RayExecutor:
    """Judges of a cluster. Use as a context manager; on leaving, its actors end and Ray is left as it was found."""

    def __init__(
        self,
        address: str | None,
        judges: int = 0,
        device: str = "cuda",
        interpret: bool = False,
        tries: int = 3,
        entropy: Callable[[int], bytes] | None = None,
        hang_s: float = 3600.0,
        start_s: float = 900.0,
    ) -> None:
        """`judges`: how many GPUs to take, 0 for all that the cluster has and gets. hang_s: no verdict takes
        longer. start_s: for as long no actor may be there. Raises ValueError where the cluster has no GPU."""
        import ray as found

        ray: Any = found
        self._ray = ray
        self._tries, self._hang_s, self._start_s = tries, hang_s, start_s
        self._mine = not ray.is_initialized()
        if self._mine:
            ray.init(address=address, log_to_driver=False, include_dashboard=False)
        self._kind = "GPU" if device == "cuda" else "CPU"
        self._grows = not judges
        count = judges or self._there()
        if count < 1:
            self.close()
            raise ValueError("executor: the Ray cluster has no GPU")
        self._make = ray.remote(**{f"num_{self._kind.lower()}s": 1})(_Bench)
        self._place = (device, interpret, entropy)
        self._lock = threading.Lock()  # a search goes on beside another's whole verdict
        self._actors: list[Any] = []
        self._coming: dict[Any, int] = {}  # what an actor that starts will answer → its number
        self._free: deque[int] = deque()
        self._failures: list[str] = []  # of starts, since one came to something
        self._alone_since_s = time.monotonic()
        self._more(count)

    def __enter__(self) -> RayExecutor:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def run(self, jobs: Iterable[Job]) -> Generator[tuple[Job, Verdict]]:
        """Each verdict as it comes. A free actor takes the next job. Raises Permanent where no actor starts."""
        waiting = deque((job, 1) for job in jobs)
        running: dict[Any, _UnderWay] = {}
        try:
            while waiting or running:
                while waiting and (number := self._take()) is not None:
                    job, attempt = waiting.popleft()
                    reference = self._actors[number].judge.remote(job)
                    running[reference] = _UnderWay(job, attempt, number, time.monotonic())
                for reference in self._ended(running):
                    one = running.pop(reference)
                    verdict = self._collect(reference, one)
                    if verdict.status is Status.machine_fault and one.attempt < self._tries:
                        waiting.append((one.job, one.attempt + 1))
                    else:
                        yield one.job, verdict
        finally:  # closed before the end: an actor is free again when its job is done
            while running:
                for reference in self._ended(running):
                    self._collect(reference, running.pop(reference))

    def _ended(self, running: dict[Any, _UnderWay]) -> list[Any]:
        """Those that are done, or late; meanwhile actors that have started are welcomed."""
        with self._lock:
            watched = [*running, *self._coming]
        if watched:
            done, _ = self._ray.wait(watched, timeout=min(_LOOK_S, self._hang_s))
        else:  # all are at another thread's jobs
            done = []
            time.sleep(0.05)
        self._welcome(done)
        if not done and self._grows:
            self._more(self._there() - len(self._actors))
        late = time.monotonic() - self._hang_s
        return [reference for reference, one in running.items() if reference in done or one.since_s < late]

    def _collect(self, reference: Any, one: _UnderWay) -> Verdict:
        try:
            verdict: Verdict = self._ray.get(reference, timeout=0)
        except self._ray.exceptions.RayError as error:  # the actor, its worker or its node is gone, or it hangs
            late = isinstance(error, self._ray.exceptions.GetTimeoutError)
            told = f"no verdict in {self._hang_s:g} s" if late else f"{type(error).__name__}: {str(error)[-300:]}"
            # one that hangs would keep its GPU from the actor that takes its place
            self._ray.kill(self._actors[one.number])
            self._start(one.number)
            sha = one.job.candidate.sha256
            return Verdict(sha, one.job.problem.name, Status.machine_fault, Reason.device_lost, told, "machine")
        with self._lock:
            self._free.appendleft(one.number)  # another actor is asked first
        return verdict

    def _there(self) -> int:
        return int(self._ray.cluster_resources().get(self._kind, 0))

    def _more(self, count: int) -> None:
        for _ in range(count):
            with self._lock:
                self._actors.append(None)
                number = len(self._actors) - 1
            self._start(number)

    def _start(self, number: int) -> None:
        actor = self._make.remote(*self._place)
        with self._lock:
            self._actors[number] = actor
            self._coming[actor.gpu.remote()] = number

    def _welcome(self, done: Iterable[Any]) -> None:
        for reference in done:
            with self._lock:
                number = self._coming.pop(reference, None)
            if number is None:
                continue
            try:
                self._ray.get(reference)
            except self._ray.exceptions.RayError as error:
                self._failures.append(f"{type(error).__name__}: {str(error)[-300:]}")
                # a cluster on which no judge starts must end the search; one bad node must not
                if len(self._failures) < self._tries * len(self._actors):
                    self._start(number)
                continue
            self._failures.clear()
            with self._lock:
                self._free.append(number)

    def _take(self) -> int | None:
        """An actor without a job; None while there is none. Raises Permanent where none will come."""
        with self._lock:
            now_s, coming = time.monotonic(), len(self._coming)
            if coming < len(self._actors) and len(self._failures) < self._tries * len(self._actors):
                self._alone_since_s = now_s
            if self._free:
                return self._free.pop()
        if not coming and self._failures:
            raise Permanent(f"--ray: no judge starts there: {self._failures[-1]}")
        if now_s - self._alone_since_s > self._start_s:
            held = f"{self._kind}s of the Ray cluster are held by others"
            raise Permanent(f"--ray: none of {coming} judges started in {self._start_s:g} s: the {held}")
        return None

    def close(self) -> None:
        for actor in filter(None, getattr(self, "_actors", [])):
            self._ray.kill(actor)
        if self._mine and self._ray.is_initialized():
            self._ray.shutdown()
