"""C source as a library of this process, built by the user's own compiler."""

from __future__ import annotations

import _ctypes
import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

OPTIMISED = ("-O3", "-march=native")
_LIMIT_S = 120.0


class CompilerError(RuntimeError):
    """There is no compiler, or it refused a source. The message holds what it said."""


def compiler() -> str | None:
    """The command `$CC`, else `cc` or `gcc`; None where there is none."""
    names = (os.environ.get("CC", ""), "cc", "gcc")
    return next((path for name in names if name and (path := shutil.which(name))), None)


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="nightshift-native-")  # removed when the process ends


@cache
def _threads() -> ctypes.CDLL | None:
    """gcc's OpenMP, held for as long as the process: its threads outlive the libraries that use it."""
    try:
        return ctypes.CDLL("libgomp.so.1")
    except OSError:
        return None


def close(library: ctypes.CDLL) -> None:
    """Unload a library that `build` made."""
    _ctypes.dlclose(library._handle)


def build(source: str, flags: Sequence[str] = OPTIMISED, command: str = "") -> ctypes.CDLL:
    """The library of one C source. command: the compiler; default: `compiler()`. Raises CompilerError."""
    command = command or compiler() or ""
    if not command:
        raise CompilerError("no C compiler: set CC, or install gcc")
    _threads()
    name = hashlib.sha256("\0".join([command, *flags, source]).encode()).hexdigest()[:24]
    file, library = (Path(_folder().name) / f"{name}{ending}" for ending in (".c", ".so"))
    file.write_text(source)
    line = [command, *flags, "-shared", "-fPIC", "-o", str(library), str(file), "-lm"]
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompilerError(f"{command}: {error}") from error
    if done.returncode:
        raise CompilerError(f"{' '.join(line[:-4])}: {done.stderr.strip()[:2000]}")
    made = ctypes.CDLL(str(library))
    file.unlink()
    library.unlink()  # loaded: the same source built again is a library of its own
    return made
