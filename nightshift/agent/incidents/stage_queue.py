"""The durable queue of stages: DBOS, built when this replica begins to lead and destroyed when it stops.

DBOS stores each stage run under its key, starts it on a worker thread, and offers it again after a crash; a run may
therefore happen more than once, never twice at a time. Facts about dbos 3.4 that this relies on: one instance per
process; `executor_id` is the replica's stable name, whose pending runs are recovered at launch;
`application_version` is the schema of the stages, and other versions' runs are never dequeued, so they are
cancelled here; a dead executor's pending runs stay pending until somebody resumes them: the new leader's work.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

from dbos import DBOS, DBOSPortableJSONSerializer, SetWorkflowID
from sqlalchemy.exc import SQLAlchemyError

from nightshift.agent.store.database import Database, patient, server_options
from nightshift.collectors.base import Temporary

STAGES_VERSION = "stages-1"
"""Changes with the meaning of a stage's key or arguments; the lifecycle makes the dropped work anew."""
POLL_S = 0.35
_QUEUE = "stages"
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
            self._entry = DBOS.workflow(name="stage", max_recovery_attempts=1000)(enter)
            DBOS.launch()
            DBOS.register_queue(
                _QUEUE,
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
        DBOS.destroy(destroy_registry=True)

    def put(self, key: str, number: int, version: int, runs: int) -> bool:
        """Queues a run under its key. True: it is queued or running; False: a run of this key has ended."""
        assert self._entry is not None
        try:
            known = DBOS.list_workflows(workflow_ids=[key], load_input=False, load_output=False)
            if known:
                return known[0].status in _LIVE
            with SetWorkflowID(key):
                DBOS.enqueue_workflow(_QUEUE, self._entry, key, number, version, runs)
        except SQLAlchemyError as error:
            raise Temporary(f"the queue of stages cannot be written: {_brief(error)}") from error
        return True

    def _adopt(self) -> int:
        unfinished = DBOS.list_workflows(status=list(_LIVE), load_input=False, load_output=False)
        stale = [w.workflow_id for w in unfinished if w.app_version != STAGES_VERSION]
        if stale:
            DBOS.cancel_workflows(stale)
        theirs = [
            w.workflow_id
            for w in unfinished
            if w.app_version == STAGES_VERSION and w.status == "PENDING" and w.executor_id != self._replica
        ]
        if theirs:
            DBOS.resume_workflows(theirs, queue_name=_QUEUE)
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
