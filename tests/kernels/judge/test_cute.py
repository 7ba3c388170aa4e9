"""CuTe DSL: kernels are compiled for a case in a confined process, without a GPU, up to the plan of launches."""

from __future__ import annotations

import re
import subprocess
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from nightshift.kernels.candidate import Candidate, Launch
from nightshift.kernels.candidate_file import parse_candidate
from nightshift.kernels.cute import cute_binary, cute_types
from nightshift.kernels.generate.llm import CUTE, RULES
from nightshift.kernels.judge.cubin import usage_of
from nightshift.kernels.judge.cuda import Shape
from nightshift.kernels.judge.declared_launches import DeclaredLaunches
from nightshift.kernels.judge.host import service
from nightshift.kernels.judge.judge import Judge, Request
from nightshift.kernels.judge.launch_plan import Fire, Plan, Pointer, Scalar
from nightshift.kernels.judge.probes.inputs import CPU
from nightshift.kernels.judge.static import misfit, read
from nightshift.kernels.judge.trial import JudgeTrial
from nightshift.kernels.judge.verdict import Reason, Refusal, Status
from nightshift.kernels.ops.problems import named
from nightshift.kernels.problem import Case
from tests.kernels.cutlass_dsl import in_cute

Declared = Callable[[Candidate, str], DeclaredLaunches]
SWIGLU, SUM = in_cute("swiglu").candidate, in_cute("reduce_sum").candidate
ROWS = {"m": 7, "n": 1000}


@pytest.fixture
def declared(cpu_judge: Judge, monkeypatch: pytest.MonkeyPatch) -> Declared:
    """A judge's launches of a candidate for a problem, compiled for Hopper."""
    monkeypatch.setattr(cpu_judge, "arch", "sm_90a")

    def made(candidate: Candidate, problem: str) -> DeclaredLaunches:
        return DeclaredLaunches(JudgeTrial(cpu_judge, candidate, named(problem), Request(CPU, None), bytes(16)))

    return made


def parameters(binary: bytes, folder: Path) -> tuple[list[int], list[int]]:
    """(bytes of each parameter, threads of a block) as NVIDIA's own tool reads them from a binary."""
    triton = pytest.importorskip("triton")
    (folder / "k.cubin").write_bytes(binary)
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    told = subprocess.run([tool, "-elf", folder / "k.cubin"], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"Ordinal : 0x(\w+).*?Size    : 0x(\w+)", told)
    threads = re.search(r"EIATTR_REQNTID\s+Format:\s+\w+\s+Value:\s+(.*)", told)
    assert threads is not None
    sizes = {int(ordinal, 16): int(size, 16) for ordinal, size in found}
    return [sizes[n] for n in range(len(sizes))], [int(x, 16) for x in threads[1].split()]


def test_a_plan_has_a_binary_for_each_kernel_and_what_its_lines_declare(declared: Declared, tmp_path: Path) -> None:
    """Grid, block, shared bytes, arguments and scratch are the declaration's; names are the binaries' own."""
    made = declared(SUM, "reduce_sum").plan_of(Case.of("bfloat16", **ROWS), ())
    sums = Pointer("tmp", 0)
    names = [name for binary in made.binaries for name in usage_of(binary)]
    assert [re.findall("partial|total", name) for name in names] == [["partial"], ["total"]]
    assert made.steps == (
        Fire(0, names[0], Shape((28, 1, 1), (256, 1, 1), 32), (Pointer("in", 0), sums, Scalar("i32", 1000))),
        Fire(1, names[1], Shape((1, 1, 1), (128, 1, 1)), (sums, Pointer("out", 0), Scalar("i32", 7))),
    )
    assert made.scratch_bytes == (112,)
    assert parameters(made.binaries[0], tmp_path) == ([8, 8, 4], [256, 1, 1])
    assert parameters(made.binaries[1], tmp_path) == ([8, 8, 4], [128, 1, 1])
    assert Plan.from_message(*made.to_message()) == made


def test_a_dtype_has_a_binary_of_its_own_and_a_size_has_not(declared: Declared) -> None:
    """What was compiled is kept: other sizes start no process."""
    launches = declared(SWIGLU, "swiglu")
    cases = Case.of("float32", m=1, n=64), Case.of("float32", m=9, n=64), Case.of("float16", m=9, n=64)
    small, large, half = (launches.plan_of(case, ()) for case in cases)
    assert small.binaries == large.binaries
    assert small.binaries != half.binaries
    assert len(launches._binaries) == 2


def test_types_of_parameters_follow_from_arguments_and_buffers() -> None:
    held = {"in0": "bfloat16", "tmp0": "uint8"}
    made = cute_types(("in0", "tmp0", "i32:m", "i64:m * n", "f32:1e-6", "scalar:in2"), held.__getitem__)
    assert made == ("bfloat16*", "uint8*", "int32", "int64", "float32", "float32")


def test_judge_and_job_compile_one_binary(declared: Declared) -> None:
    """In a confined process and in this one, from files of other names."""
    from tests.kernels.good import swiglu_cute

    made = declared(SWIGLU, "swiglu").plan_of(Case.of("float16", **ROWS), ())
    types = ("float16*", "float16*", "float16*", "int64")
    _, binary = cute_binary(swiglu_cute.swiglu, (256, 1, 1), types, "sm_90a")
    assert made.binaries == (binary,)


@pytest.mark.parametrize(
    ("source", "reason", "words"),
    [
        ("def swiglu(gate, up, out, count): pass", Reason.compile_failed, "launch"),
        ("import cutlass", Reason.entry_missing, "no kernel 'swiglu'"),
        ("def swiglu(:", Reason.syntax, ""),
        ("raise SystemExit", Reason.compile_failed, "at import"),
        (SWIGLU.source.replace(", count: cutlass.Int64", ""), Reason.compile_failed, "arguments do not match"),
    ],
    ids=["no kernel", "missing", "syntax", "ends", "parameters"],
)
def test_what_does_not_compile_is_refused(declared: Declared, source: str, reason: Reason, words: str) -> None:
    with pytest.raises(Refusal) as caught:
        declared(replace(SWIGLU, source=source), "swiglu").plan_of(Case.of("float32", **ROWS), ())
    assert (caught.value.reason, caught.value.stage) == (reason, "compile")
    assert words in caught.value.detail
    assert "\x1b" not in caught.value.detail


def test_the_python_of_a_kernel_runs_confined(declared: Declared) -> None:
    """Its body is traced in a process that may read no such file; the static read says so first."""
    cheat = in_cute("reads_files_while_traced", "exploits").candidate
    with pytest.raises(Refusal, match="PermissionError") as caught:
        declared(cheat, "swiglu").plan_of(Case.of("float32", **ROWS), ())
    assert caught.value.reason is Reason.compile_failed
    assert [str(one) for one in read(cheat)] == ["line 20: uses open"]


def test_finished_kernels_of_cutlass_are_out_of_reach(declared: Declared) -> None:
    """Installed or not: where they lie nothing is read but by library compositions."""
    cheat = in_cute("operators_of_cutlass", "exploits").candidate
    with pytest.raises(Refusal) as caught:
        declared(cheat, "swiglu").plan_of(Case.of("float32", **ROWS), ())
    assert caught.value.reason is Reason.compile_failed
    assert [one.reason for one in read(cheat)] == [Reason.static_refusal]


def test_a_buffer_that_is_a_number_is_refused(declared: Declared) -> None:
    """Where the static check of the declaration saw no case to evaluate it at."""
    launch = Launch("swiglu", ("1", "1", "1"), ("256", "1", "1"), ("in0", "in1", "in7", "i64:m"))
    with pytest.raises(Refusal, match="in7 is no buffer"):
        declared(replace(SWIGLU, launches=(launch,)), "swiglu").plan_of(Case.of("float32", **ROWS), ())


def test_without_the_library_a_candidate_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "cute_version", lambda: "none")
    with pytest.raises(service.Unfit, match="pip install nvidia-cutlass-dsl"):
        service.compiled_source({"language": "cute"})


def test_a_judge_without_a_gpu_says_so_and_accuses_nobody(cpu_judge: Judge) -> None:
    verdict = cpu_judge.verdict(SWIGLU, named("swiglu"), Request(CPU, None))
    assert verdict.status is Status.machine_fault
    assert "needs a GPU" in verdict.detail


def test_the_example_that_a_language_model_is_shown_compiles(declared: Declared) -> None:
    """With the launch that its prompt names for it."""
    code = textwrap.dedent(CUTE[CUTE.index("  import cutlass") :])
    (line,) = re.findall("`(launch: .*)`", CUTE)
    text = f"# nightshift candidate\n# problem: copy\n# language: cute\n# {line}\n\n{code}"
    made = parse_candidate(text).candidate
    assert read(made) == ()
    (step,) = declared(made, "copy").plan_of(Case.of("float16", **ROWS), ()).steps
    assert isinstance(step, Fire)
    assert step.shape == Shape((28, 1, 1), (256, 1, 1))
    assert CUTE in RULES


@pytest.mark.parametrize("name", ["right_kernel_never_launched", "block_of_another_size"])
def test_a_cheat_that_only_running_shows_compiles(declared: Declared, name: str) -> None:
    """The GPU's gallery has the verdicts: text and binary show nothing."""
    file = in_cute(name, "exploits")
    assert misfit(file.candidate, named(file.problem)) == ""
    assert read(file.candidate) == ()
    assert declared(file.candidate, file.problem).plan_of(Case.of("float32", **ROWS), ()).launches == 1
