"""Whether a learned policy still sees what it was trained on.

For each input: in how many of the jobs that run lately does its level (over about an hour) lie outside the range of
training? The unit is the job, so that one odd job is not taken for a changed fleet, nor a long one for many. An
input has drifted where the lower bound of that share (Clopper and Pearson 1934, one-sided, 5 % divided by the
number of inputs) lies above what `promotion.Criteria.most_outside` allows.

The range is what the policy file says of its training (`training.envelope`: input → [low, high]); of a file without
one, where its normaliser clips: beyond that the network cannot see any difference. Kept in memory: a daemon that is
started anew, or takes over, begins to look anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from nightshift.controllers.policy_file import PolicyFile, PolicyRefused
from nightshift.detectors.tails import beta_quantile

Floats = NDArray[np.float64]
_ALPHA = 0.05
_HOUR = 120
"""Windows of 30 s over which a job's level of an input is taken."""
_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class FeatureDrift:
    """An input that left the range of training in some jobs. `share_low`: the bound below their share."""

    name: str
    jobs_outside: int
    jobs: int
    share_low: float
    low: float
    high: float

    @property
    def words(self) -> str:
        where = f"{self.low:.4g} to {self.high:.4g}"
        return f"{self.name} left the range of training ({where}) in {self.jobs_outside} of {self.jobs} jobs"


@dataclass(frozen=True)
class Envelope:
    """The range of each input in training. Arrays [n_features]."""

    names: tuple[str, ...]
    low: Floats
    high: Floats

    @classmethod
    def of(cls, file: PolicyFile) -> Envelope:
        """Raises PolicyRefused where the file's own envelope is not one range for each of its inputs."""
        names, told = file.interface.features, file.training.get("envelope")
        if told is None:
            n = file.network.normaliser
            return cls(names, n.mean - n.clip * n.scale, n.mean + n.clip * n.scale)
        try:
            low, high = np.array([told[name] for name in names], dtype=np.float64).T
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise PolicyRefused(f"training.envelope: {type(error).__name__}: {error}") from error
        if not (np.isfinite(low).all() and np.isfinite(high).all() and (low <= high).all()):
            raise PolicyRefused("training.envelope: a range is no number or upside down")
        return cls(names, low, high)

    def outside(self, features: Floats) -> dict[str, tuple[float, float, float]]:
        """Inputs [n_features] that lie outside: name → (value, low, high)."""
        far = np.flatnonzero((features < self.low) | (features > self.high))
        return {self.names[k]: (float(features[k]), float(self.low[k]), float(self.high[k])) for k in far}


@dataclass(eq=False)
class Drift:
    """One per policy that is asked. Used by one thread."""

    envelope: Envelope
    _levels: dict[str, tuple[int, Floats, float]] = field(default_factory=dict)  # job → (windows, level, last seen)

    def take(self, job: str, features: Floats, now_s: float) -> None:
        """What the policy saw of a job in one window [n_features]; one that holds no number is left out."""
        if not np.isfinite(features).all():
            return
        count, level, _ = self._levels.get(job, (0, np.zeros(len(features)), now_s))
        count = min(count + 1, _HOUR)
        self._levels[job] = (count, level + (features - level) / count, now_s)

    def found(self, now_s: float) -> tuple[FeatureDrift, ...]:
        """Inputs that lie outside in at least one job of the last day, the widest first."""
        self._levels = {job: seen for job, seen in self._levels.items() if now_s - seen[2] < _DAY_S}
        if not self._levels:
            return ()
        e, jobs = self.envelope, len(self._levels)
        levels = np.array([level for _, level, _ in self._levels.values()])
        counts = ((levels < e.low) | (levels > e.high)).sum(axis=0)
        far = np.flatnonzero(counts)
        # divided by the inputs: asked of all of them at once, one would be found by chance sooner or later
        lows = [beta_quantile(n, jobs - n + 1, _ALPHA / len(e.names)) for n in counts[far].tolist()]
        found = [
            FeatureDrift(e.names[k], int(counts[k]), jobs, low, float(e.low[k]), float(e.high[k]))
            for k, low in zip(far, lows, strict=True)
        ]
        return tuple(sorted(found, key=lambda left: (-left.share_low, left.name)))


def ranges(names: tuple[str, ...], rows: Floats) -> Mapping[str, list[float]]:
    """`training.envelope` from what was seen in training [n, n_features]: all but a thousandth at either end."""
    low, high = np.quantile(rows, (0.001, 0.999), axis=0)
    return {name: [float(a), float(b)] for name, a, b in zip(names, low, high, strict=True)}
