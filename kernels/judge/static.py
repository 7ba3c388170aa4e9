"""The cheap first filter: read a candidate's source, run nothing, refuse what no honest kernel needs.

It spares the machine work and gives an early, clear reason. It is not a defence: a text can always be written that
reads well and acts badly, so every cheat must also be refused by the later stages with this one switched off (the
exploit fixtures are run both ways). So the rules are few, whole and allow-lists where that is possible.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType

from kernels.candidate import Candidate
from kernels.judge.verdict import Reason


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


MODULES = frozenset(
    {
        "__future__",
        "collections.abc",
        "dataclasses",
        "functools",
        "itertools",
        "math",
        "operator",
        "torch",
        "torch.autograd",
        "torch.func",
        "torch.nn",
        "torch.nn.functional",
        "triton",
        "triton.experimental",
        "triton.experimental.gluon",
        "triton.experimental.gluon.language",
        "triton.experimental.gluon.language.nvidia.hopper",
        "triton.experimental.gluon.nvidia.hopper",
        "triton.language",
        "triton.language.extra",
        "triton.language.extra.cuda",
        "triton.language.extra.libdevice",
        "triton.tools.tensor_descriptor",
        "typing",
    }
)
LIBRARY_MODULES = MODULES | {"liger_kernel", "torch.nn.attention", "torch.nn.attention.flex_attention"}
BUILTINS = _words("""
    __builtins__ __import__ breakpoint compile delattr eval exec getattr globals hash id input locals
    memoryview open setattr vars
""")
"""Names no kernel needs: other ways to run text, to reach objects by name, and identities to key a cache with."""
TORCH_MAKERS = _words("""
    Size Tensor _check arange as_strided broadcast_shapes device dtype empty empty_like empty_strided enable_grad
    finfo full full_like iinfo is_complex is_floating_point is_grad_enabled is_tensor no_grad ones ones_like
    promote_types result_type scalar_tensor tensor zeros zeros_like
""")
"""What an own kernel may call from torch: allocation and constants. Dtypes are attributes, not calls."""
TORCH_ROOMS = frozenset({"autograd", "cuda", "func", "nn"})
TORCH_NAMED = frozenset(
    {("amp", "custom_bwd"), ("amp", "custom_fwd"), ("compiler", "disable"), ("compiler", "is_compiling")}
    | {
        ("library", name)
        for name in _words("custom_op infer_schema register_autograd register_fake triton_op wrap_triton")
    }
)
"""Single functions of further rooms: what wraps a kernel for autocast, the compiler and the dispatcher."""
TORCH_CUDA = _words("""
    current_device device device_of get_device_capability get_device_name get_device_properties is_available
""")
METHODS = _words("""
    addmm amax amin argmax argsort bmm cumsum div einsum exp log log_softmax logsumexp
    masked_fill matmul max mean min mm mul norm pow prod rsqrt scatter_add scatter_add_ silu softmax
    sqrt std sub sum topk var
""")
"""Tensor methods that compute; those that own kernels' host code is caught with. Operators show at run time, and so
do methods that Python's lists and sets have as well."""
ATTRIBUTES = _words("""
    _C _cdata _dynamo _inductor backends cpp_extension cudart f_back f_globals f_locals gi_frame storage
    tb_frame tb_next untyped_storage
""")
BY_TEXT = frozenset({("operator", "attrgetter"), ("operator", "methodcaller")})
"""Ways to reach for names that no reader sees."""
_JIT = ("jit", "autotune", "heuristics")
_DUNDERS = _words("__doc__ __init__ __name__ __post_init__ __qualname__")
"""Attributes between double underscores that only say how a thing is called, or set it up."""
_PLAIN = _words("None bool bytes dtype float frozenset int str torch torch.dtype tuple")
"""Annotations of values that are the same whoever asks: a cache of these remembers no tensor."""


@dataclass(frozen=True)
class Observation:
    """One rule that the source breaks. `line` counts from 1."""

    reason: Reason
    line: int
    text: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.text}"


def read(candidate: Candidate) -> tuple[Observation, ...]:
    """Everything that speaks against the source, in the order of its lines; empty where nothing does."""
    if candidate.language == "cuda":
        return tuple(_read_cuda(candidate))
    try:
        tree = ast.parse(candidate.source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return (Observation(Reason.syntax, getattr(error, "lineno", None) or 0, f"does not parse: {error}"),)
    try:
        found = sorted(_Reader(candidate, tree).observations(), key=lambda o: (o.line, o.text))
    except RecursionError:
        return (Observation(Reason.syntax, 0, "nested too deeply"),)
    return tuple(dict.fromkeys(found))


def _read_cuda(candidate: Candidate) -> Iterator[Observation]:
    """NVRTC compiles no host code, so there is little to refuse: missing kernels and includes of other files."""
    for launch in candidate.launches:
        if launch.kernel not in candidate.source:
            yield Observation(Reason.entry_missing, 0, f"the plan launches {launch.kernel!r}, the source has none")
    for number, line in enumerate(candidate.source.splitlines(), 1):
        text = line.strip()
        if text.startswith("#") and "include" in text:
            name = text.partition("include")[2].strip(' <>"')
            if "/" in name.removeprefix("cuda/").removeprefix("cooperative_groups/") or ".." in name:
                yield Observation(Reason.static_refusal, number, f"includes {name!r}")


def _dotted(node: ast.expr) -> tuple[str, ...]:
    """("torch", "cuda", "Stream") of an attribute chain that starts at a name; empty otherwise."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return (*reversed([*names, node.id]),) if isinstance(node, ast.Name) else ()


def _module_at(chain: Sequence[str]) -> str:
    """The name of the module that an absolute chain ends at ("dataclasses.sys" is sys), or ""."""
    found: object = None
    with contextlib.suppress(ImportError):
        found = importlib.import_module(chain[0])
    for name in chain[1:]:
        found = vars(found).get(name) if isinstance(found, ModuleType) else None
    return found.__name__ if isinstance(found, ModuleType) else ""


def _decorators(node: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    chains = (_dotted(d.func if isinstance(d, ast.Call) else d) for d in node.decorator_list)
    return {chain[-1] for chain in chains if chain}


def _dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _loaded(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Load)


def _stored(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def _own_names(node: ast.AST) -> set[ast.AST]:
    """Names in a function that are its parameters, whatever Python calls so elsewhere ("input", "id")."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        return set()
    a = node.args
    own = {x.arg for x in (*a.posonlyargs, *a.args, *a.kwonlyargs, a.vararg, a.kwarg) if x is not None}
    body = node.body if isinstance(node.body, list) else [node.body]
    return {n for part in body for n in ast.walk(part) if isinstance(n, ast.Name) and n.id in own}


def _asks_whether_it_is_main(node: ast.AST) -> set[ast.AST]:
    """The names in `__name__ == "__main__"`, the one question to which a judge's answer is everybody's."""
    if isinstance(node, ast.Compare) and "__main__" in [getattr(x, "value", "") for x in node.comparators]:
        return {node.left} if isinstance(node.left, ast.Name) else set()
    return set()


def _only_imports(node: ast.Try) -> bool:
    """Whether a module is looked for at one place and then at another."""
    parts = (*node.body, *(x for handler in node.handlers for x in handler.body), *node.orelse, *node.finalbody)
    caught = [ast.unparse(handler.type) if handler.type else "" for handler in node.handlers]
    known = all(word in ("ImportError", "ModuleNotFoundError") for word in caught)
    return known and all(isinstance(x, ast.Import | ast.ImportFrom) for x in parts)


def _plainly_annotated(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether parameters and result are numbers, texts, dtypes or tuples of such, by their annotations."""
    a = node.args
    parameters = (*a.posonlyargs, *a.args, *a.kwonlyargs, *([a.vararg] if a.vararg else []))
    notes = [node.returns, *(x.annotation for x in parameters)]
    chains = [
        _dotted(n) for note in notes if note for n in ast.walk(note) if isinstance(n, ast.Name | ast.Attribute)
    ]
    words = {chain[-1:] for chain in chains}
    return None not in notes and a.kwarg is None and words <= {(word,) for word in _PLAIN}


class _Reader:
    def __init__(self, candidate: Candidate, tree: ast.Module) -> None:
        self._candidate = candidate
        self._tree = tree
        self._own = candidate.kind != "library"
        self._allowed = MODULES if self._own else LIBRARY_MODULES
        self._roots = {name.split(".")[0] for name in self._allowed}
        self._modules: dict[str, str] = {}  # local name → dotted module or object
        self._excused: set[ast.AST] = set()  # nodes that mean something else than their name says
        self._functions: set[str] = set()
        self._kernels: set[ast.AST] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    root = alias.name if alias.asname else alias.name.split(".")[0]
                    self._modules[alias.asname or root] = root
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    self._modules[alias.asname or alias.name] = f"{node.module}.{alias.name}"
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                self._functions.add(node.name)
                if isinstance(node, ast.FunctionDef) and _decorators(node) & set(_JIT):
                    self._kernels.add(node)
            self._excused |= _own_names(node) | _asks_whether_it_is_main(node)
            if isinstance(node, ast.Try) and _only_imports(node):
                self._excused.add(node)

    def observations(self) -> Iterator[Observation]:
        yield from self._entry()
        yield from self._module_state()
        for node in self._host_nodes(self._tree):
            yield from self._imports(node)
            yield from self._names(node)
            yield from self._assignments(node)
            if self._own:
                yield from self._library(node)

    def _host_nodes(self, root: ast.AST) -> Iterator[ast.AST]:
        """All nodes outside kernel bodies (whose words are the GPU's), decorators of kernels included."""
        for child in ast.iter_child_nodes(root):
            if isinstance(child, ast.FunctionDef) and child in self._kernels:
                for decorator in child.decorator_list:
                    yield decorator
                    yield from self._host_nodes(decorator)
                continue
            yield child
            yield from self._host_nodes(child)

    def _entry(self) -> Iterator[Observation]:
        names = set(self._functions)
        for node in self._tree.body:
            if isinstance(node, ast.Assign | ast.AnnAssign):
                names |= _stored(node)
        if self._candidate.entry not in names | set(self._modules):
            yield Observation(Reason.entry_missing, 0, f"no {self._candidate.entry!r} at the top level")
        if self._own and self._candidate.language == "triton" and not self._launches():
            yield Observation(Reason.library_call, 0, "declared a kernel of its own, but launches none")

    def _launches(self) -> bool:
        """Whether some `kernel[grid](…)` stands in the host code."""
        calls = (node.func for node in self._host_nodes(self._tree) if isinstance(node, ast.Call))
        return any(isinstance(func, ast.Subscript) for func in calls)

    def _module_state(self) -> Iterator[Observation]:
        """Empty containers at module level, which could only serve to remember earlier calls; not those that are
        filled and read at module level alone."""
        names = [n for n in ast.walk(self._tree) if isinstance(n, ast.Name)]
        functions = [n for n in ast.walk(self._tree) if isinstance(n, ast.FunctionDef | ast.Lambda)]
        inside = {n for function in functions for n in ast.walk(function) if isinstance(n, ast.Name)}
        inside -= {n for k in functions for d in getattr(k, "decorator_list", ()) for n in ast.walk(d)}
        outside = {n.id for n in names if _loaded(n)} - {n.id for n in inside}
        for node in self._tree.body:
            value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
            empty = ast.unparse(value) in ("{}", "[]", "dict()", "list()", "set()") if value is not None else False
            if empty and not _stored(node) <= outside:
                yield Observation(Reason.static_refusal, node.lineno, "an empty container at module level")

    def _imports(self, node: ast.AST) -> Iterator[Observation]:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "." * node.level]
        else:
            return
        foreign = [
            name
            for name in names
            if name not in self._allowed and name.split(".")[0] not in self._allowed - {"torch", "triton"}
        ]
        for name in foreign:
            yield Observation(Reason.static_refusal, _line(node), f"imports {name}")
        if isinstance(node, ast.ImportFrom) and not foreign:
            for alias in node.names:
                yield from self._reached(_line(node), (*names[0].split("."), alias.name))

    def _reached(self, line: int, chain: Sequence[str]) -> Iterator[Observation]:
        """Modules of others that an allowed module happens to hold, and names that stand in texts."""
        if tuple(chain) in BY_TEXT:
            yield Observation(Reason.static_refusal, line, f"uses {'.'.join(chain)}")
            return
        module = _module_at(chain).split(".")[0] if len(chain) > 1 else ""
        if module and module not in self._roots:
            yield Observation(Reason.static_refusal, line, f"reaches the module {module}")

    def _names(self, node: ast.AST) -> Iterator[Observation]:
        line = _line(node)
        if node in self._excused:
            return
        if isinstance(node, ast.Name) and (node.id in BUILTINS or (_dunder(node.id) and _loaded(node))):
            yield Observation(Reason.static_refusal, line, f"uses {node.id}")
        elif isinstance(node, ast.Attribute):
            if node.attr in ATTRIBUTES or (_dunder(node.attr) and node.attr not in _DUNDERS):
                yield Observation(Reason.static_refusal, line, f"reaches for .{node.attr}")
            chain = self._absolute(node)
            if chain[:2] == ("torch", "cuda") and len(chain) > 2 and chain[2] not in TORCH_CUDA:
                yield Observation(Reason.static_refusal, line, f"uses {'.'.join(chain)}")
            yield from self._reached(line, chain)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            yield Observation(Reason.static_refusal, line, f"keeps state in {', '.join(node.names)}")
        elif isinstance(node, ast.ClassDef):
            for base in node.bases:
                if self._absolute(base)[-1:] in [("Tensor",), ("TorchDispatchMode",), ("TorchFunctionMode",)]:
                    yield Observation(Reason.static_refusal, line, f"derives a class from {ast.unparse(base)}")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if _decorators(node) & {"cache", "lru_cache"} and not _plainly_annotated(node):
                told = f"caches the results of {node.name}, whose parameters and result are not annotated as plain"
                yield Observation(Reason.static_refusal, line, told)
            defaults = [*node.args.defaults, *node.args.kw_defaults]
            if any(isinstance(default, ast.Dict | ast.List | ast.Set) for default in defaults):
                yield Observation(Reason.static_refusal, line, f"keeps state in a default of {node.name}")

    def _assignments(self, node: ast.AST) -> Iterator[Observation]:
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign | ast.Delete):
            targets = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        for target in targets:
            chain = _dotted(target)
            if len(chain) > 1 and (chain[0] in self._modules or chain[0] in self._functions):
                yield Observation(Reason.static_refusal, _line(node), f"assigns to {'.'.join(chain)}")

    def _library(self, node: ast.AST) -> Iterator[Observation]:
        if isinstance(node, ast.Try | ast.TryStar) and node not in self._excused:
            yield Observation(Reason.static_refusal, _line(node), "catches exceptions: a kernel has no fallback")
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            yield Observation(Reason.library_call, _line(node), "multiplies matrices with @")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            chain = self._absolute(node.func)
            if chain[:1] == ("torch",) and len(chain) > 1:
                inner = chain[1] in TORCH_ROOMS and chain[:3] != ("torch", "nn", "functional")
                if chain[1] not in TORCH_MAKERS and not inner and chain[1:3] not in TORCH_NAMED:
                    yield Observation(Reason.library_call, _line(node), f"calls {'.'.join(chain)}")
            elif isinstance(node.func, ast.Attribute) and node.func.attr in METHODS and chain[:1] != ("math",):
                yield Observation(Reason.library_call, _line(node), f"calls .{node.func.attr}()")

    def _absolute(self, node: ast.expr) -> tuple[str, ...]:
        """An attribute chain with the local module name replaced by the imported one."""
        chain = _dotted(node)
        if chain and chain[0] in self._modules:
            return (*self._modules[chain[0]].split("."), *chain[1:])
        return ()


def _line(node: ast.AST) -> int:
    return int(getattr(node, "lineno", 0))
