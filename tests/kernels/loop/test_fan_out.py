"""Searches dealt out over processes: killed in mid-search with all of them, a run goes on as if it had not been."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from nightshift.kernels.loop.fan_out import NOT_BEGUN, visible
from nightshift.kernels.loop.ledger import read_run
from nightshift.kernels.loop.optimise import tasks_of
from tests.kernels.loop.fan_out_program import COLUMNS, TRIALS, by_dying, candidate, main

ROOT = Path(__file__).parents[3]
TRIAL = re.compile(r"\[(\d)\] +\d+ revert ")


def ledgers(run: Path) -> dict[str, bytes]:
    return {name: (folder / "ledger.jsonl").read_bytes() for name, folder in tasks_of(run)}


@pytest.mark.full
def test_killed_with_signal_9_in_mid_search_a_fan_out_loses_no_line_and_repeats_none(tmp_path: Path) -> None:
    """The parent, as soon as each process has a trial: they end with it, wherever they are. What stood in a ledger
    stands there byte for byte, no candidate is judged twice, and started again every search comes to its end."""
    command = [sys.executable, "-m", "tests.kernels.loop.fan_out_program", str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        begun: set[str] = set()
        for line in process.stdout:
            begun |= set(TRIAL.findall(line))
            if len(begun) == len(COLUMNS):
                break
        process.kill()
        process.stdout.read()  # to its end, which comes when no process is left that could write it
    assert process.returncode == -signal.SIGKILL
    before = {name: text[: text.rfind(b"\n") + 1] for name, text in ledgers(tmp_path).items()}
    counts = [text.count(b"\n") for text in before.values()]
    assert len(counts) == len(COLUMNS)
    assert min(counts) >= 1
    assert min(counts) < TRIALS, "none was in mid-search"

    done = main(tmp_path)

    assert [(one.why, one.trials) for one in done] == [("no candidate stood", TRIALS)] * len(COLUMNS)
    after = ledgers(tmp_path)
    assert after.keys() == before.keys()
    assert all(text.startswith(before[name]) for name, text in after.items())
    for _, folder in tasks_of(tmp_path):
        _, lines = read_run(folder)  # it counts the trials, too
        assert sorted(line.candidate_sha256 for line in lines) == sorted(candidate(n).sha256 for n in range(TRIALS))
        assert {line.status for line in lines} == {"correct"}


@pytest.mark.full
def test_when_the_time_is_over_what_was_not_begun_is_left_and_told(tmp_path: Path) -> None:
    """One process, two searches; the time is over once the first has begun, which still comes to its end."""
    first, second = main(tmp_path, enough=lambda: bool(ledgers(tmp_path)), processes=1)
    assert (first.why, first.trials) == ("no candidate stood", TRIALS)
    assert (second.why, second.trials) == (NOT_BEGUN, 0)
    assert len(ledgers(tmp_path)) == 1


@pytest.mark.full
@pytest.mark.parametrize("when", ["send", "receive"])
def test_a_process_killed_in_the_middle_of_a_message_holds_up_neither_its_parent_nor_its_sibling(
    tmp_path: Path, when: str
) -> None:
    """Killed half-way through what it says, or as it asks for more (its first search's verdict may be said by then,
    or not): what it had locked would stay locked. Where its sibling starts late, it asks for the second search."""
    first, second = main(tmp_path, finish=partial(by_dying, when=when), trials=1)
    asked_by_the_dying = when == "receive" and second.why.startswith("its process ended")
    assert second.trials == 1 or asked_by_the_dying
    assert first.trials <= (1 if when == "receive" else 0)
    assert first.trials == 1 or first.why.startswith("its process ended")


def test_the_nth_gpu_is_that_of_those_it_may_use() -> None:
    assert visible(1, None) == "1"
    assert visible(1, "4, 6") == "6"
