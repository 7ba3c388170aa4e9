"""Jobs over Ray: every verdict comes back once, each actor with a judge of its own, lost ones replaced."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator

import pytest

from kernels.executor import Job
from kernels.generate.families.softmax import Softmax
from kernels.generate.template import candidate
from kernels.judge.inputs import INTERPRETER
from kernels.judge.judge import Request
from kernels.problem import Case
from kernels.problems import named
from kernels.ray_executor import RayExecutor

pytestmark = pytest.mark.full


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

    case = Case.of("float16", m=4, n=40)
    configs = Softmax().space("softmax", Case.of("float16", m=4096, n=4096)).configs[:4]
    request = Request(INTERPRETER, None, cases=(case,), search=True)
    jobs = [
        Job(str(n), candidate(Softmax(), "softmax", case, config), named("softmax"), request)
        for n, config in enumerate(configs)
    ]
    found = {job.key: verdict for job, verdict in executor.run(jobs)}
    assert sorted(found) == ["0", "1", "2", "3"]
    assert {v.status for v in found.values()} == {"correct"}
    assert [found[j.key].candidate_sha256 for j in jobs] == [j.candidate.sha256 for j in jobs]
    ray.kill(executor._actors[0])
    again = {job.key: verdict.status for job, verdict in executor.run(jobs)}
    assert again == dict.fromkeys("0123", "correct")
