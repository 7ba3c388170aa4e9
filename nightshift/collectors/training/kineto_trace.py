"""A Kineto trace in columns: events, arrows between them, the operators' recorded shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from nightshift.collectors.base import Permanent
from nightshift.collectors.frame import Ints, Reason

CATEGORIES = (
    "other",
    "cpu_op",
    "kernel",
    "gpu_memcpy",
    "gpu_memset",
    "cuda_runtime",
    "cuda_driver",
    "user_annotation",
    "gpu_user_annotation",
    "overhead",
)
"""What is told apart; the number in `Events.category` is the position here. ROCm's names are the same in Kineto."""
CATEGORY = {name: number for number, name in enumerate(CATEGORIES)}


class TraceError(Permanent):
    """A file is no readable trace. The message names the file and the byte; `reason` is the source's."""

    def __init__(self, message: str, reason: Reason = Reason.MALFORMED) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, eq=False)
class Events:
    """Complete events, one row each, in the file's order. −1 stands for "not given" in every integer column.

    category: position in `CATEGORIES`; name, track, signature: positions in the trace's tables; begin_ns, dur_ns:
    on the trace's own clock; external_id joins a GPU activity to its operator, correlation to its launch; sequence,
    forward_thread join a backward operator to the forward one; stream, device: of GPU activities; moved_bytes:
    of copies.
    """

    category: NDArray[np.uint8]
    name: Ints
    track: Ints
    begin_ns: Ints
    dur_ns: Ints
    external_id: Ints
    correlation: Ints
    sequence: Ints
    forward_thread: Ints
    signature: Ints
    stream: Ints
    device: Ints
    moved_bytes: Ints

    def __len__(self) -> int:
        return len(self.category)

    def rows(self, *categories: str) -> Ints:
        """Row numbers of the events of some categories, in the file's order."""
        wanted = np.isin(self.category, [CATEGORY[name] for name in categories])
        return np.flatnonzero(wanted).astype(np.int64)


@dataclass(frozen=True, eq=False)
class Flows:
    """Arrows between events: kind 0 launch to GPU activity ("ac2g"), 1 forward to backward ("fwdbwd")."""

    kind: NDArray[np.uint8]
    id: Ints
    starts: NDArray[np.bool_]
    track: Ints
    at_ns: Ints


@dataclass(frozen=True)
class Signature:
    """An operator's inputs as recorded with record_shapes: one entry per argument, [] where it is no tensor."""

    dims: tuple[Any, ...]
    strides: tuple[Any, ...]
    dtypes: tuple[str, ...]
    concrete: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Trace:
    """One trace in columns. `base_ns` + an event's `begin_ns` is Unix time in nanoseconds (0: not recorded)."""

    path: str
    events: Events
    flows: Flows
    names: tuple[str, ...]
    tracks: tuple[tuple[str, str], ...]
    raw_signatures: tuple[bytes, ...]
    base_ns: int
    devices: tuple[Mapping[str, Any], ...]
    distributed: Mapping[str, Any]
    has_shapes: bool
    rejected: Mapping[Reason, int]

    @cached_property
    def signatures(self) -> tuple[Signature, ...]:
        """The table that `Events.signature` points into, decoded."""
        return tuple(_signature(raw) for raw in self.raw_signatures)


def _signature(raw: bytes) -> Signature:
    dims, strides, dtypes, concrete = (part if isinstance(part, list) else [] for part in orjson.loads(raw))
    count = len(dims)
    return Signature(
        tuple(_frozen(item) for item in dims),
        tuple(_frozen(item) for item in strides[:count]) + ((),) * (count - len(strides)),
        tuple(str(item) for item in dtypes[:count]) + ("",) * (count - len(dtypes)),
        tuple(str(item) for item in concrete[:count]) + ("",) * (count - len(concrete)),
    )


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value
