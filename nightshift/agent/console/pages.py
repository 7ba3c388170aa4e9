"""The pages: each reads the store and the history, and changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import quote

import orjson
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import Response

from nightshift.agent.approvals.access import AccessDecision, Permission, Sight, may
from nightshift.agent.approvals.policy import must_sign_in_again
from nightshift.agent.approvals.questions import Question
from nightshift.agent.approvals.visibility import IncidentWindow
from nightshift.agent.console.site import Site
from nightshift.agent.incidents.returns import cases, days_out
from nightshift.agent.incidents.rollouts import VersionChange
from nightshift.agent.presentation import incident_view
from nightshift.agent.presentation.line_chart import Chart, plot
from nightshift.agent.presentation.plan_diff import DiffLine, against, effect
from nightshift.agent.rca.question import as_checked, spoken
from nightshift.agent.rca.report import post_mortem
from nightshift.agent.rca.summary import as_shown, headline_of, in_short, reading_quotes, what_became
from nightshift.agent.store.diagnosis import CHANGED, CHANGED_S, Evidence
from nightshift.agent.store.incident import CLOSABLE, Incident, contest_of, half_done
from nightshift.agent.store.incident_store import number_of
from nightshift.agent.store.records import dump
from nightshift.collectors.seal import sha256_hex
from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.collectors.telemetry.metrics import METRICS

_PAGE = 100
_GPU_SPAN_S = 3600.0


class Pages:
    """One method per page."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._parts = site.parts

    def add_to(self, app: FastAPI) -> None:
        for path, page in (
            ("/incidents/{incident_id}", self.incident),
            ("/incidents/{incident_id}/evidence/{evidence_id}", self.evidence),
            ("/incidents/{incident_id}/post-mortem.md", self.post_mortem),
            ("/incidents/{incident_id}/signals.json", self.incident_signals),
            ("/gpus/{uuid}", self.gpu),
            ("/gpus/{uuid}/signals.json", self.gpu_signals),
            ("/waiting", self.waiting),
            ("/returns", self.returns),
            ("/versions", self.versions),
            ("/sources", self.sources),
            ("/audit", self.audit),
        ):
            app.get(path, response_model=None)(page)

    def incident(self, request: Request, incident_id: str, seen: int | None = None, read: str = "") -> Response:
        """One incident. `seen` is the version that a page shows: 204 while it is current, else it loads again.
        `read` is how far the language model was: where it is further, the page takes up that part alone."""
        window = self._site.window(request)
        incident = as_shown(window.incident(incident_id))
        questions = window.questions(incident_id)
        read_so_far = _how_far(incident, questions)
        if seen is not None:
            # htmx asks every few seconds: a 204 leaves the page, and a half-typed reason in it, as it is.
            headers = {} if seen == incident.version else {"HX-Refresh": "true"}
            if not headers and read != read_so_far:
                headers = {"HX-Trigger": "reading"}
            return Response(status_code=204, headers=headers)
        asked = [(item.by, item.at_s, spoken(item.text, as_checked(item.answer))) for item in questions]
        now_s = self._parts.clock.now_s()
        onset_s = incident_view.onset_s(incident)
        shown = incident_view.charts(incident, self._parts.history, now_s)
        cited: list[tuple[Evidence, Chart | None, str]] = []
        others: list[tuple[Evidence, Chart | None, str]] = []
        changed: set[str] = set()
        changed_s = None
        if incident.diagnosis is not None:
            changed = set(str(incident.diagnosis.facts.get(CHANGED, "")).split("\n"))
            changed_s = incident.diagnosis.facts.get(CHANGED_S)
            ids = {id_ for claim in incident.diagnosis.claims for id_ in claim.evidence_ids}
            for item in incident.diagnosis.evidence:
                chart = incident_view.evidence_chart(item, onset_s)
                row = (item, chart, "" if chart else _text(item.content))
                (cited if item.id in ids else others).append(row)
        return self._site.page(
            request,
            "incident.html",
            incident=incident,
            headline=headline_of(incident),
            in_short=in_short(incident, now_s),
            changed=changed,
            changed_s=changed_s,
            model_quotes=[quote for _, quote in reading_quotes(incident)],
            contest=contest_of(incident),
            read=read_so_far,
            suppressed=self._site.suppressed(window, [incident]).get(incident.id, ""),
            onset_s=onset_s,
            versions=self._changes(incident, now_s),
            glance=incident_view.at_a_glance(incident, self._parts.gpu_hour_price()),
            charts=shown.values(),
            cited=cited,
            others=others,
            plan=incident_view.plan(incident, now_s),
            became=what_became(incident) if half_done(incident) else "",
            effect=effect(incident.action) if incident.action is not None else [],
            replanned=self._replanned(window, incident),
            signals=incident_view.signals(incident),
            asked=asked,
            may_ask=self._site.visitor(request) is not None and window.sight(incident) is Sight.WHOLE,
            decides=self._decides(request, window, incident),
            closable=CLOSABLE,
            sign_in_again=self._sign_in_again(window, incident),
        )

    def _replanned(self, window: IncidentWindow, incident: Incident) -> list[DiffLine]:
        """How the plan differs from the one before; a team may not see what an earlier plan touched."""
        if incident.action is None or window.person.is_tenant:
            return []
        before = self._parts.store.plan_before(incident.id)
        return [] if before is None else against(before, incident.action)

    def _decides(self, request: Request, window: IncidentWindow, incident: Incident) -> dict[str, AccessDecision]:
        """What the visitor may do to an incident; nobody may who has not signed in."""
        signed_in = self._site.visitor(request) is not None
        verbs = (Permission.APPROVE, Permission.REJECT, Permission.CLOSE)
        if not signed_in:
            return {str(verb): AccessDecision(False, "sign in first") for verb in verbs}
        return {str(verb): may(window.person, verb, incident.namespaces) for verb in verbs}

    def _sign_in_again(self, window: IncidentWindow, incident: Incident) -> str:
        """Where to prove again who one is, for a plan that asks for it and a sign-in that is too old; else
        empty."""
        action, policy = incident.action, self._parts.gate.policy
        if action is None or window.sight(incident) is not Sight.WHOLE or self._site.settings.oidc is None:
            return ""
        if not must_sign_in_again(window.person, action, policy, self._parts.clock.now_s()):
            return ""
        return f"/sign-in/oidc?fresh=true&next={quote(f'/incidents/{incident.id}', safe='')}"

    def evidence(self, request: Request, incident_id: str, evidence_id: str) -> Response:
        """An evidence item's bytes, as a download that no browser renders."""
        diagnosis = self._site.window(request).incident(incident_id).diagnosis
        for item in diagnosis.evidence if diagnosis else ():
            if item.id == evidence_id:
                # Evidence is text from outside: shown as HTML it would run in the console's origin.
                headers = {"Content-Disposition": f'attachment; filename="{quote(incident_id)}-{quote(item.id)}"'}
                return Response(item.content, media_type="application/octet-stream", headers=headers)
        raise HTTPException(404, f"{incident_id} has no evidence {evidence_id}")

    def post_mortem(self, request: Request, incident_id: str) -> Response:
        """A draft of the post-mortem as Markdown, with timeline and evidence; it names what the audit log names."""
        self._site.of_cluster(request)
        incident = self._site.window(request).incident(incident_id)
        records = self._parts.store.audit.records(incident=number_of(incident.id))
        text = post_mortem(incident, records, self._parts.clock.now_s())
        headers = {"Content-Disposition": f'attachment; filename="{quote(incident.id)}-post-mortem.md"'}
        return Response(text.encode(), media_type="text/markdown; charset=utf-8", headers=headers)

    def _changes(self, incident: Incident, now_s: float) -> Sequence[VersionChange]:
        return self._parts.rollouts.of(incident, now_s) if self._parts.rollouts is not None else []

    def incident_signals(self, request: Request, incident_id: str) -> Response:
        """The charts of an incident's page to zoom into, beside their peers, with all that happened."""
        window = self._site.window(request)
        incident, now_s = window.incident(incident_id), self._parts.clock.now_s()
        changes = [] if window.person.is_tenant else self._changes(incident, now_s)
        marks = incident_view.chart_marks(incident, changes)
        shown = incident_view.charts(incident, self._parts.history, now_s)
        return self._plots(window, shown, marks, incident_view.onset_s(incident))

    def gpu_signals(self, request: Request, uuid: str) -> Response:
        """The charts of a GPU's page to zoom into, beside its peers."""
        window = self._site.window(request)
        _, charts = self._gpu_charts(window, uuid)
        return self._plots(window, charts, (), self._parts.clock.now_s())

    def _plots(
        self,
        window: IncidentWindow,
        charts: Mapping[tuple[Subject, str], Chart],
        marks: Sequence[tuple[float, str]],
        at_s: float,
    ) -> Response:
        """`at_s`: when things were peers."""
        plots, mine = [], window.gpus()
        for (subject, metric), chart in charts.items():
            others = incident_view.peers(subject, self._parts.inventory, at_s)
            span = (float(chart.t_s[0]), float(chart.t_s[-1])) if len(chart.t_s) else (at_s, at_s)
            # A team's chart has nothing of another's in it, not even as a median.
            if mine is not None and subject.kind is SubjectKind.GPU:
                others = [gpu for gpu in others if gpu in mine]
                span = (max([span[0], *map(window.held_since_s, others)]), span[1])
            lines = [self._parts.history.window(o, metric, *span) for o in others if window.may_name(o)]
            plots.append(plot(chart, marks, lines))
        return Response(orjson.dumps({"charts": plots}), media_type="application/json")

    def _gpu_charts(self, window: IncidentWindow, uuid: str) -> tuple[Subject, dict[tuple[Subject, str], Chart]]:
        """The last hour of one GPU's signals. Raises 404 where the visitor sees no such GPU."""
        gpu, now_s, mine = Subject(SubjectKind.GPU, uuid), self._parts.clock.now_s(), window.gpus()
        # The same words as for a GPU that does not exist.
        if mine is not None and gpu not in mine:
            raise HTTPException(404, f"no GPU {uuid} was seen")
        start_s = max(now_s - _GPU_SPAN_S, window.held_since_s(gpu))
        charts = {}
        for metric in METRICS:
            if metric.kind is SubjectKind.GPU:
                t_s, values = self._parts.history.window(gpu, metric.name, start_s, now_s)
                # The last Xid is a code and no quantity: a line through 31 and 79 means nothing.
                if values.size and metric.name != "gpu_xid_last":
                    charts[gpu, metric.name] = Chart(metric.help, metric.unit, t_s, values)
        return gpu, charts

    def gpu(self, request: Request, uuid: str) -> Response:
        """The last hour of one GPU's signals and its incidents."""
        window = self._site.window(request)
        gpu, charts = self._gpu_charts(window, uuid)
        now_s = self._parts.clock.now_s()
        above = [s for s in self._parts.inventory.ancestors(gpu, now_s) if s != gpu and window.may_name(s)]
        if not charts and not above:
            raise HTTPException(404, f"no GPU {uuid} was seen")
        rows = [
            incident
            for incident in window.incidents(limit=500)
            if any(
                gpu in self._parts.inventory.gpus(finding.subject, finding.since_s) for finding in incident.findings
            )
        ]
        return self._site.page(
            request,
            "gpu.html",
            gpu=gpu,
            charts=charts.values(),
            above=above,
            rows=rows,
            suppressed=self._site.suppressed(window, rows),
        )

    def sources(self, request: Request) -> Response:
        """What the newest look got from each source."""
        self._site.of_cluster(request)
        rows = sorted(self._parts.history.sources(), key=lambda status: (status.ok, status.source.name))
        return self._site.page(request, "sources.html", rows=rows)

    def returns(self, request: Request) -> Response:
        """GPUs out of service for their vendor, and for how long, by vendor and fault."""
        self._site.of_cluster(request)
        with self._parts.store.database.read() as connection:
            rows = cases(connection)
        sums = days_out(rows, self._parts.clock.now_s())
        more = max(len(rows) - _PAGE, 0)
        return self._site.page(request, "returns.html", rows=rows[:_PAGE], sums=sums, more=more)

    def versions(self, request: Request) -> Response:
        """Which nodes have which versions, where a minority differs, and what changed lately."""
        self._site.of_cluster(request)
        found = self._parts.rollouts
        rows = [] if found is None else found.minorities(self._parts.clock.now_s())
        changes = [] if found is None else found.changes[: -_PAGE - 1 : -1]
        return self._site.page(request, "versions.html", rows=rows, changes=changes)

    def waiting(self, request: Request) -> Response:
        """Alarms that do not page, and why, those nearest to a page first."""
        self._site.of_cluster(request)
        found = self._parts.waiting()
        return self._site.page(request, "waiting.html", rows=found[:_PAGE], more=max(len(found) - _PAGE, 0))

    def audit(self, request: Request) -> Response:
        """The newest records of the audit log."""
        return self._site.page(request, "audit.html", rows=self._site.window(request).audit(200))


def _how_far(incident: Incident, questions: Sequence[Question]) -> str:
    """How far a language model is with an incident and its questions, and when its diagnosis was renewed, as a
    short word that changes with them."""
    parts = [*([incident.reading] if incident.reading is not None else []), *(asked.answer for asked in questions)]
    renewed_s = incident.diagnosis.facts.get(CHANGED_S, "") if incident.diagnosis is not None else ""
    told = f"{renewed_s}{''.join(map(dump, parts))}"
    return sha256_hex(told.encode())[:12] if told else ""


def _text(content: bytes) -> str:
    # A log excerpt of megabytes would make the page one that no browser scrolls; the whole is a download away.
    return content[:20_000].decode("utf-8", "replace")
