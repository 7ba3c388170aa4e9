"""Gangs judged all at once are judged as if each were alone, whatever state one of them is in."""

from __future__ import annotations

import copy
from dataclasses import fields

import numpy as np
import pytest

from nightshift.agent.control.power_decision import Belief, Decided, ask, decide_gang
from nightshift.controllers.decision import Mode, Trust
from nightshift.controllers.power import descent
from nightshift.controllers.power.belief import CHUNK, TOP, Bank, Outlook
from nightshift.controllers.power.curves import LEVELS, on_levels, synthetic
from nightshift.controllers.power.gang import Gang, GangSeen, answers, look

BANK, CARE, LOWEST = Bank.make(128), descent.DescentCare(), 20
TRUST = Trust(Mode.ACTIVE, 1.0, 1.0)


def histories(seed: int, count: int, windows: int = 40) -> list[Gang]:
    """Gangs of made-up curves that the heuristic had for a while; some begun late, some that changed phase."""
    rng = np.random.default_rng(seed)
    time, draw = on_levels(synthetic(count, rng))
    gangs, begun = [Gang.start(LOWEST) for _ in range(count)], rng.integers(0, windows, count)
    for window in range(windows):
        mine = [row for row in range(count) if window >= begun[row]]
        taken = []
        for row in mine:
            level, noise = gangs[row].level, 1.0 + 0.01 * rng.normal(size=2)
            speed = (1.5 if window > 30 and row % 7 == 0 else 1.0) * noise[0] / time[row, level]
            taken.append((gangs[row], speed if rng.random() < 0.9 else np.nan, noise[1] * draw[row, level]))
        seen = look(taken, BANK, CARE)
        said = answers(list(zip((gang for gang, _, _ in taken), seen, strict=True)), CARE)
        for (gang, _, _), answer in zip(taken, said, strict=True):
            gang.level, gang.jobs.home[0], gang.jobs.given_up[0] = answer.level, answer.home, answer.given_up
    return gangs


def decided(gangs: list[Gang], seen: list[Outlook]) -> list[Decided]:
    beliefs: dict[str, Belief] = {}
    for number, (gang, outlook) in enumerate(zip(gangs, seen, strict=True)):
        observation = GangSeen(
            f"j{number}", f"j{number}", "power", float(LEVELS[gang.level]), 1.0, 1.0, 0.6, 1, float(LEVELS[LOWEST]),
            0.0, 0.0, CARE.budget, 0.5, 0.5, 50.0, False,
        )  # fmt: skip
        beliefs[f"j{number}"] = gang, outlook, observation, CARE
    said, rng = ask(beliefs), np.random.default_rng(0)
    return [decide_gang(job, belief, said[job], TRUST, None, rng, 0.0) for job, belief in beliefs.items()]


@pytest.mark.parametrize("seed", range(3))
def test_gangs_judged_together_are_judged_as_each_alone(seed: int) -> None:
    gangs = histories(seed, 60) * (CHUNK // 60 + 1)  # more than one chunk
    gangs = [copy.deepcopy(gang) for gang in gangs]
    alone, rng = copy.deepcopy(gangs), np.random.default_rng(seed)
    speeds, draws = rng.uniform(0.9, 1.1, len(gangs)), rng.uniform(0.4, 0.6, len(gangs))
    together = look(list(zip(gangs, speeds, draws, strict=True)), BANK, CARE)
    singly = [found for one in zip(alone, speeds, draws, strict=True) for found in look([one], BANK, CARE)]
    for one, other in zip(together, singly, strict=True):
        for field in fields(Outlook):
            # a gain is a difference of near equals, in single precision
            digits = {"gain_sd": 1e-3, "gain": 1e-4}.get(field.name, 2e-5)
            assert np.allclose(getattr(one, field.name), getattr(other, field.name), 1e-3, digits, equal_nan=True)
    said = answers(list(zip(gangs, singly, strict=True)), CARE)
    levels = [answer.level for answer in answers(list(zip(gangs, together, strict=True)), CARE)]
    differ = [level for level, answer in zip(levels, said, strict=True) if level != answer.level]
    assert len(differ) <= len(said) // 100, "but for what lies on an edge to the last digit"
    assert said == [found for one in zip(alone, singly, strict=True) for found in answers([one], CARE)]
    assert [gang.to_json() for gang in gangs] == [gang.to_json() for gang in alone], "asking changes nothing"
    assert len({answer.level for answer in said}) > 5


@pytest.mark.parametrize("how", ["no number", "no such level"])
def test_a_gang_in_a_bad_state_among_others_falls_back_alone(how: str) -> None:
    gangs = histories(5, 40)
    spared = copy.deepcopy(gangs)
    window = [(0.7, 0.5)] * len(gangs)
    if how == "no number":
        gangs[3].jobs.windows.speed[0, TOP] = np.nan
    else:
        gangs[3].jobs.lowest[0] = 10_000
    seen = look([(gang, *one) for gang, one in zip(gangs, window, strict=True)], BANK, CARE)
    made = decided(gangs, seen)
    whole = decided(spared, look([(gang, *one) for gang, one in zip(spared, window, strict=True)], BANK, CARE))
    assert made[3].level == TOP
    assert made[3].decision.policy == "highest"
    assert made[3].decision.fallback.startswith("descent: ValueError: ")
    for number, (one, other) in enumerate(zip(made, whole, strict=True)):
        if number != 3:
            assert (one.level, one.decision.fallback, one.decision.clips) == (other.level, "", other.decision.clips)


def test_a_belief_that_fails_is_that_gangs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A matrix that cannot be inverted fails all that are asked with it."""
    gangs = histories(6, 12)
    inverse = np.linalg.inv

    def singular(matrix: np.ndarray) -> np.ndarray:
        if np.isnan(matrix).any():
            raise np.linalg.LinAlgError("Singular matrix")
        return inverse(matrix)

    monkeypatch.setattr(np.linalg, "inv", singular)
    gangs[3].jobs.windows.count[0, TOP] = np.nan
    made = decided(gangs, look([(gang, 0.7, 0.5) for gang in gangs], BANK, CARE))
    assert [one.decision.job for one in made if one.decision.fallback] == ["j3"]
