"""The power heuristic: saves what can be saved, within the budget, and leaves alone what cannot be helped."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from nightshift.collectors.base import Permanent
from nightshift.controllers.lab.power.learn import Descent, PlainDescent, Static, Zeus, evaluate, interval, left_out
from nightshift.controllers.lab.power.simulate import ledger, ledgers, lowest_levels, run
from nightshift.controllers.lab.power.sweeps import oracle_grid, read_sweeps
from nightshift.controllers.power import descent
from nightshift.controllers.power.belief import TOP, Bank, LevelWindows, Noise, outlook
from nightshift.controllers.power.curves import LEVELS, Curve, on_levels, synthetic

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
    windows = LevelWindows.empty(1)
    for level, speed in ((TOP, 50.0), (TOP - 20, 48.0)):
        for _ in range(100):
            windows.add(np.array([0]), np.array([level]), np.array([speed]), np.array([0.8]))
    seen = outlook(BANK, windows, np.array([TOP - 20]), Noise())
    assert abs(seen.slowdown[0, TOP - 20] - 2.0 / 48.0) < 2 * seen.slowdown_sd[0, TOP - 20] + 1e-3
    assert seen.slowdown_sd[0, TOP - 20] < 0.004


def test_the_belief_is_as_sure_as_it_says() -> None:
    """On curves that are not in the bank, the truth lies within two deviations about as often as it should."""
    curves = synthetic(200, np.random.default_rng(5))
    time, draw = on_levels(curves)
    rng, rows = np.random.default_rng(6), np.arange(len(curves))
    windows = LevelWindows.empty(len(curves))
    for level in (*(TOP,) * 6, *range(TOP - 3, TOP - 19, -3), *(TOP - 18,) * 4):
        at, noise = np.full(len(curves), level), 1 + 0.01 * rng.normal(size=(2, len(curves)))
        windows.add(rows, at, 50.0 / time[:, level] * noise[0], draw[:, level] * noise[1])
    seen = outlook(Bank.make(), windows, np.full(len(curves), TOP - 18), Noise())
    off = (time - 1.0 - seen.slowdown) / np.maximum(seen.slowdown_sd, 1e-9)
    for level in (TOP - 18, TOP - 20):  # where it is, and two steps on where nobody has been
        assert (np.abs(off[:, level]) < 2.0).mean() > 0.92
        assert 0.6 < off[:, level].std() < 1.6
    assert (seen.slowdown_sd[:, TOP] < 1e-6).all()


def test_what_is_known_does_not_depend_on_the_jobs_beside_it_nor_on_its_scale() -> None:
    """One job's belief is the same alone and in a crowd, in steps per second and in steps per hour."""
    rng = np.random.default_rng(1)
    many, one = LevelWindows.empty(600), LevelWindows.empty(1)
    for level in (TOP, TOP, TOP - 8, TOP - 12):
        speed, draw = rng.normal(40.0, 0.4, 600), rng.uniform(0.5, 0.6, 600)
        many.add(np.arange(600), np.full(600, level), speed, draw)
        one.add(np.array([0]), np.array([level]), speed[-1:] * 3600.0, draw[-1:])
    level = np.full(600, TOP - 12)
    crowd, alone = outlook(BANK, many, level, Noise()), outlook(BANK, one, level[:1], Noise())
    np.testing.assert_allclose(crowd.slowdown[-1], alone.slowdown[0], atol=1e-4)
    np.testing.assert_allclose(crowd.slowdown_sd[-1], alone.slowdown_sd[0], atol=1e-4)


@pytest.mark.full
def test_over_a_cliff_it_goes_one_step_and_comes_back() -> None:
    """Flat, then two points a level: nothing seen above tells of it. It is never beyond the budget and a point for
    more than a window or two in a thousand."""
    shares = np.array([0.4, 0.7, 0.75, 1.0])
    cliff = Curve("g", "w", shares, np.array([1.9, 1.12, 1.02, 1.0]), np.array([0.4, 0.7, 0.75, 0.9]))
    found = ledger([cliff] * 30, Descent(Bank.make()), 0.05, 4, windows=120)
    assert found.over.mean() < 0.02
    assert found.beyond.mean() < 0.002
    assert (found.exploring + found.changed <= found.over + 1e-12).all()
    assert found.saved.mean() > 0.03


def test_where_a_flat_curve_breaks_off_it_does_not_go_on_for_what_the_levels_above_say() -> None:
    """42 flat levels with a window each, then more than a point a level. Who asks only the belief that leans on the
    levels above is beyond the budget and a point now and then."""
    shares, times = np.array([0.38, 0.48, 0.58, 1.0]), np.array([1.25, 1.125, 1.0, 1.0])
    ledges = [Curve("g", "w", shares, times, np.array([0.30, 0.31, 0.32, 0.40]))] * 24
    careless = ledger(ledges, Descent(BANK, descent.DescentCare(surer=0.0)), 0.03, 5, windows=70)
    careful = ledger(ledges, Descent(BANK), 0.03, 5, windows=70)
    assert careless.beyond.sum() > 0
    assert careful.beyond.sum() == 0
    assert careful.saved.mean() > 0.05


def test_windows_that_are_no_number_teach_nothing() -> None:
    windows = LevelWindows.empty(2)
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


def test_seeds_beside_each_other_are_runs_of_their_own() -> None:
    """Each on the same jobs with other noise; a controller that looks at none of it does the same in all."""
    noisy, blind = (ledgers(CURVES[:5], who, 0.05, (0, 1, 2), windows=20) for who in (Zeus(True), Static(0.8)))
    assert [len(one.saved) for one in noisy] == [5, 5, 5]
    assert len({tuple(one.saved) for one in noisy}) == 3
    assert len({tuple(one.saved) for one in blind}) == 1


@pytest.mark.parametrize("leap", [1, 6])
def test_a_first_step_is_as_long_as_it_may_be_and_no_longer(leap: int) -> None:
    """Of a job whose speed hangs on nothing, at the first window after the reference is known."""
    flat = Curve("g", "w", np.array([100.0, 250.0]), np.array([1.0, 1.0]), np.array([100.0, 249.0]))
    jobs, care = descent.Jobs.start(lowest_levels([flat])), descent.DescentCare(budget=0.10, leap=leap)
    level, seen = jobs.home.copy(), []
    for _ in range(40):
        draw = flat.draw(LEVELS[level] * 250.0) / 250.0
        level = descent.decide(jobs, level, np.full(1, 3.0), draw, BANK, care)
        seen.append(int(level[0]))
    first = next(at for at in seen if at < TOP)
    assert TOP - leap <= first < TOP - leap // 2


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
    jobs, care, rng = descent.Jobs.start(lowest), descent.DescentCare(), np.random.default_rng(0)
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
    found = evaluate(None, (), (1,), windows=6)
    assert {row["controller"] for row in found["rows"]} >= {"descent (ships)", "static 80%", "Zeus ZeusCost"}
    low, high = interval([0.9, 0.92, 0.94])
    assert low < 0.92 < high


def test_constants_are_chosen_without_the_group_that_they_are_judged_on() -> None:
    """Of two settings, the reckless one is never taken, since it breaks the budget on the others; a group that is
    all there is cannot be left out."""
    curves = CURVES[:12]
    cares = (descent.DescentCare(), descent.DescentCare(sure=-3.5, surer=-3.0))
    found = left_out(curves, {"gpu": ["a"] * 6 + ["b"] * 6}, cares, BANK, (1, 2), 60)
    assert [row["left out"] for row in found] == ["gpu", "gpu"]
    assert all(c["sure"] == cares[0].sure for row in found for c in row["constants"].values())
    with pytest.raises(Permanent, match="cannot be excluded"):
        left_out(curves[:2], {"gpu": ["a", "a"]}, cares, BANK, (1,), 5)


@pytest.mark.full
def test_on_measured_sweeps_it_stays_near_the_goal() -> None:
    data = os.environ.get("NIGHTSHIFT_DATA")
    if not data:
        pytest.skip("NIGHTSHIFT_DATA is not set: the measured sweeps are not part of the project")
    sweeps = sorted((Path(data) / "readonly/zeus").glob("summary_power_*.csv"))
    curves = [curve for path in sweeps for curve in read_sweeps(path)]
    for budget, least in ((0.05, 0.90), (0.03, 0.75)):
        found = run(curves, Descent(Bank.make()), budget, 1)
        assert found.of_oracle > least
        # one job that settles a hair's breadth over is a hundredth of all windows: over eight draws .3 and .6 %
        assert found.over < 0.02
        assert found.clearly < 0.002
        assert found.beyond == 0.0
