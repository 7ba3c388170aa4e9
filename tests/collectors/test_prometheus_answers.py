"""Prometheus' answers, read fast, on a grid, and whatever else they say."""

from __future__ import annotations

import contextlib
import json
import math
from http.server import BaseHTTPRequestHandler
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightshift.collectors.frame import Reason
from nightshift.collectors.http import Fetcher, HttpRequest, HttpResponse, HttpSettings, SourceError
from nightshift.collectors.prometheus.api import VectorReader, over_range, read_matrix, read_vector
from tests.collectors.conftest import answer
from tests.collectors.test_prometheus import vector


def answered(body: bytes) -> HttpResponse:
    return HttpResponse(body, "application/json", 0.0, math.nan)


UUIDS = st.text(max_size=6) | st.sampled_from(['"},"value":[1,"9"]},{"metric":{', "a_b", '"]}]', "\\"])
TEXTS = st.sampled_from(["1", "-2.5e+09", "NaN", "+Inf", "0", "1e999", "007"]) | st.floats().map(repr)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_the_fast_reader_says_what_the_plain_one_says_of_every_sequence_of_answers(data: st.DataObject) -> None:
    reader = VectorReader(max_keys=20, max_shapes=2)
    pool = data.draw(st.lists(UUIDS, min_size=1, max_size=6, unique=True))
    for _ in range(4):
        chosen = data.draw(st.lists(st.sampled_from(pool), max_size=5))
        at_s = data.draw(st.sampled_from([1700000000, 1700000000.123]))
        rows = [{"metric": {"UUID": u}, "value": [at_s, data.draw(TEXTS)]} for u in chosen]
        body = vector(rows)
        if data.draw(st.booleans()):
            body = body[:-1] + b',"warnings":["store x is away"]}'
        if data.draw(st.integers(0, 5)) == 0:
            body = body[: data.draw(st.integers(0, len(body)))]
        try:
            expected = read_vector(answered(body))
        except SourceError as error:
            with pytest.raises(SourceError) as raised:
                reader.read(answered(body))
            assert raised.value.reason is error.reason  # noqa: PT017  the plain reader is the oracle
            continue
        found = reader.read(answered(body))
        assert list(found.labels) == list(expected.labels)
        np.testing.assert_array_equal(found.values, expected.values)
        assert found.warnings == expected.warnings
        assert found.at_s == expected.at_s or not chosen


def test_a_range_stands_on_the_grid_that_was_asked_for() -> None:
    series = {"metric": {"UUID": "GPU-0"}, "values": [[100, "1"], [110.0, "NaN"], [115, "4"], [999, "7"]]}
    body = json.dumps({"status": "success", "data": {"resultType": "matrix", "result": [series]}}).encode()
    matrix = read_matrix(answered(body), 100.0, 120.0, 5.0)
    assert matrix.t_s.tolist() == [100, 105, 110, 115, 120]
    np.testing.assert_array_equal(matrix.values[:, 0], [1, np.nan, np.nan, 4, np.nan])
    request = over_range("http://p/", "up", 100.0, 120.0, 5.0)
    assert request.url == "http://p/api/v1/query_range"


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
    | st.sampled_from(["success", "vector"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["status", "data", "result", "resultType", "metric", "value"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(JSON)
def test_any_json_is_a_vector_or_an_error_by_name(document: object) -> None:
    for body in (orjson.dumps(document), vector([document])):
        for read in (read_vector, VectorReader().read, lambda a: read_matrix(a, 0.0, 10.0, 1.0)):
            with contextlib.suppress(SourceError):  # and nothing else
                assert read(answered(body)).values.dtype == np.float64


@pytest.mark.parametrize("header", ["30", "", "Wed, 21 Oct 2099 07:28:00 GMT", "soon"])
def test_a_server_that_asks_for_a_pause_is_left_alone(page_server: Any, header: str) -> None:
    """Mimir's and Thanos' front ends: 64 queries at every look made it worse. After the pause it is asked again."""
    asked = []

    def limited(handler: BaseHTTPRequestHandler) -> None:
        asked.append(handler.path)
        answer(handler, b'{"status":"error","error":"too many outstanding requests"}', 429, Retry_After=header)

    page_server.pages["/api/v1/query"] = limited
    now = [1000.0]
    fetcher = Fetcher(HttpSettings(), max_bytes=10_000, parallel=1, timer=lambda: now[0])
    requests = [HttpRequest(f"{page_server.url}/api/v1/query", {"query": str(n)}) for n in range(8)]
    first = fetcher.fetch(requests, 5.0)
    assert [found.reason for found in first if isinstance(found, SourceError)] == [Reason.LIMITED] * 8
    now[0] += 10.0
    fetcher.fetch(requests, 5.0)
    assert len(asked) == 1
    now[0] += 700.0
    fetcher.fetch(requests[:1], 5.0)
    assert len(asked) == 2
    fetcher.close()
