"""A kernel search that was begun on the cluster, as it stands in the store: what survives the daemon.

One row each (`controls`, named `kernel-search/…`), since a plan's own row gives way to the next plan for that
kernel while the GPU-hours that this one took still count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from nightshift.agent.approvals.gate import NIGHTSHIFT
from nightshift.agent.store.incident_store import Store
from nightshift.agent.store.records import dump, load
from nightshift.agent.store.tables import controls
from nightshift.controllers.action import Action
from nightshift.kernels.certification.envelope import CertificateError
from nightshift.kernels.certification.evidence import (
    FIELDS,
    FleetView,
    JobEnvironment,
    Objection,
    certified_when,
    measured,
    record_of,
    slowest,
)

SEARCH = "kernel-search/"
_VIEW = "kernel-view"
# A view older than this says nothing of now (s).
VIEW_S = 900.0
DONE, FAILED, PREEMPTED, STOPPED, GONE, NO_GPU = "done", "failed", "preempted", "stopped", "gone", "no_gpu"
# Ends that say something about the kernel; the others leave it unknown.
ANSWERED = (DONE, FAILED)


@dataclass(frozen=True)
class Certified:
    """A certificate that the search brought and whose signature was checked. `envelope`: its canonical JSON."""

    sha256: str
    problem: str
    verdict: str
    envelope: str


@dataclass(frozen=True)
class KernelSearch:
    """One search. uid: of its Job, "" until it is known that there is one. ended: "" while it goes on."""

    name: str
    action: Action
    begun_at_s: float
    uid: str = ""
    looked_at_s: float = math.nan
    gpu_hours: float = 0.0
    trials: int = 0
    certificates: tuple[Certified, ...] = ()
    refused: tuple[str, ...] = ()
    ended: str = ""
    ended_at_s: float = math.nan
    detail: str = ""

    @property
    def counted_gpu_hours(self) -> float:
        """All that it may take while it goes on, then what it took."""
        # Else two searches that began together would each find the week's cap untouched.
        return self.gpu_hours if self.ended else self.action.blast_radius.cost_gpu_hours


def search_of(connection: Connection, name: str) -> KernelSearch | None:
    # Locked: the runner that writes how far a search is, and the click that rejects it, meet at this row.
    query = sa.select(controls.c.body).where(controls.c.name == SEARCH + name).with_for_update()
    body = connection.execute(query).scalar()
    return None if body is None else load(KernelSearch, body)


def put_search(connection: Connection, search: KernelSearch, now_s: float) -> None:
    row = {"at_s": now_s, "by": NIGHTSHIFT, "body": dump(search)}
    name = SEARCH + search.name
    if not connection.execute(sa.update(controls).where(controls.c.name == name).values(row)).rowcount:
        connection.execute(sa.insert(controls).values(name=name, **row))


SHOWN = (
    "not promotable",
    "verdict",
    "speed-up",
    "baselines met",
    "gpu",
    "driver",
    "torch",
    "triton",
    "judge",
    "jobs run",
    "not checked",
    "certified",
)
"""What of a promotion's plan an approver sees first, in this order."""
_MOST = 20


def evidence(
    predicate: Mapping[str, Any], environment: JobEnvironment, objections: Sequence[Objection], now_s: float
) -> dict[str, str | float]:
    """What an approver has to see before a kernel may run in jobs. Raises CertificateError where the certificate's
    content is not a certificate's."""
    record, verdict = record_of(predicate), predicate["verdict"]
    try:
        found: dict[str, str | float] = {
            "verdict": f"{verdict['status']} ({verdict['reason']})",
            **summary(record, environment),
            "certified": certified_when(predicate["issued_at"], now_s),
            "detail": str(verdict["detail"])[:300],
            "stages": ", ".join(verdict["stages"]),
            "commit": str(predicate["commit"]),
            "source_lines": float(len(str(predicate["candidate"]["source"]).splitlines())),
        }
        errors = list(verdict["errors"].items())[:12]
    except (KeyError, TypeError, AttributeError) as error:
        raise CertificateError(f"predicate.verdict: {type(error).__name__}: {error}") from error
    if objections:
        found["not promotable"] = "; ".join(map(str, objections))
    # An approver reads this, and a plan's parameters are hashed and stored with every proposal.
    for race in record["raced"][:_MOST]:
        name = f"{race['case']}, over {race['baseline']}"
        found[name[:120]] = race_text(race) if measured(race) else "no times"
    for name, value in errors:
        if isinstance(value, int | float):
            found[f"error {name}"[:120]] = float(value)
    return found


def summary(record: Mapping[str, Any], environment: JobEnvironment) -> dict[str, str]:
    """A kernel's evidence in a line each: where it ran, what it met, what was not checked, and where jobs run."""
    worst = slowest(record)
    met = sorted({str(race["baseline"]) for race in record["raced"]})
    return {
        "speed-up": f"{race_text(worst)}, over {worst['baseline']} on {worst['case']}"
        if worst
        else "none measured",
        "baselines met": ", ".join(met) or "none",
        **{name: str(record.get(name) or "none") for name in FIELDS},
        "judge": f"version {record.get('judge')}, present {environment.judge}",
        "jobs run": environment_text(environment),
        "not checked": "; ".join(map(str, record["not_checked"])) or "the certificate does not say",
    }


def race_text(race: Mapping[str, Any]) -> str:
    times = f"{race['candidate_s'] * 1e6:.1f} µs against {race['baseline_s'] * 1e6:.1f} µs"
    return f"{race['point']:.3f} [{race['low']:.3f}, {race['high']:.3f}]: {times}"


def environment_text(environment: JobEnvironment) -> str:
    """Where jobs run, field by field; what is unknown is said to be. Without the jobs' names: a plan that waits
    stays the same plan when another job starts on the same machines."""
    said = [f"{name} {', '.join(environment.of(name)) or 'unknown'}" for name in FIELDS]
    by = "by the jobs that use it: " if environment.jobs else "no job has reported this kernel: "
    return by + "; ".join(said)


def keep_view(store: Store, view: FleetView) -> None:
    store.keep({_VIEW: dump(view).encode()})


def last_view(store: Store) -> FleetView | None:
    """What the daemon saw last, however long ago."""
    kept = store.recall(_VIEW)
    return None if kept is None else load(FleetView, kept[1].decode())


def fleet_view(store: Store, now_s: float) -> FleetView | None:
    """What the daemon sees of machines and jobs; None where that is old, or of a clock that is not this one's."""
    view = last_view(store)
    # abs: a view from the future is a demo's or a replay's, whose clock is not this one.
    return view if view is not None and abs(now_s - view.at_s) <= VIEW_S else None
