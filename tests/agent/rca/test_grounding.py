"""No claim is shown that its evidence does not bear: every predicate, every quote, every byte."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightshift.agent.rca.grounding import bind, ground, reground, why_not
from nightshift.agent.store.diagnosis import (
    FACTS,
    LOG,
    SERIES,
    Claim,
    Confidence,
    Diagnosis,
    Evidence,
    Predicate,
    Quote,
)
from nightshift.collectors.seal import canonical_json
from nightshift.detectors.base import Fault

P = Predicate


def item(name: str, media_type: str, content: bytes) -> Evidence:
    return Evidence(name, "test", "", 0.0, 100.0, media_type, content)


def series(*values: float | None, name: str = "E1") -> Evidence:
    body = {"t_s": [float(10 * i) for i in range(len(values))], "values": list(values), "metric": "m", "unit": ""}
    return item(name, SERIES, canonical_json(body))


LINES = b"10.000\tNVRM: Xid (PCI:0000:9b:00): 94, pid=7, Contained\n11.500\tNVRM: Xid (PCI:0000:9b:00): 45, pid=7\n"
KLOG = item("E2", LOG, LINES)
QUIET = item("E3", LOG, b"5.000\tusb 1-1: new device\n")
WELL, UNWELL = (item("E4", FACTS, canonical_json({"ok": ok})) for ok in (True, False))
OTHERS = replace(WELL, query="n2")
SAID = item("E5", FACTS, canonical_json({"facts": {"xid": 94, "name": "CONTAINED"}, "flag": True}))
PLACES = item(
    "E6",
    FACTS,
    canonical_json(
        {"above": {"gpu:G": ["node:n1", "job:a", "cluster:c"], "rank:a#1": ["job:a"], "job:a": ["cluster:c"]}}
    ),
)


def claim(predicate: Predicate, *evidence: Evidence, quotes: tuple[Quote, ...] = (), **arguments: Any) -> Claim:
    return bind(Claim("it is so", predicate, tuple(e.id for e in evidence), quotes, arguments), evidence)


FALLING = series(5.0, 5.0, 1.0, 1.0)
COLON = Quote("E2", "): ")
WRONG = Quote("E2", "): 94, pid=8")
NOISY = series(1.0, 3.0, 1.0, 3.0, 1.0, 3.0, 3.0, 3.0)
NODES = (
    item("E7", LOG, b"10.000\xc2\xb10.020@n1\tNVRM: Xid 79\n"),
    item("E8", LOG, b"10.030\xc2\xb10.020@n2\tNCCL abort\n"),
)
FAR = item("E9", LOG, b"10.900\xc2\xb10.020@n2\tNCCL abort\n")
FELL_OFF, ABORT, LATER = Quote("E7", "Xid 79"), Quote("E8", "NCCL abort"), Quote("E9", "NCCL abort")
RISING = series(1.0, 1.0, None, 1.0, 5.0, 5.5, 6.0)
XID, TEARDOWN = Quote("E2", "): 94, pid=7"), Quote("E2", "): 45, pid=7")
CASES: list[tuple[str, bool, Claim, list[Evidence]]] = [
    ("a rise", True, claim(P.ROSE, RISING, split_s=30.0, at_least=4.0), [RISING]),
    ("a rise that is too small", False, claim(P.ROSE, RISING, split_s=30.0, at_least=5.0), [RISING]),
    ("a rise by nothing", False, claim(P.ROSE, RISING, split_s=30.0, at_least=0.0), [RISING]),
    ("a rise with no before", False, claim(P.ROSE, RISING, split_s=-1.0, at_least=1.0), [RISING]),
    ("a rise that was a fall", False, claim(P.FELL, RISING, split_s=30.0, at_least=1.0), [RISING]),
    ("a rise that is only noise", False, claim(P.ROSE, NOISY, split_s=50.0, at_least=0.5), [NOISY]),
    ("an order that the clocks cannot tell", False, claim(P.PRECEDED, *NODES, quotes=(FELL_OFF, ABORT)), [*NODES]),
    ("an order that they can", True, claim(P.PRECEDED, NODES[0], FAR, quotes=(FELL_OFF, LATER)), [NODES[0], FAR]),
    ("a fall", True, claim(P.FELL, FALLING, split_s=10.0, at_least=3.0), [FALLING]),
    ("a rise in a log", False, claim(P.ROSE, KLOG, split_s=0.0, at_least=1.0), [KLOG]),
    ("one line before another", True, claim(P.PRECEDED, KLOG, quotes=(XID, TEARDOWN)), [KLOG]),
    ("one line after another", False, claim(P.PRECEDED, KLOG, quotes=(TEARDOWN, XID)), [KLOG]),
    ("before by more than it was", False, claim(P.PRECEDED, KLOG, quotes=(XID, TEARDOWN), margin_s=2.0), [KLOG]),
    ("a series before a line", False, claim(P.PRECEDED, RISING, KLOG, quotes=(XID,), level=5.0), [RISING, KLOG]),
    ("a line before a series", True, claim(P.PRECEDED, KLOG, RISING, quotes=(XID,), level=5.0), [RISING, KLOG]),
    ("a level that it began at", False, claim(P.PRECEDED, RISING, KLOG, quotes=(XID,), level=0.5), [RISING, KLOG]),
    ("a level never reached", False, claim(P.PRECEDED, KLOG, RISING, quotes=(XID,), level=50.0), [RISING, KLOG]),
    ("together", True, claim(P.CO_LOCATED, PLACES, one="gpu:G", other="rank:a#1", place="job:a"), [PLACES]),
    ("with itself", False, claim(P.CO_LOCATED, PLACES, one="gpu:G", other="gpu:G", place="job:a"), [PLACES]),
    ("in one cluster", False, claim(P.CO_LOCATED, PLACES, one="gpu:G", other="job:a", place="cluster:c"), [PLACES]),
    ("apart", False, claim(P.CO_LOCATED, PLACES, one="gpu:G", other="rank:a#1", place="node:n1"), [PLACES]),
    ("absent", True, claim(P.ABSENT, QUIET, WELL, patterns="Xid (\nSXid ("), [QUIET, WELL]),
    ("absent: nothing", False, claim(P.ABSENT, QUIET, WELL, patterns=" \n"), [QUIET, WELL]),
    ("absent, by another log's state", False, claim(P.ABSENT, QUIET, OTHERS, patterns="Xid ("), [QUIET, OTHERS]),
    ("absent where it stands", False, claim(P.ABSENT, KLOG, WELL, patterns="Xid ("), [KLOG, WELL]),
    ("absent in other words", False, claim(P.ABSENT, KLOG, WELL, patterns="xid 94"), [KLOG, WELL]),
    ("absent by a look-alike", False, claim(P.ABSENT, KLOG, WELL, patterns="\u0425id 94"), [KLOG, WELL]),
    ("absent by a word too many", False, claim(P.ABSENT, KLOG, WELL, patterns="Xid 94 seen at last"), [KLOG, WELL]),
    ("absent for its length", False, claim(P.ABSENT, QUIET, WELL, patterns="Xid a b c d e f"), [QUIET, WELL]),
    ("absent by its number", True, claim(P.ABSENT, KLOG, WELL, patterns="Xid 79 Contained"), [KLOG, WELL]),
    ("absent from what nobody read", False, claim(P.ABSENT, QUIET, UNWELL, patterns="Xid ("), [QUIET, UNWELL]),
    ("absent without the source's state", False, claim(P.ABSENT, QUIET, patterns="Xid ("), [QUIET]),
    ("equal", True, claim(P.EQUALS, SAID, KLOG, quotes=(XID,), path="facts.xid", value=94.0), [SAID, KLOG]),
    ("not equal", False, claim(P.EQUALS, SAID, path="facts.xid", value=95.0), [SAID]),
    ("a number is not its text", False, claim(P.EQUALS, SAID, path="facts.xid", value="94"), [SAID]),
    ("a path that is not there", False, claim(P.EQUALS, SAID, path="facts.none", value=1.0), [SAID]),
    ("a truth value is no figure", False, claim(P.EQUALS, SAID, path="flag", value=1.0), [SAID]),
    ("repeated lines", True, claim(P.REPEATED, KLOG, pattern="Xid (", times=2.0), [KLOG]),
    ("repeated too often", False, claim(P.REPEATED, KLOG, pattern="Xid (", times=3.0), [KLOG]),
    ("a letter repeated", False, claim(P.REPEATED, KLOG, pattern="d (", times=2.0), [KLOG]),
    ("once is not repeated", False, claim(P.REPEATED, KLOG, pattern="Xid (", times=1.0), [KLOG]),
    ("peaks again", True, claim(P.REPEATED, RISING, level=5.0, times=3.0), [RISING]),
    ("a quote changed", False, claim(P.REPEATED, KLOG, quotes=(WRONG,), pattern="Xid", times=2.0), [KLOG]),
    ("a quote of nothing", False, claim(P.REPEATED, KLOG, quotes=(COLON,), pattern="Xid", times=2.0), [KLOG]),
    ("quoted, not cited", False, claim(P.EQUALS, SAID, quotes=(XID,), path="facts.xid", value=94.0), [SAID, KLOG]),
    ("evidence that does not exist", False, claim(P.EQUALS, SAID, path="facts.xid", value=94.0), [KLOG]),
    ("evidence that is there twice", False, claim(P.EQUALS, SAID, path="facts.xid", value=94.0), [SAID, SAID]),
    ("no evidence", False, claim(P.EQUALS, path="facts.xid", value=94.0), [SAID]),
    ("an infinite margin", False, claim(P.PRECEDED, KLOG, quotes=(XID, TEARDOWN), margin_s=float("-inf")), [KLOG]),
]  # fmt: skip


@pytest.mark.parametrize(("holds", "made", "evidence"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_a_claim_holds_exactly_when_its_evidence_bears_it(
    holds: bool, made: Claim, evidence: list[Evidence]
) -> None:
    reason = why_not(made, evidence)
    assert (reason is None) == holds, reason


HELD = [(made, evidence) for _, holds, made, evidence in CASES if holds]


@given(st.sampled_from(HELD), st.data())
def test_one_corrupted_byte_of_evidence_brings_its_claim_down(
    case: tuple[Claim, list[Evidence]], data: st.DataObject
) -> None:
    made, evidence = case
    victim = data.draw(st.sampled_from(evidence))
    position = data.draw(st.integers(0, len(victim.content) - 1))
    flip = data.draw(st.integers(1, 255))
    content = bytearray(victim.content)
    content[position] ^= flip
    damaged = [replace(e, content=bytes(content)) if e is victim else e for e in evidence]
    assert why_not(made, evidence) is None
    assert why_not(made, damaged) is not None


def test_a_stored_diagnosis_is_shown_without_the_claims_that_fell() -> None:
    held, fell = (
        claim(P.REPEATED, KLOG, pattern="Xid (", times=2.0),
        claim(P.ROSE, RISING, split_s=30.0, at_least=4.0),
    )
    damaged = replace(RISING, content=RISING.content.replace(b"6", b"7"))
    diagnosis = Diagnosis(Fault.XID, "x", Confidence.HIGH, (held, fell), (KLOG, damaged))
    shown = reground(diagnosis)
    assert shown.claims == (held,)
    assert shown.dropped == 1


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
wild_items = st.builds(
    item,
    st.sampled_from(["E1", "E2"]),
    st.sampled_from([SERIES, LOG, FACTS, "text/html"]),
    st.one_of(
        st.binary(max_size=40),
        json_values.map(lambda v: json.dumps(v).encode()),
        st.just(RISING.content),
        st.just(LINES),
        st.just(PLACES.content),
    ),
)
ARGUMENTS = (
    *("split_s", "at_least", "level", "margin_s", "path", "value"),
    *("pattern", "patterns", "times", "one", "other", "place"),
)
arguments = st.dictionaries(
    st.sampled_from(ARGUMENTS),
    st.one_of(st.floats(), st.text(max_size=6), st.sampled_from(["Xid (", "facts.xid", "job:a", "above"])),
)  # fmt: skip
quotes = st.lists(st.builds(Quote, st.sampled_from(["E1", "E2", "E9"]), st.text(max_size=8)), max_size=2).map(tuple)


@settings(max_examples=400, deadline=None)
@given(st.lists(wild_items, max_size=3), st.sampled_from(list(Predicate)), arguments, quotes)
def test_no_claim_and_no_evidence_makes_grounding_fail_itself(
    evidence: list[Evidence], predicate: Predicate, given: dict[str, Any], quoted: tuple[Quote, ...]
) -> None:
    made = bind(Claim("wild", predicate, tuple(e.id for e in evidence), quoted, given), evidence)
    grounded = ground([made], evidence)
    assert len(grounded.held) + len(grounded.fell) == 1
    assert all(reason for _, reason in grounded.fell)
