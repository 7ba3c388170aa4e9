"""What a model's own sentence may say under its quote. What no rule can decide is shown as "not proven".

A sentence is shown only if its quote is in an item of evidence, byte for byte, and the quoted line bears it:

- *Matter.* They share a word that says more than "GPU" or "node", a state, or a part of the machine.
- *Numbers, names, times.* Each is in the line, in what the item is about, or in what the rules said. A number may
  be rounded, spelled out, or be in another unit; what it counts is what it counts in the line.
- *State.* `STATES` is a table of opposites ("answers", "hangs"). A sentence is not on the other side than its line,
  tells of nothing well that the line does not, and of no other kind of trouble. A denial turns a state round.
- *Parts and deeds.* A part that is to blame (`PARTS`), a reason, and a deed ("rebooted") are in the line, or the
  sentence words them as a possibility ("likely", "points to"). An effect may be anywhere in the evidence.
- *Place, order, quantity.* It is about the line's place. "Before" needs both sides in the line. So do "all", "only".

Words decide this, so a sentence that is true may fall; it is returned to the model once, with the reason.
"""

# ruff: noqa: E501 -- patterns are as long as they are
from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial

from nightshift.agent.rca.figures import Ungrounded
from nightshift.agent.rca.grounding import (
    MAX_QUOTE_CHARS,
    MIN_QUOTE_CHARS,
    clock_of,
    dated_lines,
    has_words,
    sentence_of,
)
from nightshift.agent.store.diagnosis import FACTS, LOG, SERIES, Claim, Evidence, Predicate, Quote
from nightshift.detectors.hardware.xid_catalogue import CATALOGUE

NEAR_CHARS = 200
"""So much of a fact on each side of a quote counts as its line."""
CLOSE, ABOUT = 0.05, 0.12
"""A quantity in another unit may be rounded by this share; one that is said to be "about" so much, by the other."""
REACH = 5
"""A denial counts for so many words after it."""
NEAR_WORDS = 4
"""A number counts what stands within so many words of it."""
_STEM = 4
"""Letters by which two words are held to be one: "failed" and "failure", "links" and "link"."""


def quote_under(sentence: str, text: str, name: str, evidence: Sequence[Evidence], context: str = "") -> Quote:
    """The quote that a sentence of a model's own is shown with. `name` is the item that it cites; another one that
    holds the bytes does as well. `context` are texts of ours that it may repeat. Raises Ungrounded."""
    text = as_it_stands(text, evidence)
    if not MIN_QUOTE_CHARS <= len(text) <= MAX_QUOTE_CHARS or not has_words(text, 2 * MIN_QUOTE_CHARS):
        raise Ungrounded("it has no quote of some words" if text else "it has no quote")
    raw = text.encode(errors="replace")
    items = sorted((item for item in evidence if raw in item.content), key=lambda item: item.id != name)
    if "\n" in text or not items:
        raise Ungrounded("its quote is in no item")
    # several items may hold the line; one of them has to bear the sentence
    reasons: list[Ungrounded] = []
    for item in items:
        try:
            _check(sentence, _line_of(text, item, context), evidence)
        except Ungrounded as reason:
            reasons.append(reason)
        else:
            return Quote(item.id, text)
    raise reasons[0]


def quote_of_claim(sentence: str, claim: Claim, evidence: Sequence[Evidence], context: str = "") -> Quote:
    """The quote that a sentence is shown with which rests on a claim that held: what was checked bears it, so it
    may tell of an order in time or of a trend. Raises Ungrounded."""
    items = [item for name in claim.evidence_ids for item in evidence if item.id == name]
    quotes = [*claim.quotes, *(Quote(item.id, summary) for item in items if (summary := _summary(item)))]
    if not quotes:
        raise Ungrounded("its claim has no quote; give it one of its own")
    lines = [
        _line_of(quote.text, item, context) for quote in quotes for item in items if item.id == quote.evidence_id
    ]
    # the moments of "before" are those of the first such lines
    proven = f"{sentence_of(claim, evidence)}{', first' if claim.predicate is Predicate.PRECEDED else ''}"
    text = ". ".join([proven, *(line.text for line in lines)])
    about, times = " ".join(line.about for line in lines), tuple(t for line in lines for t in line.times)
    _check(sentence, _Line(text, text, about, times, context, text, text), evidence)
    return quotes[0]


def _summary(item: Evidence) -> str:
    """The sentence that a series tells of itself; empty where it has none."""
    if item.media_type != SERIES:
        return ""
    found = re.search(r'"summary":"([^"\\]+)"', item.content.decode(errors="replace"))
    return found[1][:MAX_QUOTE_CHARS] if found else ""


_ESCAPED = re.compile(r"\\([\"\\/])")


def as_it_stands(text: str, evidence: Sequence[Evidence]) -> str:
    """A model's quote as the evidence has it: without the marks of a cut and the escapes of JSON, where it stands
    so; else as it was given."""
    whole = text.strip()
    parts = sorted(re.split(r"…|\.\.\.", whole), key=len, reverse=True)
    for form in (
        text,
        whole,
        _ESCAPED.sub(r"\1", whole),
        *(part.strip() for part in parts[:2]),
        whole.strip("\"'`“”"),
    ):
        short = form[:MAX_QUOTE_CHARS]
        if has_words(short, 2 * MIN_QUOTE_CHARS) and any(
            short.encode(errors="replace") in i.content for i in evidence
        ):
            return short
    return text


@dataclass(frozen=True)
class _Line:
    """What a sentence rests on: the quoted line, what its item is about, its times, and texts of ours."""

    text: str
    quote: str
    about: str
    times: tuple[str, ...]
    context: str
    matter: str
    """What it is of: a line of a log alone, of anything else its title as well."""
    near: str
    """The line with those next to it, since a stack or a summary has several, and what its Xids mean."""

    @property
    def ours(self) -> str:
        return f"{self.text} {self.about} {self.context}"

    @cached_property
    def said(self) -> _Said:
        return _said(self.quote, _POSSIBLE)

    @cached_property
    def all_said(self) -> _Said:
        return _said(f"{self.text}. {self.context}", _POSSIBLE)


def _line_of(text: str, item: Evidence, context: str) -> _Line:
    """What a quote stands in: its line of a log, what is near it in a fact, of a series itself alone."""
    body = item.content.decode(errors="replace")
    at, line, times = body.find(text), text, [clock_of(item.start_s), clock_of(item.end_s)]
    about = f"{item.title} {item.query} {item.source}"
    if item.media_type == LOG:
        lines = [(when, line) for when, line in dated_lines(item) if text in line]
        line, times = " ".join(line for _, line in lines), [clock_of(when.t_s) for when, _ in lines]
        # the node that wrote it
        about += " " + " ".join(sorted({when.clock for when, _ in lines} - {item.id}))
    elif item.media_type == FACTS:
        line = body[max(0, at - NEAR_CHARS) : at + len(text) + NEAR_CHARS]
    in_log = item.media_type == LOG and bool(line)
    matter = line if in_log else f"{text} {item.title}"
    around = _beside(text, body) if in_log else line
    around += " " + " ".join(_meanings(line))
    return _Line(line or text, line if in_log else text, about, tuple(times), context, matter, around)


_XID = re.compile(r"(?i)\bxid\b(?:\s*\([^)]*\))?[\s:]*(\d{1,3})\b")


def _meanings(line: str) -> Iterator[str]:
    """What NVIDIA's catalogue says of the Xids in a line: a reader knows that 94 is an error of the memory."""
    for code in map(int, _XID.findall(line)):
        if code in CATALOGUE:
            yield f"{CATALOGUE[code].name} {CATALOGUE[code].meaning}"


def _beside(text: str, body: str) -> str:
    """The lines of a log in which a text is, with two before and one after."""
    lines = [line.partition("\t")[2] for line in body.split("\n")]
    chosen = {at + step for at, line in enumerate(lines) if text in line for step in (-2, -1, 0, 1)}
    return " ".join(line for at, line in enumerate(lines) if at in chosen)


def _check(sentence: str, line: _Line, evidence: Sequence[Evidence]) -> None:
    """Raises Ungrounded with each reason: a model gets them once, and should mend all."""
    said, reasons = _said(sentence), []
    checks: tuple[Callable[[], None], ...] = (
        partial(_check_matter, sentence, said, line, _places_in(evidence)),
        partial(_check_numbers, sentence, line, _places_in(evidence)),
        partial(_check_index, sentence, line),
        partial(_check_borrowed, sentence, line, evidence),
        partial(_check_roles, sentence, line.text),
        partial(_check_place, sentence, line, evidence),
        partial(_check_order, sentence, line),
        partial(_check_sides, sentence, said, line),
        partial(_check_trouble, said, line, evidence),
        partial(_check_parts, sentence, line),
    )
    for check in checks:
        try:
            check()
        except Ungrounded as reason:
            reasons.append(str(reason))
    if reasons:
        raise Ungrounded(", and ".join(reasons[:3]))


def _check_sides(sentence: str, said: _Said, line: _Line) -> None:
    if turned := _turned(said, line.said) or _denied_alone(sentence, said, line):
        raise Ungrounded(turned)


def turns_round(sentence: str, quoted: str) -> str:
    """In which way a sentence says the opposite of the line that it quotes; empty where no rule finds one."""
    return _turned(_said(sentence), _said(quoted, _POSSIBLE))


# Numbers, names and times -------------------------------------------------------------------------------------

_NAMED = re.compile(r"[A-Za-z0-9][\w.:/#@-]*")
_CLOCK_TIME = re.compile(r"(?<![\d:.])([01]\d|2[0-3]):[0-5]\d(?::[0-5]\d)?(?![\d:])")
_UNITS: Mapping[str, tuple[float, str]] = {
    "us": (1e-6, "s"), "ms": (1e-3, "s"), "s": (1.0, "s"), "min": (60.0, "s"), "h": (3600.0, "s"), "d": (86400.0, "s"),
    "b": (1.0, "B"), "kb": (2.0**10, "B"), "mb": (2.0**20, "B"), "gb": (2.0**30, "B"), "tb": (2.0**40, "B"),
    "mw": (1e-3, "W"), "w": (1.0, "W"), "kw": (1e3, "W"), "mhz": (1e6, "Hz"), "ghz": (1e9, "Hz"),
    "percent": (0.01, "1"),
}  # fmt: skip
_UNIT_NAMES = (
    r"milliseconds?|microseconds?|seconds?|secs?|minutes?|mins?|hours?|hrs?|days?|percent|%"
    r"|watts?|[kmgt]i?b(?:ytes?)?|[kmgt]i|bytes?|us|ms|s|m|h|d|mw|kw|w|mhz|ghz"
)
_QUANTITY = re.compile(rf"(?i)(?<![\w.])(\d+(?:\.\d+)?)[ -]?({_UNIT_NAMES})(?![\w/])")
_KEYED = re.compile(rf"(?i)[(_]({_UNIT_NAMES})\)?[\"']?\s*[=:]\s*(\d+(?:\.\d+)?)")
"""A quantity with its unit in its name: "Timeout(ms)=600000"."""
_ROUGHLY = re.compile(
    r"(?i)(?:about|around|roughly|approximately|approx\.?|nearly|almost|some|over|more than|less than|under|at least|up to|~|≈)\s*$"
)
_SPELLED = {
    word: number
    for number, word in enumerate(
        re.findall(r"\w+", "zero one two three four five six seven eight nine ten eleven twelve")
    )
} | {"fifteen": 15, "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "ninety": 90, "hundred": 100}
_SPELLED_WORD = re.compile(rf"(?i)(?<!the )(?<!these )\b({'|'.join(set(_SPELLED) - {'one', 'zero'})})\b(?!-)")
_ONE_UNIT = re.compile(r"(?i)\b(within|after|for|in|by) (?:an?|one) (second|minute|hour|day)\b")


# "two versions" compares; "two GPUs" counts
_TWO = re.compile(
    r"(?i)\btwo\b(?! (?:\w+ )?(?:gpus|nodes|ranks|links|pods|disks|errors|times|jobs|ports|days|hours|minutes|seconds)\b)"
)


def _spelled_out(text: str) -> str:
    text = re.sub(r"\b(\d+)(?:st|nd|rd|th)\b", r"\1", text)
    text = _TWO.sub("both", _ONE_UNIT.sub(r"\1 1 \2", text))
    return _SPELLED_WORD.sub(lambda word: str(_SPELLED[word.group().lower()]), text)


def _check_numbers(sentence: str, line: _Line, places: Iterable[str]) -> None:
    """Raises Ungrounded for the first number, name or time that is neither in the quoted line nor said by us."""
    ours = f"{line.ours} {_spelled_out(line.ours)}"
    clocks = [*line.times, *(match.group() for match in _CLOCK_TIME.finditer(ours))]
    for clock in _CLOCK_TIME.finditer(sentence):
        if not any(one.startswith(clock.group()) for one in clocks):
            raise Ungrounded(f"the time {clock.group()} is not that of its quote")
    rest, numbers = _spelled_out(_CLOCK_TIME.sub(" ", sentence)), _numbers(ours)
    _check_quantities(rest, line, numbers, _quantities(ours))
    for disk in re.findall(r"\b(?:sd|vd|xvd|hd)[a-z]\b", sentence):
        if not _has(line.ours, disk):
            raise Ungrounded(f"{disk!r} is not in its quote")
    _check_named(_QUANTITY.sub(" ", rest), {*_names(ours), *places}, ours.lower(), numbers)


def _check_quantities(rest: str, line: _Line, numbers: set[float], quantities: Sequence[tuple[float, str]]) -> None:
    for found in _QUANTITY.finditer(rest):
        value, base, unit = _quantity(found[1], found[2])
        close = ABOUT if _ROUGHLY.search(rest[: found.start()]) else CLOSE
        alike = any(one == unit and abs(other - base) <= close * max(other, base) for other, one in quantities)
        if unit == "B" and not alike:
            # a "GB" may be of 1,000 or of 1,024
            decimal = base * (1000 / 1024) ** round(math.log(base / value, 1024)) if value else 0.0
            alike = any(one == "B" and abs(other - decimal) <= close * other for other, one in quantities)
        alike |= unit == "1" and _is_ratio(base, line.text)
        if not alike and not _is_among(found[1], value, numbers, close if close == ABOUT else 0.0):
            raise Ungrounded(f"{found.group()!r} is not in its quote")


def _check_named(rest: str, words: set[str], compact: str, numbers: set[float]) -> None:
    before = ""
    for match in _NAMED.finditer(rest):
        word = match.group().lower().strip(".:/-#@")
        about = ABOUT if _ROUGHLY.search(rest[: match.start()]) else 0.0
        known = _is_named(word, words, compact) or (before.isalpha() and f"{before}{word}" in compact)
        before = word
        if known or not any(map(str.isdigit, word)):
            continue
        if not (own := _numbers(word)) or not all(_is_among(word, one, numbers, about) for one in own):
            raise Ungrounded(f"{word[:40]!r} is not in its quote, nor in what it is about")


def _is_named(word: str, words: set[str], compact: str) -> bool:
    bare = word.removesuffix("'s").removesuffix("s")
    if word in words or bare in words or set(_names(word)) <= words or _is_part(word, compact):
        return True
    # "host:port", where the line has the two apart
    return word.count(":") == 1 and all(part in words or f" {part}" in compact for part in word.split(":"))


def _is_part(name: str, text: str) -> bool:
    """Whether a name is the beginning of a longer one: "scratch-OST0007" of "scratch-OST0007-osc"."""
    return len(name) > 3 and re.search(rf"(?<![\w-]){re.escape(name)}(?![a-z0-9])", text) is not None


def _quantity(number: str, unit: str) -> tuple[float, float, str]:
    """A number, and the quantity in its base unit."""
    name = unit.lower().replace("ibyte", "b").replace("ib", "b").replace("%", "percent")
    for long, short in (
        ("milli", "ms"),
        ("micro", "us"),
        ("sec", "s"),
        ("min", "min"),
        ("h", "h"),
        ("day", "d"),
        ("byte", "b"),
    ):
        if name.startswith(long):
            name = short
    name = "min" if name == "m" else name[:2] if name.endswith(("byte", "bytes")) else name
    name = "w" if name.startswith("watt") else name
    factor, base = _UNITS[f"{name[0]}b" if name in ("ki", "mi", "gi", "ti") else name]
    return float(number), float(number) * factor, base


def _quantities(text: str) -> list[tuple[float, str]]:
    pairs = [(match[1], match[2]) for match in _QUANTITY.finditer(text)]
    pairs += [(match[2], match[1]) for match in _KEYED.finditer(text)]
    if unit := re.search(r"\[(bytes|watts|seconds|percent)\]", text):
        pairs += [(number, unit[1]) for number in re.findall(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?", text)]
    amounts = [_quantity(number, unit)[1:] for number, unit in pairs]
    apart = [(abs(one - other), unit) for one, unit in amounts[:8] for other, same in amounts[:8] if unit == same]
    return amounts + [(amount, unit) for amount, unit in apart if amount > 0]


def _is_ratio(share: float, text: str) -> bool:
    """Whether a share is by how much two quantities of a line differ, within two points."""
    amounts = _quantities(text)[:8]
    pairs = [(one, other) for one, unit in amounts for other, same in amounts if unit == same and other > 0]
    return any(min(abs(abs(one / other - 1) - share), abs(one / other - share)) < 0.02 for one, other in pairs)


def _is_among(written: str, value: float, numbers: Iterable[float], about: float) -> bool:
    """Whether a number is one of these, rounded as it is written."""
    decimals = len(written.partition(".")[2]) if re.fullmatch(r"\d+\.\d+", written) else 0
    return any(
        other == value
        or ((decimals or (other != int(other) and other > 10)) and round(other, decimals) == value)
        or abs(other - value) <= about * abs(other)
        for other in numbers
    )


def _names(text: str) -> Iterator[str]:
    """The names of a text, whole and in their parts."""
    for found in _NAMED.findall(text.lower()):
        word = found.strip(".:/-#@")
        yield word
        yield from (part for part in re.split(r"[:/#@=]", word) if any(map(str.isalpha, part)))


_ADDRESS = re.compile(r"(?i)\b(?:[0-9a-f]{2,4}:)+[0-9a-f]{2}(?:\.\d)?\b")


def _numbers(text: str) -> set[float]:
    plain = _ADDRESS.sub(" ", text)
    return {float(found) for found in re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?!\w)", plain)}


_NUMBERED = re.compile(
    r"(?i)(rank|gpu|cpu|link|port|dimm|channel|partition|worker|pid|step|iteration|job|xid|signal|code|errno|bank|queue)"
    r"(?:s|ed)?[\s_#:=(]{0,12}-?(\d+)(?![\w.]*\d|:)"
)


def _check_index(sentence: str, line: _Line) -> None:
    """Raises Ungrounded for "link 4" under a line that numbers a link otherwise."""
    shown: dict[str, set[str]] = {}
    for match in _NUMBERED.finditer(f"{line.ours} {_in_words(line.text)}"):
        shown.setdefault(match[1].lower(), set()).add(match[2])
    for match in _NUMBERED.finditer(sentence):
        if (known := shown.get(match[1].lower())) and match[2] not in known:
            raise Ungrounded(f"its quote is of {match[1]} {sorted(known)[0]}, not of {match[2]}")


_IDENTIFIER = re.compile(r"\b(?:\w+_\w+|(?!NVIDIA)[A-Z]{6,}|[a-z]+[A-Z]\w+|[A-Za-z]+(?:-[A-Za-z]+)+)\b")


def _check_borrowed(sentence: str, line: _Line, evidence: Sequence[Evidence]) -> None:
    """Raises Ungrounded for an identifier that other lines name, and this one does not."""
    own = _bare(line.ours)
    for match in _IDENTIFIER.finditer(sentence):
        name = re.compile(rf"(?<![\w.]){re.escape(match.group())}(?![\w.])")
        if _bare(match.group()) not in own and any(name.search(_text(item)) for item in evidence):
            raise Ungrounded(f"{match.group()!r} is in other lines, not in its quote")


def _bare(text: str) -> str:
    return re.sub(r"[\W_]+", "", text).lower()


def _text(item: Evidence) -> str:
    return item.content.decode(errors="replace")


def _check_roles(sentence: str, line: str) -> None:
    """Raises Ungrounded where a number counts what another number counts in the line."""
    shown: dict[str, set[float]] = {}
    for number, words in _counted(line, 2 * NEAR_WORDS + 2):
        for word in words:
            shown.setdefault(word, set()).add(number)
    # "Available: 7" says it of 7 alone
    for key in re.finditer(r"([A-Za-z]{4,})\W{0,2}[:=]\s*(\d+(?:\.\d+)?)(?![\w:/-])", line):
        shown[key[1][:_STEM].lower()] = {float(key[2])}
    everywhere = {number for numbers in shown.values() for number in numbers}
    for number, words in (
        one for part in _CLAUSE.split(_spelled_out(sentence)) for one in _counted(part, NEAR_WORDS)
    ):
        known = [word for word in words if word in shown]
        if known and number in everywhere and not any(number in shown[word] for word in known):
            raise Ungrounded(f"in its quote {number:g} does not go with '{known[0]}…'")


_INDEX = re.compile(
    r"(?i)(?:rank|gpu|node|pid|xid|step|iteration|job|process|number|queue|request|status|error|code|port|at|since)$"
)
"""A number behind one of these is a name."""


def _counted(text: str, near: int) -> Iterator[tuple[float, list[str]]]:
    """Each number that counts something, and the stems of the words that are so many words near it."""
    found = re.findall(r"([A-Za-z]+(?!\d))|((?<![\w.:/-])\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\w:/-]))|(\w+)", text)
    tokens = ["".join(parts) for parts in found]
    for at, (_, token, _) in enumerate(found):
        if token and not (at and _INDEX.search(tokens[at - 1])):
            around = tokens[max(0, at - near) : at + near + 1]
            stems = [word[:_STEM].lower() for word in around if word.isalpha() and len(word) >= _STEM]
            yield float(token), [stem for stem in stems if stem not in _EMPTY_WORDS]


# The place ----------------------------------------------------------------------------------------------------

_PLACE = re.compile(r"\b(node|gpu|pod|rank|nic|link):([\w.-]+(?:[/#][\w.-]+)*)")


def _places_in(evidence: Sequence[Evidence]) -> dict[str, str]:
    """The kind of each place that the evidence is about, by its name and by what is after its namespace."""
    found: dict[str, str] = {}
    for item in evidence:
        topology = item.content.decode(errors="replace") if item.media_type == FACTS else ""
        for match in _PLACE.finditer(f"{item.query} {item.title} {topology}"):
            kind, name = match[1], match[2].lower()
            found[name] = kind
            found.setdefault(name.rpartition("/")[2], kind)
    return found


def _check_place(sentence: str, line: _Line, evidence: Sequence[Evidence]) -> None:
    """Raises Ungrounded where sentence and line each name a place of one kind, and none is the same; and where the
    part of a line that says what a clause says names another place."""
    places = _places_in(evidence)

    def named(text: str) -> dict[str, set[str]]:
        by_kind: dict[str, set[str]] = {}
        for word in _names(text):
            if (kind := places.get(word)) is not None:
                by_kind.setdefault(kind, set()).add(word.rpartition("/")[2])
        for rank in re.findall(r"(?i)\brank[\s_-]?(\d{1,6})\b", text):
            by_kind.setdefault("rank number", set()).add(rank)
        return by_kind

    def compare(own_places: Mapping[str, set[str]], line_places: Mapping[str, set[str]]) -> None:
        for kind in own_places.keys() & line_places.keys():
            if not own_places[kind] & line_places[kind]:
                there, here = sorted(line_places[kind])[0], sorted(own_places[kind])[0]
                raise Ungrounded(f"its quote is about {there}, not about {here}")

    compare(named(sentence), named(f"{line.text} {line.about}"))
    pieces = _PIECE.split(line.text)
    for clause in _CLAUSE.split(sentence):
        alike = [piece for piece in pieces if any(map(str.isalpha, _stems(piece) & _stems(clause)))]
        if len(alike) == 1:
            compare(named(clause), named(alike[0]))


# Order in time, and quantity ----------------------------------------------------------------------------------

_ORDER = re.compile(
    r"(?i)\b(?:before|after(?! (?:\w+ ){0,2}\d| (?:an?|ten|some) )|afterwards|preced\w+|prior to|earlier|later"
    r"|follow(?:s|ed|ing)|(?<=[,;] )then|(?<=and )then|first|subsequent\w*)\b"
)
_UNIVERSAL = re.compile(
    r"(?i)\b(?:all(?![-_]|reduce|gather| the time)|every\w*|each(?! other)|(?<!read-)only(?! (?:\w+ ){0,3}(?:once|when|if|after))|none|nothing|nobody|always"
    r"|entire\w*|whole|completely|most(?! likely| probabl)|majority|nowhere|both)\b"
)


def _check_order(sentence: str, line: _Line) -> None:
    for word in _ORDER.finditer(sentence):
        sides = _CLAUSE.split(sentence[: word.start()])[-1], _CLAUSE.split(sentence[word.end() :])[0]
        hedged = _MAY.search(f"{sides[0]} {sides[1]}") is not None
        if not hedged and not _has(line.near, word.group()) and not all(_bears(line, side) for side in sides):
            reason = "an order in time, which is for a `preceded` claim"
            raise Ungrounded(f"{word.group()!r} is not in its quote: it says {reason}")
        shown = re.search(r"(?i)\b(before|after)\b", line.text)
        if shown is None or not re.match(r"(?i)before|after|follow|then|prior", word.group()):
            continue
        there = line.text[: shown.start()].split(". ")[-1], line.text[shown.end() :].split(". ")[0]
        alike, crossed = (
            sum(len(_stems(one) & _stems(other)) for one, other in zip(sides, pair, strict=True))
            for pair in (there, there[::-1])
        )
        same = _is_before(word.group()) == _is_before(shown[1])
        if (crossed > alike) if same else (alike > crossed):
            raise Ungrounded(f"{word.group()!r} is the other way round in what it rests on")
    for word in _UNIVERSAL.finditer(sentence):
        counted = re.match(r"\s+(?:\w+ ){0,2}\d", sentence[word.end() :]) is not None
        if _WHOLE.fullmatch(word.group()) and _WHOLE.search(line.text):
            continue
        none = counted and re.search(r"(?i)\b(?:0/|0 |no |none)", line.text) is not None
        if not _has(line.text, word.group()) and not (none or (counted and word.group().lower() == "only")):
            raise Ungrounded(f"{word.group()!r} is not in its quote: it says how many")


def _is_before(word: str) -> bool:
    return word.lower().startswith(("before", "prior", "then"))


_WHOLE = re.compile(r"(?i)\b(?:both|all|every\w*|each|whole|entire\w*|completely|fully|always)\b")


def _has(text: str, word: str) -> bool:
    return re.search(rf"(?i)\b{re.escape(word)}\b", text) is not None


def _bears(line: _Line, part: str) -> bool:
    """Whether a line says something of a part of a sentence: a word, or a kind of state."""
    if _stems(part) & _stems(line.ours) or _parts(part) & _parts(_in_words(line.ours)):
        return True
    return bool(_said(part).kinds & {state.kind for state in line.all_said.states if not state.may_be} - {_TROUBLE})


# States and their opposites -----------------------------------------------------------------------------------

_TROUBLE = "trouble"
STATES: Mapping[str, tuple[str, str]] = {
    _TROUBLE: (
        (
            r"ok|okay|fine|good|healthy|normal(?:ly)?|harmless|benign|resolved|recover(?:s|ed)|restored|resum(?:es|ed)"
            r"|succe(?:eds?|eded|ss|ssful|ssfully)|pass(?:es|ed)|work(?:s|ed|ing)|stable|cleanly|gracefully|as planned"
            r"|on its own|voluntarily|unrelated|irrelevant|hardly matters|(?:a )?coincidence|red herring|is back"
            r"|(?:came|comes|brought|went) back|contained|rebuilt|repair(?:s|ed)?|fixed|healed|cured|usable|unaffected|unharmed"
            r"|went through|in spite of|despite|safe(?:ly)?"
        ),
        (
            r"fail\w*|errors?|fault\w*|problems?|trouble|bad|broken|breaks?|broke|for good|lost|los(?:es|ing)|loss of|unhealthy"
            r"|exceptions?|traceback|unhandled|unable|wrong|bug|dropped (?:its|the)|back-?off"
        ),
    ),
    "answer": (
        (
            r"answer(?:s|ed|ing)?|respond(?:s|ed|ing)?|replie[sd]|reachable|serv(?:es|ed)|finish(?:es|ed)?|complete[sd]?"
            r"|in time|on time|within (?:its|the) (?:\w+ )?(?:timeout|deadline|limit)"
        ),
        (
            r"time[sd]?[ -]?out\w*|timing out|timeouts?|deadline ?exceeded|hang(?:s|ing)?|hung|stuck|stall\w*|unrespons\w*"
            r"|silent|lock ?ups?|locked up|deadlock\w*|unreachable|froze\w*|blocked for|gave up|did not arrive"
        ),
    ),
    "presence": (
        r"present|exists?|bound|attached|(?:was|were|been) (?:\w+ )?(?:saved|written)|(?<!un)available|visible|(?:stay(?:s|ed)|still|remain\w*) on",
        (
            r"unavailable|key ?error|no such|f(?:a|e)ll(?:s|en)? off|off the (?:\w+ )?bus|gone(?! (?:silent|quiet|wrong|up|down))|vanish\w*|disappear\w*|missing|not ?found|absent|dropped off"
            r"|(?:no longer|cannot|can ?not) (?:sees?|visible|on|present|talk|reach|communicate)|lost from|GPU_IS_LOST"
        ),
    ),
    "link": (
        r"up|online|connected",
        r"closed|(?<!held )(?<!kept )down(?! to)|offline|disconnected|carrier|no link|lost (?:its |the )?link|dropped (?:its |the )?link|unplugged",
    ),
    "life": (
        r"alive|surviv\w+|runs? (?:since|again|on)|(?:is|are|keeps?) (?:still )?running",
        (
            r"kill\w*|OOM-?kill\w*|died|dies|dead|crash\w*|abort\w*|terminat\w*|exit\w*|(?:was|were|is) ended|cancel\w*|seg(?:ment)?\w* ?fault\w*"
            r"|panic\w*|oops|SIG[A-Z]{3,}|shut ?down|evict\w*"
        ),
    ),
    "room": (
        r"enough|sufficient(?:ly)?|plenty|ample|much (?:space|memory|room)|fits?",
        (
            r"low on|below its|out of (?:\w+ ){0,2}(?:memory|space)|OOM\w*|no (?:\w+ )?(?:space|room|memory)|full|exhaust\w*|insufficient|ENOSPC"
            r"|too (?:small|large|big|few|little|much)|(?:ran|run|runs|running) out|exceed\w*|used up|not enough|short(?:age)? of"
            r"|limit (?:was |is )?(?:reached|hit)|(?:reached|hit) (?:its|the) (?:\w+ )?limit|time limit|does not fit"
            r"|(?:up )?its wall ?(?:time|clock)"
        ),
    ),
    "finite": (
        r"finite",
        r"nan|inf|infinit\w+|not a number|non-?finite|diverg\w*|overflow\w*|numerical\w*|unstable|explod\w*",
    ),
    "excess": (r"too low", r"too high"),
    "intact": (
        r"intact|clean",
        r"corrupt\w*|damag\w*|defect\w*|faulty|worn|degraded|malformed|truncated|incomplete|inconsisten\w*",
    ),
    "valid": (
        r"valid|match(?:es|ed)?|compatible|same versions?|equal|identical",
        r"invalid|illegal|mismatch\w*|out[ -]of[ -]bounds|unsupported|incompatible|different versions?",
    ),
    "heat": (r"cool|cold", r"overheat\w*|too hot|throttl\w*|thermal\w*"),
    "allowed": (
        r"allow(?:s|ed)?|permit(?:s|ted)?|granted|accept(?:s|ed)?|admitted",
        r"denied|forbidden|unauthori[sz]ed|refus(?:es|ed)|reject\w*|permission\w*|blocked by",
    ),
    "corrected": (r"corrected|correctable|ce", r"uncorrect\w*|ue|unrecoverable|double-?bit"),
    "fatal": (r"non-?fatal", r"fatal\w*"),
    "pace": (r"fast\w*", r"slow(?:er|s|ly| ?down)?|lag\w*|(?:is|falls|fell|are) behind|straggl\w*"),
    "ready": (r"ready", r"not ?ready|unready"),
    "trend": (
        r"r[io]s(?:e|es|en|ing)|gr[eo]w(?:s|n|ing|th)?|increas\w+|climb\w*|jumped",
        r"f[ae]ll(?:s|ing)?(?! off)|shr[aiu]nk\w*|decreas\w+|sank|sink\w*|declin\w*|drop(?:s|ped) (?:to|by|from)",
    ),
    "access": (r"reads?|reading", r"writes?|writing|wrote"),
}
"""The kinds of state that lines of a GPU cluster tell of: words for well and for ill. Those of `NEUTRAL` are
neither."""
NEUTRAL = frozenset({"trend", "access"})
ADMITS: Mapping[str, frozenset[str]] = {
    "presence": frozenset({"answer", "link"}), "link": frozenset({"presence", "answer"}), "room": frozenset({"life"}),
    "corrected": frozenset({"intact", "fatal"}), "valid": frozenset({"intact", "presence"}), "intact": frozenset({"valid"}),
    "answer": frozenset({"pace"}), "finite": frozenset({"trend"}),
    "heat": frozenset({"pace", "excess"}), "allowed": frozenset({"valid"}), "ready": frozenset({"answer", "link", "life"}),
}  # fmt: skip
"""A line of one kind of trouble may be worded as one of these."""
_SHARP = frozenset({"fatal", "finite", "heat", "presence", "room", "allowed", "corrected", "excess"})
"""What a line with no kind of trouble that the table knows does not bear either."""
_STATE_WORDS = [
    (kind, pole, re.compile(rf"(?i)(?<![\w-])(?:{words})(?![\w-])"))
    for kind, pair in STATES.items()
    for pole, words in zip((1, -1), pair, strict=True)
]
_DENIES = re.compile(
    r"(?i)\b(?:not(?! only)(?! (?:\w+ ){0,2}yet)|no|never|without|neither|nor|cannot|can't|unable|fail(?:ed|s|ure|ing)? to|refus\w+ to"
    r"|stop(?:s|ped)?|free of|instead of|rather than|wait(?:s|ed|ing)? for|trying|lack of)\b"
    r"|(?<![\w.:#=-])(?:0|zero)(?=\s[a-z]+s\b)|(?<![\w.])0/\d+|n['’]t\b|\black(?:s|ed)?\b"
)
_CANNOT = re.compile(r"(?i)\b(?:cannot|can ?not|could ?n[o'’]t|unable to|fail(?:ed|s|ing)? to|refus\w+ to)\b")
_ZERO = re.compile(r"(?i)([a-z][a-z _]{2,40})\"?\s*[:=]\s*\"?(?:0|false|unknown)(?![\w.])")
"""A counter that is zero, or a flag that is not set."""
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_CLAUSE = re.compile(
    r"[.,;:!?]\s+|\s+[—–-]\s+|\s+(?:but|which|while|until|when|because|before|after|and so|so|though|although)\s+"
)
_PIECE = re.compile(r"[:;,]\s+|\.\s+")
_MAY = re.compile(
    r"(?i)\b(?:may|might|likely|probabl\w+|possibl\w+|perhaps|suggest\w*|points? (?:to|at)|indicat\w+|appears?|seems?"
    r"|looks? like|consistent with|suspect\w*|presumably|would|should|must|needs?|requires?|expect\w*|or|typical\w*"
    r"|usual\w*|often|hint\w*|could(?! not)|if)\b|^\W*(?:check|verify|inspect|confirm)\b"
)


_POSSIBLE = re.compile(r"(?i)\b(?:may|might|possibl\w+|likely|probabl\w+|perhaps|maybe)\b")
"""A line's own possibility is no fact."""


@dataclass(frozen=True)
class _State:
    kind: str
    pole: int
    denied: bool
    """Whether a denial turned it to this side."""
    may_be: bool


@dataclass(frozen=True)
class _Said:
    """The states that a text tells of."""

    states: tuple[_State, ...]

    @property
    def signs(self) -> set[int]:
        return {state.pole for state in self.states if state.kind not in NEUTRAL}

    @property
    def kinds(self) -> set[str]:
        return {state.kind for state in self.states if state.kind != _TROUBLE}

    @property
    def poles(self) -> set[tuple[str, int]]:
        return {(state.kind, state.pole) for state in self.states}


@lru_cache(maxsize=4096)
def _said(text: str, possible: re.Pattern[str] = _MAY) -> _Said:
    text = _ZERO.sub(r"without \1 ", _CAMEL.sub(" ", text.replace("_", " ")))
    found: list[_State] = []
    for sentence in re.split(r"[.,;:]\s+|\s+but\s+", text):
        may_be = possible.search(sentence) is not None
        for clause in _CLAUSE.split(sentence):
            found += _states_of(clause, may_be)
    return _Said(tuple(dict.fromkeys(found)))


def _states_of(clause: str, may_be: bool) -> Iterator[_State]:
    """The states of a clause. A denial turns round those of one side that follow it; one of nothing else is ill."""
    taken: list[tuple[int, int, str, int]] = []
    spans = ((m.start(), m.end(), kind, pole) for kind, pole, words in _STATE_WORDS for m in words.finditer(clause))
    # the longest first: "within its timeout" is no timeout
    for start, end, kind, pole in sorted(spans, key=lambda one: one[0] - one[1]):
        if all(end <= other or start >= last for other, last, *_ in taken):
            taken.append((start, end, kind, pole))
    turned: set[int] = set()
    for denial in _DENIES.finditer(clause):
        if any(start <= denial.start() and denial.end() <= end for start, end, *_ in taken):
            continue
        near = [
            one for one in sorted(taken)
            if one[0] >= denial.end() and len(clause[denial.end() : one[0]].split()) < REACH
        ]  # fmt: skip
        turned |= {one[0] for one in near if one[3] == near[0][3]}
        if not near or _CANNOT.match(clause, denial.start()):
            yield _State(_TROUBLE, -1, True, may_be)
    turned -= {start for start, _, kind, _ in taken if kind == "access"}
    for start, _, kind, pole in taken:
        yield _State(kind, -pole if start in turned else pole, start in turned, may_be)


def _turned(said: _Said, shown: _Said) -> str:
    """In which way a text is on the other side than a line; empty where it is not."""
    ill = -1 in said.signs
    for state in said.states:
        other = (state.kind, -state.pole)
        if state.kind == _TROUBLE or (state.kind, state.pole) in shown.poles or other not in shown.poles:
            continue
        # "it ended, it did not crash": a contrast to what it says
        if not (state.denied and other in said.poles):
            return f"of {state.kind!r} it says the opposite of its quote"
    if said.signs == {-1} and shown.signs == {1}:
        return "it says that it is ill, its quote says well"
    for state in said.states:
        if state.pole != 1 or state.kind in NEUTRAL or state.denied:
            continue
        # "0 nan iterations" bears that the loss is finite, and not that training is stable
        plain = {one.kind for one in shown.states if one.pole == 1 and not one.denied} - NEUTRAL
        if (state.kind, 1) not in shown.poles and not (plain if state.kind == _TROUBLE else _TROUBLE in plain):
            return f"its quote shows nothing well of {state.kind!r}"
    if 1 in said.signs and not ill and 1 not in shown.signs:
        return "it says that there is no trouble, its quote does not"
    return ""


def _denied_alone(sentence: str, said: _Said, line: _Line) -> str:
    """A word that one of them denies and the other says plainly, where nothing else says that it is ill."""
    if opposite := _by_prefix(sentence, line.text):
        return f"{opposite!r} is the opposite of what its quote says"
    for text, states, other, where in (
        (sentence, said, line.text, "in its quote"), (line.text, line.said, sentence, "in it"),
    ):  # fmt: skip
        if -1 in states.signs or _DENIES.search(text):
            continue
        if turned := sorted(filter(str.isalpha, _denied(other) & _stems(text))):
            return f"'{turned[0]}…' is denied {where} alone"
    return ""


_WITH_PREFIX = re.compile(r"\b(un|non|dis|mis|in|im)-?([a-z]{5,})\b")


def _by_prefix(sentence: str, line: str) -> str:
    """The word of a sentence that a line has with "un", "dis" or "in" before it alone, or the reverse."""
    for one, other in ((sentence.lower(), line.lower()), (line.lower(), sentence.lower())):
        if _DENIES.search(one) or _DENIES.search(other):
            continue
        for match in _WITH_PREFIX.finditer(one):
            bare = rf"(?<![a-z-]){match[2]}\b"
            if re.search(bare, other) and match.group() not in other and not re.search(bare, one):
                return match.group()
    return ""


def _denied(text: str) -> set[str]:
    """The stems of the words that a text denies: those next behind a denial, and those that "failed"."""
    found: set[str] = set()
    for clause in _CLAUSE.split(text):
        for denial in _DENIES.finditer(clause):
            found |= _stems(" ".join(clause[denial.end() :].split()[:3]))
        for failed in re.finditer(
            r"(?i)\bfail(?:ed|s|ure)?\b(?=\W*$|\s*[(:]|\s(?:with|for|at|on|in|due)\b)", clause
        ):
            found |= _stems(_CAMEL.sub(" ", " ".join(clause[: failed.start()].split()[-2:])))
    return found


def _check_trouble(said: _Said, line: _Line, evidence: Sequence[Evidence]) -> None:
    """Raises Ungrounded for a kind of trouble that the line does not tell of, and is not worded as a possibility."""
    firm = [state for state in line.all_said.states if not state.may_be and state.kind != _TROUBLE]
    kinds = {state.kind for state in firm if state.pole == -1 or state.kind in NEUTRAL}
    borne = kinds | {other for kind in kinds for other in ADMITS.get(kind, ())}
    tells = bool(kinds - NEUTRAL)
    for state in said.states:
        if state.kind == _TROUBLE or state.denied or state.may_be or state.kind in borne:
            continue
        if state.kind == "access":
            continue
        if state.kind not in NEUTRAL and (state.pole == 1 or (not tells and state.kind not in _SHARP)):
            continue
        # that work ended is the effect of most faults, and told elsewhere
        if state.kind == "life" and said.kinds & borne and ("life", -1) in _told_in(evidence):
            continue
        raise Ungrounded(
            f"its quote reports no {state.kind!r} trouble; quote a line that does, or word it as a possibility"
        )


def _told_in(evidence: Sequence[Evidence]) -> set[tuple[str, int]]:
    found: set[tuple[str, int]] = set()
    for item in evidence:
        for line in item.content.decode(errors="replace").split("\n")[:400]:
            found |= _said(line[:1000], _POSSIBLE).poles
    return found


# Parts, reasons and deeds -------------------------------------------------------------------------------------

PARTS: Mapping[str, tuple[str, str]] = {
    "memory": (
        r"memory|dimms?|hbm\w*|ecc|vram|[sd]?ram",
        r"edac|oom\w*|alloc\w*|cgroup|shm|(?:single|double)[ -]?bit|[sd]be|remap\w*|retire\w*|frame ?buffer|fbpa",
    ),
    "PCIe": (r"pcie|aer", r"pci(?:eport)?|bus|slots?"),
    "network": (
        r"nics?|links?|cables?|transceivers?|infiniband|rdma|ethernet|network",
        r"mlx\w*|ports?|ibv?\w*|roce|eth\w*|en[ps]\w+|network\w*|sockets?|connect\w*|tcp\w*|nccl\w*|peer|remote",
    ),
    "NVLink": (r"nvlinks?|nvswitch\w*|fabric ?manager", r"k?nvlink\w*|sxid|nvidia-nvswitch\w*|fabric\w*"),
    "switch": (r"switch|firewalls?|routers?|dns", ""),
    "disk": (
        r"disks?|nvme|drives?|ssds?",
        r"nvme\w*|sd[a-z]\d?|i/o|raid|blk\w*|device|md\d*|dm-\d+|ata\d*|volumes?|space|\w*storage",
    ),
    "file system": (
        r"file ?systems?|nfs|lustre|ceph|inodes?",
        r"ext4\w*|xfs|btrfs|zfs|nfs\w*|lustre\w*|ceph\w*|mount\w*|volumes?|storage",
    ),
    "power": (r"power(?! ?cycl)|psus?|voltage", r"power\w*|watts?"),
    "cooling": (r"cooling|fans?|heat|temperature", r"hot|thermal\w*|throttl\w*|slow ?down|celsius"),
    "firmware": (r"firmware|gsp|vbios|bios", r"k?gsp\w*|booter|fsp\w*|rpc\w*"),
    "code": (r"bugs?|typo|exceptions?|traceback|asserts?", r"\w*error|assert\w*|\w+\.py|mmu|illegal"),
    "software": (r"software", r"python\w*|traceback|\w+\.py|exceptions?|cuda error|version"),
    "person": (r"operators?|administrators?|admins?|users?(?![ -]space|-)|somebody|attackers?|owner", ""),
    "image": (r"images?|registry", r"pull\w*"),
    "scheduler": (r"scheduler|slurm|preempt\w*", r"slurm\w*|schedul\w*|taint\w*"),
    "processor": (r"cpus?|processors?", r"mce\w*|machine check|core|lock ?up"),
    "configuration": (
        r"misconfig\w*|configuration|credentials?|passwords?|certificates?|licen[cs]es?",
        r"config\w*",
    ),
    "learning rate": (r"learning rate", r"lr"),
    "data": (
        r"datasets?|data ?loader|checkpoints?|weights",
        r"safetensors|pickle|archive|loader|ckpt\w*|\w*model\w*|\w+\.pt",
    ),
}
"""The parts that can be to blame on a GPU cluster: words for each, and further ones by which a line names it."""
_PART_WORDS = [
    (
        name,
        re.compile(rf"(?i)(?<![a-z])(?:{words})(?![a-z])"),
        re.compile(rf"(?i)(?<![a-z])(?:{words}|{more or words})(?![a-z])"),
    )
    for name, (words, more) in PARTS.items()
]
_GPU = re.compile(r"(?i)gpu|nvrm|nvidia|cuda|nccl|nvswitch")
_DEEDS = re.compile(
    r"(?i)\b(reset|reboot|restart|remount|reload|replac|drain|cordon|upgrad|updat(?=ed|ing)|reinstall|reconfigur|power.?cycl|migrat"
    r"|reseat|roll(?:ed)? ?back)\w*"
)
_REASON = re.compile(
    r"(?i)\b(?:because(?: of)?|due to|caused by|as a result of|owing to|since(?! \d)|(?<!up )(?<=ed )by|(?<=en )by|(?<=wn )by)\s+"
    r"([^.,;:]{3,90}?)(?=[.,;:]|$|\s(?:and|but|so|which)\s)"
)
_MAKES = re.compile(r"(?i)^([^.,;:]{3,90}?)\s+(?:made|took|brought|triggered|forced|let)\b")


def _check_parts(sentence: str, line: _Line) -> None:
    """Raises Ungrounded for a part, a reason or a deed that the line does not name, and is worded as certain."""
    own = _in_words(f"{line.ours} {line.near}")
    if (
        re.search(r"(?i)(?<!from a )(?<!not a )\bgpus?\b(?!-)", sentence)
        and re.search(r"(?i)\bcpu", line.text)
        and not _GPU.search(line.text)
    ):
        raise Ungrounded("its quote is of a CPU, not of a GPU")
    for whole in re.split(r"[,;]\s+|\.\s+|:\s+", sentence):
        if _MAY.search(whole) is not None:
            continue
        for name, words, more in _PART_WORDS:
            if (part := words.search(whole)) and not more.search(own):
                raise Ungrounded(f"its quote does not name {part.group()!r} ({name}); word it as a possibility")
        for deed in _DEEDS.finditer(whole):
            done = re.search(r"(?i)\b(?:has|have|had|was|were|already)(?: \w+){0,3} $", whole[: deed.start()])
            if deed[1].lower() == "cordon" and "unschedul" in own:
                continue
            form = r"(?:ed|ing)|(?:was|were|been|is|after) {0}|{0} (?:done|complete|succe)" if done else ""
            if not re.search(rf"(?i)(?<![a-z]){deed[1]}\w*{form.format(deed[1])}", own):
                raise Ungrounded(f"its quote does not say {deed.group()!r}")
        for event in _EVENTS.finditer(whole):
            denied = any(len(whole[d.end() : event.start()].split()) < REACH for d in _DENIES.finditer(whole))
            if not denied and not _is_told(event, whole, own):
                raise Ungrounded(f"its quote does not say {event.group()!r}; word it as a possibility")
        for reason in (*_REASON.finditer(whole), *_MAKES.finditer(whole)):
            if not _is_reason(reason[1], line, own):
                raise Ungrounded(f"its quote does not bear the reason {reason[1][:60]!r}; word it as a possibility")


_EVENTS = re.compile(
    r"(?i)\b(?:[a-z]{3,}ed|brought|sent|gave|built|rebuilt|sold|bought|chose|drove|fought|forgot|hid|shot|spoke|stole|swore"
    r"|taught|thought|threw|understood|won|ignores?|spreads?|wrote)\b"
)
_REPORTS = re.compile(
    r"(?i)^(?:need|seed|speed|feed|indeed|exceed|report|log|logg|show|caus|ask|request|us|call|nam|tri|retri|detect|observ|notic|record"
    r"|happen|occurr|start|began|appear|remain|stay|turn|reach|return|receiv|expect|need|want|want|measur|allow|involv|affect"
    r"|attempt|rais|hit|mark|list|configur|creat|load|issu|hand|suppos|relat|bas|link|embed|shar|combin|distribut|limit|requir"
    r"|contain|comput|includ|belong|refus|mean|plac|own|bound|seem|launch|enter|continu|result|install|stopp|end|wait|elaps|block|trust|handl|process|train|schedul|fill|look)ed$"
)
"""Verbs that report, and tell of nothing new."""


def _is_told(event: re.Match[str], clause: str, own: str) -> bool:
    """Whether a line tells of an event: by its word, or by a state that the word is of."""
    word = event.group().lower()
    stem = word.removesuffix("ed")[:_STEM] if len(word) > 5 else word[:_STEM]
    if _REPORTS.match(word) or _has_stem(own, stem):
        return True
    return any(
        state.start() <= event.start() < state.end()
        for _, _, words in _STATE_WORDS
        for state in words.finditer(clause)
    )


def _is_reason(reason: str, line: _Line, own: str) -> bool:
    """Whether a line bears a reason: more than half of its words, or its kind of state."""
    words = [w for w in re.findall(r"[a-z]{3,}", reason.lower()) if w[:_STEM] not in _EMPTY_WORDS | _DOERS]
    borne = [word for word in words if _has_stem(own, word[:_STEM]) or _bears(line, word)]
    firm = {state.kind for state in line.all_said.states if not state.may_be}
    return not words or 2 * len(borne) > len(words) or bool(_said(reason).kinds & firm)


def _in_words(text: str) -> str:
    """A text with identifiers as words: "OutOfMemory", "GSP_RM_CONTROL"."""
    return f"{text} {_CAMEL.sub(' ', text.replace('_', ' '))}"


def _parts(text: str) -> set[str]:
    return {name for name, _, more in _PART_WORDS if more.search(text)}


def _has_stem(text: str, stem: str) -> bool:
    return re.search(rf"(?i)(?<![a-z]){re.escape(stem)}", text) is not None


# The matter ---------------------------------------------------------------------------------------------------


_ADVICE = re.compile(
    r"(?i)\bshould(?! have)\b|\bneeds? (?:to|an?)\b|^(?:check|inspect|verify|reseat|drain|replace|compare)\b"
)
"""What to do next asserts nothing."""


def _check_matter(sentence: str, said: _Said, line: _Line, places: Mapping[str, str]) -> None:
    """Raises Ungrounded where a line has no word, state or part of a sentence. Names of places are no words."""
    names = sorted(places, key=len, reverse=True)
    bare = re.compile("|".join(map(re.escape, names)), re.IGNORECASE) if names else re.compile("(?!)")
    own, shown = (bare.sub(" ", text) for text in (sentence, f"{line.matter} {line.near}"))
    if _ADVICE.search(sentence) and re.search(r"(?i)gpu|node|job|pod|rank", sentence):
        return
    # both tell of trouble: which parts and kinds it may name is checked apart
    if any(map(str.isalpha, _stems(own) & _stems(_in_words(shown)))) or -1 in said.signs & line.said.signs:
        return
    if said.kinds & line.said.kinds:
        return
    if not _parts(own) & _parts(_in_words(shown)):
        raise Ungrounded("its quote is of another matter: no word or state of it; advice belongs into `checks`")


def _stems(text: str) -> set[str]:
    """The beginnings of the words of a text that say something, and its numbers."""
    words = re.findall(r"[a-z]{3,}|\d+", text.lower())
    return {word[:_STEM] for word in words} - _EMPTY_WORDS


# The beginnings of words that name nothing, or what every line of a GPU cluster names.
_EMPTY_WORDS = frozenset(re.findall(
    r"\w+",
    "all and any are beca been but can did due for from had has have its not one out that the then ther this was"
    " were when whic with gpu gpus node rank job nvrm kern pid name pci off down erro fail own will into also they"
    " them than very just still only such some",
))  # fmt: skip
# What does a thing, and is no reason for it.
_DOERS = frozenset(["prog", "proc", "itse", "appl", "serv", "work", "cont", "pod"])
