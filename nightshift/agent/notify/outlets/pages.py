"""Keeps the outlets in step with the incidents, as Slack's courier keeps the chat: compares what should stand there
with what does and sends the difference. Only the leading replica runs it.

One outlet pages for an incident, never two: the claim is a row, written before the first call. It pages once a turn
(`letter.need`); the other outlets show. A call without an answer is made again under the same key, which vendors
take for the same alert. A page that cannot be placed within `failover.after_s` changes hands: the row of the first
outlet is withdrawn and that of the second written in one transaction, and when the first answers again, what it may
have got is closed there. Losing a page is worse than two: in that time alone, two are possible, and only where the
first outlet took the page and no answer of many tries came back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from nightshift.agent.clock import Clock
from nightshift.agent.incidents.suppression import ActiveSuppressions, Suppressor
from nightshift.agent.notify.delivery import DeliveryPace, DeliveryRefused, NoAnswer, RateLimited, Repeated, counted
from nightshift.agent.notify.outlets.base import Acknowledgement, Outlet
from nightshift.agent.notify.outlets.ledger import OutletAlert, OutletLedger
from nightshift.agent.notify.outlets.letter import AlertPhase, Form, Letter, Need, key_of, letter, need, read_key
from nightshift.agent.notify.outlets.settings import Settings
from nightshift.agent.store.archive import name_of, number_of
from nightshift.agent.store.incident import Incident, IncidentSummary
from nightshift.agent.store.incident_store import Store
from nightshift.agent.store.tenancy import namespaces_of
from nightshift.collectors.base import Permanent
from nightshift.detectors.base import Severity

_AT_ONCE = 200
_ASK_S = 15.0
_ASKED_AT_ONCE = 50
_BROKEN_S = 60.0
_OF_A_LETTER = ("400", "413", "422")
"""Statuses that speak of what was sent, and of whoever sends only at times (PagerDuty's 400 of a wrong key)."""
_TOGETHER, _APART_S = "together", 3600.0
"""Once letters were refused together, each is sent alone for a while."""


@dataclass(frozen=True)
class OutletParts:
    """What the courier works with; built once in `agent.app`."""

    store: Store
    clock: Clock
    outlets: Sequence[Outlet]
    settings: Settings
    cluster: str
    suppressor: Suppressor
    leads: Callable[[], bool]
    count: Callable[[str, str, str], None] = lambda outlet, what, outcome: None
    """Counts a call for the metrics: (outlet, send | renew | ask, ok | limited | no_answer | refused)."""
    wall_s: Callable[[], float] = time.time


class OutletCourier(Repeated):
    """Keeps all outlets in step."""

    def __init__(self, parts: OutletParts) -> None:
        super().__init__("outlets", 11.0)
        self._p = parts
        self._ledger = OutletLedger(parts.store.database)
        self._outlets: Mapping[str, Outlet] = {outlet.name: outlet for outlet in parts.outlets}
        self._pace = {name: DeliveryPace() for name in self._outlets}
        self._refused: set[str] = set()
        """Outlets that said no to their last call: nothing is gained by waiting for them."""
        self._asked: dict[str, float] = {}
        self.problems: dict[str, str] = {}
        """By outlet: why nothing goes out there now."""

    def leads(self) -> bool:
        return self._p.leads()

    def once(self) -> None:
        """One comparison. An outlet that is away keeps the others from nothing."""
        now_s = self._p.clock.now_s()
        names = self._ledger.news(now_s, _AT_ONCE)
        standing = self._p.suppressor.standing() if names else None
        for incident_id in names:
            if self._stopping.is_set():
                return
            assert standing is not None
            self._tell(incident_id, standing)
        for outlet in self._outlets.values():
            self._renew(outlet)
            self._ask(outlet)
        self.problem = "; ".join(f"{name}: {said}" for name, said in sorted(self.problems.items()))

    # One incident -----------------------------------------------------------------------------------------------

    def _tell(self, incident_id: str, standing: ActiveSuppressions) -> None:
        wall_s = self._p.wall_s()
        incident = self._p.store.incident(incident_id)
        rows = self._ledger.alerts(incident_id)
        wanted = need(incident.history)
        newly = wanted.turn > max((row.turn for row in rows), default=0)
        if newly and wanted.phase is not AlertPhase.CLOSED:
            held = standing.of(incident)
            if held is not None:
                seen = {"seen_s": incident.updated_s, "seen_version": incident.version}
                self._ledger.round(incident_id, wall_s, held_until_s=held.until_s, **seen)
                return
        if wanted.phase is not AlertPhase.CLOSED:
            self._claim(incident, rows, wanted, wall_s)
            rows = self._ledger.alerts(incident_id)
        rows = sorted(rows, key=lambda row: row.form is not Form.PAGE)  # whoever is to be called comes first
        (summary,) = self._p.store.summaries([incident_id])
        done = [self._settle(summary, row, wanted, rows, wall_s) for row in rows]
        seen_s = incident.updated_s if all(done) else None
        self._ledger.round(incident_id, wall_s, held_until_s=None, seen_s=seen_s, seen_version=incident.version)

    def _claim(self, incident: Incident, rows: Sequence[OutletAlert], wanted: Need, wall_s: float) -> None:
        """Writes down who pages and who shows, before anybody is called. An incident that has become graver is
        paged where the rule now says, and no longer where it was."""
        number = number_of(incident.id)
        pages = [row for row in rows if row.form is Form.PAGE]
        pager = next((row.outlet for row in pages if not row.withdrawn), "")
        shown = {row.outlet for row in rows if row.form is Form.SHOWN}
        blank = OutletAlert(number, "", Form.PAGE, wanted.turn, incident.severity, wall_s)
        pager, new = self._pager_of(incident, pages, pager, blank)
        for name, outlet in self._outlets.items():
            if name != pager and name not in shown and Form.SHOWN in outlet.forms:
                new.append(replace(blank, outlet=name, form=Form.SHOWN))
        if new:
            self._ledger.put(*new)

    def _pager_of(
        self, incident: Incident, pages: Sequence[OutletAlert], pager: str, blank: OutletAlert
    ) -> tuple[str, list[OutletAlert]]:
        """Which outlet pages now (`pager`: which did), and the pages that change with it."""
        new: list[OutletAlert] = []
        if all(row.turn < blank.turn for row in pages):  # a new turn: the rule is asked anew
            pager = self._p.settings.pager(incident.severity, namespaces_of(incident.subjects))
            new = [replace(row, withdrawn=int(row.outlet != pager)) for row in pages]
            if pager in self._outlets and pager not in {row.outlet for row in pages}:
                new.append(replace(blank, outlet=pager))
        elif any(row.outlet == pager and _rank(incident.severity) > _rank(row.severity) for row in pages):
            asked = self._p.settings.pager(incident.severity, namespaces_of(incident.subjects))
            if asked in self._outlets and asked not in {row.outlet for row in pages}:  # the page moves there
                new = [*(replace(row, withdrawn=1) for row in pages), replace(blank, outlet=asked)]
                pager = asked
            else:
                new = [replace(row, severity=incident.severity) for row in pages if row.outlet == pager]
        return pager, new

    def _settle(
        self, incident: IncidentSummary, row: OutletAlert, wanted: Need, rows: Sequence[OutletAlert], wall_s: float
    ) -> bool:
        """Brings one alert to where it should stand; False where that has to be tried again."""
        outlet = self._outlets.get(row.outlet)
        if outlet is None:  # taken out of the settings
            return True
        paged_elsewhere = row.form is Form.SHOWN and any(
            other.form is Form.PAGE and other.outlet == row.outlet and not other.withdrawn for other in rows
        )
        if row.withdrawn or paged_elsewhere:
            return not row.may_stand or self._send(outlet, incident, row, AlertPhase.CLOSED)
        if row.turn != wanted.turn:
            if row.may_stand and not self._send(outlet, incident, row, AlertPhase.CLOSED):
                return False
            row = replace(row, turn=wanted.turn, told=None, tried_s=None, due_s=wall_s, severity=incident.severity)
            self._ledger.put(row)
        if wanted.phase is AlertPhase.CLOSED and not row.may_stand:
            return True
        if row.told is wanted.phase and row.tried_s is None:
            return True
        if row.told is None and wanted.phase is AlertPhase.ACKNOWLEDGED:
            if row.form is Form.PAGE and not row.may_stand:  # somebody has taken it on already: nobody is called
                return True
            if row.form is Form.SHOWN and not self._send(outlet, incident, row, AlertPhase.TRIGGERED):
                return False
        if row.told is None and wanted.phase is AlertPhase.TRIGGERED:
            return self._trigger(outlet, incident, row)
        return self._send(outlet, incident, row, wanted.phase)

    def _trigger(self, outlet: Outlet, incident: IncidentSummary, row: OutletAlert) -> bool:
        if self._send(outlet, incident, row, AlertPhase.TRIGGERED):
            return True
        failover = self._p.settings.failover
        if row.form is Form.PAGE and failover is not None and failover.to != row.outlet:
            late = self._p.wall_s() - row.due_s >= failover.after_s or outlet.name in self._refused
            if late and failover.to not in self._refused:
                self._hand_over(row, failover.to)
        return False

    def _hand_over(self, row: OutletAlert, to: str) -> None:
        there = self._ledger.alerts(name_of(row.incident))
        fresh = next((other for other in there if other.outlet == to and other.form is Form.PAGE), None)
        if fresh is not None and fresh.withdrawn:  # it was tried before: nobody takes it back and forth
            return
        wall_s = self._p.wall_s()
        taker = OutletAlert(row.incident, to, Form.PAGE, row.turn, row.severity, wall_s)
        current = next(other for other in there if other.outlet == row.outlet and other.form is Form.PAGE)
        self._ledger.put(replace(current, withdrawn=1), taker)
        self._log.error("page moved", incident=name_of(row.incident), was=row.outlet, now=to)

    # Calls ------------------------------------------------------------------------------------------------------

    def _send(self, outlet: Outlet, incident: IncidentSummary, row: OutletAlert, phase: AlertPhase) -> bool:
        pace, wall_s = self._pace[outlet.name], self._p.wall_s()
        if not pace.may("all", wall_s) or not pace.may(_of(row), wall_s):
            return False
        return self._deliver(outlet, "send", [row], [self._letter(incident, row, phase)], phase)

    def _letter(self, incident: IncidentSummary, row: OutletAlert, phase: AlertPhase) -> Letter:
        url = self._p.settings.console_url
        return letter(incident, self._p.cluster, row.turn, phase, row.form, row.severity, url)

    def _deliver(
        self, outlet: Outlet, what: str, rows: Sequence[OutletAlert], letters: Sequence[Letter], phase: AlertPhase
    ) -> bool:
        """Writes the call down, makes it, writes down that it was answered."""
        self._ledger.trying(rows, self._p.wall_s())
        try:
            if not self._try(outlet, what, partial(outlet.send, letters), [_of(row) for row in rows]):
                return False
        except (RateLimited, DeliveryRefused):
            self._ledger.unsent(rows)
            return False
        self._ledger.told(rows, phase, self._p.wall_s())
        return True

    def _try(self, outlet: Outlet, what: str, call: Callable[[], object], about: Sequence[str] = ()) -> bool:
        """Makes a call; a failure is said and noted in the outlet's pace: what an outlet says of one letter keeps
        the others from nothing. Raises RateLimited and Refused: then nothing happened."""
        pace, wall_s = self._pace[outlet.name], self._p.wall_s()
        try:
            counted(call, partial(self._p.count, outlet.name, what))
        except NoAnswer as error:
            again_in_s = pace.away(wall_s)
            self.problems[outlet.name] = str(error)
            self._log.warning("outlet call failed", outlet=outlet.name, error=str(error), again_in_s=again_in_s)
            return False
        except RateLimited as error:
            pace.leave("all", wall_s, error.retry_after_s or 1.0)
            self.problems[outlet.name] = str(error)
            raise
        except DeliveryRefused as error:
            self._refused.add(outlet.name)
            if not about or not error.reason.startswith(_OF_A_LETTER):
                pace.leave("all", wall_s, _BROKEN_S)
            elif len(about) == 1:
                pace.leave(about[0], wall_s, _BROKEN_S)
            else:  # one of them spoils the rest
                pace.leave(_TOGETHER, wall_s, _APART_S)
            self.problems[outlet.name] = str(error)
            self._log.error("outlet call refused", outlet=outlet.name, reason=error.reason)
            raise
        pace.answered()
        self._refused.discard(outlet.name)
        self.problems.pop(outlet.name, None)
        return True

    # Over time --------------------------------------------------------------------------------------------------

    def _renew(self, outlet: Outlet) -> None:
        """Sends standing alerts again where the outlet forgets them."""
        wall_s = self._p.wall_s()
        rows = self._ledger.renewable(outlet.name, wall_s - outlet.renew_s, _AT_ONCE)
        if not rows or not self._pace[outlet.name].may("all", wall_s):
            return
        known = {row.id: row for row in self._p.store.summaries([name_of(row.incident) for row in rows])}
        for phase in (AlertPhase.TRIGGERED, AlertPhase.ACKNOWLEDGED):
            mine = [row for row in rows if row.told is phase and name_of(row.incident) in known]
            together = len(mine) > 1 and self._pace[outlet.name].may(_TOGETHER, wall_s)
            alone = [[row] for row in mine if self._pace[outlet.name].may(_of(row), wall_s)]
            for some in [mine] if together else alone:
                letters = [self._letter(known[name_of(row.incident)], row, phase) for row in some]
                self._deliver(outlet, "renew", some, letters, phase)

    def _ask(self, outlet: Outlet) -> None:
        """Asks who has taken pages on, where the outlet does not tell us."""
        wall_s = self._p.wall_s()
        if 0 <= wall_s - self._asked.get(outlet.name, 0.0) < _ASK_S or not self._pace[outlet.name].may(
            "all", wall_s
        ):
            return
        self._asked[outlet.name] = wall_s
        rows = self._ledger.pages(outlet.name, _ASKED_AT_ONCE)
        if not rows:
            return
        keys = [key_for(self._p.cluster, row) for row in rows]
        found: list[Acknowledgement] = []
        try:
            self._try(outlet, "ask", lambda: found.extend(outlet.acknowledged(keys)))
        except (RateLimited, DeliveryRefused):
            return
        for given in found:
            self.take(outlet.name, given)

    def take(self, outlet: str, given: Acknowledgement) -> bool:
        """Somebody took a page on in an outlet: shown in the incident, and our own escalation ends. False for an
        alert that this outlet does not page."""
        try:
            incident_id, turn = read_key(given.key)
            rows = self._ledger.alerts(incident_id)
        except (ValueError, Permanent):
            return False
        mine = [row for row in rows if row.outlet == outlet and row.form is Form.PAGE and row.turn == turn]
        if not mine or given.key != key_for(self._p.cluster, mine[0]):
            return False
        if mine[0].told is AlertPhase.TRIGGERED:
            self._ledger.told(mine, AlertPhase.ACKNOWLEDGED, self._p.wall_s())
        return self._p.store.acknowledge(incident_id, f"{given.by} ({outlet})", f"taken on in {outlet}")


def _of(row: OutletAlert) -> str:
    """An alert's place in its outlet's pace."""
    return f"{row.incident}/{row.form}"


def key_for(cluster: str, row: OutletAlert) -> str:
    """The vendor's name for a row's alert."""
    return key_of(cluster, name_of(row.incident), row.turn)


def _rank(severity: Severity) -> int:
    return list(Severity).index(severity)
