"""Power control of real jobs: gangs in, wishes out. Joins the frame's policies to the belief about each gang.

A gang is a job's GPUs; they run at one level, since the slowest sets the pace. Each window (`WINDOW_S`) gives the
gang's speed (work per second) and mean draw; the belief is kept per gang and is plain enough to be stored. Where
the speed is not known there is nothing to judge a slowdown by, so the fallback proposes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from controllers.decision import Clip, Proposal, Ruling
from controllers.policy_file import PolicyFile
from controllers.power import descent
from controllers.power.belief import TOP, Bank, N, Outlook
from controllers.power.curves import LEVELS, Floats
from controllers.power.features import ACTIONS, PROBE, STEPS, features

POWER, CLOCK = "power", "clock"
"""Levers: shares of the highest power limit, of the highest SM clock."""


@dataclass(frozen=True)
class GangSeen:
    """One window of a gang. Shares are of the highest limit (or clock); NaN: not known."""

    unit: str  # the job
    job: str
    lever: str
    level: float
    speed: float  # work per second
    speed_age_s: float
    draw: float
    gpus: int
    lowest: float
    slowdown: float  # believed now; NaN before there is a reference
    slowdown_sd: float
    budget: float
    dram_active: float
    sm_active: float
    temperature_c: float
    throttled: bool
    slack: float = math.nan  # of the slowdown budget, what is left
    rack_room: float = math.nan  # of the scarcest rack's budget, what is not drawn; share
    rack_slope: float = math.nan  # change of that rack's draw, share of its budget per minute

    def missing(self) -> tuple[str, ...]:
        needed = {"speed": self.speed, "draw": self.draw, "level": self.level, "lowest": self.lowest}
        found = [name for name, value in needed.items() if not math.isfinite(value)]
        if not self.speed_age_s <= 120.0:
            found.append("speed_age_s")
        return tuple(found)


@dataclass(eq=False)
class Gang:
    """What is remembered of one gang: `descent.Jobs` of one row."""

    jobs: descent.Jobs
    level: int = TOP
    lever: str = POWER
    tried: int = 0
    """Windows in which its reference was asked for, since its last change of phase (`share.divide`)."""

    @classmethod
    def start(cls, lowest: int, lever: str = POWER) -> Gang:
        return cls(descent.Jobs.start(np.array([lowest])), lever=lever)

    def on_clock(self, lowest: int) -> Gang:
        """The same gang on the other lever, with what is known of its reference: highest limit, free clock."""
        other, mine = Gang.start(lowest, CLOCK), self.jobs.windows
        for name in ("count", "speed", "draw"):
            getattr(other.jobs.windows, name)[0, TOP] = getattr(mine, name)[0, TOP]
        other.jobs.looks[0] = int(mine.count[0, TOP])
        return other

    def unbound(self, care: descent.Care) -> bool:
        """Whether its power limit was seen to save nothing, at a reference that is known."""
        count = float(self.jobs.windows.count[0, TOP])
        if count < care.first or int(self.jobs.home[0]) != TOP:
            return False
        drawn = float(self.jobs.windows.draw[0, TOP]) / count
        return bool(self.jobs.given_up[0]) or drawn <= care.idle * float(LEVELS[int(self.jobs.lowest[0])])

    def to_json(self) -> str:
        w = self.jobs.windows
        seen = np.flatnonzero(w.count[0])
        rows = [[int(k), w.count[0, k], w.speed[0, k], w.draw[0, k]] for k in seen]
        j = self.jobs
        return json.dumps(
            {
                "windows": rows,
                "home": int(j.home[0]),
                "lowest": int(j.lowest[0]),
                "looks": int(j.looks[0]),
                "given_up": bool(j.given_up[0]),
                "level": self.level,
                "lever": self.lever,
                "tried": self.tried,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Gang:
        """Raises ValueError where the text is not of this form."""
        try:
            body = json.loads(text)
            gang = cls.start(int(body["lowest"]))
            for level, *sums in body["windows"]:
                w = gang.jobs.windows
                for array, value in zip((w.count, w.speed, w.draw), sums, strict=True):
                    if not math.isfinite(value) or value < 0 or not 0 <= level < N:
                        raise ValueError(f"level {level}: {value}")
                    array[0, level] = value
            gang.jobs.home[0], gang.jobs.looks[0] = int(body["home"]) % N, int(body["looks"])
            gang.jobs.given_up[0] = bool(body["given_up"])
            gang.level, gang.lever = int(body["level"]) % N, str(body["lever"])
            gang.tried = int(body.get("tried", 0))
        except (KeyError, TypeError, IndexError) as error:
            raise ValueError(f"gang: {error}") from error
        return gang

    def look(self, speed: float, draw: float, bank: Bank, care: descent.Care) -> Outlook:
        """Takes one window in and says what is believed."""
        seen = descent.look(self.jobs, np.array([self.level]), np.array([speed]), np.array([draw]), bank, care)
        if int(self.jobs.looks[0]) <= 1:  # begun anew
            self.tried = 0
        return seen


def level_of(share: float) -> int:
    """The nearest level at or above a share."""
    return int(np.clip(np.searchsorted(LEVELS, share - 1e-6), 0, TOP))


@dataclass
class Guard:
    """The slowdown half of the shield, of one gang: no level that is not believed within the budget.

    `ceiling`: with no reference yet, nothing below the highest level is safe.
    """

    gang: Gang
    seen: Outlook
    care: descent.Care

    def decide(self, observation: GangSeen, action: int) -> Ruling[int]:
        low, keep = descent.reachable(self.seen, self.gang.jobs.home, self.gang.jobs.lowest, self.care)
        home = int(self.gang.jobs.home[0])
        if not bool(keep[0]):
            floor = min(home + self.care.step, TOP)
        else:
            floor = min(int(low[0]), home)
        if action >= floor:
            return Ruling(min(action, TOP))
        why = f"below {LEVELS[floor]:.0%} the job is not known to keep within {self.care.budget:.0%}"
        return Ruling(floor, (Clip("slowdown", float(LEVELS[max(0, action)]), float(LEVELS[floor]), why),))


@dataclass
class DescentPolicy:
    """The shipped heuristic as a policy of the frame. Its action is a level."""

    gangs: Mapping[str, tuple[Gang, Outlook]]
    care: descent.Care
    name: str = "descent"

    def propose(self, observation: GangSeen, rng: np.random.Generator) -> Proposal[int]:
        gang, seen = self.gangs[observation.unit]
        before = int(gang.jobs.home[0])
        level = int(descent.choose(gang.jobs, seen, np.array([gang.level]), self.care)[0])
        after = int(gang.jobs.home[0])
        gang.jobs.home[0] = before
        slow = float(seen.slowdown[0, level])
        prediction = {"slowdown": slow, "slowdown_sd": float(seen.slowdown_sd[0, level])}
        word = "reference" if level == TOP and after != TOP else "down" if after < before else "up"
        return Proposal(level, "stay" if level == before else f"{word} from {LEVELS[before]:.0%}", (), prediction)


@dataclass
class NetworkPolicy:
    """A policy file as a policy of the frame: draws its action, and says with what probability."""

    file: PolicyFile
    gangs: Mapping[str, tuple[Gang, Outlook]]
    care: descent.Care
    greedy: bool = True
    inputs: Floats | None = None
    """What it saw when it was last asked [n_features]; None before, and where it was not fit to be asked."""

    @property
    def name(self) -> str:
        return f"{self.file.name}@{self.file.sha256[:12]}"

    def propose(self, observation: GangSeen, rng: np.random.Generator) -> Proposal[int]:
        gang, seen = self.gangs[observation.unit]
        low, _ = descent.reachable(seen, gang.jobs.home, gang.jobs.lowest, self.care)
        found = features(gang.jobs, seen, low, self.care)
        if not np.isfinite(found).all():
            raise ValueError("a feature is no number: no window at the reference yet")
        self.inputs = found[0]
        chance = self.file.network.probabilities(found)[0]
        action = int(chance.argmax()) if self.greedy else int(rng.choice(len(chance), p=chance))
        home, lowest = int(gang.jobs.home[0]), int(gang.jobs.lowest[0])
        levels = [TOP if a == PROBE else int(np.clip(home + STEPS[a], lowest, TOP)) for a in range(len(ACTIONS))]
        support = () if self.greedy else tuple(zip(levels, map(float, chance), strict=True))
        return Proposal(levels[action], ACTIONS[action], support)


@dataclass
class Highest:
    """The fallback and the counterfactual: the highest limit that the rack's budget leaves. The shield divides
    it."""

    name: str = "highest"

    def propose(self, observation: GangSeen, rng: np.random.Generator) -> Proposal[int]:
        return Proposal(TOP, "as high as the budget lets it")
