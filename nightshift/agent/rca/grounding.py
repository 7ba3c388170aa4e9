"""Says again whether a claim is true, from the evidence's bytes alone: what does not hold is dropped and counted.

A true quote proves nothing about the conclusion drawn from it, so each claim is a predicate that is evaluated here,
whoever made it. Each number of a rule's sentence is evaluated, too (`agent.rca.figures`). A claim holds
only if its evidence still hashes to what it hashed to when the claim was made, its quotes stand in that evidence
byte for byte, and its predicate is true of it.

    rose, fell    series: the median of the last values differs from that before `split_s` by `at_least` [unit]
                  and by more than three robust standard deviations of the values before: noise also rises
    preceded      the first evidence's moment lies before the second's by more than `margin_s` and more than their
                  clocks' uncertainty; a moment is the time of the quoted line, or when a series first reached
                  `level` (uncertain by the gap to the value before; one that begins there tells no moment)
    co_located    facts of the inventory: `one` and `other`, two, share the place `place`, less than the cluster
    absent        none of `patterns` (one per line, ASCII, a few words) stands in a log whose own source was seen to
                  be `ok` all along, nor in a line of it in other words ("Xid 79" is written otherwise) or with more
                  beside it: a look-alike, or "Xid 79 at last", is absent everywhere
    equals        facts: the value at `path` (dots between keys) is `value`; logs beside it are there to be quoted
    repeated      log: lines with `pattern`; series: values of at least `level`; either at least `times`

A model's own sentence may say more than its predicate proves ("the cooling failed", over a true quote). So what
people read of a model's claim is written here, from what was checked. What a sentence of its hypothesis may say:
`agent.rca.sentences`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from nightshift.agent.rca.figures import (
    TAIL,
    Ungrounded,
    at_path,
    both_sides,
    facts_of,
    median,
    series_of,
    unproven,
)
from nightshift.agent.store.diagnosis import (
    FACTS,
    FIGURES,
    LOG,
    SERIES,
    Claim,
    Diagnosis,
    Evidence,
    Predicate,
    Quote,
)
from nightshift.collectors.frame import Instant, Order

MIN_QUOTE_CHARS = 3
MAX_QUOTE_CHARS = 500
MAX_PATTERN_WORDS = 6
# From the median absolute deviation to the standard deviation of normal noise (Rousseeuw & Croux 1993).
MAD_TO_SIGMA = 1.4826


@dataclass(frozen=True)
class Grounded:
    """The claims that hold, in order, and those that fell, each with the reason."""

    held: tuple[Claim, ...]
    fell: tuple[tuple[Claim, str], ...]


def bind(claim: Claim, evidence: Iterable[Evidence]) -> Claim:
    """The claim with the present hashes of its evidence: done once, when it is made."""
    hashes = {item.id: item.sha256 for item in evidence if item.id in claim.evidence_ids}
    return replace(claim, evidence_sha256=hashes)


def ground(claims: Iterable[Claim], evidence: Sequence[Evidence]) -> Grounded:
    """Re-evaluates every claim over the evidence."""
    held: list[Claim] = []
    fell: list[tuple[Claim, str]] = []
    for claim in claims:
        reason = why_not(claim, evidence)
        if reason is None:
            held.append(claim)
        else:
            fell.append((claim, reason))
    return Grounded(tuple(held), tuple(fell))


def reground(diagnosis: Diagnosis) -> Diagnosis:
    """A stored diagnosis as it may be shown now: only claims that still hold, the others counted as dropped."""
    grounded = ground(diagnosis.claims, diagnosis.evidence)
    return replace(diagnosis, claims=grounded.held, dropped=diagnosis.dropped + len(grounded.fell))


def why_not(claim: Claim, evidence: Sequence[Evidence]) -> str | None:
    """Why a claim does not hold over the evidence, or None where it does."""
    by_id: dict[str, Evidence] = {}
    for item in evidence:
        # else a claim could be checked on one item and shown with the other
        if item.id in by_id:
            return f"evidence {item.id} is there twice"
        by_id[item.id] = item
    try:
        _check_shape(claim, by_id)
        items = [by_id[name] for name in claim.evidence_ids]
        _EVALUATE[claim.predicate](claim, items)
        # what was stored before numbers had lines has none to check
        if FIGURES in claim.arguments and (wrong := unproven(claim, items)):
            raise Ungrounded("; ".join(wrong))
    except Ungrounded as reason:
        return str(reason)
    return None


def _check_shape(claim: Claim, by_id: Mapping[str, Evidence]) -> None:
    if not claim.evidence_ids:
        raise Ungrounded("it cites no evidence")
    for name in claim.evidence_ids:
        if name not in by_id:
            raise Ungrounded(f"evidence {name} does not exist")
        if claim.evidence_sha256.get(name) != by_id[name].sha256:
            raise Ungrounded(f"evidence {name} is not what the claim was made on")
    for quote in claim.quotes:
        if quote.evidence_id not in claim.evidence_ids:
            raise Ungrounded(f"it quotes {quote.evidence_id}, which it does not cite")
        if not MIN_QUOTE_CHARS <= len(quote.text) <= MAX_QUOTE_CHARS:
            raise Ungrounded(
                f"a quote of {len(quote.text)} characters is not {MIN_QUOTE_CHARS} to {MAX_QUOTE_CHARS}"
            )
        if not has_words(quote.text):
            raise Ungrounded("a quote without a word says nothing")
        # bytes: decoded with replacement, two different texts may look alike
        if _bytes(quote) not in by_id[quote.evidence_id].content:
            raise Ungrounded(f"the quote is not in {quote.evidence_id}")


def _bytes(quote: Quote) -> bytes:
    try:
        return quote.text.encode()
    except UnicodeEncodeError:
        raise Ungrounded("the quote is not valid text") from None


_WORDY = re.compile(r"[^\W_]")


def has_words(text: str, least: int = MIN_QUOTE_CHARS) -> bool:
    """Whether a text has so many letters and digits: "): " is in every line of the kernel log."""
    return len(_WORDY.findall(text)) >= least


def _number(claim: Claim, name: str, default: float | None = None) -> float:
    value = claim.arguments.get(name, default)
    try:
        found = math.nan if value is None else float(value)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise Ungrounded(f"argument {name} is not a finite number")
    return found


def _text(claim: Claim, name: str) -> str:
    value = claim.arguments.get(name)
    if not isinstance(value, str) or not value:
        raise Ungrounded(f"argument {name} is missing")
    return value


def lines_of(item: Evidence) -> list[tuple[float, str]]:
    """(t_s, text) of each line of a log item; a line without a readable time has NaN."""
    return [(at.t_s, text) for at, text in dated_lines(item)]


_WHEN = re.compile(r"(-?\d+(?:\.\d+)?)(?:±(\d+(?:\.\d+)?))?(?:@(\S+))?")


def dated_lines(item: Evidence) -> list[tuple[Instant, str]]:
    """Each line of a log item with its time, its uncertainty and whose clock it was; NaN where not readable."""
    if item.media_type != LOG:
        raise Ungrounded(f"{item.id} is not a log")
    found = []
    for line in item.content.decode(errors="replace").split("\n"):
        when, tab, text = line.partition("\t")
        match = _WHEN.fullmatch(when)
        if tab and match is not None:
            found.append((Instant(float(match[1]), float(match[2] or 0.0), match[3] or item.id), text))
        elif tab:
            found.append((Instant(math.nan), line))
    return found


def _change(claim: Claim, item: Evidence) -> float:
    before, after = both_sides(item, _number(claim, "split_s"))
    usual = median(before)
    change, noise = median(after[-TAIL:]) - usual, MAD_TO_SIGMA * median([abs(value - usual) for value in before])
    if abs(change) <= 3.0 * noise:
        raise Ungrounded(f"{item.id} changed by {change:g}, which its noise of {noise:g} does also")
    return change


def _rose(claim: Claim, items: list[Evidence], sign: float = 1.0) -> None:
    at_least = _number(claim, "at_least")
    if at_least <= 0:
        raise Ungrounded("at_least must be above zero")
    for item in items:
        change = _change(claim, item)
        # `not >=`, so that NaN does not pass
        if not sign * change >= at_least:
            raise Ungrounded(f"{item.id} changed by {change:g}, not {sign * at_least:g}")


def _fell(claim: Claim, items: list[Evidence]) -> None:
    _rose(claim, items, -1.0)


def _moment(claim: Claim, item: Evidence) -> Instant:
    if item.media_type == SERIES:
        level, before_s = _number(claim, "level"), math.nan
        for t_s, value in series_of(item):
            if value >= level and math.isnan(before_s):
                raise Ungrounded(
                    f"{item.id} begins at {level:g} or more: the time it first reached that is unknown"
                )
            if value >= level:
                # the level was reached anywhere between the two samples
                gap_s = t_s - before_s if t_s >= before_s else 0.0
                return Instant(t_s - gap_s / 2, gap_s / 2, item.id)
            before_s = t_s
        raise Ungrounded(f"{item.id} never reached {level:g}")
    quotes = [quote.text for quote in claim.quotes if quote.evidence_id == item.id]
    if not quotes:
        raise Ungrounded(f"it quotes no line of {item.id}")
    return _first(item, quotes[0])


def _first(item: Evidence, quote: str) -> Instant:
    times = [at for at, text in dated_lines(item) if quote in text and math.isfinite(at.t_s)]
    if not times:
        raise Ungrounded(f"the quoted line of {item.id} has no time")
    return min(times, key=lambda at: at.t_s)


def _preceded(claim: Claim, items: list[Evidence]) -> None:
    margin_s = _number(claim, "margin_s", 0.0)
    if margin_s < 0:
        raise Ungrounded("margin_s must not be negative")
    if len(items) == 1 and items[0].media_type == LOG and len(claim.quotes) == 2:
        first, second = (_first(items[0], quote.text) for quote in claim.quotes)
    elif len(items) == 2:
        first, second = (_moment(claim, item) for item in items)
    else:
        raise Ungrounded("it needs two moments")
    if replace(first, t_s=first.t_s + margin_s).order(second) is not Order.BEFORE:
        # two readings of one clock share its error
        unsure_s = 0.0 if first.clock == second.clock else first.uncertainty_s + second.uncertainty_s
        raise Ungrounded(
            f"the first came {second.t_s - first.t_s:g} s before the second, not more than"
            f" {margin_s + unsure_s:g} s: which came first is unknown"
        )


def _co_located(claim: Claim, items: list[Evidence]) -> None:
    one, other, place = (_text(claim, name) for name in ("one", "other", "place"))
    if one == other:
        raise Ungrounded("one thing is always together with itself")
    if place.startswith("cluster:"):
        raise Ungrounded("everything is in the cluster")
    for item in items:
        facts = facts_of(item) if item.media_type == FACTS else None
        above = facts.get("above") if isinstance(facts, dict) else None
        if not isinstance(above, dict):
            raise Ungrounded(f"{item.id} holds no relations")
        for subject in (one, other):
            if subject != place and place not in above.get(subject, ()):
                raise Ungrounded(f"{item.id} does not put {subject} on {place}")


def _absent(claim: Claim, items: list[Evidence]) -> None:
    logs, facts = ([i for i in items if i.media_type == kind] for kind in (LOG, FACTS))
    if not logs or not facts:
        raise Ungrounded("absence needs a log and the state of its source")
    _check_sources(logs, facts)
    for pattern in _patterns(claim):
        for item in logs:
            told = any(_tells(text, pattern) for _, text in lines_of(item))
            if told or pattern.encode() in item.content:
                raise Ungrounded(f"{pattern!r} is in {item.id}")


def _check_sources(logs: Sequence[Evidence], states: Sequence[Evidence]) -> None:
    """A log in which nothing stands proves nothing unless its own source was seen to be well all along."""
    for item in states:
        state = facts_of(item)
        if not isinstance(state, dict) or state.get("ok") is not True:
            raise Ungrounded(f"{item.id}: no proof that the source was healthy")
    # the health of another node's log says nothing of this one
    if strange := [log.id for log in logs if log.query not in {item.query for item in states}]:
        raise Ungrounded(f"no data on the health of the source of {', '.join(strange)}")


def _patterns(claim: Claim) -> list[str]:
    patterns = [pattern for pattern in _text(claim, "patterns").split("\n") if pattern.strip()]
    if not patterns:
        raise Ungrounded("the claim does not name what is absent")
    for pattern in patterns:
        # a look-alike letter or a whole sentence is absent from any log, whatever the log says
        if not pattern.isascii() or len(_words(pattern)) > MAX_PATTERN_WORDS:
            raise Ungrounded(f"{pattern!r} is not ASCII or too long: a log that says it would be written otherwise")
    return patterns


def _tells(text: str, pattern: str) -> bool:
    """Whether a line says what a pattern says: its numbers and a word with them, else two thirds of its words."""
    wanted = _words(pattern)
    there = wanted & _words(text)
    numbers = {word for word in wanted if word.isdecimal()}
    if numbers:
        return numbers <= there and (there > numbers or wanted == numbers)
    return bool(wanted) and 3 * len(there) >= 2 * len(wanted)


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"[^\W_]+", text.lower()))


def _equals(claim: Claim, items: list[Evidence]) -> None:
    wanted = claim.arguments.get("value")
    facts = [item for item in items if item.media_type == FACTS]
    if not facts:
        raise Ungrounded("it cites no facts")
    for item in facts:
        found = at_path(item, _text(claim, "path"))
        # True == 1 to Python: a claim of the number would hold on a flag
        if isinstance(found, bool) or not isinstance(found, int | float | str):
            raise Ungrounded(f"{item.id}: {claim.arguments['path']} is not a value")
        if isinstance(found, str) != isinstance(wanted, str) or found != wanted:
            raise Ungrounded(f"{item.id}: {claim.arguments['path']} is {found!r}, not {wanted!r}")


def _repeated(claim: Claim, items: list[Evidence]) -> None:
    times = _number(claim, "times")
    if times < 2:
        raise Ungrounded("once is not repeated")
    for item in items:
        if item.media_type == SERIES:
            level = _number(claim, "level")
            count = sum(value >= level for _, value in series_of(item))
        else:
            pattern = _text(claim, "pattern")
            if not has_words(pattern):
                raise Ungrounded(f"{pattern!r} matches anything")
            count = sum(pattern in text for _, text in lines_of(item))
        if count < times:
            raise Ungrounded(f"{item.id} shows it {count} times, not {times:g}")


_EVALUATE: dict[Predicate, Callable[[Claim, list[Evidence]], None]] = {
    Predicate.ROSE: _rose,
    Predicate.FELL: _fell,
    Predicate.PRECEDED: _preceded,
    Predicate.CO_LOCATED: _co_located,
    Predicate.ABSENT: _absent,
    Predicate.EQUALS: _equals,
    Predicate.REPEATED: _repeated,
}


_P = Predicate
_MAX = 120


def sentence_of(claim: Claim, evidence: Sequence[Evidence]) -> str:
    """What a claim that held says, in our words. Raises ValueError where its evidence cannot be read."""
    items = [item for name in claim.evidence_ids for item in evidence if item.id == name]
    return _WORDS[claim.predicate](claim, items)


def _signal(item: Evidence) -> str:
    if item.media_type != SERIES:
        return _cut(item.title or item.id)
    body = json.loads(item.content)
    return f"{_cut(str(body.get('metric', '')))} of {_cut(str(body.get('subject', '')))}"


def _unit(item: Evidence) -> str:
    unit = str(json.loads(item.content).get("unit", "")) if item.media_type == SERIES else ""
    return f" {_cut(unit)}" if unit else ""


def _changed(word: str) -> Callable[[Claim, Sequence[Evidence]], str]:
    def say(claim: Claim, items: Sequence[Evidence]) -> str:
        least, split_s = float(claim.arguments["at_least"]), float(claim.arguments["split_s"])
        names = " and ".join(_signal(item) for item in items)
        return f"{names} {word} by at least {least:.4g}{_unit(items[0])} after {clock_of(split_s)}"

    return say


def _preceded_words(claim: Claim, items: Sequence[Evidence]) -> str:
    one_log = len(items) == 1
    pair = [items[0], items[-1]]
    if one_log:
        moments = [_first(items[0], quote.text) for quote in claim.quotes]
    else:
        moments = [_moment(claim, item) for item in items]
    first, second = (_event(claim, item, number, one_log) for number, item in enumerate(pair))
    return f"{first} came {_apart(moments[1].t_s - moments[0].t_s)} before {second}"


def _event(claim: Claim, item: Evidence, number: int, one_log: bool) -> str:
    """What a moment is of: a quoted line, or a series that reached a level."""
    if item.media_type == SERIES:
        return f"{_signal(item)} reaching {float(claim.arguments['level']):.4g}{_unit(item)}"
    quotes = claim.quotes if one_log else [quote for quote in claim.quotes if quote.evidence_id == item.id]
    text = quotes[number if one_log else 0].text
    return f"'{_cut(text)}'"


def _apart(seconds: float) -> str:
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _co_located_words(claim: Claim, items: Sequence[Evidence]) -> str:
    one, other, place = (_cut(str(claim.arguments[name])) for name in ("one", "other", "place"))
    return f"{one} and {other} are both at {place}"


def _absent_words(claim: Claim, items: Sequence[Evidence]) -> str:
    patterns = [_cut(p) for p in str(claim.arguments["patterns"]).split("\n") if p]
    logs = " and ".join(_cut(item.title or item.id) for item in items if item.media_type != FACTS)
    return f"no line says {' or '.join(repr(p) for p in patterns)} in {logs}"


def _equals_words(claim: Claim, items: Sequence[Evidence]) -> str:
    value = claim.arguments["value"]
    said = f"{value:g}" if isinstance(value, float | int) else _cut(str(value))
    of = " and ".join(_cut(item.title or item.id) for item in items if item.media_type == FACTS)
    return f"{of}: {_cut(str(claim.arguments['path']))} is {said}"


def _repeated_words(claim: Claim, items: Sequence[Evidence]) -> str:
    times = float(claim.arguments["times"])
    if items[0].media_type == SERIES:
        return f"{_signal(items[0])} was at least {float(claim.arguments['level']):.4g} {times:.0f} times or more"
    named = _cut(items[0].title or items[0].id)
    return f"{_cut(str(claim.arguments['pattern']))!r} came at least {times:.0f} times in {named}"


def clock_of(t_s: float) -> str:
    """A time of day, as in every sentence of ours."""
    try:
        return datetime.fromtimestamp(t_s, UTC).strftime("%H:%M:%S")
    except (OverflowError, OSError, ValueError):
        return f"{t_s:g}"


def _cut(text: str) -> str:
    return text if len(text) <= _MAX else f"{text[: _MAX - 1]}…"


_WORDS: dict[Predicate, Callable[[Claim, Sequence[Evidence]], str]] = {
    _P.ROSE: _changed("rose"),
    _P.FELL: _changed("fell"),
    _P.PRECEDED: _preceded_words,
    _P.CO_LOCATED: _co_located_words,
    _P.ABSENT: _absent_words,
    _P.EQUALS: _equals_words,
    _P.REPEATED: _repeated_words,
}
