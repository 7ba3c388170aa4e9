"""The frame that power and scheduling share: observe → policy proposes → shield decides → actuate → read back.

A policy is never trusted: it may be a rule, a network or a person's script. What it proposes passes a shield, which
is plain code, and every turn leaves a receipt (`ControlDecision`) from which a stranger can tell what was seen,
what was proposed, which constraint clipped it, what was executed, and what the baseline would have done. Where the
state is not fit to decide on (missing, NaN) or the policy fails, the fallback proposes, and the receipt says so.

Actions are small frozen dataclasses or plain values that compare by value; `plain` turns them into JSON.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from nightshift.collectors.seal import fingerprint

O_contra = TypeVar("O_contra", bound="PolicyObservation", contravariant=True)
O = TypeVar("O", bound="PolicyObservation")  # noqa: E741  the field's letter for an observation
A = TypeVar("A")

FAILURES = (ArithmeticError, ValueError, TypeError, LookupError, MemoryError)
"""What a policy may fail with; the fallback takes over. Anything else is a defect of ours and is raised."""


class Mode(StrEnum):
    """How far a policy is trusted. Only `promotion` moves a policy up; anything may move it down."""

    SHADOW = "shadow"  # proposes, the baseline is executed
    TRIAL = "trial"  # executed by a coin, on jobs whose owners opted in
    CANARY = "canary"  # executed on a few
    ACTIVE = "active"


@dataclass(frozen=True, slots=True)
class Trust:
    """How far the policy goes for one job now. `chance`: that its proposal is executed, given all that is drawn
    already; `designed`: that the design gives this turn to it, before anything is drawn
    (`controllers.promotion.designed_chance`)."""

    mode: Mode = Mode.SHADOW
    chance: float = 0.0
    designed: float = 0.0


class PolicyObservation(Protocol):
    """What a policy sees: a frozen dataclass. `unit` is what is decided on (a GPU gang, a queue), `job` the cluster
    that statistics resample."""

    @property
    def unit(self) -> str: ...
    @property
    def job(self) -> str: ...

    def missing(self) -> tuple[str, ...]:
        """Names of what a policy needs and is missing, stale or NaN; empty where the state is fit."""
        ...


@dataclass(frozen=True, slots=True)
class PolicyProposal(Generic[A]):
    """What a policy would do. `support` lists every action that it might have drawn with its probability (they sum
    to 1); empty where the policy is deterministic. `prediction` is what it expects, for calibration later:
    `slowdown` (a ratio, 1 = none) of what it proposes, `slowdown_executed` of what is executed whoever asked."""

    action: A
    why: str = ""
    support: tuple[tuple[A, float], ...] = ()
    prediction: Mapping[str, float] = field(default_factory=dict)

    @property
    def propensity(self) -> float:
        """Probability of the proposed action under the policy."""
        return sum(p for action, p in self.support if action == self.action) if self.support else 1.0


class ControlPolicy(Protocol[O_contra, A]):
    """Proposes. Holds no hardware and changes nothing."""

    @property
    def name(self) -> str:
        """With the manifest's hash where it comes from a policy file, such as `ppo@3f2a…`."""
        ...

    def propose(self, observation: O_contra, rng: np.random.Generator) -> PolicyProposal[A]: ...


@dataclass(frozen=True, slots=True)
class Clip:
    """One constraint that changed what was to be done, and why."""

    constraint: str
    before: Any
    after: Any
    why: str


@dataclass(frozen=True, slots=True)
class ShieldRuling(Generic[A]):
    """What a shield lets through."""

    action: A
    clips: tuple[Clip, ...] = ()


class Shield(Protocol[O_contra, A]):
    """Decides what of a proposal may be done. Pure: asking it twice gives the same answer and changes nothing."""

    def decide(self, observation: O_contra, action: A) -> ShieldRuling[A]: ...


@dataclass(frozen=True, slots=True)
class ControlDecision:
    """The receipt of one turn. Everything in it is plain JSON, so it can be stored and signed as it is."""

    id: str
    kind: str  # power | scheduling
    at_s: float
    mode: Mode
    unit: str
    job: str
    policy: str
    fallback: str  # why the fallback proposed; empty where the policy did
    seen: Mapping[str, Any]
    proposed: Any
    propensity: float  # of the proposed action
    clips: tuple[Clip, ...]
    executed: Any
    executed_propensity: float  # of the executed action: over both arms and all that the policy might have proposed
    baseline: Any  # what the baseline would have had executed
    baseline_policy: str
    prediction: Mapping[str, float]
    why: str
    read_back: Any = None
    mismatch: str = ""
    arm: str = ""  # policy | baseline: whose proposal was executed
    outside: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Inputs of the policy that lay outside what it was trained on: name → (value, low, high)."""

    def to_json(self) -> dict[str, Any]:
        return {**plain(self), "clips": [plain(clip) for clip in self.clips]}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> ControlDecision:
        """Raises ValueError naming the field where the record is not of this form."""
        fields = {f.name for f in dataclasses.fields(cls)}
        wrong = (fields ^ set(record)) - {"arm", "outside"}  # receipts from before they were kept have none
        if wrong:
            raise ValueError(f"decision: fields {sorted(wrong)} are missing or unknown")
        try:
            clips = tuple(Clip(**clip) for clip in record["clips"])
            return cls(**{**record, "mode": Mode(record["mode"]), "clips": clips})
        except (TypeError, ValueError) as error:
            raise ValueError(f"decision.clips or mode: {error}") from error


_PLAIN = frozenset((str, int, bool, type(None)))


def plain(value: Any) -> Any:
    """JSON of a value made of dataclasses, mappings, sequences and numbers, NumPy too; a missing one is null."""
    kind = type(value)  # a receipt is mostly made of these, and there are many receipts
    if kind in _PLAIN:
        return value
    if kind is float:
        return value if math.isfinite(value) else None
    if kind is dict:
        return {str(k): item if type(item) in _PLAIN else plain(item) for k, item in value.items()}
    if kind is tuple or kind is list:
        return [plain(item) for item in value]
    names = _names(kind)  # type: ignore[arg-type]  # mypy takes no class for hashable
    # before Mapping and Sequence: a dataclass may be either, and its receipt names its fields
    if names is not None:
        return {name: plain(getattr(value, name)) for name in names}
    return next((form(value) for base, form in _FORMS.items() if isinstance(value, base)), value)


# The first that fits: an enum is a string too, a string a sequence, and a NumPy double a float.
_FORMS: Mapping[Any, Callable[[Any], Any]] = {
    StrEnum: str,
    str: lambda value: value,
    Mapping: lambda value: {str(key): plain(item) for key, item in value.items()},
    (set, frozenset): lambda value: sorted(plain(item) for item in value),
    np.ndarray: lambda value: plain(value.tolist()),
    np.generic: lambda value: plain(value.item()),
    float: lambda value: value if math.isfinite(value) else None,
    Sequence: lambda value: [plain(item) for item in value],
}


@cache
def _names(kind: type) -> tuple[str, ...] | None:
    """Fields of a dataclass; None of another type."""
    return tuple(f.name for f in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else None


def is_finite(value: Any) -> bool:
    """Whether no number in an action is NaN or infinite."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return all(is_finite(getattr(value, f.name)) for f in dataclasses.fields(value))
    if isinstance(value, Mapping):
        return all(is_finite(item) for item in value.values())
    if isinstance(value, (float, np.floating)):
        return bool(np.isfinite(value))
    if isinstance(value, (list, tuple)):
        return all(is_finite(item) for item in value)
    return True


def propose(
    policy: ControlPolicy[O, A], fallback: ControlPolicy[O, A], observation: O, rng: np.random.Generator
) -> tuple[PolicyProposal[A], str]:
    """The policy's proposal, or the fallback's and why: state missing, the policy failed or said no number."""
    lacking = observation.missing()
    if lacking:
        return fallback.propose(observation, rng), f"missing: {', '.join(lacking)}"
    try:
        proposal = policy.propose(observation, rng)
    except FAILURES as error:
        return fallback.propose(observation, rng), f"{policy.name}: {type(error).__name__}: {error}"
    chances = [chance for _, chance in proposal.support]
    if not is_finite(proposal.action) or not is_finite(chances):
        return fallback.propose(observation, rng), f"{policy.name}: proposed a value that is no number"
    if proposal.support and (min(chances) < 0 or abs(sum(chances) - 1) > 1e-6 or proposal.propensity <= 0):
        return fallback.propose(observation, rng), f"{policy.name}: its probabilities do not add up"
    return proposal, ""


def decide(
    kind: str,
    mode: Mode,
    policy: ControlPolicy[O, A],
    fallback: ControlPolicy[O, A],
    shield: Shield[O, A],
    observation: O,
    rng: np.random.Generator,
    at_s: float,
    *,
    treated: bool | None = None,
    chance: float | None = None,
) -> tuple[A, ControlDecision]:
    """One turn up to what is to be executed; pure but for `rng`.

    `treated`: the policy's proposal is executed, else the baseline's (without: in every mode but shadow, where it
    never is); `chance`: that the design gives this turn to the policy, without: 1 or 0. The baseline is the
    fallback's own shielded answer to the same observation: the counterfactual of the receipt. The executed
    action's propensity sums over both arms and over all proposals that the shield maps to it.
    """
    proposal, reason = propose(policy, fallback, observation, rng)
    baseline = shield.decide(observation, fallback.propose(observation, rng).action).action
    ruling = shield.decide(observation, proposal.action)
    acts = mode is not Mode.SHADOW and treated is not False
    executed = ruling.action if acts else baseline
    share = chance if chance is not None else float(acts)
    theirs = float(ruling.action == executed)
    if share > 0 and proposal.support:
        theirs = sum(p for a, p in proposal.support if shield.decide(observation, a).action == executed)
    odds = share * theirs + (1.0 - share) * float(baseline == executed)
    said: dict[str, Any] = {
        "kind": kind,
        "at_s": at_s,
        "mode": mode,
        "unit": observation.unit,
        "job": observation.job,
        "policy": fallback.name if reason else policy.name,
        "fallback": reason,
        "seen": plain(observation),
        "proposed": plain(proposal.action),
        "propensity": min(1.0, float(proposal.propensity)),
        "clips": tuple(Clip(c.constraint, plain(c.before), plain(c.after), c.why) for c in ruling.clips),
        "executed": plain(executed),
        "executed_propensity": min(1.0, float(odds)),
        "baseline": plain(baseline),
        "baseline_policy": fallback.name,
        "prediction": plain(proposal.prediction),
        "why": proposal.why,
        "arm": "policy" if acts else "baseline",
    }
    # the id is of the whole receipt as it is now, its fields without a value too
    body = {**_UNSAID, **said, "at_s": plain(at_s), "mode": str(mode), "clips": plain(said["clips"])}
    return executed, ControlDecision(id=fingerprint(body)[:16], **said)


_UNSAID: Mapping[str, Any] = {"id": "", "read_back": None, "mismatch": "", "outside": {}}


def confirm(decision: ControlDecision, read_back: Any) -> ControlDecision:
    """The receipt with what was read back; `mismatch` says where that is not what was executed."""
    found = plain(read_back)
    differs = "" if found == decision.executed else f"executed {decision.executed}, read back {found}"
    return dataclasses.replace(decision, read_back=found, mismatch=differs)
