"""Kernel lines of every known form are read, and no other line becomes an event or an exception."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightshift.collectors.frame import Instant, LogRecord
from nightshift.collectors.kernel_log.event import KernelEvent, KernelEventKind
from nightshift.collectors.kernel_log.lines import KernelLogParser
from nightshift.collectors.subject import Subject, SubjectKind

NODE = Subject(SubjectKind.NODE, "n1")
GPU = Subject(SubjectKind.GPU, "GPU-3f1c1111-2222-3333-4444-555555555555")
TELLS_UUID = f"NVRM: GPU at PCI:0000:9b:00: {GPU.name}"


def record(text: str, offset: int = 0) -> LogRecord:
    return LogRecord(Instant(1.0), "kmsg", NODE, text, offset)


def events(*lines: str) -> list[KernelEvent]:
    parser = KernelLogParser(NODE)
    found = (parser.read(record(line, n)) for n, line in enumerate(lines))
    return [event for event in found if event is not None]


def one(*lines: str) -> KernelEvent:
    (event,) = events(*lines)
    return event


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "NVRM: Xid (PCI:0000:9b:00): 63, pid='<unknown>', name=<unknown>, Row Remapper: New row marked for",
            {"code": 63, "process": None, "pid": None, "pci_address": "0000:9b:00"},
        ),
        (
            "NVRM: Xid (PCI:0000:9b:00): 31, pid=7194, name=python3, Ch 00000008, intr 00000000. MMU Fault: ENGINE",
            {"code": 31, "process": "python3", "pid": 7194},
        ),
        ("NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.", {"code": 79, "process": None}),
        ("NVRM: Xid (PCI:0000:9b:00.0): 48, pid=12, name=a, An uncorrectable", {"code": 48, "pid": 12}),
        ("NVRM: Xid (0000:06:00): 13, 0003 00000000 0000a040 00000050", {"code": 13, "pci_address": "0000:06:00"}),
        ("NVRM: GPU0 Xid (PCI:0000:9b:00): 119, pid=1, name=x, Timeout waiting for RPC", {"code": 119}),
        ("NVRM: Xid (PCI:0018:01:00): 45", {"code": 45, "pci_address": "0018:01:00"}),
        (
            "[  123.456789] NVRM: Xid (PCI:0000:9b:00): 94, pid=7194, name=python, Ch 00000008, errorString CTXSW",
            {"code": 94, "pid": 7194},
        ),
        (
            "Nov 21 13:00:00 n1 kernel: [123.4] NVRM: Xid (PCI:0000:9b:00): 64, pid='<unknown>', name=<unknown>, x",
            {"code": 64},
        ),
    ],
)
def test_xids_of_all_driver_generations_are_read(line: str, expected: dict[str, Any]) -> None:
    event = one(line)
    assert event.kind is KernelEventKind.XID
    assert {name: getattr(event, name) for name in expected} == expected


def test_154_tells_the_recovery_action() -> None:
    for middle in ("", "pid='<unknown>', name=<unknown>, "):
        event = one(
            f"NVRM: Xid (PCI:0000:1b:00): 154, {middle}GPU recovery action changed from 0x0 (None) "
            "to 0x2 (Node Reboot Required)"
        )
        assert (event.code, event.attributes["recovery_action"]) == (154, "Node Reboot Required")


def test_a_mig_instance_and_an_nvlink_of_the_fifth_generation_are_named() -> None:
    assert (
        one("NVRM: Xid (PCI:0000:65:00 GPU-I:05): 94, pid=7194, name=python, x").attributes["gpu_instance"] == "05"
    )
    for gaps in ("NETIR_LINK_EVT Fatal XC0 i0 Link 06", "NETIR_LINK_EVT  Fatal   XC0 i0 Link 06"):
        event = one(f"NVRM: Xid (PCI:0018:01:00): 149, {gaps} (0x004505c6 0x00000000)")
        told = {"unit": "NETIR_LINK_EVT", "severity": "Fatal", "link": "06"}
        assert {key: event.attributes[key] for key in told} == told


def test_the_uuid_that_the_driver_told_is_used_until_the_next_boot() -> None:
    xid = "NVRM: Xid (PCI:0000:9b:00): 48, x"
    assert one(TELLS_UUID, xid).gpu == GPU
    assert [e.gpu for e in events(TELLS_UUID, "Linux version 6.1.0 (debian)", xid)] == [None, None]


def test_falling_off_the_bus_is_one_event_over_its_three_lines() -> None:
    event = one(
        TELLS_UUID,
        "NVRM: The NVIDIA GPU 0000:9b:00.0",
        "NVRM: (PCI ID: 10de:2330) installed in this system has",
        "NVRM: fallen off the bus and is not responding to commands.",
    )
    assert (event.kind, event.gpu, event.record.offset) == (KernelEventKind.FELL_OFF_BUS, GPU, 3)
    for said in ("GPU 0000:9b:00.0: GPU has", "GPU at 0000:9b:00.0 has", "GPU at PCI:0000:9b:00: GPU has"):
        fell = one(f"NVRM: {said} fallen off the bus.")
        assert (fell.kind, fell.pci_address) == (KernelEventKind.FELL_OFF_BUS, "0000:9b:00")
    assert one("               NVRM: installed in this system is not supported by open").attributes["message"] == (
        "unsupported_gpu"
    )


def test_a_record_of_several_lines_is_read_line_by_line() -> None:
    """The driver prints the loss of a GPU in one go (nvidia/nv.c), and /dev/kmsg and journald give it as one
    record."""
    lost = (
        "NVRM: The NVIDIA GPU 0000:9b:00.0\n"
        "NVRM: (PCI ID: 10de:2330) installed in this system has\n"
        "NVRM: fallen off the bus and is not responding to commands.\n"
    )
    two = "NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.\nNVRM: Xid (PCI:0000:9b:00): 154, x\n"
    found = KernelLogParser(NODE).sift([record(TELLS_UUID), record(lost, 1), record(two, 2)], 100)
    assert [(e.kind, e.code, e.gpu, e.record.offset) for e in found[1]] == [
        (KernelEventKind.FELL_OFF_BUS, None, GPU, 1),
        (KernelEventKind.XID, 79, GPU, 2),
        (KernelEventKind.XID, 154, GPU, 2),
    ]
    assert all("\n" not in kept.text for kept in found[0])


def test_sxids_are_read() -> None:
    event = one(
        "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Non-fatal, Link 46 MC TS crumbstore MCTO (First)"
    )
    assert (event.kind, event.code, event.pci_address) == (KernelEventKind.SXID, 28006, "0000:c1:00")
    assert (event.attributes["severity"], event.attributes["link"]) == ("Non-fatal", "46")


@pytest.mark.parametrize("seed", range(4))
def test_the_three_lines_of_a_switchs_error_are_one_event(seed: int) -> None:
    """The further two hold its registers; of an error whose first line was lost they are the event."""
    draw = random.Random(seed)
    address, code = f"0000:{draw.randrange(256):02x}:00.0", draw.randrange(10_000, 25_000)
    head = f"nvidia-nvswitch{draw.randrange(4)}: SXid (PCI:{address}): {code}"
    lines = (f"{head}, Fatal, Link 7 x", f"{head}, Severity 1 Engine instance 32", f"{head}, Data {{0x1}}")
    for first in (0, 1):
        parser = KernelLogParser(NODE)
        events = [parser.read(LogRecord(Instant(0.0), "/dev/kmsg", NODE, text, 0)) for text in lines[first:]]
        assert [event is not None for event in events] == [True] + [False] * (2 - first)


@pytest.mark.parametrize(
    ("line", "address", "severity"),
    [
        ("pcieport 0000:3a:00.0: AER: Corrected error received: 0000:3b:00.0", "0000:3b:00", "Corrected"),
        (
            "pcieport 0000:3a:00.0: AER: Multiple Corrected error message received from 0000:3b:00.0",
            "0000:3b:00",
            None,
        ),
        (
            "pcieport 0000:3a:00.0: AER: Uncorrected (Fatal) error received: 0000:3b:00.0",
            None,
            "Uncorrected (Fatal)",
        ),
        (
            "pcieport 0000:3a:00.0: AER: Uncorrectable (Non-Fatal) error message received from 0000:3b:00.0",
            None,
            None,
        ),
        (
            "nvidia 0000:3b:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
            None,
            "Corrected",
        ),
        (
            "nvidia 0000:3b:00.0: AER: PCIe Bus Error: severity=Uncorrected (Fatal), type=Inaccessible, (Agent ID)",
            None,
            "Uncorrected (Fatal)",
        ),
    ],
)
def test_pcie_errors_are_read(line: str, address: str | None, severity: str | None) -> None:
    event = one(line)
    assert event.kind is KernelEventKind.PCIE_AER
    assert event.pci_address == (address or "0000:3b:00")
    assert severity is None or event.attributes["severity"] == severity


def test_an_oom_kill_tells_victim_memory_and_pod() -> None:
    event = one(
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=x,mems_allowed=0-1,oom_memcg=/kubepods/a,"
        "task_memcg=/kubepods.slice/kubepods-burstable-pod12345678_1234_1234_1234_123456789012.slice/cri-x.scope,"
        "task=python,pid=1234,uid=0",
        "Memory cgroup out of memory: Killed process 1234 (python) total-vm:1000kB, anon-rss:900kB, file-rss:0kB",
    )
    assert (event.kind, event.pid, event.process) == (KernelEventKind.OOM_KILL, 1234, "python")
    assert event.attributes["pod_uid"] == "12345678-1234-1234-1234-123456789012"
    assert (event.attributes["scope"], event.attributes["anonymous_kib"]) == ("cgroup", "900")
    host = one("Out of memory: Killed process 77 (a b) total-vm:5kB, anon-rss:4kB, file-rss:0kB")
    assert (host.attributes["scope"], host.process) == ("host", "a b")


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("Linux version 6.1.0-26-amd64 (debian-kernel@lists.debian.org)", KernelEventKind.BOOT),
        ("NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5", KernelEventKind.BOOT),
        ("NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build", KernelEventKind.BOOT),
        ("net_ratelimit: 45 callbacks suppressed", KernelEventKind.GAP),
        ("systemd-journald: Missed 12 kernel messages", KernelEventKind.GAP),
        ("NVRM: knvlinkUpdateLinkState: NVLink error on link 3", KernelEventKind.NVLINK),
        ("nvidia-nvlink: link 4 of 0000:9b:00.0 went down", KernelEventKind.NVLINK),
    ],
)
def test_boots_gaps_and_link_errors_are_told(line: str, kind: KernelEventKind) -> None:
    assert one(line).kind is kind


@pytest.mark.parametrize(
    ("line", "server", "answers"),
    [
        ("nfs: server 10.0.0.7 not responding, still trying", "NFS server 10.0.0.7", "no"),
        ("nfs: server nfs01 not responding, timed out", "NFS server nfs01", "no"),
        ("nfs: server nfs01 OK", "NFS server nfs01", "yes"),
        (
            "Lustre: fs1-OST0001-osc-ffff8: Connection to fs1-OST0001 (at 10.0.0.1@o2ib) was lost; in progress",
            "Lustre target fs1-OST0001",
            "no",
        ),
        (
            "Lustre: fs1-OST0001-osc-ffff8: Connection restored to fs1-OST0001 (at 10.0.0.1@o2ib)",
            "Lustre target fs1-OST0001",
            "yes",
        ),
        ("ceph: mds0 hung", "Ceph mds0", "no"),
        ("ceph: [1f2e-aa 4242]: mds0 came back", "Ceph mds0", "yes"),
    ],
)
def test_remote_storage_that_is_silent_or_answers_again_is_told(line: str, server: str, answers: str) -> None:
    event = one(line)
    assert event.kind is KernelEventKind.STORAGE
    assert (event.attributes["server"], event.attributes["answers"]) == (server, answers)


def test_a_process_that_waits_in_the_kernel_is_told() -> None:
    event = one("INFO: task pt_data_worker:0:7194 blocked for more than 120 seconds.")
    assert (event.process, event.pid, event.attributes) == ("pt_data_worker:0", 7194, {"blocked_s": "120"})


def test_a_flood_of_storage_lines_is_told_now_and_then_and_each_change_at_once() -> None:
    """Thousands of them would push GPU errors out of what is kept of a node."""
    text = "nfs: server nfs01 not responding, still trying"
    records = [LogRecord(Instant(n / 100), "node_log n1", NODE, text, n) for n in range(5000)]
    records += [replace(records[-1], text="nfs: server nfs01 OK"), records[-1]]
    kept, found = KernelLogParser(NODE).sift(records, 100)
    told = [(event.record.at.t_s, event.attributes["answers"]) for event in found if event.kind != "gap"]
    assert told == [(0.0, "no"), (30.0, "no"), (49.99, "yes"), (49.99, "no")]
    assert len(kept) < 105


@pytest.mark.parametrize(
    "line",
    [
        "nfsd: last server has exited, flushing export cache",
        "Lustre: Lustre: Build Version: 2.15.3",
        "ceph: loaded (mds proto 32)",
        "NVRM: Xid (PCI:0000:66:00): abc, pid=2280636",
        "NVRM: Xid",
        "NVRM: knvlinkCoreShutdownDeviceLinks_IMPL: Need to shutdown all links unilaterally for GPU0",
        "usb 1-1: new high-speed USB device",
        "process accounting resumed",
        "audit: messages about Xid (PCI:0000:9b:00): 79 in prose",
        "EXT4-fs (sda1): mounted filesystem with ordered data mode",
        "",
    ],
)
def test_other_lines_are_no_events(line: str) -> None:
    assert events(line) == []


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                ["", "NVRM: Xid (PCI:", "SXid", "AER: ", "oom-kill:", "Killed process ", "NVRM: GPU at "]
            ),
            st.text(max_size=80),
        ),
        max_size=8,
    )
)
def test_no_line_makes_the_parser_raise(lines: list[tuple[str, str]]) -> None:
    for event in events(*(start + rest for start, rest in lines)):
        assert event.code is None or event.code >= 0
