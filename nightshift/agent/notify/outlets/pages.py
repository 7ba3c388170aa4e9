"""What should stand in the pagers, and who pages: sent by the courier (`agent.notify.courier`).

One outlet pages for an incident, never two: the claim is a row, written before the first call. It pages once a turn
(`letter.need`); the other outlets show. A call without an answer is made again under the same key, which vendors
take for the same alert. A page that cannot be placed within `failover.after_s` changes hands: the row of the first
outlet is withdrawn and that of the second written in one transaction, and when the first answers again, what it may
have got is closed there. Losing a page is worse than two: in that time alone, two are possible, and only where the
first outlet took the page and no answer of many tries came back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from nightshift.agent.incidents.suppression import REPAIR_POLL_S
from nightshift.agent.notify.courier import BROKEN_S, Courier, CourierParts
from nightshift.agent.notify.delivery import DeliveryRefused
from nightshift.agent.notify.ledger import PAGE, ROUND, SHOWN, Delivery, alert_key
from nightshift.agent.notify.outlets.base import Acknowledgement, Outlet
from nightshift.agent.notify.outlets.letter import AlertPhase, Form, Letter, Need, key_of, letter, need, read_key
from nightshift.agent.notify.outlets.settings import Settings
from nightshift.agent.store.archive import name_of, number_of
from nightshift.agent.store.incident import Incident, IncidentSummary
from nightshift.agent.store.tenancy import namespaces_of
from nightshift.collectors.base import Permanent
from nightshift.detectors.alarms.lanes import Lane
from nightshift.detectors.base import Severity

_P = AlertPhase
# So much is compared before renewals get their turn: alerts of Alertmanager end where nobody renews them.
_AT_ONCE = 200
# An acknowledgement shows after this at most, and 50 requests of 15 s are under PagerDuty's 960 a minute.
_ASK_S = 15.0
_ASKED_AT_ONCE = 50
# Statuses that speak of what was sent, and of whoever sends only at times (PagerDuty's 400 of a wrong key).
_OF_A_LETTER = ("400", "413", "422")
# Once letters were refused together, each is sent alone for a while.
_TOGETHER, _APART_S = "together", 3600.0


@dataclass(frozen=True, kw_only=True)
class OutletParts(CourierParts):
    """What the pagers' courier works with; built once in `agent.setup.channels`."""

    outlets: Sequence[Outlet]
    settings: Settings
    cluster: str


class PageCourier(Courier):
    """Keeps all pagers in step. They share one courier, since who pages is decided among them."""

    kind = ROUND
    at_once = _AT_ONCE
    _p: OutletParts

    def __init__(self, parts: OutletParts) -> None:
        super().__init__("outlets", parts, 11.0)
        self._outlets: Mapping[str, Outlet] = {outlet.name: outlet for outlet in parts.outlets}
        self._asked: dict[str, float] = {}

    def _keep_up(self, now_s: float) -> None:
        for outlet in self._outlets.values():
            self._renew(outlet)
            self._ask(outlet)

    # One incident -----------------------------------------------------------------------------------------------

    def _tell(self, incident_id: str, now_s: float) -> None:
        wall_s = self._p.wall_s()
        incident = self._p.store.incident(incident_id)
        rows = self._ledger.alerts(incident_id)
        wanted = need(incident.history)
        seen_s: float | None = incident.updated_s
        lane, waits_until_s = self._standing.lane_of(incident)
        if wanted.phase is not _P.CLOSED:
            # What was paged before a silence began is kept in step all the same: else its page would never end.
            newly = wanted.turn > max((row.turn for row in rows), default=0)
            held = self._standing.of(incident) if newly else None
            if held is not None:
                self._ledger.round(
                    incident_id, held_until_s=held.until_s, seen_s=seen_s, seen_version=incident.version
                )
                return
            self._claim(incident, rows, wanted, lane, wall_s)
            rows = self._ledger.alerts(incident_id)
        rows = sorted(rows, key=lambda row: row.kind != PAGE)  # whoever is to be called comes first
        paging = {row.outlet for row in rows if row.kind == PAGE and not row.withdrawn}
        (summary,) = self._p.store.summaries([incident_id])
        done = [self._settle(summary, row, wanted, paging, wall_s) for row in rows]
        if all(done):
            self._failed.pop(self._key(incident_id), None)
        else:
            self._failed[self._key(incident_id)] = wall_s
            seen_s = None
        again_s = None if waits_until_s is None else min(waits_until_s, now_s + REPAIR_POLL_S)
        self._ledger.round(incident_id, held_until_s=again_s, seen_s=seen_s, seen_version=incident.version)

    def _claim(self, incident: Incident, rows: Sequence[Delivery], wanted: Need, lane: Lane, wall_s: float) -> None:
        """Writes down who pages and who shows, before anybody is called. An incident that has become graver is
        paged where the rule now says, and no longer where it was."""
        pages = [row for row in rows if row.kind == PAGE]
        shown = {row.outlet for row in rows if row.kind == SHOWN}
        severity = Severity(incident.severity)
        blank = Delivery("", "", PAGE, number_of(incident.id), turn=wanted.turn, severity=severity, due_s=wall_s)
        pager, new = self._pager_of(incident, pages, blank, lane)
        for name, outlet in self._outlets.items():
            if name != pager and name not in shown and Form.SHOWN in outlet.forms:
                new.append(_alert(blank, name, SHOWN))
        if new:
            self._ledger.put(*new)

    def _pager_of(
        self, incident: Incident, pages: Sequence[Delivery], blank: Delivery, lane: Lane
    ) -> tuple[str, list[Delivery]]:
        """Which outlet pages now, and the pages that change with it."""
        asked = self._p.settings.pager(incident.severity, namespaces_of(incident.subjects))
        if lane is not Lane.PAGE:
            asked = ""  # shown everywhere; what may page later asks the rule again
        had = asked not in self._outlets or any(row.outlet == asked for row in pages)
        fresh = [] if had else [_alert(blank, asked, PAGE)]
        if all(row.turn < blank.turn for row in pages):  # a new turn: the rule is asked again
            return asked, [*(replace(row, withdrawn=int(row.outlet != asked)) for row in pages), *fresh]
        (current,) = [row for row in pages if not row.withdrawn][:1] or [blank]
        if _rank(incident.severity) <= _rank(current.severity):
            return current.outlet, []
        if fresh:  # graver than what was paged, and another outlet's business now
            return asked, [*(replace(row, withdrawn=1) for row in pages), *fresh]
        return current.outlet, [replace(current, severity=incident.severity)]

    def _settle(
        self, incident: IncidentSummary, row: Delivery, wanted: Need, paging: set[str], wall_s: float
    ) -> bool:
        """Brings one alert to where it should stand; False where that has to be tried again. `paging`: outlets
        whose page stands for the incident, so that they need not show it as well."""
        outlet = self._outlets.get(row.outlet)
        if outlet is None:  # taken out of the settings
            return True
        leaves = row.withdrawn or (row.kind == SHOWN and row.outlet in paging)
        ends = (leaves or row.turn != wanted.turn) and row.may_stand
        if ends and not self._send(outlet, incident, row, _P.CLOSED):
            return False
        if leaves:
            return True
        if row.turn != wanted.turn:
            again = {"turn": wanted.turn, "shows": None, "tried_s": None, "due_s": wall_s}
            row = replace(row, severity=incident.severity, **again)  # type: ignore[arg-type]
            self._ledger.put(row)
        for phase in sends(row, wanted.phase):
            if not self._send(outlet, incident, row, phase):
                if row.shows is None and phase is _P.TRIGGERED:
                    self._fail_over(row)
                return False
        return True

    def _fail_over(self, row: Delivery) -> None:
        """Moves a page that its outlet does not take to the next one, where it is time."""
        failover = self._p.settings.failover
        if row.kind != PAGE or failover is None or failover.to == row.outlet:
            return
        late = self._p.wall_s() - (row.due_s or 0.0) >= failover.after_s or self._paces[row.outlet].refused
        if late and not self._paces[failover.to].refused:
            self._hand_over(row, failover.to)

    def _hand_over(self, row: Delivery, to: str) -> None:
        assert row.incident is not None
        pages = {page.outlet: page for page in self._ledger.alerts(name_of(row.incident)) if page.kind == PAGE}
        if to in pages and pages[to].withdrawn:  # it was tried before: a page is not handed back and forth
            return
        taker = _alert(replace(row, tried_s=None, told_s=None, due_s=self._p.wall_s()), to, PAGE)
        self._ledger.put(replace(pages[row.outlet], withdrawn=1), taker)
        self._log.error("page moved", incident=name_of(row.incident), was=row.outlet, now=to)

    # Calls ------------------------------------------------------------------------------------------------------

    def _send(self, outlet: Outlet, incident: IncidentSummary, row: Delivery, phase: AlertPhase) -> bool:
        work = partial(self._deliver_letters, outlet, "send", {row.key: incident}, [row], phase)
        return self._attempt(outlet.name, outlet.name, row.key, work)

    def _deliver_letters(
        self,
        outlet: Outlet,
        what: str,
        incidents: Mapping[str, IncidentSummary],
        rows: Sequence[Delivery],
        phase: AlertPhase,
    ) -> None:
        """`incidents`: by the row's key."""
        letters = [self._letter(incidents[row.key], row, phase) for row in rows]
        self._deliver(rows, phase, what, lambda: outlet.send(letters))

    def _letter(self, incident: IncidentSummary, row: Delivery, phase: AlertPhase) -> Letter:
        severity = row.severity or incident.severity
        url = self._p.settings.console_url
        return letter(incident, self._p.cluster, row.turn, phase, Form(row.kind), severity, url)

    def _refused(self, outlet: str, place: str, key: str, error: DeliveryRefused) -> None:
        of_a_letter = key != place and error.reason.startswith(_OF_A_LETTER)
        held, for_s = (key, BROKEN_S) if of_a_letter else (place, BROKEN_S)
        if held == _TOGETHER:  # one of them spoils the rest
            for_s = _APART_S
        self._paces[outlet].leave(held, self._p.wall_s(), for_s, str(error))

    # Over time --------------------------------------------------------------------------------------------------

    def _renew(self, outlet: Outlet) -> None:
        """Sends standing alerts again where the outlet forgets them."""
        pace, wall_s = self._paces[outlet.name], self._p.wall_s()
        rows = self._ledger.renewable(outlet.name, wall_s - outlet.renew_s, _AT_ONCE)
        if not rows or not pace.may(outlet.name, wall_s):
            return
        found = {number_of(one.id): one for one in self._p.store.summaries(_names(rows))}
        known = {row.key: found[row.incident] for row in rows if row.incident in found}
        for phase in (_P.TRIGGERED, _P.ACKNOWLEDGED):
            mine = [row for row in rows if row.shows == phase and row.key in known]
            together = len(mine) > 1 and pace.may(_TOGETHER, wall_s)
            for some in [mine] if together else [[row] for row in mine]:
                work = partial(self._deliver_letters, outlet, "renew", known, some, phase)
                self._attempt(outlet.name, outlet.name, _TOGETHER if together else some[0].key, work)

    def _ask(self, outlet: Outlet) -> None:
        """Asks who has taken pages on, where the outlet does not tell us."""
        wall_s = self._p.wall_s()
        # An age below 0: the wall clock was set back, and must not keep us from asking until it is there again.
        if 0 <= wall_s - self._asked.get(outlet.name, 0.0) < _ASK_S:
            return
        if not self._paces[outlet.name].may(outlet.name, wall_s):
            return
        self._asked[outlet.name] = wall_s
        rows = self._ledger.pages(outlet.name, _ASKED_AT_ONCE)
        if not rows:
            return
        keys = [key_for(self._p.cluster, row) for row in rows]
        found: list[Acknowledgement] = []

        def ask() -> None:
            found.extend(self._call(outlet.name, "ask", lambda: outlet.acknowledged(keys)))

        self._attempt(outlet.name, outlet.name, outlet.name, ask)
        for given in found:
            self.take(outlet.name, given)

    def take(self, outlet: str, acknowledgement: Acknowledgement) -> bool:
        """A person took a page on in an outlet: shown in the incident, and our own escalation ends. False for an
        alert that this outlet does not page."""
        try:
            incident_id, turn = read_key(acknowledgement.key)
            rows = self._ledger.alerts(incident_id)
        except (ValueError, Permanent):
            return False
        mine = [row for row in rows if row.outlet == outlet and row.kind == PAGE and row.turn == turn]
        if not mine or acknowledgement.key != key_for(self._p.cluster, mine[0]):
            return False
        if mine[0].shows == _P.TRIGGERED:
            self._ledger.told(mine, _P.ACKNOWLEDGED, self._p.wall_s())
        return self._p.store.acknowledge(incident_id, f"{acknowledgement.by} ({outlet})", f"taken on in {outlet}")


def sends(row: Delivery, phase: AlertPhase) -> tuple[AlertPhase, ...]:
    """The phases to send, in order, that bring an alert to the last one. Decides purely."""
    if row.shows == phase and row.tried_s is None:
        return ()
    if phase is _P.CLOSED and not row.may_stand:
        return ()
    if phase is _P.ACKNOWLEDGED and row.shows is None:
        if row.kind == SHOWN:  # vendors ignore an acknowledgement of an alert that they do not have
            return (_P.TRIGGERED, phase)
        if not row.may_stand:  # a person has taken it on already: nobody is called
            return ()
    return (phase,)


def key_for(cluster: str, row: Delivery) -> str:
    """The vendor's name for a row's alert."""
    assert row.incident is not None
    return key_of(cluster, name_of(row.incident), row.turn)


def _alert(like: Delivery, outlet: str, form: str) -> Delivery:
    assert like.incident is not None
    return replace(like, key=alert_key(outlet, like.incident, form), outlet=outlet, kind=form)


def _names(rows: Sequence[Delivery]) -> list[str]:
    return [name_of(row.incident) for row in rows if row.incident is not None]


def _rank(severity: Severity | None) -> int:
    return -1 if severity is None else list(Severity).index(severity)
