"""The contract under mixtures of what telemetry does, for every detector; a failing walk is its seed.

The same few walks each time; NIGHTSHIFT_WALKS=2000 draws that many new ones, and
`python -m benchmarks.detect_contract` counts what thousands of them checked.
"""

from __future__ import annotations

import os
import secrets
from functools import cache
from pathlib import Path

import pytest

from nightshift.detectors.contract.walks import BENIGN, CLAUSES, TROUBLES, WalkDraw, draw, walk
from nightshift.detectors.ecc.detector import Ecc
from nightshift.detectors.plugins import ALL

SAVED = Path(__file__).parent / "snapshots"
DRAWN = int(os.environ.get("NIGHTSHIFT_WALKS", "0"))
FROM = secrets.randbelow(2**31) if DRAWN else 0
FOUND = (14, 30, 37, 1044, 1154, 114)
"""Seeds that once failed: alarms said of what was not seen, judged twice, or cleared in silence."""
SEEDS = (*FOUND, *range(FROM, FROM + DRAWN)) if DRAWN else FOUND
_drawn = cache(draw) if not DRAWN else draw


@pytest.mark.parametrize("kind", ALL, ids=lambda k: k.plugin)
def test_any_mixture_of_troubles_is_borne(kind) -> None:  # type: ignore[no-untyped-def]
    """Lawful findings, the same twice, no clear in silence, nothing said of health, no burst after a restart."""
    earlier = [file.read_bytes() for file in sorted(SAVED.glob(f"{kind.plugin}-v*.npz"))]
    assert earlier
    assert [problem for seed in SEEDS for problem in walk(kind, _drawn(seed), earlier).problems] == []


def test_every_clause_of_the_contract_is_walked_and_every_trouble_has_its_clause() -> None:
    """Ten clauses are troubles; each trouble stands under one at least, and draws reach all of them."""
    assert {name for names in CLAUSES.values() for name in names} == {t.__name__ for t in TROUBLES}
    assert (len(CLAUSES), len(TROUBLES), len(set(TROUBLES))) == (10, 16, 16)
    assert set(BENIGN) < set(TROUBLES)


def test_a_walk_tells_what_a_detector_breaks() -> None:
    """The check itself can fail: a detector that clears without data, one that raises, one that knows the time."""

    class Hasty(Ecc):
        def update(self, tick, inventory):  # type: ignore[no-untyped-def]
            found = super().update(tick, inventory)
            self.count = getattr(self, "count", 0) + 1
            if self.count == 20 and self.wrong == "raises":
                raise KeyError("bank")
            return found * 2 if self.wrong == "repeats" and not tick.frames else found

    drawn: WalkDraw = next(d for d in map(_drawn, FOUND) if not d.healthy and "silent" in d.troubles)
    for wrong, told in (("raises", "raised"), ("repeats", "no_data")):
        Hasty.wrong = wrong
        assert any(told in problem for problem in walk(Hasty, drawn).problems), wrong
