"""The query parameters of requests."""

from __future__ import annotations

from typing import Any

from .api import Options
from .storage import Object


def is_true(query: dict[str, str], name: str) -> bool:
    return query.get(name, "").lower() in ("true", "1")


def delete_options(query: dict[str, str], body: Any) -> Object:
    """DeleteOptions from the body, or from the query where there is no body."""
    how = dict(body or {})
    if "gracePeriodSeconds" in query:
        how.setdefault("gracePeriodSeconds", int(query["gracePeriodSeconds"]))
    if "propagationPolicy" in query:
        how.setdefault("propagationPolicy", query["propagationPolicy"])
    return how


def options(query: dict[str, str], body: Any = None) -> Options:
    """The query parameters of a write."""
    dry = query.get("dryRun") == "All" or "All" in ((body or {}).get("dryRun") or [])
    return Options(query.get("fieldManager") or query.get("_agent", "unknown"), dry, is_true(query, "force"))
