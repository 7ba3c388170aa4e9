"""Failures of a training on 16,384 GPUs: "The Llama 3 Herd of Models" (Meta, arXiv 2407.21783), table 5.

419 unexpected interruptions in 54 days. The counts add up to 419; the paper prints 30.1 % beside 148, which is
35.3 % of them, so counts are used and percentages are not.
"""

from __future__ import annotations

GPUS, DAYS = 16_384, 54.0
INTERRUPTIONS = {
    "Faulty GPU": 148,
    "GPU HBM3 Memory": 72,
    "Software Bug": 54,
    "Network Switch/Cable": 35,
    "Host Maintenance": 32,
    "GPU SRAM Memory": 19,
    "GPU System Processor": 17,
    "NIC": 7,
    "NCCL Watchdog Timeouts": 7,
    "Silent Data Corruption": 6,
    "GPU Thermal Interface + Sensor": 6,
    "SSD": 3,
    "Power Supply": 3,
    "Server Chassis": 2,
    "IO Expansion Board": 2,
    "Dependency": 2,
    "CPU": 2,
    "System Memory": 2,
}
ALL = sum(INTERRUPTIONS.values())


def count(*components: str) -> int:
    """Interruptions of these components together.

    >>> count("SSD", "CPU"), ALL
    (5, 419)
    """
    return sum(INTERRUPTIONS[name] for name in components)


def per_gpu_day(*components: str) -> float:
    """Interruptions a GPU-day of these components; of all where none is named."""
    return (count(*components) if components else ALL) / (GPUS * DAYS)
