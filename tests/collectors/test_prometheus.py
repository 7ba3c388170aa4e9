"""A real Prometheus scrapes real pages and the collector reads it; and what happens when either is away or lies."""

from __future__ import annotations

import math
import os
import shutil
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import numpy as np
import orjson
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from nightshift.collectors.check import check_collect
from nightshift.collectors.frame import Frame, Reason
from nightshift.collectors.prometheus.live import PrometheusCollector
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Batch
from tests.processes import await_answer, end, free_port

GPUS = [Subject(SubjectKind.GPU, f"GPU-{n}") for n in range(3)]
BOX = Subject(SubjectKind.CONTAINER, "ml/job-1/t")


def dcgm(power_w: float, gpus: int = 2, pod: str = "job-1") -> bytes:
    rows = []
    for n in range(gpus):
        labels = (
            f'gpu="{n}",UUID="GPU-{n}",pci_bus_id="00000000:0{n}:00.0",Hostname="n1",namespace="ml",pod="{pod}"'
        )
        rows += [f"DCGM_FI_DEV_POWER_USAGE{{{labels}}} {power_w + n}", f"DCGM_FI_DEV_FB_USED{{{labels}}} {10 + n}"]
    return ("\n".join(rows) + "\n").encode()


CADVISOR = b"""container_memory_working_set_bytes{container="t",id="/a",namespace="ml",pod="job-1"} 77
container_memory_working_set_bytes{container="",id="/",namespace="ml",pod="job-1"} 99
"""
FABRIC = b"""node_network_carrier{device="eth0"} 1
node_network_receive_bytes_total{device="eth0"} 5
node_infiniband_port_data_received_bytes_total{device="mlx5_0",port="1"} 7
node_infiniband_state_id{device="mlx5_0",port="1"} 4
node_disk_reads_completed_total{device="nvme0n1"} 9
node_filesystem_avail_bytes{device="/dev/nvme0n1",fstype="xfs",mountpoint="/data"} 11
"""
NODE = b'node_uname_info{nodename="n1"} 1\nnode_memory_MemTotal_bytes 2e12\nnode_memory_MemAvailable_bytes 1e12\n'


@pytest.fixture
def collector(opened: Any) -> Callable[..., PrometheusCollector]:
    def make(url: str, **given: Any) -> PrometheusCollector:
        made: PrometheusCollector = opened(PrometheusCollector(PrometheusCollector.Settings(url=url, **given)))
        return made

    return make


def frame(batch: Batch, kind: SubjectKind = SubjectKind.GPU) -> Frame:
    return next(f for f in batch.frames if f.kind is kind)


def until(read: Callable[[], Batch], good: Callable[[Batch], bool], within_s: float = 90.0) -> Batch:
    """Reads until the answer is as wanted; Prometheus takes a scrape or two to see a change."""
    end = time.monotonic() + within_s
    while True:
        batch = read()
        if good(batch) or time.monotonic() > end:
            return batch
        time.sleep(0.2)


def test_a_real_prometheus_is_read_through_its_own_failures_and_its_targets(
    page_server: Any, prometheus_server: Any, collector: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nightshift.collectors.prometheus.live.REFRESH_S", 1)
    page_server.pages |= {"/gpu": dcgm(100), "/box": CADVISOR, "/node": NODE + FABRIC}
    target = page_server.url.removeprefix("http://")
    jobs = "".join(
        f"\n- job_name: {name}\n  metrics_path: /{name}\n  static_configs: [{{targets: ['{target}']}}]"
        for name in ("gpu", "box", "node")
    )
    config = f"global: {{scrape_interval: 500ms, scrape_timeout: 400ms}}\nscrape_configs:{jobs}\n"
    server = prometheus_server(config)
    kinds = ["gpu", "container", "node", "nic", "disk"]
    of, inventory = collector(server.url, kinds=kinds), Inventory()

    def read() -> Batch:
        return check_collect(of, time.time(), inventory, 30.0)

    batch = until(read, lambda b: len(b.frames) == 5 and b.sources[0].ok)
    nics, disks = frame(batch, SubjectKind.NIC), frame(batch, SubjectKind.DISK)
    assert nics.value(Subject(SubjectKind.NIC, "n1/eth0"), "nic_receive_bytes_total") == 5
    assert nics.value(Subject(SubjectKind.NIC, "n1/mlx5_0:1"), "nic_receive_bytes_total") == 7
    assert disks.value(Subject(SubjectKind.DISK, "n1/nvme0n1"), "disk_reads_total") == 9
    assert disks.value(Subject(SubjectKind.DISK, "n1:/data"), "disk_available_bytes") == 11
    nic, node = Subject(SubjectKind.NIC, "n1/mlx5_0:1"), Subject(SubjectKind.NODE, "n1")
    assert inventory.above(nic, SubjectKind.NODE, time.time()) == node
    then_s = read().sources[0].at_s  # a look that began after the samples of the last one had come
    gpus, boxes, nodes = (frame(batch, k) for k in (SubjectKind.GPU, SubjectKind.CONTAINER, SubjectKind.NODE))
    assert [gpus.value(gpu, "gpu_power_w") for gpu in GPUS[:2]] == [100, 101]
    assert gpus.value(GPUS[1], "gpu_memory_used_bytes") == 11 * 2**20
    assert math.isnan(gpus.value(GPUS[0], "gpu_temperature_c"))
    assert boxes.index.subjects == (BOX,)
    assert boxes.value(BOX, "container_memory_working_set_bytes") == 77
    assert nodes.value(Subject(SubjectKind.NODE, "n1"), "node_memory_available_bytes") == 1e12
    assert abs(gpus.times_s("gpu_power_w")[0] - time.time()) < 10
    until(read, lambda _: bool(inventory.parents(GPUS[0], time.time())))
    assert inventory.above(GPUS[0], SubjectKind.NODE, time.time()) == Subject(SubjectKind.NODE, "n1")
    assert inventory.above(GPUS[0], SubjectKind.JOB, time.time()) == Subject(SubjectKind.JOB, "ml/job")

    page_server.pages["/gpu"] = dcgm(200, gpus=3, pod="other-0")
    batch = until(read, lambda b: len(frame(b).index) == 3 and frame(b).value(GPUS[2], "gpu_power_w") == 202)
    assert frame(batch).value(GPUS[0], "gpu_power_w") == 200
    until(read, lambda _: Subject(SubjectKind.POD, "ml/other-0") in inventory.parents(GPUS[0], time.time()))
    assert inventory.parents(GPUS[0], time.time(), SubjectKind.POD) == [Subject(SubjectKind.POD, "ml/other-0")]

    past = collector(server.url, at_clock=True)  # a replay sees what was true then
    then = check_collect(past, then_s, Inventory(), 30.0)
    assert frame(then).value(GPUS[0], "gpu_power_w") == 100
    assert frame(then).times_s("gpu_power_w")[0] <= then_s

    del page_server.pages["/gpu"]  # the exporter is away: Prometheus marks its series stale
    batch = until(read, lambda b: bool(np.isnan(frame(b).values).all()))
    assert np.isnan(frame(batch).values).all()
    assert frame(batch, SubjectKind.CONTAINER).value(BOX, "container_memory_working_set_bytes") == 77

    server.stop()
    batch = read()
    assert batch.sources[0].reason is Reason.UNREACHABLE
    assert all(np.isnan(f.values).all() for f in batch.frames)
    page_server.pages["/gpu"] = dcgm(300)
    server.start()
    batch = until(read, lambda b: b.sources[0].ok and frame(b).value(GPUS[0], "gpu_power_w") == 300)
    assert frame(batch).value(GPUS[0], "gpu_power_w") == 300


def vector(rows: list[Any]) -> bytes:
    return orjson.dumps({"status": "success", "data": {"resultType": "vector", "result": rows}})


class Api:
    """Answers queries from a function of the query."""

    def __init__(self, of: Callable[[str], bytes]) -> None:
        self.of = of

    def __call__(self, handler: BaseHTTPRequestHandler) -> None:
        form = parse_qs(handler.form.decode())
        body = self.of(form["query"][0])
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)


def test_exporters_that_contradict_each_other_leave_no_value_and_are_named(
    page_server: Any, prometheus_server: Any, collector: Any
) -> None:
    """`max by (UUID)` would take one of two words; a GPU told twice alike keeps its value and is named."""
    page_server.pages |= {"/a": dcgm(100), "/b": dcgm(100)}
    target = page_server.url.removeprefix("http://")
    jobs = "".join(
        f"\n- job_name: {name}\n  metrics_path: /{name}\n  static_configs: [{{targets: ['{target}']}}]"
        for name in "ab"
    )
    config = f"global: {{scrape_interval: 500ms, scrape_timeout: 400ms}}\nscrape_configs:{jobs}\n"
    of, inventory = collector(prometheus_server(config).url, kinds=["gpu"]), Inventory()

    def read() -> Batch:
        return check_collect(of, time.time(), inventory, 30.0)

    alike = until(read, lambda b: "more than one exporter" in b.sources[0].detail)
    assert alike.sources[0].ok
    assert "GPU-0, GPU-1" in alike.sources[0].detail
    assert frame(alike).value(GPUS[0], "gpu_power_w") == 100
    page_server.pages["/b"] = dcgm(100).replace(b"} 10\n", b"} 900\n")
    apart = until(read, lambda b: "contradict" in b.sources[0].detail)
    assert "about 1 GPUs, which have no value: GPU-0" in apart.sources[0].detail
    assert apart.sources[0].rejected[Reason.DUPLICATE] == 1
    assert math.isnan(frame(apart).value(GPUS[0], "gpu_power_w"))
    assert frame(apart).value(GPUS[1], "gpu_power_w") == 101


@pytest.fixture
def victoria_metrics(tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """Debian's victoria-metrics, scraping by itself; gives its address."""
    program = shutil.which("victoria-metrics")
    if program is None:
        if os.environ.get("CI"):
            pytest.fail("victoria-metrics is not installed")
        pytest.skip("victoria-metrics is not installed")
    running = []

    def start(config: str) -> str:
        (tmp_path / "scrape.yml").write_text(config)
        address = f"127.0.0.1:{free_port()}"
        command = [program, f"-promscrape.config={tmp_path / 'scrape.yml'}", f"-storageDataPath={tmp_path / 'vm'}"]
        command += [f"-httpListenAddr={address}", "-search.latencyOffset=1s", "-memory.allowedPercent=5"]
        running.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
        await_answer(f"http://{address}/health", running[-1])
        return f"http://{address}"

    yield start
    for process in running:
        end(process)


@pytest.mark.full
def test_a_real_victoria_metrics_is_read_by_the_same_queries(
    page_server: Any, victoria_metrics: Callable[[str], str], collector: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values, times, labels and the fabric's rows, as a Prometheus gives them."""
    monkeypatch.setattr("nightshift.collectors.prometheus.live.REFRESH_S", 1)
    page_server.pages |= {"/gpu": dcgm(100), "/node": NODE + FABRIC}
    target = page_server.url.removeprefix("http://")
    jobs = "".join(
        f"\n- job_name: {name}\n  metrics_path: /{name}\n  static_configs: [{{targets: ['{target}']}}]"
        for name in ("gpu", "node")
    )
    url = victoria_metrics(f"global: {{scrape_interval: 1s, scrape_timeout: 1s}}\nscrape_configs:{jobs}\n")
    of, inventory = collector(url, kinds=["gpu", "nic"]), Inventory()

    def read() -> Batch:
        return check_collect(of, time.time(), inventory, 30.0)

    batch = until(read, lambda b: len(b.frames) == 2 and b.sources[0].ok, within_s=30.0)
    assert frame(batch).value(GPUS[1], "gpu_power_w") == 101
    assert abs(frame(batch).times_s("gpu_power_w")[0] - time.time()) < 15
    mlx = Subject(SubjectKind.NIC, "n1/mlx5_0:1")
    assert frame(batch, SubjectKind.NIC).value(mlx, "nic_receive_bytes_total") == 7
    until(read, lambda _: bool(inventory.parents(GPUS[0], time.time())))
    assert inventory.above(GPUS[0], SubjectKind.NODE, time.time()) == Subject(SubjectKind.NODE, "n1")


def test_order_duplicates_and_unusable_keys_do_not_mix_rows_up(page_server: Any, collector: Any) -> None:
    orders = iter([[0, 1, 2], [2, 1, 0], [1, 2]] * 40)

    def answer(query: str) -> bytes:
        if "POWER_USAGE" not in query:
            return vector([])
        rows: list[Any] = [{"metric": {"UUID": f"GPU-{n}"}, "value": [1.0, str(100 + n)]} for n in next(orders)]
        rows += [{"metric": {}, "value": [1.0, "5"]}, {"metric": {"UUID": "x" * 9999}, "value": [1.0, "5"]}]
        return vector(rows)

    page_server.pages["/api/v1/query"] = Api(answer)
    of = collector(page_server.url, kinds=["gpu"])
    for _ in range(6):
        batch = check_collect(of, time.time(), Inventory(), 30.0, expect_ok=True)
        got = frame(batch)
        assert got.index.subjects == tuple(GPUS)
        values = [got.value(gpu, "gpu_power_w") for gpu in GPUS]
        assert all(math.isnan(v) or v == 100 + n for n, v in enumerate(values))
        assert values[1] == 101
        assert batch.sources[0].rejected == {Reason.MALFORMED: 2}


def test_samples_scraped_long_ago_are_refused(page_server: Any, collector: Any) -> None:
    now_s = time.time()

    def answer(query: str) -> bytes:
        value = str(now_s - 1000) if "timestamp" in query else "7"
        return vector([{"metric": {"UUID": "GPU-0"}, "value": [now_s, value]}])

    page_server.pages["/api/v1/query"] = Api(answer)
    batch = check_collect(collector(page_server.url, kinds=["gpu"]), now_s, Inventory(), 30.0)
    assert np.isnan(frame(batch).values).all()
    assert batch.sources[0].rejected[Reason.STALE] > 5


@pytest.mark.parametrize(
    "body",
    [
        b"<html>",
        b"[]",
        b'{"status":"error","errorType":"timeout","error":"query timed out"}',
        b'{"status":"success","data":{"resultType":"matrix","result":[]}}',
        b'{"status":"success","data":{"resultType":"vector","result":[{"metric":{"UUID":"a"},"value":[1,true]}]}}',
        b'{"status":"success","data":{"resultType":"vector","result":[{"metric":{"UUID":"a"},"value":[1,5]}]}}',
        b'{"status":"success","data":{"resultType":"vector","result":[{"metric":"a","value":[1,"5"]}]}}',
        b'{"status":"success","data":{"resultType":"vector","result":[{"metric":{"UUID":"a"}}]}}',
        b'{"status":"success","data":{"resultType":"vector","result":[7]}}',
        b'{"status":"success","data":{"resultType":"vector","result":[{"metric":{"UUID":"a"},"value":[1,"x"]}]}}',
    ],
)
def test_an_answer_that_is_none_is_told_and_gives_no_value(page_server: Any, collector: Any, body: bytes) -> None:
    page_server.pages["/api/v1/query"] = Api(lambda _: body)
    check_collect(collector(page_server.url), time.time(), Inventory(), 30.0, expect_ok=False)


def test_every_http_fault_is_told_with_its_reason(
    faulty: Any, collector: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nightshift.collectors.prometheus.live.MAX_BYTES", 100_000)
    server, path, reasons, timeout_s = faulty
    if path in server.pages:
        server.pages["/api/v1/query"] = server.pages[path]
    batch = check_collect(
        collector(server.url, kinds=["gpu"], metrics=["gpu_power_w"]),
        time.time(),
        Inventory(),
        timeout_s,
        expect_ok=False,
    )
    assert batch.sources[0].reason in {*reasons, "malformed"}


def test_credentials_and_tenant_are_sent_and_a_missing_secret_is_said(
    page_server: Any, collector: Any, tmp_path: Path
) -> None:
    page_server.pages["/api/v1/query"] = Api(lambda _: vector([]))
    secret = tmp_path / "token"
    secret.write_text("s3cret\n")
    for http, expected in [
        ({"bearer_token_file": secret}, "Bearer s3cret"),
        ({"username": "u", "password_file": secret}, "Basic dTpzM2NyZXQ="),
    ]:
        page_server.requests.clear()
        of = collector(page_server.url, connection={**http, "headers": {"X-Scope-OrgID": "team-a"}})
        of.collect(time.time(), Inventory(), 30.0)
        headers = page_server.requests[0][1]
        assert headers["Authorization"] == expected
        assert headers["X-Scope-OrgID"] == "team-a"
    secret.unlink()
    batch = check_collect(of, time.time(), Inventory(), 30.0, expect_ok=False)
    assert batch.sources[0].reason is Reason.UNAUTHORISED
    assert "token" in batch.sources[0].detail
    with pytest.raises(ValueError, match="exclude each other"):
        collector(
            page_server.url, connection={"bearer_token_file": secret, "username": "u", "password_file": secret}
        )


def certificate(folder: Path) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem, private = folder / "c.pem", folder / "k.pem"
    pem.write_bytes(built.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return pem, private


@pytest.fixture
def tls_server(page_server: Any, tmp_path: Path) -> tuple[Any, Path]:
    pem, key = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem, key)
    page_server.server.socket = context.wrap_socket(page_server.server.socket, server_side=True)
    page_server.url = page_server.url.replace("http://127.0.0.1", "https://localhost")
    return page_server, pem


def test_tls_is_verified_against_the_given_authority_and_refused_otherwise(
    tls_server: tuple[Any, Path], collector: Any
) -> None:
    server, pem = tls_server
    server.pages["/api/v1/query"] = Api(lambda _: vector([{"metric": {"UUID": "GPU-0"}, "value": [1.0, "5"]}]))
    only = {"kinds": ["gpu"], "metrics": ["gpu_power_w"]}
    trusted = collector(server.url, connection={"ca_file": pem}, **only)
    check_collect(trusted, time.time(), Inventory(), 30.0)
    assert len(server.requests) == 6
    batch = check_collect(collector(server.url, **only), time.time(), Inventory(), 30.0, expect_ok=False)
    assert batch.sources[0].reason is Reason.UNREACHABLE
    assert "certificate" in batch.sources[0].detail.lower()
