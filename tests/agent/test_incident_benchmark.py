"""The incident benchmark's own claims: a no-op is no fault, a draw is reproducible, and a model can play along."""

from __future__ import annotations

from random import Random

import pytest

from benchmarks.incidents.__main__ import run
from benchmarks.incidents.grammar import FAULTS, deal, draw
from benchmarks.incidents.score import TRUTHS
from benchmarks.incidents.written import CASES, NO_OPS
from benchmarks.incidents.written import FAULTS as WRITTEN
from tests.agent.rca.test_investigate import concluded, settings
from tests.agent.scripted_model import scripted


def test_every_written_fault_has_a_truth_and_no_no_op_has_a_fault() -> None:
    for case in CASES:
        truths = [str(e.get("truth", e["do"])) for e in case["events"] if not (e.get("decoy") or e.get("part"))]
        assert all(truth in TRUTHS for truth in truths), case["name"]
        assert bool(truths) is (case in WRITTEN), case["name"]
    assert len(NO_OPS) >= 12
    assert len({case["name"] for case in CASES}) == len(CASES)


@pytest.mark.parametrize("seed", range(20))
def test_a_draw_is_the_same_again_and_each_of_its_faults_has_a_truth(seed: int) -> None:
    def drawn() -> list[dict[str, object]]:
        rng = Random(seed)
        kinds = deal(rng)
        return [draw(rng, n, [next(kinds), next(kinds)]) for n in range(len(FAULTS))]

    cases = drawn()
    assert cases == drawn()
    events = [event for case in cases for event in case["events"]]  # type: ignore[attr-defined]
    assert all(str(e.get("truth", e["do"])) in TRUTHS for e in events if not (e.get("decoy") or e.get("part")))
    assert {kind for case in cases for kind in FAULTS if kind in str(case["name"])} == set(FAULTS)


@pytest.mark.full
def test_the_same_case_plays_with_a_model_whose_tokens_and_words_are_reported() -> None:
    case = next(c for c in CASES if c["name"] == "PCIe errors")
    with scripted(concluded(cause="throttle", hypothesis="heat")) as server:
        row = run({**case, "duration_s": 700.0}, settings(server))
    assert row["tokens"] >= 1100
    assert row["incidents"][0]["model"]["cause"] == "throttle"
    assert row["caused"] == [1.0], "the rules' cause stands"
