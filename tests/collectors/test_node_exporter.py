"""Hosts and fabric from node_exporter's pages, also of the real one over a sysfs with an InfiniBand port."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nightshift.collectors.check import check_collect
from nightshift.collectors.frame import Reason
from nightshift.collectors.merge import Merger
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.telemetry.node_exporter import NodeExporterCollector
from tests.processes import await_answer, end, free_port

NOW = 1_795_260_000.0
NODE = Subject(SubjectKind.NODE, "gpu-7")


def nic(name: str) -> Subject:
    return Subject(SubjectKind.NIC, name)


def disk(name: str) -> Subject:
    return Subject(SubjectKind.DISK, name)


def make(opened: Any, url: str, **settings: Any) -> NodeExporterCollector:
    collector: NodeExporterCollector = opened(
        NodeExporterCollector(NodeExporterCollector.Settings(urls=[url], **settings))
    )
    return collector


PAGE = """\
node_uname_info{{nodename="gpu-7",sysname="Linux"}} 1
node_boot_time_seconds {boot}
node_time_seconds 1.79526e+09
node_memory_MemAvailable_bytes 1.9e+12
node_pressure_memory_stalled_seconds_total {stall}
node_vmstat_oom_kill 3
node_network_receive_bytes_total{{device="eth0"}} {received}
node_network_receive_bytes_total{{device="veth12ab"}} 9e9
node_network_carrier_down_changes_total{{device="eth0"}} {flaps}
node_network_speed_bytes{{device="eth0"}} -125000
node_infiniband_link_downed_total{{device="mlx5_0",port="1"}} 2
node_infiniband_state_id{{device="mlx5_0",port="1"}} 4
node_infiniband_info{{device="mlx5_0",board_id="MT_1",firmware_version="28.45.4028",hca_type="MT4129"}} 1
node_infiniband_info{{device="veth1",firmware_version="1.0"}} 1
node_disk_reads_completed_total{{device="nvme0n1"}} {reads}
node_disk_read_time_seconds_total{{device="nvme0n1"}} {read_s}
node_filesystem_avail_bytes{{device="/dev/nvme0n1",fstype="xfs",mountpoint="/data"}} 5e11
node_filesystem_readonly{{device="/dev/nvme0n1",fstype="xfs",mountpoint="/data"}} 1
node_filesystem_avail_bytes{{device="tmpfs",fstype="tmpfs",mountpoint="/tmp"}} 1e9
node_filesystem_avail_bytes{{device="/dev/x",fstype="ext4",mountpoint="/var/lib/kubelet/pods/1/v"}} 1e9
"""


def page(boot: float = 1.79e9, stall: float = 0, received: float = 0, flaps: int = 0, n: int = 0) -> bytes:
    told = PAGE.format(boot=boot, stall=stall, received=received, flaps=flaps, reads=100 * n, read_s=2.0 * n)
    return told.encode()


def test_nodes_ports_disks_and_mounts_are_rows_and_the_rest_is_left_out(opened: Any, page_server: Any) -> None:
    page_server.pages["/m"] = page()
    inventory = Inventory()
    batch = check_collect(make(opened, page_server.at("/m")), NOW, inventory, 30.0, expect_ok=True)
    frames = {frame.kind: frame for frame in batch.frames}
    assert set(frames[SubjectKind.NIC].index.subjects) == {nic("gpu-7/eth0"), nic("gpu-7/mlx5_0:1")}
    assert set(frames[SubjectKind.DISK].index.subjects) == {disk("gpu-7/nvme0n1"), disk("gpu-7:/data")}
    assert frames[SubjectKind.NODE].value(NODE, "node_oom_kills_total") == 3
    assert frames[SubjectKind.NIC].value(nic("gpu-7/mlx5_0:1"), "nic_link_down_total") == 2
    assert math.isnan(frames[SubjectKind.NIC].value(nic("gpu-7/eth0"), "nic_speed_bytes_per_s"))
    assert frames[SubjectKind.DISK].value(disk("gpu-7:/data"), "disk_is_read_only") == 1
    assert not batch.sources[0].rejected
    assert inventory.facts(NODE) == {"nic_firmware": "28.45.4028"}
    assert inventory.above(nic("gpu-7/mlx5_0:1"), SubjectKind.NODE, NOW) == NODE
    assert batch.sources[0].covers == (NODE,)


def test_counters_become_rates_latencies_and_flaps(opened: Any, page_server: Any) -> None:
    of, inventory, merger = make(opened, page_server.at("/m")), Inventory(), Merger()
    for n in range(2):
        page_server.pages["/m"] = page(stall=2.5 * n, received=1e9 * n, flaps=n, n=n)
        tick = merger.merge([of.collect(NOW + 5 * n, inventory, 30.0)], NOW + 5 * n)
    assert tick.frames[SubjectKind.NODE].value(NODE, "node_memory_stall_ratio") == 0.5
    assert tick.frames[SubjectKind.NIC].value(nic("gpu-7/eth0"), "nic_receive_bytes_per_s") == 2e8
    assert tick.frames[SubjectKind.NIC].value(nic("gpu-7/eth0"), "nic_flaps_per_s") == 0.2
    assert tick.frames[SubjectKind.DISK].value(disk("gpu-7/nvme0n1"), "disk_read_latency_s") == 0.02


def test_a_reboot_begins_a_new_epoch_of_everything_on_the_node(opened: Any, page_server: Any) -> None:
    """Even where a counter is already beyond its old value; a boot time that wanders by a second is none."""
    of, inventory, merger = make(opened, page_server.at("/m")), Inventory(), Merger()
    epochs = []
    for n, boot in enumerate((1.79e9, 1.79e9 + 1, 1.7951e9)):
        page_server.pages["/m"] = page(boot=boot, received=1e9 * n)
        tick = merger.merge([of.collect(NOW + 5 * n, inventory, 30.0)], NOW + 5 * n)
        epochs.append(int(tick.frames[SubjectKind.NIC].epoch[0]))
        rate = tick.frames[SubjectKind.NIC].value(nic("gpu-7/eth0"), "nic_receive_bytes_per_s")
    assert epochs[0] == epochs[1] != epochs[2]
    assert math.isnan(rate)


def test_roce_counters_of_a_newer_exporter_are_columns_and_an_older_ones_are_no_data(
    opened: Any, page_server: Any
) -> None:
    """Congestion marks, notifications, retransmissions and losses of a port; without them NaN, never zero."""
    names = {
        "np_ecn_marked_roce_packets_received_total": ("nic_ecn_marked_total", 441_882),
        "np_cnp_packets_sent_total": ("nic_cnp_sent_total", 12_884),
        "rp_cnp_packets_handled_total": ("nic_cnp_handled_total", 12_701),
        "roce_adp_retransmits_total": ("nic_retransmits_total", 17),
        "out_of_sequence_packets_received_total": ("nic_out_of_sequence_total", 41),
        "packet_sequence_errors_total": ("nic_sequence_errors_total", 44),
        "local_ack_timeout_errors_total": ("nic_ack_timeouts_total", 3),
        "out_of_buffer_drops_total": ("nic_no_buffer_drops_total", 0),
    }
    lines = [f'node_infiniband_{name}{{device="mlx5_2",port="1"}} {value}' for name, (_, value) in names.items()]
    lines += ['node_uname_info{nodename="gpu-7"} 1', 'node_infiniband_state_id{device="mlx5_3",port="1"} 4']
    page_server.pages["/m"] = "\n".join(lines).encode() + b"\n"
    batch = check_collect(make(opened, page_server.at("/m")), NOW, Inventory(), 30.0, expect_ok=True)
    (frame,) = (f for f in batch.frames if f.kind is SubjectKind.NIC)
    new, old = (frame.index.subjects.index(nic(f"gpu-7/mlx5_{n}:1")) for n in (2, 3))
    for metric, value in names.values():
        column = frame.values[:, frame.metrics.index(metric)]
        assert column[new] == value
        assert math.isnan(column[old])


def test_hostile_labels_are_refused_and_counted(opened: Any, page_server: Any) -> None:
    """A device of 10,000 characters, with control characters, or none: the other rows are used."""
    lines = [
        'node_uname_info{nodename="gpu-7"} 1',
        'node_network_up{device="eth0"} 1',
        f'node_network_receive_bytes_total{{device="{"x" * 10_000}"}} 1',
        'node_network_receive_bytes_total{device="a\\nb"} 1',
        "node_disk_reads_completed_total 5",
        'node_network_receive_bytes_total{device="<script>alert(1)</script>"} 7',
    ]
    page_server.pages["/m"] = "\n".join(lines).encode() + b"\n"
    batch = check_collect(make(opened, page_server.at("/m")), NOW, Inventory(), 30.0)
    assert batch.sources[0].rejected == {Reason.MALFORMED: 3}
    assert [s.name for f in batch.frames for s in f.index.subjects] == ["gpu-7/<script>alert(1)</script>"]


PORT_COUNTERS = (
    "port_rcv_data",
    "port_xmit_data",
    "link_downed",
    "symbol_error",
    "port_rcv_errors",
    "port_xmit_wait",
)


@pytest.fixture
def real_exporter(tmp_path: Path) -> Iterator[str]:
    """Debian's prometheus-node-exporter over a sysfs of ours."""
    program = shutil.which("prometheus-node-exporter") or shutil.which("node_exporter")
    if program is None:
        if os.environ.get("CI"):
            pytest.fail("prometheus-node-exporter is not installed")
        pytest.skip("prometheus-node-exporter is not installed")
    device = tmp_path / "sys" / "class" / "infiniband" / "mlx5_0"
    counters = device / "ports" / "1" / "counters"
    counters.mkdir(parents=True)
    for name, text in {"board_id": "MT_0000000838", "fw_ver": "28.39.1002", "hca_type": "MT4129"}.items():
        (device / name).write_text(f"{text}\n")
    for name, text in {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "400 Gb/sec (4X NDR)"}.items():
        (counters.parent / name).write_text(f"{text}\n")
    for number, name in enumerate(PORT_COUNTERS, 1):
        (counters / name).write_text(f"{1000 * number}\n")
    port = free_port()
    command = [program, f"--web.listen-address=127.0.0.1:{port}", f"--path.sysfs={tmp_path / 'sys'}"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}/metrics"
    try:
        await_answer(url, process)
        yield url
    finally:
        end(process)


def test_the_real_exporters_page_is_read(real_exporter: str, opened: Any) -> None:
    """Memory, load, the InfiniBand port with its speed and counters, and a clock that agrees with ours."""
    now_s = time.time()
    batch = check_collect(make(opened, real_exporter), now_s, Inventory(), 30.0, expect_ok=True)
    frames = {frame.kind: frame for frame in batch.frames}
    (node,) = frames[SubjectKind.NODE].index.subjects
    assert frames[SubjectKind.NODE].value(node, "node_memory_total_bytes") > 1e8
    assert frames[SubjectKind.NODE].value(node, "node_boot_time_s") < now_s
    port, ports = nic(f"{node.name}/mlx5_0:1"), frames[SubjectKind.NIC]
    assert ports.value(port, "nic_speed_bytes_per_s") == 5e10
    assert ports.value(port, "nic_port_state") == 4
    assert ports.value(port, "nic_receive_bytes_total") == 4 * 1000
    assert ports.value(port, "nic_link_down_total") == 3000
    assert ports.value(port, "nic_wait_ticks_total") == 6000
    (offset,) = batch.clocks
    assert abs(offset.offset_s) <= offset.uncertainty_s + 0.001
