"""Counts what kernels in use gain: a job's canary measures a step once, each step that its lines count earns it.

The canary races the kernels of a file together, so the gain is the set's. Steps count between two lines of one rank
that state the same gain: steps before the first line, and those after a demotion, count nothing. One rank is one
GPU.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace

from nightshift.agent.store.incident_store import Store
from nightshift.agent.store.records import dump, load
from nightshift.collectors.training.kernel_use import KernelUse

_GAIN = "kernel-gain"
_MOST = 1000


@dataclass(frozen=True)
class KernelGain:
    """One job's gain. certificates: 16 digits of each; step_us: a step with them (µs); gain_us, gain_low_us: by how
    much torch alone is slower, and the lower end of it (µs); steps: counted, of all ranks; saved_s, saved_low_s:
    GPU-seconds so far."""

    certificates: tuple[str, ...]
    step_us: int
    gain_us: int
    gain_low_us: int
    steps: int = 0
    saved_s: float = 0.0
    saved_low_s: float = 0.0

    def after(self, previous: KernelGain | None) -> KernelGain:
        """This one, with what was counted before it."""
        if previous is None:
            return self
        return replace(
            self, steps=previous.steps + self.steps, saved_s=previous.saved_s + self.saved_s,
            saved_low_s=previous.saved_low_s + self.saved_low_s,
        )  # fmt: skip

    def text(self, job: str) -> str:
        """
        >>> KernelGain(("0" * 16,), 60_000, 9_000, 8_400, 1_000, 9.0, 8.4).text("lab/llama")
        'lab/llama: torch alone takes 15.0% longer a step (at least 14.0%); 9.0 GPU-seconds saved in 1000 steps'
        """
        share, low = self.gain_us / self.step_us, self.gain_low_us / self.step_us
        together = f", {len(self.certificates)} kernels together" if len(self.certificates) > 1 else ""
        return (
            f"{job}: torch alone takes {share:.1%} longer a step (at least {low:.1%}){together}; "
            f"{self.saved_s:.1f} GPU-seconds saved in {self.steps} steps"
        )


@dataclass(frozen=True)
class _Gains:
    jobs: Mapping[str, KernelGain]


def gains(store: Store) -> dict[str, KernelGain]:
    """By job, as of the daemon's last turn."""
    kept = store.recall(_GAIN)
    return {} if kept is None else dict(load(_Gains, kept[1].decode()).jobs)


class GainCount:
    """The count of one daemon, added to what is stored. `count` is quick; `keep` writes, in another thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._new: dict[str, KernelGain] = {}
        self._lock = threading.Lock()

    def count(self, job: str, previous: KernelUse | None, use: KernelUse) -> None:
        """One line of a rank, and the line that it follows."""
        if not (use.gain_us and use.step_us):
            return
        same = previous is not None and previous.gain_us == use.gain_us and previous.used == use.used
        steps = max(0, use.step - previous.step) if previous is not None and same else 0
        found = KernelGain(
            use.used, use.step_us, use.gain_us, use.gain_low_us, steps,
            steps * use.gain_us * 1e-6, steps * use.gain_low_us * 1e-6,
        )  # fmt: skip
        with self._lock:
            self._new[job] = found.after(self._new.get(job))

    def keep(self) -> None:
        """Adds the count to what is stored. Raises Temporary where the store is away; the count then waits."""
        with self._lock:
            new, self._new = self._new, {}
        if not new:
            return
        try:
            held = gains(self._store)
            # names come from logs: bounded, like all that they fill
            fits = {job: one for job, one in new.items() if job in held or len(held) < _MOST}
            held |= {job: one.after(held.get(job)) for job, one in fits.items()}
            self._store.keep({_GAIN: dump(_Gains(held)).encode()})
        except BaseException:
            with self._lock:
                self._new = new | {job: one.after(new.get(job)) for job, one in self._new.items()}
            raise
