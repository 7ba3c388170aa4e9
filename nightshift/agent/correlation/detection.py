"""Runs every detector over a tick. One that fails is named and counted; the others go on.

Detectors' states are kept in the store, so that a restarted daemon, or the replica that takes over, goes on with
the same episodes instead of learning anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from nightshift import spans
from nightshift.agent.metrics import Metrics
from nightshift.collectors.subject import Inventory
from nightshift.collectors.tick import Tick
from nightshift.detectors.alarms.budget import Budget, BudgetSettings, words
from nightshift.detectors.alarms.calibration import load
from nightshift.detectors.alarms.lanes import lane_of
from nightshift.detectors.alarms.promise import promises
from nightshift.detectors.base import Detector, Finding, SnapshotError

_PREFIX = "detector/"
_BUDGET = "budget"


@dataclass(frozen=True)
class Detected:
    """The findings of one tick, and which detectors failed with what."""

    findings: tuple[Finding, ...] = ()
    failures: Mapping[str, str] = field(default_factory=dict)


class Detection:
    """The configured detectors, in order."""

    def __init__(
        self, detectors: Sequence[Detector], metrics: Metrics, budget: BudgetSettings | None = None
    ) -> None:
        self.detectors = tuple(detectors)
        self.budget = self._budget(self.detectors, budget or BudgetSettings())
        self._unpaged: set[str] = set()
        self._noisy: set[str] = set()
        self._metrics = metrics
        self._log = structlog.get_logger("detection")
        self._failing: dict[str, str] = {}

    def detect(self, tick: Tick, inventory: Inventory) -> Detected:
        """What every detector says of this tick."""
        found: list[Finding] = []
        failures: dict[str, str] = {}
        for detector in self.detectors:
            began_s = time.perf_counter()
            try:
                with spans.span(f"detect {detector.name}"):
                    findings = detector.update(tick, inventory)
            except Exception as error:  # noqa: BLE001  a defect in one detector must not blind the others
                failures[detector.name] = f"{type(error).__name__}: {error}"
                self._metrics.detector_failures.labels(detector.name).inc()
                # once per defect: the same traceback at every look would bury what else the log says
                if self._failing.get(detector.name) != failures[detector.name]:
                    self._log.exception("detector failed", detector=detector.name)
                continue
            finally:
                spent_s = time.perf_counter() - began_s
                self._metrics.detector_seconds.labels(detector.name).inc(spent_s)
            self._metrics.observe_findings(detector.name, findings)
            found += findings
        found = self.budget.weigh(found, tick, inventory)
        self._metrics.observe_budget(self.budget)
        self._log_lanes()
        for name in self._failing.keys() - failures.keys():
            self._log.info("detector recovered", detector=name)
        self._failing = failures
        return Detected(tuple(found), failures)

    @staticmethod
    def _budget(detectors: Sequence[Detector], settings: BudgetSettings) -> Budget:
        own = load(Path(settings.calibration)) if settings.calibration else {}
        return Budget(settings, promises(detectors, own))

    def waiting(self) -> list[tuple[Finding, str]]:
        """Open alarms that do not page, and why."""
        return [(finding, words(finding)) for finding, _ in self.budget.waiting()]

    def _log_lanes(self) -> None:
        """Logs once which alarm does not page, and which detector is noisy."""
        found = {finding.episode: finding for finding, _ in self.budget.waiting()}
        for episode in found.keys() - self._unpaged:
            f = found[episode]
            lane = str(lane_of(f))
            self._log.info("alarm routed", detector=f.detector, subject=str(f.subject), lane=lane, why=words(f))
        self._unpaged = set(found)
        noisy = self.budget.noisy()
        for name in noisy.keys() - self._noisy:
            self._log.warning("detector pages muted", detector=name, reason=noisy[name])
        for name in self._noisy - noisy.keys():
            self._log.info("detector pages unmuted", detector=name)
        self._noisy = set(noisy)

    def swap(self, detectors: Sequence[Detector], budget: BudgetSettings | None = None) -> None:
        """Goes on with these; each takes over the state of the one of its name, if it can use it.

        Raises CalibrationError, and nothing changes, where the budget's calibration cannot be read.
        """
        # first of all, since it may raise: a reload either happens whole or not at all
        fresh = self._budget(detectors, budget or self.budget.settings)
        states = self.snapshots()
        self.detectors, self.budget = tuple(detectors), fresh
        self.restore(lambda name: (0.0, states[name]) if name in states else None)

    def snapshots(self, of: Collection[str] | None = None) -> dict[str, bytes]:
        """The budget's state and every detector's (or those of these names), by the name under which it is
        kept."""
        kept = {_BUDGET: self.budget.snapshot()}
        for detector in self.detectors:
            if of is not None and detector.name not in of:
                continue
            try:
                kept[_PREFIX + detector.name] = detector.snapshot()
            except Exception:  # noqa: BLE001  one that cannot be kept learns anew after a restart; the others do not
                self._metrics.detector_failures.labels(detector.name).inc()
                self._log.exception("detector state write failed", detector=detector.name)
        return kept

    def restore(self, recall: Callable[[str], tuple[float, bytes] | None]) -> None:
        """Gives every detector the state that was kept; one that cannot use it starts anew and says so."""
        # the account of false pages outlives a restart, or each restart would grant a new week's pages
        spent = recall(_BUDGET)
        if spent is not None:
            try:
                self.budget.restore(spent[1])
            except SnapshotError as error:
                self._log.warning("alarm budget reset", reason=str(error))
        for detector in self.detectors:
            kept = recall(_PREFIX + detector.name)
            if kept is None:
                continue
            try:
                detector.restore(kept[1])
            except SnapshotError as error:
                self._log.warning("detector reset", detector=detector.name, reason=str(error))
