"""The real pynvml on a compiled stand-in for NVIDIA's library: values, units, lost GPUs, reloads and hangs."""

from __future__ import annotations

import ctypes
import math
import threading
from collections import Counter as XidCounts
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from nightshift.collectors.check import check_collect
from nightshift.collectors.frame import Frame, Reason
from nightshift.collectors.kernel_log.pci import PCI_FACT
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.telemetry.dcgm_exporter import gpu_rows, plan_of
from nightshift.collectors.telemetry.exporter import page
from nightshift.collectors.telemetry.exposition import PageParser
from nightshift.collectors.telemetry.nvml import NvmlCollector
from nightshift.collectors.tick import Batch
from nightshift.collectors.training.workload import WorkloadRule

NODE = Subject(SubjectKind.NODE, "n1")


def gpu(index: int, generation: int = 0) -> Subject:
    return Subject(SubjectKind.GPU, f"GPU-0000000{index}-0000-0000-0000-00000000000{generation}")


@pytest.fixture
def stub(nvml_library: ctypes.CDLL) -> Iterator[ctypes.CDLL]:
    nvml_library.stub_reset()
    yield nvml_library
    nvml_library.stub_reset()


@pytest.fixture
def collector(opened: Any, stub: ctypes.CDLL) -> NvmlCollector:
    made: NvmlCollector = opened(NvmlCollector(NvmlCollector.Settings(node="n1")))
    return made


def take(
    of: NvmlCollector, now_s: float = 100.0, inventory: Inventory | None = None, timeout_s: float = 30.0
) -> Batch:
    return check_collect(of, now_s, inventory or Inventory(), timeout_s)


def frame(batch: Batch) -> Frame:
    (only,) = batch.frames
    return only


def test_values_arrive_in_our_units_and_gpm_from_the_second_look_on(collector: NvmlCollector) -> None:
    inventory = Inventory()
    first = frame(take(collector, inventory=inventory))
    expected = {
        "gpu_memory_used_bytes": 10 * 2**30,
        "gpu_power_w": 612.345,
        "gpu_power_limit_w": 700,
        "gpu_energy_j": 0.612,
        "gpu_temperature_c": 63,
        "gpu_memory_temperature_c": 55,
        "gpu_sm_clock_mhz": 1980,
        "gpu_utilization_percent": 90,
        "gpu_ecc_sbe_total": 0,
        "gpu_remapped_rows_uncorrectable": 2,
        "gpu_row_remap_pending": 1,
        "gpu_pcie_replay_total": 7,
        "gpu_pcie_link_width": 16,
        "gpu_pcie_link_generation": 5,
    }
    assert {name: first.value(gpu(3), name) for name in expected} == pytest.approx(expected)
    for missing in ("gpu_nvlink_crc_errors_total", "gpu_throttle_reasons", "gpu_sm_active_ratio", "gpu_xid_last"):
        assert math.isnan(first.value(gpu(3), missing)), missing
    second = frame(take(collector, 101.0))
    assert second.value(gpu(3), "gpu_sm_active_ratio") == 0.42
    assert math.isnan(second.value(gpu(3), "gpu_dram_active_ratio"))  # NVML itself said NaN
    assert second.index is first.index
    assert inventory.children(NODE, 100.0, SubjectKind.GPU) == [gpu(n) for n in range(8)]
    assert inventory.fact(gpu(3), PCI_FACT) == "0000:13:00"
    assert (inventory.fact(gpu(3), "vbios"), inventory.fact(gpu(3), "serial")) == ("96.00.A5.00.03", "16530")


def test_a_gpu_that_falls_off_reads_missing_the_others_go_on_and_it_comes_back(
    collector: NvmlCollector, stub: ctypes.CDLL
) -> None:
    before = frame(take(collector))
    stub.stub_lose(2, 1)
    for now_s in (101.0, 102.0):
        batch = take(collector, now_s)
        lost = frame(batch)
        assert batch.sources[0].ok
        assert batch.sources[0].rejected == {Reason.UNREACHABLE: 1}
        assert np.isnan(lost.values[lost.index.rows[gpu(2)]]).all()
        assert lost.value(gpu(1), "gpu_power_w") == 612.345
        assert lost.value(gpu(1), "gpu_sm_active_ratio") == 0.42  # its neighbours' activity is not interrupted
        assert lost.index is before.index
    stub.stub_lose(2, 0)
    take(collector, 103.0)
    assert frame(take(collector, 104.0)).value(gpu(2), "gpu_power_w") == 612.345


def test_a_driver_that_goes_away_is_told_and_found_again(collector: NvmlCollector, stub: ctypes.CDLL) -> None:
    take(collector)
    stub.stub_driver(0)
    batch = check_collect(collector, 101.0, Inventory(), 30.0, expect_ok=False)
    assert batch.sources[0].reason is Reason.UNSUPPORTED
    assert len(frame(batch).index) == 8
    stub.stub_driver(1)
    assert frame(take(collector, 102.0)).value(gpu(0), "gpu_power_w") == 612.345


def test_a_hang_is_a_timeout_and_does_not_pile_up_threads(collector: NvmlCollector, stub: ctypes.CDLL) -> None:
    take(collector)
    stub.stub_hang(4_000)  # about 8 GPUs × 13 calls × 4 ms
    before = threading.active_count()
    for now_s in (101.0, 102.0):
        batch = check_collect(collector, now_s, Inventory(), 0.05, expect_ok=False)
        assert batch.sources[0].reason is Reason.TIMEOUT
    assert threading.active_count() <= before + 1
    stub.stub_hang(0)
    assert take(collector, 103.0).sources[0].ok


def test_another_board_in_the_slot_is_another_gpu(collector: NvmlCollector, stub: ctypes.CDLL) -> None:
    inventory = Inventory()
    take(collector, inventory=inventory)
    stub.stub_lose(5, 1)
    take(collector, 101.0, inventory)
    stub.stub_swap(5)
    stub.stub_lose(5, 0)
    take(collector, 102.0, inventory)
    batch = take(collector, 103.0, inventory)
    assert frame(batch).value(gpu(5, 1), "gpu_power_w") == 612.345
    assert math.isnan(frame(batch).value(gpu(5, 0), "gpu_power_w"))
    assert gpu(5, 0) not in inventory.children(NODE, 104.0, SubjectKind.GPU)


def test_what_a_gpu_did_not_support_is_asked_for_again(collector: NvmlCollector, stub: ctypes.CDLL) -> None:
    """In MIG mode it has no utilisation: once the mode was off again, it had none until the driver was loaded."""
    stub.stub_old(1, 1)
    assert math.isnan(frame(take(collector)).value(gpu(1), "gpu_ecc_dbe_total"))
    stub.stub_old(1, 0)
    assert [frame(take(collector, 101.0 + n)).value(gpu(1), "gpu_ecc_dbe_total") for n in range(20)][-1] == 0


def test_a_driver_that_was_loaded_anew_begins_a_new_epoch(collector: NvmlCollector, stub: ctypes.CDLL) -> None:
    """Also where every counter stands where it stood."""
    first = frame(take(collector))
    assert (frame(take(collector, 101.0)).epoch == first.epoch).all()
    stub.stub_driver(0)
    take(collector, 102.0)
    stub.stub_driver(1)
    assert (frame(take(collector, 103.0)).epoch != first.epoch).all()


def test_a_counter_that_begins_anew_changes_the_epoch(collector: NvmlCollector, stub: ctypes.CDLL) -> None:
    stub.stub_ecc(1, 50)
    take(collector)
    stub.stub_ecc(1, 3)
    assert frame(take(collector, 101.0)).epoch.tolist() == [0, 1, 0, 0, 0, 0, 0, 0]


def test_an_older_gpu_lacks_metrics_and_nothing_else(collector: NvmlCollector, stub: ctypes.CDLL) -> None:
    stub.stub_old(0, 1)
    take(collector)
    got = frame(take(collector, 101.0))
    assert math.isnan(got.value(gpu(0), "gpu_ecc_sbe_total"))
    assert math.isnan(got.value(gpu(0), "gpu_sm_active_ratio"))
    assert got.value(gpu(0), "gpu_power_w") == 612.345
    assert got.value(gpu(1), "gpu_ecc_sbe_total") == 0


def test_gpm_samples_are_given_back(collector: NvmlCollector, stub: ctypes.CDLL) -> None:
    before = stub.stub_samples()
    for now_s in range(5):
        stub.stub_lose(now_s, 1)
        take(collector, 100.0 + now_s)
    collector.close()
    assert stub.stub_samples() == before


def test_each_xid_of_the_event_set_is_an_event_also_a_repeated_one(
    collector: NvmlCollector, stub: ctypes.CDLL
) -> None:
    """A gauge shows the last Xid only; NVML's event set tells each, from the first look on."""
    before = stub.stub_event_sets()  # a test before this one may have left its own open
    stub.stub_xid(3, 31)  # before the first look nobody listens
    assert take(collector).events == []
    for index, code in ((3, 31), (3, 31), (5, 79)):
        stub.stub_xid(index, code)
    stub.stub_lose(5, 1)
    batch = take(collector, 101.0)
    assert [(e.kind.value, e.code, e.gpu, e.node) for e in batch.events] == [
        ("xid", 31, gpu(3), NODE),
        ("xid", 31, gpu(3), NODE),
        ("xid", 79, gpu(5), NODE),
    ]
    assert [record.text for record in batch.logs][-1] == f"NVML told Xid 79 of {gpu(5).name}"
    assert take(collector, 102.0).events == []
    stub.stub_driver(0)
    check_collect(collector, 103.0, Inventory(), 30.0, expect_ok=False)
    stub.stub_driver(1)
    stub.stub_lose(5, 0)
    take(collector, 104.0)
    stub.stub_xid(5, 95)
    assert [event.code for event in take(collector, 105.0).events] == [95]
    collector.close()
    assert stub.stub_event_sets() == before


def test_the_nodes_page_counts_what_the_event_set_told(collector: NvmlCollector, stub: ctypes.CDLL) -> None:
    inventory = Inventory()
    known: XidCounts[tuple[Subject, int]] = XidCounts()
    take(collector, inventory=inventory)
    for _ in range(2):
        stub.stub_xid(3, 94)
        batch = take(collector, 101.0, inventory)
        known.update((event.gpu, event.code) for event in batch.events if event.gpu and event.code)
    text = page(frame(batch), inventory, known).decode()
    (row,) = [line for line in text.splitlines() if line.startswith("DCGM_EXP_XID_ERRORS_TOTAL{")]
    assert row.endswith('xid="94"} 2')
    read = PageParser().parse(text.encode())
    told = plan_of(
        read.layout, {kind: rows.column for kind, rows in gpu_rows(60.0).items()}, WorkloadRule(), None, ""
    )
    assert [(subject, labels["xid"]) for _, subject, _, labels in told.errors] == [(gpu(3), "94")]
