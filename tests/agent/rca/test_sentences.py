"""A sentence with a true quote that says another thing is refused or marked; an honest one is shown."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.sentence_batches import BATCHES
from benchmarks.sentence_traps import CONTEXT, EVIDENCE, HONEST, HONEST_AFTER, TRAPS, TRAPS_AFTER, outcome
from nightshift.agent.rca.bundle import summary_of
from nightshift.agent.rca.figures import Ungrounded
from nightshift.agent.rca.grounding import bind, why_not
from nightshift.agent.rca.sentences import as_it_stands, quote_of_claim, quote_under, turns_round
from nightshift.agent.store.diagnosis import SERIES, Claim, Evidence, Predicate, Quote


@pytest.mark.parametrize("kind", TRAPS)
def test_a_sentence_that_says_another_thing_than_its_quote_is_refused_or_marked(kind: str) -> None:
    assert [row[0] for row in TRAPS[kind] if outcome(*row) == ()] == []


def test_an_honest_sentence_is_shown() -> None:
    assert [row[0] for row in (*HONEST, *HONEST_AFTER) if isinstance(outcome(*row), str)] == []


def test_sentences_written_after_the_rules_are_refused_or_marked() -> None:
    assert [row[0] for rows in TRAPS_AFTER.values() for row in rows if outcome(*row) == ()] == []


@pytest.mark.parametrize("batch", BATCHES)
def test_what_a_language_model_would_write_is_shown_where_it_is_right_and_withheld_or_marked_where_it_is_not(
    batch: str,
) -> None:
    sentences = BATCHES[batch]
    shown = [row for row in sentences.right if not isinstance(sentences.outcome(*row), str)]
    assert len(shown) >= 0.9 * len(sentences.right)
    assert sum(sentences.outcome(*row) == () for row in sentences.wrong) <= len(sentences.wrong) // 10


def test_the_words_that_a_quote_does_not_have_are_marked() -> None:
    line = next(row[2] for row in HONEST if "adapter" in row[0])
    assert outcome("The link of n2 went down, likely because of a loose cable.", "E2", line) == ("loose", "cable")
    quoted = quote_under("An operator took the link down.", line, "E2", EVIDENCE, CONTEXT)
    assert quoted.marked == "An ‹operator› took the link down."


def test_a_sentence_that_rests_on_a_claim_may_tell_an_order_and_only_that_one() -> None:
    quotes = (Quote("E2", "Link down"), Quote("E1", "nfs: server fs1 OK"))
    claim = bind(Claim("", Predicate.PRECEDED, ("E2", "E1"), quotes), EVIDENCE)
    assert why_not(claim, EVIDENCE) is None
    shown = quote_of_claim("The link went down 50 s before the NFS server was OK.", claim, EVIDENCE)
    assert shown.quote == quotes[0]
    for wrong in (
        "The NFS server was OK before the link went down.",
        "The link came up before the NFS server was OK.",
    ):
        with pytest.raises(Ungrounded):
            quote_of_claim(wrong, claim, EVIDENCE)


def test_a_series_tells_which_way_it_went_in_a_line_that_can_be_quoted() -> None:
    times = [60.0 * n for n in range(20)]
    line = summary_of("job:ml/a", "gpu_memory_used_bytes", "bytes", times, [1e9 + 1e7 * n for n in range(20)])
    item = Evidence(
        "E1", "history", "x", 0.0, 1.0, SERIES, json.dumps({"summary": line}).encode(), "memory of job:ml/a"
    )
    assert quote_under("GPU memory of ml/a rose in 1140 s.", line, "E1", [item]).quote == Quote("E1", line)
    with pytest.raises(Ungrounded):
        quote_under("GPU memory of ml/a fell in 1140 s.", line, "E1", [item])


@pytest.mark.parametrize(
    "given", ["…has fallen off the bus.", "  GPU has fallen off the bus. ", '"has fallen off the bus."']
)
def test_a_quote_is_found_as_it_stands(given: str) -> None:
    assert as_it_stands(given, EVIDENCE).encode() in EVIDENCE[0].content
    assert as_it_stands("it fell off", EVIDENCE) == "it fell off"


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
    assert not isinstance(outcome("The collective took 10 min.", "E3", line), str)
    assert "'11 min'" in outcome("The collective took 11 min.", "E3", line)


@given(st.text(max_size=200), st.text(max_size=200))
def test_whatever_a_model_writes_is_shown_with_bytes_of_the_evidence_or_refused(sentence: str, text: str) -> None:
    try:
        quote = quote_under(sentence, text, "E1", EVIDENCE, CONTEXT).quote
    except Ungrounded:
        return
    assert any(quote.text.encode() in item.content for item in EVIDENCE)
