"""Memory that the judge owns and lends: a candidate's inputs and outputs, and nothing else.

Each buffer is one allocation of its own, because CUDA IPC exposes whole allocations; on the CPU it is a range of a
memfd that holds nothing but such buffers. Reference outputs, pristine inputs and other candidates' data live in
memory that no lent handle reaches. A buffer is laid out as guard | payload | guard; guards are filled with 0xFF
(NaN in every float format), so that reading beyond the edge shows and writing beyond it is found. One pointer is
used again for other values, which defeats results that were remembered under it.
"""

from __future__ import annotations

import mmap
import os
import threading
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch

from nightshift.kernels.judge import cuda

GUARD_BYTES = 64 << 10
ALIGN_BYTES = 256
_KEPT_BYTES = 4 << 30
"""What a process keeps at most of freed device memory between calls: a convolution's workspace may be 25 GiB, and
the judge and a candidate take turns on one GPU."""


def give_back() -> None:
    """Free what torch keeps of a GPU's memory and does not use, where it is much."""
    used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    if used and torch.cuda.memory_reserved() - torch.cuda.memory_allocated() > _KEPT_BYTES:
        torch.cuda.empty_cache()


def flat_cuda(pointer: int, size_bytes: int) -> torch.Tensor:
    """Raw device memory as a uint8 tensor (through the CUDA array interface, version 3); it owns nothing."""

    class Raw:
        __cuda_array_interface__ = {  # noqa: RUF012  (the protocol's own name and form)
            "shape": (size_bytes,),
            "typestr": "|u1",
            "data": (pointer, False),
            "strides": None,
            "version": 3,
        }

    return torch.as_tensor(Raw(), device="cuda")


@dataclass(frozen=True)
class Lent:
    """How a buffer is named to the process that borrows it."""

    index: int
    size_bytes: int
    handle: str = ""  # CUDA IPC handle, hexadecimal
    offset_bytes: int = 0  # place in the memfd (CPU)


@dataclass(frozen=True)
class View:
    """A tensor inside a buffer's payload: `offset`, `shape` and `stride` count elements."""

    index: int
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int = 0

    def of(self, payload: torch.Tensor) -> torch.Tensor:
        """The tensor over a payload (uint8, flat)."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        typed = payload[: payload.numel() // dtype.itemsize * dtype.itemsize].view(dtype)
        return typed.as_strided(self.shape, self.stride, typed.storage_offset() + self.offset)

    def to_json(self) -> dict[str, Any]:
        return {
            "index": self.index,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "stride": list(self.stride),
            "offset": self.offset,
        }

    @classmethod
    def from_json(cls, value: Any) -> View:
        return cls(
            int(value["index"]),
            str(value["dtype"]),
            tuple(value["shape"]),
            tuple(value["stride"]),
            int(value["offset"]),
        )


class Lender(Protocol):
    """The judge's side: owns buffers and lends them to one process."""

    device: str

    def ensure(self, index: int, payload_bytes: int) -> Lent | None:
        """Make buffer `index` hold at least that many bytes; a Lent where it is new or has moved."""

    def payload(self, index: int) -> torch.Tensor:
        """The payload as uint8, flat."""

    def guards_intact(self, index: int) -> bool: ...

    def lent_bytes(self) -> int:
        """Of the buffers that are mapped now."""

    def close(self) -> None: ...


def _whole(payload_bytes: int) -> int:
    return 2 * GUARD_BYTES + -(-max(1, payload_bytes) // ALIGN_BYTES) * ALIGN_BYTES


class _Buffers:
    """What both kinds share: flat tensors by index, guards round each payload."""

    def __init__(self) -> None:
        self._flat: dict[int, torch.Tensor] = {}

    def payload(self, index: int) -> torch.Tensor:
        flat = self._flat[index]
        return flat[GUARD_BYTES : flat.numel() - GUARD_BYTES]

    def guards_intact(self, index: int) -> bool:
        flat = self._flat[index]
        edges = (flat[:GUARD_BYTES], flat[flat.numel() - GUARD_BYTES :])
        return bool((torch.cat(edges) == 0xFF).all())

    def lent_bytes(self) -> int:
        return sum(flat.numel() for flat in list(self._flat.values()))

    def _adopt(self, index: int, flat: torch.Tensor) -> None:
        flat.fill_(0xFF)
        self._flat[index] = flat


class CudaLender(_Buffers):
    """Buffers in device memory, lent by CUDA IPC handle."""

    device = "cuda"
    all_lent_bytes: ClassVar[int] = 0  # by all of this process's
    _count: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self) -> None:
        super().__init__()
        self._bytes = 0
        self._pointers: dict[int, int] = {}
        self._retired: list[int] = []

    def ensure(self, index: int, payload_bytes: int) -> Lent | None:
        if index in self._flat:
            if self.payload(index).numel() >= payload_bytes:
                return None
            self._retired.append(self._pointers.pop(index))  # the borrower may still map it
        pointer, size = cuda.allocate(_whole(payload_bytes))
        self._pointers[index] = pointer
        self._counted(size)
        self._adopt(index, flat_cuda(pointer, size))
        torch.cuda.synchronize()
        return Lent(index, size, cuda.export(pointer).hex())

    def close(self) -> None:
        """Give everything back; the borrower must be dead."""
        torch.cuda.synchronize()
        self._flat.clear()
        for pointer in (*self._pointers.values(), *self._retired):
            cuda.free(pointer)
        self._pointers.clear()
        self._retired.clear()
        self._counted(-self._bytes)

    def _counted(self, size_bytes: int) -> None:
        with self._count:
            self._bytes += size_bytes
            CudaLender.all_lent_bytes += size_bytes


class CpuLender(_Buffers):
    """Buffers in one sparse memfd, whose descriptor is handed over at fork."""

    device = "cpu"

    def __init__(self, capacity_bytes: int = 4 << 30) -> None:
        super().__init__()
        self.descriptor = os.memfd_create("judge-buffers", os.MFD_CLOEXEC)
        os.ftruncate(self.descriptor, capacity_bytes)
        self._map = mmap.mmap(self.descriptor, capacity_bytes)
        self._capacity = capacity_bytes
        self._used = 0

    def ensure(self, index: int, payload_bytes: int) -> Lent | None:
        if index in self._flat and self.payload(index).numel() >= payload_bytes:
            return None
        size = _whole(payload_bytes)
        start = self._used
        if start + size > self._capacity:
            raise MemoryError(f"buffers: {start + size} bytes are over the arena's {self._capacity}")
        self._used += -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        self._adopt(index, torch.frombuffer(self._map, dtype=torch.uint8, count=size, offset=start))
        return Lent(index, size, offset_bytes=start)

    def close(self) -> None:
        self._flat.clear()
        os.close(self.descriptor)


class Borrower:
    """The other side: maps what was lent and gives tensors over it."""

    def __init__(self, device: str, arena: int | None) -> None:
        self._device = device
        self._payloads: dict[int, torch.Tensor] = {}
        self._pointers: dict[int, int] = {}
        self._map = None if arena is None else mmap.mmap(arena, os.fstat(arena).st_size)

    @property
    def count(self) -> int:
        """Buffers that are mapped."""
        return len(self._payloads)

    def attach(self, lent: Lent) -> None:
        if self._device == "cuda":
            if lent.index in self._pointers:
                del self._payloads[lent.index]
                cuda.detach(self._pointers.pop(lent.index))
            pointer = cuda.attach(bytes.fromhex(lent.handle))
            self._pointers[lent.index] = pointer
            flat = flat_cuda(pointer, lent.size_bytes)
        else:
            assert self._map is not None
            flat = torch.frombuffer(self._map, dtype=torch.uint8, count=lent.size_bytes, offset=lent.offset_bytes)
        self._payloads[lent.index] = flat[GUARD_BYTES : lent.size_bytes - GUARD_BYTES]

    def tensor(self, view: View) -> torch.Tensor:
        return view.of(self._payloads[view.index])
