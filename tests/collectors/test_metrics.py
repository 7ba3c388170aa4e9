"""The table of metrics is whole."""

from __future__ import annotations

from collectors.metrics import BY_EXPORTED, BY_NAME, METRICS, NVML, table


def test_names_are_unique_and_ranges_can_be_met() -> None:
    assert len(BY_NAME) == len(BY_EXPORTED) == len(METRICS)
    assert all(metric.low < metric.high for metric in METRICS)
    assert NVML.keys() <= BY_NAME.keys()


def test_every_metric_stands_in_the_reference() -> None:
    assert all(f"| `{name}` |" in table() for name in BY_NAME)
