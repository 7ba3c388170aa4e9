"""The node's page is read back by the same collectors that read dcgm-exporter and node logs, with nothing lost."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nightshift.collectors.check import check_collect
from nightshift.collectors.frame import Frame, SeriesIndex
from nightshift.collectors.kernel_log.event import KernelEventKind
from nightshift.collectors.kernel_log.local import LocalKernelLogCollector
from nightshift.collectors.kernel_log.node_log import NodeLogCollector
from nightshift.collectors.kernel_log.pci import PCI_FACT
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.telemetry.dcgm_exporter import DcgmExporterCollector
from nightshift.collectors.telemetry.exporter import KernelLines, NodeExporter, Settings, page
from nightshift.collectors.telemetry.metrics import of_kind
from nightshift.collectors.telemetry.nvml import NvmlCollector

NODE = Subject(SubjectKind.NODE, "n1")
XID = "NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus."


@pytest.fixture
def exporter(tmp_path: Path, nvml_library: ctypes.CDLL) -> Iterator[tuple[NodeExporter, Path]]:
    """On the compiled stand-in for NVIDIA's library and a kernel log file."""
    nvml_library.stub_reset()
    log = tmp_path / "kern.log"
    log.write_text("[1.0] start\n")
    built = NodeExporter(
        Settings(host="127.0.0.1", port=0, period_s=0.2),
        NvmlCollector(NvmlCollector.Settings(node="n1")),
        LocalKernelLogCollector(LocalKernelLogCollector.Settings(node="n1", source="file", path=log)),
    )
    thread = threading.Thread(target=built.serve, daemon=True)
    thread.start()
    yield built, log
    built.stop()
    thread.join(2.0)


def test_a_node_without_dcgm_is_read_by_the_same_collectors(
    exporter: tuple[NodeExporter, Path], opened: Any
) -> None:
    built, log = exporter
    url = f"http://127.0.0.1:{built.port}"
    gpus = opened(DcgmExporterCollector(DcgmExporterCollector.Settings(urls=[f"{url}/metrics"])))
    kernel_url = f"{url}/kernel-log"
    kernel = opened(NodeLogCollector(NodeLogCollector.Settings(urls=[kernel_url], nodes={kernel_url: "n1"})))
    inventory, end = Inventory(), time.monotonic() + 90
    while time.monotonic() < end:
        batch = check_collect(gpus, time.time(), inventory, 30.0)
        if (
            batch.frames
            and "gpu_sm_active_ratio" in batch.frames[0].columns
            and not np.isnan(batch.frames[0].column("gpu_sm_active_ratio")).any()
        ):
            break
        time.sleep(0.1)
    (frame,) = batch.frames
    (offset,) = batch.clocks
    assert offset.clock == NODE.name
    assert abs(offset.offset_s) <= offset.uncertainty_s + 0.001
    assert len(frame.index) == 8
    assert frame.column("gpu_power_w").tolist() == [612.345] * len(frame.index)
    assert frame.column("gpu_sm_active_ratio").tolist() == [0.42] * len(frame.index)
    assert len(inventory.children(NODE, time.time(), SubjectKind.GPU)) == len(frame.index)
    assert inventory.fact(frame.index.subjects[0], PCI_FACT) == "0000:10:00"
    assert inventory.fact(frame.index.subjects[0], "serial") == "16500"
    check_collect(kernel, time.time(), inventory, 30.0, expect_ok=True)
    with log.open("a") as stream:
        stream.write(f"[2.0] {XID}\n")
    events: list[Any] = []
    while not events and time.monotonic() < end:
        time.sleep(0.1)
        events += check_collect(kernel, time.time(), inventory, 30.0, expect_ok=True).events
    assert [event.kind for event in events] == [KernelEventKind.XID]
    assert check_collect(kernel, time.time(), inventory, 30.0, expect_ok=True).events == []
    assert built.answer("/healthz")[0] == 200
    assert [built.answer(target)[0] for target in ("/", "/kernel-log?after=x", "/../etc/passwd")] == [404, 400, 404]


def test_a_page_says_every_value_again_and_nothing_of_a_missing_one(opened: Any, page_server: Any) -> None:
    metrics = of_kind(SubjectKind.GPU)
    gpus = tuple(Subject(SubjectKind.GPU, f"GPU-{n}") for n in range(3))
    values = np.array([[(n + 1) * 0.25 if m.high < 2 else float(n + 1) for m in metrics] for n in range(3)])
    values[1, ::2] = np.nan
    frame = Frame(
        time.time(),
        SeriesIndex(SubjectKind.GPU, gpus),
        tuple(m.name for m in metrics),
        values,
        np.zeros((1, 1)),
        np.zeros(3, np.int64),
    )
    inventory = Inventory()
    for n, gpu in enumerate(gpus):
        inventory.observe(gpu, NODE, 0.0)
        inventory.describe(gpu, index=str(n), model='N "H200" \\')
    page_server.pages["/m"] = page(frame, inventory)
    of = opened(DcgmExporterCollector(DcgmExporterCollector.Settings(urls=[page_server.at("/m")])))
    back = check_collect(of, time.time(), inventory, 30.0, expect_ok=True).frames[0]
    assert set(back.index.subjects) == set(gpus)
    for row, gpu in enumerate(gpus):
        found = [back.value(gpu, m.name) for m in metrics]
        np.testing.assert_allclose(found, values[row], rtol=1e-12)
    assert inventory.fact(gpus[0], "model") == 'N "H200" \\'


class _Breaks(LocalKernelLogCollector):
    """A reader with a defect, until it is mended."""

    broken = False

    def collect(self, now_s: float, inventory: Inventory, timeout_s: float) -> Any:
        if self.broken:
            raise RuntimeError("a defect")
        return super().collect(now_s, inventory, timeout_s)


def test_a_sample_that_fails_is_told_and_the_next_one_is_made(tmp_path: Path, nvml_library: ctypes.CDLL) -> None:
    """The last good page would be read as of now, for ever; and a power lease would never end."""
    nvml_library.stub_reset()
    log = tmp_path / "kern.log"
    log.write_text("[1.0] start\n")
    kernel = _Breaks(LocalKernelLogCollector.Settings(node="n1", source="file", path=log))
    failures: list[Exception] = []
    periods: list[float] = []
    built = NodeExporter(
        Settings(host="127.0.0.1", port=0, period_s=0.1),
        NvmlCollector(NvmlCollector.Settings(node="n1")),
        kernel,
        each_period=lambda: periods.append(time.monotonic()),
        failed=failures.append,
    )
    thread = threading.Thread(target=built.serve, daemon=True)
    thread.start()
    try:
        waits_for(lambda: b"DCGM_FI_DEV_POWER_USAGE" in built.answer("/metrics")[2])
        kernel.broken = True
        waits_for(lambda: len(failures) > 1)
        assert b"DCGM_FI" not in built.answer("/metrics")[2]
        seen = len(periods)
        waits_for(lambda: len(periods) > seen)
        kernel.broken = False
        waits_for(lambda: b"DCGM_FI_DEV_POWER_USAGE" in built.answer("/metrics")[2])
    finally:
        built.stop()
        thread.join(2.0)


def test_a_page_that_nobody_renews_says_nothing_and_a_cursor_that_is_none_is_refused(
    tmp_path: Path, nvml_library: ctypes.CDLL
) -> None:
    nvml_library.stub_reset()
    log, now_s = tmp_path / "kern.log", [100.0]
    log.write_text("[1.0] start\n")
    built = NodeExporter(
        Settings(host="127.0.0.1", port=0),
        NvmlCollector(NvmlCollector.Settings(node="n1")),
        LocalKernelLogCollector(LocalKernelLogCollector.Settings(node="n1", source="file", path=log)),
        timer=lambda: now_s[0],
    )
    try:
        built.sample()
        now_s[0] += 9.0
        assert b"DCGM_FI_DEV_POWER_USAGE" in built.answer("/metrics")[2]
        now_s[0] += 2.0
        page = built.answer("/metrics")[2]
        assert (b"DCGM_FI" in page, b"nightshift" in page) == (False, True), "but its clock"
        assert built.answer("/healthz")[0] == 503
        assert {built.answer(f"/kernel-log?after={text}")[0] for text in ("--5", "%C2%B2", "%D9%A3", "x")} == {400}
        assert {built.answer(f"/kernel-log{text}")[0] for text in ("", "?after=-1", "?after=5")} == {200}
    finally:
        built._server.server_close()


def waits_for(holds: Any) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_cursors_rise_whatever_the_clock_does_and_old_lines_are_let_go() -> None:
    lines = KernelLines(max_lines=100)
    for t_s in (10.0, 5.0, 5.0, 11.0):
        lines.add(t_s, "x")
    first = lines.after(-1).count(b"\n")
    assert first == 4
    assert lines.after(10_000_000).count(b"\n") == 3
    assert lines.after(99_000_000).count(b"\n") == 4  # it began anew: all of it
    for n in range(1000):
        lines.add(100.0 + n, "y")
    assert 100 <= len(lines._rows) <= 200
    assert lines.after(-1).count(b"\n") == 100


def test_settings_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="go together"):
        Settings(certificate_file=Path("a"))
    with pytest.raises(ValueError, match="needs certificate_file"):
        Settings(client_ca_file=Path("a"))
