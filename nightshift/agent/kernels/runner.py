"""Carries approved kernel searches out on the cluster: begins, follows, ends them, and counts their GPU-hours.

One after another, by the replica that leads. What is meant to happen is in the store before the cluster is asked,
and no Job runs before its uid is there, too: so a daemon that is killed at any point goes on with the very Job that
it made, finds that somebody took it away, or makes it now; a plan is never searched twice. What a pod prints is not
believed: a certificate counts if a configured key signed it and it answers the plan's question, and then it is only
proposed, as a promotion, to people.
"""

from __future__ import annotations

import json
import math
import threading
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

import structlog

from nightshift.agent.approvals.gate import NIGHTSHIFT
from nightshift.agent.approvals.kernel_gate import KernelGate, ProposalState, promotion
from nightshift.agent.approvals.kernel_search import (
    DONE,
    FAILED,
    GONE,
    NO_GPU,
    PREEMPTED,
    STOPPED,
    Certified,
    KernelSearch,
    evidence,
    fleet_view,
)
from nightshift.agent.approvals.policy import rule_for
from nightshift.agent.kernels.delivery import WEEK_S, case_text
from nightshift.agent.store.incident_store import Store
from nightshift.collectors.base import Permanent, Temporary
from nightshift.collectors.seal import SealError, canonical_json, trusted_keys
from nightshift.controllers.action import Action, ActionKind, ActionOutcome, ApprovalRule
from nightshift.controllers.actuators.kube_kernel_jobs import SearchStatus, job_name
from nightshift.kernels.certification.envelope import CertificateError, certificate_sha256, read
from nightshift.kernels.certification.evidence import environment_of, record_of
from nightshift.kernels.certification.registry import promotable
from nightshift.kernels.loop import progress_lines
from nightshift.kernels.profile.gradients import searches_of
from nightshift.kernels.profile.trigger import Settings, asked_for

EVERY_S = 10.0
_LATE_S = 3600.0
_MOST_REFUSALS = 10
_LEDGER = "kernel-ledger/"


class SearchActuator(Protocol):
    """Where a search gets its GPU: `controllers.actuators.kube_kernel_jobs`."""

    @property
    def start_within_s(self) -> float: ...
    def prepare(self, action: Action) -> str: ...
    def release(self, action: Action, uid: str) -> None: ...
    def look(self, action: Action, uid: str = "") -> SearchStatus: ...
    def log(self, action: Action) -> str: ...
    def undo(self, action: Action) -> ActionOutcome: ...


class KernelRunner:
    """One per daemon. `leads`: whether this replica may act now."""

    def __init__(
        self,
        settings: Settings,
        gate: KernelGate,
        place: SearchActuator | None,
        cluster: str,
        leads: Callable[[], bool],
    ) -> None:
        self._gate, self._cluster, self._leads = gate, cluster, leads
        self._log = structlog.get_logger("kernels")
        self._wake = threading.Event()
        self._closing = False
        self._thread: threading.Thread | None = None
        self._waits: dict[str, str] = {}
        self.heed(settings, place)

    def heed(self, settings: Settings, actuator: SearchActuator | None) -> None:
        """From now on by these."""
        self._settings, self._place = settings, actuator

    def start(self) -> None:
        self._thread = threading.Thread(target=self._work, name="kernel-searches", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread; searches go on by themselves and are taken up again."""
        self._closing = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(30.0)
            self._thread = None

    def _work(self) -> None:
        while not self._closing:
            try:
                if self._leads():
                    self.turn()
            except (Temporary, Permanent) as error:
                self._log.warning("kernel searches check failed", error=str(error))
            except Exception:  # noqa: BLE001  the thread outlives what it stumbles over; it says so
                self._log.exception("kernel searches check failed")
            self._wake.wait(EVERY_S)

    def turn(self) -> None:
        """Looks after what is under way, then begins the next search, if nothing is."""
        if self._place is None:
            return
        under_way = [one for one in self._gate.searches() if not one.ended]
        for one in under_way:
            try:
                self._follow(one, self._place)
            except Temporary as error:
                self._log.info("kernel search check failed", search=one.name, why=str(error))
        if not under_way:
            self._begin(self._place)

    def _begin(self, place: SearchActuator) -> None:
        for proposal in reversed(self._gate.proposals()):
            action = proposal.action
            if action.kind is not ActionKind.KERNEL_JOB or proposal.state is not ProposalState.APPROVED:
                continue
            if why := self._not_now(action):
                if self._waits.get(action.id) != why:
                    self._log.info("approved kernel search delayed", plan=action.id, why=why)
                self._waits[action.id] = why
                continue
            # in the store before the cluster is asked: a daemon that is killed here finds its Job by the name
            begun = self._gate.begin(action, job_name(action))
            if begun is not None:
                self._log.info("kernel search started", search=begun.name, plan=action.id)
                self._follow(begun, place)
                return

    def _not_now(self, action: Action) -> str:
        if objections := self._gate.objections(action):
            return "; ".join(objections)
        if not self._asked_for(action):
            return "its namespace no longer allows kernel searches"
        now_s = self._gate.clock.now_s()
        hours = action.blast_radius.cost_gpu_hours
        others = self._gate.used_gpu_hours(now_s - WEEK_S) - hours
        if others + hours > self._settings.weekly_gpu_hours:
            return f"{others:.1f} of {self._settings.weekly_gpu_hours:g} GPU-hours are used this week"
        return ""

    def _asked_for(self, action: Action) -> bool:
        return asked_for(action.target.name.partition("/")[0], self._settings)

    def _follow(self, search: KernelSearch, place: SearchActuator) -> None:
        action = search.action
        if why := self._must_end(search):
            self._end_early(search, place, STOPPED, why)
            return
        try:
            if not search.uid:
                # the Job is made suspended: it may run once its uid is stored, so that it is never made twice
                search = replace(search, uid=place.prepare(action))
                self._gate.keep(search)
            seen = place.look(action, search.uid)
            if seen.there and not seen.released:
                place.release(action, search.uid)
                return
        except Permanent as error:
            if search.gpu_hours or search.uid:  # its Job may run all the while: what we may not read ends nothing
                self._log.error("kernel search lost", search=search.name, error=str(error))
                return
            self._end(search, FAILED, str(error))
            return
        now_s, had = self._gate.clock.now_s(), search.gpu_hours > 0.0
        if not seen.there:
            unseen_h = (now_s - search.looked_at_s) / 3600.0  # it may have run all the while
            hours = min(_planned(search), search.gpu_hours + max(0.0, unseen_h))
            self._end(replace(search, gpu_hours=hours), GONE, "its Job was deleted")
            return
        search = replace(search, gpu_hours=max(search.gpu_hours, seen.gpu_s / 3600.0), looked_at_s=now_s)
        search = self._hear(search, place.log(action) if search.gpu_hours else "")
        if early := _ends_early(search, seen, had, now_s, place.start_within_s):
            self._end_early(search, place, *early)
        elif seen.ended:
            ended = DONE if seen.ended == "Complete" or search.certificates else FAILED
            self._end(
                search, ended, seen.said or f"{search.trials} trials, {len(search.certificates)} certificates"
            )
        else:
            self._gate.keep(search)

    def _must_end(self, search: KernelSearch) -> str:
        halt = self._gate.gate.halted()
        if halt.halted:
            return f"halted by {halt.by}"
        known = self._gate.proposal(search.action.id)
        if known is not None and known.state is ProposalState.REJECTED:
            return f"a person ended it: {known.note}"
        if rule_for(search.action, self._gate.gate.policy) is ApprovalRule.NEVER:
            return "policy no longer allows searches"
        return "" if self._asked_for(search.action) else "its namespace no longer allows kernel searches"

    def _end_early(self, search: KernelSearch, place: SearchActuator, how: str, why: str) -> None:
        """Reads what there is to read, takes the Job away, and counts what it took so far."""
        now_s = self._gate.clock.now_s()
        seen = place.look(search.action, search.uid)
        if seen.there:
            hours = max(search.gpu_hours, seen.gpu_s / 3600.0)
            search = self._hear(replace(search, gpu_hours=hours, looked_at_s=now_s), place.log(search.action))
            place.undo(search.action)
        self._end(search, how, why)

    def _end(self, search: KernelSearch, how: str, why: str) -> None:
        ended = replace(search, ended=how, detail=why[:500], ended_at_s=self._gate.clock.now_s())
        self._gate.keep(ended)
        self._log.info("kernel search ended", search=search.name, ended=how, why=why, gpu_hours=search.gpu_hours)

    def _hear(self, search: KernelSearch, text: str) -> KernelSearch:
        """Keeps the ledger's lines, and of the certificates those that are to be believed."""
        heard = progress_lines.hear(text)
        lines = ledger_of(self._gate.store, search)
        # a pod's log is read whole each time, and written only where it says more
        if not heard.trials.items() <= lines.items():
            lines |= heard.trials
            keep_ledger(self._gate.store, search.name, lines)
        held = {one.sha256: one for one in search.certificates}
        refused = list(search.refused)
        for envelope in heard.certificates:
            if certificate_sha256(envelope) in held:
                continue
            try:
                one = self._believe(envelope, search.action)
                held[one.sha256] = one
            except (CertificateError, SealError) as error:
                if str(error) not in refused and len(refused) < _MOST_REFUSALS:
                    refused.append(str(error))
                    self._log.warning("certificate refused", search=search.name, why=str(error))
        return replace(search, trials=len(lines), certificates=tuple(held.values()), refused=tuple(refused))

    def _believe(self, envelope: Mapping[str, Any], action: Action) -> Certified:
        """A certificate of a configured key that answers the plan; where its kernel is faster, a promotion is put
        before people. Raises CertificateError or SealError."""
        predicate, _ = read(envelope, trusted_keys(self._settings.trusted_keys))
        problem, verdict = str(predicate["problem"].get("name")), predicate["verdict"]
        kernel, asked = str(action.params["kernel"]), _asked(action)
        # a pod may print a true certificate of something else
        if problem not in asked:
            raise CertificateError(f"{problem}: the plan was for {kernel}")
        case, domain = asked[problem], verdict.get("domain", {})
        timed = [case_text(found["dtype"], found["params"]) for found in domain.get("timed") or []]
        if verdict.get("status") == "faster" and sorted(case.split()) not in [sorted(one.split()) for one in timed]:
            raise CertificateError(f"{problem}: raced on {', '.join(timed)}; the plan was for {case}")
        sha256 = certificate_sha256(envelope)
        if verdict.get("status") == "faster":
            now_s = self._gate.clock.now_s()
            record = record_of(predicate)
            environment = environment_of(fleet_view(self._gate.store, now_s), sha256, record)
            shown = evidence(predicate, environment, promotable(record, environment), now_s)
            plan = promotion(self._cluster, sha256, problem, "canary", shown, now_s)
            self._gate.propose(plan, NIGHTSHIFT, record)
        text = canonical_json(envelope).decode()
        return Certified(sha256, problem, f"{verdict.get('status')} ({verdict.get('reason')})", text)


def keep_ledger(store: Store, search: str, lines: Mapping[tuple[str, int], Mapping[str, Any]]) -> None:
    """Keeps a search's lines, by problem and number, for `ledger_of`."""
    rows = [[name, number, line] for (name, number), line in sorted(lines.items())]
    store.keep({_LEDGER + search: zlib.compress(json.dumps(rows).encode())})


def ledger_of(store: Store, search: KernelSearch) -> dict[tuple[str, int], Mapping[str, Any]]:
    """The ledger's lines as the search's pod printed them, by search and number."""
    kept = store.recall(_LEDGER + search.name)
    rows = [] if kept is None else json.loads(zlib.decompress(kept[1]))
    return {(name, number): line for name, number, line in rows}


def _asked(action: Action) -> dict[str, str]:
    """Problem → case of all that a plan's search is for: gradients too, where it says so."""
    kernel, (kind, *sizes) = str(action.params["kernel"]), str(action.params["case"]).split()
    named = {name: int(size) for name, _, size in (one.partition("=") for one in sizes)}
    listed = searches_of(kernel, named, bool(action.params.get("backward")))
    return {problem: case_text(kind, found) for problem, found in listed}


def _ends_early(
    search: KernelSearch, seen: SearchStatus, had_gpu: bool, now_s: float, start_within_s: float
) -> tuple[str, str] | None:
    """How and why a search ends before its Job does; None where it may go on, or has ended by itself."""
    if seen.preempted:
        return PREEMPTED, "its pod was pre-empted; another job needs the GPU"
    # one that was suspended before it ever had a GPU still waits to be let go, and nothing was taken from it
    if seen.suspended and had_gpu:
        return PREEMPTED, "its Job was suspended while it ran; another job needs the GPU"
    if seen.ended:
        return None
    if not search.gpu_hours and now_s - search.begun_at_s > start_within_s:
        return NO_GPU, f"no GPU was free for it within {start_within_s:.0f} s"
    if search.gpu_hours > _planned(search) + _LATE_S / 3600.0:
        return STOPPED, "it held its GPU beyond its time"
    return None


def _planned(search: KernelSearch) -> float:
    hours = search.action.blast_radius.cost_gpu_hours
    return hours if math.isfinite(hours) else 0.0
