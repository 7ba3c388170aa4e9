"""The table of metrics is whole."""

from __future__ import annotations

from nightshift.collectors.telemetry.metrics import BY_EXPORTED, BY_NAME, DERIVED, METRICS, NVML, MetricType, table


def test_names_are_unique_and_ranges_can_be_met() -> None:
    assert len(BY_NAME) == len(METRICS) + len(DERIVED)
    assert len(BY_EXPORTED) == sum(1 + len(metric.aliases) for metric in METRICS)
    assert all(metric.low < metric.high for metric in METRICS)
    assert NVML.keys() <= BY_NAME.keys()


def test_every_metric_stands_in_the_reference() -> None:
    assert all(f"| `{name}` |" in table() for name in BY_NAME)


def test_every_rate_is_of_counters_of_its_own_kind() -> None:
    counters = {(metric.kind, metric.name) for metric in METRICS if metric.type is MetricType.COUNTER}
    for derived in DERIVED:
        assert {(derived.kind, name) for name in (derived.counter, derived.per) if name} <= counters
