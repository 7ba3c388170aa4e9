"""Numbered items of evidence: how each is cut, cleaned and counted, whoever gathers it (rules or a model's tool).

Every item is cut to a stated size, never in the middle of a line, and says so where it was cut; every text is
redacted before it is stored; every item is numbered in the order in which it came.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from nightshift.agent.rca.grounding import MAD_TO_SIGMA
from nightshift.agent.store.diagnosis import FACTS, LOG, SERIES, Evidence
from nightshift.collectors.frame import LogRecord
from nightshift.collectors.seal import canonical_json
from nightshift.collectors.subject import Subject


class EvidenceLimits(BaseModel):
    """How large an incident's evidence may become."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    before_s: float = Field(default=900.0, gt=0, description="How far before the onset evidence reaches (s)")
    max_items: int = Field(default=48, ge=4, description="Most items in a bundle")
    max_points: int = Field(default=400, ge=16, description="Most points of a series")
    max_lines: int = Field(default=60, ge=4, description="Most lines of a log item")
    max_item_bytes: int = Field(default=32_768, ge=1024, description="Most bytes of an item")
    max_past: int = Field(default=5, ge=0, description="Most similar past incidents")
    max_ranks: int = Field(default=4096, ge=1, description="Most ranks per group when logs are condensed")


@dataclass(frozen=True)
class Bundle:
    """An incident's evidence. `tags` says what each item is, by id: `finding`, `exhibit`, `signal`, `peers`,
    `kernel_log`, `log_state`, `job_log`, `condensed`, `templates`, `first_lines`, `order`, `events`, `alerts`,
    `changes`, `topology`, `hang_place`, `checkpoints`, `departure`, `past`, `looked_up`, with the episode, metric
    or subject."""

    items: tuple[Evidence, ...]
    tags: Mapping[str, tuple[str, str]]
    left_out: int = 0

    def of(self, tag: str, about: str | None = None) -> list[Evidence]:
        return [i for i in self.items if self.tags[i.id][0] == tag and about in (None, self.tags[i.id][1])]

    def one(self, tag: str, about: str | None = None) -> Evidence | None:
        return next(iter(self.of(tag, about)), None)


@dataclass(frozen=True, slots=True)
class PastIncident:
    """What is remembered of an incident that resembles this one."""

    id: str
    cause: str
    subject: str
    opened_s: float
    action: str
    outcome: str
    post_mortem: tuple[str, ...] = ()
    """What was found and done, oldest first, one sentence each."""


def as_it_is(text: str) -> str:
    return text


@dataclass
class EvidenceLedger:
    """Takes items up to the limits. `onset_s` and `at_s` (Unix s) bound the items that state no range."""

    limits: EvidenceLimits
    onset_s: float
    at_s: float
    redact: Callable[[str], str] = as_it_is
    items: list[Evidence] = field(default_factory=list)
    tags: dict[str, tuple[str, str]] = field(default_factory=dict)
    left_out: int = 0

    @property
    def start_s(self) -> float:
        return self.onset_s - self.limits.before_s

    def bundle(self) -> Bundle:
        return Bundle(tuple(self.items), dict(self.tags), self.left_out)

    def add(
        self,
        tag: tuple[str, str],
        source: str,
        query: str,
        title: str,
        media_type: str,
        content: bytes,
        span: tuple[float, float] | None = None,
    ) -> Evidence | None:
        """The item with its number, or None where a limit is reached (counted)."""
        # counted rather than cut: half a JSON text is no evidence
        if len(self.items) >= self.limits.max_items or len(content) > self.limits.max_item_bytes:
            self.left_out += 1
            return None
        start_s, end_s = span or (self.start_s, self.at_s)
        number, clean = len(self.items) + 1, self.redact
        item = Evidence(
            f"E{number}", clean(source), clean(query), start_s, end_s, media_type, content, clean(title)
        )
        self.items.append(item)
        self.tags[item.id] = tag
        return item

    def facts(
        self, tag: tuple[str, str], source: str, query: str, title: str, body: Mapping[str, Any]
    ) -> Evidence | None:
        return self.add(tag, source, query, title, FACTS, canonical_json(self._clean(_finite(body))))

    def past(self, tag: tuple[str, str], past: Iterable[PastIncident]) -> Evidence | None:
        """What similar past incidents came to; None where there are none."""
        body = {
            p.id: {
                "cause": p.cause,
                "subject": p.subject,
                "action": p.action,
                "outcome": p.outcome,
                "post_mortem": list(p.post_mortem),
            }
            for p in list(past)[: self.limits.max_past]
        }
        query, title = "similar incidents", "similar past incidents"
        return self.facts(tag, "incident store", query, title, body) if body else None

    def _clean(self, value: Any) -> Any:
        """Facts with every text redacted: a summary, a name or a past incident may carry a log's words."""
        if isinstance(value, dict):
            # keys as well: labels and names of past incidents come from outside
            return {self.redact(key): self._clean(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self._clean(item) for item in value]
        return self.redact(value) if isinstance(value, str) else value

    def series(
        self,
        tag: tuple[str, str],
        subject: Subject | str,
        metric: str,
        unit: str,
        t_s: Any,
        values: Any,
        source: str,
        title: str,
        reference: float | None = None,
    ) -> Evidence | None:
        """A series t_s, values [n], thinned evenly where it is longer than the limit."""
        if len(t_s) == 0:
            return None
        if len(t_s) > self.limits.max_points:
            # evenly, with both ends: a claim compares before and after
            kept = np.unique(np.linspace(0, len(t_s) - 1, self.limits.max_points).round().astype(int))
            t_s, values = t_s[kept], values[kept]
            title += f" (every {(kept[-1] + 1) / len(kept):.1f}th point)"
        body = {
            "subject": str(subject),
            "metric": metric,
            "unit": unit,
            "t_s": [round(float(t), 3) for t in t_s],
            # nine digits: what a float32 counter holds, without the noise of its conversion
            "values": [float(f"{v:.9g}") for v in values],
            "reference": reference,
            "summary": summary_of(str(subject), metric, unit, t_s, values),
        }
        content = canonical_json(self._clean(_finite(body)))
        span = (float(t_s[0]), float(t_s[-1]))
        return self.add(tag, source, f"{metric}{{{subject}}}", title, SERIES, content, span)

    def log(
        self, tag: tuple[str, str], records: Sequence[LogRecord], title: str, even_if_empty: bool = False
    ) -> Evidence | None:
        """Whole lines, those nearest the onset first where not all fit, in order of time."""
        if not records and not even_if_empty:
            return None
        # nearest the onset: the first lines of a day's log would be of the morning
        nearest = sorted(records, key=lambda r: abs(r.at.t_s - self.onset_s))[: self.limits.max_lines]
        kept: list[tuple[float, int, bytes]] = []
        room = self.limits.max_item_bytes
        for record in nearest:
            line = self.line(record)
            if len(line) <= room:
                room -= len(line)
                kept.append((record.at.t_s, record.offset, line))
        if len(kept) < len(records):
            title += f" ({len(kept)} of {len(records)} lines)"
        content = b"".join(line for _, _, line in sorted(kept))
        source = records[0].source if records else "history"
        return self.add(tag, source, tag[1], title, LOG, content)

    def line(self, record: LogRecord) -> bytes:
        """`<Unix s>[±<s>][@<clock>]` TAB text: whose clock it was, and how far it can be off, is part of it."""
        # one record is one line: a line break within would forge another record
        text = self.redact(record.text).replace("\n", "\\n").replace("\r", "\\r")
        # the separators of the line's head must not come from a host's name
        clock = "".join(c for c in record.at.clock if c > " " and c not in "@±")
        unsure = f"±{record.at.uncertainty_s:.3f}" if record.at.uncertainty_s > 0 else ""
        return f"{record.at.t_s:.3f}{unsure}{'@' if clock else ''}{clock}\t{text}\n".encode(errors="replace")


def _finite(value: Any) -> Any:
    """JSON values only: what is not finite becomes null."""
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def summary_of(subject: str, metric: str, unit: str, t_s: Any, values: Any) -> str:
    """A series in one line: its name, which way it went beyond its noise, extremes and the number of points."""
    known = np.isfinite(np.asarray(values, dtype=float))
    if not known.any():
        return "no values"
    times, numbers = np.asarray(t_s, dtype=float)[known], np.asarray(values, dtype=float)[known]
    tenth = max(1, len(numbers) // 10)
    before, after = float(np.median(numbers[:tenth])), float(np.median(numbers[-tenth:]))
    # of what each value differs from the one before: a trend is no noise
    steps = np.diff(numbers) if len(numbers) > 1 else np.zeros(1)
    noise = MAD_TO_SIGMA * float(np.median(np.abs(steps - np.median(steps))))
    went = (
        "rose"
        if after - before > 3 * noise
        else "fell"
        if before - after > 3 * noise
        else "stayed, within its noise,"
    )
    return (
        f"{metric} of {subject} [{unit}] {went} from {before:.6g} to {after:.6g} in {times[-1] - times[0]:.0f} s"
        f"; least {numbers.min():.6g}, most {numbers.max():.6g}, {len(numbers)} points"
    )
