"""What one collector brings back, and all collectors' answers of one moment joined: what detectors are given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nightshift.collectors.clocks import ClockOffset
from nightshift.collectors.frame import Frame, LogRecord, SourceStatus, StepSeries
from nightshift.collectors.kernel_log.event import KernelEvent
from nightshift.collectors.prometheus.alert import AlertmanagerAlert, AlertmanagerSilence
from nightshift.collectors.subject import SubjectKind


@dataclass(frozen=True, eq=False)
class Batch:
    """What one collector brought back in one tick: the status of each of its sources, and what they said."""

    sources: Sequence[SourceStatus]
    frames: Sequence[Frame] = ()
    steps: Sequence[StepSeries] = ()
    logs: Sequence[LogRecord] = ()
    events: Sequence[KernelEvent] = ()
    clocks: Sequence[ClockOffset] = ()
    alerts: Sequence[AlertmanagerAlert] = ()
    silences: Sequence[AlertmanagerSilence] = ()
    raw: Sequence[LogRecord] = ()
    """Every line of jobs' logs, also those that are not in `logs`."""


@dataclass(frozen=True, eq=False)
class Tick:
    """One moment of the fleet. A kind of subject without a frame was not observed at all in this tick."""

    at_s: float
    frames: Mapping[SubjectKind, Frame] = field(default_factory=dict)
    steps: Sequence[StepSeries] = ()
    logs: Sequence[LogRecord] = ()
    events: Sequence[KernelEvent] = ()
    sources: Sequence[SourceStatus] = ()
    clocks: Sequence[ClockOffset] = ()
    alerts: Sequence[AlertmanagerAlert] = ()
    """What an Alertmanager holds to be firing, silenced ones too."""
    silences: Sequence[AlertmanagerSilence] = ()
    raw: Sequence[LogRecord] = ()
    """Every line of jobs' logs: kept for evidence, read by no detector. A recording keeps hang dumps alone."""
