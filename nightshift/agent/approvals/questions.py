"""Questions of people about incidents: who may ask, how far an answer may reach, and where both are stored.

A question is a row, whichever door it came by; the replica that leads answers it (`agent.incidents.model_queue`).
An answer tells of nothing that its asker may not see, and only those see it who may see as much.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from nightshift.agent.approvals.policy import Person, Role, RoleGrant
from nightshift.agent.clock import Clock
from nightshift.agent.store import audit
from nightshift.agent.store.archive import name_of, number_of
from nightshift.agent.store.database import Database
from nightshift.agent.store.diagnosis import Answer, ReadingState
from nightshift.agent.store.incident import Incident
from nightshift.agent.store.records import dump, load
from nightshift.agent.store.tables import incidents, questions
from nightshift.collectors.base import Permanent

MAX_QUESTION = 2000
MAX_OPEN = 5
"""Questions about one incident that may wait at a time."""
_OPEN = (str(ReadingState.WAITING), str(ReadingState.READING))


@dataclass(frozen=True, slots=True)
class Question:
    """A question and its answer so far. `reach`: the namespaces that the answer may tell of; None: all."""

    number: int
    incident: str
    at_s: float
    by: str
    channel: str
    text: str
    reach: tuple[str, ...] | None
    answer: Answer
    tokens: int = 0
    usd: float = 0.0

    @property
    def is_open(self) -> bool:
        return str(self.answer.state) in _OPEN

    @property
    def reader(self) -> Person:
        """A person with the rights that the answer was made for, and no others."""
        if self.reach is None:
            return Person(self.by, frozenset({Role.VIEWER}), self.channel)
        return Person(self.by, frozenset(), self.channel, grants=(RoleGrant(Role.VIEWER, self.reach),))

    def may_be_read_by(self, person: Person) -> bool:
        return not person.is_tenant or (self.reach is not None and person.may(Role.VIEWER, self.reach))


class Questions:
    """Reads and writes questions. Stateless: everything is in the store."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database, self._clock = database, clock

    def ask(self, incident: Incident, text: str, by: Person, within: Collection[str] | None = None) -> Question:
        """Stores a question about an incident that the person sees whole. `within`: the answer is shown where only
        these namespaces may be told of. Raises Permanent where the person or the question does not do."""
        if not by.identity or not by.may(Role.VIEWER, incident.namespaces):
            raise Permanent(f"{incident.id} reaches beyond your team: questions need a role for the cluster")
        flat = " ".join("".join(c if c.isprintable() else " " for c in text[: 2 * MAX_QUESTION]).split())
        if not flat or len(flat) > MAX_QUESTION:
            raise Permanent(f"a question has 1 to {MAX_QUESTION} characters")
        reach = within if within is not None else (incident.namespaces if by.is_tenant else None)
        number, now = number_of(incident.id), self._clock.now_s()
        row: dict[str, Any] = {"incident": number, "at_s": now, "by": by.identity, "channel": by.channel}
        row |= {"text": flat, "reach": None if reach is None else json.dumps(sorted(reach))}
        row |= {"state": ReadingState.WAITING, "tokens": 0, "usd": 0.0, "body": dump(Answer(ReadingState.WAITING))}
        with self._database.write() as connection:
            open_ = sa.select(sa.func.count()).where(questions.c.incident == number, questions.c.state.in_(_OPEN))
            if connection.execute(open_).scalar_one() >= MAX_OPEN:
                raise Permanent(f"{MAX_OPEN} questions about {incident.id} wait for an answer: ask after them")
            insert = sa.insert(questions).values(row).returning(questions.c.number)
            stored = int(connection.execute(insert).scalar_one())
            body = {"question": flat, "number": stored}
            audit.append(connection, at_s=now, kind="question", by=by.identity, incident=number, body=body)
        return self.of(incident.id, stored)[0]

    def of(self, incident_id: str, number: int | None = None) -> list[Question]:
        """The questions about an incident, the oldest first, or the one of a number."""
        query = sa.select(questions).where(questions.c.incident == number_of(incident_id))
        return self._read(query if number is None else query.where(questions.c.number == number))

    def due(self) -> list[Question]:
        """Those without a final answer, the oldest first."""
        return self._read(sa.select(questions).where(questions.c.state.in_(_OPEN)))

    def _read(self, query: sa.Select[Any]) -> list[Question]:
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(questions.c.number)).all()
        return [
            Question(
                row.number,
                name_of(row.incident),
                row.at_s,
                row.by,
                row.channel,
                row.text,
                None if row.reach is None else tuple(json.loads(row.reach)),
                load(Answer, row.body),
                row.tokens,
                row.usd,
            )
            for row in rows
        ]

    def answered(self, question: Question, answer: Answer, tokens: int, usd: float) -> None:
        """Stores an answer as far as it is, and what it has cost in all. A final one goes to the audit log, and
        to the chats."""
        number, now = number_of(question.incident), self._clock.now_s()
        row = {"state": answer.state, "tokens": tokens, "usd": usd, "body": dump(answer)}
        with self._database.write() as connection:
            locked = sa.select(incidents.c.updated_s).where(incidents.c.number == number).with_for_update()
            updated_s = connection.execute(locked).scalar_one()
            connection.execute(sa.update(questions).where(questions.c.number == question.number).values(row))
            if str(answer.state) in _OPEN:
                return
            # a stepped clock may stand still: the chat has to see that there is more to show
            seen_s = max(now, updated_s + 1e-4)
            connection.execute(sa.update(incidents).where(incidents.c.number == number).values(updated_s=seen_s))
            body = {
                "number": question.number,
                "model": answer.model,
                "claims": [claim.sentence for claim in answer.claims],
                "note": answer.note,
                "prompt_sha256": answer.prompt_sha256,
                "evidence": {item.id: item.sha256 for item in answer.evidence},
            }
            by = answer.model or "nightshift"
            audit.append(connection, at_s=now, kind="answer", by=by, incident=number, body=body)
