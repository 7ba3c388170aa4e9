"""Whether an answer in free text names the right cause: its component, its mechanism, and where it sits.

An answer is right if one of its clauses asserts component and mechanism of the truth, the place is named, and no
other cause is asserted as one. A clause that denies its cause ("the cable is fine", "not the disk") asserts nothing.
What a clause tells as an effect ("so the job ended", "because …" before it) is no other cause. One other cause as a
possibility beside a plain assertion is allowed; a list of possibilities is not an answer, however long. Labels are
never read.
"""

# ruff: noqa: E501 -- patterns are as long as they are
from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.rca_evals.causes import CAUSES, Cause

_QUOTED = re.compile(r"\"[^\"\n]{0,600}\"|“[^”\n]{0,600}”|`[^`\n]{0,600}`")
_SENTENCE = re.compile(r"(?<=[.!?;])\s+|\n+")
_CLAUSE = re.compile(
    r"(?i),?\s+\b(?:but|however|although|though|whereas|while|yet|except that|nevertheless|instead it is|rather it is)\b\s+"
    r"|,\s+(?=(?:not|nor|no|rather|it is|it was|this is|this was|the cause is|the cause was)\b)|\s+(?:—|–|--)\s+|:\s+(?=it\b)"
)
# What stands before one of these is an effect of what stands behind it.
_BECAUSE = re.compile(
    r"(?i)\b(?:because(?: of)?|due to|caused by|as a result of|owing to|triggered by|stems? from|results? from|comes? from"
    r"|on account of|following|root cause (?:is|was)|after)\b"
)
# What stands behind one of these is an effect of what stands before it.
_SO = re.compile(
    r"(?i)\b(?:cause[sd]?(?! of)|led to|leads to|result(?:ed|s) in|so that|so|therefore|hence|thus|triggered(?! by)|took down|brought down(?! by)"
    r"|which (?:then )?(?:made|killed|ended|stopped|broke|took|left)|and then|that is why|which is why|as a consequence"
    r"|in turn|made the|ended the|stopped the|followed by|before)\b"
)
_NOT = re.compile(
    r"(?i)\b(?:not|no|never|nor|neither|without|isn't|wasn't|aren't|weren't|doesn't|didn't|don't|rather than|instead of"
    r"|rules? out|ruled out|exclud\w+|unlikely|unrelated to|free of|nothing (?:points|speaks|suggests)|other than)\b"
)
_DENIED_AFTER = re.compile(
    r"(?i)^[^.]{0,60}?\b(?:(?:is|was|are|were|can be|has been|seems?|looks?) (?:\w+ )?(?:ruled out|excluded|unlikely|unrelated|harmless|benign|healthy"
    r"|fine|a red herring|red herrings|a coincidence|noise|not the (?:root )?(?:cause|problem|reason)|no cause|only a (?:symptom|consequence)"
    r"|just a (?:symptom|consequence)|a (?:symptom|consequence)|a side effect|to be ignored)|did not happen|never happened"
    r"|(?:does|do|did) not (?:matter|explain)|(?:is|was|are|were)(?:n't| not) (?:it|involved|to blame|at fault|the (?:root )?cause)|has nothing to do)"
)
_MAY = re.compile(
    r"(?i)\b(?:may|might|could|possibl\w+|perhaps|maybe|potential\w*|either|or|alternatively|candidates?|among|conceivabl\w+|suspects?"
    r"|one of|cannot (?:tell|say)|unclear|unknown which|any of)\b"
)
_NEXT_MATTER = re.compile(r"(?i)[,(:]|\b(?:and|since|that|which|who|when|until)\b")
"""What ends the reach of a negation."""
# These say that something failed, not that it did not.
_NOT_A_DENIAL = re.compile(
    r"(?i)\b(?:could not|couldn't|can ?not|can't|unable|not only|no longer|not any ?more|(?:does|did|do|has|have|is) not (?:get|have|enough)"
    r"|(?:has|have|had|with) no(?= [\w ]{1,20}left))\b"
)
_REACH = 45
"""Characters before a mechanism in which a negation denies it."""


@dataclass(frozen=True)
class Truth:
    """What is right for an incident. `places` are the names by which its place may be told, any of them; none: the
    place is not asked for."""

    cause: str
    places: tuple[str, ...]
    also: tuple[str, ...] = ()
    """Further causes that are right as well, since the evidence bears them."""


@dataclass(frozen=True)
class Verdict:
    right: bool
    component: bool
    mechanism: bool
    place: bool
    others: tuple[str, ...] = ()
    """Families of causes that the answer asserts beside, or instead of, the truth."""


def judge(answer: str, truth: Truth) -> Verdict:
    """Reads an answer. It may be of any length; only its first 20,000 characters are read."""
    text = answer[:20_000]
    clauses = list(_clauses(text))
    causes = [CAUSES[name] for name in (truth.cause, *truth.also)]
    component = any(_says(clause, cause.component) for clause in clauses for cause in causes)
    firm = [c for c in clauses if any(_asserts(c, clauses, cause) for cause in causes)]
    place = not truth.places or any(_names(text, name) for name in truth.places)
    admitted = {family for cause in causes for family in (cause.family, *cause.admits)}
    plain: set[str] = set()
    hedged: set[str] = set()
    for clause in clauses:
        for cause in CAUSES.values():
            if cause.family not in admitted and not clause.is_effect and _says(clause, cause.phrase):
                (hedged if clause.may_be else plain).add(cause.family)
    certain = any(not clause.may_be for clause in firm)
    alone = not plain and (not hedged or (certain and len(hedged - plain) == 1))
    right = bool(firm) and place and alone
    return Verdict(right, component, bool(firm), place, tuple(sorted(plain | hedged)))


@dataclass(frozen=True)
class _Clause:
    text: str
    is_effect: bool
    may_be: bool
    whole: str
    """The clause that this is a part of: where it tells an effect as well, its parts are two."""


def _clauses(text: str) -> Iterator[_Clause]:
    # what a log says is no assertion of the answer, but the words of a quote may tell the component
    flat = _QUOTED.sub(lambda match: match.group().replace(".", " ").replace(";", " "), text)
    for sentence in _SENTENCE.split(flat):
        for clause in _CLAUSE.split(sentence):
            if clause and clause.strip():
                yield from _parts(clause)


def _parts(clause: str) -> Iterator[_Clause]:
    """A clause's cause and its effect apart, where it tells both."""
    because, then = _BECAUSE.search(clause), _SO.search(clause)
    may_be = bool(_MAY.search(clause))
    if because is not None and (then is None or because.start() <= then.start()):
        before, after = clause[: because.start()], clause[because.end() :]
        # "not because of X" denies X
        denied = re.search(r"(?i)\b(?:not|never|hardly)\s*$", before) is not None
        yield _Clause(before, not denied, may_be, clause)
        yield _Clause(f"not {after}" if denied else after, False, may_be, clause)
    elif then is not None:
        # "X did not cause Y" denies X as the cause
        denied = re.search(r"(?i)(?:\bnot|n't|never)\s+$", clause[: then.start()]) is not None
        before = clause[: then.start()]
        yield _Clause(f"not {before}" if denied else before, denied, may_be, clause)
        yield _Clause(clause[then.end() :], not denied, may_be, clause)
    else:
        yield _Clause(clause, False, may_be, clause)


def _asserts(clause: _Clause, clauses: Sequence[_Clause], cause: Cause) -> bool:
    """Whether a clause says of the cause's component, named in it or in its other part, that its mechanism
    happened."""
    near = [other for other in clauses if other.whole == clause.whole]
    return _says(clause, cause.mechanism) and any(_says(other, cause.component) for other in near)


def _says(clause: _Clause, pattern: str) -> bool:
    return any(_stands(clause.text, match) for match in re.finditer(pattern, clause.text, re.IGNORECASE))


def _stands(text: str, match: re.Match[str]) -> bool:
    """Whether a match is asserted, not denied before or behind it."""
    plain = _NOT_A_DENIAL.sub(lambda found: " " * len(found.group()), text)
    before = plain[max(0, match.start() - _REACH) : match.start()]
    if _NOT.search(_NEXT_MATTER.split(before)[-1]) is not None:
        return False
    return _DENIED_AFTER.search(text[match.end() :]) is None


def _names(text: str, place: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(place)}(?![\w]|-\w)", text, re.IGNORECASE) is not None


def causes_in(text: str) -> list[str]:
    """The causes that a text asserts as such, by their narrow phrase."""
    clauses = [clause for clause in _clauses(text[:20_000]) if not clause.is_effect]
    return [name for name, cause in CAUSES.items() if any(_says(clause, cause.phrase) for clause in clauses)]
