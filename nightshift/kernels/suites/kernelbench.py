"""Problems in KernelBench's format, judged like our own, and its score for a suite.

A KernelBench task (Ouyang et al., arXiv 2502.10517) is a Python file with `class Model(nn.Module)`, `get_inputs()`
and `get_init_inputs()`. The file is the reference, so it is run here, in the judge: load only suites that you
trust. The contestant's `ModelNew` is not: `candidate_of` turns its source into a candidate that runs confined.

`get_inputs` and `get_init_inputs` give a list, a mapping by name, or both as [[…], {…}].

A model's parameters and buffers become inputs after its own, in the order of `named_parameters` and
`named_buffers`, so that a candidate cannot keep them and the judge can vary them. A task has one shape; what the
plan varies are values, layouts and, where asked for, dtypes. `Model` and `ModelNew` are judged in evaluation mode:
in training mode a dropout is random and a batch norm writes to its buffers. A task that no oracle can be made of
(random outputs, shapes that depend on values, complex numbers, inputs that are neither tensors nor numbers) is
refused when it is loaded, with its file and the reason. A model that writes to its inputs is a reference all the
same; its contestant leaves them alone.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from nightshift.kernels.candidate import Candidate, Language
from nightshift.kernels.draw import Draw, mix
from nightshift.kernels.judge.verdict import Status, Verdict
from nightshift.kernels.problem import DTYPES, Axis, Case, Inputs, Outputs, Problem, ProblemError, Rule, as_outputs
from nightshift.kernels.suites.process_settings import as_it_was

CORRECT = frozenset({Status.faster, Status.slower, Status.inconclusive, Status.correct})


@dataclass(frozen=True)
class SuiteTask:
    """A loaded file: the problem, and what a `ModelNew` needs to be built and called like `Model`.

    inputs: how many it is called with, the last of them by the names in `named`; state: of parameters and buffers.
    forms: of all the problem's inputs, as tensors without values. by_mode: training mode computes something else.
    work_bytes: of GPU memory that one eager call takes beside its inputs, 0 on a CPU.
    """

    problem: Problem
    init_inputs: tuple[Any, ...]
    init_named: Mapping[str, Any]
    inputs: int
    named: tuple[str, ...]
    state: tuple[str, ...]
    forms: Inputs = ()
    source: str = ""
    by_mode: bool = False
    work_bytes: int = 0


@as_it_was()
def load_task(path: Path, dtypes: tuple[str, ...] = ("float32",), device: str = "cpu") -> SuiteTask:
    """The task of a file, its model and inputs on a device; on "meta" its forms alone, and nothing is computed.
    Raises ProblemError that names the file and what it lacks, or that its tensors are too large for the device."""
    with as_it_was():
        module = _module(path)
    for name in ("Model", "get_inputs", "get_init_inputs"):
        if not callable(getattr(module, name, None)):
            raise ProblemError(f"{path}: defines no {name}")
    try:
        with torch.device(device), torch.no_grad():
            loaded = _loaded(module, device)
    except (Exception, SystemExit) as error:
        told = str(error) if isinstance(error, ProblemError) else f"{type(error).__name__}: {error}"
        raise ProblemError(f"{path}: Model or its inputs fail: {told}") from error
    model, named, count, writes, state = loaded.model, loaded.named, loaded.inputs, loaded.writes, loaded.state
    names, learned = tuple(state), frozenset(name for name, _ in model.named_parameters())
    terms = max((x.numel() // max(1, len(x)) for x in state.values() if x.dim() > 1), default=1)
    floats, other_bytes = loaded.moved
    kept = functools.cache(lambda: _State.of(state.values()))  # a task on "meta" has no values

    def reference(*arguments: Any) -> Any:
        # the judge compares its inputs before and after: the reference must not change them
        arguments = _copies(arguments) if writes else arguments
        rest, given, by_name = arguments[count:], *_parted(arguments[:count], named)
        return torch.func.functional_call(model, dict(zip(names, rest, strict=True)), given, by_name)

    @functools.wraps(module.get_inputs)  # what is kept of a problem is known by its code: this file's, not ours
    def make_inputs(case: Case, draw: Draw) -> Inputs:
        with as_it_was(), torch.device(draw.device):
            torch.manual_seed(draw.seed % (1 << 63))
            fresh = _drawn(module, model, named)
        inputs = (*(_vary(x, draw) for x in fresh), *kept().near(draw))
        return tuple(_placed(x, case, draw.device) for x in inputs)

    def whole(case: Case, draw: Draw) -> Inputs:
        made = make_inputs(case, Draw(draw.seed, "normal", draw.device))
        kinds = [2] * count + [1 if name in learned else 0 for name in names]
        return tuple(_whole(x, reach, terms, draw) for x, reach in zip(made, kinds, strict=True))

    problem = Problem(
        name=f"kernelbench/{path.stem}",
        family="kernelbench",
        reference=reference,
        make_inputs=make_inputs,
        cases=tuple(Case.of(dtype, task=1) for dtype in dtypes),
        axes=(Axis("task", (1,), 1, 1),),
        compulsory_bytes=lambda case: floats * case.element_bytes + other_bytes,
        flops=lambda case: max(loaded.flops, loaded.made),
        dtypes=dtypes,
        distributions=("normal", "large_mean", "heavy_tail", "ties", "tiny"),
        rules=(Rule("integers", whole),),
        row_inputs=loaded.rows,
        sampled_rows=loaded.sampled if loaded.rows else 0,
    )
    source = path.read_text(errors="replace")
    by_mode = any(map(_has_modes, model.modules()))
    rest = loaded.forms, source, by_mode, loaded.work_bytes
    return SuiteTask(problem, loaded.init, loaded.init_named, count, named, names, *rest)


def _has_modes(module: torch.nn.Module) -> bool:
    """Whether a module of torch's own computes something else in training mode."""
    if isinstance(module, torch.nn.modules.batchnorm._NormBase):
        return module.track_running_stats
    drops = module.p if isinstance(module, torch.nn.modules.dropout._DropoutNd) else getattr(module, "dropout", 0.0)
    return isinstance(drops, float) and drops > 0.0


@dataclass(frozen=True)
class _Loaded:
    """A task's model, and what a look at one call has told. made: elements of the outputs; moved: what a call reads
    and writes, floating-point elements and the bytes of the rest; rows: inputs that have one for each row of the
    outputs, of which `sampled` are compared; work_bytes: what a call takes of a GPU beside its inputs."""

    init: tuple[Any, ...]
    init_named: Mapping[str, Any]
    model: torch.nn.Module
    named: tuple[str, ...]
    inputs: int
    forms: Inputs
    state: Mapping[str, torch.Tensor]
    made: int
    moved: tuple[int, int]
    flops: int
    writes: bool
    rows: tuple[int, ...]
    sampled: int
    work_bytes: int


def _loaded(module: ModuleType, device: str) -> _Loaded:
    init, init_named = arguments_of(module.Model, module.get_init_inputs())
    model = model_of(module, init, init_named, device)
    model.requires_grad_(False)  # what counts operations hooks parameters that a module is given
    _registered(model, device)
    first, by_name = arguments_of(model, module.get_inputs())
    sample, named = tuple(_on(x, device) for x in (*first, *by_name.values())), tuple(by_name)
    _hold_to_memory(sample, device)
    if device == "meta":
        given, by_name = _parted(sample, tuple(by_name))
        with _Reading([*sample, *model.parameters(), *model.buffers()]) as reading:
            made = as_outputs(model(*given, **by_name))
        look = _Look(made, reading.told())
    else:
        look = _looked_at(module, model, sample, named)
    made, flops = look.made, look.flops
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    values = (*sample, *(tensor.detach() for tensor in state.values()))
    elements = _elements(values) + _elements(made)
    count = min((len(x) if x.dim() else 0 for x in made), default=0)
    sampled = rows_compared(count, 8 * elements, convolved(flops)) if device != "meta" else 0
    rows = _rows_apart(model, sample, named, made) if sampled else ()
    forms = tuple(x.to("meta") if isinstance(x, torch.Tensor) else x for x in values)
    if device.startswith("cuda"):  # only its code is needed from here on, and a suite's models would fill a GPU
        state = {name: x.detach().cpu() for name, x in state.items()}
        model = model.to("meta")
    floats, other_bytes = look.read
    floats += _elements([x for x in made if x.is_floating_point()])
    moved = floats, other_bytes + sum(x.nbytes for x in made if not x.is_floating_point())
    rest = len(sample), forms, state, _elements(made), moved, sum(flops.values()), look.writes, rows, sampled
    return _Loaded(init, init_named, model, named, *rest, look.work_bytes)


def model_of(module: ModuleType, init: Sequence[Any], named: Mapping[str, Any], device: str) -> torch.nn.Module:
    """A task's model in evaluation mode. One that reads numbers out of its tensors while it is made has none on
    "meta": it is made on a CPU and moved there."""
    torch.manual_seed(0)
    try:
        model: torch.nn.Module = module.Model(*init, **named)
    except RuntimeError:
        if device != "meta":
            raise
        with torch.device("cpu"):
            model = module.Model(*init, **named)
    return model.eval().to(device)


def _registered(model: torch.nn.Module, device: str) -> None:
    """Tensors that a model keeps as plain attributes become buffers: state like any, which a call may change."""
    for module in model.modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, torch.Tensor):
                delattr(module, name)
                module.register_buffer(name, value.detach().to(device), persistent=False)


WHOLE_BYTES, WHOLE_FLOPS, SAMPLED_ROWS = 8 << 30, 1 << 37, 64
"""A task of more bytes than this in float64, or of more FLOPs in convolutions, which tensor cores do not compute in
float64, is compared on some of its rows, where they are computed apart: the judge holds up to seven times as many
bytes while it compares the whole, and asks for the float64 value dozens of times."""
MEMORY_SHARE = 0.6
"""Of a device's memory: inputs and outputs of more are refused, for a candidate needs as much again beside."""


def _on(value: Any, device: str) -> Any:
    return value.to(device) if isinstance(value, torch.Tensor) else value


def _hold_to_memory(values: Sequence[Any], device: str) -> None:
    if not device.startswith("cuda"):
        return
    needed = sum(x.numel() * x.itemsize for x in values if isinstance(x, torch.Tensor))
    limit = MEMORY_SHARE * torch.cuda.get_device_properties(device).total_memory
    if needed > limit:
        text = f"its inputs take {needed / 2**30:.1f} GiB, and {MEMORY_SHARE:.0%} of this GPU's memory are"
        raise ProblemError(f"{text} {limit / 2**30:.1f} GiB: nothing is judged of it here")


def rows_compared(count: int, size_bytes: int, flops: float) -> int:
    """Of so many rows: as many as keep within both bounds, from two to SAMPLED_ROWS and at most half of them; 0
    where all are compared."""
    share = min(WHOLE_BYTES / max(1, size_bytes), WHOLE_FLOPS / max(1.0, flops))
    if share >= 1 or count < 4:
        return 0
    return max(2, min(SAMPLED_ROWS, count // 2, int(count * share)))


def convolved(flops: Mapping[Any, int]) -> int:
    """Those of convolutions, among the FLOPs of each operator."""
    return sum(number for operator, number in flops.items() if "convolution" in str(operator))


def _rows_apart(
    model: torch.nn.Module, sample: Sequence[Any], named: Sequence[str], made: Outputs
) -> tuple[int, ...]:
    """The positions of the inputs that have a row for each row of every output, where rows are computed apart from
    each other, as some of them alone show; none elsewhere."""
    count = {x.shape[0] if x.dim() else 0 for x in made}
    places = tuple(
        i for i, x in enumerate(sample) if isinstance(x, torch.Tensor) and x.dim() and {x.shape[0]} == count
    )
    if len(count) != 1 or not places:
        return ()
    chosen = torch.tensor([0, max(count) // 3, max(count) - 1], device=made[0].device)
    few = [x.index_select(0, chosen) if i in places else x for i, x in enumerate(sample)]
    given, by_name = _parted(few, named)
    try:
        alone = as_outputs(model(*given, **by_name))
    except RuntimeError:
        return ()
    same = (_has_rows(some, x, chosen) for some, x in zip(alone, made, strict=True))
    return places if all(same) else ()


def _has_rows(some: torch.Tensor, whole: torch.Tensor, chosen: torch.Tensor) -> bool:
    """Whether these are the chosen rows of the whole, roundings apart."""
    same_form = some.shape[1:] == whole.shape[1:]
    return same_form and torch.allclose(some, whole.index_select(0, chosen), 1e-3, 1e-5, True)


def arguments_of(what: Any, value: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(in order, by name) that a class or a model is called with: of a list, a mapping, one tensor, or
    [[…], {…}]. The last is two arguments where `what` takes it so alone."""
    if isinstance(value, torch.Tensor):
        return (value,), {}
    if isinstance(value, Mapping):
        return (), dict(value)
    items = tuple(value)
    if len(items) == 2 and isinstance(items[0], list | tuple) and isinstance(items[1], Mapping):
        try:
            called = what.forward if isinstance(what, torch.nn.Module) else what
            inspect.signature(called).bind(*items[0], **items[1])
        except TypeError:
            return items, {}
        return tuple(items[0]), dict(items[1])
    return items, {}


def _parted(inputs: Sequence[Any], named: Sequence[str]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(in order, by name): the last inputs are the named ones."""
    count = len(inputs) - len(named)
    return tuple(inputs[:count]), dict(zip(named, inputs[count:], strict=True))


def _drawn(module: ModuleType, model: torch.nn.Module, named: Sequence[str]) -> tuple[Any, ...]:
    """Inputs anew."""
    first, by_name = arguments_of(model, module.get_inputs())
    drawn = (*first, *(by_name[name] for name in named))
    return tuple(_on(x, str(torch.get_default_device())) for x in drawn)


def load_suite(folder: Path, dtypes: tuple[str, ...] = ("float32",)) -> dict[str, SuiteTask]:
    """All tasks of a folder, by path below it. Raises ProblemError where there is none."""
    return {name: load_task(folder / name, dtypes) for name in names_of(folder)}


def names_of(folder: Path) -> list[str]:
    """The tasks' paths below a folder. Raises ProblemError where there is none."""
    if not folder.is_dir():
        raise ProblemError(f"{folder}: no folder of tasks")
    paths = [p for p in sorted(folder.rglob("*.py")) if p.is_file() and not p.name.startswith("_")]
    if not paths:
        raise ProblemError(f"{folder}: holds no .py files")
    return [str(path.relative_to(folder)) for path in paths]


def candidate_of(
    task: SuiteTask,
    source: str,
    language: Language = "triton",
    kind: Any = "own_kernel",
    determinism: Any = "bitwise",
) -> Candidate:
    """A contestant's `ModelNew` as a candidate; it gets the inputs and the state of `Model` with every call.

    Raises ProblemError where the constructor's arguments cannot be written as Python text.
    """
    try:
        init = repr((list(task.init_inputs), dict(task.init_named)))
        ast.literal_eval(init)
    except (ValueError, SyntaxError) as error:
        raise ProblemError(f"get_init_inputs: {init[:80]} cannot be passed on as text") from error
    first = task.inputs - len(task.named)
    glue = f"""

import torch.func

_given, _named = {init}
_model = ModelNew(*_given, **_named).eval()


def entry(*arguments):
    state = dict(zip({list(task.state)!r}, arguments[{task.inputs}:]))
    named = dict(zip({list(task.named)!r}, arguments[{first}:{task.inputs}]))
    return torch.func.functional_call(_model, state, arguments[:{first}], named)
"""
    return Candidate(source + glue, "entry", language, kind, determinism)


_EVALUATED = """

_begin = Model.__init__


def _evaluated(self, *given, **named):
    _begin(self, *given, **named)
    self.eval()


Model.__init__ = _evaluated
"""


def reference_of(task: SuiteTask) -> str:
    """A task for KernelBench's own harness: as published, or in evaluation mode, as it is judged here, where
    training mode computes something else."""
    return task.source + (_EVALUATED if task.by_mode else "")


def model_new_of(task: SuiteTask, candidate: Candidate) -> str:
    """A candidate as the `ModelNew` that the harness takes: the task's `Model`, computed by the candidate's entry.

    Raises ProblemError for a candidate without an entry in Python.
    """
    if candidate.brings_launches:
        raise ProblemError("a candidate with a launch plan of its own has no ModelNew")
    named = "".join(f", named[{name!r}]" for name in task.named)
    glue = f"""

class ModelNew(Model):
    def forward(self, *given, **named):
        state = {{**dict(self.named_parameters()), **dict(self.named_buffers())}}
        for at, module in self.named_modules():
            kept = {{n: x for n, x in vars(module).items() if isinstance(x, torch.Tensor)}}
            state.update({{f"{{at}}.{{n}}" if at else n: x for n, x in kept.items()}})
        place = next(x.device for x in (*given, *state.values()) if isinstance(x, torch.Tensor))
        return {candidate.entry}(*given{named}, *(state[n].to(place) for n in {list(task.state)!r}))
"""
    return f"{reference_of(task)}\n\n{candidate.source}{glue}"


def fast_p(verdicts: Iterable[Verdict], p: float, baseline: str = "eager", bound: str = "low") -> float:
    """KernelBench's fast_p: the share of tasks whose candidate is correct and more than p times a baseline's speed.

    One verdict a task. fast_0 is the share that is correct. `bound` says which figure of the speed-up's interval
    must clear p: "low" (ours: what is certain) or "point" (what KernelBench compares). A task with several timed
    cases counts by its slowest. NaN for no verdicts.
    """
    scores = [speedup(verdict, baseline, bound) if verdict.status in CORRECT else -math.inf for verdict in verdicts]
    if not scores:
        return math.nan
    return sum(score > p or (p == 0 and score > -math.inf) for score in scores) / len(scores)


def speedup(verdict: Verdict, baseline: str = "eager", bound: str = "low") -> float:
    """The smallest speed-up over the baseline of a verdict's timed cases; 0 where none was timed."""
    found = [getattr(c.speedup, bound) for c in verdict.comparisons if c.baseline == baseline]
    return float(min(found, default=0.0))


def _module(path: Path) -> ModuleType:
    # by its whole path: two levels of a suite have files of one name
    name = f"kernelbench_{mix(*os.fsencode(os.path.realpath(path))):016x}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or not path.is_file():
        raise ProblemError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        # not by the loader: its bytecode is known by time and size, and a file written twice in a second has both
        exec(compile(path.read_bytes(), str(path), "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        raise ProblemError(f"{path}: does not load: {type(error).__name__}: {error}") from error
    return module


def _vary(value: Any, draw: Draw) -> Any:
    """The task's own values, changed in the draw's way; integers and numbers stay (they may be indices)."""
    if not isinstance(value, torch.Tensor) or not value.is_floating_point() or not value.numel():
        return value
    out = value.clone()
    if draw.distribution == "large_mean":
        out = out + 10.0
    elif draw.distribution == "heavy_tail":
        noise = Draw(draw.integer(0, 1 << 30), "heavy_tail", out.device).values(value.shape, value.dtype)
        out = out * noise
    elif draw.distribution == "ties":
        out = (out * 4).round() / 4
    elif draw.distribution == "tiny":
        out = out * 2.0**-16
    if draw.twin:
        cell = out.view(-1)[mix(draw.seed, 5) % out.numel()] if out.is_contiguous() else out[(0,) * out.dim()]
        cell.add_(1.0)
    return out


@dataclass(frozen=True)
class _State:
    """A model's parameters and buffers. Those of one dtype that are not large lie in one row, and are drawn
    together: a network has hundreds, and on a shared GPU each operation waits for its turn.

    zero: whether each begins as zero; rows: by dtype (places in `tensors`, their values in a row, which are zero).
    """

    tensors: tuple[torch.Tensor, ...]
    zero: tuple[bool, ...]
    rows: Mapping[torch.dtype, tuple[list[int], torch.Tensor, torch.Tensor]]

    @classmethod
    def of(cls, tensors: Iterable[torch.Tensor]) -> _State:
        given, rows = tuple(x.detach() for x in tensors), {}
        zero = tuple(not x.any() for x in given)
        for dtype in dict.fromkeys(x.dtype for x in given if x.is_floating_point()):
            places = [i for i, x in enumerate(given) if x.dtype is dtype and 0 < x.numel() <= _SMALL]
            if places:
                row = torch.cat([given[i].reshape(-1) for i in places])
                rows[dtype] = places, row, torch.cat([torch.full((given[i].numel(),), zero[i]) for i in places])
        return cls(given, zero, rows)

    def near(self, draw: Draw) -> list[torch.Tensor]:
        """Near the initial ones but not trivial: scaled by 0.75 to 1.25; all-zero ones become 0 to 0.5."""
        found: dict[int, torch.Tensor] = {}
        for places, row, zero in self.rows.values():
            value = row.to(draw.device)
            factor = _factor(value, draw)
            made = torch.where(zero.to(draw.device), factor - 0.75, value * factor)
            parts = torch.split(made, [self.tensors[i].numel() for i in places])
            # a copy, so that each begins where memory is aligned
            found |= {i: x.clone().view(self.tensors[i].shape) for i, x in zip(places, parts, strict=True)}
        for i, tensor in enumerate(self.tensors):
            if i not in found:
                value = found[i] = tensor.to(draw.device)
                if value.is_floating_point() and value.numel():
                    found[i] = _factor(value, draw) - 0.75 if self.zero[i] else value * _factor(value, draw)
        return [found[i] for i in range(len(self.tensors))]


_SMALL = 1 << 22
"""Elements: what is larger is drawn alone, or its copies would fill a GPU."""


def _factor(value: torch.Tensor, draw: Draw) -> torch.Tensor:
    one = Draw(draw.integer(0, 1 << 30), "normal", value.device)
    return one.uniform(value.shape, value.dtype, 0.75, 1.25)


def _whole(value: Any, reach: int, terms: int, draw: Draw) -> Any:
    """Integers in the place of a task's values and parameters, so small that sums of as many as its widest
    parameter adds up are exact; integers, numbers and buffers (`reach` 0: a variance must stay one) are left
    alone."""
    if not reach or not isinstance(value, torch.Tensor) or not value.is_floating_point() or not value.numel():
        return value
    made = draw.whole(value.shape or (1,), value.dtype, terms=terms if reach > 1 else 1, reach=reach)
    return made.reshape(value.shape)


def _placed(value: Any, case: Case, device: torch.device) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.to(device=device, dtype=DTYPES[case.dtype] if value.is_floating_point() else value.dtype)


def _elements(values: Sequence[Any] | Outputs) -> int:
    return sum(value.numel() for value in values if isinstance(value, torch.Tensor))


def _copies(values: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(x.clone() if isinstance(x, torch.Tensor) else x for x in values)


@dataclass(frozen=True)
class _Look:
    """A model's outputs, what of its inputs and state a call reads (floating-point elements, bytes of others), the
    FLOPs of each operator, whether it writes to its inputs, and the bytes of a GPU that it takes beside them."""

    made: Outputs
    read: tuple[int, int]
    flops: Mapping[Any, int] = field(default_factory=dict)
    writes: bool = False
    work_bytes: int = 0


def _looked_at(module: ModuleType, model: torch.nn.Module, sample: Sequence[Any], named: Sequence[str]) -> _Look:
    """Of calls on values of two seeds. Raises ProblemError where no oracle can be made of the model."""
    _check_inputs(sample)

    def called(inputs: Sequence[Any], buffers: Mapping[str, torch.Tensor]) -> Outputs:
        return as_outputs(torch.func.functional_call(model, dict(buffers), *_parted(inputs, named)))

    state = dict(model.named_buffers())
    first, second, third = ({name: x.clone() for name, x in state.items()} for _ in range(3))
    forms = [x.shape for x in called(_drawn(module, model, named), first)]
    before = _copies(sample)
    watched = [x for x in (*sample, *model.parameters(), *second.values()) if isinstance(x, torch.Tensor)]
    versions = [x._version for x in watched]
    chance = _chance()
    with _Meter() as meter:
        made = called(sample, second)
    if not all(map(torch.equal, chance, _chance())):
        raise ProblemError("a call draws random numbers: a random model has no oracle")
    writes = versions != [x._version for x in watched]
    for i, out in enumerate(made):
        if out.is_complex():
            raise ProblemError(f"output {i} is complex ({out.dtype}); real ones can be judged")
    reading = _Reading([*before, *model.parameters(), *third.values()])
    with FlopCounterMode(display=False) as counter, reading:
        again = called(before, third)
    if not all(map(_alike, made, again)):
        raise ProblemError("two calls on the same inputs differ: a random model has no oracle")
    if [x.shape for x in made] != forms:
        raise ProblemError("the outputs' shapes depend on the inputs' values")
    flops = counter.get_flop_counts().get("Global", {})
    return _Look(made, reading.told(), flops, writes, meter.work_bytes)


def _check_inputs(sample: Sequence[Any]) -> None:
    """Raises ProblemError for an input that no kernel can be judged on."""
    for i, value in enumerate(sample):
        if what := _unjudged(value):
            raise ProblemError(f"get_inputs: item {i} is {what}; real tensors and numbers can be judged")


def _unjudged(value: Any) -> str:
    """What an input is that no kernel can be judged on; empty where it is a real tensor or a number."""
    if isinstance(value, torch.Tensor):
        return f"complex ({value.dtype})" if value.is_complex() else ""
    return "" if isinstance(value, int | float) else type(value).__name__


def _alike(first: torch.Tensor, again: torch.Tensor) -> bool:
    """Whether they differ by roundings at most, which another order of threads may leave."""
    return first.shape == again.shape and all(map(_near, *_in_parts(first, again)))


def _near(first: torch.Tensor, again: torch.Tensor) -> bool:
    return torch.allclose(first.double(), again.double(), rtol=1e-3, atol=1e-6, equal_nan=True)


def _in_parts(*tensors: torch.Tensor) -> list[Sequence[torch.Tensor]]:
    return [torch.split(x.detach().flatten(), _PART) for x in tensors]


_PART = 1 << 26
"""Elements that are compared at a time: an output may be of many GiB."""


def _chance() -> list[torch.Tensor]:
    """The states of torch's generators."""
    used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if used else [])]


class _Reading(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """What operators read of these tensors while it is open, each place once. What is looked up by an index in a
    table is not known: nothing of the table is counted."""

    TABLES = frozenset({"embedding", "_embedding_bag", "index", "index_select", "gather", "take"})

    def __init__(self, tensors: Iterable[Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tensors = [x for x in tensors if isinstance(x, torch.Tensor) and _place(x)]
        self._parts: dict[int, dict[tuple[Any, ...], int]] = {_place(x): {} for x in self._tensors}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        returns = function._schema.returns
        if not (returns and returns[0].alias_info is not None and not returns[0].alias_info.is_write):
            skipped = 1 if function._schema.name.removeprefix("aten::") in self.TABLES else 0
            for x in tree_leaves((args[skipped:], kwargs)):
                parts = self._parts.get(_place(x)) if isinstance(x, torch.Tensor) else None
                if parts is not None:
                    size = math.prod(n for n, step in zip(x.shape, x.stride(), strict=True) if step)
                    parts[x.storage_offset(), x.shape, x.stride()] = size if x.numel() else 0
        return function(*args, **(kwargs or {}))

    def told(self) -> tuple[int, int]:
        """Floating-point elements, and the bytes of other tensors."""
        floats = other_bytes = 0
        for place, one in {_place(x): x for x in self._tensors}.items():
            held = one.untyped_storage().nbytes() // one.itemsize  # a network's weights may share one
            size = min(sum(self._parts[place].values()), held)
            floats += size if one.is_floating_point() else 0
            other_bytes += 0 if one.is_floating_point() else size * one.itemsize
        return floats, other_bytes


def _place(tensor: torch.Tensor) -> int:
    """Which storage it lies in, also on "meta"; 0 where it has none, as a sparse one."""
    return int(tensor.untyped_storage()._cdata) if tensor.layout is torch.strided else 0


class _Meter:
    """GPU memory that is taken at most while it is open, beyond what was taken before; a CPU's is not measured."""

    def __init__(self) -> None:
        self.work_bytes, self._before = 0, 0

    def __enter__(self) -> _Meter:
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.reset_peak_memory_stats()
            self._before = torch.cuda.memory_allocated()
        return self

    def __exit__(self, *details: object) -> None:
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            self.work_bytes = torch.cuda.max_memory_allocated() - self._before


Score = Mapping[str, float]


def scores(verdicts: Mapping[str, Verdict], thresholds: Sequence[float] = (0.0, 1.0, 1.5, 2.0)) -> Score:
    """fast_p of a suite at several p, by name: {"fast_0": …, "fast_1": …}."""
    return {f"fast_{p:g}": fast_p(verdicts.values(), p) for p in thresholds}
