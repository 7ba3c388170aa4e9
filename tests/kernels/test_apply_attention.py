"""Attention in the job's file: a training step's, eager and compiled; what is refused, and what jobs do with it."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nightshift.kernels.apply.job import heads
from nightshift.kernels.apply.job.heads import attended, attention_gradients, plain_attention, side_by_side
from nightshift.kernels.ops.attention.triton_family import FlashAttention
from nightshift.kernels.ops.problems import named
from nightshift.kernels.problem import Case
from tests.kernels.applied_records import attention_records, made_of
from tests.kernels.test_apply import run

SCRIPT = Path(__file__).parent / "applied_attention.py"
CASE = Case.of("float16", b=2, h=2, s=24, d=16)
FORWARD, BACKWARD = "flash_attention_by_position", "flash_attention_by_position_backward"
PLACE = "torch.nn.functional.scaled_dot_product_attention"


def records() -> list[dict[str, Any]]:
    return [made_of(FlashAttention(), "flash_attention", CASE), *attention_records(CASE)]


@pytest.mark.full
def test_a_training_step_s_attention_is_the_kernels_where_projections_leave_it(tmp_path: Path) -> None:
    """Of one projection for all three or of one each: both kernels, as near to float64 as torch's own. What lies
    heads first is torch's in training, and the other kernel's where nothing is differentiated."""
    seen = run("trained", tmp_path, records(), script=SCRIPT)
    assert seen["applied"] == [[PLACE, "flash_attention"], [PLACE, FORWARD], [PLACE, BACKWARD]]
    for lies in ("packed", "by position"):
        assert seen[lies] == {"near": True, "torch's": False, "calls": [1, 1], "shape": [2, 2, 24, 16]}
    assert seen["heads first"]["torch's"]
    assert seen["heads first"]["calls"] == [0, 0]
    assert seen["alike"] == {"scale": True, "one tensor": True, "frozen": True}
    assert seen["inferred"] == [True] * 4
    # two ways, another scale said, one tensor, frozen ones; and three times without gradients
    assert seen["calls"] == {"flash_attention": 1, FORWARD: 8, BACKWARD: 5}
    assert seen["fallbacks"] == {f"{FORWARD}: stride": 1}
    assert seen["checks"] >= 6
    assert seen["wrong"] == 0


@pytest.mark.full
def test_what_is_no_plain_causal_attention_is_torch_s_and_the_reason_is_told(tmp_path: Path) -> None:
    seen = run("refused", tmp_path, records(), script=SCRIPT)
    reasons = {name: name for name in ("mask", "not causal", "scale", "heads", "dtype", "shape", "stride")}
    reasons |= {"length": "shape", "mixed": "stride"}
    told = {name: [True, {f"{FORWARD}: {why}": 1}] for name, why in reasons.items()}
    assert seen["told"] == {**told, "dropout": [True, {}], "math": [True, {}]}
    assert {f"{FORWARD}: dropout", f"{FORWARD}: backend"} <= {*seen["fallbacks"]}
    assert set(seen["calls"].values()) == {0}


@pytest.mark.full
def test_attention_is_what_it_was_for_whatever_a_job_does_with_it(tmp_path: Path) -> None:
    """[right, forward calls, gradient's calls] each. Second derivatives are the formula's; transforms torch's."""
    seen = run("odd", tmp_path, records(), script=SCRIPT)
    kernels = {name: [True, 1, 1] for name in ("autocast", "hooks", "kept elsewhere", "sum")}
    again = {name: [True, 2, 1] for name in ("checkpoint True", "checkpoint False")}
    torchs = {"second derivatives": [True, 1, 0], "transform": [True, 0, 0], "nested": [True, 0, 0]}
    assert seen == {**kernels, **again, **torchs, "keys": True, "restored": 1, "back": True}


@pytest.mark.full
def test_compiled_regions_take_both_operators_and_give_them_up_when_one_is_demoted(tmp_path: Path) -> None:
    """One graph, no break, by AOT autograd alone and by Inductor, whose operands lie as they were certified. Of a
    step that one kernel was demoted for, torch computes that part."""
    seen = run("compiled", tmp_path, records(), script=SCRIPT)
    both = {FORWARD: 1, BACKWARD: 1}
    for backend in ("aot_eager", "inductor"):
        for lies in ("packed", "apart"):
            assert seen[f"{backend} {lies}"] == [True, True, 2, 2]
    assert seen["graphs"] == [both, both]
    assert seen["fallbacks"] == {}
    assert seen["dynamic"]
    assert seen["math"] == [True, True]
    assert seen["inferred"] == [[2, 24, 32], 1, 0]
    assert seen[f"without {BACKWARD}"] == [True, 1, 0]
    assert seen[f"without {FORWARD}"] == [True, 0, 0]
    assert seen["wrong"] == 0
    assert seen["after"]


@pytest.mark.full
@pytest.mark.parametrize("which", [0, 1])
def test_a_shadow_check_finds_a_wrong_attention_kernel_and_torch_goes_on(tmp_path: Path, which: int) -> None:
    """A forward kernel whose logarithms alone are wrong, and a gradient that forgets the scale of one input."""
    listed = attention_records(CASE)
    old, new = (("* 0.6931471805599453", "* 0.6931"), ("(to_k * scale)", "(to_k)"))[which]
    assert old in listed[which]["source"]
    source = listed[which]["source"].replace(old, new)
    listed[which] |= {"source": source, "source_sha256": sha256(source.encode()).hexdigest()}
    seen = run("mistaken", tmp_path, listed, script=SCRIPT)
    assert seen["right"] == [True, True]
    assert seen["disabled"] == [n == which for n in range(2)]
    assert seen["calls"] == [1 if n == which else 2 for n in range(2)], "the other one goes on"


@pytest.mark.full
def test_a_kernel_that_was_certified_for_whole_tensors_leaves_slices_to_torch(tmp_path: Path) -> None:
    listed = [{**one, "layouts": ["contiguous"]} for one in attention_records(CASE)]
    seen = run("whole", tmp_path, listed, script=SCRIPT)
    assert seen["packed"] == [True, 0, 0]
    assert seen["by position"] == [True, 1, 1]
    assert seen["fallbacks"] == {f"{FORWARD}: stride": 1}


@pytest.mark.full
@pytest.mark.parametrize("which", [0, 1])
def test_of_a_step_that_only_one_kernel_is_certified_for_torch_computes_the_rest(
    tmp_path: Path, which: int
) -> None:
    """The gradient reads what torch's forward pass kept, or torch's what the kernel kept."""
    seen = run("whole", tmp_path, attention_records(CASE)[which : which + 1], script=SCRIPT)
    one = [True, int(which == 0), int(which == 1)]
    assert (seen["packed"], seen["by position"], seen["fallbacks"]) == (one, one, {})
    assert seen["inferred"] == [True, int(which == 0), 0]


class Aten:
    """torch's operators by the formula, held to their own schemas; `called`: which were."""

    def __init__(self) -> None:
        self.called: list[str] = []

    def __getattr__(self, name: str) -> Any:
        schema = getattr(torch.ops.aten, name).default._schema

        def call(*given: Any) -> Any:
            self.called.append(name)
            a = {argument.name: value for argument, value in zip(schema.arguments, given, strict=False)}
            missing = [x.name for x in schema.arguments[len(given) :] if not x.has_default_value()]
            assert (missing, a["is_causal"], a["dropout_p"]) == ([], True, 0.0)
            q, cudnn = a["query"], "cudnn" in name
            if name.endswith("backward"):
                assert a["max_q"] == a["max_k"] == q.shape[2]
                assert all(a[n] is None for n in ("cum_seq_q", "cum_seq_k", *(["attn_bias"] if cudnn else [])))
                logs = a["logsumexp"]
                assert logs.shape == (*q.shape[:3], 1)[: 4 if cudnn else 3]
                named_ = [a[n] for n in ("grad_out", "query", "key", "value", "out")]
                return heads._plain_gradients(*named_, logs.reshape(q.shape[:3]))
            assert not cudnn or (a["attn_bias"], a["compute_log_sumexp"]) == (None, True)
            out, logs = plain_attention(q, a["key"], a["value"])
            return out, logs[..., None] if cudnn else logs, None

        return call


@pytest.mark.parametrize("whose", ["cudnn", "flash"])
def test_torch_s_own_kernels_are_given_what_they_take(monkeypatch: pytest.MonkeyPatch, whose: str) -> None:
    """They run on a GPU alone: their arguments are held against their schemas, results against the formula."""
    case = Case.of("float16", b=2, h=3, s=9, d=16)
    packed = torch.randn(2, 9, 3, 3, 16, generator=torch.Generator().manual_seed(2)).half()
    inputs = packed.unbind(2)
    g = named("flash_attention_by_position").inputs(case, "normal", 3, "cpu")[0]
    assert isinstance(g, torch.Tensor)
    out, logs = attended(*inputs)
    wanted = attention_gradients(g, *inputs, out, logs)
    aten = Aten()
    monkeypatch.setattr(heads, "_torchs", lambda *_: whose)
    monkeypatch.setattr(heads, "ATEN", aten)
    made = attended(*inputs)
    again = attention_gradients(g, *inputs, *made)
    for mine, theirs in zip((*made, *again), (out, logs, *wanted), strict=True):
        torch.testing.assert_close(mine, theirs)
        assert mine.is_contiguous()
    assert aten.called == [f"_scaled_dot_product_{whose}_attention{back}" for back in ("", "_backward")]


@given(
    sizes=st.tuples(*(st.integers(1, 3) for _ in range(3)), st.sampled_from([1, 8, 16])),
    strides=st.tuples(*(st.sampled_from([0, 1, 8, 16, 24, 32, 48, 64, 96, 128, 144, 288, 384]) for _ in range(4))),
    sliced=st.booleans(),
)
def test_what_counts_as_side_by_side_is_addressed_as_the_kernels_address_it(
    sizes: tuple[int, int, int, int], strides: tuple[int, int, int, int], sliced: bool
) -> None:
    """Row (batch · s + position) · its stride, the head's d columns: the tensor's own address, of every element."""
    x = torch.arange(8192, dtype=torch.float16).as_strided(sizes, strides)
    record = {"layouts": ["contiguous", "sliced"] if sliced else ["contiguous"]}
    if not side_by_side(record, x):
        return
    (_, s, h, d), (batch, row, head, one) = sizes, strides
    for i, j, k, column in torch.cartesian_prod(*(torch.arange(n) for n in sizes)).reshape(-1, 4).tolist():
        own = i * batch + j * row + k * head + column * one
        assert (i * s + j) * row + k * d + column == own
    assert sliced or row == h * d


def test_of_tensors_that_lie_as_projections_leave_them_none_is_left_out() -> None:
    packed = torch.zeros(2, 6, 3, 4, 16, dtype=torch.float16)
    whole, slices = {"layouts": ["contiguous"]}, {"layouts": ["contiguous", "sliced"]}
    for x in packed.unbind(2):
        assert side_by_side(slices, x)
        assert not side_by_side(whole, x)
        assert side_by_side(whole, x.contiguous())
        assert not side_by_side(slices, x.transpose(1, 2))
    assert not side_by_side(slices, packed[:, :3, 0])  # batches are further apart still
    assert not side_by_side(slices, torch.zeros(2, 6, 68, dtype=torch.float16)[..., :64].unflatten(-1, (4, 16)))


def test_the_formulas_of_the_job_s_file_are_those_of_the_problems() -> None:
    """Head by head and all at once; the gradients are autograd's."""
    forward, backward = (named(f"flash_attention_by_position{back}") for back in ("", "_backward"))
    case = Case.of("float16", b=2, h=3, s=9, d=16)
    inputs = [x.double() for x in forward.inputs(case, "normal", 3, "cpu") if isinstance(x, torch.Tensor)]
    for mine, theirs in zip(attended(*inputs), forward.reference(*inputs), strict=True):
        torch.testing.assert_close(mine, theirs)
    leaves = [x.transpose(1, 2).requires_grad_(True) for x in inputs]
    out, logs = plain_attention(*leaves)
    g = torch.randn(out.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    given_ = [x.transpose(1, 2) for x in (g, *leaves, out)]
    wanted = torch.autograd.grad(out, leaves, g, retain_graph=True)
    for made in (attention_gradients(*given_, logs), backward.reference(*given_, logs)):
        for mine, theirs in zip(made, wanted, strict=True):
            torch.testing.assert_close(mine.detach(), theirs.transpose(1, 2))
