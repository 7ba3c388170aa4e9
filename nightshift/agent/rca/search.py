"""Which of some texts bear a person's words best: BM25 over word stems, by SQLite's full-text index in memory. How
such an order is joined with another one."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing

MAX_WORDS = 24
_WORD = re.compile(r"[^\W_]{2,40}")
_COMMON = frozenset(
    [
        "a",
        "an",
        "the",
        "and",
        "or",
        "not",
        "no",
        "of",
        "in",
        "on",
        "at",
        "to",
        "for",
        "from",
        "by",
        "with",
        "is",
        "are",
        "was",
        "were",
        "be",
        "been",
        "did",
        "do",
        "does",
        "has",
        "have",
        "had",
        "it",
        "its",
        "this",
        "that",
        "these",
        "those",
        "there",
        "they",
        "we",
        "you",
        "he",
        "she",
        "what",
        "which",
        "who",
        "why",
        "how",
        "when",
        "where",
        "then",
        "than",
        "so",
        "if",
        "as",
        "any",
        "some",
        "first",
        "last",
        "before",
        "after",
        "happen",
        "happened",
        "please",
        "tell",
        "show",
        "can",
        "could",
        "would",
        "should",
        "will",
    ]
)


def words_of(text: str) -> list[str]:
    """The words of a question that tell what it is about, each once."""
    found = dict.fromkeys(word.lower() for word in _WORD.findall(text))
    return [word for word in found if word not in _COMMON][:MAX_WORDS]


def best(texts: Sequence[str], question: str, limit: int) -> list[int]:
    """Positions of the texts that bear the question's words, the best first."""
    # a beginning counts for the word: `fail` is in `failure`, `nccl` in `NCCLWatchdog`
    wanted = [f'"{word}"*' if len(word) > 3 else f'"{word}"' for word in words_of(question)]
    if not wanted or not texts:
        return []
    with closing(sqlite3.connect(":memory:")) as base:
        base.execute("CREATE VIRTUAL TABLE texts USING fts5(text, tokenize='porter unicode61')")
        rows = ((number, text.replace("\x00", " ")) for number, text in enumerate(texts))
        base.executemany("INSERT INTO texts(rowid, text) VALUES (?, ?)", rows)
        query = "SELECT rowid FROM texts WHERE texts MATCH ? ORDER BY bm25(texts), rowid LIMIT ?"
        return [int(number) for (number,) in base.execute(query, (" OR ".join(wanted), limit))]


def fused(*orders: Sequence[int]) -> list[int]:
    """Several orders as one: an item's score is the sum of 1 / (60 + its place) over those that have it (reciprocal
    rank fusion, Cormack et al., SIGIR 2009).

    >>> fused([3, 1], [1, 2])
    [1, 3, 2]
    """
    scores: dict[int, float] = {}
    for order in orders:
        for place, item in enumerate(order):
            scores[item] = scores.get(item, 0.0) + 1.0 / (60 + place)
    return sorted(scores, key=lambda item: (-scores[item], item))
