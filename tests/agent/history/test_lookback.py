"""A look-back over a real Prometheus: what it tells, what it costs the server, and what it does not know."""

from __future__ import annotations

import json
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from nightshift.agent.history import lookback_pages
from nightshift.agent.history.lookback import (
    LookbackStore,
    OwnEvent,
    PastSighting,
    look_back,
    own_events,
    report,
    same_node,
)
from nightshift.agent.history.lookback_report import as_text
from nightshift.agent.history.lookback_signals import LOGS, NEEDS, blind_signals
from nightshift.collectors.frame import Frame, Instant, SeriesIndex
from nightshift.collectors.http import SourceError
from nightshift.collectors.prometheus.live import PrometheusCollector
from nightshift.collectors.prometheus.range import RangeCost, RangeReader
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.alarms.budget import BudgetSettings
from nightshift.detectors.base import Fault, Finding, RateBasis, Severity, State, StatedRate
from nightshift.detectors.plugins import ALL
from tests.agent.forks import nightshift
from tests.conftest import PrometheusFactory, PrometheusServer

STEP_S, LOOKS = 60, 240
LEAK_FROM, XID_AT, CORDON_AT = 60, 150, 200


def past(start_s: int) -> str:
    """Four hours of two nodes: n1's rank 3 leaks from the first hour and GPU 5 has Xid 79; n1 is cordoned later. n2
    is well all the time and is cordoned as well; dcgm-exporter exports neither clocks nor ECC counters."""
    lines: list[str] = []

    def family(name: str, rows: list[tuple[str, list[float]]]) -> None:
        lines.append(f"# TYPE {name} gauge")
        lines.extend(
            f"{name}{{{labels}}} {value} {start_s + STEP_S * n}"
            for labels, values in rows
            for n, value in enumerate(values)
        )

    def gpus(value: object) -> list[tuple[str, list[float]]]:
        rows = []
        for node in ("n1", "n2"):
            for g in range(8):
                place = f'Hostname="{node}",namespace="ml",pod="{node}job-{g}",container="c"'
                labels = f'UUID="GPU-{node}-{g}",gpu="{g}",{place}'
                rows.append((labels, [value(node, g, n) for n in range(LOOKS)]))  # type: ignore[operator]
        return rows

    def leaked(node: str, g: int, n: int) -> float:
        return 120.0 * max(0, n - LEAK_FROM) if (node, g) == ("n1", 3) else 0.0

    family("DCGM_FI_DEV_FB_USED", gpus(lambda node, g, n: 40_000 + 40 * (n % 3) + leaked(node, g, n)))
    family("DCGM_FI_DEV_FB_FREE", gpus(lambda node, g, n: 100_000 - 40 * (n % 3) - leaked(node, g, n)))
    family("DCGM_FI_DEV_XID_ERRORS", gpus(lambda node, g, n: 79 if (node, g) == ("n1", 5) and n >= XID_AT else 0))
    family(
        "kube_node_spec_unschedulable",
        [(f'node="{node}.example"', [float(n >= CORDON_AT) for n in range(LOOKS)]) for node in ("n1", "n2")],
    )
    return "\n".join([*lines, "# EOF\n"])


@pytest.fixture
def server(prometheus_server: PrometheusFactory, tmp_path: Path) -> tuple[PrometheusServer, int]:
    start_s = int(time.time() // 7200 * 7200) - 6 * 3600
    page = tmp_path / "past.om"
    page.write_text(past(start_s))
    running = prometheus_server("scrape_configs: []")
    running.stop()
    data = next(part.partition("=")[2] for part in running.command if part.startswith("--storage.tsdb.path="))
    backfill = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(page), data]
    subprocess.run(backfill, check=True, capture_output=True)
    running.start()
    return running, start_s


def test_a_newcomer_is_told_what_happened_what_was_early_what_was_missed_and_what_is_blind(
    server: tuple[PrometheusServer, int], tmp_path: Path
) -> None:
    """The leak and the Xid on n1, an hour and more before its cordon; n2's cordon missed; clocks and logs blind."""
    running, start_s = server
    config = tmp_path / "n.yaml"
    config.write_text(yaml.safe_dump({"state_dir": str(tmp_path)}))
    days = str((time.time() - start_s + 300) / 86400)
    arguments = ("lookback", "--prometheus", running.url, "--days", days, "--load", "1")
    done = nightshift(*arguments, "--json", config=config)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    by_fault = {seen["fault"]: seen for seen in told["incidents"]}
    assert set(by_fault) == {"gpu_memory_leak", "xid"}
    assert by_fault["gpu_memory_leak"]["subject"] == "gpu:GPU-n1-3"
    assert by_fault["xid"]["subject"] == "gpu:GPU-n1-5"
    assert by_fault["xid"]["opened_s"] == start_s + STEP_S * XID_AT
    cordons = {event["node"]: event for event in told["own_events"]}
    assert cordons["n1.example"]["lead_s"] > 3600
    assert cordons["n2.example"]["first_alarm"] is None
    assert (told["missed"], told["gpus"], told["gaps"]) == (1, 16, [])
    blind = {entry["signal"] for entry in told["blind"]}
    assert {"gpu_sm_clock_mhz", "gpu_ecc_dbe_total", "the kernel log"} <= blind
    assert "gpu_memory_used_bytes" not in blind
    # of one job of 16 GPUs: the leak from its onset on, the Xid until the range's end
    hours = sum(seen["gpu_hours"] for seen in told["incidents"])
    assert told["gpu_hours_affected"] == pytest.approx(hours)
    assert all(seen["gpus"] > 0 and seen["gpu_hours"] > 0 for seen in told["incidents"])
    pages = [tmp_path / "report.html", tmp_path / "report.md"]
    done = nightshift(*arguments, *(f"--report={page}" for page in pages), config=config)
    assert done.returncode == 0, done.stderr
    for words in ("MISSED", "gpu_memory_leak told", "FALSE ALARMS", "dcgm-exporter's counters file"):
        assert words in done.stdout
    for page in pages:
        text = page.read_text()
        for words in (
            "GPU-hours affected",
            "GPU memory leak",
            "n1",
            "missed",
            "DCGM_FI_DEV_SM_CLOCK",
            "Blind spots",
        ):
            assert words in text, (page, words)
        assert "://" not in text, "a report loads nothing"


def test_the_reader_rests_as_long_as_the_server_worked(server: tuple[PrometheusServer, int]) -> None:
    """At a load of a quarter it rests three times what the queries took, one query at a time."""
    running, start_s = server
    rests: list[float] = []
    reader = RangeReader(
        PrometheusCollector.Settings(url=running.url), float(STEP_S), load=0.25, sleep=rests.append
    )
    ticks = list(reader.ticks(start_s, start_s + 3600.0, Inventory()))
    reader.close()
    assert len(ticks) == 61
    assert reader.reading.queries == len(rests)
    assert sum(rests) == pytest.approx(3.0 * reader.reading.busy_s, rel=1e-6)
    assert reader.reading.series["gpu_memory_used_bytes"] == 16
    assert reader.reading.series["gpu_sm_clock_mhz"] == 0
    gpus = ticks[30].frames[SubjectKind.GPU]
    assert gpus.value(Subject(SubjectKind.GPU, "GPU-n1-3"), "gpu_memory_used_bytes") == 40_000 * 2**20


def test_a_server_that_goes_away_leaves_gaps_that_are_told_and_no_health(
    server: tuple[PrometheusServer, int],
) -> None:
    """Nothing raises, every tick says that its source was lost, and the report names what was not read."""
    running, start_s = server
    reader = RangeReader(
        PrometheusCollector.Settings(url=running.url), float(STEP_S), load=1.0, sleep=lambda _: None
    )
    running.stop()
    ticks = list(reader.ticks(start_s, start_s + 600.0, Inventory()))
    with pytest.raises(SourceError):
        reader.matrix("up", start_s, start_s + 600.0, 60.0)
    reader.close()
    assert all(not tick.frames for tick in ticks)
    assert len(reader.reading.failed) > 10
    text = as_text(
        report([], [], False, (start_s, start_s + 600.0), 0, BudgetSettings(), [], ["x"] * 3), RangeCost()
    )
    assert "NOT READ (3 queries failed)" in text


def test_a_wrong_address_is_one_sentence() -> None:
    """No trace for a mistyped URL."""
    done = nightshift("lookback", "--prometheus", "nonsense", "--days", "1")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "nonsense" in done.stderr


def seen(opened_s: float, node: str, event: bool = False, pages: bool = True) -> PastSighting:
    finding = Finding(
        "straggler",
        Fault.STRAGGLER,
        Subject(SubjectKind.GPU, "GPU-1"),
        State.FIRING,
        Instant(opened_s),
        Instant(opened_s),
        Severity.WARNING,
        "slow",
        2.0,
        1.0,
    )
    return PastSighting(opened_s, finding, (finding,), node, "", pages, event)


def test_what_counts_as_false_is_what_nothing_explains() -> None:
    """A page a day before a cordon is explained; an event and one that did not page are not counted."""
    day = 86400.0
    found = [
        seen(10 * day - 3600, "n1"),
        seen(5 * day, "n1"),
        seen(6 * day, "n2", event=True),
        seen(7 * day, "n3", pages=False),
    ]
    own = [OwnEvent("cordoned", "n1.example", 10 * day), OwnEvent("not ready", "n9", 3 * day)]
    told = report(found, own, True, (0.0, 14 * day), 8, BudgetSettings(), [], [])
    assert told.unexplained == (found[1],)
    assert told.per_week == 0.5
    assert told.interval[0] < 0.5 < told.interval[1]
    assert [e.node for e in told.missed] == ["n9"]
    assert told.warned[0].lead_s == 3600


def test_a_state_that_was_set_before_the_range_is_no_event_of_it() -> None:
    above = np.where([[True, False], [True, True], [False, True], [True, True]], 0.5, -0.5)
    events = own_events("cordoned", ["a", "b"], [0.0, 60.0, 120.0, 180.0], above.tolist())
    assert [(e.node, e.at_s) for e in events] == [("b", 60.0), ("a", 180.0)]
    assert same_node("n1", "n1.example.org")
    assert not same_node("n1", "n11")
    assert not same_node("", "")


def test_names_from_outside_are_text_in_a_report() -> None:
    """A pod may be called anything: no name ends a table's cell, begins markup, or is run by a browser."""
    odd = "a|b <script>alert(1)</script> [x](http://evil) `c`"
    one = replace(seen(60.0, odd), job=odd)
    one = replace(one, cause=replace(one.cause, summary=odd))
    made = report([one], [OwnEvent("cordoned", odd, 60.0)], True, (0.0, 86_400.0), 8, BudgetSettings(), [], [odd])
    assert "<script>" not in lookback_pages.as_html(made, RangeCost(), odd)
    lines = lookback_pages.as_markdown(made, RangeCost(), odd).splitlines()
    rows = [line for line in lines if "alert" in line]
    assert len(rows) == 4
    assert all("\\<script" in row and "\\[x]" in row for row in rows)
    assert [row.replace("\\|", "").count("|") for row in rows] == [0, 8, 5, 2]


def test_every_detector_says_what_it_needs() -> None:
    """A detector without an entry would be called sighted; every signal has a way to enable it."""
    assert {kind.plugin for kind in ALL} == set(NEEDS) | set(LOGS)
    blind = blind_signals({need: 0 for needs in NEEDS.values() for need in needs}, False)
    assert {b.signal for b in blind_signals({}, None)} == set(LOGS.values()) - {
        LOGS["source"]
    }  # not read, not blind
    assert {need for needs in NEEDS.values() for need in needs} < {b.signal for b in blind}
    assert all(b.how and b.detectors for b in blind)
    assert look_back([], Inventory(), [], BudgetSettings()) == ([], 0, 0, [])


def test_every_alarm_is_an_incident_and_what_would_not_page_is_counted() -> None:
    """An unmeasured detector opens its incidents, as tickets. What cleared is judged once, a day later."""
    gpu, node = [Subject(SubjectKind.GPU, f"GPU-{n}") for n in range(12)], Subject(SubjectKind.NODE, "n1")
    inventory = Inventory()
    for one in gpu[:6]:
        inventory.observe(one, node, 0.0)

    class Rising:
        """Alarms on the next GPU every two hours, ever stronger."""

        name, faults = "rising", (Fault.ANOMALY,)
        stated = StatedRate(1.0, RateBasis.STATISTICAL, "nobody measured it")

        def update(self, tick: Tick, inventory: Inventory) -> list[Finding]:
            number, rest = divmod(tick.at_s, 7200.0)
            if rest or not 1 <= number <= len(gpu):
                return []
            at = Instant(tick.at_s)
            one = gpu[int(number) - 1]
            return [
                Finding("rising", Fault.ANOMALY, one, State.FIRING, at, at, Severity.WARNING, "odd", number, 1.0)
            ]

        def snapshot(self) -> bytes:
            return b""

        def restore(self, state: bytes) -> None:
            return None

    index = SeriesIndex(SubjectKind.GPU, tuple(gpu))
    empty = np.zeros(12, dtype=np.int64)
    ticks = [
        Tick(t, {SubjectKind.GPU: Frame(t, index, ("gpu_power_w",), np.ones((12, 1)), np.full((1, 1), t), empty)})
        for t in np.arange(0.0, 100_000.0, 1800.0).tolist()
    ]
    for own in ((), [OwnEvent("cordoned", "n1", 7200.0 * 6.5)]):
        seen, _, tickets, read_s = look_back(ticks, inventory, [Rising()], BudgetSettings(), own=own)
        assert (len(seen), tickets, len(read_s)) == (12, 12, len(ticks))
        assert not any(sighting.pages for sighting in seen)
    memory, (found,) = LookbackStore(), Rising().update(ticks[4], inventory)
    memory.take([found], inventory, 7200.0)
    memory.take([replace(found, state=State.CLEAR, at=Instant(9000.0))], inventory, 9000.0)
    judged = [[len(findings) for findings in memory.went_on(at_s)] for at_s in (90_000.0, 95_500.0, 99_000.0)]
    assert judged == [[], [1], []]
