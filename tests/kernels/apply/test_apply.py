"""The job's file: swaps what it may, computes the same, guards, falls back, notices errors, takes all back."""

from __future__ import annotations

import atexit
import importlib.util
import json
import os
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from nightshift.kernels.apply.bundle import bundle, write_bundle
from nightshift.kernels.ops.gelu.triton_family import Gelu
from nightshift.kernels.ops.rmsnorm.triton_family import RmsNorm
from nightshift.kernels.ops.rows.summing_gradient_family import Backward
from nightshift.kernels.problem import Case
from tests.kernels.apply.applied_records import (
    adamw_record,
    attention_record,
    every_record,
    made_of,
    narrow_records,
    record,
    records,
)

SCRIPT = Path(__file__).parent / "applied.py"
COMPILED = SCRIPT.with_name("applied_compiled.py")


def run(
    what: str, folder: Path, listed: list[dict[str, Any]], interpret: str = "1", script: Path = SCRIPT
) -> dict[str, Any]:
    file = folder / "nightshift_kernels.py"
    write_bundle(file, listed)
    registry = folder / "registry"
    registry.mkdir(exist_ok=True)
    environment = {
        **os.environ,
        "TRITON_INTERPRET": interpret,
        "NIGHTSHIFT_KERNEL_REGISTRY": str(registry),
        "RANK": "3",
    }
    out, err = folder / "out", folder / "err"
    out.unlink(missing_ok=True)
    err.unlink(missing_ok=True)
    order = {
        "script": str(script),
        "arguments": [str(file), what],
        "environment": environment,
        "folder": str(folder),
        "out": str(out),
        "err": str(err),
    }
    warm = _warm(interpret)
    assert warm.stdin is not None
    assert warm.stdout is not None
    warm.stdin.write(json.dumps(order) + "\n")
    warm.stdin.flush()
    assert warm.stdout.readline() == "0\n", err.read_text()[-3000:]
    found: dict[str, Any] = json.loads(out.read_text().splitlines()[-1])
    return found


@cache
def _warm(interpret: str) -> subprocess.Popen[str]:
    """What forks those programs; it ends when this process does."""
    warm = subprocess.Popen(
        [sys.executable, "-I", str(SCRIPT.with_name("warm_program.py"))],
        env={**os.environ, "TRITON_INTERPRET": interpret},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(warm.communicate)
    return warm


def test_a_job_computes_the_same_with_the_kernels_and_gets_everything_back(tmp_path: Path) -> None:
    seen = run("plain", tmp_path, records())
    assert [(where, problem) for where, problem, _ in seen["applied"]] == [
        ("table", "embedding_gradient"),
        ("first", "rmsnorm"),
        ("torch.nn.functional.cross_entropy", "cross_entropy"),
    ]  # not the module that only looks like one, not the layer norm, for which there is no kernel
    assert seen["equal"], "losses or gradients differ"
    assert seen["same_twice"]
    assert seen["keys_same"]
    assert seen["calls"] == {"rmsnorm": 3, "rmsnorm_backward": 3, "cross_entropy": 3, "embedding_gradient": 3}
    assert seen["skipped"] == [
        [f"reduce_sum {records()[4]['certificate'][:16]}", "no place in a model is known for it"]
    ]
    assert seen["fallbacks_seen"]
    assert seen["restored"] == 3
    assert seen["back"]


def test_torch_compile_takes_the_operators_without_a_break(tmp_path: Path) -> None:
    seen = run("compiled", tmp_path, records(), script=COMPILED)
    assert seen["equal"]
    assert seen["opcheck"] == [True, True, True]


def test_a_kernel_that_beat_eager_torch_alone_is_called_by_eager_code_alone(tmp_path: Path) -> None:
    listed = [{**record, "status": "inconclusive"} for record in records() if "rmsnorm" in record["problem"]]
    seen = run("eager_only", tmp_path, listed, script=COMPILED)
    assert seen["equal"] == [True, True]
    assert seen["eager"] == seen["after"] == {"rmsnorm": 3, "rmsnorm_backward": 3}
    assert [what.split()[0] for what in seen["told"]] == ["rmsnorm", "rmsnorm_backward"]


@pytest.mark.full
def test_a_canary_compiles_each_set_once_and_each_set_s_steps_call_its_kernels(tmp_path: Path) -> None:
    """A real model's region takes half a minute to compile: once for each of a dozen readings is no canary."""
    seen = run("chosen", tmp_path, records(), script=COMPILED)
    assert seen["turns"] == 4.0
    assert set(seen["idle"]) == {"cross_entropy"}, "this step computes no loss"
    compiled = Counter(seen["compiled"])
    assert compiled["torch"] == 2, "forward and backward"
    # the set of all is met twice: with and without the kernel that no step called
    assert compiled.pop("embed rmsnorm") == compiled.pop("embedding_gradient rmsnorm_backward") == 2
    assert set(compiled.values()) <= {1, 2}
    assert len(seen["compiled"]) == 10


def test_a_compiler_that_may_look_in_sees_the_launches_and_nothing_of_a_demoted_kernel(tmp_path: Path) -> None:
    """Traced without a GPU: closed operators are one node each, open ones their Triton kernels with what these
    write, on a step that is watched they are closed again, and of a disabled kernel torch's own formula is left."""
    case = Case.of("float32", m=12, n=64)
    norm, backward = made_of(RmsNorm(), "rmsnorm", case), made_of(Backward(), "rmsnorm_backward", case)
    listed = [norm, backward, made_of(Gelu(), "gelu", case), adamw_record()]
    seen = run("seen_through", tmp_path, listed, interpret="0", script=COMPILED)
    closed = [{"launches": 0, "written": [], "ours": 2}, {"launches": 0, "written": [], "ours": 1}]
    assert seen["closed"] == seen["watching"] == closed
    forward = {"launches": 2, "written": ["out", "out"], "ours": 0}
    assert seen["open"] == [forward, {"launches": 2, "written": ["out", "out", "part"], "ours": 0}]
    assert [graph["launches"] for graph in seen["no gradient"]] == [1, 0], "gelu's is left, of the norm's none"
    assert seen["disabled"] == [{"launches": 0, "written": [], "ours": 0}] * 2
    assert seen["opened"] == ["gelu", "rmsnorm", "rmsnorm_backward"], "an optimiser's step is in no region"
    assert seen["renamed"], "a compiler's cache on disk must not give another kernel's launches"


@pytest.mark.full
def test_every_operator_passes_torch_s_own_check_with_a_certified_kernel_behind_it(tmp_path: Path) -> None:
    """Schema, fake, autograd registration and tracing: what torch.compile and CUDA graphs rely on."""
    seen = run("opchecked", tmp_path, every_record(), script=COMPILED)
    assert sorted(seen["found"]) == seen["specs"]
    assert seen["found"] == {problem: {} for problem in seen["specs"]}
    assert seen["skipped"] == []
    assert seen["fence"] == {}  # the operator that compiled regions ask for fresh copies
    assert set(seen["calls"]) == set(seen["specs"])
    assert all(seen["calls"].values()), "torch's formula stood in for a kernel"


@pytest.mark.full
def test_attention_is_the_kernel_s_where_nothing_is_differentiated(tmp_path: Path) -> None:
    seen = run("attended", tmp_path, [attention_record()])
    assert seen["equal"]
    assert seen["calls"] == 1
    assert seen["fallbacks"] == {"flash_attention: gradient": 1, "flash_attention: not causal": 1}
    assert seen["gradient"]
    assert seen["restored"] == 1


def test_adamw_s_large_parameters_are_the_kernel_s_and_nothing_else_changes(tmp_path: Path) -> None:
    """Losses, moments, step numbers, groups and a schedule are torch's own; a resumed state is noticed."""
    seen = run("stepped", tmp_path, [adamw_record()])
    assert seen["losses"]
    assert seen["state"]
    assert seen["steps"] == [6.0, 6.0]
    assert seen["groups"]
    assert (seen["checks"], seen["wrong"]) == (1, 0)
    assert seen["calls"] == 6
    assert seen["restored"] == 1
    assert seen["back"]


@pytest.mark.full
def test_a_wrong_optimiser_kernel_is_found_on_a_copy(tmp_path: Path) -> None:
    seen = run("mistepped", tmp_path, [adamw_record("- 1.01 * scale * mean")])
    assert seen["equal"]
    assert seen["wrong"] == 1
    assert "shadow check" in seen["disabled"]


def test_a_cast_before_the_loss_is_folded_into_the_operator(tmp_path: Path) -> None:
    """In a compiled region the loss's kernels read 16-bit logits themselves, forward and backward."""
    found = run("folded", tmp_path, narrow_records(), script=COMPILED)
    assert found["without"] == []
    assert found["kinds"] == ["torch.bfloat16"] * 2
    assert found["wide"][1] == 0 < found["wide"][0]
    assert found["equal"]
    assert found["taken_back"]
    assert found["calls"] == {"cross_entropy_cast": 1, "cross_entropy_cast_backward": 1, "gelu": 1}


def test_a_wrong_kernel_is_found_by_its_shadow_and_torch_goes_on(tmp_path: Path) -> None:
    seen = run("shadowed", tmp_path, records(wrong=1.01))
    assert seen["equal"], "the job must not see the wrong values"
    (note,) = seen["notes"]
    assert note["certificate"] == records(wrong=1.01)[0]["certificate"]
    assert note["rank"] == "3"
    assert "shadow_mismatches=1" in seen["line"]
    assert "rank=3" in seen["line"]
    assert any("torch computes it now" in line for line in seen["told"])


def test_a_demotion_reaches_the_job_at_its_next_step_or_start(tmp_path: Path) -> None:
    seen = run("demoted", tmp_path, records())
    assert (seen["before"], seen["after"]) == (1, 2)  # one step, and one compiled call before the demotion
    assert seen["graphs"] == [1, 0], "a compiled region has to be compiled anew, without the kernel"
    assert any("demoted" in line for line in seen["told"])
    assert any(why == "demoted in the registry" for _, why in seen["skipped"])


@pytest.mark.full
def test_what_does_not_fit_this_machine_is_skipped_with_its_reason(tmp_path: Path) -> None:
    changes: list[tuple[dict[str, Any], str]] = [
        ({"torch": "0.1"}, "certified with torch 0.1"),
        ({"triton": "0.1"}, "certified with triton 0.1"),
        ({"architecture": "9.0"}, "no GPU"),
        ({"source": "x = 1"}, "not the one that was certified"),
    ]
    seen = run("plain", tmp_path, [{**records()[0], **change} for change, _ in changes])
    assert seen["applied"] == []
    assert seen["equal"]
    for (_, why), (_, told) in zip(changes, seen["skipped"], strict=True):
        assert why in told


@pytest.fixture
def runtime(tmp_path: Path) -> Any:
    """The job's file without kernels, as a module of this process."""
    path = tmp_path / "nightshift_kernels.py"
    write_bundle(path, [])
    spec = importlib.util.spec_from_file_location("nightshift_kernels_here", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.mark.parametrize(
    ("gpu", "why"),
    [
        ("NVIDIA H200", ""),
        ("NVIDIA H100 80GB HBM3", "certified on NVIDIA H100 80GB HBM3, this is NVIDIA H200"),
        (None, ""),  # files of older versions name none
    ],
)
def test_a_kernel_runs_on_the_gpu_that_it_was_certified_on_and_no_other_of_its_architecture(
    runtime: Any, monkeypatch: pytest.MonkeyPatch, gpu: str | None, why: str
) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    record = {**records()[0], "architecture": "9.0", **({} if gpu is None else {"gpu": gpu})}
    assert runtime.unfit(record) == why


def test_every_guard_refuses_with_its_reason(runtime: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    fit = {**records()[0], "bounds": [{"name": "n", "low": 1, "high": 64, "multiple": 4}]}
    monkeypatch.setattr(runtime, "ON_CPU", False)
    x = torch.zeros(12, 64)
    sizes = {"m": 12, "n": 64}
    assert runtime.refusal(fit, sizes, (x,)) == "device"
    monkeypatch.setattr(runtime, "ON_CPU", True)
    assert runtime.refusal(fit, sizes, (x,)) == ""
    assert runtime.refusal(fit, sizes, (x.to("meta"),)) == "device"
    assert runtime.refusal(fit, sizes, (x.half(),)) == "dtype"
    assert runtime.refusal(fit, sizes, (x.t(),)) == "stride"
    assert runtime.refusal(fit, {**sizes, "n": 60}, (x,)) == "shape"
    assert runtime.refusal(fit, {**sizes, "m": 49}, (x,)) == "shape"
    assert runtime.refusal(fit, {**sizes, "m": 48}, (x,)) == ""
    assert runtime.refusal(fit, {**sizes, "m": 2}, (x,)) == "shape"
    narrow = {**fit, "bounds": [{"name": "n", "low": 1, "high": 32, "multiple": 1}]}
    assert runtime.refusal(narrow, sizes, (x,)) == "shape"


def test_of_two_kernels_for_one_operation_the_second_is_named(
    runtime: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    first, second = (record("rmsnorm", f"def entry(*inputs):\n    return {n}\n", m=12, n=n) for n in (64, 128))
    monkeypatch.setattr(runtime, "STATE", runtime.JobState())
    monkeypatch.setattr(runtime, "ON_CPU", True)
    monkeypatch.setattr(runtime, "KERNELS", [first, second])
    for _ in range(2):
        ((what, why),) = runtime.apply(torch.nn.Linear(2, 2), functions=False).skipped
        assert second["certificate"][:16] in what
        assert "one shape of each" in why


def test_a_shadow_check_without_memory_does_not_stop_the_job(runtime: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    state = runtime.JobState(shadow_every=1)
    record = {"problem": "softmax", "certificate": "c", "status": "faster"}
    state.kernels["softmax"] = runtime.Kernel(record, lambda x: x + 1)
    monkeypatch.setattr(runtime, "STATE", state)

    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(runtime, "shadowed", full)
    assert runtime.run_once("softmax", (torch.zeros(2),)).tolist() == [1.0, 1.0]
    assert runtime.fallbacks() == {"shadow: no memory": 1}


def test_the_file_stands_alone() -> None:
    text = bundle(records())
    compile(text, "nightshift_kernels.py", "exec")
    imported = [line for line in text.splitlines() if line.startswith(("import ", "from "))]
    assert not any(name in line for line in imported for name in ("kernels", "collectors", "agent", "numpy"))
