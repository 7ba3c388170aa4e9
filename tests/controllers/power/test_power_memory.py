"""What a next run takes from the last one, and the evaluation that stands in for the rule's shadow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from nightshift.collectors.base import Permanent
from nightshift.collectors.seal import Signer, canonical_json, fingerprint
from nightshift.controllers.decision import Mode, plain
from nightshift.controllers.lab.power.learn import Descent
from nightshift.controllers.lab.power.simulate import ledger
from nightshift.controllers.power import descent, evaluation
from nightshift.controllers.power.belief import TOP, Bank, LevelWindows, Noise, outlook
from nightshift.controllers.power.curves import synthetic
from nightshift.controllers.power.gang import Gang

BANK = Bank.make(256)
CURVES = [c for c in synthetic(60, np.random.default_rng(5)) if c.slowdown(0.7) < 0.03][:12]
PACE = np.linspace(1.0, 90.0, len(CURVES))


@pytest.fixture(scope="module")
def first() -> Descent:
    one = Descent(BANK)
    ledger(CURVES, one, 0.05, 1, 120, pace=PACE)
    return one


def test_the_second_run_saves_more_within_its_budget(first: Descent) -> None:
    again = Descent(BANK, former=first.jobs)
    found = ledger(CURVES, again, 0.05, 2, 60, pace=3.0 * PACE).of()  # another unit of speed
    fresh = ledger(CURVES, Descent(BANK), 0.05, 2, 60, pace=PACE).of()
    assert (again.jobs.past.count[:, TOP] > 0).all()
    assert found.of_oracle > fresh.of_oracle + 0.05
    assert found.clearly <= 0.01
    assert found.beyond == 0.0


def test_another_workload_under_the_same_name_is_found_out(first: Descent) -> None:
    others = [CURVES[k] for k in np.roll(np.arange(len(CURVES)), 1)]
    again = Descent(BANK, former=first.jobs)
    found = ledger(others, again, 0.05, 3, 60, pace=PACE).of()
    assert (again.jobs.past.count[:, TOP] > 0).mean() < 0.4
    assert found.beyond <= 0.002


def test_a_count_below_one_says_what_a_whole_window_says() -> None:
    """Means are sums over counts, not over at least one: half a window at half its sums is no slow level."""
    whole = LevelWindows.empty(1)
    for level, speed, draw in ((TOP, 10.0, 0.8), (TOP - 10, 9.8, 0.7)):
        whole.add(np.array([0]), np.array([level]), np.array([speed]), np.array([draw]))
    half = whole.faded(0.3, 50.0)
    assert half.count.max() == pytest.approx(0.3)
    one, other = (outlook(BANK, w, np.array([TOP - 10]), Noise()) for w in (whole, half))
    assert abs(float(one.slowdown[0, TOP - 10]) - float(other.slowdown[0, TOP - 10])) < 0.01
    assert other.slowdown_sd[0, TOP - 10] >= one.slowdown_sd[0, TOP - 10]


def test_a_gang_keeps_its_past_over_a_restart(first: Descent) -> None:
    gang = Gang.start(5)
    for level, speed in ((TOP, 10.0), (TOP - 8, 9.9)):
        gang.jobs.windows.add(np.array([0]), np.array([level]), np.array([speed]), np.array([0.6]))
    gang.jobs.home[0] = TOP - 8
    assert gang.memorable
    again = gang.again(descent.DescentCare())
    read = Gang.from_json(again.to_json())
    np.testing.assert_array_equal(read.jobs.past.count, again.jobs.past.count)
    assert int(read.jobs.last[0]) == TOP - 8
    assert not read.jobs.windows.count.any()
    old = json.loads(again.to_json())
    del old["past"], old["last"]  # of a daemon from before
    assert int(Gang.from_json(json.dumps(old)).jobs.last[0]) == TOP
    with pytest.raises(ValueError, match="level"):
        Gang.from_json(json.dumps({**old, "past": [[3, -1.0, 1.0, 1.0]]}))


ROW = {"curves": 70, "over": 0.004, "clearly": 0.0005, "beyond": 0.0, "node_saved_95": [0.05, 0.07]}


def written(folder: Path, rows: dict[str, Any], rule: str = "ab") -> tuple[Path, str]:
    signer, path = Signer.generate(), folder / "evaluation.json"
    body = {"rule_sha256": rule, "windows": 240, "held_out": {"a40": {"5%": rows}}}
    path.write_text(json.dumps(signer.seal(evaluation.PAYLOAD_TYPE, canonical_json(body))))
    return path, signer.public.public_bytes(Encoding.Raw, PublicFormat.Raw).hex()


@pytest.mark.parametrize("worse", [{}, {"over": 0.006}, {"clearly": 0.002}, {"beyond": 0.001}, {"curves": 9}])
def test_an_evaluation_counts_where_each_figure_holds(tmp_path: Path, worse: dict[str, Any]) -> None:
    found = evaluation.shipped("ab", *written(tmp_path, {**ROW, **worse}))
    assert found is not None
    assert found.to is Mode.ACTIVE
    assert found.ready is not bool(worse)


def test_an_evaluation_of_other_constants_is_none_and_a_strangers_is_refused(tmp_path: Path) -> None:
    path, key = written(tmp_path, ROW)
    assert evaluation.shipped("cd", path, key) is None
    (tmp_path / "other").mkdir()
    _, other = written(tmp_path / "other", ROW)
    with pytest.raises(Permanent, match=r"evaluation\.json"):
        evaluation.shipped("ab", path, other)
    path.write_text('{"payload": 1}')
    with pytest.raises(Permanent, match=r"evaluation\.json"):
        evaluation.shipped("ab", path, key)


def test_what_ships_is_of_the_constants_that_ship() -> None:
    """Who changes a constant has the evaluation made again: `python -m benchmarks.power_memory … --sign`."""
    found = evaluation.shipped(fingerprint(plain(descent.DescentCare())))
    assert found is not None
    assert found.ready, found.words
