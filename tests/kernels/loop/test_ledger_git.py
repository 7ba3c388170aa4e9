"""A run as git commits: every trial one, every discard taken back, nothing lost when killed in between."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from nightshift.kernels.candidate import Candidate
from nightshift.kernels.loop.ledger import GitBook, Ledger, LedgerError
from tests.kernels.loop.test_ledger import LINE


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
        with pytest.raises(LedgerError, match=r"git: git update-index"):
            book.write()


def test_what_a_kill_leaves_of_git_does_not_stop_the_next_process(tmp_path: Path) -> None:
    """A lock, a repository without a commit whose first trial lies there, and one that was not made to its end."""
    with Ledger(tmp_path) as ledger:
        add(ledger, "keep")
        (tmp_path / "git" / ".git").mkdir(parents=True)
        (tmp_path / "git" / "trial.json").write_text("{}")
        book = GitBook(ledger)
        (tmp_path / "git" / ".git" / "index.lock").write_text("")
        (tmp_path / "git" / ".git" / "refs" / "heads" / "search.lock").write_text("")
        with pytest.raises(LedgerError, match="lock"):
            book.write()
        GitBook(ledger).write()
    assert log(tmp_path) == ["Trial 1: keep"]


def test_what_a_candidate_says_and_what_a_hook_has_set_stay_out_of_git(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing in a message can end the search, and no other repository gets its commits."""
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "another"))
    with Ledger(tmp_path) as ledger:
        made = candidate(1)
        ledger.keep(made)
        said = "a\0b \ud800 " + "z" * 300_000
        ledger.add(replace(LINE, trial=1, candidate_sha256=made.sha256, detail=said, hypothesis="# not a comment"))
        GitBook(ledger).write()
    monkeypatch.delenv("GIT_DIR")
    assert log(tmp_path) == ["Trial 1: keep"]
    body = subprocess.run(
        ["git", "log", "-1", "--format=%b"], cwd=tmp_path / "git", capture_output=True, text=True, check=True
    ).stdout
    assert body.startswith("# not a comment\n\na\ufffdb ")
    assert not (tmp_path / "another").exists()
    with Ledger(tmp_path) as again:
        assert again.lines[0].detail == said.replace("\ud800", "\ufffd")


@pytest.mark.parametrize(
    "left",
    [
        ["checkout -q HEAD~2"],
        ["checkout -q -b mine HEAD~3"],
        ["checkout -q --orphan empty"],
        ["bisect start", "bisect bad", "bisect good HEAD~4"],
        ["-c user.name=a -c user.email=b commit -q --allow-empty -m note"],
        ["config core.excludesFile .git/ours"],
    ],
)
def test_where_people_left_the_repository_does_not_change_what_is_written(tmp_path: Path, left: list[str]) -> None:
    """A bisect, another branch, a commit of theirs: the search's branch has each trial once, their files stay."""
    with Ledger(tmp_path) as ledger:
        for decision in ("discard", "keep", "revert", "keep"):
            add(ledger, decision)
        GitBook(ledger).write()
        (tmp_path / "git" / ".git" / "ours").write_text("*\n")
        for words in left:
            subprocess.run(["git", *words.split()], cwd=tmp_path / "git", check=True, capture_output=True)
        (tmp_path / "git" / "notes.txt").write_text("mine")
        add(ledger, "revert")
        GitBook(ledger).write()
    assert [said for said in log(tmp_path) if said != "note"] == [
        "Trial 1: discard", "Revert 1: back", "Trial 2: keep", "Trial 3: revert", "Revert 3: back",
        "Trial 4: keep", "Trial 5: revert", "Revert 5: back",
    ]  # fmt: skip
    assert (tmp_path / "git" / ".git" / "HEAD").read_text() == "ref: refs/heads/search\n"
    assert (tmp_path / "git" / "candidate").read_text() == "x = 4\n"
    assert (tmp_path / "git" / "notes.txt").read_text() == "mine"


def test_a_damaged_index_and_a_longer_history_than_the_ledger_s(tmp_path: Path) -> None:
    """The index is made anew; a repository of another ledger is told of, not written to."""
    with Ledger(tmp_path) as ledger:
        for decision in ("keep", "revert"):
            add(ledger, decision)
        GitBook(ledger).write()
        (tmp_path / "git" / ".git" / "index").write_text("xx")
        add(ledger, "keep")
        GitBook(ledger).write()
        del ledger.lines[1:]
        with pytest.raises(LedgerError, match="tells of trial 3, the ledger of 1"):
            GitBook(ledger).write()
    assert log(tmp_path) == ["Trial 1: keep", "Trial 2: revert", "Revert 2: back", "Trial 3: keep"]


def test_a_damaged_repository_never_becomes_the_one_around_it(tmp_path: Path) -> None:
    """A run lies inside the user's project as a rule: nothing is committed there, and its HEAD stays."""
    project = tmp_path / "run"
    project.mkdir()
    subprocess.run(["git", "init", "-q", "-b", "main"], cwd=project, check=True)
    with Ledger(project) as ledger:
        add(ledger, "keep")
        GitBook(ledger).write()
        (project / "git" / ".git" / "HEAD").write_text("")
        add(ledger, "keep")
        with pytest.raises(LedgerError, match="not a git repository"):
            GitBook(ledger).write()
    assert (project / ".git" / "HEAD").read_text() == "ref: refs/heads/main\n"
    assert not list((project / ".git" / "refs" / "heads").iterdir())
