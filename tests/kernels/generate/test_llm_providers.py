"""Models of several providers through LangChain: their keys, what they take, how they end a reply, their errors."""

from __future__ import annotations

import pytest

from nightshift.collectors.base import Temporary
from nightshift.kernels.generate.base import GeneratorError
from nightshift.kernels.generate.llm import connect, kernel_of
from tests.kernels.generate.scripted_model import Answer, served
from tests.kernels.generate.test_llm import GOOD, TASK, marked


def test_a_served_model_is_asked_through_langchain_and_its_errors_are_told_apart() -> None:
    """Tokens come from the API; a refusal is final, an overload is not."""
    with served([Answer(marked(GOOD)), Answer("short", finish="length")]) as (url, script):
        chat = connect("scripted", url, key_variable="NIGHTSHIFT_TEST_KEY")
        reply = chat([("system", "rules"), ("user", "task")], 0.2)
        assert (reply.tokens, reply.truncated) == (150, False)
        assert kernel_of(reply.text, TASK).source == GOOD
        assert chat([("user", "more")], 0.9).truncated
        assert script.requests[0]["messages"][0] == {"role": "system", "content": "rules"}
        assert [r["temperature"] for r in script.requests] == [0.2, 0.9]
    with served([Answer("no such model", status=404)]) as (url, _), pytest.raises(GeneratorError, match="404"):
        connect("scripted", url)([("user", "task")], 0.2)
    with served([Answer("later", status=500)]) as (url, _), pytest.raises(Temporary):
        connect("scripted", url)([("user", "task")], 0.2)


def test_a_model_that_takes_no_temperature_is_asked_without_one() -> None:
    """Reasoning models refuse it, and were left out of their search; any other refusal is final."""
    refusal = Answer("Unsupported value: 'temperature' does not support 0.2 with this model.", status=400)
    with served([refusal, Answer(marked(GOOD))]) as (url, script):
        chat = connect("scripted", url)
        for temperature in (0.2, 0.9):
            assert kernel_of(chat([("user", "task")], temperature).text, TASK).source == GOOD
        assert [request.get("temperature") for request in script.requests] == [0.2, None, None]
    with served([refusal]) as (url, script), pytest.raises(GeneratorError, match="400"):
        connect("scripted", url)([("user", "task")], 0.2)
    assert len(script.requests) == 2


@pytest.mark.parametrize(
    ("model", "url", "variable", "key"),
    [
        ("anthropic:claude", None, "", None),
        ("openai:gpt", None, "", None),
        ("openai:gpt", None, "MINE", "sk-mine"),
        ("qwen", "http://localhost:1/v1", "", "sk-openai"),
        ("qwen", "http://localhost:1/v1", "NOT_SET", "none"),
    ],
)
def test_no_provider_is_sent_another_s_key(
    monkeypatch: pytest.MonkeyPatch, model: str, url: str | None, variable: str, key: str | None
) -> None:
    """LangChain reads each provider's own variable where it is given none."""
    langchain = pytest.importorskip("langchain.chat_models")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-openai")
    monkeypatch.setenv("MINE", "sk-mine")
    given: list[dict[str, object]] = []
    monkeypatch.setattr(langchain, "init_chat_model", lambda _, **options: given.append(options))
    connect(model, url, variable)
    assert given[0].get("api_key") == key


@pytest.mark.parametrize(
    ("name", "word"), [("finish_reason", "length"), ("stop_reason", "max_tokens"), ("done_reason", "length")]
)
def test_a_reply_that_was_cut_off_is_known_by_each_provider_s_word(
    monkeypatch: pytest.MonkeyPatch, name: str, word: str
) -> None:
    langchain = pytest.importorskip("langchain.chat_models")
    messages_of = pytest.importorskip("langchain_core.messages")

    class Short:
        def invoke(self, said: object, temperature: float) -> object:
            return messages_of.AIMessage("def", response_metadata={name: word})

    monkeypatch.setattr(langchain, "init_chat_model", lambda *_, **__: Short())
    assert connect("any:model")([("user", "x")], 0.2).truncated


def test_a_served_model_cannot_stretch_its_allowance_nor_say_what_cannot_be_sent_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A negative usage gave tokens back; half a surrogate pair ended the author with the next request."""
    langchain = pytest.importorskip("langchain.chat_models")
    messages_of = pytest.importorskip("langchain_core.messages")
    usage = {"input_tokens": -5, "output_tokens": -5, "total_tokens": -10}

    class Odd:
        def invoke(self, said: object, temperature: float) -> object:
            return messages_of.AIMessage("\ud800" * 40, usage_metadata=usage)

    monkeypatch.setattr(langchain, "init_chat_model", lambda *_, **__: Odd())
    reply = connect("openai:odd")([("user", "x" * 40)], 0.2)
    assert (reply.text, reply.tokens) == ("?" * 40, 20)
