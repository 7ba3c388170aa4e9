"""The job's file beside what only looks like what it knows: by class, shape, dtype, or since a job changed it."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from tests.kernels.apply.applied_records import record
from tests.kernels.apply.torch_kernels import SAME, WIDE, D, Job, Mlp, N, X, calls, held, quietly


class Scaled(nn.Embedding):
    """As Gemma and BART look words up."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) * 8.0


class Dropping(nn.LayerNorm):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return F.dropout(super().forward(input), 0.5, self.training)


class Widening(nn.Module):
    """An RMSNorm that gives float32, whatever it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(N) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.float()
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


@pytest.mark.parametrize(
    ("module", "problem", "dtype"),
    [
        (Scaled(48, N), "embedding_gradient", "float32"),
        (nn.GroupNorm(1, N), "layernorm", "float32"),
        (Dropping(N).eval(), "layernorm", "float32"),
        (Dropping(N), "layernorm", "float32"),
        (Widening(), "rmsnorm", "bfloat16"),
    ],
)
def test_what_computes_something_else_than_its_looks_say_is_left_alone(
    job: Job, module: nn.Module, problem: str, dtype: str
) -> None:
    """A subclass that scales what it looks up; a norm over other axes of larger tensors, with values dropped in
    training only, or of another dtype than it is given."""
    kernels = job(held(problem, dtype=dtype))
    mode = module.training
    assert quietly(kernels, nn.Sequential(module), functions=False).applied == []
    assert module.training is mode


def test_norms_that_are_norms_in_every_way_are_swapped_in_the_dtype_of_their_kernel(job: Job) -> None:
    kernels = job(held("rmsnorm", dtype="bfloat16"), held("layernorm"), held("embedding_gradient"))
    model = nn.Sequential(nn.RMSNorm(N, eps=1e-6), nn.LayerNorm(N).eval(), nn.Embedding(48, N))
    assert [where for where, _, _ in quietly(kernels, model, functions=False).applied] == ["0", "1", "2"]


def test_what_autocast_computes_in_float32_stays_float32(job: Job) -> None:
    """A kernel of bfloat16 would give bfloat16 losses, and norms, where torch gives float32."""
    kernels = job(held("cross_entropy", dtype="bfloat16"), held("softmax", dtype="bfloat16"),
                  held("layernorm", dtype="bfloat16"))  # fmt: skip
    model = nn.Sequential(nn.LayerNorm(N)).bfloat16()
    quietly(kernels, model)
    x, logits, target = SAME.bfloat16(), SAME[:, :48].bfloat16().contiguous(), torch.arange(6)
    with torch.autocast("cpu", torch.bfloat16):
        model(x), F.softmax(x, -1)
        loss = F.cross_entropy(logits, target)
    assert loss.dtype == torch.float32
    assert calls(kernels) == {}
    assert kernels.fallbacks() == {"layernorm: autocast": 1, "softmax: autocast": 1, "cross_entropy: dtype": 1}
    assert torch.equal(loss, F.cross_entropy(logits.float(), target))
    model(x), F.softmax(x, -1), F.cross_entropy(logits, target)
    assert calls(kernels) == {"layernorm": 1, "softmax": 1, "cross_entropy": 1}


def test_empty_nested_and_subclassed_tensors_are_torchs(job: Job) -> None:
    kernels = job(held("gelu"), held("softmax"), held("layernorm"))
    model = nn.Sequential(nn.LayerNorm(N))
    parts = [SAME[:3], SAME[3:5]]
    nested = torch.nested.nested_tensor(parts, layout=torch.jagged)

    class Marked(torch.Tensor):
        """As of torchvision's images."""

    quietly(kernels, model)
    assert F.gelu(torch.empty(2, 0)).shape == F.softmax(torch.empty(2, 0), -1).shape == (2, 0)
    assert torch.equal(F.gelu(nested).values(), F.gelu(torch.cat(parts)))
    assert torch.allclose(model(nested).values(), model(torch.cat(parts)))
    before = calls(kernels)
    assert type(F.gelu(SAME.as_subclass(Marked))) is Marked
    assert type(model(SAME.as_subclass(Marked))) is Marked
    assert calls(kernels) == before


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_job_that_diverged_demotes_no_kernel_and_a_kernel_that_diverges_is_found(job: Job, value: float) -> None:
    kernels = job(held("gelu"), held("softmax"), held("layernorm"))
    model = nn.Sequential(nn.LayerNorm(N))
    quietly(kernels, model, shadow_every=1)
    x = SAME.clone()
    x[2, 3] = value
    model(x), F.gelu(x), F.softmax(x, -1)
    held_ = kernels.STATE.kernels
    assert {name: (k.shadow_checks, k.disabled) for name, k in held_.items()} == dict.fromkeys(held_, (1, ""))
    entry, held_["gelu"].entry = held_["gelu"].entry, lambda x: torch.full_like(x, torch.nan)
    F.gelu(x)
    assert held_["gelu"].disabled.startswith("shadow check: error inf")
    held_["gelu"].disabled, held_["gelu"].entry = "", lambda x: entry(x).nan_to_num(0.0) * 1.001
    F.gelu(x)
    assert held_["gelu"].disabled.startswith("shadow check")


class Adapted(nn.Module):
    """As LoRA wraps a layer: it shows the weight of the one within."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base = base

    @property
    def weight(self) -> Any:
        return self.base.weight

    @property
    def bias(self) -> Any:
        return self.base.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + 1.0


def test_a_block_that_a_job_changed_since_computes_what_it_says_now(job: Job) -> None:
    kernels = job(held("swiglu"), held("fused_mlp"))
    block = Mlp()
    quietly(kernels, block)
    with torch.no_grad():
        block(X)
        assert calls(kernels) == {"fused_mlp": 1}
        block.gate = Adapted(block.gate)  # type: ignore[assignment]
        assert torch.allclose(block(X), Mlp.forward(block, X), atol=1e-6)
        assert calls(kernels) == {"fused_mlp": 1, "swiglu": 1}
        block.act = nn.GELU()
        assert torch.equal(block(X), Mlp.forward(block, X))
        assert calls(kernels) == {"fused_mlp": 1, "swiglu": 1}


def test_modules_whose_parameters_are_cut_up_by_rank_are_left_alone_unless_they_were_swapped_before(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch.distributed.fsdp

    class Wrapper(nn.Sequential):
        """Cuts parameters up as FullyShardedDataParallel does, which needs a process group."""

    monkeypatch.setattr(torch.distributed.fsdp, "FullyShardedDataParallel", Wrapper)
    kernels = job(held("layernorm"))
    model = nn.Sequential(Wrapper(nn.LayerNorm(N)), nn.LayerNorm(N))
    report = quietly(kernels, model)
    assert [where for where, _, _ in report.applied] == ["1"]
    assert "before it wraps them" in str(report)
    first = quietly(kernels, nn.Sequential(model[0][0])).applied
    assert [where for where, _, _ in first] == ["0"]
    assert [where for where, _, _ in quietly(kernels, model).applied] == ["0.0", "1"]


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_modes_and_tracers_see_operators_and_sparse_weights_are_torchs(job: Job) -> None:
    """make_fx took a kernel's unwritten output for the result, and kept it; selective checkpoints kept one too."""
    kernels = job(held("gelu"), held("layernorm"), held("linear"))
    model = nn.Sequential(nn.LayerNorm(N), nn.GELU())
    quietly(kernels, model)
    traced = make_fx(model)(SAME)
    written = [str(node.target) for node in traced.graph.nodes]
    assert {"nightshift.layernorm.default", "nightshift.gelu.default"} <= set(written)
    assert torch.allclose(traced(SAME.flip(0)), model(SAME.flip(0)), atol=1e-6)
    seen: list[str] = []

    def keep(_: Any, operator: Any, *args: Any, **named: Any) -> CheckpointPolicy:
        seen.append(str(operator))
        return CheckpointPolicy.MUST_SAVE

    x, before = SAME.clone().requires_grad_(True), calls(kernels)
    contexts = functools.partial(create_selective_checkpoint_contexts, keep)
    checkpoint(model, x, use_reentrant=False, context_fn=contexts).sum().backward()
    assert {"nightshift.layernorm.default", "nightshift.gelu.default"} <= set(seen)
    assert calls(kernels) == {name: count + 1 for name, count in before.items()}
    weight = torch.randn(WIDE, D)
    assert weight.shape in kernels.STATE.widths
    assert torch.allclose(F.linear(X, weight.to_sparse_csr()), X @ weight.t(), atol=1e-5)
    ragged = torch.nested.nested_tensor([X[:3], X[3:]], layout=torch.jagged)
    assert torch.allclose(F.linear(ragged, weight).values(), X @ weight.t(), atol=1e-5)


class Losing(nn.Module):
    """A loss of logits that are cast, as a compiled region has it folded."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(x[:, :48].bfloat16().float(), torch.arange(6))


def test_an_exported_model_knows_nothing_of_this_file(job: Job) -> None:
    loss = record("cross_entropy_cast", "entry = None", m=6, v=48)
    kernels = job(held("gelu"), held("layernorm"), {**loss, "dtype": "bfloat16"})
    model = nn.Sequential(nn.LayerNorm(N), nn.GELU(), Losing())
    quietly(kernels, model)
    for strict in (False, True):
        exported = torch.export.export(model, (SAME,), strict=strict)
        assert not any("nightshift" in str(node.target) for node in exported.graph.nodes)
        assert torch.allclose(exported.module()(SAME), model(SAME), atol=1e-6)


class Formula(nn.Module):
    """An RMSNorm written out: what it gives lies as what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(N) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


@pytest.mark.parametrize(("problem", "module"), [("gelu", nn.GELU()), ("rmsnorm", Formula())])
def test_what_is_computed_of_turned_tensors_lies_as_torch_s(job: Job, problem: str, module: nn.Module) -> None:
    """Whose rows are no rows in memory: a kernel was given a copy, and a view of what came of it was an error."""
    kernels = job(held(problem))
    x = torch.randn(N, 3, 2).permute(2, 1, 0)
    wanted = module(x)
    quietly(kernels, module)
    made = module(x)
    assert torch.equal(made, wanted)
    assert made.stride() == wanted.stride() != x.contiguous().stride()
    assert made.permute(2, 1, 0).view(-1).shape == (6 * N,)
    assert kernels.STATE.fallbacks == {f"{problem}: stride": 1}
    module(x.contiguous())
    assert calls(kernels) == {problem: 1}


def test_a_second_report_says_what_the_first_said(job: Job) -> None:
    """Of a block's two kernels it had named one."""
    kernels = job(held("swiglu"), held("fused_mlp"), held("layernorm"))
    model = nn.Sequential(nn.LayerNorm(N), Mlp())
    first, second = quietly(kernels, model), quietly(kernels, model)
    assert len(first.applied) == 3
    assert str(second) == str(first)


def test_what_a_compiler_says_of_exports_keeps_no_kernel_out_of_its_regions(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to torch 2.11 is_exporting() is true in every compiled region: all of them had been torch's, unsaid."""
    kernels = job(held("gelu"), held("layernorm"))
    model = nn.Sequential(nn.LayerNorm(N), nn.GELU())
    quietly(kernels, model)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)
    compiled(SAME)
    assert calls(kernels) == {"gelu": 1, "layernorm": 1}
    assert kernels.STATE.fallbacks == {}


def test_what_a_compiled_region_leaves_to_torch_is_counted_where_it_is_traced(job: Job) -> None:
    """Its guards are asked once and never again: it had counted nothing, however much it left."""
    kernels = job(held("gelu"), held("layernorm"))
    model = nn.Sequential(nn.LayerNorm(N), nn.GELU())
    quietly(kernels, model)
    torch._dynamo.reset()
    compiled = torch.compile(model.double(), backend="aot_eager", fullgraph=True)
    for _ in range(3):
        compiled(SAME.to(torch.float64))
    reason = "dtype, in a compiled region"
    assert kernels.fallbacks() == {f"layernorm: {reason}": 1, f"gelu: {reason}": 1}
    assert calls(kernels) == {}


def test_one_file_s_kernels_at_a_time_and_the_other_is_told(job: Job) -> None:
    first, second = job(held("gelu"), held("layernorm")), job(held("gelu"), held("layernorm"))
    model, torchs = nn.Sequential(nn.LayerNorm(N)), F.gelu
    quietly(first, model)
    report = quietly(second, model)
    assert report.applied == []
    assert [why[:46] for _, why in report.skipped] == ["another file's kernels are in use in this proc"] * 2
    model(SAME)
    assert (calls(first), calls(second)) == ({"layernorm": 1}, {})
    second.unapply(model)
    model(SAME)
    assert calls(first) == {"layernorm": 2}
    first.unapply(model)
    assert F.gelu is torchs
    assert len(quietly(second, model).applied) == 2
    second.unapply(model)
    assert F.gelu is torchs


def test_a_registry_that_is_not_there_is_told(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mount that failed or a wrong path: the job would go on with a kernel that was demoted."""
    kernels = job(held("gelu"))
    monkeypatch.setenv("NIGHTSHIFT_KERNEL_REGISTRY", str(tmp_path / "none"))
    told = f"{tmp_path}/none is no folder here: no demotion will reach this job"
    assert quietly(kernels, nn.Identity()).skipped == [("NIGHTSHIFT_KERNEL_REGISTRY", told)]
    (tmp_path / "none").mkdir()
    told_later: list[str] = []
    assert kernels.apply(nn.Identity(), log=told_later.append).skipped == []
    (tmp_path / "none").rmdir()
    kernels.step_boundary(), kernels.step_boundary()
    assert told_later == [f"nightshift kernels: {told}"], "a mount that went while the job runs, once"
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "demoted.json").write_text(
        json.dumps([{"certificate": kernels.KERNELS[0]["certificate"]}])
    )
    kernels.step_boundary()
    assert "demoted in the registry" in told_later[-1]


def test_ranks_whose_files_say_otherwise_of_a_kernel_have_other_kernels(job: Job) -> None:
    """Written by two versions: one rank would take calls that the other leaves to torch."""
    one, other = job(held("gelu")), job(held("gelu", largest={"m": 12, "n": 64}))
    assert one.KERNELS[0]["certificate"] == other.KERNELS[0]["certificate"]
    assert one.kernels_sha256() != other.kernels_sha256()
    said = [(file.kernels_sha256(), [""]) for file in (one, other)]
    assert one.agreed(said, 0) == ["ranks [1] have other kernels in their file than rank 0"]


def test_what_does_not_load_on_one_rank_is_used_on_none(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = job(held("gelu"), {**held("softmax"), "source_sha256": "0" * 64})
    distributed = torch.distributed
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(distributed, "get_rank", lambda: 0)

    def gather(every: list[Any], mine: Any) -> None:
        every[:] = [mine, (mine[0], ["does not load: OSError: No space left on device", ""])]

    monkeypatch.setattr(distributed, "all_gather_object", gather)
    report = quietly(kernels, nn.Identity())
    assert report.applied == []
    assert [why for _, why in report.skipped] == [
        "on rank 1: does not load: OSError: No space left on device",
        "does not load: ValueError: the source is not the one that was certified",
    ]


def test_of_two_models_of_a_process_both_use_the_kernels_until_one_gives_them_back(job: Job) -> None:
    """Functions are swapped for all; the other model computes as before, by torch, and is given back by itself."""
    kernels = job(held("layernorm"))
    one, other = nn.LayerNorm(N), nn.LayerNorm(N)
    wanted = other(SAME)
    for model in (one, other):
        quietly(kernels, model)
        model(SAME)
    assert calls(kernels) == {"layernorm": 2}
    assert kernels.unapply(one) == 1
    assert torch.equal(other(SAME), wanted)
    assert kernels.fallbacks() == {}
    quietly(kernels, one)
    other(SAME)
    assert calls(kernels) == {"layernorm": 1}
    assert [kernels.unapply(model) for model in (other, one)] == [1, 1]
    assert not any("forward" in vars(model) for model in (one, other))
