"""Looks at new profiler traces and, where policy says that a kernel search would pay, proposes one to people; and
looks whether the kernels in use still run where they were certified (`agent.kernels.delivery`).

The collector of traces tells of each new one by a log line; the file is profiled in a thread of its own, so that no
look at the fleet waits for it, or for the registry's folder. Nothing is searched here: what comes out is a plan of
kind `kernel_job` at the gate.
"""

from __future__ import annotations

import math
import queue
import re
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from nightshift.agent.approvals.kernel_gate import KernelGate, ProposalState, search
from nightshift.agent.clock import Clock
from nightshift.agent.kernels.delivery import LINE_S, WEEK_S, KernelDrift, case_text
from nightshift.agent.kernels.gain import GainCount
from nightshift.collectors.frame import LogRecord
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.training.kernel_use import KernelUse, read_use
from nightshift.controllers.action import Action
from nightshift.kernels.certification.evidence import FleetView, JobReport
from nightshift.kernels.profile.gradients import PLACED, searches_of
from nightshift.kernels.profile.hotspots import Hotspot, Profile, profile, timed_sizes
from nightshift.kernels.profile.roofline import Peaks
from nightshift.kernels.profile.trigger import AGAIN_DAYS, Decision, Settings, Stake, decide

_TOLD = re.compile(r"profiler trace (.+?): \d+ steps of ")
# A bound on what waits: a trace that does not fit is skipped and said, since its job writes further ones.
_WAITING = 8
_SUBJECTS = 100_000
TURN_S = 10.0
"""Between two looks at the kernels in use (s)."""


class KernelWatch:
    """One per daemon. `decisions`: the latest, also those that propose nothing. `uses`: what jobs last said of the
    kernels that they use."""

    def __init__(
        self,
        settings: Settings,
        gate: KernelGate,
        inventory: Inventory,
        clock: Clock,
        cluster: str,
        read: Callable[[Path, Peaks | None], Profile] = profile,
    ) -> None:
        self.settings = settings
        self.decisions: deque[Decision] = deque(maxlen=50)
        self.uses: dict[Subject, KernelUse] = {}
        self._heard_s: dict[Subject, float] = {}
        self._turned_s = -math.inf
        self._drift = KernelDrift(gate, cluster)
        self._gains = GainCount(gate.store)
        self._gate = gate
        self._inventory = inventory
        self._clock = clock
        self._cluster = cluster
        self._read = read
        self._log = structlog.get_logger("kernels")
        self._waiting: queue.Queue[tuple[Path, Subject] | FleetView | None] = queue.Queue(_WAITING)
        self._thread: threading.Thread | None = None

    def look(self, logs: Sequence[LogRecord]) -> int:
        """Takes up the traces that these lines tell of; how many. None where no namespace asked for searches."""
        count = 0
        for record in logs:
            use = read_use(record.text)
            if use is not None:
                self._used(record.subject, use)
            # only the collector's own line: a job's log may hold any text
            match = _TOLD.match(record.text) if record.source.startswith("kineto ") else None
            if match is None or not self.settings.namespaces:
                continue
            try:
                self._waiting.put_nowait((Path(match[1]), record.subject))
                count += 1
            except queue.Full:
                self._log.warning("trace skipped", trace=match[1])
        turned = self._turn_due()
        # begun when there is something to do: most fleets never have a trace
        if (count or turned) and self._thread is None:
            self._thread = threading.Thread(target=self._work, name="kernels", daemon=True)
            self._thread.start()
        return count

    def _turn_due(self) -> bool:
        """Puts a look at the kernels in use into the queue, where it is time. A clock that was set back delays
        none."""
        now_s = self._clock.now_s()
        idle = self.settings.registry is None and not self.uses
        if idle or 0.0 <= now_s - self._turned_s < TURN_S:
            return False
        try:
            self._waiting.put_nowait(self.view(now_s))
        except queue.Full:
            return False  # traces wait; the next look tries again
        self._turned_s = now_s
        return True

    def view(self, now_s: float) -> FleetView:
        """The GPUs and drivers by telemetry, and what the jobs' own lines say; what a line lacks, by their GPUs."""
        gpus: dict[str, set[str]] = {}
        for gpu in self._inventory.subjects(SubjectKind.GPU, now_s):
            facts = self._inventory.facts(gpu)
            if facts.get("model"):
                gpus.setdefault(facts["model"], set()).update(filter(None, [facts.get("driver")]))
        reports: dict[str, list[JobReport]] = {}
        for subject, use in list(self.uses.items()):
            if not 0.0 <= now_s - self._heard_s.get(subject, -math.inf) <= LINE_S:
                self.uses.pop(subject, None)
                continue
            reports.setdefault(self._job(subject).name, []).append(self._report(subject, use, now_s))
        jobs = {name: _joined(ranks) for name, ranks in reports.items()}
        return FleetView(now_s, {model: tuple(sorted(drivers)) for model, drivers in gpus.items()}, jobs)

    def _report(self, subject: Subject, use: KernelUse, now_s: float) -> JobReport:
        facts = [self._inventory.facts(gpu) for gpu in self._inventory.gpus(subject, now_s)]
        models = (use.gpu,) if use.gpu else tuple(f["model"] for f in facts if f.get("model"))
        drivers = (use.driver,) if use.driver else tuple(f["driver"] for f in facts if f.get("driver"))
        # one that applies no kernel does not depend on its versions
        named = bool(use.torch) or not use.applied
        torch, triton = ((value,) if value else () for value in (use.torch, use.triton))
        return JobReport(named, use.used, use.unused, models, drivers, torch, triton, self._heard_s[subject])

    def _used(self, subject: Subject, use: KernelUse) -> None:
        """Keeps the newest counts of a job or rank, and tells when a shadow check found something new."""
        before = self.uses.get(subject)
        if use.shadow_mismatches > (before.shadow_mismatches if before is not None else 0):
            wrong = ", ".join(use.mismatched) or "unnamed"
            self._log.warning("wrong kernel disabled", job=str(subject), kernels=wrong)
        # names come from logs: bounded, or a job that prints new ranks for ever would fill the memory
        if subject in self.uses or len(self.uses) < _SUBJECTS:
            self.uses[subject] = use
            self._heard_s[subject] = self._clock.now_s()
            self._gains.count(self._job(subject).name, before, use)

    def close(self) -> None:
        """Ends the thread after what it has taken up."""
        if self._thread is not None:
            # behind what waits: traces that were taken up are still decided
            self._waiting.put(None)
            self._thread.join(30.0)
            self._thread = None

    def consider(self, path: Path, subject: Subject) -> Decision:
        """One trace: profiled, decided, and proposed where the policy lets it."""
        job = self._job(subject)
        namespace, _, name = job.name.partition("/")
        now_s = self._clock.now_s()
        found = self._read(path, None)
        gpus = max(1, len(self._inventory.gpus(job, now_s)))
        used = self._gate.used_gpu_hours(now_s - WEEK_S)
        stake = Stake(namespace, name or namespace, gpus * WEEK_S / 3600.0, used)
        decision = decide(found.hotspots, stake, self.settings)
        if decision.propose and not found.on_gpu:
            why = f"{job.name}: {path.name} holds no GPU activity: record ProfilerActivity.CUDA as well"
            decision = Decision(False, decision.hotspot, why)
        self.decisions.append(decision)
        if decision.propose and decision.hotspot is not None:
            policy = self.settings
            plan = search(
                self._cluster, job.name, decision.hotspot.name, decision.why, policy.search_gpu_hours,
                policy.priority_class, now_s, order(decision.hotspot),
            )  # fmt: skip
            if before := self._decided_before(plan, now_s):
                decision = Decision(False, decision.hotspot, before)
                self.decisions[-1] = decision
                self._log.info("kernel search skipped", job=job.name, why=before)
                return decision
            self._gate.propose(plan)
            self._log.info("kernel search proposed", job=job.name, why=decision.why)
        else:
            self._log.info("kernel search skipped", job=job.name, why=decision.why)
        return decision

    def _decided_before(self, plan: Action, now_s: float) -> str:
        """Why a plan is not put before people again so soon; "" where it may be."""
        known = self._gate.proposal(plan.id)
        if known is None or known.state not in (ProposalState.DONE, ProposalState.REJECTED):
            return ""
        days = (now_s - known.at_s) / 86400.0
        if days >= AGAIN_DAYS:
            return ""
        return f"{plan.id}: proposed {days:.0f} days ago, it is {known.state}: {known.note or 'no word'}"

    def _job(self, subject: Subject) -> Subject:
        """The job of a rank; a job is its own."""
        if subject.kind is SubjectKind.RANK:
            return Subject(SubjectKind.JOB, subject.name.rpartition("#")[0])
        return subject

    def _work(self) -> None:
        while (item := self._waiting.get()) is not None:
            try:
                if isinstance(item, FleetView):
                    self._gains.keep()
                    self._drift.turn(item, self.settings)
                else:
                    self.consider(*item)
            except Exception as error:  # noqa: BLE001  one odd trace must not end the watch over all others
                told = f"{type(error).__name__}: {error}"
                if isinstance(item, FleetView):
                    self._log.error("kernel registry check failed", error=told)
                else:
                    self._log.warning("trace profiling failed", trace=str(item[0]), error=told)


def _joined(ranks: Sequence[JobReport]) -> JobReport:
    """A job's report: what any of its ranks said."""

    def said(field: str) -> tuple[str, ...]:
        return tuple(sorted({value for one in ranks for value in getattr(one, field)}))

    return JobReport(
        all(one.named for one in ranks), said("used"), said("unused"), said("gpu"), said("driver"), said("torch"),
        said("triton"), max(one.at_s for one in ranks),
    )  # fmt: skip


def order(hotspot: Hotspot) -> dict[str, str | bool | int]:
    """The parameters of a search: an operation that a job's file has a place for, its case, whether the step needs
    its gradient, and the number of searches that share the time (a product's gradients are two)."""
    sizes, backward = timed_sizes(hotspot), hotspot.backward_s > 0.0
    kernel = PLACED.get(hotspot.problem, hotspot.problem)
    case, count = case_text(hotspot.dtype, sizes), len(searches_of(kernel, sizes, backward))
    return {"kernel": kernel, "case": case, "backward": backward, "searches": count}
