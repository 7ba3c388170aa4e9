"""The documented path of the cache lever: train, evaluate, ship, shadow, promote, undo, on a CPU and small data."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nightshift.agent.__main__ import app
from nightshift.agent.store.incident_store import Store
from nightshift.collectors.base import Permanent
from tests.agent.incidents import ManualClock


def requests(path: Path, count: int = 6800) -> Path:
    """Conversations of which the short ones come back after a minute; the long ones never do."""
    draw, rows, block = random.Random(1), [], 1
    for k in range(count):
        ids = [0, *range(block, block + (4 if k % 3 == 0 else 20))]
        block += 30
        rows.append((k * 1000.0, ids))
        if k % 3 == 0:
            rows.append((k * 1000.0 + 60_000.0 + draw.uniform(0, 9000), [*ids, block]))
    lines = [{"timestamp": at, "input_length": 512 * len(ids), "hash_ids": ids} for at, ids in sorted(rows)]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("USER", "ann")
    config = tmp_path / "config.yaml"
    Store(f"sqlite:///{tmp_path}/s.sqlite", ManualClock(0.0)).close()  # as a daemon that ran once
    config.write_text(json.dumps({"sources": [], "store": {"url": f"sqlite:///{tmp_path}/s.sqlite"}}))

    def run(*words: str, code: int = 0) -> str:
        own = () if words[1] in ("train", "evaluate", "keygen") else ("--config", str(config))
        done = CliRunner().invoke(app, [*words, *own])
        assert done.exit_code == code, done.output
        return done.output

    return run


@pytest.mark.full
def test_the_documented_path_from_training_to_active_and_back(said, tmp_path: Path) -> None:
    trace, policy, key, public = (str(tmp_path / n) for n in ("t.jsonl", "p.json", "signing.key", "signing.pub"))
    requests(Path(trace))
    said("kernels", "keygen", key, public)
    said("policy", "train", "cache", "-o", policy, "--key", key, "--data", trace, "--seeds", "0", "--steps", "2")
    assert "is in shadow" in said("policy", "ship", "cache", policy, "--key", public)
    assert "power: no learned policy is loaded" in said("policy", "list")
    told = said("policy", "shadow", "cache", "--data", trace, "--capacity", "600", "--key", public)
    assert "hit rate above LRU's" in told
    assert "shield intervened" in told
    again = said("policy", "shadow", "cache", "--data", trace, "--capacity", "600", "--key", public)
    assert again == told, "a window counts once, however often it is replayed"
    words = said("policy", "promote", "cache", code=1).split("approve with: nightshift policy ")[1].split()
    assert "/active" in words[1]
    said("policy", *words)
    assert "is active" in said("policy", "promote", "cache")
    assert "cache: cache-density-1@" in said("policy", "list")
    assert "is in shadow" in said("policy", "undo", "cache", "--reason", "test")


def test_what_cannot_be_shipped_or_replayed_is_named(said, tmp_path: Path) -> None:
    config = str(tmp_path / "config.yaml")
    for words, why in (
        (("ship", "network", str(tmp_path)), "no policies of kind 'network'"),
        (("shadow", "cache"), "no policy of kind 'cache' is loaded"),
    ):
        result = CliRunner().invoke(app, ["policy", *words, "--config", config])
        assert isinstance(result.exception, Permanent)
        assert why in str(result.exception)
