"""Sources that answer and say less than they seem to: frozen exporters, partial answers, pages of pods."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
import pytest

from nightshift.collectors.frame import Frame, Reason, SeriesIndex, SourceStatus
from nightshift.collectors.prometheus.live import PrometheusCollector
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.telemetry.dcgm_exporter import DcgmExporterCollector
from nightshift.collectors.telemetry.standstill import FROZEN_S, FROZEN_WITHOUT_ENERGY_S, Standstill
from nightshift.collectors.tick import Tick
from nightshift.detectors.base import Severity, State
from nightshift.detectors.source_lost import SourceLost
from tests.collectors.test_prometheus import Api

START_S = 1_795_266_000.0
GPUS = tuple(Subject(SubjectKind.GPU, f"GPU-{number}") for number in range(4))
COLUMNS = ("gpu_energy_j", "gpu_power_w", "gpu_temperature_c")


def frame(at_s: float, rows: list[list[float]], gpus: tuple[Subject, ...] = GPUS) -> Frame:
    index = SeriesIndex(SubjectKind.GPU, gpus)
    return Frame(at_s, index, COLUMNS, np.array(rows), np.array([[at_s]]), np.zeros(len(gpus), np.int64))


@pytest.mark.parametrize("seed", range(4))
def test_only_an_exporter_all_of_whose_gpus_stand_still_is_frozen(seed: int) -> None:
    """One GPU of two that moves, in any of its values, shows that the exporter measures."""
    draw, of = random.Random(seed), Standstill()
    groups = {"a": GPUS[:2], "b": GPUS[2:]}
    rows = [[draw.uniform(1e3, 1e6), draw.uniform(60, 700), draw.randrange(30, 80)] for _ in GPUS]
    column, found = draw.randrange(3), {}
    for number in range(60):
        rows[3][column] += draw.choice([-0.5, 0.5])
        found = of.frozen_s(frame(START_S + 15.0 * number, rows), groups)
        assert "b" not in found
        assert ("a" in found) is (15.0 * number >= FROZEN_S)
    # rows that move with the fleet keep what they showed, and one new value ends it
    order = draw.sample(range(4), 4)
    moved = frame(START_S + 900.0, [rows[n] for n in order], tuple(GPUS[n] for n in order))
    assert list(of.frozen_s(moved, groups)) == ["a"]
    rows[0][0] += 1.0
    assert of.frozen_s(frame(START_S + 915.0, rows), groups) == {}


def test_without_energy_it_takes_an_hour_and_without_values_nothing_is_said() -> None:
    of, groups, nan = Standstill(), {"a": GPUS[:1]}, float("nan")
    quiet = [[nan, 68.1, 31.0], *[[nan] * 3] * 3]
    told = [bool(of.frozen_s(frame(START_S + 60.0 * n, quiet), groups)) for n in range(70)]
    assert told == [60.0 * n >= FROZEN_WITHOUT_ENERGY_S for n in range(70)]
    assert Standstill().frozen_s(frame(START_S, [[nan] * 3] * 4), groups) == {}


def page(energy: float, host: str = "n1", more: str = "") -> bytes:
    labels = f'UUID="GPU-1",gpu="0",Hostname="{host}"{more}'
    return (
        f"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{{labels}}} {energy}\nDCGM_FI_DEV_POWER_USAGE{{{labels}}} 300\n"
    ).encode()


@pytest.fixture
def pages(opened: Any, page_server: Any) -> Callable[[float, bytes], SourceStatus]:
    of = opened(DcgmExporterCollector(DcgmExporterCollector.Settings(urls=[page_server.at("/m")])))
    known = Inventory()

    def take(at_s: float, text: bytes) -> SourceStatus:
        page_server.pages["/m"] = text
        batch = of.collect(at_s, known, 30.0)
        (status,) = batch.sources
        take.power = batch.frames[0].column("gpu_power_w").tolist()  # type: ignore[attr-defined]
        return status  # type: ignore[no-any-return]

    return take


def test_a_frozen_page_is_stale_has_no_values_and_becomes_an_incident(pages: Any) -> None:
    detector, said = SourceLost(), []
    for number in range(16):
        at_s = START_S + 60.0 * number
        status = pages(at_s, page(5_000.0))
        said += detector.update(Tick(at_s, sources=(status,)), Inventory())
    assert (status.ok, status.reason) == (False, Reason.STALE)
    assert "have not changed for" in status.detail
    assert np.isnan(pages.power).all()
    assert {finding.state for finding in said} == {State.FIRING}
    assert pages(START_S + 1000.0, page(6_000.0)).ok
    assert pages.power == [300.0]


@pytest.mark.parametrize(
    ("host", "more", "words"),
    [
        ("dcgm-exporter-6ldcb", "", "the exporter's own pod"),
        ("nvidia-dcgm-exporter-x7w2k", "", "the exporter's own pod"),
        ("n1", ',dra_claim_name="c"', "idle GPUs are not watched"),
        ("gpu-exporter-host", "", ""),
        ("n1", "", ""),
    ],
)
def test_what_a_page_leaves_out_is_said_by_status_and_incident(
    pages: Any, host: str, more: str, words: str
) -> None:
    detector = SourceLost()
    findings = []
    for number in range(4):
        at_s = START_S + 60.0 * number
        status = pages(at_s, page(5_000.0 + number, host, more))
        assert status.ok
        findings = detector.update(Tick(at_s, sources=(status,)), Inventory())
    assert words in status.detail
    assert bool(findings) is bool(words)
    if words:
        assert findings[0].severity is Severity.INFO
        assert words in findings[0].summary
        after = SourceLost()
        after.restore(detector.snapshot())
        well = pages(START_S + 400.0, page(9_000.0))
        (ended,) = after.update(Tick(START_S + 400.0, sources=(well,)), Inventory())
        assert ended.state is State.CLEAR


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"isPartial": True}, "a storage node is unavailable"),
        ({"isPartial": False}, ""),
        ({"warnings": ["No StoreAPIs matched for this query"]}, "No StoreAPIs matched"),
        ({"warnings": ["PromQL info: metric might not be a counter"]}, ""),
    ],
)
def test_a_partial_answer_is_used_and_said(
    page_server: Any, opened: Any, extra: dict[str, Any], words: str
) -> None:
    """VictoriaMetrics and Thanos answer without the stores that are away; remarks on a query are none."""
    row = {"metric": {"UUID": "GPU-1"}, "value": [START_S, "300"]}

    def answered(query: str) -> bytes:
        rows = [row] if "POWER" in query else []
        return orjson.dumps({"status": "success"} | extra | {"data": {"resultType": "vector", "result": rows}})

    page_server.pages["/api/v1/query"] = Api(answered)
    settings = PrometheusCollector.Settings(
        url=page_server.url, kinds=["gpu"], metrics=["gpu_power_w"], at_clock=True
    )
    batch = opened(PrometheusCollector(settings)).collect(START_S, Inventory(), 30.0)
    (status,) = batch.sources
    assert status.ok
    assert batch.frames[0].column("gpu_power_w").tolist() == [300.0]
    assert (words in status.partly, words in status.detail) == (True, True)
    assert bool(status.partly) is bool(words)
    assert (Reason.TRUNCATED in status.rejected) is bool(words)
