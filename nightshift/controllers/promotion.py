"""How far a learned policy is trusted, and what it takes to trust it further.

    shadow ──► trial ──► canary ──► active        each step: its statistics, then people at the gate
       ▲         │          │          │
       └─────────┴──────────┴──────────┘          drift, lock-outs, a violation, a budget event: at once, unasked

In *shadow* a policy is asked and the baseline executed. In the *trial* a coin decides, block of time by block (a
policy that is taken away every half minute shows nothing), on jobs whose owners opted in; the executed action's
propensity is on the receipt. In *canary* a share of all jobs has the policy, by a hash of the job; when *active*,
all but the permanent holdout, which goes on to say what the policy is worth. Every coin is a hash, so a daemon that
is killed and started again goes on with the same arm.

Looks are counted: each spends its part of the 5 % (Bonferroni over `looks`), so asking daily does not promote by
luck. Decides purely; `agent.approvals.policy_gate` asks people and stores.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from nightshift.controllers.decision import Mode, Trust
from nightshift.controllers.drift import FeatureDrift
from nightshift.controllers.estimate import TrialTurn, calibration, doubly_robust, quantile_gap, violation_bound
from nightshift.detectors.tails import t_quantile

STEPS = (Mode.SHADOW, Mode.TRIAL, Mode.CANARY, Mode.ACTIVE)


@dataclass(frozen=True, slots=True)
class Criteria:
    """What a step asks for. Slowdowns are ratios (0.01 = one point); rewards are in the kind's own unit."""

    alpha: float = 0.05
    looks: int = 4
    """How often a step may be tried, each at alpha / looks."""
    least_jobs: int = 60
    least_gain: float = 0.0
    """The bound below the mean gain in reward has to exceed this."""
    p95_margin: float = 0.01
    p99_margin: float = 0.02
    calibration: float = 0.01
    """The bounds of the mean error of predicted slowdown have to lie within this, to either side."""
    most_violations: float = 0.05
    """The bound above the rate of jobs with a violation (none seen) may be this high."""
    most_fallback: float = 0.05
    most_lost: float = 0.1
    """Share of an arm's drawn turns whose outcome may be missing; the arms may differ by half of it."""
    trial_chance: float = 0.5
    block_s: float = 1800.0
    """How long a job keeps its arm in a trial; infinite: for ever."""
    canary_share: float = 0.1
    holdout_share: float = 0.05
    most_lockouts: float = 0.02
    """Share of the last day's turns that ended in a lock-out, above which a policy is demoted."""
    unit: str = "jobs"
    """What counts as one, in words: what is resampled, and what a coin is drawn for."""
    paired: bool = False
    """Shadow counts what the policy would have won beside the baseline, on the same requests: its bound has to
    exceed `least_gain`, and the step after it is active."""
    most_outside: float = 0.05
    """Share of jobs in which an input may lie outside the range of training, by the bound below it."""


CRITERIA: Mapping[str, Criteria] = {
    # a power policy slows jobs on purpose, within their slowdown budget: the tail is held to that, not to nothing
    "power": Criteria(p95_margin=0.05, p99_margin=0.06),
    # what counts as a job is an hour of the queue, with a name and a coin of its own (`scheduling.epochs`).
    # Its slowdown is a mean over jobs against a play that goes by predictions, and off by 0.1 to 0.3 (simulated)
    "scheduling": Criteria(block_s=math.inf, p95_margin=0.05, p99_margin=0.1, calibration=0.05, unit="hours"),
    # what is asked of a cache does not depend on what it evicts: both are replayed on the same requests, no coin
    "cache": Criteria(paired=True, unit="windows"),
}


@dataclass(frozen=True, slots=True)
class PromotionCheck:
    """One thing a step asks for. `figure` and `limit` as compared; `words` says both for a person."""

    name: str
    ok: bool
    figure: float
    limit: float
    words: str


@dataclass(frozen=True, slots=True)
class PromotionEvidence:
    """What is known at a look: all checks, and whether the step may be put before people."""

    to: Mode
    at_s: float
    look: int
    jobs: int
    turns: int
    checks: tuple[PromotionCheck, ...]
    unit: str = "jobs"

    @property
    def ready(self) -> bool:
        return bool(self.checks) and all(check.ok for check in self.checks)

    @property
    def words(self) -> str:
        failed = [check.words for check in self.checks if not check.ok]
        return "; ".join(failed) if failed else f"all {len(self.checks)} checks hold over {self.jobs} {self.unit}"


@dataclass(frozen=True, slots=True)
class Change:
    """One step up or down in a policy's history. `by`: a person, or `nightshift` for a demotion."""

    at_s: float
    before: Mode
    after: Mode
    by: str
    why: str


@dataclass(frozen=True, slots=True)
class PolicyStanding:
    """Where a policy stands. `policy`: name@hash; `kind`: power, scheduling. `demotion`: why it was last moved
    down, empty since the last step up. `looks`: tries of the next step so far."""

    kind: str
    policy: str
    manifest_sha256: str
    mode: Mode = Mode.SHADOW
    since_s: float = math.nan
    demotion: str = ""
    looks: int = 0
    evidence: PromotionEvidence | None = None
    history: tuple[Change, ...] = ()

    @property
    def next(self) -> Mode | None:
        """The mode above; None where it is active. A rule with a signed held-out evaluation needs no trial."""
        is_evaluated = self.evidence is not None and self.evidence.to is Mode.ACTIVE
        if self.mode is Mode.SHADOW and (is_evaluated or CRITERIA.get(self.kind, Criteria()).paired):
            return Mode.ACTIVE
        place = STEPS.index(self.mode)
        return STEPS[place + 1] if place + 1 < len(STEPS) else None


def moved(state: PolicyStanding, to: Mode, by: str, reason: str, now_s: float) -> PolicyStanding:
    """The standing after a step. Up is one step at a time; raises ValueError otherwise."""
    up = STEPS.index(to) > STEPS.index(state.mode)
    if up and to is not state.next:
        raise ValueError(f"{state.policy} is {state.mode}: the next step is {state.next}, not {to}")
    change = Change(now_s, state.mode, to, by, reason)
    return replace(
        state, mode=to, since_s=now_s, demotion="" if up else reason, looks=0, evidence=None,
        history=(*state.history, change)[-50:],
    )  # fmt: skip


# Who gets the policy ---------------------------------------------------------------------------------------------


def part_of(job: str, salt: str) -> float:
    """A fixed number in [0, 1) for a job: the same in every process, different for every salt."""
    digest = hashlib.sha256(f"{salt}\0{job}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def in_holdout(job: str, kind: str, criteria: Criteria) -> bool:
    """Whether a job belongs to the permanent holdout: of the kind, whatever the policy, for ever."""
    return part_of(job, f"holdout/{kind}") < criteria.holdout_share


def arm_of(state: PolicyStanding, job: str, at_s: float, criteria: Criteria) -> bool:
    """Whether the trial's coin gives this job to the policy now: fixed for a block of time."""
    block = f"{int(at_s // criteria.block_s)}" if math.isfinite(criteria.block_s) else ""
    return part_of(f"{job}/{block}", f"trial/{state.policy}") < criteria.trial_chance


def trust_of(state: PolicyStanding, job: str, opted_in: bool, at_s: float, criteria: Criteria) -> Trust:
    """How far the policy goes for a job now: the arm it fell to, and with which probability by design."""
    designed = designed_chance(state, opted_in, criteria)
    if state.mode is Mode.TRIAL:
        # the holdout is fixed before anything is drawn, so that its turns are certain, not a coin's
        if not opted_in or in_holdout(job, state.kind, criteria):
            return Trust(state.mode)
        return Trust(state.mode, float(arm_of(state, job, at_s, criteria)), designed)
    return Trust(state.mode, chance_of(state, job, opted_in, criteria), designed)


def chance_of(state: PolicyStanding, job: str, opted_in: bool, criteria: Criteria) -> float:
    """Probability that the policy's proposal, rather than the baseline's, is executed for this job now."""
    if state.mode is Mode.SHADOW or in_holdout(job, state.kind, criteria):
        return 0.0
    if state.mode is Mode.TRIAL:
        return criteria.trial_chance if opted_in else 0.0
    if state.mode is Mode.CANARY:
        return float(part_of(job, f"canary/{state.policy}") < criteria.canary_share)
    return 1.0


def designed_chance(state: PolicyStanding, opted_in: bool, criteria: Criteria) -> float:
    """The probability with which the design gives a job's turn to the policy, before anything is drawn: what
    goes on a `TrialTurn` as `chance`, times what the shield lets through. In canary and active: drawn once a
    job."""
    open_share = 1.0 - criteria.holdout_share
    if state.mode is Mode.TRIAL:
        return criteria.trial_chance if opted_in else 0.0
    return {Mode.CANARY: criteria.canary_share * open_share, Mode.ACTIVE: open_share}.get(state.mode, 0.0)


# What a step asks for --------------------------------------------------------------------------------------------


def least_jobs(state: PolicyStanding, criteria: Criteria) -> int:
    """Jobs with an outcome below which the next step cannot pass, however good the policy is."""
    alpha = criteria.alpha / criteria.looks
    clean = math.log(alpha) / math.log1p(-criteria.most_violations)  # none seen, and the bound still low enough
    tail = 3.0 / (1.0 - 0.99) if state.mode is not Mode.SHADOW else 0.0
    return max(criteria.least_jobs, math.ceil(clean), math.ceil(tail))


def is_look_due(state: PolicyStanding, jobs: int, criteria: Criteria) -> bool:
    """Whether the daemon looks by itself: first when a step can pass at all, then with twice the jobs each time, so
    that the looks are planned before anything is seen. Never again while evidence that holds waits for people."""
    if state.next is None or state.looks >= criteria.looks:
        return False
    if state.evidence is not None and state.evidence.ready:
        return False
    return jobs >= least_jobs(state, criteria) << state.looks


def assess(
    state: PolicyStanding,
    turns: Sequence[TrialTurn],
    fallback_share: float,
    criteria: Criteria,
    now_s: float,
    seed: int = 0,
    lost: tuple[float, float] = (0.0, 0.0),
) -> PromotionEvidence:
    """A look at the next step: counts as one of `criteria.looks`. `turns`: of this mode, since `since_s`. `lost`:
    share of drawn turns whose outcome is missing, with the policy and with the baseline: where an arm loses more,
    what is left is no random sample.

    Shadow has executed nothing of the policy's: it shows that what it says of the action that *was* executed is
    right, and that it answers. Later modes show what it is worth.
    """
    to = state.next
    if to is None:
        raise ValueError(f"{state.policy} is active: there is no further step")
    look, alpha = state.looks + 1, criteria.alpha / criteria.looks
    jobs = len({turn.job for turn in turns})
    checks = [
        _check("looks", look, criteria.looks, f"look {look} of {criteria.looks}"),
        _check("jobs", -jobs, -criteria.least_jobs, f"{jobs} of {criteria.least_jobs} {criteria.unit}"),
        _check("fallback", fallback_share, criteria.most_fallback, f"fell back in {fallback_share:.1%} of turns"),
    ]
    # in shadow nothing of the policy's is executed: what is asked is whether its predictions are right and whether
    # anything is violated while it is asked
    mine = [replace(turn, treated=True) for turn in turns] if state.mode is Mode.SHADOW else turns
    wrong = calibration(mine, alpha)
    furthest = max(abs(wrong.low), abs(wrong.high))
    checks.append(
        _check(
            "calibration",
            furthest,
            criteria.calibration,
            f"predicted slowdown off by up to {furthest:.4f} on average",
        )
    )
    bad, bound = violation_bound(mine, alpha)
    checks.append(_check("violations", bad, 0, f"{bad} {criteria.unit} with a violation"))
    words = f"at most {bound:.1%} of {criteria.unit} can have one (rule of three)"
    words += f", at most {criteria.most_violations:.1%} is allowed"
    checks.append(_check("violation_bound", bound, criteria.most_violations, words))
    if state.mode is Mode.SHADOW and criteria.paired:
        checks.append(_paired_gain(turns, criteria, alpha))
    elif state.mode is not Mode.SHADOW:
        share = max(*lost, 2.0 * abs(lost[0] - lost[1]))
        words = f"no outcome of {lost[0]:.1%} of turns with the policy and {lost[1]:.1%} without"
        checks.append(_check("lost", share, criteria.most_lost, words))
        checks += _worth(turns, criteria, alpha, seed)
    return PromotionEvidence(to, now_s, look, jobs, len(turns), tuple(checks), criteria.unit)


def _worth(turns: Sequence[TrialTurn], criteria: Criteria, alpha: float, seed: int) -> list[PromotionCheck]:
    try:
        gain = doubly_robust(turns, alpha)
    except ValueError as error:
        return [PromotionCheck("gain", False, math.nan, criteria.least_gain, f"gain unknown: {error}")]
    sure = f"with {1 - alpha:.2%} confidence over {gain.jobs} {criteria.unit}"
    words = f"gain {gain.mean:.4f}, at least {gain.low:.4f} {sure}"
    checks = [PromotionCheck("gain", gain.low > criteria.least_gain, gain.low, criteria.least_gain, words)]
    for name, q, margin in (("p95", 0.95, criteria.p95_margin), ("p99", 0.99, criteria.p99_margin)):
        gap = quantile_gap(turns, q, np.random.default_rng(seed), alpha)
        words = f"{name} of slowdown up by at most {gap.high:.4f}; {margin:.4f} is allowed"
        checks.append(_check(name, gap.high, margin, words))
    return checks


def _paired_gain(turns: Sequence[TrialTurn], criteria: Criteria, alpha: float) -> PromotionCheck:
    """The bound below the mean reward. Windows follow on each other, so they are counted in ten blocks."""
    means = [float(np.mean(part)) for part in np.array_split([turn.reward for turn in turns], 10) if len(part)]
    if len(means) < 10:
        return PromotionCheck("gain", False, math.nan, criteria.least_gain, f"gain unknown: {len(means)} windows")
    low = float(np.mean(means) - t_quantile(9, 1 - alpha) * np.std(means, ddof=1) / math.sqrt(10))
    words = f"gain {np.mean(means):.4f}, at least {low:.4f} with {1 - alpha:.2%} confidence"
    return PromotionCheck("gain", low > criteria.least_gain, low, criteria.least_gain, words)


def _check(name: str, figure: float, limit: float, words: str) -> PromotionCheck:
    """Holds where the figure is at most the limit; a missing figure never holds."""
    return PromotionCheck(name, bool(figure <= limit), float(figure), float(limit), words)


# What takes trust away -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PolicyHealth:
    """What has been seen lately of a policy that acts. Counts are of the last day."""

    turns: int = 0
    lockouts: int = 0
    violations: int = 0
    budget_events: int = 0
    drift: tuple[FeatureDrift, ...] = ()
    """Inputs that lie outside the range of training now (`controllers.drift`)."""
    treated: tuple[TrialTurn, ...] = ()
    """Turns with the policy and of the holdout, for its worth."""


@dataclass(frozen=True, slots=True)
class Hour:
    """Counts of one hour since 1970."""

    hour: int
    turns: int = 0
    lockouts: int = 0
    violations: int = 0
    budget_events: int = 0


@dataclass(frozen=True, slots=True)
class Tally:
    """What has been counted of a policy since it stands where it does, by the hour, for the last day."""

    policy: str
    since_s: float
    hours: tuple[Hour, ...] = ()

    def add(self, now_s: float, what: PolicyHealth) -> Tally:
        """With what happened just now. An hour from the future (a clock that was set) is dropped."""
        now = int(now_s // 3600.0)
        kept = {hour.hour: hour for hour in self.hours if now - 24 < hour.hour <= now}
        old = kept.get(now, Hour(now))
        kept[now] = Hour(
            now,
            old.turns + what.turns,
            old.lockouts + what.lockouts,
            old.violations + what.violations,
            old.budget_events + what.budget_events,
        )
        return replace(self, hours=tuple(kept[key] for key in sorted(kept)))

    def health(self, now_s: float, what: PolicyHealth) -> PolicyHealth:
        """The last day's sums, with the drift and the turns of `what`."""
        recent = [hour for hour in self.hours if hour.hour > int(now_s // 3600.0) - 24]
        return PolicyHealth(
            sum(hour.turns for hour in recent),
            sum(hour.lockouts for hour in recent),
            sum(hour.violations for hour in recent),
            sum(hour.budget_events for hour in recent),
            what.drift,
            what.treated,
        )


def demotion(state: PolicyStanding, health: PolicyHealth, criteria: Criteria) -> str:
    """Why a policy has to go back to shadow now; empty where it may stay. Needs nobody's approval."""
    if state.mode is Mode.SHADOW:
        return ""
    if health.budget_events:
        return f"{health.budget_events} budget events"
    if health.violations:
        return f"{health.violations} violations of a hard constraint"
    if health.turns and health.lockouts / health.turns > criteria.most_lockouts and health.lockouts > 1:
        return f"locked out in {health.lockouts} of {health.turns} turns"
    far = [left.words for left in health.drift if left.share_low > criteria.most_outside]
    if far:
        more = f", and {len(far) - 3} more" if len(far) > 3 else ""
        return f"drift: {'; '.join(far[:3])}{more}"
    return _worse(health.treated, criteria)


def _worse(turns: Sequence[TrialTurn], criteria: Criteria) -> str:
    groups = [[t for t in turns if t.treated is arm and 0 < t.chance < 1] for arm in (True, False)]
    if min(len({t.job for t in group}) for group in groups) < 20:
        return ""
    sides = []
    for group in groups:
        by_job: dict[str, list[float]] = {}
        for turn in group:
            by_job.setdefault(turn.job, []).append(turn.reward)
        sides.append(np.asarray([np.mean(rewards) for rewards in by_job.values()]))
    gap = float(sides[0].mean() - sides[1].mean())
    error = math.sqrt(sum(float(side.var(ddof=1)) / len(side) for side in sides))
    high = gap + 1.645 * error
    return f"worse than the holdout: gain at most {high:.4f}" if high < 0 else ""
