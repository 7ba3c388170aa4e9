"""The job's file after a job changed what it was applied to, and in jobs larger than what the judge asked."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.kernels.apply.torch_kernels import SAME, WIDE, D, Job, Mlp, N, X, calls, held, quietly


class Counting(nn.LayerNorm):
    """Counts its calls, and keeps what it saw last."""

    def __init__(self) -> None:
        super().__init__(N)
        self.calls, self.norm = 0, F.layer_norm

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self.calls, self.last = self.calls + 1, input
        return self.norm(input, self.normalized_shape, self.weight, self.bias, self.eps)


def test_a_number_or_a_function_that_a_job_changed_on_a_module_since_is_what_counts(job: Job) -> None:
    """An epsilon, a scale, a probability: the kernel's place was found with another one. Asking leaves no trace."""
    kernels = job(held("layernorm"), held("swiglu"))
    norm, block, torchs = Counting(), Mlp(), nn.LayerNorm(N)
    block.act = nn.Sequential(nn.SiLU(), nn.Dropout(0.0))
    model = nn.ModuleList([norm, block, torchs])
    assert len(quietly(kernels, model).applied) == 3
    assert (norm.calls, hasattr(norm, "last")) == (0, False)
    norm(SAME), norm(SAME), torchs(SAME), block(X)
    before = calls(kernels)
    assert before == {"layernorm": 3, "swiglu": 1}
    compiled, seen = torch.compile(torchs, backend="eager", fullgraph=True), torch.compile(block, backend="eager")
    torchs.eps, block.act[1].p = 3.0, 1.0
    norm.norm = lambda x, *_: x * 2.0
    want = F.layer_norm(SAME, (N,), torchs.weight, torchs.bias, 3.0)
    assert torch.equal(torchs(SAME), want)
    assert torch.equal(compiled(SAME), want)
    assert torch.equal(norm(SAME), SAME * 2.0)
    assert not block(X).any()
    assert not seen(X).any()
    assert calls(kernels) == before
    once = {"layernorm: changed, in a compiled region": 1, "swiglu: changed, in a compiled region": 1}
    assert kernels.fallbacks() == {"layernorm: changed": 2, "swiglu: changed": 1, **once}
    torchs.eps = 1e-5
    torchs(SAME)
    assert calls(kernels)["layernorm"] == 4


def test_a_block_whose_class_was_derived_since_is_the_same_block(job: Job) -> None:
    """As `fully_shard` does with what it shards: order does not matter."""
    kernels = job(held("swiglu"))
    block = Mlp()
    quietly(kernels, block)
    for part in (block, block.act):
        part.__class__ = type(f"FSDP{type(part).__name__}", (type(part),), {})
    block(X)
    assert calls(kernels) == {"swiglu": 1}


class Formula(nn.Module):
    """As Llama's: of its input autograd keeps nothing where only the weight is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(N))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


@pytest.mark.parametrize("problem", ["rmsnorm", "rmsnorm_backward"])
def test_features_of_inference_mode_train_a_head_as_they_do_without_kernels(job: Job, problem: str) -> None:
    """Saved for a gradient they raise."""
    kernels = job(held(problem))
    model = nn.Sequential(Formula())
    assert quietly(kernels, model).applied[0][0] == "0"
    with torch.inference_mode():
        features = SAME * 2.0
    model(features).sum().backward()
    assert model[0].weight.grad is not None
    assert calls(kernels) == {}


def test_tensors_without_data_are_torchs(job: Job) -> None:
    """Autocast cannot even be asked about a device such as meta: linear layers and attention raised."""
    kernels = job(held("linear"), held("gelu"), held("flash_attention"))
    quietly(kernels, nn.Identity())
    with torch.device("meta"):
        q = torch.empty(2, 4, 16, 8)
        assert F.linear(torch.empty(6, D), torch.empty(WIDE, D)).shape == (6, WIDE)
        assert F.scaled_dot_product_attention(q, q, q, is_causal=True).is_meta
    assert calls(kernels) == {}


def test_a_class_s_forward_that_was_replaced_since_is_the_one_that_computes(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As libraries patch the norms of models that are already built."""
    kernels = job(held("layernorm"))
    model = nn.Sequential(nn.LayerNorm(N))
    quietly(kernels, model)
    monkeypatch.setattr(nn.LayerNorm, "forward", lambda self, x: x * self.eps)
    assert torch.equal(model(SAME), SAME * 1e-5)
    assert torch.equal(torch.compile(model, backend="eager", fullgraph=True)(SAME), SAME * 1e-5)
    assert kernels.fallbacks() == {"layernorm: changed": 1, "layernorm: changed, in a compiled region": 1}


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_torchscript_is_given_torchs_own(job: Job) -> None:
    """It reads sources: of ours it said "Compiled functions can't take variable number of arguments"."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.block = nn.LayerNorm(N), Mlp()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.softmax(self.block(F.gelu(self.norm(x))[:, :16].contiguous()), -1)

    kernels, torchs = job(held("layernorm"), held("gelu"), held("softmax"), held("swiglu")), torch.jit.script
    model = Net()
    want = model(SAME)
    quietly(kernels, model)
    scripted = torch.jit.script(model)
    assert torch.allclose(scripted(SAME), want, atol=1e-6)
    assert calls(kernels) == {}
    with pytest.raises(Exception, match="top-level"):
        torch.jit.script(lambda *pack: F.gelu(pack[0]))
    assert torch.allclose(model(SAME), want, atol=1e-6)
    assert calls(kernels) == {"layernorm": 1, "gelu": 1, "swiglu": 1}
    kernels.unapply(model)
    assert torch.jit.script is torchs


def test_a_size_beyond_all_that_the_judge_asked_is_torchs_and_counted(job: Job) -> None:
    kernels = job(held("gelu", largest={"m": 12, "n": 4096}))
    quietly(kernels, nn.Identity())
    F.gelu(torch.zeros(12, N)), F.gelu(torch.zeros(13, N))
    assert (calls(kernels), kernels.fallbacks()) == ({"gelu": 1}, {"gelu: size": 1})


@pytest.mark.parametrize(("largest", "launches"), [(1024, [1000]), (999, [960, 40]), (300, [256, 256, 256, 232])])
def test_a_parameter_larger_than_the_judge_asked_is_stepped_in_parts(
    job: Job, monkeypatch: pytest.MonkeyPatch, largest: int, launches: list[int]
) -> None:
    """Each launch is of a size that was shown to be right; a parameter that cannot be parted so is torch's."""
    kernels = job(held("adamw", largest={"n": largest}, mutates=[0, 2, 3]))
    monkeypatch.setattr(kernels, "SMALLEST", 1)
    weight = nn.Parameter(torch.ones(10, 100))
    weight.grad = torch.ones(10, 100)
    optimizer = torch.optim.AdamW([weight], lr=0.5)
    quietly(kernels, nn.Identity(), optimizer=optimizer)
    optimizer.step()
    held_ = kernels.STATE.kernels["adamw"]
    assert held_.entry.__globals__["SEEN"] == launches
    assert held_.calls == len(launches)
    assert torch.equal(weight, torch.full_like(weight, 0.5))
    held_.record["bounds"] = [{"name": "n", "low": 50, "high": 2**53, "multiple": 1}]
    optimizer.step()
    assert len(held_.entry.__globals__["SEEN"]) == len(launches) + (launches[-1] >= 50) * len(launches)


@pytest.mark.parametrize(
    ("changed", "launches"),
    [
        ({}, [50000]),
        ({"largest": {"n": 50000}}, [50000]),
        ({"largest": {"n": 49999}}, [49152, 848]),
        ({"largest": {"n": 1 << 20}, "bounds": [{"name": "n", "low": 0, "high": 20000, "multiple": 1}]},
         [16384, 16384, 16384, 848]),
        ({"largest": {"n": 16383}}, []),
        ({"bounds": [{"name": "n", "low": 0, "high": 1 << 20, "multiple": 16}]}, []),
    ],
)  # fmt: skip
def test_one_launch_for_all_parameters_is_several_where_the_judge_asked_of_fewer_elements(
    job: Job, changed: dict[str, Any], launches: list[int]
) -> None:
    """A model may be larger than the one that the kernel was certified for; one for which no table is small enough
    is torch's."""
    kernels = job(held("adamw_many", dtype="bfloat16", mutates=[0, 2, 3, 4], **changed))
    weight = nn.Parameter(torch.ones(50, 1000))
    weight.grad = torch.ones(50, 1000)
    optimizer = torch.optim.AdamW([weight], lr=0.5, weight_decay=0.0)
    quietly(kernels, nn.Identity(), optimizer=optimizer)
    optimizer.step()
    held_ = kernels.STATE.kernels["adamw_many"]
    assert held_.entry.__globals__["SEEN"] == launches
    assert held_.calls == bool(launches)
    assert torch.allclose(weight, torch.full_like(weight, 0.5))


def test_parameters_that_lie_further_apart_than_a_table_was_asked_to_count_are_launched_apart(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a large GPU they lie more than 2³¹ elements apart, which a kernel may hold in 32 bits."""
    kernels = job(held("adamw_many", dtype="bfloat16", mutates=[0, 2, 3, 4]))
    monkeypatch.setattr(kernels, "_REACH", 30000)
    store = torch.ones(48000)
    weights = [nn.Parameter(store[at : at + 8000]) for at in (40000, 0)]
    for weight in weights:
        weight.grad = torch.ones(8000)
    optimizer = torch.optim.AdamW(weights, lr=0.5, weight_decay=0.0)
    quietly(kernels, nn.Identity(), optimizer=optimizer)
    optimizer.step()
    held_ = kernels.STATE.kernels["adamw_many"]
    assert held_.entry.__globals__["SEEN"] == [8000, 8000]
    assert held_.calls == 1
    assert all(torch.allclose(weight, torch.full_like(weight, 0.5)) for weight in weights)


def test_a_parameter_without_elements_is_stepped_with_the_others(job: Job) -> None:
    """It lies nowhere: the others were counted from there, or the step ended in an error."""
    kernels = job(held("adamw_many", dtype="bfloat16", mutates=[0, 2, 3, 4]))
    weights = [nn.Parameter(torch.ones(size)) for size in (40, 0)]
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    optimizer = torch.optim.AdamW(weights, lr=0.5, weight_decay=0.0)
    quietly(kernels, nn.Identity(), optimizer=optimizer)
    optimizer.step()
    assert kernels.STATE.kernels["adamw_many"].entry.__globals__["SEEN"] == [40]
    assert all(torch.allclose(weight, torch.full_like(weight, 0.5)) for weight in weights)
    assert [int(optimizer.state[weight]["step"]) for weight in weights] == [1, 1]
