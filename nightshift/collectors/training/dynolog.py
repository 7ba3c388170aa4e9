"""Asks a running job for a profiler trace, through the node's dynolog daemon where there is one.

dynolog (https://github.com/facebookincubator/dynolog) hands the request to every process whose torch was started
with KINETO_USE_DAEMON=1. Its port speaks JSON behind a 32-bit length in the host's byte order
(cli/src/commands/utils.rs).
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Sequence
from pathlib import PurePosixPath

from nightshift.collectors.base import Permanent, Temporary

PORT = 1778
_MAX_ANSWER_BYTES = 1 << 20


def request_trace(
    host: str,
    file: PurePosixPath,
    *,
    job_id: int = 0,
    pids: Sequence[int] = (0,),
    iterations: int = 3,
    process_limit: int = 1,
    port: int = PORT,
    timeout_s: float = 5.0,
) -> list[str]:
    """The files that the job's processes will write on their node, some steps later (with shapes recorded).

    `pids` (0,) means every process of `job_id`. Raises Temporary where the daemon is not to be reached, Permanent
    where it answers nonsense or knows no such process.
    """
    config = [
        f"ACTIVITIES_LOG_FILE={file}",
        "PROFILE_START_ITERATION=0",
        "PROFILE_START_ITERATION_ROUNDUP=1",
        f"ACTIVITIES_ITERATIONS={iterations}",
        "PROFILE_REPORT_INPUT_SHAPES=true",
        "PROFILE_PROFILE_MEMORY=false",
        "PROFILE_WITH_STACK=false",
    ]
    request = {
        "fn": "setKinetOnDemandRequest",
        "config": "\n".join(config),
        "job_id": job_id,
        "pids": list(pids),
        "process_limit": process_limit,
    }
    message = json.dumps(request).encode()
    where = f"dynolog at {host}:{port}"
    try:
        with socket.create_connection((host, port), timeout_s) as connection:
            connection.settimeout(timeout_s)
            connection.sendall(struct.pack("=i", len(message)) + message)
            (length,) = struct.unpack("=i", _exactly(connection, 4))
            if not 0 <= length <= _MAX_ANSWER_BYTES:
                raise Permanent(f"{where}: an answer of {length} bytes")
            answer = json.loads(_exactly(connection, length))
    except OSError as error:
        raise Temporary(f"{where}: {error}") from error
    except ValueError as error:
        raise Permanent(f"{where}: its answer is no JSON ({error})") from error
    matched = answer.get("processesMatched") if isinstance(answer, dict) else None
    if not isinstance(matched, list) or not all(isinstance(pid, int) for pid in matched):
        raise Permanent(f"{where}: its answer names no processes")
    if not matched:
        raise Permanent(
            f"{where}: no process of job {job_id} takes profiles (KINETO_USE_DAEMON=1 in its environment)"
        )
    return [str(file.with_name(f"{file.stem}_{pid}{file.suffix}")) for pid in matched]


def _exactly(connection: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        piece = connection.recv(min(65536, count - len(parts)))
        if not piece:
            raise OSError("the connection was closed")
        parts += piece
    return bytes(parts)
