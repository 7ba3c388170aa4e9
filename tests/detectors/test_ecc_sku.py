"""What a model of GPU cannot tell is not called blind, and nothing is guessed of a model that is not known."""

from __future__ import annotations

import pytest

from nightshift.agent.history.lookback_signals import NEEDS, blind_signals
from nightshift.detectors.ecc.counters import CORRECTED, FAILURE, RETIRED, RETIRED_UNCORRECTED, SIGNALS
from nightshift.detectors.ecc.sku import FAMILIES, cannot_have, family_of, told_of

V100, A100, H200 = "Tesla V100-SXM2-32GB", "NVIDIA A100-SXM4-80GB", "NVIDIA H200"


@pytest.mark.parametrize(
    ("model", "family"),
    [
        (V100, "Volta, Turing and before"),
        ("Tesla T4", "Volta, Turing and before"),
        ("Quadro RTX 6000", "Volta, Turing and before"),
        (A100, "Ampere GA100"),
        ("NVIDIA A100 80GB PCIe", "Ampere GA100"),
        ("NVIDIA A10", "Ampere GA10x"),
        ("NVIDIA RTX A6000", "Ampere GA10x"),
        ("NVIDIA L40S", "Ada AD10x"),
        ("NVIDIA RTX 6000 Ada Generation", "Ada AD10x"),
        ("NVIDIA H100 80GB HBM3", "Hopper GH100"),
        ("NVIDIA GH200 480GB", "Hopper GH100"),
        (H200, "Hopper GH100"),
        ("NVIDIA B200", "Blackwell GB10x"),
        ("NVIDIA GeForce RTX 4090", None),
        ("", None),
    ],
)
def test_a_model_is_known_by_its_drivers_name(model: str, family: str | None) -> None:
    found = family_of(model)
    assert (found.name if found else None) == family
    assert all(family_of(f"NVIDIA {name}") is f for f in FAMILIES for name in f.examples.split(", "))


def test_only_what_every_known_model_lacks_is_absent() -> None:
    """A fleet of both has both; one unknown model, or none, and nothing is ruled out."""
    assert RETIRED in cannot_have([A100, H200])
    assert FAILURE in cannot_have([V100])
    assert cannot_have([V100, H200]) == cannot_have([H200, "GPU of next year"]) == cannot_have([]) == frozenset()


def test_a_look_back_calls_blind_what_these_gpus_have() -> None:
    """Row remapping is not asked of V100s, their retired pages are; H200s are asked the reverse."""
    nothing = dict.fromkeys([*SIGNALS, *(need for needs in NEEDS.values() for need in needs)], 0)
    old, new, unknown = ({b.signal for b in blind_signals(nothing, None, m)} for m in ([V100], [H200], []))
    assert {RETIRED, RETIRED_UNCORRECTED, CORRECTED} <= old
    assert not {name for name in old if "remap" in name}
    assert RETIRED not in new
    assert {name for name in new if "remap" in name} == {name for name in unknown if "remap" in name} != set()


def test_each_model_is_told_what_it_has_and_what_is_read() -> None:
    """Counted, with what is missing by name; a signal that could not be read is neither."""
    said = told_of(H200, {CORRECTED: 8, FAILURE: 0})
    assert "1 of 8 signals are read; not read: gpu_row_remap_failure. It has no page retirement" in said
    assert "no error containment" in told_of("NVIDIA L4", {})
    assert "unknown which signals it has; read: gpu_ecc_sbe_total" in told_of("Other", {CORRECTED: 1})
