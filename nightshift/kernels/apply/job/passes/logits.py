"""A pass over compiled graphs: the loss over a large vocabulary is computed for some rows at a time.

Logits are the largest tensor of most steps: a row for each token, a column for each word, and their gradient again.
Rows do not depend on each other. So the last product, its loss and both of its gradients are computed for a quarter
of the rows at a time, and no more than a quarter exists. The gradients are computed where the loss is, for a
gradient of 1, and multiplied by what the backward pass brings: a gradient is linear in it.

Nothing is said here of how a loss is written: what lies between the product and its gradients has to be made of
operators that treat each row by itself, or all stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch

from nightshift.kernels.apply.job.passes.folds import VIEWS, Pass, operator_name
from nightshift.kernels.apply.job.state import STATE

CHUNKS = 4
_WORTH = 1 << 27
"""Bytes of logits below which all stays as it is."""
_ALONG = ("amax", "sum", "gather", "scatter", "squeeze", "unsqueeze")
"""Operators along one dimension, which has to be the last of two."""
_SAME = (*VIEWS, "convert_element_type", "_to_copy", "clone", "detach")
"""What changes no row, beside torch's pointwise operators."""
_LINEAR = (*_SAME, "neg", "sum", "expand", "permute", "unsqueeze", "squeeze")
"""Linear in what they are given alone; `_is_linear` has those that take two."""


class RefusedError(Exception):
    """Why a product's loss cannot be computed by rows."""


class LogitsByRows(Pass):
    """A pass for torch._inductor.config.joint_custom_pre_pass: see above."""

    HAS_KERNELS = False

    def __init__(self, earlier: Any = None, worth: int = _WORTH) -> None:
        super().__init__(earlier)
        self.worth = worth

    def named(self) -> tuple[Any, ...]:
        return ("nightshift logits by rows 1", CHUNKS, self.worth)

    def rewrite(self, graph: Any) -> None:
        for node in list(graph.nodes):
            if operator_name(node) != "mm" or not self._large(node):
                continue
            try:
                region = _Region(graph, node)
            except RefusedError:
                continue
            region.rewrite()
            STATE.rewritten["logits by rows"] += 1

    def _large(self, node: Any) -> bool:
        value, (_, inner) = node.meta["val"], node.args[0].meta["val"].shape
        if not all(isinstance(size, int) for size in (*value.shape, inner)):
            return False
        rows, words = value.shape
        # float16 would lose gradients that no loss scale was multiplied into yet
        wide = value.dtype in (torch.bfloat16, torch.float32) and words > 4 * inner and rows != words
        return wide and rows % CHUNKS == 0 and rows * words * value.element_size() >= self.worth


class _Region:
    """What lies between a product and its gradients. Raises RefusedError.

    inside: in the graph's order; each is computed for a part of the rows. scale: the one gradient that the backward
    pass brings to it; scaled: nodes that it has a part in; before: those of them that are not inside.
    """

    def __init__(self, graph: Any, product: Any) -> None:
        self.graph, self.product = graph, product
        self.rows, self.words = product.meta["val"].shape
        self.nodes = list(graph.nodes)
        self.inside = self._found()
        tangents = {n for n in self.nodes if n.op == "placeholder" and n.name.startswith("tangents")}
        self.scaled = below(tangents, self.nodes)
        needed = _above({i for n in self.inside for i in n.all_input_nodes}, self.nodes) - self.inside
        if needed & below(self.inside, self.nodes):
            raise RefusedError("a row's gradient needs more than its row")
        self.before = needed & self.scaled
        self.ahead = needed - self.scaled
        scales = [n for n in self.before if n.op == "placeholder"]
        if len(scales) > 1 or any(n.meta["val"].dim() for n in scales):
            raise RefusedError("the backward pass brings more than one number")
        self.scale = scales[0] if scales else None
        for node in self.nodes:
            if node in self.inside:
                self._check(node)
            if node.op == "call_function" and node in self.scaled and node in self.inside | self.before:
                self._check_linear(node)

    def _wide(self, node: Any) -> bool:
        value = node.meta.get("val")
        whole = isinstance(value, torch.Tensor) and value.dim() > 1 and value.shape[-1] == self.words
        return whole and value.numel() == self.rows * self.words and value.shape[0] != self.words

    def _found(self) -> set[Any]:
        """The product, all as wide that comes of it or goes into that, what lies between, and what reads it."""
        wide = {node for node in below({self.product}, self.nodes) if self._wide(node)}
        for node in reversed(self.nodes):
            if self._wide(node) and any(user in wide for user in node.users):
                wide.add(node)
        between = below(wide, self.nodes) & _above(wide, self.nodes)
        readers = {user for node in wide for user in node.users}
        turned = {user for node in readers if operator_name(node) == "permute" for user in node.users}
        return wide | between | readers | turned

    def _check(self, node: Any) -> None:
        name, value = operator_name(node), node.meta.get("val")
        if not isinstance(value, torch.Tensor) or node.target._schema.is_mutable:
            raise RefusedError(f"{node.name} is not one tensor")
        if name == "mm":
            fine = self._is_product_by_rows(node)
        elif name == "permute":
            # only as the left side of a weight's gradient
            fine = _is_transpose(node) and all(operator_name(u) == "mm" and u.args[0] is node for u in node.users)
        elif name == "full":
            fine = tuple(node.args[0]) == (self.rows, self.words)
        elif name in _ALONG:
            fine = _along_rows(node)
        elif name in VIEWS or name == "expand":
            fine = self._of_rows(node, 3) and self._of_rows(node.args[0], 3) and (name in VIEWS or value.dim() == 2)
        else:
            fine = name in _SAME or torch.Tag.pointwise in node.target.tags
            fine = fine and all(
                self._of_rows(n, 3 if n in self.inside else 2) or _alike(n) for n in node.all_input_nodes
            )
        if not fine:
            raise RefusedError(f"{node.name} may not treat each row by itself")

    def _is_product_by_rows(self, node: Any) -> bool:
        left, right = node.args
        if not (self._of_rows(right) if _is_transpose(left) else right not in self.inside):
            return False
        if node is self.product:
            return True
        given = next(n for n in node.all_input_nodes if n in self.inside)
        return self._wide(given) or _is_transpose(given)

    def _of_rows(self, node: Any, most: int = 2) -> bool:
        """Whether its first dimension, or the first two of three, are the rows."""
        shape = node.meta["val"].shape
        return (len(shape) in (1, 2) and shape[0] == self.rows) or (
            most == 3 == len(shape) and shape[0] * shape[1] == self.rows
        )

    def _check_linear(self, node: Any) -> None:
        name, given = operator_name(node), [n for n in node.all_input_nodes if n in self.scaled]
        if name in ("mul", "mm"):
            fine = len(given) == 1 and list(node.args).count(given[0]) == 1
        elif name == "div":
            fine = given == [node.args[0]] and len(node.args) == 2 and not node.kwargs
        elif name in ("add", "sub"):
            fine = all(one in self.scaled for one in node.args[:2])
        elif name == "where":
            fine = node.args[0] not in given and all(one in given or _is_zero(one) for one in node.args[1:])
        else:
            fine = name in _LINEAR
        if not fine:
            raise RefusedError(f"{node.name} may not be linear in the gradient")

    def rewrite(self) -> None:
        """Puts the chunks in the place of what is inside."""
        inside = [node for node in self.nodes if node in self.inside]
        first = inside[0]
        for node in self.nodes[self.nodes.index(first) :]:
            if node in self.ahead:
                first.prepend(node)
        with self.graph.inserting_before(first):
            known: dict[Any, Any] = {}
            if self.scale is not None:
                value = self.scale.meta["val"]
                known[self.scale] = self._call(
                    torch.ops.aten.full.default, [], 1.0, dtype=value.dtype, device=value.device
                )
            for node in self.nodes:
                if node in self.before and node.op == "call_function":
                    known[node] = self._copied(node, known)
            size = self.rows // CHUNKS
            made: list[dict[Any, Any]] = []
            for start in range(0, self.rows, size):
                made.append(self._chunk(inside, dict(known), start, made[-1] if made else {}))
            for node in inside:
                if not all(user in self.inside for user in node.users):
                    node.replace_all_uses_with(self._whole(node, [chunk[node] for chunk in made]))

    def _chunk(
        self, inside: list[Any], known: dict[Any, Any], start: int, last: Mapping[Any, Any]
    ) -> dict[Any, Any]:
        size = self.rows // CHUNKS
        for node in inside:
            for one in node.all_input_nodes:
                # a value of all rows from outside, or one that a copy was made of
                if one not in self.inside and self._of_rows(one) and not self._is_weight(node, one):
                    whole = known.get(one, one)
                    if whole.meta["val"].shape[0] == self.rows:
                        known[one] = self._call(torch.ops.aten.slice.Tensor, whole, 0, start, start + size)
            name = operator_name(node)
            if name in VIEWS and node.meta["val"].dim() == 3:
                known[node] = known[node.args[0]]
            elif name in VIEWS or name == "expand":
                shape, of = [size, *node.meta["val"].shape[1:]], node.args[0]
                target = node.target if name == "expand" else torch.ops.aten.view.default
                known[node] = self._call(target, known.get(of, of), shape)
            elif name == "full":
                known[node] = self._call(node.target, [size, self.words], *node.args[1:], **node.kwargs)
            elif node in last and name == "mm" and _is_transpose(node.args[0]):
                left, right = (known.get(one, one) for one in node.args)
                known[node] = self._call(torch.ops.aten.addmm.default, last[node], left, right)
            elif name == "gather":
                known[node] = self._picked(*(known.get(one, one) for one in (node.args[0], node.args[2])))
            else:
                known[node] = self._copied(node, known)
        return known

    def _picked(self, wide: Any, place: Any) -> Any:
        """Of each row the value at its place, as a sum. A gather would be computed with what reads it, behind the
        last chunk, and the logits of all chunks would be kept until then."""
        value = wide.meta["val"]
        words = self._call(
            torch.ops.prims.iota.default, self.words, start=0, step=1, dtype=torch.int64, device=value.device,
            requires_grad=False,
        )  # fmt: skip
        zero = self._call(torch.ops.aten.full.default, [], 0.0, dtype=value.dtype, device=value.device)
        here = self._call(torch.ops.aten.eq.Tensor, place, words)
        alone = self._call(torch.ops.aten.where.self, here, wide, zero)
        return self._call(torch.ops.aten.sum.dim_IntList, alone, [1], True)

    def _is_weight(self, node: Any, given: Any) -> bool:
        return operator_name(node) == "mm" and given is node.args[1] and not _is_transpose(node.args[0])

    def _whole(self, node: Any, parts: list[Any]) -> Any:
        if operator_name(node) == "mm" and _is_transpose(node.args[0]):
            made = parts[-1]  # each was added to the one before
        else:
            made = self._call(torch.ops.aten.cat.default, parts, 0)
        return self._call(torch.ops.aten.mul.Tensor, made, self.scale) if node in self.scaled else made

    def _copied(self, node: Any, known: Mapping[Any, Any]) -> Any:
        args, named = torch.fx.node.map_arg((node.args, node.kwargs), lambda one: known.get(one, one))
        return self._call(node.target, *args, **named)

    def _call(self, target: Any, *args: Any, **named: Any) -> Any:
        made = self.graph.call_function(target, args, named)
        given, others = torch.fx.node.map_arg((args, named), lambda one: one.meta["val"])
        with getattr(self.product.meta["val"], "fake_mode", nullcontext()):
            made.meta["val"] = target(*given, **others)
        return made


def below(nodes: set[Any], order: list[Any]) -> set[Any]:
    """They and all that comes of them."""
    found = set(nodes)
    for node in order:
        if any(one in found for one in node.all_input_nodes):
            found.add(node)
    return found


def _above(nodes: set[Any], order: list[Any]) -> set[Any]:
    """They and all that they come of."""
    found = set(nodes)
    for node in reversed(order):
        if any(one in found for one in node.users):
            found.add(node)
    return found


def _is_transpose(node: Any) -> bool:
    return operator_name(node) == "permute" and list(node.args[1]) == [1, 0]


def _alike(node: Any) -> bool:
    """A value that is the same for all rows."""
    shape = node.meta["val"].shape
    return len(shape) == 0 or (len(shape) == 2 and shape[0] == 1)


def _along_rows(node: Any) -> bool:
    given, dims = node.args[0].meta["val"], node.args[1:2]
    two = 1 if operator_name(node) == "unsqueeze" else 2
    if operator_name(node) == "gather" and node.args[2].meta["val"].shape != (given.shape[0], 1):
        return False
    return given.dim() == two and dims in ((1,), (-1,), ([1],), ([-1],))


def _is_zero(value: Any) -> bool:
    if isinstance(value, torch.fx.Node):
        constant = {"scalar_tensor": 0, "full": 1}.get(operator_name(value))
        value = None if constant is None else value.args[constant]
    return isinstance(value, int | float) and value == 0
