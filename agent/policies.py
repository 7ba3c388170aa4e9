"""Builds what looks after learned policies, for every kind, with the daemon's metrics."""

from __future__ import annotations

from dataclasses import dataclass

from agent.clock import Clock
from agent.gate import Gate
from agent.metrics import Metrics
from agent.policy_gate import PolicyGate
from agent.policy_watch import PolicyWatch
from agent.receipts import Receipts
from agent.settings import Settings
from agent.store import Store


@dataclass(frozen=True)
class _Counted:
    """See `agent.policy_watch.Counters`."""

    metrics: Metrics

    def standing(self, kind: str, mode: str, level: int) -> None:
        self.metrics.policy_mode.labels(kind).set(level)

    def demoted(self, kind: str, reason: str) -> None:
        self.metrics.policy_demotions.labels(kind, reason).inc()

    def outcomes(self, kind: str, state: str, count: int) -> None:
        self.metrics.policy_outcomes.labels(kind, state).inc(count)

    def jobs(self, kind: str, settled: int) -> None:
        self.metrics.policy_jobs.labels(kind).set(settled)


def build_policies(settings: Settings, store: Store, gate: Gate, clock: Clock, metrics: Metrics) -> PolicyWatch:
    policies = PolicyGate(gate, store, clock, settings.cluster)
    return PolicyWatch(policies, Receipts(store.database), _Counted(metrics))
