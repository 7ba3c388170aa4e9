"""A warm process with torch and Triton imported, one thread and no CUDA context: hosts are forked from it.

`python -m nightshift.kernels.judge.host.zygote FD DEVICE` serves one judge over one socket: an order (descriptors,
of which the first is a file of JSON) makes one process, for one source, once. Between the zygote and each host
stands a *keeper*: it enters namespaces, adopts whatever the host leaves behind, ends all of it with the host, and
says on the status pipe how the host ended. When the judge goes, the socket closes, the zygote ends, and the kernel
ends keepers and hosts after it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nightshift.kernels.judge.host import isolation
from nightshift.kernels.judge.host.channel import Channel
from nightshift.kernels.judge.host.usage import children

_LIBC = ctypes.CDLL(None, use_errno=True)
_SET_PDEATHSIG, _SET_SUBREAPER = 1, 36


def policy_of(order: Mapping[str, Any]) -> isolation.Policy:
    """The limits that an order carries."""
    limits = dict(order["limits"])
    for name in ("readable", "listed", "executable", "devices"):
        limits[name] = tuple(Path(path) for path in limits.get(name, ()))
    return isolation.Policy(scratch=Path(order["scratch"]), **limits)


def warm(device: str) -> None:
    """Import what every host needs, and build Triton's C helper, which its sandbox could not."""
    import torch

    import nightshift.kernels.judge.host.replay  # noqa: F401
    from nightshift.kernels.judge.host import service
    from nightshift.kernels.judge.host.recorder import Recorder

    torch.set_num_threads(1)
    with Recorder([]):  # the dispatch mode's own imports take seconds
        torch.empty(1).add(1)
    try:
        import triton  # noqa: F401
    except ImportError:
        service.warm()
        return
    service.warm()
    if device == "cuda":
        from triton.backends.nvidia.compiler import get_ptxas_version
        from triton.backends.nvidia.driver import CudaUtils

        CudaUtils()
        CudaUtils.__init__ = lambda self: None  # a singleton, but each call would build it again
        get_ptxas_version(0)
    elif os.environ.get("TRITON_INTERPRET") == "1":
        from nightshift.kernels.judge.host.recorder import replace_interpreter

        replace_interpreter()


def serve(line: socket.socket, device: str) -> None:
    """Answer orders until the judge hangs up."""
    line.send(b'{"ready":true}')
    while True:
        data, received, _, _ = socket.recv_fds(line, 1 << 12, 5)
        if not data:
            return
        written, *descriptors = received
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        with os.fdopen(written, "rb") as file:
            file.seek(0)
            order = json.load(file)
        read_end, write_end = os.pipe()
        keeper = os.fork()
        if keeper == 0:
            line.close()
            os.close(read_end)
            _keep(order, descriptors, write_end, device)
        os.close(write_end)
        for descriptor in descriptors:
            os.close(descriptor)
        with os.fdopen(read_end, "rb") as pipe:
            pid = pipe.read()
        line.send(json.dumps({"pid": int(pid or b"0")}).encode())


def _keep(order: Mapping[str, Any], descriptors: list[int], pid_pipe: int, device: str) -> None:
    """The keeper: never returns."""
    code = 1
    try:
        os.setsid()
        _LIBC.prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        _LIBC.prctl(_SET_SUBREAPER, 1, 0, 0, 0)
        policy = policy_of(order)
        layers = isolation.enter_namespaces(policy)
        channel, output, status, *arena = descriptors
        service = os.fork()
        if service == 0:
            os.close(pid_pipe)
            os.close(status)
            _become_host(order, policy, layers, channel, output, arena[0] if arena else None, device)
        os.write(pid_pipe, str(service).encode())
        for descriptor in (pid_pipe, channel, output, *arena):
            os.close(descriptor)
        _, ended, used = os.wait4(service, 0)
        _end_descendants()
        with contextlib.suppress(BrokenPipeError):  # the judge has gone on without it
            os.write(status, json.dumps({"status": ended, "cpu_s": used.ru_utime + used.ru_stime}).encode())
        code = 0
    except BaseException:  # noqa: BLE001  the keeper's last words, then it ends whatever the error
        traceback.print_exc()
    finally:
        os._exit(code)


def _end_descendants() -> None:
    """Kill what the host left behind; orphans are ours, because the keeper is their subreaper."""
    for _ in range(1000):
        for child in children(os.getpid()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _become_host(
    order: Mapping[str, Any],
    policy: isolation.Policy,
    layers: dict[str, str],
    channel: int,
    output: int,
    arena: int | None,
    device: str,
) -> None:
    """The host: never returns."""
    code = 1
    try:
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        line = socket.socket(fileno=os.dup(channel))
        kept = {0, 1, 2, line.fileno(), *([] if arena is None else [arena])}
        top = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 4096)
        for descriptor in range(3, top):
            if descriptor not in kept:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        scratch = str(policy.scratch)
        os.chdir(scratch)
        os.nice(5)  # the judge's watch comes first where a candidate takes every core
        os.environ.update(order["environment"])
        os.environ.update(HOME=scratch, TMPDIR=scratch, USER="candidate", TRITON_CACHE_DIR=f"{scratch}/triton")
        os.environ.update(TORCHINDUCTOR_CACHE_DIR=f"{scratch}/inductor", CUDA_CACHE_PATH=f"{scratch}/cuda")
        tempfile.tempdir = None
        isolation.own_proc(layers)
        layers.update(isolation.confine(policy))
        _LIBC.prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        end = Channel(line, bytes.fromhex(order["key"]), b"C")
        end.send({"layers": layers})
        if order["role"] == "candidate":
            from nightshift.kernels.judge.host.service import serve as serve_role
        else:
            from nightshift.kernels.judge.host.replay import serve as serve_role
        serve_role(end, device, arena)
        code = 0
    except BaseException:  # noqa: BLE001  a host ends here whatever the error; its words are on its output
        traceback.print_exc()
    finally:
        os._exit(code)


if __name__ == "__main__":
    _line = socket.socket(fileno=int(sys.argv[1]))
    warm(sys.argv[2])
    from nightshift.kernels.judge.host.service import freeze

    freeze()
    serve(_line, sys.argv[2])
