"""Who a Slack user is, by the workspace's own directory: their e-mail address, or why they may not click."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from nightshift.agent.notify.delivery import DeliveryRefused
from nightshift.agent.notify.slack.web import SlackWeb
from nightshift.collectors.base import Permanent

_KEEP_S = 60.0
_MOST = 10_000
_GONE = frozenset({"user_not_found", "user_not_visible", "users_not_found"})


class NotAMember(Permanent):
    """This user cannot decide anything here."""


class WorkspaceMembers:
    """Asks `users.info`, and remembers an answer for a minute: who is removed can click no longer than that."""

    def __init__(self, web: SlackWeb, workspace: str, wall_s: Callable[[], float] = time.time) -> None:
        self._web = web
        self._workspace = workspace
        self._wall_s = wall_s
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, str, str]] = {}
        """User id → (asked at, e-mail, refusal)."""

    def name_of(self, user: str, workspace: str) -> str:
        """The e-mail address. Raises NotAMember, saying why; Temporary where Slack does not answer."""
        if workspace != self._workspace:
            raise NotAMember("This button belongs to another workspace.")
        now_s = self._wall_s()
        with self._lock:
            known = self._known.get(user)
        if known is None or now_s - known[0] > _KEEP_S:
            known = (now_s, *self._ask(user))
            with self._lock:
                # Cleared as a whole: a workspace of more clickers than that loses a minute's answers, not memory.
                if len(self._known) >= _MOST:
                    self._known.clear()
                self._known[user] = known
        _, email, refusal = known
        if refusal:
            raise NotAMember(refusal)
        return email

    def _ask(self, user: str) -> tuple[str, str]:
        try:
            member = self._web.member(user)
        except DeliveryRefused as refused:
            if refused.reason in _GONE:
                return "", "This workspace does not know you."
            raise
        if member.get("deleted"):
            return "", "Your account is deactivated."
        if member.get("is_bot") or member.get("id") == "USLACKBOT" or member.get("is_workflow_bot"):
            return "", "Bots decide nothing here."
        if str(member.get("team_id", "")) != self._workspace or member.get("is_stranger"):
            return "", "You belong to another workspace."
        # Guests are people of other companies, whom an administrator let into single channels.
        if member.get("is_restricted") or member.get("is_ultra_restricted"):
            return "", "Guests decide nothing here."
        # An address that its user typed in would be a way to be anybody. A workspace that does not send the field
        # refuses nobody.
        if member.get("is_email_confirmed") is False:
            return "", "Your e-mail address is not confirmed."
        email = str((member.get("profile") or {}).get("email") or "")
        return email, "" if email else "Slack does not show your e-mail address (scope users:read.email)."
