"""A cluster that is a file: every action of the catalogue, durable, countable, and able to fail on request.

The demo and the crash tests act on it where production acts on Kubernetes. It keeps what a real cluster keeps:
facts of subjects (cordoned, restarts, boots …) and a marker with each action's id, as an annotation would be, so
that a repeat finds its own work. Beside them stands an append-only list of effects, so that a test can count how
often the world really changed. The file survives `kill -9` and other processes may read it.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from nightshift.collectors.base import Permanent, Temporary
from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.controllers.action import KINDS, Action, ActionKind, ActionOutcome, OutcomeStatus
from nightshift.controllers.cordon import CORDON_OF, NOBODY, SOMEBODY_ELSE, TAKES_OUT, cordon_ids

_SCHEMA = """
CREATE TABLE IF NOT EXISTS fact (subject TEXT, name TEXT, value TEXT NOT NULL, PRIMARY KEY (subject, name));
CREATE TABLE IF NOT EXISTS marker (action_id TEXT PRIMARY KEY, kind TEXT NOT NULL, target TEXT NOT NULL,
    at_s REAL NOT NULL, undone_at_s REAL);
CREATE TABLE IF NOT EXISTS effect (number INTEGER PRIMARY KEY AUTOINCREMENT, action_id TEXT NOT NULL,
    kind TEXT NOT NULL, target TEXT NOT NULL, params TEXT NOT NULL, at_s REAL NOT NULL, undo INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS mishap (number INTEGER PRIMARY KEY AUTOINCREMENT, mode TEXT NOT NULL,
    method TEXT NOT NULL, kind TEXT, times INTEGER NOT NULL);
"""
_COUNT, _YES, _NO = "+1", "true", "false"
_K, _A = SubjectKind, ActionKind

EFFECTS: Mapping[ActionKind, Mapping[str, str]] = {
    _A.RESTART_JOB: {"restarts": _COUNT, "running": _YES},
    _A.RESTART_POD: {"restarts": _COUNT, "running": _YES},
    _A.TAINT: {"tainted": _YES},
    _A.CORDON: {"cordoned": _YES},
    _A.UNCORDON: {"cordoned": _NO, "drained": _NO},
    _A.RETURN_NODE: {"cordoned": _NO, "drained": _NO, "probes": _COUNT},
    _A.DRAIN: {"cordoned": _YES, "drained": _YES},
    _A.QUARANTINE_GPU: {"quarantined": _YES},
    _A.RESET_GPU: {"resets": _COUNT},
    _A.REBOOT_NODE: {"boots": _COUNT},
    _A.NOTIFY_OWNER: {"owner_notified": _COUNT},
}
"""What each kind changes in this world; on what kind of subject, `controllers.action.KINDS` says."""
_TAKE_BACK: Mapping[ActionKind, Mapping[str, str]] = {
    _A.TAINT: {"tainted": _NO},
    _A.CORDON: {"cordoned": _NO},
    _A.UNCORDON: {"cordoned": _YES},
    _A.DRAIN: {"cordoned": _NO, "drained": _NO},
    _A.QUARANTINE_GPU: {"quarantined": _NO},
}
_TAKES_OUT = ", ".join(f"'{kind}'" for kind in sorted(TAKES_OUT))
_CORDONS = f"target = ? AND undone_at_s IS NULL AND kind IN ({_TAKES_OUT})"
_DEFAULTS: Mapping[SubjectKind, Mapping[str, str]] = {
    _K.NODE: {"cordoned": _NO, "tainted": _NO, "drained": _NO, "boots": "1", "probes": "0"},
    _K.GPU: {"quarantined": _NO, "resets": "0"},
    _K.JOB: {"running": _YES, "restarts": "0", "owner_notified": "0"},
    _K.POD: {"running": _YES, "restarts": "0"},
}


class Mishap(StrEnum):
    """How the simulated world goes wrong, on request."""

    REFUSE = "refuse"
    """Permanent, before any effect."""
    BUSY = "busy"
    """Temporary, before any effect."""
    LOST_REPLY = "lost_reply"
    """The effect happens, the answer does not arrive: Temporary."""
    DIE_BEFORE = "die_before"
    """This process is killed with SIGKILL before the effect."""
    DIE_AFTER = "die_after"
    """The effect is on disk, then this process is killed with SIGKILL."""
    UNKNOWN = "unknown"
    """The answer is UNKNOWN: on `execute` after the effect, with its marker lost; on `read` always."""
    NO_EFFECT = "no_effect"
    """Says DONE, yet nothing changes: only confirmation can tell."""


@dataclass(frozen=True, slots=True)
class SimulatedEffect:
    """One change of the world; `undo` where it took an action back."""

    number: int
    action_id: str
    kind: ActionKind
    target: Subject
    params: Mapping[str, Any]
    at_s: float
    undo: bool


class SimulatedCluster:
    """The file behind the actuator: for the world's own side (seed it, follow its effects) and for tests."""

    def __init__(self, path: Path | str, lock_timeout_s: float = 10.0) -> None:
        self.path = Path(path)
        self._lock_timeout_s = lock_timeout_s
        with self.transaction() as db:
            for statement in _SCHEMA.split(";"):
                db.execute(statement)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """One immediate transaction; sqlite's errors become Temporary (locked) or Permanent (disk, damage)."""
        try:
            with closing(sqlite3.connect(self.path, timeout=self._lock_timeout_s, isolation_level=None)) as db:
                # the write lock at once: a transaction that reads first and then writes fails where another has
                # written between
                db.execute("BEGIN IMMEDIATE")
                try:
                    yield db
                except BaseException:
                    db.execute("ROLLBACK")
                    raise
                db.execute("COMMIT")
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                raise Temporary(f"simulated cluster {self.path} is locked") from error
            raise Permanent(f"simulated cluster {self.path}: {error}") from error
        except sqlite3.DatabaseError as error:
            raise Permanent(f"simulated cluster {self.path}: {error}") from error

    def add(self, subject: Subject, **facts: str) -> None:
        """Makes a subject known with its kind's default facts, or changes facts of a known one."""
        with self.transaction() as db:
            for name, value in _DEFAULTS.get(subject.kind, {}).items():
                db.execute("INSERT OR IGNORE INTO fact VALUES (?, ?, ?)", (str(subject), name, value))
            for name, value in facts.items():
                db.execute("INSERT OR REPLACE INTO fact VALUES (?, ?, ?)", (str(subject), name, value))

    def facts(self, subject: Subject) -> dict[str, str]:
        """Every fact of a subject; empty where it does not exist."""
        with self.transaction() as db:
            return _facts(db, subject)

    def effects(self, since: int = 0) -> list[SimulatedEffect]:
        """Changes of the world in order, beyond a number already seen."""
        with self.transaction() as db:
            rows = db.execute("SELECT * FROM effect WHERE number > ? ORDER BY number", (since,)).fetchall()
        return [
            SimulatedEffect(n, i, ActionKind(kind), Subject.parse(target), json.loads(params), at_s, bool(undo))
            for n, i, kind, target, params, at_s, undo in rows
        ]

    def plan_mishap(
        self, mode: Mishap, *, method: str = "execute", kind: ActionKind | None = None, times: int = 1
    ) -> None:
        """The next `times` calls of `execute`, `read` or `undo` (of that kind) go wrong, in any process."""
        with self.transaction() as db:
            db.execute(
                "INSERT INTO mishap (mode, method, kind, times) VALUES (?, ?, ?, ?)", (mode, method, kind, times)
            )

    def next_mishap(self, method: str, kind: ActionKind) -> Mishap | None:
        """Takes one planned mishap that fits a call, if any."""
        with self.transaction() as db:
            row = db.execute(
                "SELECT number, mode FROM mishap WHERE method = ? AND times > 0 AND (kind IS NULL OR kind = ?)"
                " ORDER BY number LIMIT 1",
                (method, kind),
            ).fetchone()
            if row is None:
                return None
            db.execute("UPDATE mishap SET times = times - 1 WHERE number = ?", (row[0],))
        return Mishap(row[1])


class SimulatedSettings(BaseModel):
    """Settings of the simulated cluster."""

    model_config = ConfigDict(extra="forbid")

    path: Path = Field(default=Path("simulated-cluster.sqlite"), description="SQLite file that holds the cluster.")
    probes: bool = Field(default=False, description="Whether it probes nodes, and so gives cordoned ones back")


class SimulatedActuator:
    """Acts on a `SimulatedCluster`. Fulfils `controllers.action.Actuator`."""

    plugin: ClassVar[str] = "simulated"
    Settings: ClassVar[type[BaseModel]] = SimulatedSettings

    def __init__(self, path: Path | str, now_s: Callable[[], float] = time.time, *, probes: bool = False) -> None:
        self.cluster = SimulatedCluster(path)
        self._now_s, self._probes = now_s, probes

    @classmethod
    def from_settings(
        cls, settings: SimulatedSettings, now_s: Callable[[], float] = time.time
    ) -> SimulatedActuator:
        return cls(settings.path, now_s, probes=settings.probes)

    @property
    def name(self) -> str:
        return self.plugin

    def kinds(self) -> frozenset[ActionKind]:
        return frozenset(EFFECTS).intersection(KINDS) - (frozenset() if self._probes else {_A.RETURN_NODE})

    def changed(self, action: Action) -> list[str]:
        """Sentences on preconditions that no longer hold, each with what was expected and what was read."""
        sentences = []
        for condition in action.preconditions:
            facts = self.cluster.facts(condition.subject)
            found = self._cordon_of(condition.subject) if condition.fact == CORDON_OF else facts.get(condition.fact)
            if not facts:
                sentences.append(f"{condition.subject} no longer exists")
            elif found != condition.expected:
                read = f"{condition.fact} is {found or 'not known'}, expected {condition.expected}"
                sentences.append(f"{condition.subject}: {read}")
        return sentences

    def _cordon_of(self, node: Subject) -> str:
        """By the marks of what stands, and by the fact `cordoned_by`, which a person's cordon sets."""
        facts = self.cluster.facts(node)
        with self.cluster.transaction() as db:
            rows = db.execute(f"SELECT action_id FROM marker WHERE {_CORDONS}", (str(node),)).fetchall()
        if facts.get("cordoned") != _YES:
            return NOBODY
        return SOMEBODY_ELSE if "cordoned_by" in facts or not rows else cordon_ids(row[0] for row in rows)

    def execute(self, action: Action) -> ActionOutcome:
        """Carries the action out and marks it with its id in one transaction."""
        self._refuse_misfit(action)
        mishap = self.cluster.next_mishap("execute", action.kind)
        _before(mishap)
        if action.kind is _A.RETURN_NODE and self.cluster.facts(action.target).get("probe") == "fails":
            name = action.target.name
            return self._outcome(OutcomeStatus.FAILED, f"the probe failed; {name} stays cordoned", action)
        with self.cluster.transaction() as db:
            done = self._marker(db, action)
            if done is None:
                if mishap is not Mishap.NO_EFFECT:
                    self._change(db, action, EFFECTS[action.kind], undo=False)
                if mishap is not Mishap.UNKNOWN:
                    db.execute(
                        "INSERT INTO marker VALUES (?, ?, ?, ?, NULL)",
                        (action.id, action.kind, str(action.target), self._now_s()),
                    )
        if done is not None:
            return done
        if mishap is Mishap.UNKNOWN:
            # a world that has lost the answer stays without it, however often it is asked
            self.cluster.plan_mishap(Mishap.UNKNOWN, method="read", kind=action.kind, times=1_000_000)
            return self._outcome(OutcomeStatus.UNKNOWN, "the cluster did not say whether it happened", action)
        _after(mishap)
        return self._outcome(OutcomeStatus.DONE, f"{action.kind} of {action.target} done", action)

    def read(self, action: Action) -> ActionOutcome:
        mishap = self.cluster.next_mishap("read", action.kind)
        _before(mishap)
        if mishap is Mishap.UNKNOWN:
            return self._outcome(OutcomeStatus.UNKNOWN, "the cluster cannot tell whether it happened", action)
        with self.cluster.transaction() as db:
            done = self._marker(db, action)
        if done is None:
            return self._outcome(OutcomeStatus.NOT_DONE, f"no trace of {action.id} on {action.target}", action)
        if done.status is OutcomeStatus.REFUSED:
            return self._outcome(OutcomeStatus.NOT_DONE, done.detail, action)
        return self._outcome(OutcomeStatus.DONE, done.detail, action)

    def undo(self, action: Action) -> ActionOutcome:
        """Takes a done action back; REFUSED where the kind cannot be, ALREADY_DONE where nothing is left to do."""
        mishap = self.cluster.next_mishap("undo", action.kind)
        _before(mishap)
        back = _TAKE_BACK.get(action.kind)
        if back is None or not action.undo.possible:
            return self._outcome(OutcomeStatus.REFUSED, f"{action.kind} cannot be undone", action)
        with self.cluster.transaction() as db:
            done = self._marker(db, action)
            nothing_left = done is None or done.status is OutcomeStatus.REFUSED
            if not nothing_left:
                self._change(db, action, back, undo=True)
                db.execute("UPDATE marker SET undone_at_s = ? WHERE action_id = ?", (self._now_s(), action.id))
        _after(mishap)
        if nothing_left:
            return self._outcome(OutcomeStatus.ALREADY_DONE, f"nothing of {action.id} is left to undo", action)
        return self._outcome(OutcomeStatus.DONE, f"{action.kind} of {action.target} undone", action)

    def _refuse_misfit(self, action: Action) -> None:
        if action.kind not in EFFECTS or action.kind not in KINDS:
            raise Permanent(f"action {action.id}: the simulated cluster has no {action.kind}")
        expected = KINDS[action.kind].targets
        if action.target.kind not in expected:
            wanted = " or ".join(sorted(expected))
            raise Permanent(f"action {action.id}: {action.kind} is for a {wanted}, not {action.target}")
        if not self.cluster.facts(action.target):
            raise Permanent(f"action {action.id}: {action.target} does not exist")

    def _marker(self, db: sqlite3.Connection, action: Action) -> ActionOutcome | None:
        row = db.execute("SELECT at_s, undone_at_s FROM marker WHERE action_id = ?", (action.id,)).fetchone()
        if row is None:
            return None
        observed = _facts(db, action.target)
        if row[1] is not None:
            return ActionOutcome(OutcomeStatus.REFUSED, f"{action.id} was done and undone", row[1], observed)
        return ActionOutcome(OutcomeStatus.ALREADY_DONE, f"{action.id} was done before", row[0], observed)

    def _change(self, db: sqlite3.Connection, action: Action, facts: Mapping[str, str], *, undo: bool) -> None:
        known = _facts(db, action.target)
        for name, value in facts.items():
            new = str(int(known.get(name, "0")) + 1) if value == _COUNT else value
            db.execute("INSERT OR REPLACE INTO fact VALUES (?, ?, ?)", (str(action.target), name, new))
        if action.kind is _A.RETURN_NODE:
            db.execute(f"UPDATE marker SET undone_at_s = ? WHERE {_CORDONS}", (self._now_s(), str(action.target)))
        params = json.dumps(dict(action.params), sort_keys=True)
        db.execute(
            "INSERT INTO effect (action_id, kind, target, params, at_s, undo) VALUES (?, ?, ?, ?, ?, ?)",
            (action.id, action.kind, str(action.target), params, self._now_s(), undo),
        )

    def _outcome(self, status: OutcomeStatus, detail: str, action: Action) -> ActionOutcome:
        return ActionOutcome(status, detail, self._now_s(), self.cluster.facts(action.target))


def _facts(db: sqlite3.Connection, subject: Subject) -> dict[str, str]:
    return dict(db.execute("SELECT name, value FROM fact WHERE subject = ?", (str(subject),)).fetchall())


def _before(mishap: Mishap | None) -> None:
    if mishap is Mishap.REFUSE:
        raise Permanent("the simulated cluster refuses")
    if mishap is Mishap.BUSY:
        raise Temporary("the simulated cluster is busy", retry_after_s=1.0)
    if mishap is Mishap.DIE_BEFORE:
        os.kill(os.getpid(), signal.SIGKILL)


def _after(mishap: Mishap | None) -> None:
    if mishap is Mishap.DIE_AFTER:
        os.kill(os.getpid(), signal.SIGKILL)
    if mishap is Mishap.LOST_REPLY:
        raise Temporary("the connection broke before the answer arrived")
