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

from nightshift.kernels.candidate import Candidate
from nightshift.kernels.judge import static_rules
from nightshift.kernels.judge.verdict import Reason


@dataclass(frozen=True)
class Observation:
    """One rule that the source breaks. `line` counts from 1; 0: none, what is missing has no line."""

    reason: Reason
    line: int
    text: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.text}" if self.line else self.text


def read(candidate: Candidate) -> tuple[Observation, ...]:
    """Everything that speaks against the source, in the order of its lines; empty where nothing does."""
    if candidate.language == "cuda":
        return tuple(_read_cuda(candidate))
    try:
        tree = ast.parse(candidate.source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        told = getattr(error, "msg", None) or error
        return (Observation(Reason.syntax, getattr(error, "lineno", None) or 0, f"does not parse: {told}"),)
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


def _asks_whether_it_is_main(node: ast.AST) -> bool:
    """`if __name__ == "__main__":`, the one question to which a judge's answer is everybody's."""
    return isinstance(node, ast.If) and ast.unparse(node.test) in static_rules.MAIN


def _harmless(node: ast.AST) -> set[ast.AST]:
    """Names that are asked for in a way that tells nothing: `getattr(torch, "float8_e4m3fn", None)`, an attribute
    that may be missing, and a logger's name."""
    match node:
        case ast.Call(func=ast.Attribute(attr="getLogger"), args=[ast.Name(id="__name__") as name]):
            return {name}
        case ast.Call(func=ast.Name(id="getattr"), args=[_, ast.Constant(value=str() as name), *_], keywords=[]):
            return (
                set()
                if name in static_rules.ATTRIBUTES or (_dunder(name) and name not in static_rules.DUNDERS)
                else {node.func}
            )
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
    return (
        None not in notes and a.kwarg is None and not tensor and called <= {(word,) for word in static_rules.PLAIN}
    )


class _Reader:
    def __init__(self, candidate: Candidate, tree: ast.Module) -> None:
        self._candidate = candidate
        self._tree = tree
        self._own = candidate.kind != "library"
        self._allowed = static_rules.MODULES if self._own else static_rules.LIBRARY_MODULES
        self._roots = {name.split(".")[0] for name in self._allowed}
        self._modules: dict[str, str] = {}  # local name → dotted module or object
        self._excused: set[ast.AST] = set()  # nodes that mean something else than their name says
        self._functions: set[str] = set()
        self._kernels: set[ast.AST] = set()
        self._spaces: set[str] = set()  # of operators of its own
        self._renamed = "__name__" in _stored(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    root = alias.name if alias.asname else alias.name.split(".")[0]
                    self._modules[alias.asname or root] = root
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    self._modules[alias.asname or alias.name] = f"{node.module}.{alias.name}"
            elif isinstance(node, ast.Call):
                self._spaces |= _spaces(node) - static_rules.OF_TORCH
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                self._functions.add(node.name)
                if isinstance(node, ast.FunctionDef) and _decorators(node) & set(static_rules.JIT):
                    self._kernels.add(node)
            self._excused |= _own_names(node) | _harmless(node)
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
        if tuple(chain) in static_rules.BY_TEXT:
            yield Observation(Reason.static_refusal, line, f"uses {'.'.join(chain)}")
            return
        module = _module_at(chain).split(".")[0] if len(chain) > 1 else ""
        if module and module not in self._roots:
            yield Observation(Reason.static_refusal, line, f"reaches the module {module}")

    def _names(self, node: ast.AST) -> Iterator[Observation]:
        line = _line(node)
        if node in self._excused:
            return
        if isinstance(node, ast.Name) and (
            node.id in static_rules.BUILTINS or (_dunder(node.id) and _loaded(node))
        ):
            yield Observation(Reason.static_refusal, line, f"uses {node.id}")
        elif isinstance(node, ast.Attribute):
            if node.attr in static_rules.ATTRIBUTES or (
                _dunder(node.attr) and node.attr not in static_rules.DUNDERS
            ):
                yield Observation(Reason.static_refusal, line, f"reaches for .{node.attr}")
            chain = self._absolute(node)
            if chain[:2] == ("torch", "cuda") and len(chain) > 2 and chain[2] not in static_rules.TORCH_CUDA:
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
                told = f"caches the results of {node.name}, whose parameters are not annotated as plain values"
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
            if chain[:2] == ("torch", "library") and _spaces(node) & static_rules.OF_TORCH:
                yield Observation(
                    Reason.static_refusal, _line(node), "registers something for torch's own operators"
                )
            elif chain[:1] == ("torch",) and len(chain) > 1:
                inner = chain[1] in static_rules.TORCH_ROOMS and chain[:3] != ("torch", "nn", "functional")
                inner |= chain[1] == "ops" and bool(self._spaces & {*chain[2:3]})
                if (
                    chain[1] not in static_rules.TORCH_MAKERS
                    and not inner
                    and chain[1:3] not in static_rules.TORCH_NAMED
                ):
                    yield Observation(Reason.library_call, _line(node), f"calls {'.'.join(chain)}")
            elif (
                isinstance(node.func, ast.Attribute)
                and node.func.attr in static_rules.METHODS
                and chain[:1] != ("math",)
            ):
                yield Observation(Reason.library_call, _line(node), f"calls .{node.func.attr}()")

    def _absolute(self, node: ast.expr) -> tuple[str, ...]:
        """An attribute chain with the local module name replaced by the imported one."""
        chain = _dotted(node)
        if chain and chain[0] in self._modules:
            return (*self._modules[chain[0]].split("."), *chain[1:])
        return ()


def _line(node: ast.AST) -> int:
    return int(getattr(node, "lineno", 0))
