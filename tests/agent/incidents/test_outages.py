"""The API server away in each phase of an action, in each way and for up to ten minutes: the action waits, ends as
it was planned, and nothing is done twice. `benchmarks/control_plane.py` runs every cell."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from nightshift.agent.store.incident import Cause, IncidentState
from nightshift.controllers.action import ActionKind
from tests.agent.incidents import test_fault_matrix as matrix
from tests.agent.incidents.test_fault_matrix import Cell, done_once
from tests.agent.incidents.test_vanished_node import on_this_machine, open_intents, reached
from tests.kubernetes_api.cluster import Cluster, transport_of
from tests.kubernetes_api.faults import Fault

FAULTS: dict[str, Fault | None] = {
    "refused": None,
    "time-out": Fault.SLOW,
    "401": Fault.EXPIRED_TOKEN,
    "403": Fault.DENIED,
    "5xx": Fault.UNAVAILABLE,
    "half-open": None,
}
LASTING_S = (1.0, 10.0, 75.0, 600.0)
PHASES = {
    "cordoned": ActionKind.REBOOT_NODE,
    "suspended": ActionKind.REBOOT_NODE,
    "releasing": ActionKind.RESET_GPU,
    "rebooting": ActionKind.REBOOT_NODE,
    "check": ActionKind.REBOOT_NODE,
}
_TESTED = {"approved": ActionKind.REBOOT_NODE, **PHASES}
OUTAGES = list(itertools.product(FAULTS, LASTING_S, PHASES))
COVER = [
    (fault, LASTING_S[(row + column) % len(LASTING_S)], phase)
    for row, fault in enumerate(FAULTS)
    for column, phase in enumerate(_TESTED)
]
"""Each fault in each phase, and each of both for each time."""
QUICK = [(fault, 600.0, phase) for fault, phase in zip(FAULTS, itertools.cycle(_TESTED), strict=False)]
ANSWER_S = 0.1


@contextmanager
def away(cell: Cell, fault: str) -> Iterator[Callable[[], None]]:
    """Lets no call of ours through, until what it gives is called."""
    server, ours, timeout_s = cell.cluster.server, cell.kube._transport, cell.kube._timeout_s
    assert server is not None
    with ExitStack() as stack:
        if (planned := FAULTS[fault]) is not None:
            server.faults.slow_s = 2 * ANSWER_S
            server.faults.plan(planned, 10**6)
        else:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))  # which accepts nobody
            elsewhere = server.kubeconfig("ours")
            elsewhere["clusters"][0]["cluster"]["server"] = f"http://127.0.0.1:{listener.getsockname()[1]}"
            cell.kube._transport = transport_of(elsewhere)
            if fault == "refused":
                listener.close()
        cell.kube._timeout_s = ANSWER_S

        def back() -> None:
            server.faults.clear()
            cell.kube._transport, cell.kube._timeout_s = ours, timeout_s

        yield back
        back()


@dataclass
class Outage:
    """How one went: how often the incident was escalated, whether the action ended half-way or came twice, and how
    long after the outage it was done (s)."""

    escalated: int
    half_done: int
    twice: int
    done_after_s: float


def outage(cell: Cell, fault: str, lasting_s: float, phase: str) -> Outage:
    """Runs one cell. Raises AssertionError where the phase is never reached or the incident never ends."""
    server, began_s, over_s = cell.cluster.server, list[float](), list[float]()
    assert server is not None
    on_this_machine(cell, gang=True)
    with ExitStack() as stack:
        back: list[Callable[[], None]] = []

        def look(_: int) -> None:
            if not began_s and reached(cell, phase):
                began_s.append(cell.clock.now_s())
                back.append(stack.enter_context(away(cell, fault)))
                cell.round_s = max(cell.round_s, lasting_s / 20)
            elif began_s and not over_s and cell.clock.now_s() >= began_s[0] + lasting_s:
                back[0]()
                over_s.append(cell.clock.now_s())
                cell.round_s = Cell.round_s

        incident = cell.run(look)
    assert over_s, f"never {phase}, or over before the outage was"
    escalated = [step for step in incident.history if step.after is IncidentState.ESCALATED]
    done_s = [step.at_s for step in incident.history if step.cause == Cause.ACTION_DONE]
    half = bool(escalated) or bool(open_intents(cell)) or not cell.is_done()
    twice = False
    try:
        done_once(cell)
    except AssertionError:
        twice = not half
    return Outage(len(escalated), int(half), int(twice), done_s[0] - over_s[0] if done_s else float("nan"))


@pytest.fixture
def cell(
    cluster: Cluster, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Cell]:
    if cluster.server is None:
        pytest.skip("faults are planned on our own API server")
    asked = SimpleNamespace(param=(_TESTED[request.param[2]], request.param[0]))
    made = matrix.cell.__wrapped__(cluster, tmp_path, asked, monkeypatch)  # type: ignore[attr-defined]
    yield next(made)
    with pytest.raises(StopIteration):
        next(made)


def goes(cell: Cell, request: pytest.FixtureRequest) -> None:
    found = outage(cell, *request.node.callspec.params["cell"])
    assert (found.escalated, found.half_done, found.twice) == (0, 0, 0)
    assert found.done_after_s <= 300.0


@pytest.mark.parametrize("cell", QUICK, indirect=True, ids=str)
def test_ten_minutes_without_an_api_server_end_no_action(cell: Cell, request: pytest.FixtureRequest) -> None:
    goes(cell, request)


@pytest.mark.full
@pytest.mark.parametrize("cell", COVER, indirect=True, ids=str)
def test_an_outage_delays_an_action_and_no_more(cell: Cell, request: pytest.FixtureRequest) -> None:
    goes(cell, request)
