"""How a metric is declared: its canonical name and unit, and what exporters call it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from nightshift.collectors.subject import SubjectKind


class MetricType(StrEnum):
    GAUGE = "gauge"
    COUNTER = "counter"


@dataclass(frozen=True, slots=True)
class Metric:
    """`value [unit] = exported × scale`, where `exported` is the series named in `dcgm` or `exported_as`."""

    name: str
    kind: SubjectKind
    unit: str
    type: MetricType
    help: str
    exported_as: str
    scale: float = 1.0
    low: float = 0.0
    high: float = 1e18
    """Values outside cannot be: they are refused, never shown as health."""
    zero_is_missing: bool = False
    """Where the exporter writes 0, or less, for "none"."""
    aliases: tuple[str, ...] = ()
    """What other exporters, or other releases, call the same; in the same unit, but where the name says another."""


@dataclass(frozen=True, slots=True)
class Derived:
    """A metric that is worked out of counters (`collectors.telemetry.derived_metrics`): the rate of `counter` (per
    s), divided by the rate of `per` where that is given; missing where `per` stood still."""

    name: str
    kind: SubjectKind
    unit: str
    help: str
    counter: str
    per: str = ""
    type: MetricType = MetricType.GAUGE

    @property
    def formula(self) -> str:
        return f"rate({self.counter})" + (f" / rate({self.per})" if self.per else "")
