"""Scheduling in the daemon: follow → order proposes → shield decides → gates → read back. Off by default.

One turn every few seconds, in a thread of its own, over what the API server was heard to say. Where it does not act
(`act: false`) it writes nothing at all, and keeps a receipt whenever its mind changes about a job. While the
emergency stop is on, or while nobody has promoted the order, every gate is opened as if nobody steered. Nothing
here can stop a job: gates are opened, never shut.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import structlog

from nightshift.agent.control.scheduling_loads import Loads
from nightshift.collectors.base import Permanent, Temporary
from nightshift.collectors.seal import fingerprint
from nightshift.collectors.tick import Tick
from nightshift.controllers.actuators.kube_queue_follow import GangDoors, QueueView
from nightshift.controllers.decision import ControlDecision, Mode, Trust, plain
from nightshift.controllers.scheduling.controller import Keep, SchedulingController
from nightshift.controllers.scheduling.epochs import GAP_S, EpochOutcomes, Epochs, epoch_of
from nightshift.controllers.scheduling.settings import EVERY_S, SchedulingSettings
from nightshift.controllers.scheduling.steer import InOrder

FIRST_WAIT_S = 10.0


@dataclass
class Surroundings:
    """What the loop asks of the daemon; tests hand in their own."""

    keep: Keep
    trusts: Callable[[], Callable[[str, bool, float], Trust]] = lambda: lambda _job, _opted, _now_s: Trust()
    """(whom the coin is drawn for, its owner opted in, now) → trust; read once a turn, and drawn for the epoch."""
    happened: Callable[[float, EpochOutcomes], None] = lambda _now_s, _told: None
    """Takes in epochs that began and what came of those that ended."""
    halted: Callable[[], bool] = lambda: False
    ill: Callable[[], Mapping[str, int]] = dict
    """GPUs of a node on which an incident is open, -1 for all of them."""
    count: Callable[[str, int], None] = lambda _outcome, _n: None
    gauge: Callable[[int, int], None] = lambda _waiting, _gates: None
    coming: Callable[[], str] = lambda: ""
    """What is out of use and when it comes back, in words; empty: nothing."""


@dataclass
class SchedulingLoop:
    """One per daemon. `take` is called at every look; turns run in a thread of their own once `start` was
    called."""

    settings: SchedulingSettings
    view: QueueView
    doors: GangDoors | None
    loads: Loads
    around: Surroundings
    seed: int = 0
    _said: dict[str, str] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.doors = self.doors if self.settings.act else None
        self._log = structlog.get_logger("scheduling")
        self._due_s = -float("inf")
        self._told = ""
        self._trust = Trust()
        # one waits at most: a turn that came too late would decide on what is over
        self._queue: queue.Queue[float | None] = queue.Queue(1)
        self._thread: threading.Thread | None = None
        self.controller = SchedulingController(
            self.doors,
            self._keep,
            np.random.default_rng(self.seed),
            standing=self._standing,
            bound_s=self.settings.queue.longest_hold_s,
        )
        # as long as the shield may hold, and one gap between looks: later than that nobody meant it
        overdue_s = self.controller.bound_s + self.controller.shield.limits.ramp_grace_s + GAP_S
        self.epochs = Epochs(self.around.keep, self.policy, self.controller.baseline.name, overdue_s)

    @property
    def policy(self) -> str:
        return InOrder().name

    @property
    def policy_sha256(self) -> str:
        return fingerprint(plain(InOrder()))

    # Life --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.view.start()
        self._thread = threading.Thread(target=self._work, name="scheduling", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops turning. Gates that are held open when their hold ends: the next process sees to it."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(30.0)
            self._thread = None
        self.view.close()

    def take(self, tick: Tick) -> None:
        self.loads.take(tick)
        if self._thread is None or 0.0 <= tick.at_s - self._due_s < EVERY_S:  # below: it was set back
            return
        self._due_s = tick.at_s
        try:
            self._queue.put_nowait(tick.at_s)
        except queue.Full:
            self._log.warning("turn skipped")

    def _work(self) -> None:
        self.view.start(FIRST_WAIT_S)
        while (now_s := self._queue.get()) is not None:
            try:
                self.turn(now_s)
            except (Temporary, Permanent) as error:
                self.around.count("failed", 1)
                self._log.error("turn failed", error=str(error))
            except Exception:  # noqa: BLE001  the thread that opens gates must not die of a defect of ours
                self.around.count("failed", 1)
                self._log.exception("turn failed")

    # One turn ----------------------------------------------------------------------------------------------------

    def turn(self, now_s: float) -> list[ControlDecision]:
        """Raises Temporary where the view is stale or the store is away; what is past its time is opened first."""
        if self.doors is not None:
            with suppress(Temporary, Permanent):  # tried again, and said, in the controller's turn
                self.doors.release_overdue()
        halted = self.around.halted()
        # halted is a shadow: the baseline is executed, so gates open, and nothing is held
        self._trust = Trust() if halted else self.around.trusts()(epoch_of(now_s), True, now_s)
        asked = {} if self.doors is None else {"evicts": self.doors.evicts, "shares": self.doors.shares}
        snapshot = self.view.snapshot(now_s, self.around.ill(), self.loads.of, **asked)
        receipts = self.controller.turn(snapshot)
        controller = self.controller
        told = self.epochs.turn(snapshot, self._trust, controller.durations, controller.differed)
        self.around.happened(now_s, told)
        waiting = [job for job in snapshot.jobs if not job.nodes]
        self._tell_queues()
        self._said = {job.name: said for job in waiting if (said := self._said.get(job.name)) is not None}
        self.around.gauge(len(waiting), len(self.view.gates()))
        for receipt in receipts:
            outcome = "fallback" if receipt.fallback else "clipped" if receipt.clips else "as_proposed"
            self.around.count("halted" if halted else outcome, 1)
        for name, why in self.controller.failures.items():
            self.around.count("not_written", 1)
            self._log.error("gate write failed", job=name, error=why)
        return receipts

    def _tell_queues(self) -> None:
        """Says on the queues what is out of use and when it comes back, whenever that changes."""
        text = self.around.coming()
        if self.doors is None or text == self._told:
            return
        try:
            self.doors.tell(text or "No GPU is out of use through Nightshift")
            self._told = text
        except (Temporary, Permanent) as error:  # said again at the next turn
            self._log.warning("event write failed", error=str(error))

    def _standing(self, job: str) -> Trust:
        """The epoch's, for every job alike; in a trial only those whose owners opted in have part in it."""
        opted_in = job.partition("/")[0] in self.settings.opted_in
        return self._trust if opted_in or self._trust.mode is not Mode.TRIAL else Trust(Mode.TRIAL)

    def _keep(self, decision: ControlDecision, *, chance: float = 0.0, treated: bool = False) -> None:
        """In shadow a receipt is kept when what is proposed changes, not at every turn."""
        said = f"{decision.proposed['verb']} {decision.fallback}"
        if self.doors is None and self._said.get(decision.job) == said:
            return
        self._said[decision.job] = said
        self.around.keep(decision, chance=chance, treated=treated)
