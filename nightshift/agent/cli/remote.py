"""The command line away from the daemon's machine: the same commands, asked of the console's JSON API.

`NIGHTSHIFT_API` names the console and `NIGHTSHIFT_TOKEN_FILE` the file with the caller's token. What is seen and
decided is what that token's owner may see and decide, so a team's people can have the command line too.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nightshift.agent.approvals.answer import GateAnswer
from nightshift.collectors.base import Permanent, Temporary

if TYPE_CHECKING:  # a decision on the store needs no HTTP
    import httpx

_PAGE = 100


class Remote:
    """A console's API. Raises Permanent where it refuses, Temporary where it is away."""

    def __init__(self, url: str, token: str, client: httpx.Client | None = None) -> None:
        import httpx

        self._client = client or httpx.Client(timeout=30.0)
        self._base = f"{url.rstrip('/')}/api/v1"
        self._headers = {"Authorization": f"Bearer {token}"}

    def status_json(self) -> dict[str, Any]:
        found: dict[str, Any] = self._get("/status", {})
        return found

    def halt_json(self) -> dict[str, Any]:
        found: dict[str, Any] = self._get("/halt", {})
        return found

    def goodput_json(self, days: int, by: str) -> dict[str, Any]:
        found: dict[str, Any] = self._get("/goodput", {"days": str(days), "by": by})
        return found

    def incidents_json(self, everything: bool, limit: int) -> list[dict[str, Any]]:
        """Summaries, newest first."""
        found: list[dict[str, Any]] = []
        for page in range(1, 2 + limit // _PAGE):
            rows = self._get("/incidents", {"state": "all" if everything else "open", "page": str(page)})
            found += rows
            if len(rows) < _PAGE:
                break
        return found[:limit]

    def incident_json(self, incident_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self._get(f"/incidents/{_name(incident_id)}", {})
        return found

    def ask(self, incident_id: str, question: str) -> dict[str, Any]:
        answer = self._ask("POST", f"/incidents/{_name(incident_id)}/questions", json={"question": question})
        asked: dict[str, Any] = self._said(answer)
        return asked

    def investigate(self, kind: str, name: str, note: str) -> dict[str, Any]:
        answer = self._ask("POST", "/investigate", json={"kind": kind, "name": name, "note": note})
        opened: dict[str, Any] = self._said(answer)
        return opened

    def answer(self, incident_id: str, number: int) -> dict[str, Any]:
        """A question of a number with its answer so far."""
        rows = self._get(f"/incidents/{_name(incident_id)}/questions", {})
        found: dict[str, Any] = next((row for row in rows if row["number"] == number), {})
        if not found:
            raise Permanent(f"{incident_id} has no question {number}: it was removed")
        return found

    def plan_of(self, incident_id: str, prefix: str) -> str:
        """The hash of the present plan, if it begins as was said."""
        return checked_plan(incident_id, str(self.incident_json(incident_id).get("plan_sha256") or ""), prefix)

    def approve(self, incident_id: str, plan_sha256: str) -> GateAnswer:
        return self._decide(f"/incidents/{_name(incident_id)}/approve", {"plan_sha256": plan_sha256})

    def reject(self, incident_id: str, plan_sha256: str, reason: str) -> GateAnswer:
        body = {"plan_sha256": plan_sha256, "reason": reason}
        return self._decide(f"/incidents/{_name(incident_id)}/reject", body)

    def close(self, incident_id: str, note: str, not_a_fault: bool) -> GateAnswer:
        return self._decide(f"/incidents/{_name(incident_id)}/close", {"note": note, "not_a_fault": not_a_fault})

    def judge(self, incident_id: str, right: bool, note: str) -> GateAnswer:
        return self._decide(f"/incidents/{_name(incident_id)}/feedback", {"right": right, "note": note})

    def halt(self, reason: str) -> GateAnswer:
        return self._decide("/halt", {"note": reason})

    def resume(self) -> GateAnswer:
        return self._decide("/resume", {})

    def carry_on(self, incident_id: str, give_back: bool) -> GateAnswer:
        return self._decide(f"/incidents/{_name(incident_id)}/resume", {"give_back": give_back})

    def _get(self, path: str, query: Mapping[str, str]) -> Any:
        return self._said(self._ask("GET", path, params=dict(query)))

    def _decide(self, path: str, body: Mapping[str, str | bool]) -> GateAnswer:
        answer = self._ask("POST", path, json=dict(body))
        # 409 is the gate's no, an answer as good as a yes; others are the console's own refusals.
        told = self._json(answer) if answer.status_code in (200, 409) else self._said(answer)
        if not isinstance(told, dict) or "message" not in told:
            detail = told.get("detail") if isinstance(told, dict) else None
            # A proxy's login page answers 200, too; the request may have got through before.
            raise Permanent(str(detail or f"NIGHTSHIFT_API: {self._base} is no console: look whether it was done"))
        return GateAnswer(bool(told["ok"]), str(told["message"]), bool(told["changed"]))

    def _ask(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        from httpx import HTTPError

        try:
            return self._client.request(method, self._base + path, headers=self._headers, **arguments)
        except HTTPError as error:
            raise Temporary(f"{self._base} does not answer ({type(error).__name__})") from error

    def _json(self, answer: httpx.Response) -> Any:
        try:
            return answer.json()
        except ValueError as error:
            raise Permanent(f"NIGHTSHIFT_API: {self._base} answers {answer.status_code} and no JSON") from error

    def _said(self, answer: httpx.Response) -> Any:
        told = self._json(answer)
        if answer.status_code == 200:
            return told
        detail = told.get("detail") if isinstance(told, dict) else told
        raise (Temporary if answer.status_code >= 500 else Permanent)(str(detail))


def remote(environ: Mapping[str, str] | None = None) -> Remote | None:
    """The console that the environment names; None: the command works on the daemon's store."""
    environ = os.environ if environ is None else environ
    url, path = environ.get("NIGHTSHIFT_API", ""), environ.get("NIGHTSHIFT_TOKEN_FILE", "")
    if not url:
        return None
    if not path:
        raise Permanent("NIGHTSHIFT_API is set, so NIGHTSHIFT_TOKEN_FILE must name the file with your token")
    try:
        return Remote(url, Path(path).read_text().strip())
    except OSError as error:
        raise Permanent(f"NIGHTSHIFT_TOKEN_FILE: {path}: {error.strerror}") from error


def checked_plan(incident_id: str, sha256: str, prefix: str) -> str:
    """Raises Permanent where the plan is not the one that is meant."""
    if sha256 and not sha256.startswith(prefix):
        raise Permanent(
            f"the plan of {incident_id} is {sha256}, not {prefix}…: show the incident again and decide on its "
            f"current plan"
        )
    return sha256


def _name(incident_id: str) -> str:
    """An id as part of an address; what cannot be one is nobody's."""
    name = incident_id.strip().upper()
    # It becomes a part of the path: `../halt` would be another request.
    if not name.replace("-", "").isalnum() or not name.isascii():
        raise Permanent(f"{incident_id[:40]!r} is not an incident (INC-NUMBER)")
    return name
