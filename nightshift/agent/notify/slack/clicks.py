"""Clicks and commands from Slack: who it is, what they clicked, what the gate said; told to the clicker alone.

Slack proves that a request is Slack's (signature, or the socket that we opened); who the person is comes from the
workspace's own directory, never from the request. What a button carries names an incident and a plan and nothing
else, so a forged one can only ask for what the gate allows anyway.

Every request is acknowledged before anything is looked up (Slack wants it within 3 s) and worked on by a few
threads of our own; a store that hangs holds those up and no acknowledgement.
"""

from __future__ import annotations

import queue
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from nightshift.agent.approvals.access import Permission, may
from nightshift.agent.approvals.gate import Gate
from nightshift.agent.approvals.people import Directory
from nightshift.agent.approvals.policy import Person, must_sign_in_again
from nightshift.agent.approvals.questions import Questions
from nightshift.agent.approvals.visibility import IncidentWindow
from nightshift.agent.clock import Clock
from nightshift.agent.incidents.silence import IncidentSilence, namespaces_of_matcher, unmatched
from nightshift.agent.incidents.suppression import Suppressor
from nightshift.agent.notify.delivery import RateLimited
from nightshift.agent.notify.ledger import Delivery, DeliveryLedger, card_key
from nightshift.agent.notify.slack import card as words
from nightshift.agent.notify.slack import proposals
from nightshift.agent.notify.slack.blocks import ChatMessage
from nightshift.agent.notify.slack.card import Ticket, said
from nightshift.agent.notify.slack.members import NotAMember, WorkspaceMembers
from nightshift.agent.notify.slack.proposals import PlanTicket, Promotions
from nightshift.agent.notify.slack.settings import SNOOZE_S, Settings
from nightshift.agent.notify.slack.web import SlackWeb
from nightshift.agent.store.archive import name_of, number_of
from nightshift.agent.store.incident_store import Store
from nightshift.agent.units import clock_time
from nightshift.collectors.base import Permanent, Temporary
from nightshift.collectors.subject import Inventory

ACTIONS = ("approve", "take", "snooze", "evidence", "not_a_fault", "right", "wrong")
"""Buttons that are answered at once; `reject` asks for a reason first."""
REASON_VIEW = "reject_reason"
# Few, since each holds a connection of the store's pool of ten while it works.
_WORKERS = 4
_MOST_WAITING = 500
# Of their own: a dialog's trigger is good for 3 s, and clicks before it may wait for a slow store.
_MODALS = 2
_MOST_WAIT_S = 10.0
# A question in an incident's own thread needs no mention; so many of one person are answered in half an hour.
_DIALOGUE_S, _MOST_REPLIES = 1800.0, 10
_AGAIN = "Click Reject again, or use the console or `nightshift reject`."
_USAGE = (
    "/nightshift status | incidents | show INC-7 | ask INC-7 QUESTION | approve INC-7 | promotions | "
    "silence KIND:PATTERN 2h REASON | silences | unsilence NUMBER | halt [REASON] | resume"
)
_MENTION = re.compile(r"<@[A-Z0-9]+(?:\|[^>]*)?>")
_SPANS = {"m": 60.0, "h": 3600.0, "d": 86_400.0}


@dataclass(frozen=True)
class Click:
    """A request, reduced to what is used of it. `tell` answers the clicker alone."""

    user: str
    workspace: str
    what: str
    value: str
    channel: str
    tell: Callable[[ChatMessage], None]


@dataclass(frozen=True)
class DeskParts:
    """What clicks work with."""

    store: Store
    gate: Gate
    clock: Clock
    web: SlackWeb
    settings: Settings
    directory: Directory
    suppressor: Suppressor
    members: WorkspaceMembers
    wake: Callable[[], None]
    inventory: Inventory | None = None


class Desk:
    """Takes clicks, answers them from its own threads."""

    def __init__(self, parts: DeskParts) -> None:
        self._p = parts
        self._ledger = DeliveryLedger(parts.store.database)
        self._questions = Questions(parts.store.database, parts.clock)
        self._promotions = Promotions(parts.gate, parts.store, parts.clock)
        self._log = structlog.get_logger("slack")
        self._waiting: queue.Queue[Callable[[], None] | None] = queue.Queue(_MOST_WAITING)
        self._modals: queue.Queue[Callable[[], None] | None] = queue.Queue(_MOST_WAITING)
        self._stopping = threading.Event()
        pools = ((self._waiting, _WORKERS), (self._modals, _MODALS))
        self._threads = [
            threading.Thread(target=self._work, args=(jobs,), name="slack-click", daemon=True)
            for jobs, count in pools
            for _ in range(count)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        for jobs, count in ((self._waiting, _WORKERS), (self._modals, _MODALS)):
            for _ in range(count):
                jobs.put(None)
        self._stopping.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(2.0)

    def take(self, click: Click) -> bool:
        """Queues a click; False where too many wait."""
        return self._queue(self._waiting, lambda: self._answer(click))

    def take_reply(self, click: Click) -> bool:
        """The same of a message that does not name us."""
        return self._queue(self._waiting, lambda: self._reply(click))

    def ask_reason(self, trigger_id: str, value: str, channel: str, tell: Callable[[ChatMessage], None]) -> bool:
        """Opens the dialog that asks why; needs nothing but Slack, since its trigger is good for 3 s only. Where
        Slack does not open it, the clicker is told what else there is."""

        def ask() -> None:
            try:
                self._p.web.open_view(trigger_id, reason_view(value, channel))
            except (Temporary, Permanent) as error:
                self._log.warning("dialog open failed", error=str(error))
                self._say(
                    "reject", tell, said(f"Nothing was rejected: the dialog did not open ({error}). {_AGAIN}")
                )

        return self._queue(self._modals, ask)

    def _queue(self, jobs: queue.Queue[Callable[[], None] | None], job: Callable[[], None]) -> bool:
        try:
            # Never waits: the acknowledgement has 3 s, and Slack's own thread is here.
            jobs.put_nowait(job)
        except queue.Full:
            return False
        return True

    def _work(self, jobs: queue.Queue[Callable[[], None] | None]) -> None:
        while (job := jobs.get()) is not None:
            try:
                job()
            except (Temporary, Permanent) as error:
                self._log.warning("click answer failed", error=str(error))
            except Exception:  # noqa: BLE001  a defect of ours must not end the thread; it is said
                self._log.exception("click failed")

    # Answers ----------------------------------------------------------------------------------------------------

    def _answer(self, click: Click) -> None:
        try:
            message = self._outcome(click)
        except NotAMember as refusal:
            message = said(str(refusal))
        except Permanent as error:
            message = said(str(error))
        except Temporary as error:
            message = said(f"Not done: the store or Slack is unavailable ({error}). Retry, or use the CLI.")
        self._p.wake()
        self._say(click.what, click.tell, message)

    def _reply(self, click: Click) -> None:
        """Answers a question in an incident's own thread, to whoever may read the incident. To others it stays
        silent, also about why: what people write to each other is not for us."""
        ts, _, text = click.value.partition("\n")
        row = self._ledger.card_of(click.channel, ts)
        if row is None or row.incident is None:
            return
        name, after_s = name_of(row.incident), self._p.clock.now_s() - _DIALOGUE_S
        try:
            person = self._p.directory.person(self._p.members.name_of(click.user, click.workspace), "slack")
            asked = [q for q in self._questions.of(name) if q.by == person.identity and q.at_s >= after_s]
            if len(asked) >= _MOST_REPLIES:
                return
            message = self._ask(name, row, text, person)
        except (NotAMember, Temporary, Permanent) as refusal:
            self._log.info("thread reply ignored", incident=name, reason=str(refusal)[:200])
            return
        self._p.wake()
        self._say("reply", click.tell, message)

    def _say(self, what: str, tell: Callable[[ChatMessage], None], message: ChatMessage) -> None:
        """Tells the clicker; once more where Slack asks for a moment."""
        try:
            try:
                tell(message)
            except RateLimited as error:
                self._stopping.wait(min(error.retry_after_s or 1.0, _MOST_WAIT_S))
                tell(message)
        except (OSError, Temporary, Permanent) as error:
            # The decision stands; only the word about it is lost, and the message itself shows it.
            self._log.warning("click notification failed", what=what, error=str(error))

    def _outcome(self, click: Click) -> ChatMessage:
        name = self._p.members.name_of(click.user, click.workspace)
        person = self._p.directory.person(name, "slack")
        if click.what == "command":
            return self._command(click.value, person)
        if click.what == "ask":
            ts, _, text = click.value.partition("\n")
            row = self._ledger.card_of(click.channel, ts) if ts else None
            if row is None or row.incident is None:
                return said("Ask in the thread of an incident's message, or with /nightshift ask INC-7 QUESTION.")
            return self._ask(name_of(row.incident), row, text, person)
        plan = PlanTicket.of(click.value.partition("\n")[0])
        if plan is not None:
            return self._promotion(click, plan, person)
        try:
            ticket = Ticket.of(click.value.partition("\n")[0])
        except ValueError as error:
            return said(f"This is {error}.")
        if click.what == "approve":
            return self._approve(ticket, person)
        if click.what == "reject":
            reason = click.value.partition("\n")[2]
            return said(self._p.gate.reject(ticket.incident, ticket.plan_sha256, person, reason).message)
        if click.what == "not_a_fault":
            return said(self._p.gate.close(ticket.incident, person, "not a fault", not_a_fault=True).message)
        if click.what in ("right", "wrong"):
            return said(self._p.gate.judge(ticket.incident, person, right=click.what == "right").message)
        if click.what == "take":
            return self._take_on(ticket, person)
        if click.what == "snooze":
            return self._snooze(ticket, person)
        return words.evidence(self._window(person).incident(ticket.incident))

    def _promotion(self, click: Click, ticket: PlanTicket, person: Person) -> ChatMessage:
        """The same gate, for kernels and policies."""
        gate = self._promotions.gate_of(ticket.plan)
        # A promotion has no Snooze and no evidence: a request for one was made by hand.
        if gate is None or click.what not in ("approve", "reject"):
            return said("This is not a button of Nightshift.")
        if click.what == "approve":
            return said(gate.approve(ticket.plan, ticket.plan_sha256, person).message)
        reason = click.value.partition("\n")[2]
        return said(gate.reject(ticket.plan, ticket.plan_sha256, person, reason).message)

    def _show(self, name: str, person: Person) -> ChatMessage:
        """An incident or a promotion with its buttons, which bind the hash of what is shown."""
        now_s, url = self._p.clock.now_s(), self._p.settings.console_url
        if name.partition("/")[0] in proposals.FAMILIES:
            for proposal in self._promotions.all(person):
                if proposal.id == name:
                    return proposals.card(proposal, self._p.gate, now_s, url, self._promotions.view(now_s))
            return said(f"There is no promotion {name[:100]}.")
        return words.card(self._window(person).incident(name.upper()), now_s, url, SNOOZE_S)

    def _window(self, person: Person) -> IncidentWindow:
        return IncidentWindow(self._p.store, person, self._p.inventory, self._p.clock.now_s())

    def _approve(self, ticket: Ticket, person: Person) -> ChatMessage:
        """A click proves no fresh sign-in: where the plan asks for one, its reader is told where to go."""
        answer = self._p.gate.approve(ticket.incident, ticket.plan_sha256, person)
        action = None if answer.ok else self._window(person).incident(ticket.incident).action
        now_s = self._p.clock.now_s()
        if action is None or not must_sign_in_again(person, action, self._p.gate.policy, now_s):
            return said(answer.message)
        return words.elsewhere(answer.message, self._p.settings.console_url, ticket.incident)

    def _ask(self, name: str, row: Delivery | None, text: str, person: Person) -> ChatMessage:
        """Stores a question; the courier posts its answer in the incident's thread, where others read it, too."""
        incident = self._window(person).incident(name)
        # a channel that is not for all may be a team's: of its incident it may read, of others' work not
        aside = row is not None and row.channel != self._p.settings.channel
        plain = _MENTION.sub(" ", text).replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
        self._questions.ask(incident, plain, person, incident.namespaces if aside and incident.namespaces else None)
        where = f"in the thread of {incident.id}" if row is not None and row.ts else "on its page in the console"
        return said(f"Asked. The answer comes {where}.")

    def _take_on(self, ticket: Ticket, person: Person) -> ChatMessage:
        """Whoever takes a page on ends its escalation."""
        touched = self._window(person).incident(ticket.incident).namespaces
        if not (allowed := may(person, Permission.SNOOZE, touched)):
            return said(allowed.reason)
        new = self._p.store.acknowledge(ticket.incident, person.identity, "acknowledged in Slack")
        return said(f"{ticket.incident} is yours." if new else f"{ticket.incident} was acknowledged before.")

    def _snooze(self, ticket: Ticket, person: Person) -> ChatMessage:
        touched = self._window(person).incident(ticket.incident).namespaces
        if not (allowed := may(person, Permission.SNOOZE, touched)):
            return said(allowed.reason)
        until_s = self._p.clock.now_s() + SNOOZE_S
        self._ledger.change(card_key(ticket.incident), snoozed_until_s=until_s)
        self._log.info("incident snoozed", incident=ticket.incident, by=person.identity, until_s=until_s)
        return said(f"No reminders of {ticket.incident} until {clock_time(until_s)} UTC.")

    def _command(self, text: str, person: Person) -> ChatMessage:
        verb, _, rest = text.strip().partition(" ")
        rest = rest.strip()
        answers: dict[str, Callable[[], ChatMessage]] = {
            "": lambda: self._status(person),
            "status": lambda: self._status(person),
            "incidents": lambda: self._incidents(person),
            "show": lambda: self._show(rest, person),
            "ask": lambda: self._ask_by_name(rest, person),
            # Shows rather than approves: a typed command binds no hash of a plan that its writer saw.
            "approve": lambda: self._show(rest, person),
            "promotions": lambda: proposals.listing(self._promotions.all(person), self._p.clock.now_s()),
            "silence": lambda: self._silence(rest, person),
            "silences": lambda: self._listed_silences(person),
            "unsilence": lambda: self._unsilence(rest, person),
            "halt": lambda: said(self._p.gate.halt(person, rest[:300]).message),
            "resume": lambda: said(self._p.gate.resume(person).message),
        }
        return answers.get(verb, lambda: said(_USAGE))()

    def _ask_by_name(self, rest: str, person: Person) -> ChatMessage:
        name, _, text = rest.partition(" ")
        name = name_of(number_of(name))
        return self._ask(name, self._ledger.row(card_key(name)), text, person)

    def _incidents(self, person: Person) -> ChatMessage:
        opened = self._window(person).open_incidents()
        standing = self._p.suppressor.standing()
        # A silence or window may name nodes and jobs of other teams: a tenant reads only that there is one.
        why = {
            row.id: "muted" if person.is_tenant else held.sentence()
            for row in opened
            if (held := standing.of(row)) is not None
        }
        return words.listing(opened, self._p.clock.now_s(), why)

    def _listed_silences(self, person: Person) -> ChatMessage:
        rows = self._silences(person)
        lines = [f"{s.number}: {s.matcher} until {clock_time(s.until_s)} UTC, {s.by}" for s in rows]
        return said("; ".join(lines) or "No silences.")

    def _unsilence(self, rest: str, person: Person) -> ChatMessage:
        # isascii: isdecimal alone takes other scripts' digits; and int() of a long text takes quadratic time.
        number = int(rest) if rest.isascii() and rest.isdecimal() and len(rest) < 10 else 0
        done = self._p.suppressor.silences.end(number, person)
        return said(f"Silence {number} ended." if done else f"No silence {rest[:20]} holds.")

    def _silences(self, person: Person) -> list[IncidentSilence]:
        """A team is told of silences of its own namespaces alone: others name nodes and jobs that are not
        theirs."""
        return [
            silence
            for silence in self._p.suppressor.silences.standing()
            if not person.is_tenant or may(person, Permission.SEE, namespaces_of_matcher(silence.matcher))
        ]

    def _status(self, person: Person) -> ChatMessage:
        halt = self._p.gate.halted()
        rows = self._window(person).open_incidents()
        waiting = sum(row.state == "awaiting_approval" for row in rows)
        stop = f"HALTED{'' if person.is_tenant else f' by {halt.by}'}. " if halt.halted else ""
        held = self._p.gate.held() if halt.halted and not person.is_tenant else []
        told = f" Paused: {', '.join(held)}." if held else ""
        return said(f"{stop}{len(rows)} open incidents, {waiting} of them wait for approval.{told}")

    def _silence(self, rest: str, person: Person) -> ChatMessage:
        matcher, span, reason = [*rest.split(maxsplit=2), "", "", ""][:3]
        amount, unit = span[:-1], span[-1:]
        if not matcher or unit not in _SPANS or not (amount.isascii() and amount.isdecimal() and len(amount) < 6):
            return said("/nightshift silence KIND:PATTERN 30m|2h|1d REASON, e.g. silence node:n7* 2h firmware")
        silence = self._p.suppressor.silences.add(matcher, int(amount) * _SPANS[unit], person, reason)
        until = clock_time(silence.until_s)
        inventory = self._p.inventory
        places = self._p.store.load_memberships if inventory is None else inventory.memberships
        warning = unmatched(matcher, places)
        return said(f"Silence {silence.number}: muted {silence.matcher} until {until} UTC. {warning}".rstrip())


def reason_view(value: str, channel: str) -> dict[str, Any]:
    """The dialog that asks why a plan is rejected; it carries the button's value and where to answer."""
    return {
        "type": "modal",
        "callback_id": REASON_VIEW,
        # Slack gives a submitted dialog no channel, so it travels inside.
        "private_metadata": f"{channel}\n{value}",
        "title": {"type": "plain_text", "text": "Reject the plan"},
        "submit": {"type": "plain_text", "text": "Reject"},
        "close": {"type": "plain_text", "text": "Cancel"},
        "blocks": [
            {
                "type": "input",
                "block_id": "reason",
                "label": {"type": "plain_text", "text": "Why? It is kept with the incident."},
                "element": {
                    "type": "plain_text_input",
                    "action_id": "reason",
                    "multiline": True,
                    "max_length": 1000,
                },
            }
        ],
    }


def reason_of(view: Mapping[str, Any]) -> tuple[str, str, str]:
    """(channel, button's value, reason) of a submitted dialog; empty where it is not ours."""
    channel, _, value = str(view.get("private_metadata", "")).partition("\n")
    try:
        # An input that was left empty is null.
        reason = str(view["state"]["values"]["reason"]["reason"]["value"] or "")
    except (KeyError, TypeError):
        reason = ""
    return channel, value, reason[:1000].replace("\n", " ")
