"""What a promotion demands: no evidence is optional, no reason is free text, and unknown is never unchanged."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightshift.kernels.certification.envelope import JUDGE
from nightshift.kernels.certification.evidence import (
    FIELDS,
    SENTENCES,
    UNKNOWN,
    EvidenceReason,
    FleetView,
    JobReport,
    certified_when,
    environment_of,
    record_of,
)
from nightshift.kernels.certification.registry import CertificateState, Registry, RegistryError, promotable
from tests.kernel_certificates import ENVIRONMENT, GPU, RECORD, SAME, TRUSTED, predicate, signed, view_of

R = EvidenceReason
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
SLOW = {
    "case": "a",
    "baseline": "eager",
    "candidate_s": 2e-5,
    "baseline_s": 1e-5,
    "low": 0.4,
    "point": 0.5,
    "high": 0.6,
}
EVEN = SLOW | {"baseline_s": 2e-5, "low": 0.9, "point": 1.0, "high": 1.1}


def reasons(
    record: Any, environment: Any = SAME, to: CertificateState = CertificateState.active
) -> set[EvidenceReason]:
    return {one.reason for one in promotable(record, environment, to)}


CASES: list[tuple[EvidenceReason, Any, Any]] = [
    (R.no_record, {}, SAME),
    (R.not_fit, RECORD | {"status": "wrong"}, SAME),
    (R.no_gpu, RECORD | {"gpu": "none"}, SAME),
    (R.no_driver, RECORD | {"driver": "none"}, SAME),
    (R.no_torch, RECORD | {"torch": ""}, SAME),
    (R.no_triton, RECORD | {"triton": "none"}, SAME),
    (R.no_race, RECORD | {"raced": []}, SAME),
    (R.no_interval, RECORD | {"raced": [RECORD["raced"][0] | {"low": None}]}, SAME),
    (R.race_lost, RECORD | {"status": "slower"}, SAME),
    (R.race_lost, RECORD | {"raced": [*RECORD["raced"], SLOW]}, SAME),
    (R.race_undecided, RECORD | {"status": "inconclusive"}, SAME),
    (R.race_undecided, RECORD | {"raced": [*RECORD["raced"], EVEN]}, SAME),
    (R.gaps_unstated, RECORD | {"not_checked": []}, SAME),
    (R.other_judge, RECORD | {"judge": JUDGE - 1}, SAME),
    (R.other_judge, RECORD | {"judge": JUDGE + 1}, SAME),
    (R.gpu_changed, RECORD, replace(SAME, gpu=("NVIDIA H100 80GB HBM3",))),
    (R.driver_changed, RECORD, replace(SAME, driver=("580.65.06", "590.1"))),
    (R.torch_changed, RECORD, replace(SAME, torch=("2.12.0",))),
    (R.triton_changed, RECORD, replace(SAME, triton=("3.7.0",))),
    (R.environment_unknown, RECORD, replace(SAME, driver=())),
]


@pytest.mark.parametrize(("reason", "record", "environment"), CASES)
def test_each_reason_of_the_table_refuses_by_itself(reason: EvidenceReason, record: Any, environment: Any) -> None:
    assert reasons(record, environment) == {reason}


def test_the_table_of_reasons_is_closed_and_each_is_shown_above() -> None:
    assert set(SENTENCES) == set(R) == {reason for reason, _, _ in CASES}
    assert promotable(RECORD, SAME, CertificateState.active) == ()


@given(data=st.data())
def test_a_record_that_misses_any_evidence_is_never_promotable(data: st.DataObject) -> None:
    """Whatever stands in the place of one piece of it, in the record or in the certificate."""
    content: Any = predicate()
    verdict = content["verdict"]
    race = data.draw(st.integers(0, len(verdict["comparisons"]) - 1))
    places: list[tuple[Any, str]] = [
        *((verdict["environment"], name) for name in FIELDS),
        *((verdict["comparisons"][race], name) for name in ("case", "baseline", "candidate_s", "baseline_s")),
        *((verdict["comparisons"][race]["speedup"], name) for name in ("low", "point", "high")),
        (verdict, "environment"), (verdict, "comparisons"), (verdict, "not_checked"), (verdict, "status"),
        (verdict["comparisons"][race], "speedup"), (content, "judge"), (content, "verdict"),
    ]  # fmt: skip
    holder, name = data.draw(st.sampled_from(places))
    if data.draw(st.booleans()):
        del holder[name]
    else:
        holder[name] = data.draw(st.sampled_from([None, "", " ", [], {}, 0, -1.0, float("nan"), float("inf")]))
    record = record_of(content)
    assert promotable(record, UNKNOWN), (name, record)
    assert promotable(record, SAME, CertificateState.active)


@given(record=st.dictionaries(st.sampled_from(sorted(RECORD)), JSON), raced=st.lists(JSON, max_size=3))
def test_no_record_makes_the_decision_fail(record: dict[str, Any], raced: list[Any]) -> None:
    for one in (record, record | {"raced": raced}, copy.deepcopy(RECORD) | record):
        promotable(one, SAME)
        environment_of(view_of("a" * 64, 0.0), "a" * 64, one)
    record_of({"verdict": record, "candidate": raced})


@given(
    environment=st.builds(
        replace,
        st.just(SAME),
        gpu=st.sampled_from([(), SAME.gpu, ("A",), (GPU, "A")]),
        driver=st.sampled_from([(), SAME.driver, ("1",)]),
        torch=st.sampled_from([(), SAME.torch, ("1",)]),
        triton=st.sampled_from([(), SAME.triton, ("1",)]),
    )
)
def test_active_needs_every_field_known_and_the_same_and_a_canary_none_changed(environment: Any) -> None:
    same = all(environment.of(name) == SAME.of(name) for name in FIELDS)
    changed = any(set(environment.of(name)) - set(SAME.of(name)) for name in FIELDS)
    assert (promotable(RECORD, environment, CertificateState.active) == ()) == same
    assert (promotable(RECORD, environment, CertificateState.canary) == ()) == (not changed)


@pytest.mark.parametrize("language", ["cuda", "cute", "python"])
def test_a_kernel_that_triton_does_not_compile_needs_none(language: str) -> None:
    assert R.no_triton not in reasons(RECORD | {"triton": "none", "language": language})


def test_the_registry_itself_refuses_the_move_whoever_asks(tmp_path: Path) -> None:
    registry = Registry(tmp_path, TRUSTED)
    lacks = {"no_gpu": {"environment": {"torch": "2.11", "triton": "3.6"}}, "no_race": {"comparisons": []}}
    for number, (reason, change) in enumerate(lacks.items()):
        content = predicate(**change, domain=predicate()["verdict"]["domain"])
        entry = registry.propose(signed(content), "ann", "", float(number))
        with pytest.raises(RegistryError, match=f"not promotable: .*{SENTENCES[R(reason)]}"):
            registry.move(entry.certificate, CertificateState.canary, "ann", "", 9.0, "ab" * 32)
        assert registry.entry(entry.certificate).state is CertificateState.proposed


def test_a_certificate_of_another_judge_is_read_and_promotes_nothing(tmp_path: Path) -> None:
    content = predicate()
    del content["judge"]  # before they were numbered
    registry = Registry(tmp_path, TRUSTED)
    entry = registry.propose(signed(content), "ann", "", 1.0)
    assert "2.00×" in entry.summary
    with pytest.raises(RegistryError, match=f"another version of the judge.*judge 1, this is {JUDGE}"):
        registry.move(entry.certificate, CertificateState.canary, "ann", "", 2.0, "ab" * 32)


def test_a_certificate_of_the_future_is_said_to_be() -> None:
    issued = "2026-11-21T00:00:00+00:00"
    assert certified_when(issued, 1_795_219_200.0) == issued
    assert "in the future: a clock was set wrong" in certified_when(issued, 1_795_219_200.0 - 3600.0)
    assert "not a time" in certified_when("yesterday", 0.0)
    assert "not a time" in certified_when(None, 0.0)


CERTIFICATE = "c" * 64
OTHER = JobReport(True, (), (), ("NVIDIA A100",), ("1",), ("1",), ("1",))


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (None, UNKNOWN),
        (view_of(CERTIFICATE, 0.0), SAME),
        # one user on another driver is a change, whatever the rest of the fleet has
        (view_of(CERTIFICATE, 0.0, driver=("590.1",)), replace(SAME, driver=("590.1",))),
        # a job of other machines, that does not use it, says nothing
        (FleetView(0.0, {GPU: SAME.driver}, {"a": OTHER}), replace(UNKNOWN, gpu=(GPU,), driver=SAME.driver)),
        # nobody uses it: half a fleet on the old driver still has it, a whole fleet on the new one does not
        (FleetView(0.0, {GPU: ("580.65.06", "590.1")}), replace(UNKNOWN, gpu=(GPU,), driver=SAME.driver)),
        (FleetView(0.0, {GPU: ("590.1",)}), replace(UNKNOWN, gpu=(GPU,), driver=("590.1",))),
        (FleetView(0.0, {"NVIDIA B200": ("590.1",)}), replace(UNKNOWN, gpu=("NVIDIA B200",))),
        # its torch is another everywhere, so the job's file leaves it out
        (
            FleetView(0.0, {}, {"a": JobReport(True, (), (CERTIFICATE[:16],), (GPU,), (), ("2.12",), ("3.6.0",))}),
            replace(UNKNOWN, gpu=(GPU,), torch=("2.12",), triton=("3.6.0",)),
        ),
        # a file of an older version names no kernels: it may use any on that GPU; its torch is unknown
        (
            FleetView(0.0, {}, {"a": JobReport(False, (), (), (GPU,), ("590.1",))}),
            replace(UNKNOWN, gpu=(GPU,), driver=("590.1",)),
        ),
    ],
)
def test_the_environment_is_the_users_own_else_what_the_fleet_still_has(view: Any, expected: Any) -> None:
    assert environment_of(view, CERTIFICATE, RECORD) == expected
    assert ENVIRONMENT["driver"] == "580.65.06"
