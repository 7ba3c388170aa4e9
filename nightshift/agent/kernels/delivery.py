"""Brings the registry's kernels to jobs and takes them back: what people approved goes in, what drifted comes out.

Each turn: what jobs' shadow checks found goes out, and so does each canary or active kernel whose evidence is not
enough, whose GPU, driver, torch or Triton changed, or whose judge is an older one. Torch computes from the jobs'
next step on; a person is asked for a search that certifies the operation again, where policy and budget allow one.
An unknown environment demotes nothing: the page says that it is unknown, and nothing is promoted to active upon it.

Then approved promotions are carried out. A person approved the plan: its hash, its evidence and the jobs'
environment are checked again here, then the kernel moves in the registry. Jobs import `nightshift_kernels.py` from
the registry's folder; the file is there before the first kernel, so that a job's lines stay the same, and it is
written again after each move.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import structlog

from nightshift.agent.approvals.gate import NIGHTSHIFT
from nightshift.agent.approvals.kernel_gate import KernelGate, ProposalState, search
from nightshift.agent.approvals.kernel_search import environment_text, keep_view, last_view, summary
from nightshift.agent.approvals.policy import rule_for
from nightshift.agent.kernels.gain import KernelGain, gains
from nightshift.agent.store import audit
from nightshift.agent.store.incident_store import Store
from nightshift.agent.store.records import dump, load
from nightshift.collectors.base import Permanent
from nightshift.collectors.seal import SealError, trusted_keys
from nightshift.controllers.action import Action, ActionKind, ApprovalRule
from nightshift.controllers.actuators.kube_kernel_jobs import arguments
from nightshift.kernels.apply.bundle import FILE, bundle
from nightshift.kernels.certification.envelope import CertificateError
from nightshift.kernels.certification.evidence import FleetView, JobEnvironment, environment_of
from nightshift.kernels.certification.registry import CertificateState, Entry, Registry, RegistryError, promotable
from nightshift.kernels.loop.ledger import write_whole
from nightshift.kernels.profile.trigger import Settings, asked_for

WEEK_S = 7 * 86400.0
LINE_S = 6 * 3600.0
"""What a job said longer ago says nothing of now (s)."""
_STANDING = "kernel-standing"
_MOST = 200


@dataclass(frozen=True)
class KernelStanding:
    """A kernel of the registry as the daemon last saw it. environment: where its jobs run, in words; gain: what the
    jobs' canaries measured with it, and what that saved so far."""

    certificate: str
    problem: str
    state: str
    evidence: Mapping[str, str]
    environment: str
    why: str = ""
    gain: str = ""


def standings(store: Store) -> list[KernelStanding]:
    """The registry's kernels as of the last turn; none where no registry is configured."""
    kept = store.recall(_STANDING)
    return [] if kept is None else list(load(_Standings, kept[1].decode()).kernels)


@dataclass(frozen=True)
class _Standings:
    kernels: tuple[KernelStanding, ...]


class KernelDrift:
    """One per daemon, asked by the kernel watch."""

    def __init__(self, gate: KernelGate, cluster: str) -> None:
        self._gate, self._cluster = gate, cluster
        self._delivery = KernelDelivery(gate)
        self._log = structlog.get_logger("kernels")

    def turn(self, view: FleetView, settings: Settings) -> list[Entry]:
        """Looks at every kernel in use once; those that were demoted. Raises Temporary where the store is away."""
        view = self._with_earlier(view)
        keep_view(self._gate.store, view)
        if settings.registry is None:
            return []
        try:
            registry = Registry(settings.registry, trusted_keys(settings.trusted_keys))
            # first: what a shadow check found wrong needs no look at its environment
            gone = registry.collect_mismatches(view.at_s)
            for entry in gone:
                self._tell(entry, entry.history[-1].why, "none: a shadow check found it wrong", view.at_s)
            gone += [one for entry in registry.entries() if (one := self._hold(registry, entry, view, settings))]
            self._delivery.turn(registry, view)
            self._keep(registry, view)
        except (RegistryError, SealError) as error:
            self._log.error("kernel registry check failed", error=str(error))
            return []
        return gone

    def _hold(self, registry: Registry, entry: Entry, view: FleetView, settings: Settings) -> Entry | None:
        """Demotes one kernel in use that is not promotable where it runs; None where nothing changed."""
        if entry.state not in (CertificateState.canary, CertificateState.active):
            return None
        found = promotable(entry.record, environment_of(view, entry.certificate, entry.record))
        if not found:
            return None
        why = "; ".join(map(str, found))
        try:
            demoted = registry.demote(entry.certificate, NIGHTSHIFT, why, view.at_s)
        except RegistryError as error:  # one that cannot be written keeps no other in use
            self._log.error("kernel demotion failed", certificate=entry.certificate[:16], error=str(error))
            return None
        self._tell(entry, why, self._ask_again(entry, view, settings), view.at_s)
        return demoted

    def _with_earlier(self, view: FleetView) -> FleetView:
        """With what jobs said to a daemon before this one: one that has not spoken since the restart still runs."""
        before = last_view(self._gate.store)
        jobs = {} if before is None else before.jobs
        recent = {name: job for name, job in jobs.items() if 0.0 <= view.at_s - job.at_s <= LINE_S}
        return replace(view, jobs={**recent, **view.jobs})

    def _tell(self, entry: Entry, why: str, again: str, at_s: float) -> None:
        """Into log and audit log. again: the search that certifies the operation again, or why there is none."""
        self._log.error(
            "kernel demoted", kernel=entry.problem, certificate=entry.certificate[:16], why=why, search=again
        )
        with self._gate.store.database.write() as connection:
            body = {"certificate": entry.certificate, "reason": why, "search": again}
            audit.append(connection, at_s=at_s, kind="kernel_demoted", by=NIGHTSHIFT, incident=None, body=body)

    def _ask_again(self, entry: Entry, view: FleetView, settings: Settings) -> str:
        """Puts a search for the same operation and case before people; its plan's name, or why there is none."""
        short = entry.certificate[:16]
        # a job that left it out was asked to use it: it needs the operation as well
        holders = [name for name, job in sorted(view.jobs.items()) if short in (*job.used, *job.unused)]
        job = next((name for name in holders if asked_for(name.partition("/")[0], settings)), None)
        if job is None:
            return "none: no job of a namespace in kernels.namespaces reported this kernel"
        left = settings.weekly_gpu_hours - self._gate.used_gpu_hours(view.at_s - WEEK_S)
        if left < settings.search_gpu_hours:
            return f"none: {left:.1f} GPU-hours are left this week, a search takes {settings.search_gpu_hours:g}"
        plan = search(
            self._cluster, job, f"{entry.problem} again {short}",
            f"{job}: {entry.problem} {short} was demoted; certify the operation again", settings.search_gpu_hours,
            settings.priority_class, view.at_s, _order(entry),
        )  # fmt: skip
        try:
            # the pod's command line is checked before people are asked, not when they have approved it
            arguments(plan)
        except Permanent as error:
            return f"none: {error}"
        if rule_for(plan, self._gate.gate.policy) is ApprovalRule.NEVER:
            return "none: policy never allows kernel_job"
        return self._gate.propose(plan).id

    def _keep(self, registry: Registry, view: FleetView) -> None:
        """What the console shows, whichever replica serves it."""
        gained = gains(self._gate.store)
        rows = tuple(_standing(entry, view, gained) for entry in registry.entries()[:_MOST])
        self._gate.store.keep({_STANDING: dump(_Standings(rows)).encode()})


class KernelDelivery:
    """One per daemon, asked after the demotions of a turn."""

    def __init__(self, gate: KernelGate) -> None:
        self._gate = gate
        self._log = structlog.get_logger("kernels")
        self._held: dict[str, str] = {}
        self._written: tuple[str, ...] | None = None

    def turn(self, registry: Registry, view: FleetView) -> None:
        """Promotes what was approved, then writes the file where kernels came or went. Raises RegistryError,
        Temporary."""
        for proposal in self._gate.proposals():
            action = proposal.action
            if action.kind is ActionKind.PROMOTE_KERNEL and proposal.state is ProposalState.APPROVED:
                try:
                    self._promote(registry, action, view)
                except (RegistryError, CertificateError) as error:
                    self._wait(action, str(error))
        self._write(registry)

    def _promote(self, registry: Registry, action: Action, view: FleetView) -> None:
        if objections := self._gate.objections(action):
            self._wait(action, "; ".join(objections))
            return
        sha256, goal = str(action.params["certificate"]), CertificateState(str(action.params["to"]))
        now_s = self._gate.clock.now_s()
        envelope = self._brought(sha256)
        entry = registry.propose(envelope, NIGHTSHIFT, "found by a search", now_s) if envelope else None
        entry = entry or registry.entry(sha256)
        if entry.state is not goal:  # a daemon that was killed here had moved it
            environment = environment_of(view, entry.certificate, entry.record)
            entry = registry.move(
                entry.certificate, goal, NIGHTSHIFT, action.why, now_s, action.plan_sha256, environment
            )
        self._gate.done(action, NIGHTSHIFT, f"{goal} in {registry.folder}")
        self._log.info("kernel promoted", kernel=entry.problem, certificate=sha256[:16], to=goal.value)

    def _brought(self, sha256: str) -> dict[str, Any] | None:
        """The certificate as a search of the cluster brought it; None where a person brought it."""
        held = (one for search in self._gate.searches() for one in search.certificates)
        found = next((one for one in held if one.sha256 == sha256), None)
        return None if found is None else dict(json.loads(found.envelope))

    def _wait(self, action: Action, why: str) -> None:
        if self._held.get(action.id) != why:
            self._log.warning("approved kernel promotion delayed", plan=action.id, why=why)
        self._held[action.id] = why

    def _write(self, registry: Registry) -> None:
        records = registry.records()
        names = tuple(record["certificate"] for record in records)
        path = registry.folder / FILE
        if names == self._written and path.exists():
            return
        try:
            write_whole(path, bundle(records))
        except OSError as error:
            raise RegistryError(f"{path}: cannot be written: {error.strerror}") from error
        self._written = names
        self._log.info("job file written", path=str(path), kernels=len(names))


def _standing(entry: Entry, view: FleetView, gained: Mapping[str, KernelGain]) -> KernelStanding:
    environment: JobEnvironment = environment_of(view, entry.certificate, entry.record)
    shown = summary(entry.record, environment)
    del shown["jobs run"]
    why = entry.history[-1].why if entry.state is CertificateState.demoted else ""
    if not why:
        why = "; ".join(map(str, promotable(entry.record, environment, CertificateState.active)))
    where = environment_text(environment) + (f" ({', '.join(environment.jobs[:5])})" if environment.jobs else "")
    held = {job: one for job, one in sorted(gained.items()) if entry.certificate[:16] in one.certificates}
    gain = "; ".join(one.text(job) for job, one in list(held.items())[:5])
    return KernelStanding(entry.certificate, entry.problem, entry.state.value, shown, where, why, gain)


def _order(entry: Entry) -> dict[str, str | bool | int]:
    """The same operation on the case that was certified. again: a search's folder goes on with its own question,
    and this is another one."""
    timed: Sequence[Mapping[str, Any]] = entry.predicate["verdict"]["domain"]["timed"]
    case, short = case_text(timed[0]["dtype"], timed[0]["params"]), entry.certificate[:16]
    return {"kernel": entry.problem, "case": case, "backward": False, "searches": 1, "again": short}


def case_text(dtype: object, sizes: Mapping[str, Any]) -> str:
    """A case as plans and pods write it: `bf16 rows=4096 columns=8192`."""
    return " ".join([str(dtype), *(f"{name}={size}" for name, size in sizes.items())])
