"""The pages: each reads the store and the history, and changes nothing."""

from __future__ import annotations

from urllib.parse import quote

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import Response

from agent.console import incident_page
from agent.console.chart import Chart
from agent.console.fleet import fleet
from agent.console.site import Site
from agent.incident import IncidentState, taken_on
from agent.kernel_gate import KernelGate
from agent.rca.diagnosis import Evidence
from agent.rca.summary import as_shown
from collectors.metrics import METRICS
from collectors.subject import Subject, SubjectKind

_PAGE = 100
_GPU_SPAN_S = 3600.0


class Pages:
    """One method per page."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._parts = site.parts
        self._kernel_gate = KernelGate(site.parts.gate, site.parts.store, site.parts.clock)

    def add_to(self, app: FastAPI) -> None:
        for path, page in (
            ("/", self.fleet),
            ("/incidents", self.incidents),
            ("/incidents/{incident_id}", self.incident),
            ("/incidents/{incident_id}/evidence/{evidence_id}", self.evidence),
            ("/gpus/{uuid}", self.gpu),
            ("/kernels", self.kernels),
            ("/sources", self.sources),
            ("/audit", self.audit),
        ):
            app.get(path, response_model=None)(page)

    def fleet(self, request: Request) -> Response:
        """Every GPU, the open incidents and those resolved lately."""
        self._site.may_read(request)
        now_s = self._parts.clock.now_s()
        opened = self._parts.store.open_incidents()
        closed = self._parts.store.incidents([IncidentState.RESOLVED], limit=8)
        view = fleet(self._parts.history, self._parts.inventory, opened, now_s)
        return self._site.page(
            request,
            "fleet.html",
            fleet=view,
            opened=opened,
            closed=closed,
            suppressed=self._site.suppressed(opened),
        )

    def incidents(self, request: Request, state: str = "all", page: int = 1) -> Response:
        """The list, newest first."""
        self._site.may_read(request)
        states = {
            "all": None,
            "open": [s for s in IncidentState if s is not IncidentState.RESOLVED],
            "waiting": [IncidentState.AWAITING_APPROVAL],
            "resolved": [IncidentState.RESOLVED],
        }
        if state not in states or not 1 <= page <= 100_000:
            raise HTTPException(404, "there is no such list of incidents")
        rows = self._parts.store.incidents(states[state], limit=_PAGE + 1, offset=(page - 1) * _PAGE)
        return self._site.page(
            request,
            "incidents.html",
            rows=rows[:_PAGE],
            chosen=state,
            page=page,
            more=len(rows) > _PAGE,
            lists=states,
            suppressed=self._site.suppressed(rows[:_PAGE]),
        )

    def incident(self, request: Request, incident_id: str, seen: int | None = None) -> Response:
        """One incident. `seen` is the version that a page shows: 204 while it is current, else it loads again."""
        self._site.may_read(request)
        incident = as_shown(self._parts.store.incident(incident_id))
        if seen is not None:
            headers = {} if seen == incident.version else {"HX-Refresh": "true"}
            return Response(status_code=204, headers=headers)
        now_s = self._parts.clock.now_s()
        onset_s = incident_page.onset_s(incident)
        shown = incident_page.charts(incident, self._parts.history, now_s)
        cited: list[tuple[Evidence, Chart | None, str]] = []
        others: list[tuple[Evidence, Chart | None, str]] = []
        if incident.diagnosis is not None:
            ids = {id_ for claim in incident.diagnosis.claims for id_ in claim.evidence_ids}
            for item in incident.diagnosis.evidence:
                chart = incident_page.evidence_chart(item, onset_s)
                row = (item, chart, "" if chart else _text(item.content))
                (cited if item.id in ids else others).append(row)
        return self._site.page(
            request,
            "incident.html",
            incident=incident,
            taken=taken_on(incident.history),
            suppressed=self._site.suppressed([incident]).get(incident.id, ""),
            onset_s=onset_s,
            charts=shown,
            cited=cited,
            others=others,
            plan=incident_page.plan(incident, now_s),
            signals=incident_page.signals(incident),
        )

    def evidence(self, request: Request, incident_id: str, evidence_id: str) -> Response:
        """An evidence item's bytes, as a download that no browser renders."""
        self._site.may_read(request)
        diagnosis = self._parts.store.incident(incident_id).diagnosis
        for item in diagnosis.evidence if diagnosis else ():
            if item.id == evidence_id:
                headers = {"Content-Disposition": f'attachment; filename="{quote(incident_id)}-{quote(item.id)}"'}
                return Response(item.content, media_type="application/octet-stream", headers=headers)
        raise HTTPException(404, f"{incident_id} has no evidence {evidence_id}")

    def gpu(self, request: Request, uuid: str) -> Response:
        """The last hour of one GPU's signals and its incidents."""
        self._site.may_read(request)
        gpu = Subject(SubjectKind.GPU, uuid)
        now_s = self._parts.clock.now_s()
        charts = []
        for metric in METRICS:
            if metric.kind is SubjectKind.GPU:
                t_s, values = self._parts.history.window(gpu, metric.name, now_s - _GPU_SPAN_S, now_s)
                if values.size and metric.name != "gpu_xid_last":
                    charts.append(Chart(metric.help, metric.unit, t_s, values))
        above = [s for s in self._parts.inventory.ancestors(gpu, now_s) if s != gpu]
        if not charts and not above:
            raise HTTPException(404, f"no GPU {uuid} was seen")
        rows = [
            incident
            for incident in self._parts.store.incidents(limit=500)
            if any(
                gpu in self._parts.inventory.gpus(finding.subject, finding.since_s) for finding in incident.findings
            )
        ]
        return self._site.page(
            request,
            "gpu.html",
            gpu=gpu,
            charts=charts,
            above=above,
            rows=rows,
            suppressed=self._site.suppressed(rows),
        )

    def sources(self, request: Request) -> Response:
        """What the newest look got from each source."""
        self._site.may_read(request)
        rows = sorted(self._parts.history.sources(), key=lambda status: (status.ok, status.source.name))
        return self._site.page(request, "sources.html", rows=rows)

    def kernels(self, request: Request) -> Response:
        """Searches and promotions of kernels: what waits, with its evidence, and what was decided."""
        self._site.may_read(request)
        return self._site.page(request, "kernels.html", rows=self._kernel_gate.proposals()[:_PAGE])

    def audit(self, request: Request) -> Response:
        """The newest records of the audit log."""
        self._site.may_read(request)
        return self._site.page(
            request, "audit.html", rows=self._parts.store.audit.records(limit=200, newest_first=True)
        )


def _text(content: bytes) -> str:
    return content[:20_000].decode("utf-8", "replace")
