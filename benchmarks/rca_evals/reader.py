"""A scripted reader behind a local endpoint: gives the answers of `answers`, in the form that the product asks for.

It is no language model. The good reader quotes the line that decides; a sentence that comes back it words as
another hand wrote it. The bad one gives no quote, a made-up one, a number that no evidence holds, a true quote of
another matter, or claims that do not hold, by turns.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.field.__main__ import Drawn
from benchmarks.rca_evals.answers import bad, good
from benchmarks.rca_evals.cases import Case, deciding_lines, place_words
from nightshift.agent.rca.investigate import CONCLUDE
from tests.agent.scripted_model import Scripted, calls, says, scripted

READERS: dict[str, Callable[[Case, str], str]] = {"good": good, "bad": bad}
_FALSE: list[dict[str, Any]] = [
    {"predicate": "repeated", "evidence_ids": ["E1"], "arguments": {"pattern": "Xid", "times": 5000}},
    {"predicate": "equals", "evidence_ids": ["E99"], "arguments": {"path": "cause", "value": "cooling"}},
]


class Reader:
    """One case's reader; `which` of the two may be changed while it serves."""

    def __init__(self, case: Case) -> None:
        self._case, self.which, self._again = case, "good", 0
        self.drawn = Drawn(1, case.name)
        self._heard: Any = ""

    def take(self, drawn: Drawn) -> None:
        """The values of the play, by which the reader names the place."""
        self.drawn = drawn

    @property
    def answer(self) -> str:
        place = place_words(self._case, self.drawn)
        if self.which == "good":
            return good(self._case, place, self._again)
        return READERS[self.which](self._case, place)

    def become(self, which: str) -> None:
        self.which, self._again = which, 0

    def __call__(self, _: Scripted, body: dict[str, Any]) -> Any:
        if CONCLUDE not in json.dumps(body.get("tools", ())):
            # another program asks, which takes text
            return says(self.answer)
        lines = list(_lines(body["messages"][1]["content"]))
        last = len(body["messages"]) > 2
        self._again, self._heard = int(last), body["messages"][-1]
        sentences = [self._good(lines, last)] if self.which == "good" else self._bad(lines)
        claims = [] if self.which == "good" or last else _FALSE
        return calls(("conclude", {"cause": "unknown", "claims": claims, "hypothesis": sentences}))

    def _good(self, lines: list[tuple[str, str]], last: bool) -> dict[str, str]:
        """The line that decides. Where that was returned, the reader says it in other words; it takes another line
        only if it was told that this one is of another matter."""
        returned = json.dumps(self._heard)
        weight = (
            self._shared if last and ("another matter" in returned or "in no item" in returned) else self._weight
        )
        name, quote = max(lines, key=lambda line: weight(line[1]), default=("", ""))
        return {"sentence": self.answer, "evidence_id": name, "text": quote[:400]}

    def _weight(self, line: str) -> float:
        """How well a line bears the answer: the deciding one first, then by common words."""
        wanted = deciding_lines(self._case, self.drawn)
        return 10.0 * any(
            (len(line) > 8 and line in text) or text in line for text in wanted if text
        ) + self._shared(line)

    def _shared(self, line: str) -> float:
        words = {word[:4] for word in re.findall(r"[a-z]{3,}", self.answer.lower())}
        return float(len(words & {word[:4] for word in re.findall(r"[a-z]{3,}", line.lower())}))

    def _bad(self, lines: list[tuple[str, str]]) -> list[dict[str, str]]:
        way = self._case.number // 7 % 4
        name, quote = min(lines, key=lambda line: self._weight(line[1]), default=("", ""))
        if way == 0:
            return [{"sentence": self.answer, "evidence_id": "", "text": ""}]
        if way == 1:
            return [{"sentence": self.answer, "evidence_id": name, "text": f"fatal: {self.answer[:80]}"}]
        if way == 2:
            return [{"sentence": f"{self.answer} Error code 0xdead4711.", "evidence_id": name, "text": quote[:400]}]
        return [{"sentence": self.answer, "evidence_id": name, "text": quote[:400]}]


def _lines(request: str) -> Iterator[tuple[str, str]]:
    """(evidence id, text) of every line and fact of a first request."""
    for part in request.split("\n"):
        if not part.startswith('{"id"'):
            continue
        item = json.loads(part)
        for line in item.get("lines", ()):
            yield item["id"], str(line[1])
        for key in ("facts", "numbers"):
            if key in item:
                # of a fact some words in the middle: a quote stands in one line, and what was cut is no quote
                yield item["id"], str(item[key]).partition("…")[0].partition("\n")[0][:300]


@contextmanager
def endpoint(case: Case) -> Iterator[tuple[Reader, Scripted]]:
    reader = Reader(case)
    with scripted(reader) as server:
        yield reader, server
