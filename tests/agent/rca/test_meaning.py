"""Runbooks that say the same in other words are found too, by vectors of a real client; nothing waits for them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from nightshift.agent.doctor import _runbooks
from nightshift.agent.rca.meaning import RETRY_S, VectorIndex
from nightshift.agent.rca.model import ModelSettings, embedding
from nightshift.agent.rca.redact import Redactor, Settings
from nightshift.agent.rca.runbooks import Runbooks
from nightshift.agent.settings import Settings as NightshiftSettings
from tests.agent.scripted_model import Scripted, never, scripted

TOPICS = (
    {"vanished", "bus", "fell"}, {"disk", "full"}, {"fan", "hot"}, {"leaf", "network"}, {"quota", "queue"},
    {"certificate", "expired"}, {"clock", "drift"}, {"image", "pull"}, {"loss", "diverged"}, {"power", "shelf"},
)  # fmt: skip
BOOKS = "\n".join(f"# {sorted(words)[0]}\nWhat to do about {', '.join(sorted(words))}." for words in TOPICS)
QUESTION = "why is the card vanished?"


def vectors(_: Scripted, body: dict[str, Any]) -> bytes:
    """Texts of one topic point one way, whichever of its words they have."""
    rows = [[float(bool(topic & set(text.lower().replace(",", " ").replace("?", " ").replace(".", " ").split())))
             for topic in TOPICS] for text in body["input"]]  # fmt: skip
    data = [{"object": "embedding", "index": n, "embedding": row} for n, row in enumerate(rows)]
    usage = {"prompt_tokens": 1, "total_tokens": 1}
    return json.dumps({"object": "list", "model": body["model"], "data": data, "usage": usage}).encode()


def index(url: str, folder: Path, **more: Any) -> VectorIndex:
    settings = ModelSettings(provider="openai", model="m", base_url=f"{url}/v1", embeddings="e")
    return VectorIndex(embedding(settings, 5.0), folder / "e.npz", Redactor(Settings()).document, **more)


def books(folder: Path, meaning: VectorIndex | None, text: str = BOOKS) -> Runbooks:
    (folder / "books").mkdir(exist_ok=True)
    (folder / "books" / "all.md").write_text(text)
    return Runbooks([str(folder / "books")], folder / "cache", meaning=meaning)


def test_a_section_in_other_words_is_found_once_its_vector_is_there(tmp_path: Path) -> None:
    text = BOOKS.replace("bus, fell, vanished", "bus, fell, says ops@example.org")  # the question's word is gone
    assert books(tmp_path, None, text).search(QUESTION) == []
    with scripted(vectors) as server:
        meaning = index(server.url, tmp_path)
        there = books(tmp_path, meaning, text)
        there.search(QUESTION)  # words alone: vectors are made meanwhile
        meaning.wait(30.0)
        assert [s.heading for s in there.search(QUESTION)] == ["bus"]
        assert there.search("a word of no topic") == []
        sent = json.dumps([request["input"] for request in server.asked])
        assert "example.org" not in sent, "what is sent is redacted"
        count = len(server.asked)
        again = books(tmp_path, index(server.url, tmp_path), text)
        assert [s.heading for s in again.search(QUESTION)] == ["bus"]
        assert len(server.asked) == count + 1, "after a start the file has every section: only the question is sent"


@pytest.mark.parametrize(
    "answer",
    [
        503,
        b"not json",
        json.dumps({"object": "list", "model": "e", "data": [{"index": 0, "embedding": [math.nan, 1.0]}]}).encode(),
        json.dumps({"object": "list", "model": "e", "data": []}).encode(),
    ],
)
def test_where_the_model_fails_words_alone_decide_and_it_is_left_alone_for_a_while(
    answer: Any, tmp_path: Path
) -> None:
    now = [0.0]
    with scripted(answer) as server:
        meaning = index(server.url, tmp_path, timer=lambda: now[0])
        there = books(tmp_path, meaning)
        assert [s.heading for s in there.search("fan")] == ["fan"]
        meaning.wait(30.0)
        asked = len(server.asked)
        assert [s.heading for s in there.search("fan")] == ["fan"]
        assert len(server.asked) == asked
        server.script = [vectors]
        now[0] = RETRY_S + 1.0
        there.search("fan")
        meaning.wait(30.0)
        assert [s.heading for s in there.search(QUESTION)] == ["bus"]


def test_a_question_that_is_never_answered_costs_seconds_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nightshift.agent.rca.meaning.QUESTION_S", 0.2)
    with scripted(vectors) as server:
        meaning = index(server.url, tmp_path)
        there = books(tmp_path, meaning)
        there.search("fan")
        meaning.wait(30.0)
        server.script = [never]
        for _ in range(3):
            assert [s.heading for s in there.search("fan")] == ["fan"]
        assert sum(request["input"] == ["fan"] for request in server.asked) <= 2
        server.released.set()


def test_a_damaged_file_of_vectors_is_made_again(tmp_path: Path) -> None:
    (tmp_path / "e.npz").write_bytes(b"PK\x03\x04 half")
    with scripted(vectors) as server:
        meaning = index(server.url, tmp_path)
        there = books(tmp_path, meaning)
        there.search(QUESTION)
        meaning.wait(30.0)
        assert [s.heading for s in there.search(QUESTION)] == ["bus"]


@pytest.mark.parametrize(
    ("answer", "ok", "said"), [(vectors, True, "vectors of 10 figures by e"), (503, False, "llm.embeddings: e")]
)
def test_doctor_tries_the_embedding_model(answer: Any, ok: bool, said: str, tmp_path: Path) -> None:
    books(tmp_path, None)
    with scripted(answer) as server:
        llm = {"provider": "openai", "model": "m", "base_url": f"{server.url}/v1", "embeddings": "e"}
        settings = NightshiftSettings(state_dir=tmp_path, runbooks=[str(tmp_path / "books")], llm=llm)
        check = _runbooks(settings)
    assert (check.ok, said in check.detail) == (ok, True), check
