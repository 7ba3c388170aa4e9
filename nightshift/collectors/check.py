"""The contract that every collector plug-in passes, as functions that tests (ours and a plug-in author's) call.

Each raises AssertionError naming the plug-in and what it broke.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import BaseModel

from nightshift.collectors.base import Collector
from nightshift.collectors.frame import Frame
from nightshift.collectors.subject import Inventory, SubjectKind
from nightshift.collectors.telemetry.metrics import BY_NAME
from nightshift.collectors.tick import Batch

_KNOWN = set(BY_NAME)
# A collector may finish what it holds, on a machine that is busy; it may not wait.
GRACE_S = 5.0


def check_declaration(plugin: type[Any]) -> None:
    """A name for the settings file, a Settings model that refuses unknown fields, every field described."""
    name = getattr(plugin, "plugin", None)
    assert isinstance(name, str), f"{plugin.__name__}: no plugin name"
    assert name.isidentifier(), f"{plugin.__name__}: no usable plugin name"
    assert plugin.__doc__, f"{name}: no docstring"
    model = getattr(plugin, "Settings", None)
    assert isinstance(model, type), f"{name}: Settings is no class"
    assert issubclass(model, BaseModel), f"{name}: Settings is no pydantic model"
    assert model.model_config.get("extra") == "forbid", f"{name}: Settings accepts unknown fields"
    for field, info in model.model_fields.items():
        assert info.description, f"{name}: setting {field} has no description"


def check_collect(
    collector: Collector, now_s: float, inventory: Inventory, timeout_s: float, expect_ok: bool | None = None
) -> Batch:
    """One call keeps the contract: in time, no exception, a status per source, frames that are consistent.
    `expect_ok` also asks that every source answered (or that none did, with no value)."""
    started = time.monotonic()
    batch = collector.collect(now_s, inventory, timeout_s)
    took_s = time.monotonic() - started
    name = collector.name
    assert took_s <= timeout_s + GRACE_S, f"{name}: took {took_s:.2f} s of {timeout_s} s"
    _check_statuses(batch, name, now_s)
    for frame in batch.frames:
        _check_frame(frame, name)
    for steps in batch.steps:
        lengths = {len(steps.step), len(steps.t_s), *(len(column) for column in steps.columns.values())}
        assert len(lengths) == 1, f"{name}: ragged steps of {steps.subject}"
    if expect_ok is not None:
        told: Mapping[str, object] = {str(s.source): s.reason for s in batch.sources if s.ok is not expect_ok}
        assert not told, f"{name}: {told}"
    if expect_ok is False:
        _check_silence(batch, name)
    return batch


def _check_statuses(batch: Batch, name: str, now_s: float) -> None:
    assert batch.sources, f"{name}: no source status"
    seen = [status.source for status in batch.sources]
    assert len(set(seen)) == len(seen), f"{name}: one source has two statuses"
    for status in batch.sources:
        assert status.source.kind is SubjectKind.SOURCE, f"{name}: {status.source} is no source"
        assert status.ok == (status.reason is None), f"{name}: {status.source}: ok and reason disagree"
        assert status.at_s == now_s, f"{name}: {status.source}: not of this tick"


def _check_frame(frame: Frame, name: str) -> None:
    assert set(frame.metrics) <= _KNOWN, f"{name}: unknown metrics {set(frame.metrics) - _KNOWN}"
    assert not np.isinf(frame.values).any(), f"{name}: an infinite value in the {frame.kind} frame"
    valued = ~np.isnan(frame.values)
    when = np.broadcast_to(frame.observed_at_s, frame.values.shape)
    assert not np.isnan(when[valued]).any(), f"{name}: a value without its time in the {frame.kind} frame"


def _check_silence(batch: Batch, name: str) -> None:
    """Where no source answered, a value would be one that the collector kept, or made up."""
    for frame in batch.frames:
        assert np.isnan(frame.values).all(), f"{name}: a value although no source answered"
    assert not batch.steps, f"{name}: steps although no source answered"
    assert not batch.events, f"{name}: events although no source answered"
