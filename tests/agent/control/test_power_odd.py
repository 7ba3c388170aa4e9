"""Power control when clocks are set back, boards vanish and one node answers nonsense: the guardrails hold, and
what is not known is never taken for well."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from nightshift.agent.control.power_decision import seen_age_s
from nightshift.agent.control.power_loop import PowerLoop
from nightshift.agent.control.power_windows import GpuWindows
from nightshift.collectors.http import HttpSettings
from nightshift.collectors.subject import SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.controllers.actuators.power_nodes import NodeStatus, PowerNodes, Settings
from nightshift.controllers.power import shield
from nightshift.controllers.power.breaker import REST_S, RackBreaker
from nightshift.controllers.power.limits import LOCKOUT_S, Gpu, RackBudget
from nightshift.controllers.power.settings import PowerSettings
from tests.agent.control.test_power_loop import EASY, World, world
from tests.certificates import Authority

HOUR_S = 3600.0
GPU = Gpu("G0", "n0", "r", "team/job", 200_000, 700_000, 700_000, 400_000, 400_000, 0.0)


def test_a_rack_that_is_not_read_trips_in_time_after_the_clock_was_set_back() -> None:
    """An hour back, and the telemetry is gone: blind for a minute is blind, whatever the clock said before."""
    seen = RackBreaker().look(5e6, 6_000_000, HOUR_S)
    for second in range(0, 70, 10):
        seen = seen.look(math.nan, 6_000_000, 100.0 + second)
    assert seen.open(160.0)
    over = RackBreaker().look(9e6, 6_000_000, HOUR_S).look(5e6, 6_000_000, 100.0)
    assert over.open(100.0 + REST_S - 1.0)
    assert not over.open(100.0 + REST_S), "what tripped it is not in the future"


def test_what_was_read_before_the_clock_was_set_back_is_old() -> None:
    assert seen_age_s(95.0, 100.0, 60.0) == 5.0
    assert seen_age_s(130.0, 100.0, 60.0) == -30.0, "two machines' clocks differ"
    assert seen_age_s(3700.0, 100.0, 60.0) == math.inf


def test_no_limit_is_held_for_as_long_as_the_clock_was_set_back() -> None:
    """Dwell time, slope and lock-out count from now, not from a time that is to come."""
    s = shield.Settings()
    before = shield.LimitMemory(
        ordered_mw={"G0": 400_000},
        confirmed=frozenset({"G0"}),
        changed_s={"G0": HOUR_S},
        raised_at_s={"r": HOUR_S},
        locked_until_s={"team/job": 3 * HOUR_S},
    )
    now = shield.observe([GPU], before, {}, 100.0, s)
    assert now.locked_until_s == {"team/job": 100.0 + LOCKOUT_S}
    free = replace(now, locked_until_s={})
    later_s = 100.0 + 60.0
    orders = shield.decide({"r": RackBudget("r", 2_000_000, 0)}, [GPU], {"G0": 600_000.0}, free, later_s, s)
    assert orders.raise_mw == {"G0": 600_000}


def test_turns_go_on_when_the_clock_was_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a window: nodes' leases are renewed, and do not run out for an hour."""
    w = world()
    made: list[tuple[float, bool]] = []
    monkeypatch.setattr(PowerLoop, "turn", lambda _loop, now_s: made.append((now_s, True)))
    monkeypatch.setattr(PowerLoop, "follow", lambda _loop, _now_s: None)
    w.loop.start()
    w.now_s = w.next_s = 10_000.0
    w.look(8)
    w.now_s = w.next_s = 10_000.0 - HOUR_S
    w.look(8)
    w.loop.close()
    assert any(now_s < 10_000.0 for now_s, _ in made)


def _without(tick: Tick, names: set[str]) -> Tick:
    frame = tick.frames[SubjectKind.GPU]
    rows = [row for row, gpu in enumerate(frame.index.subjects) if gpu.name not in names]
    index = replace(frame.index, subjects=tuple(frame.index.subjects[row] for row in rows))
    left = replace(frame, index=index, values=frame.values[rows], epoch=frame.epoch[rows])
    return replace(tick, frames={SubjectKind.GPU: left})


def test_a_board_that_vanishes_from_its_node_counts_at_its_limit_and_not_as_nothing() -> None:
    w: World = world()
    windows = GpuWindows(w.inventory)
    w.now_s = 1005.0
    tick = w.tick(EASY)
    windows.take(tick)
    whole = windows.draws_mw(tick)
    less = windows.draws_mw(_without(tick, {"G7"}))
    assert less["n0"] == whole["n0"]
    limit_mw = w.cluster.limit["G7"]
    frame = tick.frames[SubjectKind.GPU]
    drawn_mw = float(frame.column("gpu_power_w")[7]) * 1000.0
    assert less["n1"] == pytest.approx(whole["n1"] - drawn_mw + limit_mw)
    assert "n1" not in windows.draws_mw(_without(tick, {"G4", "G5", "G6", "G7"})), "a silent node is not known"


def test_a_board_that_its_node_lost_costs_no_other_its_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node refuses a lease whole where it names a GPU that it does not have."""
    w = world()
    w.run(3)
    assert set(w.cluster.sent[-1]["n1"]["limits_mw"]) == {"G4", "G5", "G6", "G7"}
    whole = w.cluster.status

    def without() -> Mapping[str, NodeStatus]:
        told = dict(whole())
        left = {uuid: gpu for uuid, gpu in told["n1"].gpus.items() if uuid != "G7"}
        return told | {"n1": replace(told["n1"], gpus=left)}

    monkeypatch.setattr(w.cluster, "status", without)
    w.run(1)
    assert set(w.cluster.sent[-1]["n1"]["limits_mw"]) == {"G4", "G5", "G6"}
    assert set(w.cluster.sent[-1]["n0"]["limits_mw"]) == {"G0", "G1", "G2", "G3"}


GOOD = {"min_mw": 200_000, "max_mw": 700_000, "default_mw": 700_000, "fallback_mw": 400_000, "now_mw": 400_000,
        "max_clock_mhz": 1980}  # fmt: skip
ODD: dict[str, bytes] = {
    "infinite": json.dumps({"gpus": {"G0": {**GOOD, "max_mw": math.inf}}, "left_s": 1.0}).encode(),
    "nested": b"[" * 100_000,
    "zero": json.dumps(
        {"gpus": {"G0": {**GOOD, "min_mw": 0, "max_mw": 0, "default_mw": 0}}, "left_s": 1.0}
    ).encode(),
    "upside down": json.dumps({"gpus": {"G0": {**GOOD, "min_mw": 800_000}}, "left_s": 1.0}).encode(),
    "a power plant": json.dumps({"gpus": {"G0": {**GOOD, "max_mw": 10**15}}, "left_s": 1.0}).encode(),
    "no text": b"\xff\xfe\x00",
}


@pytest.mark.parametrize("answer", ODD.values(), ids=ODD)
def test_a_node_that_answers_nonsense_is_told_and_costs_no_other_node_its_lease(
    answer: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def served(request: httpx.Request) -> httpx.Response:
        good = json.dumps({"gpus": {"G1": GOOD}, "left_s": 60.0}).encode()
        return httpx.Response(200, content=answer if request.url.host == "n0" else good)

    monkeypatch.setattr(PowerNodes, "_connect", lambda _: httpx.Client(transport=httpx.MockTransport(served)))
    pem, key = Authority.new().issue("x", client=True)
    (tmp_path / "pem").write_bytes(pem)
    (tmp_path / "key").write_bytes(key)
    files: dict[str, Any] = {"ca_file": tmp_path / "pem", "certificate_file": tmp_path / "pem"}
    urls = {"n0": "https://n0", "n1": "https://n1"}
    nodes = PowerNodes(Settings(urls=urls, connection=HttpSettings(key_file=tmp_path / "key", **files)))
    told = nodes.status()
    assert told["n0"].error.startswith("https://n0: ")
    assert not told["n0"].gpus
    assert (told["n1"].error, set(told["n1"].gpus)) == ("", {"G1"})
    nodes.close()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"racks": {"r": {"nodes": ["n"], "budget_w": math.inf}}}, "racks.r.budget_w"),
        ({"slowdown_of": {"team": 5.0}}, "slowdown_of.team"),
        ({"slowdown_of": {"team": math.nan}}, "slowdown_of.team"),
    ],
)
def test_bounds_that_bound_nothing_are_refused_by_name(settings: dict[str, Any], said: str) -> None:
    """An endless budget, a job that may be slowed to a sixth."""
    with pytest.raises(ValidationError) as refused:
        PowerSettings(**settings)
    (error,) = refused.value.errors()
    assert said in f"{'.'.join(map(str, error['loc']))} {error['msg']}"
