"""What a host and its children use of the machine, as the kernel counts it: state, memory, a folder's blocks."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path


def state(pid: int) -> str:
    """A process's state, the kernel's letter (R running, S sleeping, T stopped, Z ended); "" where it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return ""


def children(pid: int) -> list[int]:
    """Direct children of a process, by the kernel's own list."""
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            found += [int(word) for word in Path(f"/proc/{pid}/task/{task}/children").read_text().split()]
    except OSError:
        return found
    return found


def exceeds(pids: Sequence[int], limit_bytes: int) -> int:
    """`resident_bytes` of a host and all below it where that is above the limit, else 0.

    Weighing shared pages walks all of a host's page tables, ten milliseconds of a core in which the host's own page
    faults wait, so it is done only where counters that cost nothing, and count each shared page in full, do not
    already say that there is room. They lag by a few pages a thread (proc(5), `VmRSS`): half the limit is far from
    it.
    """
    if _memory_bytes(pids, "status", ("RssAnon:", "VmSwap:"), "RssShmem:") <= limit_bytes // 2:
        return 0
    found = resident_bytes(pids)
    return found if found > limit_bytes else 0


def resident_bytes(pids: Sequence[int]) -> int:
    """Anonymous and shared memory of a host and all below it.

    Each process counts its part of what it shares, so that nothing hides in a mapping that two of them hold, and
    the zygote's pages cost next to nothing; memory files count whole, mapped or not.
    """
    return _memory_bytes(pids, "smaps_rollup", ("Pss_Anon:", "SwapPss:"), "Pss_Shmem:")


def _memory_bytes(pids: Sequence[int], file: str, own: tuple[str, ...], common: str) -> int:
    private = shared = 0
    files: dict[tuple[int, int], int] = {}
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/{file}").read_text()
        except OSError:
            continue
        for line in fields.splitlines():
            if line.startswith(own):
                private += int(line.split()[1]) << 10
            elif line.startswith(common):
                shared += int(line.split()[1]) << 10
        with contextlib.suppress(OSError):  # a non-root judge may not look
            for entry in os.scandir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(entry.path).startswith("/memfd:"):
                        about = os.stat(entry.path)
                        files[about.st_dev, about.st_ino] = about.st_blocks * 512
    return private + max(shared, sum(files.values()))


def folder_bytes(folder: Path) -> int:
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += (Path(root) / name).lstat().st_blocks * 512
    return total
