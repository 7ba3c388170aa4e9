"""Serves the console from a thread of the daemon, so that the tick loop never waits for a browser."""

from __future__ import annotations

import socket
import threading
import time

import uvicorn
from fastapi import FastAPI

from nightshift.collectors.base import Permanent
from nightshift.collectors.telemetry.listening import listening

_START_S = 10.0


class Server:
    """A uvicorn on its own thread. `start` returns when it listens; `stop` ends open connections."""

    def __init__(self, app: FastAPI, host: str, port: int) -> None:
        self._socket = _listen(host, port)
        self.port: int = self._socket.getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self.port}"
        config = uvicorn.Config(
            app,
            # uvicorn would bring handlers of its own, and its lines would not be JSON among ours.
            log_config=None,
            access_log=False,
            lifespan="off",
            # A browser keeps its connection open for minutes; a rollout does not wait for it.
            timeout_graceful_shutdown=2,
            # A version in each answer says which exploits are worth a try.
            server_header=False,
            proxy_headers=False,  # who asks is who connects: X-Forwarded-For is anybody's word
            # Headers: cookies and a proxy's groups can be long, and a stranger's must not fill the memory.
            h11_max_incomplete_event_size=32_768,
            limit_concurrency=400,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, name="console", daemon=True
        )

    def start(self) -> None:
        """Raises Permanent where it does not come up."""
        self._thread.start()
        deadline = time.monotonic() + _START_S
        # uvicorn sets a flag and has no event to wait for.
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                raise Permanent(f"console: {self.url} did not start")
            time.sleep(0.005)

    def stop(self) -> None:
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join(5.0)
        self._socket.close()


def _listen(host: str, port: int) -> socket.socket:
    """The socket, bound before anything else starts, so that a taken port is said at once."""
    try:
        listener = listening(host, port)
    except OSError as error:
        raise Permanent(f"console.port: cannot listen on {host}:{port}: {error.strerror}") from error
    listener.listen(128)
    return listener
