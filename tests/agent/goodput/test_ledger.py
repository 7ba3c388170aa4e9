"""The books over a store: they balance, survive restarts, and put what the daemon knows into the right account."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from nightshift.agent.clock import SteppedClock
from nightshift.agent.goodput.accounts import Account
from nightshift.agent.goodput.ledger import HOUR_S, GoodputLedger
from nightshift.agent.goodput.sums import DAY_S, team_of, thin_out, totals
from nightshift.agent.store.archive import number_of
from nightshift.agent.store.incident_store import Store
from nightshift.agent.store.intents import end_intent, store_intent
from nightshift.agent.store.records import dump
from nightshift.agent.store.tables import goodput, plans
from nightshift.collectors.frame import Instant, LogRecord, StepSeries
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.controllers.action import ActionKind, ActionOutcome, OutcomeStatus
from nightshift.controllers.guard import MaintenanceWindow
from nightshift.detectors.base import Fault, Finding, Severity, State
from nightshift.detectors.contract.testing import JOB, NODE, frame, gpu, inventory, steps, tick
from tests.agent.incidents import an_action

START_S = 1_790_006_400.0
BUSY = {"gpu_utilization_percent": 97.0, "gpu_memory_used_bytes": 6e10, "gpu_tensor_active_ratio": 0.3}
IDLE = {**BUSY, "gpu_utilization_percent": 0.0}
GPUS = 8


class Scene:
    """One node of eight GPUs that a job holds from the start on, a store and the ledger."""

    def __init__(self, folder: Path, known: Inventory | None = None) -> None:
        self.clock = SteppedClock(START_S)
        self.inventory = known or inventory()
        self.store = Store(f"sqlite:///{folder}/goodput.db", self.clock, inventory=self.inventory)
        self.windows: tuple[MaintenanceWindow, ...] = ()
        self.ledger = self.begun()

    def begun(self) -> GoodputLedger:
        ledger = GoodputLedger(self.store, self.inventory, lambda: self.windows)
        ledger.resume()
        return ledger

    def run(
        self,
        until_s: float,
        series: Callable[[float], Sequence[StepSeries]] = lambda at_s: (),
        rows: dict[str, float] | None = BUSY,
        lines: Callable[[float], Sequence[str]] = lambda at_s: (),
    ) -> None:
        """Looks each 60 s up to a time after the start (s). rows: what each GPU shows; None: nothing is seen."""
        while self.clock.now_s() < START_S + until_s:
            self.clock.wait_until(self.clock.now_s() + 60.0)
            at_s = self.clock.now_s()
            seen = tick(at_s, dict.fromkeys(range(GPUS), rows) if rows else None, series=series(at_s - START_S))
            raw = [LogRecord(Instant(at_s), "log", JOB, text, 0) for text in lines(at_s - START_S)]
            self.ledger.look(replace(seen, raw=raw))
        self.ledger.turn(self.clock.now_s())

    def booked(self) -> dict[tuple[Account, str], float]:
        """(account, cause) → seconds of one GPU, of everything since the start."""
        with self.store.database.read() as connection:
            sums = totals(connection, START_S, self.clock.now_s())
        found: dict[tuple[Account, str], float] = {}
        for entry, spent in sums.items():
            key = (entry.account, entry.cause)
            found[key] = round(found.get(key, 0.0) + spent / GPUS, 3)
        return found

    def opened(self, fault: Fault, subject: Subject, since_s: float) -> str:
        made = Finding(
            "d", fault, subject, State.FIRING, Instant(START_S + since_s), Instant(self.clock.now_s()),
            Severity.CRITICAL, "s", 1.0, 0.5,
        )  # fmt: skip
        return self.store.open_incident("x", [made])


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.store.close()


def stepping(*spans: tuple[float, float], step_s: float = 10.0) -> Callable[[float], list[StepSeries]]:
    """Steps that end within these spans (s after the start), numbered on."""
    ends = [a + step_s * (n + 1) for a, b in spans for n in range(int((b - a) / step_s))]

    def at(now_s: float) -> list[StepSeries]:
        fresh = [n for n, end_s in enumerate(ends) if now_s - 60 < end_s <= now_s]
        return (
            [steps(JOB, fresh[0], [START_S + ends[n] for n in fresh], {"loss": [1.0] * len(fresh)})]
            if fresh
            else []
        )

    return at


def test_a_hang_is_booked_with_the_cause_of_its_incident(scene: Scene) -> None:
    series = stepping((300, 1500), (2400, 4000))
    scene.run(1800, series)
    scene.opened(Fault.HANG, JOB, 1500)
    scene.run(4000, series)
    booked = scene.booked()
    assert booked[Account.INITIALISING, ""] == 300
    assert booked[Account.HUNG, "hang"] == 900
    assert booked[Account.UNATTRIBUTED, ""] == pytest.approx(2800, abs=21)
    assert sum(booked.values()) == pytest.approx(scene.clock.now_s() - START_S)


def test_a_restart_loses_nothing_that_was_booked_or_taken_in(scene: Scene) -> None:
    series = stepping((300, 7000))
    scene.run(4000, series)
    before = scene.booked()
    scene.ledger.keep()
    scene.ledger = scene.begun()
    assert scene.booked() == before
    scene.run(7000, series)
    booked = scene.booked()
    assert set(booked) == {(Account.INITIALISING, ""), (Account.UNATTRIBUTED, ""), (Account.UNEXPLAINED, "")}
    assert booked[Account.UNATTRIBUTED, ""] == pytest.approx(6700, abs=11)


def test_the_same_turn_twice_changes_nothing(scene: Scene) -> None:
    scene.run(4000, stepping((300, 3900)))
    before = scene.booked()
    scene.ledger.turn(scene.clock.now_s())
    assert scene.booked() == before


def test_a_broken_state_is_refused_and_the_ledger_begins_anew(scene: Scene) -> None:
    scene.store.keep({"goodput/signals": b"no such thing"})
    scene.ledger = scene.begun()
    scene.run(600, stepping((60, 600)))
    assert sum(scene.booked().values()) == pytest.approx(600)


def test_a_job_without_steps_is_never_productive(scene: Scene) -> None:
    scene.run(1800)
    scene.run(3600, rows=IDLE)
    booked = scene.booked()
    assert booked[Account.NO_STEPS, ""] == pytest.approx(1800, abs=61)
    assert booked[Account.IDLE_HELD, ""] == pytest.approx(1800, abs=61)


def test_gpus_that_are_not_seen_are_not_free(tmp_path: Path) -> None:
    known = Inventory()
    for number in range(GPUS):
        known.observe(gpu(number), NODE, START_S - 60)
    scene = Scene(tmp_path, known)
    scene.run(600)
    scene.run(1800, rows=None)
    scene.run(2400)
    assert scene.booked() == {(Account.FREE, ""): 1140.0, (Account.UNOBSERVED, ""): 1260.0}
    scene.store.close()


def test_a_cordon_by_a_person_and_a_window_are_maintenance(tmp_path: Path) -> None:
    known = Inventory()
    for number in range(GPUS):
        known.observe(gpu(number), NODE, START_S - 60)
    scene = Scene(tmp_path, known)
    window = MaintenanceWindow(subjects=("node:n1",), start_s=START_S + 1200, end_s=START_S + 1800, owner="ada")
    scene.windows = (window,)
    scene.run(600)
    known.describe(NODE, unschedulable="true")
    scene.run(900)
    known.describe(NODE, unschedulable="false")
    scene.run(2400)
    booked = scene.booked()
    assert booked[Account.MAINTENANCE, "window"] == pytest.approx(600, abs=61)
    assert booked[Account.MAINTENANCE, "cordoned"] == pytest.approx(300, abs=61)
    scene.store.close()


def test_our_own_repair_is_in_repair_until_the_node_takes_work_again(tmp_path: Path) -> None:
    known = Inventory()
    for number in range(GPUS):
        known.observe(gpu(number), NODE, START_S - 60)
    scene = Scene(tmp_path, known)
    scene.run(600)
    name = scene.opened(Fault.XID, NODE, 300)
    scene.run(1200)
    action = an_action(f"{name.lower()}-reboot", ActionKind.REBOOT_NODE, NODE)
    with scene.store.database.write() as connection:
        row = {"incident": number_of(name), "plan_sha256": action.plan_sha256, "attempt": 1, "at_s": 0.0}
        connection.execute(sa.insert(plans).values(**row, reason="", body=dump(action)))
        store_intent(connection, number_of(name), action, "act", scene.clock.now_s(), "r")
    scene.run(2400)
    with scene.store.database.write() as connection:
        done = ActionOutcome(OutcomeStatus.DONE, "", scene.clock.now_s())
        end_intent(connection, number_of(name), action, "act", done)
    (stored,) = scene.store.incident(name).findings
    clear = replace(stored.finding, state=State.CLEAR, at=Instant(scene.clock.now_s()))
    scene.store.update_finding(name, clear)
    scene.run(3000)
    booked = scene.booked()
    assert booked[Account.UNHEALTHY, "xid"] == pytest.approx(900, abs=1)
    assert booked[Account.IN_REPAIR, ""] == pytest.approx(1200, abs=1)
    assert booked[Account.FREE, ""] == pytest.approx(900, abs=1)
    scene.store.close()


def test_waiting_jobs_stand_beside_the_fleets_time(scene: Scene) -> None:
    pod, job = Subject(SubjectKind.POD, "ml/next-0"), Subject(SubjectKind.JOB, "ml/next")
    scene.inventory.observe(pod, job, START_S)
    scene.inventory.describe(pod, gpus="8")
    scene.run(1800, stepping((60, 1800)))
    booked = scene.booked()
    assert booked.pop((Account.QUEUED, "")) == pytest.approx(1500, abs=301)
    assert sum(booked.values()) == pytest.approx(1800)


def test_records_of_a_job_are_exact(scene: Scene) -> None:
    """Google's library's records alone: init, steps by their beginnings, a checkpoint."""

    def lines(now_s: float) -> list[str]:
        said: list[tuple[float, dict[str, object]]] = [(300.0 + 10 * n, {"step_count": n}) for n in range(160)]
        said = [(at, {**fields, "step_start_time": START_S + at}) for at, fields in said if not 900 < at < 950]
        kind = {"custom_badput_event_type": "checkpoint"}
        said += [(905.0, {**kind, "custom_badput_event_start_time": START_S + 905})]
        said += [(945.0, {**kind, "custom_badput_event_end_time": START_S + 945})]
        said += [(20.0, {"tpu_init_start_time": START_S + 20}), (200.0, {"tpu_init_end_time": START_S + 200})]
        return [json.dumps({"job_name": "x", **fields}) for at, fields in said if now_s - 60 < at <= now_s]

    scene.run(1800, lines=lines)
    booked = scene.booked()
    assert booked[Account.CHECKPOINTING, ""] == pytest.approx(40)
    assert booked[Account.INITIALISING, ""] == pytest.approx(300)
    assert booked[Account.UNATTRIBUTED, ""] == pytest.approx(1450, abs=25)


def test_steps_of_a_clock_that_is_ahead_are_moved_back(scene: Scene) -> None:
    ahead = stepping((300, 1500))

    def series(now_s: float) -> list[StepSeries]:
        return [replace(s, t_s=s.t_s + 3600.0) for s in ahead(now_s)]

    scene.run(2000, series)
    booked = scene.booked()
    assert booked[Account.UNATTRIBUTED, ""] == pytest.approx(1200, abs=31)
    assert sum(booked.values()) == pytest.approx(scene.clock.now_s() - START_S)


def test_an_elastic_job_is_booked_by_what_it_holds(scene: Scene) -> None:
    series = stepping((60, 3600))
    scene.run(1800, series)
    for number in range(4):
        scene.inventory.end(gpu(number), Subject(SubjectKind.POD, f"ml/train-{number}"), scene.clock.now_s())
    scene.run(3600, series)
    booked = scene.booked()
    assert booked[Account.FREE, ""] == pytest.approx(900, abs=1)
    assert booked[Account.UNATTRIBUTED, ""] == pytest.approx(1740 + 900, abs=11)


def test_mfu_is_refused_where_the_tensor_cores_say_otherwise(scene: Scene) -> None:
    scene.inventory.describe(gpu(0), model="NVIDIA H100 80GB HBM3")
    flops = 0.9 * 989.4e12 * GPUS * 10.0
    record = json.dumps({"job_name": "x", "flops_per_step": flops})
    scene.run(2400, stepping((60, 2400)), lines=lambda now_s: [record])
    found = scene.ledger.utilisation[JOB.name]
    assert found.stated == pytest.approx(0.9)
    assert "active 30 %" in found.refused


def test_old_hours_are_joined_to_days_and_nothing_is_lost(scene: Scene) -> None:
    scene.run(7200, stepping((60, 7200)))
    with scene.store.database.write() as connection:
        before = totals(connection, 0.0, scene.clock.now_s())
        thin_out(connection, START_S + 10 * DAY_S)
        spans = connection.execute(sa.select(goodput.c.span_s).distinct()).scalars().all()
        assert spans == [DAY_S]
        after = totals(connection, 0.0, scene.clock.now_s())
        assert after == pytest.approx(before)
        thin_out(connection, START_S + 500 * DAY_S)
        assert connection.execute(sa.select(goodput)).all() == []


def test_a_full_database_delays_the_books(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    from nightshift.agent.store.database import StoreFull

    def full(*_: object) -> None:
        raise StoreFull("no space")

    series = stepping((60, 1800))
    scene.run(600, series)
    monkeypatch.setattr(scene.store, "keep", full)
    scene.clock.wait_until(scene.clock.now_s() + 600)
    scene.ledger.look(Tick(scene.clock.now_s()))
    monkeypatch.undo()
    scene.run(1800)
    assert sum(scene.booked().values()) == pytest.approx(scene.clock.now_s() - START_S)


def test_a_jobs_team_is_its_namespace() -> None:
    assert team_of("ml/train") == "ml"
    assert team_of("") == ""


def test_a_frame_with_other_gpus_keeps_what_was_known(scene: Scene) -> None:
    scene.run(600)
    scene.ledger.signals.take(
        Tick(scene.clock.now_s() + 60, {SubjectKind.GPU: frame(scene.clock.now_s() + 60, {gpu(3): BUSY})}),
        scene.inventory,
    )
    assert scene.ledger.signals._states.subjects == (gpu(3),)
    assert HOUR_S == 3600.0
