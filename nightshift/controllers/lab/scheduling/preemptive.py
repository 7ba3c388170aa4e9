"""Preemptive orders, as references in a table of their own: we never stop a job without approval.

*LAS* as in Tiresias (Gu et al., NSDI'19): least attained GPU-service first, in two queues, so that ages close
together do not swap. *SRTF*: shortest remaining time first, once by predicted durations and once by true ones (an
oracle that nothing real has).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nightshift.controllers.lab.scheduling.simulate import Simulation
from nightshift.controllers.scheduling.state import QueueState

SECOND_QUEUE_GPU_S = 8 * 3600.0


@dataclass(frozen=True)
class Preemptive:
    """`order`: the smaller, the sooner; jobs of the same rank never stop one another."""

    simulation: Simulation
    order: Callable[[Simulation, int], float]

    def __call__(self, state: QueueState) -> None:
        running = set(state.cluster.held)
        ranks = {job: self.order(self.simulation, job) for job in [*running, *state.queue]}
        # counted in GPUs alone: what does not fit for fragments stays in the queue
        room, chosen = state.cluster.shape.gpus - int(state.cluster.closed.sum()), set()
        for job in sorted(ranks, key=lambda job: (ranks[job], job not in running, job)):
            if state.width[job] <= room:
                room -= int(state.width[job])
                chosen.add(job)
        for job in running - chosen:
            self.simulation.stop(job)
        # the widest first, while whole nodes are free
        for job in sorted(chosen - running, key=lambda job: (-int(state.width[job]), ranks[job])):
            gpus = state.cluster.alone(int(state.width[job]))
            if gpus is not None:
                state.start(job, gpus, "chosen to run")
        for job in sorted(state.queue, key=lambda job: ranks[job]):
            gpus = state.cluster.alone(int(state.width[job]))
            if gpus is not None:
                state.start(job, gpus, "fits")


def least_attained(simulation: Simulation, job: int) -> float:
    served = float(simulation.state.done_s[job]) * float(simulation.state.width[job])
    return float(served > SECOND_QUEUE_GPU_S) * 1e9 + float(simulation.state.submit_s[job]) / 1e3


def remaining_predicted(simulation: Simulation, job: int) -> float:
    state = simulation.state
    age_s = float(state.done_s[job])
    if not age_s:
        return max(state.guess_s(job), 1.0)
    whole_s = state.durations.quantile(
        state.user[job], int(state.width[job]), float(state.submit_s[job]), 0.5, age_s
    )
    return max(whole_s - age_s, 1.0)


def remaining_true(simulation: Simulation, job: int) -> float:
    return max(simulation.jobs[job].duration_s - float(simulation.state.done_s[job]), 0.0)
