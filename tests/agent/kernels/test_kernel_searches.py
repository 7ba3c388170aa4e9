"""An approved kernel search asks the cluster for its GPU, once, and what comes out of the pod is believed by its
signature alone. On the cluster fixture: our API server, or a real one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from nightshift.agent.approvals.kernel_gate import ProposalState, search
from nightshift.agent.kernels.runner import ledger_of
from nightshift.controllers.action import Action, ActionKind
from nightshift.controllers.actuators.kube_client import KubeClient
from nightshift.controllers.actuators.kube_kernel_jobs import START_WITHIN_S, KernelJobActuator, job_name
from nightshift.kernels.certification.envelope import certificate_sha256
from nightshift.kernels.loop import progress_lines
from tests.agent.kernel_scene import ANN, HOURS, ORDER, STRANGER, Scene, envelope
from tests.kubernetes_api.cluster import Cluster


@pytest.fixture
def scene(cluster: Cluster, tmp_path: Path) -> Iterator[Scene]:
    if cluster.server is None:
        pytest.skip("a pod's log is written by its kubelet: only our server shows one that a test writes")
    made = Scene(cluster, tmp_path)
    yield made
    made.store.close()


def test_an_approved_search_gets_its_gpu_and_its_certificate_goes_to_the_gate(scene: Scene) -> None:
    """From the approval to the promotion that waits; every figure of the week's cap from what the cluster said."""
    waiting = search("c", "lab/other", "x", "hot", HOURS, "low", scene.clock.now_s(), ORDER)
    scene.gate.propose(waiting)
    scene.runner.turn()
    assert scene.jobs() == {}, "nobody has approved it"
    action = scene.approved()
    scene.runner.turn()
    assert scene.state(action) is ProposalState.RUNNING
    (job,) = scene.jobs().values()
    pod, container = job.spec.template.spec, job.spec.template.spec.containers[0]
    assert container.resources.limits["nvidia.com/gpu"] == "1"
    assert (pod.priority_class_name, pod.automount_service_account_token, pod.restart_policy) == (
        "low",
        False,
        "Never",
    )
    assert pod.active_deadline_seconds == HOURS * 3600
    assert (job.spec.backoff_limit, job.spec.parallelism, job.spec.pod_replacement_policy) == (0, 1, "Failed")
    assert container.security_context.capabilities.drop == ["ALL"]
    assert {"--problem", "softmax", "--case", "float16 m=4096 n=4096", "--backward"} <= set(container.args)
    assert scene.gate.used_gpu_hours(0.0) == HOURS, "all that it may take, while it goes on"
    scene.runner.turn()
    assert scene.one().gpu_hours == 0.0, "no node has it yet"
    name = scene.runs(action)
    line = {"trial": 1, "status": "faster"}
    good, backward = envelope(), envelope(problem="softmax_backward", status="correct")
    scene.prints(
        name,
        progress_lines.trial("softmax", line),
        progress_lines.trial("softmax", line),
        progress_lines.certificate("softmax", good),
    )
    scene.clock.advance(1800.0)
    scene.runner.turn()
    assert scene.one().gpu_hours == 0.5
    assert scene.one().trials == 1
    scene.prints(
        name,
        progress_lines.trial("softmax", line),
        progress_lines.trial("backward", line),
        progress_lines.certificate("b", backward),
    )
    scene.ends(action, name)
    scene.runner.turn()
    ended = scene.one()
    assert (ended.ended, ended.gpu_hours, ended.trials) == ("done", 0.5, 2)
    assert [one.sha256 for one in ended.certificates] == [certificate_sha256(good), certificate_sha256(backward)]
    assert set(ledger_of(scene.store, ended)) == {("softmax", 1), ("backward", 1)}
    assert scene.state(action) is ProposalState.DONE
    assert scene.gate.used_gpu_hours(0.0) == 0.5
    (promoted,) = (p for p in scene.gate.proposals() if p.action.kind is ActionKind.PROMOTE_KERNEL)
    assert promoted.state is ProposalState.WAITING, "a person decides"
    assert promoted.id == f"kernel/{certificate_sha256(good)[:16]}/canary"
    kinds = [record.kind for record in scene.store.audit.records()]
    assert [kind for kind in kinds if kind.startswith("kernel_search")] == [
        "kernel_search_begun", "kernel_search_ended",
    ]  # fmt: skip
    scene.runner.turn()
    assert len(scene.jobs()) == 1


def test_nothing_counts_that_no_configured_key_signed_for_this_plan(scene: Scene) -> None:
    """A forged certificate, another problem's, another shape's, and one that was changed; the reasons are kept."""
    action = scene.approved()
    scene.runner.turn()
    scene.runner.turn()
    name = scene.runs(action)
    scene.clock.advance(60.0)
    changed = envelope(status="correct") | {"payload": envelope()["payload"]}
    lies = [envelope(STRANGER), envelope(problem="gelu"), envelope(m=8), changed, {"payload": 1}]
    scene.prints(
        name,
        *(progress_lines.certificate("x", lie) for lie in lies),
        progress_lines.WORD + "[",
        progress_lines.WORD + '{"trial": 3}',
    )
    scene.ends(action, name)
    scene.runner.turn()
    ended = scene.one()
    assert ended.certificates == ()
    assert len(ended.refused) >= 3
    assert not [p for p in scene.gate.proposals() if p.action.kind is ActionKind.PROMOTE_KERNEL]


def test_a_product_s_certificates_are_those_of_its_gradients_too(scene: Scene) -> None:
    """The input's gradient is a product with its depth and width exchanged; of the plan's own sizes it answers
    nothing that was asked. A plan without gradients asks for the product alone."""
    sizes = {"kernel": "linear", "case": "float16 m=64 n=32 k=16"}
    given = [
        envelope(problem="linear", m=64, n=32, k=16),
        envelope(problem="matmul", m=64, n=16, k=32),
        envelope(problem="linear_weight_gradient", m=64, n=32, k=16),
    ]
    refused = [envelope(problem="matmul", m=64, n=32, k=16), envelope(problem="linear_backward", m=64, n=32, k=16)]
    for job, backward, wanted in (("lab/gpt", True, given), ("lab/alone", False, given[:1])):
        action = scene.approved(job, **sizes, backward=backward)
        scene.runner.turn()
        scene.runner.turn()
        name = scene.runs(action)
        scene.clock.advance(60.0)
        scene.prints(name, *(progress_lines.certificate("x", one) for one in (*given, *refused)))
        scene.ends(action, name)
        scene.runner.turn()
        (ended,) = (one for one in scene.gate.searches() if one.action.id == action.id)
        assert [one.sha256 for one in ended.certificates] == [certificate_sha256(one) for one in wanted]
        assert any("linear_backward: the plan was for linear" in why for why in ended.refused)
        assert any("matmul: raced on float16 k=16 m=64 n=32" in why for why in ended.refused) == backward
    promoted = {p.id for p in scene.gate.proposals() if p.action.kind is ActionKind.PROMOTE_KERNEL}
    assert promoted == {f"kernel/{certificate_sha256(one)[:16]}/canary" for one in given}


class Killed(BaseException):
    """kill -9: nothing behind it is done."""


class Dying:
    """A place that is killed at its n-th call, before the call or right after it."""

    def __init__(self, place: KernelJobActuator, call: int, after: bool) -> None:
        self._place, self._left, self._after = place, call, after

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._place, name)
        if not callable(real):
            return real

        def one(*given: Any) -> Any:
            self._left -= 1
            if self._left == 0 and not self._after:
                raise Killed
            answer = real(*given)
            if self._left == 0:
                raise Killed
            return answer

        return one


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("call", range(1, 9))
def test_killed_at_any_call_the_search_goes_on_and_is_never_begun_twice(
    scene: Scene, call: int, after: bool
) -> None:
    action = scene.approved()
    actuator = KernelJobActuator(scene.settings, scene.kube, now_s=scene.clock.now_s)
    daemon, died = scene.another(Dying(actuator, call, after)), 0
    name = ""
    for _ in range(8):
        try:
            daemon.turn()
        except Killed:
            died += 1
            daemon = scene.another()
        scene.clock.advance(60.0)
        (job,) = scene.jobs().values() or (None,)
        if job is not None and not job.spec.suspend:
            if not name:
                name = scene.runs(action)
                scene.prints(name, progress_lines.certificate("softmax", envelope()))
            elif scene.one().gpu_hours and scene.state(action) is ProposalState.RUNNING:
                scene.ends(action, name)
    assert died == 1
    assert scene.one().ended == "done"
    assert len(scene.one().certificates) == 1
    made = [what for _, what in scene.server.requests if (what.verb, what.resource) == ("create", "jobs")]
    assert len(scene.jobs()) == 1
    assert len(made) <= 2, "asked again only where nobody knew whether there was one"
    uids = {job.metadata.uid for job in scene.jobs().values()}
    assert uids == {scene.one().uid}


def halted(scene: Scene, action: Action) -> None:
    scene.gate.gate.halt(ANN, "maintenance")


def rejected(scene: Scene, action: Action) -> None:
    assert scene.gate.reject(action.id, action.plan_sha256, ANN, "we need it").ok


def preempted(scene: Scene, action: Action) -> None:
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    body = {"status": {"conditions": [condition]}}
    scene.cluster.core.patch_namespaced_pod_status(scene.pod(action), scene.cluster.namespace, body)


def suspended(scene: Scene, action: Action) -> None:
    body = {"spec": {"suspend": True}}
    client.BatchV1Api(scene.cluster.api).patch_namespaced_job(job_name(action), scene.cluster.namespace, body)


def no_longer_asked_for(scene: Scene, action: Action) -> None:
    place = KernelJobActuator(scene.settings, scene.kube, now_s=scene.clock.now_s)
    scene.runner.heed(scene.policy.model_copy(update={"namespaces": ()}), place)


@pytest.mark.parametrize(
    ("what", "how", "state"),
    [
        (halted, "stopped", ProposalState.STOPPED),
        (rejected, "stopped", ProposalState.REJECTED),
        (preempted, "preempted", ProposalState.STOPPED),
        (suspended, "preempted", ProposalState.STOPPED),
        (no_longer_asked_for, "stopped", ProposalState.STOPPED),
    ],
)
def test_a_search_gives_its_gpu_back_when_it_must(
    scene: Scene, what: Callable[[Scene, Action], None], how: str, state: ProposalState
) -> None:
    """Its Job is deleted, what it took is counted, and what it had already certified is kept."""
    action = scene.approved()
    scene.runner.turn()
    name = scene.runs(action)
    scene.prints(name, progress_lines.certificate("softmax", envelope()))
    scene.clock.advance(900.0)
    scene.runner.turn()
    what(scene, action)
    scene.runner.turn()
    ended = scene.one()
    assert (ended.ended, ended.gpu_hours, len(ended.certificates)) == (how, 0.25, 1)
    assert scene.jobs() == {}
    assert scene.state(action) is state
    assert scene.gate.used_gpu_hours(0.0) == 0.25
    scene.runner.turn()
    assert scene.jobs() == {}, "a plan is searched once"


def test_a_job_that_somebody_took_away_is_not_made_again(scene: Scene) -> None:
    """What it may have taken since it was last seen counts."""
    action = scene.approved()
    scene.runner.turn()
    scene.runs(action)
    scene.clock.advance(900.0)
    scene.runner.turn()
    client.BatchV1Api(scene.cluster.api).delete_namespaced_job(job_name(action), scene.cluster.namespace)
    scene.clock.advance(1800.0)
    scene.another().turn()
    assert (scene.one().ended, scene.one().gpu_hours) == ("gone", 0.75)
    scene.runner.turn()
    assert scene.jobs() == {}


def test_the_week_s_cap_and_the_namespace_are_asked_again_at_the_start(scene: Scene) -> None:
    """Two were approved, the cap is for one; one after another, and not what nobody asks for any more."""
    first = scene.approved()
    second = scene.approved("lab/other")
    scene.runner.turn()
    assert len(scene.jobs()) == 0, "together they are more than the week allows"
    scene.gate.reject(second.id, second.plan_sha256, ANN, "later")
    scene.runner.heed(scene.policy.model_copy(update={"namespaces": ("prod",)}), object())  # type: ignore[arg-type]
    scene.runner.turn()
    assert scene.jobs() == {}
    scene.another().turn()
    assert list(scene.jobs()) == [job_name(first)]


def test_a_search_that_gets_no_gpu_is_given_up(scene: Scene) -> None:
    action = scene.approved()
    scene.runner.turn()
    scene.clock.advance(START_WITHIN_S + 60.0)
    scene.runner.turn()
    assert (scene.one().ended, scene.one().gpu_hours) == ("no_gpu", 0.0)
    assert scene.jobs() == {}
    assert scene.state(action) is ProposalState.STOPPED


def test_a_search_that_fails_says_what_its_pod_said(scene: Scene) -> None:
    action = scene.approved()
    scene.runner.turn()
    name = scene.runs(action)
    scene.clock.advance(60.0)
    scene.ends(action, name, "Failed", "softmax: no family writes kernels for it")
    scene.runner.turn()
    assert (scene.one().ended, scene.one().detail) == ("failed", "softmax: no family writes kernels for it")
    assert scene.state(action) is ProposalState.DONE


@pytest.mark.parametrize("order", [{"kernel": "--help"}, {"case": "float16 m=1; rm"}, {"case": ""}])
def test_a_trace_s_odd_words_reach_no_command_line(scene: Scene, order: dict[str, str]) -> None:
    scene.approved(**order)
    scene.runner.turn()
    assert "no order for a search" in scene.one().detail
    assert scene.jobs() == {}


def test_in_a_queue_kueue_lets_it_go(scene: Scene) -> None:
    """The queue's name is written with our mark, in one patch; whether it runs is Kueue's to say."""
    scene.settings = scene.settings.model_copy(update={"queue": "spare"})
    scene.runner = scene.another()
    scene.approved()
    scene.runner.turn()
    (job,) = scene.jobs().values()
    assert job.spec.suspend is True
    assert job.metadata.labels["kueue.x-k8s.io/queue-name"] == "spare"
    scene.clock.advance(60.0)
    scene.runner.turn()
    assert scene.one().ended == "", "it waits for its quota"


def test_read_execute_and_undo_agree_as_for_every_action(scene: Scene) -> None:
    """The same Job through `controllers.action.Actuator`; somebody else's Job of that name is not touched."""
    place = KernelJobActuator(scene.settings, KubeClient(scene.cluster.transport), now_s=scene.clock.now_s)
    action = scene.approved()
    assert place.refused() == []
    assert (place.changed(action), place.read(action).status) == ([], "not_done")
    with pytest.raises(Exception, match="searches"):
        place.execute(action)
    assert place.read(action).status == "under_way"
    assert place.undo(action).status == "done"
    assert place.undo(action).status == "already_done"
    body = {"metadata": {"name": job_name(action)}, "spec": {"suspend": True, "template": {"spec": {
        "restartPolicy": "Never", "containers": [{"name": "c", "image": "x"}]}}}}  # fmt: skip
    client.BatchV1Api(scene.cluster.api).create_namespaced_job(scene.cluster.namespace, body)
    with pytest.raises(Exception, match="is not ours"):
        place.undo(action)
    assert len(scene.jobs()) == 1
