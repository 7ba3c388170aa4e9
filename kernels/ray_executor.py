"""A search's jobs on the GPUs of a Ray cluster: one actor for each GPU, each with a judge of its own.

Used where an address is given; without one, `kernels.executor.LocalExecutor` judges on this machine. A race is
exclusive on its GPU, so an actor holds a whole GPU and takes one job at a time. A job whose actor died, or that met
a machine fault, goes to another actor; only when every try did is it given back as a machine fault.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Any

from kernels.executor import Job
from kernels.judge.judge import Judge
from kernels.judge.verdict import Reason, Status, Verdict


class _Bench:
    """Lives in a Ray worker: one judge on the one GPU that Ray shows it."""

    def __init__(self, device: str, interpret: bool, entropy: Callable[[int], bytes] | None) -> None:
        self._judge = Judge(device, interpret=interpret, entropy=entropy)

    def judge(self, job: Job) -> Verdict:
        return self._judge.verdict(job.candidate, job.problem, job.request)

    def gpu(self) -> str:
        return self._judge.environment.gpu


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
    ) -> None:
        """`judges`: how many GPUs to take, 0 for all that the cluster has. Raises ValueError where it has none."""
        import ray as found

        ray: Any = found
        self._ray = ray
        self._tries = tries
        self._mine = not ray.is_initialized()
        if self._mine:
            ray.init(address=address, log_to_driver=False, include_dashboard=False)
        count = judges or int(ray.cluster_resources().get("GPU", 0))
        if count < 1:
            self.close()
            raise ValueError("executor: the Ray cluster has no GPU")
        needs = {"num_gpus": 1} if device == "cuda" else {"num_cpus": 1}
        self._make = ray.remote(**needs)(_Bench)
        self._place = (device, interpret, entropy)
        self._actors = [self._make.remote(*self._place) for _ in range(count)]

    def __enter__(self) -> RayExecutor:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def run(self, jobs: Iterable[Job]) -> Generator[tuple[Job, Verdict]]:
        """Each verdict as it comes. A free actor takes the next job."""
        waiting: list[tuple[Job, int]] = [(job, 1) for job in jobs]
        waiting.reverse()
        free = list(range(len(self._actors)))
        running: dict[Any, tuple[Job, int, int]] = {}
        try:
            while waiting or running:
                while waiting and free:
                    job, attempt = waiting.pop()
                    number = free.pop()
                    running[self._actors[number].judge.remote(job)] = (job, attempt, number)
                done, _ = self._ray.wait(list(running))
                for reference in done:
                    job, attempt, number = running.pop(reference)
                    verdict = self._collect(reference, job, number)
                    free.insert(0, number)  # another actor is asked first
                    if verdict.status is Status.machine_fault and attempt < self._tries:
                        waiting.append((job, attempt + 1))
                    else:
                        yield job, verdict
        finally:
            if running:  # closed before the end: an actor is free again when its job is done
                self._ray.wait(list(running), num_returns=len(running))

    def _collect(self, reference: Any, job: Job, number: int) -> Verdict:
        try:
            verdict: Verdict = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:  # the actor, its worker or its node is gone
            self._actors[number] = self._make.remote(*self._place)
            told = f"{type(error).__name__}: {str(error)[:300]}"
            sha = job.candidate.sha256
            return Verdict(sha, job.problem.name, Status.machine_fault, Reason.device_lost, told, "machine")
        return verdict

    def close(self) -> None:
        for actor in getattr(self, "_actors", []):
            self._ray.kill(actor)
        if self._mine and self._ray.is_initialized():
            self._ray.shutdown()
