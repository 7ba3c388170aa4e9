"""A sentence with a true quote that says another thing is refused; an honest one is shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.sentence_traps import CONTEXT, EVIDENCE, HONEST, HONEST_AFTER, TRAPS, TRAPS_AFTER, refusal
from nightshift.agent.rca.figures import Ungrounded
from nightshift.agent.rca.sentences import quote_under, turns_round

MISREAD = {"Rank 1 did not arrive, so rank 0 stalled at the barrier."}
"""Honest, and refused: its second half says without a denial what the quote says in one line with it."""


@pytest.mark.parametrize("kind", TRAPS)
def test_a_sentence_that_says_another_thing_than_its_quote_is_refused(kind: str) -> None:
    assert [row[0] for row in TRAPS[kind] if not refusal(*row)] == []


def test_an_honest_sentence_is_shown() -> None:
    assert {row[0] for row in HONEST if refusal(*row)} == MISREAD


def test_sentences_written_after_the_rules_are_told_apart_better_than_by_chance() -> None:
    traps = [row for rows in TRAPS_AFTER.values() for row in rows]
    assert sum(bool(refusal(*row)) for row in traps) >= len(traps) // 2
    assert sum(not refusal(*row) for row in HONEST_AFTER) >= 3 * len(HONEST_AFTER) // 4


@pytest.mark.parametrize(
    ("sentence", "quoted", "turned"),
    [
        ("The link recovered.", "eth0: Link down", True),
        ("The link is down.", "eth0: Link down", False),
        ("No nan was seen.", "number of nan iterations: 0", False),
        ("The error was uncorrected.", "AER: Corrected error received", True),
        ("The adapter could not be initialized.", "NVRM: failed to initialize the adapter", False),
        ("The node is not ready.", '"ready":"False"', False),
    ],
)
def test_a_denial_or_a_recovery_has_to_be_that_of_the_quote(sentence: str, quoted: str, turned: bool) -> None:
    assert bool(turns_round(sentence, quoted)) is turned


def test_a_time_span_may_be_rounded_and_be_said_in_another_unit() -> None:
    line = next(row[2] for row in HONEST if "watchdog" in row[0])
    assert refusal("The collective took 10 min.", "E3", line) == ""
    assert "'11 min'" in refusal("The collective took 11 min.", "E3", line)


@given(st.text(max_size=200), st.text(max_size=200))
def test_whatever_a_model_writes_is_shown_with_bytes_of_the_evidence_or_refused(sentence: str, text: str) -> None:
    try:
        quote = quote_under(sentence, text, "E1", EVIDENCE, CONTEXT)
    except Ungrounded:
        return
    assert any(quote.text.encode() in item.content for item in EVIDENCE)
