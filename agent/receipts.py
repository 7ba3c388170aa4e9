"""Receipts of power's and scheduling's decisions, and what came of them: what `policy explain` shows, and what the
statistics of promotion are made of."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import sqlalchemy as sa

from agent.database import Database
from agent.tables import decisions
from collectors.base import Permanent
from controllers.decision import Decision, Mode
from controllers.estimate import Turn


class Receipts:
    """Kept in the daemon's store, by id. A receipt is written once; only its outcome is filled in later."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def keep(self, decision: Decision, *, chance: float = 0.0, treated: bool = False) -> None:
        """`chance`: that the executed action was the policy's, as designed and after the shield; `treated`: whether
        it was. The same receipt again only adds what was read back."""
        row = {
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
        with self._database.write() as connection:
            known = connection.execute(sa.select(decisions.c.id).where(decisions.c.id == decision.id)).scalar()
            if known is None:
                connection.execute(sa.insert(decisions).values(**row))
            else:
                mine = decisions.c.id == decision.id
                connection.execute(sa.update(decisions).where(mine).values(body=row["body"]))

    def settle(self, decision_id: str, *, reward: float, slowdown: float, violated: bool = False) -> None:
        """What came of a decision. Raises Permanent for an id that is not known."""
        values = {"reward": _known(reward), "slowdown": _known(slowdown), "violated": int(violated)}
        with self._database.write() as connection:
            mine = decisions.c.id == decision_id
            if not connection.execute(sa.update(decisions).where(mine).values(values)).rowcount:
                raise Permanent(f"there is no decision {decision_id}")

    def find(self, decision_id: str) -> Decision:
        """By id, or by the beginning of one. Raises Permanent where none or several are meant."""
        begins = decisions.c.id.like(decision_id.replace("%", "").replace("_", "") + "%")
        with self._database.read() as connection:
            rows = connection.execute(sa.select(decisions.c.body).where(begins).limit(2)).all()
        if len(rows) != 1:
            raise Permanent(
                f"{decision_id}: {'several decisions begin so' if rows else 'there is no such decision'}"
            )
        return Decision.from_json(json.loads(rows[0].body))

    def newest(self, kind: str | None = None, limit: int = 50) -> list[Decision]:
        query = sa.select(decisions.c.body).order_by(decisions.c.at_s.desc(), decisions.c.id).limit(limit)
        if kind is not None:
            query = query.where(decisions.c.kind == kind)
        with self._database.read() as connection:
            return [Decision.from_json(json.loads(row.body)) for row in connection.execute(query)]

    def turns(self, kind: str, policy: str, mode: Mode, since_s: float) -> tuple[Sequence[Turn], float]:
        """Settled turns of a policy in a mode since then, oldest first, and the share of all that fell back."""
        mine = (decisions.c.kind == kind) & (decisions.c.mode == str(mode)) & (decisions.c.at_s >= since_s)
        with self._database.read() as connection:
            rows = connection.execute(sa.select(decisions).where(mine).order_by(decisions.c.at_s)).all()
        rows = [row for row in rows if row.policy == policy or row.fallback]
        fell = sum(row.fallback for row in rows) / len(rows) if rows else math.nan
        made = [
            Turn(
                row.job,
                bool(row.treated),
                row.chance,
                row.reward,
                row.slowdown,
                float(json.loads(row.body)["prediction"].get("slowdown") or math.nan),
                bool(row.violated),
            )
            for row in rows
            if not row.fallback and row.reward is not None and row.slowdown is not None
        ]
        return made, fell

    def prune(self, before_s: float) -> int:
        """Forgets decisions from before a time; returns how many."""
        with self._database.write() as connection:
            return connection.execute(sa.delete(decisions).where(decisions.c.at_s < before_s)).rowcount


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
