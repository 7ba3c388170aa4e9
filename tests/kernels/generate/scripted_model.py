"""A local OpenAI-compatible server that gives scripted answers: a model without a model."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Answer:
    """One scripted reply. status: of HTTP; finish: the API's finish_reason."""

    text: str
    finish: str = "stop"
    status: int = 200


@dataclass
class Script:
    """Answers in order, the last one again and again, and every request that came."""

    answers: Sequence[Answer]
    requests: list[dict[str, Any]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def next(self, request: dict[str, Any]) -> Answer:
        with self.lock:
            self.requests.append(request)
            return self.answers[min(len(self.requests), len(self.answers)) - 1]


@contextmanager
def served(answers: Sequence[Answer]) -> Iterator[tuple[str, Script]]:
    """(base URL, script) of a server that lives for the block."""
    script = Script(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answer = script.next(body)
            usage = {"prompt_tokens": 100, "completion_tokens": 50, "total_tokens": 150}
            message = {"role": "assistant", "content": answer.text}
            reply = {
                "id": "1",
                "object": "chat.completion",
                "created": 0,
                "model": body["model"],
                "choices": [{"index": 0, "message": message, "finish_reason": answer.finish}],
                "usage": usage,
            }
            data = json.dumps(reply if answer.status == 200 else {"error": {"message": answer.text}}).encode()
            self.send_response(answer.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", script
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
