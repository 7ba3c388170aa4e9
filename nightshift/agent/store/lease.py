"""Which replica leads: a lease row in PostgreSQL, or the only daemon on a SQLite file.

A lease is a promise about time, so it is kept in the database's clock, and the holder counts its own validity from
before each renewal on a clock that does not jump: it stops believing in its lease before anybody else may take it.
`term` rises with every change of holder and fences what an earlier holder left behind. (C. Gray, D. Cheriton,
"Leases: an efficient fault-tolerant mechanism for distributed file cache consistency", SOSP 1989.)

Where a Kubernetes Lease elects (`Election`), a replica stands for the row only while it is elected. The row still
fences: it is in the same database as what is being done, so that even two replicas which both believe in their
Lease never act together. While the API server answers nobody, all stand back for a while, so that a replica which
still reaches it can take over; where none does, the row alone decides, and the cluster is not without an on-call
engineer for want of its API server.

SQLite has no clock or lock that spans machines: one daemon per file, held by an operating-system lock that ends
with its process, and a second one is refused.
"""

from __future__ import annotations

import fcntl
import os
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Protocol

import sqlalchemy as sa
import structlog
from sqlalchemy import Connection
from sqlalchemy.dialects.postgresql import insert

from nightshift.agent.store.database import Database
from nightshift.agent.store.tables import leases
from nightshift.collectors.base import Permanent, Temporary

LEASE_S = 6.0
_NAME = "leader"
_STAND_BACK = 4.0
"""Leases without a word from who elects, after which the row alone decides."""
_log = structlog.get_logger("lease")


class AlreadyRunning(Permanent):
    """Another daemon holds the SQLite store."""


class Election(Protocol):
    """Says which replica should lead. Both may raise Temporary or Permanent: nothing was heard."""

    def hold(self) -> bool:
        """Takes or renews the mandate; False while another replica has it."""

    def release(self) -> None:
        """Gives it back."""


class Leadership:
    """One replica's stand for the lead. Used by one thread; `leads` and `term` may be read by any."""

    def __init__(
        self,
        database: Database,
        replica: str,
        *,
        lease_s: float = LEASE_S,
        election: Election | None = None,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._election = election
        self._elected_s = self._heard_s = monotonic_s() - lease_s  # of a start in silence, it stands back at once
        self._back_until_s = float("-inf")
        self._silent = False
        self._holder = f"{replica}/{uuid.uuid4().hex[:12]}"  # a restarted replica is another holder
        self._lease_s = lease_s
        self._monotonic_s = monotonic_s
        self._valid_until_s = float("-inf")
        self._file: IO[str] | None = None
        self.term = 0

    @property
    def leads(self) -> bool:
        """Whether this replica holds the lead now, by its own clock, with a tenth of the lease to spare."""
        # a wall clock that is set back would make the lease seem to last
        return self._monotonic_s() < self._valid_until_s

    def claim(self) -> bool:
        """Takes or renews the lead; False while another replica has it. Raises AlreadyRunning on SQLite."""
        if self._election is not None and not self._elected(self._election):
            self._stand_back()
            return False
        asked_s = self._monotonic_s()
        if self._file is not None:  # the operating system keeps it for us; nothing to renew
            self._valid_until_s = asked_s + self._lease_s
            return True
        if self._database.is_sqlite:
            self._file = self._lock_file()
        try:
            with self._database.write() as connection:
                # validity counts from before this: however late the answer, it ends here before it ends there
                term = self._take(connection)
        except (Temporary, Permanent):
            self._pass_on()
            raise
        if term is None:
            self._valid_until_s = float("-inf")
            return False
        self.term = term
        # a tenth to spare: it stops believing in its lease before another may take the row
        self._valid_until_s = asked_s + 0.9 * self._lease_s
        return True

    def _elected(self, election: Election) -> bool:
        """Whether to stand for the row: elected, still within the last mandate, or left without any for long."""
        asked_s = self._monotonic_s()
        if asked_s < self._back_until_s:
            return False
        try:
            elected = election.hold()
        except (Temporary, Permanent) as error:
            if not self._silent:
                _log.warning("leader lookup failed", error=str(error))
            self._silent = True
            # the API server may be away for all: then a cluster in trouble would have no leader at all
            left_alone = asked_s - self._heard_s >= _STAND_BACK * self._lease_s
            return left_alone or asked_s - self._elected_s < 0.9 * self._lease_s
        self._silent, self._heard_s = False, self._monotonic_s()
        self._elected_s = asked_s if elected else float("-inf")
        return elected

    def _pass_on(self) -> None:
        """Elected, but the database is away from here: another replica may still reach it."""
        if self._election is not None:
            self._back_until_s = self._monotonic_s() + self._lease_s
            with suppress(Temporary, Permanent):  # it ends by itself
                self._election.release()

    def _stand_back(self) -> None:
        """Gives up the row, if it is held, for whoever is elected."""
        held = self.leads
        self._valid_until_s = float("-inf")
        if held:
            self._give_up_row()

    def _take(self, connection: Connection) -> int | None:
        now = self._now(connection)
        mine = leases.c.name == _NAME
        fresh: dict[str, Any] = {"holder": self._holder, "expires_s": now + self._lease_s}
        row = connection.execute(sa.select(leases).where(mine).with_for_update()).one_or_none()
        if row is None:
            first = insert(leases).values(name=_NAME, term=1, **fresh).on_conflict_do_nothing()
            # of two first replicas at once, one inserts; the rowcount of an insert may be -1, its row is certain
            made: int | None = connection.execute(first.returning(leases.c.term)).scalar()
            return made
        # on SQLite whoever holds the file's lock is the only one; the row there is a former process's
        if row.holder != self._holder and not self._database.is_sqlite and row.expires_s > now:
            return None
        term: int = row.term + (row.holder != self._holder)
        connection.execute(sa.update(leases).where(mine).values(term=term, **fresh))
        return term

    def _now(self, connection: Connection) -> float:
        if self._database.is_sqlite:
            return time.time()
        # now() is when the transaction began, which may lie before a long wait for the row's lock
        return float(connection.execute(sa.text("SELECT extract(epoch FROM clock_timestamp())")).scalar_one())

    def release(self) -> None:
        """Gives the lead back at once, so that another replica need not wait for the lease to end."""
        self._valid_until_s = float("-inf")
        self._give_up_row()
        self._unlock_file()
        if self._election is not None:
            with suppress(Temporary, Permanent):  # it ends by itself
                self._election.release()

    def _give_up_row(self) -> None:
        mine = (leases.c.name == _NAME) & (leases.c.holder == self._holder)
        with self._database.write() as connection:
            connection.execute(sa.update(leases).where(mine).values(expires_s=0.0))

    def abandon(self) -> None:
        """Stops leading without the database, which may be away; the lease ends by itself."""
        self._valid_until_s = float("-inf")
        self._unlock_file()

    def _unlock_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _lock_file(self) -> IO[str]:
        path = Path(f"{self._database.url.database}.lock")
        file = path.open("a+")
        try:
            # flock ends with its process, however that ends; a file with a pid in it would not
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            file.close()
            raise AlreadyRunning(
                f"{self._database.where}: another nightshift (process {holder}) runs on this file. One daemon per"
                " SQLite file; for several replicas set store.url to a PostgreSQL database."
            ) from error
        # the pid is for the message above alone; a full disk must not keep the daemon from starting
        file.truncate(0)
        file.write(str(os.getpid()))
        with suppress(OSError):
            file.flush()
        return file
