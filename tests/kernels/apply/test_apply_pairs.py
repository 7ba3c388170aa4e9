"""Rotary embeddings of pairs and of halves are read off a graph where they are there, and nowhere else."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx

from nightshift.kernels.apply.job.rotary import Rotation, rotation
from tests.kernels.apply.pair_graphs import Ran, changed, changes, graph_of, holds, inputs
from tests.kernels.apply.pair_spellings import HALVED, SPELLINGS, Write, sliced, written

WAYS = [(how, back, by) for how in (*SPELLINGS, *HALVED) for back in (False, True) for by in (False, True)]
WAYS += [(written, False, False), (written, False, True)]
NAMES = [f"{how.__name__}{'-back' * back}{'-by-position' * by}" for how, back, by in WAYS]


@cache
def traced(how: Write, back: bool, by_position: bool) -> torch.fx.GraphModule:
    return graph_of(how, back, by_position)


def result(module: torch.fx.GraphModule) -> torch.fx.Node:
    (node,) = (n for n in module.graph.nodes if n.op == "output")
    value = node.args[0]
    assert isinstance(value, torch.fx.Node)
    return value


def read(module: torch.fx.GraphModule, halves: bool = False) -> list[Rotation]:
    return [found for node in module.graph.nodes if (found := rotation(node, halves)) is not None]


@pytest.mark.parametrize(("how", "back", "by_position"), WAYS, ids=NAMES)
def test_each_spelling_and_its_gradient_is_a_rotation_of_what_was_given(
    how: Write, back: bool, by_position: bool
) -> None:
    module = traced(how, back, by_position)
    run = Ran(module)
    run.run(*inputs(how, by_position))
    found = rotation(result(module), how in HALVED)
    assert found is not None
    assert rotation(result(module), how not in HALVED) is None
    kind = "half" if how in HALVED else "interleaved"
    assert found.problem == f"rotary_{kind}{'_by_position' * by_position}{'_backward' * back}"
    assert found.x.name.startswith("g_1" if back else "x_1")
    assert holds(found, run.values)


@pytest.mark.parametrize(("how", "back", "by_position"), WAYS, ids=NAMES)
def test_with_one_sign_one_index_or_one_operand_changed_it_is_no_rotation_of_that(
    how: Write, back: bool, by_position: bool
) -> None:
    """Every single change. What changes nothing may be read as before; what does is read as what it is, or not."""
    module = traced(how, back, by_position)
    given = inputs(how, by_position)
    before, claim = module(*given), rotation(result(module), how in HALVED)
    assert claim is not None
    count = 0
    for name, change in changes(module.graph):
        other = changed(module, change)
        run = Ran(other)
        try:
            now = run.run(*given)
        except RuntimeError:
            continue  # what cannot be computed compiles nowhere
        for found in read(other, how in HALVED):
            assert holds(found, run.values), f"{name}: {found}"
        found = rotation(result(other), how in HALVED)
        if not torch.allclose(now, before, rtol=1e-4, atol=1e-5):
            count += 1
            same = found is not None and (str(found.x), found.problem) == (str(claim.x), claim.problem)
            same = same and (str(found.cos), str(found.sin)) == (str(claim.cos), str(claim.sin))  # type: ignore[union-attr]
            assert not same, name
    assert count >= (2 if "complex" in how.__name__ else 8), "changes that change something"


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(WAYS), st.data())
def test_whatever_is_changed_what_is_read_is_what_is_computed(
    way: tuple[Write, bool, bool], data: st.DataObject
) -> None:
    """Several changes at once."""
    module = traced(*way)
    listed = [change for _, change in changes(module.graph)]
    some = data.draw(st.lists(st.sampled_from(range(len(listed))), min_size=1, max_size=4))
    other = changed(module, *(listed[number] for number in some))
    run = Ran(other)
    try:
        run.run(*inputs(way[0], way[2]))
    except RuntimeError:
        return
    assert all(holds(found, run.values) for found in read(other, way[0] in HALVED))


def test_tables_for_each_batch_other_dtypes_and_odd_strides_are_left_alone() -> None:
    """Of none of them a kernel is certified."""
    x, cos = torch.randn(2, 3, 5, 8), torch.randn(5, 4)
    for tensors in (
        (x, cos.expand(2, 1, 5, 4).clone(), cos.expand(2, 1, 5, 4).clone()),
        (x.half(), cos, cos + 1.0),
        (x[:, :, 1:], cos[1:], cos[1:] + 1.0),
        (x[..., :6], cos[:, :3], cos[:, :3] + 1.0),
        (x, cos[0], cos[0] + 1.0),
        (x[0], cos, cos + 1.0),
    ):
        module = make_fx(sliced, tracing_mode="fake")(*tensors)
        assert read(module) == []
    assert len(read(make_fx(sliced, tracing_mode="fake")(x, cos, cos + 1.0))) == 1
