"""The shared frame: a policy is never trusted, and the receipt tells what became of its proposal."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightshift.collectors.seal import fingerprint
from nightshift.controllers.decision import (
    Clip,
    ControlDecision,
    Mode,
    PolicyProposal,
    ShieldRuling,
    confirm,
    decide,
    plain,
)


@dataclass(frozen=True)
class Seen:
    value: float
    unit: str = "gpu-1"
    job: str = "job-1"

    def missing(self) -> tuple[str, ...]:
        return () if math.isfinite(self.value) else ("value",)


@dataclass(frozen=True)
class Says:
    proposal: PolicyProposal[float]
    name: str = "policy"

    def propose(self, observation: Seen, rng: np.random.Generator) -> PolicyProposal[float]:
        if self.proposal.action == 666.0:
            raise ValueError("a broken policy")
        return self.proposal


@dataclass(frozen=True)
class AtMost:
    limit: float = 10.0
    clips: list[Clip] = field(default_factory=list)

    def decide(self, observation: Seen, action: float) -> ShieldRuling[float]:
        if action > self.limit:
            return ShieldRuling(self.limit, (Clip("at_most", action, self.limit, "no more"),))
        return ShieldRuling(action)


def turn(
    proposal: PolicyProposal[float], value: float = 1.0, mode: Mode = Mode.ACTIVE
) -> tuple[float, ControlDecision]:
    fallback = Says(PolicyProposal(5.0), "baseline")
    return decide("power", mode, Says(proposal), fallback, AtMost(), Seen(value), np.random.default_rng(0), 3.0)


def test_a_receipt_tells_what_was_seen_proposed_clipped_and_executed() -> None:
    executed, receipt = turn(PolicyProposal(12.0, "more", ((12.0, 0.5), (11.0, 0.25), (1.0, 0.25))))
    assert executed == receipt.executed == 10.0
    assert (receipt.seen["value"], receipt.proposed, receipt.baseline) == (1.0, 12.0, 5.0)
    assert [clip.constraint for clip in receipt.clips] == ["at_most"]
    assert receipt.propensity == 0.5
    assert receipt.executed_propensity == 0.75  # two proposals lead to it
    assert ControlDecision.from_json(json.loads(json.dumps(receipt.to_json()))) == receipt


@given(
    st.floats(0.0, 30.0),
    st.sampled_from(Mode),
    st.floats(0.01, 1.0).map(np.float32),
    st.sampled_from([1.0, math.nan, np.float64(3.0)]),
)
def test_a_receipts_id_is_of_all_its_fields_as_they_are_stored(
    action: float, mode: Mode, chance: np.float32, value: float
) -> None:
    """... whatever of them was NumPy's or no number."""
    support = ((action, chance), (31.0, 1.0 - chance))
    _, receipt = turn(PolicyProposal(action, "why", support, {"slowdown": np.float64(0.1)}), value, mode)  # type: ignore[arg-type]
    assert receipt.id == fingerprint(plain(replace(receipt, id="")))[:16]


def test_in_shadow_the_baseline_is_executed() -> None:
    executed, receipt = turn(PolicyProposal(7.0), mode=Mode.SHADOW)
    assert (executed, receipt.proposed, receipt.executed) == (5.0, 7.0, 5.0)


@pytest.mark.parametrize(
    ("proposal", "value", "said"),
    [
        (PolicyProposal(7.0), math.nan, "missing: value"),
        (PolicyProposal(math.nan), 1.0, "no number"),
        (PolicyProposal(666.0), 1.0, "ValueError: a broken policy"),
        (PolicyProposal(7.0, "", ((7.0, 0.5),)), 1.0, "do not add up"),
        (PolicyProposal(7.0, "", ((1.0, 1.0),)), 1.0, "do not add up"),
        (PolicyProposal(7.0, "", ((7.0, math.nan),)), 1.0, "no number"),
    ],
)
def test_an_unfit_state_or_policy_leaves_it_to_the_fallback(
    proposal: PolicyProposal[float], value: float, said: str
) -> None:
    """... and the receipt says why."""
    executed, receipt = turn(proposal, value)
    assert executed == 5.0
    assert said in receipt.fallback
    assert receipt.policy == "baseline"
    json.dumps(receipt.to_json(), allow_nan=False)


def test_what_was_read_back_is_compared() -> None:
    _, receipt = turn(PolicyProposal(7.0))
    assert confirm(receipt, 7.0).mismatch == ""
    assert "read back 8.0" in confirm(receipt, 8.0).mismatch


@given(st.lists(st.floats(0.01, 30.0), min_size=1, max_size=6, unique=True), st.integers(0, 5))
def test_propensities_of_all_executed_actions_sum_to_one(actions: list[float], seed: int) -> None:
    weights = np.random.default_rng(seed).dirichlet(np.ones(len(actions)))
    support = tuple(zip(actions, weights.tolist(), strict=True))
    chances = {}
    for action in actions:
        executed, receipt = turn(PolicyProposal(action, "", support))
        chances[executed] = receipt.executed_propensity
    assert sum(chances.values()) == pytest.approx(1.0)


def test_a_record_of_another_form_is_refused() -> None:
    record = turn(PolicyProposal(7.0))[1].to_json()
    with pytest.raises(ValueError, match="unit"):
        ControlDecision.from_json({key: value for key, value in record.items() if key != "unit"})
