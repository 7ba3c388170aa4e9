"""The search: ask authors, have the judge race what they propose, keep what is better, write everything down.

Rungs are races of growing precision (successive halving: Jamieson and Talwalkar 2016): every proposal runs the
quickest, the best share of each batch the next, and only what wins there is kept. The winner then gets a whole
verdict; where that refuses it, the next best does. The ledger is the only state: a search that was killed opens it
and goes on.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from nightshift.collectors.base import Temporary
from nightshift.kernels.generate.base import TIMED, Generator, GeneratorError, Outcome, Proposal, Task, seconds_of
from nightshift.kernels.judge.judge import Judge, Request
from nightshift.kernels.judge.probes.inputs import FULL_GPU, QUICK_GPU
from nightshift.kernels.judge.probes.sizes import Scope
from nightshift.kernels.judge.race.contest import FULL, QUICK, Pace
from nightshift.kernels.judge.verdict import Status, Verdict
from nightshift.kernels.loop.executor import Executor, Job
from nightshift.kernels.loop.ledger import Decision, Ledger, LedgerError, Line, Provenance, read_candidate_of
from nightshift.kernels.problem import Case

CAREFUL = Pace(min_rounds=15, max_rounds=25, round_s=0.003, max_slots=3, check_every=3)

RETRIES = 3
"""How often an author that is busy for now (a rate limit, a timeout) is asked again before it is left out."""
RETRY_S = 15.0
"""Before an author that nobody else stands in for is asked again; twice as long each time."""
NOTHING_LEFT = "nothing left to try"
FAULTS = 3
"""Machine faults in a row, each of which was judged again already, after which no more of the batch is tried."""
PAUSE_S = 120.0
"""Longer than authors think between two trials: what is longer was not a search."""


@dataclass(frozen=True)
class SearchBudget:
    """When to stop. trials: proposals judged. patience: that many in a row without a better one.

    wall_s: looked at after every verdict, the first batch has twice as much; what is under way then is waited for
    but not written down, and the fastest candidate still gets its whole verdict. roof_share: fast enough at this
    share of the roofline. target_s: at this time.
    """

    trials: int = 100
    wall_s: float = 900.0
    patience: int = 40
    roof_share: float = 0.9
    target_s: float = 0.0
    batch: int = 8
    halving: int = 4


@dataclass(frozen=True)
class Ladder:
    """Paces by rung, the quickest first, and what a whole verdict asks. On a CPU the paces are None: no time."""

    paces: tuple[Pace, ...] = (QUICK, CAREFUL)
    scope: Scope = QUICK_GPU
    full: Request = Request(FULL_GPU, FULL)  # noqa: RUF009  frozen


@dataclass(frozen=True)
class Progress:
    """Told after every trial."""

    line: Line
    trials: int
    best_s: float
    best_speedup: float
    elapsed_s: float


@dataclass(frozen=True)
class Result:
    """best: the fastest that a race kept. verdict: the whole verdict of the winner, None where none was asked for
    or none stood. stopped: why, in words."""

    best: Outcome | None
    winner: Outcome | None
    verdict: Verdict | None
    stopped: str
    trials: int


def _silent(progress: Progress) -> None:
    """Nobody watches."""


def _nothing() -> None:
    """No other book is kept."""


@dataclass
class Search:
    """One task, its authors and a ledger. `clock` gives Unix time; `wait` lets seconds pass."""

    task: Task
    generators: Sequence[Generator]
    executor: Executor
    ledger: Ledger
    provenance: Provenance
    budget: SearchBudget = field(default_factory=SearchBudget)
    ladder: Ladder = field(default_factory=Ladder)
    seed: int = 0
    clock: Callable[[], float] = time.time
    tell: Callable[[Progress], None] = _silent
    book: Callable[[], None] = _nothing  # after every trial, such as `kernels.loop.ledger.GitBook.write`
    wait: Callable[[float], None] = time.sleep

    def __post_init__(self) -> None:
        self._start_s = self.clock()
        self._idle: dict[str, str] = {}
        self._busy: dict[str, int] = {}  # authors that were, and how often in a row
        self.history: list[Outcome] = []
        known: dict[str, Proposal] = {}
        for line in self.ledger.lines:
            if line.problem != self.task.problem.name or line.case != self.task.case.to_json():
                raise LedgerError(f"{self.ledger.folder}: trial {line.trial} is of {line.problem}, another task")
            if line.candidate_sha256 not in known:
                made = read_candidate_of(self.ledger.folder, line.candidate_sha256)
                known[line.candidate_sha256] = Proposal(
                    made, line.generator, dict(line.config), line.hypothesis, line.tokens
                )
            self.history.append(_outcome(line, known[line.candidate_sha256]))
        self._before_s = _worked_s(self.ledger.lines)
        self._before = len(self.ledger.lines)

    @property
    def best(self) -> Outcome | None:
        """The last one kept: the fastest on the highest rung."""
        return next((o for o in reversed(self.history) if o.kept), None)

    @property
    def told(self) -> list[str]:
        """What authors said before they left the search, other than that they are at their end."""
        return [text for text in self._idle.values() if not text.endswith(NOTHING_LEFT)]

    @property
    def trials(self) -> int:
        """Proposals judged so far: later rungs of the same candidate are not counted again."""
        return sum(line.of == 0 for line in self.ledger.lines)

    def run(self, certify: bool = True) -> Result:
        """Search until the budget says stop, then ask for whole verdicts."""
        stopped = self.explore()
        return self.conclude(stopped) if certify else Result(self.best, None, None, stopped, self.trials)

    def explore(self) -> str:
        """Search until the budget says stop; why, in words."""
        while not (why := self._enough()):
            proposals = self._ask(min(self.budget.batch, self.budget.trials - self.trials))
            if not proposals and self._busy:
                self.wait(RETRY_S * 2 ** (min(self._busy.values()) - 1))
                continue
            if not proposals:
                return NOTHING_LEFT if not self._idle else "; ".join(self._idle.values())
            self._climb(proposals)
        return why

    def conclude(self, stopped: str) -> Result:
        """Whole verdicts of the fastest; `stopped`: what `explore` said."""
        winner, verdict = self._certify()
        return Result(self.best, winner, verdict, stopped, self.trials)

    def _enough(self) -> str:
        budget, best = self.budget, self.best
        if self.trials >= budget.trials:
            return f"{self.trials} trials"
        if self._late():
            return f"{budget.wall_s:g} s are over"
        if best is not None and best.seconds <= budget.target_s:
            return f"target of {budget.target_s * 1e6:.1f} µs reached"
        if best is not None and self.task.floor_s >= budget.roof_share * best.seconds:
            return f"{self.task.floor_s / best.seconds:.0%} of the roofline"
        if why := self._broken():
            return why
        firsts = [line for line in self.ledger.lines if line.of == 0]
        kept = max((line.of or line.trial for line in self.ledger.lines if line.decision == "keep"), default=0)
        since = sum(line.trial > kept for line in firsts)
        return f"no better one in {since} trials" if since >= budget.patience else ""

    def _broken(self) -> str:
        """Why the machine gives no verdicts: its last `FAULTS` trials of this process met one fault. Before a
        search that was stopped so begins again, somebody may have mended it."""
        last = [o for o in self.history if o.trial > self._before][-FAULTS:]
        if len(last) < FAULTS or {o.status for o in last} != {Status.machine_fault}:
            return ""
        if len({o.reason for o in last}) > 1:
            return ""
        return f"stopped: {FAULTS} trials in a row met the machine's fault {last[-1].reason} ({last[-1].detail})"

    def _late(self) -> bool:
        """Whether the time is over. There is twice as much for the first batch, whose judges have to start, and
        while nothing stands: all but the first of the batch's verdicts under way would be lost to that one."""
        begun = self.trials >= min(self.budget.batch, self.budget.trials)
        stands = any(outcome.timed for outcome in self.history)
        return self._elapsed_s() >= self.budget.wall_s * (1.0 if (begun and stands) or not self.history else 2.0)

    def _elapsed_s(self) -> float:
        return self._before_s + self.clock() - self._start_s

    def _ask(self, count: int) -> list[Proposal]:
        """Authors in turn, those with nothing to say left out; nothing that was judged before."""
        seen = {o.proposal.candidate.sha256 for o in self.history}
        authors = [g for g in self.generators if g.name not in self._idle]
        # another author first each time: the first one has the largest share
        turn = len(self.history) % max(1, len(authors))
        fresh: list[Proposal] = []
        for place, author in enumerate(authors[turn:] + authors[:turn]):
            # rounded up, and what one author leaves is the next one's: no batch stays short while one has ideas
            share = -(-(count - len(fresh)) // (len(authors) - place))
            try:
                proposals = author.propose(self.task, self.history, share)
            except GeneratorError as error:
                self._idle[author.name] = f"{author.name}: {error}"
                continue
            except Temporary as error:
                self._busy[author.name] = self._busy.get(author.name, 0) + 1
                # one rate limit is no reason to leave a language model out; an endless one is
                if self._busy[author.name] > RETRIES:
                    del self._busy[author.name]
                    self._idle[author.name] = f"{author.name}: {error}"
                continue
            self._busy.pop(author.name, None)
            new = list({p.candidate.sha256: p for p in proposals if p.candidate.sha256 not in seen}.values())
            if not new:
                self._idle[author.name] = f"{author.name}: {NOTHING_LEFT}"
            seen |= {p.candidate.sha256 for p in new}
            fresh += new[:share]
        return fresh[:count]

    def _climb(self, proposals: Sequence[Proposal]) -> None:
        """A batch up the rungs; the best share of those that ran takes the next."""
        standing: list[tuple[Proposal, int]] = [(p, 0) for p in proposals]
        top = len(self.ladder.paces) - 1
        for rung, pace in enumerate(self.ladder.paces):
            request = Request(self.ladder.scope, pace, cases=(self.task.case,), search=True)
            ran = sorted(self._judge(standing, request, rung, rung == top), key=lambda o: o.seconds)
            best = self.best
            # within 3 % a quick race cannot tell: the next rung decides. Against a best of a lower rung times say
            # nothing
            near = [o for o in ran if best is None or o.seconds < 1.03 * best.seconds or best.rung < rung]
            standing = [(o.proposal, o.trial) for o in near[: max(1, len(proposals) // self.budget.halving)]]
            if not standing or self._late() or self._broken():
                return

    def _judge(
        self, standing: Sequence[tuple[Proposal, int]], request: Request, rung: int, last: bool
    ) -> list[Outcome]:
        """Outcomes with a time. Every verdict is in the ledger before the next is looked at."""
        named = {str(n): item for n, item in enumerate(standing)}
        for proposal, _ in standing:
            self.ledger.keep(proposal.candidate)
        jobs = [Job(key, p.candidate, self.task.problem, request) for key, (p, _) in named.items()]
        ran = []
        # left before its end, the executor must begin no further job
        with contextlib.closing(self.executor.run(jobs)) as verdicts:
            for job, verdict in verdicts:
                proposal, of = named[job.key]
                line = self._line(proposal, verdict, rung, of, last, False)
                self.ledger.add(line)
                self.book()
                outcome = _outcome(line, proposal)
                self.history.append(outcome)
                best = self.best
                self.tell(
                    Progress(
                        line,
                        self.trials,
                        best.seconds if best else math.nan,
                        max((x.speedup[1] for x in self.ledger.lines if x.decision == "keep"), default=math.nan),
                        self._elapsed_s(),
                    )
                )
                if outcome.timed:
                    ran.append(outcome)
                if self._late() or self._broken():
                    break
        return ran

    def _line(self, proposal: Proposal, verdict: Verdict, rung: int, of: int, last: bool, full: bool) -> Line:
        seconds = seconds_of(verdict, self.task.case)
        raced = [c for c in verdict.comparisons if c.case == str(self.task.case)]
        closest = min(raced, key=lambda c: c.baseline_s, default=None)
        s = closest.speedup if closest is not None else None
        return Line(
            trial=len(self.ledger.lines) + 1,
            at_s=self.clock(),
            seed=self.seed,
            commit=self.provenance.commit,
            gpu=str(verdict.environment.get("gpu") or self.provenance.gpu),  # another machine's judge says its own
            container=str(verdict.environment.get("container") or self.provenance.container),
            generator=proposal.generator,
            problem=self.task.problem.name,
            case=self.task.case.to_json(),
            config=proposal.config,
            hypothesis=proposal.hypothesis,
            candidate_sha256=proposal.candidate.sha256,
            rung=rung,
            decision=self._decision(verdict, seconds, last and not full),
            status=verdict.status.value,
            reason=verdict.reason.value,
            detail=verdict.detail,
            stage=verdict.stage,
            of=of,
            seconds=seconds,
            baselines={c.baseline: c.baseline_s for c in raced},
            work=verdict.work.get(str(self.task.case), {}),
            speedup=(s.low, s.point, s.high) if s is not None else (math.nan,) * 3,
            floor_s=self.task.floor_s,
            took_s=verdict.took_s,
            secret=verdict.secret,
            # later rungs judge the same text: its tokens were counted
            tokens=proposal.tokens if not of else 0,
            full=full,
        )

    def _decision(self, verdict: Verdict, seconds: float, last: bool) -> Decision:
        """last: of the highest rung, where alone a time is precise enough to take the best one's place."""
        if verdict.status is Status.machine_fault:
            return "crash"
        if verdict.refused:
            return "discard"
        better = self.best is None or seconds < self.best.seconds
        return "keep" if last and better and verdict.status in TIMED else "revert"

    def _certify(self, tries: int = 3) -> tuple[Outcome | None, Verdict | None]:
        """Whole verdicts, the fastest first, until one stands. The last verdict is given back either way.

        What one refused before the search was taken up is left out: starting again is no second chance.
        """
        found: Verdict | None = None
        refused = {x.candidate_sha256 for x in self.ledger.lines if x.full and x.decision == "discard"}
        for outcome in [o for o in self._fastest()[:tries] if o.proposal.candidate.sha256 not in refused]:
            if found is not None and self._late():
                break
            request = replace(self.ladder.full, cases=(self.task.case,))
            job = Job("full", outcome.proposal.candidate, self.task.problem, request)
            for _, verdict in self.executor.run([job]):
                line = self._line(outcome.proposal, verdict, outcome.rung, outcome.trial, False, True)
                self.ledger.add(line)
                self.book()
                found = verdict
                if not verdict.refused and verdict.status is not Status.machine_fault:
                    return _outcome(line, outcome.proposal), verdict
        return None, found

    def _fastest(self) -> list[Outcome]:
        """Distinct candidates by their time on the highest rung they reached."""
        latest: dict[str, Outcome] = {}
        for outcome in self.history:
            if outcome.timed:
                latest[outcome.proposal.candidate.sha256] = outcome
        return sorted(latest.values(), key=lambda o: (-o.rung, o.seconds))


def _worked_s(lines: Sequence[Line]) -> float:
    """How long a search has gone on already (s): from line to line, but not while it was stopped. A line is written
    as soon as its verdict is there: within the judge's time and a pause for its author after what was before."""
    gaps = [(max(0.0, after.at_s - before.at_s), after) for before, after in itertools.pairwise(lines)]
    return sum(min(gap, (line.took_s if line.took_s > 0 else 0.0) + PAUSE_S) for gap, line in gaps)


def _outcome(line: Line, proposal: Proposal) -> Outcome:
    return Outcome(
        proposal,
        Status(line.status),
        line.reason,
        line.detail,
        line.seconds,
        line.rung,
        line.decision == "keep",
        line.trial,
        dict(line.baselines),
        line.work,
    )


def replay(judge: Judge, folder: Any, line: Line, task: Task, ladder: Ladder) -> Verdict:
    """Judge a ledger's trial again with its secret: the same probes, seeds and order of play, new times."""
    candidate = read_candidate_of(folder, line.candidate_sha256)
    case = Case.of(line.case["dtype"], line.case["layout"], **line.case["params"])
    if line.full:
        request = replace(ladder.full, cases=(case,))
    elif line.rung < len(ladder.paces):
        request = Request(ladder.scope, ladder.paces[line.rung], cases=(case,), search=True)
    else:
        raise LedgerError(f"trial {line.trial}: rung {line.rung}; there are {len(ladder.paces)}")
    return judge.verdict(candidate, task.problem, request, bytes.fromhex(line.secret) or None)


def convergence(lines: Sequence[Line]) -> Iterator[tuple[int, float]]:
    """(proposals judged, best seconds kept so far) after each line, for plots."""
    best, count = math.nan, 0
    for line in lines:
        count += line.of == 0
        if line.decision == "keep":
            best = line.seconds
        yield count, best
