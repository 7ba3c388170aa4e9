"""Builds what looks after learned policies, for every kind, with the daemon's metrics; and the policy files that
`nightshift policy ship` put into the store, so that a daemon in a pod needs no file beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from nightshift.agent.approvals.gate import Gate
from nightshift.agent.approvals.policy_gate import PolicyGate
from nightshift.agent.clock import Clock
from nightshift.agent.control.policy_watch import REASONS, PolicyWatch
from nightshift.agent.metrics import Metrics
from nightshift.agent.settings import Settings
from nightshift.agent.store import audit
from nightshift.agent.store.incident_store import Store
from nightshift.agent.store.receipts import Receipts
from nightshift.collectors.base import Permanent
from nightshift.collectors.seal import SealError, trusted_keys
from nightshift.controllers.drift import Envelope
from nightshift.controllers.policy_file import Interface, PolicyFile, PolicyRefused, parse, read_bytes

_FILE = "policy-file/"


@dataclass(frozen=True)
class _Counted:
    """See `agent.control.policy_watch.PolicyCounters`."""

    metrics: Metrics

    def standing(self, kind: str, mode: str, level: int) -> None:
        self.metrics.policy_mode.labels(kind).set(level)
        for reason in REASONS:  # there from the beginning, or the first demotion would be no increase
            self.metrics.policy_demotions.labels(kind, reason)

    def demoted(self, kind: str, reason: str) -> None:
        self.metrics.policy_demotions.labels(kind, reason).inc()

    def outcomes(self, kind: str, state: str, count: int) -> None:
        self.metrics.policy_outcomes.labels(kind, state).inc(count)

    def jobs(self, kind: str, settled: int) -> None:
        self.metrics.policy_jobs.labels(kind).set(settled)


def build_policies(settings: Settings, store: Store, gate: Gate, clock: Clock, metrics: Metrics) -> PolicyWatch:
    policies = PolicyGate(gate, store, clock, settings.cluster)
    return PolicyWatch(policies, Receipts(store.database), _Counted(metrics))


def stand_up(
    policies: PolicyGate, path: Path, interface: Interface, keys: Sequence[Path], by: str, now_s: float
) -> PolicyFile:
    """Puts a file into the store and its policy into shadow; the daemon asks it from its next start on. Raises
    PolicyRefused, and changes nothing, where the daemon would refuse it."""
    # Read once: what was checked is what is stored, even where the file changes meanwhile.
    raw = read_bytes(path)
    found = parse(raw, str(path), interface, _trusted(interface.kind, keys))
    _fit(found, str(path))
    # As it is, with its signature: the daemon checks that again at each start.
    policies.store.keep({_FILE + interface.kind: raw})
    policies.stand(interface.kind, f"{found.name}@{found.sha256[:12]}", found.sha256, by)
    with policies.store.database.write() as connection:
        body = {"kind": interface.kind, "sha256": found.sha256, "key_id": found.key_id}
        audit.append(connection, at_s=now_s, kind="policy_file", by=by, incident=None, body=body)
    return found


def stood_up(store: Store, interface: Interface, keys: Sequence[Path]) -> PolicyFile | None:
    """The file that was stood up, if it is still fit: signed by a key that is trusted now, and for this program.
    One that is not leaves the kind to its heuristic, and the daemon's log says why."""
    kept = store.recall(_FILE + interface.kind)
    if kept is None:
        return None
    try:
        where = f"the stored {interface.kind} policy"
        return _fit(parse(kept[1], where, interface, _trusted(interface.kind, keys)), where)
    except Permanent as refused:
        structlog.get_logger("policies").error("stored policy refused", why=str(refused))
        return None


def _fit(file: PolicyFile, where: str) -> PolicyFile:
    """Raises PolicyRefused, naming `where`, for what is only read once the policy is asked: its envelope."""
    try:
        Envelope.of(file)
    except PolicyRefused as error:
        raise PolicyRefused(f"{where}: {error}") from None
    return file


def _trusted(kind: str, keys: Sequence[Path]) -> dict[str, Ed25519PublicKey]:
    try:
        return trusted_keys(keys)
    except SealError as error:
        raise Permanent(f"{kind}.policy_keys: {error}") from error
