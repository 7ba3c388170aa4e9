"""Exporters that answer and measure no more: the same values for minutes, of what cannot stand still.

A page or a Prometheus sample bears the time of its scrape, so a frozen exporter looks fresh. The energy that a
GPU has drawn rises while it has power; where that is not told, power and temperature do not both stay the same to
the last digit for an hour.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

import numpy as np

from nightshift.collectors.frame import Frame, SeriesIndex
from nightshift.collectors.subject import Subject, SubjectKind

Group = TypeVar("Group")
FROZEN_S, FROZEN_WITHOUT_ENERGY_S = 600.0, 3600.0
"""How long the values of all GPUs of an exporter are the same before it counts as frozen."""
_LEAST_LOOKS = 10
_ENERGY, _OTHERS = "gpu_energy_j", ("gpu_power_w", "gpu_temperature_c")
FROZEN = "the exporter answers, but its values have not changed for {:.0f} s: restart it"


class Standstill:
    """Since when each GPU's moving values are the same.

    >>> index = SeriesIndex(SubjectKind.GPU, (Subject(SubjectKind.GPU, "GPU-0"),))
    >>> def look(t_s, energy):
    ...     when, epoch = np.array([[t_s]]), np.zeros(1, dtype=np.int64)
    ...     return Frame(t_s, index, ("gpu_energy_j",), np.array([[energy]]), when, epoch)
    >>> of, group = Standstill(), {"page": index.subjects}
    >>> [of.frozen_s(look(60.0 * n, 5.0), group) for n in range(12)][-1]
    {'page': 660.0}
    >>> of.frozen_s(look(720.0, 6.0), group)
    {}
    """

    def __init__(self) -> None:
        self._index = SeriesIndex(SubjectKind.GPU, ())
        self._values = np.empty((0, 3))
        self._since_s = np.empty(0)
        self._looks = np.empty(0, dtype=np.int64)

    def frozen_s(self, frame: Frame, groups: Mapping[Group, Iterable[Subject]]) -> dict[Group, float]:
        """The groups (an exporter's GPUs each) of which every GPU stands still, and for how long (s)."""
        self._take(frame)
        energy = np.isfinite(self._values[:, 0])
        known = energy | np.isfinite(self._values[:, 1:]).all(axis=1)
        still_s = np.where(known & (self._looks >= _LEAST_LOOKS), frame.at_s - self._since_s, 0.0)
        frozen = still_s >= np.where(energy, FROZEN_S, FROZEN_WITHOUT_ENERGY_S)
        if not frozen.any():
            return {}
        found = {}
        for group, gpus in groups.items():
            rows = [row for gpu in gpus if (row := frame.index.rows.get(gpu)) is not None]
            if rows and frozen[rows].all():
                found[group] = float(still_s[rows].min())
        return found

    def _take(self, frame: Frame) -> None:
        now = np.stack([frame.column(name) for name in (_ENERGY, *_OTHERS)], axis=1)
        if frame.index is not self._index:
            self._move(frame.index)
        # a look that was missed changes nothing: the values before and after it are compared
        same = ((now == self._values) | np.isnan(now)).all(axis=1) & np.isfinite(self._values).any(axis=1)
        self._since_s = np.where(same, self._since_s, frame.at_s)
        self._looks = np.where(same, self._looks + np.isfinite(now).any(axis=1), 0)
        self._values = np.where(np.isnan(now) & same[:, None], self._values, now)

    def _move(self, index: SeriesIndex) -> None:
        """Brings what was kept to the rows of another index."""
        values, since_s = np.full((len(index), 3), np.nan), np.zeros(len(index))
        looks = np.zeros(len(index), dtype=np.int64)
        for row, gpu in enumerate(index.subjects):
            if (before := self._index.rows.get(gpu)) is not None:
                values[row], since_s[row], looks[row] = (
                    self._values[before],
                    self._since_s[before],
                    self._looks[before],
                )
        self._index, self._values, self._since_s, self._looks = index, values, since_s, looks
