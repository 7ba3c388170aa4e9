"""CuTe DSL, NVIDIA's Python for CUDA kernels: one kernel of a file as a GPU binary, compiled without a GPU.

The judge's confined host compiles with these functions, and so does the job's file, which holds their text: one
kernel, block, version and list of types give one binary. Only the kernel is kept. The launcher around it never
runs: grid, stream and shared memory are the launch plan's.
"""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import metadata
from typing import Any


def cute_version() -> str:
    """Of the installed package nvidia-cutlass-dsl, with the CUDA releases of its libraries, of which each compiles
    other binaries: "4.8.1 cu12". "none" where it is absent."""
    try:
        found = [metadata.version("nvidia-cutlass-dsl")]
    except metadata.PackageNotFoundError:
        return "none"
    for release in ("cu12", "cu13"):
        with suppress(metadata.PackageNotFoundError):
            metadata.version(f"nvidia-cutlass-dsl-libs-{release}")
            found.append(release)
    return " ".join(found)


def cute_types(arguments: Sequence[str], dtype_of: Callable[[str], str]) -> tuple[str, ...]:
    """The types of a launch's parameters, of declared arguments (see `kernels.candidate.Launch`): "int32", "int64"
    and "float32" of numbers, "float16*" of a buffer of that dtype. dtype_of: of a buffer's name, without "torch.".
    """
    numbers = {"i32": "int32", "i64": "int64", "f32": "float32", "scalar": "float32"}
    kinds = [text.partition(":")[0] for text in arguments]
    return tuple(numbers.get(kind) or f"{dtype_of(kind)}*" for kind in kinds)


def cute_binary(kernel: Any, block: Sequence[int], types: Sequence[str], arch: str) -> tuple[str, bytes]:
    """(the kernel's name in the binary, the binary) of a `@cute.kernel` function, for blocks of that many threads
    and parameters of these types. Buffers are promised to begin at multiples of 16 bytes. arch: as "sm_90a".

    Raises ImportError without the library, and whatever the kernel's Python raises while it is traced.
    """
    import cutlass
    from cutlass import cute
    from cutlass.cute.runtime import make_ptr

    @cute.jit  # type: ignore[untyped-decorator]
    def launch(*given: Any) -> None:
        kernel(*given).launch(grid=[1, 1, 1], block=list(block))

    names = {"bfloat16": "BFloat16", "bool": "Uint8", "float8_e4m3fn": "Float8E4M3FN", "float8_e5m2": "Float8E5M2"}
    given = []
    for text in types:
        word = text.removesuffix("*")
        kind = getattr(cutlass, names.get(word, word.capitalize()))
        buffer = text.endswith("*")
        given.append(make_ptr(kind, 0, cute.AddressSpace.gmem, assumed_align=16) if buffer else kind(1))
    with tempfile.TemporaryDirectory() as folder:
        options = f"--keep-cubin --gpu-arch {arch} --dump-dir {shlex.quote(folder)}"
        made = cute.compile(launch, *given, options=options)
        (name,) = made.kernel_info
        return str(name), bytes(made.artifacts.CUBIN)
