"""A user's own tool server: its tools that read are offered, its answers are evidence, its misdeeds are bounded."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

from nightshift.agent.rca import tool_servers
from nightshift.agent.rca.bundle import Bundle
from nightshift.agent.rca.lookup import ADDRESSES, Lookup
from nightshift.agent.rca.redact import Redactor
from nightshift.agent.rca.tool_servers import MAX_ANSWER, ServerTool, ToolServers, ToolServerSettings
from nightshift.collectors.base import Temporary
from nightshift.collectors.history import History
from tests.agent.rca.test_investigate import CASE, RULES, concluded, reader, settings
from tests.agent.rooted import INVENTORY, NOW_S
from tests.agent.scripted_model import calls, scripted

OWN = Path(__file__).with_name("tool_server.py")


@pytest.fixture(autouse=True, scope="module")
def patience() -> Iterator[None]:
    """A server of Python takes seconds to start, and on a busy machine many."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tool_servers, "LIST_S", 200.0)
        patched.setattr(tool_servers, "CALL_S", 200.0)
        yield


@pytest.fixture(scope="module")
def servers(patience: None) -> Iterator[ToolServers]:
    settings = ToolServerSettings(command=(sys.executable, str(OWN)))
    started = ToolServers({"own": settings})
    yield started
    started.end()


@pytest.fixture(scope="module")
def tools(servers: ToolServers) -> dict[str, ServerTool]:
    return {tool.tool: tool for tool in servers.tools()}


def test_only_what_reads_is_offered_unless_it_is_named(tools: dict[str, ServerTool]) -> None:
    assert set(tools) == {"rack", "environment", "process", "exits", "hang", "flood", "crash", "greedy"}
    assert tools["rack"].name == "own__rack"
    named = ToolServerSettings(command=(sys.executable, str(OWN)), allow=frozenset({"drain"}))
    assert "drain" in {tool.tool for tool in ToolServers({"own": named}).tools()}


def test_its_answer_is_evidence_redacted_numbered_and_marked(servers: ToolServers) -> None:
    lookup = Lookup(
        Bundle((), {}), History(), INVENTORY, 0.0, NOW_S, redact=Redactor(), servers=servers
    )  # fmt: skip
    told = json.loads(lookup.call("own__rack", {"name": "n1"}))
    assert told["mark"] == ADDRESSES
    assert (told["id"], told["source"]) == ("E1", "tool server own")
    assert "rack r7" in told["content"]
    assert lookup.ledger.items[0].media_type == "application/json"
    assert "own__rack" in [schema["function"]["name"] for schema in lookup.schemas]
    assert "RuntimeError" in lookup.call("own__crash", {}) or "boom" in lookup.call("own__crash", {})


def test_it_gets_neither_our_environment_nor_a_secret_nor_our_model(
    servers: ToolServers, tools: dict[str, ServerTool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIGHTSHIFT_LLM__API_KEY_FILE", "/etc/key")
    assert "NIGHTSHIFT" not in servers.call(tools["environment"], {})
    told = servers.call(tools["greedy"], {})
    assert "Elicitation not supported" in told
    assert "Sampling not supported" in told


def test_one_that_hangs_or_floods_costs_its_own_answer_and_is_named(
    servers: ToolServers, tools: dict[str, ServerTool], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(servers.call(tools["flood"], {})) < MAX_ANSWER + 100
    monkeypatch.setattr(tool_servers, "CALL_S", 1.0)
    with pytest.raises(Temporary, match="tool server own: no answer within 1 s"):
        servers.call(tools["hang"], {})
    assert "rack r7" in servers.call(tools["rack"], {"name": "n1"})


def test_a_started_server_answers_all_calls_of_a_case_until_it_is_idle_or_fails(
    servers: ToolServers, tools: dict[str, ServerTool], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = servers.call(tools["process"], {})
    with pytest.raises(Temporary, match="boom"):
        servers.call(tools["crash"], {})
    assert servers.call(tools["process"], {}) == first, "an error that it answers with is no end"
    with pytest.raises(Temporary, match="tool server own: "):
        servers.call(tools["exits"], {})
    second = servers.call(tools["process"], {})
    assert second != first
    monkeypatch.setattr(tool_servers, "IDLE_S", 0.0)
    deadline_s = time.monotonic() + 60.0
    while Path(f"/proc/{second}").exists() and time.monotonic() < deadline_s:
        time.sleep(0.1)
    assert not Path(f"/proc/{second}").exists(), "an idle one is ended"


def test_a_server_that_is_not_there_has_no_tools_and_says_why(tmp_path: Path) -> None:
    gone = ToolServers({"gone": ToolServerSettings(url="http://127.0.0.1:9/mcp")})
    assert gone.tools() == []
    assert gone.problems["gone"].startswith("tool server gone: ")
    keyless = ToolServerSettings(url="http://127.0.0.1:9/mcp", token_file=tmp_path / "none")
    locked = ToolServers({"locked": keyless})
    assert locked.tools() == []
    assert "token_file" in locked.problems["locked"]


@pytest.mark.parametrize("given", [{}, {"url": "http://x", "command": ["x"]}])
def test_a_server_has_one_way_in(given: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match="a url or a command"):
        ToolServerSettings.model_validate(given)


def test_a_model_calls_it_in_an_investigation(servers: ToolServers) -> None:
    with scripted(calls(("own__rack", {"name": "n1"}), ("own__drain", {"node": "n1"})), concluded()) as server:
        replace(reader(settings(server)), servers=servers).read(replace(CASE, diagnosis=RULES))
    offered = {tool["function"]["name"] for tool in server.asked[0]["tools"]}
    assert "own__rack" in offered
    assert "own__drain" not in offered
    answers = [m["content"] for m in server.asked[1]["messages"] if m["role"] == "tool"]
    assert "rack r7" in answers[0]
    assert "there is no tool 'own__drain'" in answers[1]
