"""`python -m nightshift.kernels.judge.sanitized FOLDER`: replay written launch plans with the driver alone.

It is run under compute-sanitizer. Every tensor has an allocation of exactly its size; outputs and scratch stay
uninitialised, so that initcheck sees a kernel that reads what nobody wrote.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path

from nightshift.kernels.judge import cuda
from nightshift.kernels.judge.launch_plan import Plan, Pointer, prepare


def replay(folder: Path) -> None:
    """Run one exhibit (see `kernels.judge.sanitizer.write`)."""
    record = json.loads((folder / "exhibit.json").read_text())
    made = Plan.from_message(record["plan"], (folder / "binaries").read_bytes())
    rooms: dict[str, list[int]] = {"in": [], "out": [], "tmp": []}
    for name in record["inputs"]:
        rooms["in"].append(0 if name is None else cuda.upload((folder / name).read_bytes()))
    rooms["out"] = [cuda.allocate_exactly(size) for size in record["outputs"]]
    rooms["tmp"] = [cuda.allocate_exactly(size) for size in made.scratch_bytes]
    modules = [cuda.Module(binary) for binary in made.binaries]

    def function(binary: int, name: str, shared_bytes: int) -> ctypes.c_void_p:
        return modules[binary].function(name, shared_bytes)

    def resolve(pointer: Pointer) -> int:
        return rooms[pointer.room][pointer.index] + pointer.offset_bytes

    for action in prepare(made, function, resolve):
        action(0)
    cuda.synchronize()
    for addresses in rooms.values():
        for address in addresses:
            if address:
                cuda.free(address)


if __name__ == "__main__":
    for entry in sorted(Path(sys.argv[1]).iterdir()):
        replay(entry)
