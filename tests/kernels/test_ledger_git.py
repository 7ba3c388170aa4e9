"""A run as git commits: every trial one, every discard taken back, nothing lost when killed in between."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from kernels.candidate import Candidate
from kernels.ledger import Ledger, LedgerError
from kernels.ledger_git import GitBook
from tests.kernels.test_ledger import LINE


def candidate(number: int) -> Candidate:
    return Candidate(f"x = {number}\n", "x", "python", "own_kernel", "bitwise")


def add(ledger: Ledger, decision: str) -> None:
    number = len(ledger.lines) + 1
    made = candidate(number)
    ledger.keep(made)
    ledger.add(replace(LINE, trial=number, candidate_sha256=made.sha256, decision=decision))


def log(folder: Path) -> list[str]:
    done = subprocess.run(
        ["git", "log", "--reverse", "--format=%s"], cwd=folder / "git", capture_output=True, text=True, check=True
    )
    return [" ".join(line.split()[:3]).rstrip(",") for line in done.stdout.splitlines()]


def test_every_trial_is_a_commit_and_the_source_is_the_best_one_s(tmp_path: Path) -> None:
    """Kept trials stay, others are followed by their way back."""
    with Ledger(tmp_path) as ledger:
        book = GitBook(ledger)
        for decision in ("discard", "keep", "revert", "crash", "keep", "revert"):
            add(ledger, decision)
            book.write()
    assert log(tmp_path) == [
        "Trial 1: discard", "Revert 1: back", "Trial 2: keep", "Trial 3: revert", "Revert 3: back",
        "Trial 4: crash", "Revert 4: back", "Trial 5: keep", "Trial 6: revert", "Revert 6: back",
    ]  # fmt: skip
    assert (tmp_path / "git" / "candidate").read_text() == "x = 5\n"


@pytest.mark.parametrize("lost", [1, 2])
def test_commits_lost_to_a_kill_are_written_with_the_next_trial(tmp_path: Path, lost: int) -> None:
    """Whether the trial's commit or only its way back is missing, the history ends complete."""
    with Ledger(tmp_path) as ledger:
        book = GitBook(ledger)
        for decision in ("keep", "revert"):
            add(ledger, decision)
        book.write()
        whole = log(tmp_path)
        subprocess.run(["git", "reset", "-q", "--hard", f"HEAD~{lost}"], cwd=tmp_path / "git", check=True)
        GitBook(ledger).write()
    assert log(tmp_path) == whole
    assert (tmp_path / "git" / "candidate").read_text() == "x = 1\n"


def test_a_repository_that_git_cannot_write_is_told_by_its_folder(tmp_path: Path) -> None:
    """Git's own words and the folder are in the error."""
    with Ledger(tmp_path) as ledger:
        book = GitBook(ledger)
        add(ledger, "keep")
        (tmp_path / "git" / ".git" / "index.lock").write_text("")
        with pytest.raises(LedgerError, match=r"git: git add"):
            book.write()
