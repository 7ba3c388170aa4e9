"""Definitions, workloads and solutions in FlashInfer-Bench's format: read, judged, and what is wrong in them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from nightshift.collectors.seal import sha256_hex
from nightshift.kernels.certification.certificate import reference_sha256
from nightshift.kernels.judge.judge import Judge, Request
from nightshift.kernels.judge.probes.sizes import Scope
from nightshift.kernels.judge.verdict import Reason, Status, Verdict
from nightshift.kernels.problem import Problem, ProblemError
from nightshift.kernels.suites import extension
from nightshift.kernels.suites.definitions import (
    Solution,
    Workload,
    definition_of,
    definitions_in,
    solution_of,
    workloads_of,
)
from nightshift.kernels.suites.serving import REGIMES, _TensorCores, candidate_of, problem_of, trace_of
from tests.serving_definitions import DECODE, SAMPLE, TOPK, decode, prefill, put, sample, topk
from tests.some import some

SMALL = Scope(1 << 24, 0, 0, 0, 0, benchmark=False, huge=False, repeats=3)


def problem(folder: Path, record: dict[str, Any]) -> Problem:
    return problem_of(definition_of(put(folder, record)))


@pytest.fixture(scope="module")
def court(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    built = tmp_path_factory.mktemp("built")
    built.chmod(0o755)
    with Judge("cpu", extensions=built) as judge:
        yield judge


def judged(court: Judge, folder: Path, record: dict[str, Any], source: str) -> Verdict:
    definition = definition_of(put(folder, record))
    solution = Solution("s", definition.name, "me", "python", ("main.py", "run"), {"main.py": source})
    return court.verdict(
        candidate_of(definition, solution), problem_of(definition), Request(SMALL, None, static=False)
    )


@pytest.mark.parametrize("record", [decode(), sample(), topk()], ids=lambda record: str(record["name"]))
def test_a_reference_passes_as_a_solution(court: Judge, tmp_path: Path, record: dict[str, Any]) -> None:
    verdict = judged(court, tmp_path, record, record["reference"])
    assert verdict.status is Status.correct, verdict.detail


DECODE_MUTANTS = {
    "leaves empty sequences unwritten": ("torch.zeros(q.shape", "torch.full(q.shape, 7.0"),
    "takes the first sequence's pages": ("kv_indices[int(kv_indptr[b])", "kv_indices[int(kv_indptr[0])"),
    "ignores where pages lie": ("].long()", "].long() * 0 + torch.arange(int(kv_indptr[b + 1] - kv_indptr[b]))"),
    "takes each page once": ("].long()", "].long().unique()"),
    "subtracts no maximum": ("torch.softmax(logits, dim=-1)", "logits.exp() / logits.exp().sum(-1, keepdim=True)"),
    "gives a natural logarithm": (" / math.log(2.0)", ""),
    "pairs heads the other way": ("repeat_interleave(group, dim=1)", "repeat(1, group, 1)"),
    "drops the last token": ("kv_indptr[b + 1])", "kv_indptr[b + 1]) - 1"),
}


@pytest.mark.parametrize("name", some(DECODE_MUTANTS))
def test_a_wrong_decode_is_refused(court: Judge, tmp_path: Path, name: str) -> None:
    one, other = DECODE_MUTANTS[name]
    assert one in DECODE
    verdict = judged(court, tmp_path, decode(), DECODE.replace(one, other))
    assert verdict.status is Status.wrong, verdict.detail


SAMPLE_MUTANTS = {
    "takes the most probable": ("torch.multinomial(row / row.sum(), 1)[0]", "row.argmax()"),
    "ignores top-p": ("if p < 1.0:", "if False:"),
    "ignores top-k": ("if 0 < k < len(row):", "if False:"),
    "leaves out the token that crosses p": ("outside[1:] = outside[:-1].clone()", "pass"),
    "draws each token alike": ("multinomial(row / row.sum()", "multinomial((row > 0).float()"),
    "sharpens the distribution": ("multinomial(row / row.sum()", "multinomial(row**2"),
    "has one seed": (".sum(), 1)[0]", ".sum(), 1, generator=torch.Generator().manual_seed(7 + i))[0]"),
    "draws one number for all rows": ("samples[i] = torch.multinomial(row / row.sum(), 1)[0]",
        "u = u if i else torch.rand(1); samples[i] = min(511, int((torch.cumsum(row / row.sum(), 0) < u).sum()))"),
    "counts from one": ("return samples", "return samples + 1"),
}  # fmt: skip


@pytest.mark.parametrize("name", some(SAMPLE_MUTANTS))
def test_a_wrong_sampler_is_refused(court: Judge, tmp_path: Path, name: str) -> None:
    one, other = SAMPLE_MUTANTS[name]
    assert one in SAMPLE
    verdict = judged(court, tmp_path, sample(), SAMPLE.replace(one, other))
    assert verdict.reason is Reason.not_exact, verdict.detail


TOPK_MUTANTS = {
    "is not in order": ("return values", "values, indices = values.flip(-1), indices.flip(-1)\n    return values"),
    "names one place twice": (
        "return values", "indices = (input[:, None] == values[..., None]).int().argmax(-1)\n    return values"
    ),
    "rounds": ("return values", "values = values.bfloat16().float()\n    return values"),
    "takes the smallest": ("dim=-1)", "dim=-1, largest=False)"),
}  # fmt: skip


@pytest.mark.parametrize("name", some(TOPK_MUTANTS))
def test_a_wrong_top_k_is_refused(court: Judge, tmp_path: Path, name: str) -> None:
    one, other = TOPK_MUTANTS[name]
    verdict = judged(court, tmp_path, topk(), TOPK.replace(one, other))
    assert verdict.reason is Reason.not_exact, verdict.detail


def test_any_choice_among_ties_is_right(court: Judge, tmp_path: Path) -> None:
    last = TOPK.replace("torch.topk(input, k, dim=-1)", "torch.topk(input.flip(-1), k, dim=-1)").replace(
        "return values, indices", "return values, input.shape[-1] - 1 - indices"
    )
    verdict = judged(court, tmp_path, topk(), last)
    assert verdict.status is Status.correct, verdict.detail


CPP = """
#include <torch/extension.h>

std::vector<torch::Tensor> topk(torch::Tensor input, int64_t k) {
  auto made = torch::topk(input, k, -1);
  return {std::get<0>(made), std::get<1>(made) + SHIFT};
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("topk", &topk); }
"""


@pytest.mark.full
def test_a_solution_in_cpp_is_built_and_judged(court: Judge, tmp_path: Path) -> None:
    definition = definition_of(put(tmp_path, topk()))
    folder = Path(court._zygote._extensions[0])
    extension.make_headers(folder / "headers")
    found = []
    for shift in ("0", "1"):
        sources = {"main.cpp": CPP.replace("SHIFT", shift)}
        built = extension.build(sources, folder / shift, folder / "headers", "")
        solution = Solution("s", "topk", "me", "cuda", ("main.cpp", "topk"), sources)
        candidate = candidate_of(definition, solution, built)
        found.append(court.verdict(candidate, problem_of(definition), Request(SMALL, None, static=False)).status)
    assert found == [Status.correct, Status.wrong]


@pytest.mark.full
def test_what_does_not_build_in_time_is_named(tmp_path: Path) -> None:
    extension.make_headers(tmp_path / "headers")
    with pytest.raises(extension.BuildError, match="longer than"):
        extension.build({"main.cpp": "#include <torch/torch.h>"}, tmp_path / "a", tmp_path / "headers", "", 0.5)
    with pytest.raises(extension.BuildError, match="nothing"):
        extension.build({"main.cpp": "nothing that compiles;"}, tmp_path / "b", tmp_path / "headers", "")
    with pytest.raises(extension.BuildError, match="need a GPU"):
        extension.build({"kernel.cu": ""}, tmp_path / "c", tmp_path / "headers", "")


BAD = {
    "axes.page_size: value 0": lambda d: d["axes"]["page_size"].update(value=0),
    "axes.page_size: type 'any'": lambda d: d["axes"]["page_size"].update(type="any"),
    "inputs.q.dtype: 'float4_e2m1'": lambda d: d["inputs"]["q"].update(dtype="float4_e2m1"),
    "inputs.q.shape: 'num_heads' is no axis": lambda d: d["inputs"]["q"].update(shape=["num_heads"]),
    "reference: defines no run": lambda d: d.update(reference="x = 1"),
    "reference: invalid syntax": lambda d: d.update(reference="def run(:"),
    "name: missing": lambda d: d.pop("name"),
    "no outputs": lambda d: d.update(outputs={}),
    "inputs.mystery: an input of no known meaning": lambda d: (
        d["inputs"].update(mystery={"shape": ["batch_size"], "dtype": "int32"})
        or d.update(reference=d["reference"].replace("sm_scale):", "sm_scale, mystery):"))
    ),
    "axes.width: an axis of no known meaning": lambda d: d["axes"].update(width={"type": "var"}),
    "run takes q": lambda d: d["inputs"].pop("sm_scale"),
}


@pytest.mark.parametrize("told", BAD)
def test_a_bad_definition_is_named(tmp_path: Path, told: str) -> None:
    record = decode()
    BAD[told](record)
    path = tmp_path / "definitions/decode.json"
    path.parent.mkdir()
    path.write_text(json.dumps(record))
    with pytest.raises(ProblemError) as refused:
        problem_of(definition_of(path))
    assert told in str(refused.value)
    assert "decode" in str(refused.value)


def test_a_folder_keeps_its_good_definitions(tmp_path: Path) -> None:
    put(tmp_path, topk())
    (tmp_path / "definitions/broken.json").write_text("{")
    found, refused = definitions_in(tmp_path)
    assert (list(found), list(refused)) == (["topk"], ["broken.json"])


def test_a_workload_that_does_not_fit_its_definition_is_named(tmp_path: Path) -> None:
    definition = definition_of(put(tmp_path, topk()))
    path = tmp_path / "workloads/topk.jsonl"
    path.parent.mkdir()
    for axes, told in (({"M": 3}, "varies in batch_size"), ({"batch_size": -1}, "no size")):
        path.write_text(json.dumps({"workload": {"axes": axes, "inputs": {}, "uuid": "u"}}))
        with pytest.raises(ProblemError, match=told):
            workloads_of(tmp_path, definition)
    path.write_text(json.dumps({"workload": {"axes": {"batch_size": 5}, "inputs": {}, "uuid": "u"}}))
    (workload,) = workloads_of(tmp_path, definition)
    assert [case["workload"] for case in problem_of(definition, [workload]).cases] == [1]


def test_a_solution_that_leaves_its_folder_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    spec = {"language": "Triton", "entry_point": "main.py::run"}
    record = {"name": "s", "definition": "topk", "spec": spec, "sources": [{"path": "../main.py", "content": ""}]}
    path.write_text(json.dumps(record))
    with pytest.raises(ProblemError, match="leaves its folder"):
        solution_of(path)
    record["sources"] = [{"path": "main.py", "content": "def run(): pass"}]
    path.write_text(json.dumps(record))
    assert solution_of(path).language == "triton"


def test_a_solution_that_needs_an_absent_library_is_named(tmp_path: Path) -> None:
    definition = definition_of(put(tmp_path, topk()))
    solution = Solution("s", "topk", "me", "python", ("main.py", "run"), {"main.py": ""}, ("no-such-library >= 2",))
    with pytest.raises(ProblemError, match="no_such_library"):
        candidate_of(definition, solution)


def test_outputs_may_be_passed_in(court: Judge, tmp_path: Path) -> None:
    definition = definition_of(put(tmp_path, topk()))
    source = (
        "import torch\n\n\ndef run(input, k, values, indices):\n    torch.topk(input, k, out=(values, indices))\n"
    )
    for style in (True, None):  # None: the file does not say
        solution = Solution("s", "topk", "me", "python", ("main.py", "run"), {"main.py": source}, style=style)
        request = Request(SMALL, None, static=False)
        verdict = court.verdict(candidate_of(definition, solution), problem_of(definition), request)
        assert verdict.status is Status.correct, verdict.detail


def test_every_regime_has_inputs_that_fit_each_other(tmp_path: Path) -> None:
    made = problem(tmp_path, decode())
    for regime, (name, _) in enumerate(REGIMES):
        case = made.cases[0].with_(rows=5, regime=regime)
        q, cache, _, offsets, pages, _ = made.inputs(case, "normal", 1, "cpu")
        assert len(offsets) == len(q) + 1, name
        assert int(offsets[-1]) == len(pages), name
        assert not len(pages) or int(pages.max()) < len(cache), name
        distinct = len(set(pages.tolist()))
        assert (distinct < len(pages)) == (name == "shared"), name


def test_a_definition_of_whole_prompts_gets_no_continued_one(tmp_path: Path) -> None:
    for constraints, fewer in ([], True), (["total_q == total_kv"], False):
        made = problem(tmp_path, {**prefill(), "constraints": constraints})
        offsets = [made.inputs(made.cases[0].with_(rows=5, regime=8), "normal", 1, "cpu")[k] for k in (3, 4)]
        assert (int(offsets[0][-1]) < int(offsets[1][-1])) is fewer


def test_a_kernel_need_read_no_more_of_a_table_than_its_places_name(tmp_path: Path) -> None:
    made = problem(tmp_path, decode())
    case = made.cases[0].with_(rows=5)
    q, cache, values, offsets, pages, scale = made.inputs(case, "normal", 1, "cpu")
    tables = cache.nbytes + values.nbytes
    whole = q.nbytes + tables + offsets.nbytes + pages.nbytes + sum(x.nbytes for x in made.eager((
        q, cache, values, offsets, pages, scale)))  # fmt: skip
    unread = tables * (1 - len(set(pages.tolist())) / len(cache))
    assert unread > 0
    assert made.compulsory_bytes(case) == int(whole - unread)


def test_tensor_cores_cut_sums_off_where_float32_rounds_them() -> None:
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randn(shape, generator=generator).abs().bfloat16().float() for shape in ((8, 512), (512, 8)))
    exact = a.double() @ b.double()
    with _TensorCores():
        cut, beside = a @ b, a @ (b + 2.0**-20)
    assert bool((cut.double() <= exact).all())
    unit = torch.finfo(torch.float32).eps * exact.abs()
    assert 4 < float(((exact - cut.double()) / unit).mean()) < 512 / 16
    assert torch.equal(beside, a @ (b + 2.0**-20))  # values of more bits are multiplied as they are


def test_the_oracle_is_float64(tmp_path: Path) -> None:
    made = problem(tmp_path, decode())
    inputs = made.inputs(made.cases[0], "normal", 1, "cpu")
    assert {x.dtype for x in made.truth(inputs)} == {torch.float64}
    assert [x.dtype for x in made.eager(inputs)] == [torch.bfloat16, torch.float32]


def test_a_verdict_is_a_trace_entry(court: Judge, tmp_path: Path) -> None:
    definition = definition_of(put(tmp_path, topk()))
    solution = Solution("s", "topk", "me", "python", ("main.py", "run"), {"main.py": TOPK})
    path = tmp_path / "workloads/topk.jsonl"
    path.parent.mkdir()
    path.write_text(json.dumps({"workload": {"axes": {"batch_size": 5}, "inputs": {}, "uuid": "u"}}))
    (workload,) = workloads_of(tmp_path, definition)
    wrong = judged(court, tmp_path, topk(), TOPK.replace("dim=-1)", "dim=-1, largest=False)"))
    entry = trace_of(solution, workload, wrong, "2026-01-01T00:00:00")
    assert entry["evaluation"]["status"] == "INCORRECT_NUMERICAL"
    assert "largest in order" in entry["evaluation"]["log"]
    assert json.loads(json.dumps(entry)) == entry
    right = judged(court, tmp_path, topk(), TOPK)
    assert trace_of(solution, workload, right, "2026-01-01T00:00:00")["evaluation"] is None  # not timed


def test_a_workload_with_more_queries_than_keys_asks_as_many_as_have_one(tmp_path: Path) -> None:
    axes = {"len_indptr": 4, "total_q": 90, "num_kv_indices": 17, "num_pages": 40}
    definition = definition_of(put(tmp_path, prefill()))
    made = problem_of(definition, [Workload("padded", axes)])
    case = next(case for case in made.cases if case["workload"])
    given = dict(zip(definition.inputs, made.inputs(case, "normal", 1, "cpu"), strict=True))
    assert len(given["q"]) == int(given["qo_indptr"][-1]) <= 17
    assert not any(torch.isnan(x).any() for x in made.eager(tuple(given.values())))


def test_a_workload_with_places_in_no_cache_gets_a_cache(tmp_path: Path) -> None:
    axes = {"len_indptr": 2, "total_q": 2, "num_kv_indices": 2, "num_pages": 0}
    definition = definition_of(put(tmp_path, prefill()))
    made = problem_of(definition, [Workload("empty", axes)])
    given = dict(zip(definition.inputs, made.inputs(made.cases[0], "normal", 1, "cpu"), strict=True))
    assert int(given["kv_indices"].max()) < len(given["k_cache"])


def test_a_certificate_names_the_text_of_its_definition(tmp_path: Path) -> None:
    definition = definition_of(put(tmp_path, topk()))
    assert reference_sha256(problem_of(definition)) == sha256_hex(definition.reference.encode())
