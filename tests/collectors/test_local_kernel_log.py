"""This machine's kernel log from each place it may stand: every line once, over rotation, reboot and overrun."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from nightshift.collectors.check import check_collect
from nightshift.collectors.frame import Reason
from nightshift.collectors.kernel_log.event import KernelEventKind
from nightshift.collectors.kernel_log.local import KMSG, LocalKernelLogCollector, SyslogLine, read_syslog
from nightshift.collectors.subject import Inventory
from nightshift.collectors.tick import Batch

NOW = 1_795_266_000.0  # 2026-11-21T13:00:00Z
XID = "NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus."


@pytest.fixture
def collector(opened: Any) -> Callable[..., LocalKernelLogCollector]:
    def make(**given: Any) -> LocalKernelLogCollector:
        made: LocalKernelLogCollector = opened(
            LocalKernelLogCollector(LocalKernelLogCollector.Settings(node="n1", **given))
        )
        return made

    return make


def take(of: LocalKernelLogCollector, now_s: float = NOW) -> Batch:
    return check_collect(of, now_s, Inventory(), 30.0, expect_ok=True)


def kinds(batch: Batch) -> list[KernelEventKind]:
    return [event.kind for event in batch.events]


def test_the_kernels_own_buffer_is_read_here(collector: Any) -> None:
    if not os.access(KMSG, os.R_OK):
        pytest.skip("/dev/kmsg may not be read here")
    of = collector(source="kmsg")
    first = take(of)
    assert first.sources[0].samples > 0
    assert take(of).logs == []


def kmsg(sequence: int, age_s: float, text: str, priority: int = 4) -> str:
    return f"{priority},{sequence},{int((time.monotonic() - age_s) * 1e6)},-;{text}\n SUBSYSTEM=pci\n"


def test_kernel_records_have_their_time_and_others_are_left_out(collector: Any, tmp_path: Path) -> None:
    device = tmp_path / "kmsg"
    device.write_text(
        kmsg(1, 4000, "NVRM: GPU at PCI:0000:9b:00: GPU-3f1c1111-2222-3333-4444-555555555555")
        + kmsg(2, 4000, "NVRM: Xid (PCI:0000:9b:00): 31, old")
        + kmsg(3, 10, XID.replace("GPU has", "GPU\\x20has"))
        + kmsg(4, 5, XID, priority=12)
        + "garbage\n"
    )
    of = collector(source="kmsg", path=device)
    batch = take(of)
    old, event = batch.events
    assert (old.code, old.attributes["old"]) == (31, "yes")
    assert event.record.at.t_s == pytest.approx(NOW - 10, abs=1)
    assert event.gpu is not None
    assert event.attributes["message"] == "GPU has fallen off the bus."
    assert batch.sources[0].rejected == {Reason.MALFORMED: 1}


def test_an_overrun_buffer_is_told_as_a_gap(
    collector: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = tmp_path / "kmsg"
    device.write_text("")
    of = collector(source="kmsg", path=device)
    take(of)
    answers: list[Any] = [OSError(errno.EPIPE, "x"), kmsg(9, 1, XID).encode(), OSError(errno.EAGAIN, "x")]

    def read(_descriptor: int, _size: int) -> bytes:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return bytes(answer)

    monkeypatch.setattr("nightshift.collectors.kernel_log.local.os.read", read)
    assert kinds(take(of)) == [KernelEventKind.GAP, KernelEventKind.XID]


def test_a_syslog_file_is_followed_over_rotation_and_reboot(collector: Any, tmp_path: Path) -> None:
    log = tmp_path / "kern.log"
    log.write_text(f"Nov 21 12:59:50 n1 kernel: [12.5] {XID}\nNov 21 12:59:51 n1 sshd[1]: hello\n")
    of = collector(source="file", path=log)
    batch = take(of)
    assert [r.text for r in batch.logs] == [XID]
    assert batch.events[0].record.at.t_s == NOW - 10
    with log.open("a") as stream:
        stream.write(f"2026-11-21T12:59:55.5+00:00 n1 kernel: {XID}\n")
    log.rename(tmp_path / "kern.log.1")
    log.write_text(f"2026-11-21T12:59:58Z n1 kernel: [0.0] Linux version 6.1.0 (x)\n[    5.0] {XID}\n")
    batch = take(of)
    assert kinds(batch) == [KernelEventKind.XID, KernelEventKind.BOOT, KernelEventKind.XID]
    assert batch.events[0].record.at.t_s == NOW - 4.5
    assert batch.events[2].record.at.uncertainty_s > 0  # dmesg's clock is not the wall's


def test_a_flood_keeps_the_events_and_says_that_lines_were_dropped(
    collector: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nightshift.collectors.kernel_log.local.MAX_LINES", 10)
    log = tmp_path / "kern.log"
    log.write_text("start\n")
    of = collector(source="file", path=log)
    take(of)
    with log.open("a") as stream:
        stream.writelines(f"[{n}.0] {XID if n == 700 else 'nfs: server not responding'}\n" for n in range(1000))
    batch = take(of)
    assert kinds(batch) == [KernelEventKind.XID, KernelEventKind.GAP]
    assert batch.sources[0].rejected == {Reason.TOO_LARGE: 989}


def journal(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_journald_is_read_by_cursor_with_its_reboots(
    collector: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, asked, command = tmp_path / "answer", tmp_path / "asked", tmp_path / "journalctl"
    command.write_text(f'#!/bin/sh\necho "$@" >> {asked}\ncat {answer}\n: > {answer}\n')
    command.chmod(0o755)
    micros = str(int((NOW - 5) * 1e6))
    row = {"__REALTIME_TIMESTAMP": micros, "__CURSOR": "s=1", "_BOOT_ID": "a", "MESSAGE": XID}
    answer.write_text(journal([row, {"MESSAGE": "no time"}]))
    monkeypatch.setattr("nightshift.collectors.kernel_log.local.JOURNALCTL", str(command))
    of = collector(source="journald")
    batch = take(of)
    assert kinds(batch) == [KernelEventKind.XID]
    assert batch.events[0].record.at.t_s == NOW - 5
    assert batch.sources[0].rejected == {Reason.MALFORMED: 1}
    answer.write_text(journal([row | {"_BOOT_ID": "b", "MESSAGE": list(XID.encode()), "__CURSOR": "s=2"}]))
    assert kinds(take(of)) == [KernelEventKind.BOOT, KernelEventKind.XID]
    assert take(of).events == []
    assert "--after-cursor=s=2" in asked.read_text().splitlines()[-1]


def exported(rows: list[dict[str, str]]) -> str:
    """The Journal Export Format (systemd.io/JOURNAL_EXPORT_FORMATS)."""
    return "".join("".join(f"{key}={value}\n" for key, value in row.items()) + "\n" for row in rows)


def test_a_real_journal_is_read_by_the_real_journalctl(
    collector: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A journal file of two boots, written by systemd's own writer: kernel lines of both, the reboot between them,
    lines of other programs left out, and nothing twice when it grows."""
    writer = Path("/lib/systemd/systemd-journal-remote")
    if not writer.exists() or shutil.which("journalctl") is None:
        if os.environ.get("CI"):
            pytest.fail("systemd-journal-remote is not installed")
        pytest.skip("systemd-journal-remote is not installed")
    store = tmp_path / "kernel.journal"

    def write(rows: list[dict[str, str]]) -> None:
        (tmp_path / "rows").write_text(exported(rows))
        subprocess.run([writer, "-o", store, tmp_path / "rows"], check=True, capture_output=True)

    def row(ago_s: float, boot: str, text: str, transport: str = "kernel") -> dict[str, str]:
        at = {"__REALTIME_TIMESTAMP": str(int((NOW - ago_s) * 1e6)), "__MONOTONIC_TIMESTAMP": "1000"}
        return at | {"_BOOT_ID": boot * 32, "_TRANSPORT": transport, "MESSAGE": text}

    write([row(60, "1", XID), row(50, "1", XID, "syslog"), row(20, "2", "usb 1-1: new device"), row(10, "2", XID)])
    command = tmp_path / "journalctl"
    command.write_text(f'#!/bin/sh\nexec journalctl --file {store} "$@"\n')
    command.chmod(0o755)
    monkeypatch.setattr("nightshift.collectors.kernel_log.local.JOURNALCTL", str(command))
    of = collector(source="journald")
    first = take(of)
    assert kinds(first) == [KernelEventKind.XID, KernelEventKind.BOOT, KernelEventKind.XID]
    assert [round(NOW - event.record.at.t_s) for event in first.events] == [60, 20, 10]
    assert take(of).logs == []
    write([row(1, "2", XID.replace("79", "48"))])
    (event,) = take(of).events
    assert event.code == 48


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"source": "file", "path": "/absent/kern.log"}, Reason.NOT_FOUND),
        ({"source": "kmsg", "path": "/absent/kmsg"}, Reason.NOT_FOUND),
    ],
)
def test_a_log_that_cannot_be_read_is_told(collector: Any, given: dict[str, Any], reason: Reason) -> None:
    batch = check_collect(collector(**given), NOW, Inventory(), 30.0, expect_ok=False)
    assert batch.sources[0].reason is reason


@pytest.mark.parametrize(
    ("command", "reason"), [("/absent/journalctl", Reason.NOT_FOUND), ("false", Reason.UNREACHABLE)]
)
def test_a_journal_that_cannot_be_read_is_told(
    collector: Any, command: str, reason: Reason, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nightshift.collectors.kernel_log.local.JOURNALCTL", command)
    batch = check_collect(collector(source="journald"), NOW, Inventory(), 30.0, expect_ok=False)
    assert batch.sources[0].reason is reason


def test_a_stamp_without_a_year_is_the_newest_that_can_be() -> None:
    new_year = 1_798_761_700.0  # 2027-01-01T00:01:40Z
    assert read_syslog("Dec 31 23:59:59 n1 kernel: x", new_year) == SyslogLine(1_798_761_599.0, False, "n1", "x")
    assert read_syslog("Feb 30 23:59:59 n1 kernel: x", new_year) == SyslogLine(None, False, "n1", "x")
    assert read_syslog("Dec 31 23:59:59 n1 cron[1]: x", new_year) == SyslogLine(1_798_761_599.0, False, "", None)


@pytest.mark.parametrize(
    ("head", "old_s", "zoned", "host"),
    [
        ("Nov 21 13:00:00 n1 kernel: [12345.678901] ", 0.0, False, "n1"),
        ("Nov 21 13:00:00 n1 kernel: [12345.678901][ T1234] ", 0.0, False, "n1"),
        ("Nov 21 12:59:50.123456 n1 kernel: ", 10.0, False, "n1"),
        ("Nov 21 12:59:50 n1 kern.err kernel: [12345.678901] ", 10.0, False, "n1"),
        ("2026-11-21T12:59:50.500000+00:00 n1 kernel: [12345.678901] ", 9.5, True, "n1"),
        ("2026-11-21T13:59:50+0100 n1 kernel: ", 10.0, True, "n1"),
        ("2026-11-21 12:59:50 n1 kernel: ", 10.0, False, "n1"),
        ("<4>1 2026-11-21T12:59:50.500000Z n1 kernel - - - ", 9.5, True, "n1"),
        ("<4>Nov 21 12:59:50 n1 kernel: ", 10.0, False, "n1"),
        ("Sat 2026-11-21 12:59:50 UTC n1 kernel: ", 10.0, True, "n1"),
        ("Sat 2026-11-21 13:59:50 CET n1 kernel: ", -3590.0, False, "n1"),
        ("1795265990.500000 n1 kernel: ", 9.5, True, "n1"),
        ("[12345.678901] ", None, True, ""),
        ("<6>[12345.678901][    C3] ", None, True, ""),
        ("\x1b[33m[12345.678901]\x1b[0m ", None, True, ""),
        ("kern  :warn  : [12345.678901] ", None, True, ""),
        ("[Sat Nov 21 12:59:50 2026] ", 10.0, False, ""),
        ("[lun. nov. 21 12:59:50 2026] ", 10.0, False, ""),
        ("[Sa Nov 21 12:59:50 2026] ", 10.0, False, ""),
        ("[토 11월 21 12:59:50 2026] ", 10.0, False, ""),
        ("[?? ?? 21 12:59:50 2026] ", None, False, ""),
        ("10.1.2.3: kern:     err: [2026-11-21T12:59:50.500000000Z]: ", 9.5, True, ""),
        ("kern  :err   : [Sat Nov 21 12:59:50 2026] ", 10.0, False, ""),
        ("2026-11-21T12:59:50,500000+00:00 ", 9.5, True, ""),
    ],
)
def test_a_line_is_read_however_dmesg_and_syslogs_write_it(
    head: str, old_s: float | None, zoned: bool, host: str
) -> None:
    """In a form that was not known a GPU that fell off the bus was not heard of, and the source was healthy."""
    found = read_syslog(head + XID, NOW)
    assert found is not None
    assert (found.text, found.zoned, found.host) == (XID, zoned, host)
    assert found.at_s == (None if old_s is None else pytest.approx(NOW - old_s, abs=0.5))


@pytest.mark.parametrize("line", ["", "x", XID, "Nov 21 13:00:00 n1 app[7]: kernel: " + XID, "{}", "[12:00] x"])
def test_other_programs_lines_are_no_kernels(line: str) -> None:
    found = read_syslog(line, NOW)
    assert found is None or found.text is None


def test_a_file_of_another_kind_is_a_source_that_is_lost(collector: Any, tmp_path: Path) -> None:
    """Nothing is heard there, and silence would pass for health; a few odd lines are counted."""
    path = tmp_path / "app.log"
    path.write_text('{"level": "info"}\n' * 20)
    of = collector(source="file", path=path)
    batch = check_collect(of, NOW, Inventory(), 30.0)
    assert (batch.sources[0].ok, batch.sources[0].reason) == (False, Reason.MALFORMED)
    with path.open("a") as stream:
        stream.write(f"odd\n<4>[ 12.5] {XID}\n")
    batch = take(of)
    assert (len(batch.events), batch.sources[0].rejected) == (1, {Reason.MALFORMED: 1})


@pytest.mark.parametrize("zone_h", [-8, 0, 9])
def test_a_machine_on_local_time_is_understood_and_a_clock_ahead_is_not_believed(
    zone_h: int, collector: Any, tmp_path: Path
) -> None:
    """In California's time each error of the last quarter of an hour was dropped as eight hours old."""
    path = tmp_path / "kern.log"
    at = datetime.fromtimestamp(NOW - 30.0 + 3600.0 * zone_h, UTC)
    path.write_text(f"{at:%b %d %H:%M:%S} n1 kernel: {XID}\n{at:%b %d %H:%M:%S} n1 cron[1]: x\n")
    (event,) = take(collector(source="file", path=path)).events
    assert event.record.at.t_s == pytest.approx(NOW - 30.0, abs=1.0)
    ahead = tmp_path / "ahead.log"
    ahead.write_text(f"2026-11-21T23:00:07Z n1 kernel: {XID}\n")
    (event,) = take(collector(source="file", path=ahead)).events
    assert event.record.at.t_s == NOW


def syslog(*hosts: str) -> str:
    return "".join(f"2026-11-21T12:59:50Z {host} kernel: {XID}\n" for host in hosts)


@pytest.mark.parametrize("own", ["n1", "N1.example.org"])
def test_of_a_file_that_gathers_hosts_only_this_ones_lines_are_read(
    collector: Any, tmp_path: Path, own: str
) -> None:
    """An Xid of another machine would cordon this one."""
    path = tmp_path / "all.log"
    path.write_text(syslog("n2", "localhost", own, "n10", "n2.example.org") + f"<4>[ 12.5] {XID}\n")
    batch = take(collector(source="file", path=path))
    assert len(batch.events) == 3
    assert batch.sources[0].rejected == {Reason.MALFORMED: 3}


def test_a_file_of_several_hosts_none_of_which_is_this_one_is_a_source_that_is_lost(
    collector: Any, tmp_path: Path
) -> None:
    """And says what to set; one of a single other name is this machine's own, by whatever name."""
    path = tmp_path / "all.log"
    path.write_text(syslog("gpu-7", "localhost"))
    of = collector(source="file", path=path)
    assert len(take(of).events) == 2
    with path.open("a") as file:
        file.write(syslog("gpu-8"))
    batch = of.collect(NOW, Inventory(), 30.0)
    assert (batch.sources[0].ok, batch.sources[0].reason, tuple(batch.events)) == (False, Reason.MALFORMED, ())
    assert "several hosts (gpu-7, gpu-8" in batch.sources[0].detail
    assert "`node`" in batch.sources[0].detail
