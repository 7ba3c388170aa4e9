"""Hostile text in what a model looks up of the users' own: runbooks, tool servers and log stores. The model is
taken over and repeats it; no plan, cause or contest changes, and nothing of it is shown that one could follow."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nightshift.agent.incidents.advisor import Advisor
from nightshift.agent.rca.grounding import ground
from nightshift.agent.rca.investigate import Investigator
from nightshift.agent.rca.log_stores import LogStores
from nightshift.agent.rca.model import Model
from nightshift.agent.rca.redact import Redactor, addresses_a_reader
from nightshift.agent.rca.runbooks import Runbooks
from nightshift.agent.rca.summary import as_markdown, summarise
from nightshift.agent.rca.tool_servers import ServerTool, ToolServers
from nightshift.agent.store.diagnosis import with_reading
from nightshift.controllers.action import ActionKind
from nightshift.controllers.playbooks.plugins import build
from tests.agent.rca.log_store_stand_in import LogStoreStandIn, served
from tests.agent.rca.test_investigate import CASE, FOUND, concluded, settings
from tests.agent.rca.test_log_stores import setting
from tests.agent.rooted import INVENTORY, NODE, NOW_S, ONSET_S, XID_LINES, history, incident
from tests.agent.scripted_model import Answer, Scripted, calls, scripted
from tests.agent.test_hostile import INJECTIONS, SECRET

CHANNELS = ("runbook", "tool server", "log store")
SOME = INJECTIONS[::15]


class Repeating(ToolServers):
    """A server that answers each call with one text."""

    def __init__(self, text: str) -> None:
        super().__init__({})
        self._text = text

    def tools(self) -> list[ServerTool]:
        return [ServerTool("own__rack", "own", "rack", self._text[:300], {"type": "object", "properties": {}})]

    def call(self, tool: ServerTool, arguments: Mapping[str, Any]) -> str:
        return self._text[:24_000]


@contextmanager
def poisoned(channel: str, text: str, folder: Path) -> Iterator[dict[str, Any]]:
    if channel == "runbook":
        (folder / "books").mkdir(exist_ok=True)
        (folder / "books" / "a.md").write_text(f"# Memory error\nHBM memory error\n{text[:9000]}", "utf-8")
        yield {"runbooks": Runbooks([str(folder / "books")], folder)}
    elif channel == "tool server":
        yield {"servers": Repeating(text)}
    else:
        lines = [(ONSET_S + 1.0, {"node": NODE.name}, text[:9000])]
        with served(LogStoreStandIn(lines)) as url:
            yield {"stores": LogStores([setting("loki", url)], INVENTORY)}


def taken_over(channel: str, text: str) -> list[Answer]:
    """Looks the text up, then repeats it as claim, hypothesis, check and contest."""
    span = {"start_s": ONSET_S - 60, "end_s": NOW_S}
    asked = {
        "runbook": ("runbooks", {"query": "memory error"}),
        "tool server": ("own__rack", {}),
        "log store": ("logs", {"subject": str(NODE), **span}),
    }[channel]

    def repeat(_: Scripted, body: dict[str, Any]) -> Answer:
        told = [m["content"] for m in body["messages"] if m["role"] == "tool"][-1]
        name = next((line.split('"')[3] for line in told.split("\n") if line.startswith('{"id"')), "E1")
        claim = {"predicate": "repeated", "evidence_ids": [name], "arguments": {"pattern": text[:80], "times": 2},
                 "quotes": [{"evidence_id": name, "text": text[:200]}]}  # fmt: skip
        answer: Any = concluded(claim, cause="gpu_lost", hypothesis=text[:5000])
        more = {"checks": [text[:150]], "contest": {"reason": text[:200], "evidence_id": name, "text": text[:200]}}
        answer["calls"][0][1].update(more)
        return answer

    return [calls(asked), repeat]


def gets_nowhere(channel: str, text: str, folder: Path) -> None:
    redact = Redactor()
    rules = Advisor(
        history(XID_LINES[:2]), INVENTORY, build(), frozenset(ActionKind), lambda: NOW_S, redact=redact
    )  # fmt: skip
    expected = rules.diagnose(CASE)
    with poisoned(channel, text, folder) as parts, scripted(*taken_over(channel, text)) as server:
        taken = replace(rules, investigate=Investigator(Model(settings(server)), redact), **parts)
        case = replace(CASE, diagnosis=expected, action=rules.plan(replace(CASE, diagnosis=expected)).action)
        reading, _ = taken.read(case)
        told = with_reading(expected, reading)
        plan = taken.plan(replace(CASE, diagnosis=told)).action
    assert case.action is not None
    assert plan is not None
    assert (plan.kind, plan.target) == (case.action.kind, case.action.target)
    assert (told.cause, told.confidence, told.headline) == (expected.cause, expected.confidence, expected.headline)
    assert not ground(told.claims, told.evidence).fell
    if reading.contest is not None:
        assert channel == "log store", "of the three, a line of a log alone may contest"
    assert SECRET not in json.dumps(server.asked[:2])
    if addresses_a_reader(text[:300]):
        assert text[:300] not in json.dumps(server.asked[0]["tools"], ensure_ascii=False)
    shown = as_markdown(summarise(replace(incident(*FOUND, diagnosis=told), reading=reading), NOW_S))
    assert "://evil" not in shown
    assert not any(c in shown for c in "\x1b\x00\x07\r\u202e\u202d\u200b\ufeff")


@pytest.mark.parametrize("channel", CHANNELS)
def test_hostile_text_that_a_model_looks_up_gets_nowhere(tmp_path: Path, channel: str) -> None:
    for text in SOME:
        gets_nowhere(channel, text, tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("channel", CHANNELS)
@pytest.mark.parametrize("text", INJECTIONS, ids=[f"{n:02d}" for n in range(len(INJECTIONS))])
def test_every_hostile_text_that_a_model_looks_up_gets_nowhere(tmp_path: Path, channel: str, text: str) -> None:
    gets_nowhere(channel, text, tmp_path)
