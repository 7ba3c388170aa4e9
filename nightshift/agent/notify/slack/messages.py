"""What should stand in the chat: a message per incident, its thread, storms, reminders and promotions; sent by the
courier (`agent.notify.courier`). Where an incident is posted, and whether now, is decided purely (`channel_of`,
`hold`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial

from nightshift.agent.approvals.people import Directory
from nightshift.agent.approvals.questions import Questions
from nightshift.agent.incidents.suppression import REPAIR_POLL_S
from nightshift.agent.notify.courier import BROKEN_S, Courier, CourierParts
from nightshift.agent.notify.delivery import DeliveryRefused
from nightshift.agent.notify.ledger import CARD, STORM, THREAD, Delivery, card_key
from nightshift.agent.notify.slack import card as words
from nightshift.agent.notify.slack.blocks import ChatImage, ChatMessage
from nightshift.agent.notify.slack.proposals import Teller
from nightshift.agent.notify.slack.settings import LOUD, SNOOZE_S, STORM_AFTER, STORM_CALM_S, TIMEOUT_S, Settings
from nightshift.agent.notify.slack.web import GONE, OF_A_PLACE, UNREACHABLE_CHANNEL, SlackWeb
from nightshift.agent.notify.slack.weekly import WeeklyReport
from nightshift.agent.presentation.chart_image import deciding, png
from nightshift.agent.store.archive import number_of
from nightshift.agent.store.incident import Cause, Incident, IncidentState, unanswered_since_s
from nightshift.agent.store.tenancy import namespaces_of
from nightshift.collectors.seal import sha256_hex
from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.detectors.alarms.lanes import ORDER, Lane, widest


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
    if hours is None or incident.severity is LOUD:
        return None
    end_s = hours.end_after(now_s)
    return None if end_s is None else Hold(end_s, "quiet hours")


DAY_S = 86_400.0
DIGEST = "digest"
_ORDERED = (DIGEST, "storm", "pages")
"""Kinds of messages of many, by lane: the first part of their keys."""


def _group_of(key: str) -> str:
    return key.partition("/")[0]


def _lane(incident: Incident) -> Lane:
    return widest(stored.finding for stored in incident.findings)


def _rank(lane: Lane) -> int:
    return ORDER.index(lane)


def _any_fits(names: Sequence[str], patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)


SLACK = "slack"
_MINUTE_S = 60.0
# A storm brings news many times a second, and chat.update is limited to some 50 a minute and workspace.
_STORM_EDIT_S = 5.0
# Rows that join a storm in one transaction: few enough that it holds SQLite's one write lock for milliseconds.
_JOINED_AT_ONCE = 200
# In the place of a file's id: it was refused, and is not sent again.
_NO_PICTURE = "none"


@dataclass(frozen=True, kw_only=True)
class SlackParts(CourierParts):
    """What the chat's courier works with; built once in `agent.setup.channels`."""

    web: SlackWeb
    settings: Settings
    directory: Directory
    promotions: Teller | None = None
    weekly: WeeklyReport | None = None
    pager: Callable[[str], str] = lambda incident_id: ""
    """The outlet that paged for an incident: whom it calls is then its business, not ours."""


class ChatCourier(Courier):
    """Keeps one workspace in step."""

    kind = CARD
    _p: SlackParts

    def __init__(self, parts: SlackParts) -> None:
        super().__init__(SLACK, parts, TIMEOUT_S + 1, lookup=parts.web)
        self._questions = Questions(parts.store.database, parts.clock)
        self._broken: dict[str, float] = {}
        self._storm_edited: dict[str, float] = {}
        self._storms_now: dict[tuple[str, str], Delivery] = {}
        """(Channel, kind of group) → the message that new incidents join."""
        self._paged_s: dict[str, dict[str, float]] = {}
        """Channel → the pages that got messages of their own within the last minute, and when."""
        self._joining: list[Delivery] = []
        self._next_rung_s: dict[str, tuple[float, float]] = {}
        """Incident → (when it changed last, when its ladder is looked at again), both Unix s."""

    # One comparison ---------------------------------------------------------------------------------------------

    def once(self) -> None:
        # One service, so one answer that did not come holds everything: not even the store is asked meanwhile.
        if not self._paces[SLACK].may("", self._p.wall_s()):
            return
        recent = self._ledger.storms(self._p.clock.now_s() - STORM_CALM_S)
        self._storms_now = {(row.channel, _group_of(row.key)): row for row in recent}
        super().once()

    def _keep_up(self, now_s: float) -> None:
        self._join(now_s)
        self._tell_storms(now_s)
        self._remind(now_s)
        for row, content, there in self._p.promotions.due(now_s, self._p.wall_s()) if self._p.promotions else ():
            if there:
                work: Callable[[], object] = partial(self._edit, row, content)
            else:
                work = partial(self._post, replace(row, channel=self._usable(row.channel)), content)
            self._attempt(SLACK, row.channel, row.key, work)
        for report, content in self._p.weekly.due(now_s, self._p.wall_s()) if self._p.weekly else ():
            post = partial(self._post, replace(report, channel=self._usable(report.channel)), content)
            self._attempt(SLACK, report.channel, report.key, post)

    def _tell(self, incident_id: str, now_s: float) -> None:
        incident = self._p.store.incident(incident_id)
        row = self._ledger.row(card_key(incident_id))
        lane = _lane(incident)
        # what has become more urgent leaves the message of many for one of its own
        left = row is not None and row.storm is not None and _ORDERED.index(_group_of(row.storm)) < _rank(lane)
        if row is None or left or (row.ts is None and row.tried_s is None and row.storm is None):
            self._first(incident, row, now_s)
        elif row.storm is not None:
            self._seen(row, incident)
        elif row.ts is not None:
            self._attempt(SLACK, row.channel, row.key, lambda: self._renew(incident, row, now_s))

    def _first(self, incident: Incident, row: Delivery | None, now_s: float) -> None:
        """An incident that the chat does not know: hold it, group it, or give it its message."""
        # An incident that was over before anybody heard of it is no news.
        if not incident.is_open:
            if row is not None:  # it ended before anybody was told
                self._seen(row, incident)
            return
        channel = self._usable(channel_of(incident, self._p.settings, self._p.directory))
        blank = Delivery(
            card_key(incident.id),
            SLACK,
            CARD,
            number_of(incident.id),
            channel,
            steps=len(incident.history),
            seen_s=incident.updated_s,
            seen_version=incident.version,
            # An earlier post of it may still arrive: that is watched for under the new row as well.
            watch_until_s=row.watch_until_s if row is not None else None,
        )
        until_s = self._held_until(incident, now_s)
        if until_s is not None:
            # With what was seen of it: it comes up again at that time, or as soon as it changes.
            self._ledger.put(replace(blank, held_until_s=until_s))
            return
        storm = self._group(channel, incident, now_s)
        if storm is not None:
            self._joining.append(replace(blank, storm=storm.key, posted_s=now_s))
            if len(self._joining) >= _JOINED_AT_ONCE:
                self._join(now_s)
            return
        begin = partial(self._begin, incident, replace(blank, posted_s=now_s), now_s)
        self._attempt(SLACK, channel, blank.key, begin)

    def _begin(self, incident: Incident, row: Delivery, now_s: float) -> None:
        self._post(row, self._card(incident, now_s))
        there = self._ledger.row(row.key)
        if there is not None and there.ts is not None:
            self._thread_of(incident, there)

    def _held_until(self, incident: Incident, now_s: float) -> float | None:
        quiet = hold(incident, self._p.settings, now_s)
        cover = self._standing.of(incident)
        times = [item.until_s for item in (quiet, cover) if item is not None]
        # The later one: quiet hours that end do not end a silence.
        return max(times) if times else None

    def _renew(self, incident: Incident, row: Delivery, now_s: float) -> None:
        """Edits the message if its content changed, then tells the thread what happened since."""
        content = self._card(incident, now_s)
        if content.sha256 != row.shows and not self._edit(row, content):
            return
        self._thread_of(incident, row)
        self._seen(row, incident)

    def _thread_of(self, incident: Incident, row: Delivery) -> None:
        there = self._ledger.thread(number_of(incident.id))
        # In a storm the channel needs what was decided, and not the reasons of a hundred incidents.
        stormy = any((row.channel, group) in self._storms_now for group in _ORDERED[1:])
        wanted: list[tuple[str, ChatMessage, bool]] = []
        story = None if stormy else words.story(incident)
        if story is not None:
            wanted.append((f"{incident.id}/why/{story.sha256[:16]}", story, False))
        for number, step in enumerate(incident.history):
            if number < row.steps or step.cause not in words.TOLD:
                continue
            cause = Cause(step.cause)
            if not stormy or cause in words.OUTCOMES:
                # To the whole channel, since a thread that nobody follows notifies nobody.
                loud = step.after is IncidentState.ESCALATED or cause is Cause.RELAPSED
                wanted.append((f"{incident.id}/step/{number}", words.event(incident, step), loud))
        # asked for, so also in a storm
        for asked in self._questions.of(incident.id):
            if asked.channel == SLACK and not asked.is_open:
                wanted.append((f"{incident.id}/answer/{asked.number}", words.answer(asked), False))
        for key, content, broadcast in wanted:
            if key not in there:
                reply = Delivery(key, SLACK, THREAD, number_of(incident.id), row.channel, row.ts)
                self._post(reply, content, broadcast)
        if story is not None:
            self._show(incident, row, there)

    def _show(self, incident: Incident, row: Delivery, there: set[str]) -> None:
        """Puts the chart of the deciding signal into the thread, once for each diagnosis that has another one."""
        chart = deciding(incident)
        if chart is None:
            return
        key = f"{incident.id}/chart/{sha256_hex(chart.values.tobytes())[:16]}"
        if key not in there:
            reply = Delivery(key, SLACK, THREAD, number_of(incident.id), row.channel, row.ts)
            try:
                self._post(reply, ChatImage(chart.title, png(chart)))
            except DeliveryRefused as refused:  # files may be forbidden where messages are not: the words go on
                if refused.reason in UNREACHABLE_CHANNEL:
                    raise
                self._ledger.change(key, ts=_NO_PICTURE)
                self._log.warning("picture upload refused", incident=incident.id, reason=refused.reason)

    def _seen(self, row: Delivery, incident: Incident) -> None:
        shown: dict[str, object] = {"seen_s": incident.updated_s, "seen_version": incident.version}
        self._ledger.change(row.key, held_until_s=None, **shown)

    def _card(self, incident: Incident, now_s: float) -> ChatMessage:
        s, (_, waits_until_s) = self._p.settings, self._standing.lane_of(incident)
        waits = "" if waits_until_s is None else words.waiting_words(waits_until_s)
        return words.card(incident, now_s, s.console_url, SNOOZE_S, waits)

    # Storms -----------------------------------------------------------------------------------------------------

    def _group(self, channel: str, incident: Incident, now_s: float) -> Delivery | None:
        """The message of many that a new incident of this channel joins: the day's digest, or a storm where too
        many came at once. Pages have storms of their own: a storm of tickets must not hide one."""
        lane = _lane(incident)
        group = _ORDERED[_rank(lane)]
        if (channel, group) in self._storms_now:
            return self._storms_now[channel, group]
        key = f"{group}/{channel}/{now_s:.0f}"
        if lane is Lane.DIGEST:
            key = f"{group}/{channel}/{now_s // DAY_S:.0f}"
        elif self._lately(channel, incident.id, lane, now_s) < STORM_AFTER:
            return None
        row = self._ledger.row(key) or Delivery(key, SLACK, STORM, None, channel, seen_s=now_s, posted_s=now_s)
        self._ledger.put(row)
        self._storms_now[channel, group] = row
        return row

    def _lately(self, channel: str, incident_id: str, lane: Lane, now_s: float) -> int:
        """Messages of their own that other incidents of this lane had in a channel within the last minute."""
        if lane is not Lane.PAGE:
            return self._ledger.lately(channel, now_s - _MINUTE_S)
        paged = self._paged_s.get(channel, {})
        recent = {i: at_s for i, at_s in paged.items() if 0 <= now_s - at_s < _MINUTE_S and i != incident_id}
        # a message that is tried again is no second one
        own = {} if len(recent) >= STORM_AFTER else {incident_id: now_s}
        self._paged_s[channel] = recent | own
        return len(recent)

    def _join(self, now_s: float) -> None:
        """Writes down which incidents a storm's message stands for, many at once."""
        self._ledger.join_storms(self._joining, now_s)
        self._joining.clear()

    def _tell_storms(self, now_s: float) -> None:
        # Longer than a storm lasts: its incidents change state after the last one joined.
        for row in self._ledger.storms(now_s - 4 * STORM_CALM_S):
            if row.tried_s is not None or self._p.wall_s() < self._storm_edited.get(row.key, 0.0) + _STORM_EDIT_S:
                continue
            members = self._ledger.in_storm(row.key)
            if not members:
                continue
            rows = self._p.store.summaries(members)
            what = "Digest" if _group_of(row.key) == DIGEST else "Storm"
            content = words.storm(rows, row.posted_s or now_s, self._p.settings.console_url, what)
            if content.sha256 == row.shows:
                continue
            self._storm_edited[row.key] = self._p.wall_s()
            send = partial(self._post if row.ts is None else self._edit, row, content)
            self._attempt(SLACK, row.channel, row.key, send)

    def _edit(self, row: Delivery, content: ChatMessage) -> bool:
        """Edits a message; one that cannot be edited any more is posted again where it can be, and is another one
        then: False."""
        try:
            self._call(SLACK, "update", lambda: self._p.web.update(row.channel, row.ts or "", row.key, content))
        except DeliveryRefused as refused:
            self._post(self._moved(row, refused), content)
            return False
        self._ledger.change(row.key, shows=content.sha256)
        return True

    def _moved(self, row: Delivery, refused: DeliveryRefused) -> Delivery:
        """A message that cannot be edited any more, as one that is yet to be posted: in its channel where it was
        deleted there, in the default one where its channel was archived or we were put out of it. Raises the
        refusal where it says anything else."""
        channel = row.channel
        if refused.reason in UNREACHABLE_CHANNEL and channel != self._p.settings.channel:
            self._broken[channel] = self._p.wall_s() + BROKEN_S
            channel = self._p.settings.channel
            self._log.warning("message redirected", key=row.key, channel=row.channel, reason=refused.reason)
        elif refused.reason not in GONE:
            raise refused
        self._ledger.change(row.key, channel=channel, ts=None, shows=None)
        return replace(row, channel=channel, ts=None, shows=None)

    # Silence of people ------------------------------------------------------------------------------------------

    def _remind(self, now_s: float) -> None:
        """What the next rung of the ladder is for each unanswered page: a reminder, the second person, the team."""
        rungs = self._p.settings.rungs
        waiting = self._ledger.waiting(now_s - rungs[0][0], now_s)
        self._next_rung_s = {name: self._next_rung_s[name] for name, _ in waiting if name in self._next_rung_s}
        for incident_id, updated_s in waiting:
            changed_s, due_s = self._next_rung_s.get(incident_id, (-math.inf, 0.0))
            if changed_s != updated_s or now_s >= due_s:
                self._next_rung_s[incident_id] = updated_s, self._climb(incident_id, rungs, now_s)

    def _climb(self, incident_id: str, rungs: Sequence[tuple[float, str]], now_s: float) -> float:
        """Sends the rung that is due; returns when to look again (Unix s) if the incident does not change."""
        incident, row = self._p.store.incident(incident_id), self._ledger.row(card_key(incident_id))
        since_s = unanswered_since_s(incident.history)
        lane, waits_until_s = self._standing.lane_of(incident)
        if waits_until_s is not None:
            return min(waits_until_s, now_s + REPAIR_POLL_S)
        if row is None or row.ts is None or since_s is None or lane is not Lane.PAGE:
            return math.inf
        if (held_s := self._held_until(incident, now_s)) is not None:
            return held_s
        if row.due_s != since_s:  # people are called again: the ladder begins at its foot
            row = replace(row, due_s=since_s, reminders=0)
            self._ledger.change(row.key, due_s=since_s, reminders=0)
        if row.reminders >= len(rungs):
            return math.inf
        after_s, whom = rungs[row.reminders]
        if now_s < since_s + after_s:
            return since_s + after_s
        # The pager has called a person, and calls the next by its own policy: a mention would call a second one.
        called = "" if self._p.pager(incident_id) else whom
        key = f"{incident_id}/reminder/{since_s:.0f}/{row.reminders}"
        reply = Delivery(key, SLACK, THREAD, row.incident, row.channel, row.ts, posted_s=now_s)
        content = words.reminder(incident, now_s - since_s, called)
        send = partial(self._tell_again, row, reply, content, row.reminders + 1)
        self._attempt(SLACK, row.channel, key, send)
        return now_s

    def _tell_again(self, row: Delivery, reply: Delivery, content: ChatMessage, number: int) -> None:
        if self._post(reply, content, True) or (self._ledger.row(reply.key) or reply).ts is not None:
            self._ledger.change(row.key, reminders=number)

    # Sending ----------------------------------------------------------------------------------------------------

    def _post(self, row: Delivery, content: ChatMessage | ChatImage, broadcast: bool = False) -> bool:
        """False where an earlier try of it is still being looked for."""
        send = partial(self._p.web.post, row.channel, row.key, content, row.thread, broadcast)
        return self._deliver([row], content.sha256, "post", send)

    def _usable(self, channel: str) -> str:
        """The channel, or the default one while Slack refuses it: an incident is told somewhere."""
        if self._p.wall_s() < self._broken.get(channel, 0.0):
            return self._p.settings.channel
        return channel

    def _refused(self, outlet: str, place: str, key: str, error: DeliveryRefused) -> None:
        wall_s = self._p.wall_s()
        if error.reason in UNREACHABLE_CHANNEL and place != self._p.settings.channel:
            self._broken[place] = wall_s + BROKEN_S
        else:
            held = place if error.reason in OF_A_PLACE else key
            self._paces[outlet].leave(held, wall_s, BROKEN_S, f"{place}: {error}")


__all__: Sequence[str] = ("ChatCourier", "SlackParts", "channel_of", "hold", "namespaces")
