"""When a hot kernel is worth a search: a stated policy, decided purely, explained in one sentence.

A search takes a GPU away from somebody. It is proposed only where the operation takes a good share of the step,
runs far below the roofline, the whole step would gain, and enough GPU-hours a week run that step; and only in
namespaces that asked for it, within a weekly budget.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from nightshift.kernels.profile.hotspots import Hotspot

# Least share of the step's wall time: a kernel that takes less can hardly win MIN_GAIN of the step.
MIN_SHARE = 0.03
# Most of the roofline that it may reach already; what is left above it is seldom won.
MAX_UTILISATION = 0.7
# Least expected speed-up of the whole step (1 %): what a step's time varies by itself.
MIN_GAIN = 0.01
# Least GPU-hours a week that run this step: 1 % of them is the price of one search.
MIN_GPU_HOURS_WEEK = 100.0
# A search has to be won back within so many weeks: later, the job may be another.
PAYBACK_WEEKS = 4.0
# A search that was answered or rejected is not proposed again for so long.
AGAIN_DAYS = 30.0


class Settings(BaseModel):
    """When Nightshift proposes to search for a faster kernel."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    namespaces: tuple[str, ...] = Field(
        (), description="Namespaces (patterns) whose jobs may be optimised; none: Nightshift never proposes it"
    )
    search_gpu_hours: float = Field(1.0, gt=0, description="Most GPU-hours of one search")
    weekly_gpu_hours: float = Field(8.0, ge=0, description="Most GPU-hours a week of all searches together")
    priority_class: str = Field(
        "nightshift-preemptible", description="Priority class of the search's pod: preemptible, below every job"
    )
    trusted_keys: tuple[Path, ...] = Field(
        (), description="Public keys whose certificates are believed when a search brings them; none: none is"
    )
    registry: Path | None = Field(
        None,
        description="Folder of the kernel registry. The daemon promotes and demotes kernels there; "
        "none: people do it by command",
    )


@dataclass(frozen=True)
class Stake:
    """What runs the step, and how much of the cluster does. used_gpu_hours: this week's searches."""

    namespace: str
    job: str
    gpu_hours_week: float
    used_gpu_hours: float = 0.0


@dataclass(frozen=True)
class Decision:
    """Whether to propose a search, for which hotspot, and why; also why not."""

    propose: bool
    hotspot: Hotspot | None
    why: str


def asked_for(namespace: str, policy: Settings) -> bool:
    """Whether a namespace asks for kernel searches."""
    return any(fnmatchcase(namespace, pattern) for pattern in policy.namespaces)


def consider(hotspot: Hotspot, stake: Stake, policy: Settings) -> Decision:
    """The policy applied to one hotspot. The first condition that fails is told, with its figures."""
    where = f"{hotspot.name} in {stake.namespace}/{stake.job}"

    def no(reason: str) -> Decision:
        return Decision(False, hotspot, f"{where}: {reason}")

    if not asked_for(stake.namespace, policy):
        return no("its namespace has not asked for kernel searches (kernels.namespaces)")
    if not hotspot.problem:
        return no(hotspot.why or "no family of ours computes it")
    if not math.isfinite(hotspot.utilisation):
        return no("its distance to the roofline is not known: no peaks were probed for this dtype")
    if hotspot.share < MIN_SHARE:
        return no(f"it takes {hotspot.share:.1%} of the step, less than {MIN_SHARE:.1%}")
    if hotspot.utilisation > MAX_UTILISATION:
        return no(f"it reaches {hotspot.utilisation:.0%} of the roofline, more than {MAX_UTILISATION:.0%}")
    if hotspot.gain < MIN_GAIN:
        return no(f"the step would gain {hotspot.gain:.1%}, less than {MIN_GAIN:.1%}")
    if not stake.gpu_hours_week >= MIN_GPU_HOURS_WEEK:
        return no(f"{stake.gpu_hours_week:.0f} GPU-hours a week run it, less than {MIN_GPU_HOURS_WEEK:.0f}")
    saved = stake.gpu_hours_week * hotspot.gain / (1.0 + hotspot.gain)
    if saved * PAYBACK_WEEKS < policy.search_gpu_hours:
        return no(
            f"it would save {saved:.2f} GPU-hours a week, and {policy.search_gpu_hours:g} of a search are not won "
            f"back within {PAYBACK_WEEKS:g} weeks"
        )
    left = policy.weekly_gpu_hours - stake.used_gpu_hours
    if left < policy.search_gpu_hours:
        return no(
            f"{stake.used_gpu_hours:.1f} of {policy.weekly_gpu_hours:g} GPU-hours for searches are used this week"
        )
    return Decision(
        True,
        hotspot,
        f"{where}: it takes {hotspot.share:.1%} of the step at {hotspot.utilisation:.0%} of the roofline; a good "
        f"kernel makes the step {hotspot.gain:.1%} faster, which saves {saved:.1f} of {stake.gpu_hours_week:.0f} "
        f"GPU-hours a week; a search takes at most {policy.search_gpu_hours:g} GPU-hours, preemptible, of "
        f"{left:.1f} left this week",
    )


def decide(hotspots: Sequence[Hotspot], stake: Stake, policy: Settings) -> Decision:
    """The first hotspot, in the order of their score, that the policy lets through; else why the best does not."""
    decisions = [consider(hotspot, stake, policy) for hotspot in hotspots]
    if not decisions:
        return Decision(False, None, f"{stake.namespace}/{stake.job}: the trace has no operation with GPU time")
    return next((d for d in decisions if d.propose), decisions[0])
