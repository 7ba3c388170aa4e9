"""The hunt: idle GPUs alone, within its budget, and an error is told once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nightshift.kernels.preflight.gpu_tests import GpuRun, Wrong
from nightshift.kernels.preflight.hunt import SLICE_S, HuntBudget, hunt
from nightshift.kernels.preflight.results import ResultFolder
from nightshift.kernels.preflight.verdict import PreflightState


class Gpu:
    def __init__(self, serial: str, busy: bool = False) -> None:
        self.serial, self.busy = serial, busy

    def facts(self) -> dict[str, str]:
        return {"serial": self.serial, "uuid": f"GPU-{self.serial}", "model": "H100", "driver": "570"}

    def temperature_c(self) -> float:
        return 50.0

    def clock_mhz(self) -> float:
        return 1755.0

    def others(self) -> int:
        return int(self.busy)


class Sweeps:
    """Stands in for the sweep: GPU `bad` errs."""

    swept: list[str] = []  # noqa: RUF012  filled by each test
    main = None

    def __init__(self, device: str, sensors: Gpu, level: Any) -> None:
        self.sensors, self.run = sensors, GpuRun(sensors.facts(), level.name)

    def sweep(self, dtype: Any, products: float, most_s: float) -> float:
        self.swept.append(self.sensors.serial)
        if self.sensors.serial == "bad":
            self.run.wrong.append(Wrong("products bfloat16", 1, {7: 1}, 50.0, 0.1))
        return 1.0


def hunted(folder: ResultFolder, gpus: list[Gpu], budget_s: float, turns: int) -> list[Any]:
    Sweeps.swept, told = [], []
    hunt(gpus, folder, budget_s, told.append, now_s=lambda: 1e9, sleep=lambda s: None, turns=turns, tests=Sweeps)  # type: ignore[arg-type]
    return told


def test_busy_gpus_are_left_alone_and_an_error_is_told_once(tmp_path: Path) -> None:
    folder = ResultFolder(tmp_path)
    told = hunted(folder, [Gpu("a"), Gpu("b", busy=True), Gpu("bad")], 100.0, 12)
    assert Sweeps.swept == ["a", "bad", "a", "a", "a"]
    assert [(r.serial, r.state) for r in told] == [("bad", PreflightState.REFUSED)]
    assert folder.missing(["bad"], 1e9) == ["bad"]


def test_the_budget_of_a_day_outlives_a_restart_and_ends(tmp_path: Path) -> None:
    folder = ResultFolder(tmp_path)
    HuntBudget(tmp_path / "hunt.json", 10.0).spend(1e9, 9.9)
    hunted(folder, [Gpu("a")], 10.0, 5)
    assert Sweeps.swept == []
    assert HuntBudget(tmp_path / "hunt.json", 10.0).left_s(1e9 + 86_400.0) == 10.0
    (tmp_path / "hunt.json").write_text("{")
    hunted(folder, [Gpu("a")], SLICE_S, 2)
    assert Sweeps.swept[0] == "a"
