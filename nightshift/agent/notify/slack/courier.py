"""Keeps the chat in step with the incidents: compares what should stand there with what does, and sends the
difference. Only the leading replica runs it.

Nothing is queued: after an outage, a 429 or a restart the same comparison is made again, so nothing is lost, edits
of an hour are one edit, and a message is never sent twice. A post is written down before it is sent; one whose
answer never came is looked for by its key before it is sent again, and a late second copy is deleted.
Where an incident is posted, and whether now, is decided purely (`channel_of`, `hold`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import TypeVar

from nightshift.agent.approvals.people import Directory
from nightshift.agent.clock import Clock
from nightshift.agent.incidents.suppression import ActiveSuppressions, Suppressor
from nightshift.agent.notify.outlets.delivery import (
    DeliveryPace,
    DeliveryRefused,
    NoAnswer,
    RateLimited,
    Repeated,
    counted,
)
from nightshift.agent.notify.slack import card as words
from nightshift.agent.notify.slack.blocks import ChatImage, ChatMessage
from nightshift.agent.notify.slack.ledger import ChatLedger, Row, card_key
from nightshift.agent.notify.slack.proposals import Teller
from nightshift.agent.notify.slack.settings import SNOOZE_S, STORM_AFTER, STORM_CALM_S, TIMEOUT_S, Settings
from nightshift.agent.notify.slack.web import OF_A_PLACE, UNREACHABLE_CHANNEL, SlackWeb
from nightshift.agent.presentation.chart_image import deciding, png
from nightshift.agent.store.archive import name_of, number_of
from nightshift.agent.store.incident import Cause, Incident, IncidentState, taken_on
from nightshift.agent.store.incident_store import Store
from nightshift.agent.store.tenancy import namespaces_of
from nightshift.collectors.seal import sha256_hex
from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.detectors.base import Severity

_ORDER = list(Severity)


@dataclass(frozen=True, slots=True)
class Hold:
    """Not now, but at `until_s`; says why."""

    until_s: float
    why: str


def channel_of(incident: Incident, settings: Settings, directory: Directory) -> str:
    """One channel: the first route that fits, else the owner's, else the default. Never two.

    An owner's channel gets only what is the owner's alone: what touches several teams' jobs goes to the default
    channel, or one team would read of another's."""
    spaces = namespaces(incident)
    for route in settings.routes:
        severe = not route.severities or incident.severity in route.severities
        if severe and (not route.namespaces or _any_fits(spaces, route.namespaces)):
            return route.channel
    channels = {owner.slack_channel if (owner := directory.owner([name])) else "" for name in spaces}
    return (channels.pop() if len(channels) == 1 else "") or settings.channel


def namespaces(incident: Incident) -> list[str]:
    """The namespaces that an incident is about: whose jobs it touches, and the job that its diagnosis names."""
    named = []
    if incident.diagnosis is not None and "job" in incident.diagnosis.facts:
        named = namespaces_of([Subject(SubjectKind.JOB, str(incident.diagnosis.facts["job"]))])
    return list(dict.fromkeys([*namespaces_of(incident.subjects), *named, *incident.namespaces]))


def hold(incident: Incident, settings: Settings, now_s: float) -> Hold | None:
    """Whether quiet hours keep an incident back, and until when."""
    hours = settings.quiet_hours
    if hours is None or _ORDER.index(incident.severity) >= _ORDER.index(hours.least):
        return None
    end_s = hours.end_after(now_s)
    return None if end_s is None else Hold(end_s, "quiet hours")


def _any_fits(names: Sequence[str], patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)


_T = TypeVar("_T")
_MINUTE_S = 60.0
_LOST_S = 3.0
"""An answer that did not come is looked for after this much (wall s), so that a slow post has landed."""
_LOOK_S = 10.0
_WATCH_S = 60.0
"""A lost post may still arrive this much later, beside the one that took its place."""
_CLOCK_SKEW_S = 300.0
_STORM_EDIT_S = 5.0
_AT_ONCE = 200
_NOT_THERE = frozenset({"message_not_found", "cant_update_message", "edit_window_closed"})
_BROKEN_S = 60.0
_NO_PICTURE = "none"
"""In the place of a file's id: it was refused, and is not sent again."""


@dataclass(frozen=True)
class SlackParts:
    """What the courier works with; built once in `agent.app`."""

    store: Store
    clock: Clock
    web: SlackWeb
    settings: Settings
    directory: Directory
    suppressor: Suppressor
    leads: Callable[[], bool]
    promotions: Teller | None = None
    pager: Callable[[str], str] = lambda incident_id: ""
    """The outlet that paged for an incident: whom it calls is then its business, not ours."""
    count: Callable[[str, str], None] = lambda what, outcome: None
    """Counts a call for the metrics: (post | update | find | delete, ok | limited | no_answer | refused)."""
    wall_s: Callable[[], float] = time.time


class Courier(Repeated):
    """Keeps one workspace in step."""

    def __init__(self, parts: SlackParts) -> None:
        super().__init__("slack", TIMEOUT_S + 1)
        self._p = parts
        self._ledger = ChatLedger(parts.store.database)
        self._pace = DeliveryPace()
        self._broken: dict[str, float] = {}
        self._storm_edited: dict[str, float] = {}
        self._looked: dict[str, float] = {}
        self._failed: dict[str, float] = {}
        """By message: when it last failed (wall s)."""
        self._standing = ActiveSuppressions((), (), lambda subject: ())
        self._storms_now: dict[str, Row] = {}
        self._joining: list[Row] = []

    def leads(self) -> bool:
        return self._p.leads()

    # One comparison ---------------------------------------------------------------------------------------------

    def once(self) -> None:
        """Sends what is missing. A message that cannot be sent now keeps no other one back."""
        if not self._pace.may("", self._p.wall_s()):
            return
        self.problem = ""
        now_s = self._p.clock.now_s()
        for row in self._ledger.unanswered():
            self._try(row.channel, partial(self._look_for, row), f"{row.key}/look")
        self._standing = self._p.suppressor.standing()
        self._storms_now = {row.channel: row for row in self._ledger.storms(now_s - STORM_CALM_S)}
        # whoever failed last comes last: one message that Slack will not have starves nobody
        for incident_id in sorted(self._ledger.news(now_s), key=lambda key: self._failed.get(card_key(key), 0.0)):
            if self._stopping.is_set():
                return
            self._tell(incident_id, now_s)
        self._join(now_s)
        self._tell_storms(now_s)
        self._remind(now_s)
        for row, content, there in self._p.promotions.due(now_s, self._p.wall_s()) if self._p.promotions else ():
            if there:
                work: Callable[[], object] = partial(self._edit_promotion, row, content)
            else:
                work = partial(self._post, replace(row, channel=self._usable(row.channel)), content)
            self._try(row.channel, work, row.key)

    def _tell(self, incident_id: str, now_s: float) -> None:
        incident = self._p.store.incident(incident_id)
        row = self._ledger.row(card_key(incident_id))
        if row is None or (row.ts is None and row.tried_s is None and row.storm is None):
            self._first(incident, row, now_s)
        elif row.storm is not None:
            self._seen(row, incident)
        elif row.ts is not None:
            self._try(row.channel, lambda: self._renew(incident, row, now_s), row.key)

    def _first(self, incident: Incident, row: Row | None, now_s: float) -> None:
        """An incident that the chat does not know: hold it, group it, or give it its message."""
        if not incident.is_open:
            if row is not None:  # it ended before anybody was told
                self._seen(row, incident)
            return
        channel = self._usable(channel_of(incident, self._p.settings, self._p.directory))
        blank = Row(
            card_key(incident.id),
            "card",
            number_of(incident.id),
            channel,
            steps=len(incident.history),
            seen_s=incident.updated_s,
            seen_version=incident.version,
            watch_until_s=row.watch_until_s if row is not None else None,
        )
        until_s = self._held_until(incident, now_s)
        if until_s is not None:
            self._ledger.put(replace(blank, held_until_s=until_s))
            return
        storm = self._storm(channel, now_s)
        if storm is not None:
            self._joining.append(replace(blank, storm=storm.key, posted_s=now_s))
            if len(self._joining) >= _AT_ONCE:
                self._join(now_s)
            return
        self._try(channel, partial(self._begin, incident, replace(blank, posted_s=now_s), now_s), blank.key)

    def _begin(self, incident: Incident, row: Row, now_s: float) -> None:
        self._post(row, self._card(incident, now_s))
        there = self._ledger.row(row.key)
        if there is not None and there.ts is not None:
            self._thread_of(incident, there)

    def _held_until(self, incident: Incident, now_s: float) -> float | None:
        quiet = hold(incident, self._p.settings, now_s)
        cover = self._standing.of(incident)
        times = [item.until_s for item in (quiet, cover) if item is not None]
        return max(times) if times else None

    def _renew(self, incident: Incident, row: Row, now_s: float) -> None:
        """Edits the message if its content changed, then tells the thread what happened since."""
        content = self._card(incident, now_s)
        if content.sha256 != row.content_sha256 and row.ts is not None:
            try:
                self._call("update", lambda: self._p.web.update(row.channel, row.ts or "", row.key, content))
            except DeliveryRefused as refused:
                self._post(self._moved(row, refused), content)
                return
            self._ledger.change(row.key, content_sha256=content.sha256)
        self._thread_of(incident, row)
        self._seen(row, incident)

    def _thread_of(self, incident: Incident, row: Row) -> None:
        there = self._ledger.thread(number_of(incident.id))
        stormy = row.channel in self._storms_now
        wanted: list[tuple[str, ChatMessage, bool]] = []
        story = None if stormy else words.story(incident)
        if story is not None:
            wanted.append((f"{incident.id}/why/{story.sha256[:16]}", story, False))
        for number, step in enumerate(incident.history):
            if number < row.steps or step.cause not in words.TOLD:
                continue
            cause = Cause(step.cause)
            if not stormy or cause in words.OUTCOMES:
                loud = step.after is IncidentState.ESCALATED or cause is Cause.RELAPSED
                wanted.append((f"{incident.id}/step/{number}", words.event(incident, step), loud))
        for key, content, broadcast in wanted:
            if key not in there:
                reply = Row(key, "thread", number_of(incident.id), row.channel, row.ts)
                self._post(reply, content, broadcast)
        if story is not None:
            self._show(incident, row, there)

    def _show(self, incident: Incident, row: Row, there: set[str]) -> None:
        """Puts the chart of the deciding signal into the thread, once for each diagnosis that has another one."""
        chart = deciding(incident)
        if chart is None:
            return
        key = f"{incident.id}/chart/{sha256_hex(chart.values.tobytes())[:16]}"
        if key not in there:
            reply = Row(key, "thread", number_of(incident.id), row.channel, row.ts)
            try:
                self._post(reply, ChatImage(chart.title, png(chart)))
            except DeliveryRefused as refused:  # files may be forbidden where messages are not: the words go on
                if refused.reason in UNREACHABLE_CHANNEL:
                    raise
                self._ledger.change(key, ts=_NO_PICTURE)
                self._log.warning("picture upload refused", incident=incident.id, reason=refused.reason)

    def _seen(self, row: Row, incident: Incident) -> None:
        shown: dict[str, object] = {"seen_s": incident.updated_s, "seen_version": incident.version}
        if incident.state not in words.SNOOZABLE:
            shown["reminders"] = 0
        self._ledger.change(row.key, held_until_s=None, **shown)

    def _card(self, incident: Incident, now_s: float) -> ChatMessage:
        s = self._p.settings
        return words.card(incident, now_s, s.console_url, SNOOZE_S)

    # Storms -----------------------------------------------------------------------------------------------------

    def _storm(self, channel: str, now_s: float) -> Row | None:
        """The storm that a new incident of this channel belongs to; a new one where too many came at once."""
        if channel in self._storms_now:
            return self._storms_now[channel]
        if self._ledger.lately(channel, now_s - _MINUTE_S) < STORM_AFTER:
            return None
        row = Row(f"storm/{channel}/{now_s:.0f}", "storm", None, channel, seen_s=now_s, posted_s=now_s)
        self._ledger.put(row)
        self._storms_now[channel] = row
        return row

    def _join(self, now_s: float) -> None:
        """Writes down which incidents a storm's message stands for, many at once."""
        self._ledger.join_storms(self._joining, now_s)
        self._joining.clear()

    def _tell_storms(self, now_s: float) -> None:
        for row in self._ledger.storms(now_s - 4 * STORM_CALM_S):
            if row.tried_s is not None or self._p.wall_s() < self._storm_edited.get(row.key, 0.0) + _STORM_EDIT_S:
                continue
            members = self._ledger.in_storm(row.key)
            if not members:
                continue
            rows = self._p.store.summaries(members)
            content = words.storm(rows, row.posted_s or now_s, self._p.settings.console_url)
            if content.sha256 == row.content_sha256:
                continue
            self._storm_edited[row.key] = self._p.wall_s()
            self._try(row.channel, partial(self._post if row.ts is None else self._edit, row, content), row.key)

    def _edit_promotion(self, row: Row, content: ChatMessage) -> None:
        assert self._p.promotions is not None
        self._p.promotions.edit(row, partial(self._edit, row, content))

    def _edit(self, row: Row, content: ChatMessage) -> None:
        try:
            self._call("update", lambda: self._p.web.update(row.channel, row.ts or "", row.key, content))
        except DeliveryRefused as refused:
            if row.kind != "storm":
                raise
            self._post(self._moved(row, refused), content)
            return
        self._ledger.change(row.key, content_sha256=content.sha256)

    def _moved(self, row: Row, refused: DeliveryRefused) -> Row:
        """A message that cannot be edited any more, as one that is yet to be posted: in its channel where it was
        deleted there, in the default one where its channel was archived or we were put out of it. Raises the
        refusal where it says anything else."""
        channel = row.channel
        if refused.reason in UNREACHABLE_CHANNEL and channel != self._p.settings.channel:
            self._broken[channel] = self._p.wall_s() + _BROKEN_S
            channel = self._p.settings.channel
            self._log.warning("message redirected", key=row.key, channel=row.channel, reason=refused.reason)
        elif refused.reason not in _NOT_THERE:
            raise refused
        self._ledger.change(row.key, channel=channel, ts=None, content_sha256=None)
        return replace(row, channel=channel, ts=None, content_sha256=None)

    # Silence of people ------------------------------------------------------------------------------------------

    def _remind(self, now_s: float) -> None:
        """Once after `remind_s`, and once more, to whom it escalates, after `escalate_s`; not in quiet hours."""
        s = self._p.settings
        for number, (after_s, whom) in enumerate(((s.remind_s, ""), (s.escalate_s, s.escalate_to)), 1):
            for incident_id in self._ledger.waiting(now_s - after_s, number, now_s):
                incident = self._p.store.incident(incident_id)
                row = self._ledger.row(card_key(incident_id))
                if row is None or row.ts is None or self._held_until(incident, now_s) is not None:
                    continue
                if taken_on(incident.history) is not None:
                    self._ledger.change(row.key, reminders=number)
                    continue
                called = "" if self._p.pager(incident_id) else whom
                key = f"{incident_id}/reminder/{incident.version}/{number}"
                reply = Row(key, "thread", row.incident, row.channel, row.ts, posted_s=now_s)
                content = words.reminder(incident, now_s, called)

                self._try(row.channel, partial(self._tell_again, row, reply, content, number), key)

    def _tell_again(self, row: Row, reply: Row, content: ChatMessage, number: int) -> None:
        if self._post(reply, content, True) or (self._ledger.row(reply.key) or reply).ts is not None:
            self._ledger.change(row.key, reminders=number)

    # Sending ----------------------------------------------------------------------------------------------------

    def _post(self, row: Row, content: ChatMessage | ChatImage, broadcast: bool = False) -> bool:
        """Writes the post down, sends it, writes down that it is there. False where an earlier try of it is still
        being looked for."""
        if not self._ledger.begin(row, self._p.wall_s()):
            return False
        try:
            ts = self._call("post", lambda: self._p.web.post(row.channel, row.key, content, row.thread, broadcast))
        except (RateLimited, DeliveryRefused):
            self._unsent(row)
            raise
        self._ledger.posted(row.key, ts, content.sha256, self._p.wall_s())
        return True

    def _unsent(self, row: Row) -> None:
        """It did not happen: the next comparison makes it again, from the state that holds then."""
        self._ledger.change(row.key, tried_s=None)
        if row.kind != "storm" and row.incident is not None:
            self._ledger.change(card_key(name_of(row.incident)), seen_s=None)

    def _look_for(self, row: Row) -> None:
        """Settles a post without an answer: adopts it where it is, lets it be sent again where it is not; and
        deletes a second copy that arrives late."""
        wall_s = self._p.wall_s()
        lost = row.tried_s is not None
        if wall_s < (row.tried_s or 0.0) + _LOST_S or wall_s < self._looked.get(row.key, 0.0) + _LOOK_S * (
            not lost
        ):
            return
        self._looked[row.key] = wall_s
        oldest_s = (row.tried_s if row.tried_s is not None else wall_s) - _CLOCK_SKEW_S
        found = self._call("find", lambda: self._p.web.find(row.channel, row.key, row.thread, oldest_s))
        keep = row.ts if row.ts in found or not found else found[0]
        for extra in found:
            if extra != keep:
                self._call("delete", partial(self._p.web.delete, row.channel, extra))
        if row.ts is None and keep is not None:
            self._ledger.change(
                row.key, ts=keep, tried_s=None, content_sha256=None, watch_until_s=wall_s + _WATCH_S
            )
            if row.kind == "card":  # what it shows is not known: it is edited
                self._ledger.change(row.key, seen_s=None)
        elif row.ts is None and lost:
            self._ledger.change(row.key, watch_until_s=wall_s + _WATCH_S)
            self._unsent(row)
        elif row.watch_until_s is not None and wall_s >= row.watch_until_s:
            self._ledger.change(row.key, watch_until_s=None)
            self._looked.pop(row.key, None)

    def _usable(self, channel: str) -> str:
        """The channel, or the default one while Slack refuses it: an incident is told somewhere."""
        if self._p.wall_s() < self._broken.get(channel, 0.0):
            return self._p.settings.channel
        return channel

    def _try(self, channel: str, work: Callable[[], object], key: str) -> None:
        """Does one thing in a channel, about one message; a failure is said, and costs the other channels nothing,
        and where it is about that message alone (`agent.notify.slack.web.OF_A_PLACE`), the other messages
        neither."""
        wall_s = self._p.wall_s()
        if not self._pace.may(channel, wall_s) or not self._pace.may(key, wall_s):
            return
        failed_s, self._failed[key] = self._failed.get(key), wall_s
        try:
            work()
            self._pace.answered()
            self._failed.pop(key, None)
        except RateLimited as error:
            self._pace.leave(channel, wall_s, error.retry_after_s or 1.0)
            self._failed[key] = failed_s or 0.0  # no fault of its own
            self.problem = str(error)
        except NoAnswer as error:
            again_in_s = self._pace.away(wall_s)
            self.problem = str(error)
            self._log.warning("slack call failed", error=str(error), again_in_s=again_in_s)
        except DeliveryRefused as error:
            if error.reason in UNREACHABLE_CHANNEL and channel != self._p.settings.channel:
                self._broken[channel] = wall_s + _BROKEN_S
            else:
                self._pace.leave(channel if error.reason in OF_A_PLACE else key, wall_s, _BROKEN_S)
            self.problem = f"{channel}: {error}"
            self._log.error("slack call refused", channel=channel, reason=error.reason)

    def _call(self, what: str, call: Callable[[], _T]) -> _T:
        return counted(call, partial(self._p.count, what))


__all__: Sequence[str] = ("Courier", "SlackParts")
