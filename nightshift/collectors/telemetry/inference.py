"""Inference servers' metrics pages: vLLM, SGLang and Triton, one row per served model.

Names as the servers write them: vLLM's docs/usage/metrics.md and docs/design/metrics.md (V1: `kv_cache_usage_perc`,
`inter_token_latency_seconds`; before: `gpu_cache_usage_perc`, `time_per_output_token_seconds`), SGLang's
srt/metrics/collector.py, Triton's docs/user_guide/metrics.md (its vLLM backend passes vLLM's names through, its
TensorRT-LLM backend adds `nv_trt_llm_…`).

A Prometheus' `/federate` is such a page of many servers, told apart by `instance`, with the times of their scrapes.

A server counts per engine, reason or version: counts are summed, a cache's use is its fullest engine's. SGLang's
tensor- and pipeline-parallel ranks each tell of the same requests: the first rank's word is taken. Histograms are
read as what happened within `WINDOW_S`, and quantiles by linear interpolation within a bucket, as PromQL's
histogram_quantile does; one beyond the last finite bound is that bound.
"""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from nightshift.collectors.frame import Floats, Ints, Reason
from nightshift.collectors.subject import MAX_NAME_CHARS, Subject, SubjectKind
from nightshift.collectors.telemetry.exposition import Layout, Page, Series
from nightshift.collectors.telemetry.metrics import of_kind
from nightshift.collectors.telemetry.pages import FORGET_AFTER_S, PageCollector, PagePlan, PageSettings
from nightshift.collectors.telemetry.rows import Rows, cells

_SERVER = SubjectKind.SERVER
_MODEL_LABELS = ("model_name", "model", "served_model_name")
_QUANTILES = {"p50": 0.5, "p99": 0.99}
_FULLEST = frozenset({"server_kv_cache_used_ratio"})
_METRICS = of_kind(_SERVER)
_COLUMN = {metric.name: column for column, metric in enumerate(_METRICS)}
_PLAIN = {
    name: metric.name
    for metric in _METRICS
    for name in (metric.exported_as, *metric.aliases)
    if not name.startswith("quantile(")
}
_SCALE = {"nv_inference_queue_duration_us": 1e-6, "nv_inference_first_response_histogram_ms": 1e-3}
_HISTOGRAM = {
    name.removeprefix("quantile(0.5, ").removesuffix(")"): metric.name.removesuffix("_p50_s")
    for metric in _METRICS
    for name in (metric.exported_as, *metric.aliases)
    if name.startswith("quantile(0.5, ")
}
"""Histogram → metric without its quantile: `vllm:time_to_first_token_seconds` → `server_ttft`."""


@dataclass
class _Histogram:
    """One latency of one model: the positions of each bucket's samples, lowest bound first, and what they said."""

    subject: Subject
    metric: str
    bounds: Floats
    members: Sequence[Ints]
    scale: float
    seen: deque[tuple[float, Floats]] = field(default_factory=deque)

    def increase(self, values: Floats, now_s: float, window_s: float) -> Floats | None:
        """[n_buckets] how many fell into each since the window began; None where that is not known yet."""
        told = np.array([values[at].sum() for at in self.members])
        # a bucket that was refused would make the others' differences wrong
        if np.isnan(told).any():
            return None
        if self.seen and (now_s <= self.seen[-1][0] or (told < self.seen[-1][1]).any()):
            self.seen.clear()  # the server, or the clock, began anew
        self.seen.append((now_s, told))
        while len(self.seen) > 1 and self.seen[1][0] <= now_s - window_s:
            self.seen.popleft()
        if len(self.seen) < 2:
            return None
        found: Floats = np.diff(told - self.seen[0][1], prepend=0.0)
        return np.maximum(found, 0.0)


@dataclass(frozen=True, eq=False)
class _ServerPlan(PagePlan):
    """sums: of each output cell, the samples that make it up, what to do with them, and their scale."""

    sums: Sequence[tuple[Ints, bool, float]] = ()
    histograms: Sequence[_Histogram] = ()


# Latency quantiles are of the requests within this time: four scrapes of 15 s, enough requests for a p99.
WINDOW_S = 60.0
# Most models of one page that get a row: a page that lists more is not a server's.
MAX_MODELS = 256


class InferenceCollector(PageCollector):
    r"""One row per model that a server serves; NaN where it did not say, and for quantiles of no requests.

    >>> from nightshift.collectors.telemetry.exposition import PageParser
    >>> page = PageParser().parse(b'vllm:num_requests_waiting{model_name="chat"} 12\n')
    >>> collector = InferenceCollector(InferenceCollector.Settings(urls=["http://n1:8000/metrics"]))
    >>> plan = collector.plan(page.layout, page, "n1", None, "n1:8000")
    >>> [str(subject) for found in plan.cells for subject in found.subjects]
    ['server:n1:8000/chat']
    """

    plugin: ClassVar[str] = "inference"

    class Settings(PageSettings):
        """Scrapes vLLM, SGLang or Triton Inference Server."""

    def __init__(self, settings: Settings, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(settings, {_SERVER: Rows(_SERVER, _METRICS, FORGET_AFTER_S)}, clock)
        self._window_s, self._max_models = WINDOW_S, MAX_MODELS

    def plan(self, layout: Layout, page: Page, host: str, node: str | None, place: str) -> PagePlan:
        sums: dict[tuple[Subject, str], dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        buckets: dict[tuple[Subject, str, str], dict[float, list[int]]] = defaultdict(lambda: defaultdict(list))
        rejected: Counter[Reason] = Counter()
        subjects: dict[tuple[str, str], Subject] = {}
        for position, series in enumerate(layout.series):
            name, family = _known_name(series), series.name.removesuffix("_bucket")
            if (name is None and family not in _HISTOGRAM) or _is_repeated(series):
                continue
            model = next((m for label in _MODEL_LABELS if (m := series.label(label))), "")
            key = (series.label("instance") or place, model)
            if key not in subjects and len(subjects) >= self._max_models:
                rejected[Reason.TOO_LARGE] += 1
                continue
            try:
                subject = subjects[key] = subjects.get(key) or _server(*key)
                # `_sum` and `_count` of a histogram have no bound, and no part in a quantile
                bound = float(series.label("le", "nan")) if name is None else math.nan
            except ValueError:
                rejected[Reason.MALFORMED] += 1
                continue
            if name is not None:
                sums[subject, _PLAIN[name]][name].append(position)
            elif not math.isnan(bound):
                buckets[subject, _HISTOGRAM[family], family][bound].append(position)
        return self._planned(layout, sums, buckets, node, rejected)

    def _planned(
        self,
        layout: Layout,
        sums: dict[tuple[Subject, str], dict[str, list[int]]],
        buckets: dict[tuple[Subject, str, str], dict[float, list[int]]],
        node: str | None,
        rejected: Counter[Reason],
    ) -> PagePlan:
        entries: list[tuple[int, Subject, int, float]] = []
        added: list[tuple[Ints, bool, float]] = []
        for (subject, metric), by_name in sums.items():
            name = next(name for name in _PLAIN if name in by_name)  # of two names for one thing, the newer
            entries.append((len(entries), subject, _COLUMN[metric], 1.0))
            added.append((np.array(by_name[name], dtype=np.int64), metric in _FULLEST, _SCALE.get(name, 1.0)))
        histograms = []
        families = list(_HISTOGRAM)
        taken: set[tuple[Subject, str]] = set()
        for subject, metric, family in sorted(buckets, key=lambda key: families.index(key[2])):
            if (subject, metric) in taken:
                continue
            taken.add((subject, metric))
            found = sorted(buckets[subject, metric, family].items())
            bounds = np.array([bound for bound, _ in found])
            members = [np.array(at, dtype=np.int64) for _, at in found]
            histograms.append(_Histogram(subject, metric, bounds, members, _SCALE.get(family, 1.0)))
            entries += [
                (len(entries) + n, subject, _COLUMN[f"{metric}_{short}_s"], 1.0)
                for n, short in enumerate(_QUANTILES)
            ]
        here = (Subject(SubjectKind.NODE, node),) if node else ()
        relations = frozenset((subject, parent) for _, subject, _, _ in entries for parent in here)
        return _ServerPlan(
            layout,
            [cells(_SERVER, entries)],
            relations,
            {},
            here,
            dict(rejected),
            sums=added,
            histograms=histograms,
        )

    def shaped(self, plan: PagePlan, page: Page, now_s: float) -> tuple[Floats, Floats]:
        assert isinstance(plan, _ServerPlan)
        values = [
            scale * float(np.max(page.values[at]) if is_fullest else np.sum(page.values[at]))
            for at, is_fullest, scale in plan.sums
        ]
        times = [float(page.times_s[at].min()) for at, _, _ in plan.sums]
        for histogram in plan.histograms:
            counts = histogram.increase(page.values, now_s, self._window_s)
            values += [
                math.nan if counts is None else histogram.scale * quantile(histogram.bounds, counts, q)
                for q in _QUANTILES.values()
            ]
            times += [float(page.times_s[histogram.members[-1]].min())] * len(_QUANTILES)
        return np.array(values, dtype=np.float64), np.array(times, dtype=np.float64)


def quantile(bounds: Floats, counts: Floats, q: float) -> float:
    """The q-quantile of what fell into buckets with these upper bounds (rising; the last may be inf): NaN of
    nothing, and of a histogram without finite bounds. As PromQL's histogram_quantile, the lowest bucket of positive
    bounds begins at zero.

    >>> bounds = np.array([0.1, 0.2, np.inf])
    >>> quantile(bounds, np.array([50.0, 100.0, 100.0]), 0.5), quantile(bounds, np.array([0.0, 0.0, 0.0]), 0.5)
    (0.17500000000000002, nan)
    """
    total = float(counts.sum())
    finite = bounds[np.isfinite(bounds)]
    if total <= 0 or not len(finite):
        return math.nan
    reached = np.cumsum(counts)
    at = int(np.searchsorted(reached, q * total))
    if at >= len(finite):
        return float(finite[-1])
    low = float(bounds[at - 1]) if at else min(0.0, float(bounds[0]))
    below = float(reached[at - 1]) if at else 0.0
    inside = float(counts[at])
    return low + (float(bounds[at]) - low) * ((q * total - below) / inside if inside else 1.0)


def _is_repeated(series: Series) -> bool:
    """SGLang's tensor- and pipeline-parallel ranks count the same requests: added up, a server of eight ranks would
    serve eight times what it does."""
    return any(series.label(rank, "0") != "0" for rank in ("tp_rank", "pp_rank"))


def _known_name(series: Series) -> str | None:
    """The name under which the table knows a series, with the label that makes a difference."""
    if series.name in _PLAIN:
        return series.name
    for label in ("request_type", "kv_cache_block_type"):
        if value := series.label(label):
            name = f"{series.name}{{{label}={value}}}"
            return name if name in _PLAIN else None
    return None


def _server(place: str, model: str) -> Subject:
    """Raises ValueError where the model's name cannot be one."""
    if not model.isprintable():
        raise ValueError("a model's name with control characters")
    name = f"{place}/{model}" if model else place
    if len(name) > MAX_NAME_CHARS:
        raise ValueError("a model's name that is too long")
    return Subject(_SERVER, name)
