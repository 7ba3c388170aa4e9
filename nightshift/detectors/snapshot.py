"""A detector's saved state: a versioned JSON header and NumPy arrays in one npz, never a pickle.

A pickle would run code from a file; an npz read with `allow_pickle=False` cannot.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nightshift.detectors.base import SnapshotError

Array = NDArray[Any]
_HEADER = "__header__"


def pack(detector: str, version: int, meta: Mapping[str, Any], arrays: Mapping[str, Array]) -> bytes:
    """One npz: `meta` must be JSON (NaN allowed, as JavaScript spells it); arrays must not hold objects."""
    for name, array in arrays.items():
        if array.dtype.hasobject or name == _HEADER:
            raise ValueError(f"snapshot of {detector}: {name} cannot be saved")
    header = json.dumps({"detector": detector, "version": version, "meta": dict(meta)}).encode()
    buffer = io.BytesIO()
    saved: dict[str, Any] = {_HEADER: np.frombuffer(header, dtype=np.uint8), **arrays}
    np.savez(buffer, **saved)
    return buffer.getvalue()


def unpack(state: bytes, detector: str, versions: tuple[int, ...]) -> tuple[int, dict[str, Any], dict[str, Array]]:
    """(version, meta, arrays) of a snapshot of this detector in one of these versions, else SnapshotError.

    >>> unpack(pack("mine", 2, {"seen": 3}, {}), "mine", versions=(1, 2))
    (2, {'seen': 3}, {})
    >>> unpack(pack("mine", 3, {}, {}), "mine", versions=(1, 2))
    Traceback (most recent call last):
        ...
    nightshift.detectors.base.SnapshotError: mine: snapshot version 3, this code reads [1, 2]
    """
    try:
        with np.load(io.BytesIO(state), allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files if name != _HEADER}
            header = json.loads(stored[_HEADER].tobytes())
        found, version, meta = header["detector"], header["version"], header["meta"]
    except (ValueError, KeyError, OSError, EOFError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        raise SnapshotError(f"{detector}: not a snapshot: {error}") from error
    if found != detector:
        raise SnapshotError(f"{detector}: the snapshot is of {found!r}")
    if version not in versions:
        raise SnapshotError(f"{detector}: snapshot version {version!r}, this code reads {list(versions)}")
    return version, meta, arrays
