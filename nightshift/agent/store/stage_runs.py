"""One runner at a time: which replica works on an incident's stage, and when it is tried again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from nightshift.agent.store.archive import row_of
from nightshift.agent.store.database import Database
from nightshift.agent.store.incident import IncidentState
from nightshift.agent.store.tables import incidents


@dataclass(frozen=True, slots=True)
class Position:
    """Where an incident stands: its state, and the runs and failures of that state's stage."""

    state: IncidentState
    version: int
    stage_runs: int
    stage_failures: int


class Runs:
    """Claims of stages, by compare-and-set on the incident's row."""

    database: Database

    def claim(self, number: int, version: int, runs: int, runner: str, term: int) -> bool:
        """Takes an incident for one run of its stage. False where it has moved, has been run, or is being run by
        somebody of this term; a claim of an earlier term belongs to a leader that is gone."""
        c = incidents.c
        free = sa.or_(c.runner.is_(None), c.runner_term < term, c.runner == runner)
        mine = (c.number == number) & (c.version == version) & (c.stage_runs == runs) & free
        with self.database.write() as connection:
            row = {"runner": runner, "runner_term": term}
            return connection.execute(sa.update(incidents).where(mine).values(row)).rowcount == 1

    def put_off(self, number: int, version: int, runs: int, due_s: float | None, *, failed: bool) -> bool:
        """Ends a run that did not move the incident: the next one is not before `due_s` and has another key."""
        c = incidents.c
        mine = (c.number == number) & (c.version == version) & (c.stage_runs == runs)
        row: dict[str, Any] = {"runner": None, "runner_term": None, "due_s": due_s, "stage_runs": runs + 1}
        row["stage_failures"] = c.stage_failures + int(failed)
        with self.database.write() as connection:
            return connection.execute(sa.update(incidents).where(mine).values(row)).rowcount == 1

    def position(self, number: int) -> Position:
        """Where an incident stands on its way."""
        with self.database.read() as connection:
            row = row_of(connection, number)
        return Position(IncidentState(row.state), row.version, row.stage_runs, row.stage_failures)
