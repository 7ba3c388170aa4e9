"""Drives incidents along the one table: what is due follows from their rows, stages run on the replica that leads.

Nothing is lost with a process, because nothing is kept in one: `advance` reads the rows that are due, moves what a
timer moves, and queues a stage under the key (incident, stage, version, run). Waiting for a person, an expiry or a
quiet window is a row as well: thousands cost no thread. A run that comes late finds another version and leaves.

The queue of stages is DBOS, built when this replica begins to lead and destroyed when it stops. DBOS stores each
stage run under its key, starts it on a worker thread, and offers it again after a crash; a run may therefore
happen more than once, never twice at a time. Facts about dbos 3.4 that this relies on: one instance per process;
`executor_id` is the replica's stable name, whose pending runs are recovered at launch; `application_version` is
the schema of the stages, and other versions' runs are never dequeued, so they are cancelled here; a dead
executor's pending runs stay pending until somebody resumes them: the new leader's work.
"""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache, partial
from typing import Any, Protocol

import sqlalchemy as sa
import structlog
from dbos import DBOS, DBOSPortableJSONSerializer, SetWorkflowID
from sqlalchemy.exc import SQLAlchemyError

from nightshift import spans
from nightshift.agent.correlation.silent_faults import unrepaired
from nightshift.agent.incidents import stages
from nightshift.agent.incidents.node_return import may_be_proposed, stays
from nightshift.agent.incidents.renewal import Renewals
from nightshift.agent.incidents.stages import (
    ACTS_ON_THE_WORLD,
    RETRY_MAX_S,
    RETRY_S,
    STAGE_OF,
    WORKERS,
    Later,
    NotAllowedToAct,
    StageParts,
    Stages,
)
from nightshift.agent.store.database import Database, patient, server_options
from nightshift.agent.store.incident import NEEDS_A_PERSON, Cause, Incident, IncidentState
from nightshift.agent.store.incident_store import Conflict, name_of
from nightshift.agent.store.lease import LEASE_S, Election, Leadership
from nightshift.agent.store.tables import findings, incidents
from nightshift.collectors.base import Permanent, Temporary
from nightshift.controllers.action import ActionKind, ApprovalRule
from nightshift.controllers.cordon import TAKES_OUT
from nightshift.detectors.base import State

# Changes with the meaning of a stage's key or arguments; the lifecycle makes the dropped work anew.
STAGES_VERSION = "stages-1"
POLL_S = 0.35
_QUEUE_NAME = "stages"
_LIVE = ("ENQUEUED", "PENDING", "DELAYED")
_OVER = ("SUCCESS", "ERROR", "CANCELLED", "MAX_RECOVERY_ATTEMPTS_EXCEEDED")
_KEEP_FINISHED = datetime.timedelta(hours=1)
_DELETED_AT_ONCE = 500

Run = Callable[[str, int, int, int], None]
"""Carries a stage out: key, incident's number, its version, the count of runs. Handles every failure itself."""


class StageQueue:
    """At most one is started at a time in a process."""

    def __init__(self, database: Database, replica: str, workers: int, run: Run, *, poll_s: float = POLL_S) -> None:
        timely = patient(database.url).update_query_dict({"options": server_options(database.url)})
        url = timely.render_as_string(hide_password=False)
        self._config: dict[str, Any] = {
            "name": "nightshift",
            "system_database_url": f"sqlite:///{database.url.database}.stages" if database.is_sqlite else url,
            "dbos_system_schema": "nightshift_stages",
            "executor_id": replica,
            "application_version": STAGES_VERSION,
            "sys_db_pool_size": workers + 2,
            "max_executor_threads": workers + 4,
            # nothing is scheduled with DBOS
            "scheduler_polling_interval_sec": 3600.0,
            "notification_listener_polling_interval_sec": 0.2,
            "use_listen_notify": False,
            "serializer": DBOSPortableJSONSerializer(),  # the default pickles, and a pickle runs what it is told to
            "log_level": "CRITICAL",
        }
        self._replica = replica
        self._workers = workers
        self._poll_s = poll_s
        self._run = run
        self._entry: Callable[..., Any] | None = None

    def start(self) -> int:
        """Launches the queue; returns how many runs of dead replicas were taken over."""
        run = self._run

        def enter(key: str, number: int, version: int, runs: int) -> None:
            DBOS.run_step({"name": "stage"}, run, key, number, version, runs)

        try:
            DBOS(config=self._config)  # type: ignore[arg-type]
            # DBOS gives a run up after so many recoveries; how often to try is in the incident's own row
            self._entry = DBOS.workflow(name="stage", max_recovery_attempts=1000)(enter)
            DBOS.launch()
            DBOS.register_queue(
                _QUEUE_NAME,
                worker_concurrency=self._workers,
                polling_interval_sec=self._poll_s,
                on_conflict="always_update",
            )
            return self._adopt()
        except SQLAlchemyError as error:
            self.stop()
            raise Temporary(f"the queue of stages cannot start: {_brief(error)}") from error
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Lets go of every thread and connection; runs that are under way end by themselves."""
        self._entry = None
        # the registry is the process's: a workflow that is left in it would be there twice at the next start
        DBOS.destroy(destroy_registry=True)

    def put(self, key: str, number: int, version: int, runs: int) -> bool:
        """Queues a run under its key. True: it is queued or running; False: a run of this key has ended."""
        assert self._entry is not None
        try:
            known = DBOS.list_workflows(workflow_ids=[key], load_input=False, load_output=False)
            if known:
                # an id that has ended is answered with its old result, and nothing runs
                return known[0].status in _LIVE
            with SetWorkflowID(key):
                DBOS.enqueue_workflow(_QUEUE_NAME, self._entry, key, number, version, runs)
        except SQLAlchemyError as error:
            raise Temporary(f"the queue of stages cannot be written: {_brief(error)}") from error
        return True

    def _adopt(self) -> int:
        unfinished = DBOS.list_workflows(status=list(_LIVE), load_input=False, load_output=False)
        # runs of another version are never dequeued: they would stay pending for ever
        stale = [w.workflow_id for w in unfinished if w.app_version != STAGES_VERSION]
        if stale:
            DBOS.cancel_workflows(stale)
        theirs = [
            w.workflow_id
            for w in unfinished
            if w.app_version == STAGES_VERSION and w.status == "PENDING" and w.executor_id != self._replica
        ]
        if theirs:
            DBOS.resume_workflows(theirs, queue_name=_QUEUE_NAME)
        return len(theirs)

    def sweep(self) -> int:
        """Deletes records of runs that ended more than an hour ago; the incident's own history stays."""
        before = (datetime.datetime.now(datetime.UTC) - _KEEP_FINISHED).isoformat()
        try:
            ended = DBOS.list_workflows(
                status=list(_OVER), end_time=before, limit=_DELETED_AT_ONCE, load_input=False, load_output=False
            )
            DBOS.delete_workflows([w.workflow_id for w in ended])
        except SQLAlchemyError as error:
            raise Temporary(f"the queue of stages cannot be written: {_brief(error)}") from error
        return len(ended)


def _brief(error: SQLAlchemyError) -> str:
    """The database's own words, without the statement and its parameters."""
    return " ".join(str(getattr(error, "orig", None) or error).split())


_S, _C = IncidentState, Cause
_SEEN_AT_ONCE = 500
_LOOK_AGAIN_S = 15.0
"""How long a queued run is trusted to be on its way before its record is read again."""
_SWEEP_S = 3600.0
_GIVEN_BACK = [str(kind) for kind in (*sorted(TAKES_OUT), ActionKind.RETURN_NODE)]
_ENDS_WHEN_CLEAR = frozenset({_S.AWAITING_APPROVAL, _S.MONITORING, _S.ESCALATED})
_LEAVES_FOR_NEWS = frozenset({_S.AWAITING_APPROVAL, _S.MONITORING, _S.DIAGNOSED})
_one_per_process = threading.Lock()


class Queue(Protocol):
    """Where stages wait for a worker: `StageQueue`, or in a test one that runs them at once."""

    def start(self) -> int: ...
    def stop(self) -> None: ...
    def put(self, key: str, number: int, version: int, runs: int) -> bool: ...
    def sweep(self) -> int: ...


@cache  # asked at each poll: to build it took longer than to ask it
def _due_rows(gives_back: bool) -> sa.Select[Any]:
    """Incidents that need something, most severe first. Times (s) are bound when it is asked: `now`; `quiet`, until
    which findings cleared that were clear for long enough; `unconfirmed`, until which actions ended that recovery
    was awaited of for long enough; `retry`, until when a stage may be delayed."""
    c, now = incidents.c, sa.bindparam("now", type_=sa.Float)

    def in_(*states: IncidentState) -> sa.ColumnElement[bool]:
        return c.state.in_([str(state) for state in states])

    of_return = c.action_kind == str(ActionKind.RETURN_NODE)
    fires = sa.exists().where(findings.c.incident == c.number, findings.c.state == str(State.FIRING))
    cleared_later = c.moved_by == str(_C.CONTAINMENT_KEPT)
    cleared_later &= c.action_kind.in_(_GIVEN_BACK) & (c.clear_since_s > c.entered_s)
    cleared_later &= sa.true() if gives_back else sa.false()
    silent = unrepaired()
    quiet = c.clear_since_s <= sa.bindparam("quiet")
    over = quiet & ~silent
    settled = c.entered_s <= sa.bindparam("quiet")
    unconfirmed = c.entered_s <= sa.bindparam("unconfirmed")
    wanted = sa.or_(
        in_(_S.OPEN, _S.DIAGNOSED, _S.APPROVED, _S.ACTING, _S.UNDOING),
        in_(_S.AWAITING_APPROVAL)
        & sa.or_(
            c.expires_s <= now,
            c.news == 1,
            over & ~of_return,
            of_return & fires,
            c.approval_rule == str(ApprovalRule.AUTOMATIC),
        ),
        in_(_S.MONITORING) & sa.or_(c.news == 1, over),
        in_(_S.ESCALATED)
        & over
        & sa.or_(c.moved_by.not_in([str(cause) for cause in NEEDS_A_PERSON]), cleared_later),
        in_(_S.ESCALATED) & (c.moved_by == str(_C.OUTCOME_UNKNOWN)),
        in_(_S.CONFIRMING) & sa.or_(quiet & settled, c.news == 1, of_return & fires, unconfirmed),
    )
    # no delay is longer than retry_max_s: a longer one was written before the clock went back
    put_off = sa.and_(c.due_s.is_not(None), c.due_s > now, c.due_s <= sa.bindparam("retry"))
    worst_first = sa.case({"critical": 0, "warning": 1}, value=c.severity, else_=2)
    query = sa.select(incidents, silent.label("silent")).where(wanted, ~put_off)
    return query.order_by(worst_first, c.number).limit(_SEEN_AT_ONCE)


class Lifecycle:
    """Stands for the lead, and while it leads moves every incident that is due.

    One may be started at a time in a process; `close` it before another. Its thread is the only one that it keeps
    beside the workers of the stages, however many incidents wait.
    """

    def __init__(
        self,
        parts: StageParts,
        *,
        replica: str = "nightshift-0",
        lease_s: float = LEASE_S,
        election: Election | None = None,
        poll_s: float = POLL_S,
        new_queue: Callable[[Run], Queue] | None = None,
        cluster: str = "cluster",
    ) -> None:
        self._parts = parts
        self._cluster = cluster
        self._store = parts.store
        self._lease_s = lease_s
        self._poll_s = poll_s
        self._leadership = Leadership(parts.store.database, replica, lease_s=lease_s, election=election)
        self._stages = Stages(parts, lambda: self._leadership.leads, replica)
        self._renewals = Renewals(parts.store, parts.clock, parts.diagnose)
        self._new_queue = new_queue or partial(StageQueue, parts.store.database, replica, WORKERS, poll_s=poll_s)
        self._queue: Queue | None = None
        self._on_its_way: dict[int, float] = {}
        self._running: set[int] = set()
        self._mutex = threading.RLock()
        self._free = threading.Condition(self._mutex)
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._log = structlog.get_logger("lifecycle").bind(replica=replica)

    # Running ----------------------------------------------------------------------------------------------------

    @property
    def leads(self) -> bool:
        """Whether this replica leads: detection and stages run here and nowhere else."""
        return self._queue is not None and self._leadership.leads

    @property
    def term(self) -> int:
        """Rises with every change of leader."""
        return self._leadership.term

    def start(self) -> None:
        """Begins to stand for the lead. Raises AlreadyRunning where another daemon holds the SQLite store."""
        if not _one_per_process.acquire(blocking=False):
            raise Permanent("a Lifecycle is already started in this process; close it first")
        try:
            self._stand()
        except BaseException:
            self._leadership.abandon()
            _one_per_process.release()
            raise
        self._stop.clear()
        self._thread = threading.Thread(target=self._loop, name="lifecycle", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Looks at the rows now rather than at the next poll."""
        self._wake.set()

    def close(self, timeout_s: float = 10.0) -> None:
        """Stops taking stages up, waits for those that run, gives the lead back."""
        if self._thread is None:
            return
        self._stop.set()
        self._wake.set()
        self._thread.join()
        self._thread = None
        deadline = time.monotonic() + timeout_s
        while self._running and time.monotonic() < deadline:
            time.sleep(0.02)
        self._step_down()
        try:
            self._leadership.release()
        except (Temporary, Permanent) as error:
            self._leadership.abandon()
            self._log.warning("leader lease release failed", error=str(error))
        _one_per_process.release()

    def wait_idle(self, timeout_s: float = 120.0) -> bool:
        """Waits until this replica leads and no stage is due or running at the clock's present time.

        For stepped clocks: the next step then sees a world in which everything that could happen has.
        """
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            # what is due is a query, and worth none while a stage runs: that comes first
            if not self._running and self.advance(self._parts.clock.now_s()) == 0 and not self._running:
                return True
            time.sleep(0.02)
        return False

    def _loop(self) -> None:
        renew_at = sweep_at = 0.0
        while not self._stop.is_set():
            try:
                now = time.monotonic()
                if now >= renew_at:
                    # six tries in a lease: some may fail, and the lead is still kept
                    renew_at = now + self._lease_s / 6
                    self._stand()
                if self._queue is not None and now >= sweep_at:
                    sweep_at = now + _SWEEP_S
                    self._queue.sweep()
                self.advance(self._parts.clock.now_s())
            except Temporary as error:
                self._log.warning("lifecycle delayed", error=str(error))
                self._stop.wait(self._lease_s / 6)
            except Permanent as error:
                self._log.error("lifecycle failed", error=str(error))
                self._stop.wait(self._lease_s)
            except Exception:  # noqa: BLE001 the thread that drives every incident must not die of a defect of ours
                self._log.exception("lifecycle crashed")
                self._stop.wait(self._lease_s)
            # also after a failure above: a replica that could not renew stops before another may begin
            if self._queue is not None and not self._leadership.leads:
                self._step_down()
            self._wake.wait(self._poll_s)
            self._wake.clear()

    def _stand(self) -> None:
        """Takes, keeps or loses the lead; starts or stops the queue accordingly."""
        with self._mutex:
            term = self._leadership.term
            leads = self._leadership.claim()
            if self._queue is not None and (not leads or self._leadership.term != term):
                self._step_down()
            if leads and self._queue is None:
                queue = self._new_queue(self._run)
                self._on_its_way.clear()
                adopted = queue.start()
                self._queue = queue
                self._log.info("leadership acquired", term=self.term, taken_over=adopted)

    def _step_down(self) -> None:
        with self._mutex:
            if self._queue is not None:
                self._queue.stop()
                self._queue = None
                self._log.info("leadership lost", term=self.term)

    # Deciding what is due ---------------------------------------------------------------------------------------

    def advance(self, now_s: float) -> int | None:
        """Moves what a timer moves and queues the stages that are due at `now_s`; returns how many rows were due.

        Does nothing while another replica leads, and returns None.
        """
        with self._mutex:
            if self._queue is None or not self._leadership.leads:
                return None
            self._renewals.turn()
            due = self._due(now_s)
            # asked only where a row would act: it is one more query at each poll
            if any(_acts(row) for row in due) and self._parts.gate.halted().halted:
                due = [row for row in due if not _acts(row) or self._timed_move(_S(row.state), row, now_s)]
            for row in due:
                try:
                    if not self._moved_by_timer(row, now_s) and row.state in STAGE_OF:
                        self._queue_stage(self._queue, row)
                except Conflict:
                    continue  # somebody was faster; the next pass sees what they made of it
            return len(due)

    def _due(self, now_s: float) -> list[Any]:
        """Rows that need something at this time, most severe first: one query, however many incidents wait."""
        settings, giving = self._parts.settings, self._parts.giving_back
        times = {
            "now": now_s,
            "quiet": now_s - settings.quiet_s,
            "unconfirmed": now_s - settings.confirm_timeout_s,
            "retry": now_s + RETRY_MAX_S,
        }
        query = _due_rows(giving is not None and giving.offered())
        with self._store.database.read() as connection:
            return list(connection.execute(query, times).all())

    def _moved_by_timer(self, row: Any, now_s: float) -> bool:
        """Moves that need no stage: cleared by itself, new evidence, expired, approved by policy."""
        state, incident_id = IncidentState(row.state), name_of(row.number)
        if state is _S.ESCALATED and row.moved_by == _C.OUTCOME_UNKNOWN:
            return False  # a person has to look, though all is clear
        found = self._timed_move(state, row, now_s)
        if found is not None:
            cause, note = found
            self._store.move(incident_id, cause, "lifecycle", note, row.version)
            return True
        if state is _S.AWAITING_APPROVAL and row.approval_rule == str(ApprovalRule.AUTOMATIC):
            return self._parts.gate.approve_by_policy(self._store.incident(incident_id))
        return False

    def _timed_move(self, state: IncidentState, row: Any, now_s: float) -> tuple[Cause, str] | None:
        """The move that is due of itself: (cause, note)."""
        awaits = state is _S.AWAITING_APPROVAL
        # a plan to give a node back waits because all is clear: for it clear is no end, and a fault is news
        returns = awaits and row.action_kind == ActionKind.RETURN_NODE
        if state in _ENDS_WHEN_CLEAR and not returns and not row.silent and row.clear_since_s is not None:
            quiet_s = now_s - row.clear_since_s
            if quiet_s >= self._parts.settings.quiet_s:
                cause, left = self._clear(row)
                return cause, f"every finding has been clear for {quiet_s:.0f} s{left}"
        if state in _LEAVES_FOR_NEWS and row.news:
            return _C.NEW_EVIDENCE, "the diagnosis does not cover a newly found fault"
        if awaits and row.expires_s <= now_s:
            return _C.EXPIRED, "no decision in time"
        if returns and row.clear_since_s is None:
            return _C.WORLD_CHANGED, "the fault is back"
        return None

    def _clear(self, row: Any) -> tuple[Cause, str]:
        """What becomes of an incident that is clear, and what it leaves behind: over, or its node is given back."""
        giving = self._parts.giving_back
        standing = giving.standing(row.number) if giving is not None else []
        more = row.attempt < stages.MAX_PLANS
        kept = row.state == _S.ESCALATED and row.moved_by == _C.CONTAINMENT_KEPT
        could = giving is not None and giving.offered() and bool(standing)
        if kept or (could and more and may_be_proposed(row.state, row.moved_by, row.action_kind)):
            return _C.RETURN_DUE, ""
        return _C.CLEARED_BY_ITSELF, stays(standing)

    def _queue_stage(self, queue: Queue, row: Any) -> None:
        now = time.monotonic()
        if row.number in self._running or now < self._on_its_way.get(row.number, 0.0):
            return
        stage = STAGE_OF[IncidentState(row.state)]
        key = f"{name_of(row.number)}/{stage}/{row.version}/{row.stage_runs}"
        # before the queue is asked: its worker may have ended the run before `put` returns
        self._on_its_way[row.number] = now + _LOOK_AGAIN_S
        try:
            queued = queue.put(key, row.number, row.version, row.stage_runs)
        except BaseException:
            self._on_its_way.pop(row.number, None)
            raise
        if not queued:
            # that run ended without a trace in the incident (the store was away): the next one has a new key
            self._on_its_way.pop(row.number, None)
            self._store.put_off(row.number, row.version, row.stage_runs, None, failed=False)

    # Running a stage --------------------------------------------------------------------------------------------

    def _run(self, key: str, number: int, version: int, runs: int) -> None:
        """One run of a stage, on a worker thread, and of the planning that follows a diagnosis.

        Its result is in the store; nothing is raised out of it.
        """
        with self._free:  # a run of an earlier version, offered again after a crash, may still be finding that out
            self._free.wait_for(lambda: number not in self._running)
            self._running.add(number)
        try:
            self._run_claimed(key, number, version, runs)
            after = self._store.position(number)
            # the plan follows on the same worker, or each incident would wait a poll longer for it
            if after.state is _S.DIAGNOSED and after.version == version + 1:
                self._run_claimed(f"{key}+plan", number, after.version, after.stage_runs)
        except (Temporary, Permanent) as error:  # the store itself is away: `advance` queues another run
            self._log.warning("stage write failed", key=key, error=str(error))
        finally:
            with self._free:
                self._running.discard(number)
                self._on_its_way.pop(number, None)
                self._free.notify_all()
            self._wake.set()

    def _run_claimed(self, key: str, number: int, version: int, runs: int) -> None:
        now_s = self._parts.clock.now_s()
        if not self._store.claim(number, version, runs, key, self._leadership.term):
            return
        incident = self._store.incident(name_of(number))
        failed, due_s, why = False, now_s + RETRY_S, "nothing to do yet"
        try:
            with self._span(incident, runs):
                self._stages.run(incident)
        except (
            Conflict,
            NotAllowedToAct,
        ) as error:  # nothing is queued while another leads or, for an act, while halted
            due_s, why = now_s, str(error)
        except Later as error:
            # at once may be what the guard says of a busy node: asked at every poll, that is a busy loop
            due_s, why = max(error.at_s, now_s + RETRY_S), str(error)
        except Temporary as error:
            # from the row, not from memory: the tries of the replica that led before count
            failures = self._store.position(number).stage_failures
            if failures + 1 >= stages.MAX_TRIES:
                return self._give_up(number, f"tried {failures + 1} times: {error}")
            retry_s = min(RETRY_S * 2**failures, RETRY_MAX_S)
            failed, due_s, why = True, now_s + max(retry_s, error.retry_after_s or 0.0), str(error)
        except Permanent as error:
            return self._give_up(number, str(error))
        except Exception as error:  # noqa: BLE001 a defect of ours must not strand an incident in silence
            self._log.exception("stage crashed", key=key)
            return self._give_up(number, f"defect in nightshift: {type(error).__name__}: {error}")
        else:
            if self._store.position(number).version != version:
                return None  # it moved: done
        # a server may ask for an hour (Retry-After), and `_due` takes longer waits for those of a clock set back
        due_s = min(due_s, self._parts.clock.now_s() + RETRY_MAX_S)
        at = self._store.position(number)  # an act that stored its intent is one version further
        if at.state in STAGE_OF and self._store.put_off(number, at.version, at.stage_runs, due_s, failed=failed):
            self._log.info("stage postponed", key=key, failed=failed, why=why)
        return None

    def _span(self, incident: Incident, runs: int) -> AbstractContextManager[spans.Span]:
        named: spans.Attributes = {
            "nightshift.incident": incident.id,
            "nightshift.state": str(incident.state),
            "nightshift.run": runs,
        }
        return spans.span(
            f"incident {STAGE_OF.get(incident.state, incident.state)}",
            named,
            parent=spans.within(spans.trace_of(self._cluster, incident.id)),
            waits=(Conflict, NotAllowedToAct, Later),
        )

    def _give_up(self, number: int, why: str) -> None:
        """A person has to take over."""
        incident = self._store.incident(name_of(number))
        if incident.state in STAGE_OF and incident.state is not _S.ESCALATED:
            self._stages.abandon(incident, why)


def _acts(row: Any) -> bool:
    """Whether a row's stage, or its approval by policy, leads to the world, which a halt freezes."""
    if row.state == _S.AWAITING_APPROVAL:
        return bool(row.approval_rule == str(ApprovalRule.AUTOMATIC))
    return row.state in STAGE_OF and STAGE_OF[row.state] in ACTS_ON_THE_WORLD
