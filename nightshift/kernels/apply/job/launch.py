"""A certified source's entry: as it is, as a compiler may look into it, and of CUDA C++ and CuTe.

Seen from a compiled region a custom operator is a call into Python: it costs tens of microseconds, and inside a
step whose GPU is nearly always busy, twenty of them cost more than their kernels save. So a second copy of the
entry has its Triton kernels wrapped by `torch.library.wrap_triton`: torch.compile then writes their launches into
its own code, as it does for the kernels that it generates.

A certified CUDA kernel brings no host code: one translation unit for NVRTC, and launches whose sizes are
expressions over the problem's parameters. It is compiled here as for its certificate (the judge's compiler options
give the judge's binary) and launched as its plan says, on torch's current stream, so that CUDA graphs record it.
Through ctypes (names and types of cuda.h and nvrtc.h), because a job may have no compiler; both libraries come with
torch. CuTe kernels are launched in the same way; CuTe DSL compiles them, at the first call of each form.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import hashlib
import importlib.util
import math
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache, partial
from pathlib import Path
from types import FunctionType
from typing import Any

import torch

from nightshift.kernels.apply.job.problems import SPECS
from nightshift.kernels.apply.job.state import STATE
from nightshift.kernels.cute import cute_binary, cute_types

_WORDS = {"cdiv": lambda a, b: -(-a // b), "min": min, "max": max,
          "pow2": lambda a: 1 << max(0, math.ceil(math.log2(max(1, a))))}  # fmt: skip
"""What an expression of a launch plan may call (`kernels.candidate.evaluate` has read it before)."""


@cache
def driver() -> Any:
    return ctypes.CDLL("libcuda.so.1")


@cache
def nvrtc() -> Any:
    """Beside torch, or of a system-wide CUDA."""
    patterns = [f"{root}/nvidia/*/lib/libnvrtc.so.*" for root in sys.path if root.endswith("-packages")]
    patterns += ["/usr/local/cuda/lib64/libnvrtc.so.*", "/usr/lib/*/libnvrtc.so.*"]
    found = [name for pattern in patterns for name in sorted(glob.glob(pattern)) if "builtins" not in name]
    if not found:
        raise FileNotFoundError("libnvrtc: not found beside torch or in /usr/local/cuda")
    return ctypes.CDLL(found[0])


def _asked(library: Any, call: str, *args: Any) -> None:
    code = getattr(library, call)(*args)
    if code != 0:
        raise RuntimeError(f"{call}: code {code}")


def _arch(architecture: str) -> str:
    """What NVRTC calls it, as the judge does (`kernels.judge.cuda.arch_of`)."""
    major = architecture.partition(".")[0]
    own = "a" if major.isdigit() and int(major) >= 9 else ""  # with what only this kind of GPU has
    return f"sm_{architecture.replace('.', '')}{own}"


def compiled(source: str, architecture: str) -> bytes:
    """The cubin of a translation unit. Raises RuntimeError with the compiler's log."""
    options = [f"--gpu-architecture={_arch(architecture)}", "--std=c++17", "-default-device"]
    folders = [path for entry in sys.path for path in glob.glob(f"{entry}/nvidia/*/include")]
    folders = [path for path in [*folders, "/usr/local/cuda/include"] if (Path(path) / "cuda_fp16.h").exists()]
    options += [f"--include-path={path}" for path in folders[:1]]
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    made = (ctypes.byref(program), source.encode(), b"candidate.cu", 0, None, None)
    _asked(nvrtc(), "nvrtcCreateProgram", *made)
    try:
        given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        if nvrtc().nvrtcCompileProgram(program, len(options), given) != 0:
            _asked(nvrtc(), "nvrtcGetProgramLogSize", program, ctypes.byref(size))
            log = ctypes.create_string_buffer(max(1, size.value))
            _asked(nvrtc(), "nvrtcGetProgramLog", program, log)
            raise RuntimeError(log.value.decode(errors="replace")[:2000])
        _asked(nvrtc(), "nvrtcGetCUBINSize", program, ctypes.byref(size))
        cubin = ctypes.create_string_buffer(size.value)
        _asked(nvrtc(), "nvrtcGetCUBIN", program, cubin)
        return cubin.raw
    finally:
        nvrtc().nvrtcDestroyProgram(ctypes.byref(program))


class CudaSource:
    """The entry of a CUDA or CuTe kernel's record: the problem's inputs → its outputs, as a Triton entry does.

    module: the source of CuTe, imported.
    """

    def __init__(self, record: Mapping[str, Any], module: Any = None) -> None:
        self._launches, self._scratch = record["launches"], record["scratch_bytes"]
        self._spec = SPECS[record["problem"]]
        self._module, self._arch = module, _arch(record["architecture"])
        self._cubin = b"" if module else compiled(record["source"], record["architecture"])
        self._functions: dict[tuple[Any, ...], ctypes.c_void_p] = {}
        self.plan = lru_cache(256)(self._plan)

    def __call__(self, *inputs: Any) -> Any:
        device = next(x.device for x in inputs if isinstance(x, torch.Tensor))
        out = self._spec.fake(*inputs)  # torch's new_empty: of real tensors it makes real ones
        outs = out if isinstance(out, tuple) else () if out is None else (out,)
        launches, scratch = self.plan(tuple(sorted(self._spec.sizes(*inputs).items())))
        rooms = {
            "in": inputs, "out": outs,
            "tmp": [torch.empty(size, dtype=torch.uint8, device=device) for size in scratch],
        }  # fmt: skip
        on_gpu = device.type == "cuda"
        stream = torch.cuda.current_stream(device).cuda_stream if on_gpu else 0
        with torch.cuda.device(device) if on_gpu else contextlib.nullcontext():
            for kernel, grid, block, shared_bytes, arguments in launches:
                # an empty tensor: CUDA refuses a launch of no block
                if 0 in grid:
                    continue
                values = [_argument(argument, rooms) for argument in arguments]
                places = (ctypes.c_void_p * max(1, len(values)))(*(ctypes.addressof(value) for value in values))
                kinds = [kind for kind, _ in arguments]
                form = (tuple(block), cute_types(kinds, partial(_held, rooms=rooms))) if self._module else ()
                function = self._function(device.index or 0, shared_bytes, kernel, *form)
                _asked(
                    driver(), "cuLaunchKernel", function, *grid, *block, shared_bytes, ctypes.c_void_p(stream),
                    places, None,
                )  # fmt: skip
        return out

    def _function(self, device: int, shared_bytes: int, kernel: str, *form: Any) -> ctypes.c_void_p:
        """Of the current device's context; allowed so much dynamic shared memory. form: of CuTe, the block and the
        parameters' types."""
        key = (device, shared_bytes, kernel, *form)
        if key not in self._functions:
            module, function = ctypes.c_void_p(), ctypes.c_void_p()
            name, cubin = kernel, self._cubin
            if form:
                block, types = form
                name, cubin = cute_binary(getattr(self._module, kernel), block, types, self._arch)
            _asked(driver(), "cuModuleLoadData", ctypes.byref(module), cubin)
            _asked(driver(), "cuModuleGetFunction", ctypes.byref(function), module, name.encode())
            # CUDA grants 48 KiB to every kernel, more only where it was asked for
            if shared_bytes > 48 << 10:
                _asked(driver(), "cuFuncSetAttribute", function, 8, shared_bytes)  # MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._functions[key] = function
        return self._functions[key]

    def _plan(self, sizes: Sequence[tuple[str, int]]) -> tuple[list[tuple[Any, ...]], list[int]]:
        """(kernel, grid, block, bytes of shared memory, arguments) of each launch; the bytes of scratch buffers."""

        def number(text: str) -> int:
            # the judge has read the text, with these words alone in reach, before it was signed
            return int(eval(text, {"__builtins__": {}}, {**_WORDS, **dict(sizes)}))

        made = []
        for launch in self._launches:
            grid, block = ([number(text) for text in launch[key]] for key in ("grid", "block"))
            arguments: list[tuple[str, Any]] = []
            for text in launch["args"]:
                kind, *rest = text.split(":")
                if kind in ("i32", "i64"):
                    arguments.append((kind, number(rest[0])))
                elif kind == "map":
                    arguments.append((kind, (rest[0], *map(number, rest[1:]))))
                else:
                    arguments.append((kind, ":".join(rest)))
            made.append((launch["kernel"], grid, block, number(launch["shared_bytes"]), arguments))
        return made, [number(text) for text in self._scratch]


def _argument(argument: tuple[str, Any], rooms: Mapping[str, Sequence[Any]]) -> Any:
    """One kernel parameter as the ctypes value that the driver copies."""
    kind, value = argument
    if kind == "i32":
        return ctypes.c_int32(value)
    if kind == "i64":
        return ctypes.c_int64(value)
    if kind == "f32":
        return ctypes.c_float(float(value))
    if kind == "scalar":
        return ctypes.c_float(rooms["in"][int(value.removeprefix("in"))])
    if kind == "map":
        return _tiles(_pointer(value[0], rooms), *value[1:])
    return ctypes.c_uint64(_pointer(kind, rooms))


def _buffer(name: str, rooms: Mapping[str, Sequence[Any]]) -> Any:
    room = name.rstrip("0123456789")
    return rooms[room][int(name[len(room) :])]


def _held(name: str, rooms: Mapping[str, Sequence[Any]]) -> str:
    return str(_buffer(name, rooms).dtype).removeprefix("torch.")


def _pointer(name: str, rooms: Mapping[str, Sequence[Any]]) -> int:
    return int(_buffer(name, rooms).data_ptr())


def _tiles(pointer: int, each: int, rows: int, columns: int, high: int, wide: int) -> Any:
    """A tile descriptor (cuTensorMapEncodeTiled) as the judge encodes it (`kernels.judge.cuda.tensor_map`): of a
    contiguous matrix of `each`-byte elements, in boxes swizzled as wide as their rows. 64 bytes' alignment."""
    # the driver wants 128 bytes at a multiple of 64, which ctypes does not promise
    raw = (ctypes.c_char * 192)()
    made = (ctypes.c_char * 128).from_buffer(raw, -ctypes.addressof(raw) % 64)
    swizzle = {32: 1, 64: 2, 128: 3}.get(wide * each, 0)
    _asked(
        driver(), "cuTensorMapEncodeTiled", made, each.bit_length() - 1, 2, ctypes.c_void_p(pointer),
        (ctypes.c_uint64 * 2)(columns, rows), (ctypes.c_uint64 * 1)(columns * each),
        (ctypes.c_uint32 * 2)(wide, high), (ctypes.c_uint32 * 2)(1, 1), 0, swizzle, 2, 0,
    )  # fmt: skip
    return made


def load_entry(record: Mapping[str, Any]) -> tuple[Callable[..., Any], Callable[..., Any] | None]:
    """(entry, the same for a compiler) of a record's source. Triton has to read its own from a file."""
    if hashlib.sha256(record["source"].encode()).hexdigest() != record["source_sha256"]:
        raise ValueError("the source is not the one that was certified")
    if record.get("language") == "cuda":
        return CudaSource(record), None
    if STATE.folder is None:
        STATE.folder = tempfile.TemporaryDirectory(prefix="nightshift-kernels-")
    name = f"nightshift_kernel_{record['candidate'][:16]}"
    path = Path(STATE.folder.name) / f"{name}.py"
    path.write_text(record["source"], encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    if record.get("language") == "cute":
        return CudaSource(record, module), None
    entry: Callable[..., Any] = getattr(module, record["entry"])
    return entry, traceable(entry)


class _Wrapped:
    """`kernel[grid](…)` for a compiler's eyes."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel

    def __getitem__(self, grid: Any) -> Any:
        return torch.library.wrap_triton(self._kernel)[grid]


def traceable(entry: Callable[..., Any]) -> Callable[..., Any] | None:
    """The entry with its module's Triton kernels wrapped; None where one is no plain `triton.jit` kernel (Gluon,
    the interpreter), or none is found: such an entry stays a call into Python."""
    try:
        from triton.runtime.jit import JITFunction
    except ImportError:
        return None
    if not isinstance(entry, FunctionType):
        return None
    names = dict(entry.__globals__)
    plain = {name: value for name, value in names.items() if type(value) is JITFunction}
    other = [name for name, value in names.items() if isinstance(value, JITFunction) and name not in plain]
    if not plain or other:
        return None
    names |= {name: _Wrapped(value) for name, value in plain.items()}
    for name, value in list(names.items()):
        if isinstance(value, FunctionType) and value.__module__ == entry.__module__:
            names[name] = FunctionType(value.__code__, names, name, value.__defaults__, value.__closure__)
    made: Callable[..., Any] = names[entry.__name__]
    return made
