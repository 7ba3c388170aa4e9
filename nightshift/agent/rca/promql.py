"""PromQL for an investigation: asked of the Prometheus that the configuration names as a source. Reads only.

Not every query may become evidence: only what selects and aggregates that which was measured, and invents nothing.

A claim about a series proves nothing where the query made the series: `(time() > bool 1.7e9) * 50` rises by 50
whenever its author likes, `offset` moves a moment, `label_replace` gives a value to another GPU. So numbers, times
and labels come from the data alone; two measured series may be divided. Reference: prometheus.io/docs/prometheus
(querying: basics, operators, functions).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from nightshift.collectors.base import Temporary
from nightshift.collectors.http import Fetcher, SourceError
from nightshift.collectors.prometheus.api import Matrix, over_range, read_matrix
from nightshift.collectors.prometheus.live import PrometheusCollector

if TYPE_CHECKING:
    from nightshift.agent.rca.lookup import RangeQuery

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
        fetcher = Fetcher(self._settings.connection, max_bytes=MAX_BYTES)
        try:
            (answer,) = fetcher.fetch([over_range(self._settings.url, query, start_s, end_s, step_s)], TIMEOUT_S)
            # `fetch` hands errors over per address, so that one that is down leaves the others
            if isinstance(answer, SourceError):
                raise answer
            return read_matrix(answer, start_s, end_s, step_s)
        except SourceError as error:
            raise Temporary(f"Prometheus: {error.reason}: {error.detail}") from error
        finally:
            fetcher.close()


_NUMBERED = frozenset(("topk", "bottomk", "quantile", "histogram_quantile", "quantile_over_time"))
"""Those that take a number first."""
_OVER_TIME = frozenset(
    f"{how}_over_time" for how in ("avg", "min", "max", "sum", "count", "last", "stddev", "present")
)
_CALLED = (
    _NUMBERED
    | _OVER_TIME
    | frozenset(
        ("sum", "avg", "min", "max", "count", "group", "stddev", "stdvar", "by", "without", "on", "ignoring")
    )
    | frozenset(("and", "unless", "rate", "irate", "increase", "delta", "idelta", "deriv", "changes", "resets"))
)
"""Words that may stand before a parenthesis."""
# `start` and `end` are @-modifiers, which move a moment; `or` may add a series of the author's own.
_INVENTS = frozenset(("or", "bool", "offset", "atan2", "group_left", "group_right", "inf", "nan", "start", "end"))
_SELECTOR = re.compile(
    r"""\{(?:[^{}"'`]|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|`[^`]*`)*\}|\[\s*(?:\d+(?:ms|[smhdwy]))+\s*\]""",
    re.DOTALL,
)
"""What only chooses among measured series and times: braces with their texts, and a range."""
_TOKEN = re.compile(r"\s+|([A-Za-z_:][A-Za-z0-9_:]*)|((?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|(.)", re.DOTALL)


def invents(query: str) -> str | None:
    """What of a query is not measured, in words for its author; None where all of it is."""
    tokens = [m for m in _TOKEN.finditer(_SELECTOR.sub(" ", query)) if m.lastindex]
    texts = ["", "", *(token.group().lower() for token in tokens), ""]
    for place, token in enumerate(tokens, start=2):
        caller, before, text, after = texts[place - 2 : place + 2]
        name, number, sign = token.groups()
        if name and (text in _INVENTS or (after == "(" and text not in _CALLED)):
            return f"{name!r} makes a series that was never measured"
        # only as the first argument of those that take one: topk(5, …) chooses, 5 * … invents
        if number and not (before == "(" and after == "," and caller in _NUMBERED):
            return f"the number {number} is not measured"
        if sign and sign not in "(),/":
            return f"{sign!r} makes a series that was never measured"
    return None
