"""A server that stops while requests wait is told; one that idles, starts up or is overloaded is not."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pytest

from nightshift.collectors.frame import Frame, SeriesIndex
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.base import Fault, State
from nightshift.detectors.contract.testing import START_S, changes
from nightshift.detectors.serving import Serving

SERVER = Subject(SubjectKind.SERVER, "http://n1:8000/chat")
METRICS = (
    "server_generated_tokens_total",
    "server_requests_done_total",
    "server_requests_waiting",
    "server_requests_running",
)


def ticks(count: int, rate: Callable[[int], float], waiting: Callable[[int], float]) -> list[Tick]:
    """Tokens per tick and requests in the queue by number of the look, 5 s apart."""
    tokens, found = 1000.0, []
    for n in range(count):
        tokens += rate(n)
        found.append(look(n, (tokens, tokens // 200, waiting(n), min(waiting(n), 8.0))))
    return found


def look(n: int, row: Iterable[float]) -> Tick:
    at_s = START_S + 5.0 * n
    frame = Frame(
        at_s,
        SeriesIndex(SubjectKind.SERVER, (SERVER,)),
        METRICS,
        np.array([list(row)]),
        np.full((1, 4), at_s),
        np.zeros(1, dtype=np.int64),
    )
    return Tick(at_s, {SubjectKind.SERVER: frame})


def test_a_server_that_writes_nothing_while_requests_wait_hangs_and_clears() -> None:
    """Said two minutes after its last token, dated by it, cleared with the next."""
    stream = ticks(150, lambda n: 0.0 if 50 <= n < 100 else 400.0, lambda n: 12.0)
    found = changes(Serving(), stream, Inventory())
    hang = [f for f in found if f.fault is Fault.HANG]
    assert [f.state for f in hang] == [State.FIRING, State.CLEAR]
    assert hang[0].since.t_s == START_S + 5.0 * 49
    assert hang[0].at.t_s == START_S + 5.0 * 49 + 120.0


def test_a_server_that_stops_again_and_again_stalls() -> None:
    """Half a minute in every two: one episode with the share that it costs; over when it runs through."""
    stream = ticks(300, lambda n: 0.0 if n < 150 and n % 24 >= 18 and n > 10 else 400.0, lambda n: 12.0)
    found = changes(Serving(), stream, Inventory())
    assert [(f.fault, f.state) for f in found] == [(Fault.DATA_STALL, s) for s in (State.FIRING, State.CLEAR)]
    assert 0.15 <= float(found[0].facts["lost_share"]) <= 0.4


@pytest.mark.parametrize(
    ("rate", "waiting"),
    [
        (lambda n: 0.0 if n >= 50 else 400.0, lambda n: 0.0 if n >= 50 else 5.0),
        (lambda n: 400.0, lambda n: 5.0 + n),
        (lambda n: 0.0, lambda n: 50.0),
        (lambda n: 0.0 if n % 40 < 2 else 400.0, lambda n: 5.0),
        (lambda n: -50_000.0 if n == 50 else 0.0 if 50 < n < 100 else 400.0, lambda n: 5.0),
    ],
    ids=["idle", "overload", "starting up", "short pauses", "restart and load"],
)
def test_idling_overload_start_up_and_short_pauses_are_no_fault(
    rate: Callable[[int], float], waiting: Callable[[int], float]
) -> None:
    assert changes(Serving(), ticks(300, rate, waiting), Inventory()) == []


def test_a_page_that_goes_away_is_no_data_and_a_gap_is_no_hang() -> None:
    """Firing becomes no_data; ten minutes without the page are not ten minutes without a token."""
    hung = ticks(90, lambda n: 0.0 if n >= 50 else 400.0, lambda n: 12.0)
    gone = [look(n, [np.nan] * 4) for n in range(90, 300)]
    assert [f.state for f in changes(Serving(), hung + gone, Inventory())] == [State.FIRING, State.NO_DATA]
    stream = ticks(300, lambda n: 400.0 if n < 50 or n > 170 else 0.0, lambda n: 12.0)
    assert changes(Serving(), stream[:50] + stream[165:], Inventory()) == []
