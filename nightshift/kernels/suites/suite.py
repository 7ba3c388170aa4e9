"""Works of a suite in KernelBench's format: the tasks that a family of ours computes, found by numbers.

A KernelBench task or a module of a model says nowhere that it is an RMSNorm. So a few ways to hand its arguments to
each problem's reference are tried on the arguments' own shapes, and one is taken only if the function and the
reference agree on float64 draws of two sizes, with weights that are not trivial. What fits no problem stays as it
is.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from nightshift.collectors.seal import sha256_hex
from nightshift.kernels.candidate import Candidate
from nightshift.kernels.generate.base import Generator, GeneratorError, Outcome, Proposal, Spent, Task
from nightshift.kernels.generate.best_measured import templates
from nightshift.kernels.generate.template import Family
from nightshift.kernels.loop.optimise import OptimiseError, Work, slug_of
from nightshift.kernels.ops.families import families_of
from nightshift.kernels.ops.problems import BY_NAME, named
from nightshift.kernels.problem import Case, ProblemError, as_outputs
from nightshift.kernels.regions.author import attempted, region_author
from nightshift.kernels.suites.kernelbench import SuiteTask, load_task, names_of

EPSILONS = (1e-5, 1e-6, 1e-8, 1e-12, 2.0**-23)
_SCALES = (1.0, 1e-3)
"""Draws of unit size, and small ones: there another epsilon shows."""
_LIKE = 3e-6
_BOUND_ELEMENTS = 1 << 27
Arguments = Sequence[Any]


@dataclass(frozen=True)
class Binding:
    """A problem and how its entry is called: `call` is Python text over `a` (the arguments) and `entry`.

    sizes: the problem's parameters for these arguments; places: which arguments are the problem's tensors.
    """

    problem: str
    call: str
    sizes: dict[str, int]
    places: tuple[int, ...]

    def case(self, dtype: str) -> Case:
        return Case.of(dtype, "contiguous", **self.sizes)


def bind(function: Callable[..., Any], arguments: Arguments, problems: Sequence[str] = ()) -> Binding | None:
    """The binding of a function of tensors, or None. `arguments`: one example of each, with its real shapes."""
    for binding in _guesses(arguments):
        if problems and binding.problem not in problems:
            continue
        if _agrees(function, arguments, binding):
            return binding
    return None


def call(binding: Binding, entry: Callable[..., Any], arguments: Arguments) -> Any:
    """The problem's entry on a function's arguments, with the outputs in the function's shape."""
    return eval(binding.call, {"a": arguments, "entry": entry, "math": math})  # our own text, made below


@dataclass(frozen=True)
class _Tensors:
    """A function's tensors by their places: of two or more dimensions of floats (blocks), of one (lines), of
    integers (wholes)."""

    shape: dict[int, tuple[int, ...]]
    blocks: tuple[int, ...]
    lines: tuple[int, ...]
    wholes: tuple[int, ...]
    bytes: frozenset[int]

    @classmethod
    def of(cls, arguments: Arguments) -> _Tensors:
        tensors = {i: x for i, x in enumerate(arguments) if isinstance(x, torch.Tensor)}
        shape = {i: tuple(x.shape) for i, x in tensors.items()}
        floats = [i for i, x in tensors.items() if x.is_floating_point()]
        return cls(
            shape,
            tuple(i for i in floats if len(shape[i]) >= 2),
            tuple(i for i in floats if len(shape[i]) == 1),
            tuple(i for i in tensors if i not in floats),
            frozenset(i for i, x in tensors.items() if x.dtype == torch.int8),
        )

    def rows(self, x: int) -> dict[str, int]:
        return {"m": math.prod(self.shape[x][:-1]), "n": self.shape[x][-1]}

    def flat(self, x: int) -> str:
        return f"a[{x}].reshape(-1, {self.shape[x][-1]})"


def _guesses(arguments: Arguments) -> Iterator[Binding]:
    given = _Tensors.of(arguments)
    for rule in _RULES.get(len(given.blocks), ()):
        yield from rule(given)


def _of_rows(given: _Tensors) -> Iterator[Binding]:
    """Functions of rows alone."""
    (x,) = given.blocks
    if given.wholes or given.lines:
        return
    rows, flat, n = given.rows(x), given.flat(x), given.shape[x][-1]
    yield Binding("softmax", f"entry({flat}).reshape(a[{x}].shape)", rows, (x,))
    for name, one in itertools.product(("reduce_sum", "max"), ("", ", 1")):  # with the dimension kept, too
        yield Binding(name, f"entry({flat}).reshape(*a[{x}].shape[:-1]{one})", rows, (x,))
    for name in ("gelu", "copy"):
        yield Binding(name, f"entry({flat}).reshape(a[{x}].shape)", rows, (x,))
    if len(given.shape[x]) == 2:
        yield Binding("quantise", f"entry(a[{x}])", rows, (x,))
    if n % 2 == 0:  # gate and up in one tensor, in either order
        half, cut = n // 2, {"m": rows["m"], "n": n // 2}
        first, second = (f"a[{x}][..., {s}].contiguous().reshape(-1, {half})" for s in (f":{half}", f"{half}:"))
        for name, (gate, up) in itertools.product(("swiglu", "geglu"), ((first, second), (second, first))):
            yield Binding(name, f"entry({gate}, {up}).reshape(*a[{x}].shape[:-1], {half})", cut, (x,))


def _norms(given: _Tensors) -> Iterator[Binding]:
    (x,) = given.blocks
    vectors = [line for line in given.lines if given.shape[line] == given.shape[x][-1:]] if not given.wholes else []
    for name, count in (("rmsnorm", 1), ("layernorm", 2)):
        for weights, eps in itertools.product(itertools.permutations(vectors, count), EPSILONS):
            listed = ", ".join(f"a[{weight}]" for weight in weights)
            text = f"entry({given.flat(x)}, {listed}, {eps!r}).reshape(a[{x}].shape)"
            yield Binding(name, text, given.rows(x), (x, *weights))


def _classes(given: _Tensors) -> Iterator[Binding]:
    (x,), shape = given.blocks, given.shape
    if len(given.wholes) == 1 and not given.lines and len(shape[x]) == 2:
        (index,) = given.wholes
        if shape[index] == shape[x][:1]:
            sizes = {"m": shape[x][0], "v": shape[x][1]}
            yield Binding("cross_entropy", f"entry(a[{x}], a[{index}])", sizes, (x, index))


def _codes(given: _Tensors) -> Iterator[Binding]:
    """Codes of 8 bits, and a scale for each row."""
    if len(given.wholes) == 1 and len(given.lines) == 1:
        (code,), (scale,) = given.wholes, given.lines
        if code in given.bytes and len(given.shape[code]) == 2 and given.shape[scale] == given.shape[code][:1]:
            yield Binding("dequantise", f"entry(a[{code}], a[{scale}])", given.rows(code), (code, scale))


def _pairs(given: _Tensors) -> Iterator[Binding]:
    for x, y in itertools.permutations(given.blocks) if not given.wholes and not given.lines else ():
        if given.shape[x] == given.shape[y]:
            for name in ("swiglu", "geglu"):
                text = f"entry({given.flat(x)}, {given.flat(y)}).reshape(a[{x}].shape)"
                yield Binding(name, text, given.rows(x), (x, y))
        if len(given.shape[y]) == 2:
            m, k = given.rows(x).values()
            for (n, inner), turn in ((given.shape[y], ".t()"), (given.shape[y][::-1], "")):
                if inner == k:
                    text = f"entry({given.flat(x)}, a[{y}]{turn}).reshape(*a[{x}].shape[:-1], {n})"
                    yield Binding("matmul", text, {"m": m, "n": n, "k": k}, (x, y))


def _pairs_and_a_line(given: _Tensors) -> Iterator[Binding]:
    for x, y in itertools.permutations(given.blocks) if not given.wholes and len(given.lines) == 1 else ():
        (line,), shape, (m, n) = given.lines, given.shape, given.rows(x).values()
        if shape[x] == shape[y] and shape[line] == (n,):
            for eps in EPSILONS:
                both = f"{given.flat(x)}, {given.flat(y)}, a[{line}], {eps!r}"
                text = f"tuple(o.reshape(a[{x}].shape) for o in entry({both}))"
                yield Binding("rmsnorm_residual", text, given.rows(x), (x, y, line))
        if shape[y] == (*shape[line], n):
            sizes = {"m": m, "n": shape[y][0], "k": n}
            text = f"entry({given.flat(x)}, a[{y}], a[{line}]).reshape(*a[{x}].shape[:-1], {shape[y][0]})"
            for name in ("linear_bias", "linear_gelu", "linear_gelu_tanh", "linear_relu"):
                yield Binding(name, text, sizes, (x, y, line))


def _threes(given: _Tensors) -> Iterator[Binding]:
    """Attention; a tensor rotated by two tables."""
    for q, k, v in itertools.permutations(given.blocks):
        shape = given.shape[q]
        if len(shape) != 4:
            continue
        text, sizes = f"entry(a[{q}], a[{k}], a[{v}])", dict(zip("bhsd", shape, strict=True))
        if shape == given.shape[k] == given.shape[v]:
            yield Binding("flash_attention", text, sizes, (q, k, v))
        if given.shape[k] == given.shape[v] == (shape[2], shape[3] // 2):
            yield Binding("rotary_interleaved", text, sizes, (q, k, v))


def _blocks_of_four(given: _Tensors) -> Iterator[Binding]:
    """A gated feed-forward block."""
    for x, gate, up, down in itertools.permutations(given.blocks):
        if len(given.shape[gate]) == 2 and given.shape[gate] == given.shape[up] == given.shape[down][::-1]:
            f, d = given.shape[gate]
            if given.shape[x][-1] == d:
                text = f"entry({given.flat(x)}, a[{gate}], a[{up}], a[{down}]).reshape(a[{x}].shape)"
                sizes = {"m": given.rows(x)["m"], "d": d, "f": f}
                yield Binding("fused_mlp", text, sizes, (x, gate, up, down))


def _rotations(given: _Tensors) -> Iterator[Binding]:
    """Queries and keys rotated by two tables."""
    for q, k, cos, sin in itertools.permutations(given.blocks):
        shapes = [given.shape[place] for place in (q, k, cos, sin)]
        if [len(shape) for shape in shapes] == [4, 4, 2, 2] and shapes[2] == shapes[3] == shapes[0][2:]:
            (b, h, s, d), (other_b, g, *rest) = shapes[:2]
            if [other_b, *rest] == [b, s, d]:
                sizes = {"b": b, "h": h, "g": g, "s": s, "d": d}
                text = f"entry(a[{q}], a[{k}], a[{cos}], a[{sin}])"
                yield Binding("rotary_half", text, sizes, (q, k, cos, sin))


_RULES: dict[int, tuple[Callable[[_Tensors], Iterator[Binding]], ...]] = {
    0: (_codes,),
    1: (_of_rows, _norms, _classes),
    2: (_pairs, _pairs_and_a_line),
    3: (_threes,),
    4: (_blocks_of_four, _rotations),
}
"""By the number of blocks."""


@torch.no_grad()
def _agrees(function: Callable[..., Any], arguments: Arguments, binding: Binding) -> bool:
    """Whether function and reference are the same in float64 (or in the reference's own way, where it is exact)."""
    problem = BY_NAME[binding.problem]
    for number, scale in enumerate(_SCALES):
        generator = torch.Generator().manual_seed(number + 1)
        rows = getattr(arguments[binding.places[0]], "shape", None)  # a residual beside x would hide an epsilon
        drawn = [_drawn(x, generator, scale if getattr(x, "shape", ()) == rows else 1.0) for x in arguments]
        try:
            given = as_outputs(function(*drawn))
            wanted = as_outputs(call(binding, problem.reference, drawn))
        except Exception:  # noqa: BLE001  a wrong guess may raise anything
            return False
        if len(given) != len(wanted):
            return False
        for mine, theirs in zip(given, wanted, strict=True):
            if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
                return False
            a, b = mine.double(), theirs.double()
            level = float(b.abs().max()) if b.numel() else 0.0  # a function may itself calculate in float32
            if not torch.allclose(a, b, rtol=_LIKE, atol=_LIKE * level, equal_nan=True):
                return False
    return True


def _drawn(value: Any, generator: torch.Generator, scale: float) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    if not value.is_floating_point():
        return value.detach().cpu()
    made = torch.randn(value.shape, generator=generator, dtype=torch.float64) * scale
    # off zero: a function that subtracts a mean, or drops a sign, differs then
    return made + 0.25 * scale


def from_suite(folder: Path, dtypes: tuple[str, ...] = ("float32",)) -> tuple[list[Work], dict[str, str]]:
    """(works, why not others) of a folder in KernelBench's format. A file that is no task is one of the others."""
    works: dict[str, Work] = {}
    missed: dict[str, str] = {}
    for name in names_of(folder):
        try:
            task = load_task(folder / name, dtypes, _device())
            made = _suite_work(task, f"suite {folder.name}/{name}", str(folder / name))
        except (ProblemError, GeneratorError) as error:
            # one broken file must not end the suite
            missed[name] = str(error)
            continue
        slug = slug_of(name)
        # two files of one name in different folders would share a search's folder
        slug = f"{slug[:70]}-{sha256_hex(name.encode())[:8]}" if slug in works else slug
        works[slug] = replace(made, slug=slug)
    return list(works.values()), missed


def task_again(path: Path, dtype: str, origin: str) -> Work:
    """One task's work, for another process. Raises OptimiseError where it has no graph."""
    try:
        return _suite_work(load_task(path, (dtype,), _device()), origin, str(path))
    except GeneratorError as error:
        raise OptimiseError(f"{path}: {error}") from error


def _device() -> str:
    """Where a task's model is run: published sizes would take minutes on a CPU."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def _suite_work(task: SuiteTask, origin: str, path: str) -> Work:
    """A family's kernels first, where one computes the task; kernels of its own regions beside them.

    Raises GeneratorError where there are neither."""
    wanted = Task(task.problem, task.problem.cases[0], facts={"source": task.source})
    binding = binding_of(task)
    authors: list[Generator] = []
    if binding is not None and python_families(binding.problem):
        authors.append(SuiteAuthor(task, binding))
    try:
        regions = region_author(task.problem, task.forms, _device())
        attempted(regions, wanted.case)
        authors.append(regions)
    except GeneratorError:
        if not authors:
            raise
    return Work(slug_of(Path(path).name), wanted, tuple(authors), origin, path)


def binding_of(task: SuiteTask) -> Binding | None:
    """Which of our problems a KernelBench task is, by numbers."""
    sizes = [x.numel() for x in task.forms if isinstance(x, torch.Tensor)]
    if sum(sizes) > _BOUND_ELEMENTS:  # what is compared in float64 many times would take minutes
        return None
    sample = task.problem.inputs(task.problem.cases[0], "normal", 1, "cpu")
    return bind(task.problem.reference, sample)


@dataclass
class SuiteAuthor:
    """A family's kernels behind a KernelBench task's arguments."""

    suite: SuiteTask
    binding: Binding
    seed: int = 0

    @property
    def name(self) -> str:
        return python_families(self.binding.problem)[0].name

    def spent(self) -> Spent:
        return Spent()

    def propose(self, task: Task, history: Sequence[Outcome], count: int) -> Sequence[Proposal]:
        inner = Task(named(self.binding.problem), self.binding.case(task.case.dtype))
        gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
        made = templates(gpu, inner.problem.name, inner.case, self.seed)
        template = next(t for t in made if t.family.name == self.name)
        return [replace(p, candidate=self._wrapped(p.candidate)) for p in template.propose(inner, history, count)]

    def _wrapped(self, inner: Candidate) -> Candidate:
        text = self.binding.call.replace("entry(", f"{inner.entry}(")
        # a family's kernel was written for rows that lie side by side; a task's arguments may lie anyhow
        laid = "a = [x.contiguous() if hasattr(x, 'contiguous') else x for x in a]"
        glue = f"\n\ndef nightshift_task(*a):\n    {laid}\n    return {text}\n"
        return Candidate(
            inner.source + glue, "nightshift_task", inner.language, inner.kind, inner.determinism, inner.mutates
        )


def python_families(problem: str) -> list[Family]:
    """Families whose kernels a Python entry calls: those that can stand behind a task or in a job's file."""
    return [family for family in families_of(problem) if not family.name.endswith("_cuda")]
