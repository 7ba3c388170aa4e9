"""What a model's own sentence may say under its quote, and which of its words are its own.

A sentence is shown only with a quote that is in the evidence byte for byte, or with a claim that held, and only if no
part of it that can be checked speaks against the quoted line:

- *Values.* Each number, name and time is in the line, in what its item is about, or in what the rules said. A number
  may be rounded, spelled out, or be in another unit; it belongs to the word that it belongs to in the line.
- *Place.* It is about the line's node, GPU, pod or rank.
- *Side.* It tells of nothing well that the line does not, and of nothing ill under a line that tells only of what is
  well. A denial turns a word round. Of two opposites ("up", "down") it has the line's.
- *Order, reason.* "Before" needs both sides in the line, "because" a reason of which the line has a word.

The rest is English, and no rule can tell whether "a cable" follows from "Link down". So the words of a sentence that
neither its line, nor its item, nor the rules have are marked, and people see that they are the model's own.
"""

# ruff: noqa: E501 -- patterns are as long as they are
from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path

from nightshift.agent.rca.figures import Ungrounded
from nightshift.agent.rca.grounding import (
    MAX_QUOTE_CHARS,
    MIN_QUOTE_CHARS,
    clock_of,
    dated_lines,
    has_words,
    sentence_of,
)
from nightshift.agent.store.diagnosis import (
    FACTS,
    LOG,
    SERIES,
    Claim,
    Evidence,
    Predicate,
    Quote,
    QuotedSentence,
)
from nightshift.detectors.hardware.xid_catalogue import CATALOGUE

NEAR_CHARS = 200
"""So much of a fact on each side of a quote counts as its line."""
CLOSE, ABOUT = 0.05, 0.12
"""A quantity in another unit may be rounded by this share; one that is said to be "about" so much, by the other."""
REACH = 5
"""A denial counts for so many words after it."""
MAX_OWN_WORDS = 8
"""With more words of its own, a sentence is no reading of its quote: a list of all that it could be."""
NEAR_WORDS = 4
"""A number counts what stands within so many words of it."""


def quote_under(
    sentence: str, text: str, name: str, evidence: Sequence[Evidence], context: str = ""
) -> QuotedSentence:
    """A sentence of a model's own with the quote that it is shown with. `name` is the item that it cites; another
    one that holds the bytes does as well. `context` are texts of ours that it may repeat. Raises Ungrounded."""
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
        line = _line_of(text, item, context)
        try:
            _check(sentence, line, evidence)
        except Ungrounded as reason:
            reasons.append(reason)
        else:
            return QuotedSentence(sentence, Quote(item.id, text), own_words(sentence, line, evidence))
    raise reasons[0]


def quote_of_claim(sentence: str, claim: Claim, evidence: Sequence[Evidence], context: str = "") -> QuotedSentence:
    """A sentence that rests on a claim that held, with the claim's quote: what was checked bears it, so it may tell
    of an order in time or of a trend. Raises Ungrounded."""
    quotes = _quotes_of(claim, evidence)
    if not quotes:
        raise Ungrounded("its claim has no quote; give it one of its own")
    line = _line_of_claim(claim, evidence, context)
    _check(sentence, line, evidence)
    return QuotedSentence(sentence, quotes[0], own_words(sentence, line, evidence))


def own_words_beside(sentence: str, claim: Claim, evidence: Sequence[Evidence]) -> tuple[str, ...]:
    """The words of a sentence that neither a claim that held nor its lines have."""
    return own_words(sentence, _line_of_claim(claim, evidence, ""), evidence)


def _quotes_of(claim: Claim, evidence: Sequence[Evidence]) -> list[Quote]:
    """A claim's quotes, and the sentences that its series tell of themselves."""
    items = [item for item in evidence if item.id in claim.evidence_ids]
    return [*claim.quotes, *(Quote(item.id, summary) for item in items if (summary := _summary(item)))]


def _line_of_claim(claim: Claim, evidence: Sequence[Evidence], context: str) -> _Line:
    lines = [
        _line_of(quote.text, item, context)
        for quote in _quotes_of(claim, evidence)
        for item in evidence
        if item.id == quote.evidence_id
    ]
    # the moments of "before" are those of the first such lines
    proven = f"{sentence_of(claim, evidence)}{', first' if claim.predicate is Predicate.PRECEDED else ''}"
    text = ". ".join([proven, *(line.text for line in lines)])
    about, times = " ".join(line.about for line in lines), tuple(t for line in lines for t in line.times)
    return _Line(text, about, times, context, text, " ".join(_meanings(text)))


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
    bare = whole.strip("\"'`“”")
    for form in (text, whole, _ESCAPED.sub(r"\1", whole), *(part.strip() for part in parts[:2]), bare):
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
    about: str
    times: tuple[str, ...]
    context: str
    near: str
    """The line with those next to it, since a stack or a summary has several."""
    means: str
    """What its names and Xids stand for."""

    @property
    def ours(self) -> str:
        return f"{self.text} {self.about} {self.context}"

    @cached_property
    def roots(self) -> frozenset[str]:
        return _roots(f"{self.ours} {self.means}")


def _line_of(text: str, item: Evidence, context: str) -> _Line:
    """What a quote stands in: its line of a log, what is near it in a fact, of a series itself alone."""
    body = item.content.decode(errors="replace")
    at, line, near, times = body.find(text), text, text, [clock_of(item.start_s), clock_of(item.end_s)]
    about = f"{item.title} {item.query} {item.source}"
    if item.media_type == LOG:
        lines = [(when, line) for when, line in dated_lines(item) if text in line]
        line, times = " ".join(line for _, line in lines), [clock_of(when.t_s) for when, _ in lines]
        # the node that wrote it
        about += " " + " ".join(sorted({when.clock for when, _ in lines} - {item.id}))
        near = _beside(text, body)
    elif item.media_type == FACTS:
        line = near = body[max(0, at - NEAR_CHARS) : at + len(text) + NEAR_CHARS]
    line = line or text
    return _Line(line, about, tuple(times), context, near, " ".join(_meanings(line)))


_XID = re.compile(r"(?i)\bxid\b(?:\s*\([^)]*\))?[\s:]*(\d{1,3})\b")


_DENOTES = [
    (re.compile(rf"(?i)(?<![a-z])(?:{names})"), words)
    for names, words in (
        ("nvrm|nvidia", "NVIDIA GPU driver"), ("amdgpu", "AMD GPU driver"), ("cuda|nccl|hbm|nvlink|vram|torch", "GPU"), ("sxid|nvswitch", "NVSwitch NVLink"),
        (r"mlx\d|ib[vps]|rdma|roce|eth\d|en[ps]\w*\d|netdev", "network adapter NIC interface port link InfiniBand"),
        (r"nvme|sd[a-z]\d?\b|md\d|blk_|scsi|megasas|mpt\dsas", "disk drive device storage SCSI RAID controller"), ("pcieport|aer", "PCIe"), ("edac", "host memory"),
        ("ext4|xfs|btrfs|nfs|lustre|ceph", "file system storage server mount"), ("no space left|enospc", "disk full"), ("slurm", "scheduler"),
        ("oom", "out of memory"), (r"\w*error:|traceback|\w+\.py\b", "program code application exception software"), ("dmar", "IOMMU"),
    )
]  # fmt: skip
"""What identifiers in a line stand for."""


def _meanings(line: str) -> Iterator[str]:
    """What a reader knows of the names in a line; of its Xids, what NVIDIA's catalogue says."""
    yield from (words for names, words in _DENOTES if names.search(line))
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
    places, reasons = _places_in(evidence), []
    checks: tuple[Callable[[], None], ...] = (
        partial(_check_matter, sentence, line, places),
        partial(_check_numbers, sentence, line, places),
        partial(_check_roles, sentence, line.text),
        partial(_check_place, sentence, line, places),
        partial(_check_side, sentence, line.text),
        partial(_check_order, sentence, line),
        partial(_check_reason, sentence, line),
        partial(_check_own, sentence, line, evidence),
    )
    for check in checks:
        try:
            check()
        except Ungrounded as reason:
            reasons.append(str(reason))
    if reasons:
        raise Ungrounded(", and ".join(reasons[:3]))


# Words ----------------------------------------------------------------------------------------------------------

_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_LETTERS = re.compile(r"[A-Za-z]+")
_SUFFIX = re.compile(
    r"(?:ations?|ments?|ings?|ions?|ures?|ally|able|ible|ness|ers?|ors?|ies|ity|ed|es|al|ly|e|s|y)$"
)
_FORMS = {
    form: root
    for root, forms in (
        line.split(":")
        for line in ["fall:fell fallen", "lose:lost loss", "break:broke broken", "hang:hung", "write:wrote written", "run:ran", "send:sent", "rise:rose risen", "grow:grew grown", "read:reads", "find:found", "keep:kept", "memory:mem", "limit:exceeded exceeds exceed", "configuration:conf config", "initialize:init", "use:used uses", "temperature:temp", "communication:comm", "directory:dir", "image:img", "allocation:alloc"]
    )
    for form in forms.split()
}  # fmt: skip
"""Forms of a word that share too few letters with it, and what logs shorten."""


@lru_cache(maxsize=8192)
def _root(word: str) -> str:
    word = word.lower()
    word = _FORMS.get(word, word)
    while len(word) > 3 and (cut := _SUFFIX.sub("", word)) != word and len(cut) >= 3:
        word = cut
    return word


_PLAIN = frozenset(map(_root, Path(__file__).with_name("plain_words.txt").read_text(encoding="ascii").split()))
"""Words that say nothing by themselves or that report, units, and the things that each line of a cluster is about."""


@lru_cache(maxsize=2048)
def _roots(text: str) -> frozenset[str]:
    """The roots of the words of a text that say something; identifiers in their parts."""
    words = _LETTERS.findall(_CAMEL.sub(" ", text))
    return frozenset(root for word in words if len(word) > 1 and (root := _root(word)) not in _PLAIN)


def _is_in(root: str, roots: Iterable[str]) -> bool:
    """Whether a root is among others: "register" of "registration", "timeout" of "timedout"."""
    return any(
        root == one or (min(len(root), len(one)) >= 4 and (one.startswith(root) or root.startswith(one)))
        for one in roots
    )


def _shared(one: str, other: str) -> set[str]:
    there = _roots(other)
    return {root for root in _roots(one) if _is_in(root, there)}


def own_words(sentence: str, line: _Line, evidence: Sequence[Evidence]) -> tuple[str, ...]:
    """The words of a sentence that neither its line, nor its item, nor the rules have, in their order. That
    something failed is no word of its own under a line of trouble."""
    found: dict[str, str] = {}
    compact, sides = _bare(f"{line.ours} {line.means}"), _sides(line.text, _POSSIBLE)
    places = _places_in(evidence)
    parts_of_places = {part.lower() for name in places for part in _LETTERS.findall(name)}
    plain = [words for side, words in ((1, _WELL), (-1, _FAILS)) if side in sides]
    for match in re.finditer(r"[A-Za-z](?:[\w'./:-]*\w)?", sentence):
        word = match.group().removesuffix("'s")
        if (
            re.search(r"\w[./:_]\w", word)
            and word.lower() not in line.ours.lower()
            and not places.keys() & {word.lower()}
        ):
            found.setdefault(word, word)
        if any(map(str.isdigit, word)) or any(words.fullmatch(word) for words in plain):
            continue
        parts = {_root(part): part for part in _LETTERS.findall(_CAMEL.sub(" ", word)) if len(part) > 2}
        own = [
            root for root, part in parts.items()
            if root not in _PLAIN and part.lower() not in parts_of_places and not _is_in(root, line.roots)
            and not (len(root) > 4 and root in compact)
        ]  # fmt: skip
        # the rules may speak of another GPU than the line does
        if (
            own
            or (_HOW_MANY.fullmatch(word) and not _has(line.text, word))
            or ("gpu" in parts and not re.search(r"(?i)gpu", f"{line.text} {line.about} {line.means}"))
        ):
            found.setdefault(word, word)
    return tuple(found.values())


def _check_own(sentence: str, line: _Line, evidence: Sequence[Evidence]) -> None:
    if (own := len(own_words(sentence, line, evidence))) > MAX_OWN_WORDS:
        raise Ungrounded(
            f"{own} of its words are not in its quote; quote lines that have them, sentence by sentence"
        )


def _check_matter(sentence: str, line: _Line, places: Mapping[str, str]) -> None:
    """Raises Ungrounded where a line has no word of a sentence. Names of places are no words."""
    names = sorted(places, key=len, reverse=True)
    bare = re.compile("|".join(map(re.escape, names)), re.IGNORECASE) if names else re.compile("(?!)")
    own, shown = (bare.sub(" ", text) for text in (sentence, f"{line.text} {line.near} {line.about} {line.means}"))
    named = {name for name in _names(own) if any(map(str.isdigit, name))} & set(_names(shown))
    values = (_numbers(own) - {0.0, 1.0}) & _numbers(line.text)
    if not _shared(own, shown) and not named - {"0", "1"} and not values:
        raise Ungrounded("its quote is of another matter: no word of it; advice belongs into `checks`")


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
_CLOCK = re.compile(r"(?<![\d:])(\d{2}):(\d{2}):(\d{2})(?![\d:])")
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
    sentence, ours = _HEX.sub("0x", sentence), _HEX.sub("0x", f"{line.ours} {_spelled_out(line.ours)}")
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
        # a line may have its seconds without a unit, and 94 % as 0.94
        bare = {base, 1000 * base} if unit in ("s", "1") else {base}
        alike |= any(abs(one - other) <= close * other for one in bare for other in numbers)
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
        if (
            word.count(".") > 1
            or not (own := _numbers(word))
            or not all(_is_among(word, one, numbers, about) for one in own)
        ):
            raise Ungrounded(f"{word[:40]!r} is not in its quote, nor in what it is about")


def _is_named(word: str, words: set[str], compact: str) -> bool:
    bare = word.removesuffix("'s").removesuffix("s")
    if word in words or bare in words or set(_names(word)) <= words or _is_part(word, compact):
        return True
    # "host:port", where the line has the two apart
    return word.count(":") == 1 and all(part in words or f" {part}" in compact for part in word.split(":"))


def _is_part(name: str, text: str) -> bool:
    """Whether a name is a part of a longer one: "scratch-OST0007" of "scratch-OST0007-osc"."""
    return len(name) > 3 and re.search(rf"(?<![a-z0-9]){re.escape(name)}(?![a-z0-9])", text) is not None


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
    amounts += [(float(h) * 3600 + float(m) * 60 + float(s), "s") for h, m, s in _CLOCK.findall(text)[:8]]
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


_HEX = re.compile(r"\b0x0+(?=[0-9a-fA-F])")
_ADDRESS = re.compile(r"(?i)\b(?:[0-9a-f]{2,4}:)+[0-9a-f]{2}(?:\.\d)?\b")


def _numbers(text: str) -> set[float]:
    plain = _ADDRESS.sub(" ", text)
    found = re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?!\w)", plain)
    # "osd.12"
    return {float(one) for one in (*found, *re.findall(r"[A-Za-z][.#_-](\d+)\b(?!\.\d)", plain))}


def _bare(text: str) -> str:
    return re.sub(r"[\W_]+", "", text).lower()


_NAMES_ONE = re.compile(r"(?i)([a-z]{3,}?)(?:s|ed)?[\s_#:=(]{0,3}-?(\d+(?:\.\d+)?)(?![\w.]*\d|\w|[:/-]\w)")
_NUMBERED = frozenset(map(_root, ["rank", "worker", "process", "step", "task"]))


def _check_roles(sentence: str, line: str) -> None:
    """Raises Ungrounded where a number goes with a word that goes with other numbers alone in the line: "link 4",
    "8 GPUs"."""
    for pairs, text in ((_named_by, _QUANTITY.sub(" ", sentence)), (_followed, sentence), (_counted, sentence)):
        shown: dict[str, set[float]] = {}
        for piece in re.split(r"[.,;]\s+", line):
            for word, number in pairs(f"{piece} {_in_words(piece)}", 2 * NEAR_WORDS + 2):
                shown.setdefault(word, set()).add(number)
        everywhere = _numbers(line)
        for clause in _CLAUSE.split(_spelled_out(text)):
            said: dict[float, list[str]] = {}
            for word, number in pairs(clause, NEAR_WORDS):
                if word in shown and (pairs is _named_by or number in everywhere):
                    said.setdefault(number, []).append(word)
            for number, words in said.items():
                if not any(number in shown[word] for word in words):
                    raise Ungrounded(f"in its quote {number:g} does not go with '{words[0]}…'")


def _named_by(text: str, _: int) -> Iterator[tuple[str, float]]:
    """Each number with the word that it stands behind: "rank 5", "device=0"."""
    for match in _NAMES_ONE.finditer(text):
        if (root := _root(match[1])) not in _PLAIN or root in _NUMBERED:
            yield root, float(match[2])


def _followed(text: str, _: int) -> Iterator[tuple[str, float]]:
    """Each number with the word directly behind it: "8 GPUs"."""
    for match in re.finditer(r"(?<![\w.:/-])(\d+(?:\.\d+)?)[ -]([A-Za-z]{3,})", text):
        yield _root(match[2]), float(match[1])


def _counted(text: str, near: int) -> Iterator[tuple[str, float]]:
    """Each number that names nothing, with the roots of the words that are so many words near it."""
    # in a line, "most 97" counts as well
    named = {match.start(2) for match in _NAMES_ONE.finditer(text)} if near == NEAR_WORDS else set()
    tokens = list(
        re.finditer(r"[A-Za-z]+(?!\d)|((?<![\w.:/-])\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\w:/-]))|\w+", text)
    )
    for at, token in enumerate(tokens):
        if token[1] and token.start() not in named:
            for word in (one.group() for one in tokens[max(0, at - near) : at + near + 1]):
                if word.isalpha() and len(word) >= 4 and (root := _root(word)) not in _PLAIN:
                    yield root, float(token[1])


def _in_words(text: str) -> str:
    """A text with identifiers as words: "OutOfMemory", "GSP_RM_CONTROL"."""
    return _CAMEL.sub(" ", text.replace("_", " "))


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


def _check_place(sentence: str, line: _Line, places: Mapping[str, str]) -> None:
    """Raises Ungrounded where sentence and line each name a place of one kind, and none is the same; and where the
    part of a line that says what a clause says names another place."""

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
        alike = [piece for piece in pieces if _shared(piece, clause)]
        if len(alike) == 1:
            compare(named(clause), named(alike[0]))


# Well and ill, and opposites ------------------------------------------------------------------------------------


def _words(text: str) -> re.Pattern[str]:
    return re.compile(rf"(?i)(?<![\w-])(?:{'|'.join(text.split())})(?![\w-])")


_WELL = _words(
    r"ok(?:ay)? fine (?<!for\s)good health(?:y|ily) normal(?:ly)? harmless benign resolved recover(?:s|ed) restored? resum(?:es?|ed) succe\w+"
    r" pass(?:es|ed)? work(?:s|ed|ing) stable clean(?:ly)? graceful(?:ly)? safe(?:ly)? answer(?:s|ed)? respond(?:s|ed)? repl(?:y|ies|ied)"
    r" reachable finish(?:es|ed)? complet(?:es?|ed|ely) (?:in|on)\s+time ready alive surviv\w+ repair(?:s|ed)? fixed healed intact"
    r" usable unaffected unharmed saved loaded connected attached available present valid enough sufficient\w* plenty corrected correctable"
    r" (?:went|gone)\s+through matched? matches compatible allow(?:s|ed) permitted granted accept(?:s|ed)? admitted (?:is|are|keeps?)\s+(?:still\s+)?running finite is\s+back within\s+(?:its|the)\s+\w+"
)
_FAILS = _words(
    r"fail\w* err(?:or)?s? blocked fault\w* problems? trouble bad wrong broken? breaks? unable lost los(?:es?|ing) loss(?=\s+of\s+[a-z]) stop(?:s|ped|ping)? hang(?:s|ing)? hung"
    r" stuck stall\w* time(?:d|s)?[\s-]?out\w* timing[\s-]out unrespons\w+ unhealthy abort\w* dead died dies die crash\w*"
    r" interrupt\w* unsuccess\w+ gave[\s]up"
)
"""What says no more than that something failed, or does not go on."""
_ILL = _words(
    r"down unhandled exceptions? traceback back-?off deadline\w* unreachable froze\w* frozen lock(?:ed)?[\s-]?ups? deadlock\w* unavailable"
    r" no\s+(?:such|space|room|carrier|link) f[ae]ll(?:s|en)?\s+off off\s+the\s+(?:\w+\s)?bus gone vanish\w* disappear\w* missing not[\s]?found absent"
    r" closed offline disconnected unplugged kill\w* oom\w* terminat\w* exit(?:ed|code)? cancel\w* seg(?:ment)?\w*[\s]?fault\w* panic\w*"
    r" oops sig(?:kill|term|segv|bus|abrt) shut(?:ting)?\s?down evict\w* out\s+of\s+\w+ exhaust\w* insufficient enospc too\s+\w+ low\s+on"
    r" exceed\w* run(?:s|ning)?\s+out ran\s+out nan inf diverg\w* overflow\w* corrupt\w* damag\w* defect\w* degraded truncated incomplete"
    r" invalid illegal mismatch\w* unsupported incompatible overheat\w* throttl\w* above\s+threshold denied forbidden unauthori[sz]ed refus\w+"
    r" reject\w* uncorrect\w* unrecoverable double[\s-]?bit fatal slow(?:er|ly|s|ed)? lag\w* behind not[\s]?ready closed? required"
    r" preempt\w* needs? disk-?pressure violation warn(?:ing)? bug mistaken\w* duplicat\w*"
)
_SIDES = ((1, _WELL), (-1, _FAILS), (-1, _ILL))
_DENIES = re.compile(
    r"(?i)\b(?:not(?! only)(?! (?:\w+ ){0,2}yet)|no(?! longer than)|never|without|neither|nor|cannot|can't|unable|fail(?:ed|s|ure|ing)? to|refus\w+ to"
    r"|free of|instead of|rather than|lack(?:s|ed)? of|hardly)\b"
    r"|(?<![\w.:#=-])(?:0|zero)(?=\s[a-z]{3,}s\b)|(?<![\w.])0/\d+|n['’]t\b|\berrors?:?(?= [a-z]+ing\b)|\black(?:s|ed)?\b"
)
_NOT = re.compile(r"(?i)not|never|cannot|can't|n.t|unable|fail|refus")
_CANNOT = re.compile(r"(?i)(?:\b(?:can|could) ?n[o'’]t|unable|fail\w* to|refus\w+ to)$")
_NEVER = re.compile(r"(?!)")
_ZERO = re.compile(r"(?i)([a-z][a-z _]{2,40})\"?\s*[:=]\s*\"?(?:0|false)(?![\w.])")
"""A counter that is zero, or a flag that is not set."""
_CLAUSE = re.compile(
    r"[.,;:!?]\s+|\s+[—–-]\s+|\s+(?:but|which|while|until|when|because|before|after|and so|so|though|although)\s+"
)
_PIECE = re.compile(r"[:;,]\s+|\.\s+")
_MAY = re.compile(
    r"(?i)\b(?:may|might|likely|probabl\w+|possibl\w+|perhaps|suggest\w*|points? (?:to|at)|indicat\w+|appears?|seems?"
    r"|looks? like|consistent with|suspect\w*|presumably|would|should|must|needs?|requires?|expect\w*|or|typical\w*"
    r"|usual\w*|often|frequently|hint\w*|sign of|could(?! not)|if)\b|^\W*(?:check|verify|inspect|confirm)\b"
)
_POSSIBLE = re.compile(
    r"(?i)\b(?:may|might|possibl\w+|likely|probabl\w+|perhaps|maybe|check (?:that|whether|if))\b"
)
"""A line's own possibility is no fact."""
_OPPOSITES = [
    tuple(_words(side) for side in pair.split("/"))
    for pair in [
        r"up/down",
        r"r[io]s(?:e|es|en|ing) gr[eo]w\w* increas\w+ climb\w*/f[ae]ll(?:s|ing|en)?(?!\s+off) shr[aiu]nk\w* decreas\w+ drop(?:s|ped)?",
        r"reads? reading/writ(?:es?|ing|ten) wrote",
        r"send\w* sent transmi\w+/receiv\w+",
        r"first/last",
        r"begins? began start(?:s|ed)?/end(?:s|ed)?",
        r"high(?:er)?/low(?:er)?",
        r"corrected correctable/uncorrect\w+",
        r"fast(?:er)?/slow(?:er)?",
        r"same match\w* equal/different mismatch\w*",
        r"non-?fatal/fatal",
        r"plugged/unplugged",
        r"newer/older",
        r"won? gains? gained elected/lost loses?",
    ]
]
"""Opposites that are neither well nor ill by themselves, or beside a word that is."""


@lru_cache(maxsize=4096)
def _sides(text: str, possible: re.Pattern[str]) -> frozenset[int]:
    """Whether a text tells of something well (1), of something ill (-1), or of both. A denial turns those of one
    side that follow it round; one of nothing else is ill. What is a mere possibility tells of neither."""
    found: set[int] = set()
    for sentence in re.split(r"[.;:]\s+|\s+but\s+", _ZERO.sub(r"without \1 ", _in_words(text))):
        if possible.search(sentence) is None:
            for clause in _CLAUSE.split(sentence):
                found |= set(_sides_of(clause))
    # "nvAssertOkFailed" is no "OK"
    well = any(words.search(text.replace("_", " ")) for words in (_WELL, _DENIES, _ZERO))
    return frozenset(found if well else found - {1})


def _sides_of(clause: str) -> Iterator[int]:
    spans = [(m.start(), m.end(), side) for side, words in _SIDES for m in words.finditer(clause)]
    taken: list[tuple[int, int, int]] = []
    # the longest first: "not found" is no denial
    for start, end, side in sorted(spans, key=lambda one: one[0] - one[1]):
        if all(end <= other or start >= last for other, last, _ in taken):
            taken.append((start, end, side))
    turned: set[int] = set()
    for denial in _DENIES.finditer(clause):
        if any(start <= denial.start() and denial.end() <= end for start, end, _ in taken):
            continue
        near = [
            one
            for one in sorted(taken)
            if one[0] >= denial.end() and len(clause[denial.end() : one[0]].split()) < REACH
        ]
        turned |= {start for start, _, side in near if side == near[0][2]}
        if (not near and _NOT.match(denial.group())) or _CANNOT.search(clause[: denial.end()]):
            yield -1
    yield from (-side if start in turned else side for start, _, side in taken)


def turns_round(sentence: str, quoted: str) -> str:
    """In which way a sentence says the opposite of the line that it quotes; empty where no rule finds one."""
    try:
        _check_side(sentence, quoted)
    except Ungrounded as reason:
        return str(reason)
    return ""


def _check_side(sentence: str, line: str) -> None:
    line, said = _ZERO.sub(r"without \1 ", _in_words(line)), _sides(sentence, _MAY)
    shown = _sides(line, _POSSIBLE)
    if said == {1} and 1 not in shown:
        raise Ungrounded("it says that something is well, its quote does not")
    if said == {-1} and shown == {1}:
        raise Ungrounded("it says that it is ill, its quote says well")
    if opposite := _opposite(sentence, line) or _by_prefix(sentence, line):
        raise Ungrounded(f"{opposite!r} is the opposite of what its quote says")
    for text, other, where in ((sentence, line, "in its quote"), (line, sentence, "in it")):
        if not _DENIES.search(text) and -1 not in _sides(text, _NEVER):
            plain = _roots(text)
            if turned := sorted(root for root in _denied(other) if _is_in(root, plain)):
                raise Ungrounded(f"'{turned[0]}…' is denied {where} alone")


def _opposite(sentence: str, line: str) -> str:
    """The word of a sentence to which a line has the opposite alone. A denial may turn either."""
    if _DENIES.search(f"{sentence} {line}"):
        return ""
    for pair in _OPPOSITES:
        for mine, theirs in (pair, pair[::-1]):
            word = mine.search(sentence)
            if word and theirs.search(line) and not theirs.search(sentence) and not mine.search(line):
                return word.group()
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
    """The roots of the words next behind a denial, and of those that "failed"."""
    found: set[str] = set()
    for clause in _CLAUSE.split(text):
        for denial in _DENIES.finditer(clause):
            found |= _roots(" ".join(clause[denial.end() :].split()[:3]))
        for failed in re.finditer(
            r"(?i)\bfail(?:ed|s|ure)?\b(?=\W*$|\s*[(:]|\s(?:with|for|at|on|in|due)\b)", clause
        ):
            found |= _roots(" ".join(clause[: failed.start()].split()[-4:]))
    return found


# Order in time, and reasons ----------------------------------------------------------------------------

_ORDER = re.compile(
    r"(?i)\b(?:before(?! (?:the|its) (?:deadline|timeout|limit))|after(?! (?:\w+ ){0,2}\d| (?:an?|ten|some) )|afterwards|preced\w+|prior to|earlier|later"
    r"|follow(?:s|ed|ing)|(?<=[,;] )then|(?<=and )then|first|subsequent\w*)\b"
)
_HOW_MANY = re.compile(
    r"(?i)all|only|every\w*|each|none|nothing|nobody|always|entire\w*|whole|completely|majority|nowhere|both"
)
_REASON = re.compile(
    r"(?i)\b(?:because(?: of)?|due to|caused by|triggered by|as a result of|owing to|since(?! \d))\s+([^.,;:]{3,90}?)"
    r"(?=[.,;:]|$|\s(?:and|but|so|which)\s)"
)


def _check_order(sentence: str, line: _Line) -> None:
    for word in _ORDER.finditer(sentence):
        sides = _CLAUSE.split(sentence[: word.start()])[-1], _CLAUSE.split(sentence[word.end() :])[0]
        hedged = _MAY.search(f"{sides[0]} {sides[1]}") is not None
        if (
            not hedged
            and not _has(line.near, word.group())
            and not all(_shared(side, line.ours) for side in sides if side.strip())
        ):
            reason = "an order in time, which is for a `preceded` claim"
            raise Ungrounded(f"{word.group()!r} is not in its quote: it says {reason}")
        shown = re.search(r"(?i)\b(before|after)\b", line.text)
        if shown is None or not re.match(r"(?i)before|after|follow|then|prior", word.group()):
            continue
        there = line.text[: shown.start()].split(". ")[-1], line.text[shown.end() :].split(". ")[0]
        alike, crossed = (
            sum(len(_shared(one, other)) for one, other in zip(sides, pair, strict=True))
            for pair in (there, there[::-1])
        )
        same = _is_before(word.group()) == _is_before(shown[1])
        if (crossed > alike) if same else (alike > crossed):
            raise Ungrounded(f"{word.group()!r} is the other way round in what it rests on")


def _is_before(word: str) -> bool:
    return word.lower().startswith(("before", "prior", "then"))


def _check_reason(sentence: str, line: _Line) -> None:
    """Raises Ungrounded for a reason of which the line has no word, and that is not worded as a possibility."""
    for clause in re.split(r"[;]\s+|\.\s+|:\s+", sentence):
        for reason in () if _MAY.search(clause) else _REASON.finditer(clause):
            if (own := _roots(reason[1])) and not any(_is_in(root, line.roots) for root in own):
                raise Ungrounded(f"its quote does not bear the reason {reason[1][:60]!r}; word it as a possibility")


def _has(text: str, word: str) -> bool:
    return re.search(rf"(?i)\b{re.escape(word)}\b", text) is not None
