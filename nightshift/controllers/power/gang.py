"""Power control of real jobs: gangs in, wishes out. Joins the frame's policies to the belief about each gang.

A gang is a job's GPUs; they run at one level, since the slowest sets the pace. Each window (`WINDOW_S`) gives the
gang's speed (work per second) and mean draw; the belief is kept per gang and is plain enough to be stored. Where
the speed is not known there is nothing to judge a slowdown by, so the fallback proposes.

Gangs are kept one by one and judged all at once (`look`, `answers`): what a belief costs is mostly the asking.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from nightshift.controllers.decision import FAILURES, Clip, PolicyProposal, ShieldRuling
from nightshift.controllers.policy_file import PolicyFile
from nightshift.controllers.power import descent
from nightshift.controllers.power.belief import TOP, Bank, LevelWindows, N, Outlook
from nightshift.controllers.power.curves import LEVELS, Floats
from nightshift.controllers.power.features import ACTIONS, PROBE, STEPS, features

POWER, CLOCK = "power", "clock"
"""Levers: shares of the highest power limit, of the highest SM clock."""


@dataclass(frozen=True, slots=True)
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

    @property
    def memorable(self) -> bool:
        """Whether the next run of its workload can start from what was learned of this one."""
        return self.lever == POWER and int(self.jobs.home[0]) < TOP

    def again(self, care: descent.DescentCare) -> Gang:
        """The next run of its workload."""
        return Gang(self.jobs.again(care))

    def unbound(self, care: descent.DescentCare) -> bool:
        """Whether its power limit was seen to save nothing, at a reference that is known."""
        count = float(self.jobs.windows.count[0, TOP])
        if count < care.first or int(self.jobs.home[0]) != TOP:
            return False
        drawn = float(self.jobs.windows.draw[0, TOP]) / count
        return bool(self.jobs.given_up[0]) or drawn <= care.idle * float(LEVELS[int(self.jobs.lowest[0])])

    def to_json(self) -> str:
        j = self.jobs
        return json.dumps(
            {
                "windows": _rows(j.windows),
                "past": _rows(j.past),
                "last": int(j.last[0]),
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
            _fill(gang.jobs.windows, body["windows"])
            _fill(gang.jobs.past, body.get("past", ()))
            gang.jobs.last[0] = int(body.get("last", TOP)) % N
            gang.jobs.home[0], gang.jobs.looks[0] = int(body["home"]) % N, int(body["looks"])
            gang.jobs.given_up[0] = bool(body["given_up"])
            gang.level, gang.lever = int(body["level"]) % N, str(body["lever"])
            gang.tried = int(body.get("tried", 0))
        except (KeyError, TypeError, IndexError) as error:
            raise ValueError(f"gang: {error}") from error
        return gang


def _rows(windows: LevelWindows) -> list[tuple[float, ...]]:
    """(level, count, speed, draw) of each level with windows of a gang."""
    seen = np.flatnonzero(windows.count[0])
    sums = (array[0, seen].tolist() for array in (windows.count, windows.speed, windows.draw))
    return list(zip(seen.tolist(), *sums, strict=True))


def _fill(windows: LevelWindows, rows: Sequence[Sequence[float]]) -> None:
    """Raises ValueError where a row is not of `_rows`."""
    for level, *sums in rows:
        for array, value in zip((windows.count, windows.speed, windows.draw), sums, strict=True):
            if not math.isfinite(value) or value < 0 or not 0 <= level < N:
                raise ValueError(f"level {level}: {value}")
            array[0, int(level)] = value


def level_of(share: float) -> int:
    """The nearest level at or above a share."""
    return min(int(LEVELS.searchsorted(share - 1e-6)), TOP)


_SUMS = ("windows", "past")
_REMEMBERED = ("home", "lowest", "looks", "given_up", "strange", "last")


def _together(gangs: Sequence[Gang]) -> descent.Jobs:
    """A copy of what is remembered of some gangs, a row each."""

    def joined(name: str) -> LevelWindows:
        each = [getattr(gang.jobs, name) for gang in gangs]
        return LevelWindows(*(np.concatenate([getattr(w, f.name) for w in each]) for f in fields(LevelWindows)))

    parts: dict[str, Any] = {name: joined(name) for name in _SUMS}
    parts |= {name: np.concatenate([getattr(gang.jobs, name) for gang in gangs]) for name in _REMEMBERED}
    return descent.Jobs(**parts)


def look(windows: Sequence[tuple[Gang, float, float]], bank: Bank, care: descent.DescentCare) -> list[Outlook]:
    """Takes one window of each gang in, its speed and draw (NaN: none), and says what is believed of each. Where
    that fails for all at once each is asked alone: of one that fails alone nothing is believed (NaN), and nothing
    is taken in."""
    if not windows:
        return []
    gangs = [gang for gang, _, _ in windows]
    level, speed, draw = (np.array(x) for x in zip(*((g.level, s, d) for g, s, d in windows), strict=True))
    try:
        jobs = _together(gangs)
        seen = descent.look(jobs, level, speed, draw, bank, care)
    except FAILURES:
        if len(windows) > 1:
            return [found for one in windows for found in look([one], bank, care)]
        return [Outlook(*np.full((len(fields(Outlook)), 1, N), np.nan))]
    for row, gang in enumerate(gangs):
        for sums, field in itertools.product(_SUMS, fields(LevelWindows)):
            getattr(getattr(gang.jobs, sums), field.name)[0] = getattr(getattr(jobs, sums), field.name)[row]
        for name in _REMEMBERED:
            getattr(gang.jobs, name)[0] = getattr(jobs, name)[row]
        if jobs.looks[row] <= 1:  # begun anew
            gang.tried = 0
    return [Outlook(*rows) for rows in zip(*(getattr(seen, f.name)[:, None] for f in fields(Outlook)), strict=True)]


@dataclass(frozen=True, slots=True)
class GangAnswer:
    """What the heuristic and the guard say of one gang. `level`: for the next window; `home`, `given_up`: what is
    remembered where that is heeded; `floor`: the lowest level that the guard lets through; `failed`: why none of it
    can be said."""

    level: int = TOP
    home: int = TOP
    given_up: bool = False
    floor: int = TOP
    failed: str = ""


def answers(gangs: Sequence[tuple[Gang, Outlook]], care: descent.DescentCare) -> list[GangAnswer]:
    """Of each gang, after `look`; changes nothing. Where asking fails for all at once each is asked alone."""
    if not gangs:
        return []
    try:
        return _answers(gangs, care)
    except FAILURES as error:
        if len(gangs) > 1:
            return [found for one in gangs for found in answers([one], care)]
        return [GangAnswer(failed=f"{type(error).__name__}: {error}")]


def _answers(asked: Sequence[tuple[Gang, Outlook]], care: descent.DescentCare) -> list[GangAnswer]:
    jobs = _together([gang for gang, _ in asked])
    seen = Outlook(*(np.concatenate([getattr(one, f.name) for _, one in asked]) for f in fields(Outlook)))
    low, keep = descent.reachable(seen, jobs, care)
    floor = np.where(keep, np.minimum(low, jobs.home), np.minimum(jobs.home + care.up, TOP))
    odd = (jobs.windows.count != 0).any(1) & ~np.isfinite(seen.gain).all(1)
    level = descent.choose(jobs, seen, np.array([gang.level for gang, _ in asked]), care)
    rows = zip(
        level.tolist(), jobs.home.tolist(), jobs.given_up.tolist(), floor.tolist(), odd.tolist(), strict=True
    )
    return [
        GangAnswer(failed="what is believed of it is no number") if is_odd else GangAnswer(*said)
        for *said, is_odd in rows
    ]


@dataclass
class SlowdownGuard:
    """The slowdown half of the shield, of one gang: no level that is not believed within the budget.

    `floor`: with no reference yet, nothing below the highest level is safe.
    """

    floor: int
    budget: float

    def decide(self, observation: GangSeen, action: int) -> ShieldRuling[int]:
        floor = self.floor
        if action >= floor:
            return ShieldRuling(min(action, TOP))
        why = f"below {LEVELS[floor]:.0%} there is no data that the job keeps within {self.budget:.0%}"
        return ShieldRuling(floor, (Clip("slowdown", float(LEVELS[max(0, action)]), float(LEVELS[floor]), why),))


@dataclass
class DescentPolicy:
    """The shipped heuristic, which was asked about one gang among others, as a policy of the frame. Its action is a
    level."""

    gang: Gang
    seen: Outlook
    answer: GangAnswer
    name: str = "descent"

    def propose(self, observation: GangSeen, rng: np.random.Generator) -> PolicyProposal[int]:
        gang, seen, answer = self.gang, self.seen, self.answer
        if answer.failed:
            raise ValueError(answer.failed)
        before, after, level = int(gang.jobs.home[0]), answer.home, answer.level
        gang.jobs.given_up[0] = answer.given_up
        slow = float(seen.slowdown[0, level])
        prediction = {"slowdown": slow, "slowdown_sd": float(seen.slowdown_sd[0, level])}
        word = "reference" if level == TOP and after != TOP else "down" if after < before else "up"
        return PolicyProposal(
            level, "stay" if level == before else f"{word} from {LEVELS[before]:.0%}", (), prediction
        )


@dataclass
class NetworkPolicy:
    """A policy file as a policy of the frame: draws its action, and says with what probability."""

    file: PolicyFile
    gang: Gang
    seen: Outlook
    care: descent.DescentCare
    greedy: bool = True
    inputs: Floats | None = None
    """What it saw when it was last asked [n_features]; None before, and where it was not fit to be asked."""

    @property
    def name(self) -> str:
        return f"{self.file.name}@{self.file.sha256[:12]}"

    def propose(self, observation: GangSeen, rng: np.random.Generator) -> PolicyProposal[int]:
        gang, seen = self.gang, self.seen
        low, _ = descent.reachable(seen, gang.jobs, self.care)
        found = features(gang.jobs, seen, low, self.care)
        if not np.isfinite(found).all():
            raise ValueError("a feature is no number: no window at the reference yet")
        self.inputs = found[0]
        chance = self.file.network.probabilities(found)[0]
        action = int(chance.argmax()) if self.greedy else int(rng.choice(len(chance), p=chance))
        home, lowest = int(gang.jobs.home[0]), int(gang.jobs.lowest[0])
        levels = [TOP if a == PROBE else int(np.clip(home + STEPS[a], lowest, TOP)) for a in range(len(ACTIONS))]
        support = () if self.greedy else tuple(zip(levels, map(float, chance), strict=True))
        return PolicyProposal(levels[action], ACTIONS[action], support)


@dataclass
class Highest:
    """The fallback and the counterfactual: the highest limit that the rack's budget leaves. The shield divides
    it."""

    name: str = "highest"

    def propose(self, observation: GangSeen, rng: np.random.Generator) -> PolicyProposal[int]:
        return PolicyProposal(TOP, "as high as the budget allows")
