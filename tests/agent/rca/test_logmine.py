"""Log mining keeps the line that tells, within its budget, whatever the logs are made of."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.log_condense import DECIDING, ONSET_S, case
from nightshift.agent.rca.joblogs import CHARS_PER_TOKEN, LogMiner, Settings, condense, time_of


@pytest.mark.parametrize("seed", range(0, len(DECIDING), 7))
def test_the_deciding_line_is_kept_within_the_budget(seed: int) -> None:
    logs, deciding = case(seed, 150)
    kept = condense(logs.items(), ONSET_S + 30, Settings(budget_tokens=2000))
    text = "\n".join(map(str, kept))
    assert deciding in text
    assert len(text) <= 2000 * CHARS_PER_TOKEN


def test_of_lines_that_all_ranks_print_the_first_is_kept_with_its_rank() -> None:
    at = [f"2026-03-02T02:00:{10 + (r + 3) % 8:02d}Z" for r in range(8)]
    logs = [(f"rank{r}", f"{at[r]} ERROR rank {r} lost peer {r * 7}\n".encode()) for r in range(8)]
    (kept,) = condense(logs)
    assert (kept.source, kept.count, kept.sources) == ("rank5", 8, 8)


def test_a_line_that_is_split_between_two_pieces_is_read_whole() -> None:
    whole, halves = LogMiner(), LogMiner()
    data = b"2026-03-02T02:00:00Z ERROR disk 3 failed\nlast line without an end"
    whole.add("n", data)
    for piece in (data[:17], data[17:44], data[44:]):
        halves.add("n", piece)
    assert [str(k) for k in whole.condense()] == [str(k) for k in halves.condense()]


def test_times_are_read_with_zones_and_fractions_and_never_guessed() -> None:
    assert time_of(b"2026-03-02T02:00:00.250Z x") == 1_772_416_800.25
    assert time_of(b"[2026-03-02 03:00:00,5 +01:00] x") == 1_772_416_800.5
    assert time_of(b"1772416800.125 x") == 1_772_416_800.125
    assert math.isnan(time_of(b"loss=2.5 step=3"))
    assert math.isnan(time_of(b"2026-13-45T99:00:00Z x"))


@given(st.lists(st.tuples(st.sampled_from("abc"), st.binary(max_size=80)), max_size=12))
def test_no_bytes_make_mining_fail_and_its_memory_stays_bounded(pieces: list[tuple[str, bytes]]) -> None:
    miner = LogMiner(Settings(budget_tokens=100, max_templates=100))
    for source, data in pieces:
        miner.add(source, data)
    kept = miner.condense(0.0)
    assert sum(len(str(k)) + 1 for k in kept) <= 100 * CHARS_PER_TOKEN


def test_lines_of_megabytes_without_a_space_or_digit_are_mined_like_any_other() -> None:
    """Quadratic search would not come to an end here within the test's time limit."""
    wanted = b"2026-03-02T02:11:42Z ERROR disk gone\n"
    kept = condense([("r0", b"x" * 4_000_000 + b"\n" + b"a-" * 2_000_000 + b"\n" + wanted)], None)
    assert any("disk gone" in line.text for line in kept)
    assert all(len(line.text) <= Settings().max_line for line in kept)
