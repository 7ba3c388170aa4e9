"""A user's model, run for a few training steps under the profiler: the trace that a search may begin with."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._pytree import tree_leaves, tree_map

from nightshift.kernels.loop.optimise import OptimiseError, slug_of
from nightshift.kernels.suites.kernelbench import arguments_of
from nightshift.kernels.suites.process_settings import as_it_was

MODEL_TRACE = "model_trace.json"


@as_it_was()
def trace_model(spec: str, folder: Path, device: str, steps: int = 3) -> Path:
    """Runs `FILE.py:CLASS` for a few training steps under the profiler; the trace's path. Raises OptimiseError.

    The file defines the class (an nn.Module built without arguments, or of `get_init_inputs()`) and `get_inputs()`,
    as KernelBench's files do; both give a list, a mapping by name, or [[…], {…}]. Modules beside the file can be
    imported. A scalar output is taken as the loss; else the mean of what it returns is.
    """
    file, _, name = spec.partition(":")
    model, inputs = _built(spec, Path(file), name or "Model", device)

    def step() -> None:
        out = _called(model, inputs)
        loss = out if isinstance(out, torch.Tensor) and out.dim() == 0 else _mean(out)
        if loss.requires_grad:
            loss.backward()  # type: ignore[no-untyped-call]
            model.zero_grad(set_to_none=True)

    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device == "cuda" else [])
    try:
        step()
        # after a step outside: the first one allocates, compiles and picks algorithms
        with profile(activities=activities, record_shapes=True) as session:
            for number in range(steps):
                with record_function(f"ProfilerStep#{number}"):
                    step()
                    if device == "cuda":
                        torch.cuda.synchronize()
    except OptimiseError:
        raise
    except (Exception, SystemExit) as error:
        raise OptimiseError(f"{spec}: a training step fails: {type(error).__name__}: {error}") from error
    folder.mkdir(parents=True, exist_ok=True)
    partial, target = folder / f".{MODEL_TRACE}", folder / MODEL_TRACE
    session.export_chrome_trace(str(partial))
    # killed while writing, a run must not continue with half a trace
    partial.replace(target)
    return target


def _built(spec: str, path: Path, name: str, device: str) -> tuple[Any, Any]:
    """(model, its inputs), on the device."""
    known = importlib.util.spec_from_file_location(f"nightshift_model_{slug_of(str(path)).replace('-', '_')}", path)
    if known is None or known.loader is None or not path.is_file():
        raise OptimiseError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(known)
    sys.modules[known.name] = module
    beside = str(path.resolve().parent)
    sys.path.append(beside)  # last: what it calls `kernels` must not become ours
    try:
        known.loader.exec_module(module)
        model = _called(getattr(module, name), getattr(module, "get_init_inputs", list)()).to(device)
        given = module.get_inputs()
        given = given if isinstance(given, Mapping | torch.Tensor) else list(given)
        inputs = tree_map(lambda x: x.to(device) if isinstance(x, torch.Tensor) else x, given)
    except (Exception, SystemExit) as error:
        raise OptimiseError(f"{spec}: cannot be built: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(beside)
    return model, inputs


def _called(what: Any, given: Any) -> Any:
    first, named = arguments_of(what, given)
    return what(*first, **named)


def _mean(out: Any) -> torch.Tensor:
    """Of all tensors that a model returns, in whatever containers (dicts and dataclasses of libraries too)."""
    parts = [item.float().mean() for item in tree_leaves(out) if isinstance(item, torch.Tensor) and item.numel()]
    if not parts:
        raise OptimiseError(f"the model returns no tensor, but {type(out).__name__}")
    # every output has a part in it, or parts of the model would have no gradient
    return torch.stack(parts).sum()
