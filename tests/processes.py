"""Real servers that tests start: ports that nobody else is given, waiting until one answers, and its end.

Who asks one through httpx and names no time waits for READY_S, not its five seconds: those a busy machine needs.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request

from httpx._config import DEFAULT_TIMEOUT_CONFIG

READY_S = 120.0
for part in ("connect", "read", "write", "pool"):
    setattr(DEFAULT_TIMEOUT_CONFIG, part, READY_S)
_FIRST = 10_000 + os.getpid() * 101 % 22_000  # processes beside each other begin far apart
_PORTS = itertools.cycle([*range(_FIRST, 32_000), *range(10_000, _FIRST)])


def free_port() -> int:
    """A loopback port that nothing listens on, of those that the kernel gives to nobody who asks for any port:
    between the choice and the use another process would get one of those."""
    for port in _PORTS:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("a cycle has no end")


def await_answer(url: str, process: subprocess.Popen[bytes]) -> None:
    """Waits until the server of `process` answers with success; an AssertionError where it ends, or never does."""
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        assert process.poll() is None, f"{process.args!r} ended with {process.returncode}"
        with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
            urllib.request.urlopen(url, timeout=30).close()
            return
        time.sleep(0.05)
    raise AssertionError(f"{url} did not answer within {READY_S} s")


def end(process: subprocess.Popen[bytes]) -> None:
    """Asks a server to end, and ends it where it does not."""
    process.terminate()
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
