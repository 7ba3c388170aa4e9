"""The daemon's own metrics follow Prometheus' conventions, and two daemons do not share them."""

from __future__ import annotations

import shutil
import subprocess

from nightshift.agent.metrics import Metrics
from nightshift.agent.store.incident import IncidentState
from nightshift.collectors.frame import Reason, SourceStatus
from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.alarms.budget import Budget, BudgetSettings
from nightshift.detectors.base import RateBasis, StatedRate
from tests.conftest import absent

SOURCE = Subject(SubjectKind.SOURCE, "dcgm_exporter http://n1:9400/metrics")


def test_promtool_finds_nothing_to_say() -> None:
    """`promtool check metrics` passes on a page on which every metric has a sample."""
    promtool = shutil.which("promtool")
    if promtool is None:
        absent("promtool")
    metrics = Metrics("0.1.0")
    down = SourceStatus(SOURCE, 5.0, ok=False, reason=Reason.TIMEOUT, rejected={Reason.MALFORMED: 3})
    metrics.observe_tick(Tick(5.0, sources=[down]))
    metrics.observe_findings("ecc", [])
    stated = StatedRate(0.05, RateBasis.STATISTICAL, "its run length")
    metrics.observe_budget(Budget(BudgetSettings(), {"ecc": stated}))
    metrics.observe_incidents([IncidentState.OPEN])
    metrics.detector_failures.labels("ecc").inc()
    metrics.detector_seconds.labels("ecc").inc(0.1)
    metrics.stage_failures.labels("store").inc()
    done = subprocess.run([promtool, "check", "metrics"], input=metrics.page(), capture_output=True, check=False)
    assert (done.returncode, done.stderr.decode(), done.stdout.decode()) == (0, "", "")


def test_two_daemons_in_one_process_count_apart() -> None:
    """Each App has a registry of its own."""
    first, second = Metrics("0.1.0"), Metrics("0.1.0")
    first.observe_tick(Tick(5.0))
    assert b"nightshift_ticks_total 1.0" in first.page()
    assert b"nightshift_ticks_total 0.0" in second.page()


def test_no_label_holds_an_address() -> None:
    """A source's URL never becomes a label, so the number of series stays bounded on a large fleet."""
    metrics = Metrics("0.1.0")
    metrics.observe_tick(Tick(5.0, sources=[SourceStatus(SOURCE, 5.0, ok=True, samples=7)]))
    assert b"n1" not in metrics.page()
    assert b'nightshift_sources{state="up"} 1.0' in metrics.page()


def test_the_realised_rate_stands_beside_the_stated_one() -> None:
    """Both are on the page per detector, with the budget in pages per week."""
    metrics = Metrics("0.1.0")
    stated = StatedRate(0.05, RateBasis.STATISTICAL, "its run length")
    metrics.observe_budget(Budget(BudgetSettings(), {"ecc": stated}))
    page = metrics.page()
    assert b"nightshift_alarm_budget_pages_per_week 1.0" in page
    assert b'nightshift_alarm_rate_stated{detector="ecc"} 0.05' in page
    assert b'nightshift_alarm_rate_realised{detector="ecc"} NaN' in page
