"""Repairs that nobody told us of: a node, or its driver, that began anew after a fatal Xid had fallen silent.

While its detector still calls the Xid an open episode, the detector says so itself. Later only the incident
remembers it (`agent.correlation.silent_faults`): somebody rebooted the node, replaced the board or reloaded the
driver, and the kernel log tells of the new beginning. From there on the finding is grave no more and its quiet is
counted anew, so that the incident is over once nothing came back for the set time. Silence alone, or a node that
is seen again, says nothing of a repair.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import sqlalchemy as sa
import structlog

from nightshift.agent.correlation.silent_faults import is_grave, is_unrepaired
from nightshift.agent.store import audit
from nightshift.agent.store.archive import number_of
from nightshift.agent.store.incident import Incident, IncidentState, StoredFinding
from nightshift.agent.store.incident_store import Store
from nightshift.agent.store.records import dump
from nightshift.agent.store.tables import findings, incidents
from nightshift.collectors.base import Permanent, Temporary
from nightshift.collectors.kernel_log.event import KernelEvent, KernelEventKind
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.detectors.base import LogExhibit, Severity, State

KIND = "repair_seen"
_S = IncidentState
_WAITS = frozenset({_S.OPEN, _S.DIAGNOSED, _S.AWAITING_APPROVAL, _S.MONITORING, _S.ESCALATED})


class Repaired:
    """Heeds that nodes began anew; asked after each look. What cannot be stored now is stored at a later look."""

    def __init__(self, store: Store, inventory: Inventory) -> None:
        self._store, self._inventory = store, inventory
        self._begun: dict[Subject, KernelEvent] = {}
        self._log = structlog.get_logger("repaired")

    def look(self, events: Iterable[KernelEvent], now_s: float) -> None:
        """Takes the kernel events of a look at this time (Unix s)."""
        for event in events:
            if event.kind is KernelEventKind.BOOT:
                known = self._begun.get(event.node)
                # the newest only: one that began again after the last line is what counts
                if known is None or event.record.at.t_s >= known.record.at.t_s:
                    self._begun[event.node] = event
        if not self._begun:
            return
        try:
            for summary in self._store.incidents(sorted(_WAITS)):
                # while it fires, the detector itself says that the driver began anew
                if any(f.state is State.CLEAR for f in summary.findings):
                    self._heed(self._store.incident(summary.id), now_s)
        except (Temporary, Permanent) as error:
            self._log.warning("node restart write failed", error=str(error))
            return
        # not before all is stored: after a failure the same events are taken up at the next look
        self._begun.clear()

    def _heed(self, incident: Incident, now_s: float) -> None:
        if not is_unrepaired(incident):
            return
        for stored in incident.findings:
            if stored.state is State.CLEAR and is_grave(stored.finding):
                event = self._begun.get(self._node_of(stored) or stored.finding.subject)
                if event is not None and event.record.at.t_s > _last_line_s(stored):
                    self._write(incident, stored, event, now_s)

    def _node_of(self, stored: StoredFinding) -> Subject | None:
        """Where the GPU was when it failed: a board that was replaced is nowhere now."""
        finding = stored.finding
        return self._inventory.above(finding.subject, SubjectKind.NODE, finding.since.t_s)

    def _write(self, incident: Incident, stored: StoredFinding, event: KernelEvent, now_s: float) -> None:
        number, finding = number_of(incident.id), stored.finding
        line = LogExhibit(event.record, "the node, or its driver, restarted after the error")
        summary = f"{finding.summary}; its driver has restarted since"
        # `silent_faults` goes by severity: a warning's silence ends its incident
        mild = replace(finding, severity=Severity.WARNING, summary=summary, evidence=(*finding.evidence, line))
        mine = (findings.c.incident == number) & (findings.c.episode == stored.episode)
        values = {"severity": mild.severity, "body": dump(mild), "changed_s": now_s}
        body = {"node": event.node.name, "subject": str(finding.subject), "line": event.record.text[:200]}
        with self._store.database.write() as connection:
            still = findings.c.state == str(State.CLEAR)
            if connection.execute(sa.update(findings).where(mine & still).values(values)).rowcount != 1:
                return  # it fires again
            quiet = incidents.c.clear_since_s.is_not(None)
            changed = {"clear_since_s": now_s, "updated_s": now_s}
            connection.execute(sa.update(incidents).where((incidents.c.number == number) & quiet).values(changed))
            audit.append(connection, at_s=now_s, kind=KIND, by="kernel log", incident=number, body=body)
        self._log.info("manual repair detected", incident=incident.id, node=event.node.name)


def _last_line_s(stored: StoredFinding) -> float:
    """When the newest of the episode's lines that were kept was logged (Unix s)."""
    lines = [e.record.at.t_s for e in stored.finding.evidence if isinstance(e, LogExhibit)]
    return max(lines, default=stored.finding.since.t_s)
