"""Xids are read by the catalogue: the first cause is named, the driver's own announcement wins."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nightshift.collectors.frame import Instant, LogRecord, Reason, SourceStatus
from nightshift.collectors.kernel_log.event import KernelEvent, KernelEventKind
from nightshift.collectors.kernel_log.lines import recovery_words
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.base import Fault, Severity, State
from nightshift.detectors.ecc.detector import Ecc
from nightshift.detectors.hardware.xid import XidDetector
from nightshift.detectors.hardware.xid_catalogue import CATALOGUE, Recovery, Tier, announced_action

NODE = Subject(SubjectKind.NODE, "n1")
GPU = Subject(SubjectKind.GPU, "GPU-1")
SOURCE = Subject(SubjectKind.SOURCE, "node_log n1")


def xid(code: int, t_s: float, **attributes: str) -> KernelEvent:
    text = f"NVRM: Xid (PCI:0000:9b:00): {code}, pid=1"
    record = LogRecord(Instant(t_s), "n1", NODE, text, int(t_s))
    return KernelEvent(KernelEventKind.XID, record, NODE, code=code, gpu=GPU, attributes=attributes)


def tick(at_s: float, *events: KernelEvent, ok: bool = True) -> Tick:
    status = SourceStatus(SOURCE, at_s, ok=ok, reason=None if ok else Reason.TIMEOUT, covers=(NODE,))
    return Tick(at_s, events=events, sources=(status,))


def inventory() -> Inventory:
    known = Inventory()
    known.observe(GPU, NODE, 0.0)
    return known


def test_the_catalogue_keeps_every_number_in_use_with_its_sources_and_disagreements() -> None:
    """Every number has both NVIDIA buckets (or None), and 63 shows that gpud would reboot where NVIDIA ignores."""
    assert len(CATALOGUE) == 110
    assert CATALOGUE[63].disagreement == "NVIDIA: IGNORE; gpud: REBOOT_SYSTEM, HARDWARE_INSPECTION"
    assert CATALOGUE[95].tier is Tier.FATAL
    assert CATALOGUE[45].action is Recovery.FOLLOW_OTHER_XID


@pytest.mark.parametrize(
    ("code", "recovery"), [(39, Recovery.RESTART_APP), (131, Recovery.RESTART_APP), (106, Recovery.NONE)]
)
def test_an_engines_fault_and_a_test_message_are_nothing_for_a_person(code: int, recovery: Recovery) -> None:
    """Half of NVIDIA's catalogue was missing: a copy engine's fault, which asks for the job to be started again,
    and a test message went to support."""
    (finding,) = XidDetector().update(tick(100.0, xid(code, 99.0)), inventory())
    assert finding.facts["recovery"] == recovery
    assert "severities" not in finding.facts


@pytest.mark.parametrize(
    ("words", "severity"),
    [
        ("GPU Reset Required", Severity.CRITICAL),
        ("Node Reboot Required", Severity.CRITICAL),
        ("None", Severity.WARNING),
    ],
)
@pytest.mark.parametrize("before", [(), (94,)])
def test_a_gpu_that_its_driver_calls_broken_is_grave_whatever_came_before(
    words: str, severity: Severity, before: tuple[int, ...]
) -> None:
    """The line of the error itself may be lost, in a flood or before the log was followed."""
    events = [*(xid(code, 98.0) for code in before), xid(154, 99.0, recovery_action=words)]
    (finding,) = XidDetector().update(tick(100.0, *events), inventory())
    assert finding.severity is severity


def test_the_mig_instance_of_a_fault_is_told_and_outlives_a_restart() -> None:
    """The other instances' tenants have nothing to do with it."""
    detector, after = XidDetector(), XidDetector()
    detector.update(tick(100.0, xid(94, 99.0, gpu_instance="05")), inventory())
    after.restore(detector.snapshot())
    (finding,) = after.update(tick(110.0, xid(45, 109.0)), inventory())
    assert finding.facts["mig_instances"] == "05"
    assert "Xid 94 (Contained memory error) in MIG instance 05" in finding.summary


def test_45_is_never_the_first_cause_of_a_burst() -> None:
    """The tear-down is logged before its cause here, and the cause is still named."""
    finding = XidDetector().update(tick(100.0, xid(45, 99.0), xid(48, 99.5)), inventory())[0]
    assert finding.facts["xid"] == 48.0
    assert finding.subject == GPU
    assert finding.severity is Severity.CRITICAL
    assert [e.record.text for e in finding.evidence if hasattr(e, "record")]


def test_a_fatal_xid_after_an_applications_own_is_as_grave_as_alone() -> None:
    """A job that keeps faulting (31) must not hide that its GPU has left the bus (79) meanwhile."""
    detector = XidDetector()
    assert detector.update(tick(100.0, xid(31, 99.0)), inventory())[0].severity is Severity.WARNING
    assert detector.update(tick(160.0, xid(79, 159.0)), inventory())[0].severity is Severity.CRITICAL


def test_a_switchs_error_does_not_make_a_gpus_fatal_one_its_own() -> None:
    """Both stand on the node where the PCI address is of no known GPU."""
    lost = replace(xid(79, 99.0), gpu=None)
    record = replace(lost.record, text="nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 24007, Non-fatal, Link 46 x")
    switch = KernelEvent(KernelEventKind.SXID, record, NODE, code=24007, attributes={"severity": "Non-fatal"})
    detector = XidDetector()
    detector.update(tick(100.0, lost), inventory())
    restored = XidDetector()
    restored.restore(detector.snapshot())
    for seen in (detector, restored):
        finding = seen.update(tick(130.0, switch), inventory())[0]
        assert (finding.subject, finding.severity) == (NODE, Severity.CRITICAL)
        assert finding.summary.startswith("Xid 79 ("), finding.summary
        assert "with SXid 24007" in finding.summary
        again = XidDetector()
        again.restore(seen.snapshot())
        assert "with SXid 24007" in again.update(tick(140.0, lost), inventory())[0].summary


@pytest.mark.parametrize("earlier", [False, True])
def test_a_fatal_xid_is_grave_no_more_once_its_driver_has_begun_anew(earlier: bool) -> None:
    """A boot from before the error, as a node agent tells it that starts late, changes nothing."""
    detector, known = XidDetector(), inventory()
    assert detector.update(tick(100.0, xid(95, 99.0)), known)[0].severity is Severity.CRITICAL
    record = LogRecord(Instant(50.0 if earlier else 130.0), "n1", NODE, "Linux version 6.1.0", 9)
    booted = KernelEvent(KernelEventKind.BOOT, record, NODE, attributes={"scope": "host"})
    (found,) = detector.update(tick(140.0, booted), known)
    assert (found.state, found.severity is Severity.CRITICAL) == (State.FIRING, earlier)
    assert ("has restarted" in found.summary) is not earlier
    (found,) = detector.update(tick(150.0, xid(95, 149.0)), known)
    assert found.severity is Severity.CRITICAL


def test_that_nothing_is_to_be_done_holds_for_the_errors_before_it_alone() -> None:
    """After a reset the driver announces None; the next uncontained error needs a reset again, whatever it said."""
    detector, known = XidDetector(), inventory()
    reset = xid(154, 100.5, recovery_action="GPU Reset Required")
    assert detector.update(tick(101.0, xid(95, 100.0), reset), known)[0].facts["recovery"] == "reset_gpu"
    healed = detector.update(tick(200.0, xid(154, 199.0, recovery_action="None")), known)[0]
    assert healed.facts["recovery"] == "none"
    found = detector.update(tick(300.0, xid(95, 299.0)), known)[0]
    assert (found.facts["recovery"], "announced_recovery" in found.facts) == ("reset_gpu", False)
    assert found.severity is Severity.CRITICAL


def test_a_lone_45_is_only_information() -> None:
    finding = XidDetector().update(tick(100.0, xid(45, 99.0)), inventory())[0]
    assert finding.severity is Severity.INFO
    assert finding.facts["sympathetic"] == "yes"


def test_an_announced_recovery_action_overrides_the_table() -> None:
    """Xid 94 alone restarts the application; with a 154 that asks for a reboot, the reboot is said."""
    detector = XidDetector()
    first = detector.update(tick(100.0, xid(94, 99.0)), inventory())[0]
    assert first.facts["recovery"] == Recovery.RESTART_APP.value
    second = detector.update(tick(105.0, xid(154, 104.0, recovery_action="Node Reboot Required")), inventory())[0]
    assert second.episode == first.episode
    assert second.facts["recovery"] == Recovery.REBOOT_NODE.value


def test_a_gpu_to_drain_is_grave_only_where_nothing_else_is_known_of_it() -> None:
    """After Xid 94 its other processes go on; alone, the error that it follows was lost."""
    drained = xid(154, 99.0, recovery_action="Drain and Reset")
    (alone,) = XidDetector().update(tick(100.0, drained), inventory())
    assert (alone.severity, alone.facts["recovery"]) == (Severity.CRITICAL, "drain_and_reset")
    (after,) = XidDetector().update(tick(100.0, xid(94, 98.0), drained), inventory())
    assert after.severity is Severity.WARNING


@pytest.mark.parametrize(
    ("number", "action"),
    [
        ("0", Recovery.NONE),
        ("1", Recovery.RESET_GPU),
        ("2", Recovery.REBOOT_NODE),
        ("3", Recovery.DRAIN_P2P),
        ("4", Recovery.DRAIN_AND_RESET),
        ("5", Recovery.CONTACT_SUPPORT),
        ("6", Recovery.REBOOT_NODE),
        ("7", Recovery.REBOOT_NODE),
        ("8", Recovery.CONTACT_SUPPORT),
        ("ff", Recovery.CONTACT_SUPPORT),
    ],
)
def test_every_recovery_action_of_nvml_is_known_and_another_is_asked_of_a_person(
    number: str, action: Recovery
) -> None:
    assert announced_action(recovery_words(number)) is action
    assert announced_action("words of a newer driver") is Recovery.CONTACT_SUPPORT
    assert announced_action("") is None


def test_what_was_there_before_the_first_look_is_said_once_and_wakes_nobody() -> None:
    """A gauge shows its last Xid again at each start; what only ended an application is of no use hours later."""
    detector, known = XidDetector(), inventory()
    assert detector.update(tick(100.0, xid(31, 99.0, old="yes")), known) == []
    (old,) = detector.update(tick(105.0, xid(95, 104.0, old="yes")), known)
    assert old.severity is Severity.WARNING
    assert "before the first look" in old.summary
    after = XidDetector()
    after.restore(detector.snapshot())
    assert after.update(tick(5000.0, xid(95, 5000.0, old="yes")), known)[0].state is State.CLEAR
    (new,) = after.update(tick(5005.0, xid(95, 5004.0)), known)
    assert new.severity is Severity.CRITICAL


def test_a_switchs_error_is_named_and_graded_by_its_own_catalogue() -> None:
    record = LogRecord(Instant(99.0), "n1", NODE, "nvidia-nvswitch1: SXid (PCI:0000:84:00.0): 12028, Fatal, x", 1)
    event = KernelEvent(KernelEventKind.SXID, record, NODE, code=12028, attributes={"severity": "Fatal"})
    (finding,) = XidDetector().update(tick(100.0, event), inventory())
    assert finding.severity is Severity.CRITICAL
    assert finding.summary.startswith("SXid 12028 (egress non-posted PRIV error)")
    assert finding.facts["recovery"] == "reboot_node"


def test_an_unknown_xid_goes_to_a_person() -> None:
    finding = XidDetector().update(tick(100.0, xid(999, 99.0)), inventory())[0]
    assert finding.facts["recovery"] == Recovery.CONTACT_SUPPORT.value


def test_quiet_clears_only_where_someone_listened() -> None:
    """With the log lost the episode is no_data once and stays open; ten quiet minutes with the log clear it, and
    until then it fires in its own words."""
    detector, known = XidDetector(), inventory()
    (first,) = detector.update(tick(0.0, xid(48, 0.0)), known)
    assert [f.state for f in detector.update(tick(300.0, ok=False), known)] == [State.NO_DATA]
    assert detector.update(tick(700.0, ok=False), known) == []
    resumed = XidDetector()
    resumed.restore(detector.snapshot())
    for one in (detector, resumed):
        told = [(f.state, f.summary) for at_s in (705.0, 1295.0) for f in one.update(tick(at_s), known)]
        assert told == [(State.FIRING, first.summary)] * 2
        assert [f.state for f in one.update(tick(1300.0), known)] == [State.CLEAR]
        assert one.update(tick(1305.0), known) == []


def test_a_healthy_page_of_its_node_does_not_stand_in_for_a_kernel_log_that_is_lost_or_not_read_at_all() -> None:
    """Ten minutes without a line clear only where that node's own log was read, whatever else answers."""
    page = SourceStatus(Subject(SubjectKind.SOURCE, "dcgm_exporter n1"), 0.0, ok=True, covers=(NODE,))
    away = Subject(SubjectKind.NODE, "n2")
    other = SourceStatus(Subject(SubjectKind.SOURCE, "node_log n2"), 0.0, ok=True, covers=(away,))
    for beside in ((page,), (page, other)):
        detector, known = XidDetector(), inventory()
        detector.update(tick(0.0, xid(48, 0.0)), known)
        unread = tick(700.0, ok=False)
        sources = (*unread.sources, *beside) if beside == (page,) else beside
        assert [f.state for f in detector.update(replace(unread, sources=sources), known)] == [State.NO_DATA]
        assert [f.state for f in detector.update(tick(705.0), known)] == [State.FIRING]
        assert [f.state for f in detector.update(tick(1300.0), known)] == [State.CLEAR]


def test_memory_xids_are_also_hbm_findings() -> None:
    """48 and 64 (no spare row) are critical at once; 63 is degraded too. Rows are of DRAM."""
    assert Ecc().update(tick(5.0, xid(48, 4.0)), inventory())[0].severity is Severity.CRITICAL
    failed = Ecc().update(tick(5.0, xid(64, 4.0)), inventory())
    assert [(f.fault, f.severity, f.facts["unit"]) for f in failed] == [
        (Fault.HBM_DEGRADED, Severity.CRITICAL, "DRAM")
    ]
    assert Ecc().update(tick(5.0, xid(63, 4.0)), inventory())[0].fault is Fault.HBM_DEGRADED


def test_a_fifth_generation_link_error_goes_by_the_severity_of_its_line_and_a_restart_keeps_it() -> None:
    """Fatal is critical and asks for a reset; nonfatal for nothing; a line cut before that word for a person."""
    found = {}
    for word in ("Fatal", "Nonfatal", ""):
        detector = XidDetector()
        detector.update(tick(100.0, xid(149, 99.0, **({"severity": word} if word else {}))), inventory())
        resumed = XidDetector()
        resumed.restore(detector.snapshot())
        finding = resumed.update(tick(105.0, xid(45, 104.0)), inventory())[0]
        found[word] = (finding.facts["recovery"], finding.severity)
    assert found == {
        "Fatal": (Recovery.RESET_GPU.value, Severity.CRITICAL),
        "Nonfatal": (Recovery.NONE.value, Severity.WARNING),
        "": (Recovery.CONTACT_SUPPORT.value, Severity.WARNING),
    }
