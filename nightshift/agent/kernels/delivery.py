"""Carries approved promotions out, and keeps the job's file of the registry's kernels in use.

A person approved the plan: its hash, its evidence and the jobs' environment are checked again here, then the kernel
moves in the registry. Jobs import `nightshift_kernels.py` from the registry's folder; the file is there before the
first kernel, so that a job's lines stay the same, and it is written again after each move.
"""

from __future__ import annotations

import json
from typing import Any

import structlog

from nightshift.agent.approvals.gate import NIGHTSHIFT
from nightshift.agent.approvals.kernel_gate import KernelGate, ProposalState
from nightshift.controllers.action import Action, ActionKind
from nightshift.kernels.apply.bundle import FILE, bundle
from nightshift.kernels.certification.envelope import CertificateError
from nightshift.kernels.certification.evidence import FleetView, environment_of
from nightshift.kernels.certification.registry import CertificateState, Registry, RegistryError
from nightshift.kernels.loop.ledger import write_whole


class KernelDelivery:
    """One per daemon, asked by its drift check."""

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
