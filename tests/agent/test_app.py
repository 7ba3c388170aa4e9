"""The daemon in one process: built twice, restarted, cut off from its store, reloaded, never blinded by a part."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psycopg
import pytest
import yaml

from nightshift.agent import app
from nightshift.agent.app import App
from nightshift.agent.approvals.policy import Role
from nightshift.agent.clock import SteppedClock, WallClock
from nightshift.agent.config_file import ConfigError
from nightshift.agent.construct import build_actuators
from nightshift.agent.settings import Settings
from nightshift.agent.store.incident import IncidentState
from nightshift.collectors.base import Permanent
from nightshift.collectors.frame import Instant
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.controllers.action import ActionKind
from nightshift.detectors.base import Fault, Finding, Severity, State
from tests.agent.fleet import Exporter, values
from tests.kubernetes_api.server import ApiServer

START_S = 1_790_000_000.0
GPU = Subject(SubjectKind.GPU, "GPU-00000001-0000-0000-0000-000000000000")


class Scripted:
    """Fires while `firing`, then says clear once; fails while `broken`."""

    def __init__(self, name: str = "scripted") -> None:
        self.name = name
        self.faults = (Fault.ANOMALY,)
        self.firing = False
        self.broken = False
        self._since_s: float | None = None

    def update(self, tick: Tick, inventory: Inventory) -> list[Finding]:
        if self.broken:
            raise ZeroDivisionError("boom")
        if self.firing and self._since_s is None:
            self._since_s = tick.at_s
        if self._since_s is None:
            return []
        state, since_s = (State.FIRING if self.firing else State.CLEAR), self._since_s
        if not self.firing:
            self._since_s = None
        instants = Instant(since_s), Instant(tick.at_s)
        return [
            Finding(self.name, Fault.ANOMALY, GPU, state, *instants, Severity.WARNING, "something odd", 2.0, 1.0)
        ]

    def snapshot(self) -> bytes:
        return repr((self.firing, self._since_s)).encode()

    def restore(self, state: bytes) -> None:
        firing, _, since = state.decode().strip("()").partition(", ")
        self.firing, self._since_s = firing == "True", None if since == "None" else float(since)


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    exporter = Exporter()
    yield exporter
    exporter.close()


def build(folder: Path, exporter: Exporter, *detectors: Scripted, clock: SteppedClock | None = None) -> App:
    app = App(Settings(**values(folder / "state", exporter)), clock=clock or SteppedClock(START_S))
    app.detection.detectors = detectors  # type: ignore[assignment]
    return app


def step(app: App, looks: int = 1) -> None:
    for _ in range(looks):
        app.tick()
        app.clock.wait_until(app.clock.now_s() + app.settings.tick_s)


def test_an_app_is_built_and_torn_down_twice_and_takes_its_incidents_up(tmp_path: Path, exporter: Exporter) -> None:
    """The second App in the process finds the first one's incident and episode: one incident, then resolved."""
    clock = SteppedClock(START_S)
    for round_ in range(2):
        detector = Scripted()
        detector.firing = round_ == 0
        app = build(tmp_path, exporter, detector, clock=clock)
        app.start()
        step(app)
        if round_ == 1:
            assert detector.firing, "the kept state was given back"
            detector.firing = False
            step(app, 40)
            assert app.settle()
        rows = app.store.incidents()
        app.stop()
        assert [row.id for row in rows] == ["INC-1"]
    assert rows[0].state is IncidentState.RESOLVED


def test_it_runs_on_postgresql(tmp_path: Path, exporter: Exporter, postgres_url: str) -> None:
    """The same daemon with its store on a real server: an alarm becomes an incident, and the next App has it."""
    for round_ in range(2):
        detector = Scripted()
        detector.firing = True
        settings = Settings(**values(tmp_path / "state", exporter, store={"url": postgres_url}))
        app = App(settings, clock=SteppedClock(START_S + 10.0 * round_))
        app.detection.detectors = (detector,)
        app.start()
        look = app.tick()
        rows = app.store.incidents()
        app.stop()
        assert look is not None
        assert look.problem == ""
        assert [row.id for row in rows] == ["INC-1"]


def test_a_failing_detector_is_named_and_counted_and_the_others_go_on(tmp_path: Path, exporter: Exporter) -> None:
    """One detector raises at every look; the other's finding becomes an incident all the same."""
    good, bad = Scripted("good"), Scripted("bad")
    good.firing = bad.broken = True
    app = build(tmp_path, exporter, bad, good)
    app.start()
    look = app.tick()
    page = app.metrics_page().decode()
    app.stop()
    assert look is not None
    assert look.detected.failures == {"bad": "ZeroDivisionError: boom"}
    assert 'nightshift_detector_failures_total{detector="bad"} 1.0' in page
    assert 'nightshift_incidents{state="open"}' in page
    assert len(look.decisions) == 1


def test_what_is_found_while_the_store_is_locked_is_stored_afterwards(tmp_path: Path, exporter: Exporter) -> None:
    """Another process holds the database while an alarm starts and ends; both are in the incident later."""
    detector = Scripted()
    app = build(tmp_path, exporter, detector)
    app.store.database.engine.dispose()
    app.start()
    step(app)
    blocker = sqlite3.connect(tmp_path / "state/nightshift.db", isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    detector.firing = True
    look = app.tick()
    assert look is not None
    assert "lock" in look.problem
    assert "lock" in app.health().reasons[0]
    blocker.execute("ROLLBACK")
    blocker.close()
    app.clock.wait_until(app.clock.now_s() + 5)
    detector.firing = False
    step(app, 2)
    rows = app.store.incidents()
    ready = app.health().ready
    app.stop()
    assert ready
    assert [finding.state for row in rows for finding in row.findings] == [State.CLEAR]


@pytest.mark.full
def test_an_alarm_that_goes_on_through_a_locked_store_is_stored_once(tmp_path: Path, exporter: Exporter) -> None:
    """The incident has the onset at which the alarm began, not the time at which the store came back."""
    detector = Scripted()
    app = build(tmp_path, exporter, detector)
    app.start()
    blocker = sqlite3.connect(tmp_path / "state/nightshift.db", isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    detector.firing = True
    onset_s = app.clock.now_s()
    step(app)
    blocker.execute("ROLLBACK")
    blocker.close()
    step(app, 3)
    (row,) = app.store.incidents()
    app.stop()
    assert row.findings[0].since_s == onset_s


def test_a_source_that_dies_is_no_data_and_the_daemon_goes_on(tmp_path: Path, exporter: Exporter) -> None:
    """The exporter answers 500: the GPUs' values are missing, never their last ones, and the source says why."""
    app = build(tmp_path, exporter)
    app.start()
    step(app)
    exporter.down = True
    look = app.tick()
    app.stop()
    assert look is not None
    (status,) = look.tick.sources
    assert (status.ok, str(status.reason)) == (False, "http_status")
    frame = look.tick.frames.get(SubjectKind.GPU)
    assert (
        frame is None
        or frame.column("gpu_memory_used_bytes").size == 0
        or bool((frame.column("gpu_memory_used_bytes") != frame.column("gpu_memory_used_bytes")).all())
    )


def test_a_second_daemon_on_the_same_file_is_refused_by_name(tmp_path: Path, exporter: Exporter) -> None:
    """SQLite has one daemon; the second is told so and changes nothing."""
    first = build(tmp_path, exporter)
    first.start()
    second = build(tmp_path, exporter)
    with pytest.raises(Permanent):
        second.start()
    second.stop()
    step(first)
    assert first.health().ready
    first.stop()


def test_a_reload_keeps_what_did_not_change_and_refuses_what_needs_a_restart(
    tmp_path: Path, exporter: Exporter
) -> None:
    """A new source joins, the old one keeps its collector; a new store URL is refused and nothing changes."""
    other = Exporter(gpus=1)
    app = App(Settings(**values(tmp_path / "state", exporter)), clock=SteppedClock(START_S))
    app.start()
    app.tick()
    (kept,) = app.collection.collectors
    with pytest.raises(ConfigError, match="store: a change of this needs a restart"):
        app.reload(Settings(**values(tmp_path / "state", exporter, store={"url": f"sqlite:///{tmp_path}/x.db"})))
    assert b"nightshift_config_last_reload_successful 0.0" in app.metrics_page()
    app.reload(Settings(**values(tmp_path / "state", other, exporter, detectors={"disabled": ["hang"]})))
    app.run(lambda: app.shut_down() if len(app.collection) == 2 else None)
    now = app.collection.collectors
    names = {detector.name for detector in app.detection.detectors}
    page = app.metrics_page()
    app.stop()
    other.close()
    assert now[1] is kept
    assert now[0] is not kept
    assert "hang" not in names
    assert b"nightshift_config_last_reload_successful 1.0" in page


def test_people_and_teams_are_taken_up_without_a_restart(tmp_path: Path, exporter: Exporter) -> None:
    """The gate and the console ask the same directory; a first team closes the console to whom nobody knows."""
    app = App(Settings(**values(tmp_path / "state", exporter)), clock=SteppedClock(START_S))
    app.start()
    try:
        app.tick()
        assert app.server is not None
        assert httpx.get(app.server.url).status_code == 200
        team = {"team": "ml", "namespaces": ["ml"], "approvers": ["ann@example.org"]}
        app.reload(Settings(**values(tmp_path / "state", exporter, people={"owners": [team]})))
        app.run(lambda: app.shut_down() if app.directory.has_tenants else None)
        assert app.directory.person("ann@example.org", "slack").may(Role.APPROVER, ["ml"])
        assert httpx.get(app.server.url).status_code == 303
    finally:
        app.stop()


def test_no_source_and_no_gpu_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a driver is told to name sources, not shown a traceback."""
    monkeypatch.setattr("nightshift.agent.construct.NVML_LIBRARY", "libabsent.so.1")
    with pytest.raises(Permanent, match="name `sources`"):
        App(Settings(state_dir=tmp_path, console={"port": 0}))  # type: ignore[arg-type]


def test_a_clock_that_is_set_back_during_a_look_does_not_stop_the_looks(tmp_path: Path, exporter: Exporter) -> None:
    """As by a virtual machine that resumes, or by NTP: the next look comes a tick later, not an hour."""
    waits: list[float] = []

    class Corrected(SteppedClock):
        def wait_until(self, t_s: float) -> bool:
            waits.append(t_s - self.now_s())
            return super().wait_until(t_s)

    clock = Corrected(START_S)
    app = build(tmp_path, exporter, clock=clock)
    app.start()

    def between_looks() -> None:
        if len(waits) == 2:
            clock._now_s -= 3600.0
        if len(waits) == 5:
            app.shut_down()

    app.run(between_looks)
    app.stop()
    assert max(waits) <= app.settings.tick_s


@pytest.mark.full
def test_a_leader_whose_store_is_away_says_so_though_nothing_is_found(
    tmp_path: Path, exporter: Exporter, postgres_url: str
) -> None:
    """It goes on looking, and is neither ready nor a standby of another; ready again once the store is back."""
    server, _, name = postgres_url.replace("+psycopg", "").rpartition("/")
    app = App(Settings(**values(tmp_path / "state", exporter, store={"url": postgres_url})))
    app.lifecycle.start()
    assert app.tick() is not None
    assert app.health().ready
    with psycopg.connect(f"{server}/postgres", autocommit=True) as admin:
        admin.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')  # type: ignore[arg-type]
        admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,))
        app.lifecycle._leadership.abandon()
        assert app.tick() is not None
        assert not app.health().ready
        assert "not currently accepting connections" in app.health().reasons[0]
        admin.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')  # type: ignore[arg-type]
    deadline = time.monotonic() + 100
    while not (app.tick() and app.health().ready):
        assert time.monotonic() < deadline, app.health().reasons
        time.sleep(0.1)
    app.stop()


def test_a_configured_cluster_for_kernel_searches_is_where_they_run(tmp_path: Path) -> None:
    """An approved search began nowhere while the actuator came wrapped for racks, and nothing said so."""
    config = tmp_path / "kubeconfig"
    config.write_text(yaml.safe_dump(ApiServer().kubeconfig()))
    given = {
        "kubernetes": {"own": {"kubeconfig": str(config)}},
        "actuators": [
            {"type": "kubernetes", "access": "own"},
            {"type": "kubernetes_kernels", "access": "own", "image": "i", "namespace": "n", "signer_secret": "s"},
        ],
    }
    made = build_actuators(Settings(**given).actuators, WallClock())  # type: ignore[arg-type]
    assert app._searches_at(made) is made[1]
    assert app._searches_at(made[:1]) is None
    assert ActionKind.DRAIN_RACK in made[0].kinds()
