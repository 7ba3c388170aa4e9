"""What Jira, ServiceNow and a webhook do with what they are sent, as their documentation says.

Jira: developer.atlassian.com/cloud/jira/platform/rest/v3 (issues, transitions, search, ADF) and
docs.atlassian.com/software/jira/docs/api/REST (Data Center). ServiceNow: docs.servicenow.com, "Table API",
"Inbound REST API rate limiting" and the data policy of resolved incidents. Webhook: requests of one
`Idempotency-Key` are one (draft-ietf-httpapi-idempotency-key-header).
"""

from __future__ import annotations

import base64
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Answer = tuple[int, Any]
TOKEN, USER, PROJECT = "token-1", "bot@example.org", "OPS"
_FIELDS = frozenset({"project", "issuetype", "summary", "description", "labels", "components", "customfield_10010"})
_NO_ISSUE = {"errorMessages": ["Issue does not exist or you do not have permission to see it."], "errors": {}}


@dataclass
class Issue:
    """One ticket of any system."""

    name: str
    fields: dict[str, Any]
    status: str = "open"
    by: str = ""
    updates: int = 0


class JiraStandIn:
    """One project. Data Center where it is not `cloud`."""

    def __init__(self, cloud: bool = True) -> None:
        self.cloud = cloud
        self.token = TOKEN
        self.issues: dict[str, Issue] = {}
        self.required: set[str] = set()
        """Further fields that the project requires."""
        self.resolution_required = False
        self.can_reopen = True
        self.browsable = True
        self._number = 0

    def answer(
        self, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str], body: Any
    ) -> Answer:
        if headers.get("Authorization") != self._authorization():
            return 401, {"message": "Client must be authenticated to access this resource.", "status-code": 401}
        api = "/rest/api/3/" if self.cloud else "/rest/api/2/"
        if not path.startswith(api):
            return 404, "<html>dead link</html>"
        head, _, rest = path.removeprefix(api).partition("/")
        if head == "myself":
            return 200, {"displayName": "Nightshift", "accountId": "5b10"}
        if head == "project":
            there = rest == PROJECT and self.browsable
            return (200, {"key": PROJECT}) if there else (404, {"errorMessages": [f"No project with key '{rest}'"]})
        if head == "search":
            return self._search(rest, body)
        if head == "issue" and method == "POST" and not rest:
            return self._create(body)
        if head == "issue":
            name, _, verb = rest.partition("/")
            issue = self.issues.get(name) if self.browsable else None
            return (404, _NO_ISSUE) if issue is None else self._one(method, issue, verb, query, body)
        return 404, {}

    def person(self, name: str, status: str, by: str) -> None:
        """What a person does there."""
        self.issues[name].status, self.issues[name].by = status, by

    def open_of(self, key: str) -> list[str]:
        return [name for name, one in self.issues.items() if key in one.fields["labels"] and one.status != "done"]

    def _authorization(self) -> str:
        if self.cloud:
            return "Basic " + base64.b64encode(f"{USER}:{self.token}".encode()).decode()
        return f"Bearer {self.token}"

    def _create(self, body: Any) -> Answer:
        fields = dict(body.get("fields") or {})
        errors = self._wrong(fields)
        if (fields.get("project") or {}).get("key") != PROJECT or not self.browsable:
            errors["project"] = "valid project is required"
        if (fields.get("issuetype") or {}).get("name") not in ("Task", "Incident"):
            errors["issuetype"] = "Specify a valid issue type"
        if not fields.get("summary"):
            errors["summary"] = "You must specify a summary of the issue."
        errors |= {name: f"{name} is required." for name in self.required if not fields.get(name)}
        if errors:
            return 400, {"errorMessages": [], "errors": errors}
        self._number += 1
        name = f"{PROJECT}-{self._number}"
        self.issues[name] = Issue(name, fields)
        return 201, {"id": str(10000 + self._number), "key": name, "self": ""}

    def _wrong(self, fields: Mapping[str, Any]) -> dict[str, str]:
        errors = {
            name: f"Field '{name}' cannot be set. It is not on the appropriate screen, or unknown."
            for name in set(fields) - _FIELDS
        }
        summary = fields.get("summary", "")
        if len(summary) > 255:
            errors["summary"] = "Summary must be less than 255 characters."
        if "\n" in summary:
            errors["summary"] = "The summary is invalid because it contains newline characters."
        if "description" in fields and not (
            _is_document(fields["description"]) if self.cloud else isinstance(fields["description"], str)
        ):
            errors["description"] = (
                "Operation value must be an Atlassian Document (see the Atlassian Document Format)"
            )
        if any(" " in label for label in fields.get("labels", ())):
            errors["labels"] = "The label can't contain spaces."
        return errors

    def _one(self, method: str, issue: Issue, verb: str, query: Mapping[str, str], body: Any) -> Answer:
        if verb == "transitions":
            return self._transitions(method, issue, query, body)
        if method == "PUT":
            fields = body.get("fields") or {}
            if errors := self._wrong(fields):
                return 400, {"errorMessages": [], "errors": errors}
            issue.fields.update(fields)
            for change in (body.get("update") or {}).get("labels", ()):
                issue.fields["labels"] = [one for one in issue.fields["labels"] if one != change.get("remove")]
            issue.updates += 1
            return 204, None
        if method != "GET":
            return 403, {"errorMessages": ["You do not have permission to delete issues in this project."]}
        histories = []
        if issue.by:
            author = {"displayName": issue.by.partition("@")[0], "emailAddress": issue.by}
            items = [{"field": "status", "toString": issue.status}]
            histories = [{"created": "2026-11-21T20:00:00.000+0000", "author": author, "items": items}]
        status = {"name": issue.status, "statusCategory": {"key": "done" if issue.status == "done" else "new"}}
        changelog = {"changelog": {"histories": histories}} if query.get("expand") == "changelog" else {}
        return 200, {"key": issue.name, "fields": {"status": status, "labels": issue.fields["labels"]}, **changelog}

    def _transitions(self, method: str, issue: Issue, query: Mapping[str, str], body: Any) -> Answer:
        asked = {"resolution": {"required": True, "hasDefaultValue": False}} if self.resolution_required else {}
        ways: list[dict[str, Any]] = []
        if issue.status != "done":
            ways.append({"id": "31", "name": "Resolve", "to": _status("Done", "done"), "fields": asked})
        elif self.can_reopen:
            ways.append({"id": "41", "name": "Reopen", "to": _status("To Do", "new"), "fields": {}})
        if method == "GET":
            expanded = "transitions.fields" in query.get("expand", "")
            return 200, {"transitions": [way if expanded else {**way, "fields": None} for way in ways]}
        wanted = str((body.get("transition") or {}).get("id", ""))
        way = next((one for one in ways if one["id"] == wanted), None)
        if way is None:
            return 400, {"errorMessages": [f"Transition id '{wanted}' is not valid for this issue."], "errors": {}}
        given = body.get("fields") or {}
        lacking = {name: f"{name} is required." for name in way["fields"] if name not in given}
        wrong = {name: f"Field '{name}' cannot be set." for name in given if name not in way["fields"]}
        if lacking or wrong:
            return 400, {"errorMessages": [], "errors": lacking | wrong}
        issue.status, issue.by = way["to"]["statusCategory"]["key"], ""
        return 204, None

    def _search(self, rest: str, body: Any) -> Answer:
        if (rest == "jql") is not self.cloud:
            return 410, {"errorMessages": ["The requested API has been removed."]}
        match = re.fullmatch(r'project = "(\w+)" AND labels = "([^"]+)" ORDER BY created ASC', body.get("jql", ""))
        if match is None:
            return 400, {"errorMessages": ["Error in the JQL Query."]}
        if match[1] != PROJECT or not self.browsable:
            return 400, {"errorMessages": [f"The value '{match[1]}' does not exist for the field 'project'."]}
        found = [one for one in self.issues.values() if match[2] in one.fields["labels"]]
        asked = body.get("fields") or []
        return 200, {
            "issues": [{"key": one.name, "fields": {n: one.fields.get(n) for n in asked}} for one in found]
        }


def _status(name: str, category: str) -> dict[str, Any]:
    return {"name": name, "statusCategory": {"key": category}}


def _is_document(value: Any) -> bool:
    if not isinstance(value, dict) or value.get("type") != "doc" or value.get("version") != 1:
        return False
    texts = [text for block in value.get("content", ()) for text in block.get("content", ())]
    return bool(texts) and all(
        one.get("type") == "text" and one.get("text") and "\n" not in one["text"] for one in texts
    )


class ServiceNowStandIn:
    """The incident table."""

    def __init__(self) -> None:
        self.token = TOKEN
        self.issues: dict[str, Issue] = {}
        self.readable = True

    def answer(
        self, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str], body: Any
    ) -> Answer:
        wanted = "Basic " + base64.b64encode(f"{USER}:{self.token}".encode()).decode()
        if headers.get("Authorization") != wanted:
            return 401, {"error": {"message": "User Not Authenticated", "detail": "Required to provide Auth"}}
        table, _, sys_id = path.removeprefix("/api/now/table/").partition("/")
        if table != "incident":
            return 400, {"error": {"message": f"Invalid table {table}", "detail": None}, "status": "failure"}
        if not sys_id:
            return self._create(body) if method == "POST" else self._list(query)
        record = self.issues.get(sys_id) if self.readable else None
        if record is None:
            detail = "Record doesn't exist or ACL restricts the record retrieval"
            return 404, {"error": {"message": "No Record found", "detail": detail}, "status": "failure"}
        return self._patch(record, body) if method == "PATCH" else (200, {"result": self._shown(record)})

    def person(self, name: str, status: str, by: str) -> None:
        """What a person does there: 6 resolved, 7 closed."""
        record = self.issues[name]
        record.fields["state"], record.by = status, by
        record.fields["active"] = "false" if status in ("7", "8") else "true"

    def open_of(self, key: str) -> list[str]:
        states = ("1", "2", "3")
        return [
            n for n, r in self.issues.items() if r.fields["correlation_id"] == key and r.fields["state"] in states
        ]

    def _create(self, body: Mapping[str, Any]) -> Answer:
        if len(str(body.get("correlation_id", ""))) > 100:
            return 400, {"error": {"message": "value too long"}}
        # fields that do not exist are ignored without a word
        sys_id = uuid.uuid4().hex
        self.issues[sys_id] = Issue(sys_id, {"state": "1", "active": "true", "correlation_id": "", **body})
        return 201, {"result": {"sys_id": sys_id}}

    def _list(self, query: Mapping[str, str]) -> Answer:
        rows = list(self.issues.values()) if self.readable else []
        asked = query.get("sysparm_query", "")
        if match := re.match(r"correlation_id=([^^]+)", asked):
            rows = [row for row in rows if row.fields["correlation_id"] == match[1]]
        fields = query.get("sysparm_fields", "").split(",")
        rows = rows[: int(query.get("sysparm_limit", "10000"))]
        return 200, {"result": [{n: v for n, v in self._shown(row).items() if n in fields} for row in rows]}

    def _patch(self, record: Issue, body: Mapping[str, Any]) -> Answer:
        state, before = str(body.get("state", record.fields["state"])), record.fields["state"]
        if before in ("7", "8"):  # read-only by a business rule: taken, and nothing changes
            return 200, {"result": self._shown(record)}
        if state == "6" and not (body.get("close_code") and body.get("close_notes")):
            message = "Operation Failed"
            detail = "Data Policy Exception: The following fields are mandatory: Close code, Close notes"
            return 403, {"error": {"message": message, "detail": detail}, "status": "failure"}
        record.fields.update(body)
        record.updates += 1
        return 200, {"result": self._shown(record)}

    def _shown(self, record: Issue) -> dict[str, Any]:
        who = {"resolved_by.email": record.by if record.fields["state"] != "1" else ""}
        return {"sys_id": record.name, **record.fields, **who}


class WebhookStandIn:
    """Keeps the last body of each ticket."""

    def __init__(self) -> None:
        self.token = TOKEN
        self.issues: dict[str, Issue] = {}
        self._taken: dict[str, Answer] = {}

    def answer(
        self, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str], body: Any
    ) -> Answer:
        if headers.get("Authorization") != f"Bearer {self.token}":
            return 401, {}
        key = headers.get("Idempotency-Key", "")
        if not key:
            return 400, {"error": "Idempotency-Key is missing"}
        if key not in self._taken:
            ticket = str(body.get("key") or body.get("id"))
            event = str(body.get("event"))
            there = self.issues.get(ticket)
            if event == "opened" and there is not None:
                return 409, {"error": f"{ticket} is there"}
            issue = there or Issue(ticket, {})
            issue.fields, issue.status = dict(body), "done" if event == "closed" else "open"
            issue.updates += 1
            self.issues[ticket] = issue
            self._taken[key] = 200, {}
        return self._taken[key]

    def person(self, name: str, status: str, by: str) -> None:
        raise NotImplementedError

    def open_of(self, key: str) -> list[str]:
        return [name for name, one in self.issues.items() if name == key and one.status != "done"]
