"""The store: what goes in comes out, moves are compare-and-set, trouble is said and leaves nothing half-written."""

from __future__ import annotations

import dataclasses
import math
import os
import signal
import socket
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy.exc import SQLAlchemyError

from nightshift.agent.store.database import Database, StoreBusy, StoreFull, StoreUnusable, attentive_session
from nightshift.agent.store.incident import Cause, IllegalTransition, IncidentState
from nightshift.agent.store.incident_store import Conflict, NoSuchIncident, Store, number_of
from nightshift.agent.store.intents import commitments, end_intent, store_intent
from nightshift.agent.store.records import dump, load
from nightshift.agent.store.tables import metadata
from nightshift.collectors.subject import Membership, Subject, SubjectKind
from nightshift.controllers.action import Action, ActionKind, ActionOutcome, OutcomeStatus
from nightshift.detectors.base import Fault, Finding, Severity, State
from tests.agent.incidents import GPU, NODE, ManualClock, a_diagnosis, a_finding, an_action


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/store.sqlite"
    else:
        url = request.getfixturevalue("postgres_url")
    opened = Store(url, clock)
    yield opened
    opened.close()


def test_an_incident_reads_back_as_it_was_stored(store: Store, clock: ManualClock) -> None:
    finding = a_finding()
    name = store.open_incident("leak on GPU-1", [finding])
    store.save_diagnosis(store.incident(name), a_diagnosis(), by="rules")
    plan = an_action(f"{name}-1")
    store.save_plan(store.incident(name), plan, "least disruptive", by="mitigate")
    read = store.incident(name)
    assert read.diagnosis == a_diagnosis()
    assert read.action is not None
    assert dump(read.action) == dump(plan)  # by text, because NaN differs from itself
    assert read.action.plan_sha256 == plan.plan_sha256
    assert repr(read.findings[0].finding) == repr(finding)
    assert (read.state, read.attempt, read.plan_reason) == (IncidentState.AWAITING_APPROVAL, 1, "least disruptive")
    assert [step.cause for step in read.history] == ["opened", "diagnosis_stored", "plan_proposed"]
    assert read.subjects == (GPU,)


def test_the_migrations_make_exactly_the_tables_that_the_code_names(store: Store) -> None:
    with store.database.engine.connect() as connection:
        differences = compare_metadata(MigrationContext.configure(connection), metadata)
    assert differences == []


def test_of_two_movers_one_wins_and_the_other_is_told(store: Store) -> None:
    name = store.open_incident("leak", [a_finding()])
    seen = store.incident(name)
    store.move(name, Cause.CLOSED_BY_PERSON, "ann", "", seen.version)
    with pytest.raises(Conflict, match="resolved now"):
        store.move(name, Cause.CLOSED_BY_PERSON, "bob", "", seen.version)
    assert len(store.incident(name).history) == 2


def test_a_move_that_the_table_lacks_changes_nothing(store: Store) -> None:
    name = store.open_incident("leak", [a_finding()])
    before = store.incident(name)
    with pytest.raises(IllegalTransition):
        store.move(name, Cause.CONFIRMED, "ann", "", before.version)
    assert repr(store.incident(name)) == repr(before)
    assert store.audit.verify().records == 1


def test_an_incident_is_clear_only_when_every_finding_is_clear(store: Store, clock: ManualClock) -> None:
    name = store.open_incident("leak", [a_finding(), a_finding(Fault.XID, NODE)])
    clock.advance(10)
    store.update_finding(name, a_finding(state=State.CLEAR))
    assert store.incident(name).clear_since_s is None
    clock.advance(10)
    store.update_finding(name, a_finding(Fault.XID, NODE, State.NO_DATA))
    assert store.incident(name).clear_since_s is None
    clock.advance(10)
    store.update_finding(name, a_finding(Fault.XID, NODE, State.CLEAR))
    assert store.incident(name).clear_since_s == 1030
    clock.advance(10)
    store.update_finding(name, a_finding(state=State.CLEAR))
    assert store.incident(name).clear_since_s == 1030


def test_a_resolved_incident_relapses_when_its_finding_fires_again(store: Store) -> None:
    name = store.open_incident("leak", [a_finding()])
    store.move(name, Cause.CLOSED_BY_PERSON, "ann", "", store.incident(name).version)
    store.update_finding(name, a_finding())
    assert store.incident(name).state is IncidentState.OPEN


def test_the_worst_finding_gives_the_severity(store: Store) -> None:
    name = store.open_incident("leak", [a_finding(severity=Severity.INFO)])
    store.attach(name, a_finding(Fault.XID, NODE, severity=Severity.CRITICAL))
    assert store.incidents()[0].severity is Severity.CRITICAL


def test_an_alarm_that_becomes_graver_makes_its_incident_so_and_a_milder_word_takes_nothing_back(
    store: Store, clock: ManualClock
) -> None:
    """Else whoever is called for critical ones alone is never called. Whoever tells people sees that it changed."""
    name = store.open_incident("hbm", [a_finding(Fault.HBM_DEGRADED)])
    clock.advance(30)
    store.update_finding(name, a_finding(Fault.HBM_DEGRADED, severity=Severity.CRITICAL, at_s=1030.0))
    assert (store.incident(name).severity, store.incident(name).updated_s) == (Severity.CRITICAL, 1030.0)
    clock.advance(30)
    store.update_finding(name, a_finding(Fault.HBM_DEGRADED, at_s=1060.0))
    assert (store.incident(name).severity, store.incident(name).updated_s) == (Severity.CRITICAL, 1030.0)


def test_the_findings_of_one_look_are_one_write_and_an_unknown_one_is_attached(
    store: Store, clock: ManualClock
) -> None:
    name = store.open_incident("storm", [a_finding(), a_finding(Fault.HBM_DEGRADED)])
    clock.advance(30)
    begun: list[object] = []
    sa.event.listen(store.database.engine, "commit", begun.append)
    graver, over = a_finding(severity=Severity.CRITICAL), a_finding(Fault.HBM_DEGRADED, state=State.CLEAR)
    store.update_findings(name, [(graver, False, False), (over, False, False)])
    assert len(begun) == 1
    store.update_findings(name, [(graver, False, False), (a_finding(Fault.XID, NODE), False, False)])
    read = store.incident(name)
    assert (read.severity, read.updated_s) == (Severity.CRITICAL, 1030.0)
    states = {str(one.finding.fault): one.state for one in read.findings}
    assert states == {
        str(graver.fault): State.FIRING,
        str(Fault.HBM_DEGRADED): State.CLEAR,
        str(Fault.XID): State.FIRING,
    }


def test_summaries_are_filtered_by_state_and_carry_findings_without_exhibits(store: Store) -> None:
    first = store.open_incident("one", [a_finding()])
    second = store.open_incident("two", [a_finding(Fault.XID, NODE)])
    store.move(first, Cause.CLOSED_BY_PERSON, "ann", "", 1)
    assert [item.id for item in store.incidents()] == [second, first]
    (still,) = store.open_incidents()
    assert (still.id, still.findings[0].fault, still.findings[0].subject) == (second, Fault.XID, NODE)
    assert [item.id for item in store.incidents(limit=1, offset=1)] == [first]


def test_an_unknown_incident_is_named_in_the_error(store: Store) -> None:
    for name in ["INC-9", "INC-x", "7", "INC--1", "", "INC-" + "9" * 30]:
        with pytest.raises(NoSuchIncident):
            store.incident(name)


def test_inventory_relations_and_snapshots_survive_a_restart(store: Store, clock: ManualClock) -> None:
    pod = Subject(SubjectKind.POD, "team/job-0")
    store.save_memberships([Membership(GPU, pod, 10.0), Membership(GPU, NODE, 5.0)])
    store.save_memberships([Membership(GPU, pod, 10.0, 20.0)])
    assert store.load_memberships() == [Membership(GPU, NODE, 5.0), Membership(GPU, pod, 10.0, 20.0)]
    assert store.load_memberships(after_s=25.0) == [Membership(GPU, NODE, 5.0, math.inf)]
    assert store.prune_memberships(25.0) == 1
    store.keep({"detector/ecc": b"\x00\xff", "cursor/n1": b"17"})
    store.keep({"cursor/n1": b"18"})
    assert store.recall("cursor/n1") == (1000.0, b"18")
    assert store.recall("detector/ecc") == (1000.0, b"\x00\xff")
    assert store.recall("nothing") is None


def test_a_record_of_a_newer_version_is_refused_and_an_older_one_takes_defaults() -> None:
    text = dump(an_action())
    with pytest.raises(Exception, match=r"Action: unknown field 'power'"):
        load(Action, text[:-1] + ',"power":1}')
    older = {f.name: getattr(an_action(), f.name) for f in dataclasses.fields(Action) if f.name != "preconditions"}
    assert dump(load(Action, dump(older))) == text


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("[]", "Finding: "),
        ("{", "Finding: not JSON"),
        ('{"score":"high"}', "Finding.score"),
        ('{"since":{"t_s":true}}', "Finding.since.t_s"),
        ('{"state":"maybe"}', "Finding.state"),
        ('{"evidence":[{"$type":"LogExhibit","note":1}]}', r"Finding.evidence\[0\].note"),
        ('{"detector":"ecc"}', "Finding: .*missing"),
    ],
)
def test_a_damaged_record_names_its_field(text: str, place: str) -> None:
    with pytest.raises(Exception, match=place):
        load(Finding, text)


def test_a_full_disk_is_said_and_leaves_nothing_half_written(tmp_path: Path, clock: ManualClock) -> None:
    store = Store(f"sqlite:///{tmp_path}/store.sqlite", clock)
    name = store.open_incident("leak", [a_finding()])
    with store.database.engine.connect() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
    raw = sa.event.listens_for(store.database.engine, "checkout")
    raw(lambda connection, *_: connection.execute(f"PRAGMA max_page_count={pages}").close())

    def fill() -> None:
        for _ in range(100):
            store.open_incident("more", [a_finding()])

    with pytest.raises(StoreFull, match="disk is full"):
        fill()
    count = len(store.incidents())
    report = store.audit.verify()
    assert report.ok
    assert report.records == count
    assert store.incident(name).history[0].cause == "opened"
    store.close()


def test_a_locked_database_is_temporary_and_says_so(tmp_path: Path, clock: ManualClock) -> None:
    path = tmp_path / "store.sqlite"
    store = Store(Database(f"sqlite:///{path}", busy_timeout_s=0.1), clock)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreBusy, match="lock"):
        store.open_incident("leak", [a_finding()])
    assert store.incidents() == []  # readers go on
    holder.execute("ROLLBACK")
    holder.close()
    assert store.open_incident("leak", [a_finding()]) == "INC-1"
    store.close()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("sqlite://", "in memory"),
        ("mysql://x/y", "mysql is not supported"),
        ("nonsense", "not a database URL"),
        ("sqlite:////nowhere/at/all.sqlite", "/nowhere/at does not exist"),
    ],
)
def test_a_wrong_url_is_permanent_and_names_what_is_wrong(url: str, message: str) -> None:
    with pytest.raises(StoreUnusable, match=message):
        Database(url)


def test_a_file_that_is_no_database_and_a_newer_schema_are_refused(tmp_path: Path, clock: ManualClock) -> None:
    path = tmp_path / "store.sqlite"
    path.write_bytes(b"not a database at all" * 400)
    with pytest.raises(StoreUnusable, match="not a database"):
        Database(f"sqlite:///{path}")
    path.unlink()
    Database(f"sqlite:///{path}").close()
    with sqlite3.connect(path) as raw:
        raw.execute("UPDATE alembic_version SET version_num = '9999'")
    raw.close()
    with pytest.raises(StoreUnusable, match="newer than this program"):
        Database(f"sqlite:///{path}")


def test_a_postgres_that_is_away_is_temporary_and_an_unknown_database_permanent(postgres_url: str) -> None:
    with pytest.raises(StoreBusy):
        Database("postgresql://postgres@127.0.0.1:1/none")
    with pytest.raises(StoreUnusable, match="does not exist"):
        Database(postgres_url + "_missing")


def test_sessions_with_a_standby_are_left_for_the_primary(postgres_url: str) -> None:
    """A primary that was failed over keeps its sessions and refuses their writes for good. The stages' queue, which
    has an engine of its own, leaves it too."""
    admin, name = postgres_url.replace("+psycopg", ""), postgres_url.rpartition("/")[2]
    database = Database(postgres_url)
    theirs = sa.create_engine(database.url)
    insert = sa.text("INSERT INTO controls (name, at_s, by, body) VALUES (:name, 0, 'x', '{}')")
    with psycopg.connect(admin, autocommit=True) as server:
        server.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')  # type: ignore[arg-type]
        database.engine.dispose()
        with theirs.connect(), database.engine.connect():
            pass  # pooled sessions, as of a standby
        server.execute(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')  # type: ignore[arg-type]
    refused = pytest.raises(StoreBusy, match=r"read-only transaction: a standby, or .* nothing was written")
    with refused, database.write() as connection:
        connection.execute(insert, {"name": "a"})
    with database.write() as connection:
        connection.execute(insert, {"name": "a"})
    with pytest.raises(SQLAlchemyError), theirs.begin() as connection:
        connection.execute(insert, {"name": "b"})
    with theirs.begin() as connection:
        connection.execute(insert, {"name": "b"})
    theirs.dispose()
    database.close()


def test_a_statement_to_a_machine_that_died_ends_within_seconds(postgres_url: str) -> None:
    """Not after the quarter of an hour for which Linux sends it again; what the URL says stands."""
    for url, wanted in ((postgres_url, 11_000), (f"{postgres_url}?tcp_user_timeout=3000", 3_000)):
        database = Database(url)
        with database.engine.connect() as connection:
            bare = connection.connection.driver_connection
            assert isinstance(bare, psycopg.Connection)
            with socket.socket(fileno=os.dup(bare.fileno())) as line:
                assert line.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == wanted
                assert line.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 5
        database.close()


def test_a_statement_to_a_server_that_is_frozen_ends_and_the_next_session_goes_on(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its kernel acknowledges what it is sent, so no timeout of the network or of the server ends the wait."""
    database = Database(postgres_url)
    monkeypatch.setattr("nightshift.agent.store.database.ANSWER_S", 0.3)
    theirs = sa.create_engine(database.url)  # as the queue of the stages makes its own
    with theirs.connect() as connection:
        assert isinstance(connection.connection.driver_connection, attentive_session())
    theirs.dispose()
    with database.read() as connection:
        session = connection.execute(sa.text("SELECT pg_backend_pid()")).scalar_one()

    def freeze_and_ask() -> None:
        with database.read() as connection:
            os.kill(session, signal.SIGSTOP)
            connection.execute(sa.text("SELECT 1"))

    try:
        with pytest.raises(StoreBusy, match=r"said nothing for 0\.3 s"):
            freeze_and_ask()
        with database.read() as connection:
            assert connection.execute(sa.text("SELECT pg_backend_pid()")).scalar_one() != session
    finally:
        os.kill(session, signal.SIGCONT)
        database.close()


def test_passwords_are_not_in_messages() -> None:
    with pytest.raises(StoreBusy) as caught:
        Database("postgresql://me:hunter2@127.0.0.1:1/none")
    assert "hunter2" not in str(caught.value)


def test_reading_what_has_begun_holds_no_writer_up(store: Store) -> None:
    name = store.open_incident("leak", [a_finding()])
    with store.database.read() as connection:
        assert commitments(connection) == []
        store.attach(name, a_finding(Fault.XID, NODE))  # on PostgreSQL it would wait for a reader's lock
    assert len(store.incident(name).findings) == 2


def test_what_stands_is_counted_until_it_is_taken_back(store: Store, clock: ManualClock) -> None:
    """A finished cordon stands; a failed one never did; an undo or an uncordon of the same node releases it."""

    def begin(action: Action, status: OutcomeStatus | None, undo: bool = False) -> None:
        name = store.open_incident("fault", [a_finding()])
        store.save_diagnosis(store.incident(name), a_diagnosis(), by="test")
        store.save_plan(store.incident(name), action, "test", by="test")
        if status is None:  # an intent that nobody carries on would keep nothing busy
            for cause in (Cause.APPROVED, Cause.INTENT_STORED):
                store.move(name, cause, "test", "", store.incident(name).version)
        with store.database.write() as connection:
            for phase in ("act", "undo") if undo else ("act",):
                store_intent(connection, number_of(name), action, phase, clock.now_s(), "test")
                if status is not None:
                    end_intent(connection, number_of(name), action, phase, ActionOutcome(status, "", clock.now_s()))
        clock.advance(10)

    other = Subject(SubjectKind.NODE, "n2")
    begin(an_action("stands", ActionKind.CORDON, NODE), OutcomeStatus.DONE)
    begin(an_action("failed", ActionKind.CORDON, NODE), OutcomeStatus.FAILED)
    begin(an_action("undone", ActionKind.CORDON, NODE), OutcomeStatus.DONE, undo=True)
    begin(an_action("under-way", ActionKind.DRAIN, other), None)
    begin(an_action("unknown", ActionKind.REBOOT_NODE, other), OutcomeStatus.UNKNOWN)
    with store.database.read() as connection:
        found = {c.action.id: (c.ended_s, c.released_s) for c in commitments(connection)}
    assert found == {
        "stands": (1000.0, None),
        "undone": (1020.0, 1020.0),
        "under-way": (None, None),
        "unknown": (1040.0, None),
    }
    begin(an_action("lift", ActionKind.UNCORDON, NODE), OutcomeStatus.DONE)
    with store.database.read() as connection:
        (cordon,) = [c for c in commitments(connection) if c.action.id == "stands"]
    assert cordon.released_s == 1050.0
