"""A daemon that restarts while a spine is dead still knows which links lead to it."""

from __future__ import annotations

from typing import Any

from nightshift.agent.correlation.collection import Collection
from nightshift.agent.correlation.detection import Detection
from nightshift.agent.correlation.watch import REMEMBER_RELATIONS_S, Watch
from nightshift.agent.metrics import Metrics
from nightshift.agent.store.incident_store import Store
from nightshift.collectors.history import History
from nightshift.collectors.subject import PEER, Inventory, Subject, SubjectKind
from nightshift.collectors.telemetry.equipment import EquipmentCollector
from nightshift.detectors.hardware.equipment import Equipment
from tests.agent.incidents import ManualClock
from tests.bmc import Answering, response

UFM, LINKS = "http://ufm:9001/labels/metrics", 6


def _page(spine: bool) -> bytes:
    ports = [(f"leaf{n}", 9, n) for n in range(LINKS)] + [("spine1", n, n) for n in range(LINKS) if spine]
    state = 4 if spine else 1
    lines = [
        f'logical_state{{node_description="{owner}",port_num="{number}",Cable_SN="MT{cable}"}} {state}\n'
        for owner, number, cable in ports
    ]
    return "".join(lines).encode()


def _daemon(url: str, pages: dict[str, bytes], clock: ManualClock) -> tuple[Watch, Any]:
    collector = EquipmentCollector(EquipmentCollector.Settings(urls=[UFM]))
    collector._fetcher = Answering(lambda url: response(pages[url], "text/plain"))  # type: ignore[assignment]
    store, metrics, inventory = Store(url, clock), Metrics("0"), Inventory()
    parts = Collection([collector], timeout_s=30.0), Detection([Equipment()], metrics), store
    watch = Watch(*parts, History(), inventory, metrics)
    watch.resume(clock.now_s())
    return watch, store


def test_a_spine_that_died_before_a_restart_is_found_after_it(sqlite_url: str, clock: ManualClock) -> None:
    pages = {UFM: _page(spine=True)}
    before, store = _daemon(sqlite_url, pages, clock)
    before.look(clock.now_s())
    before.keep()
    before.collection.close()
    store.close()
    pages[UFM] = _page(spine=False)
    after, store = _daemon(sqlite_url, pages, clock)
    found = set()
    for _ in range(4):
        clock.advance(30.0)
        found |= {finding.subject for finding in after.look(clock.now_s()).detected.findings}
    assert Subject(SubjectKind.SWITCH, "spine1") in found
    after.keep()
    after.collection.close()
    store.close()
    clock.advance(REMEMBER_RELATIONS_S + 86_400.0)
    much_later, store = _daemon(sqlite_url, pages, clock)
    assert much_later.inventory.fact(Subject(SubjectKind.NIC, "leaf0/9"), PEER) is None, "it is forgotten in a week"
    much_later.collection.close()
    store.close()
