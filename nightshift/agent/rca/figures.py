"""The numbers of a sentence. Each is written from one evidence item, and evaluated again before it is shown.

A figure is its text and how it came about: an operation, an evidence id, and arguments. A claim keeps one line per
number, in the order of its sentence (`FIGURES` of its arguments), so a number without a line is found at once:

    fact E1 facts.ratio            the value at a path of facts
    time E3 1772416800.0           a moment; the series has a value there
    first, last, change E3 T       medians to both sides of the moment T, as `rose` and `fell` compare them
    start, end, growth E3 T        the last value up to T, the newest, and what lies between them
    lasted, pace E3 T              from T to the newest value [s], and the growth by the hour over it
    count, top E3 LEVEL            how many values are at least LEVEL, and the highest

The text is read back by its own unit, and may differ from the value by its rounding alone.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nightshift.agent.store.diagnosis import FACTS, FIGURES, SERIES, Claim, Evidence
from nightshift.agent.units import clock_time

TAIL = 5
"""The newest values: what rose and came back has not risen."""
_BY_UNIT = {
    "GiB": 2.0**30, "MiB": 2.0**20, "GiB/h": 2.0**30, "MiB/h": 2.0**20, "min": 60.0, "h": 3600.0, "ms": 1e-3,
    "%": 1e-2,
}  # fmt: skip
_NUMERAL = re.compile(
    r"(?<![\w./#:@+-])(?:\d{2}:\d{2}:\d{2}|[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?)(?!\w)(?![.:/-]\w)"
    r"(?: ?(?:GiB/h|MiB/h|GiB|MiB|min|ms|h|%)(?![\w/]))?"
)
_DAY_S = 86_400.0


class Ungrounded(Exception):
    """Why a claim does not hold; said to people, never raised out of `agent.rca`."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A number as its sentence writes it, and how it is evaluated."""

    text: str
    how: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence and its figures, in the order in which it writes them."""

    text: str
    figures: tuple[Figure, ...] = ()

    @property
    def lines(self) -> str:
        return "\n".join(f"{figure.text}={figure.how}" for figure in self.figures)


def say(*parts: str | Figure) -> Sentence:
    """A sentence of words and figures."""
    return Sentence("".join(map(str, parts)), tuple(part for part in parts if isinstance(part, Figure)))


def series_of(item: Evidence) -> list[tuple[float, float]]:
    """(t_s, value) pairs of a series, missing values left out. Raises Ungrounded where it is not one."""
    if item.media_type != SERIES:
        raise Ungrounded(f"{item.id} is not a series")
    read = facts_of(item)
    try:
        pairs = [
            (float(t), float(v)) for t, v in zip(read["t_s"], read["values"], strict=True) if None not in (t, v)
        ]
    except (KeyError, TypeError, ValueError):
        raise Ungrounded(f"{item.id} is not a series") from None
    if not pairs:
        raise Ungrounded(f"{item.id} holds no values")
    return pairs


def facts_of(item: Evidence) -> Any:
    """The JSON of an item. Raises Ungrounded."""
    try:
        return json.loads(item.content)
    except ValueError:
        raise Ungrounded(f"{item.id} is not JSON") from None


def at_path(item: Evidence, path: str) -> Any:
    """The value at a path (dots between keys) of facts. Raises Ungrounded where there is none."""
    value = facts_of(item)
    for key in path.split("."):
        if not isinstance(value, dict) or key not in value:
            raise Ungrounded(f"{item.id} has no {path}")
        value = value[key]
    return value


def median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def both_sides(item: Evidence, split_s: float) -> tuple[list[float], list[float]]:
    """The values up to a moment, and those after it. Raises Ungrounded where either side is empty."""
    pairs = series_of(item)
    before, after = [v for t, v in pairs if t <= split_s], [v for t, v in pairs if t > split_s]
    if not before or not after:
        raise Ungrounded(f"{item.id} does not reach to both sides of {split_s}")
    return before, after


def evaluate(how: str, items: Mapping[str, Evidence]) -> float:
    """The value of a figure by its `how`, over evidence by id. Raises Ungrounded."""
    verb, *words = how.split(" ")
    try:
        item, argument = items[words[0]], words[-1]
        if verb == "fact":
            value = float(at_path(item, argument))
        else:
            value = _of_series(verb, item, float(argument))
    except (KeyError, IndexError, TypeError, ValueError):
        raise Ungrounded(f"{how!r} cannot be evaluated") from None
    if not math.isfinite(value):
        raise Ungrounded(f"{how!r} is not a finite number")
    return value


def _of_series(verb: str, item: Evidence, at: float) -> float:
    pairs = series_of(item)
    if verb in ("count", "top"):
        values = [value for _, value in pairs if value >= at]
        return float(len(values)) if verb == "count" else max(values)
    if verb == "time":
        if not any(abs(t - at) < 1e-3 for t, _ in pairs):
            raise Ungrounded(f"{item.id} has no value at {clock_time(at)}")
        return at
    before, after = both_sides(item, at)
    first, last, lasted_s = median(before), median(after[-TAIL:]), pairs[-1][0] - at
    if verb == "pace":
        return 3600.0 * (after[-1] - before[-1]) / lasted_s
    return {
        "first": first,
        "last": last,
        "change": last - first,
        "start": before[-1],
        "end": after[-1],
        "growth": after[-1] - before[-1],
        "lasted": lasted_s,
        "highest": max(after),
        "lowest": min(after),
    }[verb]


def figure_of(item: Evidence, path: str, form: str | Callable[[float], str] = "{:.0f}") -> Figure:
    """A value of facts; `form` is a format, or writes the value. Empty where it is no number."""
    try:
        value = float(at_path(item, path))
    except (Ungrounded, TypeError, ValueError):
        return Figure("", "")
    return Figure(form(value) if callable(form) else form.format(value), f"fact {item.id} {path}")


def bytes_of(item: Evidence, verb: str, at: float, unit: str = "") -> Figure:
    """Bytes in GiB or MiB; `unit` is what follows, such as `/h`."""
    how = f"{verb} {item.id} {at!r}"
    return Figure(f"{size(evaluate(how, {item.id: item}))}{unit}", how)


def reading(item: Evidence, verb: str, at: float, form: str = "{:.3g}") -> Figure:
    """A value of a series in some format."""
    how = f"{verb} {item.id} {at!r}"
    return Figure(form.format(evaluate(how, {item.id: item})), how)


def moment(item: Evidence, at_s: float) -> Figure:
    """The clock time of a value of a series."""
    return Figure(clock_time(at_s), f"time {item.id} {at_s!r}")


def lasting(item: Evidence, at_s: float) -> Figure:
    """From a moment to the newest value of a series."""
    how = f"lasted {item.id} {at_s!r}"
    return Figure(span(evaluate(how, {item.id: item})), how)


def span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def size(value: float) -> str:
    return f"{value / 2.0**30:.2f} GiB" if abs(value) >= 2.0**30 / 10 else f"{value / 2.0**20:.0f} MiB"


# Checked again --------------------------------------------------------------------------------------------------


def numerals(text: str) -> list[str]:
    """The numbers of a text as it writes them, with the units that scale them. A digit in a name is none."""
    return [match[0] for match in _NUMERAL.finditer(text)]


def differs(text: str, value: float) -> bool:
    """Whether a number as written is another than a value, beyond its rounding."""
    if ":" in text:
        hours, minutes, seconds = (int(part) for part in text.split(":"))
        off_s = abs((value - (3600 * hours + 60 * minutes + seconds) + _DAY_S / 2) % _DAY_S - _DAY_S / 2)
        return off_s > 1.0
    match = re.match(r"([-+]?[\d,.]+)(?:e([-+]?\d+))? ?(\S*)", text)
    assert match is not None, text
    digits, scale = match[1].replace(",", ""), _BY_UNIT.get(match[3], 1.0) * 10.0 ** int(match[2] or 0)
    rounding = 0.5 * 10.0 ** -len(digits.partition(".")[2]) * scale
    return abs(float(digits) * scale - value) > rounding * (1 + 1e-6) + 1e-9 * abs(value)


def _own_words(value: Any) -> Iterable[str]:
    """Every text within facts: what evidence says in words is quoted, not computed."""
    if isinstance(value, str):
        yield value
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _own_words(part)


def _without_texts(claim: Claim, items: Mapping[str, Evidence]) -> tuple[str, set[str]]:
    """A claim's sentence without the texts that evidence has word for word, and the numbers that it has as text."""
    texts = [value for name, value in claim.arguments.items() if isinstance(value, str) and name != FIGURES]
    texts += [word for item in items.values() if item.media_type == FACTS for word in _own_words(facts_of(item))]
    texts += [item.title for item in items.values()]
    rest = claim.sentence
    for text in sorted({text for text in texts if numerals(text)}, key=len, reverse=True):
        rest = re.sub(rf"(?<!\w){re.escape(text)}(?!\w)", "…", rest)
    quoted = {word for quote in claim.quotes for word in re.findall(r"\d[\d.]*", quote.text)}
    # people know a rank by its number: `rank 3` of `ml/a#3`
    return rest, quoted | {number for text in texts for number in re.findall(r"#(\d+)\b", text)}


def unproven(claim: Claim, evidence: Iterable[Evidence]) -> list[str]:
    """What is wrong with the numbers of a claim's sentence: none of its figures evaluates to it, or has it."""
    items = {item.id: item for item in evidence if item.id in claim.evidence_ids}
    lines = [line.partition("=") for line in str(claim.arguments.get(FIGURES, "")).split("\n") if line]
    rest, quoted = _without_texts(claim, items)
    value_claimed = claim.arguments.get("value")
    wrong: list[str] = []
    for numeral in numerals(rest):
        if lines and lines[0][0].strip() == numeral:
            text, _, how = lines.pop(0)
            try:
                value = evaluate(how, items)
            except Ungrounded as reason:
                wrong.append(f"{text}: {reason}")
                continue
            if differs(text, value):
                wrong.append(f"it says {text}, and {how} is {value:g}")
        # the predicate proves its own value
        elif isinstance(value_claimed, float) and not differs(numeral, value_claimed):
            continue
        elif numeral not in quoted:
            wrong.append(f"{numeral} comes from no evidence")
    return wrong + [f"{text} is not in its sentence" for text, _, _ in lines]
