"""Receipts of power's and scheduling's decisions, and what came of them: what `policy explain` shows, and what the
statistics of promotion are made of."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Row

from nightshift.agent.store.database import Database
from nightshift.agent.store.tables import decisions
from nightshift.agent.units import full_time
from nightshift.collectors.base import Permanent
from nightshift.controllers.decision import ControlDecision, Mode
from nightshift.controllers.estimate import TrialTurn
from nightshift.controllers.outcome import ReceiptOutcome, shares_lost

# Numbers of a state that say when, not what: a model of the outcome would learn the date.
_NOT_FEATURES = frozenset({"at_s", "now_s", "submitted_s"})


@dataclass(frozen=True, slots=True)
class Came:
    """What came of one decision. `reward`, `slowdown`: NaN while it is not known; `void`: why it never will be."""

    chance: float
    treated: bool
    reward: float
    slowdown: float
    violated: bool
    void: str

    @property
    def words(self) -> str:
        if self.void:
            return f"never known: {self.void}"
        if math.isnan(self.reward):
            return "not known yet"
        broke = "; a hard constraint was broken" if self.violated else ""
        return f"reward {self.reward:.4f}, slowdown {self.slowdown:.4f}{broke}"


@dataclass(frozen=True, slots=True)
class Gathered:
    """Evidence for a step. `fallback_share`: of all turns; `lost`: share of drawn turns without an outcome, with
    the policy and with the baseline; `waiting`: turns whose outcome is not known yet."""

    turns: Sequence[TrialTurn]
    fallback_share: float
    lost: tuple[float, float]
    waiting: int

    @property
    def jobs(self) -> int:
        return len({turn.job for turn in self.turns})


LEVERS: Mapping[str, str] = {
    "power": "node energy saved per work",
    "scheduling": "completion time saved (JCT)",
    "cache": "hit rate above LRU's",
}
"""Kind → what its reward is."""
_SUMMED = 5000


@dataclass(frozen=True, slots=True)
class LeverSummary:
    """The newest decisions of a policy in its mode, at most 5,000. Rewards are over the rule; NaN: none is known.
    `regret`: what the mean decision lost where the policy was worse than the rule. `watts`: mean limit set."""

    decisions: int
    fallbacks: int
    interventions: int
    known: int
    reward: float
    regret: float
    slowdown: float
    watts: float
    policy_hit_rate: float
    baseline_hit_rate: float

    def lines(self, kind: str) -> Iterator[tuple[str, str]]:
        """As (what, words), for a person; what is not known is omitted."""
        yield "decisions", f"{self.decisions}, outcome known of {self.known}"
        yield "fell back to the rule", f"{self.fallbacks}"
        yield "shield intervened", f"{self.interventions}"
        shares = {
            LEVERS.get(kind, "reward"): self.reward,
            "regret against the rule": self.regret,
            "policy's hit rate": self.policy_hit_rate,
            "LRU's hit rate": self.baseline_hit_rate,
        }
        yield from ((name, f"{share:.2%}") for name, share in shares.items() if not math.isnan(share))
        if kind != "cache" and not math.isnan(self.slowdown):
            yield "mean slowdown", f"{self.slowdown:.4f}"
        if not math.isnan(self.watts):
            yield "mean power limit set", f"{self.watts:.0f} W"


class Receipts:
    """Kept in the daemon's store, by id. A receipt is written once; only its outcome is filled in later."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def keep(self, decision: ControlDecision, *, chance: float = 0.0, treated: bool = False) -> None:
        """`chance`: that the executed action was the policy's, as designed and after the shield; `treated`: whether
        it was. The same receipt again only adds what was read back."""
        self.keep_all([(decision, chance, treated)])

    def keep_all(self, receipts: Sequence[tuple[ControlDecision, float, bool]]) -> None:
        """As `keep`, of (decision, chance, treated), in one transaction."""
        with self._database.write() as connection:
            for decision, chance, treated in receipts:
                row = _row(decision, chance, treated)
                mine = decisions.c.id == decision.id
                # what was read back comes later than the receipt, by the same call
                if not connection.execute(sa.update(decisions).where(mine).values(body=row["body"])).rowcount:
                    connection.execute(sa.insert(decisions).values(**row))

    def settle(self, decision_id: str, *, reward: float, slowdown: float, violated: bool = False) -> None:
        """What came of a decision; the same or another outcome later changes nothing. Raises Permanent for an id
        that is not known."""
        if not self.settle_all([ReceiptOutcome(decision_id, reward, slowdown, violated)]):
            with self._database.read() as connection:
                known = connection.execute(sa.select(decisions.c.id).where(decisions.c.id == decision_id)).scalar()
            if known is None:
                raise Permanent(f"there is no decision {decision_id}")

    def settle_all(self, outcomes: Iterable[ReceiptOutcome]) -> int:
        """Writes outcomes in one transaction, each at most once: the first that is told counts. Returns how many
        were news; one for a receipt that is not kept (any more) is left out."""
        news = 0
        with self._database.write() as connection:
            for outcome in outcomes:
                values: dict[str, Any] = {"violated": int(outcome.violated)}
                if outcome.void:
                    values["void"] = outcome.void
                else:
                    values |= {"reward": _known(outcome.reward), "slowdown": _known(outcome.slowdown)}
                mine = (decisions.c.id == outcome.id) & decisions.c.reward.is_(None) & decisions.c.void.is_(None)
                news += connection.execute(sa.update(decisions).where(mine).values(values)).rowcount
        return news

    def void_open(self, kind: str, before_s: float, reason: str) -> int:
        """Gives up every open outcome of decisions made before then: those of a process that is gone. Returns how
        many."""
        mine = (decisions.c.kind == kind) & (decisions.c.at_s < before_s)
        still = mine & decisions.c.reward.is_(None) & decisions.c.void.is_(None)
        with self._database.write() as connection:
            return connection.execute(sa.update(decisions).where(still).values(void=reason)).rowcount

    def find(self, decision_id: str) -> ControlDecision:
        """By id, or by the beginning of one. Raises Permanent where none or several are meant."""
        # both are wildcards to LIKE
        begins = decisions.c.id.like(decision_id.replace("%", "").replace("_", "") + "%")
        with self._database.read() as connection:
            rows = connection.execute(sa.select(decisions.c.body).where(begins).limit(2)).all()
        if len(rows) != 1:
            raise Permanent(
                f"{decision_id}: {'several decisions begin so' if rows else 'there is no such decision'}"
            )
        return ControlDecision.from_json(json.loads(rows[0].body))

    def newest(self, kind: str | None = None, limit: int = 50) -> list[ControlDecision]:
        query = sa.select(decisions.c.body).order_by(decisions.c.at_s.desc(), decisions.c.id).limit(limit)
        if kind is not None:
            query = query.where(decisions.c.kind == kind)
        with self._database.read() as connection:
            return [ControlDecision.from_json(json.loads(row.body)) for row in connection.execute(query)]

    def came(self, decision_id: str) -> Came:
        """What came of a decision, by its whole id. Raises Permanent where there is none."""
        with self._database.read() as connection:
            row = connection.execute(sa.select(decisions).where(decisions.c.id == decision_id)).one_or_none()
        if row is None:
            raise Permanent(f"there is no decision {decision_id}")
        return Came(
            row.chance, bool(row.treated), _number(row.reward), _number(row.slowdown), bool(row.violated),
            row.void or "",
        )  # fmt: skip

    def jobs(self, kind: str, policy: str, mode: Mode, since_s: float) -> int:
        """How many jobs have a settled outcome that the next step can rest on (in shadow any, later of turns whose
        arm was drawn): cheap, and no look at what it says."""
        mine = _of(kind, mode, since_s) & (decisions.c.policy == policy) & decisions.c.reward.is_not(None)
        if mode is not Mode.SHADOW:
            # a turn that could only go one way compares nothing
            mine &= (decisions.c.chance > 0) & (decisions.c.chance < 1)
        with self._database.read() as connection:
            query = sa.select(sa.func.count(sa.distinct(decisions.c.job))).where(mine)
            return int(connection.execute(query).scalar_one())

    def gathered(self, kind: str, policy: str, mode: Mode, since_s: float) -> Gathered:
        """Evidence on a policy in a mode since then, oldest first."""
        with self._database.read() as connection:
            query = sa.select(decisions).where(_of(kind, mode, since_s)).order_by(decisions.c.at_s, decisions.c.id)
            rows = connection.execute(query).all()
        rows = [row for row in rows if row.policy == policy or row.fallback]
        asked = [row for row in rows if not row.fallback]
        fell = (len(rows) - len(asked)) / len(rows) if rows else math.nan
        waiting = sum(row.reward is None and row.void is None for row in asked)
        return Gathered(_turns(asked), fell, _lost(asked), waiting)

    def summary(self, kind: str, policy: str, mode: Mode, since_s: float) -> LeverSummary:
        """Of a policy in a mode since then: what it is worth beside the rule, and where the shield stopped it."""
        mine = _of(kind, mode, since_s) & ((decisions.c.policy == policy) | (decisions.c.fallback == 1))
        newest = sa.select(decisions).where(mine).order_by(decisions.c.at_s.desc()).limit(_SUMMED)
        with self._database.read() as connection:
            rows = connection.execute(newest).all()
        bodies = [json.loads(row.body) for row in rows]
        rewards = [row.reward for row in rows if row.reward is not None]
        limits = [mw for body in bodies for mw in _inside(body["executed"], "limits_mw", {}).values()]
        return LeverSummary(
            len(rows),
            sum(bool(row.fallback) for row in rows),
            sum(bool(body["clips"]) for body in bodies),
            len(rewards),
            _mean(rewards),
            _mean([max(0.0, -reward) for reward in rewards]),
            _mean([row.slowdown for row in rows if row.slowdown is not None]),
            _mean(limits) / 1e3,
            *(_mean([_inside(b[part], "hit_rate", math.nan) for b in bodies]) for part in ("proposed", "baseline")),
        )

    def prune(self, before_s: float) -> int:
        """Forgets decisions from before a time; returns how many."""
        with self._database.write() as connection:
            return connection.execute(sa.delete(decisions).where(decisions.c.at_s < before_s)).rowcount


def _row(decision: ControlDecision, chance: float, treated: bool) -> dict[str, Any]:
    return {
        "id": decision.id,
        "kind": decision.kind,
        "at_s": decision.at_s,
        "mode": str(decision.mode),
        "unit": decision.unit,
        "job": decision.job,
        "policy": decision.policy,
        "chance": chance,
        "treated": int(treated),
        "fallback": int(bool(decision.fallback)),
        "body": json.dumps(decision.to_json(), sort_keys=True, allow_nan=False),
    }


def _inside(value: object, name: str, otherwise: Any) -> Any:
    return value.get(name, otherwise) if isinstance(value, Mapping) else otherwise


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _of(kind: str, mode: Mode, since_s: float) -> sa.ColumnElement[bool]:
    return (decisions.c.kind == kind) & (decisions.c.mode == str(mode)) & (decisions.c.at_s >= since_s)


def _turns(asked: Sequence[Row[Any]]) -> list[TrialTurn]:
    """The turns whose outcome is known."""
    settled = [row for row in asked if row.reward is not None and row.slowdown is not None]
    bodies = [json.loads(row.body) for row in settled]
    features = _features([body["seen"] for body in bodies])
    return [_turn(row, body, seen) for row, body, seen in zip(settled, bodies, features, strict=True)]


def _lost(asked: Iterable[Row[Any]]) -> tuple[float, float]:
    """Shares without an outcome, of turns whose arm was drawn: others say nothing of one arm losing more."""
    drawn = [row for row in asked if 0 < row.chance < 1 and (row.reward is not None or row.void is not None)]
    return shares_lost((bool(row.treated), row.reward is not None) for row in drawn)


def _turn(row: Row[Any], body: Mapping[str, Any], features: tuple[float, ...]) -> TrialTurn:
    said = body["prediction"]
    predicted = said.get("slowdown_executed", said.get("slowdown") if row.treated else None)
    return TrialTurn(
        row.job, bool(row.treated), row.chance, row.reward, row.slowdown,
        math.nan if predicted is None else float(predicted), bool(row.violated), features,
    )  # fmt: skip


def _features(states: Sequence[Mapping[str, Any]]) -> list[tuple[float, ...]]:
    """What was seen before each decision, as numbers for the outcome's model: those that most receipts hold, a
    missing one as the mean of the others. Better ones narrow the bounds; none can bias them."""
    counts: dict[str, int] = {}
    for state in states:
        for name, value in state.items():
            if isinstance(value, (int, float)) and name not in _NOT_FEATURES:
                counts[name] = counts.get(name, 0) + 1
    # a feature that most lack would be made of means
    names = sorted(name for name, count in counts.items() if count > len(states) / 2)
    columns = []
    for name in names:
        told = [state.get(name) for state in states]
        known = [float(value) for value in told if isinstance(value, (int, float))]
        mean = math.fsum(known) / len(known)
        columns.append([float(value) if isinstance(value, (int, float)) else mean for value in told])
    return list(zip(*columns, strict=True)) if columns else [()] * len(states)


def told(decision: ControlDecision, came: Came) -> Iterator[tuple[str, str]]:
    """A receipt line by line, as (what, words), for a person."""
    when = full_time(decision.at_s)
    yield (
        "decision",
        f"{decision.id} ({decision.kind}, {decision.mode}) at {when} on {decision.unit} for {decision.job}",
    )
    yield "policy", decision.policy + (f"; fell back: {decision.fallback}" if decision.fallback else "")
    for name, value in sorted(decision.seen.items()):
        yield "seen", f"{name} = {'missing' if value is None else value}"
    for name, (value, low, high) in sorted(decision.outside.items()):
        yield (
            "unknown",
            f"{name} = {value:.4g} lies outside what the policy was trained on, {low:.4g} to {high:.4g}",
        )
    yield (
        "proposed",
        f"{decision.proposed} (probability {decision.propensity:.3g}): {decision.why or 'no reason given'}",
    )
    for clip in decision.clips:
        yield "clipped", f"{clip.constraint}: {clip.before} → {clip.after}, {clip.why}"
    whose = f", the {decision.arm}'s" if decision.arm else ""
    yield "executed", f"{decision.executed}{whose} (probability {decision.executed_propensity:.3g})"
    yield "baseline", f"{decision.baseline} by {decision.baseline_policy}"
    if decision.read_back is not None or decision.mismatch:
        yield "read back", decision.mismatch or str(decision.read_back)
    yield "outcome", came.words
    drawn = "its policy's" if came.treated else "its baseline's"
    yield "counts", f"as {drawn} with probability {came.chance:.3g} that it is the policy's"
