"""What a model may look up: bounded, redacted, numbered; PromQL against a server; and nothing that writes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

import numpy as np
import pytest

from nightshift.agent.rca.bundle import Bundle, EvidenceLimits, PastIncident
from nightshift.agent.rca.lookup import MAX_CONTENT, MORE_ITEMS, Lookup
from nightshift.agent.rca.promql import invents, range_query
from nightshift.agent.rca.redact import Redactor
from nightshift.collectors.frame import Instant, LogRecord
from nightshift.collectors.kubernetes.events import CHANGES
from nightshift.collectors.prometheus.live import PrometheusCollector
from nightshift.collectors.tick import Tick
from tests.agent.rooted import GPUS, INVENTORY, JOB, NODE, NOW_S, ONSET_S, history
from tests.agent.test_hostile import SECRET


def lookup(**more: object) -> Lookup:
    kept = history(every_s=60.0)
    lines = [
        LogRecord(Instant(ONSET_S + n), "training_logs", JOB, f"line {n} token={SECRET}", n) for n in range(500)
    ]
    lines.append(LogRecord(Instant(ONSET_S - 900), f"{CHANGES} api", NODE, "Node n1: unschedulable: no -> yes", 1))
    kept.add(Tick(NOW_S, logs=lines))
    given = {"redact": Redactor(), **more}
    return Lookup(Bundle((), {}), kept, INVENTORY, ONSET_S, NOW_S, **given)  # type: ignore[arg-type]


@contextmanager
def prometheus(answer: bytes, status: int = 200) -> Iterator[tuple[str, list[dict[str, list[str]]]]]:
    asked: list[dict[str, list[str]]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode()))
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def matrix(series: int) -> bytes:
    rows = [
        {
            "metric": {"host": f"n{k}", "note": f"password={SECRET}"},
            "values": [[ONSET_S + 5 * i, str(i)] for i in range(20)],
        }
        for k in range(series)
    ]
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": rows}}).encode()


@pytest.mark.parametrize(
    "query",
    [
        "up",
        'max by (UUID) (rate(DCGM_FI_DEV_ECC_SBE_VOL_TOTAL{Hostname=~"n1|n2 {offset 5}",pod!="*1+1"}[5m]))',
        'topk(3, node_memory_MemAvailable_bytes / on (instance) node_memory_MemTotal_bytes{job="node"})',
        "histogram_quantile(0.99, sum by (le) (rate(vllm:time_to_first_token_seconds_bucket[1h30m])))",
        "avg_over_time(DCGM_FI_DEV_GPU_TEMP[10m]) and on (UUID) DCGM_FI_DEV_XID_ERRORS",
    ],
)
def test_what_selects_and_aggregates_measured_series_is_asked(query: str) -> None:
    assert invents(query) is None


@pytest.mark.parametrize(
    "query",
    [
        "(time() > bool 1763800000) * 50",
        'DCGM_FI_DEV_GPU_TEMP{UUID="GPU-1"} * 0 + 40',
        "vector(90)",
        "DCGM_FI_DEV_GPU_TEMP offset 10m",
        "DCGM_FI_DEV_GPU_TEMP @ 1763800000",
        "DCGM_FI_DEV_GPU_TEMP @ start()",
        'label_replace(DCGM_FI_DEV_XID_ERRORS, "UUID", "GPU-2", "UUID", "GPU-1")',
        "absent(up)",
        "a or b",
        "a > b",
        "a - b",
        "clamp_min(a, 90)",
        "90",
        "max_over_time((a / 0.1)[10m:1m])",
        "topk(3, a) / 0.5",
        'a{x="1"} # } * 2',
    ],
)
def test_a_query_that_makes_its_own_series_is_not_asked(query: str) -> None:
    """A model would prove with it whatever it likes: the series rises because its query says so."""
    asked: list[str] = []
    tools = lookup(promql=lambda query, *_: asked.append(query))
    said = tools.call("promql", {"query": query, "start_s": ONSET_S, "end_s": ONSET_S + 100})
    assert "measured" in said
    assert not asked


def test_promql_answers_become_at_most_four_series_without_secrets() -> None:
    with prometheus(matrix(7)) as (url, asked):
        tools = lookup(promql=range_query([PrometheusCollector.Settings(url=url)]))
        said = tools.call("promql", {"query": "up", "start_s": ONSET_S, "end_s": ONSET_S + 100})
    assert asked[0]["query"] == ["up"]
    assert [item.id for item in tools.ledger.items] == ["E1", "E2", "E3", "E4"]
    assert json.loads(tools.ledger.items[0].content)["values"] == list(range(20))
    assert SECRET not in said
    assert not any(SECRET.encode() in item.content or SECRET in item.title for item in tools.ledger.items)


@pytest.mark.parametrize(("answer", "status"), [(b"{}", 200), (b"<html>", 502), (b'{"status":"error"}', 422)])
def test_a_prometheus_that_refuses_is_said_to_the_model_and_gives_no_evidence(answer: bytes, status: int) -> None:
    with prometheus(answer, status) as (url, _):
        tools = lookup(promql=range_query([PrometheusCollector.Settings(url=url)]))
        said = tools.call("promql", {"query": "up", "start_s": 0, "end_s": 100})
    assert said.startswith("promql: Prometheus: ")
    assert not tools.ledger.items


def test_without_a_prometheus_there_is_no_such_tool() -> None:
    assert range_query([]) is None
    assert "there is no tool 'promql'" in lookup().call("promql", {"query": "up", "start_s": 0, "end_s": 1})


def test_logs_are_cut_redacted_and_searched() -> None:
    tools = lookup(limits=EvidenceLimits(max_lines=10))
    said = tools.call("logs", {"subject": str(JOB), "start_s": 0, "end_s": NOW_S, "contains": "LINE 4"})
    assert SECRET not in said
    assert len(said) < 2 * MAX_CONTENT
    assert "10 of 11 lines" in tools.ledger.items[0].title


def test_kubernetes_changes_topology_metrics_and_past_incidents_are_found() -> None:
    past = [PastIncident("INC-1", "hbm_degraded", str(GPUS[1]), 0.0, "reset_gpu", "resolved")]
    tools = lookup(past=past)
    assert "unschedulable: no -" in tools.call("kubernetes", {"subject": str(NODE)})
    assert "INC-1" in tools.call("past_incidents", {})
    assert "node:n1" in tools.call("topology", {"subject": str(GPUS[1]), "at_s": ONSET_S})
    asked = {"subject": str(GPUS[1]), "metric": "gpu_memory_used_bytes", "start_s": 0, "end_s": NOW_S}
    assert "gpu_memory_used_bytes" in tools.call("metric", asked)


def test_no_more_evidence_is_taken_than_allowed() -> None:
    tools = lookup()
    answers = [
        tools.call("topology", {"subject": str(GPUS[1]), "at_s": ONSET_S + n}) for n in range(MORE_ITEMS + 1)
    ]
    assert answers[-1] == "the limit of evidence is reached"
    assert len(tools.ledger.items) == MORE_ITEMS


def test_a_long_item_is_read_in_parts() -> None:
    tools = lookup()
    t_s = np.arange(400.0)
    item = tools.ledger.series(("looked_up", "x"), GPUS[0], "m", "", t_s, np.sin(t_s), "history", "x")
    assert item is not None
    parts, offset = "", 0
    while offset < len(item.content):
        part = json.loads(tools.call("read_evidence", {"id": item.id, "offset": offset or 1}))
        parts += part["content"]
        offset = (offset or 1) + len(part["content"])
    assert parts.encode() == item.content[1:]
