"""Each number of a sentence comes from one named place of the evidence, and a sentence with another one falls."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nightshift.agent.incidents.renewal import renewed
from nightshift.agent.rca.evidence import gather
from nightshift.agent.rca.figures import numerals
from nightshift.agent.rca.grounding import ground
from nightshift.agent.rca.rules import diagnose
from nightshift.agent.store.diagnosis import CHANGED, CHANGED_S, FIGURES, Claim, Confidence, Diagnosis
from nightshift.detectors.base import Fault, Finding, SeriesExhibit
from tests.agent.rooted import GPUS, INVENTORY, NOW_S, ONSET_S, finding, history

GIB = float(2**30)


def leak(*, growth: float = 8.88, pace: float = 72.9) -> Finding:
    """A leak as it was once told: what its detector measured over one window, beside the pace of another."""
    t_s = tuple(ONSET_S + 60.0 * n for n in range(39))
    values = tuple((30.0 + 45.5 * n / 38) * GIB for n in range(39))
    shown = SeriesExhibit(GPUS[1], "gpu_memory_used_bytes", "bytes", t_s, values, values[0], "")
    facts = {"growth_bytes": growth * GIB, "slope_bytes_per_h": pace * GIB}
    return finding(Fault.GPU_MEMORY_LEAK, GPUS[1], evidence=(shown,), facts=facts)


def corrected(count: float, bins: float) -> Finding:
    t_s = tuple(ONSET_S - 60 + 30.0 * n for n in range(10))
    values = tuple(0.0 if t < ONSET_S else count for t in t_s)
    shown = SeriesExhibit(GPUS[1], "gpu_ecc_sbe_total", "", t_s, values, 0.0, "")
    facts = {"active_bins": bins, "bin_s": 120.0, "unit": "HBM"}
    return finding(Fault.HBM_DEGRADED, GPUS[1], evidence=(shown,), facts=facts)


def told_of(found: Finding) -> Diagnosis:
    return diagnose([found], gather([found], history(), INVENTORY, NOW_S), INVENTORY)


def the_one(diagnosis: Diagnosis, words: str) -> Claim:
    return next(claim for claim in diagnosis.claims if words in claim.sentence)


def test_what_a_leak_grew_by_is_read_from_the_series_that_the_sentence_cites() -> None:
    """The exhibit says 45.5 GiB in 38 minutes. The detector's own 8.88 GiB is of another stretch."""
    sentence = the_one(told_of(leak()), "rose by").sentence
    assert numerals(sentence) == ["45.50 GiB", "02:46:40", "38 min", "71.84 GiB/h"]


@pytest.mark.parametrize(
    ("old", "new"), [("45.50 GiB", "8.88 GiB"), ("38 min", "37 min"), ("71.84", "72.90"), ("02:46:40", "02:47:40")]
)
def test_a_sentence_with_another_number_than_its_evidence_falls(old: str, new: str) -> None:
    told = told_of(leak())
    claim = the_one(told, "rose by")
    forged = replace(
        claim,
        sentence=claim.sentence.replace(old, new),
        arguments={**claim.arguments, FIGURES: str(claim.arguments[FIGURES]).replace(old, new)},
    )
    assert ground([claim], told.evidence).held
    ((_, why),) = ground([forged], told.evidence).fell
    assert new.split(" ", maxsplit=1)[0] in why


def test_a_number_that_no_figure_names_falls() -> None:
    told = told_of(leak())
    claim = the_one(told, "rose by")
    more = replace(claim, sentence=f"{claim.sentence}, 12 times")
    ((_, why),) = ground([more], told.evidence).fell
    assert why == "12 comes from no evidence"


def test_a_claim_stored_before_numbers_had_figures_is_still_shown() -> None:
    told = told_of(leak())
    claim = the_one(told, "rose by")
    old = replace(claim, arguments={k: v for k, v in claim.arguments.items() if k != FIGURES})
    assert ground([old], told.evidence).held


def test_digits_within_names_are_no_numbers() -> None:
    assert numerals("rank of llama-70b-v3 on gpu-r01-n02 (GPU-1f3c, /app/train.py:305, 10.0.0.5)") == []
    assert numerals("30,000 errors a minute; -3.5e-4 at 02:46:40, 5 %") == ["30,000", "-3.5e-4", "02:46:40", "5 %"]


def test_a_diagnosis_follows_its_evidence_and_marks_what_changed() -> None:
    """330 corrected errors are not told as those of one window twenty minutes later."""
    first, later = told_of(corrected(3, 1)), told_of(corrected(330, 9))
    told = renewed(first, later, NOW_S + 1200)
    assert told is not None
    assert "corrected errors in 1 window of 2 min" in [claim.sentence for claim in first.claims]
    assert "corrected errors in 9 windows of 2 min" in str(told.facts[CHANGED]).split("\n")
    assert told.facts[CHANGED_S] == NOW_S + 1200
    assert renewed(later, later, NOW_S + 1300) is None


def test_a_diagnosis_is_not_renewed_by_one_that_knows_less() -> None:
    """After a restart the history is short: what was proven is still true."""
    known = told_of(corrected(330, 9))
    less = replace(known, claims=known.claims[:1], headline="other words")
    assert renewed(known, less, NOW_S) is None
    vaguer = replace(known, confidence=Confidence.UNKNOWN, claims=())
    assert renewed(known, vaguer, NOW_S) is None
