"""Per-subject state as columns, kept while subjects join, leave, return and change their rows.

A frame's rows move when membership changes; a detector's state must follow the subject, not the row. A subject that
is away (its exporter is down) keeps its slot for `forget_s`, so that its return is not a cold start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from nightshift.collectors.frame import SeriesIndex
from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.detectors.base import SnapshotError

Rows = slice | NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Column:
    """One state variable: its dtype, the value of a new subject, and its shape per subject."""

    dtype: DTypeLike
    fill: float
    shape: tuple[int, ...] = ()


class SeriesTable:
    """Columns [capacity, …] by subject. `rows(index)` gives the slots of a frame's rows, in their order.

    >>> from nightshift.detectors.contract.testing import gpu
    >>> table = SeriesTable({"best": Column(float, np.nan)})
    >>> before, after = (SeriesIndex(gpu(0).kind, tuple(map(gpu, numbers))) for numbers in ((0, 1), (1, 2)))
    >>> rows = table.rows(before, 0.0)
    >>> table["best"][rows] = [10.0, 11.0]
    >>> rows = table.rows(after, 5.0)
    >>> table["best"][rows].tolist()  # rows moved; GPU-1 kept its state, GPU-2 is new
    [11.0, nan]
    """

    def __init__(self, columns: Mapping[str, Column], forget_s: float = 3600.0) -> None:
        self._columns = dict(columns)
        self._forget_s = forget_s
        self._slots: dict[Subject, int] = {}
        self.subjects: list[Subject] = []
        self._seen_s = np.zeros(0)
        self.arrays: dict[str, NDArray[Any]] = {
            name: np.full((0, *c.shape), c.fill, dtype=c.dtype) for name, c in self._columns.items()
        }
        self._index: SeriesIndex | None = None
        self._rows: Rows = slice(0, 0)

    def __len__(self) -> int:
        return len(self.subjects)

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.arrays[name]

    def slot(self, subject: Subject) -> int | None:
        return self._slots.get(subject)

    def rows(self, index: SeriesIndex, at_s: float) -> Rows:
        """Slots of the rows of `index`: a slice where they lie in order (no copy), else an array [n].

        A subject that stands twice in one index shares a slot; its last row wins.
        """
        # collectors keep the index object while membership is unchanged: identity saves a walk over all rows
        if index is not self._index:
            self._forget(at_s)
            self._rows = self._first(index, at_s) if not self.subjects else self.take(index.subjects, at_s)
            self._index = index
        self._seen_s[self._rows] = at_s
        return self._rows

    def _first(self, index: SeriesIndex, at_s: float) -> Rows:
        """The first subjects of an empty table, all at once, so that a fleet's first tick is no long one."""
        if not len(index) or len(index.rows) != len(index):
            return self.take(index.subjects, at_s)
        self._slots, self.subjects = dict(index.rows), list(index.subjects)
        self._grow(at_s)
        return slice(0, len(index))

    def take(self, subjects: Sequence[Subject], at_s: float) -> Rows:
        """Slots of these subjects; new ones are added with the columns' fill values."""
        slots, known = self._slots, len(self.subjects)
        found = np.empty(len(subjects), dtype=np.int64)
        for row, subject in enumerate(subjects):
            slot = slots.get(subject)
            if slot is None:
                slot = slots[subject] = len(self.subjects)
                self.subjects.append(subject)
            found[row] = slot
        if len(self.subjects) > known:
            self._grow(at_s)
        self._seen_s[found] = at_s
        if len(found) == 0 or np.array_equal(found, np.arange(found[0], found[0] + len(found))):
            return slice(int(found[0]), int(found[0]) + len(found)) if len(found) else slice(0, 0)
        return found

    def seen_s(self) -> NDArray[np.float64]:
        """[n] when each subject was last in a frame (Unix s)."""
        return self._seen_s

    def reset(self, slots: NDArray[Any]) -> None:
        """Gives these slots (numbers or a mask) their fill values again: a counter reset, a new epoch."""
        for name, column in self._columns.items():
            self.arrays[name][slots] = column.fill

    def _grow(self, at_s: float) -> None:
        size = len(self.subjects)
        extra = size - len(self._seen_s)
        self._seen_s = np.concatenate([self._seen_s, np.full(extra, at_s)])
        for name, c in self._columns.items():
            fresh = np.full((extra, *c.shape), c.fill, dtype=c.dtype)
            known = self.arrays[name]
            self.arrays[name] = np.concatenate([known, fresh]) if len(known) else fresh

    def _forget(self, at_s: float) -> None:
        keep = self._seen_s >= at_s - self._forget_s
        if keep.all():
            return
        self.subjects = [s for s, kept in zip(self.subjects, keep.tolist(), strict=True) if kept]
        self._slots = {subject: slot for slot, subject in enumerate(self.subjects)}
        self._seen_s = self._seen_s[keep]
        self.arrays = {name: array[keep] for name, array in self.arrays.items()}

    def saved(self) -> tuple[list[str], dict[str, NDArray[Any]]]:
        """(subjects, arrays) for a snapshot."""
        arrays = {f"table.{name}": array for name, array in self.arrays.items()}
        return [str(s) for s in self.subjects], {**arrays, "table.seen_s": self._seen_s}

    def load(self, subjects: Sequence[str], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Takes back `saved`. A column that the snapshot lacks starts with its fill; SnapshotError on a misfit."""
        try:
            names = [Subject.parse(text) for text in subjects]
        except ValueError as error:
            raise SnapshotError(f"snapshot: {error}") from error
        loaded: dict[str, NDArray[Any]] = {}
        for name, c in self._columns.items():
            array = arrays.get(f"table.{name}")
            if array is None:
                array = np.full((len(names), *c.shape), c.fill, dtype=c.dtype)
            if array.shape != (len(names), *c.shape):
                raise SnapshotError(f"snapshot: column {name} is {array.shape}, not {(len(names), *c.shape)}")
            loaded[name] = array.astype(c.dtype)
        seen_s = arrays.get("table.seen_s")
        if seen_s is None or seen_s.shape != (len(names),) or len(set(names)) != len(names):
            raise SnapshotError("snapshot: its subjects do not fit its columns")
        self.subjects = names
        self._slots = {subject: slot for slot, subject in enumerate(names)}
        self._seen_s = seen_s.astype(float)
        self.arrays = loaded
        self._index = None


def saved_tables(tables: Mapping[SubjectKind, SeriesTable]) -> tuple[dict[str, list[str]], dict[str, NDArray[Any]]]:
    """(subjects by kind, arrays by kind and column) of a detector with a table for each kind of subject."""
    subjects: dict[str, list[str]] = {}
    arrays: dict[str, NDArray[Any]] = {}
    for kind, table in tables.items():
        subjects[kind.value], columns = table.saved()
        arrays |= {f"{kind.value}.{name}": array for name, array in columns.items()}
    return subjects, arrays


def load_tables(
    tables: Mapping[SubjectKind, SeriesTable],
    subjects: Mapping[str, Sequence[str]],
    arrays: Mapping[str, NDArray[Any]],
) -> None:
    """Takes back `saved_tables`. A kind that the snapshot lacks was not watched then, and starts empty."""
    for kind, table in tables.items():
        if kind.value in subjects:
            prefix = f"{kind.value}."
            own = {name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith(prefix)}
            table.load(subjects[kind.value], own)
