"""What a language model is shown of one operation, field by field: nothing that it could use is left for it to
guess.

Fields without anything to say are left out. Those that cost a compilation or a look at the GPU are gathered once.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import os
from collections.abc import Mapping, Sequence
from importlib import metadata

import torch

from nightshift.kernels.draw import Draw
from nightshift.kernels.generate.base import Outcome, Task, fastest
from nightshift.kernels.profile.roofline import Peaks

SHOWN_CHARS = 6_000
_CASES, _IDEAS = 6, 24
FIELDS = ("source", "inputs", "floor", "hardware", "compiled", "baselines", "counters", "failures", "best", "last",
          "ideas", "playbook")  # fmt: skip

PLAYBOOK = """Tier 1, memory: read each input once and write each output once; neighbours in a warp read neighbours
in memory, 16 bytes a thread; a reduction holds its row in registers where it fits; results that nobody reads are
not written.
Tier 2, fusion: what follows a product is computed on its accumulator; a chain of element by element operators is
one kernel; a softmax keeps its maximum and its sum in one pass and rescales.
Tier 3, compute: products on the tensor cores in tiles of 64 to 256, two to four stages; float32 as three products
of tf32 ("tf32x3") keeps float32's error; programs in bands of rows share columns in L2.
Tier 4, occupancy: at least two programs for each multiprocessor; few rows and long ones are split, and a second
kernel joins the parts; fewer registers before more warps.
Tier 5, Hopper: bulk copies by descriptor (TMA) into shared memory, warp specialisation, persistent programs.
Tier 6, algorithm: the sum over a product's columns is a product with a vector; a mean of a convolution is a
convolution of a mean; normalisations of constants are computed once. Never at the price of more error than
eager's."""


def gathered(task: Task, peaks: Peaks | None = None) -> dict[str, str]:
    """The fields that stay the same for a whole search. peaks: what the GPU was measured at."""
    problem, case = task.problem, task.case
    found = {"source": _source(task), "inputs": _inputs(task), "floor": _floor(task)}
    found["hardware"] = hardware_card() + (f" {measured(peaks)}" if peaks is not None else "")
    if torch.cuda.is_available() and "compiled" not in task.facts:
        found["compiled"] = compiled_source(task)
    if problem.mutates:
        found["inputs"] += f"\nIt changes inputs {list(problem.mutates)} in place and returns nothing."
    return {**found, **task.facts, "name": f"{problem.name}, timed case: {case}"}


def _source(task: Task) -> str:
    try:
        return inspect.getsource(task.problem.reference).strip()
    except (OSError, TypeError):  # of a library's operator, or one made in a shell, there is no source
        return repr(task.problem.reference)


def _inputs(task: Task) -> str:
    try:
        # shapes alone are wanted: a large case would take the memory that it is timed in
        made = task.problem.make_inputs(task.case, Draw(1, "normal", "meta"))
    except (NotImplementedError, RuntimeError):
        return "Inputs are contiguous, in the order of the reference's arguments."
    told = [f"{tuple(x.shape)} {str(x.dtype)[6:]}" if isinstance(x, torch.Tensor) else repr(x) for x in made]
    return "Inputs, contiguous, in order: " + "; ".join(told) + "."


def _floor(task: Task) -> str:
    moved, flops = task.problem.compulsory_bytes(task.case), task.problem.flops(task.case)
    text = f"It must move at least {moved / 1e6:.1f} MB and calculate {flops / 1e9:.2f} GFLOP"
    if math.isfinite(task.floor_s) and task.floor_s > 0:
        text += f"; at this GPU's roofline that takes {task.floor_s * 1e6:.1f} µs"
    return text + "."


def hardware_card() -> str:
    """The GPU that times are of, and what kernels are compiled with."""
    versions = ", ".join(f"{name} {_version(name)}" for name in ("torch", "triton"))
    if not torch.cuda.is_available():
        return f"No GPU: Triton's interpreter, whose times mean nothing. {versions}."
    card = torch.cuda.get_device_properties(0)
    shared = getattr(card, "shared_memory_per_block_optin", 0) >> 10
    return (
        f"{card.name}, compute capability {card.major}.{card.minor}: {card.multi_processor_count} multiprocessors, "
        f"{shared} KiB of shared memory each, {card.L2_cache_size >> 20} MiB of L2, "
        f"{card.total_memory >> 30} GiB of memory. CUDA {torch.version.cuda}, {versions}."
    )


def measured(peaks: Peaks) -> str:
    """Rates that this GPU reached, whatever its maker promises."""
    rates = ", ".join(f"{rate / 1e12:.1f} TFLOP/s in {dtype}" for dtype, rate in sorted(peaks.flops_per_s.items()))
    how = "Measured on it" if peaks.source == "probe" else "Seen on it, so at least"
    copied = f"{peaks.bytes_per_s / 1e12:.2f} TB/s of copies" if math.isfinite(peaks.bytes_per_s) else ""
    return f"{how}: {', '.join(filter(None, (copied, rates)))}."


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def compiled_source(task: Task) -> str:
    """What torch.compile makes of the reference, in its own words; why it makes nothing."""
    from torch._inductor.utils import run_and_get_code

    device = "cuda" if torch.cuda.is_available() else "cpu"
    inputs = task.problem.inputs(task.case, "normal", 1, device)
    try:
        with torch.no_grad(), contextlib.redirect_stdout(open(os.devnull, "w")):
            _, code = run_and_get_code(torch.compile(task.problem.reference, dynamic=False), *inputs)
    except Exception as error:  # noqa: BLE001  whatever a compiler of somebody else's raises
        return f"torch.compile makes nothing of it: {type(error).__name__}: {str(error)[:300]}"
    return "\n".join(code)[: 2 * SHOWN_CHARS]


def changing(task: Task, history: Sequence[Outcome], attempts: Sequence[Outcome]) -> dict[str, str]:
    """The fields that follow from what was tried. attempts: of this author."""
    best, found = fastest(history), dict[str, str]()
    baselines = next((o.baselines for o in reversed(history) if o.baselines), {})
    if baselines:
        found["baselines"] = "; ".join(f"{name} {s * 1e6:.1f} µs" for name, s in sorted(baselines.items())) + "."
    if best is not None:
        found["counters"] = counters(task, best)
        found["best"] = _to_beat(best, attempts)
    failures = dict.fromkeys(f"{o.status} ({o.reason}): {o.detail}" for o in attempts if not o.timed and o.detail)
    if failures:
        found["failures"] = "Every case that an attempt failed on:\n" + "\n".join(list(failures)[-_CASES:])
    if attempts:
        found["ideas"] = _ideas(attempts)
    return found


def _to_beat(best: Outcome, attempts: Sequence[Outcome]) -> str:
    """The fastest kernel's time; its source too, unless it is the latest attempt, which is shown anyway."""
    text = f"The fastest so far takes {best.seconds * 1e6:.1f} µs. Beat it."
    if attempts and attempts[-1].proposal.candidate.sha256 == best.proposal.candidate.sha256:
        return text
    return f"{text}\n{best.proposal.candidate.source[:SHOWN_CHARS]}"


def _ideas(attempts: Sequence[Outcome]) -> str:
    text = "\n".join(_idea(o) for o in attempts[-_IDEAS:])
    if len(attempts) > _IDEAS:
        return f"({len(attempts) - _IDEAS} earlier ones brought nothing better.)\n{text}"
    return text


def counters(task: Task, outcome: Outcome) -> str:
    """What the race and the binaries tell of a kernel. Hardware counters are not read here."""
    moved, flops = task.problem.compulsory_bytes(task.case), task.problem.flops(task.case)
    text = f"{moved / outcome.seconds / 1e9:.0f} GB/s of compulsory traffic"
    text += f", {flops / outcome.seconds / 1e9:.0f} GFLOP/s"
    if math.isfinite(task.floor_s) and task.floor_s > 0:
        text += f", {task.floor_s / outcome.seconds:.0%} of the roofline"
    if "registers" in outcome.work:
        used = outcome.work
        text += f"; its largest kernel takes {used['registers']} registers and {used['stack_bytes']} B of local "
        text += f"memory (spills) a thread, {used['shared_bytes'] / 1024:.1f} KiB of shared memory a block"
    if scratch := outcome.work.get("scratch_bytes"):
        text += f"; {scratch / 1e6:.1f} MB beside inputs and outputs"
    return text + "."


def _idea(outcome: Outcome) -> str:
    brought = f"{outcome.seconds * 1e6:.1f} µs" if outcome.timed else f"{outcome.status}: {outcome.reason}"
    return f"- {outcome.proposal.hypothesis or 'no idea was named'}: {brought}"


_TITLES = {
    "source": "Reference (eager PyTorch):",
    "hardware": "GPU:",
    "compiled": "What torch.compile generates:",
    "baselines": "Baselines take:",
    "counters": "The fastest attempt reaches:",
    "ideas": "Ideas tried, and what each brought:",
    "playbook": "Playbook:",
}


def text_of(fields: Mapping[str, str]) -> str:
    """The fields as one text, in their order; the last attempt follows as a message of its own."""
    parts = [f"Operation: {fields['name']}."] if "name" in fields else []
    for name in FIELDS:
        if name in fields and name != "last":
            title = _TITLES.get(name)
            parts.append(f"{title}\n{fields[name]}" if title else fields[name])
    return "\n\n".join(parts)
