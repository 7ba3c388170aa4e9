"""The CUDA driver through ctypes: what the judge does itself, where torch offers nothing or too much.

Own allocations with IPC handles (torch's caching pool would share one handle among many tensors), loading a cubin
and launching it with given arguments, compiling CUDA C++ with NVRTC. Names and struct layouts follow cuda.h and
nvrtc.h of CUDA 13; every call is checked, and an error carries the driver's own name for it.
"""

from __future__ import annotations

import ctypes
import glob
import sys
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

# The driver serves small requests out of 2 MiB blocks, and an IPC handle opens the whole block: ask for blocks.
ALLOCATION_BYTES = 2 << 20

_IPC_LAZY_PEER_ACCESS = 1
_local = threading.local()


OUT_OF_MEMORY = 2
"""CUDA_ERROR_OUT_OF_MEMORY of the driver's results."""


class CudaError(RuntimeError):
    """A driver call failed. `code` is the CUresult."""

    def __init__(self, call: str, code: int, name: str) -> None:
        super().__init__(f"{call}: {name} ({code})")
        self.code = code


class CompileError(ValueError):
    """NVRTC refused a source; the message is its log."""


@cache
def library() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _check(call: str, *args: Any) -> None:
    code = getattr(library(), call)(*args)
    if code != 0:
        text = ctypes.c_char_p()
        library().cuGetErrorName(code, ctypes.byref(text))
        raise CudaError(call, code, (text.value or b"?").decode())


def enter(device: int = 0) -> None:
    """Make the device's primary context (the one torch uses) current in this thread."""
    if getattr(_local, "device", None) == device:
        return
    _check("cuInit", 0)
    handle, context = ctypes.c_int(), ctypes.c_void_p()
    _check("cuDeviceGet", ctypes.byref(handle), device)
    _check("cuDevicePrimaryCtxRetain", ctypes.byref(context), handle)
    _check("cuCtxSetCurrent", context)
    _local.device = device


def allocate(size_bytes: int) -> tuple[int, int]:
    """(device pointer, bytes) of a fresh allocation of at least `size_bytes`, rounded up to whole blocks."""
    enter()
    rounded = max(1, -(-size_bytes // ALLOCATION_BYTES)) * ALLOCATION_BYTES
    pointer = ctypes.c_uint64()
    _check("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(rounded))
    base, size = ctypes.c_uint64(), ctypes.c_size_t()
    _check("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), pointer)
    if base.value != pointer.value or size.value != rounded:
        raise RuntimeError("cuda: the driver gave part of a larger allocation, which IPC would expose whole")
    return pointer.value, rounded


def allocate_exactly(size_bytes: int) -> int:
    """A device pointer to exactly that many bytes (at least one)."""
    enter()
    pointer = ctypes.c_uint64()
    _check("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(max(1, size_bytes)))
    return pointer.value


def upload(data: bytes) -> int:
    """A device pointer to a copy of the bytes."""
    pointer = allocate_exactly(len(data))
    if data:
        _check("cuMemcpyHtoD_v2", ctypes.c_uint64(pointer), data, ctypes.c_size_t(len(data)))
    return pointer


def synchronize() -> None:
    _check("cuCtxSynchronize")


def free(pointer: int) -> None:
    enter()
    _check("cuMemFree_v2", ctypes.c_uint64(pointer))


class _IpcHandle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_char * 64),)


def export(pointer: int) -> bytes:
    """The 64-byte IPC handle of an allocation."""
    enter()
    handle = _IpcHandle()
    _check("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(pointer))
    return bytes(handle)


def attach(handle: bytes) -> int:
    """Map another process's allocation; the device pointer here."""
    enter()
    pointer = ctypes.c_uint64()
    opened = _IpcHandle.from_buffer_copy(handle)
    _check("cuIpcOpenMemHandle_v2", ctypes.byref(pointer), opened, ctypes.c_uint(_IPC_LAZY_PEER_ACCESS))
    return pointer.value


def detach(pointer: int) -> None:
    enter()
    _check("cuIpcCloseMemHandle", ctypes.c_uint64(pointer))


def attribute(number: int, device: int = 0) -> int:
    """A CUdevice_attribute."""
    enter(device)
    value = ctypes.c_int()
    _check("cuDeviceGetAttribute", ctypes.byref(value), number, device)
    return value.value


def memory_bytes() -> tuple[int, int]:
    """(free, total) device memory."""
    enter()
    free_bytes, total = ctypes.c_size_t(), ctypes.c_size_t()
    _check("cuMemGetInfo_v2", ctypes.byref(free_bytes), ctypes.byref(total))
    return free_bytes.value, total.value


class Module:
    """A loaded cubin."""

    def __init__(self, cubin: bytes) -> None:
        enter()
        self._handle = ctypes.c_void_p()
        _check("cuModuleLoadData", ctypes.byref(self._handle), cubin)

    def function(self, name: str, shared_bytes: int) -> ctypes.c_void_p:
        """A kernel by its mangled name, allowed `shared_bytes` of dynamic shared memory."""
        function = ctypes.c_void_p()
        _check("cuModuleGetFunction", ctypes.byref(function), self._handle, name.encode())
        if shared_bytes > 48 << 10:
            _check("cuFuncSetAttribute", function, 8, ctypes.c_int(shared_bytes))  # MAX_DYNAMIC_SHARED_SIZE_BYTES
        return function


class _AttributeValue(ctypes.Union):
    _fields_ = (("pad", ctypes.c_char * 64), ("words", ctypes.c_uint32 * 16))


class _Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("value", _AttributeValue))


class _Config(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


_COOPERATIVE, _CLUSTER_DIMENSION, _CLUSTER_POLICY, _PROGRAMMATIC = 2, 4, 5, 6


@dataclass(frozen=True)
class Shape:
    """How a kernel is launched: grid in blocks (clusters counted in), block in threads."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int = 0
    cluster: int = 1
    cooperative: bool = False
    programmatic: bool = False


class LaunchCall:
    """A launch made ready once and fired many times; only the stream and the parameters' contents change."""

    def __init__(self, function: ctypes.c_void_p, shape: Shape, parameters: Sequence[Any]) -> None:
        """`parameters`: ctypes values in the kernel's order; they are kept alive here."""
        words: list[tuple[int, tuple[int, ...]]] = []
        if shape.programmatic:
            words.append((_PROGRAMMATIC, (1,)))
        if shape.cooperative:
            words.append((_COOPERATIVE, (1,)))
        if shape.cluster != 1:
            words += [(_CLUSTER_DIMENSION, (shape.cluster, 1, 1)), (_CLUSTER_POLICY, (1,))]
        self._attributes = (_Attribute * max(1, len(words)))()
        for attribute, (number, values) in zip(self._attributes, words, strict=False):
            attribute.id = number
            for place, value in enumerate(values):
                attribute.value.words[place] = value
        self._config = _Config(
            (ctypes.c_uint * 3)(*shape.grid),
            (ctypes.c_uint * 3)(*shape.block),
            shape.shared_bytes,
            None,
            self._attributes,
            len(words),
        )
        self._function = function
        self._kept = list(parameters)
        self._parameters = (ctypes.c_void_p * max(1, len(self._kept)))(
            *(ctypes.addressof(value) for value in self._kept)
        )
        self._empty = 0 in shape.grid
        if shape.cluster == 16:
            _check("cuFuncSetAttribute", function, 14, ctypes.c_int(1))  # NON_PORTABLE_CLUSTER_SIZE_ALLOWED

    def __call__(self, stream: int = 0) -> None:
        if self._empty:
            return
        self._config.stream = stream or None
        code = library().cuLaunchKernelEx(ctypes.byref(self._config), self._function, self._parameters, None)
        if code != 0:
            _check("cuGetErrorName", code, ctypes.byref(name := ctypes.c_char_p()))
            raise CudaError("cuLaunchKernelEx", code, (name.value or b"?").decode())


def tensor_map(
    address: int,
    element: int,
    sizes: Sequence[int],
    strides_bytes: Sequence[int],
    box: Sequence[int],
    swizzle: int,
    nan_fill: bool,
) -> Any:
    """A CUtensorMap (128 bytes, aligned to 64) as Triton encodes its own: no interleave, L2 promotion of 128 bytes.

    Raises CudaError where the driver refuses the form.
    """
    raw = (ctypes.c_char * 192)()
    start = -ctypes.addressof(raw) % 64
    made = (ctypes.c_char * 128).from_buffer(raw, start)
    rank = len(sizes)
    _check(
        "cuTensorMapEncodeTiled",
        made,
        ctypes.c_int(element),
        ctypes.c_uint32(rank),
        ctypes.c_void_p(address),
        (ctypes.c_uint64 * rank)(*sizes),
        (ctypes.c_uint64 * max(1, rank - 1))(*strides_bytes),
        (ctypes.c_uint32 * rank)(*box),
        (ctypes.c_uint32 * rank)(*([1] * rank)),
        ctypes.c_int(0),
        ctypes.c_int(swizzle),
        ctypes.c_int(2),
        ctypes.c_int(int(nan_fill)),
    )
    return made


def memset(pointer: int, size_bytes: int, stream: int = 0) -> None:
    """Zero bytes in stream order."""
    _check("cuMemsetD8Async", ctypes.c_uint64(pointer), 0, ctypes.c_size_t(size_bytes), ctypes.c_void_p(stream))


def _packages() -> list[str]:
    return [entry for entry in sys.path if entry.endswith(("site-packages", "dist-packages"))]


@cache
def _nvrtc() -> ctypes.CDLL:
    patterns = [f"{root}/nvidia/*/lib/libnvrtc.so.*" for root in _packages()]
    patterns += ["/usr/local/cuda/lib64/libnvrtc.so.*", "/usr/lib/*/libnvrtc.so.*"]
    found = [name for pattern in patterns for name in sorted(glob.glob(pattern)) if "builtins" not in name]
    if not found:
        raise FileNotFoundError("libnvrtc: not found beside torch or in /usr/local/cuda")
    return ctypes.CDLL(found[0])


def _includes() -> list[str]:
    found = [path for root in _packages() for path in glob.glob(f"{root}/nvidia/*/include")]
    return [path for path in [*found, "/usr/local/cuda/include"] if (Path(path) / "cuda_fp16.h").exists()][:1]


def arch_of(capability: str) -> str:
    """What NVRTC calls a GPU of compute capability "9.0": with the instructions that only its own kind has, `wgmma`
    among them ("sm_90a"; CUDA C++ Programming Guide, "Architecture-specific features")."""
    major = capability.partition(".")[0]
    own = "a" if major.isdigit() and int(major) >= 9 else ""
    return f"sm_{capability.replace('.', '')}{own}"


def compile_source(source: str, arch: str) -> bytes:
    """The cubin of a CUDA C++ translation unit for `arch` (see `arch_of`). Raises CompileError with NVRTC's log."""
    nvrtc = _nvrtc()
    program = ctypes.c_void_p()
    options = [f"--gpu-architecture={arch}", "--std=c++17", "-default-device"]
    options += [f"--include-path={path}" for path in _includes()]
    made = nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"candidate.cu", 0, None, None)
    if made != 0:
        raise CompileError(f"nvrtcCreateProgram: code {made}")
    try:
        array = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        code = nvrtc.nvrtcCompileProgram(program, len(options), array)
        size = ctypes.c_size_t()
        if code != 0:
            nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            log = ctypes.create_string_buffer(max(1, size.value))
            nvrtc.nvrtcGetProgramLog(program, log)
            raise CompileError(log.value.decode(errors="replace")[:2000] or f"nvrtc code {code}")
        nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
        cubin = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetCUBIN(program, cubin)
        return cubin.raw
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


_SPOILER = """
extern "C" __global__ void spoil(unsigned* sink, unsigned words) {
    extern __shared__ unsigned shared[];
    for (unsigned i = threadIdx.x; i < words; i += blockDim.x) shared[i] = 0xFFFFFFFFu;
    __syncthreads();
    if (shared[(threadIdx.x * 97u) % words] != 0xFFFFFFFFu) *sink = 1u;
}
extern "C" __global__ void give_back(const unsigned long long* ranges, unsigned count) {
    const unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
    for (unsigned r = 0; r < count; ++r) {
        char* start = (char*)ranges[2 * r];
        for (unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
             i < ranges[2 * r + 1]; i += step)
            asm volatile("applypriority.global.L2::evict_normal [%0], 128;" :: "l"(start + 128 * i) : "memory");
    }
}
"""
_LINE_BYTES = 128


def spoiler(arch: str) -> bytes:
    """The cubin of kernels that fill shared memory with NaN bits and give L2 lines back (see `Spoiler`)."""
    return compile_source(_SPOILER, arch)


class Spoiler:
    """Takes away what a kernel could find of earlier ones.

    Called, it leaves NaN in every multiprocessor's shared memory: a kernel that reads what it never wrote shows it.
    `give_back` makes L2 treat a range's lines as any other's (PTX ISA, applypriority), where a kernel had asked for
    them to be evicted last.
    """

    def __init__(self, cubin: bytes) -> None:
        multiprocessors, shared_bytes = attribute(16), attribute(97)  # …COUNT, …SHARED_MEMORY_PER_BLOCK_OPTIN
        self._module = Module(cubin)
        self._sink = allocate_exactly(4)
        parameters = [ctypes.c_uint64(self._sink), ctypes.c_uint32(shared_bytes // 4)]
        shape = Shape((4 * multiprocessors, 1, 1), (1024, 1, 1), shared_bytes)
        self._launch = LaunchCall(self._module.function("spoil", shared_bytes), shape, parameters)
        self._give_back = self._module.function("give_back", 0)
        self._wide = Shape((4 * multiprocessors, 1, 1), (256, 1, 1))

    def __call__(self, stream: int = 0) -> None:
        self._launch(stream)

    def give_back(self, ranges: Any, stream: int = 0) -> None:
        """Of ranges (see `lines_of`; on the device), in stream order: one launch, so that the host keeps ahead."""
        parameters = [ctypes.c_uint64(ranges.data_ptr()), ctypes.c_uint32(len(ranges))]
        LaunchCall(self._give_back, self._wide, parameters)(stream)


def lines_of(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """(first line's address, lines) of each (address, bytes): L2's lines that lie wholly inside."""
    starts = [(-(-at // _LINE_BYTES) * _LINE_BYTES, at + size) for at, size in ranges]
    return [(start, (end - start) // _LINE_BYTES) for start, end in starts if end - start >= _LINE_BYTES]
