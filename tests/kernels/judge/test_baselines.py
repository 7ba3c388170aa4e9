"""What a baseline took alone is kept on disk, and believed only of those that lost by far."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from nightshift.kernels.judge.environment import Environment
from nightshift.kernels.judge.race import baselines
from nightshift.kernels.judge.race.baselines import Shelf, Solo, SoloTime, far_slower, measure
from nightshift.kernels.judge.race.contestants import Baseline
from nightshift.kernels.ops.problems import named
from nightshift.kernels.problem import Case, Problem
from nightshift.kernels.suites.kernelbench import load_task

CASE = Case.of("float32", m=8, n=64)
HERE = Environment("H200", "9.0", "580", "13.0", "2.11", "3.6", "none", "3.12", "Linux")
NOW = 1_700_000_000.0
DAY = 86400.0


class Library:
    """Softmax at a pace that the test decides; it counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return torch.softmax(x, -1)


@pytest.fixture
def paced(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Seconds of each baseline by name, whatever the machine is busy with."""
    pace = {"eager": 2e-5, "fast": 1e-5, "slow": 5e-5}
    monkeypatch.setattr(baselines.Baseline, "seconds", lambda self, order: pace[self.name])
    monkeypatch.setattr(
        baselines, "baseline_modes", lambda problem, device: {"eager": problem.reference, **problem.libraries}
    )
    return pace


def asked(problem: Problem, shelf: Shelf | None) -> Solo:
    return measure(problem, CASE, "cpu", True, lambda: None, lambda: 0.0, shelf)


def with_libraries(**libraries: Callable[..., Any]) -> Problem:
    return replace(named("softmax"), libraries=libraries)


def shelf(folder: Path, days: float = 0.0, where: Environment = HERE) -> Shelf:
    return Shelf(folder, where, lambda: NOW + days * DAY)


def libraries(monkeypatch: pytest.MonkeyPatch) -> tuple[Library, Library, Problem]:
    fast, slow = Library(), Library()
    monkeypatch.setattr(baselines.inspect, "getsourcefile", lambda function: __file__)  # an object has no file
    return fast, slow, with_libraries(fast=fast, slow=slow)


def test_what_lost_by_far_is_not_run_again_and_is_told_with_its_time(
    tmp_path: Path, paced: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next judge on the same machine runs what may be raced, and nothing else."""
    fast, slow, problem = libraries(monkeypatch)
    first = asked(problem, shelf(tmp_path))
    assert set(first.functions) == {"eager", "fast", "slow"}
    before = (fast.calls, slow.calls)
    again = asked(problem, shelf(tmp_path, days=1))
    assert slow.calls == before[1]
    assert fast.calls > before[0]
    assert set(again.near) == {"eager", "fast"}
    assert [(x.baseline, x.missing) for x in again.left_out("case")] == [("slow", False)]
    assert "5.00 times" in again.left_out("case")[0].why


def test_a_figure_older_than_a_month_or_of_another_machine_counts_for_nothing(
    tmp_path: Path, paced: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And using it does not make it young: a slow one is run anew once a month."""
    _, slow, problem = libraries(monkeypatch)
    asked(problem, shelf(tmp_path))
    asked(problem, shelf(tmp_path, days=29))
    before = slow.calls
    asked(problem, shelf(tmp_path, days=31))
    assert slow.calls > before
    before = slow.calls
    asked(problem, shelf(tmp_path, days=31, where=replace(HERE, driver="590")))
    assert slow.calls > before


def test_what_lost_to_one_that_is_gone_is_run_again(
    tmp_path: Path, paced: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice the time of a library that no longer runs is no reason to leave anything out."""
    _, slow, problem = libraries(monkeypatch)
    paced["eager"] = 6e-5
    asked(problem, shelf(tmp_path))
    before = slow.calls

    def broken(x: torch.Tensor) -> torch.Tensor:
        raise ImportError("uninstalled")

    found = asked(with_libraries(fast=broken, slow=slow), shelf(tmp_path))
    assert slow.calls > before
    assert set(found.near) == {"eager", "slow"}
    assert set(found.missing) == {"fast"}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"baselines": {"slow": [-1, 0]}}', '{"baselines": {"slow": 3}}'])
def test_a_spoiled_file_counts_as_none(
    tmp_path: Path, paced: dict[str, float], monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    _, slow, problem = libraries(monkeypatch)
    asked(problem, shelf(tmp_path))
    (file,) = tmp_path.iterdir()
    file.write_text(text)
    before = slow.calls
    asked(problem, shelf(tmp_path))
    assert slow.calls > before
    assert shelf(tmp_path).read(problem, CASE)["slow"].seconds == paced["slow"]


def test_a_folder_that_cannot_be_written_costs_nothing_but_time(tmp_path: Path, paced: dict[str, float]) -> None:
    (tmp_path / "file").write_text("")
    assert set(asked(with_libraries(), shelf(tmp_path / "file" / "below")).functions) == {"eager"}


def test_a_reference_of_loops_is_not_raced(paced: dict[str, float]) -> None:
    """It is measured alone, and told with its time; a rival that is close to the best is raced."""
    paced |= {"eager": 5e-4, "fast": 1e-5}
    found = asked(with_libraries(fast=Library()), None)
    assert set(found.near) == {"fast"}
    assert "50.00 times" in found.left_out("case")[0].why
    paced["eager"] = 2e-4
    assert set(asked(with_libraries(fast=Library()), None).near) == {"eager", "fast"}


@pytest.mark.parametrize(("alone_s", "calls"), [(0.0, 40), (0.02, 2), (3.0, 1)])
def test_a_slow_baseline_has_the_calls_that_a_round_affords(alone_s: float, calls: int) -> None:
    library = Library()
    slow = Baseline("slow", library, [(torch.ones(2, 2),)] * 40, None, alone_s=alone_s)
    slow.seconds(range(40))
    assert library.calls == 3 * (calls + 2 * calls)  # the slope of N and 2N calls, each three times


def test_eager_is_always_run() -> None:
    """Every verdict is held against it, however slow it is."""
    known = {
        "eager": SoloTime(9.0, 0.0),
        "fast": SoloTime(1.0, 0.0),
        "far": SoloTime(1.7, 0.0),
        "near": SoloTime(1.5, 0.0),
    }
    assert set(far_slower(known)) == {"far"}


@pytest.mark.full
def test_times_of_one_kernelbench_task_are_never_another_s(tmp_path: Path) -> None:
    """Of two levels' files of one name, and of a file before and after an edit, none is left out by the other's."""
    text = """import torch
class Model(torch.nn.Module):
    def forward(self, x): return torch.softmax(x, -1)
def get_inputs(): return [torch.randn(8, 64)]
def get_init_inputs(): return []
"""
    first, other = tmp_path / "level1" / "1_a.py", tmp_path / "level2" / "1_a.py"
    for path in (first, other):
        path.parent.mkdir()
    first.write_text(text)
    other.write_text(text.replace("torch.softmax(x, -1)", "torch.relu(x)"))
    kept, known = shelf(tmp_path / "shelf"), {"compile": SoloTime(5e-5, NOW)}
    problem = load_task(first).problem
    kept.write(problem, problem.cases[0], known)
    assert kept.read(load_task(first).problem, problem.cases[0]) == known
    assert kept.read(load_task(other).problem, problem.cases[0]) == {}
    first.write_text(text + "# edited\n")
    assert kept.read(load_task(first).problem, problem.cases[0]) == {}
