"""One database, SQLite or PostgreSQL: engine, transactions, migrations, and what its errors mean to a person.

SQLite writes begin IMMEDIATE, so that a transaction that will write waits for the lock at its start (busy timeout)
and never fails half-way; the journal is WAL with `synchronous=FULL`, because an intent must be on disk before the
world is changed. On PostgreSQL the ordinary READ COMMITTED with compare-and-set updates is enough.

    Temporary    StoreBusy (locked, unreachable, deadlock, a standby), StoreFull (disk)
    Permanent    StoreUnusable (read-only file, damaged, wrong password, newer schema)
"""

from __future__ import annotations

import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine import URL, ExceptionContext, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from nightshift.collectors.base import Permanent, Temporary

if TYPE_CHECKING:  # only a migration needs it: a command on a store that has the schema does not load it
    from alembic.config import Config
    from alembic.script import ScriptDirectory
    from psycopg import Connection as PostgresConnection
    from psycopg.abc import PQGen

BUSY_TIMEOUT_S = 5.0
# A replica that is frozen inside a transaction (a paused machine, SIGSTOP) loses it after that long: its rows'
# locks would keep every other replica from taking over.
IDLE_TIMEOUT_S = 5.0
# A server that acknowledges nothing for that long has gone: its machine died, or the network ends before it.
SILENCE_S = 11.0
# A server that says nothing to a statement for that long is taken for frozen (paused, or waiting for its disk),
# though its kernel still acknowledges what it is sent.
ANSWER_S = 20.0
# The same for a statement of a migration, which may rewrite a table.
MIGRATION_S = 900.0
# And how long it may be between two statements: its files are read there, perhaps on a busy machine.
MIGRATION_IDLE_S = 60.0
# read_only_sql_transaction: what a standby answers to a write
_READ_ONLY = "25006"
_MIGRATIONS = Path(__file__).parent / "migrations"
# Any fixed number: the PostgreSQL advisory lock under which one process at a time migrates.
_MIGRATION_LOCK = 7_411_001


class StoreBusy(Temporary):
    """The database is locked or cannot be reached now; nothing was written."""


class StoreFull(Temporary):
    """The disk is full; nothing was written. A person makes room, and the next try goes through."""


class StoreUnusable(Permanent):
    """The database cannot be used until a person changes something."""


def parse_url(url: str) -> URL:
    """The SQLAlchemy URL of `sqlite:///FILE`, `postgresql://…` or `postgresql+psycopg://…`."""
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise StoreUnusable(f"store.url: not a database URL (sqlite:///FILE or postgresql://…): {error}") from error
    # SQLAlchemy takes a plain postgresql:// for psycopg2; installed is psycopg 3
    if parsed.drivername in ("postgresql", "postgres", "postgresql+psycopg"):
        return parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername in ("sqlite", "sqlite+pysqlite"):
        if parsed.database in (None, "", ":memory:"):
            raise StoreUnusable("store.url: SQLite in memory loses every incident; name a file: sqlite:///FILE")
        return parsed.set(drivername="sqlite+pysqlite")
    raise StoreUnusable(f"store.url: {parsed.drivername} is not supported; use sqlite:///FILE or postgresql://…")


def server_options(url: URL, **timeouts_s: float) -> str:
    """The URL's own options of a PostgreSQL session, then ours."""
    timeouts_s["idle_in_transaction_session_timeout"] = IDLE_TIMEOUT_S
    ours = [f"-c {name}={round(seconds * 1000)}" for name, seconds in timeouts_s.items()]
    return " ".join([*url.normalized_query.get("options", ()), *ours])


def patient(url: URL) -> URL:
    """A PostgreSQL URL whose connections end when their server has gone without a word, and not after the 15 min
    in which the kernel sends a lost statement again and again. What the URL says itself stands."""
    timeouts = {
        # keepalives find a peer that died in silence, tcp_user_timeout one that died while it was sent something
        "keepalives_idle": "5",
        "keepalives_interval": "2",
        "keepalives_count": "3",
        "tcp_user_timeout": str(round(SILENCE_S * 1000)),
    }
    return url.update_query_dict({name: value for name, value in timeouts.items() if name not in url.query})


@event.listens_for(Engine, "handle_error")
def _leave_a_standby(context: ExceptionContext) -> None:
    """A primary that became a standby keeps the sessions that it has, and refuses their writes for good: they are
    closed, so that the next one is led to the primary. Holds for the engine of the stages' queue, too."""
    if getattr(context.original_exception, "sqlstate", None) == _READ_ONLY:
        context.is_disconnect = True


@event.listens_for(Engine, "do_connect")
def _connect(dialect: Any, _record: Any, arguments: Any, keywords: dict[str, Any]) -> Any:
    """Every session with a server, those of the stages' queue too, is an attentive one."""
    if dialect.driver != "psycopg":
        return None
    return attentive_session().connect(*arguments, **keywords)


@cache
def attentive_session() -> type[PostgresConnection[Any]]:
    """The class of sessions with a PostgreSQL server. Made on demand, since its driver is not loaded for SQLite."""
    import psycopg

    class AttentiveSession(psycopg.Connection[Any]):
        """A session that ends when its server leaves a statement without a word for `ANSWER_S`. A server's own
        statement_timeout ends no statement of a server that is frozen."""

        def wait(self, gen: PQGen[Any], *args: Any, **kwargs: Any) -> Any:
            return super().wait(self._heard(gen), *args, **kwargs)

        def _heard(self, gen: PQGen[Any]) -> PQGen[Any]:
            ready, heard_s = None, time.monotonic()
            while True:
                try:
                    wanted = gen.send(ready)  # type: ignore[arg-type]  # None starts it
                except StopIteration as end:
                    return end.value
                ready = yield wanted
                if ready:
                    heard_s = time.monotonic()
                elif time.monotonic() - heard_s > ANSWER_S:
                    # closed, not cancelled: a cancel goes to the same frozen server, and waits for it as well
                    self.pgconn.finish()
                    why = f"the server said nothing for {ANSWER_S:g} s; it may still do what it was sent"
                    raise psycopg.OperationalError(why)

    return AttentiveSession


def _database_errors() -> tuple[type[Exception], ...]:
    """What the drivers raise. That of PostgreSQL is not loaded for SQLite, where a decision would wait for it."""
    server = sys.modules.get("psycopg")
    return (DBAPIError, sqlite3.Error, *(() if server is None else (server.Error,)))


class Database:
    """An engine with the two kinds of transaction that the house uses. Thread-safe."""

    def __init__(self, url: str, *, busy_timeout_s: float = BUSY_TIMEOUT_S, migrate: bool = True) -> None:
        """`migrate`: brings the schema to this program's; without it the schema is left as it is."""
        self.url = parse_url(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self.where = self.url.render_as_string(hide_password=True)
        self.engine = self._engine(busy_timeout_s)
        if migrate:
            with self._said_clearly():
                self._migrate()

    def _engine(self, busy_timeout_s: float) -> Engine:
        if not self.is_sqlite:
            arguments = {
                # libpq takes no less than 2 s
                "connect_timeout": max(2, round(busy_timeout_s)),
                "options": server_options(self.url, lock_timeout=busy_timeout_s),
            }
            url = patient(self.url)
            return sa.create_engine(
                # pre-ping: after a failover each pooled session is dead, and would fail one statement
                url,
                pool_size=5,
                max_overflow=5,
                pool_pre_ping=True,
                pool_timeout=30,
                connect_args=arguments,
            )
        path = Path(str(self.url.database))
        if not path.parent.is_dir():
            raise StoreUnusable(f"store.url: the folder {path.parent} does not exist")
        engine = sa.create_engine(self.url, connect_args={"timeout": busy_timeout_s, "check_same_thread": False})

        @event.listens_for(engine, "connect")
        def _prepare(connection: sqlite3.Connection, _record: Any) -> None:
            # the driver would begin DEFERRED, and fail half-way where another writer came first
            connection.isolation_level = None  # we say BEGIN ourselves
            # WAL: readers never wait for the writer. With NORMAL, a power cut may take the last intents along.
            for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
                connection.execute(f"PRAGMA {pragma}").close()

        @event.listens_for(engine, "begin")
        def _begin(connection: Connection) -> None:
            writes = connection.get_execution_options().get("writes", False)
            connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

        return engine

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """One transaction: everything inside it is stored, or nothing is."""
        with self._said_clearly(), self.engine.connect() as bare:
            connection = bare.execution_options(writes=True)
            with connection.begin():
                yield connection

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Reads what is committed, as of the first statement: all statements see the same moment."""
        with self._said_clearly(), self.engine.connect() as bare:
            # READ COMMITTED could show a newer incident beside its older findings
            snapshot = {} if self.is_sqlite else {"isolation_level": "REPEATABLE READ"}
            connection = bare.execution_options(**snapshot)
            with connection.begin():
                yield connection

    def close(self) -> None:
        self.engine.dispose()

    @contextmanager
    def _said_clearly(self) -> Iterator[None]:
        try:
            yield
        except PoolTimeout as error:
            raise StoreBusy(f"{self.where}: no connection became free ({error})") from error
        except _database_errors() as error:
            raise self._meaning(error) from error
        except SQLAlchemyError as error:
            raise StoreUnusable(f"{self.where}: {error}") from error

    def _meaning(self, error: Exception) -> Exception:
        cause = getattr(error, "orig", None) or error
        text = " ".join(str(cause).split()) or type(cause).__name__
        if isinstance(cause, sqlite3.Error):
            return self._sqlite_meaning(cause, text)
        state = getattr(cause, "sqlstate", None) or ""
        # SQLSTATE 53100: disk_full (PostgreSQL, appendix A)
        if state == "53100":
            return StoreFull(f"{self.where}: the database server's disk is full; nothing was written")
        if state == _READ_ONLY:
            return StoreBusy(
                f"{self.where}: {text}: a standby, or a primary about to be one; nothing was written", 1.0
            )
        # 28: wrong user or password; 3D: no such database. A person has to mend these; everything else may pass
        from psycopg import OperationalError

        if isinstance(cause, OperationalError) and not state.startswith(("28", "3D")):
            # a refusal before the session has begun carries no SQLSTATE, only words
            if not state and ("authentication" in text or "does not exist" in text):
                return StoreUnusable(f"{self.where}: {text}")
            return StoreBusy(f"{self.where}: {text}", 1.0)
        # connection, rollback (deadlock), resources, object not ready (a lock), operator intervention (shutdown)
        if state[:2] in ("08", "40", "53", "55", "57") or state in ("25P03", "25P04"):  # idle, or too long, inside
            return StoreBusy(f"{self.where}: {text}", 1.0)
        return StoreUnusable(f"{self.where}: {text}")

    def _sqlite_meaning(self, cause: sqlite3.Error, text: str) -> Exception:
        # the low byte is the primary code; the rest says where it happened, e.g. SQLITE_IOERR_WRITE
        code = getattr(cause, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_FULL:
            return StoreFull(
                f"{self.where}: the disk is full and nothing was written. Free some space; writing then resumes"
            )
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return StoreBusy(f"{self.where}: another process holds the database's lock ({text})", 1.0)
        if code == sqlite3.SQLITE_IOERR:
            return StoreFull(f"{self.where}: the disk fails or is full ({text}); nothing was written")
        return StoreUnusable(f"{self.where}: {text}")

    def schema(self) -> str | None:
        """The schema that the database has; None for an empty one."""
        with self._said_clearly(), self.engine.connect() as connection:
            return _revision(connection)

    def downgrade(self, to: str) -> str | None:
        """Takes the schema back to an earlier one; returns what it was. Tables and columns that came later are
        dropped with what they hold; everything else stays. Raises StoreUnusable where there is no way back."""
        from alembic import command

        with self._said_clearly(), self._migrating() as (connection, script, config):
            current = _revision(connection)
            known = [entry.revision for entry in script.walk_revisions()]
            if current not in known or to not in known or known.index(to) < known.index(str(current)):
                raise StoreUnusable(
                    f"{self.where}: no way from schema {current} back to {to}; this program knows "
                    f"{', '.join(sorted(known))}"
                )
            config.attributes["connection"] = connection
            command.downgrade(config, to)
            return current

    def _migrate(self) -> None:
        """Brings the schema to the newest version; one process at a time. A newer schema than ours is refused."""
        with self.engine.connect() as connection:
            if _revision(connection) == schemas()[-1]:
                return
        from alembic import command

        with self._migrating() as (connection, script, config):
            current = _revision(connection)
            if current == script.get_current_head():
                return
            # an older program would write rows without what the newer one relies on
            if current is not None and current not in {entry.revision for entry in script.walk_revisions()}:
                raise StoreUnusable(
                    f"{self.where}: its schema ({current}) is newer than this program; upgrade nightshift, or take "
                    f"the schema back with the newer one: nightshift store downgrade {script.get_current_head()}"
                )
            config.attributes["connection"] = connection
            command.upgrade(config, "head")

    @contextmanager
    def _migrating(self) -> Iterator[tuple[Connection, ScriptDirectory, Config]]:
        """One process at a time, all of it or nothing."""
        from alembic.script import ScriptDirectory

        config = _alembic()
        with self.engine.connect() as bare:
            connection = bare.execution_options(writes=True)
            with connection.begin():
                if not self.is_sqlite:
                    # both end with the transaction: a process that dies while it migrates holds up no other
                    connection.exec_driver_sql(
                        f"SET LOCAL idle_in_transaction_session_timeout = '{MIGRATION_IDLE_S:g}s'"
                    )
                    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_MIGRATION_LOCK)))
                with _unhurried(connection):
                    yield connection, ScriptDirectory.from_config(config), config


@contextmanager
def _unhurried(connection: Connection) -> Iterator[None]:
    session: Any = connection.connection.driver_connection
    if not hasattr(session, "answer_s"):  # SQLite's
        yield
        return
    session.answer_s = MIGRATION_S
    try:
        yield
    finally:
        del session.answer_s  # the class's again


def schemas() -> list[str]:
    """The schemas that this program knows, oldest first."""
    return sorted(file.name.partition("_")[0] for file in (_MIGRATIONS / "versions").glob("[0-9]*_*.py"))


def _revision(connection: Connection) -> str | None:
    """The schema that a database has, in alembic's own table; None where it has none."""
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    found: str | None = connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()
    return found


def _alembic() -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    return config
