"""Forks a process for each program that tests of the job's file run, with torch imported already: a fresh
interpreter takes four seconds for that, most of what many a program takes in all.

`python warm_program.py` reads a line of JSON for each: `script` and its `arguments`, its `environment` and
`folder`, and the files `out` and `err`. It answers each with a line: the exit code. It ends with its input.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import runpy
import signal
import sys
from typing import Any

import torch
import torch._dynamo
import torch._functorch.aot_autograd
import torch._inductor.compile_fx
import triton.language  # noqa: F401

_SET_PDEATHSIG = 1


def next_program() -> dict[str, Any]:
    """In the process that is to run it; in this one, once the input ends, nothing returns."""
    for line in sys.stdin:
        forked = os.fork()
        if forked == 0:
            ctypes.CDLL(None).prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            order: dict[str, Any] = json.loads(line)
            return order
        print(os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]), flush=True)
    sys.exit()


if __name__ == "__main__":
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()  # no process walks or copies what all have
    program = next_program()
    os.chdir(program["folder"])
    os.environ.clear()
    os.environ.update(program["environment"])
    for number, name in ((0, os.devnull), (1, program["out"]), (2, program["err"])):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT), number)
    sys.argv = [program["script"], *program["arguments"]]
    runpy.run_path(program["script"], run_name="__main__")
