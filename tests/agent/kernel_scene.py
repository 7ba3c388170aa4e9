"""A kernel search's world: store, gate, a runner with the chart's rights, and a cluster whose kubelet we are."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kubernetes import client

from nightshift.agent.approvals.gate import Gate
from nightshift.agent.approvals.kernel_gate import KernelGate, ProposalState, search
from nightshift.agent.approvals.kernel_search import KernelSearch
from nightshift.agent.approvals.policy import ApprovalSettings, Person, Role
from nightshift.agent.kernels.runner import KernelRunner
from nightshift.agent.store.incident_store import Store
from nightshift.collectors.kubernetes.api import Object
from nightshift.collectors.seal import Signer, canonical_json
from nightshift.controllers.action import Action, ActionKind
from nightshift.controllers.actuators.kube_kernel_jobs import KernelJobActuator, KernelJobSettings, job_name
from nightshift.controllers.actuators.kube_rights import OWN_RIGHTS
from nightshift.kernels.candidate import Candidate
from nightshift.kernels.certification.envelope import JUDGE, PAYLOAD_TYPE, PREDICATE_TYPE, STATEMENT_TYPE
from nightshift.kernels.profile.trigger import Settings
from tests.agent.incidents import ManualClock
from tests.controllers.kube_scenes import client_with, rules_of
from tests.kernel_certificates import predicate as predicate_of
from tests.kubernetes_api.cluster import Cluster, eventually

ANN = Person("ann@example.org", frozenset({Role.APPROVER}), "console", 1_000.0)
SIGNER, STRANGER = Signer.from_bytes(bytes(range(32))), Signer.from_bytes(bytes(range(1, 33)))
ORDER = {"kernel": "softmax", "case": "float16 m=4096 n=4096", "backward": True}
HOURS = 2.0


def envelope(
    signer: Signer = SIGNER, problem: str = "softmax", status: str = "faster", m: int = 4096, **sizes: int
) -> Object:
    """A certificate as a judge would sign it; its verdict is written here, as no GPU is at hand."""
    candidate = Candidate("def entry(x): return x\n", "entry", "python", "own_kernel", "none")
    digests = {"candidate": candidate.sha256, "source": candidate.source_sha256}
    timed = [{"dtype": "float16", "layout": "contiguous", "params": {"n": 4096, "m": m, **sizes}}]
    verdict = {**predicate_of()["verdict"], "status": status, "stages": ["timing"], "domain": {"timed": timed}}
    predicate = {"issued_at": "2026-11-22T00:00:00+00:00", "commit": "c0ffee", "candidate": candidate.to_json()}
    predicate["judge"] = JUDGE
    predicate |= {"problem": {"name": problem, "reference_sha256": ""}, "anchors": [], "verdict": verdict}
    subject = [{"name": name, "digest": {"sha256": found}} for name, found in digests.items()]
    statement = {"_type": STATEMENT_TYPE, "subject": subject, "predicateType": PREDICATE_TYPE}
    return signer.seal(PAYLOAD_TYPE, canonical_json({**statement, "predicate": predicate}))


class Scene:
    """A store, a gate, a runner with just the rights that the chart grants, and a cluster whose kubelet we are."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        assert cluster.server is not None
        self.cluster, self.server = cluster, cluster.server
        self.clock = ManualClock(datetime(2026, 11, 22, tzinfo=UTC).timestamp())
        self.store = Store(f"sqlite:///{folder}/s.sqlite", self.clock)
        self.gate = KernelGate(Gate(self.store, ApprovalSettings(), self.clock), self.store, self.clock)
        key = folder / "signer.pub"
        key.write_text(SIGNER.public.public_bytes_raw().hex() + "\n")
        self.policy = Settings(namespaces=("lab",), weekly_gpu_hours=3.0, trusted_keys=(key,))
        self.settings = KernelJobSettings(image="worker:1", namespace=cluster.namespace, signer_secret="signer")
        self.kube = client_with(cluster, [], rules_of(OWN_RIGHTS[ActionKind.KERNEL_JOB]))
        self.runner = self.another()

    def another(self, place: Any = None) -> KernelRunner:
        """What a daemon that is started builds."""
        actuator = KernelJobActuator(self.settings, self.kube, now_s=self.clock.now_s)
        return KernelRunner(self.policy, self.gate, place or actuator, "c", lambda: True)

    def approved(self, job: str = "lab/gpt", **order: str | bool) -> Action:
        plan = search("c", job, f"{job} softmax", "hot", HOURS, "low", self.clock.now_s(), {**ORDER, **order})
        known = self.gate.propose(plan)
        assert self.gate.approve(known.id, known.action.plan_sha256, ANN).ok
        return known.action

    def jobs(self) -> dict[str, Any]:
        found = client.BatchV1Api(self.cluster.api).list_namespaced_job(self.cluster.namespace).items
        return {str(job.metadata.name): job for job in found}

    def pod(self, action: Action) -> str:
        (name,) = self.cluster.made_pods(f"batch.kubernetes.io/job-name={job_name(action)}", 1)
        return name

    def runs(self, action: Action, **status: Any) -> str:
        """What the scheduler and a kubelet say once the pod has its GPU."""
        name = self.pod(action)
        said = {"phase": "Running", "startTime": self.now(), **status}
        self.cluster.core.patch_namespaced_pod_status(name, self.cluster.namespace, {"status": said})
        return name

    def prints(self, pod: str, *lines: str) -> None:
        self.server.logs[self.cluster.namespace, pod] = "".join(f"{line}\n" for line in ("torch 2.11", *lines))

    def ends(self, action: Action, pod: str, phase: str = "Succeeded", message: str = "") -> None:
        state = {"terminated": {"exitCode": 0, "finishedAt": self.now(), "message": message}}
        container = {
            "name": "search",
            "state": state,
            "ready": False,
            "restartCount": 0,
            "image": "",
            "imageID": "",
        }
        body = {"status": {"phase": phase, "containerStatuses": [container]}}
        self.cluster.core.patch_namespaced_pod_status(pod, self.cluster.namespace, body)
        read = client.BatchV1Api(self.cluster.api).read_namespaced_job
        eventually(lambda: read(job_name(action), self.cluster.namespace).status.conditions, "the Job has ended")

    def now(self) -> str:
        return datetime.fromtimestamp(self.clock.now_s(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def state(self, action: Action) -> ProposalState:
        known = self.gate.proposal(action.id)
        assert known is not None
        return known.state

    def one(self) -> KernelSearch:
        (found,) = self.gate.searches()
        return found
