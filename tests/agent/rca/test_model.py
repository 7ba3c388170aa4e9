"""The client as LangChain's users expect it: any provider, rate limits, caching, spans; and a model that
takes no tools, no temperature or no system prompt still answers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from langchain_core.messages import HumanMessage, SystemMessage
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic import ValidationError

from nightshift import spans
from nightshift.agent.rca.investigate import tools_of
from nightshift.agent.rca.model import Failed, Failure, Model, ModelSettings, connect
from tests.agent.rca.test_investigate import RULES, TRUE, advised, concluded, settings
from tests.agent.scripted_model import Answer, Scripted, calls, says, scripted

MESSAGES = [SystemMessage("be brief"), HumanMessage("why?")]


def picky(refuses: str, part: str) -> Any:
    """A server that refuses one part of a request with a 400, as Ollama and vLLM do, and answers without it."""

    def answer(_: Scripted, body: dict[str, Any]) -> Answer:
        has = {
            "tools": bool(body.get("tools")),
            "temperature": body.get("temperature") is not None,
            "system": any(m["role"] == "system" for m in body["messages"]),
        }[part]
        return {"status": 400, "error": refuses} if has else says('{"cause": "unknown"}')

    return answer


@pytest.mark.parametrize(
    ("part", "refuses"),
    [
        ("tools", "scripted does not support tools"),
        ("temperature", "Unsupported value: 'temperature' does not support 0.2 with this model."),
        ("system", "System role not supported"),
    ],
)
def test_what_a_model_does_not_take_is_not_sent_again(part: str, refuses: str) -> None:
    with scripted(picky(refuses, part)) as server:
        model = Model(settings(server, options={"temperature": 0.2}))
        for _ in range(2):
            assert model.say(MESSAGES, tools_of([]), 60.0).message.text == '{"cause": "unknown"}'
    assert len(server.asked) == 3
    last = server.asked[-1]
    assert not (last.get("tools") if part == "tools" else False)
    if part == "tools":
        assert "Answer with one JSON object of this schema" in last["messages"][-1]["content"]
    if part == "system":
        assert [m["role"] for m in last["messages"]] == ["user"]
        assert last["messages"][0]["content"] == "be brief\n\nwhy?"


def test_a_model_without_tools_concludes_in_text_and_its_claim_is_checked() -> None:
    text = json.dumps({"cause": "hbm_degraded", "claims": [TRUE]})

    def answer(_: Scripted, body: dict[str, Any]) -> Answer:
        return {"status": 400, "error": "does not support tools"} if body.get("tools") else says(text)

    with scripted(answer) as server:
        told = advised(settings(server))
    assert len(told.claims) == len(RULES.claims) + 1


def test_a_refusal_that_names_nothing_is_a_failure_at_once() -> None:
    with scripted({"status": 400, "error": "the prompt is too long"}) as server, pytest.raises(Failed) as why:
        Model(settings(server)).say(MESSAGES, tools_of([]), 60.0)
    assert why.value.failure is Failure.BAD_ANSWER
    assert len(server.asked) == 1


def test_requests_share_one_limit_of_their_rate() -> None:
    chosen = ModelSettings(
        provider="openai", model="m", base_url="http://127.0.0.1:9/v1", requests_per_minute=120.0
    )
    model = Model(chosen)
    first, second = (model._chat([], 5.0).rate_limiter for _ in range(2))
    assert first is second
    assert first.requests_per_second == 2.0


def test_an_anthropic_prompt_is_cached() -> None:
    with scripted(says("ready")) as server:
        Model(settings(server, "anthropic")).say(MESSAGES, tools_of([]), 60.0)
    assert "ephemeral" in json.dumps(server.asked[0])


@pytest.mark.parametrize(
    ("provider", "options", "made"),
    [
        (
            "azure_openai",
            {"azure_endpoint": "https://x.openai.azure.com", "api_version": "2024-10-21"},
            "AzureChatOpenAI",
        ),
        ("openai", {"reasoning_effort": "low"}, "ChatOpenAI"),
    ],
)
def test_any_provider_of_langchain_takes_its_own_options(
    tmp_path: Any, provider: str, options: Any, made: str
) -> None:
    (tmp_path / "key").write_text("k" * 20)
    chosen = ModelSettings(provider=provider, model="m", options=options, api_key_file=tmp_path / "key")
    assert type(connect(chosen, 5.0)).__name__ == made


def test_a_provider_that_is_not_there_is_named_and_its_key_is_not(tmp_path: Any) -> None:
    (tmp_path / "key").write_text("very-secret-key")
    for provider, failure in (("bedrock_converse", Failure.NOT_INSTALLED), ("no_such", Failure.DENIED)):
        with pytest.raises(Failed) as why:
            connect(ModelSettings(provider=provider, model="m", api_key_file=tmp_path / "key"), 5.0)
        assert why.value.failure is failure
        assert "very-secret-key" not in str(why.value)
    with pytest.raises(ValidationError):
        ModelSettings(provider="Not A Provider", model="m")


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(spans, "_tracer", provider.get_tracer("test"))
    return exporter


def test_an_investigation_is_told_in_genai_spans_without_a_word_of_it(exported: InMemorySpanExporter) -> None:
    with scripted(calls(("topology", {"subject": "node:n1", "at_s": 1.0})), concluded(TRUE)) as server:
        advised(settings(server))
    found = {span.name: dict(span.attributes or {}) for span in exported.get_finished_spans()}
    assert {"chat scripted", "execute_tool topology", "invoke_agent scripted"} <= set(found)
    chat = found["chat scripted"]
    assert (chat["gen_ai.operation.name"], chat["gen_ai.provider.name"]) == ("chat", "openai")
    assert isinstance(chat["gen_ai.usage.input_tokens"], int)
    assert "Xid" not in repr(found)
