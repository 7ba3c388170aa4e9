"""What a language model is shown first of an incident: the evidence as a reader needs it, within a fixed room.

One table says what comes first and how much room it may take; what a row leaves goes to the rows after it. Of a log
the lines are chosen, not the beginning: trouble before chatter, rare before frequent, near the onset before far,
the newer of two alike, and each kind of line once with its count. Lines that no parser knew compete with the
others. Numbers are one line per series: before, after, least, most. Everything else is named, and can be read by a
tool.

Texts stay byte for byte as the evidence holds them, so that they can be quoted; each stands in a JSON string, so
that it cannot pose as ours.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nightshift.agent.rca.bundle import Bundle, as_it_is
from nightshift.agent.rca.figures import Ungrounded
from nightshift.agent.rca.grounding import dated_lines
from nightshift.agent.rca.joblogs import follows_only, grave, mask_of
from nightshift.agent.store.diagnosis import LOG, SERIES, Diagnosis, Evidence
from nightshift.collectors.history import History
from nightshift.collectors.seal import sha256_hex
from nightshift.collectors.subject import Inventory, Subject, SubjectKind

ROOM_TOKENS = 8_000
CHARS_PER_TOKEN = 3.0
"""Cautious: log lines with hexadecimal numbers take more tokens than prose."""
NEAR_S = 60.0
MAX_LINE = 700
"""Characters of one line; of a longer one the beginning and the end, where an exception's message is."""
# What decides is often a plain line: the last frame of a stack, what torchrun names first, a driver's own failure.
_DECIDES = re.compile(
    r"(?i)root cause|first observed failure|\w(?:Error|Exception)\b|^\W*File \"|exit ?code|signal \d|SIG[A-Z]{3,}"
    r"|\bNVRM\b|\bGSP\b|\bXid\b|\bmlx\d|\bnvme\d|\bEDAC\b|\bI/O error|not (?:found|ready|healthy)|back-?off|evict"
    r"|\bnan\b(?!\s*iterations)|\binf\b|no longer|denied|mismatch|unsupported|version"
)


@dataclass(frozen=True)
class BriefRow:
    """One row of the table: which items, the share of the room, and the most characters of one item."""

    tags: tuple[str, ...]
    share: float
    each: int


TABLE: tuple[BriefRow, ...] = (
    BriefRow(("finding",), 0.10, 900),  # what the detectors said
    BriefRow(("exhibit",), 0.12, 2500),  # the lines and numbers that they showed
    BriefRow(("kernel_log", "raw_log"), 0.22, 4000),  # a minute around the fault, parsed or not
    BriefRow(("first_lines", "order"), 0.10, 2500),  # each rank's first trouble
    BriefRow(("job_log",), 0.16, 3500),  # stacks, torchrun's root cause
    BriefRow(("condensed",), 0.10, 3000),  # the lines that matter of all ranks
    BriefRow(("events", "slurm", "alerts"), 0.10, 2000),  # events, conditions and other rules' alerts
    BriefRow(("rollout", "versions", "changes", "learning_rate"), 0.06, 1500),  # what changed lately
    BriefRow(("departure", "storage", "victims", "checkpoints", "log_state"), 0.04, 400),
    BriefRow(("topology",), 0.04, 1000),  # where it sits, and its neighbours
    BriefRow(("past", "looked_up"), 0.06, 1200),  # incidents like this one
    BriefRow(("signal", "peers"), 0.08, 260),
    BriefRow(("templates",), 0.02, 600),
)


def first_room(tokens: int, besides: int) -> int:
    """Characters for the first message of so many tokens, beside what is sent with it (characters)."""
    return max(2000, int(tokens * CHARS_PER_TOKEN) - besides)


@dataclass(frozen=True)
class Brief:
    """The first message, and the lines that decide in it (as hashes), by which later ones are told from these."""

    text: str
    lines: tuple[str, ...] = ()


def brief(
    diagnosis: Diagnosis,
    bundle: Bundle,
    onset_s: float,
    characters: int,
    plan: str = "",
    names: str = "",
    redact: Callable[[str], str] = as_it_is,
) -> Brief:
    """The first message within so many `characters`. `plan` is the pending action in words, `names` what can be
    looked up. Everything is redacted once more."""
    head = {
        "rules_say": {
            "cause": diagnosis.cause,
            "headline": diagnosis.headline[:300],
            "confidence": diagnosis.confidence,
        },
        "claims": [claim.sentence[:200] for claim in diagnosis.claims[:8]],
        "not_sure": [caveat[:200] for caveat in diagnosis.caveats[:4]],
        "onset_unix_s": round(onset_s, 3),
        **({"plan": plan[:400]} if plan else {}),
    }
    text = redact(json.dumps(head, ensure_ascii=True)) + "\n" + redact(names[: characters // 12]) + "\n"
    text += "Evidence, one JSON object per line; lines are [seconds from the onset, text, how many alike]:\n"
    writer = _Writer(onset_s, redact)
    spare, shown = 0.0, set()
    body: list[str] = []
    left = characters - len(text) - characters // 20
    table_room = left
    for row in TABLE:
        allowed = spare + row.share * table_room
        for item in [item for tag in row.tags for item in bundle.of(tag)]:
            line = writer.item(item, int(min(row.each, allowed, left)))
            if not line or len(line) + 1 > left:
                continue
            body.append(line)
            shown.add(item.id)
            allowed -= len(line) + 1
            left -= len(line) + 1
        spare = max(0.0, allowed)
    rest = [f"{item.id} {item.title[:60]}" for item in bundle.items if item.id not in shown]
    more = redact(json.dumps({"read_with_read_evidence": rest}, ensure_ascii=True))
    return Brief(
        (text + "\n".join(body) + "\n" + more[: max(0, characters - len(text) - sum(map(len, body)) - len(body))])[
            :characters
        ],
        tuple(sorted(writer.deciding)),
    )


def deciding_lines(bundle: Bundle) -> tuple[str, ...]:
    """The lines of all logs that tell of trouble, by kind (as hashes)."""
    logs = [item for item in bundle.items if item.media_type == LOG]
    return tuple(sorted({_hash(text) for item in logs for _, text in _lines(item) if _tells(text)}))


def names_of(history: History, inventory: Inventory, subjects: Iterable[Subject], at_s: float) -> str:
    """The names of the metrics and subjects that can be looked up, as JSON."""
    metrics = {
        str(kind): list(frame.metrics) for kind in SubjectKind if (frame := history.latest(kind)) is not None
    }
    near = dict.fromkeys(subjects)
    for place in list(near):
        near |= dict.fromkeys(inventory.ancestors(place, at_s))
    return json.dumps({"subjects": [str(subject) for subject in list(near)[:24]], "metrics": metrics})


def _tells(text: str) -> bool:
    return (grave(text) or bool(_DECIDES.search(text[:4096]))) and not follows_only(text)


def _hash(text: str) -> str:
    return sha256_hex(mask_of(text))[:12]


def _lines(item: Evidence) -> list[tuple[float, str]]:
    try:
        return [(at.t_s, text) for at, text in dated_lines(item)]
    except Ungrounded:
        return []


@dataclass
class _Writer:
    """Writes items within their room; a line that was shown already gives its place to others."""

    onset_s: float
    redact: Callable[[str], str]
    deciding: set[str] = field(default_factory=set)
    _shown: set[str] = field(default_factory=set)

    def item(self, item: Evidence, characters: int) -> str:
        """The item as one JSON object of at most so many characters; empty where nothing of it fits or is new."""
        head: dict[str, Any] = {"id": item.id, "title": item.title[:90]}
        size = len(json.dumps(head, ensure_ascii=True)) + 16
        if item.media_type == LOG:
            chosen = self._chosen(_lines(item), characters - size)
            return self._json({**head, "lines": chosen}) if chosen else ""
        said = _numbers(item) if item.media_type == SERIES else item.content.decode(errors="replace")
        if characters - size < 60:
            return ""
        # half of it where it is long: what is left can be read by a tool
        key = "numbers" if item.media_type == SERIES else "facts"
        part = said
        while len(json.dumps(part, ensure_ascii=True)) > characters - size:
            part = part[: int(0.8 * len(part)) - 1] + "…"
        return self._json({**head, key: part})

    def _json(self, body: Mapping[str, Any]) -> str:
        return self.redact(json.dumps(body, ensure_ascii=True))

    def _chosen(self, lines: Sequence[tuple[float, str]], room: int) -> list[list[object]]:
        alike = Counter(mask_of(text) for _, text in lines)
        ranked = sorted(
            ((self._score(t_s, text, alike[mask_of(text)], len(lines)), t_s, text) for t_s, text in lines),
            key=lambda line: (-line[0], -line[1] if math.isfinite(line[1]) else 0.0),
        )
        taken: list[tuple[float, list[object]]] = []
        kinds: Counter[bytes] = Counter()
        for _, t_s, text in ranked:
            mask = mask_of(text)
            # twice: the newest of a kind and one more show that it repeats
            if kinds[mask] >= 2 or text in self._shown:
                continue
            count = alike[mask]
            row: list[object] = [round(t_s - self.onset_s, 3) if math.isfinite(t_s) else None, _cut(text)]
            row += [count] if count > 2 else []
            size = len(json.dumps(row, ensure_ascii=True)) + 2
            if size > room:
                continue
            room -= size
            kinds[mask] += 1
            self._shown.add(text)
            if _tells(text):
                self.deciding.add(_hash(text))
            taken.append((t_s if math.isfinite(t_s) else math.inf, row))
        return [row for _, row in sorted(taken, key=lambda pair: pair[0])]

    def _score(self, t_s: float, text: str, alike: int, lines: int) -> float:
        score = 3.0 * grave(text) + 2.0 * bool(_DECIDES.search(text[:4096])) - 2.0 * follows_only(text)
        score += 0.8 * math.log10(max(lines, 1) / alike)
        if math.isfinite(t_s):
            away_s = t_s - self.onset_s
            score += 2.0 * math.exp(-abs(away_s) / NEAR_S) + 0.5 * (away_s > -NEAR_S)
        return score


def _cut(text: str) -> str:
    return text if len(text) <= MAX_LINE else f"{text[: MAX_LINE // 2]}…{text[-MAX_LINE // 2 :]}"


def _numbers(item: Evidence) -> str:
    """A series in one line, as it stands in it."""
    try:
        return str(json.loads(item.content)["summary"])
    except (KeyError, ValueError):
        return "no values"
