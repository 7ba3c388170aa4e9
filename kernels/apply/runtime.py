"""Certified GPU kernels for this training job. One file, nothing of Nightshift is needed beside it.

    import nightshift_kernels
    report = nightshift_kernels.apply(model, optimizer=optimizer)    # before torch.compile, after moving to the GPU
    print(report)
    nightshift_kernels.canary(train_step)                            # keeps only what makes this step faster
    nightshift_kernels.unapply(model)                                # takes everything back

What is swapped: modules that compute a certified operation (found by their numbers, not by their class),
nn.Embedding (its gradient), and torch.nn.functional.cross_entropy, gelu and softmax. Parameters and state_dict
stay as they are. Every call is guarded (device, dtype, shape, stride); what a guard refuses is computed by torch
and counted. Kernels are custom operators with fake implementations and gradients, so torch.compile and CUDA graphs
take them. All ranks use the same kernels or none. At a step boundary the counts are logged, and a kernel that was
demoted is computed by torch from then on; so is one whose output a shadow check finds wrong.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from kernels.apply.folds import FoldCasts

KERNELS: list[dict[str, Any]] = []
"""problem, certificate (SHA-256), candidate (SHA-256), source, entry, dtypes, sizes, layouts, bounds, architecture,
torch, triton. Written by Nightshift."""
DEMOTED_ENV = "NIGHTSHIFT_KERNEL_REGISTRY"
"""Folder whose `demoted.json` lists certificates that must not be used any more; read at start and at step ends."""
ROWS_SLACK = 4
"""A kernel certified for m rows is used for m/4 to 4·m: other sizes were proven right, but not fast."""

_EPSILONS = (1e-5, 1e-6, 1e-8, 1e-12, 2.0**-23)
_ROW_AXES = ("m", "t")
_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_ON_CPU = os.environ.get("TRITON_INTERPRET") == "1"


@dataclass
class Report:
    """What apply did. `applied`: (where, problem, certificate); `skipped`: (what, why)."""

    applied: list[tuple[str, str, str]] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    kernels_sha256: str = ""

    def __str__(self) -> str:
        lines = [f"nightshift kernels {self.kernels_sha256[:16]}: {len(self.applied)} places use certified kernels"]
        lines += [f"  + {where}: {problem} ({certificate[:16]})" for where, problem, certificate in self.applied]
        lines += [f"  - {what}: {why}" for what, why in self.skipped]
        return "\n".join(lines)


@dataclass
class _Kernel:
    """One certified kernel in use."""

    record: dict[str, Any]
    entry: Callable[..., Any]
    calls: int = 0
    shadow_checks: int = 0
    shadow_mismatches: int = 0
    disabled: str = ""

    @property
    def problem(self) -> str:
        return str(self.record["problem"])

    @property
    def certificate(self) -> str:
        return str(self.record["certificate"])


@dataclass
class _State:
    kernels: dict[str, _Kernel] = field(default_factory=dict)
    fallbacks: dict[str, int] = field(default_factory=dict)
    functions: dict[str, Callable[..., Any]] = field(default_factory=dict)
    fold: Any = None
    hooks: list[Any] = field(default_factory=list)
    folder: Any = None
    shadow_every: int = 0
    step: int = 0
    log_every: int = 100
    log: Callable[[str], None] = print
    registry_mark: tuple[int, int] = (0, 0)


_STATE = _State()
_OPERATORS: dict[str, Any] = {}
_CAST = "cross_entropy_cast"
"""Reads 16-bit logits where the model casts them first; only a compiled graph shows that it does."""


def kernels_sha256() -> str:
    """What all ranks have to agree on: the hash of the certificates in this file."""
    listed = sorted(f"{k['problem']} {k['certificate']}" for k in KERNELS)
    return hashlib.sha256(json.dumps(listed).encode()).hexdigest()


# Apply and take back -------------------------------------------------------------------------------------------


def apply(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    functions: bool = True,
    shadow_every: int = 1000,
    log_every: int = 100,
    log: Callable[[str], None] = print,
    only: Sequence[str] = (),
) -> Report:
    """Uses every certified kernel that fits; a second call changes nothing. `only`: certificates or problems.

    shadow_every: every so many calls of a kernel its output is held against torch's (0: never). optimizer: its
    steps mark the step boundaries; without one, call `step_boundary()` yourself.
    """
    report = Report(kernels_sha256=kernels_sha256())
    disagreement = _ranks_disagree(report.kernels_sha256)
    _STATE.shadow_every, _STATE.log_every, _STATE.log = shadow_every, log_every, log
    _read_demotions()
    for record in KERNELS:
        label = f"{record['problem']} {record['certificate'][:16]}"
        if only and not {record["problem"], record["certificate"]} & set(only):
            report.skipped.append((label, "not asked for"))
            continue
        why = disagreement or _unfit(record)
        if why:
            report.skipped.append((label, why))
        elif record["problem"] not in _STATE.kernels:
            try:
                _STATE.kernels[record["problem"]] = _Kernel(record, _load(record))
                _operator(record["problem"])  # made now: a tracer would not let it be made later
            except Exception as error:  # noqa: BLE001  a kernel that does not load must not stop the job
                report.skipped.append((label, f"does not load: {type(error).__name__}: {error}"))
        elif _STATE.kernels[record["problem"]].certificate != record["certificate"]:
            report.skipped.append(
                (label, "another kernel for this operation is in use: one shape of each at a time")
            )
    for name, module in model.named_modules():
        _swap_module(name or type(model).__name__, module, report)
    if functions:
        _swap_functions(report)
    _fold_casts()
    if optimizer is not None and not _STATE.hooks and _STATE.kernels:
        _STATE.hooks.append(optimizer.register_step_post_hook(_after_step))
    return report


def unapply(model: nn.Module) -> int:
    """Takes everything back; the number of places that were."""
    count = 0
    for module in model.modules():
        if "_nightshift_problem" in module.__dict__:
            del module.__dict__["forward"]
            del module.__dict__["_nightshift_problem"]
            count += 1
    for name, original in _STATE.functions.items():
        setattr(F, name, original)
        count += 1
    for hook in _STATE.hooks:
        hook.remove()
    _unfold_casts()
    _STATE.functions.clear()
    _STATE.hooks.clear()
    _STATE.kernels.clear()
    _STATE.fallbacks.clear()
    return count


def canary(
    step: Callable[[], Any],
    *,
    steps: int = 10,
    rounds: int = 3,
    min_gain: float = 0.002,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """After `apply`: keeps only the kernels that make this job's own step faster. The times, in seconds per step.

    `step` runs one whole training step (it does train). It is timed without kernels, with all, and without each (a
    kernel and its gradient's count as one). A kernel without which the step is no slower is given up, and if what
    remains does not beat torch alone, all are. Compiled regions are compiled anew for each. Rank 0's choice counts.
    """
    every = dict(_STATE.kernels)
    groups = sorted({name.removesuffix("_backward") for name in every})

    def timed(names: Sequence[str]) -> float:
        _STATE.kernels.clear()
        _STATE.kernels.update({name: every[name] for name in names})
        torch._dynamo.reset()
        for _ in range(3):
            step()
        found = []
        for _ in range(rounds):
            _wait()
            started = clock()
            for _ in range(steps):
                step()
            _wait()
            found.append((clock() - started) / steps)
        return min(found)

    def without(group: str) -> list[str]:
        return [name for name in every if name.removesuffix("_backward") != group]

    seconds = {"none": timed(()), "all": timed(tuple(every))}
    seconds |= {f"without {group}": timed(without(group)) for group in groups}
    useful = [g for g in groups if seconds[f"without {g}"] > (1.0 + min_gain) * seconds["all"]]
    kept = [name for name in every if name.removesuffix("_backward") in useful]
    if kept and len(kept) < len(every):
        seconds["kept"] = timed(kept)
    if seconds.get("kept", seconds["all"]) * (1.0 + min_gain) > seconds["none"]:
        kept = []
    kept = _as_rank_0(kept)
    _STATE.kernels.clear()
    _STATE.kernels.update({name: every[name] for name in kept})
    torch._dynamo.reset()
    _STATE.log(f"nightshift kernels: canary keeps {', '.join(kept) or 'none'} of {', '.join(every) or 'none'}")
    return seconds


def _as_rank_0(kept: list[str]) -> list[str]:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        told: list[Any] = [kept]
        torch.distributed.broadcast_object_list(told, src=0)
        return list(told[0])
    return kept


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def step_boundary(step: int | None = None) -> str:
    """Ends a step: looks for demotions and, every `log_every` steps, logs one line with the counts. The line."""
    _STATE.step = _STATE.step + 1 if step is None else step
    _read_demotions()
    if _STATE.log_every and _STATE.step % _STATE.log_every == 0:
        text = log_line()
        _STATE.log(text)
        return text
    return ""


def _after_step(*_: Any) -> None:
    step_boundary()


def log_line() -> str:
    """`nightshift kernels: step=… applied=… calls=… fallbacks=… shadow_checks=… shadow_mismatches=… demoted=…`."""
    kernels = _STATE.kernels.values()
    rank = os.environ.get("RANK", "")
    figures: dict[str, int | str] = {
        "step": _STATE.step,
        "applied": sum(not k.disabled for k in kernels),
        "calls": sum(k.calls for k in kernels),
        "fallbacks": sum(_STATE.fallbacks.values()),
        "shadow_checks": sum(k.shadow_checks for k in kernels),
        "shadow_mismatches": sum(k.shadow_mismatches for k in kernels),
        "demoted": sum(bool(k.disabled) for k in kernels),
        **({"rank": rank} if rank.isdecimal() else {}),
    }
    text = "nightshift kernels: " + " ".join(f"{key}={value}" for key, value in figures.items())
    wrong = [k.certificate[:16] for k in kernels if k.shadow_mismatches]
    return text + (f" mismatched={','.join(wrong)}" if wrong else "")


def fallbacks() -> Mapping[str, int]:
    """How often torch computed instead, by reason. Compiled regions decide once, when they are traced."""
    return dict(_STATE.fallbacks)


def _ranks_disagree(mine: str) -> str:
    """Why no kernel may be used: not every rank has the same certificates. Empty where all agree."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return ""
    every: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(every, mine)
    odd = [rank for rank, other in enumerate(every) if other != every[0]]
    return f"ranks {odd} have other certificates than rank 0" if odd else ""


def _unfit(record: Mapping[str, Any]) -> str:
    """Why a kernel does not fit this machine; empty where it does."""
    if record["problem"] not in _SPECS:
        return "no place in a model is known for it"
    if record["certificate"] in _demotions():
        return "demoted in the registry"
    for name, mine in (("torch", torch.__version__), ("triton", _triton_version())):
        if record.get(name, "none") not in ("none", mine):
            return f"certified with {name} {record[name]}, this is {mine}"
    if record.get("architecture", "none") == "none":
        return "" if _interpreted() else "certified without a GPU"
    if not torch.cuda.is_available():
        return "no GPU"
    here = ".".join(map(str, torch.cuda.get_device_capability()))
    return "" if here == record["architecture"] else f"certified on sm {record['architecture']}, this is {here}"


def _triton_version() -> str:
    try:
        import triton
    except ImportError:
        return "none"
    return str(triton.__version__)


def _interpreted() -> bool:
    """Whether Triton runs on the CPU here: only tests do that."""
    return _ON_CPU


def _load(record: Mapping[str, Any]) -> Callable[..., Any]:
    """The entry of a kernel's source, which has to lie in a file for Triton to read."""
    if _STATE.folder is None:
        _STATE.folder = tempfile.TemporaryDirectory(prefix="nightshift-kernels-")
    if hashlib.sha256(record["source"].encode()).hexdigest() != record["source_sha256"]:
        raise ValueError("the source is not the one that was certified")
    name = f"nightshift_kernel_{record['candidate'][:16]}"
    path = Path(_STATE.folder.name) / f"{name}.py"
    path.write_text(record["source"], encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    entry: Callable[..., Any] = getattr(module, record["entry"])
    return entry


# Demotion ------------------------------------------------------------------------------------------------------


def _demotions() -> set[str]:
    folder = os.environ.get(DEMOTED_ENV)
    if not folder:
        return set()
    try:
        listed = json.loads((Path(folder) / "demoted.json").read_text())
        return {str(item["certificate"]) for item in listed}
    except FileNotFoundError:
        return set()
    except (OSError, ValueError, TypeError, KeyError):
        return {str(k["certificate"]) for k in KERNELS}  # not readable: no kernel is known to be good


def _read_demotions() -> None:
    folder = os.environ.get(DEMOTED_ENV)
    if not folder:
        return
    try:
        status = (Path(folder) / "demoted.json").stat()
        mark = (status.st_mtime_ns, status.st_size)
    except OSError:
        mark = (0, 0)
    if mark == _STATE.registry_mark:
        return
    _STATE.registry_mark = mark
    gone = _demotions()
    for kernel in _STATE.kernels.values():
        if kernel.certificate in gone and not kernel.disabled:
            kernel.disabled = "demoted in the registry"
            _STATE.log(
                f"nightshift kernels: {kernel.problem} {kernel.certificate[:16]} demoted; torch computes it now"
            )


# Operators -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Spec:
    """How a problem stands as an operator. saves: which of (inputs, output) the gradient needs."""

    schema: str
    reference: Callable[..., torch.Tensor]
    fake: Callable[..., torch.Tensor]
    gradient: Callable[..., tuple[Any, ...]] | None
    sizes: Callable[..., dict[str, int]]


def _rms_gradient(
    g: torch.Tensor, out: torch.Tensor, x: torch.Tensor, w: torch.Tensor, eps: float
) -> tuple[Any, ...]:
    if "rmsnorm_backward" in _STATE.kernels:
        return (*_invoke("rmsnorm_backward", g.contiguous(), x, w, eps), None)
    wide, gw = x.float(), g.float() * w.float()
    r = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    normal = wide * r
    dx = r * (gw - normal * (gw * normal).mean(-1, keepdim=True))
    return dx.to(x.dtype), (g.float() * normal).sum(0).to(w.dtype), None


def _rms_backward_reference(
    g: torch.Tensor, x: torch.Tensor, w: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    wide, gw = x.float(), g.float() * w.float()
    r = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    normal = wide * r
    dx = r * (gw - normal * (gw * normal).mean(-1, keepdim=True))
    return dx.to(x.dtype), (g.float() * normal).sum(0).to(w.dtype)


def _layer_gradient(
    g: torch.Tensor, out: torch.Tensor, x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, eps: float
) -> tuple[Any, ...]:
    wide, gw = x.float(), g.float() * w.float()
    centred = wide - wide.mean(-1, keepdim=True)
    r = torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    normal = centred * r
    dx = r * (gw - gw.mean(-1, keepdim=True) - normal * (gw * normal).mean(-1, keepdim=True))
    dw = (g.float() * normal).sum(0)
    return dx.to(x.dtype), dw.to(w.dtype), g.float().sum(0).to(b.dtype), None


def _softmax_gradient(g: torch.Tensor, out: torch.Tensor, x: torch.Tensor) -> tuple[Any, ...]:
    y, wide = out.float(), g.float()
    return ((y * (wide - (wide * y).sum(-1, keepdim=True))).to(x.dtype),)


def _loss_gradient(g: torch.Tensor, out: torch.Tensor, x: torch.Tensor, target: torch.Tensor) -> tuple[Any, ...]:
    if "cross_entropy_backward" in _STATE.kernels:
        return _invoke("cross_entropy_backward", g.contiguous(), x, target), None
    return _loss_backward_reference(g, x, target), None


def _loss_backward_reference(g: torch.Tensor, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    p = torch.softmax(x.float(), -1)
    hit = torch.arange(x.shape[-1], device=x.device) == target[:, None]
    return ((p - hit.to(p.dtype)) * g.float()[:, None]).to(x.dtype)


def _cast_loss_gradient(
    g: torch.Tensor, out: torch.Tensor, x: torch.Tensor, target: torch.Tensor
) -> tuple[Any, ...]:
    if "cross_entropy_cast_backward" in _STATE.kernels:
        return _invoke("cross_entropy_cast_backward", g.contiguous(), x, target), None
    return _loss_backward_reference(g, x, target), None


def _cast_loss_reference(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = _originals("cross_entropy")(
        x.to(torch.promote_types(x.dtype, torch.float32)), target, reduction="none"
    )
    return out


def _exact_gelu(x: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = _originals("gelu")(x)
    return out


def _gelu_gradient(g: torch.Tensor, out: torch.Tensor, x: torch.Tensor) -> tuple[Any, ...]:
    if "gelu_backward" in _STATE.kernels:
        return (_invoke("gelu_backward", g.contiguous(), x),)
    return (torch.ops.aten.gelu_backward(g, x),)


def _table_gradient(gradient: torch.Tensor, index: torch.Tensor, rows: int) -> torch.Tensor:
    out: torch.Tensor = torch.ops.aten.embedding_dense_backward(gradient, index, rows, -1, False)
    return out


def _new(x: torch.Tensor, *rest: Any) -> torch.Tensor:
    return x.new_empty(x.shape)


def _matrix(x: torch.Tensor, *rest: Any) -> dict[str, int]:
    return {"m": x.shape[0], "n": x.shape[1]}


_SPECS: dict[str, _Spec] = {
    "rmsnorm": _Spec(
        "(Tensor x, Tensor weight, float eps) -> Tensor",
        lambda x, w, eps: F.rms_norm(x, (x.shape[-1],), w, eps),
        _new,
        _rms_gradient,
        _matrix,
    ),
    "rmsnorm_backward": _Spec(
        "(Tensor g, Tensor x, Tensor weight, float eps) -> (Tensor, Tensor)",
        _rms_backward_reference,  # type: ignore[arg-type]
        lambda g, x, w, eps: (x.new_empty(x.shape), w.new_empty(w.shape)),  # type: ignore[arg-type,return-value]
        None,
        lambda g, x, w, eps: _matrix(x),
    ),
    "layernorm": _Spec(
        "(Tensor x, Tensor weight, Tensor bias, float eps) -> Tensor",
        lambda x, w, b, eps: F.layer_norm(x, (x.shape[-1],), w, b, eps),
        _new,
        _layer_gradient,
        _matrix,
    ),
    "softmax": _Spec("(Tensor x) -> Tensor", lambda x: torch.softmax(x, -1), _new, _softmax_gradient, _matrix),
    "cross_entropy": _Spec(
        "(Tensor logits, Tensor target) -> Tensor",
        lambda x, target: _originals("cross_entropy")(x, target, reduction="none"),
        lambda x, target: x.new_empty(x.shape[:1]),
        _loss_gradient,
        lambda x, target: {"m": x.shape[0], "v": x.shape[1]},
    ),
    "cross_entropy_backward": _Spec(
        "(Tensor g, Tensor logits, Tensor target) -> Tensor",
        _loss_backward_reference,
        lambda g, x, target: x.new_empty(x.shape),
        None,
        lambda g, x, target: {"m": x.shape[0], "v": x.shape[1]},
    ),
    "cross_entropy_cast": _Spec(
        "(Tensor logits, Tensor target) -> Tensor",
        _cast_loss_reference,
        lambda x, target: x.new_empty(x.shape[:1], dtype=torch.promote_types(x.dtype, torch.float32)),
        _cast_loss_gradient,
        lambda x, target: {"m": x.shape[0], "v": x.shape[1]},
    ),
    "cross_entropy_cast_backward": _Spec(
        "(Tensor g, Tensor logits, Tensor target) -> Tensor",
        _loss_backward_reference,
        lambda g, x, target: x.new_empty(x.shape),
        None,
        lambda g, x, target: {"m": x.shape[0], "v": x.shape[1]},
    ),
    "gelu": _Spec("(Tensor x) -> Tensor", _exact_gelu, _new, _gelu_gradient, _matrix),
    "gelu_backward": _Spec(
        "(Tensor g, Tensor x) -> Tensor",
        torch.ops.aten.gelu_backward,
        lambda g, x: x.new_empty(x.shape),
        None,
        lambda g, x: _matrix(x),
    ),
    "embedding_gradient": _Spec(
        "(Tensor gradient, Tensor index, int rows) -> Tensor",
        _table_gradient,
        lambda gradient, index, rows: gradient.new_empty((rows, gradient.shape[1])),
        None,
        lambda gradient, index, rows: {"t": gradient.shape[0], "d": gradient.shape[1], "v": rows},
    ),
}


def _originals(name: str) -> Callable[..., Any]:
    """torch's own function, also while it is swapped."""
    found: Callable[..., Any] = _STATE.functions.get(name) or getattr(F, name)
    return found


def _operator(problem: str) -> Any:
    """The custom operator of a problem; made once in a process."""
    if problem in _OPERATORS:
        return _OPERATORS[problem]
    spec = _SPECS[problem]

    def run(*inputs: Any) -> Any:
        return _run(problem, inputs)

    operator = torch.library.custom_op(f"nightshift::{problem}", run, mutates_args=(), schema=spec.schema)
    operator.register_fake(spec.fake)
    gradient = spec.gradient
    if gradient is not None:

        def setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            ctx.save_for_backward(output, *(x for x in inputs if isinstance(x, torch.Tensor)))
            ctx.numbers = [x for x in inputs if not isinstance(x, torch.Tensor)]

        def backward(ctx: Any, g: torch.Tensor) -> tuple[Any, ...]:
            output, *tensors = ctx.saved_tensors
            return gradient(g, output, *tensors, *ctx.numbers)

        operator.register_autograd(backward, setup_context=setup)
    _OPERATORS[problem] = operator
    return operator


def _run(problem: str, inputs: Sequence[Any]) -> Any:
    """One call: the kernel's result, torch's where it was demoted, held against torch's now and then."""
    spec, kernel = _SPECS[problem], _STATE.kernels.get(problem)
    if kernel is None or kernel.disabled:
        return spec.reference(*inputs)
    if problem.startswith(_CAST) and inputs[-2].dtype != _DTYPES[kernel.record["dtype"]]:
        return spec.reference(*inputs)  # the cast before it was not folded into it
    kernel.calls += 1
    out = kernel.entry(*inputs)
    if _STATE.shadow_every and kernel.calls % _STATE.shadow_every == 0 and not _capturing():
        try:
            return _shadowed(kernel, spec, inputs, out)
        except torch.OutOfMemoryError:  # a check needs float64 copies; the job must not die of one
            _STATE.fallbacks["shadow: no memory"] = _STATE.fallbacks.get("shadow: no memory", 0) + 1
    return out


class _Eager(torch.autograd.Function):
    """The same without the dispatcher, which costs more than a small kernel outside compiled regions."""

    @staticmethod
    def forward(ctx: Any, problem: str, *inputs: Any) -> Any:
        out = _run(problem, inputs)
        ctx.problem = problem
        ctx.save_for_backward(out, *(x for x in inputs if isinstance(x, torch.Tensor)))
        ctx.numbers = [x for x in inputs if not isinstance(x, torch.Tensor)]
        return out

    @staticmethod
    def backward(ctx: Any, *g: torch.Tensor) -> Any:
        output, *tensors = ctx.saved_tensors
        gradient = _SPECS[ctx.problem].gradient
        assert gradient is not None
        return (None, *gradient(g[0], output, *tensors, *ctx.numbers))


def _invoke(problem: str, *inputs: Any) -> Any:
    """The operator in a compiled region, where it has to be seen as one; else the short way."""
    plain = all(type(x) in (torch.Tensor, nn.Parameter) for x in inputs if isinstance(x, torch.Tensor))
    if torch.compiler.is_compiling() or not plain:  # a tracer's stand-ins are no plain tensors
        return _operator(problem)(*inputs)
    if _SPECS[problem].gradient is None:
        return _run(problem, inputs)
    return _Eager.apply(problem, *inputs)  # type: ignore[no-untyped-call]


def _capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def _shadowed(kernel: _Kernel, spec: _Spec, inputs: Sequence[Any], out: Any) -> Any:
    """Holds one live output against torch's, both against float64: RMSE at most 3 times torch's own."""
    kernel.shadow_checks += 1
    wide = [x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in inputs]
    eager = spec.reference(*inputs)
    outs, eagers, truths = (_several(x) for x in (out, eager, spec.reference(*wide)))
    for mine, theirs, truth in zip(outs, eagers, truths, strict=True):
        error, allowed = (_rmse(x, truth) for x in (mine, theirs))
        level = float(truth.double().square().mean().sqrt()) if truth.numel() else 0.0
        if not error <= 3.0 * allowed + 2.0 * torch.finfo(mine.dtype).eps * level:
            kernel.shadow_mismatches += 1
            kernel.disabled = f"shadow check: error {error:.3g}, torch's own {allowed:.3g}"
            label = f"{kernel.problem} {kernel.certificate[:16]}"
            _STATE.log(f"nightshift kernels: {label} {kernel.disabled}; torch computes it now")
            _ask_demotion(kernel)
            return eager
    return out


def _several(value: Any) -> Sequence[torch.Tensor]:
    return value if isinstance(value, tuple | list) else (value,)


def _rmse(value: torch.Tensor, truth: torch.Tensor) -> float:
    gap = value.double() - truth.double()
    return float(torch.nan_to_num(gap, nan=0.0 if bool(truth.isnan().any()) else math.inf).square().mean().sqrt())


def _ask_demotion(kernel: _Kernel) -> None:
    """Leaves a note in the registry's folder, which Nightshift reads; the job goes on either way."""
    folder = os.environ.get(DEMOTED_ENV)
    if not folder:
        return
    note = {"certificate": kernel.certificate, "why": kernel.disabled, "rank": os.environ.get("RANK", "")}
    name = f"{kernel.certificate[:16]}-{os.environ.get('RANK', '0')}-{os.getpid()}.json"
    try:
        target = Path(folder) / "mismatches"
        target.mkdir(parents=True, exist_ok=True)
        (target / name).write_text(json.dumps(note) + "\n")
    except OSError as error:
        _STATE.log(f"nightshift kernels: the registry cannot be written ({error})")


# Guards --------------------------------------------------------------------------------------------------------


def _refusal(record: Mapping[str, Any], sizes: Mapping[str, int], tensors: Sequence[torch.Tensor]) -> str:
    """Why a call is torch's: the guard that it does not pass. Empty where it passes all."""
    first = tensors[0]
    if first.device.type != "cuda" and not _interpreted():
        return "device"
    kind = _DTYPES.get(record["dtype"])
    if any(t.is_floating_point() and t.dtype != kind for t in tensors):
        return "dtype"
    if not all(t.is_contiguous() for t in tensors):
        return "stride"
    for name, size in record["sizes"].items():
        here = sizes.get(name, -1)
        if name in _ROW_AXES:
            if not size <= ROWS_SLACK * here or not here <= ROWS_SLACK * size:
                return "shape"
        elif here != size:
            return "shape"
    for bound in record["bounds"]:
        size = sizes.get(bound["name"], bound["low"])
        if not bound["low"] <= size <= bound["high"] or size % bound["multiple"]:
            return "shape"
    return ""


def _call(problem: str, tensors: Sequence[torch.Tensor], numbers: Sequence[Any]) -> Any:
    """The operator's result, or None where a guard refuses; tensors as the problem takes them."""
    kernel = _STATE.kernels.get(problem)
    if kernel is None:
        return None
    spec = _SPECS[problem]
    why = _refusal(kernel.record, spec.sizes(*tensors, *numbers), tensors)
    if why:
        if not torch.compiler.is_compiling():
            key = f"{problem}: {why}"
            _STATE.fallbacks[key] = _STATE.fallbacks.get(key, 0) + 1
        return None
    return _invoke(problem, *tensors, *numbers)


# Modules -------------------------------------------------------------------------------------------------------


def _swap_module(name: str, module: nn.Module, report: Report) -> None:
    known = module.__dict__.get("_nightshift_problem")
    if known:
        report.applied.append((name, known, _STATE.kernels[known].certificate if known in _STATE.kernels else ""))
        return
    if next(module.children(), None) is not None:
        return
    if isinstance(module, nn.Embedding):
        made: tuple[str, Callable[..., Any]] | None = _embedding(module)
    else:
        made = _norm(module)
    if made is None:
        return
    problem, forward = made
    if problem not in _STATE.kernels:
        return
    _operator(problem)
    module.forward = MethodType(forward, module)
    module.__dict__["_nightshift_problem"] = problem
    report.applied.append((name, problem, _STATE.kernels[problem].certificate))


def _norm(module: nn.Module) -> tuple[str, Callable[..., Any]] | None:
    """A module whose only parameters are one or two vectors, if it normalises over the last dimension."""
    parameters = list(module.named_parameters())
    shapes = {tuple(p.shape) for _, p in parameters}
    if not 1 <= len(parameters) <= 2 or len(shapes) != 1 or len(next(iter(shapes))) != 1 or list(module.buffers()):
        return None
    (n,) = next(iter(shapes))
    problem = "rmsnorm" if len(parameters) == 1 else "layernorm"
    names = [name for name, _ in parameters]
    orders = [names] if len(names) == 1 else [names, names[::-1]]
    own = getattr(module, "eps", None) or getattr(module, "variance_epsilon", None)
    epsilons = ([float(own)] if isinstance(own, float) else []) + list(_EPSILONS)
    for order in orders:
        for eps in epsilons:
            if _same(module, problem, order, int(n), eps):
                return problem, _norm_forward(type(module).forward, problem, tuple(order), eps)
    return None


@torch.no_grad()
def _same(module: nn.Module, problem: str, names: Sequence[str], n: int, eps: float) -> bool:
    """Whether the module is that normalisation: on draws of two sizes, with weights that are not trivial."""
    for number, scale in enumerate((1.0, 1e-3)):
        generator = torch.Generator().manual_seed(number + 1)
        x = (torch.randn(3, n, generator=generator, dtype=torch.float64) + 0.25) * scale
        drawn = {name: torch.randn(n, generator=generator, dtype=torch.float64) for name in names}
        try:
            mine = torch.func.functional_call(module, drawn, (x,))
        except Exception:  # noqa: BLE001  any module may be asked
            return False
        wanted = _SPECS[problem].reference(x, *(drawn[name] for name in names), eps)
        if not isinstance(mine, torch.Tensor) or mine.shape != wanted.shape:
            return False
        level = float(wanted.abs().max())
        if not torch.allclose(mine.double(), wanted, rtol=3e-6, atol=3e-6 * level):
            return False
    return True


def _norm_forward(
    original: Callable[..., Any], problem: str, names: tuple[str, ...], eps: float
) -> Callable[..., Any]:
    def forward(self: nn.Module, x: torch.Tensor) -> Any:
        weights = [getattr(self, name) for name in names]
        if x.dim() >= 2 and all(isinstance(w, torch.Tensor) for w in weights):
            rows = x.reshape(-1, x.shape[-1])
            out = _call(problem, (rows, *weights), (eps,))
            if out is not None:
                return out.reshape(x.shape)
        return original(self, x)

    return forward


def _embedding(module: nn.Embedding) -> tuple[str, Callable[..., Any]] | None:
    plain = module.padding_idx is None and module.max_norm is None
    if not plain or module.scale_grad_by_freq or module.sparse:
        return None
    original = type(module).forward
    _embed()

    def forward(self: nn.Embedding, index: torch.Tensor) -> Any:
        kernel = _STATE.kernels.get("embedding_gradient")
        if kernel is not None and self.weight.requires_grad and torch.is_grad_enabled():
            sizes = {"t": index.numel(), "d": self.weight.shape[1], "v": self.weight.shape[0]}
            why = _refusal(kernel.record, sizes, (self.weight,))
            if not why:
                out = _embed()(self.weight, index.reshape(-1))
                return out.reshape(*index.shape, self.weight.shape[1])
            if not torch.compiler.is_compiling():
                key = f"embedding_gradient: {why}"
                _STATE.fallbacks[key] = _STATE.fallbacks.get(key, 0) + 1
        return original(self, index)

    return "embedding_gradient", forward


def _embed() -> Any:
    """An embedding whose gradient is the certified kernel's."""
    if "embed" in _OPERATORS:
        return _OPERATORS["embed"]

    def run(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return F.embedding(index, table)

    operator = torch.library.custom_op(
        "nightshift::embed", run, mutates_args=(), schema="(Tensor table, Tensor index) -> Tensor"
    )
    operator.register_fake(lambda table, index: table.new_empty((index.shape[0], table.shape[1])))

    def setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        table, index = inputs
        ctx.save_for_backward(index)
        ctx.rows = table.shape[0]

    def backward(ctx: Any, g: torch.Tensor) -> tuple[Any, ...]:
        (index,) = ctx.saved_tensors
        return _operator("embedding_gradient")(g.contiguous(), index, ctx.rows), None

    operator.register_autograd(backward, setup_context=setup)
    _OPERATORS["embed"] = operator
    return operator


# Functions -----------------------------------------------------------------------------------------------------


def _swap_functions(report: Report) -> None:
    for problem, name, wrapper in (
        ("cross_entropy", "cross_entropy", _cross_entropy),
        (_CAST, "cross_entropy", _cross_entropy),
        ("gelu", "gelu", _gelu),
        ("softmax", "softmax", _softmax),
    ):
        if problem not in _STATE.kernels:
            continue
        if name not in _STATE.functions:
            _operator(problem)
            original = getattr(F, name)
            _STATE.functions[name] = original
            setattr(F, name, wrapper(original))
        report.applied.append((f"torch.nn.functional.{name}", problem, _STATE.kernels[problem].certificate))


def _cross_entropy(original: Callable[..., Any]) -> Callable[..., Any]:
    def cross_entropy(
        input: torch.Tensor,
        target: torch.Tensor,
        weight: torch.Tensor | None = None,
        size_average: bool | None = None,
        ignore_index: int = -100,
        reduce: bool | None = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> Any:
        plain = weight is None and size_average is None and reduce is None and label_smoothing == 0.0
        plain = plain and input.dim() == 2 and target.dim() == 1 and target.dtype == torch.int64
        if plain and ignore_index == -100 and reduction in ("mean", "sum", "none"):
            # a target of −100 is left out of torch's mean; the kernel gets row 0 of the table for it instead
            kept = target != ignore_index
            filled = torch.where(kept, target, 0)
            losses = _call("cross_entropy", (input, filled), ())
            if losses is None and torch.compiler.is_compiling():
                losses = _cast_loss(input, filled)
            if losses is not None:
                losses = torch.where(kept, losses, 0.0)
                if reduction == "none":
                    return losses
                return losses.sum() / kept.sum() if reduction == "mean" else losses.sum()
        return original(
            input, target, weight, size_average, ignore_index, reduce, reduction, label_smoothing=label_smoothing
        )

    return cross_entropy


def _cast_loss(input: torch.Tensor, target: torch.Tensor) -> Any:
    """The loss of logits that a compiled region casts to float32; `FoldCasts` then takes the cast away."""
    kernel = _STATE.kernels.get(_CAST)
    if kernel is None or input.dtype != torch.float32:
        return None
    sizes = {"m": input.shape[0], "v": input.shape[1]}
    return None if _refusal(kernel.record, sizes, (target,)) else _invoke(_CAST, input, target)


def _fold_casts() -> None:
    """Puts the pass before torch's own over joint graphs, once."""
    kinds = {n: _DTYPES[k.record["dtype"]] for n, k in _STATE.kernels.items() if n.startswith(_CAST)}
    if not kinds or _STATE.fold is not None:
        return
    from torch._inductor import config

    kinds.setdefault(f"{_CAST}_backward", kinds.get(_CAST, torch.bfloat16))
    _STATE.fold = FoldCasts({_CAST: 0, f"{_CAST}_backward": 1}, kinds, config.joint_custom_pre_pass)
    config.joint_custom_pre_pass = _STATE.fold


def _unfold_casts() -> None:
    if _STATE.fold is not None:
        from torch._inductor import config

        config.joint_custom_pre_pass = _STATE.fold.earlier
        _STATE.fold = None


def _gelu(original: Callable[..., Any]) -> Callable[..., Any]:
    def gelu(input: torch.Tensor, approximate: str = "none") -> Any:
        if approximate == "none" and input.dim() >= 2:
            out = _call("gelu", (input.reshape(-1, input.shape[-1]),), ())
            if out is not None:
                return out.reshape(input.shape)
        return original(input, approximate=approximate)

    return gelu


def _softmax(original: Callable[..., Any]) -> Callable[..., Any]:
    def softmax(input: torch.Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Any:
        if dtype is None and dim is not None and input.dim() >= 2 and dim in (-1, input.dim() - 1):
            out = _call("softmax", (input.reshape(-1, input.shape[-1]),), ())
            if out is not None:
                return out.reshape(input.shape)
        return original(input, dim, _stacklevel, dtype)

    return softmax
