"""Metrics of inference servers, one row per served model: what vLLM, SGLang and Triton say, under one name each.

`collectors.telemetry.inference` maps their names; a quantile is of the requests that ended between two looks.
"""

from __future__ import annotations

from nightshift.collectors.subject import SubjectKind
from nightshift.collectors.telemetry.metric import Derived, Metric, MetricType

_G, _C = MetricType.GAUGE, MetricType.COUNTER


def _of(name: str, unit: str, kind: MetricType, text: str, *exported: str, high: float = 1e18) -> Metric:
    first, *others = exported
    return Metric(f"server_{name}", SubjectKind.SERVER, unit, kind, text, first, high=high, aliases=tuple(others))


def _window(name: str, text: str, *histograms: str) -> tuple[Metric, ...]:
    """The median and the 99th percentile of a latency's histogram, by what each server calls it."""
    return tuple(
        _of(f"{name}_{short}_s", "s", _G, f"{text}, {words}", *(f"quantile({q:g}, {h})" for h in histograms))
        for short, q, words in (("p50", 0.5, "median"), ("p99", 0.99, "99th percentile"))
    )


SERVER_METRICS: tuple[Metric, ...] = (
    _of(
        *("requests_running", "requests", _G, "In the running batch", "vllm:num_requests_running"),
        *("sglang:num_running_reqs", "nv_trt_llm_request_metrics{request_type=active}"),
    ),
    _of(
        *("requests_waiting", "requests", _G, "In the queue", "vllm:num_requests_waiting", "sglang:num_queue_reqs"),
        *("nv_inference_pending_request_count", "nv_trt_llm_request_metrics{request_type=waiting}"),
    ),
    _of(
        *("kv_cache_used_ratio", "ratio", _G, "KV cache in use", "vllm:kv_cache_usage_perc"),
        *("vllm:gpu_cache_usage_perc", "sglang:token_usage"),
        "nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=fraction}",
        high=1.05,
    ),
    _of(
        *("prompt_tokens_total", "tokens", _C, "Tokens of prompts", "vllm:prompt_tokens_total"),
        "sglang:prompt_tokens_total",
    ),
    _of(
        *("generated_tokens_total", "tokens", _C, "Tokens written", "vllm:generation_tokens_total"),
        "sglang:generation_tokens_total",
    ),
    _of(
        *("requests_done_total", "requests", _C, "Requests that succeeded", "vllm:request_success_total"),
        *("sglang:num_requests_total", "nv_inference_request_success"),
    ),
    _of("requests_failed_total", "requests", _C, "Requests that failed", "nv_inference_request_failure"),
    _of(
        *("preemptions_total", "requests", _C, "Put back into the queue", "vllm:num_preemptions_total"),
        "sglang:num_retracted_requests_total",
    ),
    _of(
        *("queue_time_s_total", "s", _C, "Time in the queue, summed", "nv_inference_queue_duration_us"),
        *("vllm:request_queue_time_seconds_sum", "sglang:queue_time_seconds_sum"),
    ),
    *_window(
        *("ttft", "Time to the first token", "vllm:time_to_first_token_seconds"),
        *("sglang:time_to_first_token_seconds", "nv_inference_first_response_histogram_ms"),
    ),
    *_window(
        *("tpot", "Time between two tokens", "vllm:inter_token_latency_seconds"),
        *("vllm:time_per_output_token_seconds", "sglang:inter_token_latency_seconds"),
        "sglang:time_per_output_token_seconds",
    ),
    *_window(
        *("latency", "Time of a whole request", "vllm:e2e_request_latency_seconds"),
        "sglang:e2e_request_latency_seconds",
    ),
    *_window(
        *("queue", "Time in the queue", "vllm:request_queue_time_seconds", "sglang:queue_time_seconds"),
    ),
)

_S = SubjectKind.SERVER
SERVER_DERIVED: tuple[Derived, ...] = (
    Derived("server_prompt_tokens_per_s", _S, "tokens/s", "Prompts read", "server_prompt_tokens_total"),
    Derived("server_generated_tokens_per_s", _S, "tokens/s", "Tokens written", "server_generated_tokens_total"),
    Derived("server_requests_per_s", _S, "requests/s", "Requests that succeeded", "server_requests_done_total"),
    Derived("server_failures_per_s", _S, "requests/s", "Requests that failed", "server_requests_failed_total"),
    Derived("server_preemptions_per_s", _S, "requests/s", "Put back into the queue", "server_preemptions_total"),
    Derived(
        *("server_mean_queue_time_s", _S, "s", "Mean time in the queue", "server_queue_time_s_total"),
        "server_requests_done_total",
    ),
)
