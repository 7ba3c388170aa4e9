"""Collectors write the inventory while detectors and the console read it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from nightshift.collectors.subject import Inventory, Subject, SubjectKind


def test_readers_survive_writers() -> None:
    """Eight threads that observe and prune, and two that read, raise nothing and lose no relation."""
    inventory = Inventory()
    nodes = [Subject(SubjectKind.NODE, f"n{i}") for i in range(8)]

    def write(number: int) -> None:
        for i in range(100):
            inventory.observe(Subject(SubjectKind.GPU, f"GPU-{number}-{i}"), nodes[number], float(i))
            inventory.describe(nodes[number], last=str(i))
            inventory.prune(-1.0)

    def read(_: int) -> None:
        for _ in range(10):
            inventory.subjects(SubjectKind.GPU, 1e9)
            inventory.gpus(nodes[0], 1e9)
            list(inventory.memberships())

    with ThreadPoolExecutor(10) as pool:
        jobs = [pool.submit(write, i) for i in range(8)] + [pool.submit(read, i) for i in range(2)]
        for job in jobs:
            job.result()
    assert sum(len(inventory.gpus(node, 1e9)) for node in nodes) == 8 * 100
