"""A language model's server that answers from a script, in the wire format of three providers, on localhost."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = dict[str, Any] | bytes | int | tuple[int, bytes] | Callable[["Scripted", dict[str, Any]], "Answer"]
"""A turn (see `says`, `calls`), a `status` with its `error`, raw bytes for the body, an HTTP status (with its
body), or what makes one of these."""


def calls(*wanted: tuple[str, Any]) -> dict[str, Any]:
    """The model asks for tools: (name, arguments) pairs; arguments that are text are sent as they are."""
    return {"calls": list(wanted)}


def says(text: str, ended: str = "stop", **more: Any) -> dict[str, Any]:
    return {"text": text, "ended": ended, **more}


class Scripted:
    """What the server answers, in order (the last answer again and again), and what it was asked."""

    def __init__(self, script: Sequence[Answer]) -> None:
        self.script = list(script)
        self.asked: list[dict[str, Any]] = []
        self.released = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def next(self, body: dict[str, Any]) -> Answer:
        self.asked.append(body)
        answer = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        return answer(self, body) if callable(answer) else answer

    def close(self) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def scripted(*script: Answer) -> Iterator[Scripted]:
    server = Scripted(script)
    try:
        yield server
    finally:
        server.close()


def never(server: Scripted, _: dict[str, Any]) -> Answer:
    """Does not answer until the test is over."""
    server.released.wait(300.0)
    return says("too late")


def drips(server: Scripted, _: dict[str, Any]) -> Answer:
    """A byte every 50 ms: no read timeout ever trips."""
    return {"drip": server.released}


def _handler(server: Scripted) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answer = server.next(body)
            try:
                if isinstance(answer, int):
                    self._send(answer, b'{"error": {"message": "no", "type": "error"}}')
                elif isinstance(answer, tuple):
                    self._send(*answer)
                elif isinstance(answer, bytes):
                    self._send(200, answer)
                elif isinstance(answer, dict) and "drip" in answer:
                    self.send_response(200)
                    self.send_header("Content-Type", "application/json")
                    self.end_headers()
                    while not answer["drip"].wait(0.05):
                        self.wfile.write(b" ")
                elif isinstance(answer, dict) and "status" in answer:
                    said = {"error": {"message": answer["error"], "type": "error"}}
                    self._send(answer["status"], json.dumps(said).encode())
                elif isinstance(answer, dict):
                    form = {"/v1/messages": _anthropic, "/api/chat": _ollama}.get(self.path, _openai)
                    data = json.dumps(form(answer)).encode()
                    self._send(200, data + (b"\n" if form is _ollama else b""))
            except (BrokenPipeError, ConnectionResetError):
                pass  # the client gave up, as some tests want

        def _send(self, status: int, data: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Silent."""

    return Handler


def _openai(turn: dict[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": turn.get("text")}
    if "refusal" in turn:
        message["refusal"] = turn["refusal"]
    wanted = [
        {
            "id": f"call_{n}",
            "type": "function",
            "function": {"name": name, "arguments": a if isinstance(a, str) else json.dumps(a)},
        }
        for n, (name, a) in enumerate(turn.get("calls", ()))
    ]
    if wanted:
        message["tool_calls"] = wanted
    ended = "tool_calls" if wanted else turn.get("ended", "stop")
    return {
        "id": "x",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": "scripted",
        "choices": [{"index": 0, "message": message, "finish_reason": ended}],
        "usage": turn.get("usage", {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100}),
    }


def _anthropic(turn: dict[str, Any]) -> dict[str, Any]:
    content: list[dict[str, Any]] = [{"type": "text", "text": turn["text"]}] if turn.get("text") else []
    content += [
        {"type": "tool_use", "id": f"call_{n}", "name": name, "input": arguments}
        for n, (name, arguments) in enumerate(turn.get("calls", ()))
    ]
    ended = "tool_use" if turn.get("calls") else "end_turn"
    return {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": "scripted",
        "content": content,
        "stop_reason": ended,
        "stop_sequence": None,
        "usage": {"input_tokens": 1000, "output_tokens": 100},
    }


def _ollama(turn: dict[str, Any]) -> dict[str, Any]:
    wanted = [{"function": {"name": name, "arguments": arguments}} for name, arguments in turn.get("calls", ())]
    return {
        "model": "scripted",
        "created_at": "2026-11-21T00:00:00Z",
        "message": {"role": "assistant", "content": turn.get("text", ""), "tool_calls": wanted},
        "done": True,
        "done_reason": "stop",
        "prompt_eval_count": 1000,
        "eval_count": 100,
    }
