"""What is claimed of clocks, links, lost GPUs and slow ranks stands on what was measured, in plain words."""

from __future__ import annotations

import pytest

from nightshift.agent.rca.evidence import gather
from nightshift.agent.rca.grounding import ground
from nightshift.agent.rca.rules import diagnose, right_share
from nightshift.agent.store.diagnosis import Confidence
from nightshift.detectors.base import Fault, Finding, SeriesExhibit
from tests.agent.rooted import GPUS, INVENTORY, NODE, NOW_S, ONSET_S, RANKS, finding, history

T_S = tuple(ONSET_S - 300 + 30.0 * n for n in range(20))


def shown(metric: str, before: float, after: float, subject: object = GPUS[1]) -> tuple[SeriesExhibit, ...]:
    values = tuple(before if t <= ONSET_S else after for t in T_S)
    return (SeriesExhibit(subject, metric, "", T_S, values, before, ""),)  # type: ignore[arg-type]


CASES: list[tuple[Finding, str]] = [
    (
        finding(
            Fault.THROTTLE,
            GPUS[1],
            evidence=shown("gpu_sm_clock_mhz", 1980.0, 1400.0),
            facts={"lost_share": 0.29, "reasons": "hardware thermal slowdown", "temperature_c": 91.0},
        ),
        "29 % of its clock is lost to hardware thermal slowdown",
    ),
    (
        finding(
            Fault.NVLINK_DEGRADED,
            GPUS[1],
            facts={"errors_per_min": 30_000.0, "limit_per_min": 6000.0, "signal": "gpu_nvlink_crc_errors_total"},
        ),
        "30,000 errors a minute, where 6,000 still are healthy",
    ),
    (
        finding(
            Fault.GPU_LOST,
            GPUS[1],
            evidence=shown("gpus_seen", 8.0, 7.0, NODE),
            facts={"gpus_before": 8.0, "gpus_now": 7.0},
        ),
        "its node shows 7 GPUs, 8 before; the node itself still runs",
    ),
    (
        finding(Fault.STRAGGLER, RANKS[2], facts={"ratio": 1.31, "often": 0.97}),
        "its own work takes 1.31 times its peers', step after step",
    ),
]


@pytest.mark.parametrize(("found", "sentence"), CASES, ids=lambda value: getattr(value, "fault", ""))
def test_the_measured_figures_are_claimed_and_hold(found: Finding, sentence: str) -> None:
    told = diagnose([found], gather([found], history(), INVENTORY, NOW_S), INVENTORY)
    assert told.cause is found.fault
    assert sentence in [claim.sentence for claim in told.claims]
    assert not ground(told.claims, told.evidence).fell
    assert told.confidence is not Confidence.UNKNOWN


def test_a_lost_gpu_of_which_the_kernel_log_says_nothing_is_told_so() -> None:
    found = CASES[2][0]
    told = diagnose([found], gather([found], history(), INVENTORY, NOW_S), INVENTORY)
    assert any("kernel log says nothing of it" in claim.sentence for claim in told.claims)


def test_what_a_level_is_worth_is_between_none_and_all_and_never_said_of_the_unknown() -> None:
    shares = [right_share(level) for level in (Confidence.HIGH, Confidence.MEDIUM, Confidence.LOW)]
    assert all(share is None or 0 < share < 1 for share in shares)
    assert right_share(Confidence.UNKNOWN) is None
