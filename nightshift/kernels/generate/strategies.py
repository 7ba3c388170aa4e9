"""How a language model's turns are chosen: what each one is shown, and how freely it may answer.

A strategy sees the whole history and has no state of its own: a search that was killed continues where it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from nightshift.kernels.generate.base import Config, Outcome, fastest

ISLANDS, PATIENCE = 4, 3
"""Islands of a population, and attempts of one that bring nothing better before it takes the best of all."""

PLAN_RULES = """You plan GPU kernels for one NVIDIA GPU; another model writes what you plan, and a judge races it.
Reply with one plan in at most 150 words and without code: the one change that promises most, which figure below
says so (share of the roofline, bytes, registers, what torch.compile does, what was tried), and what must stay.
Plan nothing that was tried already and brought nothing."""


@dataclass(frozen=True)
class AuthorAllowance:
    """What one author may use in a search, and how. usd: of money. repairs: follow-up questions after a reply
    without a kernel. serial: attempts of which each refines the one before. parallel: most that are written at a
    time. exemplars: pairs of kernels that it is shown."""

    tokens: int = 400_000
    usd: float = math.inf
    calls: int = 60
    wall_s: float = 3600.0
    reply_tokens: int = 8_000
    repairs: int = 2
    serial: int = 4
    parallel: int = 4
    exemplars: int = 2


@dataclass(frozen=True)
class Turn:
    """One kernel to be written.

    history: what it may know of the search. attempts: the model's own that it is shown, the one it begins from
    last. heat: the model's temperature. config: kept with its proposal. planned: a plan is written first.
    """

    history: Sequence[Outcome]
    attempts: Sequence[Outcome]
    heat: float
    config: Config = field(default_factory=dict)
    planned: bool = False

    @property
    def why(self) -> str:
        """What the ledger says of the attempt, beside the idea that it names."""
        made = "first attempt" if not self.attempts else "refines its last attempt"
        if self.config:
            made = f"island {self.config['island']}: {made if not self.attempts else 'refines its best'}"
        elif self.heat >= 0.5:
            made = "another version of it"
        return f"{made}, by a plan" if self.planned else made


Attempts = Sequence[Outcome]
Strategy = Callable[[Attempts, Attempts, int, AuthorAllowance], list[Turn]]
"""(history, of it the model's own, how many are wanted, the allowance) → turns, at least one."""


def serial(history: Attempts, attempts: Attempts, count: int, allowance: AuthorAllowance) -> list[Turn]:
    """Each attempt refines the one before; once two bring nothing better, several freer ones of the same prompt."""
    if len(attempts) < allowance.serial or _better(attempts, 2):
        return [Turn(history, attempts, 0.2)]
    # at 0.2 a model answers one prompt alike each time; several versions differ
    return [Turn(history, attempts, 0.9)] * _at_a_time(count, allowance)


def planner(history: Attempts, attempts: Attempts, count: int, allowance: AuthorAllowance) -> list[Turn]:
    """As `serial`, in two steps: a plan from all figures, then the kernel from the plan."""
    return [replace(turn, planned=True) for turn in serial(history, attempts, count, allowance)]


def islands(history: Attempts, attempts: Attempts, count: int, allowance: AuthorAllowance) -> list[Turn]:
    """A population in parts that do not see each other (FunSearch, Nature 625): each refines its own best, and
    takes the best of all once it is stuck."""
    of = [o for o in attempts if "island" in o.proposal.config]
    told = len({o.proposal.candidate.sha256 for o in of})
    return [_on_island((told + n) % ISLANDS, history, of) for n in range(_at_a_time(count, allowance))]


def _at_a_time(count: int, allowance: AuthorAllowance) -> int:
    return max(1, min(count, allowance.parallel))


def _on_island(number: int, history: Attempts, of: Attempts) -> Turn:
    own = [o for o in of if o.proposal.config["island"] == number]
    stuck = len(own) >= PATIENCE and not _better(own, PATIENCE)
    hidden = {id(o) for o in of} - {id(o) for o in (of if stuck else own)}
    best = fastest(of if stuck else own)
    shown = [o for o in own if o is not best]
    attempts = [*shown, best] if best is not None else shown
    seen = [o for o in history if id(o) not in hidden]
    return Turn(seen, attempts, 0.5 if attempts else 0.9, {"island": number})


def _better(attempts: Attempts, last: int) -> bool:
    """Whether one of the last few is the fastest of all."""
    times = [o.seconds if o.timed else math.inf for o in attempts]
    return min(times[-last:]) < min(times[:-last], default=math.inf)


STRATEGIES: Mapping[str, Strategy] = {"serial": serial, "islands": islands, "planner": planner}
