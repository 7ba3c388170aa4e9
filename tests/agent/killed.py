"""A daemon that drives one incident through a scenario and is killed with SIGKILL at a named place.

A scenario is what happens outside (signals, clicks, time) as a function of the incident's state alone, so that the
same script goes on after a restart. Its causes are the whole history that must come out, killed or not.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from nightshift.agent.clock import SteppedClock
from nightshift.agent.incidents import stages
from nightshift.agent.incidents.lifecycle import Lifecycle
from nightshift.agent.incidents.stages import LifecycleSettings
from nightshift.agent.store.incident import REMARKS, TRANSITIONS, Cause, Incident, IncidentState
from nightshift.agent.store.incident_store import IncidentMove
from nightshift.agent.store.intents import store_intent
from nightshift.controllers.action import Action, ActionKind, ActionProposal, Precondition
from nightshift.controllers.actuators.simulated import Mishap
from nightshift.detectors.base import Fault, State
from tests.agent.incidents import NODE, a_diagnosis, a_finding, an_action
from tests.agent.world import ANN, BOB, UNDOABLE, World

_S, _C = IncidentState, Cause
Arrow = tuple[IncidentState | None, str]


class FileClock(SteppedClock):
    """A clock whose time survives the process."""

    def __init__(self, path: Path) -> None:
        super().__init__(float(path.read_text()) if path.exists() else 1_000.0)
        self._path = path

    def advance(self, seconds: float) -> None:
        self.wait_until(self.now_s() + seconds)
        waiting = self._path.with_suffix(".new")
        waiting.write_text(repr(self.now_s()))
        waiting.replace(self._path)


@dataclass(frozen=True)
class Scenario:
    """`events`: what happens when the incident rests in a state for the first, second, … time."""

    causes: tuple[str, ...]
    events: Mapping[IncidentState, Callable[[World, Incident], object]]
    prepare: Callable[[World], object] = field(default=lambda world: None)
    action: Callable[[World, Incident], Action] | None = None
    plans: bool = True
    gives_back: bool = False
    effects: tuple[bool, ...] = ()
    """`undo` of each effect that the world must show in the end."""

    def arrows(self) -> list[Arrow]:
        """The transitions in order; the first has no state before it."""
        found: list[Arrow] = [(None, "opened")]
        state = _S.OPEN
        for cause in self.causes[1:]:
            found.append((state, cause))
            state = TRANSITIONS[state, Cause(cause)]
        return found

    @property
    def end(self) -> IncidentState:
        state = _S.OPEN
        for cause in self.causes[1:]:
            state = TRANSITIONS[state, Cause(cause)]
        return state


def _approve(world: World, incident: Incident) -> None:
    assert incident.action is not None
    world.gate.approve(incident.id, incident.action.plan_sha256, ANN)


def _reject(world: World, incident: Incident) -> None:
    assert incident.action is not None
    world.gate.reject(incident.id, incident.action.plan_sha256, BOB, "the owner repairs it")


def _clear(world: World, incident: Incident) -> None:
    for item in incident.findings:
        world.store.update_finding(incident.id, a_finding(item.finding.fault, item.finding.subject, State.CLEAR))
    _pass(11)(world, incident)


def _pass(seconds: float) -> Callable[[World, Incident], None]:
    def advance(world: World, incident: Incident) -> None:
        assert isinstance(world.clock, FileClock)
        world.clock.advance(seconds)

    return advance


def _relapse(world: World, incident: Incident) -> None:
    world.store.update_finding(incident.id, a_finding())


def _news(world: World, incident: Incident) -> None:
    world.store.attach(incident.id, a_finding(Fault.XID, NODE))


def _close(world: World, incident: Incident) -> None:
    world.gate.close(incident.id, ANN, "known")


def _in_turn(*events: Callable[[World, Incident], object]) -> Callable[[World, Incident], object]:
    """A different event each time the state is reached, counted in the stored history, which survives a kill."""

    def choose(world: World, incident: Incident) -> object:
        visits = sum(step.after is incident.state for step in incident.history)
        return events[min(visits, len(events)) - 1](world, incident)

    return choose


def _uncordon(world: World, incident: Incident) -> Action:
    return an_action(f"{incident.id}-{incident.attempt + 1}", ActionKind.UNCORDON, NODE, undo=UNDOABLE)


def _cordon(world: World, incident: Incident) -> Action:
    return an_action(f"{incident.id}-{incident.attempt + 1}", ActionKind.CORDON, NODE, undo=UNDOABLE)


def _on_uncordoned(world: World, incident: Incident) -> Action:
    """A plan that rests on a fact as it was read when the plan was made."""
    rests_on = Precondition(NODE, "cordoned", world.cluster.facts(NODE)["cordoned"])
    expires_s = world.clock.now_s() + 60
    return an_action(f"{incident.id}-{incident.attempt + 1}", preconditions=(rests_on,), expires_at_s=expires_s)


def _change_and_approve(world: World, incident: Incident) -> None:
    world.cluster.add(NODE, cordoned="true")
    _approve(world, incident)


_BEGIN = ("opened", "diagnosis_stored", "plan_proposed")
_ACTED = (*_BEGIN, "approved", "intent_stored", "action_done")
SCENARIOS: Mapping[str, Scenario] = {
    "repaired": Scenario(
        (*_ACTED, "confirmed"),
        {_S.AWAITING_APPROVAL: _approve, _S.CONFIRMING: _clear},
        effects=(False,),
    ),
    "taken back": Scenario(
        (*_ACTED, "not_confirmed", "undone"),
        {_S.AWAITING_APPROVAL: _approve, _S.CONFIRMING: _pass(101)},
        action=_uncordon,
        effects=(False, True),
    ),
    "cannot be undone": Scenario(
        (*_ACTED, "not_confirmed", "action_failed", "cleared_by_itself"),
        {_S.AWAITING_APPROVAL: _approve, _S.CONFIRMING: _pass(101), _S.ESCALATED: _clear},
        effects=(False,),
    ),
    "contained": Scenario(
        (*_ACTED, "containment_kept", "closed_by_person"),
        {_S.AWAITING_APPROVAL: _approve, _S.CONFIRMING: _pass(101), _S.ESCALATED: _close},
        action=_cordon,
        effects=(False,),
    ),
    "given back": Scenario(
        (*_ACTED, "return_due", *_ACTED[2:], "confirmed"),
        {_S.AWAITING_APPROVAL: _approve, _S.CONFIRMING: _clear},
        action=_cordon,
        gives_back=True,
        effects=(False, False),
    ),
    "refused by the world": Scenario(
        (*_BEGIN, "approved", "intent_stored", "action_failed"),
        {_S.AWAITING_APPROVAL: _approve},
        prepare=lambda world: world.cluster.plan_mishap(Mishap.REFUSE, times=9),
    ),
    "unknown": Scenario(
        (*_BEGIN, "approved", "intent_stored", "outcome_unknown"),
        {_S.AWAITING_APPROVAL: _approve},
        prepare=lambda world: world.cluster.plan_mishap(Mishap.UNKNOWN),
        effects=(False,),
    ),
    "undo unknown": Scenario(
        (*_ACTED, "not_confirmed", "outcome_unknown"),
        {_S.AWAITING_APPROVAL: _approve, _S.CONFIRMING: _pass(101)},
        action=_uncordon,
        prepare=lambda world: (
            world.cluster.plan_mishap(Mishap.UNKNOWN, method="read", times=99)
            or world.cluster.plan_mishap(Mishap.BUSY, method="undo", times=99)
        ),
        effects=(False,),
    ),
    "expired, then the world changed, then cleared": Scenario(
        (*_BEGIN, "expired", "plan_proposed", "approved", "world_changed", "plan_proposed", "cleared_by_itself"),
        {_S.AWAITING_APPROVAL: _in_turn(_pass(61), _change_and_approve, _clear)},
        action=_on_uncordoned,
    ),
    "rejected, then news": Scenario(
        (*_BEGIN, "rejected", "new_evidence", "diagnosis_stored", "plan_proposed", "closed_by_person"),
        {_S.AWAITING_APPROVAL: _in_turn(_reject, _close), _S.MONITORING: _news},
    ),
    "news while a plan waits": Scenario(
        (*_BEGIN, "new_evidence", "diagnosis_stored", "plan_proposed", "closed_by_person"),
        {_S.AWAITING_APPROVAL: _in_turn(_news, _close)},
    ),
    "watched, cleared, relapsed": Scenario(
        ("opened", "diagnosis_stored", "no_plan", "cleared_by_itself", "relapsed", "diagnosis_stored", "no_plan"),
        {_S.MONITORING: _in_turn(_clear, lambda world, incident: None), _S.RESOLVED: _relapse},
        plans=False,
    ),
}


def drive(url: str, folder: str, scenario_name: str, kill_at: str) -> None:
    """Runs in a process of its own: goes on from whatever is stored until the scenario's end."""
    scenario, home = SCENARIOS[scenario_name], Path(folder)
    stages.MAX_TRIES = 1  # whatever fails is seen at once

    def fault_point(where: str) -> None:
        if where == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    world = World(
        url,
        home,
        FileClock(home / "now"),
        fault_point=fault_point,
        settings=LifecycleSettings(quiet_s=10, confirm_timeout_s=100),
        lease_s=1.5,
        gives_back=scenario.gives_back,
    )
    if scenario.action is not None:
        world.action = partial(scenario.action, world)
    if not (home / "prepared").exists():
        scenario.prepare(world)
        if kill_at.startswith("world "):
            _, method, mode, *kind = kill_at.split()
            world.cluster.plan_mishap(Mishap(mode), method=method, kind=ActionKind(kind[0]) if kind else None)
        (home / "prepared").touch()
    plan = None if scenario.plans else (lambda incident: ActionProposal(None, "watched only"))
    go_through(world, scenario, world.lifecycle(**({"plan": plan} if plan else {})))


def go_through(world: World, scenario: Scenario, lifecycle: Lifecycle) -> None:
    """Until all of the scenario's history has happened."""
    lifecycle.start()
    if not world.store.incidents():
        world.store.open_incident("leak", [a_finding()])
    while True:
        assert lifecycle.wait_idle(), f"not idle: {world.store.incidents()}"
        incident = world.store.incident(world.store.incidents()[0].id)
        if sum(step.cause not in REMARKS for step in incident.history) >= len(scenario.causes):
            break
        # what acts waits for a world that gives no answer, and looks again a little later
        scenario.events.get(incident.state, _pass(6))(world, incident)
    lifecycle.close()
    world.store.close()


_CARRIED_ON = (_C.RESUMED, _C.UNDO_REQUESTED)
"""What a person decides of an action whose outcome is unknown: no way there begins without one."""


def place(world: World, state: IncidentState, before: Cause) -> None:
    """Opens INC-1 and moves it to a state by the shortest way through the table that may be left for the cause
    `before`, without a lifecycle."""
    if before in _CARRIED_ON:
        place(world, _S.ACTING, _C.OUTCOME_UNKNOWN)
        move(world, _C.OUTCOME_UNKNOWN)
        return
    world.store.open_incident("leak", [a_finding()])
    ways: dict[IncidentState, list[Cause]] = {_S.OPEN: []}
    order = [_S.OPEN]
    for at in order:  # grows while it is walked: breadth first
        for (start, cause), after in TRANSITIONS.items():
            if start is at and after not in ways and cause not in _CARRIED_ON:
                ways[after] = [*ways[at], cause]
                order.append(after)
    for cause in ways[state]:
        move(world, cause)


def move(world: World, cause: Cause) -> None:
    """Moves INC-1 for a cause with what belongs to it: a diagnosis, a plan or an intent."""
    store = world.store
    incident = store.incident("INC-1")
    if cause is _C.DIAGNOSIS_STORED:
        store.save_diagnosis(incident, a_diagnosis(), by="test")
    elif cause is _C.PLAN_PROPOSED:
        store.save_plan(incident, world.action(incident), "test", by="test")
    elif cause is _C.INTENT_STORED:
        assert incident.action is not None
        intend = partial(store_intent, action=incident.action, phase="act", now_s=1_000.0, runner="test")
        store.change("INC-1", IncidentMove(cause, "test", "", incident.version), intend)
    elif cause is _C.RESUMED:
        assert world.gate.carry_on("INC-1", ANN).ok
    else:
        store.move("INC-1", cause, "test", "", incident.version)


def move_and_die(url: str, folder: str, state: str, cause: str, when: str) -> None:
    """Runs in a process of its own: is killed in the transaction of one move, or right after it."""
    armed: list[str] = []

    def fault_point(where: str) -> None:
        if where in armed:
            os.kill(os.getpid(), signal.SIGKILL)

    world = World(url, Path(folder), FileClock(Path(folder) / "now"), fault_point=fault_point)
    place(world, IncidentState(state), Cause(cause))
    armed.append(f"{when} {state} {cause}")
    move(world, Cause(cause))


def go_on(url: str, folder: str) -> None:
    """Runs in a process of its own: a daemon starts on what is stored and works until nothing is due."""
    world = World(url, Path(folder), FileClock(Path(folder) / "now"), lease_s=1.5)
    lifecycle = world.lifecycle()
    lifecycle.start()
    assert lifecycle.wait_idle()
    lifecycle.close()
    world.store.close()
