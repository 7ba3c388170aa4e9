"""Policies in the console: a stranger sees what was decided and why; who may, takes a policy back there."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest

from examples.demo import recorded
from nightshift.agent.approvals.policy_gate import PolicyGate
from nightshift.agent.console.control_pages import limits_w, power_rows
from nightshift.agent.console.server import Server
from nightshift.agent.console.settings import Settings
from nightshift.agent.control.policy_watch import PolicyWatch
from nightshift.agent.setup.console import build_console
from nightshift.agent.store.receipts import Receipts
from nightshift.collectors.frame import StepSeries
from nightshift.collectors.tick import Tick
from nightshift.controllers.decision import Clip, Mode
from nightshift.controllers.power.curves import LEVELS
from tests.agent.killed_policy import CRITERIA, KIND, a_receipt, climb
from tests.agent.story import NOW_S, RANK, TOKEN, Story


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    made = Story(tmp_path)
    yield made
    made.store.close()


@pytest.fixture
def web(story: Story) -> Iterator[httpx.Client]:
    server = Server(build_console(story.parts, Settings()), "127.0.0.1", 0)
    server.start()
    with httpx.Client(base_url=server.url, follow_redirects=False) as client:
        yield client
    server.stop()


def test_a_decision_is_told_whole_and_what_it_names_is_text(story: Story, web: httpx.Client) -> None:
    """Seen, proposed, clipped by which constraint, executed, the baseline's answer and what came of it."""
    receipts = Receipts(story.store.database)
    clip = Clip("starvation", "hold", "start", "<script>alert(1)</script>")
    receipts.keep(replace(a_receipt(7), clips=(clip,)), chance=0.5, treated=True)
    receipts.settle(f"{7:016x}", reward=0.25, slowdown=1.01)
    page = web.get(f"/policies/decisions/{7:016x}").text
    for words in ("waiting = 3.0", "hold (probability 0.5)", "starvation: hold", "start by fifo", "reward 0.2500"):
        assert words in page
    assert "<script>alert" not in page
    assert web.get("/policies/decisions/ffff").status_code == 404


def test_a_policy_is_taken_back_by_a_form_by_who_may(story: Story, web: httpx.Client) -> None:
    gate = PolicyGate(story.gate, story.store, story.clock, "lab", CRITERIA)
    climb(PolicyWatch(gate, Receipts(story.store.database)), Mode.TRIAL)
    assert "Revert" not in web.get("/policies").text  # nobody has signed in
    assert web.post("/policies/take-back", data={"form": "x", "kind": KIND}).status_code == 401
    web.post("/sign-in", data={"token": TOKEN})
    page = web.get("/policies").text
    assert "Revert to shadow" in page
    found = re.search(r'name="form" value="([0-9a-f]+)"', page)
    assert found is not None
    data = {"form": found[1], "kind": KIND, "reason": "odd waits"}
    assert web.post("/policies/take-back", data={**data, "kind": "cooling"}).status_code == 404
    assert web.post("/policies/take-back", data=data).status_code == 303
    assert (gate.standing(KIND).mode, gate.standing(KIND).demotion) == (Mode.SHADOW, "odd waits")
    assert "Moved down: odd waits" in web.get("/policies").text


def test_power_shows_watts_before_and_after_and_work_per_joule(story: Story, web: httpx.Client) -> None:
    """Of the job's own GPUs; a name from outside is text."""
    assert "No decision yet" in web.get("/power").text
    made = replace(
        a_receipt(3), kind="power", job="sft/sft-12", proposed=67, at_s=NOW_S, baseline=70,
        executed={"level": 70, "limits_mw": {}}, clips=(Clip("rack", 1, 2, "<b>rack</b>"),),
    )  # fmt: skip
    acted = replace(made, executed={"level": 0, "limits_mw": {"g": 210_000}})
    assert limits_w(made, 700.0) == pytest.approx((700.0, 700.0 * LEVELS[67]))
    assert limits_w(acted, 210.0) == pytest.approx((210.0 / LEVELS[0], 210.0))
    Receipts(story.store.database).keep(made)
    page = web.get("/power").text
    for words in ("sft/sft-12", "In shadow", "&lt;b&gt;rack", "Draw of all GPUs"):
        assert words in page
    (row,) = power_rows([made], story.history, story.inventory, NOW_S)
    assert row.drawn_w == pytest.approx(400, abs=10)
    assert math.isnan(row.tokens_per_joule)
    step = np.arange(10)
    told = {"tokens_per_s": np.full(10, 8000.0), "step_time_s": np.full(10, 0.5)}
    steps = StepSeries(RANK, "run", step, np.float64(NOW_S - 50.0) + 5.0 * step, told, "log")
    story.history.add(Tick(NOW_S, {}, (steps,)))
    (row,) = power_rows([made], story.history, story.inventory, NOW_S)
    assert row.tokens_per_joule == pytest.approx(8000.0 / row.drawn_w)
    assert row.steps_per_kilojoule == pytest.approx(2000.0 / row.drawn_w)


def test_recordings_fill_the_queue_and_a_kernel_search_and_say_so(story: Story, web: httpx.Client) -> None:
    """Who waits and why; convergence, roofline and a certificate that no gate promotes, as the demo shows them."""
    recorded.tell(story.store, NOW_S)
    page = web.get("/scheduling").text
    waiting = page[page.index("Waiting, in order") : page.index("Starting")]
    assert waiting.count("recorded/philly-") >= 3
    assert "place 0: fits now" in page
    assert "recorded (drawn queue)" in page
    assert "shares with recorded/vision-8 on recorded-n1, 1.23 times slower" in page
    assert recorded.SEARCH in web.get("/kernels").text
    page = web.get(f"/kernels/runs/{recorded.SEARCH}").text
    for words in (
        "Recorded on an NVIDIA H200, replayed",
        "1.61 (1.60 to 1.62)",
        "compile_max",
        "rmsnorm_backward: faster (clears_best)",
    ):
        assert words in page
    kernels = web.get("/kernels").text
    assert "another version of the judge certified it" in kernels
    assert "Replayed by the demo, which signed what was recorded" in kernels
    assert page.count('<svg class="chart"') == 1
    assert web.get("/kernels/runs/none").status_code == 404
