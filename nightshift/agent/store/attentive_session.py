"""A session with a PostgreSQL server. Apart from `database`, which loads it only where there is one."""

from __future__ import annotations

import time
from typing import Any

import psycopg
from psycopg.abc import PQGen

# A server that says nothing to a statement for that long is taken for frozen (paused, or waiting for its disk),
# though its kernel still acknowledges what it is sent.
ANSWER_S = 20.0


class AttentiveSession(psycopg.Connection[Any]):
    """A session that ends when its server leaves a statement without a word for `answer_s`. A server's own
    statement_timeout ends no statement of a server that is frozen."""

    answer_s = ANSWER_S

    def wait(self, gen: PQGen[Any], *args: Any, **kwargs: Any) -> Any:
        return super().wait(self._heard(gen), *args, **kwargs)

    def _heard(self, gen: PQGen[Any]) -> PQGen[Any]:
        ready, heard_s = None, time.monotonic()
        while True:
            try:
                wanted = gen.send(ready)  # type: ignore[arg-type]  # None starts it
            except StopIteration as end:
                return end.value
            ready = yield wanted
            if ready:
                heard_s = time.monotonic()
            elif time.monotonic() - heard_s > self.answer_s:
                # closed, not cancelled: a cancel goes to the same frozen server, and waits for it as well
                self.pgconn.finish()
                why = f"the server said nothing for {self.answer_s:g} s; it may still do what it was sent"
                raise psycopg.OperationalError(why)
