"""A launch plan: what an entry did on the GPU, written down so that a judge-owned process can do it again.

A plan is binaries plus steps (launch this kernel of that cubin with these arguments; clear these bytes), with
every pointer named relative to an input, an output or a scratch buffer. Nothing in it is believed: the judge
replays it on its own buffers with fresh values and checks the outputs that the replay wrote. If they are right,
then the cubins do the work, and the time of the replay is the kernel's, whatever the candidate's Python would say.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Literal

import torch

from nightshift.collectors.seal import sha256_hex
from nightshift.kernels.candidate import Candidate, evaluate
from nightshift.kernels.judge import cuda
from nightshift.kernels.judge.cubin import usage_of
from nightshift.kernels.judge.probes.buffers import flat_cuda

MAX_STEPS = 4096
MAX_SCRATCH_BYTES = 32 << 30
_LIBRARY = """
_adaptive_avg_pool2d _adaptive_avg_pool3d _log_softmax _softmax adaptive_avg_pool1d addmm amax amin avg_pool1d
avg_pool2d avg_pool3d baddbmm bmm cat constant_pad_nd convolution cumprod cumsum embedding gather index
index_select logsumexp max_pool2d_with_indices max_pool3d_with_indices mean mm mul sort sum topk
upsample_bicubic2d upsample_bilinear2d upsample_nearest2d
"""
LIBRARY_CALLS = frozenset(_LIBRARY.split())
"""Operators of torch's that a plan may hold: each has a form that writes into tensors it is given, and its answer
follows from its arguments alone."""

Room = Literal["in", "out", "tmp"]
# Floats travel as the bits of their storage type.
_SCALARS: Mapping[str, Any] = {
    "i8": ctypes.c_int8,
    "i16": ctypes.c_int16,
    "i32": ctypes.c_int32,
    "i64": ctypes.c_int64,
    "u8": ctypes.c_uint8,
    "u16": ctypes.c_uint16,
    "u32": ctypes.c_uint32,
    "u64": ctypes.c_uint64,
}


class PlanError(ValueError):
    """A plan is malformed or goes beyond the limits; the message names the step."""


@dataclass(frozen=True)
class Pointer:
    """A device address: `offset_bytes` into input, output or scratch buffer number `index`."""

    room: Room
    index: int
    offset_bytes: int = 0


@dataclass(frozen=True)
class Scalar:
    """A value passed by copy: one of the integer storage types, as an integer."""

    kind: str
    value: int


@dataclass(frozen=True)
class TensorMap:
    """A tile descriptor for Hopper's bulk copy engine, encoded anew for the buffer that it is replayed on.

    Fields are those of cuTensorMapEncodeTiled (CUDA driver API), innermost dimension first; strides in bytes, one
    fewer than sizes.
    """

    pointer: Pointer
    element: int
    sizes: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int
    nan_fill: bool


Argument = Pointer | Scalar | TensorMap


@dataclass(frozen=True)
class Fire:
    """Launch kernel `name` of binary number `binary`."""

    binary: int
    name: str
    shape: cuda.Shape
    arguments: tuple[Argument, ...]


@dataclass(frozen=True)
class Clear:
    """Zero `size_bytes` at a pointer."""

    pointer: Pointer
    size_bytes: int


@dataclass(frozen=True)
class Block:
    """A tensor that an operator takes or gives."""

    pointer: Pointer
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def span_bytes(self) -> int:
        """From its first element to behind its last."""
        reach = sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)) + 1
        return int(reach * getattr(torch, self.dtype).itemsize) if all(self.shape) else 0


@dataclass(frozen=True)
class Call:
    """Have torch make the results: its operator `name` on blocks, numbers, texts, None and lists of these."""

    name: str
    overload: str
    arguments: tuple[Any, ...]
    named: Mapping[str, Any]
    results: tuple[Block, ...]


Step = Fire | Clear | Call


@dataclass(frozen=True)
class Plan:
    binaries: tuple[bytes, ...]
    steps: tuple[Step, ...]
    scratch_bytes: tuple[int, ...] = ()

    @property
    def launches(self) -> int:
        return sum(isinstance(step, Fire) for step in self.steps)

    @property
    def binary_sha256(self) -> tuple[str, ...]:
        return tuple(sha256_hex(binary) for binary in self.binaries)

    def usage(self) -> dict[str, int]:
        """The most that any of its kernels takes, see `KernelUsage`; empty where no binary says."""
        told = [usage_of(binary) for binary in self.binaries]
        fires = [step for step in self.steps if isinstance(step, Fire)]
        used = [(told[f.binary][f.name], f.shape.shared_bytes) for f in fires if f.name in told[f.binary]]
        if not used:
            return {}
        return {
            "registers": max(x.registers for x, _ in used),
            "stack_bytes": max(x.stack_bytes for x, _ in used),
            "shared_bytes": max(x.shared_bytes + more for x, more in used),
        }

    def to_message(self) -> tuple[dict[str, Any], bytes]:
        """(JSON body, blob of all binaries in order)."""
        steps = [_step_json(step) for step in self.steps]
        sizes = [len(binary) for binary in self.binaries]
        return {"sizes": sizes, "steps": steps, "scratch": list(self.scratch_bytes)}, b"".join(self.binaries)

    @classmethod
    def from_message(cls, body: Any, blob: bytes) -> Plan:
        """The inverse, for a plan that comes from a process nobody trusts. Raises PlanError."""
        try:
            sizes = [int(size) for size in body["sizes"]]
            if min(sizes, default=0) < 0 or sum(sizes) != len(blob):
                raise PlanError("plan: sizes do not fit the blob")
            if len(body["steps"]) > MAX_STEPS:
                raise PlanError(f"plan: {len(body['steps'])} steps, more than {MAX_STEPS}")
            binaries, start = [], 0
            for size in sizes:
                binaries.append(blob[start : start + size])
                start += size
            scratch = tuple(int(size) for size in body["scratch"])
            if min(scratch, default=0) < 0 or sum(scratch) > MAX_SCRATCH_BYTES:
                raise PlanError(f"plan: {sum(scratch)} bytes of scratch")
            return cls(tuple(binaries), tuple(_step(item, len(sizes)) for item in body["steps"]), scratch)
        except PlanError:
            raise
        except (KeyError, TypeError, IndexError, OverflowError, ValueError, AttributeError) as error:
            raise PlanError(f"plan: malformed ({error})") from error


def _step_json(step: Step) -> list[Any]:
    if isinstance(step, Call):
        given = [_given_json(x) for x in step.arguments], {k: _given_json(x) for k, x in step.named.items()}
        return ["call", step.name, step.overload, *given, [_given_json(x) for x in step.results]]
    if isinstance(step, Clear):
        return ["clear", _argument_json(step.pointer), step.size_bytes]
    shape = step.shape
    form = [*shape.grid, *shape.block, shape.shared_bytes, shape.cluster, shape.cooperative, shape.programmatic]
    return ["fire", step.binary, step.name, form, [_argument_json(argument) for argument in step.arguments]]


def _given_json(value: Any) -> Any:
    if isinstance(value, Block):
        return {
            "at": _argument_json(value.pointer), "dtype": value.dtype, "shape": list(value.shape),
            "strides": list(value.strides),
        }  # fmt: skip
    if isinstance(value, list | tuple):
        return [_given_json(x) for x in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise PlanError(f"opaque: a call is given {type(value).__name__}")


def _given(value: Any) -> Any:
    if isinstance(value, Mapping):
        pointer = _argument(value["at"])
        word, shape, strides = str(value["dtype"]), value["shape"], value["strides"]
        known = isinstance(getattr(torch, word, None), torch.dtype) and len(shape) == len(strides)
        if not isinstance(pointer, Pointer) or not known or min((*shape, *strides), default=0) < 0:
            raise PlanError(f"plan: block {value!r}")
        return Block(pointer, word, tuple(int(n) for n in shape), tuple(int(n) for n in strides))
    return [_given(x) for x in value] if isinstance(value, list) else value


def _library_step(item: Any) -> Call:
    _, name, overload, arguments, named, results = item
    if name not in LIBRARY_CALLS:
        raise PlanError(f"plan: {name!r} is none of torch's operators that a plan may hold")
    made = tuple(_given(x) for x in results)
    if not made or not all(isinstance(x, Block) for x in made):
        raise PlanError(f"plan: {name} without results")
    return Call(
        name, str(overload), tuple(map(_given, arguments)), {str(k): _given(x) for k, x in named.items()}, made
    )


def _argument_json(argument: Argument) -> list[Any]:
    if isinstance(argument, Pointer):
        return [argument.room, argument.index, argument.offset_bytes]
    if isinstance(argument, TensorMap):
        shape = [list(argument.sizes), list(argument.strides_bytes), list(argument.box)]
        how = [argument.element, argument.swizzle, argument.nan_fill]
        return ["map", _argument_json(argument.pointer), shape, how]
    return [argument.kind, str(argument.value)]


def _step(item: Any, binaries: int) -> Step:
    if item[0] == "call":
        return _library_step(item)
    if item[0] == "clear":
        pointer = _argument(item[1])
        if not isinstance(pointer, Pointer) or item[2] < 0:
            raise PlanError("plan: a clear step needs a pointer and a size")
        return Clear(pointer, int(item[2]))
    if item[0] != "fire" or not 0 <= item[1] < binaries:
        raise PlanError(f"plan: step {item[0]!r} of binary {item[1]!r}")
    numbers = [int(number) for number in item[3]]
    if min(numbers) < 0 or math.prod(numbers[3:6]) > 1024:
        raise PlanError(f"plan: launch shape {numbers}")
    shape = cuda.Shape(
        (numbers[0], numbers[1], numbers[2]),
        (numbers[3], numbers[4], numbers[5]),
        numbers[6],
        numbers[7],
        bool(numbers[8]),
        bool(numbers[9]),
    )
    return Fire(int(item[1]), str(item[2]), shape, tuple(_argument(argument) for argument in item[4]))


def _argument(item: Any) -> Argument:
    match item:
        case ["in" | "out" | "tmp" as room, int() as index, int() as offset] if index >= 0 and offset >= 0:
            return Pointer(room, index, offset)
        case ["map", [*base], [[*sizes], [*strides], [*box]], [int() as element, int() as swizzle, nan_fill]]:
            pointer = _argument(base)
            numbers = [*sizes, *strides, *box, element, swizzle]
            ranks = 1 <= len(sizes) <= 5 and len(box) == len(sizes) == len(strides) + 1
            if not isinstance(pointer, Pointer) or not ranks:
                raise PlanError(f"plan: tensor map {item!r}")
            if any(not isinstance(n, int) or not 0 <= n < 1 << 40 for n in numbers):
                raise PlanError(f"plan: tensor map {item!r}")
            return TensorMap(pointer, element, tuple(sizes), tuple(strides), tuple(box), swizzle, bool(nan_fill))
        case [str() as kind, str() as value] if kind in _SCALARS:
            return Scalar(kind, int(value))
        case _:
            raise PlanError(f"plan: argument {item!r}")


_FLOAT_FORM = {"fp16": ("<e", "u16"), "fp32": ("<f", "u32"), "f32": ("<f", "u32"), "fp64": ("<d", "u64")}


def scalar(kind: str, value: Any) -> Scalar:
    """A Triton-typed scalar in storage form: floats as bits, i1 as one byte. Raises PlanError."""
    if kind == "bf16":
        bits = int(struct.unpack("<I", struct.pack("<f", value))[0])
        return Scalar("u16", (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 & 0xFFFF)
    if kind in _FLOAT_FORM:
        form, storage = _FLOAT_FORM[kind]
        return Scalar(storage, int.from_bytes(struct.pack(form, value), "little"))
    if kind in ("i1", "u1"):
        return Scalar("i8", int(bool(value)))
    if kind not in _SCALARS:
        raise PlanError(f"plan: no scalar of type {kind!r}")
    return Scalar(kind, int(value))


def storage(value: Scalar) -> Any:
    """The scalar as the ctypes value that a kernel parameter points to."""
    return _SCALARS[value.kind](value.value)


def cuda_plan(candidate: Candidate, cubin: bytes, params: Mapping[str, int], numbers: Mapping[int, float]) -> Plan:
    """The plan of a CUDA C++ or CuTe candidate at one case: its declared launches with their expressions evaluated.

    `numbers`: the Python numbers among the inputs, by position. Raises PlanError or CandidateError.
    """
    steps = []
    for launch in candidate.launches:
        grid = [evaluate(text, params) for text in launch.grid]
        block = [evaluate(text, params) for text in launch.block]
        if min(*grid, *block) < 0 or math.prod(block) > 1024:
            raise PlanError(f"plan: kernel {launch.kernel!r}: grid {grid}, block {block}")
        arguments = tuple(_declared(text, params, numbers) for text in launch.args)
        shape = cuda.Shape(
            (grid[0], grid[1], grid[2]), (block[0], block[1], block[2]), evaluate(launch.shared_bytes, params)
        )
        steps.append(Fire(0, launch.kernel, shape, arguments))
    scratch = tuple(evaluate(text, params) for text in candidate.scratch_bytes)
    if sum(scratch) > MAX_SCRATCH_BYTES:
        raise PlanError(f"plan: {sum(scratch)} bytes of scratch")
    return Plan((cubin,), tuple(steps), scratch)


def with_binaries(plan: Plan, built: Sequence[tuple[str, bytes]]) -> Plan:
    """A plan of launches alone, each with a (kernel's name, binary) of its own, in their order."""
    binaries = tuple(dict.fromkeys(binary for _, binary in built))
    fires = zip([step for step in plan.steps if isinstance(step, Fire)], built, strict=True)
    steps = tuple(replace(fire, binary=binaries.index(binary), name=name) for fire, (name, binary) in fires)
    return replace(plan, binaries=binaries, steps=steps)


def _declared(text: str, params: Mapping[str, int], numbers: Mapping[int, float]) -> Argument:
    kind, separator, rest = text.partition(":")
    if separator:
        try:
            if kind in ("i32", "i64"):
                return scalar(kind, evaluate(rest, params))
            if kind == "f32":
                return scalar("fp32", float(rest))
            if kind == "scalar":
                return scalar("fp32", numbers[int(rest.removeprefix("in"))])
            if kind == "map":
                return _declared_map(rest, params)
        except (KeyError, ValueError, struct.error) as error:
            raise PlanError(f"plan: argument {text!r}: {error}") from error
    pointer = _buffer(text)
    if pointer is None:
        known = "in0, out0, tmp0, i32:…, i64:…, f32:…, scalar:in0, map:in0:…"
        raise PlanError(f"plan: argument {text!r} is none of {known}")
    return pointer


def _buffer(text: str) -> Pointer | None:
    for room in ("in", "out", "tmp"):
        if text.startswith(room) and text[len(room) :].isdigit():
            return Pointer(room, int(text[len(room) :]))
    return None


# Bytes → CUtensorMapDataType of unsigned integers (cuda.h): a copy does not look at values.
_ELEMENTS = {1: 0, 2: 1, 4: 2}
_SWIZZLES = {32: 1, 64: 2, 128: 3}
"""Bytes of a box's row → CUtensorMapSwizzle."""


def _declared_map(text: str, params: Mapping[str, int]) -> TensorMap:
    """`in0:2:ROWS:COLUMNS:BOX_ROWS:BOX_COLUMNS` (see `kernels.candidate.Launch`)."""
    name, *texts = text.split(":")
    pointer = _buffer(name)
    if pointer is None or len(texts) != 5:
        raise ValueError("expected map:BUFFER:BYTES:ROWS:COLUMNS:BOX_ROWS:BOX_COLUMNS")
    each, rows, columns, high, wide = (evaluate(part, params) for part in texts)
    if each not in _ELEMENTS:
        raise ValueError(f"elements of {each} bytes, not 1, 2 or 4")
    swizzle = _SWIZZLES.get(wide * each, 0)
    return TensorMap(pointer, _ELEMENTS[each], (columns, rows), (columns * each,), (wide, high), swizzle, False)


Resolve = Callable[[Pointer], int]


def prepare(
    plan: Plan,
    functions: Callable[[int, str, int], ctypes.c_void_p],
    resolve: Resolve,
    placed: Mapping[int, Placed] = MappingProxyType({}),
) -> list[Callable[[int], None]]:
    """The plan as callables of a stream, with every pointer resolved to an address of this process. placed: by step
    the results that torch has made in memory of its own (`place_results`)."""
    actions: list[Callable[[int], None]] = []
    for number, step in enumerate(plan.steps):
        if isinstance(step, Clear):
            address, size = resolve(step.pointer), step.size_bytes
            actions.append(partial(cuda.memset, address, size))
            continue
        if isinstance(step, Call):
            actions.append(_library_call(step, resolve, placed.get(number)))
            continue
        parameters = [_parameter(argument, resolve) for argument in step.arguments]
        function = functions(step.binary, step.name, step.shape.shared_bytes)
        actions.append(cuda.LaunchCall(function, step.shape, parameters))
    return actions


def _tensor(value: Any, resolve: Resolve) -> Any:
    """What a call is given, with blocks as tensors."""
    if isinstance(value, Block):
        dtype = getattr(torch, value.dtype)
        if not value.span_bytes:
            return torch.empty(value.shape, dtype=dtype, device="cuda")
        flat = flat_cuda(resolve(value.pointer), value.span_bytes)
        return flat.view(dtype).as_strided(value.shape, value.strides)
    return [_tensor(x, resolve) for x in value] if isinstance(value, list | tuple) else value


@dataclass
class Placed:
    """A result that torch has made in memory of its own, from a pool that nothing else is made in."""

    pool: Any
    made: torch.Tensor | None = None

    def call(self, function: Callable[[], torch.Tensor]) -> torch.Tensor:
        """The result anew: its memory is let go of right before, so that it is what the pool hands out."""
        self.made = None
        with torch.no_grad(), torch.cuda.use_mem_pool(self.pool) if self.pool else contextlib.nullcontext():
            self.made = function()
        return self.made


def _library_call(step: Call, resolve: Resolve, placed: Placed | None = None) -> Callable[[int], None]:
    """On torch's current stream, into the results themselves; `placed` is where torch has made one."""
    given = [_tensor(x, resolve) for x in step.arguments]
    named = {k: _tensor(x, resolve) for k, x in step.named.items()}
    results = [_tensor(x, resolve) for x in step.results]
    if placed is not None:
        return partial(_again, partial(_operator(step), *given, **named), placed, results[0])
    if step.name == "convolution" and not makes_anew(step):
        # the general operator writes elsewhere and copies: cuDNN's own, which it would choose, writes in place
        _, _, _, stride, padding, dilation = given[:6]
        rest = padding, stride, dilation, 1, False, False, torch.backends.cudnn.allow_tf32
        return partial(
            _ignoring_stream, torch.ops.aten.cudnn_convolution.out, given[0], given[1], *rest, out=results[0]
        )
    function, names = _writing(step.name, step.overload)
    if len(names) != len(results):
        raise PlanError(f"plan: {step.name} makes {len(names)} tensors, not {len(results)}")
    return partial(_ignoring_stream, function, *given, **named, **dict(zip(names, results, strict=True)))


def _operator(step: Call) -> Callable[..., Any]:
    made: Callable[..., Any] = getattr(getattr(torch.ops.aten, step.name), step.overload or "default")
    return made


def makes_anew(step: Step) -> bool:
    """Whether torch can only make a call's result in memory of its own, and would copy it: eager does not copy."""
    if not isinstance(step, Call) or step.name != "convolution":
        return False
    return step.arguments[2] is not None or bool(step.arguments[6]) or step.arguments[8] != 1


def place_results(plan: Plan, resolve: Resolve, moved: Callable[[int, torch.Tensor], None]) -> dict[int, Placed]:
    """Makes each result that torch can only make in memory of its own, once, and returns them by step. `moved` is
    called with its number: from then on it is that scratch buffer. The values of the inputs do not matter yet."""
    found: dict[int, Placed] = {}
    for number, step in enumerate(plan.steps):
        if not makes_anew(step):
            continue
        assert isinstance(step, Call)
        block = step.results[0]
        whole = block.pointer.room == "tmp" and block.span_bytes == plan.scratch_bytes[block.pointer.index]
        if not whole or len(step.results) > 1:
            continue
        given = [_tensor(x, resolve) for x in step.arguments]
        named = {k: _tensor(x, resolve) for k, x in step.named.items()}
        placed = Placed(torch.cuda.MemPool() if torch.cuda.is_available() else None)
        made = placed.call(partial(_operator(step), *given, **named))
        if tuple(made.stride()) == block.strides:
            found[number] = placed
            moved(block.pointer.index, made)
    return found


def _again(function: Callable[[], torch.Tensor], placed: Placed, target: torch.Tensor, _: int) -> None:
    """The call once more, into the place that it has. Elsewhere, where the pool handed out other memory, it is
    copied there: the place is still the pool's."""
    made = placed.call(function)
    if made.data_ptr() != target.data_ptr():
        target.copy_(made)


def _ignoring_stream(function: Callable[..., Any], /, *given: Any, **named: Any) -> None:
    """Whoever replays has made the stream, which comes last, torch's current one."""
    with torch.no_grad():
        function(*given[:-1], **named)


def _writing(name: str, overload: str) -> tuple[Callable[..., Any], list[str]]:
    """An operator's form that writes into given tensors, and what those are called. Raises PlanError."""
    packet = getattr(torch.ops.aten, name)
    wanted = [(a.name, str(a.type)) for a in getattr(packet, overload)._schema.arguments]
    for other in packet.overloads():
        function = getattr(packet, other)
        plain = [(a.name, str(a.type)) for a in function._schema.arguments if not a.is_out]
        outs = [a.name for a in function._schema.arguments if a.is_out]
        if outs and plain == wanted:
            return function, outs
    raise PlanError(f"plan: torch has no form of {name}.{overload} that writes into given tensors")


def _parameter(argument: Argument, resolve: Resolve) -> Any:
    if isinstance(argument, Pointer):
        return ctypes.c_uint64(resolve(argument))
    return tensor_map(argument, resolve(argument.pointer)) if isinstance(argument, TensorMap) else storage(argument)


def tensor_map(argument: TensorMap, address: int) -> Any:
    """The descriptor as the bytes that a kernel's parameter is copied from."""
    return cuda.tensor_map(
        address,
        argument.element,
        argument.sizes,
        argument.strides_bytes,
        argument.box,
        argument.swizzle,
        argument.nan_fill,
    )


def _blocks(value: Any) -> list[Block]:
    if isinstance(value, Block):
        return [value]
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return [block for part in parts for block in _blocks(part)]


def _pointers(step: Step) -> list[tuple[Pointer, int]]:
    """What a step points at, and how many bytes there it surely touches."""
    if isinstance(step, Call):
        blocks = _blocks([step.arguments, step.named, step.results])
        return [(block.pointer, block.span_bytes) for block in blocks]
    if isinstance(step, Clear):
        return [(step.pointer, step.size_bytes)]
    found = [a.pointer if isinstance(a, TensorMap) else a for a in step.arguments]
    return [(pointer, 0) for pointer in found if isinstance(pointer, Pointer)]


def check_reach(plan: Plan, inputs: Sequence[int], outputs: Sequence[int]) -> None:
    """Every pointer lies inside its buffer (bytes by index; 0 where an input is a number). Raises PlanError."""
    rooms: Mapping[str, Sequence[int]] = {"in": inputs, "out": outputs, "tmp": plan.scratch_bytes}
    for number, step in enumerate(plan.steps):
        for pointer, extra in _pointers(step):
            sizes = rooms[pointer.room]
            if pointer.index >= len(sizes) or pointer.offset_bytes + extra > sizes[pointer.index]:
                raise PlanError(f"plan: step {number} points beyond {pointer.room}{pointer.index}")
