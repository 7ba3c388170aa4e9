"""The whole loop on a CPU: searched, judged, certified, reported, replayed, resumed, written for the job."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from typer.testing import CliRunner

from nightshift.collectors.base import Permanent
from nightshift.collectors.seal import trusted_keys
from nightshift.kernels.apply.job.problems import SPECS, UNTRAINED
from nightshift.kernels.candidate import Candidate
from nightshift.kernels.certification.envelope import read
from nightshift.kernels.cli import app
from nightshift.kernels.judge.verdict import Reason
from nightshift.kernels.loop import ledger_chain
from nightshift.kernels.loop.ledger import Ledger, Line, read_run
from nightshift.kernels.loop.optimise import find_trial, from_problem, from_profile, slug_of
from nightshift.kernels.loop.progress_lines import WORD, hear
from nightshift.kernels.loop.report import write_report
from nightshift.kernels.loop.search import Search, SearchBudget
from nightshift.kernels.ops.problems import named
from nightshift.kernels.problem import Case
from nightshift.kernels.profile.hotspots import profile
from nightshift.kernels.profile.pattern import BIASED
from nightshift.kernels.profile.products import backward_of
from nightshift.kernels.profile.roofline import Peaks
from nightshift.kernels.suites.kernelbench import load_task
from nightshift.kernels.suites.model_trace import trace_model
from nightshift.kernels.suites.suite import SuiteAuthor, bind, binding_of, call
from tests.kernels.loop.test_search import NOWHERE, TASK, Counting, Told

RECORDED = Path(__file__).parents[2] / "recordings" / "h200_train_trace.json.gz"
RUNNER = CliRunner()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the real loop on a tiny softmax, through the command line."""
    run = tmp_path_factory.mktemp("run")
    command = ["optimize", "--problem", "softmax", "--case", "float16 m=6 n=40", "--run", str(run), "--trials", "2"]
    done = RUNNER.invoke(app, [*command, "--device", "cpu", "--stream", "--for-jobs"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    (run / "printed").write_text(done.output)
    return run


def test_a_problem_ends_as_a_certificate_a_report_and_a_file_for_the_job(finished: Path) -> None:
    (folder,) = (finished / "tasks").iterdir()
    envelope = json.loads((folder / "certificate.json").read_text())
    assert envelope["payloadType"] == "application/vnd.in-toto+json"
    text = (finished / "nightshift_kernels.py").read_text()
    assert '\\"problem\\": \\"softmax\\"' in text
    done = RUNNER.invoke(
        app,
        ["verify", str(folder / "certificate.json"), "--key", str(finished / "signer.pub")],
        catch_exceptions=False,
    )
    assert done.exit_code == 0, done.output


def test_every_cell_of_the_report_leads_to_a_line_that_exists(finished: Path) -> None:
    written = write_report(finished)
    markdown, page = written.markdown, written.page
    assert re.search(r"Largest error over all probes [\d.]+ ULP", markdown.read_text())
    links = re.findall(r"\]\((tasks/[^)#]+|profile\.json)(?:#L(\d+))?\)", markdown.read_text())
    assert len(links) > 10
    for file, number in links:
        lines = (finished / file).read_text().splitlines()
        if number:
            assert json.loads(lines[int(number) - 1])["trial"] == int(number)
    rows = [line for line in markdown.read_text().splitlines() if line.startswith("| ") and "---" not in line]
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split(" | ")]
        linked = [cell.startswith("[") for cell in cells]
        assert all(linked) or not any(linked), row  # a heading, or a row of nothing but links
    html = page.read_text()
    assert html.count("data:image/png;base64,") == 2
    assert 'href="tasks/' in html


def test_a_trial_is_judged_again_with_the_same_answer(finished: Path) -> None:
    done = RUNNER.invoke(app, ["replay", "1", "--run", str(finished), "--device", "cpu"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert done.output.startswith("then ")
    with pytest.raises(Permanent, match="lines"):
        RUNNER.invoke(app, ["replay", "99", "--run", str(finished), "--device", "cpu"], catch_exceptions=False)


def test_a_run_started_again_goes_on_where_it_was(finished: Path) -> None:
    (folder,) = (finished / "tasks").iterdir()
    before = (folder / "ledger.jsonl").read_text()
    command = ["optimize", "--problem", "softmax", "--case", "float16 m=6 n=40", "--run", str(finished)]
    done = RUNNER.invoke(app, [*command, "--trials", "2", "--device", "cpu", "--stream"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert (folder / "ledger.jsonl").read_text() == before
    heard = hear(done.output)
    assert list(heard.certificates) == [json.loads((folder / "certificate.json").read_text())]
    assert "certified before" in heard.end


def test_who_follows_a_search_by_what_it_prints_has_its_whole_ledger(finished: Path) -> None:
    """And its certificate; what others print, and half a line, is passed over."""
    (folder,) = (finished / "tasks").iterdir()
    lines = [json.loads(text) for text in (folder / "ledger.jsonl").read_text().splitlines()]
    printed = (finished / "printed").read_text()
    heard = hear(f'{WORD}[1, 2\n{printed}{WORD}{{"trial": {{"tri')
    chain = set(ledger_chain.LINKS)  # of the file alone
    told = [{name: value for name, value in line.items() if name not in chain} for line in lines]
    assert heard.trials == {(folder.name, line["trial"]): line for line in told}
    assert [read(one, _trusted(finished))[0]["problem"]["name"] for one in heard.certificates] == ["softmax"]
    assert "certified as" in heard.end


def _trusted(run: Path) -> dict[str, Any]:
    return dict(trusted_keys([run / "signer.pub"]))


@pytest.mark.parametrize("trials", [0, 3])
def test_what_came_to_nothing_links_to_the_ledger_that_shows_it(tmp_path: Path, trials: int) -> None:
    """A search that was killed before its first verdict, and one in which all were refused: no line has a best."""
    with Ledger(tmp_path / "tasks" / "x", {"task": "softmax", "origin": "a test"}) as ledger:
        search = Search(
            TASK, [Counting()], Told(reason=Reason.rmse), ledger, NOWHERE, SearchBudget(trials, batch=1)
        )
        assert search.run(certify=False).best is None
    written = write_report(tmp_path)
    markdown, page = written.markdown, written.page
    (row,) = (line for line in markdown.read_text().splitlines() if line.startswith("| [x]"))
    cells = [cell.strip() for cell in row.strip("|").split(" | ")]
    assert [cell for cell in cells if not re.fullmatch(r"\[.+\]\(tasks/x/.+\)", cell)] == []
    assert "[none asked for](tasks/x/ledger.jsonl)" in cells
    assert 'href="tasks/x/ledger.jsonl"' in page.read_text()


def test_hostile_text_in_a_ledger_cannot_break_the_report(tmp_path: Path) -> None:
    folder = tmp_path / "tasks" / "x"
    hostile = "a | b](javascript:alert(1)) <script>alert(1)</script>\n# heading"
    line = Line(
        1,
        1.0,
        0,
        "c",
        "gpu",
        "none",
        "g",
        "softmax",
        {"params": {"m": 6, "n": 40}, "dtype": "float16", "layout": "contiguous"},
        {},
        hostile,
        "0" * 64,
        0,
        "discard",
        "wrong",
        "rmse",
        hostile,
    )
    with Ledger(folder, {"task": hostile, "origin": hostile}) as ledger:
        ledger.add(line)
    written = write_report(tmp_path)
    markdown, page = written.markdown, written.page
    assert "<script" not in page.read_text()
    assert "<script" not in markdown.read_text()
    assert "\n# heading" not in markdown.read_text()
    assert read_run(folder)[1][0].hypothesis == hostile


def test_the_recorded_trace_gives_its_norm_loss_and_table_to_search(tmp_path: Path) -> None:
    peaks = Peaks(4.16e12, {"bfloat16": 7.5e14, "float32": 5.3e13}, "probe")
    works, decisions = from_profile(profile(RECORDED, peaks), tmp_path, peaks, most=5)
    assert len(decisions) > 10
    assert all(why for _, why in decisions)
    told = {hotspot.name: why for hotspot, why in decisions}
    assert "no family of ours" in told["aten::unbind"]
    assert any("would gain" in why for name, why in told.items() if name.startswith("linear"))
    for work in works:
        assert work.task.floor_s > 0
    backward = [work.task.problem.name for work in works if work.task.problem.name.endswith("_backward")]
    searched = [work.task.problem.name for work in works]
    assert ("rmsnorm_backward" in backward) == ("rmsnorm" in searched)


def test_a_step_that_casts_its_weights_has_an_optimiser_searched_that_writes_them_narrowly_too(
    tmp_path: Path,
) -> None:
    """The recorded step multiplies in bfloat16 and keeps float32 weights; one that multiplies widely casts none."""
    peaks = Peaks(4.16e12, {"bfloat16": 7.5e14, "float32": 5.3e13}, "probe")
    found = profile(RECORDED, peaks)
    works, decisions = from_profile(found, tmp_path, peaks, most=20)
    asked = {work.task.problem.name: str(work.task.case) for work in works}
    assert asked["adamw_many"] == "n=16777216 bfloat16"
    (why,) = (why for hotspot, why in decisions if hotspot.problem == "adamw")
    assert "searched" in why
    assert asked["rmsnorm_cast_backward"] == "m=8192 n=1024 bfloat16", (
        "the norm's gradient, as it comes and goes on"
    )
    names = [work.task.problem.name for work in works]
    assert names[0] == "rmsnorm_cast_backward", "what the step would gain most by, with its casts"
    assert names[-3:] == ["rmsnorm", "rmsnorm_backward", "adamw"], "for code that casts nothing"
    wide = tuple(replace(h, dtype="float32") if h.problem == "linear" else h for h in found.hotspots)
    works, _ = from_profile(replace(found, hotspots=wide), tmp_path, peaks, most=20)
    names = {work.task.problem.name for work in works}
    assert "rmsnorm_backward" in names
    assert not names & {"adamw_many", "rmsnorm_cast_backward"}


def test_a_job_s_products_are_searched_where_ours_can_win_and_never_before_what_gains_more(tmp_path: Path) -> None:
    """Of the recorded step the products lie near the roofline: they come last, with the products that their
    gradients are, and those at 90 % are not searched at all. One that is slow is worth as much as it is slow. What
    adds a bias has a place for its gradients alone."""
    peaks = Peaks(4.16e12, {"bfloat16": 7.5e14, "float32": 5.3e13}, "probe")
    found = profile(RECORDED, peaks)
    asked = {"most": 20, "min_gain": 0.002, "problems": frozenset(SPECS), "untrained": UNTRAINED}
    works, decisions = from_profile(found, tmp_path, peaks, **asked)
    order = [hotspot.problem for hotspot, why in decisions if why.startswith("searched")]
    first = ["rmsnorm", "adamw", "flash_attention_by_position", "cross_entropy_cast", "embedding_gradient", "gelu"]
    assert order == [*first, "linear", "linear"]
    attention = [work.task for work in works if work.task.problem.family == "flash_attention"]
    ends = ["flash_attention_by_position", "flash_attention_by_position_backward"]
    assert [task.problem.name for task in attention] == ends
    assert all(task.case.sizes == {"b": 16, "h": 16, "s": 512, "d": 64} for task in attention)
    products = [work.task.name for work in works if work.task.problem.family == "matmul"]
    assert products[:3] == [
        "linear k=1024 m=8192 n=3072 bfloat16",
        "matmul k=3072 m=8192 n=1024 bfloat16",
        "linear_weight_gradient k=1024 m=8192 n=3072 bfloat16",
    ]
    near = [h for h, why in decisions if h.problem == "linear" and h.utilisation > 0.9]
    assert near
    assert all("would gain 0.0" in why for h, why in decisions if h in near)
    (worst,) = (h for h in found.hotspots if h.sizes == {"m": 8192, "n": 4096, "k": 1024})
    slow = replace(worst, forward_s=4 * worst.forward_s, backward_s=4 * worst.backward_s, gain=0.2, why=BIASED)
    changed = replace(found, hotspots=tuple(slow if h is worst else h for h in found.hotspots))
    works, decisions = from_profile(changed, tmp_path, peaks, **asked)
    assert decisions[0][0] is slow
    names = [work.task.name for work in works]
    assert "matmul k=4096 m=8192 n=1024 bfloat16" in names
    assert "linear k=1024 m=8192 n=4096 bfloat16" not in names
    alone = replace(found, hotspots=(replace(slow, backward_s=0.0),))
    works, ((_, why),) = from_profile(alone, tmp_path, peaks, **asked)
    assert (works, why) == ([], "the job's file has a place for it only without a bias")
    ((_, back), (_, weight)) = backward_of("matmul", Case.of("float16", m=2, n=3, k=5))
    assert back == weight == Case.of("float16", m=2, n=5, k=3), "g · bᵀ, and aᵀ · g"
    same = Case.of("float16", m=2, n=3)
    assert [(p.name, c) for p, c in backward_of("softmax", same)] == [("softmax_backward", same)]
    assert backward_of("quantise", same) == []


def test_a_pod_is_told_enough_to_search_what_a_trace_would_have_it_search(tmp_path: Path) -> None:
    """`--problem … --case … --backward --for-jobs`, as the cluster's Job has it: the same tasks and authors."""
    case = Case.of("bfloat16", m=8192, n=3072, k=1024)
    works = from_problem("linear", case=case, for_jobs=True, backward=True)
    assert [(work.task.name, work.task.problem.cases) for work in works] == [
        ("linear k=1024 m=8192 n=3072 bfloat16", (case,)),
        ("matmul k=3072 m=8192 n=1024 bfloat16", (case.with_(n=1024, k=3072),)),
        ("linear_weight_gradient k=1024 m=8192 n=3072 bfloat16", (case,)),
    ]
    found = profile(RECORDED)
    (hotspot,) = (h for h in found.hotspots if h.problem == "linear" and h.sizes == case.sizes)
    alone = replace(found, hotspots=(replace(hotspot, gain=0.2),))
    traced, _ = from_profile(alone, tmp_path, None, untrained=UNTRAINED, problems=frozenset(SPECS))
    assert [(w.slug, [a.name for a in w.generators]) for w in works] == [
        (w.slug, [a.name for a in w.generators]) for w in traced
    ]
    assert [w.task.problem.name for w in from_problem("linear", case=case)] == ["linear"]
    both = from_problem("rmsnorm", case=Case.of("float16", m=4, n=8), backward=True)
    assert [w.task.problem.name for w in both] == ["rmsnorm", "rmsnorm_backward"]
    every = from_problem("softmax", backward=True)
    assert len(every) == 2 * len(from_problem("softmax"))


def test_a_model_is_traced_on_this_machine(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text(
        "import torch\nfrom torch import nn\n\nclass Net(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.norm = nn.LayerNorm(32)\n"
        "    def forward(self, x):\n        return torch.softmax(self.norm(x), -1)\n\n"
        "def get_inputs():\n    return [torch.randn(4, 32)]\n"
    )
    found = profile(trace_model(f"{file}:Net", tmp_path, "cpu"))
    assert found.steps == 3
    assert {h.problem for h in found.hotspots} >= {"layernorm", "softmax"}
    with pytest.raises(ValueError, match="Absent"):
        trace_model(f"{file}:Absent", tmp_path, "cpu")
    with pytest.raises(ValueError, match="not a Python file"):
        trace_model(f"{tmp_path}/none.py:Net", tmp_path, "cpu")


def test_a_run_with_nothing_to_do_says_so(tmp_path: Path) -> None:
    with pytest.raises(Permanent, match="none of"):
        RUNNER.invoke(
            app,
            ["optimize", "--problem", "nothing", "--run", str(tmp_path), "--device", "cpu"],
            catch_exceptions=False,
        )
    assert slug_of("1/2 µs!") == "1-2-s"
    with pytest.raises(ValueError, match="holds no search"):
        find_trial(tmp_path, "1")


FUNCTIONS: list[tuple[str, Any, tuple[torch.Tensor, ...]]] = [
    ("softmax", lambda x: torch.softmax(x, -1), (torch.randn(2, 3, 8),)),
    ("gelu", F.gelu, (torch.randn(2, 3, 8),)),
    ("reduce_sum", lambda x: x.sum(-1), (torch.randn(4, 8),)),
    ("max", lambda x: x.amax(-1), (torch.randn(4, 8),)),
    ("reduce_sum", lambda x: x.sum(-1, keepdim=True), (torch.randn(2, 4, 8),)),
    ("max", lambda x: x.amax(-1, keepdim=True), (torch.randn(4, 8),)),
    ("linear_bias", F.linear, (torch.randn(2, 4, 8), torch.randn(6, 8), torch.randn(6))),
    (
        "linear_gelu",
        lambda x, w, b: F.gelu(F.linear(x, w, b)),
        (torch.randn(2, 4, 8), torch.randn(6, 8), torch.randn(6)),
    ),
    ("matmul", lambda a, b: a @ b, (torch.randn(4, 8), torch.randn(8, 6))),
    ("matmul", F.linear, (torch.randn(2, 4, 8), torch.randn(6, 8))),
    ("swiglu", lambda up, gate: up * F.silu(gate), (torch.randn(4, 8), torch.randn(4, 8))),
    ("geglu", lambda g, u: F.gelu(g, approximate="tanh") * u, (torch.randn(4, 8), torch.randn(4, 8))),
    ("rmsnorm", lambda x, w: F.rms_norm(x, (8,), w, 1e-5), (torch.randn(4, 8), torch.randn(8))),
    (
        "rmsnorm_residual",
        lambda x, r, w: (F.rms_norm(x + r, (8,), w, 1e-6), x + r),
        (torch.randn(4, 8), torch.randn(4, 8), torch.randn(8)),
    ),
    ("layernorm", lambda x, b, w: F.layer_norm(x, (8,), w, b, 1e-5), (torch.randn(4, 8), *torch.randn(2, 8))),
    ("cross_entropy", lambda x, t: F.cross_entropy(x, t, reduction="none"), (torch.randn(4, 8), torch.arange(4))),
    (
        "flash_attention",
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        tuple(torch.randn(3, 1, 2, 4, 8)),
    ),
]


@pytest.mark.parametrize(("problem", "function", "arguments"), FUNCTIONS)
def test_a_function_is_recognised_by_its_numbers(
    problem: str, function: Any, arguments: tuple[torch.Tensor, ...]
) -> None:
    binding = bind(function, arguments)
    assert binding is not None
    assert binding.problem == problem
    torch.testing.assert_close(call(binding, named(problem).reference, arguments), function(*arguments))


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (lambda x: torch.softmax(x, 0), (torch.randn(4, 8),)),
        (lambda x: F.gelu(x, approximate="tanh"), (torch.randn(4, 8),)),
        (lambda g, u: F.gelu(g) * u, (torch.randn(4, 8), torch.randn(4, 8))),  # the exact gelu is not the tanh form
        (lambda x, w: F.rms_norm(x, (8,), w, 1e-3), (torch.randn(4, 8), torch.randn(8))),
        (lambda a, b: a @ b + 1e-3, (torch.randn(4, 8), torch.randn(8, 6))),
        (lambda x: x.sum(0), (torch.randn(8, 8),)),
    ],
)
def test_what_is_only_similar_is_not(function: Any, arguments: tuple[torch.Tensor, ...]) -> None:
    assert bind(function, arguments) is None


def test_a_suites_task_gets_a_family_behind_its_own_arguments() -> None:
    task = load_task(Path(__file__).parents[1] / "kernelbench" / "2_softmax.py")
    binding = binding_of(task)
    assert binding is not None
    assert binding.problem == "softmax"
    from nightshift.kernels.generate.base import Task

    (made,) = SuiteAuthor(task, binding).propose(Task(task.problem, task.problem.cases[0]), (), 1)
    assert made.candidate.entry == "nightshift_task"
    assert "return entry(a[0].reshape(-1, 96)).reshape(a[0].shape)" in made.candidate.source


def test_a_familys_kernel_behind_a_task_is_given_rows_that_lie_side_by_side() -> None:
    """Whatever a task's arguments lie like: a family's kernel reads with the strides that it was written for."""
    task = load_task(Path(__file__).parents[1] / "kernelbench" / "2_softmax.py")
    binding = binding_of(task)
    assert binding is not None
    text = SuiteAuthor(task, binding)._wrapped(Candidate("", "entry", "triton", "own_kernel", "bitwise")).source
    seen: list[torch.Tensor] = []
    names: dict[str, Any] = {"entry": lambda x: seen.append(x) or torch.softmax(x, -1)}
    exec(text, names)  # our own text
    x = torch.randn(96, 5).t()
    torch.testing.assert_close(names["nightshift_task"](x), torch.softmax(x, -1))
    assert seen[0].is_contiguous()


SUITE = Path(__file__).parents[3] / "benchmarks" / "kernelbench_suite"


def test_our_suite_says_what_the_families_cover() -> None:
    """One task of each kind here; `benchmarks/kernels_suite.py` states the coverage of all."""
    paths = sorted(SUITE.glob("*.py"))
    assert len(paths) >= 45
    expected = {
        "05_softmax_by_hand": "softmax",
        "13_rmsnorm_residual": "rmsnorm_residual",
        "42_softmax_columns": None,
    }
    for stem, problem in expected.items():
        (path,) = (p for p in paths if p.stem == stem)
        found = binding_of(load_task(path))
        assert (found.problem if found is not None else None) == problem
