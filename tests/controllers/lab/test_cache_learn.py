"""Eviction policies are learnt from traces: Mooncake's format in, a signed network out."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from nightshift.collectors.base import Permanent
from nightshift.collectors.seal import Signer
from nightshift.controllers.cache.features import AGES_S, INTERFACE
from nightshift.controllers.cache.requests import read
from nightshift.controllers.cache.tree import Learned, LeastRecent
from nightshift.controllers.lab.cache import fit
from nightshift.controllers.lab.cache.learn import LEARNABLE
from nightshift.controllers.lab.cache.trace import Belady, CacheLessons, hit_rate, lessons
from nightshift.controllers.policy_file import read as read_policy
from nightshift.controllers.policy_file import write


def chats(path: Path, requests: int = 1200) -> Path:
    """Every fourth conversation comes back after a minute and grows; those are told by their long first turn."""
    random, lines, block = np.random.default_rng(0), [], 1
    for k in range(requests // 2):
        stays = k % 4 == 0
        ids = [0, *range(block, block + (12 if stays else 5))]
        block += 20
        at_ms = k * 1000.0
        lines.append((at_ms, ids))
        if stays:
            for turn in (1, 2, 3):
                ids = [*ids, block]
                block += 1
                lines.append((at_ms + turn * 60_000.0 + random.uniform(0, 5000), ids))
    rows = [{"timestamp": at, "input_length": 512 * len(ids), "hash_ids": ids} for at, ids in sorted(lines)]
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    return path


def test_a_policy_learns_who_comes_back_and_beats_lru_on_what_it_never_saw(tmp_path: Path) -> None:
    trace = chats(tmp_path / "chats.jsonl")
    policy = LEARNABLE.train(1, 6, lambda _: None, [trace])
    requests = read(trace)
    after, capacity = len(requests) // 2, 260
    mine = hit_rate(requests, capacity, Learned(policy.network), after)
    lru = hit_rate(requests, capacity, LeastRecent(), after)
    assert lru + 0.1 < mine <= hit_rate(requests, capacity, Belady(requests), after)


def test_the_same_seed_trains_the_same_policy_and_its_file_is_read_back(tmp_path: Path) -> None:
    trace, signer = chats(tmp_path / "chats.jsonl", 100), Signer.generate()
    one, two = (LEARNABLE.train(3, 1, lambda _: None, [trace]) for _ in range(2))
    assert write(tmp_path / "a.json", one, signer) == write(tmp_path / "b.json", two, signer)
    found = read_policy(tmp_path / "a.json", INTERFACE, {signer.key_id: signer.public})
    assert found.network.layers[0][0].shape == (fit.NETWORKS * fit.HIDDEN, len(INTERFACE.features))


def test_an_evaluation_holds_every_rule_and_the_policy_against_the_bound(tmp_path: Path) -> None:
    trace = chats(tmp_path / "chats.jsonl", 100)
    policy = LEARNABLE.train(1, 1, lambda _: None, [trace])
    rows = LEARNABLE.evaluate(policy, [trace], [])["rows"]
    names = {row["policy"] for row in rows}
    assert {"LRU", "SLRU", "LFU", "learned", "learned, shielded"} < names
    for share in (0.01, 0.03, 0.1, 0.3):
        here = {row["policy"]: row["hits"] for row in rows if row["share"] == share}
        assert max(here.values()) == here["Belady (the future)"]


def test_gradients_are_those_of_the_censored_likelihood() -> None:
    random = np.random.default_rng(2)
    theirs = [random.normal(size=s) for s in ((3, 2), (3,), (len(AGES_S), 3), (len(AGES_S),))]
    rows, first, last = random.normal(size=(5, 2)), np.array([0, 3, 5, 2, 14]), np.array([0, 14, 5, 14, 14])
    weight = random.uniform(0.5, 2.0, 5)

    def loss() -> float:
        logits = np.tanh(rows @ theirs[0].T + theirs[1]) @ theirs[2].T + theirs[3]
        chances = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        at = np.arange(len(AGES_S))
        may = (chances * ((at >= first[:, None]) & (at <= last[:, None]))).sum(1)
        return float(-(weight * np.log(may)).mean())

    found = fit._gradients(theirs, rows, first, last, weight)
    for part, slope in zip(theirs, found, strict=True):
        at = tuple(0 for _ in part.shape)
        part[at] += 1e-5
        above = loss()
        part[at] -= 2e-5
        below = loss()
        part[at] += 1e-5
        assert slope[at] == pytest.approx((above - below) / 2e-5, rel=1e-4, abs=1e-8)


def test_what_is_not_asked_for_until_the_trace_ends_may_still_come_back_later() -> None:
    rows = CacheLessons(np.zeros((3, 2)), np.array([30.0, np.inf, np.inf]), np.array([9.0, 100.0, 1e9]), np.ones(3))
    first, last = fit.possible(rows)
    assert (first.tolist(), last.tolist()) == ([2, 6, 14], [2, 14, 14])


def test_a_request_without_a_full_block_teaches_nothing(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 20, "hash_ids": [1]}\n' * 3)
    assert lessons(read(path)).seen.shape == (0, len(INTERFACE.features))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "t.jsonl:2: JSONDecodeError"),
        ('{"timestamp": 1, "input_length": 5}', "t.jsonl:2: KeyError: 'hash_ids'"),
        ('{"timestamp": 1, "hash_ids": [1]}', "t.jsonl:2: KeyError: 'input_length'"),
        ('{"timestamp": 1, "input_length": 5, "hash_ids": []}', "t.jsonl:2: no time, or no hash_ids"),
        ('{"timestamp": NaN, "input_length": 5, "hash_ids": [1]}', "t.jsonl:2: no time, or no hash_ids"),
        ("[1, 2]", "t.jsonl:2: TypeError"),
    ],
)
def test_a_line_that_is_no_request_is_named(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 600, "hash_ids": [1, 2]}\n' + line + "\n")
    with pytest.raises(Permanent, match=words.replace("[", r"\[")):
        read(path)


def test_training_without_a_trace_or_on_too_short_a_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Permanent, match="--data: give at least one trace"):
        LEARNABLE.train(1, 1, lambda _: None)
    (tmp_path / "t.jsonl").write_text('{"timestamp": 0, "input_length": 600, "hash_ids": [1, 2]}\n')
    with pytest.raises(Permanent, match="1 requests; two halves need at least 4"):
        LEARNABLE.train(1, 1, lambda _: None, [tmp_path / "t.jsonl"])
