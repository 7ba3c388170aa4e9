"""A job's logs as evidence: all ranks condensed together to the lines that matter, and which rank spoke of trouble
first.

Ranks live on nodes whose clocks differ, so "first" is told as before, concurrent or after, by the clocks' stated
uncertainty; two lines of one clock need no margin.

Gigabytes are condensed before any person or model reads them, in two steps. *Mining* is streaming and cheap: every
word with a digit becomes `#`, so that a line becomes its template; templates are counted, and the first line of
each is kept per source. *Condensing* ranks templates by what tells a cause from chatter: words of trouble, rarity,
being new since the onset, nearness to it, and being first: a template that many ranks print is kept once, with the
rank that printed it first. Lines that only follow (an abort of the process group, a SIGTERM) rank lower.

The idea of templates is Drain's (He et al., ICWS 2017); the mask is coarser, so that it runs at the speed of `re`.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from pydantic import BaseModel, ConfigDict, Field

from nightshift.agent.rca.bundle import EvidenceLedger
from nightshift.collectors.frame import Instant, LogRecord, Order
from nightshift.collectors.history import History
from nightshift.collectors.subject import Inventory, Subject, SubjectKind

# One pass in C, after which the pattern has to know one digit only.
_DIGITS = bytes.maketrans(b"123456789", b"000000000")
_WORD = re.compile(rb"(?<![A-Za-z_-])[A-Za-z_-]*0[\w-]*(?:[.:/][\w-]*0[\w-]*)*")
_STAMP = re.compile(
    rb"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?\s?(Z|[+-]\d\d:?\d\d)?|^\[?\s*(\d{9,10}\.\d+)\]?"
)
_TROUBLE = re.compile(
    rb"(?i)\b(?:error|err|fail(?:ed|ure|s)?|fatal|exception|traceback|s?xid|nan|killed|out of memory|oom\w*|timeout"
    rb"|timed? ?out|abort\w*|corrupt\w*|uncorrect\w*|(?:un)?contained|fallen|ecc|refused|lost|panic|segfault"
    rb"|illegal|denied|unreachable|mismatch|overflow|diverg\w*|hang|stuck|stall\w*|exceeded|no space|not responding"
    rb"|critical|throttl\w*|retr(?:y|ies|ying)|broken|reset|invalid|cannot|unable|remap\w*|pending|degraded|down)\b"
    rb"|[A-Z]\w+Error"
)
_CALM = re.compile(rb"\b(?:INFO|DEBUG|TRACE)\b")
_GRAVE = re.compile(
    rb"\b(?:ERROR|FATAL|CRITICAL|CRIT|EMERG|PANIC)\b|NVRM: Xid|Out of memory|out of memory|MCE|AER: "
)
# What ranks print because another died: first in many logs, and never the cause.
_FOLLOWS = re.compile(
    rb"(?i)SIGTERM|SIGABRT|SIGKILL|process group|watchdog|torchelastic|ChildFailed|communicator (?:was )?aborted"
    rb"|connection (?:closed|reset) by peer|terminat|shutting down|RemoteDisconnected|broken pipe"
    rb"|Xid [^:]*: (?:43|45),"
)
# Counters that stand at zero: healthy step lines of Megatron say "number of nan iterations: 0".
_ZERO = re.compile(
    rb"(?i)\b(?:number|count|total) of [\w -]{1,40}[:=]\s*0(?![\w.])"
    rb"|\b\w*(?:errors|failures|retries|timeouts|drops|nans|iterations)\s*[:=]\s*0(?![\w.])"
)
# A cautious figure for English and log text under byte-pair encodings.
CHARS_PER_TOKEN = 4.0


class Settings(BaseModel):
    """Bounds of mining and condensing."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    budget_tokens: int = Field(default=6000, ge=100, description="Most tokens that condensing keeps")
    max_templates: int = Field(default=100_000, ge=100, description="Most distinct templates")
    max_line: int = Field(default=1000, ge=80, description="Longer lines are cut (bytes)")
    near_s: float = Field(default=300.0, gt=0, description="How near to the onset counts (s)")
    before_s: float = Field(default=120.0, ge=0, description="So much before the onset still counts as new (s)")


@dataclass
class _Template:
    """A template of one kind of line: how often it was seen, in which sources, and its first line by time."""

    count: int = 0
    sources: set[str] = field(default_factory=set)
    first_s: float = math.inf
    first_source: str = ""
    first_line: bytes = b""


@dataclass(frozen=True, slots=True)
class CondensedLine:
    """A line that was kept, with how often its kind was seen; `t_s` (Unix s) is NaN where the line has no time."""

    t_s: float
    source: str
    text: str
    count: int
    sources: int
    score: float

    def __str__(self) -> str:
        more = f" (×{self.count} in {self.sources} sources)" if self.count > 1 else ""
        return f"[{self.source}] {self.text}{more}"


class LogMiner:
    """Takes logs in pieces, source by source, and condenses them on request. Memory is bounded by the settings."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.lines = 0
        self.bytes = 0
        self._templates: dict[bytes, _Template] = {}
        self._seen: dict[str, set[bytes]] = defaultdict(set)
        self._rest: dict[str, bytes] = {}

    def add(self, source: str, data: bytes) -> None:
        """A piece of a source's log, in order; a line may be split between pieces."""
        self.bytes += len(data)
        data = self._rest.pop(source, b"") + data
        cut = data.rfind(b"\n")
        # a log without line ends (a progress bar) must not grow without bound
        if cut < 0 and len(data) < 2**22:
            self._rest[source] = data
            return
        self._rest[source] = data[cut + 1 :]
        self._mine(source, data[:cut] if cut >= 0 else data)

    def finish(self) -> None:
        """Takes last lines that do not end with a newline."""
        for source, data in list(self._rest.items()):
            if data:
                self._mine(source, data)
        self._rest.clear()

    def _mine(self, source: str, data: bytes) -> None:
        masks = _WORD.sub(b"#", data.translate(_DIGITS)).split(b"\n")
        # by template, not by line: that is what keeps gigabytes at the speed of `re`
        counts = Counter(masks)
        self.lines += len(masks)
        seen = self._seen[source]
        fresh = counts.keys() - seen
        if fresh:
            lines = data.split(b"\n")
            for mask, line in zip(masks, lines, strict=True):
                if mask in fresh:
                    fresh.discard(mask)
                    self._first(source, mask, line)
                    if not fresh:
                        break
            seen |= counts.keys()
        for mask, count in counts.items():
            template = self._templates.get(mask)
            if template is not None:
                template.count += count

    def _first(self, source: str, mask: bytes, line: bytes) -> None:
        template = self._templates.get(mask)
        if template is None:
            # bounded memory: hostile or binary logs make a template of every line
            if len(self._templates) >= self.settings.max_templates:
                return
            template = self._templates[mask] = _Template()
        template.sources.add(source)
        t_s = time_of(line)
        if not template.first_line or t_s < template.first_s:
            template.first_s, template.first_source = (math.inf if math.isnan(t_s) else t_s), source
            template.first_line = line[: self.settings.max_line]

    def condense(self, onset_s: float | None = None) -> list[CondensedLine]:
        """The lines that matter most within the budget, in order of time."""
        self.finish()
        families = self._families()
        ranked = sorted(
            (self._kept(members, onset_s) for members in families), key=lambda k: (-k.score, k.t_s, k.text)
        )
        room = self.settings.budget_tokens * CHARS_PER_TOKEN
        chosen = []
        for kept in ranked:
            size = len(str(kept)) + 1
            if size <= room:
                room -= size
                chosen.append(kept)
        return sorted(chosen, key=lambda k: (math.inf if math.isnan(k.t_s) else k.t_s, -k.score, k.text))

    def _families(self) -> list[list[_Template]]:
        """Templates of like lines: as many words, and most of them equal, such as lines with user names."""
        buckets: dict[tuple[int, bytes], list[tuple[list[bytes], list[_Template]]]] = defaultdict(list)
        for mask, template in self._templates.items():
            words = mask.split()
            if not words:
                continue
            bucket = buckets[len(words), words[0]]
            # comparing each with all others is quadratic; like lines begin alike and come early
            for known, members in bucket[:50]:
                alike = sum(a == b for a, b in zip(words, known, strict=True))
                if alike >= 0.75 * len(words):
                    members.append(template)
                    break
            else:
                bucket.append((words, [template]))
        return [members for bucket in buckets.values() for _, members in bucket]

    def _kept(self, members: list[_Template], onset_s: float | None) -> CondensedLine:
        first = min(members, key=lambda t: (t.first_s, t.first_line))
        count = sum(t.count for t in members)
        sources = set().union(*(t.sources for t in members))
        line = first.first_line
        # a line that comes once in a million says more than one that comes every step
        score = 0.8 * math.log10(max(self.lines, 1) / max(count, 1))
        score += (
            3.0 * bool(_TROUBLE.search(_ZERO.sub(b"", line)))
            + 2.0 * bool(_GRAVE.search(line))
            - 1.0 * bool(_CALM.search(line))
        )
        score -= 2.0 * bool(_FOLLOWS.search(line))
        if onset_s is not None and math.isfinite(first.first_s):
            away_s = first.first_s - onset_s
            score += 2.0 * (away_s >= -self.settings.before_s) + 2.0 * math.exp(-abs(away_s) / self.settings.near_s)
        t_s = first.first_s if math.isfinite(first.first_s) else math.nan
        return CondensedLine(t_s, first.first_source, line.decode(errors="replace"), count, len(sources), score)


def time_of(line: bytes) -> float:
    """The time that a line begins with (Unix s), ISO or seconds; NaN where it has none."""
    # a time further on is what the line speaks of, not when it was written
    match = _STAMP.search(line[:64])
    if match is None:
        return math.nan
    if match.group(5):
        return float(match.group(5))
    # containers run in UTC unless somebody says otherwise
    zone = (match.group(4) or b"Z").decode()
    text = f"{match.group(1).decode()}T{match.group(2).decode()}{'+00:00' if zone == 'Z' else zone}"
    try:
        whole = datetime.fromisoformat(text)
    except ValueError:
        return math.nan
    if whole.tzinfo is None:
        whole = whole.replace(tzinfo=UTC)
    return whole.timestamp() + float(b"0." + (match.group(3) or b"0"))


def grave(line: str) -> bool:
    """Whether a line tells of something that stops work, rather than of a retry or a warning."""
    # lines of megabytes exist; what is wrong stands near the beginning
    text = _ZERO.sub(b"", line.encode(errors="replace")[:4096])
    return bool(_GRAVE.search(text) or (_TROUBLE.search(text) and not _CALM.search(text) and b"WARN" not in text))


def mask_of(line: str) -> bytes:
    """A line's template: every word with a digit as `#`."""
    return _WORD.sub(b"#", line.encode(errors="replace")[:4096].translate(_DIGITS))


def follows_only(line: str) -> bool:
    """Whether a line tells only of what follows when another rank died."""
    return bool(_FOLLOWS.search(line.encode(errors="replace")[:4096]))


def condense(
    sources: Iterable[tuple[str, bytes]], onset_s: float | None = None, settings: Settings | None = None
) -> list[CondensedLine]:
    """Mines and condenses logs that fit into memory."""
    miner = LogMiner(settings)
    for source, data in sources:
        miner.add(source, data)
    return miner.condense(onset_s)


_K = SubjectKind
BUDGET_TOKENS = 1500
MAX_LINES = 200_000
"""Most lines that are mined for one incident; each rank gets an equal share, those nearest the onset first."""
# Trouble that a rank told of so long before the onset may still be its beginning.
EARLIER_S = 120.0


@dataclass(frozen=True, slots=True)
class FirstLine:
    """The first grave line of one source that does not only follow from another's."""

    source: str
    at: Instant
    text: str


def sources_of(
    job: Subject, history: History, inventory: Inventory, when_s: float, ledger: EvidenceLedger
) -> dict[str, list[LogRecord]]:
    """The lines of everything that belongs to the job, by the name of who wrote them."""
    found: dict[str, list[LogRecord]] = {}
    members: Iterable[Subject] = [
        job,
        *(s for kind in (_K.RANK, _K.POD, _K.CONTAINER) for s in sorted(inventory.below(job, kind, when_s))),
    ]
    # three per rank: its rank, pod and container may each have a log
    members = list(dict.fromkeys(members))[: 3 * ledger.limits.max_ranks]
    share = max(20, MAX_LINES // max(1, len(members)))
    for member in members:
        lines = history.logs(member, ledger.start_s, ledger.at_s)
        if lines:
            nearest = sorted(lines, key=lambda r: abs(r.at.t_s - ledger.onset_s))[:share]
            found[str(member)] = sorted(nearest, key=lambda r: (r.at.t_s, r.offset))
    return found


def condensed(sources: dict[str, list[LogRecord]], job: Subject, ledger: EvidenceLedger) -> None:
    """Adds the lines that matter, and how often each kind of line was seen and where."""
    if not sources:
        return
    miner = LogMiner(Settings(budget_tokens=BUDGET_TOKENS))
    by_text: dict[tuple[str, str], LogRecord] = {}
    for name, records in sources.items():
        rows = []
        for record in records:
            row = f"{record.at.t_s:.3f} {_flat(record.text)}"[: miner.settings.max_line]
            rows.append(row)
            by_text.setdefault((name, row), record)
        miner.add(name, ("\n".join(rows) + "\n").encode(errors="replace"))
    kept = miner.condense(ledger.onset_s)
    pairs = [(k, by_text.get((k.source, k.text))) for k in kept]
    records = [record for _, record in pairs if record is not None]
    title = f"lines that matter of {len(sources)} logs ({len(records)} of {miner.lines} lines)"
    ledger.log(("condensed", str(job)), records, title)
    templates = [
        {
            "first": _flat(record.text)[:200],
            "first_in": k.source,
            "first_s": k.t_s,
            "count": k.count,
            "sources": k.sources,
            "new": "yes" if k.t_s >= ledger.onset_s - EARLIER_S else "no",
        }
        for k, record in pairs
        if record is not None
    ]
    body = {"logs": len(sources), "lines": miner.lines, "templates": templates[:60]}
    ledger.facts(("templates", str(job)), "log mining", str(job), "kinds of lines, how often and where", body)


def first_lines(sources: dict[str, list[LogRecord]], job: Subject, ledger: EvidenceLedger) -> list[FirstLine]:
    """Adds each rank's first grave line, and how they lie in time to the very first. Answers them, first first."""
    found: list[FirstLine] = []
    records = []
    for name, lines in sources.items():
        for record in lines:
            text = _flat(record.text)
            if record.at.t_s >= ledger.onset_s - EARLIER_S and grave(text) and not follows_only(text):
                found.append(FirstLine(name, record.at, text))
                records.append(record)
                break
    if not found:
        return []
    found.sort(key=lambda line: (line.at.t_s, line.source))
    records.sort(key=lambda record: record.at.t_s)
    title = f"the first grave line of each of {len(found)} logs"
    ledger.log(("first_lines", str(job)), records, title)
    head = found[0]
    order = [
        {
            "source": line.source,
            "t_s": line.at.t_s,
            "uncertainty_s": line.at.uncertainty_s,
            "clock": line.at.clock,
            "to_first": "first" if line is head else _word(head.at, line.at),
            "text": line.text[:200],
        }
        for line in found[:64]
    ]
    rivals = [line.source for line in found[1:] if _word(head.at, line.at) == Order.CONCURRENT]
    body = {
        "first": head.source,
        "alone": "no" if rivals else "yes",
        "concurrent": " ".join(rivals[:20]),
        "logs_with_trouble": len(found),
        "order": order,
    }
    ledger.facts(("order", str(job)), "job logs", str(job), "which rank spoke of trouble first", body)
    return found


def _word(first: Instant, other: Instant) -> str:
    """How `other` lies to `first`: after or concurrent (never before: `first` has the smallest time)."""
    known = all(math.isfinite(i.t_s) and math.isfinite(i.uncertainty_s) for i in (first, other))
    return str(other.order(first)) if known else str(Order.CONCURRENT)


def _flat(text: str) -> str:
    return text.replace("\n", "\\n").replace("\r", "\\r")
