"""The front page, a rack, a job, and the list of incidents: what has to stay quick however large the fleet is."""

from __future__ import annotations

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import Response

from nightshift.agent.approvals.visibility import IncidentWindow
from nightshift.agent.console.site import Site
from nightshift.agent.presentation.fleet import fleet
from nightshift.agent.presentation.overview import AT_ONCE, FleetPicture, Fresh, overview
from nightshift.agent.store.archive import IncidentQuery
from nightshift.agent.store.incident import IncidentState
from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.detectors.base import Severity

_PAGE = 50
_MOST_TEXT = 100
LISTS: dict[str, tuple[IncidentState, ...] | None] = {
    "all": None,
    "open": tuple(state for state in IncidentState if state is not IncidentState.RESOLVED),
    "waiting": (IncidentState.AWAITING_APPROVAL,),
    "escalated": (IncidentState.ESCALATED,),
    "resolved": (IncidentState.RESOLVED,),
}


class FleetPages:
    """One method per page."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._parts = site.parts
        self._fresh: Fresh[FleetPicture] = Fresh()
        self._is_large = False

    def add_to(self, app: FastAPI) -> None:
        for path, page in (
            ("/", self.fleet),
            ("/jobs", self.jobs),
            ("/racks/{rack}", self.rack),
            ("/jobs/{job:path}", self.job),
            ("/incidents", self.incidents),
        ):
            app.get(path, response_model=None)(page)

    def fleet(self, request: Request) -> Response:
        """Every GPU at a glance, the incidents that want a person first, and those resolved lately."""
        window = self._site.window(request)
        now_s = self._parts.clock.now_s()
        view = self._view(window)
        small = view.front.gpus <= AT_ONCE
        only = window.gpus()
        nodes = fleet(self._parts.history, self._parts.inventory, view.opened, now_s, only).nodes if small else ()
        closed = window.incidents([IncidentState.RESOLVED], limit=8)
        return self._site.page(
            request,
            "fleet.html",
            fleet=view.front,
            nodes=nodes,
            closed=closed,
            suppressed=self._site.suppressed(window, view.front.urgent),
        )

    def jobs(self, request: Request) -> Response:
        """Every GPU by the job that holds it."""
        window = self._site.window(request)
        view = self._view(window, SubjectKind.JOB)
        groups = [item for item in view.front.groups if self._may_name(window, item.name)]
        return self._site.page(request, "jobs.html", fleet=view.front, groups=groups)

    def _may_name(self, window: IncidentWindow, job: str) -> bool:
        # A GPU that two teams share may be drawn under the other's job.
        return not window.person.is_tenant or window.may_name(Subject(SubjectKind.JOB, job))

    def _view(self, window: IncidentWindow, by: SubjectKind = SubjectKind.RACK) -> FleetPicture:
        """A large fleet's is kept for moments; a small one's, and a team's, is made for its reader."""
        if window.person.is_tenant:
            return self._make(window, by)
        # Every open browser asks for it again and again, and each would compare every GPU with every incident.
        ask = self._fresh.get if self._is_large else self._fresh.anew
        view = ask(by, lambda: self._make(window, by))
        self._is_large = view.front.gpus > AT_ONCE
        return view

    def _make(self, window: IncidentWindow, by: SubjectKind) -> FleetPicture:
        opened = window.open_incidents()
        now_s = self._parts.clock.now_s()
        return overview(self._parts.history, self._parts.inventory, opened, now_s, window.gpus(), by)

    def rack(self, request: Request, rack: str) -> Response:
        """The nodes of a rack, each with a cell per GPU, and the open incidents there."""
        return self._group(request, SubjectKind.RACK, rack)

    def job(self, request: Request, job: str) -> Response:
        """The nodes of a job, each with a cell per GPU that it holds, and the open incidents there."""
        return self._group(request, SubjectKind.JOB, job)

    def _group(self, request: Request, by: SubjectKind, name: str) -> Response:
        window = self._site.window(request)
        now_s = self._parts.clock.now_s()
        view = self._view(window, by)
        if name not in view.groups or (by is SubjectKind.JOB and not self._may_name(window, name)):
            raise HTTPException(404, f"no {by} {name[:_MOST_TEXT]} was seen")
        mine = frozenset(gpu for _, gpus in view.groups[name] for gpu in gpus)
        rows = view.of_group(name)
        nodes = fleet(self._parts.history, self._parts.inventory, rows, now_s, mine).nodes
        shown = rows[:_PAGE]
        return self._site.page(
            request,
            "rack.html",
            name=name,
            over=("/jobs", "Jobs") if by is SubjectKind.JOB else ("/", "Fleet"),
            nodes=nodes,
            rows=shown,
            suppressed=self._site.suppressed(window, shown),
        )

    def incidents(
        self, request: Request, state: str = "all", severity: str = "", q: str = "", page: int = 1
    ) -> Response:
        """The list, newest first: by state, severity, and words in its number, title, fault or subjects."""
        window = self._site.window(request)
        known_severity = severity in ("", *Severity)
        if state not in LISTS or not known_severity or not 1 <= page <= 100_000 or len(q) > _MOST_TEXT:
            raise HTTPException(404, "there is no such list of incidents")
        wanted = IncidentQuery(q.strip(), (Severity(severity),) if severity else ())
        states = LISTS[state]
        # One more than is shown says whether there is a next page, without a count over all.
        rows = window.incidents(states, query=wanted, limit=_PAGE + 1, offset=(page - 1) * _PAGE)
        return self._site.page(
            request,
            "incidents.html",
            rows=rows[:_PAGE],
            chosen=state,
            severity=severity,
            q=wanted.text,
            page=page,
            more=len(rows) > _PAGE,
            lists=LISTS,
            waiting=len(self._parts.waiting()),
            severities=tuple(Severity),
            suppressed=self._site.suppressed(window, rows[:_PAGE]),
        )
