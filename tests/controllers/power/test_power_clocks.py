"""Clock locks under random faults: bounded, whole, read back, never over a person's, and no part of the budget."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from nightshift.collectors.base import Temporary
from nightshift.controllers.actuators.power_leases import PowerLeases, Range
from nightshift.controllers.power import clocks, shield
from nightshift.controllers.power.clock_curves import synthetic_clocks
from nightshift.controllers.power.curves import LEVELS
from nightshift.controllers.power.limits import DWELL_S, MARGIN_SHARE

TOP_MHZ, FALLBACK, MAX = 1980, 420_000, 700_000
GPUS = ("G0", "G1", "G2", "G3")
JOB = {"G0": "a/x", "G1": "a/x", "G2": "a/x", "G3": "b/y"}
LIMITS = shield.Settings()


@dataclass
class Card:
    """Busy GPUs of one node, whose clock is what was locked last, by whomever."""

    lock: dict[str, int | None] = field(default_factory=lambda: dict.fromkeys(GPUS))
    limit: dict[str, int] = field(default_factory=lambda: dict.fromkeys(GPUS, FALLBACK))
    heat: set[str] = field(default_factory=set)
    broken: bool = False

    def clock(self, uuid: str) -> int:
        return min(self.lock[uuid] or TOP_MHZ, 900 if uuid in self.heat else TOP_MHZ)

    def ranges(self) -> dict[str, Range]:
        return {u: Range(200_000, MAX, MAX, self.limit[u], TOP_MHZ, self.clock(u)) for u in GPUS}

    def set_limit(self, uuid: str, limit_mw: int) -> None:
        self.limit[uuid] = limit_mw

    def lock_clock(self, uuid: str, clock_mhz: int | None) -> None:
        if self.broken:
            raise Temporary(f"{uuid}: busy")
        self.lock[uuid] = clock_mhz


SHARE = st.one_of(st.none(), st.floats(0.0, 1.1), st.just(float("nan")))
EVENT = st.one_of(
    st.tuples(st.just("wish"), st.sampled_from(("a/x", "b/y")), SHARE),
    st.tuples(st.just("person"), st.sampled_from(GPUS), st.integers(400, TOP_MHZ)),
    st.tuples(st.just("heat"), st.sampled_from(GPUS), st.none()),
    st.tuples(st.just("cool"), st.none(), st.none()),
    st.tuples(st.just("break"), st.none(), st.none()),
    st.tuples(st.just("mend"), st.none(), st.none()),
    st.tuples(st.just("blind"), st.booleans(), st.none()),
    st.tuples(st.just("incident"), st.booleans(), st.none()),
    st.tuples(st.just("slowed"), st.sampled_from(("a/x", "b/y")), st.none()),
    st.tuples(st.just("silence"), st.integers(1, 5), st.none()),
    st.tuples(st.just("wait"), st.integers(1, 3), st.none()),
)


@dataclass
class World:
    card: Card = field(default_factory=Card)
    memory: clocks.ClockMemory = field(default_factory=clocks.ClockMemory)
    limits: shield.LimitMemory = field(
        default_factory=lambda: shield.LimitMemory(ordered_mw=dict.fromkeys(GPUS, MAX))
    )
    wishes: dict[str, float] = field(default_factory=lambda: {"a/x": 0.6, "b/y": 0.7})
    now_s: float = 1000.0
    read_s: float = 1000.0
    read: dict[str, int] = field(default_factory=dict)
    blind: bool = False
    incident: bool = False
    granted: bool = True
    by_hand: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.node = PowerLeases(self.card, FALLBACK)

    def seen(self) -> list[clocks.ClockReading]:
        if not self.blind:
            self.read, self.read_s = {u: self.card.clock(u) for u in GPUS}, self.now_s
        age_s = self.now_s - self.read_s
        return [
            clocks.ClockReading(
                shield.Gpu(u, "n0", "r", JOB[u], 200_000, MAX, MAX, FALLBACK, MAX, age_s, self.incident),
                TOP_MHZ, float(self.read[u]), float(self.read[u]), self.read_s, u in self.card.heat,
            )
            for u in GPUS
        ]  # fmt: skip

    def turn(self, silent: bool = False, given: frozenset[str] = frozenset()) -> clocks.ClockOrders:
        self.now_s += 30.0
        told = frozenset(self.node.status(self.now_s)["clocks_by_hand"])
        seen = self.seen()
        before = self.memory = clocks.observe(seen, self.memory, {"n0": self.granted}, told)
        before = clocks.give_back(before, [one.gpu for one in seen], given)
        orders = clocks.decide(seen, self.wishes, before, self.limits, self.now_s)
        check(orders, before, self)
        self.memory = orders.memory
        self.granted = False
        if not silent:
            lease = {
                "id": "p", "term": 1, "ttl_s": 90.0, "limits_mw": dict.fromkeys(GPUS, MAX),
                "clocks_mhz": dict(self.memory.ordered_mhz), "clocks_left": sorted(self.memory.manual),
            }  # fmt: skip
            with suppress(Temporary):
                self.node.grant(json.dumps(lease).encode(), self.now_s)
                self.granted = True
        with suppress(Temporary):  # it is owed, and tried again
            self.node.turn(self.now_s)
        return orders


def check(orders: clocks.ClockOrders, before: clocks.ClockMemory, w: World) -> None:
    assert not orders.changed_mhz.keys() & before.manual, "a person's clock is not ordered"
    assert not orders.memory.ordered_mhz.keys() & before.manual
    for uuid, mhz in orders.changed_mhz.items():
        present = before.ordered_mhz.get(uuid)
        locked = w.limits.locked_until_s.get(JOB[uuid], 0.0) > w.now_s
        if mhz is None:
            continue
        assert not locked, "a job that was slowed too much is not locked"
        assert not w.incident
        assert mhz >= int(clocks.FLOOR_SHARE * TOP_MHZ) - clocks.GRID_MHZ
        assert w.now_s - before.changed_s.get(uuid, -1e9) >= DWELL_S
        if mhz < (present or TOP_MHZ):
            assert (present or TOP_MHZ) - mhz <= clocks.STEP_SHARE * TOP_MHZ + clocks.GRID_MHZ, "bounded steps"
            assert present is None or uuid in before.confirmed, "read back before the next step"
    for job in ("a/x", "b/y"):
        mine = {orders.memory.ordered_mhz.get(u) for u in GPUS if JOB[u] == job and u not in before.manual}
        assert len(mine) <= 1, "a gang has one clock"


@settings(max_examples=150, deadline=None)
@given(st.lists(EVENT, max_size=20))
def test_whatever_happens_a_persons_clock_stays_and_without_an_agent_ours_are_free(
    events: list[tuple[str, object, object]],
) -> None:
    w, kept = World(), dict[str, int | None]()
    w.turn()
    for what, one, other in events:
        if what == "wish":
            w.wishes = {k: v for k, v in w.wishes.items() if k != one}
            if other is not None:
                w.wishes[str(one)] = float(other)  # type: ignore[arg-type]
        elif what == "person":
            w.by_hand[str(one)] = w.card.lock[str(one)] = int(other) // 2 * 2 + 1  # type: ignore[call-overload]
        elif what == "heat":
            w.card.heat.add(str(one))
        elif what == "cool":
            w.card.heat.clear()
        elif what in ("break", "mend"):
            w.card.broken = what == "break"
        elif what == "blind":
            w.blind = bool(one)
        elif what == "incident":
            w.incident = bool(one)
        elif what == "slowed":
            until = {**w.limits.locked_until_s, str(one): w.now_s + 300.0}
            w.limits = replace(w.limits, locked_until_s=until)
            w.turn()
            if w.limits.locked_until_s[str(one)] > w.now_s:
                assert not any(JOB[u] == one for u in w.memory.ordered_mhz), "freed at once, whatever the dwell"
        for _ in range(int(one) if what in ("silence", "wait") else 1):  # type: ignore[call-overload]
            w.turn(silent=what == "silence")
        kept = {**kept, str(one): w.card.lock[str(one)]} if what == "person" and one in kept else kept
        assert all(w.card.lock[uuid] == mhz for uuid, mhz in kept.items()), (
            "whose clock is a person's is not touched"
        )
        told = w.node.status(w.now_s)["clocks_by_hand"]  # what the node saw, or was told in time
        kept |= {uuid: w.card.lock[uuid] for uuid in told}
    seized = {u: w.card.lock[u] for u in w.memory.manual | set(w.node.status(w.now_s)["clocks_by_hand"])}
    w.turn(silent=True)
    w.card.broken = False
    w.node.turn(w.now_s + 91.0)  # nobody renewed
    for uuid in GPUS:
        if uuid in seized and uuid in w.by_hand:
            continue
        assert w.card.lock[uuid] is None or w.card.lock[uuid] == w.by_hand.get(uuid), "a lease that ends frees"


def settled() -> World:
    w = World()
    for _ in range(30):
        w.turn()
    return w


def test_a_gang_goes_down_step_by_step_and_a_wish_for_all_frees_it() -> None:
    w = settled()
    assert w.card.lock == {"G0": 1185, "G1": 1185, "G2": 1185, "G3": 1380}
    w.wishes = {"a/x": 1.0}
    w.turn()
    assert set(w.card.lock.values()) == {None}


def test_a_person_wins_whether_above_or_below_our_lock() -> None:
    """Also when the lease ends and the agent leaves; the rest of the gang is free; what is given back is ours."""
    for theirs in (1501, 801):
        w = settled()
        w.card.lock["G1"] = theirs
        for _ in range(5):
            w.turn()
        assert w.memory.manual == {"G1"}
        assert w.card.lock == {"G0": None, "G1": theirs, "G2": None, "G3": 1380}
        w.node.turn(w.now_s + 1000.0)
        w.node.close()
        assert w.card.lock == {"G0": None, "G1": theirs, "G2": None, "G3": None}
        w.card.lock["G1"] = None
        w.turn(given=frozenset({"G1"}))
        for _ in range(30):
            w.turn()
        assert w.card.lock["G1"] == 1185


def test_heat_is_no_person() -> None:
    w = settled()
    w.card.heat.add("G1")
    for _ in range(6):
        w.turn()
    assert w.memory.manual == frozenset()
    assert w.card.lock["G1"] == 1185


def test_a_node_that_says_locked_and_did_not_is_locked_out() -> None:
    w = World()
    w.card.lock_clock = lambda uuid, clock_mhz: None  # type: ignore[method-assign]
    w.node._device.ranges = lambda: {u: replace(r, clock_mhz=0) for u, r in Card().ranges().items()}  # type: ignore[method-assign]
    for _ in range(6):
        w.turn()
    assert w.memory.liars == {"n0"}
    assert w.memory.ordered_mhz == {}


def test_a_node_that_forgot_its_locks_gets_them_again() -> None:
    w = settled()
    w.card.lock = dict.fromkeys(GPUS)
    w.node = PowerLeases(w.card, FALLBACK)
    w.turn()
    w.turn()
    assert w.memory.manual == frozenset()
    assert w.card.lock["G0"] == 1185


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(0, 1), min_size=4, max_size=4), st.integers(1_000_000, 4_000_000))
def test_a_lock_is_never_counted_as_a_guarantee_of_power(locked: list[int], budget_mw: int) -> None:
    """With GPUs that are locked at their floor, limits are shared as if their clocks were free."""
    w = settled()
    w.card.limit = dict.fromkeys(GPUS, FALLBACK)
    racks = {"r": shield.RackBudget("r", budget_mw, 100_000)}
    wishes = dict.fromkeys(GPUS, float(MAX))

    def ask() -> shield.LimitOrders:
        gpus = [replace(one.gpu, enforced_mw=w.card.limit[one.gpu.uuid]) for one in w.seen()]
        return shield.decide(racks, gpus, wishes, shield.LimitMemory(), w.now_s, LIMITS)

    with_locks = ask()
    w.card.lock = {u: 990 if is_locked else None for u, is_locked in zip(GPUS, locked, strict=True)}
    assert ask() == with_locks
    worst = {u: max(FALLBACK, with_locks.memory.ordered_mw.get(u, 0)) for u in GPUS}
    assert sum(worst.values()) + 100_000 <= budget_mw * (1 - MARGIN_SHARE) or not with_locks.raise_mw


def test_made_up_clock_curves_are_slower_and_draw_less_at_a_lower_clock() -> None:
    for curve in synthetic_clocks(50, np.random.default_rng(3)):
        time, draw = curve.on_levels()
        assert len(time) == len(LEVELS)
        assert (np.diff(time) <= 1e-12).all()
        assert (np.diff(draw) >= -1e-12).all()
        assert 0.0 < draw[0] <= draw[-1] <= 1.6
