"""Autonomy is earned, per kind of action and namespace: what was proposed, against what people made of it.

`LEVELS` says what each level means. The level follows from stored decisions alone: a person's approval or
rejection of each plan, what people did by hand while it stood undecided (`agent.approvals.manual_fixes`), and
whether what was done was confirmed. The share of agreement counts by its lower confidence bound (E. B. Wilson,
"Probable inference, the law of succession, and statistical inference", JASA 22, 1927), so that few decisions
never earn much. It only ever narrows: a kind that has earned it still acts without a person only where the
approval policy says so.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import sqlalchemy as sa
from pydantic import BaseModel, ConfigDict, Field

from nightshift.agent.approvals.manual_fixes import noted
from nightshift.agent.store.database import Database
from nightshift.agent.store.incident import TEST_TITLE, Cause
from nightshift.agent.store.records import load
from nightshift.agent.store.tables import incidents, plans, steps
from nightshift.collectors.subject import SubjectKind
from nightshift.controllers.action import Action, ActionKind

_Z = 1.645
"""One-sided 95 %."""
CLUSTER = "*"
"""Instead of a namespace, for nodes and GPUs."""


class Level(StrEnum):
    """What a kind has earned."""

    OBSERVE = "observe"
    PROPOSE = "propose"
    ACT = "act"


LEVELS: Mapping[Level, str] = {
    Level.OBSERVE: "too few decisions to tell",
    Level.PROPOSE: "enough decisions, but not enough agreement or success to run automatically",
    Level.ACT: "enough agreement and success to run automatically, where the approval policy allows it",
}
"""What each level means, for people."""


# Decisions are counted over a quarter: older ones were of another fleet.
WINDOW_S = 90 * 86_400.0
# Decisions of people before anything can be said of a kind of action.
DECISIONS = 5
# Agreements before a kind may act: the bound below alone would need twelve without a disagreement.
AGREED = 20
# Least share of agreement, by its lower 95 % bound: 19 of 20 suffice, 18 of 20 do not.
AGREEMENT = 0.8
# Largest share of ended actions that were not confirmed. With more, the kind is no remedy for its fault.
FAILURES = 0.1


class Settings(BaseModel):
    """What an action has to have earned before policy may carry it out without a person."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    required: bool = Field(
        default=False,
        description="Require an earned approval history before a kind that policy allows runs automatically",
    )


@dataclass(frozen=True)
class ApprovalScore:
    """One kind in one namespace. `open` plans were never decided: expired, overtaken, or cleared by itself."""

    kind: ActionKind
    namespace: str
    proposed: int = 0
    agreed: int = 0
    disagreed: int = 0
    open: int = 0
    by_hand: int = 0
    """Of those agreed and disagreed: plans that nobody decided, while people did the same, or something else."""
    automatic: int = 0
    confirmed: int = 0
    failed: int = 0

    @property
    def decided(self) -> int:
        return self.agreed + self.disagreed


@dataclass(frozen=True, slots=True)
class Rating:
    """A score, the level that it has earned, and why not more."""

    score: ApprovalScore
    level: Level
    reason: str


def rate(score: ApprovalScore) -> Rating:
    """Purely a decision."""
    if score.decided < DECISIONS:
        return Rating(score, Level.OBSERVE, f"{score.decided} of {DECISIONS} decisions")
    # A bound, not the share: 5 of 5 is a share of 1 and says little; its bound is 0.65.
    low = wilson_low(score.agreed, score.decided)
    if score.agreed < AGREED:
        return Rating(score, Level.PROPOSE, f"{score.agreed} of {AGREED} agreements")
    if low < AGREEMENT:
        return Rating(score, Level.PROPOSE, f"agreement is at least {low:.0%}; {AGREEMENT:.0%} are needed")
    ended = score.confirmed + score.failed
    # Multiplied rather than divided: nothing was carried out yet where a kind has only been agreed to.
    if score.failed > FAILURES * ended:
        return Rating(score, Level.PROPOSE, f"{score.failed} of {ended} did not help; {FAILURES:.0%} may")
    return Rating(score, Level.ACT, f"agreement is at least {low:.0%}; {score.failed} of {ended} did not help")


def wilson_low(successes: int, trials: int) -> float:
    """Lower 95 % bound of a share; 0 without trials."""
    if trials == 0:
        return 0.0
    share, z2 = successes / trials, _Z**2
    spread = _Z * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials**2))
    return (share + z2 / (2 * trials) - spread) / (1 + z2 / trials)


def place_of(action: Action) -> str:
    """The namespace that an action is in; `*` where it is on nodes or GPUs."""
    if action.target.kind in (SubjectKind.POD, SubjectKind.JOB, SubjectKind.CONTAINER, SubjectKind.RANK):
        namespace, slash, _ = action.target.name.partition("/")
        return namespace if slash else CLUSTER
    return CLUSTER


class Scoreboard:
    """Reads decisions from the store."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database, self.settings = database, settings

    def ratings(self, now_s: float) -> list[Rating]:
        """Every kind and namespace of the window, by kind and then namespace."""
        found = sorted(self._scores(now_s).items())
        return [rate(score) for _, score in found]

    def may_act(self, action: Action, now_s: float) -> Rating | None:
        """None where the action may be carried out by policy alone, else the rating that stands against it."""
        if not self.settings.required:
            return None
        key = (str(action.kind), place_of(action))
        rating = rate(self._scores(now_s).get(key) or ApprovalScore(action.kind, key[1]))
        return None if rating.level is Level.ACT else rating

    def _scores(self, now_s: float) -> dict[tuple[str, str], ApprovalScore]:
        since_s = now_s - WINDOW_S
        with self._database.read() as connection:
            real = sa.select(plans).join(incidents, incidents.c.number == plans.c.incident)
            real = real.where(plans.c.at_s >= since_s, ~incidents.c.title.startswith(TEST_TITLE))
            made = connection.execute(real).all()
            numbers = sorted({row.incident for row in made})
            moves: dict[int, list[Any]] = defaultdict(list)
            hands: dict[tuple[int, int], str] = {}
            # SQLite takes 32,766 variables in a statement, PostgreSQL 65,535.
            for start in range(0, len(numbers), 5000):
                some = numbers[start : start + 5000]
                query = (
                    sa.select(steps).where(steps.c.incident.in_(some)).order_by(steps.c.incident, steps.c.number)
                )
                for row in connection.execute(query):
                    moves[row.incident].append(row)
                for fix in noted(connection, some):
                    key = fix["incident"], fix["body"]["attempt"]
                    # The first fix counts: a person who cordons and then reboots would be counted twice.
                    hands.setdefault(key, "agreed" if fix["body"]["same"] else "disagreed")
        counted: dict[tuple[str, str], dict[str, int]] = defaultdict(lambda: defaultdict(int))
        kinds: dict[tuple[str, str], ActionKind] = {}
        for row in made:
            action = load(Action, row.body)
            place = (str(action.kind), place_of(action))
            kinds[place] = action.kind
            counted[place]["proposed"] += 1
            for what in _became(moves[row.incident], row.attempt):
                # Only without a decision: a click shows better what people thought of a plan.
                by_hand = hands.get((row.incident, row.attempt)) if what == "open" else None
                counted[place][by_hand or what] += 1
                counted[place]["by_hand"] += by_hand is not None
        return {key: ApprovalScore(kinds[key], key[1], **counts) for key, counts in counted.items()}


def _became(moves: Iterable[Any], attempt: int) -> Iterator[str]:
    """What became of an incident's plan of that attempt: how it was decided, and whether it worked."""
    made, decided, ended = 0, "", ""
    for move in moves:
        made += move.cause == Cause.PLAN_PROPOSED
        if made > attempt:
            break
        if made < attempt or move.cause == Cause.PLAN_PROPOSED:
            continue
        if not decided:
            by_policy = move.cause == Cause.APPROVED and move.by == "policy"
            decided = {
                Cause.APPROVED: "automatic" if by_policy else "agreed",
                Cause.REJECTED: "disagreed",
            }.get(move.cause, "open")
        elif move.cause == Cause.REJECTED and not ended:
            decided = "disagreed"  # approved by one, stopped by another before it began
        if move.cause == Cause.CONFIRMED:
            ended = "confirmed"
        elif move.cause in (Cause.NOT_CONFIRMED, Cause.ACTION_FAILED, Cause.OUTCOME_UNKNOWN, Cause.RELAPSED):
            # What was never carried out has not failed: a relapse after a person's own fix is no mark against the
            # plan.
            ended = "failed" if decided in ("agreed", "automatic") else ended
    yield decided or "open"
    if ended:
        yield ended
