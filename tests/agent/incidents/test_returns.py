"""A GPU that left for its vendor is followed until another unit in its slot takes work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa

from nightshift.agent.incidents.coming_back import ComingBack, coming_back
from nightshift.agent.incidents.returns import BY_PERSON, BY_PROBE, DAY_S, Returns, cases, days_out
from nightshift.agent.incidents.vendor_evidence import VendorEvidence
from nightshift.agent.store.incident import Incident
from nightshift.agent.store.intents import end_intent, store_intent
from nightshift.agent.store.records import dump
from nightshift.agent.store.tables import plans, returns
from nightshift.collectors.frame import Frame, SeriesIndex
from nightshift.collectors.history import History
from nightshift.collectors.subject import TAKES_WORK_SINCE, Subject, SubjectKind
from nightshift.controllers.action import Action, ActionKind, ActionOutcome, OutcomeStatus
from tests.agent.incidents import GPU, NODE, ManualClock, an_action
from tests.agent.incidents.test_vendor_evidence import Node
from tests.agent.lives import approved, opened, running
from tests.agent.world import World

NEW = Subject(SubjectKind.GPU, "GPU-new")


def quarantined(incident: Incident) -> Action:
    made = an_action(
        f"{incident.id}-{incident.attempt + 1}".lower(), ActionKind.QUARANTINE_GPU, GPU, expires_at_s=1e9
    )
    return replace(made, params={"node": NODE.name, "for_return": True})


class Telemetry(History):
    """What these GPUs send now."""

    def __init__(self, clock: ManualClock, *gpus: Subject) -> None:
        super().__init__()
        self.gpus, self._clock = gpus, clock

    def latest(self, kind: SubjectKind) -> Frame | None:
        now_s, n = self._clock.now_s(), len(self.gpus)
        index = SeriesIndex(SubjectKind.GPU, self.gpus)
        shape = np.ones((n, 1)), np.full((n, 1), now_s), np.zeros(n, np.int64)
        return Frame(now_s, index, ("gpu_power_w",), *shape)


@pytest.fixture
def world(sqlite_url: str, tmp_path: Path, clock: ManualClock) -> Iterator[World]:
    made = World(sqlite_url, tmp_path, clock, action=quarantined)
    made.actuator = Node(made.cluster.path, clock.now_s)
    made.inventory.describe(GPU, slot="0000:1b:00.0")
    made.inventory.describe(NODE, unschedulable="false", **{TAKES_WORK_SINCE: "1.0"})
    yield made
    made.store.close()


def out(world: World, clock: ManualClock) -> Returns:
    evidence = VendorEvidence(world.store, clock, lambda: [world.actuator], str)
    with running(world, evidence=evidence) as lifecycle:
        name = opened(world)
        lifecycle.wait_idle()
        approved(world, name)
        lifecycle.wait_idle()
    world.history = Telemetry(clock, GPU)
    followed = Returns(world.store.database, world.inventory, world.history)
    turn(world, clock, followed)
    return followed


def turn(world: World, clock: ManualClock, followed: Returns, days: float = 0.0) -> None:
    clock.advance(days * DAY_S + 61.0)
    followed.turn(clock.now_s())


def test_it_ends_with_another_unit_in_the_slot_of_a_node_that_takes_work(world: World, clock: ManualClock) -> None:
    followed = out(world, clock)
    with world.store.database.read() as connection:
        (case,) = cases(connection)
    assert (case.gpu, case.node, case.slot, case.vendor) == (GPU.name, NODE.name, "0000:1b:00.0", "Supermicro")
    assert case.serial == "1650123456789", "as the evidence has it: telemetry does not tell it here"
    assert case.back_s is None, "the API server has not said that the node takes work since"
    world.inventory.describe(NODE, unschedulable="true")
    world.inventory.observe(NEW, NODE, clock.now_s())
    world.inventory.describe(NEW, slot="0000:1b:00.0", serial="1650999")
    world.history.gpus = (NEW,)  # type: ignore[attr-defined]
    turn(world, clock, followed, days=9)
    with world.store.database.read() as connection:
        (case,) = cases(connection)
    assert (case.replaced_by, case.new_serial, case.back_s) == (NEW.name, "1650999", None)
    assert days_out([case], clock.now_s())["Supermicro", case.fault] == (1, 1, pytest.approx(9.0, abs=0.01))
    world.inventory.describe(NODE, unschedulable="false", **{TAKES_WORK_SINCE: str(clock.now_s())})
    turn(world, clock, followed, days=1)
    turn(world, clock, followed, days=30)
    with world.store.database.read() as connection:
        (case,) = cases(connection)
    assert case.days(clock.now_s()) == pytest.approx(10.0, abs=0.01)
    assert case.qualified_by == BY_PERSON


@pytest.mark.parametrize(("status", "by"), [(OutcomeStatus.DONE, BY_PROBE), (OutcomeStatus.FAILED, BY_PERSON)])
def test_a_probe_qualifies_where_it_passed(
    world: World, clock: ManualClock, status: OutcomeStatus, by: str
) -> None:
    followed = out(world, clock)
    clock.advance(DAY_S)
    probe = replace(an_action("inc-1-9", ActionKind.RETURN_NODE, NODE), params={"probe": "gpu"})
    row = {"incident": 1, "plan_sha256": probe.plan_sha256, "attempt": 9, "at_s": 0.0, "reason": "clear"}
    with world.store.database.write() as connection:
        connection.execute(sa.insert(plans).values(**row, body=dump(probe)))
        store_intent(connection, 1, probe, "act", clock.now_s(), "test")
        end_intent(connection, 1, probe, "act", ActionOutcome(status, "probe ran", clock.now_s()))
    world.inventory.describe(NODE, **{TAKES_WORK_SINCE: str(clock.now_s())})
    turn(world, clock, followed)
    with world.store.database.read() as connection:
        (case,) = cases(connection)
    assert (case.qualified_by, case.back_s) == (by, clock.now_s())


def test_a_slot_without_telemetry_is_not_back(world: World, clock: ManualClock) -> None:
    followed = out(world, clock)
    world.history.gpus = ()  # type: ignore[attr-defined]
    world.inventory.describe(NODE, **{TAKES_WORK_SINCE: str(clock.now_s())})
    turn(world, clock, followed, days=3)
    with world.store.database.read() as connection:
        (case,) = cases(connection)
    assert case.back_s is None
    world.history.gpus = (GPU,)  # type: ignore[attr-defined]  the same board came back
    turn(world, clock, followed)
    with world.store.database.read() as connection:
        (case,) = cases(connection)
    assert (case.replaced_by, case.back_s) == (None, clock.now_s())


def test_when_a_node_comes_back_is_told_by_how_long_others_with_its_fault_took(
    world: World, clock: ManualClock
) -> None:
    def told() -> list[ComingBack]:
        with world.store.database.read() as connection:
            return coming_back(connection, world.inventory, clock.now_s())

    out(world, clock)
    world.inventory.describe(NODE, unschedulable="true")
    (first,) = told()
    assert (first.node, first.kind, first.at_s) == (NODE.name, ActionKind.QUARANTINE_GPU, None)
    with world.store.database.write() as connection:
        (case,) = cases(connection)
        for number, days in enumerate((2, 9, 40)):
            ended = {"gpu": f"other-{number}", "node": "n9", "slot": "", "vendor": "", "fault": case.fault}
            ended |= {"out_s": case.out_s - 50 * DAY_S, "back_s": case.out_s - (50 - days) * DAY_S}
            connection.execute(sa.insert(returns).values(incident=case.incident, **ended))
    (later,) = told()
    assert later.at_s == pytest.approx(case.out_s + 9 * DAY_S)
    world.inventory.describe(NODE, unschedulable="false")
    assert told() == []
