"""What the judge may say, and why it said it: two closed sets of words and the record that carries them.

A status is what a search, a ledger or a person acts on; a reason is the one finding that decided it. Every reason
belongs to exactly one status, so a verdict cannot say "wrong" for a cheat. Machine faults are apart: they are
nobody's verdict, carry no blame for the candidate and are retried elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class Status(StrEnum):
    """The judge's one-word answer."""

    compile_error = "compile_error"
    timeout = "timeout"
    oom = "oom"
    wrong = "wrong"
    cheat = "cheat"
    unstable = "unstable"
    inconclusive = "inconclusive"
    slower = "slower"
    faster = "faster"
    correct = "correct"  # passed every stage that was asked for; timing was not asked for, or is not certified
    machine_fault = "machine_fault"


class Reason(StrEnum):
    """The finding that decided a verdict."""

    # stage 0: static read and compile
    syntax = "syntax"
    entry_missing = "entry_missing"
    static_refusal = "static_refusal"
    compile_failed = "compile_failed"
    declaration = "declaration"
    empty_domain = "empty_domain"
    no_plan = "no_plan"
    # the process
    import_timeout = "import_timeout"
    call_timeout = "call_timeout"
    raised = "raised"
    host_died = "host_died"
    illegal_access = "illegal_access"
    out_of_memory = "out_of_memory"
    vram_limit = "vram_limit"
    memory_limit = "memory_limit"
    process_limit = "process_limit"
    disk_limit = "disk_limit"
    output_flood = "output_flood"
    channel_forged = "channel_forged"
    # results
    wrong_type = "wrong_type"
    wrong_shape = "wrong_shape"
    wrong_dtype = "wrong_dtype"
    wrong_strides = "wrong_strides"
    wrong_device = "wrong_device"
    unwritten = "unwritten"
    not_exact = "not_exact"
    rmse = "rmse"
    worst_row = "worst_row"
    max_ulp = "max_ulp"
    nan_placement = "nan_placement"
    gradient = "gradient"
    output_aliases = "output_aliases"
    # integrity
    input_mutated = "input_mutated"
    guard_overwritten = "guard_overwritten"
    state_kept = "state_kept"
    work_deferred = "work_deferred"
    process_changed = "process_changed"
    # declared class
    library_call = "library_call"
    determinism = "determinism"
    # timing
    timed_output_wrong = "timed_output_wrong"
    faster_than_physics = "faster_than_physics"
    clocks_disagree = "clocks_disagree"
    baseline_disturbed = "baseline_disturbed"
    rounds_disagree = "rounds_disagree"
    straddles = "straddles"
    peer_missing = "peer_missing"
    below_baseline = "below_baseline"
    clears_best = "clears_best"
    passed = "passed"
    # compute-sanitizer
    memcheck = "memcheck"
    racecheck = "racecheck"
    initcheck = "initcheck"
    synccheck = "synccheck"
    # the machine's, nobody's verdict
    device_lost = "device_lost"
    xid = "xid"
    judge_broken = "judge_broken"
    vram_taken = "vram_taken"


_BY_STATUS: Mapping[Status, tuple[Reason, ...]] = {
    Status.compile_error: (
        Reason.syntax,
        Reason.entry_missing,
        Reason.compile_failed,
        Reason.declaration,
        Reason.empty_domain,
        Reason.no_plan,
    ),
    Status.timeout: (Reason.import_timeout, Reason.call_timeout),
    Status.oom: (Reason.out_of_memory, Reason.vram_limit, Reason.memory_limit),
    Status.wrong: (
        Reason.raised,
        Reason.host_died,
        Reason.illegal_access,
        Reason.wrong_type,
        Reason.wrong_shape,
        Reason.wrong_dtype,
        Reason.wrong_strides,
        Reason.wrong_device,
        Reason.unwritten,
        Reason.not_exact,
        Reason.rmse,
        Reason.worst_row,
        Reason.max_ulp,
        Reason.nan_placement,
        Reason.gradient,
        Reason.output_aliases,
        Reason.guard_overwritten,
        Reason.process_changed,
        Reason.memcheck,
        Reason.racecheck,
        Reason.initcheck,
        Reason.synccheck,
    ),
    Status.cheat: (
        Reason.static_refusal,
        Reason.process_limit,
        Reason.disk_limit,
        Reason.output_flood,
        Reason.channel_forged,
        Reason.input_mutated,
        Reason.state_kept,
        Reason.work_deferred,
        Reason.library_call,
        Reason.timed_output_wrong,
        Reason.faster_than_physics,
        Reason.clocks_disagree,
        Reason.baseline_disturbed,
    ),
    Status.unstable: (Reason.determinism, Reason.rounds_disagree),
    Status.inconclusive: (Reason.straddles, Reason.peer_missing),
    Status.slower: (Reason.below_baseline,),
    Status.faster: (Reason.clears_best,),
    Status.correct: (Reason.passed,),
    Status.machine_fault: (Reason.device_lost, Reason.xid, Reason.judge_broken, Reason.vram_taken),
}
STATUS_OF: Mapping[Reason, Status] = {reason: status for status, group in _BY_STATUS.items() for reason in group}


_REFUSED = frozenset(
    {Status.compile_error, Status.timeout, Status.oom, Status.wrong, Status.cheat, Status.unstable}
)
FIT = frozenset({Status.faster, Status.slower, Status.inconclusive, Status.correct})
"""Found right, whatever its speed."""
# What a candidate's process may say of itself. It shares an address space with hostile code, so any other word from
# it (that it was faster, that the machine broke) is a forgery.
SELF_REPORTED = frozenset(
    reason for status in (Status.compile_error, Status.wrong, Status.oom) for reason in _BY_STATUS[status]
) | {Reason.process_limit, Reason.disk_limit}

RESULTS = frozenset(
    {
        Reason.raised,
        Reason.wrong_shape,
        Reason.wrong_dtype,
        Reason.unwritten,
        Reason.not_exact,
        Reason.rmse,
        Reason.worst_row,
        Reason.max_ulp,
        Reason.nan_placement,
    }
)
"""What a wrong output can be found to be."""


_LONGEST = 4000


def readable(text: str) -> str:
    """What a candidate may have written into an error, fit for files, terminals and prompts: no control characters,
    half characters or marks that turn a line's direction, and not without end."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text[:_LONGEST])


class Refusal(Exception):
    """A candidate is refused: the reason, the stage that found it and a sentence with the figures.

    Only reasons that speak against a candidate: nothing that is raised can make it fit, or nobody's fault.
    """

    def __init__(self, reason: Reason, detail: str, stage: str = "") -> None:
        if STATUS_OF[reason] not in _REFUSED:
            raise ValueError(f"refusal: {reason} refuses nobody")
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail
        self.stage = stage


class JudgeBroken(RuntimeError):
    """The judge's own machinery failed, or its machine: nobody's verdict."""

    def __init__(self, text: str, reason: Reason = Reason.judge_broken) -> None:
        super().__init__(text)
        self.reason = reason


@dataclass(frozen=True)
class Interval:
    """A ratio or a time with its confidence interval; all three in one unit."""

    low: float
    point: float
    high: float

    @property
    def width(self) -> float:
        """High over low, less one: 0.03 is an interval 3 % wide."""
        return self.high / self.low - 1.0 if self.low > 0 else math.nan


@dataclass(frozen=True)
class Comparison:
    """One baseline against the candidate on one case.

    `speedup` is baseline time over candidate time; above 1 the candidate is faster. Times are medians in seconds,
    energies in joules per call (NaN where the board gives no energy counter). `chained_s`: tier A's calls back to
    back by the judge's own clock, on a warm L2 (NaN where they could not be chained).
    """

    case: str
    baseline: str
    tier: str  # A: launch plan replayed by a judge-owned process; B: callable in its host, the parent's clock
    candidate_s: float
    baseline_s: float
    speedup: Interval
    pairs: int
    candidate_j: float = math.nan
    baseline_j: float = math.nan
    floor_s: float = math.nan
    chained_s: float = math.nan


@dataclass(frozen=True)
class LeftOut:
    """A baseline that was not raced on one case. `missing`: it could not run there, or computed something else;
    otherwise it ran alone and was too slow to matter."""

    case: str
    baseline: str
    why: str
    missing: bool


@dataclass(frozen=True)
class Verdict:
    """What the judge found about one candidate on one problem, with everything needed to question it."""

    candidate_sha256: str
    problem: str
    status: Status
    reason: Reason
    detail: str
    stage: str
    stages: tuple[str, ...] = ()  # stages passed, in order
    errors: Mapping[str, float] = field(default_factory=dict)  # worst figure per measure, relative to eager's own
    comparisons: tuple[Comparison, ...] = ()
    left_out: tuple[LeftOut, ...] = ()  # baselines of the problem that were not raced, and why
    domain: Mapping[str, Any] = field(default_factory=dict)
    exact: Mapping[str, Any] = field(default_factory=dict)  # what was compared bit for bit, and what could not be
    outputs: tuple[Mapping[str, str], ...] = ()  # of a bitwise candidate: hashes of its outputs on public probes
    work: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # by raced case, see `JudgeTrial.work`
    binaries: tuple[str, ...] = ()  # SHA-256 of the GPU binaries that were raced (tier A)
    isolation: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    not_checked: tuple[str, ...] = ()  # of a fit candidate: what this verdict does not answer for
    secret: str = ""  # hexadecimal; every probe, seed and order follows from it
    took_s: float = math.nan

    def __post_init__(self) -> None:
        if STATUS_OF[self.reason] is not self.status:
            raise ValueError(
                f"verdict: reason {self.reason} belongs to {STATUS_OF[self.reason]}, not {self.status}"
            )

    @property
    def refused(self) -> bool:
        """Whether the candidate was found unfit (a slow or inconclusive one is merely not better)."""
        return self.status in _REFUSED

    def to_json(self) -> dict[str, Any]:
        """Plain values for canonical JSON: NaN becomes null, enums their words."""
        return {name: _plain(value) for name, value in asdict(self).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
