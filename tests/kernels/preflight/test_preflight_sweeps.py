"""The sweeps on Triton's interpreter: right chips pass, one flipped product and one spoilt word do not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nightshift.kernels.preflight.gpu_tests import QUICK
from nightshift.kernels.preflight.node import disk, gpu_runs, links, network
from nightshift.kernels.preflight.verdict import PreflightState, judged

PROGRAM = """
import json
from benchmarks.preflight import SMALL, DrawnSensors
from nightshift.kernels.preflight.gpu_tests import Flip, GpuTests

def run(flips=None):
    return GpuTests("cpu", DrawnSensors(), SMALL._replace(products=1e5, sweep_s=2.0), flips)

found, good = {}, run()
made = good.all()
found["good"] = [len(made.wrong), made.suspect, made.sms_covered, sorted(made.figures)]
for name, flip in {"one": Flip(2, False, 1, 37, 1.0), "sm": Flip(1, True, 0, 255, -8.0)}.items():
    made = run(lambda launch, flip=flip: flip)
    made.sweep(made.main, 1e5, 2.0)
    found[name] = [made.run.wrong[0].count, sorted({p for w in made.run.wrong for p in w.places})]
tests = run()
held = tests.fill()
def spoil(words):
    words[5000] ^= 1 << 30
tests.check(held, spoil)
found["memory"] = [tests.run.wrong[0].check, tests.run.wrong[0].count]
tests = run()
def ruin(words):
    words.zero_()
tests.check(tests.fill(), ruin)
found["ruin"] = tests.run.suspect
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found() -> Any:
    env = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_good_chip_passes(found: Any) -> None:
    wrong, suspect, covered, figures = found["good"]
    assert (wrong, suspect, covered) == (0, "", 4)
    assert figures == ["memory_bytes_per_s", "product_cycles", "product_wall", "slowest_sm", "vector_cycles"]


def test_one_flipped_product_is_seen_and_placed(found: Any) -> None:
    assert found["one"] == [1, [2]]
    assert found["sm"] == [1, [1]]


def test_one_flipped_bit_of_memory_is_seen(found: Any) -> None:
    assert found["memory"] == ["memory", 1]


def test_nearly_everything_wrong_at_once_is_the_tests_fault(found: Any) -> None:
    assert "at once" in found["ruin"]


@pytest.mark.full
def test_a_gpu_that_cannot_be_tested_is_broken_and_not_refused() -> None:
    run = gpu_runs(["GPU-0"], QUICK._replace(sweep_s=20.0))[0]
    assert judged(run, "v", []).state is PreflightState.BROKEN


@pytest.mark.full
def test_links_of_a_gang(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    figures = links(["0", "1"], "cpu", 1 << 16)
    assert set(figures) == {"peer_bytes_per_s", "all_reduce_bytes_per_s"}
    assert min(figures.values()) > 0
    assert links(["0"]) == {}


def test_disk_and_network(tmp_path: Path) -> None:
    assert min(disk(tmp_path, 1 << 21).values()) > 0
    assert list(tmp_path.iterdir()) == []
    port = tmp_path / "infiniband" / "mlx5_0" / "ports" / "1"
    port.mkdir(parents=True)
    (port / "state").write_text("4: ACTIVE\n")
    (port / "rate").write_text("400 Gb/sec (4X NDR)\n")
    assert network(tmp_path) == {"network_bits_per_s": 4e11}


@pytest.mark.full
@pytest.mark.parametrize("name", ["product_sweep", "pattern_check"])
def test_the_kernel_judge_finds_the_sweeps_right(name: str) -> None:
    from nightshift.kernels.candidate_file import read_candidate
    from nightshift.kernels.judge.judge import Judge, Request
    from nightshift.kernels.judge.probes.inputs import INTERPRETER
    from nightshift.kernels.judge.verdict import Status
    from nightshift.kernels.preflight import candidates, problems

    problem = {p.name: p for p in (problems.SWEEP, problems.PATTERN)}[name]
    read = read_candidate(Path(candidates.__file__).parent / f"{name}.py")
    assert read.problem == name
    with Judge("cpu", interpret=True) as court:
        verdict = court.verdict(read.candidate, problem, Request(INTERPRETER, None))
    assert verdict.status is Status.correct, verdict.detail
