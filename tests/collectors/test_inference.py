"""vLLM's, SGLang's and Triton's pages under one name each: queues, caches and windowed quantiles."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightshift.collectors.check import check_collect
from nightshift.collectors.frame import Frame, Reason
from nightshift.collectors.merge import Merger
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.telemetry.inference import InferenceCollector, quantile

NOW = 1_795_260_000.0
MODEL = "meta-llama/Llama-3.1-8B-Instruct"


def histogram(name: str, labels: str, counts: Sequence[float], bounds: Sequence[str], scale: str = "") -> str:
    lines = [f'{name}_bucket{{le="{bound}",{labels}}} {count}' for bound, count in zip(bounds, counts, strict=True)]
    return "\n".join([*lines, f"{name}_sum{{{labels}}} 1", f"{name}_count{{{labels}}} {counts[-1]}", ""])


def vllm(n: int, waiting: int = 7, v1: bool = True) -> str:
    """As vLLM writes it: two engines, `n` batches of ten requests done."""
    per_token = "inter_token_latency_seconds" if v1 else "time_per_output_token_seconds"
    cache = "kv_cache_usage_perc" if v1 else "gpu_cache_usage_perc"
    lines = []
    for engine in (0, 1):
        at = f'engine="{engine}",model_name="{MODEL}"'
        lines += [
            f"vllm:num_requests_running{{{at}}} {4 + engine}",
            f"vllm:num_requests_waiting{{{at}}} {waiting}",
            f"vllm:{cache}{{{at}}} {0.5 + 0.25 * engine}",
            f"vllm:generation_tokens_total{{{at}}} {1000 * n}",
            *(f'vllm:request_success_total{{{at},finished_reason="{why}"}} {5 * n}' for why in ("stop", "length")),
        ]
        bounds = ("0.1", "0.5", "1.0", "+Inf")
        ttft = (5 * n, 9 * n, 10 * n, 10 * n)
        lines.append(histogram("vllm:time_to_first_token_seconds", at, ttft, bounds))
        lines.append(histogram(f"vllm:{per_token}", at, (10 * n,) * 4, ("0.01", "0.02", "0.05", "+Inf")))
    return "\n".join(lines) + "\n"


def take(of: InferenceCollector, merger: Merger, now_s: float) -> tuple[Frame, Any]:
    batch = check_collect(of, now_s, Inventory(), 30.0)
    return merger.merge([batch], now_s).frames[SubjectKind.SERVER], batch.sources[0]


@pytest.fixture
def collector(opened: Any, page_server: Any, monkeypatch: pytest.MonkeyPatch) -> InferenceCollector:
    monkeypatch.setattr("nightshift.collectors.telemetry.inference.WINDOW_S", 30.0)
    made: InferenceCollector = opened(
        InferenceCollector(InferenceCollector.Settings(urls=[page_server.at("/metrics")]))
    )
    return made


def server(page_server: Any, model: str = MODEL) -> Subject:
    return Subject(SubjectKind.SERVER, f"{page_server.url.removeprefix('http://')}/{model}")


@pytest.mark.parametrize("v1", [True, False])
def test_vllm_is_read_by_its_present_and_its_older_names(collector: Any, page_server: Any, v1: bool) -> None:
    """Engines are summed, the fullest cache counts, quantiles are of the window's requests."""
    merger, subject = Merger(), server(page_server)
    for n in range(3):
        page_server.pages["/metrics"] = vllm(n, v1=v1).encode()
        frame, status = take(collector, merger, NOW + 10 * n)
    assert status.ok
    assert not status.rejected
    assert frame.index.subjects == (subject,)
    assert frame.value(subject, "server_requests_running") == 9
    assert frame.value(subject, "server_requests_waiting") == 14
    assert frame.value(subject, "server_kv_cache_used_ratio") == 0.75
    assert frame.value(subject, "server_generated_tokens_per_s") == 200
    assert frame.value(subject, "server_requests_per_s") == 2
    assert frame.value(subject, "server_ttft_p50_s") == pytest.approx(0.1)
    assert frame.value(subject, "server_ttft_p99_s") == pytest.approx(0.95)
    assert frame.value(subject, "server_tpot_p50_s") == pytest.approx(0.005)


def test_sglang_is_read_from_its_first_rank(collector: Any, page_server: Any) -> None:
    def page(n: int) -> str:
        text = ""
        for rank in (0, 1):
            at = f'engine_type="unified",model_name="m",pp_rank="0",tp_rank="{rank}"'
            text += (
                f"sglang:num_running_reqs{{{at}}} 3\nsglang:num_queue_reqs{{{at}}} 11\n"
                f"sglang:token_usage{{{at}}} 0.28\nsglang:num_requests_total{{{at}}} {4 * n}\n"
            )
            text += histogram("sglang:time_to_first_token_seconds", at, (0, 4 * n), ("0.2", "0.4"))
        return text

    merger, subject = Merger(), server(page_server, "m")
    for n in range(2):
        page_server.pages["/metrics"] = page(n).encode()
        frame, _ = take(collector, merger, NOW + 10 * n)
    assert frame.value(subject, "server_requests_running") == 3
    assert frame.value(subject, "server_requests_waiting") == 11
    assert frame.value(subject, "server_kv_cache_used_ratio") == 0.28
    assert frame.value(subject, "server_ttft_p50_s") == pytest.approx(0.3)


def test_triton_is_read_per_model_with_its_microseconds(collector: Any, page_server: Any) -> None:
    """Versions of a model are summed; the mean time in the queue follows from the counters."""

    def page(n: int) -> bytes:
        rows = ""
        for model, version in (("bert", 1), ("bert", 2), ("resnet", 1)):
            at = f'model="{model}",version="{version}"'
            rows += (
                f"nv_inference_request_success{{{at}}} {10 * n}\n"
                f"nv_inference_queue_duration_us{{{at}}} {20_000 * n}\n"
                f"nv_inference_pending_request_count{{{at}}} 6\n"
                f'nv_inference_request_failure{{{at},reason="OTHER"}} {n}\n'
            )
        at = 'model="bert",version="1"'
        rows += histogram(
            "nv_inference_first_response_histogram_ms", at, (0, 10 * n, 10 * n), ("100", "500", "+Inf")
        )
        return (rows + 'nv_gpu_power_usage{gpu_uuid="GPU-1"} 90\n').encode()

    merger = Merger()
    for n in range(2):
        page_server.pages["/metrics"] = page(n)
        frame, _ = take(collector, merger, NOW + 10 * n)
    bert, resnet = server(page_server, "bert"), server(page_server, "resnet")
    assert set(frame.index.subjects) == {bert, resnet}
    assert frame.value(bert, "server_requests_waiting") == 12
    assert frame.value(bert, "server_requests_per_s") == 2
    assert frame.value(bert, "server_mean_queue_time_s") == pytest.approx(0.002)
    assert frame.value(bert, "server_ttft_p50_s") == pytest.approx(0.3)
    assert frame.value(resnet, "server_failures_per_s") == pytest.approx(0.1)
    assert math.isnan(frame.value(resnet, "server_ttft_p50_s"))


def test_a_prometheus_federation_page_tells_many_servers_apart(collector: Any, page_server: Any) -> None:
    """By their instance, each with the time of its own scrape; one scraped too long ago has no value."""
    rows = [
        f'vllm:num_requests_running{{instance="10.0.0.{n}:8000",model_name="m"}} {n} {int((NOW - ago_s) * 1000)}'
        for n, ago_s in ((1, 5), (2, 12), (3, 400))
    ]
    page_server.pages["/metrics"] = ("\n".join(rows) + "\n").encode()
    frame, status = take(collector, Merger(), NOW)
    servers = [Subject(SubjectKind.SERVER, f"10.0.0.{n}:8000/m") for n in (1, 2, 3)]
    assert [frame.value(s, "server_requests_running") for s in servers[:2]] == [1, 2]
    assert frame.times_s("server_requests_running")[:2].tolist() == [NOW - 5, NOW - 12]
    assert math.isnan(frame.value(servers[2], "server_requests_running"))
    assert status.rejected == {Reason.STALE: 1}


def test_a_real_prometheus_federates_them(opened: Any, page_server: Any, prometheus_server: Any) -> None:
    page_server.pages["/metrics"] = vllm(3).encode()
    target = page_server.url.removeprefix("http://")
    server = prometheus_server(
        "global: {scrape_interval: 500ms, scrape_timeout: 400ms}\n"
        f"scrape_configs: [{{job_name: vllm, static_configs: [{{targets: ['{target}']}}]}}]\n"
    )
    url = f'{server.url}/federate?match[]={{__name__=~"vllm:.*"}}'
    of = opened(InferenceCollector(InferenceCollector.Settings(urls=[url])))
    subject, end = Subject(SubjectKind.SERVER, f"{target}/{MODEL}"), time.monotonic() + 90
    while time.monotonic() < end:
        batch = check_collect(of, time.time(), Inventory(), 30.0)
        if batch.sources[0].ok and batch.frames:
            break
        time.sleep(0.3)
    (frame,) = batch.frames
    assert frame.value(subject, "server_requests_waiting") == 14
    assert abs(frame.times_s("server_requests_waiting")[0] - time.time()) < 10


def test_no_request_in_the_window_is_no_latency_and_a_restart_begins_it_anew(
    collector: Any, page_server: Any
) -> None:
    merger, subject = Merger(), server(page_server)
    found = []
    for at, n in ((0, 5), (10, 8), (50, 8), (60, 1), (70, 2)):
        page_server.pages["/metrics"] = vllm(n).encode()
        frame, _ = take(collector, merger, NOW + at)
        found.append(frame.value(subject, "server_ttft_p50_s"))
    assert [math.isnan(value) for value in found] == [True, False, True, True, False]


def test_hostile_pages_are_bounded_and_counted(collector: Any, page_server: Any) -> None:
    """Models without end, names with control characters, bounds that are none."""
    rows = [f'vllm:num_requests_running{{model_name="m{n}"}} 1' for n in range(1000)]
    rows += [
        'vllm:num_requests_running{model_name="a\\nb"} 1',
        f'vllm:num_requests_running{{model_name="{"y" * 9000}"}} 1',
    ]
    rows += ['vllm:time_to_first_token_seconds_bucket{le="<b>",model_name="m1"} 1']
    page_server.pages["/metrics"] = "\n".join(rows).encode() + b"\n"
    frame, status = take(collector, Merger(), NOW)
    assert len(frame.index) == 256
    assert status.rejected[Reason.TOO_LARGE] == 1000 - 256 + 2
    assert status.rejected[Reason.MALFORMED] == 1


def test_a_faulty_server_is_told(
    opened: Any, faulty: tuple[Any, str, set[str], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nightshift.collectors.telemetry.pages.MAX_BYTES", 100_000)
    served, path, reasons, timeout_s = faulty
    of = opened(InferenceCollector(InferenceCollector.Settings(urls=[served.at(path)])))
    (status,) = check_collect(of, NOW, Inventory(), timeout_s, expect_ok=False).sources
    assert str(status.reason) in reasons


@given(
    st.lists(st.floats(0.01, 100), min_size=1, max_size=300),
    st.lists(st.floats(0.001, 200), min_size=1, max_size=12, unique=True),
    st.sampled_from([0.5, 0.9, 0.99]),
)
def test_a_quantile_lies_in_the_bucket_of_the_true_one(values: list[float], bounds: list[float], q: float) -> None:
    """Or at the last finite bound, where the true one is beyond."""
    edges = np.array([*sorted(bounds), math.inf])
    counts = np.array(
        [sum(low < v <= high for v in values) for low, high in zip([0, *edges], edges, strict=False)], float
    )
    found = quantile(edges, counts, q)
    ordered = sorted(values)
    true = ordered[max(0, math.ceil(q * len(values)) - 1)]
    at = int(np.searchsorted(edges, true))
    if at == len(edges) - 1:
        assert found == edges[-2]
    else:
        low = edges[at - 1] if at else 0.0
        assert low - 1e-9 <= found <= edges[at] + 1e-9
