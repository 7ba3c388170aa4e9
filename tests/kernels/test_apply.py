"""The job's file: swaps what it may, computes the same, guards, falls back, notices errors, takes all back."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kernels.apply import runtime
from kernels.apply.bundle import bundle, write_bundle
from kernels.generate.families.backward import Backward
from kernels.generate.families.cross_entropy import CrossEntropy
from kernels.generate.families.gelu import Gelu
from kernels.generate.template import candidate
from kernels.problem import Case

SCRIPT = Path(__file__).parent / "applied.py"
RMS = """
import torch
import triton
import triton.language as tl


@triton.jit
def norm(x, weight, out, n, eps, wrong, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    v = tl.load(x + row * n + column, mask=column < n, other=0.0).to(tl.float32)
    w = tl.load(weight + column, mask=column < n, other=0.0).to(tl.float32)
    y = v * tl.rsqrt(tl.sum(v * v, 0) / n + eps) * w * wrong
    tl.store(out + row * n + column, y.to(out.dtype.element_ty), mask=column < n)


def entry(x, weight, eps):
    out = torch.empty_like(x)
    norm[(x.shape[0],)](x, weight, out, x.shape[1], eps, WRONG, BLOCK=triton.next_power_of_2(x.shape[1]))
    return out
"""
LOSS = """
import torch
import triton
import triton.language as tl


@triton.jit
def loss(x, target, out, v, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    z = tl.load(x + row * v + column, mask=column < v, other=-float("inf")).to(tl.float32)
    hit = tl.load(x + row * v + tl.load(target + row)).to(tl.float32)
    peak = tl.max(z, 0)
    tl.store(out + row, tl.log(tl.sum(tl.exp(z - peak), 0)) + peak - hit)


def entry(logits, target):
    out = torch.empty(logits.shape[:1], dtype=logits.dtype, device=logits.device)
    loss[(logits.shape[0],)](logits, target, out, logits.shape[1], BLOCK=triton.next_power_of_2(logits.shape[1]))
    return out
"""
TABLE = """
import torch
import triton
import triton.language as tl


@triton.jit
def gather(gradient, index, out, t, d, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for token in range(0, t):
        mine = tl.load(index + token) == row
        total += tl.where(mine, tl.load(gradient + token * d + column, mask=column < d, other=0.0), 0.0)
    tl.store(out + row * d + column, total, mask=column < d)


def entry(gradient, index, rows):
    t, d = gradient.shape
    out = torch.empty((rows, d), dtype=gradient.dtype, device=gradient.device)
    gather[(rows,)](gradient, index, out, t, d, BLOCK=triton.next_power_of_2(d))
    return out
"""


def record(problem: str, source: str, **sizes: int) -> dict[str, Any]:
    sha256 = hashlib.sha256(source.encode()).hexdigest()
    return {
        "problem": problem,
        "certificate": hashlib.sha256(f"{problem} {sha256}".encode()).hexdigest(),
        "candidate": sha256,
        "source": source,
        "source_sha256": sha256,
        "entry": "entry",
        "dtype": "float32",
        "sizes": sizes,
        "bounds": [],
        "status": "correct",
        "architecture": "none",
        "torch": "none",
        "triton": "none",
    }


def records(wrong: float = 1.0) -> list[dict[str, Any]]:
    case = Case.of("float32", m=12, n=64)
    backward = candidate(
        Backward(), "rmsnorm_backward", case, Backward().space("rmsnorm_backward", case).configs[0]
    )
    return [
        record("rmsnorm", RMS.replace("WRONG", str(wrong)), m=12, n=64),
        record("rmsnorm_backward", backward.source, m=12, n=64),
        record("cross_entropy", LOSS, m=12, v=48),
        record("embedding_gradient", TABLE, t=12, d=64, v=48),
        record("swiglu", "", m=1, n=1),
    ]


def narrow_records() -> list[dict[str, Any]]:
    """bfloat16 kernels of a compiled step: GELU, and the loss of logits that are cast to float32."""
    loss, rows = Case.of("bfloat16", m=12, v=48), Case.of("bfloat16", m=12, n=64)
    made = []
    for family, problem, case in (
        (CrossEntropy(), "cross_entropy_cast", loss),
        (Backward(), "cross_entropy_cast_backward", loss),
        (Gelu(), "gelu", rows),
    ):
        source = candidate(family, problem, case, family.space(problem, case).configs[0]).source
        made.append({**record(problem, source, **case.sizes), "dtype": "bfloat16"})
    return made


def run(what: str, folder: Path, listed: list[dict[str, Any]]) -> dict[str, Any]:
    file = folder / "nightshift_kernels.py"
    write_bundle(file, listed)
    registry = folder / "registry"
    registry.mkdir(exist_ok=True)
    environment = {**os.environ, "TRITON_INTERPRET": "1", "NIGHTSHIFT_KERNEL_REGISTRY": str(registry), "RANK": "3"}
    command = [sys.executable, "-I", str(SCRIPT), str(file), what]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


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
        [f"swiglu {records()[4]['certificate'][:16]}", "no place in a model is known for it"]
    ]
    assert seen["fallbacks_seen"]
    assert seen["restored"] == 3
    assert seen["back"]


def test_torch_compile_takes_the_operators_without_a_break(tmp_path: Path) -> None:
    seen = run("compiled", tmp_path, records())
    assert seen["equal"]
    assert seen["opcheck"] == [True, True, True]


def test_a_cast_before_the_loss_is_folded_into_the_operator(tmp_path: Path) -> None:
    """In a compiled region the loss's kernels read 16-bit logits themselves, forward and backward."""
    found = run("folded", tmp_path, narrow_records())
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
    assert seen["before"] == seen["after"] == 1
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


def test_every_guard_refuses_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    fit = {**records()[0], "bounds": [{"name": "n", "low": 1, "high": 64, "multiple": 4}]}
    monkeypatch.setattr(runtime, "_ON_CPU", False)
    x = torch.zeros(12, 64, device="meta")
    sizes = {"m": 12, "n": 64}
    assert runtime._refusal(fit, sizes, (x,)) == "device"
    monkeypatch.setattr(runtime, "_ON_CPU", True)
    assert runtime._refusal(fit, sizes, (x,)) == ""
    assert runtime._refusal(fit, sizes, (x.half(),)) == "dtype"
    assert runtime._refusal(fit, sizes, (x.t(),)) == "stride"
    assert runtime._refusal(fit, {**sizes, "n": 60}, (x,)) == "shape"
    assert runtime._refusal(fit, {**sizes, "m": 49}, (x,)) == "shape"
    assert runtime._refusal(fit, {**sizes, "m": 48}, (x,)) == ""
    assert runtime._refusal(fit, {**sizes, "m": 2}, (x,)) == "shape"
    narrow = {**fit, "bounds": [{"name": "n", "low": 1, "high": 32, "multiple": 1}]}
    assert runtime._refusal(narrow, sizes, (x,)) == "shape"


def test_of_two_kernels_for_one_operation_the_second_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    first, second = (record("rmsnorm", f"def entry(*inputs):\n    return {n}\n", m=12, n=n) for n in (64, 128))
    monkeypatch.setattr(runtime, "_STATE", runtime._State())
    monkeypatch.setattr(runtime, "_ON_CPU", True)
    monkeypatch.setattr(runtime, "KERNELS", [first, second])
    for _ in range(2):
        ((what, why),) = runtime.apply(torch.nn.Linear(2, 2), functions=False).skipped
        assert second["certificate"][:16] in what
        assert "one shape of each" in why


def test_a_shadow_check_without_memory_does_not_stop_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    state = runtime._State(shadow_every=1)
    state.kernels["softmax"] = runtime._Kernel({"problem": "softmax", "certificate": "c"}, lambda x: x + 1)
    monkeypatch.setattr(runtime, "_STATE", state)

    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(runtime, "_shadowed", full)
    assert runtime._run("softmax", (torch.zeros(2),)).tolist() == [1.0, 1.0]
    assert runtime.fallbacks() == {"shadow: no memory": 1}


def _fake(problem: str) -> runtime._Kernel:
    return runtime._Kernel({"problem": problem, "certificate": problem}, lambda *inputs: None)


@pytest.mark.parametrize(
    ("gains", "kept"),
    [
        ({"rmsnorm": 0.1, "cross_entropy": 0.05}, {"rmsnorm", "rmsnorm_backward", "cross_entropy"}),
        ({"rmsnorm": 0.1, "cross_entropy": -0.05}, {"rmsnorm", "rmsnorm_backward"}),
        ({"rmsnorm": -0.1, "cross_entropy": -0.05}, set()),
        ({"rmsnorm": 0.0005, "cross_entropy": 0.0}, set()),
    ],
)
def test_the_canary_keeps_what_makes_the_step_faster(
    monkeypatch: pytest.MonkeyPatch, gains: dict[str, float], kept: set[str]
) -> None:
    told: list[str] = []
    state = runtime._State(log=told.append)
    state.kernels.update({name: _fake(name) for name in ("rmsnorm", "rmsnorm_backward", "cross_entropy")})
    monkeypatch.setattr(runtime, "_STATE", state)
    now = [0.0]

    def step() -> None:
        now[0] += 1.0 - sum(gain for name, gain in gains.items() if name in state.kernels)

    seconds = runtime.canary(step, clock=lambda: now[0])
    assert set(state.kernels) == kept
    assert seconds["none"] == pytest.approx(1.0)
    assert "canary keeps" in told[0]


def _rank(number: int, folder: str) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=number, world_size=2)
    told = [runtime._ranks_disagree("a"), runtime._ranks_disagree("a" if number == 0 else "b")]
    (Path(folder) / f"out.{number}").write_text(json.dumps(told))
    dist.destroy_process_group()


@pytest.mark.full
def test_ranks_with_other_certificates_use_none(tmp_path: Path) -> None:
    import torch.multiprocessing as mp

    mp.spawn(_rank, (str(tmp_path),), nprocs=2)
    told = [json.loads((tmp_path / f"out.{n}").read_text()) for n in range(2)]
    assert told == [["", "ranks [1] have other certificates than rank 0"]] * 2


def test_the_file_stands_alone() -> None:
    text = bundle(records())
    compile(text, "nightshift_kernels.py", "exec")
    imported = [line for line in text.splitlines() if line.startswith(("import ", "from "))]
    assert not any(name in line for line in imported for name in ("kernels", "collectors", "agent", "numpy"))
