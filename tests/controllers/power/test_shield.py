"""The shield, over random wishes and faults: the rack's budget holds whoever dies, and nobody's limit is fought
for."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nightshift.controllers.power.breaker import RackBreaker
from nightshift.controllers.power.limits import LOCKOUT_S, MARGIN_SHARE
from nightshift.controllers.power.shield import (
    PATIENCE,
    Gpu,
    LimitMemory,
    RackBudget,
    Settings,
    decide,
    decide_step,
    headroom_mw,
    observe,
    worst_mw,
)

S = Settings()
MAX, MIN, FALLBACK = 700_000, 200_000, 350_000
HOST = 1_000_000


@pytest.fixture(autouse=True)
def _no_dwell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nightshift.controllers.power.shield.DWELL_S", 0.0)


def gpu(i: int, enforced: int | None = FALLBACK, **more: object) -> Gpu:
    base = Gpu(f"G{i}", f"n{i // 4}", "r", f"j{i // 2}", MIN, MAX, MAX, FALLBACK, enforced, 1.0)
    return replace(base, **more)


def budget(n: int, share: float = 0.7) -> RackBudget:
    return RackBudget("r", int((n * MAX * share + HOST) / (1 - MARGIN_SHARE)), HOST)


@dataclass
class World:
    """Nodes as they are: what is enforced, whose lease runs, who is silent, dead or lying."""

    n: int
    limit: dict[str, int] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)
    lying: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.limit = {f"G{i}": FALLBACK for i in range(self.n)}

    def node(self, uuid: str) -> str:
        return f"n{int(uuid[1:]) // 4}"

    def seen(self, before: dict[str, int] | None = None) -> list[Gpu]:
        """`before`: readings are late: of the limits before the last orders."""
        limit, age_s = (self.limit, 1.0) if before is None else (before, 30.5)
        return [
            gpu(i, None if f"n{i // 4}" in self.silent else limit[f"G{i}"],
                seen_age_s=math.inf if f"n{i // 4}" in self.silent else age_s)
            for i in range(self.n)
        ]  # fmt: skip

    def sum_mw(self) -> int:
        return sum(self.limit.values()) + HOST


EVENTS = (
    "none",
    "silence",
    "speak",
    "expire",
    "expire_one",
    "lose_orders",
    "lose_some",
    "delay",
    "late",
    "late",
    "restart_agent",
    "die",
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data(), st.sampled_from([8, 16]), st.floats(0.52, 0.8), st.integers(0, 10_000))
def test_the_sum_of_limits_never_passes_the_budget_whoever_dies(
    data: st.DataObject, n: int, share: float, seed: int
) -> None:
    """Nodes fall silent, leases end one by one or all at once, orders are lost in part, readings are older than the
    last orders, the agent forgets or dies."""
    rng = np.random.default_rng(seed)
    world, memory, rack = World(n), LimitMemory(), budget(n, share)
    usable = rack.budget_mw * (1 - MARGIN_SHARE)
    granted: dict[str, bool] = {}
    late: dict[str, int] = {}
    alive, forgot, before = True, False, dict(world.limit)
    for turn in range(12):
        event = data.draw(st.sampled_from(EVENTS))
        node = f"n{data.draw(st.integers(0, n // 4 - 1))}"
        if event == "silence":
            world.silent.add(node)
        elif event == "speak":
            world.silent.discard(node)
        elif event == "expire":
            world.limit = dict.fromkeys(world.limit, FALLBACK)
        elif event == "expire_one":
            world.limit.update({u: FALLBACK for u in world.limit if world.node(u) == node})
        elif event == "restart_agent":
            memory, forgot = LimitMemory(), True
        elif event == "die":
            alive = not alive
        world.limit.update({u: mw for u, mw in late.items() if world.node(u) not in world.silent})
        late = {}
        assert world.sum_mw() <= usable
        if not alive:
            continue
        seen = world.seen(before if event == "late" else None)
        before = dict(world.limit)
        memory = observe(seen, memory, granted, 30.0 * turn, S)
        if event == "restart_agent":
            memory = replace(memory, manual=frozenset())
        assert forgot or not memory.manual, "no person was there"
        wishes = {g.uuid: float(rng.choice([0, 250_000, 500_000, 900_000])) for g in seen}
        step = data.draw(st.sampled_from([decide, decide_step]))
        orders = step({"r": rack}, seen, wishes, memory, 30.0 * turn, S)
        memory = orders.memory
        # carried out one after the other, in any order, and the sum holds after each: lowering needs no luck
        todo = list(orders.limits_mw.items())
        rng.shuffle(todo)
        granted = {}
        for uuid, limit in todo:
            if world.node(uuid) in world.silent or event == "lose_orders":
                continue
            if event == "delay" and rng.random() < 0.5:
                late[uuid] = limit
                continue
            if event == "lose_some" and rng.random() < 0.5:
                continue
            world.limit[uuid] = limit
            assert world.sum_mw() <= usable
            granted[world.node(uuid)] = True


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=8, max_size=8), st.integers(0, 100))
def test_any_wish_becomes_a_limit_that_the_gpu_takes_or_none(wishes: list[float], seed: int) -> None:
    rng = np.random.default_rng(seed)
    gpus = [gpu(i, int(rng.integers(MIN, MAX))) for i in range(8)]
    orders = decide({"r": budget(8)}, gpus, {f"G{i}": w for i, w in enumerate(wishes)}, LimitMemory(), 1e6, S)
    for limit in orders.limits_mw.values():
        assert MIN <= limit <= MAX


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.integers(MIN, MAX), min_size=8, max_size=8), st.lists(st.integers(MIN, MAX), min_size=8, max_size=8)
)
def test_gangs_are_raised_and_lowered_whole(now: list[int], wishes: list[int]) -> None:
    """From an equal state, members of a gang are equal afterwards."""
    gpus = [gpu(i, now[i // 2]) for i in range(8)]
    orders = decide(
        {"r": budget(8, 0.9)}, gpus, {f"G{i}": float(w) for i, w in enumerate(wishes)}, LimitMemory(), 1e6, S
    )
    after = [orders.limits_mw.get(g.uuid, g.enforced_mw) for g in gpus]
    assert all(after[i] == after[i + 1] for i in range(0, 8, 2))


def test_what_frees_power_is_read_back_before_anyone_is_raised() -> None:
    """One gang is lowered, another asks for what that frees: it gets it a turn later, not now."""
    gpus = [gpu(0, 600_000), gpu(1, 600_000), gpu(2), gpu(3)]
    rack = RackBudget("r", int((1_900_000 + HOST) / (1 - MARGIN_SHARE)) + 2, HOST)
    wishes = {"G0": 350_000.0, "G1": 350_000.0, "G2": 600_000.0, "G3": 600_000.0}
    memory = LimitMemory(ordered_mw={"G0": 600_000, "G1": 600_000}, confirmed=frozenset({"G0", "G1"}))
    first = decide({"r": rack}, gpus, wishes, memory, 1e6, S)
    assert set(first.lower_mw) == {"G0", "G1"}
    assert not first.raise_mw
    lowered = [replace(g, enforced_mw=350_000) if g.uuid in first.lower_mw else g for g in gpus]
    memory = observe(lowered, first.memory, {"n0": True}, 1e6 + 60, S)
    second = decide({"r": rack}, lowered, wishes, memory, 1e6 + 60, S)
    assert set(second.raise_mw) == {"G2", "G3"}


def test_a_raise_that_waits_for_others_is_given_whole_at_the_next_look() -> None:
    """None of the raises takes a part now and then dwells; who needs nobody's part is raised at once."""
    gpus = [gpu(0, 600_000), gpu(1, 600_000), gpu(2), gpu(3)]
    rack = RackBudget("r", int((2_100_000 + HOST) / (1 - MARGIN_SHARE)) + 2, HOST)
    wishes = {"G0": 350_000.0, "G1": 350_000.0, "G2": 600_000.0, "G3": 600_000.0}
    memory = LimitMemory(ordered_mw={"G0": 600_000, "G1": 600_000}, confirmed=frozenset({"G0", "G1"}))
    first = decide_step({"r": rack}, gpus, wishes, memory, 1e6, Settings())
    assert first.waiting
    assert set(first.lower_mw) == {"G0", "G1"}
    assert not first.raise_mw
    lowered = [replace(g, enforced_mw=350_000) if g.uuid in first.lower_mw else g for g in gpus]
    memory = observe(lowered, first.memory, {"n0": True}, 1e6 + 5, Settings())
    second = decide_step({"r": rack}, lowered, wishes, memory, 1e6 + 5, Settings())
    assert second.raise_mw == {"G2": 600_000, "G3": 600_000}
    assert not second.waiting
    alone = decide_step({"r": RackBudget("r", 9_000_000, 0)}, gpus, wishes, LimitMemory(), 1e6, Settings())
    assert set(alone.raise_mw) == {"G2", "G3"}
    assert not alone.waiting


def test_a_persons_limit_is_left_and_counted() -> None:
    """Once confirmed, a limit that is another one was set by a person: it is not ordered again, at any price."""
    memory = LimitMemory(ordered_mw={"G0": 500_000, "G1": 500_000}, confirmed=frozenset({"G0", "G1"}))
    for by_hand in (300_000, 650_000):
        gpus = [gpu(0, by_hand), gpu(1, 500_000)]
        after = observe(gpus, memory, {}, 10.0, S)
        assert after.manual == {"G0"}
        orders = decide(
            {"r": RackBudget("r", 1_100_000, 0)}, gpus, {"G0": 400_000.0, "G1": 400_000.0}, after, 10.0, S
        )
        assert "G0" not in orders.limits_mw
        assert worst_mw(gpus[0], after, S) == max(by_hand, FALLBACK)
        assert orders.clips["G0"][0].constraint == "manual"


def test_an_order_that_is_read_late_is_no_persons_limit_and_counts_until_it_is_read() -> None:
    """Readings as old as a turn: every one shows the order before the last."""
    limit, memory, read = FALLBACK, LimitMemory(), FALLBACK
    for turn, wish in enumerate((500_000, 450_000, 600_000, 400_000, 550_000)):
        now_s = 30.0 * turn
        seen = [gpu(0, read, seen_age_s=30.5, job="")]
        memory = observe(seen, memory, {"n0": True}, now_s, S)
        assert not memory.manual
        assert not memory.liars
        assert worst_mw(seen[0], memory, S) >= limit
        memory = decide({"r": budget(8)}, seen, {"G0": float(wish)}, memory, now_s, S).memory
        read, limit = limit, memory.ordered_mw["G0"]
    by_hand = observe([gpu(0, 333_000, job="")], memory, {"n0": True}, 30.0 * 6, S)
    assert by_hand.manual == {"G0"}


def test_a_node_that_is_not_read_any_more_counts_at_its_default() -> None:
    """It may have been started anew."""
    assert worst_mw(gpu(0, 300_000, seen_age_s=61.0), LimitMemory(), S) == MAX
    assert worst_mw(gpu(0, 300_000), LimitMemory(), S) == FALLBACK


def test_a_node_that_says_done_and_did_not_is_locked_out() -> None:
    """... after PATIENCE turns, and counts at its highest from then on."""
    memory = LimitMemory(ordered_mw={"G0": 300_000}, read_mw={"G0": 600_000})
    gpus = [gpu(0, 600_000, job="")]
    for turn in range(PATIENCE):
        assert memory.liars == frozenset()
        memory = observe(gpus, memory, {"n0": True}, float(turn), S)
    assert memory.liars == {"n0"}
    assert worst_mw(gpus[0], memory, S) == MAX
    orders = decide({"r": RackBudget("r", 10_000_000, 0)}, gpus, {"G0": 650_000.0}, memory, 9.0, S)
    assert orders.clips["G0"][0].constraint == "lockout"
    assert not orders.limits_mw


@pytest.mark.parametrize(
    ("change", "constraint"),
    [
        ({"incident": True}, "incident"),
        ({"seen_age_s": 61.0}, "stale"),
        ({"seen_age_s": math.nan}, "stale"),
        ({"enforced_mw": None}, "stale"),
    ],
)
def test_a_gpu_in_doubt_and_its_gang_hold(change: dict[str, object], constraint: str) -> None:
    gpus = [replace(gpu(0), **change), gpu(1)]
    orders = decide({"r": budget(8)}, gpus, {"G0": 600_000.0, "G1": 600_000.0}, LimitMemory(), 1e6, S)
    assert orders.clips["G0"][0].constraint == constraint
    assert orders.clips["G1"][0].constraint == "gang"
    assert not orders.raise_mw


def test_a_job_slowed_too_much_is_reverted_and_locked_out() -> None:
    gpus = [gpu(0, 400_000, slowdown=0.07), gpu(1, 400_000)]
    memory = observe(gpus, LimitMemory(ordered_mw={"G0": 400_000, "G1": 400_000}), {}, 100.0, S)
    orders = decide(
        {"r": RackBudget("r", 3_000_000, 0)}, gpus, {"G0": 350_000.0, "G1": 350_000.0}, memory, 100.0, S
    )
    assert orders.raise_mw == {"G0": MAX, "G1": MAX}
    calm = [replace(g, enforced_mw=MAX, slowdown=0.0) for g in gpus]
    later = observe(calm, orders.memory, {}, 200.0, S)
    held = decide({"r": RackBudget("r", 3_000_000, 0)}, calm, {"G0": 350_000.0, "G1": 350_000.0}, later, 200.0, S)
    assert not held.lower_mw
    free = observe(calm, held.memory, {}, 100.0 + LOCKOUT_S + 1, S)
    again = decide({"r": RackBudget("r", 3_000_000, 0)}, calm, {"G0": 350_000.0, "G1": 350_000.0}, free, 1e5, S)
    assert set(again.lower_mw) == {"G0", "G1"}


def test_limits_dwell_and_rise_no_faster_than_the_rack_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nightshift.controllers.power.shield.DWELL_S", 60.0)
    s = Settings(raise_w_per_min=100.0)
    gpus = [gpu(0, 400_000, job="")]
    orders = decide({"r": budget(8)}, gpus, {"G0": 700_000.0}, LimitMemory(), 1000.0, s)
    assert orders.raise_mw == {"G0": 500_000}
    assert orders.clips["G0"][0].constraint == "slope"
    seen = [replace(gpus[0], enforced_mw=500_000)]
    held = decide({"r": budget(8)}, seen, {"G0": 300_000.0}, orders.memory, 1030.0, s)
    assert not held.limits_mw
    assert held.clips["G0"][0].constraint == "dwell"


def test_an_overdrawn_rack_lowers_those_that_it_can() -> None:
    """A silent node counts at its default; the others make room down to their fallback, and what is left is
    said."""
    gpus = [gpu(0, None, seen_age_s=math.inf, job=""), *(gpu(i, 600_000, job="") for i in range(4, 8))]
    memory = LimitMemory(ordered_mw={f"G{i}": 600_000 for i in range(4, 8)})
    rack = RackBudget("r", int(2_500_000 / (1 - MARGIN_SHARE)) + 2, 0)
    orders = decide({"r": rack}, gpus, {f"G{i}": 700_000.0 for i in range(8)}, memory, 1e6, S)
    assert len(set(orders.lower_mw.values())) == 1
    after = [gpus[0], *(replace(g, enforced_mw=orders.lower_mw[g.uuid]) for g in gpus[1:])]
    assert headroom_mw(rack, after, observe(after, orders.memory, {}, 1e6 + 60, S), S) >= 0
    assert not orders.overdrawn
    small = decide({"r": RackBudget("r", 1_000_000, 0)}, gpus, {}, memory, 1e6, S)
    assert small.overdrawn["r"] > 0


def test_the_breaker_trips_by_itself_on_draw_alone() -> None:
    """At once when far over, after a while when just over, and when the draw is not read."""
    assert RackBreaker().look(1_030_000, 1_000_000, 0.0).open(1.0)
    slow = RackBreaker().look(1_005_000, 1_000_000, 0.0)
    assert not slow.open(0.0)
    assert slow.look(1_005_000, 1_000_000, 10.0).open(10.0)
    blind = RackBreaker().look(900_000, 1_000_000, 0.0).look(math.nan, 1_000_000, 30.0)
    assert not blind.open(30.0)
    tripped = blind.look(math.nan, 1_000_000, 60.0)
    assert tripped.open(60.0)
    assert not tripped.look(900_000, 1_000_000, 70.0).open(661.0)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(allow_nan=True, allow_infinity=True) | st.floats(0, 2e6), max_size=20))
def test_a_breaker_is_never_closed_while_the_draw_is_far_over(draws: list[float]) -> None:
    breaker = RackBreaker()
    for turn, draw in enumerate(draws):
        breaker = breaker.look(draw, 1_000_000, float(turn))
        if math.isfinite(draw) and draw > 1_020_000:
            assert breaker.open(float(turn))


def test_room_below_a_fallback_is_not_given_away() -> None:
    """A GPU under its fallback returns to it when its lease ends; nobody may have been raised by the difference."""
    gpus = [gpu(0, 200_000, job=""), gpu(4, 350_000, job="")]
    memory = LimitMemory(ordered_mw={"G0": 200_000, "G4": 350_000}, confirmed=frozenset({"G0", "G4"}))
    rack = RackBudget("r", int(800_000 / (1 - MARGIN_SHARE)) + 2, 0)
    orders = decide({"r": rack}, gpus, {"G0": 200_000.0, "G4": 700_000.0}, memory, 1e6, S)
    assert orders.raise_mw == {"G4": 450_000}


def test_room_that_an_order_under_way_will_take_is_not_given_twice() -> None:
    """An order that has not arrived may still arrive."""
    gpus = [gpu(0, 350_000, job=""), gpu(4, 350_000, job="")]
    memory = LimitMemory(ordered_mw={"G0": 500_000, "G4": 350_000}, read_mw={"G0": 350_000, "G4": 350_000})
    rack = RackBudget("r", int(900_000 / (1 - MARGIN_SHARE)) + 2, 0)
    orders = decide({"r": rack}, gpus, {"G0": 500_000.0, "G4": 700_000.0}, memory, 1e6, S)
    assert orders.limits_mw.get("G4", 350_000) <= 400_000


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(*[st.integers(MIN, MAX)] * 3), min_size=8, max_size=8), st.floats(0.5, 1.0))
def test_no_raise_ever_takes_more_than_the_worst_case_leaves(
    rows: list[tuple[int, int, int]], share: float
) -> None:
    """For any enforced, ordered and wished limits: where someone is raised, the worst case after it fits."""
    gpus = [gpu(i, enforced, job="") for i, (enforced, _, _) in enumerate(rows)]
    memory = LimitMemory(ordered_mw={f"G{i}": ordered for i, (_, ordered, _) in enumerate(rows)})
    orders = decide(
        {"r": budget(8, share)}, gpus, {f"G{i}": float(w) for i, (*_, w) in enumerate(rows)}, memory, 1e6, S
    )
    if orders.raise_mw:
        worst = sum(max(FALLBACK, e, o, orders.limits_mw.get(f"G{i}", 0)) for i, (e, o, _) in enumerate(rows))
        assert worst + HOST <= budget(8, share).budget_mw * (1 - MARGIN_SHARE)
