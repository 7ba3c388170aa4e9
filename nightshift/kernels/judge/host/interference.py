"""What goes on beside a call while it is examined: other work on the GPU, or inputs that only just arrive.

An order of execution that is merely usual changes here. In the candidate's process this is an offer that hostile
code can decline; a replay makes the same of its launches, and the answer is held against the oracle either way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

_LATE_CYCLES = 4_000_000  # about 2 ms
_GATE_CYCLES = 20_000_000  # about 10 ms: all calls are queued before the first runs
_OTHER_CALLS, _FEWEST_CALLS = 24, 3
_KEPT_BYTES = 4 << 30
"""Of outputs that other calls make, at most: calls that make much take long, and fewer of them still overlap."""


@contextlib.contextmanager
def load_beside(device: str) -> Iterator[None]:
    """Keep another stream busy with matrix products meanwhile."""
    if device != "cuda":
        yield
        return
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        square = torch.ones(1024, 1024, device="cuda", dtype=torch.float16)
        for _ in range(200):
            square = torch.mm(square, square).clamp_(0, 1)
    yield
    stream.synchronize()


@contextlib.contextmanager
def late_inputs(inputs: Sequence[Any], device: str) -> Iterator[list[Any]]:
    """The inputs as copies that a stream of its own, current meanwhile, has yet to make: who does not work on the
    current stream reads NaN (0 in integers). On the CPU the copies are there at once."""
    copies = [_blank(x) if isinstance(x, torch.Tensor) else x for x in inputs]
    if device != "cuda":
        _fill(copies, inputs)
        yield copies
        return
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        torch.cuda._sleep(_LATE_CYCLES)  # type: ignore[no-untyped-call]
        _fill(copies, inputs)
        yield copies
    stream.synchronize()


def amid_others(
    run: Callable[[Sequence[Any]], Any], inputs: Sequence[Any], device: str, integers: bool = True
) -> Any:
    """The outputs of `run(inputs)`, called among other calls of the same entry on a second stream, with other
    values: who keeps memory between calls gives it to both at once. On the CPU one call comes after the other.
    integers: whether theirs are others too; offsets that others rely on must stay."""

    def other(x: torch.Tensor) -> torch.Tensor:
        return _blank(x).copy_(_rolled(x) if integers or x.is_floating_point() else x)

    others = [other(x) if isinstance(x, torch.Tensor) else x for x in inputs]
    if device != "cuda":
        run(others)
        outputs = run(inputs)
        run(others)
        return outputs
    others_count = calls_beside(run(others))  # compiled and tuned before anything must overlap
    torch.cuda.synchronize()
    mine, theirs = torch.cuda.Stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    kept = []  # no output's memory is used again before all is done, where there is room for that
    with torch.cuda.stream(theirs):
        torch.cuda._sleep(_GATE_CYCLES)  # type: ignore[no-untyped-call]
        gate = theirs.record_event()
        for _ in range(others_count):
            beside = run(others)
            kept += [beside] * (others_count > _FEWEST_CALLS)
    mine.wait_event(gate)
    with torch.cuda.stream(mine):
        for _ in range(others_count // 3):
            kept.append(run(inputs))
    torch.cuda.synchronize()
    return kept[-1 - others_count // 6]


def calls_beside(outputs: Any) -> int:
    """How many other calls are made beside an examined one, of outputs that large."""
    made = outputs if isinstance(outputs, tuple | list) else (outputs,)
    size = sum(x.nbytes for x in made if isinstance(x, torch.Tensor))
    return max(_FEWEST_CALLS, min(_OTHER_CALLS, _KEPT_BYTES // max(1, size)))


def another_layers(inputs: Sequence[Any]) -> list[Any]:
    """Inputs of the same forms with other values, which ask for gradients where these do."""
    return [
        _blank(x).copy_(_rolled(x.detach())).requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x
        for x in inputs
    ]


def _rolled(tensor: torch.Tensor) -> torch.Tensor:
    """Every value at its neighbour's place; of float8 its bytes, as CUDA rolls no such tensor."""
    if tensor.is_floating_point() and tensor.itemsize == 1:
        return tensor.view(torch.uint8).roll(1).view(tensor.dtype)
    return tensor.roll(1)


def _blank(tensor: torch.Tensor) -> torch.Tensor:
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return made.fill_(float("nan") if tensor.is_floating_point() else 0)


def _fill(copies: Sequence[Any], inputs: Sequence[Any]) -> None:
    for copy, x in zip(copies, inputs, strict=True):
        if isinstance(x, torch.Tensor):
            copy.copy_(x)
