"""Redaction: what must not leave does not, what the evidence needs stays."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightshift.agent.rca.redact import Redactor, Settings
from tests.agent.redaction_corpus import HARMLESS, secrets

SEEDS = range(20)


def test_every_secret_of_the_corpus_is_taken_out() -> None:
    redactor = Redactor()
    missed = {line for seed in SEEDS for line, secret in secrets(seed) if secret in redactor(line)}
    assert not missed
    assert sum(redactor.found.values()) >= len(SEEDS) * len(secrets(0))


@pytest.mark.parametrize("line", HARMLESS)
def test_a_line_without_a_secret_stays_as_it_is(line: str) -> None:
    assert Redactor()(line) == line


def test_addresses_are_taken_out_where_the_settings_say_so() -> None:
    redactor = Redactor(Settings(ip_addresses=True, emails=False))
    assert redactor("from 10.0.3.17:29500 to fe80::1:2 by a@b.example") == (
        "from [redacted:ip_address]:29500 to [redacted:ip_address] by a@b.example"
    )
    assert (
        redactor("driver 580.159.04 at 02:11:42, PCI 0000:9b:00.0")
        == "driver 580.159.04 at 02:11:42, PCI 0000:9b:00.0"
    )


def test_further_patterns_come_from_the_settings_and_a_bad_one_is_named() -> None:
    assert Redactor(Settings(patterns={"badge": r"EMP-\d+"}))("by EMP-1234") == "by [redacted:badge]"
    with pytest.raises(ValueError, match=r"patterns\.badge"):
        Settings(patterns={"badge": "("})


def test_a_key_over_several_lines_leaves_the_number_of_lines() -> None:
    text = secrets(1)[38][0]
    assert Redactor()(text).count("\n") == text.count("\n")


@given(st.text(max_size=200))
def test_what_was_redacted_once_is_not_changed_again(text: str) -> None:
    once = Redactor()(text)
    assert Redactor()(once) == once


@pytest.mark.parametrize(
    "hostile", ["password=" * 40_000, "a" * 900_000 + "@", "://" + ":" * 300_000, "eyJ" * 200_000]
)
def test_a_line_made_to_be_slow_is_done_in_seconds(hostile: str) -> None:
    began = time.process_time()
    Redactor()(hostile)
    assert time.process_time() - began < 10.0
