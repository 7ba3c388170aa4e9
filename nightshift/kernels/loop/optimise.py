"""From a trace, a model, a problem or a suite to certified kernels: one run, in one folder, that can be killed.

    RUN/run.json            what was asked
    RUN/profile.json        where the step's time goes, and each hotspot's decision (traces and models)
    RUN/peaks.json          the GPU's measured peaks
    RUN/problems/*.py       what was searched: problem files that stand alone
    RUN/tasks/NAME/         one search each: ledger.jsonl, results.tsv, candidates/, certificate.json, and
                            model.jsonl: tokens of each of a language model's replies
    RUN/report.md, .html    written from the ledgers
    RUN/nightshift_kernels.py   the certified kernels, for the job (`kernels.apply`)

Started again with the same folder, a run goes on: finished tasks are read, a broken-off search resumes its ledger.
"""

from __future__ import annotations

import json
import math
import re
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch

from nightshift.collectors.seal import Signer
from nightshift.kernels.certification.certificate import issue
from nightshift.kernels.draw import Draw
from nightshift.kernels.generate.base import Generator, GeneratorError, Task
from nightshift.kernels.generate.best_measured import templates
from nightshift.kernels.generate.template import Apart, Template
from nightshift.kernels.judge.judge import Request
from nightshift.kernels.judge.probes.inputs import INTERPRETER
from nightshift.kernels.judge.race.contest import Pace
from nightshift.kernels.judge.verdict import Status, Verdict
from nightshift.kernels.loop import progress_lines
from nightshift.kernels.loop.executor import Executor
from nightshift.kernels.loop.ledger import GitBook, Ledger, Provenance, write_whole
from nightshift.kernels.loop.ledger_chain import LedgerHead
from nightshift.kernels.loop.search import Ladder, Progress, Result, Search, SearchBudget
from nightshift.kernels.ops.families import families_of
from nightshift.kernels.ops.problems import BY_NAME, named
from nightshift.kernels.problem import Case, Problem, ProblemError
from nightshift.kernels.profile.casts import cast_problems, copies_gain
from nightshift.kernels.profile.gradients import PLACED
from nightshift.kernels.profile.hotspots import Hotspot, Profile
from nightshift.kernels.profile.hotspots import profile as read_profile
from nightshift.kernels.profile.pattern import BIASED
from nightshift.kernels.profile.problem_file import case_of, load_problem, problem_path, write_problem
from nightshift.kernels.profile.products import backward_of, expected_gain
from nightshift.kernels.profile.roofline import Peaks
from nightshift.kernels.regions.author import attempted, region_author

TINY = Pace(min_rounds=2, max_rounds=2, round_s=1e-4, max_calls=3, max_slots=2)
ON_CPU = Ladder((TINY,), INTERPRETER, Request(INTERPRETER, None))
"""Without a GPU: tiny shapes on Triton's interpreter. Times are of the interpreter and mean nothing."""
FIT = frozenset({Status.faster, Status.slower, Status.inconclusive, Status.correct})


class OptimiseError(ValueError):
    """Nothing can be searched for what was asked. The message says why, and what would help."""


@dataclass(frozen=True)
class Work:
    """One thing to search: a slug for its folder, the task, its authors, and where it came from in words.

    source, for_jobs: what `work_again` makes it of in another process.
    """

    slug: str
    task: Task
    generators: tuple[Generator, ...]
    origin: str
    source: str = ""
    for_jobs: bool = False


@dataclass(frozen=True)
class FinishedWork:
    """One finished search. `certified`: its certificate's file, None where none was issued and `why`."""

    work: Work
    result: Result | None
    certified: Path | None
    why: str
    trials: int = 0


@dataclass
class Run:
    """A run's folder and means. `tell` gets one line of progress at a time."""

    folder: Path
    executor: Executor
    provenance: Provenance
    signer: Signer
    budget: SearchBudget = field(default_factory=SearchBudget)
    ladder: Ladder = field(default_factory=Ladder)
    peaks: Peaks | None = None
    seed: int = 0
    clock: Callable[[], float] = time.time
    tell: Callable[[str], None] = print
    git: bool = False  # keep each search as git commits too
    stream: Callable[[str], None] = lambda _line: (
        None
    )  # `kernels.loop.progress_lines`: ledger lines, those of before a kill too
    _voice: threading.Lock = field(default_factory=threading.Lock, init=False)  # one line at a time

    def search(self, works: Sequence[Work]) -> list[FinishedWork]:
        """Searches each work in turn, and issues certificates for what the judge found fit: each while the next
        work is searched already, for a whole verdict waits longer than it keeps the GPU busy."""
        with ThreadPoolExecutor(1) as judged:
            found: list[Future[FinishedWork]] = []
            for work in works:
                conclude = self.explore(work)
                if found:
                    found[-1].result()  # one at a time; where the last one failed, no more is searched
                found.append(judged.submit(conclude))
            return [one.result() for one in found]

    def explore(self, work: Work) -> Callable[[], FinishedWork]:
        """Searches one work. What comes back asks for its whole verdicts and issues the certificate; it may be
        called in another thread, and until it has been, the search's ledger is open."""
        folder = self.folder / "tasks" / work.slug
        if (before := self._before(folder / "certificate.json")) is not None:
            self._stream(progress_lines.certificate(work.slug, before))
            return lambda: FinishedWork(work, None, folder / "certificate.json", "certified before")
        asked = {"origin": work.origin, "task": work.task.name, "seed": self.seed, "authors":
                 [g.name for g in work.generators]}  # fmt: skip
        self._tell(f"{work.slug}: {work.task.name}, from {work.origin}")
        with ExitStack() as open_until:
            ledger = open_until.enter_context(Ledger(folder, asked))
            for line in ledger.lines:
                self._stream(progress_lines.trial(work.slug, line.to_json()))
            search = Search(
                work.task, work.generators, self.executor, ledger, self.provenance, self.budget, self.ladder,
                self.seed, self.clock, partial(self._progress, work.slug),
                GitBook(ledger).write if self.git else lambda: None,
            )  # fmt: skip
            stopped = search.explore()
            for text in search.told:
                self._tell(f"  {text}")
            return partial(self._conclude, work, search, stopped, open_until.pop_all())

    def _conclude(self, work: Work, search: Search, stopped: str, open_until: ExitStack) -> FinishedWork:
        with open_until:
            result = search.conclude(stopped)
            for line in search.ledger.lines:
                if line.full:  # whole verdicts are no steps of the search, and told of here alone
                    self._stream(progress_lines.trial(work.slug, line.to_json()))
        done = self._certify(work, self.folder / "tasks" / work.slug, result, search.ledger.head)
        self._tell(f"{work.slug}: {result.stopped}; {done.why}")
        return done

    def _tell(self, text: str) -> None:
        with self._voice:
            self.tell(text)

    def _stream(self, line: str) -> None:
        with self._voice:
            self.stream(line)

    def _before(self, path: Path) -> dict[str, Any] | None:
        """The certificate that an earlier process issued; None where there is none, or a damaged one."""
        try:
            found = json.loads(path.read_text())
            if not isinstance(found, dict):
                raise ValueError("no JSON object")
        except FileNotFoundError:
            return None
        except (ValueError, RecursionError) as error:
            self._tell(f"{path}: damaged ({error}); its kernel is judged again")
            return None
        return found

    def _progress(self, slug: str, progress: Progress) -> None:
        line = progress.line
        self._stream(progress_lines.trial(slug, line.to_json()))
        best = f"best {progress.best_s * 1e6:.1f} µs" if math.isfinite(progress.best_s) else "nothing kept yet"
        ratio = f", {progress.best_speedup:.2f}×" if math.isfinite(progress.best_speedup) else ""
        self._tell(f"  {line.trial:4} {line.decision:8} {line.status}: {line.reason}; {best}{ratio}")

    def _certify(self, work: Work, folder: Path, result: Result, ledger: LedgerHead) -> FinishedWork:
        verdict, winner = result.verdict, result.winner
        if verdict is None or winner is None or verdict.status not in FIT:
            why = f"no certificate: {verdict.status} ({verdict.detail})" if verdict else "no candidate stood"
            return FinishedWork(work, result, None, why, result.trials)
        moment = datetime.fromtimestamp(self.clock(), UTC).isoformat(timespec="seconds")
        candidate = winner.proposal.candidate
        commit = self.provenance.commit
        envelope = issue(verdict, candidate, work.task.problem, self.signer, moment, commit, ledger)
        path = folder / "certificate.json"
        write_whole(path, json.dumps(envelope, indent=1) + "\n")
        self._stream(progress_lines.certificate(work.slug, envelope))
        why = f"certified as {verdict.status}: {speedup_text(verdict)}"
        return FinishedWork(work, result, path, why, result.trials)


def speedup_text(verdict: Verdict) -> str:
    """The race's outcome in words: against the closest baseline of the slowest case."""
    if not verdict.comparisons:
        return "correct, not raced"
    worst = min(verdict.comparisons, key=lambda c: c.speedup.point)
    low, high = worst.speedup.low, worst.speedup.high
    return f"{worst.speedup.point:.2f}× [{low:.2f}, {high:.2f}] over {worst.baseline} on {worst.case}"


# What to search --------------------------------------------------------------------------------------------------


def from_problem(
    name: str,
    peaks: Peaks | None = None,
    case: Case | None = None,
    seed: int = 0,
    for_jobs: bool = False,
    backward: bool = False,
) -> list[Work]:
    """Each timed case of a reference problem or a problem file (`….py`), or one; backward: gradients too."""
    problem = load_problem(Path(name)) if name.endswith(".py") else named(name)
    if case is not None and (why := problem.outside(case)):
        raise ProblemError(f"{name}, case {str(case)!r}: {why}")
    cases = (case,) if case is not None else problem.cases
    works: list[Work] = []
    for c in cases:
        gradients = [(replace(one, cases=(of,)), of) for one, of in backward_of(problem.name, c) if backward]
        works.append(work_of(replace(problem, cases=(c,)), c, f"problem {name}", peaks, seed, for_jobs, name))
        works += [work_of(one, of, f"problem {name}, backward", peaks, seed, for_jobs) for one, of in gradients]
    return works


def from_trace(
    path: Path,
    folder: Path,
    peaks: Peaks | None,
    most: int = 6,
    min_gain: float = 0.005,
    seed: int = 0,
    problems: frozenset[str] = frozenset(),
    untrained: Collection[str] = (),
) -> tuple[Profile, list[Work], list[tuple[Hotspot, str]]]:
    """(profile, works, decisions): what would gain the step `min_gain`, best first, and why not others; problems,
    untrained: as for `from_profile`."""
    found = read_profile(path, peaks)
    return found, *from_profile(found, folder, peaks, most, min_gain, seed, problems, untrained)


def from_profile(
    found: Profile,
    folder: Path,
    peaks: Peaks | None,
    most: int = 6,
    min_gain: float = 0.005,
    seed: int = 0,
    problems: frozenset[str] = frozenset(),
    untrained: Collection[str] = (),
) -> tuple[list[Work], list[tuple[Hotspot, str]]]:
    """(works, decisions) of a profile, what the step would gain most by first: casts that a kernel saves count.

    Of a hotspot first what writes or reads its casts too; its kernels for code that casts nothing come last of all.
    Matrix products come where `expected_gain` puts them, with the products that their gradients are. problems: only
    these; untrained: of them those that a job's file has a place for only where nothing is differentiated."""
    works: list[Work] = []
    covered: list[Work] = []
    decisions: list[tuple[Hotspot, str]] = []
    searched = 0
    for same, whole, gain in _ranked(found, peaks, bool(problems)):
        why = _not_searched(replace(same[0], gain=gain), min_gain) or _no_place(same[0], problems, untrained)
        why = why or (f"after the {most} best" if searched >= most else "")
        if not why:
            try:
                plain, casts = _works_of(same, found, folder, peaks, seed, bool(problems))
            except (ProblemError, OptimiseError) as error:
                why = str(error)
            else:
                works += casts
                # a kernel that writes the casts saves more: its plain form is for code that casts nothing, and
                # comes last
                (covered if casts else works).extend(plain)
                searched += 1
                layouts = f", in {len(same)} layouts" if len(same) > 1 else ""
                why = f"searched: the step would gain {gain:.1%}{layouts}"
        decisions += [(one, why) for one in whole]
    # of works with one slug the first stays: two hotspots may share a gradient, and a folder holds one search
    return list({work.slug: work for work in reversed(works + covered)}.values())[::-1], decisions


def _ranked(
    found: Profile, peaks: Peaks | None, for_file: bool
) -> list[tuple[list[Hotspot], list[Hotspot], float]]:
    """(what one search is for, the same as the profile has it, what the step would gain), the best first.

    for_file: of a sum and its norm the norm alone, for which a job's file has a place."""
    placed = [replace(h, problem=PLACED[h.problem]) if for_file and h.problem in PLACED else h
              for h in found.hotspots]  # fmt: skip
    whole = {id(part): h for part, h in zip(placed, found.hotspots, strict=True)}
    rate = (peaks or found.peaks).bytes_per_s
    groups = [
        (same, [whole[id(one)] for one in same], _gain_of(same) + copies_gain(found, same[0], rate))
        for same in _alike(placed)
    ]
    return sorted(groups, key=lambda one: (-expected_gain(found, one[0][0], one[2]), -one[2]))


def _alike(hotspots: Sequence[Hotspot]) -> Collection[list[Hotspot]]:
    """Hotspots in groups: one shape in several layouts is one search."""
    groups: dict[tuple[str, str], list[Hotspot]] = {}
    for hotspot in hotspots:
        key = (hotspot.name, hotspot.why) if hotspot.problem else ("", str(len(groups)))
        groups.setdefault(key, []).append(hotspot)
    return groups.values()


def _no_place(hotspot: Hotspot, problems: frozenset[str], untrained: Collection[str]) -> str:
    """Why a job's file holds no kernel for it; without `problems` that is not asked."""
    trained = hotspot.backward_s > 0
    if problems and hotspot.problem not in problems:
        return "the job's file has no place for it"
    if hotspot.problem in untrained and trained:
        return "the job's file has a place for it only where nothing is trained"
    if problems and BIASED in hotspot.why and not trained:
        return "the job's file has a place for it only without a bias"
    return ""


def _works_of(
    same: Sequence[Hotspot], found: Profile, folder: Path, peaks: Peaks | None, seed: int, for_file: bool
) -> tuple[list[Work], list[Work]]:
    """(its own and its gradients', those that write or read its casts) for a hotspot in all its layouts.

    Raises ProblemError or OptimiseError where it is of no problem, or no family writes it.
    """
    hotspot, origin = same[0], f"trace {found.source}"
    path = problem_path(folder, slug_of(f"{hotspot.problem} {case_of(hotspot)}"))
    problem = write_problem(same, path, Path(found.source).name)
    case = problem.cases[0]
    plain = []
    if not (for_file and BIASED in hotspot.why):  # of such a layer the file takes the gradients' products alone
        plain.append(work_of(problem, case, origin, peaks, seed, True, str(path)))
    if hotspot.backward_s > 0:
        gradients = backward_of(hotspot.problem, case)
        plain += [work_of(one, of, f"{origin}, backward", peaks, seed, True) for one, of in gradients]
    casts = [
        work_of(BY_NAME[name], of, f"{origin}, {saving}", peaks, seed, True)
        for name, of, saving in cast_problems(found, hotspot)
    ]
    return plain, casts


def _gain_of(hotspots: Sequence[Hotspot]) -> float:
    """What the step gains if each of these does."""
    left = 1.0 - sum(h.gain / (1.0 + h.gain) for h in hotspots)
    return 1.0 / left - 1.0 if 0.0 < left <= 1.0 else 0.0


def _not_searched(hotspot: Hotspot, min_gain: float) -> str:
    if not hotspot.problem:
        return hotspot.why
    if not families_of(hotspot.problem):
        return f"no family writes {hotspot.problem}"
    if hotspot.gain < min_gain:
        reach = (
            f"{hotspot.utilisation:.0%} of the roofline" if math.isfinite(hotspot.utilisation) else "no roofline"
        )
        return f"the step would gain {hotspot.gain:.2%} ({hotspot.share:.1%} of it, {reach})"
    return ""


def work_of(
    problem: Problem,
    case: Case,
    origin: str,
    peaks: Peaks | None,
    seed: int,
    for_jobs: bool = False,
    source: str = "",
) -> Work:
    """`for_jobs`: only authors whose kernels the job's file can hold, a family's. Else the operation's own regions
    are one, where no family writes it."""
    if not families_of(problem.name) and (for_jobs or problem.mutates):
        raise OptimiseError(f"{problem.name}: no family writes kernels for it")
    floor_s = math.nan
    if peaks is not None:
        floor_s = peaks.floor_s(problem.compulsory_bytes(case), problem.flops(case), case.dtype)
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    authors = tuple(templates(gpu, problem.name, case, seed)) or (_regions(problem, case, seed),)
    if for_jobs:
        authors = tuple(author for author in authors if not author.name.endswith("_cuda"))
        if not problem.mutates:  # a job may read its tensors again
            authors = tuple(replace(author, family=Apart(author.family)) for author in authors)
    slug = slug_of(f"{problem.name} {case}")
    return Work(slug, Task(problem, case, floor_s), authors, origin, source or problem.name, for_jobs)


def _regions(problem: Problem, case: Case, seed: int) -> Template:
    """The author of an operation that no family writes. Raises OptimiseError where it has no graph."""
    try:
        forms = problem.make_inputs(case, Draw(1, "normal", "meta"))
    except (NotImplementedError, RuntimeError):  # drawn in a way that needs values
        forms = problem.make_inputs(case, Draw(1, "normal", "cpu"))
    author = region_author(problem, forms, "cuda" if torch.cuda.is_available() else "cpu", seed)
    try:
        attempted(author, case)
    except GeneratorError as error:
        raise OptimiseError(f"{problem.name}: no family writes kernels for it, and {error}") from error
    return author


def slug_of(text: str) -> str:
    """A folder's name: letters, digits and dashes."""
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-").lower()[:80] or "task"


# Reading a run ---------------------------------------------------------------------------------------------------


def tasks_of(run: Path) -> Iterator[tuple[str, Path]]:
    """(slug, folder) of each search in a run."""
    for folder in sorted((run / "tasks").glob("*")):
        if (folder / "ledger.jsonl").exists():
            yield folder.name, folder


def find_trial(run: Path, text: str) -> tuple[Path, int]:
    """`SLUG:NUMBER`, or NUMBER where the run has one search. Raises OptimiseError."""
    slug, colon, number = text.rpartition(":")
    folders = dict(tasks_of(run))
    # one search's own folder, as `Ledger` alone writes it
    if not folders and (run / "ledger.jsonl").exists():
        folders = {run.name: run}
    if not folders:
        raise OptimiseError(f"{run}: holds no search")
    if not colon and len(folders) != 1:
        raise OptimiseError(
            f"{text}: the run has {len(folders)} searches; say SEARCH:NUMBER, one of {sorted(folders)}"
        )
    folder = folders.get(slug) if colon else next(iter(folders.values()))
    if folder is None or not number.isdecimal():
        raise OptimiseError(f"{text}: no trial; searches are {', '.join(sorted(folders))}")
    return folder, int(number)
