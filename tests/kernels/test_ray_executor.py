"""Jobs over Ray: every verdict comes back once, each actor with a judge of its own, lost ones replaced.

Those that die, hang, never start or come late are stand-ins for judges, for a judge takes seconds to start."""

from __future__ import annotations

import importlib.util
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nightshift.collectors.base import Permanent
from nightshift.kernels.generate.template import candidate
from nightshift.kernels.judge.judge import Request
from nightshift.kernels.judge.probes.inputs import INTERPRETER
from nightshift.kernels.judge.verdict import Reason, Status, Verdict
from nightshift.kernels.loop import ray_executor
from nightshift.kernels.loop.executor import Job
from nightshift.kernels.loop.ray_executor import RayExecutor
from nightshift.kernels.ops.problems import named
from nightshift.kernels.ops.softmax.triton_family import Softmax
from nightshift.kernels.problem import Case

pytestmark = pytest.mark.full

CASE = Case.of("float16", m=4, n=40)


class StandIn:
    """Says correct of everything. place: a folder, where it leaves its process's number, and what goes wrong."""

    def __init__(self, place: str, interpret: bool, entropy: Callable[[int], bytes] | None) -> None:
        self._folder, _, self._fault = place.partition(" ")
        if self._fault == "cannot start":
            raise OSError("no driver on this node")
        (Path(self._folder) / str(os.getpid())).touch()

    def gpu(self) -> str:
        return "a stand-in"

    def judge(self, job: Job) -> Verdict:
        if self._fault == "hangs once" and not (Path(self._folder) / "hung").exists():
            (Path(self._folder) / "hung").touch()
            os.kill(os.getpid(), signal.SIGSTOP)
        if job.key == "slow":
            time.sleep(3.0)
        sha = job.candidate.sha256
        return Verdict(sha, "softmax", Status.correct, Reason.passed, self._folder, "sweep")


def jobs_of(*keys: str) -> list[Job]:
    made = candidate(Softmax(), "softmax", CASE, Softmax().space("softmax", CASE).configs[0])
    return [Job(key, made, named("softmax"), Request(INTERPRETER, None, cases=(CASE,))) for key in keys]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A cluster of one place for a judge; `add_node` makes more."""
    if importlib.util.find_spec("ray") is None:
        if os.environ.get("CI"):
            raise ImportError("CI needs the extra `fleet`")
        pytest.skip("the extra `fleet` is not installed")
    import ray
    from ray.cluster_utils import Cluster

    monkeypatch.setattr(ray_executor, "_Bench", StandIn)
    found = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    ray.init(address=found.address, log_to_driver=False, include_dashboard=False)
    yield found
    ray.shutdown()
    found.shutdown()


@pytest.mark.filterwarnings("ignore")
def test_a_judge_whose_gpu_another_holds_keeps_no_job_waiting(cluster: Any, tmp_path: Path) -> None:
    """Two are asked for where there is room for one."""
    with RayExecutor(None, 2, str(tmp_path)) as made:
        assert sorted(job.key for job, _ in made.run(jobs_of(*"abcd"))) == list("abcd")
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.filterwarnings("ignore")
def test_a_gpu_that_joins_late_is_used(cluster: Any, tmp_path: Path) -> None:
    with RayExecutor(None, 0, str(tmp_path)) as made:
        assert len(made._actors) == 1
        cluster.add_node(num_cpus=1)
        for _ in range(20):
            assert [verdict.status for _, verdict in made.run(jobs_of("slow"))] == [Status.correct]
            if len(list(tmp_path.iterdir())) == 2:
                return
    pytest.fail("the second place was never taken")


@pytest.mark.filterwarnings("ignore")
def test_a_judge_that_hangs_is_ended_and_its_job_goes_to_another(cluster: Any, tmp_path: Path) -> None:
    with RayExecutor(None, 1, f"{tmp_path} hangs once", hang_s=5.0) as made:
        assert [(job.key, verdict.status) for job, verdict in made.run(jobs_of("a"))] == [("a", Status.correct)]
    assert len(list(tmp_path.iterdir())) == 3  # two processes and the mark of the first


@pytest.mark.filterwarnings("ignore")
def test_where_no_judge_starts_the_search_is_told_why(cluster: Any, tmp_path: Path) -> None:
    with (
        RayExecutor(None, 1, f"{tmp_path} cannot start", tries=2) as made,
        pytest.raises(Permanent, match=r"(?s)no judge starts there.*no driver on this node"),
    ):
        list(made.run(jobs_of("a")))
    with (
        RayExecutor(None, 1, str(tmp_path)),
        RayExecutor(None, 1, str(tmp_path), start_s=3.0) as second,
        pytest.raises(Permanent, match="none of 1 judges started in 3 s"),
    ):
        list(second.run(jobs_of("a")))


@pytest.fixture(scope="module")
def executor() -> Iterator[RayExecutor]:
    if importlib.util.find_spec("ray") is None:
        if os.environ.get("CI"):
            raise ImportError("CI needs the extra `fleet`")
        pytest.skip("the extra `fleet` is not installed")
    with RayExecutor("local", judges=2, device="cpu", interpret=True, entropy=bytes) as made:
        yield made


@pytest.mark.filterwarnings("ignore")
def test_jobs_are_judged_by_two_judges_and_each_comes_back_once(executor: RayExecutor) -> None:
    """As many verdicts as jobs, each for its own candidate, also after an actor was killed."""
    import ray

    configs = Softmax().space("softmax", Case.of("float16", m=4096, n=4096)).configs[:4]
    request = Request(INTERPRETER, None, cases=(CASE,), search=True)
    jobs = [
        Job(str(n), candidate(Softmax(), "softmax", CASE, config), named("softmax"), request)
        for n, config in enumerate(configs)
    ]
    found = {job.key: verdict for job, verdict in executor.run(jobs)}
    assert sorted(found) == ["0", "1", "2", "3"]
    assert {v.status for v in found.values()} == {"correct"}
    assert [found[j.key].candidate_sha256 for j in jobs] == [j.candidate.sha256 for j in jobs]
    ray.kill(executor._actors[0])
    again = {job.key: verdict.status for job, verdict in executor.run(jobs)}
    assert again == dict.fromkeys("0123", "correct")
