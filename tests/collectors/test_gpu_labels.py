"""Labels of a fleet become relations within the time they are given, and only what changed is told again."""

from __future__ import annotations

from collections.abc import Mapping

from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.telemetry.gpu_labels import GpuLabels
from nightshift.collectors.training.workload import WorkloadRule


class Timer:
    """A second passes at each look."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 1.0
        return self.now_s


def labels(gpu: int, node: int, pod: str) -> Mapping[str, str]:
    return {"UUID": f"GPU-{gpu}", "gpu": str(gpu % 8), "Hostname": f"n{node}", "namespace": "ml", "pod": pod}


def pods(inventory: Inventory, gpu: int, at_s: float) -> list[str]:
    return [p.name for p in inventory.parents(Subject(SubjectKind.GPU, f"GPU-{gpu}"), at_s, SubjectKind.POD)]


def test_a_fleet_is_told_over_several_ticks_and_then_only_what_changed() -> None:
    timer, inventory = Timer(), Inventory()
    known = GpuLabels(WorkloadRule(), timer)
    fleet = [labels(n, n, f"job-{n}") for n in range(10)]
    known.take(fleet)
    known.tell(inventory, 100.0, budget_s=5.0)
    assert known.is_behind
    assert 0 < len(known.nodes()) < 10
    for _ in range(4):
        known.tell(inventory, 105.0, budget_s=5.0)
    assert not known.is_behind
    assert len(known.nodes()) == 10
    changed = [*fleet[:9], labels(9, 9, "other-0")]
    known.take(changed)
    before = timer.now_s
    known.tell(inventory, 200.0, budget_s=100.0)
    assert timer.now_s - before <= 3  # one node, not ten
    assert pods(inventory, 9, 150.0) == ["ml/job-9"]
    assert pods(inventory, 9, 200.0) == ["ml/other-0"]
    assert pods(inventory, 0, 200.0) == ["ml/job-0"]


def test_another_inventory_is_told_everything() -> None:
    known = GpuLabels(WorkloadRule(), Timer())
    fleet = [labels(n, n // 2, f"job-{n}") for n in range(4)]
    known.take(fleet)
    for inventory in (Inventory(), Inventory()):
        known.tell(inventory, 100.0, budget_s=100.0)
        assert [pods(inventory, n, 100.0) for n in range(4)] == [[f"ml/job-{n}"] for n in range(4)]


def test_a_node_whose_exporter_is_away_keeps_what_was_told() -> None:
    known, inventory = GpuLabels(WorkloadRule(), Timer()), Inventory()
    fleet = [labels(n, n, f"job-{n}") for n in range(2)]
    known.take(fleet)
    known.tell(inventory, 100.0, 100.0)
    known.take(fleet[:1])
    known.tell(inventory, 200.0, 100.0)
    assert pods(inventory, 1, 200.0) == ["ml/job-1"]
