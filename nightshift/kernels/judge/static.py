"""The cheap first filter: read a candidate's declaration and source, run nothing, refuse what no kernel needs.

It spares the machine work and gives an early, clear reason. It is not a defence: a text can always be written that
reads well and acts badly, so every cheat must also be refused by the later stages with this one switched off (the
exploit fixtures are run both ways). So the rules are few, whole and allow-lists where that is possible.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from nightshift.kernels.candidate import Candidate, CandidateError
from nightshift.kernels.differentiate import smallest_inputs
from nightshift.kernels.judge.launch_plan import Fire, PlanError, Pointer, cuda_plan
from nightshift.kernels.judge.verdict import Reason
from nightshift.kernels.problem import Problem


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# What kernels are written with: no way to files, processes or other names than those that are read here.
MODULES = _words("""
    __future__ abc bisect collections collections.abc contextlib copy dataclasses enum functools itertools logging
    math numbers operator string textwrap typing warnings
    torch torch.amp torch.autograd torch.autograd.function torch.compiler torch.cuda torch.func torch.library
    torch.nn torch.nn.functional
    triton triton.experimental triton.experimental.gluon triton.experimental.gluon.language
    triton.experimental.gluon.language.nvidia.hopper triton.experimental.gluon.nvidia.hopper triton.language
    triton.language.extra triton.language.extra.cuda triton.language.extra.cuda.libdevice
    triton.language.extra.libdevice triton.language.math triton.runtime triton.tools.tensor_descriptor
""")
CUTE_MODULES = _words("__future__ cutlass dataclasses enum functools itertools math operator typing")
"""What CuTe kernels are written with: all of the library, but for what it reaches outside."""
CUTE_OUTSIDE = _words("""
    builtins ctypes importlib inspect io jax kernels numpy operators os pathlib shutil socket subprocess sys
    tempfile torch
""")
"""And but for CUTLASS's finished kernels, another package's, which lie under the same name."""
LIBRARY_MODULES = MODULES | {"liger_kernel", "torch.nn.attention", "torch.nn.attention.flex_attention"}
# Names no kernel needs: other ways to run text, to reach objects by name, and identities to key a cache with.
BUILTINS = _words("""
    __builtins__ __import__ breakpoint compile delattr eval exec getattr globals hash id input locals
    memoryview open setattr vars
""")
TORCH_MAKERS = _words("""
    Size Tensor _check arange as_strided broadcast_shapes device dtype empty empty_like empty_strided enable_grad
    finfo full full_like get_autocast_dtype iinfo is_autocast_enabled is_complex is_floating_point is_grad_enabled
    is_tensor no_grad ones ones_like promote_types result_type scalar_tensor tensor zeros zeros_like
""")
"""What an own kernel may call from torch: allocation and constants. Dtypes are attributes, not calls."""
TORCH_DRAWS = _words("rand randint")
"""And where the right answer is random: numbers of torch's generator, which is what makes calls differ."""
TORCH_ROOMS = frozenset({"autograd", "cuda", "func", "nn"})
TORCH_NAMED = frozenset(
    {("amp", "custom_bwd"), ("amp", "custom_fwd"), ("compiler", "disable"), ("compiler", "is_compiling")}
    | {
        ("library", name)
        for name in _words("""
            Library custom_op define impl infer_schema register_autograd register_fake register_kernel triton_op
            wrap_triton
        """)
    }
)
"""Single functions of further rooms: what wraps a kernel for autocast, the compiler and the dispatcher."""
TORCH_CUDA = _words("""
    current_device current_stream device device_count device_of get_device_capability get_device_name
    get_device_properties is_available
""")
# Tensor methods that compute; those that own kernels' host code is caught with. Operators show at run time, and so
# do methods that Python's lists and sets have as well.
METHODS = _words("""
    addmm amax amin argmax argsort bmm cumsum div einsum exp log log_softmax logsumexp
    masked_fill matmul max mean min mm mul norm pow prod rsqrt scatter_add scatter_add_ silu softmax
    sqrt std sub sum topk var
""")
ATTRIBUTES = _words("""
    _C _cdata _dynamo _inductor backends cpp_extension cudart f_back f_globals f_locals gi_frame storage
    tb_frame tb_next untyped_storage
""")
MAIN = ("__name__ == '__main__'", "'__main__' == __name__")
"""How a file asks whether it is the program."""
OF_TORCH = _words("aten prim prims")
"""Namespaces of operators that are everybody's."""
# Ways to reach for names that no reader sees.
BY_TEXT = frozenset({("operator", "attrgetter"), ("operator", "methodcaller")})
JIT = ("jit", "autotune", "heuristics")
# Attributes between double underscores that only say how a thing is called, or set it up.
DUNDERS = _words("__doc__ __init__ __name__ __post_init__ __qualname__ __version__")
# Annotations of values that are the same whoever asks: what is kept under them is no answer to a tensor.
PLAIN = _words("None bool bytes dtype float frozenset int str torch torch.dtype tuple")


@dataclass(frozen=True)
class Observation:
    """One rule that the source breaks. `line` counts from 1; 0: none, what is missing has no line."""

    reason: Reason
    line: int
    text: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.text}" if self.line else self.text


def read(candidate: Candidate, random: bool = False) -> tuple[Observation, ...]:
    """Everything that speaks against the source, in the order of its lines; empty where nothing does.

    random: the problem's right answer is, so that a kernel of its own may draw from torch's generator.
    """
    if candidate.language == "cuda":
        return tuple(_read_cuda(candidate))
    try:
        tree = ast.parse(candidate.source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        told = getattr(error, "msg", None) or error
        return (Observation(Reason.syntax, getattr(error, "lineno", None) or 0, f"does not parse: {told}"),)
    try:
        found = sorted(_Reader(candidate, tree, random).observations(), key=lambda o: (o.line, o.text))
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


def _asks_whether_it_is_main(node: ast.AST) -> bool:
    """`if __name__ == "__main__":`, the one question to which a judge's answer is everybody's."""
    return isinstance(node, ast.If) and ast.unparse(node.test) in MAIN


def _harmless(node: ast.AST) -> set[ast.AST]:
    """Names that are asked for in a way that tells nothing: `getattr(torch, "float8_e4m3fn", None)`, an attribute
    that may be missing, and a logger's name."""
    match node:
        case ast.Call(func=ast.Attribute(attr="getLogger"), args=[ast.Name(id="__name__") as name]):
            return {name}
        case ast.Call(func=ast.Name(id="getattr"), args=[_, ast.Constant(value=str() as name), *_], keywords=[]):
            return set() if name in ATTRIBUTES or (_dunder(name) and name not in DUNDERS) else {node.func}
    return set()


def _spaces(node: ast.Call) -> set[str]:
    """Namespaces of operators that a registration names: "mine" of `Library("mine", "DEF")` and of "mine::norm"."""
    first = next((x.value for x in node.args[:1] if isinstance(x, ast.Constant) and isinstance(x.value, str)), "")
    made = _dotted(node.func)[-1:]
    return {first.partition("::")[0]} if "::" in first or made == ("Library",) else set()


def _only_imports(node: ast.Try) -> bool:
    """Whether a module is looked for at one place and then at another, and what was found is noted."""
    parts = (*node.body, *(x for handler in node.handlers for x in handler.body), *node.orelse, *node.finalbody)
    caught = [ast.unparse(handler.type) if handler.type else "" for handler in node.handlers]
    known = all(word in ("ImportError", "ModuleNotFoundError") for word in caught)
    notes = (x.value for x in parts if isinstance(x, ast.Assign))
    return (
        known
        and all(isinstance(x, ast.Import | ast.ImportFrom | ast.Assign | ast.Pass) for x in parts)
        and all(isinstance(note, ast.Constant) for note in notes)
    )


def _plainly_annotated(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether its parameters are numbers, texts, dtypes or tuples of such, by their annotations, and its result is
    not called a tensor."""
    a = node.args
    parameters = (*a.posonlyargs, *a.args, *a.kwonlyargs, *([a.vararg] if a.vararg else []))
    notes = [x.annotation for x in parameters]
    chains = [
        _dotted(n) for note in notes if note for n in ast.walk(note) if isinstance(n, ast.Name | ast.Attribute)
    ]
    called = {chain[-1:] for chain in chains}
    tensor = node.returns is not None and "Tensor" in ast.unparse(node.returns)
    return None not in notes and a.kwarg is None and not tensor and called <= {(word,) for word in PLAIN}


def _excused(node: ast.AST) -> set[ast.AST]:
    imports = isinstance(node, ast.Try) and _only_imports(node)
    return _own_names(node) | _harmless(node) | ({node} if imports else set())


def _imported(node: ast.AST) -> dict[str, str]:
    """Of an import what its local names stand for: dotted modules or objects."""
    if isinstance(node, ast.ImportFrom):
        return {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    if isinstance(node, ast.Import):
        # `import a.b` binds a, `import a.b as c` binds a.b
        roots = [(a.asname, a.name) if a.asname else (None, a.name.split(".")[0]) for a in node.names]
        return {name or root: root for name, root in roots}
    return {}


def _refused(node: ast.AST, text: str, reason: Reason = Reason.static_refusal) -> Observation:
    return Observation(reason, int(getattr(node, "lineno", 0)), text)


class _Reader:
    """One source, and the names in it that a rule needs to know.

    modules: local name → dotted module or object. excused: nodes that mean something else than their name says.
    spaces: namespaces of operators of its own.
    """

    def __init__(self, candidate: Candidate, tree: ast.Module, random: bool) -> None:
        nodes = list(ast.walk(tree))
        defined = [n for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)]
        self._candidate = candidate
        self._tree = tree
        self._own = not candidate.calls_libraries
        self._makers = TORCH_MAKERS | TORCH_DRAWS if random else TORCH_MAKERS
        self._cute = candidate.language == "cute"
        self._allowed = CUTE_MODULES if self._cute else MODULES if self._own else LIBRARY_MODULES
        self._modules = {name: module for node in nodes for name, module in _imported(node).items()}
        self._functions = {node.name for node in defined}
        functions = [n for n in defined if isinstance(n, ast.FunctionDef)]
        # CuTe runs a kernel's body as Python while it compiles it: there its words are not the GPU's alone
        self._kernels = {n for n in functions if _decorators(n) & set(JIT) and not self._cute}
        self._traced = {n.name for n in functions if "kernel" in _decorators(n)}
        self._spaces = {x for n in nodes if isinstance(n, ast.Call) for x in _spaces(n)} - OF_TORCH
        self._excused = {x for node in nodes for x in _excused(node)}
        self._renamed = "__name__" in _stored(tree)

    def observations(self) -> Iterator[Observation]:
        yield from self._entry()
        yield from self._module_state()
        for node in self._host_nodes(self._tree):
            for types, rule in (*_RULES, *(_OWN_RULES if self._own and not self._cute else ())):
                if isinstance(node, types) and node not in self._excused:
                    yield from rule(self, node)

    def _host_nodes(self, root: ast.AST) -> Iterator[ast.AST]:
        """All nodes outside kernel bodies (whose words are the GPU's), decorators of kernels included; not what
        runs only where the file is the program, which no job makes it."""
        for child in ast.iter_child_nodes(root):
            if isinstance(child, ast.If) and _asks_whether_it_is_main(child) and not self._renamed:
                for other in child.orelse:
                    yield other
                    yield from self._host_nodes(other)
                continue
            if isinstance(child, ast.FunctionDef) and child in self._kernels:
                for decorator in child.decorator_list:
                    yield decorator
                    yield from self._host_nodes(decorator)
                continue
            yield child
            yield from self._host_nodes(child)

    def _entry(self) -> Iterator[Observation]:
        if self._cute:
            for name in dict.fromkeys(launch.kernel for launch in self._candidate.launches):
                if name not in self._traced:
                    yield Observation(Reason.entry_missing, 0, f"the plan launches {name!r}, no @cute.kernel here")
            return
        names = set(self._functions)
        for node in self._tree.body:
            if isinstance(node, ast.Assign | ast.AnnAssign):
                names |= _stored(node)
        if self._candidate.entry not in names | set(self._modules):
            yield Observation(Reason.entry_missing, 0, f"no {self._candidate.entry!r} at the top level")
        if self._own and self._candidate.language == "triton" and not self._launches():
            yield Observation(Reason.library_call, 0, "declared a kernel of its own, but launches none")

    def _launches(self) -> bool:
        """Whether some `kernel[grid]` stands in the host code: called there, or taken for a call further down."""
        kernels = {node.name for node in self._kernels if isinstance(node, ast.FunctionDef)}
        host = list(self._host_nodes(self._tree))
        called = any(isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript) for node in host)
        return called or any(isinstance(node, ast.Name) and node.id in kernels for node in host)

    def _module_state(self) -> Iterator[Observation]:
        """Empty containers at module level, which could only serve to remember earlier calls; not those that are
        filled and read at module level alone."""
        names = {n for n in ast.walk(self._tree) if isinstance(n, ast.Name)}
        outside = {n.id for n in names if _loaded(n)} - {n.id for n in names & self._inside()}
        for node in self._tree.body:
            value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
            empty = value is not None and ast.unparse(value) in ("{}", "[]", "dict()", "list()", "set()")
            if empty and not _stored(node) <= outside:
                yield _refused(node, "an empty container at module level")

    def _inside(self) -> set[ast.AST]:
        """All nodes of functions that run when they are called; their decorators run at import."""
        functions = [n for n in ast.walk(self._tree) if isinstance(n, ast.FunctionDef | ast.Lambda)]
        decorators = [d for function in functions for d in getattr(function, "decorator_list", ())]
        return {n for f in functions for n in ast.walk(f)} - {n for d in decorators for n in ast.walk(d)}

    def imports(self, node: ast.Import | ast.ImportFrom) -> Iterator[Observation]:
        names = [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            names = [node.module or "." * node.level]
        # of torch and triton only what is listed, of any other allowed package all
        whole = self._allowed - {"torch", "triton"}
        foreign = [name for name in names if name not in self._allowed and name.split(".")[0] not in whole]
        for name in foreign:
            yield _refused(node, f"imports {name}")
        for alias in node.names if not foreign else ():
            module = [names[0]] if isinstance(node, ast.ImportFrom) else []
            yield from self._reached(node, ".".join([*module, alias.name]).split("."))

    def _reached(self, node: ast.AST, chain: Sequence[str]) -> Iterator[Observation]:
        """Modules of others that an allowed module happens to hold, and names that stand in texts."""
        if tuple(chain) in BY_TEXT:
            yield _refused(node, f"uses {'.'.join(chain)}")
            return
        if tuple(chain[:1]) == ("cutlass",):  # of which the judge's own process imports nothing
            yield from (_refused(node, f"reaches the module {x}") for x in chain if x in CUTE_OUTSIDE)
            return
        module = _module_at(chain).split(".")[0] if len(chain) > 1 else ""
        if module and module not in {name.split(".")[0] for name in self._allowed}:
            yield _refused(node, f"reaches the module {module}")

    def name(self, node: ast.Name) -> Iterator[Observation]:
        if node.id in BUILTINS or (_dunder(node.id) and _loaded(node)):
            yield _refused(node, f"uses {node.id}")

    def attribute(self, node: ast.Attribute) -> Iterator[Observation]:
        if node.attr in ATTRIBUTES or (_dunder(node.attr) and node.attr not in DUNDERS):
            yield _refused(node, f"reaches for .{node.attr}")
        chain = self._absolute(node)
        if chain[:2] == ("torch", "cuda") and len(chain) > 2 and chain[2] not in TORCH_CUDA:
            yield _refused(node, f"uses {'.'.join(chain)}")
        yield from self._reached(node, chain)

    def scope(self, node: ast.Global | ast.Nonlocal) -> Iterator[Observation]:
        yield _refused(node, f"keeps state in {', '.join(node.names)}")

    def bases(self, node: ast.ClassDef) -> Iterator[Observation]:
        for base in node.bases:
            # each of these sees, or answers, operations that are not the entry's own
            if self._absolute(base)[-1:] in [("Tensor",), ("TorchDispatchMode",), ("TorchFunctionMode",)]:
                yield _refused(node, f"derives a class from {ast.unparse(base)}")

    def function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Observation]:
        if _decorators(node) & {"cache", "lru_cache"} and not _plainly_annotated(node):
            told = f"caches the results of {node.name}, whose parameters are not annotated as plain values"
            yield _refused(node, told)
        defaults = [*node.args.defaults, *node.args.kw_defaults]
        if any(isinstance(default, ast.Dict | ast.List | ast.Set) for default in defaults):
            yield _refused(node, f"keeps state in a default of {node.name}")

    def assignment(self, node: ast.Assign | ast.Delete | ast.AugAssign | ast.AnnAssign) -> Iterator[Observation]:
        for target in node.targets if isinstance(node, ast.Assign | ast.Delete) else [node.target]:
            chain = _dotted(target)
            if len(chain) > 1 and (chain[0] in self._modules or chain[0] in self._functions):
                yield _refused(node, f"assigns to {'.'.join(chain)}")

    def fallback(self, node: ast.Try | ast.TryStar) -> Iterator[Observation]:
        yield _refused(node, "catches exceptions: a kernel has no fallback")

    def operator(self, node: ast.BinOp) -> Iterator[Observation]:
        if isinstance(node.op, ast.MatMult):
            yield _refused(node, "multiplies matrices with @", Reason.library_call)

    def call(self, node: ast.Call) -> Iterator[Observation]:
        chain = self._absolute(node.func) if isinstance(node.func, ast.Name | ast.Attribute) else ()
        if chain[:2] == ("torch", "library") and _spaces(node) & OF_TORCH:
            yield _refused(node, "registers something for torch's own operators")
        elif chain[:1] == ("torch",) and len(chain) > 1:
            if not self._allocates(chain[1:]):
                yield _refused(node, f"calls {'.'.join(chain)}", Reason.library_call)
        elif isinstance(node.func, ast.Attribute) and node.func.attr in METHODS and chain[:1] != ("math",):
            yield _refused(node, f"calls .{node.func.attr}()", Reason.library_call)

    def _allocates(self, chain: Sequence[str]) -> bool:
        """Whether what is called of torch computes nothing, or is an operator of the candidate's own."""
        room = chain[0]
        if room == "ops" and self._spaces & {*chain[1:2]}:
            return True
        inner = room in TORCH_ROOMS and tuple(chain[:2]) != ("nn", "functional")
        return inner or room in self._makers or tuple(chain[:2]) in TORCH_NAMED

    def _absolute(self, node: ast.expr) -> tuple[str, ...]:
        """An attribute chain with the local module name replaced by the imported one."""
        chain = _dotted(node)
        if chain and chain[0] in self._modules:
            return (*self._modules[chain[0]].split("."), *chain[1:])
        return ()


_Rules = tuple[tuple[Any, Callable[..., Iterator[Observation]]], ...]
_RULES: _Rules = (
    (ast.Import | ast.ImportFrom, _Reader.imports),
    (ast.Name, _Reader.name),
    (ast.Attribute, _Reader.attribute),
    (ast.Global | ast.Nonlocal, _Reader.scope),
    (ast.ClassDef, _Reader.bases),
    (ast.FunctionDef | ast.AsyncFunctionDef, _Reader.function),
    (ast.Assign | ast.Delete | ast.AugAssign | ast.AnnAssign, _Reader.assignment),
)
_OWN_RULES: _Rules = (
    (ast.Try | ast.TryStar, _Reader.fallback),
    (ast.BinOp, _Reader.operator),
    (ast.Call, _Reader.call),
)
"""What a kernel of its own may not do, but a composition of library calls may."""


def misfit(candidate: Candidate, problem: Problem) -> str:
    """What in it does not fit, by field; empty where all does."""
    domain, sizes = candidate.domain, sorted(problem.cases[0].sizes)
    for field, said, known in (
        ("dtypes", domain.dtypes, problem.dtypes),
        ("layouts", domain.layouts, problem.layouts),
        ("bounds", [bound.name for bound in domain.bounds], sizes),
    ):
        for word in said:
            if word not in known:
                return f"{field}: {word!r} is none of {problem.name}'s: {', '.join(known)}"
        if twice := _twice(said):
            return f"{field}: {twice!r} is given a second time"
    given = smallest_inputs(problem) if candidate.mutates else ()
    tensors = [position for position, x in enumerate(given) if isinstance(x, torch.Tensor)]
    for position in candidate.mutates:
        if position not in tensors:
            return f"mutates: {position} is none of {problem.name}'s tensors: {', '.join(map(str, tensors))}"
    return _launched(candidate, problem) if candidate.launches else ""


def _launched(candidate: Candidate, problem: Problem) -> str:
    """What in a declared plan has no meaning on the first timed case that the candidate admits."""
    admitted = (c for c in problem.cases if candidate.domain.admits(c.sizes, c.dtype, c.layout))
    case = next(admitted, None)
    if case is None:
        return ""
    given = smallest_inputs(problem)
    numbers = {i: float(x) for i, x in enumerate(given) if isinstance(x, int | float)}
    try:
        made = cuda_plan(candidate, b"", case.sizes, numbers)
    except (PlanError, CandidateError) as error:
        return f"launch: {error} ({case})"
    there = {"in": len(given), "out": len(problem.eager(given)), "tmp": len(made.scratch_bytes)}
    for step in [step for step in made.steps if isinstance(step, Fire)]:
        for x in step.arguments:
            if isinstance(x, Pointer) and x.index >= there[x.room]:
                return f"launch: {x.room}{x.index} of {step.name!r}: there are {there[x.room]} of that kind"
    return ""


def _twice(words: Sequence[str]) -> str:
    return next((word for number, word in enumerate(words) if word in words[:number]), "")
