"""Every detector keeps the contract, is enumerated, and restores the state that an earlier version saved."""

from __future__ import annotations

import inspect
import pkgutil
from importlib import import_module
from pathlib import Path

import pytest

import nightshift.detectors
from nightshift.collectors.subject import Subject, SubjectKind
from nightshift.collectors.telemetry.metrics import DERIVED
from nightshift.detectors.base import Detector, Fault, SnapshotError
from nightshift.detectors.contract import check, streams
from nightshift.detectors.contract.check import CONTRACT, problems
from nightshift.detectors.contract.streams import HOSTILE, SILENT, faults, played
from nightshift.detectors.contract.testing import run
from nightshift.detectors.contract.world import HealthyFleet
from nightshift.detectors.episodes import Episodes
from nightshift.detectors.plugins import ALL
from nightshift.detectors.snapshot import unpack

SAVED = Path(__file__).parent / "snapshots"
MIGRATED = {"ecc-v1"}
"""Said "imminent" of every hard sign: what is degraded now stands beside it until it is quiet."""


@pytest.mark.parametrize("kind", ALL, ids=lambda k: k.plugin)
def test_a_detector_keeps_the_contract(kind) -> None:  # type: ignore[no-untyped-def]
    """Missing, late, repeated, reset, swapped, constant and extreme data; determinism, snapshots, no_data."""
    assert problems(kind) == []


def test_every_detector_class_in_the_package_is_in_the_tuple_and_counted() -> None:
    """A class with a plug-in name that is not in ALL would be skipped silently."""
    found = set()
    for module in pkgutil.walk_packages(nightshift.detectors.__path__, "nightshift.detectors."):
        for _, member in inspect.getmembers(import_module(module.name), inspect.isclass):
            if "plugin" in vars(member) and isinstance(vars(member)["plugin"], str):
                found.add(member)
    assert found == set(ALL)
    assert len(ALL) == len({kind.plugin for kind in ALL}) == 18
    assert len(SILENT) + len(HOSTILE) == 10


def test_every_item_of_the_contract_is_enumerated_and_checked_by_something_that_exists() -> None:
    """Fourteen items; every stream belongs to one, so none can be dropped unseen."""
    assert len(CONTRACT) == 14
    assert all(callable(getattr(check, name, getattr(streams, name, None))) for name in CONTRACT.values())
    assert {stream.__name__ for stream in (*SILENT, *HOSTILE)} <= set(CONTRACT.values())


def test_the_fleet_of_the_contract_has_every_column_that_the_collectors_derive() -> None:
    """Detectors are checked on rates and latencies too, counted by kind of subject."""
    ticks, _ = played(faults)
    seen = {(kind, name) for tick in ticks for kind, frame in tick.frames.items() for name in frame.metrics}
    kinds = set(HealthyFleet().kinds)
    derived = {(d.kind, d.name) for d in DERIVED if d.kind in kinds}
    assert len(derived) == 33
    assert derived <= seen


def test_a_detector_that_goes_series_by_series_or_calls_silence_clear_is_told() -> None:
    """The check itself can fail: a detector that loops over GPUs, alarms on health and clears without data."""

    class Naive(ALL[-1]):  # type: ignore[misc,valid-type]
        def update(self, tick, inventory):  # type: ignore[no-untyped-def]
            frame = tick.frames.get(SubjectKind.GPU)
            for gpu in frame.index.subjects if frame is not None else ():
                inventory.fact(gpu, "model")
            return super().update(tick, inventory) if len(tick.steps) else []

    told = problems(Naive)
    assert any(problem.startswith("columnar") for problem in told)


@pytest.mark.parametrize("kind", ALL, ids=lambda k: k.plugin)
def test_every_setting_has_a_description_and_a_default(kind) -> None:  # type: ignore[no-untyped-def]
    for name, field in kind.Settings.model_fields.items():
        assert field.description, name
        assert not field.is_required(), name
    assert kind.Settings.model_config["extra"] == "forbid"


@pytest.mark.parametrize("kind", ALL, ids=lambda k: k.plugin)
def test_a_state_that_an_earlier_version_saved_is_taken_back(kind) -> None:  # type: ignore[no-untyped-def]
    """The files were written by the versions that they name; the open episodes are still open after the restore."""
    files = sorted(SAVED.glob(f"{kind.plugin}-v*.npz"))
    assert files
    world = HealthyFleet()
    ticks, inventory = list(faults(world)), world.inventory()
    for file in files:
        detector: Detector = kind()
        detector.restore(file.read_bytes())
        fresh = kind()
        run(fresh, ticks[:120], inventory)
        # by what they are on, not by name: a later version may have found the same a minute sooner
        before = {(f.fault, f.subject) for f in fresh.update(ticks[120], inventory)}
        after = {(f.fault, f.subject) for f in detector.update(ticks[120], inventory)}
        assert before <= after
        burst = after - before - _saved_open(kind.plugin, file.read_bytes())
        assert not burst or file.stem in MIGRATED, f"{file.name}: alarms that nobody had, after a restore"


def _saved_open(plugin: str, state: bytes) -> set[tuple[Fault, Subject]]:
    """What a snapshot says is open."""
    _, meta, _ = unpack(state, plugin, tuple(range(1, 10)))
    book = Episodes(plugin)
    book.load(meta["episodes"])
    return set(book)


def test_a_snapshot_of_another_detector_is_refused() -> None:
    first, second = ALL[0](), ALL[1]()
    with pytest.raises(SnapshotError):
        first.restore(second.snapshot())
