"""Certified GPU kernels for this training job. One file, nothing of Nightshift is needed beside it.

    import nightshift_kernels
    report = nightshift_kernels.apply(model, optimizer=optimizer)    # before torch.compile, after moving to the GPU
    print(report)
    nightshift_kernels.canary(train_step)                            # searches longer for what makes it faster
    nightshift_kernels.unapply(model)                                # takes everything back
    q, k = nightshift_kernels.rotary(q, k, cos, sin)                 # in a model's own code, see there

What is swapped: modules that compute a certified operation (norms and gated blocks, found by their numbers, not by
their class), the gradients of nn.Embedding and RMSNorm, torch.nn.functional.cross_entropy, gelu, softmax and
causal scaled_dot_product_attention, products of matrices (torch.nn.functional.linear, and what a compiled region
multiplies), rotary embeddings in compiled regions, and torch.optim.AdamW's step. Attention in a compiled region
with a constant causal mask becomes torch's causal attention. Parameters and state_dict stay as
they are. Each call is guarded (device, dtype, shape, stride); what a guard refuses is torch's, and counted.
Kernels are custom operators with fake implementations and gradients, so torch.compile and CUDA graphs take them.
The job's first 60 steps decide what stays: kernels, and changes of compiled regions, that do not surely make them
faster go back to torch.
All ranks use the same kernels or none. At a step boundary the counts are logged, and a kernel that was demoted is
computed by torch from then on (compiled regions are compiled anew); so is one whose output a shadow check finds
wrong. What a CUDA graph replays, Python does not see: there a demotion comes with the next recording, and checks
with it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from nightshift.kernels.apply.job.canary.first_steps import measure_first_steps
from nightshift.kernels.apply.job.copies import COPIED, COPIES, MODELS, copy_weights
from nightshift.kernels.apply.job.demotion import DEMOTED_ENV, out_of_reach, read_demotions
from nightshift.kernels.apply.job.forwards import problem_of, take_back
from nightshift.kernels.apply.job.functions import (
    SCRIPT,
    fold_casts,
    give_functions_back,
    script_of,
    swap_function,
    swap_functions,
    unfold_casts,
)
from nightshift.kernels.apply.job.launch import load_entry
from nightshift.kernels.apply.job.modules import cut_up, swap_module
from nightshift.kernels.apply.job.names import PASSES
from nightshift.kernels.apply.job.operators import open_all
from nightshift.kernels.apply.job.optimizer import SMALLEST, swap_optimizer
from nightshift.kernels.apply.job.products import compile_anew, multiply_by_kernels, multiply_by_torch
from nightshift.kernels.apply.job.rotary import name_rotary
from nightshift.kernels.apply.job.start import objections
from nightshift.kernels.apply.job.state import KERNELS, STATE, Kernel, Report, kernels_sha256, log_line, slot


def apply(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    functions: bool = True,
    shadow_every: int = 1000,
    log_every: int = 100,
    log: Callable[[str], None] = print,
    only: Sequence[str] = (),
    compiler_launches: bool = False,
    weight_copies: bool = False,
    canary: bool = True,
) -> Report:
    """Uses every certified kernel that fits; a second call changes nothing. `only`: certificates or problems.

    shadow_every: every so many calls of a kernel its output is held against torch's (0: never). optimizer: its
    steps mark the step boundaries; without one, call `step_boundary()` yourself. compiler_launches: compiled
    regions launch the kernels in their own code instead of calling Python; one step in `shadow_every` does not, so
    that it can be checked. `canary` finds out which is faster. weight_copies: linear layers under autocast read
    16-bit copies that the optimiser's kernel writes along; ask for it only where nobody writes weights through
    `.data` between two optimiser steps (it is looked for, but found late). canary: the optimiser's first 60
    steps are measured with and without the kernels, and what does not pay goes back to torch. With several ranks:
    call it on all of them, after init_process_group.
    """
    report = Report(kernels_sha256=kernels_sha256())
    STATE.shadow_every, STATE.log_every, STATE.log, STATE.open = shadow_every, log_every, log, compiler_launches
    STATE.models.add(model)
    first = STATE.first_steps
    measured: Mapping[str, Kernel] = {} if first is None or first.running else first.whole
    if first is not None and first.running:
        optimizer = optimizer or first.optimizer
        first.end("apply was called again")
    read_demotions()
    if lost := out_of_reach():
        report.skipped.append((DEMOTED_ENV, lost))
    _take_up(only, measured.keys() - STATE.kernels.keys(), report)
    open_all()
    _swap_modules(model, report)
    _copy(model, weight_copies, report)
    # a script reads sources: with our forwards on the instances it would fail or keep them
    if STATE.kernels:
        swap_function(SCRIPT, script_of)
    if functions:
        swap_functions(report)
        swap_optimizer(report)
    fold_casts()
    _find_loss(model)
    multiply_by_kernels(report)
    name_rotary(report)
    if optimizer is not None and not STATE.stepping:
        STATE.stepping = True
        # an optimiser's step is what all jobs have: a training loop of their own marks its steps nowhere
        STATE.hooks.append(optimizer.register_step_post_hook(_after_step))
    if canary and optimizer is not None and {*STATE.kernels, PASSES} - measured.keys():
        measure_first_steps(optimizer, report)
    return report


def _take_up(only: Sequence[str], returned: Collection[str], report: Report) -> None:
    """Loads the file's kernels; the report names those that cannot be used, and why. returned: slots that a canary
    gave back to torch."""
    loaded: dict[str, Kernel] = {}
    for record, objection in zip(KERNELS, objections(only, lambda record: _load(record, loaded)), strict=True):
        why = objection or ("the canary gave it back to torch" if _slot_of(record) in returned else "")
        if why:
            report.skipped.append((f"{record['problem']} {record['certificate'][:16]}", why))
        else:
            kernel = STATE.kernels[_slot_of(record)] = loaded[_slot_of(record)]
            if kernel.eager_only:
                where = f"{kernel.problem} {kernel.certificate[:16]} in compiled regions"
                report.skipped.append((where, "it was not faster than torch.compile"))


def _copy(model: nn.Module, weight_copies: bool, report: Report) -> None:
    if weight_copies:
        copy_weights(model, report, SMALLEST)
    elif COPIED in STATE.kernels and not len(COPIES):
        # nothing would read the copies that it writes
        STATE.kernels.pop(COPIED)
        report.skipped.append((COPIED, "weight_copies was not asked for"))


def _find_loss(model: nn.Module) -> None:
    """The loss of a model of `transformers`, found here and not in its steps: where the configuration names none, a
    line is logged when it is, and a logged line cuts a compiled region in two. GPT-2's logits would be written out
    between them."""
    found = getattr(type(model), "loss_function", None)
    if isinstance(found, property) and found.fset is not None:
        model.loss_function = model.loss_function


def _swap_modules(model: nn.Module, report: Report) -> None:
    cut = cut_up(model, report)
    for name, module in model.named_modules():
        where = name or type(model).__name__
        try:
            if id(module) not in cut or problem_of(module):
                swap_module(where, module, report)
        except Exception as error:  # noqa: BLE001  a module that cannot be asked must not stop the job
            report.skipped.append((where, f"cannot be asked: {type(error).__name__}: {error}"))


def _slot_of(record: Mapping[str, Any]) -> str:
    return slot(record["problem"], record["sizes"], record["dtype"])


def _load(record: Mapping[str, Any], loaded: dict[str, Kernel]) -> str:
    """Puts a kernel into `loaded`, the one in use where it is; why that cannot be."""
    name = _slot_of(record)
    held = STATE.kernels.get(name) or loaded.get(name)
    if held is not None and held.certificate != record["certificate"]:
        return "another kernel for this operation is in use: one shape of each at a time"
    try:
        loaded[name] = held or Kernel(dict(record), *load_entry(record))
    except Exception as error:  # noqa: BLE001  a kernel that does not load must not stop the job
        return f"does not load: {type(error).__name__}: {error}"
    return ""


def unapply(model: nn.Module) -> int:
    """Takes everything back; the number of places that were. Functions and kernels are the process's: places in
    other models compute by torch from then on."""
    count = 0
    if STATE.first_steps is not None:
        STATE.first_steps.end("unapply was called")
    STATE.first_steps = None
    for module in model.modules():
        count += take_back(module)
    count += give_functions_back()
    for hook in STATE.hooks:
        hook.remove()
    unfold_casts()
    multiply_by_torch()
    STATE.passing = True
    STATE.hooks.clear()
    STATE.stepping = False
    COPIES.clear()
    MODELS.clear()
    STATE.models.discard(model)
    STATE.kernels.clear()
    STATE.gain = {}
    STATE.fallbacks.clear()
    return count


def step_boundary(step: int | None = None) -> str:
    """Ends a step: looks for demotions and, every `log_every` steps, logs one line with the counts. The line."""
    STATE.step = STATE.step + 1 if step is None else step
    STATE.watching = STATE.open and STATE.shadow_every > 0 and STATE.step % STATE.shadow_every == 0
    read_demotions()
    compile_anew()
    if KERNELS and STATE.log_every and STATE.step % STATE.log_every == 0:
        text = log_line()
        STATE.log(text)
        return text
    return ""


@torch._dynamo.disable  # type: ignore[untyped-decorator]  # an optimiser's step may be compiled
def _after_step(*_: Any) -> None:
    if STATE.first_steps is not None and STATE.first_steps.running:
        STATE.first_steps.stepped()
    step_boundary()
