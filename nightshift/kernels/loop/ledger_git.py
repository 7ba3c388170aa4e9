"""A run as git commits, for people who read a search with their usual tools: `git log`, `git show`, `git bisect`.

In RUN/git, every trial commits the candidate's source and its ledger line; a trial that was not kept is followed by
a commit that takes the source back to the best. The ledger stays the truth: this is written from it, and a trial
whose commit is missing (the process was killed between the two) is written with the next one.

All goes to the branch `search`, wherever people left HEAD (a bisect, a branch of theirs), which comes back to it.
Their commits on it and their other files stay; of the two files that are ours, what is not committed goes.
"""

from __future__ import annotations

import json
import os
import re
import subprocess

from nightshift.kernels.loop.ledger import Ledger, LedgerError, Line, read_candidate_of

_IDENTITY = ("-c", "user.name=nightshift", "-c", "user.email=nightshift@localhost", "-c", "commit.gpgsign=false",
             "-c", "core.hooksPath=/dev/null")  # fmt: skip
_BRANCH = "refs/heads/search"
_SUBJECT = re.compile(r"(Trial|Revert) ([0-9]+): ")
_FILES = ("candidate", "trial.json")


class GitBook:
    """The repository beside a ledger. Raises LedgerError where git is missing or fails."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._folder = ledger.folder / "git"
        self._folder.mkdir(exist_ok=True)
        self._git("init", "-q", "-b", "search")  # also where one was broken off; the same again changes nothing
        for lock in (self._folder / ".git").rglob("*.lock"):
            lock.unlink()  # of a git that was killed: the ledger is open here alone
        self._git("symbolic-ref", "HEAD", _BRANCH)
        (self._folder / ".git" / "index").unlink(missing_ok=True)  # a kill or a crash may have damaged it
        self._git("reset", "-q")  # made anew of the branch; files stay

    def write(self) -> None:
        """Commit every trial of the ledger that has no commit yet."""
        done = self._written()
        best: Line | None = None
        for line in self._ledger.lines:
            if line.trial > done:
                self._commit(line)
                if line.decision != "keep":
                    self._take_back(line, best)
            if line.decision == "keep":
                best = line

    def _written(self) -> int:
        """The last trial with a commit, and its way back where it needed one."""
        if not self._git("for-each-ref", _BRANCH):
            return 0
        subjects = self._git("log", "--first-parent", "--format=%s", _BRANCH).splitlines()
        told = next((found for text in subjects if (found := _SUBJECT.match(text))), None)
        if told is None:
            return 0
        number = int(told[2])
        if not 0 < number <= len(self._ledger.lines):
            raise LedgerError(f"{self._folder}: tells of trial {number}, the ledger of {len(self._ledger.lines)}")
        line = self._ledger.lines[number - 1]
        if line.decision != "keep" and told[1] != "Revert":
            kept = [x for x in self._ledger.lines[: number - 1] if x.decision == "keep"]
            self._take_back(line, kept[-1] if kept else None)
        return number

    def _commit(self, line: Line) -> None:
        self._put(line)
        (self._folder / "trial.json").write_text(json.dumps(line.to_json(), indent=1) + "\n")
        said = f"Trial {line.trial}: {line.decision}, {line.status} ({line.reason})"
        self._save(said, f"{line.hypothesis}\n\n{line.detail}")

    def _take_back(self, line: Line, best: Line | None) -> None:
        if best is None:
            (self._folder / "candidate").unlink(missing_ok=True)
        else:
            self._put(best)
        self._save(f"Revert {line.trial}: back to {f'trial {best.trial}' if best else 'nothing'}", "")

    def _put(self, line: Line) -> None:
        candidate = read_candidate_of(self._ledger.folder, line.candidate_sha256)
        (self._folder / "candidate").write_text(candidate.source)

    def _save(self, subject: str, body: str) -> None:
        self._git("update-index", "--add", "--remove", *_FILES)  # whatever the user's settings ignore
        said = f"{subject}\n\n{body or '-'}".replace("\0", "\ufffd")
        self._git(*_IDENTITY, "commit", "-q", "--allow-empty", "--cleanup=whitespace", "-F", "-", said=said)

    def _git(self, *words: str, said: str = "") -> str:
        outer = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}  # of a hook
        outer["GIT_DIR"] = ".git"  # where it is damaged, git would look for one around it: the user's own project
        try:
            done = subprocess.run(
                ["git", *words], cwd=self._folder, env=outer, input=said, capture_output=True, encoding="utf-8",
                errors="replace", check=True, timeout=60,
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError) as error:
            said = getattr(error, "stderr", "") or str(error)
            raise LedgerError(f"{self._folder}: git {words[0]}: {said.strip()[:300]}") from error
        return done.stdout.strip()
