"""What a model's own sentence may say under its quote. What no rule can decide is shown as "not proven".

A sentence is shown only if

- its quote is in an item of evidence, byte for byte, and shares a word with it that says more than "GPU" or "node";
- each number, name and time in it is in the quoted line, in what the item is about, or in what the rules said;
- it does not turn its quote round: what the quote denies it does not assert, what failed did not recover;
- it is about the place that its quote is about, where both name one;
- it says neither an order in time nor "all" nor "only", unless the quote does: those are for claims.

Rules of words decide this, so a sentence that is true may fall; it is returned to the model once, with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from nightshift.agent.rca.figures import Ungrounded
from nightshift.agent.rca.grounding import (
    MAX_QUOTE_CHARS,
    MIN_QUOTE_CHARS,
    clock_of,
    dated_lines,
    has_words,
)
from nightshift.agent.store.diagnosis import FACTS, LOG, Evidence, Quote

NEAR_CHARS = 200
"""So much of a fact on each side of a quote counts as its line."""
CLOSE = 0.05
"""A span of time in a sentence may be rounded by this share."""
REACH = 4
"""A denial counts for so many words after it."""
_STEM = 4
"""Letters by which two words are held to be one: "failed" and "failure", "links" and "link"."""


def quote_under(sentence: str, text: str, name: str, evidence: Sequence[Evidence], context: str = "") -> Quote:
    """The quote that a sentence of a model's own is shown with. `name` is the item that it cites; another one that
    holds the bytes does as well. `context` are texts of ours that it may repeat. Raises Ungrounded."""
    if not MIN_QUOTE_CHARS <= len(text) <= MAX_QUOTE_CHARS or not has_words(text, 2 * MIN_QUOTE_CHARS):
        raise Ungrounded("it has no quote of some words" if text else "it has no quote")
    raw = text.encode(errors="replace")
    found = sorted((item for item in evidence if raw in item.content), key=lambda item: item.id != name)
    if "\n" in text or not found:
        raise Ungrounded("its quote is in no item")
    # several items may hold the line; one of them has to bear the sentence
    reasons: list[Ungrounded] = []
    for item in found:
        try:
            _borne(sentence, text, item, evidence, context)
        except Ungrounded as reason:
            reasons.append(reason)
        else:
            return Quote(item.id, text)
    raise reasons[0]


def _borne(sentence: str, text: str, item: Evidence, evidence: Sequence[Evidence], context: str) -> None:
    line = _line_of(text, item)
    about = f"{item.title} {item.query} {item.source}"
    shown = f"{text} {item.title}" if item.media_type != LOG else text
    if not _stems(sentence) & _stems(shown):
        raise Ungrounded("its quote has no word of it")
    _check_numbers(sentence, f"{line} {about}", _times_of(text, item), _places_in(evidence), context)
    _check_place(sentence, f"{line} {about}", evidence)
    _check_order(sentence, line)
    if turned := turns_round(sentence, line if item.media_type == LOG else text):
        raise Ungrounded(turned)


def _line_of(text: str, item: Evidence) -> str:
    """What a quote stands in: its line of a log, what is near it in a fact, of a series itself alone."""
    body = item.content.decode(errors="replace")
    at = body.find(text)
    if item.media_type == LOG:
        return " ".join(line.partition("\t")[2] or line for line in body.split("\n") if text in line)
    if item.media_type == FACTS:
        return body[max(0, at - NEAR_CHARS) : at + len(text) + NEAR_CHARS]
    return text


def _times_of(text: str, item: Evidence) -> list[str]:
    if item.media_type != LOG:
        return [clock_of(item.start_s), clock_of(item.end_s)]
    return [clock_of(at.t_s) for at, line in dated_lines(item) if text in line]


# Numbers, names and times -------------------------------------------------------------------------------------

_NAMED = re.compile(r"[A-Za-z0-9][\w.:/#@-]*")
_CLOCK_TIME = re.compile(r"(?<![\d:.])([01]\d|2[0-3]):[0-5]\d(?::[0-5]\d)?(?![\d:])")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_TIME_SPAN = re.compile(
    r"(?i)(?<![\w.])(\d+(?:\.\d+)?)\s*(ms|milliseconds?|s|sec|secs|seconds?|min|minutes?|h|hours?)\b"
)


def _check_numbers(sentence: str, line: str, times: Sequence[str], places: Iterable[str], context: str) -> None:
    """Raises Ungrounded for the first number, name or time that is neither in the quoted line nor said by us."""
    ours = f"{line} {context}"
    clocks = [*times, *(match.group() for match in _CLOCK_TIME.finditer(ours))]
    for clock in _CLOCK_TIME.finditer(sentence):
        if not any(one.startswith(clock.group()) for one in clocks):
            raise Ungrounded(f"the time {clock.group()} is not that of its quote")
    rest = _CLOCK_TIME.sub(" ", sentence)
    numbers = _numbers(ours)
    for span in _TIME_SPAN.finditer(rest):
        seconds = _seconds(span)
        spans = (_seconds(other) for other in _TIME_SPAN.finditer(ours))
        if float(span[1]) not in numbers and not any(abs(s - seconds) <= CLOSE * s for s in spans):
            raise Ungrounded(f"{span.group()!r} is not in its quote")
    rest = _TIME_SPAN.sub(" ", rest)
    words = {*_names(ours), *places}
    for word in _names(rest):
        bare = word.removesuffix("'s").removesuffix("s")
        if not any(map(str.isdigit, word)) or word in words or bare in words:
            continue
        if not (number := _numbers(word)) or not number <= numbers:
            raise Ungrounded(f"{word[:40]!r} is not in its quote, nor in what it is about")


def _seconds(span: re.Match[str]) -> float:
    unit = span[2].lower()
    return float(span[1]) * _UNITS["ms" if unit.startswith(("ms", "milli")) else unit[0]]


def _names(text: str) -> Iterator[str]:
    """The names of a text, whole and in their parts."""
    for found in _NAMED.findall(text.lower()):
        word = found.strip(".:/-#@")
        yield word
        yield from (part for part in re.split(r"[:/#@=]", word) if any(map(str.isalpha, part)))


def _numbers(text: str) -> set[float]:
    return {float(found) for found in re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?!\w)", text)}


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


def _check_place(sentence: str, quoted: str, evidence: Sequence[Evidence]) -> None:
    """Raises Ungrounded where sentence and quote each name a place of one kind, and none is the same."""
    places = _places_in(evidence)

    def named(text: str) -> dict[str, set[str]]:
        by_kind: dict[str, set[str]] = {}
        for word in _names(text):
            if (kind := places.get(word)) is not None:
                by_kind.setdefault(kind, set()).add(word.rpartition("/")[2])
        for rank in re.findall(r"(?i)\brank[\s_-]?(\d{1,6})\b", text):
            by_kind.setdefault("rank number", set()).add(rank)
        return by_kind

    said, shown = named(sentence), named(quoted)
    for kind in said.keys() & shown.keys():
        if not said[kind] & shown[kind]:
            raise Ungrounded(f"its quote is about {sorted(shown[kind])[0]}, not about {sorted(said[kind])[0]}")


# Order in time, and universal words ---------------------------------------------------------------------------

_ORDER = re.compile(
    r"(?i)\b(?:before|after(?! \d)|afterwards|preced\w+|prior|earlier|later|follow(?:s|ed|ing)|then|first"
    r"|subsequent\w*)\b"
)
_UNIVERSAL = re.compile(r"(?i)\b(?:all|every\w*|each|only|none|nothing|nobody|always|entire\w*)\b")


def _check_order(sentence: str, line: str) -> None:
    for pattern, meaning in ((_ORDER, "an order in time, which is for a `preceded` claim"), (_UNIVERSAL, "of all")):
        for found in pattern.finditer(sentence):
            if re.search(rf"(?i)\b{found.group()}\b", line) is None:
                raise Ungrounded(f"{found.group()!r} is not in its quote: it says {meaning}")


# What turns a quote round -------------------------------------------------------------------------------------

_DENIES = re.compile(
    r"(?i)\b(?:not|no|never|without|neither|nor|cannot|unable|fail(?:ed|s|ure)? to|refus\w+ to|stop(?:s|ped)?"
    r"|free of)\b|(?<![\w.:#=-])(?:0|zero)(?=\s[a-z]+s\b)|n['’]t\b|\black(?:s|ed)?\b"
)
_GOOD = re.compile(
    r"(?i)\b(?:recover(?:ed|s|y)?|restored|resum(?:ed|es)|healthy|ok|fine|normal(?:ly)?|good|intact|harmless|resolved"
    r"|succe(?:eded|eds|ss|ssful|ssfully)|passed|works|working|ready|(?:is|are|came|comes) back|up|online"
    r"|connected|completed|answers?|responds?|alive)\b"
)
_BAD = re.compile(
    r"(?i)\b(?:fail\w*|errors?|lost|loss of|lose[sd]?|fall(?:s|en)?|fell|down|dead|died|dies|crash\w*|hangs?"
    r"|hanging|hung|stuck|time[ds]?[ -]?out|timeouts?|timing out|fatal|corrupt\w*|unhealthy|brok\w+|kill\w*"
    r"|abort\w*|uncorrect\w*|offline|disconnected|unreachable|exhaust\w*|denied|refused|full|faulty|defect\w*|bad|gone"
    r"|terminated|stall\w*|not ?ready|throttl\w*|panic\w*|oops|invalid|illegal)\b"
)
_ZERO = re.compile(r"(?i)([a-z][a-z _]{2,40})\"?\s*[:=]\s*\"?(?:0|false)(?![\w.])")
"""A counter that is zero, or a flag that is not set."""
_WORD = re.compile(r"[a-z]+(?:['’]t)?")
_OPPOSITE = re.compile(r"(?:un|non|dis|in)(?=correct|recover|health|reach|avail|connect|able|activ|success)")
"""Beginnings by which a word denies the rest of itself."""
_CLAUSE = re.compile(r"[.,;!?]\s+|\s+but\s+|\s+which\s+")


def turns_round(sentence: str, quoted: str) -> str:
    """In which way a sentence says the opposite of the line that it quotes; empty where no rule finds one."""
    sentence, quoted = (_ZERO.sub(r"without \1 ", text) for text in (sentence, quoted))
    said, shown = _signs(sentence), _signs(quoted)
    if said and shown and not said & shown:
        return f"it says that it is {_SIGN[next(iter(said))]}, its quote says {_SIGN[next(iter(shown))]}"
    if "good" in said and "good" not in shown:
        return "its quote shows no recovery"
    for one, other, where in ((sentence, quoted, "it"), (quoted, sentence, "its quote")):
        denied, plain = _denied(one), _without_denial(other)
        if turned := sorted(denied & plain):
            return f"{turned[0]!r} is denied in {where} alone"
    return ""


_SIGN = {"good": "well", "bad": "bad"}


def _signs(text: str) -> set[str]:
    """Whether a text tells of something well, something bad, or both."""
    found: set[str] = set()
    for clause in _CLAUSE.split(text):
        for pattern, sign, other in ((_GOOD, "good", "bad"), (_BAD, "bad", "good")):
            for match in pattern.finditer(clause):
                before = clause[: match.start()].split()[-REACH:]
                flipped = _DENIES.search(" ".join([*before, "x"])) is not None
                flipped |= any(
                    zero.start(1) <= match.start() < zero.end(1) for zero in _ZERO.finditer(clause.lower())
                )
                found.add(other if flipped else sign)
    return found


def _denied(text: str) -> set[str]:
    """The stems of the words that are denied wherever they occur."""
    denied: set[str] = set()
    said: set[str] = set()
    for clause in _CLAUSE.split(text.lower()):
        denials = [match.end() for match in _DENIES.finditer(clause)]
        for match in _WORD.finditer(clause):
            opposite = _OPPOSITE.match(match.group())
            near = any(len(clause[end : match.start()].split()) < REACH for end in denials if end <= match.start())
            stems = _stems(match.group()[opposite.end() if opposite else 0 :])
            under = near != (opposite is not None)
            (denied if under else said).update(stems)
    return denied - said


def _without_denial(text: str) -> set[str]:
    """The stems of the clauses in which nothing is denied."""
    clauses = _CLAUSE.split(text.lower())
    plain = [clause for clause in clauses if not _DENIES.search(clause)]
    return {
        stem for clause in plain for word in _WORD.findall(clause) for stem in _stems(word) if not _denied(word)
    }


def _stems(text: str) -> set[str]:
    """The beginnings of the words of a text that say something, and its numbers."""
    words = re.findall(r"[a-z]{3,}|\d+", text.lower())
    return {word[:_STEM] for word in words} - _EMPTY_WORDS


# The beginnings of words that name nothing, or what every line of a GPU cluster names.
_EMPTY_WORDS = frozenset(re.findall(
    r"\w+",
    "all and any are beca been but can did due for from had has have its not one out that the then ther this was"
    " were when whic with gpu gpus node rank job nvrm kern pid name pci off down erro fail",
))  # fmt: skip
