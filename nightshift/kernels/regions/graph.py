"""The graph of any function of tensors: exported without computing, decomposed to small operators, simplified.

Shapes are those of one case. Parameters of a model are arguments like all others (`kernels.suites.kernelbench`), so
a graph holds no values but numbers and what the model keeps beside its parameters.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, get_decompositions
from torch._subclasses.fake_tensor import FakeTensorMode

aten = torch.ops.aten
Node = torch.fx.Node

_TAKEN_APART = """
_batch_norm_with_update_functional _log_softmax _native_batch_norm_legit _native_batch_norm_legit_functional
_native_batch_norm_legit_no_training _safe_softmax _softmax _weight_norm_interface addbmm addcdiv addcmul addmv
baddbmm binary_cross_entropy binary_cross_entropy_with_logits celu chunk diag_embed dropout elu frobenius_norm gelu
glu hardshrink hardsigmoid hardswish hardtanh huber_loss leaky_relu lerp linalg_vector_norm log_sigmoid_forward
logit logsumexp masked_fill mish mse_loss native_batch_norm native_dropout native_group_norm native_layer_norm
nll_loss_forward norm relu6 rot90 rsub selu silu smooth_l1_loss soft_margin_loss softmax softplus softshrink
split_with_sizes square stack std tanhshrink threshold tril triu unbind
"""
"""Operators that a kernel writes as smaller ones, beyond core ATen's own."""
_WHOLE = """
lstm gru rnn_tanh rnn_relu scaled_dot_product_attention upsample grid_sampler max_pool avg_pool cumsum cumprod
sort topk bmm mm embedding cdist _unsafe_index linear_
"""
"""How the operators begin that stay whole."""


class GraphError(ValueError):
    """A function has no graph of tensors. The message says why, in torch's words."""


class _Function(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *arguments: Any) -> Any:
        return self._function(*arguments)


def captured(function: Callable[..., Any], inputs: Sequence[Any], device: str = "cpu") -> torch.fx.GraphModule:
    """The simplified graph of a function on inputs like these, of which only forms are used. Raises GraphError."""
    try:
        with warnings.catch_warnings(), FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
            warnings.simplefilter("ignore")  # torch.export's own, of its own parts
            fakes = tuple(torch.empty(x.shape, dtype=x.dtype, device=device) if isinstance(x, torch.Tensor) else x
                          for x in inputs)  # fmt: skip
            program = torch.export.export(_Function(function), fakes, strict=False)
            program = program.run_decompositions(_table())
        unguarded = "check_guards" in program.module.__code__.co_varnames  # torch 2.11 has no guards to leave out
        module = program.module(check_guards=False) if unguarded else program.module()
    except (Exception, SystemExit) as error:
        told = str(error).strip().splitlines() or [""]
        raise GraphError(f"torch.export: {type(error).__name__}: {told[0][:300]}") from error
    return simplified(module)


def _slices(x: torch.Tensor, sizes: Sequence[int], dim: int = 0) -> list[torch.Tensor]:
    """Parts as slices. Torch's own are strides into memory, of which kernels here know nothing."""
    ends = list(itertools.accumulate(sizes))
    return [aten.slice.Tensor(x, dim, end - size, end) for size, end in zip(sizes, ends, strict=True)]


def _table() -> dict[Any, Any]:
    named = [getattr(aten, name, None) for word in _TAKEN_APART.split() for name in [word.partition(".")[0]]]
    table = {**torch.export.default_decompositions(), **core_aten_decompositions()}
    table.update(get_decompositions([packet for packet in named if packet is not None]))
    table[aten.split_with_sizes.default] = _slices
    return {
        op: how for op, how in table.items() if not str(op).removeprefix("aten.").startswith(tuple(_WHOLE.split()))
    }


# Simplifications --------------------------------------------------------------------------------------------------

FEW, LONG = 264, 1 << 14
"""Fewer results than this, of more elements than that, are reduced in two steps: one program each would leave most
of a GPU idle."""
_STEPWISE = ("sum", "mean", "amax", "amin")


def simplified(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The same function in a form that fuses further: a convolution's bias is added by whoever reads it, reductions
    of one element are views, long ones with few results are split, and few constants are numbers of a kernel."""
    for node in list(module.graph.nodes):
        name = str(node.target)
        if node.op == "get_attr":
            with module.graph.inserting_before(node.next):
                _as_numbers(module.graph, node, attrgetter(name)(module))
        if name == "aten.var_mean.correction":
            with module.graph.inserting_before(node.next):
                _spread(module.graph, node)
        if node.op != "call_function" or not isinstance(node.meta.get("val"), torch.Tensor):
            continue
        with module.graph.inserting_before(node.next):  # in the order in which they are made
            if name == "aten.convolution.default" and node.args[2] is not None:
                _without_bias(module.graph, node)
            elif name.startswith(("aten.max_pool", "aten.avg_pool")):
                _by_dimensions(module.graph, node)
            elif name == "aten.mm.default" and node.meta["val"].shape[1] == 1:
                node.replace_all_uses_with(_times_vector(module.graph, node.args[0], node.args[1], keep=True))
            elif name in ("aten.mm.default", "aten.bmm.default") and node.args[0].meta["val"].shape[-1] == 1:
                node.replace_all_uses_with(_call(module.graph, aten.mul.Tensor, *node.args))
            elif name == "aten.cat.default" and (made := _begun_later(module.graph, node)) is not None:
                node.replace_all_uses_with(made)
            elif _is_any(node, _STEPWISE):
                made = _reduced(module.graph, node)
                if made is not node:
                    node.replace_all_uses_with(made)
    module.graph.eliminate_dead_code()
    module.graph.lint()
    return module


def _call(graph: torch.fx.Graph, target: Any, *args: Any) -> Node:
    """A new node, whose form is worked out on meta tensors."""
    made = graph.call_function(target, args)
    forms = torch.fx.node.map_arg(args, lambda n: n.meta["val"].to("meta"))
    made.meta["val"] = target(*forms)
    return made


FEW_CONSTANTS = 64
"""Elements of a tensor that a model makes of its own numbers, at most, that a kernel writes."""


def _as_numbers(graph: torch.fx.Graph, node: Node, value: Any) -> None:
    """Kernels hold the numbers themselves: a call that copied them from the host would wait for it. Different ones
    are laid out in memory by a kernel of their own, whatever reads them."""
    if not isinstance(value, torch.Tensor) or not 0 < value.numel() <= FEW_CONSTANTS or value.is_complex():
        return
    first, *rest = value.flatten().tolist()
    others = {i: n for i, n in enumerate(rest, 1) if repr(n) != repr(first)}  # NaN is alike, −0 is not
    made = _full(graph, list(value.shape), first, value.dtype)
    if others:
        place = _call(graph, aten.arange.default, value.numel())
        made = _full(graph, [value.numel()], first, value.dtype)
        for i, n in others.items():
            here = _call(graph, aten.eq.Scalar, place, i)
            made = _call(graph, aten.where.self, here, _full(graph, [], n, value.dtype), made)
        made = _call(graph, aten.view.default, made, list(value.shape))
        made.meta[LAID] = True
    node.replace_all_uses_with(made)


def _full(graph: torch.fx.Graph, shape: list[int], value: float, dtype: torch.dtype) -> Node:
    made = graph.call_function(aten.full.default, (shape, value), {"dtype": dtype})
    made.meta["val"] = torch.empty(shape, dtype=dtype, device="meta")
    return made


def _is_any(node: Any, operators: Sequence[str]) -> bool:
    return str(node.target).startswith(tuple(f"aten.{word}." for word in operators))


def _begun_later(graph: torch.fx.Graph, node: Any) -> Node | None:
    """A scan behind what it begins with (an exclusive one) as the scan of that with its source: no value is copied
    to its place. None where a node is none."""
    parts, dim = node.args[0], node.args[1] if len(node.args) > 1 else 0
    first, scan = parts if len(parts) == 2 else (node, node)
    neutral = {"aten.cumsum.default": 0, "aten.cumprod.default": 1}.get(str(scan.target))
    rank = node.meta["val"].dim()
    if neutral is None or scan.kwargs or len(scan.users) > 1 or (int(dim) - int(scan.args[1])) % rank:
        return None
    while _is_any(first, ("view", "unsqueeze", "squeeze", "expand", "slice", "select", "permute")):
        first = first.args[0]
    zero, one = (_is_any(first, words) for words in (("zeros", "zeros_like"), ("ones", "ones_like")))
    number = first.args[1] if _is_any(first, ("full", "full_like")) else 0 if zero else 1 if one else None
    if number != neutral or scan.args[0].meta["val"].dtype != scan.meta["val"].dtype:
        return None
    joined = _call(graph, aten.cat.default, [parts[0], scan.args[0]], dim)
    return _call(graph, scan.target, joined, dim)


def _without_bias(graph: torch.fx.Graph, node: Node) -> None:
    bias = node.args[2]
    spread = _call(graph, aten.view.default, bias, [-1, *[1] * (node.meta["val"].dim() - 2)])
    added = _call(graph, aten.add.Tensor, node, spread)
    node.replace_all_uses_with(added, delete_user_cb=lambda user: user is not added)
    node.args = (*node.args[:2], None, *node.args[3:])


def copied(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The same graph with nodes of its own: what one plan notes of them, another does not see."""
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    return torch.fx.GraphModule(module, graph)


LAID = "laid out for a call or a product"
WIDE = 512
"""A product's sizes from which on a copy of an operand costs little beside it."""


def depth_last(module: torch.fx.GraphModule, written: Callable[[Node], object]) -> torch.fx.GraphModule:
    """The same graph in which what a large product sums over lies last in the memory of both operands, where the
    product is written here: Hopper's tensor cores take TF32 in no other order. An operand that lies otherwise is
    copied once."""
    made = copied(module)
    for node in list(made.graph.nodes):
        if str(node.target) not in ("aten.mm.default", "aten.addmm.default", "aten.bmm.default"):
            continue
        left, right = node.args[-2:]
        rows, columns = node.meta["val"].shape[-2:]
        if min(rows, columns, left.meta["val"].shape[-1]) < WIDE or not written(node):
            continue
        with made.graph.inserting_before(node):
            if not _lies_turned(right):
                node.replace_input_with(right, _laid(made.graph, right, turned=True))
            if _lies_turned(left) and left is not right:
                node.replace_input_with(left, _laid(made.graph, left, turned=False))
    return made


DEEP, TILE, BUSY = 1 << 13, 128, 264
"""A product that sums over so many, and has fewer tiles than keep a GPU busy, is summed in parts."""


def deep_in_parts(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The same graph in which a product of few results and a long sum is a batch of shorter ones and their sum: all
    of a GPU works on it, and a sum of sums errs less."""
    made = copied(module)
    for node in list(made.graph.nodes):
        if str(node.target) != "aten.mm.default":
            continue
        (left, right), (rows, columns) = node.args, node.meta["val"].shape
        depth, tiles = left.meta["val"].shape[1], -(-rows // TILE) * -(-columns // TILE)
        parts = next((n for n in (256, 128, 64, 32, 16, 8) if depth % n == 0 and n * tiles <= 2 * BUSY), 1)
        if depth < DEEP or tiles >= BUSY // 2 or parts == 1 or depth // parts < 256:
            continue
        with made.graph.inserting_before(node):
            a = _call(made.graph, aten.view.default, left, [rows, parts, depth // parts])
            a = _call(made.graph, aten.permute.default, a, [1, 0, 2])
            b = _call(made.graph, aten.view.default, right, [parts, depth // parts, columns])
            batch = _call(made.graph, aten.bmm.default, a, b)
            node.replace_all_uses_with(_call(made.graph, aten.sum.dim_IntList, batch, [0], False))
    made.graph.eliminate_dead_code()
    return made


def _lies_turned(node: Node) -> bool:
    """Whether the rows of a matrix follow each other in memory, and not what is within a row: by the transpositions
    between it and what it is a view of."""
    name = str(node.target)
    if name in ("aten.t.default", "aten.transpose.int", "aten.permute.default"):
        source: Any = node.args[0]
        rank = source.meta["val"].dim()
        last = [d % rank for d in node.args[1]][-1] if name.endswith("permute.default") else rank - 2  # type: ignore
        return not _lies_turned(source) if last == rank - 2 else _lies_turned(source)
    return False


def _laid(graph: torch.fx.Graph, node: Node, turned: bool) -> Node:
    """A copy of a matrix in memory, row by row or, turned, column by column."""
    order = [*range(node.meta["val"].dim() - 2), node.meta["val"].dim() - 1, node.meta["val"].dim() - 2]
    source = _call(graph, aten.permute.default, node, order) if turned else node
    copied = _call(graph, aten.clone.default, source)
    copied.meta["val"] = torch.empty(source.meta["val"].shape, dtype=source.meta["val"].dtype, device="meta")
    copied.meta[LAID] = True
    return _call(graph, aten.permute.default, copied, order) if turned else copied


STRIDES = "strides in memory"
"""Key of a node's strides, kept where its tensor is not laid out row by row."""


def channels_last(module: torch.fx.GraphModule, called: Callable[[Node], bool]) -> torch.fx.GraphModule:
    """The same graph with every convolution of two or three dimensions that is called, and not written here, on
    tensors of which channels lie last in memory, as cuDNN's kernels for tensor cores take them: inputs and weights
    are written so by whoever makes them, results are read so."""
    made = copied(module)
    (last,) = (node for node in made.graph.nodes if node.op == "output")
    for node in list(made.graph.nodes):
        shape = list(node.meta["val"].shape) if isinstance(node.meta.get("val"), torch.Tensor) else []
        if (
            str(node.target) != "aten.convolution.default"
            or len(shape) < 4
            or min(shape[1:]) < 2
            or not called(node)
        ):
            continue
        source, weight = node.args[:2]
        with made.graph.inserting_before(node):
            if STRIDES not in source.meta:
                source = _channels_last(made.graph, source)
            node.args = (source, _channels_last(made.graph, weight), *node.args[2:])
        steps = [1]
        for size in (shape[1], *reversed(shape[3:])):
            steps.append(steps[-1] * size)
        node.meta[STRIDES] = (math.prod(shape[1:]), 1, *reversed(steps[1:]))
        with made.graph.inserting_after(node):
            whole = _call(made.graph, aten.clone.default, node)
        last.replace_input_with(node, whole)
    made.graph.eliminate_dead_code()
    return made


def forwarded(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The same graph in which a transposed convolution of stride 1 is a convolution with its weights turned round:
    libraries have more kernels for that, and write its result in place."""
    made = copied(module)
    for node in list(made.graph.nodes):
        if str(node.target) != "aten.convolution.default" or not is_forwarded(node):
            continue
        source, weight, bias, stride, padding, dilation, *_ = node.args
        shape = list(weight.meta["val"].shape)
        with made.graph.inserting_before(node):
            turned = _call(made.graph, aten.flip.default, weight, list(range(2, len(shape))))
            turned = _call(made.graph, aten.permute.default, turned, [1, 0, *range(2, len(shape))])
            laid = _call(made.graph, aten.clone.default, turned)
        laid.meta["val"] = torch.empty(turned.meta["val"].shape, dtype=turned.meta["val"].dtype, device="meta")
        laid.meta[LAID] = True
        around = [d * (k - 1) - p for d, k, p in _by_dimension(dilation, shape[2:], padding)]
        node.args = (source, laid, bias, stride, around, dilation, False, [0] * len(around), 1)
    return made


def is_forwarded(node: Node) -> bool:
    """Whether a convolution is a transposed one that another can stand for."""
    _, weight, _, stride, padding, dilation, transposed, beyond, groups = node.args
    sizes = weight.meta["val"].shape[2:]  # type: ignore[union-attr]
    inside = all(d * (k - 1) >= p for d, k, p in _by_dimension(dilation, sizes, padding))
    return bool(transposed and groups == 1 and set(stride) == {1} and not any(beyond) and inside)  # type: ignore


def _by_dimension(dilation: Any, sizes: Sequence[int], padding: Any) -> Iterator[tuple[int, int, int]]:
    """A convolution's (dilation, size, padding) along each dimension: one number is written for all alike."""
    dilation, padding = (list(given) * (len(sizes) if len(given) == 1 else 1) for given in (dilation, padding))
    return zip(dilation, sizes, padding, strict=True)


def _channels_last(graph: torch.fx.Graph, node: Node) -> Node:
    rank = node.meta["val"].dim()
    turned = _call(graph, aten.permute.default, node, [0, *range(2, rank), 1])
    copied = _call(graph, aten.clone.default, turned)
    copied.meta["val"] = torch.empty(turned.meta["val"].shape, dtype=turned.meta["val"].dtype, device="meta")
    copied.meta[LAID] = True
    return _call(graph, aten.permute.default, copied, [0, rank - 1, *range(1, rank - 1)])


MANY = 64
"""Elements of a pooling's window that a kernel reads one by one, at most."""


def _by_dimensions(graph: torch.fx.Graph, node: Node) -> None:
    """A pooling of a large window as one for each dimension."""
    rank, largest = int(str(node.target).split(".")[1][-2]), "max" in str(node.target)
    given: list[Any] = [*node.args, *[None] * 7]
    source = given[0]

    def numbers(value: Any, default: Any) -> list[int]:
        found = [*(value or default)]
        return found * (rank if len(found) == 1 else 1)

    kernel = numbers(given[1], ())
    stride, padding, dilation = numbers(given[2], kernel), numbers(given[3], [0]), [1] * rank
    if largest:
        dilation, (ceils, counts, divisor) = numbers(given[4], [1]), (given[5], True, None)
    else:
        ceils, counts, divisor = given[4], given[5] in (None, True), given[6]
    if math.prod(kernel) <= MANY or node.kwargs or ceils or divisor or not (counts or max(padding) == 0):
        return
    made: Any = source
    for i in range(rank):
        whole = ((kernel, 1), (stride, 1), (padding, 0), (dilation, 1))
        one = [[x if d == i else rest for d, x in enumerate(of)] for of, rest in whole]
        made = _call(graph, node.target, made, *one[: 4 if largest else 3])
    node.replace_all_uses_with(made)


def _reduced(graph: torch.fx.Graph, node: Node) -> Node:
    """What computes the same and is better written; the reduction itself where nothing is."""
    source = node.args[0]
    shape, made = list(source.meta["val"].shape), node.meta["val"]  # type: ignore[union-attr]
    if not source.meta["val"].is_floating_point() or not made.is_floating_point():  # type: ignore[union-attr]
        return node
    dims = _dims(node, len(shape))
    length, results = math.prod(shape[d] for d in dims), max(1, made.numel())
    if length == 1:
        return _call(graph, aten.view.default, source, list(made.shape))
    if name_of_sum(node) and dims == [1] and len(shape) == 2 and _is_linear(source):
        whole = _summed(graph, source)
    else:
        trailing = dims == list(range(len(shape) - len(dims), len(shape)))
        parts = _parts(length, results) if trailing and results < FEW and length >= LONG else 1
        if parts == 1:
            return node
        whole = _in_two_steps(graph, node, [*shape[: dims[0]], parts, length // parts])
    whole = _call(graph, aten.view.default, whole, list(made.shape))
    return _call(graph, aten.div.Tensor, whole, float(length)) if _operator(node) == "mean" else whole


def _dims(node: Node, rank: int) -> list[int]:
    """The dimensions that a reduction reduces: all of them where it names none."""
    given = node.args[1] if len(node.args) > 1 else None
    return sorted(d % rank for d in given) if isinstance(given, list | tuple) and given else list(range(rank))


def _operator(node: Node) -> str:
    return str(node.target).split(".")[1]


def _in_two_steps(graph: torch.fx.Graph, node: Node, shape: Sequence[int]) -> Node:
    """A reduction of the last dimensions, taken as the parts and their length that the shape ends with; of a mean
    the sum."""
    name = _operator(node)
    step = aten.sum.dim_IntList if name in ("sum", "mean") else getattr(aten, name).default
    split = _call(graph, aten.view.default, node.args[0], list(shape))
    first = _call(graph, step, split, [-1])
    return _call(graph, step, first, [-1])


def _spread(graph: torch.fx.Graph, node: Node) -> None:
    """Few variances of many elements each, as two sums that are reduced in two steps."""
    source: Any = node.args[0]
    shape, made = list(source.meta["val"].shape), node.meta["val"][0]
    dims: Any = node.args[1] if len(node.args) > 1 else None
    length = source.meta["val"].numel() // max(1, made.numel())
    if not dims or made.numel() >= FEW or length < LONG or not source.meta["val"].is_floating_point():
        return
    kept = [1 if d in [n % len(shape) for n in dims] else size for d, size in enumerate(shape)]

    def summed(value: Node) -> Node:
        total = _call(graph, aten.sum.dim_IntList, value, list(dims), False)
        return _call(graph, aten.view.default, _reduced(graph, total), kept)

    correction = node.kwargs.get("correction", 1)
    mean = _call(graph, aten.div.Tensor, summed(source), float(length))
    apart = _call(graph, aten.sub.Tensor, source, mean)
    spread = summed(_call(graph, aten.mul.Tensor, apart, apart))
    variance = _call(graph, aten.div.Tensor, spread, float(length - (1 if correction is None else correction)))
    for user in list(node.users):
        if "getitem" in str(user.target):
            chosen = (variance, mean)[user.args[1]]  # type: ignore[index]
            user.replace_all_uses_with(_call(graph, aten.view.default, chosen, list(made.shape)))


def _parts(length: int, results: int) -> int:
    """How many parts of one length fill a GPU, at least 1,024 elements each; 1 where none divides."""
    wanted = min(length // 1024, max(2, 4 * FEW // results))
    return next((n for n in range(wanted, wanted // 4, -1) if length % n == 0), 1)


def name_of_sum(node: Node) -> bool:
    return str(node.target) in ("aten.sum.dim_IntList", "aten.mean.dim")


def _is_linear(node: Any) -> bool:
    """Whether a matrix is a product, with sums and multiples of whole matrices and rows around it, that nobody else
    reads: then the sum over its columns is a product with a vector."""
    if not isinstance(node, Node) or node.op != "call_function" or len(node.users) != 1:
        return False
    name, args = str(node.target), node.args
    if name in ("aten.mm.default", "aten.addmm.default"):
        return not node.kwargs
    if name in ("aten.mul.Tensor", "aten.div.Tensor"):
        return _is_linear(args[0]) and not isinstance(args[1], Node)
    return name in ("aten.add.Tensor", "aten.sub.Tensor") and not node.kwargs and _is_linear(args[0])


def _summed(graph: torch.fx.Graph, node: Any) -> Node:
    """The sum over the columns of a linear matrix, one number a row."""
    name, args = str(node.target).split(".")[1], node.args
    if name == "mm":
        return _times_vector(graph, args[0], _call(graph, aten.sum.dim_IntList, args[1], [1], True), keep=False)
    if name == "addmm":
        column = _call(graph, aten.sum.dim_IntList, args[2], [1], True)
        return _call(
            graph,
            aten.add.Tensor,
            _times_vector(graph, args[1], column, keep=False),
            _row_sum(graph, args[0], node),
        )
    inner = _summed(graph, args[0])
    if name in ("mul", "div"):
        return _call(graph, node.target, inner, args[1])
    return _call(graph, node.target, inner, _row_sum(graph, args[1], node))


def _row_sum(graph: torch.fx.Graph, value: Any, like: Node) -> Any:
    """The sum over columns of what is added to each of them."""
    columns = like.meta["val"].shape[1]
    if not isinstance(value, Node):
        return float(value) * columns
    spread = _call(graph, aten.expand.default, value, list(like.meta["val"].shape))
    return _call(graph, aten.sum.dim_IntList, spread, [1], False)


def _times_vector(graph: torch.fx.Graph, matrix: Any, column: Any, keep: bool) -> Node:
    """A product with one column, as the sum of a row's multiples."""
    row = _call(graph, aten.view.default, column, [1, -1])
    return _call(graph, aten.sum.dim_IntList, _call(graph, aten.mul.Tensor, matrix, row), [1], keep)
