"""Rotary embeddings: what a compiled region computes that way, and two functions for a model's own code to call.

A pass over joint graphs (`turns` reads them) makes one kernel of two rotations by the same tables, forward and
backward; another makes one of each rotation of pairs that lie side by side (`pairs` reads them). In eager code
nothing calls such a function by a name that could be found: `rotary` and `rotary_interleaved` are there to be
called instead. Where a guard refuses, and before `apply`, they are torch's.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import nn

from nightshift.kernels.apply.job.folds import viewed
from nightshift.kernels.apply.job.guards import refusal
from nightshift.kernels.apply.job.operators import operator_of, run_once
from nightshift.kernels.apply.job.pairs import AngleTable, PairRotation, pair_rotation
from nightshift.kernels.apply.job.places import transformed
from nightshift.kernels.apply.job.problems import SPECS
from nightshift.kernels.apply.job.state import HALVES, PAIRS, STATE, Kernel, Report, fell_back, in_use, slot
from nightshift.kernels.apply.job.turns import Rotation, rotation


class TurnHalves:
    """A pass for torch._inductor.config.joint_custom_pre_pass."""

    def __init__(self, earlier: Any = None) -> None:
        self.earlier = earlier

    def uuid(self) -> Any:
        """For the compiler's cache."""
        inner = getattr(self.earlier, "uuid", lambda: None)() if self.earlier is not None else ""
        used = sorted(k.certificate for k in STATE.kernels.values() if k.problem in HALVES and not k.disabled)
        return None if inner is None else ("nightshift turn halves 1", tuple(used), inner)

    def __call__(self, graph: Any) -> None:
        if self.earlier is not None:
            self.earlier(graph)
        order = {node: number for number, node in enumerate(graph.nodes)}
        waiting: dict[tuple[Any, ...], Rotation] = {}
        for node in list(graph.nodes):
            found = rotation(node) if node.op == "call_function" else None
            if found is None or in_use(found.problem) is None:
                continue
            first = waiting.pop(found.key, None)
            if first is None or not self._swap(graph, first, found, order):
                waiting[found.key] = found
        graph.eliminate_dead_code()

    def _swap(self, graph: Any, first: Rotation, second: Rotation, order: dict[Any, int]) -> bool:
        """Puts one kernel where the first of the two sums is or where the second is: all that it needs is known
        there, nothing that it makes was wanted before. False where there is no such place, or a guard refuses."""
        needs = [second.x, second.cos, second.sin, first.x, first.cos, first.sin]
        if any(n not in order for n in needs):
            return False
        if all(order[n] < order[first.out] for n in needs):
            before = first.out
        elif all(order.get(user, -1) > order[second.out] for user in first.out.users):
            before = second.out
        else:
            return False
        for q, k in ((first, second), (second, first)):
            given = [_moved(one.x.meta["val"], one.moved) for one in (q, k)]
            positions = given[0].shape[-3 if "position" in q.problem else -2]
            tables = [t.meta["val"].view(positions, given[0].shape[-1]) for t in (q.cos, q.sin)]
            kernel = in_use(q.problem)
            if kernel is None or refusal(kernel.record, SPECS[q.problem].sizes(*given, *tables), (*given, *tables)):
                continue
            with graph.inserting_before(before):
                self._put(graph, q, k, [*given, *tables])
            return True
        return False

    def _put(self, graph: Any, q: Rotation, k: Rotation, values: list[Any]) -> None:
        nodes = [_permuted(graph, one.x) if one.moved else one.x for one in (q, k)]
        for table, value in zip((q.cos, q.sin), values[2:], strict=True):
            nodes.append(graph.call_function(torch.ops.aten.view.default, (table, list(value.shape))))
            nodes[-1].meta["val"] = value
        made = graph.call_function(operator_of(q.problem)._opoverload, tuple(nodes))
        fakes = SPECS[q.problem].fake(*values)
        # the second says to the compiler that operands must lie as they do here
        made.meta = {**q.out.meta, "val": fakes, "eager_input_vals": (tuple(values), {})}
        for number, one in enumerate((q, k)):
            part = graph.call_function(operator.getitem, (made, number))
            part.meta["val"] = fakes[number]
            whole = _permuted(graph, part) if one.moved else part
            if whole.meta["val"].stride() != one.out.meta["val"].stride():
                whole = _laid_out(graph, whole, one.out.meta["val"])
            one.out.replace_all_uses_with(whole)


def _moved(value: torch.Tensor, moved: bool) -> torch.Tensor:
    return value.permute(0, 2, 1, 3) if moved else value


def _permuted(graph: Any, node: Any) -> Any:
    made = graph.call_function(torch.ops.aten.permute.default, (node, [0, 2, 1, 3]))
    made.meta["val"] = node.meta["val"].permute(0, 2, 1, 3)
    return made


def _laid_out(graph: Any, node: Any, like: torch.Tensor) -> Any:
    """A copy with the strides that torch's own result has: views behind it were traced for those."""
    given = node if like.is_contiguous() else _permuted(graph, node)
    made = graph.call_function(torch.ops.aten.clone.default, (given,), {"memory_format": torch.contiguous_format})
    made.meta["val"] = given.meta["val"].clone(memory_format=torch.contiguous_format)
    return made if like.is_contiguous() else _permuted(graph, made)


class TurnPairs:
    """The same for pairs that lie side by side, one rotation by one kernel."""

    def __init__(self, earlier: Any = None) -> None:
        self.earlier = earlier

    def uuid(self) -> Any:
        """For the compiler's cache."""
        inner = getattr(self.earlier, "uuid", lambda: None)() if self.earlier is not None else ""
        used = sorted(k.certificate for k in STATE.kernels.values() if k.problem in PAIRS and not k.disabled)
        return None if inner is None else ("nightshift turn pairs 1", tuple(used), inner)

    def __call__(self, graph: Any) -> None:
        if self.earlier is not None:
            self.earlier(graph)
        for node in list(graph.nodes):
            found = pair_rotation(node)
            if found is not None:
                self._swap(graph, found)
        graph.eliminate_dead_code()

    def _swap(self, graph: Any, found: PairRotation) -> None:
        x, old = _moved(found.x.meta["val"], found.moved), found.out.meta["val"]
        positions, half = x.shape[1 if "position" in found.problem else 2], x.shape[3] // 2
        tables = [x.new_empty((positions, half)) for _ in range(2)]
        kernel = kernel_of(found.problem, x, *tables)
        if kernel is None or refusal(kernel.record, SPECS[found.problem].sizes(x, *tables), (x, *tables)):
            return
        with graph.inserting_before(found.out):
            nodes = [_permuted(graph, found.x) if found.moved else found.x]
            nodes += [_listed(graph, table, [positions, half]) for table in (found.cos, found.sin)]
            made = graph.call_function(operator_of(found.problem)._opoverload, tuple(nodes))
            values = tuple(node.meta["val"] for node in nodes)
            # the second says to the compiler that operands must lie as they do here
            made.meta = {**found.out.meta, "val": x.new_empty(x.shape), "eager_input_vals": (values, {})}
            whole = _permuted(graph, made) if found.moved else made
            if whole.meta["val"].stride() != old.stride():
                whole = _laid_out(graph, whole, old)
        found.out.replace_all_uses_with(whole)


def _listed(graph: Any, table: AngleTable, sizes: list[int]) -> Any:
    """A table as rows: of complex numbers the part that is meant, by itself."""
    node = table.node
    if table.of:
        real = graph.call_function(torch.ops.aten.view_as_real.default, (node,))
        real.meta["val"] = torch.view_as_real(node.meta["val"])
        part = graph.call_function(torch.ops.aten.select.int, (real, -1, int(table.of == "im")))
        part.meta["val"] = real.meta["val"].select(-1, int(table.of == "im"))
        node = _laid_out(graph, part, part.meta["val"].contiguous())
    return viewed(graph, node, sizes)


class Turned(torch.autograd.Function):
    """A rotation by a problem whose last two inputs are the tables; `torch.compile` sees the operators in it."""

    @staticmethod
    def forward(ctx: Any, problem: str, *tensors: torch.Tensor) -> Any:
        ctx.save_for_backward(*tensors[-2:])
        ctx.problem = problem
        return _turn_by(problem, *tensors)

    @staticmethod
    def backward(ctx: Any, *g: torch.Tensor) -> Any:
        made = _turn_by(f"{ctx.problem}_backward", *(x.contiguous() for x in g), *ctx.saved_tensors)
        return (None, *(made if isinstance(made, tuple | list) else (made,)), None, None)


def kernel_of(problem: str, *tensors: torch.Tensor) -> Kernel | None:
    """The kernel in use for a rotation of these."""
    dtype = str(tensors[0].dtype).removeprefix("torch.")
    return in_use(slot(problem, SPECS[problem].sizes(*tensors), dtype))


def _turn_by(problem: str, *tensors: torch.Tensor) -> Any:
    """By the kernel where one may, else by torch; where it is differentiated again as well."""
    kernel = kernel_of(problem, *tensors)
    if kernel is not None and not torch.is_grad_enabled():
        why = refusal(kernel.record, SPECS[problem].sizes(*tensors), tensors)
        plain = all(type(x) in (torch.Tensor, nn.Parameter) for x in tensors)
        if not why and (torch.compiler.is_compiling() or not plain):
            return operator_of(problem)(*tensors)
        if not why:
            return run_once(problem, tensors)
        fell_back(problem, why)
    return SPECS[problem].reference(*tensors)


def _rotated(problem: str, *tensors: torch.Tensor) -> Any:
    if tensors[-1].requires_grad or tensors[-2].requires_grad or transformed():
        return SPECS[problem].reference(*tensors)
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        return Turned.apply(problem, *tensors)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        return _turn_by(problem, *tensors)


def rotary(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """q · cos + (−upper, lower half of q) · sin, and the same of k, as Llama does it; by a certified kernel where
    one may. q: (b, h, s, d); k: (b, g, s, d), in memory as they are or turned from (b, s, h, d); cos, sin: (s, d),
    dimensions of one before that are taken away. Raises RuntimeError where these do not fit."""
    positions, width = q.shape[-2:]
    tables = [table.reshape(positions, width) for table in (cos, sin)]
    if q.is_contiguous() and k.is_contiguous():
        made = _rotated("rotary_half", q, k, *tables)
    else:
        made = (
            x.transpose(1, 2)
            for x in _rotated("rotary_half_by_position", q.transpose(1, 2), k.transpose(1, 2), *tables)
        )
    q, k = made
    return q, k


def rotary_interleaved(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotates the pairs (0, 1), (2, 3)… of the last dimension. x: (b, h, s, d), in memory as it is or turned from
    (b, s, h, d); cos, sin: (s, d/2), as `rotary`."""
    tables = [table.reshape(x.shape[-2], x.shape[-1] // 2) for table in (cos, sin)]
    if x.is_contiguous():
        made: torch.Tensor = _rotated("rotary_interleaved", x, *tables)
    else:
        made = _rotated("rotary_interleaved_by_position", x.transpose(1, 2), *tables).transpose(1, 2)
    return made


def name_rotary(report: Report) -> None:
    """Tells of the kernels, and makes their operators."""
    for name, kernel in STATE.kernels.items():
        if name.startswith("rotary"):
            operator_of(kernel.problem)
            report.applied.append(("rotary embeddings", name, kernel.certificate))
