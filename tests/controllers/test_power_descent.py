"""The power heuristic: saves what can be saved, within the budget, and leaves alone what cannot be helped."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from collectors.base import Permanent
from controllers.power import descent
from controllers.power.baselines import Descent, PlainDescent, Static, Zeus
from controllers.power.belief import TOP, Bank, Noise, Windows, outlook
from controllers.power.curves import LEVELS, Curve, on_levels, oracle_grid, read_sweeps, synthetic
from controllers.power.evaluate import evaluate, interval
from controllers.power.simulate import lowest_levels, run

BANK = Bank.make(256)
CURVES = synthetic(40, np.random.default_rng(123))


def test_curves_are_monotone_after_clean_up() -> None:
    time, draw = on_levels(synthetic(50, np.random.default_rng(1)))
    assert (np.diff(time, axis=1) <= 1e-12).all()
    assert (np.diff(draw, axis=1) >= -1e-12).all()
    np.testing.assert_allclose(time[:, TOP], 1.0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("dataset,network\n", "line 1: no column"),
        (
            "dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power\na,b,1,c,100,nan,90\n",
            "line 2",
        ),
        (
            "dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power\na,b,1,c,100,-3,90\n",
            "time_per",
        ),
        (
            "dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power\na,b,1,c,100,3,90\n",
            "four",
        ),
    ],
)
def test_a_bad_sweep_is_refused_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "sweep.csv"
    file.write_text(text)
    with pytest.raises(Permanent, match=said):
        read_sweeps(file)


def test_the_oracle_takes_the_cheapest_limit_within_the_budget() -> None:
    curve = Curve(
        "g", "w", np.array([100.0, 150.0, 200.0]), np.array([1.2, 1.04, 1.0]), np.array([100.0, 150.0, 190.0])
    )
    assert oracle_grid(curve, 0.05) == 150.0
    assert oracle_grid(curve, 0.30) == 100.0
    assert oracle_grid(curve, 0.0) == 200.0


def test_the_belief_finds_the_slowdown_that_was_measured() -> None:
    """With many windows at two levels, the estimate is the truth within its deviation, whatever the bank holds."""
    windows = Windows.empty(1)
    for level, speed in ((TOP, 50.0), (TOP - 20, 48.0)):
        for _ in range(100):
            windows.add(np.array([0]), np.array([level]), np.array([speed]), np.array([0.8]))
    seen = outlook(BANK, windows, np.array([TOP - 20]), Noise())
    assert abs(seen.slowdown[0, TOP - 20] - 2.0 / 48.0) < 2 * seen.slowdown_sd[0, TOP - 20] + 1e-3
    assert seen.slowdown_sd[0, TOP - 20] < 0.004


def test_windows_that_are_no_number_teach_nothing() -> None:
    windows = Windows.empty(2)
    windows.add(np.arange(2), np.full(2, TOP), np.array([np.nan, 5.0]), np.array([0.5, -1.0]))
    assert windows.count.sum() == 0
    assert np.isnan(outlook(BANK, windows, np.full(2, TOP), Noise()).slowdown).all()


def test_it_saves_within_the_budget_where_others_do_not() -> None:
    """On curves that it has not seen: more than a careful static cap, and hardly a window over the budget."""
    ours = run(CURVES, Descent(BANK), 0.05, 1, windows=160)
    assert ours.saved > 0.6 * ours.oracle
    assert ours.over < 0.02
    assert run(CURVES, Static(0.8), 0.05, 1, windows=160).over > 0.1
    assert run(CURVES, Zeus(True), 0.05, 1, windows=160).over > ours.over
    assert run(CURVES, PlainDescent(), 0.05, 1, windows=160).over > ours.over


def test_a_job_that_no_cap_can_help_is_left_alone() -> None:
    """Its draw is far under the lowest limit: its limit is never touched."""
    idle = Curve("g", "w", np.array([125.0, 250.0]), np.array([1.03, 1.0]), np.array([34.0, 34.0]))
    found = run([idle], Descent(BANK), 0.05, 3, windows=100)
    assert found.switches == 0.0


def test_a_change_of_phase_is_probed_again() -> None:
    """From a curve that can be capped to one that cannot: back at the highest limit within a few windows."""
    easy = Curve("g", "w", np.array([100.0, 250.0]), np.array([1.005, 1.0]), np.array([90.0, 200.0]))
    hard = Curve("g", "w", np.array([100.0, 250.0]), np.array([3.0, 1.0]), np.array([99.0, 249.0]))
    lowest = lowest_levels([easy])
    jobs, care, rng = descent.Jobs.start(lowest), descent.Care(), np.random.default_rng(0)
    level = jobs.home.copy()
    levels = []
    for window in range(90):
        time, draw = (easy if window < 60 else hard).on_levels()
        speed = 100.0 / time[level] * (1 + 0.01 * rng.normal(size=1))
        level = descent.decide(jobs, level, speed, draw[level] * (1 + 0.01 * rng.normal(size=1)), BANK, care)
        levels.append(int(level[0]))
    assert LEVELS[levels[59]] < 0.7
    assert max(levels[60:65]) == TOP
    assert LEVELS[levels[-1]] > 0.95


def test_the_table_has_every_controller_and_its_interval() -> None:
    found = evaluate(None, (), (1,), windows=30)
    assert {row["controller"] for row in found["rows"]} >= {"descent (ships)", "static 80%", "Zeus ZeusCost"}
    low, high = interval([0.9, 0.92, 0.94])
    assert low < 0.92 < high


@pytest.mark.full
def test_on_measured_sweeps_it_stays_near_the_goal() -> None:
    data = os.environ.get("NIGHTSHIFT_DATA")
    if not data:
        pytest.skip("NIGHTSHIFT_DATA is not set: the measured sweeps are not part of the project")
    sweeps = sorted((Path(data) / "readonly/zeus").glob("summary_power_*.csv"))
    curves = [curve for path in sweeps for curve in read_sweeps(path)]
    found = run(curves, Descent(Bank.make()), 0.05, 1)
    assert found.of_oracle > 0.85
    assert found.over < 0.02
