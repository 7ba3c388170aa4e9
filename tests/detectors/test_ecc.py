"""Memory errors: storms count once, the test keeps its run length, the unit is named, shares are by devices."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightshift.collectors.frame import Frame, Instant, LogRecord, SeriesIndex
from nightshift.collectors.kernel_log.event import KernelEvent, KernelEventKind
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.base import Fault, Finding, Severity, State
from nightshift.detectors.ecc.clusters import MemoryCell, groups, pattern, together
from nightshift.detectors.ecc.counters import CORRECTED, UNCORRECTED, CusumTest, EccCounters
from nightshift.detectors.ecc.detector import (
    AFTER_CORRECTED,
    AFTER_UNCORRECTED,
    BURST_S,
    FEW_DEVICES,
    STRATA,
    TOGETHER_P,
    Ecc,
    ErrorHistory,
    Stratum,
)

NODE = Subject(SubjectKind.NODE, "n1")
GPUS = tuple(Subject(SubjectKind.GPU, f"GPU-{n}") for n in range(8))
INDEX = SeriesIndex(SubjectKind.GPU, GPUS)
START_S = 1_790_000_000.0


class Fleet:
    """Eight GPUs of one node, two counters each, one detector."""

    def __init__(self) -> None:
        self.detector = Ecc()
        self.counts = np.zeros((8, 2))
        self.inventory = Inventory()
        for gpu in GPUS:
            self.inventory.observe(gpu, NODE, START_S - 60.0)
        self.at_s = START_S

    def tick(self, after_s: float = 30.0, events: Sequence[KernelEvent] = ()) -> list[Finding]:
        self.at_s += after_s
        seen = np.full((1, 1), self.at_s)
        frame = Frame(
            self.at_s, INDEX, (CORRECTED, UNCORRECTED), self.counts.copy(), seen, np.zeros(8, dtype=np.int64)
        )
        return self.detector.update(Tick(self.at_s, {SubjectKind.GPU: frame}, events=tuple(events)), self.inventory)

    def line(self, code: int | None, gpu: int = 0, after_s: float = 0.0, **where: str) -> KernelEvent:
        record = LogRecord(Instant(self.at_s + after_s), "n1", NODE, f"Xid {code}", int(self.at_s))
        kind = KernelEventKind.BOOT if code is None else KernelEventKind.XID
        return KernelEvent(kind, record, NODE, code=code, gpu=GPUS[gpu], attributes=where)

    def said(self, findings: Sequence[Finding]) -> set[tuple[Fault, Subject]]:
        return {(f.fault, f.subject) for f in findings if f.state is State.FIRING}


@pytest.mark.parametrize("rate", [0.02, 0.05])
def test_the_sequential_test_keeps_its_average_run_length_on_healthy_devices(rate: float) -> None:
    """Errors at the healthy rate on 300 devices, simulated to their first alarms: at least the stated length."""
    settings = CusumTest(bin_s=3600.0, healthy_rate=rate, faulty_rate=0.4, run_length_days=12.0)
    counters, devices, bins = EccCounters(settings, 1e9), 300, 4000
    index = SeriesIndex(SubjectKind.GPU, tuple(Subject(SubjectKind.GPU, str(n)) for n in range(devices)))
    counters.table.rows(index, 0.0)
    rng = np.random.default_rng(5)
    first = np.full(devices, float(bins))
    for number in range(bins):
        counters.roll(number * settings.bin_s)
        first = np.where((counters.table["cusum"] >= settings.threshold) & (first == bins), number, first)
        counters.table["active"][:] = rng.random(devices) < rate
    stated = settings.run_length_days * 86400.0 / settings.bin_s
    assert first.mean() >= stated


def test_a_storm_within_one_bin_is_no_degraded_memory_and_a_recurrence_is() -> None:
    """Fifty thousand errors in a minute count once; one error in every third minute fires within a quarter hour."""
    fleet = Fleet()
    fleet.tick()
    for _ in range(2):
        fleet.counts[0, 0] += 25_000
        assert fleet.tick() == []
    for _ in range(600):
        assert fleet.tick() == []
    began_s = fleet.at_s
    while not (found := fleet.tick()):
        if int(fleet.at_s - began_s) % 180 == 0:
            fleet.counts[1, 0] += 1
        assert fleet.at_s - began_s < 900.0
    assert (found[0].fault, found[0].subject, found[0].severity) == (
        Fault.HBM_DEGRADED,
        GPUS[1],
        Severity.WARNING,
    )
    assert found[0].facts["next_error_24h"] == AFTER_CORRECTED.share
    assert found[0].since.t_s >= began_s - 120.0
    assert found[0].evidence[0].reference == 0.0  # type: ignore[union-attr]


@pytest.mark.parametrize(("rows", "fires"), [(("0x1",), False), (("0x1", "0x2", "0x3", "0x4"), True)])
def test_named_rows_count_when_they_are_new(rows: tuple[str, ...], fires: bool) -> None:
    """One bad cell read again and again is one fault; errors that spread over rows are a fault that grows."""
    fleet = Fleet()
    fleet.tick()
    soft = []
    for number in range(60):
        fleet.counts[0, 0] += 1
        line = fleet.line(92, bank="1", row=rows[number // 5 % len(rows)], column="0x5")
        soft += [f for f in fleet.tick(events=[line]) if "bins of" in f.summary]
    assert bool(soft) is fires


@pytest.mark.parametrize("hours", [5, 25])
def test_two_uncorrected_errors_within_a_day_are_said_and_no_time_is_claimed(hours: int) -> None:
    """The share is what followed on other devices, with one device's interval; nothing is called imminent."""
    fleet = Fleet()
    fleet.tick()
    found = []
    for _ in range(2):
        fleet.counts[3, 1] += 1
        found = fleet.tick()
        for _ in range(hours):
            fleet.tick(3600.0)
    assert fleet.said(found) == {(Fault.HBM_DEGRADED, GPUS[3])}
    assert ("more than one uncorrected error within a day" in found[0].summary) is (hours < 24)
    low, share, high = (float(found[0].facts[f"next_error_{n}"]) for n in ("low", "24h", "high"))
    assert low < share < high
    assert share == AFTER_UNCORRECTED.share
    assert "imminent" not in found[0].summary


def test_a_stratum_of_few_devices_states_no_more_than_its_bound() -> None:
    few = Stratum("of one device", 31, FEW_DEVICES - 1, 30, 0.705, 0.001, 1.0)
    assert few.share == few.low
    assert all(s.devices >= FEW_DEVICES and s.low < s.share == s.expected < s.high for s in STRATA)


@pytest.mark.parametrize(
    ("code", "line", "unit"),
    [
        (48, "An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at", "DRAM"),
        (48, "An uncorrectable ECC error has been detected on GPU in GSP-RISCV location 18", "SRAM (GSP-RISCV)"),
        (171, "HBM, Uncorrectable DRAM error in FBPA 6 subpartition 0", "DRAM"),
        (172, "SM ICACHE, Uncorrectable SRAM error in GPC 7 TPC 6", "SRAM (SM)"),
        (172, "x", "SRAM"),
        (63, "Row Remapper: New row marked for remapping, reset gpu to activate.", "DRAM"),
        (94, "Contained: SM (0x1). RST: No, D-RST: No", "unit unknown"),
        (95, "Uncontained: FBHUB. RST: Yes", "unit unknown"),
        (48, "An uncorrectable double bit error (DBE) has been detected on GPU (0000:89:00).", "unit unknown"),
    ],
)
def test_a_finding_names_the_unit_that_the_line_names_and_no_other(code: int, line: str, unit: str) -> None:
    """The driver's own words. What Xid 94 names read the bad data; where that lay is not said."""
    fleet = Fleet()
    record = LogRecord(Instant(fleet.at_s), "n1", NODE, f"NVRM: Xid (PCI:0000:9b:00): {code}, pid=7, {line}", 1)
    found = fleet.tick(events=[KernelEvent(KernelEventKind.XID, record, NODE, code=code, gpu=GPUS[0])])
    assert found[0].facts["unit"] == unit
    assert found[0].summary.startswith(f"ECC errors{', ' if unit == 'unit unknown' else ' in '}{unit}: ")
    assert ("next_error_24h" in found[0].facts) is not unit.startswith("SRAM")


@pytest.mark.parametrize(("part", "unit"), [("dram", "DRAM"), ("sram", "SRAM"), ("", "unit unknown")])
def test_a_counter_of_the_unit_names_it_and_the_total_alone_does_not(part: str, unit: str) -> None:
    names = (UNCORRECTED, f"gpu_ecc_dbe_{part}_total") if part else (UNCORRECTED,)
    detector, found = Ecc(), []
    for number in range(2):
        at_s, counts = START_S + 30.0 * number, np.full((8, len(names)), float(number))
        frame = Frame(at_s, INDEX, names, counts, np.full((1, 1), at_s), np.zeros(8, dtype=np.int64))
        found = detector.update(Tick(at_s, {SubjectKind.GPU: frame}), Inventory())
    assert {f.facts["unit"] for f in found} == {unit}


def test_errors_from_before_the_first_look_are_no_event_and_a_later_finding_states_them() -> None:
    fleet = Fleet()
    fleet.counts[2, 1] = 3.0
    assert [finding for _ in range(20) for finding in fleet.tick()] == []
    fleet.counts[2, 1] = 4.0
    (finding,) = fleet.tick()
    assert finding.severity is Severity.CRITICAL
    assert "1 more uncorrected errors" in finding.summary
    assert finding.facts["uncorrected_before_first_look"] == 3.0


@pytest.mark.parametrize(("back_s", "told"), [(60.0, 0), (400.0, 1)])
def test_a_count_that_is_back_after_a_look_of_zeros_tells_no_error(back_s: float, told: int) -> None:
    """An exporter that starts again shows zeros once; a driver that was loaded anew counts from zero."""
    fleet = Fleet()
    fleet.counts[2, 1] = 7.0
    fleet.tick()
    fleet.counts[2, 1] = 0.0
    fleet.tick()
    fleet.counts[2, 1] = 7.0
    assert len([f for f in fleet.tick(back_s) if "more uncorrected errors" in f.summary]) == told
    fleet.counts[2, 1] = 8.0
    assert fleet.said(fleet.tick()) == {(Fault.HBM_DEGRADED, GPUS[2])}


def test_gpus_of_a_node_that_err_together_have_one_cause_and_one_finding() -> None:
    """Four of eight GPUs within ten minutes: the node is named, with the chance that it is none; no GPU is."""
    fleet = Fleet()
    fleet.tick()
    found = []
    for number in range(40):
        fleet.counts[:4, 0] += number % 6 == 0
        found += fleet.tick()
    assert fleet.said(found) == {(Fault.HBM_DEGRADED, NODE)}
    one = next(f for f in found if f.subject == NODE)
    assert one.p_value is not None
    assert one.p_value < TOGETHER_P
    assert "One cause, many GPUs: 4 of 8" in one.summary


@pytest.mark.parametrize(
    ("on", "named"),
    [
        ({0: 3, 1: 3, 2: 3, 3: 3}, {"rack:r0"}),
        ({0: 1, 1: 1, 2: 1, 3: 1}, {"rack:r0"}),
        ({1: 5, 2: 1}, {"node:n1"}),
        ({0: 1, 6: 1}, set()),
    ],
)
def test_a_rack_is_named_once_where_its_nodes_err_together_and_a_node_where_it_errs_alone(
    on: dict[int, int], named: set[str]
) -> None:
    """Eight nodes of eight GPUs in two racks; each GPU of `on` errs once within five minutes, one node after the
    other's last: one finding of the widest place that explains it, none of a GPU."""
    fleet, gpus = Inventory(), [Subject(SubjectKind.GPU, f"GPU-{n}-{g}") for n in range(8) for g in range(8)]
    for number, gpu in enumerate(gpus):
        node = Subject(SubjectKind.NODE, f"n{number // 8}")
        fleet.observe(gpu, node, START_S)
        fleet.observe(node, Subject(SubjectKind.RACK, f"r{number // 32}"), START_S)
    when = {8 * n + g: 300.0 + 70.0 * g + 9.0 * n for n, count in on.items() for g in range(count)}
    index, counts, detector, said = SeriesIndex(SubjectKind.GPU, tuple(gpus)), np.zeros((64, 2)), Ecc(), set()
    for number in range(160):
        at_s = START_S + 15.0 * number
        for row, after_s in when.items():
            counts[row, 0] += 7 * (0 <= at_s - START_S - after_s < 15.0)
        frame = Frame(
            at_s,
            index,
            (CORRECTED, UNCORRECTED),
            counts.copy(),
            np.full((1, 1), at_s),
            np.zeros(64, dtype=np.int64),
        )
        found = detector.update(Tick(at_s, {SubjectKind.GPU: frame}), fleet)
        said |= {str(f.subject) for f in found if f.state is State.FIRING}
    assert said == named


def test_a_stray_error_beside_a_gpu_that_is_ill_by_itself_accuses_no_node() -> None:
    fleet = Fleet()
    fleet.tick()
    found = []
    for number in range(60):
        fleet.counts[3, 0] += number % 6 == 0
        fleet.counts[5, 0] += number == 55
        found += fleet.tick()
    assert fleet.said(found) == {(Fault.HBM_DEGRADED, GPUS[3])}


def test_signals_that_a_gpu_has_and_lacks_are_told() -> None:
    fleet = Fleet()
    fleet.tick()
    fleet.counts[0, 1] += 1
    facts = fleet.tick()[0].facts
    assert facts["signals_seen"] == f"{CORRECTED}, {UNCORRECTED}"
    assert "gpu_remap_banks_none" in str(facts["signals_blind"])
    assert facts["cells"] == "nothing named"


@pytest.mark.parametrize(
    ("cells", "name"),
    [
        ([MemoryCell("b", "1", "2")], "one cell"),
        ([MemoryCell("b", "1", "2"), MemoryCell("b", "1", "3")], "one row"),
        ([MemoryCell("b", "1", "2"), MemoryCell("b", "9", "2")], "one column"),
        ([MemoryCell("b", "1", "2"), MemoryCell("b", "9", "3")], "one bank"),
        ([MemoryCell("b", "1", "2"), MemoryCell("c", "9", "3")], "several banks"),
        ([MemoryCell(None, "1"), MemoryCell(None, "2")], "rows, bank not named"),
        ([], "nothing named"),
    ],
)
def test_cells_are_named_by_what_they_share(cells: list[MemoryCell], name: str) -> None:
    assert pattern(cells).name == name


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 200), min_size=1, max_size=40), st.integers(1, 20))
def test_grouping_is_dbscan_on_a_line(values: list[int], gap: int) -> None:
    """The same partition as scikit-learn's DBSCAN with min_samples = 1."""
    cluster = pytest.importorskip("sklearn.cluster", reason="the benchmarks extra is not installed")
    ours = groups(np.array(values, dtype=float), gap)
    theirs = cluster.DBSCAN(eps=gap, min_samples=1).fit_predict(np.array(values, dtype=float)[:, None])
    assert len(set(zip(ours.tolist(), theirs.tolist(), strict=True))) == len(set(ours.tolist())) == len(set(theirs))


def test_the_chance_of_many_at_once_falls_with_their_number() -> None:
    chances = [together(n, 8, 1e-3) for n in range(9)]
    assert chances[0] == 1.0
    assert all(a > b for a, b in itertools.pairwise(chances))


@given(st.lists(st.floats(0, 2e5), max_size=30))
def test_a_history_in_any_order_has_moments_apart(errors: list[float]) -> None:
    """Late and repeated lines keep moments sorted, a burst is one of them, and a day later none is left."""
    history = ErrorHistory()
    for t_s in errors:
        history.add(t_s)
    times = history.moments_s
    assert all(later - earlier >= BURST_S for earlier, later in itertools.pairwise(times))
    assert history.stratum() is (AFTER_UNCORRECTED if errors else AFTER_CORRECTED)
    history.forget(3e5)
    assert history.stratum() is AFTER_CORRECTED


@pytest.mark.parametrize(("reset", "within_s"), [(False, 1500.0), (True, 900.0)])
def test_a_soft_alarm_ends_with_its_errors_and_sooner_with_a_reset(reset: bool, within_s: float) -> None:
    """The test lets go after `recover_s` without an error, at once where counters start anew; then it waits."""
    fleet = Fleet()
    fleet.tick()
    while not fleet.said(fleet.tick()):
        fleet.counts[1, 0] += 1
    ended_s = fleet.at_s
    if reset:
        fleet.counts[1, 0] = 0
    while State.CLEAR not in {f.state for f in fleet.tick()}:
        assert fleet.at_s - ended_s < within_s


def test_an_episode_that_was_hard_stays_hard_until_it_ends() -> None:
    """One Xid 48 among corrected errors that go on: critical, tier hard and the Xid, in every later word of it."""
    fleet = Fleet()
    fleet.tick()
    found = []
    for number in range(60):
        fleet.counts[2, 0] += 1
        found += fleet.tick(events=[fleet.line(48, 2)] if number == 30 else ())
    soft = [f for f in found if f.severity is Severity.WARNING]
    hard = [f for f in found if f.severity is Severity.CRITICAL]
    assert soft
    assert len(hard) == 30
    assert max(f.at.t_s for f in soft) < min(f.at.t_s for f in hard)
    assert {f.facts["tier"] for f in hard} == {"hard"}
    assert all("Xid 48" in f.summary and f.subject == GPUS[2] for f in hard)
    assert "bins of" in hard[-1].summary
    restored = Ecc()
    restored.restore(fleet.detector.snapshot())
    fleet.detector = restored
    fleet.counts[2, 0] += 1
    assert [f.severity for f in fleet.tick()] == [Severity.CRITICAL]
