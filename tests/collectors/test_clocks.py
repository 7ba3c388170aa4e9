"""Clocks of nodes: measured within their bounds, and order is said only where it is known."""

from __future__ import annotations

import math
import threading
import time
from http.server import BaseHTTPRequestHandler
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from nightshift.collectors.clocks import DRIFT, ClockOffset, ClockOffsets, measured
from nightshift.collectors.frame import Instant, Order
from nightshift.collectors.merge import merge
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.telemetry.dcgm_exporter import NODE_TIME, DcgmExporterCollector
from nightshift.collectors.telemetry.node_exporter import NodeExporterCollector
from tests.collectors.conftest import answer

NOW = 1_795_260_000.0


@given(st.floats(-3600, 3600), st.floats(0, 2), st.floats(0, 1), st.booleans())
def test_the_true_offset_is_within_the_measured_bounds(
    offset_s: float, trip_s: float, share: float, by_date: bool
) -> None:
    """Whenever within the round trip the node read its clock, and also by a Date that is cut to seconds."""
    told_s = NOW + share * trip_s + offset_s
    found = measured("n", NOW, trip_s, date_s=math.floor(told_s)) if by_date else measured("n", NOW, trip_s, told_s)
    assert found is not None
    assert abs(found.offset_s - offset_s) <= found.uncertainty_s + 1e-6


def test_what_tells_no_time_measures_nothing() -> None:
    assert measured("n", NOW, 0.1) is None
    assert measured("n", NOW, 0.1, math.inf) is None
    assert measured("n", NOW, 0.1, 0.0) is None
    assert measured("n", math.nan, 0.1, NOW) is None


def test_order_between_nodes_is_said_on_one_clock_and_only_where_it_is_known() -> None:
    """A clock 30 s ahead makes a later event look earlier; corrected, it is not. One node needs no margin."""
    clocks = ClockOffsets([ClockOffset("n1", 30.0, 0.01, NOW), ClockOffset("n2", -0.5, 0.01, NOW)])
    first, second = Instant(NOW + 30.0, 0.0, "n1"), Instant(NOW + 4.5, 0.0, "n2")
    assert first.order(second) is Order.AFTER
    assert clocks.corrected(first).order(clocks.corrected(second)) is Order.BEFORE
    assert clocks.corrected(second).order(clocks.corrected(first)) is Order.AFTER
    near = clocks.corrected(Instant(NOW + 30.01, 0.0, "n1")), clocks.corrected(Instant(NOW - 0.5, 0.0, "n2"))
    assert near[0].order(near[1]) is Order.CONCURRENT
    same = clocks.corrected(Instant(NOW, 0.0, "n1")), clocks.corrected(Instant(NOW + 0.001, 0.0, "n1"))
    assert same[0].order(same[1]) is Order.BEFORE


@given(st.floats(-100, 100), st.floats(0, 0.2), st.floats(-1, 1), st.floats(-5, 5))
def test_a_corrected_instant_holds_the_true_time(offset_s: float, half_s: float, error: float, at_s: float) -> None:
    """Whatever the clock's true offset within the measured bounds."""
    clocks = ClockOffsets([ClockOffset("n1", offset_s + error * half_s, half_s, NOW)])
    found = clocks.corrected(Instant(NOW + at_s + offset_s, 0.0, "n1"))
    assert abs(found.t_s - (NOW + at_s)) <= found.uncertainty_s + 1e-6


def test_a_clock_that_was_not_measured_finely_is_left_as_it_is() -> None:
    clocks = ClockOffsets([ClockOffset("n1", 9.0, 0.6, NOW)])
    for clock in ("n1", "n9", ""):
        instant = Instant(NOW, 0.0, clock)
        assert clocks.corrected(instant) is instant


def test_a_pods_clock_is_its_nodes() -> None:
    inventory, pod, node = Inventory(), Subject(SubjectKind.POD, "ml/p-0"), Subject(SubjectKind.NODE, "n1")
    inventory.observe(pod, node, NOW - 100)
    clocks = ClockOffsets([ClockOffset("n1", 60.0, 0.01, NOW)])
    line = clocks.corrected(Instant(NOW + 60.0, 0.0, "ml/p-0"), inventory)
    assert abs(line.t_s - NOW) < 1e-6


def test_the_finer_measurement_stands_until_it_has_aged_or_is_contradicted() -> None:
    fine, coarse = ClockOffset("n1", 0.0, 0.001, NOW), ClockOffset("n1", 0.1, 0.5, NOW + 1)
    clocks = ClockOffsets([fine, coarse])
    assert clocks.offset("n1") == fine
    aged = ClockOffset("n1", 0.1, 0.5, NOW + 0.5 / DRIFT)
    clocks.add([aged])
    assert clocks.offset("n1") == aged
    stepped = ClockOffset("n1", 7.0, 0.6, aged.at_s + 1)
    clocks.add([stepped])
    assert clocks.offset("n1") == stepped


def test_a_nodes_clock_is_measured_from_its_page_over_http(opened: Any, page_server: Any) -> None:
    """A node 100 s behind, whose page takes its time; and one that says only the Date."""

    def page(handler: BaseHTTPRequestHandler) -> None:
        time.sleep(0.05)
        told = time.time() - 100.0
        time.sleep(0.05)
        body = f'DCGM_FI_DEV_FB_USED{{UUID="GPU-1",Hostname="n1",gpu="0"}} 1\n{NODE_TIME} {told:.6f}\n'
        answer(handler, body.encode())

    page_server.pages["/n1"] = page
    page_server.pages["/n2"] = b'DCGM_FI_DEV_FB_USED{UUID="GPU-2",Hostname="n2",gpu="0"} 1\n'
    urls = [page_server.at("/n1"), page_server.at("/n2")]
    of = opened(DcgmExporterCollector(DcgmExporterCollector.Settings(urls=urls)))
    now_s = time.time()
    clocks = ClockOffsets(merge([of.collect(now_s, Inventory(), 30.0)], now_s).clocks)
    one, two = clocks.offset("n1"), clocks.offset("n2")
    assert one is not None
    assert two is not None
    assert abs(one.offset_s + 100.0) <= one.uncertainty_s
    assert one.uncertainty_s < 2.0
    assert abs(two.offset_s) <= two.uncertainty_s
    assert 0.5 <= two.uncertainty_s < 2.5


def test_node_exporters_own_time_measures_the_clock(opened: Any, page_server: Any) -> None:
    def page(handler: BaseHTTPRequestHandler) -> None:
        answer(handler, f'node_uname_info{{nodename="n3"}} 1\nnode_time_seconds {time.time() + 42:.3f}\n'.encode())

    page_server.pages["/n"] = page
    of = opened(NodeExporterCollector(NodeExporterCollector.Settings(urls=[page_server.at("/n")])))
    (offset,) = of.collect(time.time(), Inventory(), 30.0).clocks
    assert offset.clock == "n3"
    assert abs(offset.offset_s - 42) <= offset.uncertainty_s + 0.002


def test_clocks_are_read_while_they_are_added() -> None:
    clocks, stop = ClockOffsets(), threading.Event()

    def add() -> None:
        n = 0
        while not stop.is_set():
            clocks.add([ClockOffset(f"n{n % 50}", 0.0, 0.1, NOW + n)])
            n += 1

    writer = threading.Thread(target=add)
    writer.start()
    for _ in range(2_000):
        clocks.corrected(Instant(NOW, 0.0, "n7"))
    stop.set()
    writer.join()
    assert len(clocks) <= 50
