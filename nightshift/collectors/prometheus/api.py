"""The Prometheus HTTP API (Thanos, Mimir and VictoriaMetrics speak it too): queries out, columns in.

Answers are decoded into columns, not objects per series: 100,000 series a query, dozens of queries a tick. Like an
exposition page, an answer repeats itself from tick to tick but for its values, so its label sets are read once.
(prometheus-api-client makes dictionaries and has no deadline over a whole exchange: it is the peer of
`benchmarks/collectors_speed.py`, and no dependency.)
Reference: https://prometheus.io/docs/prometheus/latest/querying/api/
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import orjson

from nightshift.collectors.frame import Floats, Reason
from nightshift.collectors.http import HttpRequest, HttpResponse, SourceError


@dataclass(frozen=True, eq=False)
class Vector:
    """An instant query's result: one label set and value per series, at one evaluation time (Unix s)."""

    labels: Sequence[Mapping[str, str]]
    values: Floats
    at_s: float
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Matrix:
    """A range query's result: values [n_times, n_series] at `t_s` [n_times] (Unix s); NaN: no sample."""

    labels: Sequence[Mapping[str, str]]
    t_s: Floats
    values: Floats


def instant(url: str, query: str, at_s: float | None = None, timeout_s: float = 30.0) -> HttpRequest:
    form = {"query": query, "timeout": f"{timeout_s:g}s"}
    if at_s is not None:
        form["time"] = f"{at_s:.3f}"
    return HttpRequest(f"{url.rstrip('/')}/api/v1/query", form)


def over_range(url: str, query: str, start_s: float, end_s: float, step_s: float) -> HttpRequest:
    form = {"query": query, "start": f"{start_s:.3f}", "end": f"{end_s:.3f}", "step": f"{step_s:g}"}
    return HttpRequest(f"{url.rstrip('/')}/api/v1/query_range", form)


def read_vector(answer: HttpResponse) -> Vector:
    """Raises SourceError where the answer is no vector.

    >>> row = '{"metric":{"gpu":"0"},"value":[100,"655.2"]}'
    >>> body = '{"status":"success","data":{"resultType":"vector","result":[%s]}}' % row
    >>> vector = read_vector(HttpResponse(body.encode(), "application/json", took_s=0.1, date_s=100.0))
    >>> vector.labels, vector.values.tolist(), vector.at_s
    ([{'gpu': '0'}], [655.2], 100.0)
    """
    rows, warnings = _result(answer, "vector")
    try:
        pairs = [row["value"] for row in rows]
        labels = [row["metric"] for row in rows]
        texts = [pair[1] for pair in pairs]
        if pairs and set(map(type, texts)) != {str}:
            raise TypeError("a value that is no text")
        values = np.fromiter(map(float, texts), np.float64, len(texts))
        at_s = float(pairs[0][0]) if pairs else math.nan
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise SourceError(Reason.MALFORMED, f"a series of the vector: {error!r}") from error
    if not all(type(label) is dict for label in labels):
        raise SourceError(Reason.MALFORMED, "a series without labels")
    return Vector(labels, values, at_s, warnings)


_OPENING = b'{"status":"success",'
_WHOLE_HEAD = _OPENING + b'"isPartial":false,'
_HEAD = _OPENING + b'"data":{"resultType":"vector","result":['
_ROW = b'{"metric":{'
_VALUE = b'},"value":['


@dataclass(frozen=True, eq=False)
class _Rows:
    """An answer's rows up to their values, and the label sets that they say."""

    prefixes: list[bytes]
    prefix_bytes: int
    labels: Sequence[Mapping[str, str]]


class VectorReader:
    """Reads vectors whose series come again and again, for queries keyed by the same labels.

    `labels` of equal series are the same objects, and in an answer whose rows have not moved the same sequence. A
    quote inside a JSON string is written with a backslash, so what rows are cut at occurs nowhere else. Whatever
    does not look exactly as Prometheus writes it is read by `read_vector` instead.
    """

    def __init__(self, max_keys: int = 1_000_000, max_shapes: int = 8) -> None:
        self._max_keys = max_keys
        self._max_shapes = max_shapes
        self._labels_of: dict[bytes, Mapping[str, str]] = {}
        self._shapes: dict[int, _Rows] = {}

    def read(self, answer: HttpResponse) -> Vector:
        """Raises SourceError where the answer is no vector."""
        if answer.body.startswith(_WHOLE_HEAD):  # a cluster of VictoriaMetrics says this of each answer
            answer = replace(answer, body=_OPENING + answer.body[len(_WHOLE_HEAD) :])
        if not answer.body.startswith(_HEAD + _ROW):
            return read_vector(answer)
        rows = answer.body[len(_HEAD) + len(_ROW) :].split(_ROW)
        last, _, tail = rows[-1].rpartition(b'"]}]')
        rows[-1] = last + b'"]},'
        try:
            _, warnings = _result(replace(answer, body=_HEAD + b"]" + tail), "vector")
            known, rests = self._rests(rows)
            stamp, comma, _ = rests[0].partition(b',"')
            joined = b"".join(rests)
            texts = joined.replace(stamp + comma, b"").split(b'"]},')[:-1]
            if not comma or len(texts) != len(rows) or b"_" in joined:
                return read_vector(answer)
            values = np.fromiter(map(float, texts), np.float64, len(texts))
            return Vector(known.labels, values, float(stamp), warnings)
        except (ValueError, SourceError):
            return read_vector(answer)

    def _rests(self, rows: list[bytes]) -> tuple[_Rows, list[bytes]]:
        """What stands before each row's value, and what follows it."""
        known = self._shapes.get(len(rows))
        if known is not None:
            rests = list(map(bytes.removeprefix, rows, known.prefixes))
            if sum(map(len, rests)) + known.prefix_bytes == sum(map(len, rows)):
                return known, rests
        parts = [row.partition(_VALUE) for row in rows]
        if len(self._labels_of) > self._max_keys:
            self._labels_of.clear()
        labels = []
        for key, _, _ in parts:
            found = self._labels_of.get(key)
            if found is None:
                found = self._labels_of[key] = _label_set(key)
            labels.append(found)
        prefixes = [key + separator for key, separator, _ in parts]
        known = _Rows(prefixes, sum(map(len, prefixes)), labels)
        self._shapes.pop(len(rows), None)
        while len(self._shapes) >= self._max_shapes:
            self._shapes.pop(next(iter(self._shapes)))
        self._shapes[len(rows)] = known
        return known, [rest for _, _, rest in parts]


def _label_set(raw: bytes) -> Mapping[str, str]:
    """Raises ValueError where the bytes are no label set."""
    found = orjson.loads(b"{" + raw + b"}")
    if not all(type(value) is str for value in found.values()):
        raise ValueError("a label that is no text")
    labels: Mapping[str, str] = found
    return labels


def read_matrix(answer: HttpResponse, start_s: float, end_s: float, step_s: float) -> Matrix:
    """Places each series' samples on the grid that was asked for. Raises SourceError where it is no matrix."""
    rows, _ = _result(answer, "matrix")
    n_times = math.floor((end_s - start_s) / step_s + 1e-9) + 1
    t_s: Floats = np.float64(start_s) + np.float64(step_s) * np.arange(n_times, dtype=np.float64)
    values = np.full((len(t_s), len(rows)), np.nan)
    try:
        for column, row in enumerate(rows):
            stamps = np.fromiter([float(pair[0]) for pair in row["values"]], np.float64)
            numbers = np.fromiter([float(pair[1]) for pair in row["values"]], np.float64)
            places = np.rint((stamps - start_s) / step_s).astype(np.int64)
            inside = (places >= 0) & (places < len(t_s))
            values[places[inside], column] = numbers[inside]
        return Matrix([dict(row["metric"]) for row in rows], t_s, values)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise SourceError(Reason.MALFORMED, f"a series of the matrix: {error!r}") from error


def _result(answer: HttpResponse, expected: str) -> tuple[list[Any], tuple[str, ...]]:
    try:
        document = orjson.loads(answer.body)
    except orjson.JSONDecodeError as error:
        raise SourceError(Reason.MALFORMED, f"no JSON: {error}") from error
    if not isinstance(document, dict):
        raise SourceError(Reason.MALFORMED, "the answer is no JSON object")
    if document.get("status") != "success":
        raise SourceError(Reason.HTTP_STATUS, f"{document.get('errorType')}: {document.get('error')}")
    data = document.get("data")
    if not isinstance(data, dict) or data.get("resultType") != expected or not isinstance(data.get("result"), list):
        raise SourceError(Reason.MALFORMED, f"the answer holds no {expected}")
    warnings = document.get("warnings")
    told = tuple(map(str, warnings)) if isinstance(warnings, list) else ()
    # Prometheus warns of odd queries with this word; the others' warnings are of stores that did not answer
    missing = tuple(text for text in told if not text.startswith("PromQL"))
    if document.get("isPartial") is True:  # VictoriaMetrics
        missing = (*missing, "the answer is partial: a storage node is unavailable")
    return data["result"], missing
