"""A reset that puts a remap into effect ends the episode: the rows that erred are out of use."""

from __future__ import annotations

import numpy as np
import pytest

from nightshift.collectors.frame import Frame, SeriesIndex
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.tick import Tick
from nightshift.detectors.base import Finding, State
from nightshift.detectors.ecc.counters import COUNTERS, GAUGES
from nightshift.detectors.ecc.detector import Ecc

GPU = Subject(SubjectKind.GPU, "GPU-1")
INDEX = SeriesIndex(SubjectKind.GPU, (GPU,))
METRICS = (*COUNTERS[:4], *GAUGES[:2])


def last_word(reset_after_s: float | None) -> Finding:
    """What the detector says in the end of a GPU whose corrected errors cluster for 30 minutes, then stop."""
    detector, said = Ecc(), []
    for at_s in np.arange(0.0, 4 * 3600.0, 30.0):
        reset = reset_after_s is not None and at_s >= reset_after_s
        corrected = 0.0 if reset else min(at_s, 1800.0) // 60
        pending = float(at_s >= 900 and not reset)
        values = np.array([[corrected, 0.0, 1.0, 0.0, 0.0, pending]])
        at = 1e6 + at_s
        frame = Frame(at, INDEX, METRICS, values, np.full((1, 1), at), np.array([int(reset)]))
        said += detector.update(Tick(at, {SubjectKind.GPU: frame}), Inventory())
    return said[-1]


@pytest.mark.parametrize(("reset_after_s", "state"), [(None, State.FIRING), (2400.0, State.CLEAR)])
def test_only_a_reset_ends_what_a_pending_remap_and_its_errors_began(
    reset_after_s: float | None, state: State
) -> None:
    """Without the reset the alarm stands; with it, it clears although the errors were many."""
    assert last_word(reset_after_s).state is state
