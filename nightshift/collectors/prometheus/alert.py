"""What an Alertmanager says: alerts that fire, and silences that somebody set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nightshift.collectors.subject import Subject


@dataclass(frozen=True, slots=True)
class AlertmanagerAlert:
    """An alert as Alertmanager holds it. `subject` is the GPU, pod or node that its labels name, None where they
    name none; `silenced_by` and `inhibited_by` are what keeps it from being told to people."""

    name: str
    fingerprint: str
    subject: Subject | None
    since_s: float
    ends_s: float
    severity: str
    summary: str
    labels: Mapping[str, str]
    silenced_by: tuple[str, ...] = ()
    inhibited_by: tuple[str, ...] = ()

    @property
    def is_quiet(self) -> bool:
        """Nobody is told of it."""
        return bool(self.silenced_by or self.inhibited_by)


@dataclass(frozen=True, slots=True)
class AlertmanagerSilence:
    """Alerts whose labels match all `matchers` (`node=~"n1|n2"`) are not told between these times (Unix s)."""

    id: str
    matchers: tuple[str, ...]
    starts_s: float
    ends_s: float
    by: str
    comment: str
