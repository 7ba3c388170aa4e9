"""Range queries for an investigation, to the Prometheus that the configuration names as a source. Reads only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from nightshift.agent.rca.lookup import RangeQuery
from nightshift.collectors.base import Temporary
from nightshift.collectors.http import Fetcher, SourceError
from nightshift.collectors.prometheus.api import Matrix, over_range, read_matrix
from nightshift.collectors.prometheus.live import PrometheusCollector

TIMEOUT_S = 10.0
MAX_BYTES = 8 * 2**20


def range_query(sources: Iterable[Any]) -> RangeQuery | None:
    """Asks the first Prometheus among the sources; None where there is none."""
    for source in sources:
        if isinstance(source, PrometheusCollector.Settings):
            return _Prometheus(source)
    return None


class _Prometheus:
    """One question, one connection: investigations are rare and run in threads of their own."""

    def __init__(self, settings: PrometheusCollector.Settings) -> None:
        self._settings = settings

    def __call__(self, query: str, start_s: float, end_s: float, step_s: float) -> Matrix:
        """Raises Temporary where Prometheus does not answer, or refuses the query (its words are passed on)."""
        fetcher = Fetcher(self._settings.http, max_bytes=MAX_BYTES)
        try:
            (answer,) = fetcher.fetch([over_range(self._settings.url, query, start_s, end_s, step_s)], TIMEOUT_S)
            if isinstance(answer, SourceError):
                raise answer
            return read_matrix(answer, start_s, end_s, step_s)
        except SourceError as error:
            raise Temporary(f"Prometheus: {error.reason}: {error.detail}") from error
        finally:
            fetcher.close()
