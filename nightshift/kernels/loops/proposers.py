"""Who proposes schedules: an evolution of lists of actions, and a language model in a dialogue with the judge.

Neither is believed: each list goes to `trial.Court`, which checks dependences, compares outputs and takes the time.
The dialogue is ComPilot's (Merouani and others, arXiv 2511.00592): the model names actions, and the verdict and the
time are its next message.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import combinations

from nightshift.kernels.generate.llm import Chat
from nightshift.kernels.loops.nest import LoopNest, Statement
from nightshift.kernels.loops.schedule import ACTIONS, ActionError, Schedule, applied
from nightshift.kernels.loops.trial import Attempt, Court, actions_of

POPULATION = 6
NEAR = 1.02
"""Within this factor of another's time the longer list is kept: it may be the way to something."""
_SIZES = {"tile": (16, 32, 64, 128), "unroll": (2, 4, 8)}


def inner_loop(statement: Statement) -> str:
    """The loop that steps along rows of most arrays, and down columns of fewest."""

    def score(loop: str) -> int:
        total = 0
        for _, places in {*statement.reads, *statement.writes}:
            *outer, last = places.split(", ")
            total += (loop in last.split()) - 4 * any(loop in place.split() for place in outer)
        return total

    return max(statement.iterators, key=score)


def opening(nest: LoopNest) -> list[str]:
    """Actions that usually help: every statement in a nest of its own, along its rows."""
    groups: dict[int, list[str]] = {}
    for statement in nest.statements:
        groups.setdefault(statement.order[0], []).append(statement.name)
    moves = [f"distribute {','.join(names)} 0" for names in groups.values() if len(names) > 1]
    for statement in nest.statements:
        best = inner_loop(statement)
        moves += [
            f"interchange {statement.name} {best} {other}" for other in statement.iterators[-1:] if other != best
        ]
    return moves


def blocks(nest: LoopNest, schedule: Schedule) -> list[str]:
    """Actions that keep values in registers: every loop but the innermost steps by four, at most two of them."""
    found = []
    for statement in nest.statements:
        outer = schedule.orders[statement.name].loops[:-1][-2:]
        if outer:
            found.append(f"unroll {statement.name} " + " ".join(f"{loop}:4" for loop in outer))
    return found


def moves(nest: LoopNest, schedule: Schedule, rng: random.Random, threads: int) -> str:
    """One drawn action on a schedule; not all are legal."""
    statement = rng.choice([one for one in nest.statements if len(one.loops) > 1] or list(nest.statements))
    order = schedule.orders[statement.name]
    loops = [loop for loop in order.loops if not loop.endswith("_u")]
    plain = [loop for loop in loops if not loop.endswith("_t")]
    names = [one.name for one in nest.statements]
    kinds = ["unroll"] * 5 + ["interchange"] * 3 + ["tile"] * 2 + ["vectorise", "distribute", "fuse"]
    kind = rng.choice(kinds + ["parallelise"] * (2 if threads > 1 else 0))
    if kind in _SIZES:
        free = [loop for loop in plain if f"{loop}_{kind[0]}" not in order.loops] or plain
        chosen = rng.sample(free, rng.randint(1, min(2, len(free))))
        return f"{kind} {statement.name} " + " ".join(f"{loop}:{rng.choice(_SIZES[kind])}" for loop in chosen)
    if kind == "interchange" and len(loops) > 1:
        return f"interchange {statement.name} {' '.join(rng.sample(loops, 2))}"
    if kind in ("distribute", "fuse") and len(names) > 1:
        pair = sorted(rng.sample(range(len(names)), 2))
        return f"{kind} {','.join(names[i] for i in pair)} {rng.randint(0, 2)}"
    return f"{'parallelise' if kind == 'parallelise' else 'vectorise'} {statement.name} {rng.choice(loops)}"


def _legal(court: Court, candidates: Sequence[str]) -> list[str]:
    """Of candidate actions, in order, those that keep every dependence together with what came before."""
    from nightshift.kernels.loops.dependence import fault_of

    chosen: list[str] = []
    for action in candidates:
        try:
            if not fault_of(court.nest, applied(court.nest, [*chosen, action])):
                chosen.append(action)
        except ActionError:
            continue
    return chosen


def _child(court: Court, parent: Sequence[str], other: Sequence[str], rng: random.Random) -> list[str]:
    """A parent with an action more, one fewer, or with the end of another's list."""
    actions, way = list(parent), rng.random()
    if way < 0.15 and actions:
        actions.pop(rng.randrange(len(actions)))
    elif way < 0.25 and other:
        actions = _legal(court, [*actions, *(action for action in other if action not in actions)])
    else:
        for _ in range(rng.randint(1, 2)):
            try:
                actions.append(moves(court.nest, applied(court.nest, actions), rng, court.threads))
            except ActionError:
                return actions
    return actions


def evolve(court: Court, trials: int, seed: int, beginning: Sequence[str] = ()) -> list[Attempt]:
    """Attempts in the order in which they were made; `trials` of them were timed, or three times as many judged.
    beginning: a list of actions to begin with, such as the best one of another number of threads."""
    rng = random.Random(seed)
    start = _legal(court, opening(court.nest))
    threads = [f"parallelise {one.name} {one.iterators[0]}" for one in court.nest.statements if one.loops]
    wide = [_legal(court, [*begin, *threads]) for begin in (beginning, start) if court.threads > 1]
    fewer = [_legal(court, list(part)) for part in combinations(start, max(0, len(start) - 1))][:3]
    blocked = [
        _legal(court, [*begin, *blocks(court.nest, applied(court.nest, begin))]) for begin in (start, [], *wide)
    ]
    queue = [[], list(beginning), start, *blocked, *wide, *fewer]
    made: list[Attempt] = []
    seen: set[tuple[str, ...]] = set()
    alive: list[Attempt] = []
    while sum(one.status == "timed" for one in made) < trials and len(made) < 3 * trials:
        if queue:
            actions = queue.pop(0)
        elif alive:
            parent, other = (alive[min(rng.randrange(len(alive)), rng.randrange(len(alive)))] for _ in range(2))
            actions = _child(court, parent.actions, other.actions, rng)
        else:
            break
        if tuple(actions) in seen:
            if rng.random() < 0.01:
                break
            continue
        seen.add(tuple(actions))
        attempt = court.attempt(actions)
        made.append(attempt)
        if attempt.status == "timed":
            alive = sorted([*alive, attempt], key=lambda one: one.seconds * NEAR ** -len(one.actions))[:POPULATION]
    return made


def best_of(attempts: Sequence[Attempt]) -> Attempt | None:
    """The fastest that was timed; None where none was."""
    return min((one for one in attempts if one.status == "timed"), key=lambda one: one.seconds, default=None)


RULES = """You schedule the loops of one C function for one CPU. You never write C: you name actions, one a line.
{actions}
STATEMENTS are names apart by commas. A tiled loop i is then named i_t (over tiles) and i (inside a tile).
A judge applies your list to the original text, from its first line. It refuses a list that breaks a dependence,
compares every array to the bit, and takes the time. Reply with the whole list between two lines of three backticks.
You get the verdict and the time back, and may then send a better list. {threads} thread(s) run the function."""


def question(nest: LoopNest, threads: int) -> list[tuple[str, str]]:
    """What a dialogue begins with: (role, text) pairs."""
    rules = RULES.format(actions="\n".join(f"- {form}" for form, _ in ACTIONS.values()), threads=threads)
    rows = [f"{one.name}: loops {', '.join(one.iterators)}: {one.text}" for one in nest.statements]
    return [("system", rules), ("user", f"{nest.source}\nStatements:\n" + "\n".join(rows))]


def converse(court: Court, chat: Chat, turns: int) -> list[Attempt]:
    """Attempts of a language model, each after the verdict on the one before. Raises what the chat raises."""
    said = question(court.nest, court.threads)
    made: list[Attempt] = []
    for _ in range(turns):
        reply = chat(said, 0.2)
        attempt = court.attempt(actions_of(reply.text))
        made.append(attempt)
        best = best_of(made)
        text = attempt.text()
        if best is not None and best is not attempt:
            text += f" Your best list so far is {best.speedup:.2f} times as fast as the C text."
        said = [*said, ("assistant", reply.text), ("user", text)]
    return made
