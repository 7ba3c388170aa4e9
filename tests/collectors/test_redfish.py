"""BMCs by Redfish: what a walk finds, and what a BMC may do to it."""

from __future__ import annotations

import http.server
import ssl
import subprocess
import threading
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import numpy as np
import pytest

from nightshift.agent.incidents.rollouts import spelled
from nightshift.collectors.frame import Reason
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.telemetry.redfish import RedfishCollector, RedfishSettings
from nightshift.collectors.tick import Batch
from tests.bmc import Answering, Bmc, answering, response

START_S = 1_795_300_000.0
NODE = Subject(SubjectKind.NODE, "n1")


def _part(name: str) -> Subject:
    return Subject(SubjectKind.PART, f"n1/{name}")


class Watch:
    """One collector over BMCs, tick by tick."""

    def __init__(self, *bmcs: Bmc, fetcher: Any = None, **settings: Any) -> None:
        urls = [f"https://{bmc.node}-bmc" for bmc in bmcs] or ["https://n1-bmc"]
        self.collector = RedfishCollector(RedfishSettings.model_validate({"urls": urls, **settings}))
        self.collector._fetcher = fetcher or cast(Any, answering({f"{bmc.node}-bmc": bmc for bmc in bmcs}))
        self.inventory, self.now_s, self.events = Inventory(), START_S, []  # type: ignore[var-annotated]

    def run(self, seconds: float = 120.0) -> Batch:
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            batch = self.collector.collect(self.now_s, self.inventory, 4.0)
            self.events += batch.events
            self.now_s += 5.0
        return batch


@pytest.mark.parametrize("older", [False, True])
def test_a_walk_finds_parts_and_their_health(older: bool) -> None:
    bmc = Bmc("n1", older=older)
    watch = Watch(bmc)
    batch = watch.run()
    (frame,), (status,) = batch.frames, batch.sources
    assert status.ok
    assert status.covers == (NODE,)
    wanted = {"PSU 1", "PSU 2", "Fan 1", "Fan 2", "Fan 3"} | ({"Inlet Temp"} if older else {"Leak 1"})
    assert {subject.name.partition("/")[2] for subject in frame.observed()} >= wanted
    assert np.nanmax(frame.column("part_health")) == 0.0
    assert frame.value(_part("Fan 1"), "part_fan_rpm") == 9000
    bmc.health["PSU 2"] = "Critical"
    (frame,) = watch.run().frames
    assert frame.value(_part("PSU 2"), "part_health") == 2.0
    assert watch.inventory.fact(_part("PSU 2"), "sort") == "power supply"
    assert watch.inventory.above(_part("PSU 2"), SubjectKind.NODE, watch.now_s) == NODE
    assert watch.inventory.fact(NODE, "bios") == "2.4.1"


def test_few_documents_are_asked_of_a_bmc_at_a_time() -> None:
    fetcher = answering({"n1-bmc": Bmc("n1")})
    watch = Watch(fetcher=fetcher)
    watch.run(5.0)
    assert fetcher.asked == ["https://n1-bmc/redfish/v1/"]
    watch.run(5.0)
    assert len(fetcher.asked) == 5


def test_a_bmc_that_hangs_is_no_data_and_never_well() -> None:
    bmc = Bmc("n1", health={"Fan 1": "Critical"})
    watch = Watch(bmc)
    watch.run()
    bmc.hangs = True
    batch = watch.run(400.0)
    assert batch.sources[0].reason is Reason.TIMEOUT
    assert batch.sources[0].covers == (NODE,)
    assert not batch.frames or not np.isfinite(batch.frames[0].column("part_health")).any()
    bmc.hangs = False
    assert watch.run().sources[0].ok


def test_a_page_in_html_is_said() -> None:
    (status,) = Watch(Bmc("n1", html=True)).run(5.0).sources
    assert (status.ok, status.reason) == (False, Reason.MALFORMED)
    assert "HTML" in status.detail


@pytest.mark.parametrize(
    "body", [b"[]", b"null", b'{"error": 1}', b"\xff\xfe", b'{"@odata.id": 3, "Members": {"a": 1}}']
)
def test_nonsense_understood_as_nothing_is_not_healthy(body: bytes) -> None:
    watch = Watch(fetcher=Answering(lambda url: response(body)))
    (status,) = watch.run(120.0).sources
    assert not status.ok


def test_a_chassis_that_we_understand_nothing_of_is_not_healthy() -> None:
    bmc = Bmc("n1")
    bmc._chassis = dict  # type: ignore[method-assign]
    (status,) = Watch(bmc).run().sources
    assert (status.ok, status.reason) == (False, Reason.NOT_FOUND)


def test_new_log_entries_are_events_and_those_that_were_there_are_not() -> None:
    bmc = Bmc("n1", entries=[("2026-11-20T10:00:00Z", "Critical", "An old fault")])
    watch = Watch(bmc)
    watch.run()
    assert watch.events == []
    bmc.entries += [("2026-11-21T20:00:00Z", "Critical", "Uncorrectable ECC, DIMM A3"), ("", "OK", "All well")]
    watch.run()
    (event,) = watch.events
    assert event.attributes["bmc_says"] == "Uncorrectable ECC, DIMM A3"
    assert event.node == NODE


@pytest.mark.parametrize(("stamp", "is_new"), [("1970-01-03T00:00:20Z", True), ("1970-01-02T23:59:00Z", False)])
def test_an_entry_that_comes_during_the_first_walk_is_told_by_the_bmcs_own_clock(stamp: str, is_new: bool) -> None:
    bmc = Bmc("n1", clock="1970-01-03T00:00:05Z")
    watch = Watch(bmc)
    watch.run(10.0)  # the walk has begun, and logs are read at its end
    bmc.entries.append((stamp, "Critical", "PSU 2 lost its input"))
    watch.run()
    assert bool(watch.events) is is_new


@pytest.mark.parametrize(
    ("message", "oem", "is_event"),
    [
        ("DIMM Failure - Uncorrectable Memory Error", {"Hpe": {"Categories": ["Hardware"]}}, True),
        ("Server reset.", {"Hpe": {"Categories": ["Maintenance", "Administration"]}}, False),
        ("The OS driver of slot 14 is missing", {"Hpe": {"Categories": ["Hardware", "Administration"]}}, False),
        ("Power supply 1 is lost", {"Dell": {"Category": "System Health"}}, True),
        ("A login failed", {"Dell": {"Category": "Audit"}}, False),
        ("Uncorrectable ECC @DIMMB1", {"Supermicro": {"RawEventData": {}}}, True),
        (None, {}, False),
    ],
)
def test_an_entry_that_its_vendor_files_under_something_else_is_no_fault(
    message: str | None, oem: dict[str, Any], is_event: bool
) -> None:
    bmc = Bmc("n1")
    watch = Watch(bmc)
    watch.run()
    documents = bmc.documents()
    (entries,) = [path for path in documents if path.endswith("/Entries")]
    entry = {"@odata.type": "#LogEntry.v1_1_0.LogEntry", "Id": "1", "Severity": "Critical", "Oem": oem}
    documents[entries] = {"Members": [{**entry, "Message": message}]}
    bmc.documents = lambda: documents  # type: ignore[method-assign]
    watch.run()
    assert bool(watch.events) is is_event


def test_a_clock_in_1970_moves_no_entry_out_of_its_walk() -> None:
    bmc = Bmc("n1", clock="1970-01-03T00:00:00Z")
    watch = Watch(bmc)
    watch.run()
    before_s = watch.now_s
    bmc.entries.append(("1970-01-03T00:01:00Z", "Critical", "PSU 2 lost its input"))
    batch = watch.run()
    (event,) = watch.events
    assert before_s - 120.0 <= event.record.at.t_s <= watch.now_s
    (status,) = batch.sources
    assert "clock is off" in status.detail
    assert status.ok
    assert not status.partly, "nothing is left out for it, so no source is lost"


def test_a_log_that_was_cleared_and_numbers_anew_is_read_anew() -> None:
    bmc = Bmc("n1", entries=[("2026-11-20T10:00:00Z", "Critical", "An old fault")])
    watch = Watch(bmc)
    watch.run()
    bmc.entries = [("2026-11-21T20:00:00Z", "Warning", "Fan 2 is slow")]
    watch.run()
    assert [event.attributes["bmc_says"] for event in watch.events] == ["Fan 2 is slow"]


def test_firmware_in_six_spellings_is_one_version() -> None:
    spellings = ("2.4.1", "v2.4.1", "BIOS 2.04.01", "Version: 2.4.1", " 2.4.1 ", "FW 02.04.01")
    told = set()
    for spelling in spellings:
        watch = Watch(Bmc("n1", bios=spelling))
        watch.run()
        told.add(spelled(str(watch.inventory.fact(NODE, "bios"))))
    assert told == {"2.4.1"}


def test_links_in_a_circle_and_to_nowhere_end() -> None:
    bmc = Bmc("n1")
    targets = ("/redfish/v1/Chassis", "/redfish/v1/x", "https://evil/redfish/v1/")
    documents = bmc.documents() | {"/Chassis": {"Members": [{"@odata.id": target} for target in targets]}}
    bmc.documents = lambda: documents  # type: ignore[method-assign]
    fetcher = answering({"n1-bmc": bmc})
    Watch(fetcher=fetcher).run(55.0)
    assert len(fetcher.asked) == len(set(fetcher.asked)) < 20
    assert {urlsplit(url).hostname for url in fetcher.asked} == {"n1-bmc"}


def test_a_certificate_of_its_own_making_is_refused_with_what_to_do(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj",
         "/CN=bmc", "-days", "2", "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    bmc = Bmc("n1")

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = bmc.answer(self.path)
            body = getattr(answer, "body", b"")
            self.send_response(200 if body else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    url = f"https://127.0.0.1:{server.server_address[1]}"
    try:
        for verify, ok in ((True, False), (False, True)):
            collector = RedfishCollector(RedfishSettings(urls=[url], verify=verify))
            (status,) = collector.collect(START_S, Inventory(), 10.0).sources
            collector.close()
            assert status.ok is ok, status
            assert ok or ("verify: false" in status.detail and "ca_file" in status.detail)
    finally:
        server.shutdown()
        server.server_close()
