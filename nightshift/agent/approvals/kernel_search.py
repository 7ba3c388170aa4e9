"""A kernel search that was begun on the cluster, as it stands in the store: what survives the daemon.

One row each (`controls`, named `kernel-search/…`), since a plan's own row gives way to the next plan for that
kernel while the GPU-hours that this one took still count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from nightshift.agent.approvals.gate import NIGHTSHIFT
from nightshift.agent.store.records import dump, load
from nightshift.agent.store.tables import controls
from nightshift.controllers.action import Action

SEARCH = "kernel-search/"
DONE, FAILED, PREEMPTED, STOPPED, GONE, NO_GPU = "done", "failed", "preempted", "stopped", "gone", "no_gpu"
ANSWERED = (DONE, FAILED)
"""Ends that say something of the kernel; the others say that nobody found out."""


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
        return self.gpu_hours if self.ended else self.action.blast_radius.cost_gpu_hours


def search_of(connection: Connection, name: str) -> KernelSearch | None:
    query = sa.select(controls.c.body).where(controls.c.name == SEARCH + name).with_for_update()
    body = connection.execute(query).scalar()
    return None if body is None else load(KernelSearch, body)


def put_search(connection: Connection, search: KernelSearch, now_s: float) -> None:
    row = {"at_s": now_s, "by": NIGHTSHIFT, "body": dump(search)}
    name = SEARCH + search.name
    if not connection.execute(sa.update(controls).where(controls.c.name == name).values(row)).rowcount:
        connection.execute(sa.insert(controls).values(name=name, **row))


def evidence(predicate: Mapping[str, Any]) -> dict[str, str | float]:
    """What an approver has to see before a kernel may run in jobs."""
    verdict = predicate["verdict"]
    environment = verdict["environment"]
    found: dict[str, str | float] = {
        "verdict": f"{verdict['status']} ({verdict['reason']})",
        "detail": str(verdict["detail"])[:300],
        "stages": ", ".join(verdict["stages"]),
        "gpu": str(environment.get("gpu", "none")),
        "torch": str(environment.get("torch", "none")),
        "triton": str(environment.get("triton", "none")),
        "commit": str(predicate["commit"]),
        "issued_at": str(predicate["issued_at"]),
        "source_lines": float(len(str(predicate["candidate"]["source"]).splitlines())),
    }
    for comparison in verdict["comparisons"][:20]:
        name = f"{comparison['case']}, over {comparison['baseline']}"
        with suppress(KeyError, TypeError):
            s = comparison["speedup"]
            found[name[:120]] = f"{s['point']:.3f} [{s['low']:.3f}, {s['high']:.3f}]"
    for name, value in list(verdict["errors"].items())[:12]:
        if isinstance(value, int | float):
            found[f"error {name}"[:120]] = float(value)
    return found
