"""A Loki and an Elasticsearch on loopback, for tests: what the real ones refuse, they refuse (Loki 3 and
Elasticsearch 8)."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

LINE = tuple[float, dict[str, str], str]
_SELECTOR = re.compile(r'\{((?:[a-zA-Z_]\w*(?:=|=~|!=|!~)"(?:[^"\\]|\\.)*",?)+)\}(?: \|~ ("(?:[^"\\]|\\.)*"))?')
_LABEL = re.compile(r'([a-zA-Z_]\w*)(=~|=)("(?:[^"\\]|\\.)*")')
MAX_SPAN_NS = (30 * 24 + 1) * 3600 * 10**9


class LogStoreStandIn:
    """`lines`: (Unix s, labels, text). `broken` answers that instead."""

    def __init__(self, lines: list[LINE]) -> None:
        self.lines, self.asked, self.headers = lines, list[str](), list[dict[str, str]]()
        self.broken: tuple[int, bytes] | None = None

    def loki(self, asked: dict[str, str], headers: dict[str, str]) -> tuple[int, bytes]:
        if not headers.get("x-scope-orgid"):
            return 401, b"no org id"
        read = _SELECTOR.fullmatch(asked.get("query", ""))
        if read is None:
            return 400, b"parse error at line 1, col 1: syntax error"
        start, end, limit = (int(asked[name]) for name in ("start", "end", "limit"))
        if limit > 5000:
            return 400, f"max entries limit per query exceeded, limit > max_entries_limit ({limit} > 5000)".encode()
        if end <= start or end - start > MAX_SPAN_NS:
            return 400, b"the query time range exceeds the limit (query length: x, limit: 30d1h)"
        text = json.loads(read[2]) if read[2] else ""
        streams: dict[str, Any] = {}
        for t_s, labels, line in sorted(self.lines, key=lambda row: row[0]):
            fits = all(
                re.fullmatch(json.loads(value), labels.get(name, ""))
                if sign == "=~"
                else labels.get(name) == json.loads(value)
                for name, sign, value in _LABEL.findall(read[1])
            )
            if fits and start <= t_s * 1e9 < end and re.search(text, line):
                stream = streams.setdefault(json.dumps(labels), {"stream": labels, "values": []})
                stream["values"].append([str(int(t_s * 1e9)), line])
        data = {"resultType": "streams", "result": list(streams.values()), "stats": {}}
        return 200, json.dumps({"status": "success", "data": data}).encode()

    def elasticsearch(self, index: str, asked: dict[str, str]) -> tuple[int, bytes]:
        if asked.get("source_content_type") != "application/json":
            return 400, _refused(
                "illegal_argument_exception", "source and source_content_type parameters are required"
            )
        body = json.loads(asked["source"])
        known = {"size", "track_total_hits", "_source", "sort", "query"}
        if set(body) - known:
            return 400, _refused("parsing_exception", f"unknown key {set(body) - known}")
        if body["size"] > 10_000:
            return 400, _refused("illegal_argument_exception", "Result window is too large")
        if index == "gone":
            return 404, _refused("index_not_found_exception", "no such index [gone]")
        hits = []
        for t_s, labels, text in sorted(self.lines, key=lambda row: row[0]):
            row = {"kubernetes.namespace": labels.get("namespace"), "kubernetes.pod.name": labels.get("pod"),
                   "kubernetes.node.name": labels.get("node")}  # fmt: skip
            fits = True
            for clause in body["query"]["bool"]["filter"]:
                ((kind, given),) = clause.items()
                ((name, value),) = given.items()
                if kind == "range":
                    assert value["format"] == "epoch_millis"
                    fits &= value["gte"] <= t_s * 1000 <= value["lte"]
                elif kind == "match_phrase":
                    fits &= value.lower() in text.lower()
                else:
                    fits &= row[name] in (value if kind == "terms" else [value])
            if fits:
                shown = {"@timestamp": int(t_s * 1000), "message": text}
                hits.append({"_index": index, "_id": str(len(hits)), "_source": shown, "sort": [t_s]})
        return 200, json.dumps({"took": 1, "timed_out": False, "hits": {"hits": hits[: body["size"]]}}).encode()


def _refused(kind: str, reason: str) -> bytes:
    return json.dumps({"error": {"type": kind, "reason": reason}, "status": 400}).encode()


@contextmanager
def served(store: LogStoreStandIn) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            place = urlsplit(self.path)
            asked = {name: values[0] for name, values in parse_qs(place.query, strict_parsing=True).items()}
            store.asked.append(asked.get("query") or asked.get("source", ""))
            headers = {name.lower(): value for name, value in self.headers.items()}
            store.headers.append(headers)
            if len(self.path) > 4096:
                status, body = 414, b"An HTTP line is larger than 4096 bytes."
            elif store.broken is not None:
                status, body = store.broken
            elif place.path == "/loki/api/v1/query_range":
                status, body = store.loki(asked, headers)
            elif place.path.endswith("/_search"):
                status, body = store.elasticsearch(place.path.split("/")[1], asked)
            else:
                status, body = 404, b"404 page not found"
            self.send_response(status)
            self.send_header("Content-Type", "application/json" if body[:1] == b"{" else "text/plain")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
