"""Alerts and silences of a real Alertmanager, and of one that lies."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nightshift.collectors.check import check_collect
from nightshift.collectors.frame import Reason
from nightshift.collectors.prometheus.alertmanager import AlertmanagerCollector
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from tests.processes import await_answer, end, free_port

NOW = 1_795_260_000.0


def stamp(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


@contextmanager
def running(tmp_path: Path) -> Iterator[str]:
    """Debian's prometheus-alertmanager, alone, with the configuration `am.yml` of a folder."""
    program = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
    if program is None:
        if os.environ.get("CI"):
            pytest.fail("prometheus-alertmanager is not installed")
        pytest.skip("prometheus-alertmanager is not installed")
    url = f"http://127.0.0.1:{free_port()}"
    command = [
        program,
        f"--config.file={tmp_path / 'am.yml'}",
        f"--storage.path={tmp_path / 'data'}",
        f"--web.listen-address={url.removeprefix('http://')}",
        "--cluster.listen-address=",
    ]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        await_answer(f"{url}/-/ready", process)
        yield url
    finally:
        end(process)


@pytest.fixture
def alertmanager(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "am.yml").write_text("route: {receiver: none}\nreceivers: [{name: none}]\n")
    with running(tmp_path) as url:
        yield url


def post(url: str, alerts: list[dict[str, Any]]) -> None:
    httpx.post(f"{url}/api/v2/alerts", json=alerts).raise_for_status()


def test_a_real_alertmanagers_alerts_and_silences_are_told(alertmanager: str, opened: Any) -> None:
    """Who each is about, that one is silenced and by whom, and once when each begins and ends."""
    hot = {"alertname": "GpuHot", "UUID": "GPU-1", "Hostname": "n1", "severity": "critical"}
    slow = {"alertname": "SlowDisk", "instance": "n2:9100"}
    begun = stamp(-60)
    post(alertmanager, [{"labels": hot, "annotations": {"summary": "83 °C"}, "startsAt": begun}, {"labels": slow}])
    matcher = {"name": "alertname", "value": "Gpu.*", "isRegex": True, "isEqual": True}
    silence = {
        "matchers": [matcher],
        "startsAt": stamp(0),
        "endsAt": stamp(3600),
        "createdBy": "ann",
        "comment": "swap",
    }
    httpx.post(f"{alertmanager}/api/v2/silences", json=silence).raise_for_status()
    of = opened(AlertmanagerCollector(AlertmanagerCollector.Settings(url=alertmanager)))
    for _ in range(50):  # a silence is applied to alerts within moments
        if httpx.get(f"{alertmanager}/api/v2/alerts?silenced=true&active=false").json():
            break
        time.sleep(0.1)
    batch = check_collect(of, time.time(), Inventory(), 30.0, expect_ok=True)
    alerts = {alert.name: alert for alert in batch.alerts}
    assert alerts["GpuHot"].subject == Subject(SubjectKind.GPU, "GPU-1")
    assert alerts["GpuHot"].since_s == pytest.approx(datetime.fromisoformat(begun).timestamp(), abs=0.01)
    assert alerts["SlowDisk"].subject == Subject(SubjectKind.NODE, "n2")
    (found,) = batch.silences
    assert (found.matchers, found.by, found.comment) == (('alertname=~"Gpu.*"',), "ann", "swap")
    assert alerts["GpuHot"].silenced_by == (found.id,)
    assert alerts["GpuHot"].is_quiet
    assert not alerts["SlowDisk"].is_quiet
    assert {r.text for r in batch.logs} == {
        "alert GpuHot firing (silenced) severity=critical: 83 °C",
        "alert SlowDisk firing severity=none: ",
    }
    assert check_collect(of, time.time(), Inventory(), 30.0).logs == []
    post(alertmanager, [{"labels": hot, "startsAt": begun, "endsAt": stamp(-1)}])
    ended = check_collect(of, time.time(), Inventory(), 30.0)
    assert [r.text.split(":")[0] for r in ended.logs] == ["alert GpuHot resolved (silenced) severity=critical"]
    assert [alert.name for alert in ended.alerts] == ["SlowDisk"]


def test_matchers_are_passed_on(alertmanager: str, opened: Any) -> None:
    post(
        alertmanager, [{"labels": {"alertname": "A", "team": "gpu"}}, {"labels": {"alertname": "B", "team": "web"}}]
    )
    of = opened(AlertmanagerCollector(AlertmanagerCollector.Settings(url=alertmanager, matchers=['team="gpu"'])))
    assert [alert.name for alert in check_collect(of, time.time(), Inventory(), 30.0).alerts] == ["A"]


@pytest.fixture
def lying(opened: Any, page_server: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    page_server.pages["/api/v2/silences"] = b"[]"
    monkeypatch.setattr("nightshift.collectors.prometheus.alertmanager.MAX_ALERTS", 10)
    of = opened(AlertmanagerCollector(AlertmanagerCollector.Settings(url=page_server.url)))
    return page_server, of


GOOD = {
    "labels": {"alertname": "A", "node": "n1"},
    "annotations": {},
    "fingerprint": "f",
    "startsAt": "2026-11-21T17:00:00.000Z",
    "endsAt": "2026-11-21T18:00:00.000Z",
    "status": {"silencedBy": [], "inhibitedBy": [], "state": "active"},
}


def test_hostile_labels_are_bounded_and_wrong_rows_counted(lying: Any) -> None:
    """A megabyte of a label, control characters, HTML, too many alerts, and rows that are none."""
    server, of = lying
    loud = GOOD | {
        "fingerprint": "loud",
        "labels": {"alertname": "<b>\x1b[31m", "node": "n1", "big": "x" * 1_000_000},
        "annotations": {"summary": "y" * 1_000_000},
    }
    rows: list[Any] = [loud, 7, {}, GOOD | {"startsAt": "yesterday"}, GOOD | {"labels": {"alertname": 7}}]
    rows += [GOOD | {"fingerprint": str(n)} for n in range(20)]
    server.pages["/api/v2/alerts"] = json.dumps(rows).encode()
    batch = check_collect(of, NOW, Inventory(), 30.0)
    assert batch.sources[0].rejected == {Reason.MALFORMED: 4, Reason.TOO_LARGE: 15}
    first = batch.alerts[0]
    assert first.name == "<b> [31m"
    assert max(len(value) for value in first.labels.values()) <= 200
    assert all(len(record.text) < 1_000 and record.text.isprintable() for record in batch.logs)


@pytest.mark.parametrize("body", [b"{}", b"nope", b"[1", b"\xff\xfe"])
def test_an_answer_that_is_no_list_is_a_reason(lying: Any, body: bytes) -> None:
    server, of = lying
    server.pages["/api/v2/alerts"] = body
    (status,) = check_collect(of, NOW, Inventory(), 30.0, expect_ok=False).sources
    assert status.reason is Reason.MALFORMED


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(list(GOOD)), inner, max_size=4),
    max_leaves=8,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(changes=st.dictionaries(st.sampled_from(list(GOOD)), JSON, max_size=3))
def test_a_fuzzed_alert_never_raises(lying: Any, changes: dict[str, Any]) -> None:
    server, of = lying
    server.pages["/api/v2/alerts"] = json.dumps([GOOD | changes]).encode()
    server.pages["/api/v2/silences"] = json.dumps([changes]).encode()
    check_collect(of, NOW, Inventory(), 30.0)


def test_a_faulty_alertmanager_is_told(
    opened: Any, faulty: tuple[Any, str, set[str], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nightshift.collectors.prometheus.alertmanager.MAX_BYTES", 100_000)
    served, path, reasons, timeout_s = faulty
    for api in ("alerts", "silences"):
        if path in served.pages:
            served.pages[f"{path}/api/v2/{api}"] = served.pages[path]
    at = AlertmanagerCollector.Settings(url=served.at(path))
    (status,) = check_collect(
        opened(AlertmanagerCollector(at)), NOW, Inventory(), timeout_s, expect_ok=False
    ).sources
    assert str(status.reason) in reasons | {"malformed"}
