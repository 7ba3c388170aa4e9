"""Runs inside the candidate's host: watches what an entry launches, and writes the launch plan down.

Triton's own launcher is replaced by one that launches through the driver and notes binary, shape and arguments
(it also spares a C compiler run per signature). torch operations are seen by a dispatch mode: views and
allocations cost nothing, zero fills become a step, anything else does GPU work that no plan holds and is listed as
*opaque*. Memory that a kernel is given, but that is neither an input nor made during the call, outlives calls: two
calls on two streams would share it. The candidate shares this process and may lie to this code; `plan` says why
that gains it nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from nightshift.kernels.judge import cuda, launch_plan

_ALLOCATE = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
_ZERO = {"zeros", "zeros_like", "new_zeros", "zero_"}
_SAME = {"detach", "alias"}  # another tensor, the same memory
current: list[Recorder] = []


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes one call of an entry. `opaque`: names of torch operations that did work outside any plan; `called`: of
    those in it. `kept`: bytes by address of memory that launches were given and that was there before the call."""

    def __init__(
        self, resident: Sequence[tuple[launch_plan.Pointer, int, int]], lent: Sequence[torch.Tensor] = ()
    ) -> None:
        """`resident`: (pointer, address, bytes) of each input. `lent`: inputs and upstream gradients."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._resident = list(resident)
        self._tensors: list[torch.Tensor] = []  # kept alive, so that no address is used twice in one call
        self.steps: list[tuple[Any, ...]] = []
        self._binaries: dict[bytes, int] = {}
        self.opaque: list[str] = []
        self.called: list[str] = []  # torch's operators that a plan holds
        self.launches = 0
        self._made = {x.untyped_storage().data_ptr() for x in lent}
        self.kept: dict[int, int] = {}

    def __enter__(self) -> Recorder:
        current.append(self)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *details: Any) -> None:
        super().__exit__(*details)  # type: ignore[no-untyped-call]
        current.remove(self)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace not in ("aten", "prims", "prim") and (inside := _implementation(func, args)) is not None:
            with self:  # an operator of the candidate's own: what it is made of counts
                return inside(*args, **(kwargs or {}))
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name == "lift_fresh" or (not func.is_view and name not in _SAME and not name.endswith("_")):
            self._note_made(result)
        if name in _ALLOCATE:
            self._tensors.append(result)
        elif name in _ZERO:
            self._tensors.append(result)
            self._note_zeros(result, name)
        elif name == "lift_fresh":  # torch.tensor(numbers): on a GPU a copy from the host
            self.opaque += ["lift_fresh"] if result.is_cuda else []
        elif not func.is_view and name not in _SAME:
            self._note_call(func, name, args, kwargs or {}, result)
        return result

    def _note_call(self, func: Any, name: str, args: Any, kwargs: Any, result: Any) -> None:
        """torch's work: a step where a plan may hold it, else what no plan holds."""
        made = result if isinstance(result, tuple | list) else (result,)
        if name not in launch_plan.LIBRARY_CALLS or not all(isinstance(x, torch.Tensor) for x in made):
            self.opaque.append(name)
            return
        self.called.append(name)
        self._tensors += made
        self.steps.append(("call", name, func._overloadname, list(args), dict(kwargs), list(made)))

    def _note_zeros(self, result: torch.Tensor, name: str) -> None:
        in_place = name == "zero_"
        span = result.numel() * result.itemsize if in_place else result.untyped_storage().nbytes()
        if in_place and not result.is_contiguous():
            self.opaque.append(name)  # a plan clears one run of bytes
        elif span:
            self.steps.append(("clear", result.data_ptr(), span))

    def _note_made(self, result: Any) -> None:
        """An operation's new tensors: what a call makes is its own."""
        for item in result if isinstance(result, tuple | list) else (result,):
            if isinstance(item, torch.Tensor):
                self._made.add(item.untyped_storage().data_ptr())

    def given(self, values: Sequence[Any]) -> None:
        """What a launch is given: tensors, descriptors of tensors, tuples of them, and numbers."""
        for value in values:
            if isinstance(value, tuple | list):
                self.given(value)
                continue
            tensor = getattr(value, "base", value)
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage.nbytes() and storage.data_ptr() not in self._made:
                    self.kept[storage.data_ptr()] = storage.nbytes()

    def fire(
        self,
        binary: bytes,
        name: str,
        shape: cuda.Shape,
        arguments: Sequence[tuple[str, Any]],
        tensors: Sequence[Any],
    ) -> None:
        """A launch: `arguments` are (Triton type, value), pointers as ("*", address)."""
        self.launches += 1
        number = self._binaries.setdefault(binary, len(self._binaries))
        self._tensors += [value for value in tensors if isinstance(value, torch.Tensor)]
        self.steps.append(("fire", number, name, shape, tuple(arguments)))

    def plan(self, outputs: Sequence[torch.Tensor]) -> launch_plan.Plan:
        """The plan, once the entry has returned `outputs`. Raises PlanError where no plan can say what happened."""
        if self.opaque:
            raise launch_plan.PlanError(f"opaque: {', '.join(sorted(set(self.opaque)))}")
        places = list(self._resident)
        for index, output in enumerate(outputs):
            if not output.is_contiguous():
                raise launch_plan.PlanError(f"opaque: output {index} is not contiguous")
            address = output.data_ptr()
            if not any(start <= address < start + size for _, start, size in self._resident):
                places.append((launch_plan.Pointer("out", index), address, output.numel() * output.itemsize))
        scratch: list[int] = []
        for tensor in self._tensors:
            storage = tensor.untyped_storage()
            address, size = storage.data_ptr(), storage.nbytes()
            at = (
                tensor.data_ptr()
            )  # an input is a view of a lent buffer, which an earlier case may have made larger
            if size and not any(start <= at < start + max(1, n) for _, start, n in places):
                places.append((launch_plan.Pointer("tmp", len(scratch)), address, size))
                scratch.append(size)
        steps: list[launch_plan.Step] = []
        for step in self.steps:
            if step[0] == "clear":
                steps.append(launch_plan.Clear(_locate(places, step[1]), step[2]))
            elif step[0] == "call":
                steps.append(launch_plan.Call(*step[1:3], *(_blocks(places, x) for x in step[3:])))
            else:
                arguments = tuple(_argument(places, kind, value) for kind, value in step[4])
                steps.append(launch_plan.Fire(step[1], step[2], step[3], arguments))
        return launch_plan.Plan(tuple(self._binaries), tuple(steps), tuple(scratch))


def _implementation(func: Any, args: Sequence[Any]) -> Callable[..., Any] | None:
    """What an operator that was registered from Python does on the device of its first tensor; None where nothing
    was registered for that."""
    device = next((x.device.type for x in args if isinstance(x, torch.Tensor)), "cpu")
    key = torch._C.DispatchKey.CUDA if device == "cuda" else torch._C.DispatchKey.CPU
    if not torch._C._dispatch_has_computed_kernel_for_dispatch_key(func.name(), key.name):
        return None
    return functools.partial(func.redispatch, torch._C.DispatchKeySet(key))


def unseen() -> contextlib.AbstractContextManager[Any]:
    """For what the host itself computes in the middle of a recorded call."""
    return torch._C._DisableTorchDispatch()


def _argument(
    places: Sequence[tuple[launch_plan.Pointer, int, int]], kind: str, value: Any
) -> launch_plan.Argument:
    if isinstance(value, _Tile):
        return replace(value.form, pointer=_locate(places, value.base.data_ptr()))
    if kind.startswith("*"):
        return _locate(places, value) if value else launch_plan.Scalar("u64", 0)
    return launch_plan.scalar(kind, value)


def _blocks(places: Sequence[tuple[launch_plan.Pointer, int, int]], value: Any) -> Any:
    """A call's tensors as blocks, in whatever holds them."""
    if isinstance(value, torch.Tensor):
        pointer = _locate(places, value.data_ptr()) if value.numel() else launch_plan.Pointer("tmp", 0)
        word = str(value.dtype).removeprefix("torch.")
        return launch_plan.Block(pointer, word, tuple(value.shape), tuple(value.stride()))
    if isinstance(value, dict):
        return {key: _blocks(places, item) for key, item in value.items()}
    return tuple(_blocks(places, item) for item in value) if isinstance(value, list | tuple) else value


def _locate(places: Sequence[tuple[launch_plan.Pointer, int, int]], address: int) -> launch_plan.Pointer:
    for pointer, start, size in places:
        if start <= address < start + max(1, size):
            return launch_plan.Pointer(pointer.room, pointer.index, pointer.offset_bytes + address - start)
    raise launch_plan.PlanError("opaque: a kernel was given an address that belongs to no buffer")


class PlanLauncher:
    """Stands in for Triton's CudaLauncher (3.6 to 3.9): `(src, metadata)`, then called once per launch."""

    binaries: dict[int, tuple[str, bytes]] = {}  # function handle → (kernel name, cubin)  # noqa: RUF012

    def __init__(self, src: Any, metadata: Any) -> None:
        self._types = list(src.signature.values())
        self._metadata = metadata
        self._maps: list[Any] = list(getattr(metadata, "tensordesc_meta", None) or [])
        self._functions: dict[int, ctypes.c_void_p] = {}

    def __call__(self, grid_x: int, grid_y: int, grid_z: int, stream: int, function: int, *rest: Any) -> None:
        metadata = self._metadata
        types, values = _expand(self._types, rest[4:], self._maps)
        scratch_bytes = metadata.global_scratch_size * grid_x * grid_y * grid_z * metadata.num_ctas
        scratch = torch.empty(scratch_bytes, dtype=torch.uint8, device="cuda") if scratch_bytes else None
        typed = [
            (kind, _address(value) if kind.startswith("*") else value)
            for kind, value in zip(types, values, strict=True)
            if kind != "constexpr"
        ]
        typed += [("*i8", scratch.data_ptr() if scratch is not None else 0), ("*i8", 0)]
        shape = cuda.Shape(
            (grid_x * metadata.num_ctas, grid_y, grid_z),
            (32 * metadata.num_warps, 1, 1),
            metadata.shared,
            metadata.num_ctas,
            bool(metadata.launch_cooperative_grid),
            bool(metadata.launch_pdl),
        )
        parameters = [_parameter(kind, value) for kind, value in typed]
        cuda.enter()
        cuda.LaunchCall(ctypes.c_void_p(function), shape, parameters)(stream)
        if current:
            name, binary = self.binaries[function]
            kept = [value.base if isinstance(value, _Tile) else value for value in values]
            current[-1].given(kept)
            current[-1].fire(binary, name, shape, typed, [*kept, scratch])


@dataclass(frozen=True)
class _Tile:
    """A host-side tensor descriptor that became a CUtensorMap: its tensor, and its form, whose pointer is unset."""

    base: torch.Tensor
    form: launch_plan.TensorMap


def _parameter(kind: str, value: Any) -> Any:
    if isinstance(value, _Tile):
        return launch_plan.tensor_map(value.form, value.base.data_ptr())
    return ctypes.c_uint64(value) if kind.startswith("*") else launch_plan.storage(launch_plan.scalar(kind, value))


_HOST_ELEMENT = {8: 10, 9: 8, 10: 9}
"""Triton's element types as CUtensorMapDataType, where they differ (triton/backends/nvidia/driver.py, 3.6)."""


def _expand(types: Any, values: Any, maps: Sequence[Any]) -> tuple[list[str], list[Any]]:
    """The signature as the compiled kernel has it, with descriptors taken apart as Triton's own launcher does: a
    CUtensorMap (or base, shape and strides, where the kernel was lowered without), then shape and strides."""
    kinds: list[str] = []
    found: list[Any] = []
    rest = list(maps)
    for kind, value in zip(types, values, strict=True):
        if isinstance(kind, tuple):
            inner_kinds, inner = _expand(kind, value, ())
            kinds += inner_kinds
            found += inner
        elif isinstance(kind, str) and kind.startswith("tensordesc"):
            shape, strides = [int(n) for n in value.shape], [int(n) for n in value.strides]
            rank, meta = len(shape), rest.pop(0) if rest else None
            if meta is None:
                kinds += ["*i8", *["i64"] * (2 * rank), "i1"]
                found += [value.base, *shape, *strides, value.padding == "nan"]
            else:
                kinds.append("map")
                found.append(_tile(value, meta, shape, strides))
            kinds += ["i32"] * rank + ["i64"] * rank
            found += [*shape, *strides]
        else:
            kinds.append(kind)
            found.append(value)
    return kinds, found


def _tile(value: Any, meta: Any, shape: list[int], strides: list[int]) -> _Tile:
    sizes = [*shape[:-1], shape[-1] * (2 if meta["fp4_padded"] else 1)]
    size_bytes = int(meta["elem_size"])
    form = launch_plan.TensorMap(
        launch_plan.Pointer("in", 0),
        _HOST_ELEMENT.get(int(meta["elem_type"]), int(meta["elem_type"])),
        tuple(reversed(sizes)),
        tuple(size_bytes * stride for stride in reversed(strides[:-1])),
        tuple(int(n) for n in reversed(meta["block_size"])),
        int(meta["swizzle"]),
        value.padding == "nan",
    )
    return _Tile(value.base, form)


def _address(value: Any) -> int:
    if value is None:
        return 0
    if isinstance(value, int):
        return value
    return int(value.data_ptr())


def replace_launcher() -> None:
    """Make Triton in this process launch through PlanLauncher. Call once CUDA may be initialised."""
    from triton.runtime import driver

    active = driver.active
    load = active.utils.load_binary

    def load_binary(name: str, binary: bytes, shared_bytes: int, device: int) -> Any:
        loaded = load(name, binary, shared_bytes, device)
        PlanLauncher.binaries[loaded[1]] = (name, binary)
        return loaded

    active.utils.load_binary = load_binary
    active.launcher_cls = PlanLauncher


# --- Triton's interpreter, where there is no GPU ----------------------------------------------------------------
#
# Made to do what a GPU does. Its launches are counted, and it tunes although it has nothing to time on. bfloat16 is
# converted and computed with as hardware does it: the interpreter (3.7) makes another number of every subnormal,
# cuts off where a GPU rounds to the nearest, and takes the bits for integers in every product and sum.

_Convert = Callable[[Any, Any, Any, Any], Any]


def replace_interpreter() -> None:
    """For all of this process. Its own torch calls are no candidate's work; of several configurations every one
    runs once, and the first is taken."""
    from triton.runtime import autotuner, interpreter

    def run_once(kernel_call: Callable[[], Any], quantiles: Sequence[float]) -> list[float]:
        kernel_call()
        return [1.0 for _ in quantiles]

    autotuner.Autotuner.do_bench = property(lambda self: run_once)
    interpreter._convert_float = by_hardware(interpreter._convert_float, interpreter._ir.ROUNDING_MODE.RTZ)
    for name in ("binary_op", "unary_op", "ternary_op", "create_fma", "create_dot"):
        setattr(interpreter.InterpreterBuilder, name, widened(getattr(interpreter.InterpreterBuilder, name)))
    executor = interpreter.GridExecutor
    original: Callable[..., Any] = executor.__call__

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not current:
            return original(self, *args, **kwargs)
        recorder = current[-1]
        recorder.launches += 1
        recorder.given([*args, *kwargs.values()])
        kept = len(recorder.opaque), len(recorder.called), len(recorder.steps)
        try:
            return original(self, *args, **kwargs)
        finally:
            del recorder.opaque[kept[0] :], recorder.called[kept[1] :], recorder.steps[kept[2] :]

    executor.__call__ = call
    # Tensors are on the CPU already. What would bring them there keeps all memory of a call until Python looks for
    # garbage, and then `Footprint.outlived` has it look, which takes 0.3 s.
    executor._init_args_hst = lambda self, args, kwargs: (list(args), dict(kwargs))
    executor._restore_args_dev = lambda self, *args: None
    remember_builtins()
    remember_types()
    importlib.import_module("triton.experimental.gluon")  # 0.2 s, which each host's first launch would take again


def remember_builtins() -> None:
    """At each launch, and at each call of one `jit` function by another, the interpreter looks through its whole
    language for what to patch: half of its time. Which functions those are is found out once, before the first."""
    import triton.language as tl
    from triton.runtime import interpreter

    patched = (tl, tl.core, tl.tensor, tl.math, tl.core.tensor_descriptor_base)
    names = {
        package: [name for name, member in inspect.getmembers(package) if tl.core.is_builtin(member)]
        for package in patched
    }

    def patch(package: Any, builder: Any, *scope: Any) -> None:
        if not any(tl.core.is_builtin(getattr(package, name)) for name in names[package][:1]):
            return  # all of them are patched already
        for name in names[package]:
            member = getattr(package, name)
            if tl.core.is_builtin(member):
                interpreter._patch_attr(package, name, member, builder, *scope)

    interpreter._patch_builtin = patch


def remember_types() -> None:
    """Each value of the interpreter has a type of its own, with its name and sizes worked out anew, and each
    operation puts down Triton's and NumPy's dtypes as a table before it reads one: a quarter of its time."""
    import triton.language as tl
    from triton.runtime import interpreter

    interpreter._get_np_dtype = by_dtype(interpreter._get_np_dtype)
    block, tensor = tl.block_type.__init__, tl.tensor.__init__
    blocks: dict[tuple[Any, ...], dict[str, Any]] = {}

    def begin_block(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = [getattr(size, "value", size) for size in getattr(shape, "values", shape)]
        if type(element_ty) is not tl.dtype or not {*map(type, sizes)} <= {int}:
            block(self, element_ty, shape)
            return
        key = (element_ty.name, *sizes)
        if key not in blocks:
            block(self, element_ty, shape)
            blocks[key] = {**vars(self), "of_tensors": {}}
        vars(self).update(blocks[key])

    def begin_tensor(self: Any, handle: Any, type: Any) -> None:
        known = vars(type).get("of_tensors")
        if known:
            self.handle, self.type, self.dtype = handle, type, type.scalar
            vars(self).update(known)
            return
        tensor(self, handle, type)
        if known is not None and vars(self).keys() == {"handle", "type", "dtype", "shape", "numel"}:
            known.update(shape=self.shape, numel=self.numel)

    tl.block_type.__init__, tl.tensor.__init__ = begin_block, begin_tensor


def by_dtype(of: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """What `of` says of each of Triton's scalar dtypes, asked once."""
    from triton.language import dtype

    found: dict[str, Any] = {}

    def made(key: Any) -> Any:
        if type(key) is not dtype:
            return of(key)
        if key.name not in found:
            found[key.name] = of(key)
        return found[key.name]

    return made


def widened(method: Callable[..., Any]) -> Callable[..., Any]:
    """An operation of the interpreter that computes with bfloat16 in float32 and rounds what comes out."""
    from triton.language import bfloat16, float32
    from triton.runtime import interpreter

    def wide(value: Any) -> Any:
        if not isinstance(value, interpreter.TensorHandle) or value.dtype.scalar.name != bfloat16.name:
            return value  # by name: comparing dtypes takes ten times as long
        bits = interpreter._convert_float(value.data, bfloat16, float32, None)
        return interpreter.TensorHandle(bits.view(np.float32), float32)

    def made(self: Any, *given: Any) -> Any:
        values = [wide(value) for value in given]
        if np.where in given or all(value is same for value, same in zip(values, given, strict=True)):
            return method(self, *given)
        result = method(self, *values)
        summed = [x for x in given[2:3] if isinstance(x, interpreter.TensorHandle) and x.dtype.scalar == float32]
        if result.data.dtype != np.float32 or summed:
            return result  # a comparison, or a product that is summed up in float32
        bits = interpreter._convert_float(result.data, float32, bfloat16, None)
        return interpreter.TensorHandle(bits, bfloat16)

    return made


def by_hardware(convert: _Convert, towards_zero: Any) -> _Convert:
    """`convert(values, from, to, rounding)` → bits, with bfloat16 and float32 by NumPy's integers."""

    def made(values: Any, source: Any, target: Any, rounding: Any) -> Any:
        if (str(source), str(target)) == ("bf16", "fp32"):
            return values.view(np.uint16).astype(np.uint32) << 16
        if (str(source), str(target)) == ("fp32", "bf16") and rounding != towards_zero:
            bits = np.ascontiguousarray(values).view(np.uint32)
            nearest = (bits + 0x7FFF + (bits >> 16 & 1) >> 16).astype(np.uint16)
            return np.where(np.isnan(values.view(np.float32)), bits >> 16 | 0x40, nearest).astype(np.uint16)
        return convert(values, source, target, rounding)

    return made
