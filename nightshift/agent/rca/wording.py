"""The sentence of a claim, made from its predicate alone.

A model's own sentence may say more than its predicate proves ("the cooling failed", over a true quote). So what
people read of a model's claim is written here, from what was checked; the model's prose is a hypothesis.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from nightshift.agent.store.diagnosis import FACTS, SERIES, Claim, Evidence, Predicate

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
        return f"{names} {word} by at least {least:.4g}{_unit(items[0])} after {_clock(split_s)}"

    return say


def _preceded(claim: Claim, items: Sequence[Evidence]) -> str:
    if len(items) == 1:
        return f"in {items[0].id} the first quoted line comes before the second"
    return f"what {items[0].id} shows ({_signal(items[0])}) came before {items[1].id} ({_signal(items[1])})"


def _co_located(claim: Claim, items: Sequence[Evidence]) -> str:
    one, other, place = (_cut(str(claim.arguments[name])) for name in ("one", "other", "place"))
    return f"{one} and {other} are both at {place}"


def _absent(claim: Claim, items: Sequence[Evidence]) -> str:
    patterns = [_cut(p) for p in str(claim.arguments["patterns"]).split("\n") if p]
    return f"not in {', '.join(i.id for i in items if i.media_type != 'application/json')}: {'; '.join(patterns)}"


def _equals(claim: Claim, items: Sequence[Evidence]) -> str:
    value = claim.arguments["value"]
    said = f"{value:g}" if isinstance(value, float | int) else _cut(str(value))
    of = " and ".join(_cut(item.title or item.id) for item in items if item.media_type == FACTS)
    return f"{of}: {_cut(str(claim.arguments['path']))} is {said}"


def _repeated(claim: Claim, items: Sequence[Evidence]) -> str:
    times = float(claim.arguments["times"])
    if items[0].media_type == SERIES:
        return f"{_signal(items[0])} was at least {float(claim.arguments['level']):.4g} {times:.0f} times or more"
    return f"{_cut(str(claim.arguments['pattern']))!r} stands in {items[0].id} {times:.0f} times or more"


def _clock(t_s: float) -> str:
    try:
        return datetime.fromtimestamp(t_s, UTC).strftime("%H:%M:%S")
    except (OverflowError, OSError, ValueError):
        return f"{t_s:g}"


def _cut(text: str) -> str:
    return text if len(text) <= _MAX else f"{text[: _MAX - 1]}…"


_WORDS: dict[Predicate, Callable[[Claim, Sequence[Evidence]], str]] = {
    _P.ROSE: _changed("rose"),
    _P.FELL: _changed("fell"),
    _P.PRECEDED: _preceded,
    _P.CO_LOCATED: _co_located,
    _P.ABSENT: _absent,
    _P.EQUALS: _equals,
    _P.REPEATED: _repeated,
}
