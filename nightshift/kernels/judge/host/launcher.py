"""Starts confined processes, one for each source: the judge's line to its zygote (`kernels.judge.host.zygote`)."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import IO

from nightshift.kernels.judge.host import isolation
from nightshift.kernels.judge.host.channel import Channel
from nightshift.kernels.judge.host.isolation import paths
from nightshift.kernels.judge.host.process import STDERR_KEPT, Limits, Process, Role
from nightshift.kernels.judge.probes.buffers import CpuLender, CudaLender, Lender
from nightshift.kernels.judge.verdict import JudgeBroken

# In a judge's scratch folder: locked for as long as the judge lives.
_HELD = "held"


class Zygote:
    """Starts confined processes for one judge. Use as a context manager, or call `close`."""

    def __init__(
        self, device: str, interpret: bool = False, tf32_products: bool = False, extensions: Path | None = None
    ) -> None:
        self.device = device
        self._extensions = [] if extensions is None else [str(extensions.resolve())]
        self._root, self._held = _scratch_root()
        mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[4]), *sys.path])}
        environment.update(OMP_NUM_THREADS="1", TORCHINDUCTOR_COMPILE_THREADS="1", PYTHONDONTWRITEBYTECODE="1")
        environment["TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"] = str(int(tf32_products))  # torch's own, read when it loads
        environment["TRITON_INTERPRET"] = "1" if interpret else "0"
        environment["TRITON_CACHE_DIR"] = str(self._root / "warm")
        # Inductor sets it to torch's copy once it has compiled, which confined processes may not run
        environment.pop("TRITON_PTXAS_PATH", None)
        command = [sys.executable, "-m", "nightshift.kernels.judge.host.zygote", str(its.fileno()), device]
        self._process = subprocess.Popen(command, pass_fds=(its.fileno(),), env=environment, cwd=self._root)
        its.close()
        self._line = mine
        self._lock = threading.Lock()
        self._count = 0
        mine.settimeout(120.0)
        try:
            if not mine.recv(100):
                raise JudgeBroken("zygote: it ended while warming up")
        except TimeoutError as error:
            self.close()
            raise JudgeBroken("zygote: not warm after 120 s") from error

    def __enter__(self) -> Zygote:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def start(
        self,
        role: Role,
        limits: Limits = Limits(),  # noqa: B008  frozen
        lender: Lender | None = None,
        peers: bool = False,
    ) -> Process:
        """A fresh confined process; it owns `lender` (made here where None) and closes it.

        `peers`: it may read other libraries of kernels (see `kernels.judge.host.isolation`).
        """
        with self._lock:
            self._count += 1
            number = self._count
        scratch = self._root / f"host{number}"
        uid = user_of(os.getpid(), number)
        scratch.mkdir(mode=0o700)
        if os.geteuid() == 0:
            os.chown(scratch, uid, uid)
        mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        mine.settimeout(30.0)
        output_read, output_write = os.pipe()
        status_read, status_write = os.pipe()
        key = secrets.token_bytes(32)
        lent = lender or (CudaLender() if self.device == "cuda" else CpuLender())
        written = os.memfd_create("order", os.MFD_CLOEXEC)  # it names every package here: more than a packet holds
        descriptors = [written, its.fileno(), output_write, status_write]
        if isinstance(lent, CpuLender):
            descriptors.append(lent.descriptor)
        address = None if self.device == "cuda" else limits.memory_bytes + (8 << 30)
        allowed = paths(self.device, peers)
        order = {
            "role": role,
            "key": key.hex(),
            "scratch": str(scratch),
            "environment": {},
            "limits": {
                "cpu_s": limits.cpu_s,
                "file_bytes": limits.file_bytes,
                "scratch_bytes": limits.scratch_bytes,
                "processes": limits.processes,
                "address_bytes": address,
                "uid": uid,
                **allowed,
                "readable": [*allowed["readable"], *self._extensions],
            },
        }
        try:
            with os.fdopen(os.dup(written), "wb") as file:
                file.write(json.dumps(order).encode())
            with self._lock:
                socket.send_fds(self._line, [b"start"], descriptors)
                pid = int(json.loads(self._line.recv(1 << 12) or b"{}").get("pid", 0))
        except OSError as error:
            raise JudgeBroken(f"zygote: gone ({error})") from error
        finally:
            its.close()
            for descriptor in (written, output_write, status_write):
                os.close(descriptor)
        if pid == 0:
            raise JudgeBroken(f"zygote: the {role} host did not start: {_read_all(output_read)[-500:]!r}")
        return Process(role, pid, Channel(mine, key, b"J"), output_read, status_read, lent, limits, scratch)

    def close(self) -> None:
        """End the zygote and with it every process it started."""
        self._line.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._root, ignore_errors=True)
        self._held.close()


def _scratch_root() -> tuple[Path, IO[bytes]]:
    """A new folder for the hosts' scratch folders, which their users can reach, and the file whose lock says for as
    long as this process lives that it is in use. Those of judges that were killed go."""
    _sweep(Path(tempfile.gettempdir()))
    root = Path(tempfile.mkdtemp(prefix="judge-"))
    root.chmod(0o711)
    shut = next((folder for folder in root.parents if not folder.stat().st_mode & stat.S_IXOTH), None)
    if os.geteuid() == 0 and shut is not None:  # else each good candidate would be refused: it cannot be read
        root.rmdir()
        raise JudgeBroken(f"{shut}: hosts run as other users and cannot enter it; set TMPDIR to a folder they can")
    held = (root / _HELD).open("wb")
    fcntl.flock(held, fcntl.LOCK_EX)
    return root, held


def _sweep(folder: Path) -> None:
    """Removes the folders that judges of this user left behind; one that is in use or not ours stays."""
    for root in folder.glob("judge-*"):
        with contextlib.suppress(OSError):  # in use, gone meanwhile, or nothing of a judge's
            found = root.lstat()
            if found.st_uid == os.geteuid() and stat.S_ISDIR(found.st_mode):
                with (root / _HELD).open("rb") as held:
                    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(root, ignore_errors=True)


def user_of(judge: int, number: int) -> int:
    """The user of a judge's host: limits on processes count per user, so that hosts of two judges on one machine
    (`judge`: their process ids) must not share one either."""
    return isolation.NOBODY - 1 - (509 * judge + number) % 4096


def _read_all(descriptor: int) -> bytes:
    with os.fdopen(descriptor, "rb") as pipe:
        return pipe.read(STDERR_KEPT)
