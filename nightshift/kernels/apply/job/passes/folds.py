"""A pass over compiled graphs: takes casts to float32 away from operators that read 16-bit values themselves.

`F.cross_entropy(logits.float(), …)` of 16-bit logits would have the wide copy written out for an operator that the
compiler cannot look into. Values of 16 bits are exact in 32, and the cast's own gradient rounds once, so the result
is the same bits.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from nightshift.kernels.apply.job.state import STATE


class Pass:
    """A pass of ours over a compiler's graphs. earlier: what stood in its place, one or several; they run first.

    HAS_KERNELS: it puts a file's kernels into graphs. One that does not is on trial by itself (`STATE.passing`).
    """

    HAS_KERNELS: ClassVar[bool] = True

    def __init__(self, earlier: Any = None) -> None:
        self.earlier = earlier

    def before(self) -> tuple[Any, ...]:
        if self.earlier is None:
            return ()
        return tuple(self.earlier) if isinstance(self.earlier, list | tuple) else (self.earlier,)

    def uuid(self) -> Any:
        """For the compiler's cache: what it made by other passes or of other kernels must not be found there."""
        inner = tuple(getattr(one, "uuid", lambda: None)() for one in self.before())
        # None says that a pass has no name: then the compiler keeps nothing that it had a part in
        return None if None in inner else (self.named() if self._is_on() else (), inner)

    def __call__(self, graph: Any) -> None:
        for one in self.before():
            one(graph)
        if self._is_on():
            self.rewrite(graph)
        graph.eliminate_dead_code()

    def _is_on(self) -> bool:
        return self.HAS_KERNELS or STATE.passing

    def named(self) -> tuple[Any, ...]:
        """What it does, with a number that is raised whenever it does more."""
        raise NotImplementedError

    def rewrite(self, graph: Any) -> None:
        raise NotImplementedError


class FoldCasts(Pass):
    """A pass for torch._inductor.config.joint_custom_pre_pass.

    places: operator name → position of its wide input; kinds: operator → its own dtype. An operator whose name ends
    in `_backward` also returns narrowly what was wide before.
    """

    def __init__(self, places: dict[str, int], kinds: dict[str, torch.dtype], earlier: Any = None) -> None:
        super().__init__(earlier)
        self.places, self.kinds = places, kinds

    def named(self) -> tuple[Any, ...]:
        places = sorted((name, place, str(self.kinds.get(name))) for name, place in self.places.items())
        return "nightshift fold casts 1", tuple(places)

    def rewrite(self, graph: Any) -> None:
        for node in list(graph.nodes):
            name = operator_name(node)
            if name in self.places and name in self.kinds:
                self._fold(graph, node, name)

    def _fold(self, graph: Any, node: Any, name: str) -> None:
        wide = node.args[self.places[name]]
        source = narrow_source(wide, self.kinds[name])
        if source is None:
            return
        shape = list(wide.meta["val"].shape)
        with graph.inserting_before(node):
            narrow = viewed(graph, source, shape)
        arguments = list(node.args)
        arguments[self.places[name]] = narrow
        node.args = tuple(arguments)
        if not name.endswith("_backward"):
            return
        made = node.meta["val"]
        node.meta["val"] = made.to(self.kinds[name])
        for cast, chain in list(casts_after(node, self.kinds[name])):
            with graph.inserting_before(cast):
                shape = list(cast.meta["val"].shape)
                cast.replace_all_uses_with(viewed(graph, node, shape) if chain else node)
        graph.eliminate_dead_code()
        left = [user for user in node.users if operator_name(user) != "view" or not _is_narrow(user, node)]
        if left:  # somebody wants the wide gradient after all
            with graph.inserting_after(node):
                again = graph.call_function(torch.ops.prims.convert_element_type.default, (node, made.dtype))
            again.meta["val"] = made
            for user in left:
                user.replace_input_with(node, again)


def _is_narrow(user: Any, node: Any) -> bool:
    value = user.meta.get("val")
    return value is not None and value.dtype == node.meta["val"].dtype


def operator_name(node: Any) -> str:
    target = node.target
    # functions such as getitem have no schema
    if not isinstance(target, torch._ops.OpOverload):
        return ""
    return target._schema.name.rpartition("::")[2]


VIEWS = ("view", "reshape", "_unsafe_view", "alias")
_CASTS = ("_to_copy", "convert_element_type")


def seen_through(node: Any) -> Any:
    """What a value is a view of: as many elements in the same order."""
    while node.op == "call_function" and operator_name(node) in (*VIEWS, "unsqueeze", "squeeze"):
        node = node.args[0]
    return node


def narrow_source(node: Any, kind: torch.dtype) -> Any:
    """What was cast, if `node` is a view of a cast from that dtype to float32."""
    while isinstance(node, torch.fx.Node) and operator_name(node) in VIEWS:
        node = node.args[0]
    if not isinstance(node, torch.fx.Node) or operator_name(node) not in _CASTS:
        return None
    source = node.args[0]
    values: list[Any] = [n.meta.get("val") for n in (node, source) if isinstance(n, torch.fx.Node)]
    if len(values) != 2 or not all(isinstance(v, torch.Tensor) for v in values):
        return None
    fits = values[0].dtype == torch.float32 and values[1].dtype == kind and values[1].is_contiguous()
    return source if fits and isinstance(source, torch.fx.Node) else None


def casts_after(node: Any, kind: torch.dtype, chain: int = 0) -> Any:
    """(cast, views between) for each cast to `kind` behind `node`, through views."""
    for user in list(node.users):
        value = user.meta.get("val")
        if operator_name(user) in _CASTS and value is not None and value.dtype == kind:
            yield user, chain
        elif operator_name(user) in VIEWS:
            yield from casts_after(user, kind, chain + 1)


def viewed(graph: Any, source: Any, shape: list[Any]) -> Any:
    made = graph.call_function(torch.ops.aten.view.default, (source, shape))
    made.meta["val"] = source.meta["val"].view(shape)
    return made
