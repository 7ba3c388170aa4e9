"""Runs of odd things: one shape in two layouts, a problem file of one's own, a folder of broken tasks, a search
that was stopped overnight."""

from __future__ import annotations

import sys
import threading
from collections.abc import Generator, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nightshift.collectors.base import Permanent
from nightshift.collectors.seal import Signer
from nightshift.kernels.cli import app
from nightshift.kernels.generate.base import Outcome, Proposal, Task
from nightshift.kernels.judge.verdict import Status, Verdict
from nightshift.kernels.loop.executor import Job
from nightshift.kernels.loop.ledger import HEAD, Ledger, LedgerError, read_run
from nightshift.kernels.loop.optimise import ON_CPU, Run, from_profile, tasks_of, work_of
from nightshift.kernels.loop.search import PAUSE_S, Budget, Ladder, Search
from nightshift.kernels.ops.problems import named
from nightshift.kernels.profile.hotspots import profile
from nightshift.kernels.profile.problem_file import load_problem, problem_path, write_problem
from nightshift.kernels.profile.roofline import Peaks
from nightshift.kernels.suites.model_trace import trace_model
from nightshift.kernels.suites.suite import from_suite
from tests.kernels.test_search import NOWHERE, TASK, Counting, Told

RECORDED = Path(__file__).parents[1] / "recordings" / "h200_train_trace.json.gz"
SUITE = Path(__file__).parent / "kernelbench"
RUNNER = CliRunner()


def test_one_shape_in_two_layouts_is_one_search_of_both(tmp_path: Path) -> None:
    """Two processes would meet over one ledger, and one kernel stand twice in the job's file."""
    peaks = Peaks(4.16e12, {"bfloat16": 7.5e14, "float32": 5.3e13}, "probe")
    found = profile(RECORDED, peaks)
    norm = found.hotspots[0]
    turned = replace(norm, layout="transposed")
    works, decisions = from_profile(
        replace(found, hotspots=(norm, turned, *found.hotspots[1:])), tmp_path, peaks, most=10
    )
    slugs = [work.slug for work in works]
    assert len(slugs) == len(set(slugs))
    why = [told for hotspot, told in decisions if hotspot in (norm, turned)]
    assert len(why) == 2
    assert all(told.startswith("searched") and "in 2 layouts" in told for told in why)
    (work,) = (work for work in works if work.task.problem.name == "rmsnorm")
    assert work.task.problem.layouts[:2] == ("contiguous", "transposed")
    assert len(work.task.problem.cases) == 1


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 100_000])
def test_a_damaged_certificate_is_told_and_its_kernel_is_judged_again(tmp_path: Path, text: str) -> None:
    """A run that met one (a machine that lost power left it empty) could never be taken up again."""
    said: list[str] = []
    run = Run(tmp_path, Told({}), NOWHERE, Signer.generate(), tell=said.append)
    path = tmp_path / "certificate.json"
    assert run._before(path) is None
    assert not said
    path.write_text(text)
    assert run._before(path) is None
    assert "certificate.json: damaged" in said[0]
    path.write_text('{"payload": ""}')
    assert run._before(path) == {"payload": ""}


def test_while_one_search_has_its_whole_verdict_the_next_is_searched(tmp_path: Path) -> None:
    """A verdict that waits for the next work's first trial would wait for ever, were they one after the other."""
    begun = threading.Event()
    said: list[str] = []

    class Waiting(Told):
        def run(self, jobs: Iterable[Job]) -> Generator[tuple[Job, Verdict]]:
            for job in jobs:
                if job.key == "full" and job.problem.name == "softmax":
                    assert begun.wait(20.0)
                if job.problem.name == "rmsnorm":
                    begun.set()
                for _, verdict in super().run([job]):
                    yield job, replace(verdict, problem=job.problem.name)

    works = [
        replace(work_of(named(name), TASK.case, "a test", None, 0), generators=(Counting(2),))
        for name in ("softmax", "rmsnorm")
    ]
    run = Run(tmp_path, Waiting(), NOWHERE, Signer.generate(), Budget(trials=2, batch=2), ON_CPU, tell=said.append)
    done = run.search(works)
    assert [one.work.task.problem.name for one in done] == ["softmax", "rmsnorm"]
    assert [one.trials for one in done] == [2, 2]
    ends = [line.split(":")[0] for line in said if "; " in line and not line.startswith(" ")]
    assert ends == [work.slug for work in works]


def test_a_ledger_that_fails_under_a_whole_verdict_ends_the_run(tmp_path: Path) -> None:
    """Nothing more is searched, and who called is told: in a thread of its own it would go unheard."""

    class Failing(Told):
        def run(self, jobs: Iterable[Job]) -> Generator[tuple[Job, Verdict]]:
            for job in jobs:
                if job.key == "full":
                    raise LedgerError("no room")
                yield from super().run([job])

    works = [
        replace(work_of(named(name), TASK.case, "a test", None, 0), generators=(Counting(2),))
        for name in ("softmax", "rmsnorm", "layernorm")
    ]
    run = Run(tmp_path, Failing(), NOWHERE, Signer.generate(), Budget(trials=2, batch=2), ON_CPU)
    with pytest.raises(LedgerError, match="no room"):
        run.search(works)
    assert len(list(tasks_of(tmp_path))) == 2


def test_replay_finds_the_problem_file_of_each_search_of_a_trace(tmp_path: Path) -> None:
    """Its layouts were seen there: the reference problem's own would draw other probes."""
    works, _ = from_profile(profile(RECORDED), tmp_path, None, most=10)
    files = [work for work in works if work.source.endswith(".py")]
    assert len(files) >= 4
    for work in files:
        assert Path(work.source) == problem_path(tmp_path, work.slug)


@pytest.mark.full
def test_a_problem_file_of_ones_own_is_kept_with_its_run(tmp_path: Path) -> None:
    """Replayed from there even when the file is gone; changed since, it is another run's."""
    mine = tmp_path / "mine.py"
    norm = next(h for h in profile(RECORDED).hotspots if h.problem == "rmsnorm")
    write_problem([replace(norm, sizes={"m": 6, "n": 40}, layout="padded")], mine)
    run = tmp_path / "run"
    command = ["optimize", "--problem", str(mine), "--device", "cpu", "--run", str(run), "--trials", "1"]
    done = RUNNER.invoke(app, command, catch_exceptions=False)
    (slug,) = (folder.name for folder in (run / "tasks").iterdir())
    assert problem_path(run, slug).read_bytes() == mine.read_bytes(), done.output
    text = mine.read_text()
    mine.write_text(text + "# changed\n")
    with pytest.raises(Permanent, match="not what this run has searched so far"):
        RUNNER.invoke(app, command, catch_exceptions=False)
    mine.write_text(text)
    (run / "tasks" / slug / "certificate.json").unlink()
    with pytest.raises(Permanent, match=r"asked something else \(seed\)"):
        RUNNER.invoke(app, [*command, "--seed", "5"], catch_exceptions=False)
    mine.unlink()
    done = RUNNER.invoke(app, ["replay", "1", "--device", "cpu", "--run", str(run)], catch_exceptions=False)
    assert done.exit_code == 0, done.output


BROKEN = {
    "syntax.py": "class Model(:\n",
    "leaves.py": "import sys\nsys.exit(0)\n",
    "leaves_later.py": "class Model:\n    def __init__(self):\n        raise SystemExit(3)\n"
    "def get_inputs():\n    return []\n",
    "empty.py": "",
    "no_inputs.py": "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        return x\n",
}


def test_a_broken_file_among_a_suites_tasks_costs_the_others_nothing(tmp_path: Path) -> None:
    for name, text in BROKEN.items():
        (tmp_path / name).write_text(text)
    good = (SUITE / "2_softmax.py").read_text()
    for name in ("a-b.py", "a_b.py"):
        (tmp_path / name).write_text(good)
    works, missed = from_suite(tmp_path)
    assert set(missed) == set(BROKEN)
    assert all(name in why for name, why in missed.items())
    assert len({work.slug for work in works}) == 2
    with pytest.raises(ValueError, match="does not load: SystemExit"):
        load_problem(tmp_path / "leaves.py")


MODELS = """
import torch
from torch import nn

class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(32)
    def forward(self, x):
        return {"hidden": (self.norm(x), [x.argmax(-1)]), "cache": None}

class Nothing(nn.Module):
    def forward(self, x):
        return None

class Raises(nn.Module):
    def forward(self, x):
        raise KeyError("boom")

class Remembers(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.state = nn.LayerNorm(32), 0.0

    def forward(self, x):
        self.state = self.norm(x + self.state)
        return self.state

class Leaves(nn.Module):
    def forward(self, x):
        raise SystemExit(0)

def get_inputs():
    return [torch.randn(4, 32)]
"""


def test_a_model_may_return_what_it_likes_and_its_errors_are_told_by_its_name(tmp_path: Path) -> None:
    file = tmp_path / "models.py"
    file.write_text(MODELS)
    found = profile(trace_model(f"{file}:Named", tmp_path, "cpu"))
    (norm,) = (h for h in found.hotspots if h.problem == "layernorm")
    assert norm.backward_s > 0
    for name, why in (
        ("Nothing", "returns no tensor, but NoneType"),
        ("Raises", "Raises: a training step fails: KeyError: 'boom'"),
        ("Remembers", "Remembers: a training step fails: RuntimeError: Trying to backward through"),
        ("Leaves", "Leaves: a training step fails: SystemExit"),
    ):
        with pytest.raises(ValueError, match=why):
            trace_model(f"{file}:{name}", tmp_path, "cpu")


@pytest.mark.parametrize(
    ("initial", "given"),
    [
        ('{"width": 32, "scale": SCALE}', '{"batch": {"x": x}}'),
        ("[32, SCALE]", '({"x": x} for _ in range(1))'),
        ("(32,)", "[{'x': x}]"),
        ("[[32], {'scale': SCALE}]", "[[], {'batch': {'x': x}}]"),
    ],
)
def test_a_model_s_arguments_may_be_named_and_its_file_may_import_its_neighbours(
    tmp_path: Path, initial: str, given: str
) -> None:
    name = f"neighbour_{abs(hash(initial))}"
    (tmp_path / f"{name}.py").write_text("SCALE = 2.0\n")
    (tmp_path / "model.py").write_text(
        f"""
import torch
from torch import nn
from {name} import SCALE

class Model(nn.Module):
    def __init__(self, width, scale=1.0):
        super().__init__()
        self.norm, self.scale = nn.LayerNorm(width), scale

    def forward(self, batch):
        return {{"out": self.norm(batch["x"]) * self.scale}}, None

def get_init_inputs():
    return {initial}

def get_inputs():
    x = torch.randn(8, 32)
    return {given}
"""
    )
    before = list(sys.path)
    found = profile(trace_model(str(tmp_path / "model.py"), tmp_path, "cpu"))
    assert [h.sizes for h in found.hotspots if h.problem == "layernorm"] == [{"m": 8, "n": 32}]
    assert sys.path == before


def test_a_night_in_which_nobody_searched_is_no_time_of_the_search(tmp_path: Path) -> None:
    """However often it was taken up again."""
    with Ledger(tmp_path) as ledger:
        Search(TASK, [Counting(8)], Told(), ledger, NOWHERE).run(certify=False)
    lines = ledger.lines
    for file in ("ledger.jsonl", HEAD):
        (tmp_path / file).unlink()
    with Ledger(tmp_path) as ledger:
        for number, line in enumerate(lines):
            at_s = 1000.0 + number + (86400.0 if number > 3 else 0.0)
            ledger.add(replace(line, at_s=at_s, took_s=1.0))
    with Ledger(tmp_path) as ledger:
        again = Search(TASK, [Counting(8)], Told(), ledger, NOWHERE, clock=lambda: 90000.0)
        assert len(lines) - 2 <= again._elapsed_s() <= len(lines) + PAUSE_S + 1.0


def test_a_line_that_is_json_and_no_line_is_named(tmp_path: Path) -> None:
    for text in ("[1]", "3", '{"schema": 1, "decision": "keep", "speedup": [[], 1, 2]}'):
        (tmp_path / "ledger.jsonl").write_text(text + "\n")
        with pytest.raises(LedgerError, match=r"ledger.jsonl:1: "):
            read_run(tmp_path)


def test_one_candidate_proposed_twice_at_once_is_judged_once(tmp_path: Path) -> None:
    """Versions that a model is asked for at once are often the same."""

    class Echo(Counting):
        def propose(self, task: Task, history: Sequence[Outcome], count: int) -> Sequence[Proposal]:
            made = super().propose(task, history, max(1, count // 2))
            return [*made, *made]

    told = Told()
    with Ledger(tmp_path) as ledger:
        search = Search(TASK, [Echo(6)], told, ledger, NOWHERE, Budget(trials=6, batch=4), Ladder((None,)))
        assert search.run(certify=False).trials == 6
    assert len(told.asked) == len(set(told.asked)) == 6


def test_a_line_names_the_gpu_that_judged_it(tmp_path: Path) -> None:
    """On a cluster that is another machine's than the search's own; of a verdict that nobody gave, the search's."""

    class Elsewhere(Told):
        def verdict(self, job: Job) -> Verdict:
            found = super().verdict(job)
            far = found.status is not Status.wrong
            return replace(found, environment={"gpu": "a far GPU", "container": "sha256:1"} if far else {})

    with Ledger(tmp_path) as ledger:
        Search(TASK, [Counting(8)], Elsewhere(), ledger, NOWHERE).run(certify=False)
    _, lines = read_run(tmp_path)
    assert {(line.gpu, line.container) for line in lines if line.status != "wrong"} == {("a far GPU", "sha256:1")}
    assert {(line.gpu, line.container) for line in lines if line.status == "wrong"} == {("none", "none")}
