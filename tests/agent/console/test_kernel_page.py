"""The console's page of kernels: the whole plan is shown, hostile text is text, and a click asks the one gate."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from nightshift.agent.approvals.kernel_gate import KernelGate, ProposalState, promotion
from nightshift.agent.approvals.kernel_search import evidence, keep_view
from nightshift.agent.approvals.policy import Person, Role
from nightshift.agent.console.server import Server
from nightshift.agent.console.settings import Settings
from nightshift.agent.setup.console import build_console
from nightshift.kernels.certification.evidence import UNKNOWN
from tests.agent.story import TOKEN, Story
from tests.kernel_certificates import RECORD, predicate, view_of

HOSTILE = "</td><script>alert(1)</script>{{7*7}}"


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


def test_a_promotion_is_shown_whole_and_approved_by_a_click(story: Story, web: httpx.Client) -> None:
    assert "Nothing has been proposed" in web.get("/kernels").text
    gate = KernelGate(story.parts.gate, story.parts.store, story.parts.clock)
    evidence = {"verdict": HOSTILE, "m=8192 n=1024, over eager": "5.35 [5.34, 5.36]"}
    made = promotion("lab", "ab" * 32, "rmsnorm", "canary", evidence, story.parts.clock.now_s())
    plan = gate.propose(made, record=RECORD).action
    page = web.get("/kernels").text
    assert "<script>alert" not in page
    assert "{{7*7}}" in page
    assert plan.plan_sha256 in page
    assert "5.35 [5.34, 5.36]" in page
    assert "Approve</button>" not in page  # nobody has signed in
    assert (
        web.post("/kernels/decide", data={"form": "x", "id": plan.id, "plan": plan.plan_sha256}).status_code == 401
    )
    web.post("/sign-in", data={"token": TOKEN})
    found = re.search(r'name="form" value="([0-9a-f]+)"', web.get("/kernels").text)
    assert found is not None
    click = {"form": found[1], "id": plan.id, "plan": "0" * 64, "word": "approve"}
    assert web.post("/kernels/decide", data=click).status_code == 303
    (proposal,) = gate.proposals()
    assert proposal.state is ProposalState.WAITING  # the hash was another plan's
    web.post("/kernels/decide", data={**click, "plan": plan.plan_sha256})
    (proposal,) = gate.proposals()
    assert proposal.state is ProposalState.APPROVED
    assert [a.person for a in proposal.approvals] == ["ada"]
    assert gate.objections(plan) == []


def test_a_refused_promotion_shows_its_reason_in_place_of_the_button(story: Story, web: httpx.Client) -> None:
    """What an approver has to see comes first; the registry's kernels stand above, with where their jobs run."""
    gate = KernelGate(story.parts.gate, story.parts.store, story.parts.clock)
    now_s = story.parts.clock.now_s()
    shown = evidence(predicate(), UNKNOWN, (), now_s)
    plan = gate.propose(promotion("lab", "c" * 64, "softmax", "canary", shown, now_s), record=RECORD).action
    web.post("/sign-in", data={"token": TOKEN})
    page = web.get("/kernels").text
    assert "Approve</button>" in page
    assert page.index("baselines met") < page.index("not checked") < page.index("commit")
    assert "no job has reported this kernel: gpu unknown" in page
    keep_view(story.parts.store, view_of("c" * 64, now_s, driver=("590.1",)))
    page = web.get("/kernels").text
    assert "Approve</button>" not in page
    assert "jobs run with another driver than the certified one" in page
    (listed,) = web.get("/api/v1/kernels").json()
    assert "another driver" in listed["not_promotable"]
    assert not gate.approve(plan.id, plan.plan_sha256, Person("ada", frozenset({Role.APPROVER}), "console")).ok
