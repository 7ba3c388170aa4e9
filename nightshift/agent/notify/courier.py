"""Keeps what stands outside in step with the incidents: compares what should stand there with what the ledger says
does, and sends the difference. One courier serves all outlets: Slack's (`agent.notify.slack.messages`), the
pagers' (`agent.notify.outlets.pages`) and the ticket system's (`agent.notify.tickets.lane`) decide what should
stand, and send through it. Only the leading replica runs them.

Nothing is queued: after an outage, a 429 or a restart the same comparison is made again, so nothing is lost, and
edits of an hour are one edit. A send is written down before it is made. One whose answer never came is made again
under the same key where the vendor takes it for the same alert; elsewhere (`PostFinder`) it is looked for by its
key first, and a late second copy is deleted. What an outlet says of one message keeps the others from nothing.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

import structlog

from nightshift.agent.clock import Clock
from nightshift.agent.incidents.suppression import ActiveSuppressions, Suppressor
from nightshift.agent.notify.delivery import DeliveryPace, DeliveryRefused, NoAnswer, RateLimited
from nightshift.agent.notify.ledger import WATCH_S, Delivery, DeliveryLedger
from nightshift.agent.store.archive import name_of
from nightshift.agent.store.incident_store import Store
from nightshift.collectors.base import Permanent, Temporary

_T = TypeVar("_T")
_POLL_S = 0.5
# A second copy is looked for this often while one may turn up: Slack limits reading a channel's history.
_LOOK_S = 10.0
# Slack's timestamps are its own clock's; ours may be behind or ahead by minutes before anything else breaks.
_CLOCK_SKEW_S = 300.0
# A refusal lasts until a person changes something; once a minute finds that out soon enough.
BROKEN_S = 60.0
_OUTCOMES = {RateLimited: "limited", NoAnswer: "no_answer", DeliveryRefused: "refused"}


class PostFinder(Protocol):
    """An outlet where a second send would make a second copy, so that a lost one is looked for."""

    def find(self, channel: str, key: str, thread: str | None, oldest_s: float) -> list[str]:
        """The outlet's own names of the messages that carry our key, the oldest first."""

    def delete(self, channel: str, ts: str) -> None:
        """Removes a copy."""


@dataclass(frozen=True, kw_only=True)
class CourierParts:
    """What every courier works with."""

    store: Store
    clock: Clock
    suppressor: Suppressor
    leads: Callable[[], bool]
    count: Callable[[str, str, str], None] = lambda outlet, what, outcome: None
    """Counts a call for the metrics: (outlet, what, ok | limited | no_answer | refused)."""
    wall_s: Callable[[], float] = time.time


class Courier(ABC):
    """`once` is one comparison; `start` repeats it on a thread of its own until `stop`.

    Slack and the pagers have one each, with a thread each: a Slack that takes ten seconds to time out must not hold
    up a page by them.
    """

    kind: str
    """Of the row that says what the outlets know of an incident (`DeliveryLedger.news`)."""
    at_once: int | None = None
    """Most incidents in one comparison."""
    lost_s = 3.0
    """A post without an answer may still be on its way: looked for before, it is not found, and is sent twice."""

    def __init__(
        self, name: str, parts: CourierParts, ends_within_s: float, lookup: PostFinder | None = None
    ) -> None:
        self._p = parts
        self._ledger = DeliveryLedger(parts.store.database)
        self._lookup = lookup
        self._log = structlog.get_logger(name)
        self._name = name
        self._paces: defaultdict[str, DeliveryPace] = defaultdict(DeliveryPace)
        self._failed: dict[str, float] = {}
        """By message: when it last failed (wall s)."""
        self._looked: dict[str, float] = {}
        self._standing = ActiveSuppressions((), (), lambda subject: ())
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._ends_within_s = ends_within_s
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.problem = ""
        """Why something does not go out now, for the health page; empty where all does."""

    @abstractmethod
    def _tell(self, incident_id: str, now_s: float) -> None:
        """Brings one incident to where it should stand outside."""

    @abstractmethod
    def _keep_up(self, now_s: float) -> None:
        """What is due by time rather than by news."""

    def leads(self) -> bool:
        """Whether this process is the one that sends."""
        return self._p.leads()

    # Life -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Compares now rather than at the next poll."""
        self._wake.set()

    def stop(self) -> None:
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(self._ends_within_s)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wake.clear()
            try:
                if self.leads():
                    self.once()
            except (Temporary, Permanent) as error:  # the store's: the outlets' own are caught one by one
                self.problem = str(error)
                self._log.warning("outlet delivery delayed", error=str(error))
                self._wake.wait(1.0)
            except Exception as error:  # noqa: BLE001  a defect of ours must not end the messages; it is said
                self.problem = f"{type(error).__name__}: {error}"
                self._log.exception("outlet comparison failed")
                # Longer than for a store that is away: a defect comes again at once, and each time with a
                # traceback.
                self._wake.wait(5.0)
            self._wake.wait(_POLL_S)

    # One comparison ---------------------------------------------------------------------------------------------

    def once(self) -> None:
        """Sends what is missing. A message that cannot be sent now keeps no other one back."""
        now_s = self._p.clock.now_s()
        if self._lookup is not None:
            for row in self._ledger.unanswered(self._name):
                self._attempt(
                    row.outlet, row.channel, f"{row.key}/look", partial(self._reconcile, self._lookup, row)
                )
        self._standing = self._p.suppressor.standing()
        # whoever failed last comes last: one message that an outlet will not have starves nobody
        waiting = sorted(
            self._ledger.news(self.kind, now_s), key=lambda name: self._failed.get(self._key(name), 0.0)
        )
        for incident_id in waiting[: self.at_once]:
            if self._stopping.is_set():
                return
            self._tell(incident_id, now_s)
        self._keep_up(now_s)
        wall_s = self._p.wall_s()
        whys = (why for _, pace in sorted(self._paces.items()) for why in pace.reasons(wall_s))
        self.problem = "; ".join(dict.fromkeys(whys))

    def _key(self, incident_id: str) -> str:
        """The key of the row that says what the outlets know of an incident."""
        return f"{incident_id}/{self.kind}"

    # Sending ----------------------------------------------------------------------------------------------------

    def _attempt(self, outlet: str, place: str, key: str, work: Callable[[], object]) -> bool:
        """Does one thing in a place of an outlet, about one message; False where that has to be tried again. A
        failure is said, and costs the other places nothing, and where it is about that message alone, the other
        messages neither."""
        pace, wall_s = self._paces[outlet], self._p.wall_s()
        if not pace.may(place, wall_s) or not pace.may(key, wall_s):
            return False
        failed_s, self._failed[key] = self._failed.get(key, 0.0), wall_s
        try:
            work()
        except RateLimited as error:
            pace.leave(place, wall_s, error.retry_after_s or 1.0, str(error))
            self._failed[key] = failed_s  # no fault of its own
        except NoAnswer as error:
            again_in_s = pace.away(wall_s, str(error))
            self._log.warning("delivery failed", outlet=outlet, error=str(error), again_in_s=again_in_s)
        except DeliveryRefused as error:
            pace.refused = True
            self._refused(outlet, place, key, error)
            self._log.error("delivery refused", outlet=outlet, place=place, reason=error.reason)
        else:
            pace.answered()
            self._failed.pop(key, None)
            return True
        return False

    @abstractmethod
    def _refused(self, outlet: str, place: str, key: str, error: DeliveryRefused) -> None:
        """Leaves alone what a refusal is about: the place, or the one message."""

    def _deliver(self, rows: Sequence[Delivery], shows: str, what: str, send: Callable[[], str | None]) -> bool:
        """Writes sends to one outlet down, makes them, writes down that they are there, showing `shows`. False
        where an earlier try is still being looked for."""
        wall_s = self._p.wall_s()
        if self._lookup is None:
            self._ledger.trying(rows, wall_s)
        # One post at a time: with a look-up, each has a name of its own to write down.
        elif not self._ledger.begin(rows[0], wall_s):
            return False
        try:
            ts = self._call(rows[0].outlet, what, send)
        except (RateLimited, DeliveryRefused):
            self._ledger.unsent(rows)
            self._look_again(rows)
            raise
        self._ledger.told(rows, shows, self._p.wall_s(), ts)
        return True

    def _look_again(self, rows: Sequence[Delivery]) -> None:
        """It did not happen: the next comparison makes it again, from the state that holds then."""
        for row in rows:
            if row.incident is not None:
                self._ledger.change(self._key(name_of(row.incident)), seen_s=None)

    def _call(self, outlet: str, what: str, call: Callable[[], _T]) -> _T:
        """Makes a call and counts how it ended."""
        try:
            answer = call()
        except (RateLimited, NoAnswer, DeliveryRefused) as error:
            self._p.count(outlet, what, _OUTCOMES[type(error)])
            raise
        self._p.count(outlet, what, "ok")
        return answer

    # Posts without an answer ------------------------------------------------------------------------------------

    def _reconcile(self, lookup: PostFinder, row: Delivery) -> None:
        """Settles a post without an answer: adopts it where it is, lets it be sent again where it is not; and
        deletes a second copy that arrives late."""
        wall_s = self._p.wall_s()
        tried_s = self._looked.get(row.key, 0.0) if row.tried_s is None else row.tried_s
        if wall_s < tried_s + (_LOOK_S if row.tried_s is None else self.lost_s):
            return
        self._looked[row.key] = wall_s
        keep = self._the_one(lookup, row, (wall_s if row.tried_s is None else row.tried_s) - _CLOCK_SKEW_S)
        if row.ts is None and (keep is not None or row.tried_s is not None):
            # Found: it stands, but what it shows is not known. Not found: it is sent again. Either way the lost one
            # may still arrive, so the copy is watched for.
            self._ledger.change(row.key, ts=keep, shows=None, tried_s=None, watch_until_s=wall_s + WATCH_S)
            # A reply in a thread that was found says what it says; a card has to be edited.
            if keep is None or row.kind == self.kind:
                self._look_again([row])
        elif row.watch_until_s is not None and wall_s >= row.watch_until_s:
            self._ledger.change(row.key, watch_until_s=None)
            self._looked.pop(row.key, None)

    def _the_one(self, lookup: PostFinder, row: Delivery, oldest_s: float) -> str | None:
        """The outlet's name of a post, where it is there; every other copy of it is deleted."""
        found = self._call(row.outlet, "find", lambda: lookup.find(row.channel, row.key, row.thread, oldest_s))
        keep = row.ts if row.ts in found or not found else found[0]
        for extra in (ts for ts in found if ts != keep):
            self._call(row.outlet, "delete", partial(lookup.delete, row.channel, extra))
        return keep
