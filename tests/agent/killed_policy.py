"""A process that does one thing to a learned policy and is killed with SIGKILL at the n-th statement that it sends
to the store, or at its n-th commit."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import event

from nightshift.agent.approvals.gate import Gate
from nightshift.agent.approvals.policy import ApprovalSettings, Person, Role
from nightshift.agent.approvals.policy_gate import PolicyGate
from nightshift.agent.clock import SteppedClock
from nightshift.agent.control.policy_watch import PolicyWatch
from nightshift.agent.store.incident_store import Store
from nightshift.agent.store.receipts import Receipts
from nightshift.controllers.decision import ControlDecision, Mode
from nightshift.controllers.outcome import Sample, Stretch
from nightshift.controllers.promotion import Criteria, PolicyHealth
from tests.controllers.test_promotion import world

KIND, SHA = "scheduling", "ab" * 32
ANN = Person("ann@example.org", frozenset({Role.APPROVER}), "console", 1_000.0)
CRITERIA = Criteria(looks=2)


def a_watch(url: str) -> tuple[Store, PolicyWatch]:
    clock = SteppedClock(1_000.0)
    store = Store(url, clock)
    gate = PolicyGate(Gate(store, ApprovalSettings(), clock), store, clock, "lab", CRITERIA)
    return store, PolicyWatch(gate, Receipts(store.database))


def a_receipt(number: int, at_s: float = 1_000.0, kind: str = KIND) -> ControlDecision:
    return ControlDecision(
        f"{number:016x}", kind, at_s, Mode.CANARY, f"job-{number}", f"job-{number}", "ppo@ab", "", {"waiting": 3.0},
        "hold", 0.5, (), "start", 0.5, "start", "fifo", {"slowdown": 1.02}, "narrow first",
    )  # fmt: skip


def climb(watch: PolicyWatch, to: Mode) -> None:
    gate = watch.gate
    gate.stand(KIND, "ppo@ab", SHA)
    while gate.standing(KIND).mode is not to:
        gate.look(KIND, world(1, 0.2, 400, 4), 0.0)
        plan = gate.propose(KIND).action
        assert gate.approve(plan.id, plan.plan_sha256, ANN).ok
        gate.carry_out(KIND, ANN.identity)


def prepare(url: str) -> None:
    """A policy in canary whose next step is approved, and a receipt whose outcome is open."""
    store, watch = a_watch(url)
    climb(watch, Mode.CANARY)
    watch.gate.look(KIND, world(1, 0.2, 400, 4), 0.0)
    plan = watch.gate.propose(KIND).action
    assert watch.gate.approve(plan.id, plan.plan_sha256, ANN).ok
    watch.receipts.keep(a_receipt(1), chance=0.5, treated=True)
    store.close()


def _outcome(watch: PolicyWatch) -> None:
    stretches = [Stretch(f"{1:016x}", "job-1", "job-1", 1_000.0), Stretch("next", "job-1", "job-1", 1_030.0)]
    watch.happened(KIND, 1_000.0, stretches[:1], [], [])
    watch.happened(KIND, 1_030.0, stretches[1:], [Sample("job-1", 1_000.0, 1_030.0, 1.0, 1.0, violated=True)], [])


DEEDS: dict[str, Callable[[PolicyWatch], object]] = {
    "budget event": lambda watch: watch.note(KIND, PolicyHealth(1, budget_events=1)),
    "lock-outs": lambda watch: watch.note(KIND, PolicyHealth(10, lockouts=5)),
    "violation in an outcome": _outcome,
    "taken back by a person": lambda watch: watch.gate.undo(KIND, ANN, "odd"),
    "approved step": lambda watch: watch.gate.carry_out_approved(KIND),
}


def do_and_die(url: str, deed: str, where: str) -> None:
    """`where`: `statement 3` or `commit 1` (just before it), or `commit 1 after`; `none`: does it all."""
    store, watch = a_watch(url)
    what, _, rest = where.partition(" ")
    number, _, after = rest.partition(" ")
    counts = itertools.count(1)

    def hit(*_: Any, **__: Any) -> None:
        if next(counts) == int(number):
            os.kill(os.getpid(), signal.SIGKILL)

    engine = store.database.engine
    if what == "statement":
        event.listen(engine, "before_cursor_execute", hit)
    elif what == "commit" and not after:
        event.listen(engine, "commit", hit)
    elif what == "commit":
        # the connection goes back to its pool once the commit is through
        event.listen(engine, "checkin", hit)
    DEEDS[deed](watch)
    store.close()


def file_url(path: Path) -> str:
    return f"sqlite:///{path}"
