"""A file that is rotated, cut, compressed or replaced under its reader: no line is lost that is still anywhere."""

from __future__ import annotations

import gzip
import os
import random
import shutil
from pathlib import Path

import pytest

from nightshift.collectors.kernel_log.event import KernelEventKind
from nightshift.collectors.kernel_log.local import LocalKernelLogCollector
from nightshift.collectors.subject import Inventory
from nightshift.collectors.tail import FileTail


def append(path: Path, *lines: str) -> None:
    with path.open("a") as stream:
        stream.write("".join(f"{line}\n" for line in lines))


def renamed(path: Path) -> None:
    path.rename(f"{path}.1")


def copied_and_cut(path: Path) -> None:
    shutil.copy(path, f"{path}.1")
    os.truncate(path, 0)


def compressed(path: Path) -> None:
    Path(f"{path}-20261125.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()


def removed(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize(
    ("rotate", "lost"), [(renamed, False), (copied_and_cut, False), (compressed, False), (removed, True)]
)
@pytest.mark.parametrize("seed", range(3))
def test_what_was_written_before_a_rotation_is_read_after_it(
    tmp_path: Path, rotate: object, lost: bool, seed: int
) -> None:
    """Also where the new file is longer than the old one was, and where the reader looks seldom."""
    draw, path = random.Random(seed), tmp_path / "kern.log"
    Path(f"{path}.2.gz").write_bytes(gzip.compress(b"an older one\n"))
    Path(f"{path}.3.gz").write_bytes(b"\x1f\x8bno gzip")
    first, then, new = ([f"{part} {n} {draw.random()}" for n in range(draw.randrange(2, 40))] for part in "abc")
    tail = FileTail(path, 2**20)
    append(path, *first)
    read = [line.decode() for _, line in tail.read().lines]
    append(path, *then)
    rotate(path)  # type: ignore[operator]
    append(path, *new * 3)
    after = tail.read()
    assert (after.replaced, after.lost) == (True, lost)
    read += [line.decode() for _, line in after.lines]
    assert read == [*first, *([] if lost else then), *new * 3]
    append(path, "the end")
    assert [line for _, line in tail.read().lines] == [b"the end"]
    assert not tail.read().replaced


def test_a_kernel_log_whose_last_lines_are_gone_says_so(tmp_path: Path) -> None:
    path = tmp_path / "kern.log"
    append(path, "[1.000001] a", "[2.000001] b")
    settings = LocalKernelLogCollector.Settings(source="file", path=path, node="n1")
    of = LocalKernelLogCollector(settings)
    assert of.collect(1e9, Inventory(), 30.0).sources[0].ok
    path.unlink()
    append(path, "[3.000001] c")
    (gap,) = of.collect(1e9 + 5, Inventory(), 30.0).events
    assert gap.kind is KernelEventKind.GAP
    assert "found nowhere" in gap.attributes["why"]


def test_binary_and_endless_lines_cost_no_line_around_them(tmp_path: Path) -> None:
    """A megabyte without a newline, and bytes that are no text, between two errors: both errors are heard."""
    path, draw = tmp_path / "kern.log", random.Random(7)
    xid = "NVRM: Xid (PCI:0000:9b:00): {}, pid=1, name=x, y"
    path.write_bytes(b"[1.000001] start\n[2.000001] more\n")
    of = LocalKernelLogCollector(LocalKernelLogCollector.Settings(source="file", path=path, node="n1"))
    of.collect(1e9, Inventory(), 30.0)
    with path.open("ab") as stream:
        stream.write(f"[3.000001] {xid.format(79)}\n".encode() + draw.randbytes(5_000).replace(b"\r", b"."))
        stream.write(b"\n" + b"x" * 2**20 + b"\n" + f"[4.000001] {xid.format(95)}\n".encode())
    batch = of.collect(1e9 + 5, Inventory(), 30.0)
    assert [event.code for event in batch.events if event.kind is KernelEventKind.XID] == [79, 95]
    assert batch.sources[0].rejected
    assert any(event.kind is KernelEventKind.GAP for event in batch.events)


def test_ten_thousand_lines_a_second_are_read_their_errors_kept_and_the_rest_counted(tmp_path: Path) -> None:
    path = tmp_path / "kern.log"
    append(path, "[1.000001] a", "[2.000001] b")
    of = LocalKernelLogCollector(LocalKernelLogCollector.Settings(source="file", path=path, node="n1"))
    of.collect(1e9, Inventory(), 30.0)
    flood = [f"[{n}.000001] audit: backlog {n}" for n in range(50_000)]
    flood[40_000] = "[9.000001] NVRM: Xid (PCI:0000:9b:00): 79, pid=1, name=x, y"
    append(path, *flood)
    batch = of.collect(1e9 + 5, Inventory(), 60.0)
    assert [event.code for event in batch.events if event.kind is KernelEventKind.XID] == [79]
    assert batch.sources[0].samples == 50_000
    (gap,) = [event for event in batch.events if event.kind is KernelEventKind.GAP]
    assert gap.attributes["lost_lines"] == str(50_000 - 5_001)
