"""AdamW's step: by certified kernels in place, the rest by torch, hooks and state as ever.

What is replaced is the function that torch.optim.Adam.step hands its lists to, so parameter groups, schedulers,
hooks and state_dict do not notice. The kernel wants the step's number on the host, where torch's fused optimiser
keeps it on the GPU: it is read once, then counted along, and read again only if somebody else wrote to it. A weight
that has a 16-bit copy is the business of a kernel that writes both (see `copies`). `adamw_many` takes all
parameters in one launch; without it each large one has a launch of its own, which costs the host more than torch's
step does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.optim.adam  # torch.optim itself hides its modules

from nightshift.kernels.apply.job.checks import agrees, capturing
from nightshift.kernels.apply.job.copies import COPIED, COPIES
from nightshift.kernels.apply.job.functions import swap_function
from nightshift.kernels.apply.job.guards import interpreted, outside
from nightshift.kernels.apply.job.names import MANY
from nightshift.kernels.apply.job.operators import run_once
from nightshift.kernels.apply.job.problems import adamw_cast_step, adamw_step
from nightshift.kernels.apply.job.state import (
    DTYPES,
    STATE,
    ByTensor,
    Kernel,
    Report,
    count_fallback,
    fell_back,
    in_use,
)

SMALLEST = 1 << 18
"""Elements: smaller parameters go to torch together, in one launch for all of them."""
CHUNK = 16384
"""Most elements of a row of the table that one launch for all is given."""
_REACH = 1 << 31
"""Elements: no table counts further, unless the judge asked of one that does."""
_ALIGNED = 64
"""Elements: parts of a parameter begin where wide loads may."""
_PLAIN = ("max_exp_avg_sqs", "amsgrad", "capturable", "differentiable", "maximize", "has_complex", "grad_scale")
Row = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


class Steps:
    """The step numbers on the host: step tensor → (number, version of the tensor when it was that)."""

    def __init__(self) -> None:
        self._known = ByTensor()

    def next(self, tensors: Sequence[torch.Tensor]) -> list[int]:
        """Adds one to each tensor; the numbers that they hold then. Waits for the GPU only for those it lost."""
        if not tensors:
            return []
        numbers = []
        for tensor in tensors:
            number, version = self._known.get(tensor, (0, -1))
            # a load of state_dict, or a step by torch, writes to the tensor: then it is read, and the GPU waited
            # for
            numbers.append((number if version == tensor._version else int(tensor.item())) + 1)
        torch._foreach_add_(list(tensors), 1)
        for tensor, number in zip(tensors, numbers, strict=True):
            self._known[tensor] = (number, tensor._version)
        return numbers


_STEPS = Steps()


def swap_optimizer(report: Report) -> None:
    """Puts the guarded step in the place of torch.optim's."""
    for problem in ("adamw", COPIED, MANY):
        if problem in STATE.kernels and (problem != COPIED or len(COPIES)):
            swap_function("torch.optim.adam.adam", _adam)
            report.applied.append(("torch.optim.AdamW", problem, STATE.kernels[problem].certificate))


def _adam(original: Callable[..., Any]) -> Callable[..., Any]:
    def adam(params: Any, grads: Any, exp_avgs: Any, exp_avg_sqs: Any, *rest: Any, **named: Any) -> Any:
        every = (params, grads, exp_avgs, exp_avg_sqs)
        idle = not any(in_use(problem) for problem in ("adamw", COPIED, MANY))
        # a recorded graph would replay this step's number for ever
        if idle or torch.compiler.is_compiling() or capturing():
            return original(*every, *rest, **named)
        # with more than two behind the lists there are no steps here, and all is torch's
        in_order = zip(("max_exp_avg_sqs", "state_steps"), rest if len(rest) < 3 else (), strict=False)
        listed = {**named, **dict(in_order)}
        numbers = [named.get(name) for name in ("lr", "beta1", "beta2", "eps", "weight_decay")]
        if why := _is_no_adamw(listed, numbers):
            fell_back("adamw", why)
            return original(*every, *rest, **named)
        rows: list[Row] = list(zip(*every, strict=True))
        chosen, steps = _takers(rows), listed["state_steps"]
        if (checked := _due_row(rows, chosen)) is not None:
            kernel, row = STATE.kernels[chosen[checked]], _with_copy(chosen[checked], rows[checked])
            return _checked(kernel, lambda: original(*every, *rest, **named), row, steps[checked], numbers)
        _step_theirs(original, rows, chosen, steps, named)
        _step_ours(rows, chosen, steps, numbers)
        return None

    return adam


def _is_no_adamw(listed: Mapping[str, Any], numbers: Sequence[Any]) -> str:
    """Why a step is none that a kernel computes; empty where it is one. listed: what torch was given by name."""
    asked = (listed.get(name) for name in _PLAIN)
    plain = not any(value is not None and value is not False and value != [] for value in asked)
    is_counted = listed.get("state_steps") is not None and listed.get("found_inf") is None
    if listed.get("decoupled_weight_decay") is not True or not plain or not is_counted:
        return "another optimiser"
    return "" if all(isinstance(number, float | int) for number in numbers) else "hyperparameters are tensors"


def _due_row(rows: Sequence[Row], chosen: Sequence[str]) -> int | None:
    """The parameter on which a kernel is to be checked in this step, None where none is; its calls are counted."""
    for problem in sorted({*chosen} - {""}):
        kernel, mine = STATE.kernels[problem], [n for n, other in enumerate(chosen) if other == problem]
        counts = [rows[n][0].numel() for n in mine]
        count = 1 if problem == MANY else sum(-(-n // _part(kernel, n)) for n in counts)
        if _due(kernel, count):
            kernel.calls += count
            # a check needs float64 copies: of the smallest parameter they cost least
            return min(mine, key=lambda number: rows[number][0].numel())
    return None


def _step_theirs(
    original: Callable[..., Any], rows: Sequence[Row], chosen: Sequence[str], steps: Any, named: Mapping[str, Any]
) -> None:
    """torch's step on the parameters that no kernel takes, all together."""
    left = [number for number, problem in enumerate(chosen) if not problem]
    if any(type(rows[number][0]) not in (torch.Tensor, torch.nn.Parameter) for number in left):
        fell_back("adamw", "no plain tensors")
    if left:
        part = [list(column) for column in zip(*(rows[number] for number in left), strict=True)]
        original(*part, **{**named, "max_exp_avg_sqs": [], "state_steps": [steps[n] for n in left]})


@torch.no_grad()
def _step_ours(rows: Sequence[Row], chosen: Sequence[str], steps: Any, numbers: Sequence[Any]) -> None:
    """The parameters that a kernel takes: all of one step in one launch, or each in its own."""
    ours = [number for number, problem in enumerate(chosen) if problem]
    together: dict[int, list[Row]] = {}
    for number, step in zip(ours, _STEPS.next([steps[n] for n in ours]), strict=True):
        if chosen[number] == MANY:
            together.setdefault(step, []).append(rows[number])
        else:
            _stepped(chosen[number], rows[number], numbers, step)
    if together:
        STATE.kernels[MANY].calls += 1  # one for the step, however many launches it takes
    for step, some in together.items():
        _stepped_together(STATE.kernels[MANY], some, numbers, step)


def _takers(rows: Sequence[Row]) -> list[str]:
    """Each parameter's kernel: one for all, the one that writes its copy too, its own, or "" for
    torch's."""
    many = in_use(MANY)
    if many is not None and (why := _unbounded(many)):
        fell_back(MANY, why)
        many = None
    if many is None or not rows:
        return [_own_taker(row) for row in rows]
    kind, here, reach = DTYPES[many.record["dtype"]], rows[0][0].get_device(), max(_REACH, _most(many))
    found = []
    for row in rows:
        copy = COPIES.get(row[0])
        fits = (copy is None or copy.narrow.dtype == kind) and row[0].numel() <= reach
        found.append(MANY if fits and _lies_well(row, here) else _own_taker(row))
    return found


def _own_taker(row: Row) -> str:
    problems = ("adamw",) if COPIES.get(row[0]) is None else (COPIED, "adamw")
    kernels = ((problem, in_use(problem)) for problem in problems)
    return next((problem for problem, kernel in kernels if kernel and _fits(kernel, row)), "")


def _unbounded(kernel: Kernel) -> str:
    """Why tables of any size cannot be cut to what a kernel was certified for: "shape", "size"; else empty."""
    if any(b["name"] == "n" and (b["low"] > 1 or b["multiple"] > 1) for b in kernel.record["bounds"]):
        return "shape"
    return "size" if 0 < _most(kernel) < CHUNK else ""


def _lies_well(row: Row, device: int) -> bool:
    """Whether one launch for all may take a parameter: its table counts in steps of eight elements, and where one
    without any begins is nowhere."""
    size = row[0].numel()
    return (
        size > 0
        and (device >= 0 or interpreted())
        and all(
            type(x) in (torch.Tensor, torch.nn.Parameter)
            and x.dtype is torch.float32
            and x.get_device() == device
            and x.is_contiguous()
            and x.numel() == size
            and x.data_ptr() % 32 == 0
            for x in row
        )
    )


class ChunkTable:
    """Where the chunks of many tensors begin, counted from the one of each kind that lies lowest; on the GPU.

    Outside of CUDA graphs gradients lie elsewhere in every step: then addresses alone are sent, and the GPU adds
    them up; the host would take longer than the step. Keeps none of the tensors: a gradient that a CUDA graph wrote
    is gone with the graph's next replay, though the next step's lies where it lay.
    """

    def __init__(self, rows: Sequence[Row], kind: torch.dtype) -> None:
        device, addresses = rows[0][0].device, _addresses(rows)
        self.layout = _layout(rows, addresses)
        self.elements = sum(count for count, _ in self.layout)
        self._copied = torch.tensor([copied for _, copied in self.layout])
        self._empty = torch.empty(16, dtype=kind, device=device)
        counts = torch.tensor([count for count, _ in self.layout])
        chunks = (counts + CHUNK - 1) // CHUNK
        owner = torch.repeat_interleave(torch.arange(len(rows)), chunks)
        inner = (torch.arange(len(owner)) - (chunks.cumsum(0) - chunks)[owner]) * CHUNK
        inside = torch.empty(len(owner), 6, dtype=torch.int64)
        inside[:, :5] = inner[:, None]
        inside[:, 4][~self._copied[owner]] = 0
        inside[:, 5] = (counts[owner] - inner).clamp(max=CHUNK)
        self._owner, self._inside = owner.to(device), inside.to(device)
        self.place(rows, addresses)

    def place(self, rows: Sequence[Row], addresses: list[int]) -> None:
        """For tensors of the same sizes that lie elsewhere; `table`: (chunks, 6), begins of the four tensors and of
        the copy (−1: none) and elements."""
        self.addresses = addresses
        begins = torch.tensor(addresses).reshape(len(rows), 5)
        self._lowest = begins[:, :4].argmin(0).tolist()
        copies = [number for number, (_, copied) in enumerate(self.layout) if copied]
        self._copy = min(copies, key=lambda number: addresses[5 * number + 4], default=-1)
        bases = self.bases(rows)
        lowest = torch.tensor([x.data_ptr() for x in bases])
        widths = torch.tensor([x.element_size() for x in bases])
        known = torch.zeros(len(rows), 6, dtype=torch.int64)
        known[:, :5] = (begins - lowest) // widths
        known[:, 4][~self._copied] = -1
        # not pinned: so few bytes are taken along with the call
        self.table = known.to(self._owner.device, non_blocking=True)[self._owner].add_(self._inside)

    def bases(self, rows: Sequence[Row]) -> list[torch.Tensor]:
        """The tensor of each kind that lies lowest, of this step's."""
        copy = COPIES.get(rows[self._copy][0]).narrow if self._copy >= 0 else self._empty
        return [*(rows[number][place] for place, number in enumerate(self._lowest)), copy]


def _layout(rows: Sequence[Row], addresses: Sequence[int]) -> list[tuple[int, bool]]:
    """Each row's elements, and whether it has a copy."""
    return [(row[0].numel(), copy > 0) for row, copy in zip(rows, addresses[4::5], strict=True)]


def _addresses(rows: Sequence[Row]) -> list[int]:
    """Of each row's four tensors and its copy, 0 where there is none."""
    found = []
    for row in rows:
        copy = COPIES.get(row[0])
        found += [x.data_ptr() for x in row]
        found.append(0 if copy is None else copy.narrow.data_ptr())
    return found


_TABLES = ByTensor()
"""The first parameter of a launch → its ChunkTable."""


def _stepped_together(kernel: Kernel, rows: Sequence[Row], numbers: Sequence[Any], step: int) -> None:
    table, addresses = _TABLES.get(rows[0][0]), _addresses(rows)
    if len(rows) > 1 and _far_apart(kernel, rows, addresses):
        # neighbours in memory stay together, so that each half spans less
        near = sorted(rows, key=lambda row: row[0].data_ptr())
        for part in (near[: len(near) // 2], near[len(near) // 2 :]):
            _stepped_together(kernel, part, numbers, step)
        return
    if table is None or table.layout != _layout(rows, addresses):
        table = _TABLES[rows[0][0]] = ChunkTable(rows, DTYPES[kernel.record["dtype"]])
    elif table.addresses != addresses:
        table.place(rows, addresses)
    _launched(kernel, table.bases(rows), table, (*numbers, step))
    # a kernel writes behind autograd's back: what saved the weight would be taken for current
    torch.autograd.graph.increment_version([x for row in rows for x in (row[0], row[2], row[3])])
    for row in rows:
        copy = COPIES.get(row[0])
        if copy is not None:
            copy.made(row[0])


def _far_apart(kernel: Kernel, rows: Sequence[Row], addresses: Sequence[int]) -> bool:
    """Whether a table would count beyond what 32 bits hold, where the judge asked of no such one."""
    reach = max(_REACH, _most(kernel)) - max(row[0].numel() for row in rows)
    for place, width in enumerate((4, 4, 4, 4, 2)):
        begins = [address for address in addresses[place::5] if address]
        if begins and max(begins) - min(begins) > width * reach:
            return True
    return False


def _most(kernel: Kernel) -> int:
    """The most elements of one launch: that the judge asked, within the certified domain. 0: none is said."""
    highs = [bound["high"] for bound in kernel.record["bounds"] if bound["name"] == "n"]
    largest = kernel.record.get("largest", {})
    return min([*highs, *([largest["n"]] if "n" in largest else [])], default=0)


def _launched(kernel: Kernel, bases: Sequence[torch.Tensor], table: ChunkTable, numbers: Sequence[Any]) -> None:
    """All chunks of a table, in as many launches as keep each within what the judge asked."""
    most, count = _most(kernel), len(table.table)
    each = max(1, most // CHUNK) if 0 < most < table.elements else count
    for at in range(0, count, each):
        kernel.entry(*bases, table.table[at : at + each], *numbers)


def _with_copy(problem: str, row: Row) -> tuple[torch.Tensor, ...]:
    copy = COPIES.get(row[0])
    return (*row, copy.narrow) if problem in (COPIED, MANY) and copy is not None else row


def _stepped(problem: str, row: Row, numbers: Sequence[Any], step: int) -> None:
    given, count = _with_copy(problem, row), row[0].numel()
    part = _part(STATE.kernels[problem], count)
    if part < count:
        flat = [x.view(-1) for x in given]
        for at in range(0, count, part):
            run_once(problem, (*(x[at : at + part] for x in flat), *numbers, step))
    else:
        run_once(problem, (*given, *numbers, step))
    torch.autograd.graph.increment_version((row[0], row[2], row[3]))
    if problem == COPIED and in_use(problem) is not None:
        COPIES.get(row[0]).made(row[0])


def _part(kernel: Kernel, count: int) -> int:
    """How many elements a launch is given: all, or as many as the judge asked at most where there are more."""
    step = math.lcm(_ALIGNED, *(bound["multiple"] for bound in kernel.record["bounds"]))
    largest = kernel.record.get("largest", {}).get("n", count)
    return count if count <= largest else max(step, largest // step * step)


def _fits(kernel: Kernel, row: Row) -> bool:
    kind = torch.float32 if kernel.problem == COPIED else DTYPES[kernel.record["dtype"]]
    first = row[0]
    return (
        first.numel() >= SMALLEST
        and (first.device.type == "cuda" or interpreted())
        and all(type(x) in (torch.Tensor, torch.nn.Parameter) for x in row)
        and all(x.dtype == kind and x.is_contiguous() and x.numel() == first.numel() for x in row)
        and not any(outside(kernel.record, {"n": n}) for n in _parts(kernel, first.numel()))
    )


def _parts(kernel: Kernel, count: int) -> set[int]:
    """The sizes of a parameter's launches."""
    part = _part(kernel, count)
    return {part, count % part or part}


def _due(kernel: Kernel, count: int) -> bool:
    """Whether one of the next `count` calls is to be checked."""
    every = STATE.shadow_every
    return every > 0 and (STATE.watching or (kernel.calls + count) // every > kernel.calls // every)


@torch.no_grad()
def _checked(
    kernel: Kernel,
    by_torch: Callable[[], Any],
    row: tuple[torch.Tensor, ...],
    step: torch.Tensor,
    numbers: Sequence[Any],
) -> None:
    """torch's step on everything, and the kernel's on a copy of one parameter: a wrong one changes nothing."""
    try:
        mine = [x.detach().clone() for x in row]
        exact = [x.detach().to(torch.double, copy=True) for x in row]
    except torch.OutOfMemoryError:
        count_fallback("shadow: no memory")
        by_torch()
        return
    by_torch()
    rest = (*numbers, int(step.item()))
    if kernel.problem == MANY:
        alone = [(mine[0], mine[1], mine[2], mine[3])]
        one = ChunkTable(alone, DTYPES[kernel.record["dtype"]])
        if len(mine) == 5:
            one.table[:, 4] = one.table[:, 0]
        _launched(kernel, [*mine[:4], *(mine[4:] or one.bases(alone)[4:])], one, rest)
    else:
        kernel.entry(*mine, *rest)
    reference: Callable[..., None] = adamw_cast_step if len(mine) == 5 else adamw_step
    reference(*exact, *rest)
    theirs = (*row[:4], *(row[0].to(x.dtype) for x in row[4:]))  # torch writes no copy: what it would be
    changed = (0, *range(2, len(mine)))
    agrees(kernel, *(tuple(x[place] for place in changed) for x in (mine, theirs, exact)))
