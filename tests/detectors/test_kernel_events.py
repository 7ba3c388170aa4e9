"""Kernel lines that are faults by themselves: of the GPUs and what they hang on, not of every device of a node."""

from __future__ import annotations

import pytest

from nightshift.collectors.frame import Instant, LogRecord, SourceStatus
from nightshift.collectors.kernel_log.lines import KernelLogParser
from nightshift.collectors.kernel_log.pci import PCI_FACT
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.base import Fault, Finding
from nightshift.detectors.hardware.kernel_events import KernelEvents

NODE = Subject(SubjectKind.NODE, "n1")
GPU = Subject(SubjectKind.GPU, "GPU-3f1c1111-2222-3333-4444-555555555555")
SOURCE = Subject(SubjectKind.SOURCE, "node_log n1")
TELLS = f"NVRM: GPU at PCI:0000:9b:00: {GPU.name}"
OF_A_DISK = (
    "pcieport 0000:00:1c.0: AER: Corrected error received: 0000:01:00.0",
    "nvme 0000:01:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
)


def found(lines: tuple[str, ...], *, addresses: bool = True) -> list[Finding]:
    """What six looks with these lines in each bring; `addresses`: the GPU's PCI address is known."""
    inventory, parser, detector = Inventory(), KernelLogParser(NODE), KernelEvents()
    inventory.observe(GPU, NODE, 0.0)
    if addresses:
        inventory.describe(GPU, **{PCI_FACT: "0000:9b:00"})
    told = []
    for look in range(6):
        at_s = 100.0 + look
        records = [LogRecord(Instant(at_s), SOURCE.name, NODE, line, look) for line in (TELLS, *lines)]
        status = SourceStatus(SOURCE, at_s, ok=True, covers=(NODE,))
        told += detector.update(Tick(at_s, events=tuple(parser.sift(records, 99)[1]), sources=(status,)), inventory)
    return told


def test_the_corrected_errors_of_a_disk_accuse_no_gpus_bus() -> None:
    """They come by the hundred on healthy machines, and would have its node cordoned."""
    assert found(OF_A_DISK) == []


@pytest.mark.parametrize(
    ("lines", "subject"),
    [
        (("nvidia 0000:9b:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",) * 2, GPU),
        (
            ("pcieport 0000:3a:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",) * 2,
            NODE,
        ),
        (
            ("nvme 0000:01:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (x)",) * 2,
            NODE,
        ),
    ],
)
def test_errors_of_a_gpu_of_a_port_and_what_was_not_corrected_are_told(
    lines: tuple[str, ...], subject: Subject
) -> None:
    assert {(f.fault, f.subject) for f in found(lines)} == {(Fault.PCIE_DEGRADED, subject)}


def test_one_fatal_pcie_error_is_a_fault_and_six_others_are_none() -> None:
    line = "pcieport 0000:3a:00.0: AER: Uncorrected ({}) error received: 0000:3b:00.0"
    assert found((line.format("Non-Fatal"),)) == []
    first, *_ = found((line.format("Fatal"),))
    assert (first.fault, first.subject) == (Fault.PCIE_DEGRADED, NODE)
    assert first.summary == "A fatal PCIe error, which was not corrected"


def test_where_no_gpus_address_is_known_any_device_may_be_one() -> None:
    assert {f.subject for f in found(OF_A_DISK, addresses=False)} == {NODE}


GSP_TIMEOUT = "NVRM: GPU4 _kgspLogRpcTimeout: ********************************* GSP Timeout **********************"
OF_GPU_4 = (
    "NVRM: Xid (PCI:0000:9b:00): 119, pid=77, name=python, Timeout after 45s of waiting for RPC response from GPU4 "
    "GSP! Expected function 76 (GSP_RM_CONTROL) (0x20801702 0x4)."
)


def test_a_line_with_the_drivers_own_number_is_of_the_gpu_whose_xid_names_it() -> None:
    """The number is no address: an incident of the node would open beside the GPU's own, for one cause."""
    for lines in ((GSP_TIMEOUT, OF_GPU_4), (OF_GPU_4, GSP_TIMEOUT)):
        assert {f.subject for f in found(lines) if f.fault is Fault.DRIVER_ERROR} == {GPU}
    assert {f.subject for f in found((GSP_TIMEOUT,))} == {NODE}
