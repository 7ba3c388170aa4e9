"""Runbooks and post-mortems: Markdown in folders and git repositories, by section, searched and quoted as evidence.

They are people's words about machines, and some of them tell a reader what to do. A section is data: it is marked
where it addresses a reader (`agent.rca.redact`), it can prove nothing but that it says what it says, and it may not
contest a plan. A repository is cloned into the state folder and fetched again in the background.
"""

from __future__ import annotations

import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from nightshift.agent.rca.meaning import Meaning
from nightshift.agent.rca.search import best, fused
from nightshift.collectors.base import Permanent, Temporary
from nightshift.collectors.seal import sha256_hex

MAX_FILES, MAX_FILE_BYTES, MAX_SECTION = 5_000, 512 * 1024, 3_000
LOOK_AGAIN_S, FETCH_AGAIN_S, GIT_S = 30.0, 600.0, 60.0
CANDIDATES = 20
_REPOSITORY = re.compile(r"(?:https?|ssh|git|file)://\S+|[\w.-]+@[\w.-]+:\S+")
_HEADING = re.compile(r"(?m)^#{1,6}[ \t]+(.+?)[ \t#]*$")


def is_repository(address: str) -> bool:
    """Whether an address is a git URL rather than a folder. What git would run (`ext::…`) or read as an option is
    neither."""
    return _REPOSITORY.fullmatch(address) is not None


@dataclass(frozen=True, slots=True)
class RunbookSection:
    """A section of a file: its place, its heading, and its lines."""

    source: str
    path: str
    heading: str
    text: str


class Runbooks:
    """All sections of the configured places. `cache`: where repositories are cloned. `meaning`: finds sections that
    say the same in other words; None: words alone."""

    def __init__(
        self,
        places: Sequence[str],
        cache: Path,
        timer: Callable[[], float] = time.monotonic,
        meaning: Meaning | None = None,
    ) -> None:
        self._places, self._cache, self._timer, self._meaning = tuple(places), cache, timer, meaning
        self._lock = threading.Lock()
        self._sections: list[RunbookSection] = []
        self._seen: tuple[tuple[str, float, int], ...] | None = None
        self._look_s = self._fetch_s = float("-inf")
        self._log = structlog.get_logger("runbooks")

    def search(self, question: str, limit: int = 3) -> list[RunbookSection]:
        """The sections that bear the question's words, or are near it in meaning, the best first. Raises Temporary
        where no place can be read."""
        sections = self.sections()
        texts = [f"{s.path} {s.heading} {s.heading} {s.text}" for s in sections]
        near = [] if self._meaning is None else self._meaning.near(texts, question)
        return [sections[at] for at in fused(best(texts, question, max(limit, CANDIDATES)), near)[:limit]]

    def sections(self) -> list[RunbookSection]:
        """All of them, as they are now. Raises Temporary where no place can be read."""
        with self._lock:
            now_s = self._timer()
            if any(map(is_repository, self._places)) and now_s - self._fetch_s >= FETCH_AGAIN_S:
                first, self._fetch_s = self._fetch_s == float("-inf"), now_s
                fetch = threading.Thread(target=self.fetch, name="runbooks-git", daemon=True)
                fetch.start()
                if first:  # the first question waits for the first clone; later ones read what is there
                    fetch.join(GIT_S)
            if now_s - self._look_s >= LOOK_AGAIN_S or not self._sections:
                self._look_s = now_s
                self._read()
            return self._sections

    def fetch(self) -> list[str]:
        """Clones or fetches every repository; returns what went wrong, place by place."""
        problems = []
        for place in filter(is_repository, self._places):
            try:
                self._fetch_one(place, self._folder(place))
            except (OSError, subprocess.SubprocessError) as error:
                said = getattr(error, "stderr", None) or str(error)
                problems.append(f"{place}: {str(said).strip()[-300:]}")
                self._log.error("runbooks fetch failed", place=place, error=problems[-1])
        self._fetch_s = self._timer()
        return problems

    def _folder(self, place: str) -> Path:
        return self._cache / sha256_hex(place.encode())[:16] if is_repository(place) else Path(place)

    def _fetch_one(self, place: str, folder: Path) -> None:
        # no prompt, no hooks and no submodules of strangers: files are all that is wanted
        plain = ["git", "-c", "core.hooksPath=/dev/null", "-c", "core.symlinks=false"]
        environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0", "GIT_SSH_COMMAND": "ssh -oBatchMode=yes"}

        def git(*words: str) -> None:
            subprocess.run(
                [*plain, *words], check=True, capture_output=True, text=True, timeout=GIT_S, env=environment
            )

        if (folder / ".git").exists():
            git("-C", str(folder), "fetch", "--quiet", "--depth", "1", "origin", "HEAD")
            git("-C", str(folder), "reset", "--quiet", "--hard", "FETCH_HEAD")
        else:
            folder.parent.mkdir(parents=True, exist_ok=True)
            git("clone", "--quiet", "--depth", "1", "--", place, str(folder))

    def _read(self) -> None:
        roots = [(place, self._folder(place)) for place in self._places]
        missing = [place for place, root in roots if not root.is_dir()]
        if missing and len(missing) == len(roots):
            raise Temporary(f"runbooks: {', '.join(missing)[:200]}: not there, or not cloned yet")
        files = [(place, root, file) for place, root in roots if root.is_dir() for file in _files(root)]
        if len(files) > MAX_FILES:
            self._log.warning("runbooks cut", files=len(files), read=MAX_FILES)
        seen = tuple((str(file), stat.st_mtime, stat.st_size) for *_, file in files if (stat := _stat(file)))
        if seen == self._seen:
            return
        self._sections = [
            section for place, root, file in files[:MAX_FILES] for section in _sections_of(place, root, file)
        ]
        self._seen = seen


def _stat(file: Path) -> os.stat_result | None:
    try:
        return file.stat()
    except OSError:
        return None


def _files(root: Path) -> list[Path]:
    """Markdown below a folder. A link that leads out of it is none of ours."""
    inside = root.resolve()
    found = [file for kind in ("*.md", "*.markdown") for file in root.rglob(kind)]
    return sorted(file for file in found if file.is_file() and file.resolve().is_relative_to(inside))


def _sections_of(place: str, root: Path, file: Path) -> list[RunbookSection]:
    try:
        text = file.read_bytes()[:MAX_FILE_BYTES].decode("utf-8", "replace")
    except OSError:
        return []
    path = str(file.relative_to(root))
    starts = [(match.start(), match.group(1)[:200]) for match in _HEADING.finditer(text)]
    starts = [*([(0, path)] if not starts or text[: starts[0][0]].strip() else []), *starts]
    ends = [*(at for at, _ in starts[1:]), len(text)]
    return [
        RunbookSection(place, path, heading, part)
        for (start, heading), end in zip(starts, ends, strict=True)
        for at in range(start, end, MAX_SECTION)
        if (part := text[at : min(at + MAX_SECTION, end)].strip())
    ]


def check(addresses: Sequence[str], cache: Path) -> str:
    """What can be searched, in words for doctor. Raises Permanent, naming the place, where one cannot be."""
    for address in addresses:
        if not is_repository(address) and not Path(address).is_dir():
            raise Permanent(f"runbooks: {address}: neither a folder nor a git URL")
    books = Runbooks(addresses, cache)
    if problems := books.fetch():
        raise Permanent(f"runbooks: {'; '.join(problems)}")
    sections = books.sections()
    return f"{len(sections)} sections in {len({(s.source, s.path) for s in sections})} files"
