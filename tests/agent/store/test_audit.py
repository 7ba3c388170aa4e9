"""The audit log: any touch is found and the first broken record is named."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nightshift.agent.store import audit
from nightshift.agent.store.audit import AuditHead, AuditLog
from nightshift.agent.store.database import Database

RECORDS = 6


def _write(database: Database, count: int, by: str = "ann") -> None:
    for number in range(count):
        with database.write() as connection:
            body = {"text": f"ünïcode {number}", "score": float("nan")}
            audit.append(connection, at_s=1000.5 + number, kind="moved", by=by, incident=number % 2 + 1, body=body)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a sound log of six records; each example touches it and puts it back."""
    file = tmp_path_factory.mktemp("audit") / "store.sqlite"
    database = Database(f"sqlite:///{file}")
    _write(database, RECORDS)
    database.close()
    return file


@pytest.fixture(scope="module")
def log(path: Path) -> Iterator[AuditLog]:
    database = Database(f"sqlite:///{path}")
    yield AuditLog(database)
    database.close()


def _verify_after(path: Path, log: AuditLog, touch: Callable[[sqlite3.Connection], Any]) -> audit.AuditReport:
    """What verify says while the touch is in place; afterwards the tables are as they were."""
    connection = sqlite3.connect(path, isolation_level=None)
    kept = {table: connection.execute(f"SELECT * FROM {table}").fetchall() for table in ("audit", "audit_head")}
    try:
        touch(connection)
        return log.verify()
    finally:
        for table, rows in kept.items():
            connection.execute(f"DELETE FROM {table}")
            marks = ",".join("?" * len(rows[0]))
            connection.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
        connection.close()
        assert log.verify().ok


def test_an_untouched_log_verifies_and_says_where_it_ends(log: AuditLog) -> None:
    report = log.verify()
    assert (report.ok, report.records, report.head) == (True, RECORDS, log.head())
    assert log.verify(AuditHead.parse(str(log.head()))).ok


def test_records_read_back_in_order_and_by_incident(log: AuditLog) -> None:
    assert [record.number for record in log.records()] == list(range(1, RECORDS + 1))
    assert [record.number for record in log.records(incident=1)] == [1, 3, 5]
    assert [record.number for record in log.records(newest_first=True, limit=2)] == [RECORDS, RECORDS - 1]
    assert log.records()[0].body == {"text": "ünïcode 0", "score": {"$float": "nan"}}


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_change_of_any_one_byte_is_found_at_its_record(path: Path, log: AuditLog, data: st.DataObject) -> None:
    number = data.draw(st.integers(1, RECORDS))
    column = data.draw(st.sampled_from(["record", "sha256"]))

    def touch(connection: sqlite3.Connection) -> None:
        (text,) = connection.execute(f"SELECT {column} FROM audit WHERE number = ?", (number,)).fetchone()
        raw = bytearray(text.encode())
        place = data.draw(st.integers(0, len(raw) - 1))
        raw[place] ^= data.draw(st.integers(1, 255))
        # CAST keeps bytes that are not UTF-8, as an editor of the file would
        connection.execute(f"UPDATE audit SET {column} = CAST(? AS TEXT) WHERE number = ?", (bytes(raw), number))

    report = _verify_after(path, log, touch)
    assert report.broken == number
    assert report.reason


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(first=st.integers(1, RECORDS), count=st.integers(1, RECORDS))
def test_a_deletion_is_found_at_the_first_missing_record(path: Path, log: AuditLog, first: int, count: int) -> None:
    report = _verify_after(
        path,
        log,
        lambda c: c.execute("DELETE FROM audit WHERE number BETWEEN ? AND ?", (first, first + count - 1)),
    )
    assert report.broken == first


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(order=st.permutations(range(1, RECORDS + 1)))
def test_a_new_order_is_found_at_the_first_record_that_moved(path: Path, log: AuditLog, order: list[int]) -> None:
    def touch(connection: sqlite3.Connection) -> None:
        rows = connection.execute("SELECT incident, record, sha256 FROM audit ORDER BY number").fetchall()
        for number, source in enumerate(order, start=1):
            values = (*rows[source - 1], number)
            connection.execute("UPDATE audit SET incident = ?, record = ?, sha256 = ? WHERE number = ?", values)

    moved = [number for number, source in enumerate(order, start=1) if number != source]
    assert _verify_after(path, log, touch).broken == (moved[0] if moved else None)


@pytest.mark.parametrize("number", range(1, RECORDS + 1))
def test_a_deletion_with_the_numbers_closed_up_is_found(path: Path, log: AuditLog, number: int) -> None:
    def touch(connection: sqlite3.Connection) -> None:
        connection.execute("DELETE FROM audit WHERE number = ?", (number,))
        connection.execute("UPDATE audit SET number = number - 1 WHERE number > ?", (number,))

    assert _verify_after(path, log, touch).broken == number


def test_a_record_moved_to_another_incident_is_found(path: Path, log: AuditLog) -> None:
    report = _verify_after(path, log, lambda c: c.execute("UPDATE audit SET incident = 9 WHERE number = 4"))
    assert (report.broken, report.reason) == (4, "its columns do not match its text")


@pytest.mark.parametrize("change", ["number = number - 1", "number = number + 1", f"sha256 = '{'f' * 64}'"])
def test_a_touched_head_is_found_behind_the_last_record(path: Path, log: AuditLog, change: str) -> None:
    report = _verify_after(path, log, lambda c: c.execute(f"UPDATE audit_head SET {change}"))
    assert report.broken == RECORDS + 1


def test_a_log_rewritten_as_a_whole_is_found_by_an_anchor_kept_outside(tmp_path: Path) -> None:
    databases = [Database(f"sqlite:///{tmp_path}/{name}.sqlite") for name in ("true", "forged")]
    _write(databases[0], 4)
    _write(databases[1], 6, by="mallory")
    anchor = AuditLog(databases[0]).head()
    _write(databases[0], 2)
    assert AuditLog(databases[0]).verify(anchor).ok
    forged = AuditLog(databases[1])
    assert forged.verify().ok
    assert forged.verify(anchor).broken == 4
    for database in databases:
        database.close()


def test_what_is_rolled_back_leaves_no_record(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/store.sqlite")
    with suppress(RuntimeError), database.write() as connection:
        audit.append(connection, at_s=1.0, kind="moved", by="ann", incident=1, body={})
        raise RuntimeError
    assert AuditLog(database).verify().records == 0
    database.close()


def test_writers_in_parallel_make_one_unbroken_chain(postgres_url: str) -> None:
    database = Database(postgres_url)
    writers = [threading.Thread(target=_write, args=(database, 10)) for _ in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    report = AuditLog(database).verify()
    assert (report.ok, report.records) == (True, 40)
    database.close()
