"""A rack's node that vanishes: silence keeps the breaker open for ever, a deleted Node object only as long as its
leases can live."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import yaml

from nightshift.agent.control.power_absence import AbsentNodes
from nightshift.agent.control.power_interfaces import Around
from nightshift.collectors.base import Temporary
from nightshift.collectors.frame import Frame, SeriesIndex
from nightshift.collectors.kubernetes.api import AccessSettings
from nightshift.collectors.kubernetes.node_objects import NodeObjects
from nightshift.collectors.subject import SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.controllers.power.settings import PowerSettings
from nightshift.controllers.power.shield import LimitMemory
from tests.agent.control.test_power_loop import FALLBACK
from tests.agent.control.test_power_scarce import EASY, Rack
from tests.kubernetes_api.cluster import Cluster

LEASE_S, WINDOW_S = 90.0, 30.0


@dataclass
class Losing(Rack):
    """A rack whose nodes vanish from telemetry and from the cluster, each on its own."""

    unseen: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)
    away: bool = False
    room_w: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.loop._gone._standing = self.standing
        around: Around = self.loop._around
        around.gauge = lambda _rack, room_w, _open: self.room_w.append(room_w)

    def standing(self, names: Collection[str]) -> frozenset[str]:
        if self.away:
            raise Temporary("the API server is away")
        return frozenset(names) - self.deleted

    def tick(self) -> Tick:
        whole = super().tick()
        frame = whole.frames[SubjectKind.GPU]
        rows = [i for i, g in enumerate(frame.index.subjects) if self.cluster.node(g.name) not in self.unseen]
        index = SeriesIndex(SubjectKind.GPU, tuple(frame.index.subjects[i] for i in rows))
        values = np.column_stack([frame.column(name)[rows] for name in frame.columns])
        at = np.full((1, len(frame.columns)), self.now_s)
        seen = Frame(self.now_s, index, frame.columns, values, at, np.zeros(len(rows), dtype=np.int64))
        return Tick(self.now_s, {SubjectKind.GPU: seen}, whole.steps)

    @property
    def open(self) -> bool:
        return self.loop._racks.open("r", self.now_s)


def losing() -> Losing:
    """Both nodes work, and n1 has its lease; then its job ends."""
    rack = Losing()
    rack.start("team/a", range(4), EASY)
    rack.start("team/b", range(4, 8), EASY)
    rack.run(6)
    assert not rack.open
    assert "n1" in rack.cluster.sent[-1]
    rack.end("team/b")
    return rack


def test_a_deleted_node_counts_at_its_worst_until_its_lease_is_over_and_then_as_gone() -> None:
    """The breaker stays shut all along; no lease is sent to it from the turn on in which the API server says so; in
    the end its part of the budget is free."""
    rack = losing()
    rack.unseen.add("n1")
    rack.deleted.add("n1")
    rack.run(1)
    at_s, sent, room_w = rack.now_s, len(rack.cluster.sent), 0.0
    while rack.now_s - at_s < LEASE_S + WINDOW_S - WINDOW_S / 2:
        assert rack.loop._gone.draws_mw(rack.now_s)["n1"] >= 4 * FALLBACK
        assert not rack.open
        room_w = rack.room_w[-1]
        rack.run(1)
    assert rack.loop._gone.draws_mw(rack.now_s) == {"n1": 0.0}
    assert all("n1" not in leases for leases in rack.cluster.sent[sent:])
    assert rack.room_w[-1] >= room_w + 4 * FALLBACK / 1000.0
    assert not rack.open


@pytest.mark.parametrize(
    "why", ["its Node stands", "the API server is away", "nobody can be asked", "no such Node"]
)
def test_silence_alone_never_makes_a_node_gone(why: str) -> None:
    """As long as the API server has not said that a Node which stood is deleted, the rack's draw is not known and
    its breaker opens, and stays open."""
    rack = losing()
    rack.unseen.add("n1")
    if why == "the API server is away":
        rack.away = True
        rack.deleted.add("n1")
    elif why == "nobody can be asked":
        rack.loop._gone._standing = None
    elif why == "no such Node":
        rack.loop._gone._stood = frozenset({"n0"})
        rack.deleted.add("n1")
    rack.run(8)
    assert rack.loop._gone.nodes == frozenset()
    assert rack.open


def test_what_the_api_server_said_holds_while_it_is_away() -> None:
    rack = losing()
    rack.unseen.add("n1")
    rack.deleted.add("n1")
    rack.run(1)
    rack.away = True
    rack.run(8)
    assert rack.loop._gone.draws_mw(rack.now_s) == {"n1": 0.0}
    assert not rack.open


def test_a_node_that_returns_is_read_and_gets_leases_again() -> None:
    """Also one whose Node stands again and that telemetry does not show: it is silent then, not gone."""
    rack = losing()
    rack.unseen.add("n1")
    rack.deleted.add("n1")
    rack.run(7)
    rack.deleted.clear()
    rack.run(1)
    assert rack.loop._gone.nodes == frozenset()
    rack.unseen.clear()
    rack.start("team/b", range(4, 8), EASY)
    rack.run(3)
    assert "n1" in rack.cluster.sent[-1]


def test_the_daemon_that_leads_next_knows_which_nodes_are_gone() -> None:
    """It never saw the node itself: what was kept says that it stood, and since when it is deleted."""
    rack = losing()
    rack.unseen.add("n1")
    rack.deleted.add("n1")
    rack.run(7)
    after = Losing(unseen={"n1"}, deleted={"n1"}, now_s=rack.now_s, state=rack.state)
    after.start("team/a", range(4), EASY)
    after.run(4)
    assert after.loop._gone.draws_mw(after.now_s) == {"n1": 0.0}
    assert not after.open
    broken = Losing(state=[b'{"memory": {}, "gangs": {}, "gone": {"stood": 3}}'])
    broken.run(1)
    assert broken.loop._gone.nodes == frozenset()


def test_the_api_server_is_asked_for_just_the_silent_nodes(cluster: Cluster, tmp_path: Path) -> None:
    """A Node that stands, one that was deleted and one that never was, as a real API server tells them; and many at
    once."""
    stands, goes = cluster.node(), cluster.node()
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(cluster.kubeconfig))
    objects = NodeObjects(AccessSettings(kubeconfig=kubeconfig))
    assert objects.standing([stands, goes, "never"]) == {stands, goes}
    settings = PowerSettings(enabled=True, racks={"r": {"nodes": (stands, goes), "budget_w": 1000.0}})
    gone = AbsentNodes(settings, objects.standing)
    gone.look([], [], LimitMemory(), 0.0)
    cluster.core.delete_node(goes)
    gone.look([goes], [], LimitMemory(), 1.0)
    assert gone.nodes == {goes}
    assert np.isnan(gone.draws_mw(2.0)[goes]), "what it may draw was never seen, and its lease may live"
    assert gone.draws_mw(1.0 + LEASE_S + WINDOW_S) == {goes: 0.0}
    assert objects.standing([stands, goes, *(f"never-{i}" for i in range(20))]) == {stands}
