"""What a host may read, run and open on this machine, as paths for its Landlock rules."""

from __future__ import annotations

import functools
import sys
import sysconfig
from collections.abc import Collection
from pathlib import Path

PEERS = frozenset(
    [
        *("apex", "cutlass", "cupy", "flash_attn", "flash_attn_interface", "flashinfer", "liger_kernel"),
        *("onnxruntime", "quack", "tilelang", "transformer_engine", "unsloth", "vllm", "xformers"),
    ]
)
"""Packages with kernels of others: only a library composition may read them."""


def _first(*roots: Path) -> list[str]:
    return [str(root.resolve()) for root in roots if root.exists()]


@functools.cache
def paths(device: str, peers: bool) -> dict[str, list[str]]:
    """What a host may read, run and open, as found on this machine; `peers`: other libraries of kernels as well."""
    prefix, base = Path(sys.prefix), Path(sys.base_prefix)
    root = Path(__file__).resolve().parents[4]
    site = Path(sysconfig.get_paths()["purelib"])
    installed = {site.resolve()} | {Path(entry).resolve() for entry in sys.path if Path(entry).is_dir()}
    installed = {entry for entry in installed if root not in (entry, *entry.parents) and entry != Path.cwd()}
    packages = [entry for folder in installed for entry in folder.iterdir() if entry.name not in PEERS]
    roots = [Path("/opt"), Path("/usr"), prefix.resolve(), base.resolve()]
    readable = _first(
        *map(Path, ("/lib", "/lib64", "/proc", "/sys", "/dev/urandom", "/dev/zero", "/run/nvidia")),
        *map(Path, ("/etc/ld.so.cache", "/etc/localtime", "/etc/nsswitch.conf", "/etc/passwd", "/etc/nvidia")),
        *(root / "nightshift" / part for part in ("__init__.py", "kernels", "collectors")),
        *(installed if peers else packages),
        *(entry for folder in roots for entry in ([folder] if peers else _around(folder, installed))),
    )  # fmt: skip
    tools = _first(site / "triton/backends/nvidia/bin", Path("/lib64/ld-linux-x86-64.so.2"))
    devices = ["/dev/null"]
    if device == "cuda":
        devices += [str(path) for path in sorted(Path("/dev").glob("nvidia*"))]
    listed = _first(*installed, *roots)
    return {"readable": readable, "listed": listed, "executable": tools, "devices": devices}


def _around(folder: Path, kept_out: Collection[Path]) -> list[Path]:
    """The folder, or, where some of `kept_out` lie below it, all that it holds but those."""
    if folder in kept_out:
        return []
    if not any(folder in path.parents for path in kept_out) or not folder.is_dir():
        return [folder]
    return [found for entry in folder.iterdir() for found in _around(entry, kept_out) if not entry.is_symlink()]
