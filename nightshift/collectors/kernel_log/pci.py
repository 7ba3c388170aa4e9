"""PCI addresses, which name a GPU in the kernel log and its UUID nowhere: one spelling, and the way to the UUID.

The kernel writes `0000:9b:00`, NVML and DCGM `00000000:9B:00.0`, `nvidia-smi` either.
"""

from __future__ import annotations

import re

from nightshift.collectors.subject import Inventory, Subject, SubjectKind

PCI_FACT = "pci_address"
_ADDRESS = re.compile(r"(?:([0-9a-fA-F]{1,8}):)?([0-9a-fA-F]{1,2}):([0-9a-fA-F]{1,2})(?:\.([0-7]))?")


def canonical_pci(text: str) -> str | None:
    """`dddd:bb:dd` in lower case with the function left out (GPUs are function 0), or None where it is none.

    >>> canonical_pci("00000000:9B:00.0"), canonical_pci("9b:00"), canonical_pci("eth0")
    ('0000:9b:00', '0000:9b:00', None)
    """
    match = _ADDRESS.fullmatch(text.strip())
    if match is None:
        return None
    domain, bus, device = (int(part or "0", 16) for part in match.group(1, 2, 3))
    return f"{domain:04x}:{bus:02x}:{device:02x}"


def gpu_at(inventory: Inventory, node: Subject, pci_address: str, at_s: float) -> Subject | None:
    """The GPU whose `pci_address` fact is this address on this node at that time, or None where it is not known.

    A GPU that left the node before `at_s` is not accused of its successor's error.
    """
    here = [
        gpu
        for gpu in inventory.children(node, at_s, SubjectKind.GPU)
        if inventory.fact(gpu, PCI_FACT) == pci_address
    ]
    return here[0] if len(here) == 1 else None
