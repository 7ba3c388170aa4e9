"""What is old goes, what holds capacity stays, and the audit log still proves itself, from its new beginning on."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from nightshift.agent.incidents.retention import DAY_S, Keeping, Settings
from nightshift.agent.store.anchors import anchors, make_key
from nightshift.agent.store.audit import AuditHead, AuditLog, append, cut
from nightshift.agent.store.database import Database
from nightshift.agent.store.incident import Cause, IncidentState
from nightshift.agent.store.incident_store import NoSuchIncident, number_of
from nightshift.collectors.base import Permanent
from nightshift.collectors.seal import trusted_keys
from nightshift.controllers.action import ActionKind, Undo
from nightshift.detectors.base import State
from tests.agent.approvals.test_scoreboard import made, once
from tests.agent.incidents import NODE, ManualClock, a_finding, an_action
from tests.agent.world import World


@pytest.fixture
def kept(tmp_path: Path) -> tuple[World, ManualClock, Path]:
    """Two incidents that ended, a day apart, and one that is open."""
    world, clock = made(tmp_path)
    world.action = lambda i: an_action(f"{i.id}-{i.attempt + 1}".lower(), expires_at_s=clock.now_s() + 3600)
    assert once(world, clock, "approve") is IncidentState.RESOLVED
    clock.advance(DAY_S)
    assert once(world, clock, "approve") is IncidentState.RESOLVED
    world.store.open_incident("open", [a_finding(at_s=clock.now_s())])
    return world, clock, tmp_path / "store.sqlite"


def keeping(world: World, **settings: object) -> Keeping:
    return Keeping(world.store.database, Settings(**settings))  # type: ignore[arg-type]


def names(world: World) -> set[str]:
    return {incident.id for incident in world.store.incidents()}


def test_old_incidents_go_whole_and_open_ones_stay(kept: tuple[World, ManualClock, Path]) -> None:
    world, clock, path = kept
    assert keeping(world).remove_incidents(clock.now_s()) == 0
    assert keeping(world, incidents_days=0.5).remove_incidents(clock.now_s()) == 1
    assert names(world) == {"INC-2", "INC-3"}
    with pytest.raises(NoSuchIncident):
        world.store.incident("INC-1")
    assert keeping(world, incidents_days=0.5).remove_incidents(clock.now_s() + 400 * DAY_S) == 1
    assert names(world) == {"INC-3"}
    with sqlite3.connect(path) as connection:
        for table in ("findings", "steps", "diagnoses", "plans", "approvals", "intents"):
            left = {row[0] for row in connection.execute(f"SELECT incident FROM {table}")}
            assert left <= {3}, table
    assert world.store.audit.verify().ok
    assert world.store.audit.records(incident=number_of("INC-1")), "the audit log outlives them"


def test_evidence_beyond_its_room_goes_oldest_first(
    kept: tuple[World, ManualClock, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    world, clock, path = kept
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE diagnoses SET body = body || ?", (" " * 700_000,))
    monkeypatch.setattr("nightshift.agent.incidents.retention.EVIDENCE_BYTES", 2**20)
    assert keeping(world).remove_incidents(clock.now_s()) == 1
    assert names(world) == {"INC-2", "INC-3"}


def test_what_still_holds_capacity_is_never_forgotten(tmp_path: Path) -> None:
    """The guard counts a cordon that nobody took back, however long ago."""
    world, clock = made(tmp_path)
    back = Undo(True, "uncordon", ActionKind.UNCORDON)
    world.action = lambda i: an_action(f"{i.id}-{i.attempt + 1}".lower(), ActionKind.CORDON, NODE, undo=back)
    once(world, clock, "approve")
    name = min(names(world))
    if world.store.incident(name).state is not IncidentState.RESOLVED:
        world.store.update_finding(name, a_finding(state=State.CLEAR, at_s=clock.now_s()))
        world.store.move(name, Cause.CLOSED_BY_PERSON, "ann", "seen")
    assert keeping(world, incidents_days=1).remove_incidents(clock.now_s() + 900 * DAY_S) == 0


def test_a_log_that_retention_cut_verifies_from_its_new_beginning(kept: tuple[World, ManualClock, Path]) -> None:
    world, clock, path = kept
    audit, before = world.store.audit, world.store.audit.head()
    first_day = sum(record.at_s < clock.now_s() - DAY_S / 2 for record in audit.records())
    assert keeping(world, audit_days=0.5).cut_audit(clock.now_s()) == first_day
    report = audit.verify()
    assert (report.ok, report.records) == (True, before.number - first_day + 1)
    assert audit.verify(before).ok, "an anchor from before that is still in the log"
    assert keeping(world, audit_days=0.5).cut_audit(clock.now_s()) == 0
    with sqlite3.connect(path) as connection:
        first = connection.execute("SELECT min(number) FROM audit").fetchone()[0]
        seal = connection.execute("SELECT sha256 FROM audit WHERE number = ?", (first,)).fetchone()[0]
        connection.execute("DELETE FROM audit WHERE number = ?", (first,))
        connection.execute("UPDATE audit_head SET number = ?, sha256 = ? WHERE id = 2", (first, seal))
    assert audit.verify().reason == "records before are missing, and retention did not remove them"


def test_a_cut_that_retention_did_not_announce_outside_is_found(
    kept: tuple[World, ManualClock, Path], tmp_path: Path
) -> None:
    """Whoever can write the database can remove its beginning and append a sound record of a cut."""
    world, clock, _ = kept
    log, key = world.store.audit, tmp_path / "key"
    make_key(key, tmp_path / "pub")
    trusted = trusted_keys([tmp_path / "pub"])
    keeper = keeping(world, anchor_file=tmp_path / "anchors", anchor_key=key, audit_days=0.5)
    keeper.turn(clock.now_s())
    told = anchors(tmp_path / "anchors", trusted)
    assert [anchor.cut for anchor in told] == [True, False]
    assert log.verify(told, [anchor for anchor in told if anchor.cut]).ok, "retention's own cut"
    third = log.records()[2]
    cut(world.store.database, AuditHead(third.number, third.sha256), clock.now_s())
    keeper.anchor(clock.now_s())
    told = anchors(tmp_path / "anchors", trusted)
    assert log.verify(told).ok, "the log alone, and where it ended, cannot tell"
    report = log.verify(told, [anchor for anchor in told if anchor.cut])
    assert (report.broken, report.reason) == (
        third.number,
        "the log was cut here, and no anchor says so of retention",
    )


def test_a_clock_that_was_behind_for_a_moment_makes_no_record_before_it_old(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/store.sqlite")
    for at_s in (0.0, 0.0, *(900 * DAY_S + n for n in range(4)), 5.0, *(900 * DAY_S + n for n in range(9))):
        with database.write() as connection:
            append(connection, at_s=at_s, kind="moved", by="ann", incident=None, body={})
    assert Keeping(database, Settings(audit_days=10)).cut_audit(901 * DAY_S) == 2
    assert AuditLog(database).verify().ok
    database.close()


def test_the_head_is_anchored_outside_and_a_rewritten_log_is_found_by_it(
    kept: tuple[World, ManualClock, Path], tmp_path: Path
) -> None:
    """A line a minute where something was recorded, and every hour; a log that is shorter than an anchor, or whose
    record differs, fails."""
    world, clock, path = kept
    file = tmp_path / "anchors"
    keeper = keeping(world, anchor_file=file)
    keeper.turn(clock.now_s())
    keeper.turn(clock.now_s() + 10)
    world.store.open_incident("another", [a_finding(at_s=clock.now_s())])
    keeper.turn(clock.now_s() + 61)
    found = anchors(file)
    assert [str(head) for head in found[-1:]] == [str(world.store.audit.head())]
    assert len(found) == 2
    keeper.turn(clock.now_s() + 130)
    assert len(anchors(file)) == 2, "nothing was recorded since"
    keeper.turn(clock.now_s() + 3601)
    found = anchors(file)
    assert len(found) == 3
    assert world.store.audit.verify(found).ok
    other = AuditHead(found[0].number, "f" * 64)
    assert "rewritten" in world.store.audit.verify([other, found[1]]).reason
    with sqlite3.connect(path) as connection:
        last = found[-1].number
        seal = connection.execute("SELECT sha256 FROM audit WHERE number = ?", (last - 1,)).fetchone()[0]
        connection.execute("DELETE FROM audit WHERE number = ?", (last,))
        connection.execute("UPDATE audit_head SET number = ?, sha256 = ? WHERE id = 1", (last - 1, seal))
    assert world.store.audit.verify().ok, "the log alone cannot tell"
    assert f"the anchor is at {last}" in world.store.audit.verify(found).reason


def test_signed_anchors_hold_over_a_change_of_keys_and_nobody_elses_do(
    kept: tuple[World, ManualClock, Path], tmp_path: Path
) -> None:
    """The key is read for each line, so that another Secret needs no restart; a line of no trusted key, an unsigned
    one and one whose words were changed are named."""
    world, clock, _ = kept
    file, key = tmp_path / "anchors", tmp_path / "key"
    make_key(key, tmp_path / "first.pub")
    keeper = keeping(world, anchor_file=file, anchor_key=key)
    keeper.anchor(clock.now_s())
    key.unlink()
    make_key(key, tmp_path / "second.pub")
    keeper.anchor(clock.now_s() + 60)
    both = trusted_keys([tmp_path / "first.pub", tmp_path / "second.pub"])
    found = anchors(file, both)
    assert len(found) == 2
    assert world.store.audit.verify(found).ok
    assert anchors(file) == found, "signed lines are read without keys, too"
    with pytest.raises(Permanent, match=r"anchors:2: .*trusted key"):
        anchors(file, trusted_keys([tmp_path / "first.pub"]))
    lines = file.read_text().splitlines()
    at, _, signature = lines[0].split(" ")
    for forged, said in (
        (f"{at} 1:{'f' * 64} {signature}", "trusted key"),
        (f"{at} 1:{'f' * 64}", "not signed"),
        (f"{at} 1:{'f' * 64} %%%", "malformed"),
    ):
        file.write_text(f"{lines[1]}\n{forged}\n")
        with pytest.raises(Permanent, match=rf"anchors:2: .*{said}"):
            anchors(file, both)
    with pytest.raises(Permanent, match="File exists"):
        make_key(key, tmp_path / "third.pub")


def test_an_anchor_file_that_is_damaged_is_named_by_its_line(tmp_path: Path) -> None:
    file = tmp_path / "anchors"
    file.write_text(f"2026-11-21T00:00:00+00:00 1:{'a' * 64}\n2026-11-21T01:00:00+00:00 2:short\n")
    with pytest.raises(Permanent, match=r"anchors:2: anchor"):
        anchors(file)


def test_a_failure_is_told_and_holds_nothing_up(kept: tuple[World, ManualClock, Path], tmp_path: Path) -> None:
    """An anchor file that cannot be written does not end the look; the next turn is an hour later."""
    world, clock, _ = kept
    keeper = keeping(world, anchor_file=tmp_path / "absent" / "anchors")
    keeper.turn(clock.now_s())
    (tmp_path / "absent").mkdir()
    keeper.turn(clock.now_s() + 3601)
    assert len(anchors(tmp_path / "absent" / "anchors")) == 1
