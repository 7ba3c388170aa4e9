"""A job's recorded loop of kernels, through the daemon's own code again: trace, search, approval, job, demotion.

`benchmarks/kernels_daemon_loop.py` recorded it. Trace, certificates and the job's lines are the recording's; people
click at the same gate.
"""

from __future__ import annotations

import base64
import gzip
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.kernels_daemon_loop import text_of
from nightshift.agent.approvals.gate import Gate
from nightshift.agent.approvals.kernel_gate import KernelGate, KernelProposal, ProposalState
from nightshift.agent.approvals.policy import ApprovalSettings, Person, Role
from nightshift.agent.kernels.delivery import standings
from nightshift.agent.kernels.gain import gains
from nightshift.agent.kernels.runner import KernelRunner, ledger_of
from nightshift.agent.kernels.watch import TURN_S, KernelWatch
from nightshift.agent.notify.slack.proposals import card
from nightshift.agent.store.incident_store import Store
from nightshift.collectors.frame import Instant, LogRecord
from nightshift.collectors.seal import trusted_keys
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.training.kernel_use import read_use
from nightshift.collectors.training.kineto import KinetoCollector
from nightshift.controllers.action import Action, ActionKind, ActionOutcome, OutcomeStatus
from nightshift.controllers.actuators.kube_kernel_jobs import SearchStatus, arguments
from nightshift.kernels.apply.bundle import FILE
from nightshift.kernels.certification.envelope import certificate_sha256
from nightshift.kernels.certification.evidence import JobEnvironment
from nightshift.kernels.certification.registry import CertificateState, Registry
from nightshift.kernels.loop import progress_lines
from nightshift.kernels.profile.trigger import Settings
from tests.agent.incidents import ManualClock

RECORDINGS = Path(__file__).parents[2] / "recordings"
ANN = Person("ann@example.org", frozenset({Role.APPROVER}), "console", 1_000.0)
RANK = Subject(SubjectKind.RANK, "lab/llama#0")
GPU_S = 120.0


class RecordedCluster:
    """A cluster that has run the search already. Fulfils `agent.kernels.runner.SearchActuator`."""

    start_within_s = 3600.0

    def __init__(self, log: str) -> None:
        self._log, self._released = log, False
        self.asked: list[str] = []

    def prepare(self, action: Action) -> str:
        self.asked = arguments(action)
        return "uid-1"

    def release(self, action: Action, uid: str) -> None:
        self._released = True

    def look(self, action: Action, uid: str = "") -> SearchStatus:
        return SearchStatus(True, self._released, ended="Complete" if self._released else "", gpu_s=GPU_S)

    def log(self, action: Action) -> str:
        return self._log

    def undo(self, action: Action) -> ActionOutcome:
        return ActionOutcome(OutcomeStatus.ALREADY_DONE, "", 0.0)


class Replay:
    """The daemon's parts, with the recording's key, namespace and GPU-hours."""

    def __init__(self, folder: Path, clock: ManualClock, recording: dict[str, Any]) -> None:
        self.clock, self.recording, self.folder = clock, recording, folder
        key = folder / "signer.pub"
        key.write_text(recording["public_key"] + "\n")
        hours = recording["search_gpu_hours"]
        self.settings = Settings(
            namespaces=("lab",), search_gpu_hours=hours, weekly_gpu_hours=4 * hours, trusted_keys=(key,),
            registry=folder / "registry",
        )  # fmt: skip
        self.store = Store(f"sqlite:///{folder}/s.sqlite", clock)
        self.gate = KernelGate(Gate(self.store, ApprovalSettings(), clock), self.store, clock)
        self.watch = KernelWatch(self.settings, self.gate, Inventory("c"), clock, "c")
        self.registry = Registry(folder / "registry", trusted_keys((key,)))

    def looks(self, *records: LogRecord) -> None:
        self.watch.look(records)
        self.watch.close()
        self.clock.advance(TURN_S)

    def starts(self, name: str) -> list[str]:
        """One start of the job: its lines reach the daemon, those after a demotion in another look."""
        (lines,) = (one["lines"] for one in self.recording["job_lines"] if one["start"] == name)
        late = next((n for n, line in enumerate(lines) if "demoted in the registry" in line), len(lines))
        for part in (lines[:late], lines[late:]):
            self.looks(*(LogRecord(Instant(0.0), "training_logs x", RANK, text, 0) for text in part))
        return list(lines)

    def waiting(self, kind: ActionKind) -> list[KernelProposal]:
        return [one for one in self.gate.proposals()
                if one.action.kind is kind and one.state is ProposalState.WAITING]  # fmt: skip

    def approve(self, proposal: KernelProposal) -> None:
        assert self.gate.approve(proposal.id, proposal.action.plan_sha256, ANN).ok

    def head(self, proposal: KernelProposal) -> tuple[str, ...]:
        """What its message in Slack begins with: what, and why."""
        message = card(proposal, self.gate.gate, self.clock.now_s(), "")
        return tuple(text_of({"blocks": list(message.blocks)})[:2])

    def file(self) -> str:
        return (self.registry.folder / FILE).read_text()


@pytest.fixture(scope="module")
def recording() -> dict[str, Any]:
    found = json.loads(gzip.decompress((RECORDINGS / "kernel_loop/loop.json.gz").read_bytes()))
    return dict(found)


@pytest.fixture
def replay(
    recording: dict[str, Any], tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Replay]:
    monkeypatch.setattr("nightshift.collectors.training.kineto.SETTLE_S", 0.0)
    # the judge of that day is the present one of the recording: a newer one demotes, as test_kernel_drift shows
    *others, _, jobs = JobEnvironment.__init__.__defaults__ or ()
    judge = recording["certificates"][0]["judge"]
    monkeypatch.setattr(JobEnvironment.__init__, "__defaults__", (*others, judge, jobs))
    made = Replay(tmp_path, clock, recording)
    yield made
    made.store.close()


def changed(line: str) -> str:
    """A certificate's line with one figure of its payload changed."""
    (envelope,) = progress_lines.hear(line).certificates
    payload = json.loads(base64.b64decode(str(envelope["payload"])))
    payload["predicate"]["verdict"]["status"] = "faster"
    payload["predicate"]["commit"] = "0" * 40
    forged = {**envelope, "payload": base64.b64encode(json.dumps(payload).encode()).decode()}
    return progress_lines.certificate("forged", forged)


def test_the_recorded_chain_holds_link_by_link(replay: Replay, recording: dict[str, Any]) -> None:
    replay.looks()
    traces = replay.folder / "profiles"
    (traces / "lab").mkdir(parents=True)
    (traces / "lab/llama-0_1.pt.trace.json.gz").write_bytes((RECORDINGS / "kernel_loop/trace.json.gz").read_bytes())
    collector = KinetoCollector(KinetoCollector.Settings(path=traces))
    replay.looks(*collector.collect(time.time(), Inventory(), 60.0).logs)
    (search,) = replay.waiting(ActionKind.KERNEL_JOB)
    assert search.action.blast_radius.cost_gpu_hours == recording["search_gpu_hours"]
    posted = [tuple(message[:2]) for message in recording["messages"]]
    assert replay.head(search) in posted, "the daemon sees the same kernel, for the same reason"

    replay.approve(search)
    certificates = [line for line in recording["pod_log"] if progress_lines.hear(line).certificates]
    cluster = RecordedCluster("\n".join([changed(certificates[0]), *recording["pod_log"]]))
    runner = KernelRunner(replay.settings, replay.gate, cluster, "c", lambda: True)
    for _ in range(3):
        runner.turn()
    (ended,) = replay.gate.searches()
    brought = [certificate_sha256(one) for line in certificates for one in progress_lines.hear(line).certificates]
    assert [one.sha256 for one in ended.certificates] == brought
    assert len(ended.refused) == 1, "the changed certificate, and no other"
    assert ended.gpu_hours == GPU_S / 3600.0
    assert ledger_of(replay.store, ended), "the ledger's lines are kept"
    assert str(search.action.params["case"]) in cluster.asked

    promotions = replay.waiting(ActionKind.PROMOTE_KERNEL)
    faster = {one["certificate"] for one in recording["certificates"] if one["verdict"] == "faster"}
    assert {str(one.action.params["certificate"]) for one in promotions} == faster
    replay.looks()
    assert not any(one in replay.file() for one in faster), "nothing reaches a job before a person's click"
    for one in promotions:
        assert replay.head(one) in posted
        replay.approve(one)
    replay.looks()
    assert {one.certificate for one in replay.registry.entries()} == faster
    assert {one.state for one in replay.registry.entries()} == {CertificateState.canary}
    assert all(one in replay.file() for one in faster)


def test_the_recorded_job_s_gain_is_counted_and_its_new_driver_demotes(
    replay: Replay, recording: dict[str, Any]
) -> None:
    certificates = [one for line in recording["pod_log"] for one in progress_lines.hear(line).certificates]
    faster = {one["certificate"] for one in recording["certificates"] if one["verdict"] == "faster"}
    for envelope in certificates:
        sha256 = certificate_sha256(envelope)
        if sha256 in faster:
            replay.registry.propose(envelope, "ann", "", replay.clock.now_s())
            replay.registry.move(sha256, CertificateState.canary, "ann", "", 9.0, "ab" * 32, JobEnvironment())
    lines = replay.starts("second")
    uses = [use for line in lines if (use := read_use(line)) is not None and use.gain_us]
    counted = gains(replay.store)["lab/llama"]
    assert counted.steps == uses[-1].step - uses[0].step > 0
    assert counted.saved_s == pytest.approx(counted.steps * uses[0].gain_us * 1e-6)
    assert counted.gain_us / counted.step_us == pytest.approx(recording["gain"]["of_the_canary"]["gain"], abs=1e-4)
    assert 0.0 < counted.saved_low_s <= counted.saved_s
    in_use = {one[:16] for one in faster} & set(counted.certificates)
    assert in_use
    assert all(one.gain for one in standings(replay.store) if one.certificate[:16] in in_use)
    assert {one.state for one in replay.registry.entries()} == {CertificateState.canary}

    lines = replay.starts("third")
    demoted = [one for one in replay.registry.entries() if one.state is CertificateState.demoted]
    assert {one.certificate for one in demoted} == faster
    assert all("another driver than the certified one" in one.history[-1].why for one in demoted)
    assert any("demoted in the registry; torch computes it now" in line for line in lines), "the job heard of it"
    assert not any(one in replay.file() for one in faster)
    assert replay.waiting(ActionKind.KERNEL_JOB), "a search that certifies again waits for a person"
    last = replay.starts("fourth")
    uses = [use for line in last if (use := read_use(line)) is not None]
    assert [use for use in uses if use.applied] == []
