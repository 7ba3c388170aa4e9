"""Loki and Elasticsearch as log sources of look-ups: lines of a pod or a node between two times. Reads only.

Nothing is collected from them: a question or a model's look-up asks once, for at most `MAX_LINES` lines. What is
looked for is a literal text, in quotes of the store's own language, so it selects and cannot write a query. APIs:
grafana.com/docs/loki/latest/reference/loki-http-api (query_range), elastic.co/docs/api (`_search`, whose definition
may stand in `source`; OpenSearch has the same).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal
from urllib.parse import urlencode

from pydantic import BaseModel, ConfigDict, Field, field_validator

from nightshift.collectors.base import Temporary
from nightshift.collectors.frame import Instant, LogRecord
from nightshift.collectors.http import (
    CONNECTION,
    BaseAddress,
    Connection,
    Fetcher,
    HttpRequest,
    HttpSettings,
    SourceError,
)
from nightshift.collectors.subject import Inventory, Subject, SubjectKind

MAX_LINES, MAX_PODS, MAX_TEXT = 1000, 16, 200
TIMEOUT_S, MAX_BYTES = 10.0, 16 * 2**20
_FIELDS = {
    "loki": {"namespace": "namespace", "pod": "pod", "node": "node"},
    # Elastic Common Schema, as Filebeat and Elastic Agent write it
    "elasticsearch": {
        "namespace": "kubernetes.namespace", "pod": "kubernetes.pod.name", "node": "kubernetes.node.name",
        "message": "message", "time": "@timestamp",
    },
}  # fmt: skip


class LogStoreSettings(BaseModel):
    """A Loki, or an Elasticsearch or OpenSearch."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: Literal["loki", "elasticsearch"] = Field(description="`elasticsearch` is OpenSearch, too")
    url: BaseAddress = Field(description="Base address, e.g. http://loki-gateway or https://elastic:9200")
    index: str = Field("*", pattern=r"^[\w.*,:<>{}|-]+$", description="Elasticsearch: indices to search")
    fields: dict[Literal["namespace", "pod", "node", "message", "time"], str] = Field(
        default_factory=dict, description="Names of labels or fields, where they are not the usual ones"
    )
    connection: Connection = Field(default_factory=HttpSettings, description=CONNECTION)

    @field_validator("fields")
    @classmethod
    def _are_names(cls, fields: dict[str, str]) -> dict[str, str]:
        for name, text in fields.items():
            if not re.fullmatch(r"[\w@.-]{1,100}", text):
                raise ValueError(f"{name}: {text!r} is no name of a label or field")
        return fields

    def field(self, name: str) -> str:
        named = {str(given): text for given, text in self.fields.items()}
        return named.get(name) or _FIELDS[self.type][name]


@dataclass(frozen=True)
class LogStores:
    """All configured stores. `nodes`: whether all lines of a node may be read, whoever's pods wrote them."""

    settings: Sequence[LogStoreSettings]
    inventory: Inventory
    nodes: bool = True

    def of_pods_only(self) -> LogStores:
        return replace(self, nodes=False)

    def lines(
        self, subject: Subject, start_s: float, end_s: float, contains: str = ""
    ) -> tuple[list[LogRecord], list[str]]:
        """The lines in order of time, and which stores did not answer, in words."""
        where = self._where(subject, start_s, end_s)
        if not where:
            return [], []
        found: list[LogRecord] = []
        problems: list[str] = []
        for settings in self.settings:
            ask = _loki if settings.type == "loki" else _elasticsearch
            source = f"{settings.type} {settings.url}"
            try:
                request, read = ask(settings, where, start_s, end_s, contains[:MAX_TEXT])
                rows = read(_answer(settings, request))
            except (Temporary, KeyError, TypeError, ValueError, AttributeError) as error:
                said = str(error) if isinstance(error, Temporary) else "its answer is of another shape"
                problems.append(f"{source}: {said}"[:300])
                continue
            found += [
                LogRecord(Instant(t_s), source, subject, text, number)
                for number, (t_s, text) in enumerate(rows)
                if start_s <= t_s <= end_s
            ]
        return sorted(found, key=lambda record: record.at.t_s), problems

    def _where(self, subject: Subject, start_s: float, end_s: float) -> list[tuple[str, str]]:
        """(namespace, pod) pairs, or ("", node)."""
        if subject.kind is SubjectKind.NODE:
            return [("", subject.name)] if self.nodes else []
        moments = (start_s, (start_s + end_s) / 2, end_s)
        pods = {subject} if subject.kind is SubjectKind.POD else set()
        for at_s in moments if subject.kind in (SubjectKind.RANK, SubjectKind.JOB, SubjectKind.CONTAINER) else ():
            pods |= {s for s in self.inventory.ancestors(subject, at_s) if s.kind is SubjectKind.POD}
            pods |= set(self.inventory.below(subject, SubjectKind.POD, at_s))
        names = (pod.name.partition("/") for pod in sorted(pods, key=str)[:MAX_PODS])
        return [(namespace, name) for namespace, slash, name in names if slash]


def _answer(settings: LogStoreSettings, request: HttpRequest) -> Any:
    """Raises Temporary where there is none."""
    fetcher = Fetcher(settings.connection, max_bytes=MAX_BYTES, accept="application/json")
    try:
        (answer,) = fetcher.fetch([request], TIMEOUT_S)
    finally:
        fetcher.close()
    if isinstance(answer, SourceError):
        raise Temporary(f"{answer.reason}: {answer.detail}") from answer
    return json.loads(answer.body)


def _loki(
    settings: LogStoreSettings, where: Iterable[tuple[str, str]], start_s: float, end_s: float, contains: str
) -> tuple[HttpRequest, Any]:
    pairs = list(where)
    if not pairs[0][0]:
        labels = [(settings.field("node"), "=", pairs[0][1])]
    else:
        names = "|".join(sorted({re.escape(name) for _, name in pairs}))
        labels = [(settings.field("namespace"), "=", pairs[0][0]), (settings.field("pod"), "=~", names)]
    # a JSON string is a string of LogQL's: both have Go's escapes for quotes and backslashes
    selector = ",".join(f"{name}{sign}{json.dumps(value)}" for name, sign, value in labels)
    query = f"{{{selector}}}" + (f" |~ {json.dumps('(?i)' + re.escape(contains))}" if contains else "")
    asked = {
        "query": query, "start": f"{int(start_s * 1e9)}", "end": f"{int(end_s * 1e9) + 1}",
        "limit": f"{MAX_LINES}", "direction": "forward",
    }  # fmt: skip

    def read(body: Any) -> list[tuple[float, str]]:
        streams = body["data"]["result"] if body["data"]["resultType"] == "streams" else []
        return [(int(row[0]) / 1e9, str(row[1])) for stream in streams for row in stream["values"]][:MAX_LINES]

    return HttpRequest(f"{settings.url}/loki/api/v1/query_range?{urlencode(asked)}"), read


def _elasticsearch(
    settings: LogStoreSettings, where: Iterable[tuple[str, str]], start_s: float, end_s: float, contains: str
) -> tuple[HttpRequest, Any]:
    pairs = list(where)
    time, message = settings.field("time"), settings.field("message")
    span = {"gte": int(start_s * 1000), "lte": math.ceil(end_s * 1000), "format": "epoch_millis"}
    filters: list[dict[str, Any]] = [{"range": {time: span}}]
    if not pairs[0][0]:
        filters.append({"term": {settings.field("node"): pairs[0][1]}})
    else:
        filters.append({"term": {settings.field("namespace"): pairs[0][0]}})
        filters.append({"terms": {settings.field("pod"): sorted({name for _, name in pairs})}})
    if contains:
        filters.append({"match_phrase": {message: contains}})
    body = {
        "size": MAX_LINES, "track_total_hits": False, "_source": [time, message],
        "sort": [{time: {"order": "asc", "unmapped_type": "date"}}], "query": {"bool": {"filter": filters}},
    }  # fmt: skip
    asked = {"source": json.dumps(body, separators=(",", ":")), "source_content_type": "application/json"}

    def read(answer: Any) -> list[tuple[float, str]]:
        rows = [(_at(hit["_source"], time), _at(hit["_source"], message)) for hit in answer["hits"]["hits"]]
        return [(_unix_s(when), str(text)) for when, text in rows if when is not None and text is not None]

    return HttpRequest(f"{settings.url}/{settings.index}/_search?{urlencode(asked)}"), read


def _at(source: Any, path: str) -> Any:
    """A field by its dotted name: documents hold it flat, or as objects in each other."""
    if path in source:
        return source[path]
    for key in path.split("."):
        source = source.get(key) if isinstance(source, dict) else None
    return source


def _unix_s(stamp: Any) -> float:
    if isinstance(stamp, int | float):
        return float(stamp) / 1000
    read = datetime.fromisoformat(str(stamp))
    return (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()
