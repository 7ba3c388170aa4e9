"""dcgm-exporter pages over real HTTP: what they say arrives, what they do not say is missing."""

from __future__ import annotations

import gzip
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightshift.collectors.check import check_collect
from nightshift.collectors.frame import Frame, Reason
from nightshift.collectors.kernel_log.pci import PCI_FACT, gpu_at
from nightshift.collectors.subject import SHOWS_HELD_ONLY, Inventory, Subject, SubjectKind
from nightshift.collectors.telemetry.dcgm_exporter import DcgmExporterCollector
from nightshift.collectors.telemetry.metrics import of_kind
from nightshift.collectors.telemetry.rows import Rows, cells
from nightshift.collectors.tick import Batch
from tests.collectors.conftest import answer

NOW = 1_795_260_000.0


def gpu(n: int) -> Subject:
    return Subject(SubjectKind.GPU, f"GPU-{n}")


def row(metric: str, value: object, n: int = 0, host: str = 'Hostname="n1"', more: str = "") -> str:
    labels = (
        f'gpu="{n}",UUID="GPU-{n}",pci_bus_id="00000000:{n:02X}:00.0",device="nvidia{n}",modelName="NVIDIA H200"'
    )
    return f"{metric}{{{labels},{host}{more}}} {value}\n"


@pytest.fixture
def collector(opened: Any) -> Callable[..., DcgmExporterCollector]:
    def make(*urls: str, **settings: Any) -> DcgmExporterCollector:
        built: DcgmExporterCollector = opened(
            DcgmExporterCollector(DcgmExporterCollector.Settings(urls=list(urls), **settings))
        )
        return built

    return make


def take(
    of: DcgmExporterCollector, inventory: Inventory | None = None, now_s: float = NOW, timeout_s: float = 30.0
) -> Batch:
    return check_collect(of, now_s, inventory or Inventory(), timeout_s)


def frame(batch: Batch, kind: SubjectKind = SubjectKind.GPU) -> Frame:
    return next(f for f in batch.frames if f.kind is kind)


def pod(name: str, namespace: str = "ml", prefix: str = "") -> str:
    return f',{prefix}container="t",{prefix}namespace="{namespace}",{prefix}pod="{name}"'


def test_values_arrive_in_our_units_and_relations_in_the_inventory(collector: Any, page_server: Any) -> None:
    page_server.pages["/m"] = (
        row("DCGM_FI_DEV_FB_USED", 100, more=pod("job-3"))
        + row("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 5000, more=pod("job-3"))
        + row("DCGM_FI_DEV_FB_USED", 7, n=1)
    ).encode()
    inventory = Inventory()
    batch = take(collector(page_server.at("/m")), inventory)
    got = frame(batch)
    assert batch.sources[0].ok
    assert got.value(gpu(0), "gpu_memory_used_bytes") == 100 * 2**20
    assert got.value(gpu(0), "gpu_energy_j") == 5.0
    assert math.isnan(got.value(gpu(1), "gpu_energy_j"))
    assert got.times_s("gpu_memory_used_bytes").tolist() == [NOW, NOW]
    for kind, name in [
        (SubjectKind.NODE, "n1"),
        (SubjectKind.POD, "ml/job-3"),
        (SubjectKind.JOB, "ml/job"),
        (SubjectKind.RANK, "ml/job#3"),
    ]:
        assert inventory.above(gpu(0), kind, NOW) == Subject(kind, name)
    assert inventory.fact(gpu(1), PCI_FACT) == "0000:01:00"
    assert batch.sources[0].covers == (Subject(SubjectKind.NODE, "n1"),)


@pytest.mark.parametrize("name", ["CLOCK_THROTTLE_REASONS", "CLOCKS_EVENT_REASONS"])
def test_clock_event_reasons_are_read_by_their_name_of_either_release(
    collector: Any, page_server: Any, name: str
) -> None:
    """DCGM 3.3 renamed the field: behind a newer exporter no GPU was ever hot."""
    page_server.pages["/m"] = row(f"DCGM_FI_DEV_{name}", 64).encode()
    assert frame(take(collector(page_server.at("/m")))).value(gpu(0), "gpu_throttle_reasons") == 64


def test_an_openmetrics_page_without_its_end_was_cut_short(collector: Any, page_server: Any) -> None:
    """Cut between two lines it looks whole, and the GPUs of the rest look lost."""
    kind = "application/openmetrics-text; version=1.0.0; charset=utf-8"
    first, second = (row("DCGM_FI_DEV_FB_USED", 100, n=n).encode() for n in (0, 1))
    source = collector(page_server.at("/m"))
    for body, whole in ((first + second + b"# EOF\n", True), (first, False), (first + b"# EOF", True)):
        page_server.pages["/m"] = lambda handler, body=body: answer(handler, body, Content_Type=kind)
        batch = take(source)
        assert (batch.sources[0].ok, batch.sources[0].reason) == (whole, None if whole else Reason.TRUNCATED)
        assert frame(batch).value(gpu(0), "gpu_memory_used_bytes") == 100 * 2**20


@pytest.mark.parametrize(
    "row_of_nobody", ['{gpu="0",Hostname="n1"} 5', '{gpu=0,UUID="GPU-0"} 5'], ids=["no UUID", "illegal"]
)
def test_a_page_of_which_no_row_can_be_placed_is_no_healthy_source(
    collector: Any, page_server: Any, row_of_nobody: str
) -> None:
    """Its exporter's labels were changed: the page answers, and says nothing of any GPU that was known before."""
    page_server.pages["/m"] = row("DCGM_FI_DEV_FB_USED", 7).encode()
    source = collector(page_server.at("/m"))
    assert take(source).sources[0].ok
    page_server.pages["/m"] = f"# TYPE DCGM_FI_DEV_FB_USED gauge\nDCGM_FI_DEV_FB_USED{row_of_nobody}\n".encode()
    batch = take(source)
    assert (batch.sources[0].ok, batch.sources[0].reason) == (False, Reason.MALFORMED)
    assert batch.sources[0].covers == (Subject(SubjectKind.NODE, "n1"),)
    assert math.isnan(frame(batch).value(gpu(0), "gpu_memory_used_bytes"))


@pytest.mark.parametrize("label", ['Hostname="n1"', 'hostname="n1"'])
def test_the_host_is_found_under_both_spellings_and_exported_labels_win(
    collector: Any, page_server: Any, label: str
) -> None:
    theirs = pod("dcgm-exporter-x", "monitoring") + pod("job-1", prefix="exported_")
    page_server.pages["/m"] = row("DCGM_FI_DEV_FB_USED", 1, host=label, more=theirs).encode()
    inventory = Inventory()
    take(collector(page_server.at("/m")), inventory)
    assert inventory.parents(gpu(0), NOW, SubjectKind.NODE) == [Subject(SubjectKind.NODE, "n1")]
    assert inventory.parents(gpu(0), NOW, SubjectKind.POD) == [Subject(SubjectKind.POD, "ml/job-1")]


def test_mig_instances_and_links_get_rows_of_their_own(collector: Any, page_server: Any) -> None:
    page_server.pages["/m"] = (
        row("DCGM_FI_DEV_FB_USED", 5, more=',GPU_I_PROFILE="1g.18gb",GPU_I_ID="7"')
        + row("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L3", 9)
        + 'DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT{nvlink="4",gpu="0",gpu_uuid="GPU-0",hostname="n1"} 2\n'
    ).encode()
    inventory = Inventory()
    batch = take(collector(page_server.at("/m")), inventory)
    mig = Subject(SubjectKind.MIG, "GPU-0/mig7")
    assert frame(batch, SubjectKind.MIG).value(mig, "gpu_memory_used_bytes") == 5 * 2**20
    links = frame(batch, SubjectKind.LINK)
    assert links.value(Subject(SubjectKind.LINK, "GPU-0/link3"), "link_crc_errors_total") == 9
    assert links.value(Subject(SubjectKind.LINK, "GPU-0/link4"), "link_replay_errors_total") == 2
    assert inventory.parents(mig, NOW) == [gpu(0)]
    assert not [f for f in batch.frames if f.kind is SubjectKind.GPU]


@pytest.mark.parametrize("after", [b"", b"\0" * 30])
def test_a_page_zipped_in_parts_is_read_to_its_end(collector: Any, page_server: Any, after: bytes) -> None:
    """Gzip members stand one after the other (RFC 1952), as proxies write them: of two, the
    GPUs of the second were missing, and nothing said so."""
    parts = [gzip.compress(row("DCGM_FI_DEV_POWER_USAGE", 500 + n, n=n).encode()) for n in range(3)]
    page_server.pages["/m"] = lambda handler: answer(handler, b"".join(parts) + after, Content_Encoding="gzip")
    got = frame(take(collector(page_server.at("/m"))))
    assert [got.value(gpu(n), "gpu_power_w") for n in range(3)] == [500.0, 501.0, 502.0]


def test_above_a_mig_instance_are_its_own_pod_and_job_and_not_its_neighbours(
    collector: Any, page_server: Any
) -> None:
    """What goes wrong in one instance would be laid to everybody on the GPU."""

    def used(instance: int, held: str) -> str:
        part = f',GPU_I_PROFILE="1g.18gb",GPU_I_ID="{instance}"'
        return row("DCGM_FI_DEV_FB_USED", 5, more=part + held)

    page_server.pages["/m"] = (used(1, pod("a-0")) + used(2, pod("b-0", namespace="other")) + used(3, "")).encode()
    inventory = Inventory()
    take(collector(page_server.at("/m")), inventory)
    held = {SubjectKind.POD: ["ml/a-0", "other/b-0", None], SubjectKind.JOB: ["ml/a", "other/b", None]}
    for kind, names in held.items():
        for instance, name in enumerate(names, start=1):
            above = inventory.above(Subject(SubjectKind.MIG, f"GPU-0/mig{instance}"), kind, NOW)
            assert above == (None if name is None else Subject(kind, name))
    assert len(inventory.parents(gpu(0), NOW, SubjectKind.POD)) == 2
    assert inventory.above(Subject(SubjectKind.MIG, "GPU-0/mig3"), SubjectKind.NODE, NOW) is not None


@pytest.mark.parametrize(
    "value",
    ["NaN", "+Inf", "-Inf", "-5", "9223372036854775794", "2147483632", "140737488355328", "1e300", "abc", ""],
)
def test_what_is_no_value_reads_as_missing_and_its_neighbours_are_untouched(
    collector: Any, page_server: Any, value: str
) -> None:
    page_server.pages["/m"] = (
        row("DCGM_FI_DEV_POWER_USAGE", value) + row("DCGM_FI_DEV_POWER_USAGE", 500, n=1)
    ).encode()
    got = frame(take(collector(page_server.at("/m"))))
    assert gpu(0) not in got.index.rows or math.isnan(got.value(gpu(0), "gpu_power_w"))
    assert got.value(gpu(1), "gpu_power_w") == 500


def test_series_that_contradict_each_other_are_missing_and_counted_and_equal_ones_are_kept(
    collector: Any, page_server: Any
) -> None:
    page_server.pages["/m"] = (
        row("DCGM_FI_DEV_POWER_USAGE", 100)
        + row("DCGM_FI_DEV_POWER_USAGE", 700)
        + row("DCGM_FI_DEV_GPU_TEMP", 40, more=pod("a-0"))
        + row("DCGM_FI_DEV_GPU_TEMP", 40, more=pod("b-0"))
    ).encode()
    inventory = Inventory()
    batch = take(collector(page_server.at("/m")), inventory)
    assert math.isnan(frame(batch).value(gpu(0), "gpu_power_w"))
    assert batch.sources[0].rejected == {Reason.DUPLICATE: 1}
    assert frame(batch).value(gpu(0), "gpu_temperature_c") == 40
    assert len(inventory.parents(gpu(0), NOW, SubjectKind.POD)) == 2  # a time-sliced GPU is shared


@given(
    st.lists(st.tuples(st.sampled_from([10.0, 20.0, 30.0]), st.sampled_from([1.0, 2.0])), min_size=1, max_size=5)
)
def test_of_one_cell_given_many_times_the_newest_counts_and_none_where_those_differ(
    given_: list[tuple[float, float]],
) -> None:
    """In whatever order, and whatever a third sample says."""
    rows = Rows(SubjectKind.GPU, of_kind(SubjectKind.GPU))
    column = rows.column["DCGM_FI_DEV_GPU_TEMP"]
    where = cells(SubjectKind.GPU, [(n, gpu(0), column, 1.0) for n in range(len(given_))])
    values, times = (np.array(part) for part in zip(*[(v, t) for t, v in given_], strict=True))
    rows.put(where, values, times, 40.0)
    got = rows.frame(40.0)
    assert got is not None
    newest = {v for t, v in given_ if t == max(times)}
    value = got.value(gpu(0), "gpu_temperature_c")
    assert (value,) == tuple(newest) if len(newest) == 1 else math.isnan(value)
    assert got.observed_at_s[0, column] == max(times)


def test_a_declared_type_that_cannot_be_is_refused(collector: Any, page_server: Any) -> None:
    page_server.pages["/m"] = (
        "# TYPE DCGM_FI_DEV_POWER_USAGE histogram\n"
        + row("DCGM_FI_DEV_POWER_USAGE", 100)
        + row("DCGM_FI_DEV_GPU_TEMP", 40)
    ).encode()
    batch = take(collector(page_server.at("/m")))
    assert math.isnan(frame(batch).value(gpu(0), "gpu_power_w"))
    assert batch.sources[0].rejected == {Reason.MALFORMED: 1}


def test_another_board_in_the_same_slot_is_another_row_and_the_first_has_left(
    collector: Any, page_server: Any
) -> None:
    of, inventory = collector(page_server.at("/m")), Inventory()
    page_server.pages["/m"] = row("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", 50).encode()
    take(of, inventory)
    page_server.pages["/m"] = row("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", 2).replace("GPU-0", "GPU-9").encode()
    got = frame(take(of, inventory, NOW + 5))
    assert math.isnan(got.value(gpu(0), "gpu_ecc_sbe_total"))
    assert got.value(gpu(9), "gpu_ecc_sbe_total") == 2
    node = Subject(SubjectKind.NODE, "n1")
    assert inventory.children(node, NOW + 6, SubjectKind.GPU) == [gpu(9)]
    assert inventory.children(node, NOW + 1, SubjectKind.GPU) == [gpu(0)]


def test_a_counter_that_openmetrics_made_end_in_total_is_heard(collector: Any, page_server: Any) -> None:
    """Behind OpenTelemetry's collector every memory error went unheard, in a healthy source."""
    page_server.pages["/m"] = (row("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL_total", 3) + row("UNKNOWN_total", 1)).encode()
    assert frame(take(collector(page_server.at("/m")))).value(gpu(0), "gpu_ecc_dbe_total") == 3


def test_a_gathered_page_without_hostnames_tells_its_nodes_by_their_instances(
    collector: Any, page_server: Any
) -> None:
    """Of a federated page all GPUs stood on the node that Prometheus runs on."""
    rows = [row("DCGM_FI_DEV_FB_USED", 1, n=n, host=f'instance="n{n}:9400"') for n in range(2)]
    page_server.pages["/m"] = "".join(rows).encode()
    inventory = Inventory()
    take(collector(page_server.at("/m")), inventory)
    for n in range(2):
        assert inventory.above(gpu(n), SubjectKind.NODE, NOW) == Subject(SubjectKind.NODE, f"n{n}")


def test_a_board_that_was_swapped_after_it_was_gone_holds_its_address_alone(
    collector: Any, page_server: Any
) -> None:
    """The usual order: a GPU is lost, days later another is in its place. Two GPUs stood at one address, and an Xid
    there was nobody's. The GPUs behind the lost one are numbered anew meanwhile, which moves no board."""
    of, inventory, node = collector(page_server.at("/m")), Inventory(), Subject(SubjectKind.NODE, "n1")
    name = "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL"
    whole = [row(name, 1, n=n) for n in range(3)]
    for now_s, rows in [
        (NOW, whole),
        (NOW + 5, [whole[0], whole[2].replace('gpu="2"', 'gpu="1"')]),
        (NOW + 9, [whole[0], whole[1].replace("GPU-1", "GPU-9"), whole[2]]),
    ]:
        page_server.pages["/m"] = "".join(rows).encode()
        take(of, inventory, now_s)
    assert inventory.children(node, NOW + 6, SubjectKind.GPU) == [gpu(0), gpu(1), gpu(2)]
    assert inventory.children(node, NOW + 10, SubjectKind.GPU) == [gpu(0), gpu(2), gpu(9)]
    assert gpu_at(inventory, node, "0000:01:00", NOW + 6) == gpu(1)
    assert gpu_at(inventory, node, "0000:01:00", NOW + 10) == gpu(9)


def test_the_boards_health_is_heard_of_a_gpu_in_mig_mode(collector: Any, page_server: Any) -> None:
    """It has its instances' rows only, each with the board's counts: its uncorrected errors went unheard. Never are
    they added up, and what belongs to an instance stays there."""
    of = collector(page_server.at("/m"))

    def mig(metric: str, instance: int, value: object) -> str:
        return row(metric, value, more=f',GPU_I_PROFILE="3g.71gb",GPU_I_ID="{instance}"')

    for errors, epoch in ((5, 0), (6, 0)):
        page_server.pages["/m"] = (
            mig("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", 1, errors)
            + mig("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", 2, errors if errors == 6 else 4)
            + mig("DCGM_FI_DEV_ROW_REMAP_PENDING", 1, "N/A")
            + mig("DCGM_FI_DEV_ROW_REMAP_PENDING", 2, 9223372036854775794)
            + mig("DCGM_FI_DEV_FB_USED", 1, 10)
            + mig("DCGM_FI_DEV_FB_USED", 2, 20)
            + mig("DCGM_FI_DEV_POWER_USAGE", 1, 300)
            + row("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", 0, n=1)
        ).encode()
        got = frame(take(of))
        assert got.value(gpu(0), "gpu_ecc_dbe_total") == errors
        assert got.value(gpu(1), "gpu_ecc_dbe_total") == 0
        for metric in ("gpu_row_remap_pending", "gpu_memory_used_bytes", "gpu_power_w"):
            assert math.isnan(got.value(gpu(0), metric))
        assert got.epoch.tolist() == [epoch, epoch]
    page_server.pages["/m"] = row("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", 6).encode()  # MIG mode was switched off
    got = frame(take(of))
    assert (got.value(gpu(0), "gpu_ecc_dbe_total"), got.epoch[0]) == (6, 0)


def test_a_counter_that_went_back_changes_the_epoch_once(collector: Any, page_server: Any) -> None:
    of = collector(page_server.at("/m"))
    epochs = []
    for value in ("10", "12", "NaN", "12", "3", "4"):
        page_server.pages["/m"] = row("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", value).encode()
        epochs.append(int(frame(take(of)).epoch[0]))
    assert epochs == [0, 0, 0, 0, 1, 1]


def test_a_gpu_that_vanishes_from_its_page_keeps_its_row_and_node_but_no_value_and_no_pod(
    collector: Any, page_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nightshift.collectors.telemetry.dcgm_exporter.FORGET_AFTER_S", 60)
    of, inventory = collector(page_server.at("/m")), Inventory()
    both = row("DCGM_FI_DEV_POWER_USAGE", 1, more=pod("j-0")) + row("DCGM_FI_DEV_POWER_USAGE", 2, n=1)
    page_server.pages["/m"] = both.encode()
    before = frame(take(of, inventory))
    page_server.pages["/m"] = row("DCGM_FI_DEV_POWER_USAGE", 2, n=1).encode()
    after = frame(take(of, inventory, NOW + 5))
    assert after.index is before.index
    assert math.isnan(after.value(gpu(0), "gpu_power_w"))
    assert inventory.above(gpu(0), SubjectKind.NODE, NOW + 6) is not None
    assert inventory.parents(gpu(0), NOW + 6, SubjectKind.POD) == []
    assert gpu(0) not in frame(take(of, inventory, NOW + 70)).index.rows


def test_a_page_cut_inside_a_line_is_told_and_its_last_number_is_not_believed(
    collector: Any, page_server: Any
) -> None:
    whole = row("DCGM_FI_DEV_POWER_USAGE", 100) + row("DCGM_FI_DEV_POWER_USAGE", 700, n=1)
    page_server.pages["/m"] = whole.encode()[:-2]
    batch = take(collector(page_server.at("/m")))
    assert batch.sources[0].reason is Reason.TRUNCATED
    assert frame(batch).value(gpu(0), "gpu_power_w") == 100
    assert gpu(1) not in frame(batch).index.rows


def test_samples_of_another_time_are_refused(collector: Any, page_server: Any) -> None:
    stamps = {0: NOW - 10, 1: NOW - 4000, 2: NOW + 4000}
    page_server.pages["/m"] = "".join(
        row("DCGM_FI_DEV_POWER_USAGE", f"100 {int(t * 1000)}", n=n) for n, t in stamps.items()
    ).encode()
    batch = take(collector(page_server.at("/m")))
    got = frame(batch)
    assert got.value(gpu(0), "gpu_power_w") == 100
    assert got.times_s("gpu_power_w")[0] == NOW - 10
    assert math.isnan(got.value(gpu(1), "gpu_power_w"))
    assert math.isnan(got.value(gpu(2), "gpu_power_w"))
    assert batch.sources[0].rejected == {Reason.STALE: 1, Reason.CLOCK: 1}


def test_a_faulty_page_is_told_with_its_reason_and_takes_no_other_page_with_it(
    collector: Any,
    faulty: tuple[Any, str, set[str], float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("nightshift.collectors.telemetry.pages.MAX_BYTES", 1_000_000)
    server, path, reasons, timeout_s = faulty
    server.pages["/good"] = row("DCGM_FI_DEV_POWER_USAGE", 300).encode()
    of = collector(server.at(path), server.at("/good"))
    batch = take(of, timeout_s=max(timeout_s, 3.0))
    bad, good = batch.sources
    assert good.ok
    assert bad.reason in reasons, bad
    assert frame(batch).value(gpu(0), "gpu_power_w") == 300


def test_a_source_that_went_away_leaves_its_rows_missing_and_comes_back(collector: Any, page_server: Any) -> None:
    of = collector(page_server.at("/m"))
    page_server.pages["/m"] = row("DCGM_FI_DEV_POWER_USAGE", 300).encode()
    first = frame(take(of))
    del page_server.pages["/m"]
    gone = take(of)
    assert frame(gone).index is first.index
    assert np.isnan(frame(gone).values).all()
    assert gone.sources[0].covers == (Subject(SubjectKind.NODE, "n1"),)
    page_server.pages["/m"] = row("DCGM_FI_DEV_POWER_USAGE", 301).encode()
    assert frame(take(of)).value(gpu(0), "gpu_power_w") == 301


def test_a_hostile_label_is_bounded_and_refused(collector: Any, page_server: Any) -> None:
    for bad in ("x" * 10_000, "a\\nb", "\x07"):
        page_server.pages["/m"] = (
            row("DCGM_FI_DEV_POWER_USAGE", 1).replace("GPU-0", bad) + row("DCGM_FI_DEV_POWER_USAGE", 2, n=1)
        ).encode()
        batch = take(collector(page_server.at("/m")))
        assert frame(batch).index.subjects == (gpu(1),)
        assert batch.sources[0].rejected[Reason.MALFORMED] == 1


def test_a_hostile_host_or_pod_is_refused_and_the_gpus_own_values_are_used(
    collector: Any, page_server: Any
) -> None:
    for host, more in [("n\\n1", ""), ("n1", pod("p\\nq")), ("n1", pod("x" * 10_000)), ("n" * 10_000, "")]:
        page_server.pages["/m"] = row("DCGM_FI_DEV_POWER_USAGE", 1, host=f'Hostname="{host}"', more=more).encode()
        inventory = Inventory()
        batch = take(collector(page_server.at("/m")), inventory)
        assert frame(batch).value(gpu(0), "gpu_power_w") == 1
        assert batch.sources[0].rejected == {Reason.MALFORMED: 1}
        assert all(m.parent.name.isprintable() and len(m.parent.name) < 600 for m in inventory.memberships())


def test_another_driver_begins_a_new_epoch_of_its_gpus_alone(opened: Any, page_server: Any) -> None:
    def page(driver: str) -> bytes:
        rows = [
            f'DCGM_FI_DEV_FB_USED{{gpu="{n}",UUID="GPU-{n}",Hostname="n1",DCGM_FI_DRIVER_VERSION="{v}"}} 7'
            for n, v in ((0, driver), (1, "580.1"))
        ]
        return ("\n".join(rows) + "\n").encode()

    of, inventory = (
        opened(DcgmExporterCollector(DcgmExporterCollector.Settings(urls=[page_server.at("/m")]))),
        Inventory(),
    )
    epochs = []
    for n, driver in enumerate(("570.1", "570.1", "580.1", "580.1")):
        page_server.pages["/m"] = page(driver)
        epochs.append(check_collect(of, 1e9 + n, inventory, 30.0).frames[0].epoch.tolist())
    assert epochs == [[0, 0], [0, 0], [1, 0], [1, 0]]


@pytest.mark.parametrize("number", range(3))
def test_where_hostname_is_the_exporters_pod_the_node_label_is_the_node(
    collector: Any, page_server: Any, number: int
) -> None:
    """An exporter without NODE_NAME: its GPUs must not stand on a node that does not exist."""
    labels = f'Hostname="dcgm-exporter-6ld{number}b",node="gpu-n{number}"'
    page_server.pages["/m"] = row("DCGM_FI_DEV_POWER_USAGE", 300, host=labels).encode()
    known = Inventory()
    take(collector(f"{page_server.url}/m"), known)
    assert known.above(gpu(0), SubjectKind.NODE, NOW) == Subject(SubjectKind.NODE, f"gpu-n{number}")


def test_an_exporter_that_lists_claims_says_that_it_hides_idle_gpus(collector: Any, page_server: Any) -> None:
    """And no longer, once a GPU without a claim is shown again."""
    of, known, node = collector(f"{page_server.url}/m"), Inventory(), Subject(SubjectKind.NODE, "n1")
    held = pod("a-0") + ',dra_claim_name="c1"'
    page_server.pages["/m"] = row("DCGM_FI_DEV_POWER_USAGE", 300, more=held).encode()
    batch = take(of, known)
    assert batch.sources[0].ok
    assert "idle GPUs are not watched" in batch.sources[0].detail
    assert known.fact(node, SHOWS_HELD_ONLY) == "yes"
    both = row("DCGM_FI_DEV_POWER_USAGE", 300, more=held) + row("DCGM_FI_DEV_POWER_USAGE", 90, n=1)
    page_server.pages["/m"] = both.encode()
    assert take(of, known).sources[0].detail == ""
    assert known.fact(node, SHOWS_HELD_ONLY) == "no"


def test_what_the_exporter_counts_of_xids_comes_as_an_event(collector: Any, page_server: Any) -> None:
    of, known = collector(f"{page_server.url}/m"), Inventory()
    power = row("DCGM_FI_DEV_POWER_USAGE", 300)
    page_server.pages["/m"] = (power + row("DCGM_EXP_XID_ERRORS_COUNT", 0)).encode()
    assert list(take(of, known).events) == []
    page_server.pages["/m"] = (power + row("DCGM_EXP_XID_ERRORS_COUNT", 1, more=',xid="95"')).encode()
    batch = take(of, known)
    assert [(event.code, event.gpu) for event in batch.events] == [(95, gpu(0))]
    assert [record.text for record in batch.logs] == [event.record.text for event in batch.events]
