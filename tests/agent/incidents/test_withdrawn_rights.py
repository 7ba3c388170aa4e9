"""A right that is withdrawn at any moment of a mitigation: nothing is left stopped or out of use without a word."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from kubernetes import client

from nightshift.agent.store.incident import IncidentState
from nightshift.agent.store.intents import commitments
from nightshift.collectors.subject import SubjectKind
from nightshift.controllers.action import ActionKind, BlastRadius
from tests.agent.incidents import test_fault_matrix as matrix
from tests.agent.incidents.test_fault_matrix import Cell, name_of
from tests.controllers.kube_scenes import job
from tests.kubernetes_api.cluster import Cluster
from tests.kubernetes_api.faults import Fault

K, A, S = SubjectKind, ActionKind, IncidentState
KINDS = (A.CORDON, A.DRAIN, A.RESTART_JOB, A.RESET_GPU, A.REBOOT_NODE)
WRITES = range(9)
CELLS = list(itertools.product(KINDS, WRITES))


@pytest.fixture
def cell(
    cluster: Cluster, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Cell]:
    """A cell of the matrix; repairs have a gang to stop, too."""
    if cluster.server is None:
        pytest.skip("faults are planned on our own API server")
    made = matrix.cell.__wrapped__(cluster, tmp_path, request, monkeypatch)  # type: ignore[attr-defined]
    found = next(made)
    if found.kind in (A.RESET_GPU, A.REBOOT_NODE):
        found.jobs = (job(cluster, "gang", [found.node, cluster.node()]),)
        plan = found.world.action
        reach = BlastRadius(jobs=found.jobs, nodes=(found.node,))
        found.world.action = lambda incident: replace(plan(incident), blast_radius=reach)
    yield found
    with pytest.raises(StopIteration):
        next(made)


def forbid(cell: Cell, nth: int, *, lasting: bool) -> None:
    """The nth write, or every one from it on; reads and reviews go on."""
    assert cell.cluster.server is not None
    writes = itertools.count()

    def is_it(method: str, path: str) -> bool:
        number = -1 if method == "GET" else next(writes)
        return number >= nth if lasting else number == nth

    cell.cluster.server.faults.plan(Fault.FORBIDDEN, 10_000, is_it)


def told(cell: Cell, nth: int, *, lasting: bool) -> None:
    forbid(cell, nth, lasting=lasting)
    cell.round_s = 30.0 if lasting else cell.round_s
    incident = cell.run(lambda round_: None, rounds=700)  # a right that stays away is waited for an hour
    last, stopped = incident.history[-1], []
    for name in cell.jobs:
        found = client.BatchV1Api(cell.cluster.api).read_namespaced_job(
            name.partition("/")[2], cell.cluster.namespace
        )
        stopped += [name] if found.spec.suspend else []
    assert lasting or not stopped, "what was forbidden once is tried again"
    assert all(name in last.note for name in stopped), last.note
    cordoned = bool(cell.cluster.core.read_node(cell.node).spec.unschedulable)
    assert not cordoned or "cordon" in last.note, last.note
    if incident.state is S.ESCALATED and (stopped or cordoned):
        assert last.cause in ("containment_kept", "outcome_unknown"), "it does not end by itself"
        with cell.world.store.database.read() as connection:
            standing = [item.action.kind for item in commitments(connection) if item.released_s is None]
        assert standing == [cell.kind], "the guard counts it"


@pytest.mark.parametrize("cell", [(A.DRAIN, 4), (A.RESTART_JOB, 1), (A.RESET_GPU, 7)], indirect=True, ids=name_of)
def test_what_is_forbidden_in_the_middle_is_told(cell: Cell, request: pytest.FixtureRequest) -> None:
    """A few cells of the matrix below."""
    told(cell, request.node.callspec.params["cell"][1], lasting=False)


@pytest.mark.full
@pytest.mark.parametrize("lasting", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize("cell", CELLS, indirect=True, ids=name_of)
def test_whatever_is_forbidden_in_the_middle_is_told(
    cell: Cell, lasting: bool, request: pytest.FixtureRequest
) -> None:
    """Whichever write of whichever mitigation: a person is told what is stopped and what is out of use, and it does
    not end by itself."""
    told(cell, request.node.callspec.params["cell"][1], lasting=lasting)
