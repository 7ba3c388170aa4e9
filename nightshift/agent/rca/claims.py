"""Every claim that the rules draft about an incident: those of its kin, and those that any incident may bear."""

from __future__ import annotations

import json
from collections.abc import Callable

from nightshift.agent.correlation.kinship import FOLLOWER_XIDS, Kin, kin_of, onset_key, xid_of
from nightshift.agent.rca.case import Case, Drafts, claim, clock, short, span
from nightshift.agent.rca.claims_by_kin import BY_KIN, plain
from nightshift.agent.rca.grounding import MAX_QUOTE_CHARS, bind, lines_of
from nightshift.agent.store.diagnosis import LOG, Claim, Evidence, Predicate, Quote
from nightshift.collectors.frame import Order
from nightshift.detectors.base import Fault, Finding
from nightshift.detectors.hardware.xid_catalogue import CATALOGUE

_P = Predicate
XID_PATTERNS = "Xid (\nSXid ("


def draft(case: Case) -> list[Claim]:
    """Every claim that the rules would make about a case, bound to its evidence; none of them checked yet."""
    builders: list[Callable[[Case], Drafts]] = [BY_KIN.get(kin_of(case.cause), plain)]
    builders += [_place, _lines, _learning_rate, _no_hardware_errors, _consequences]
    drafted = [claim for build in builders for claim in build(case) if claim is not None]
    unique = {(c.predicate, c.evidence_ids, c.quotes, tuple(sorted(c.arguments.items()))): c for c in drafted}
    return [bind(claim, case.bundle.items) for claim in unique.values()]


def _learning_rate(case: Case) -> Drafts:
    """For damaged training: whether the schedule explains it."""
    item = case.bundle.one("learning_rate")
    if kin_of(case.cause) is not Kin.LOSS or item is None:
        return
    told = json.loads(item.content)
    sentence = f"the learning rate jumped from {told['before']:.3g} to {told['after']:.3g} at {clock(told['at_s'])}"
    yield claim(_P.EQUALS, sentence, item, path="jumped", value="yes")
    yield claim(_P.EQUALS, "the learning rate followed its schedule", item, path="jumped", value="no")


def _place(case: Case) -> Drafts:
    subject, where = str(case.cause.subject), case.where
    item = case.bundle.one("topology")
    if (
        len(where.jobs) == 1
        and len(where.nodes) == 1
        and not where.whole_job
        and not subject.startswith(("job:", "source:"))
    ):
        other = f"rank:{where.ranks[0]}" if len(where.ranks) == 1 else subject
        sentence = f"it is {where.sentence(case.cause.subject)}"
        yield claim(_P.CO_LOCATED, sentence, item, one=subject, other=other, place=f"job:{where.jobs[0]}")


def _lines(case: Case) -> Drafts:
    """The lines that matter, quoted: each Xid's first line, what 154 announced, and that followers came after."""
    xids = [f for f in case.findings if f.fault is Fault.XID]
    first: Quote | None = None
    for finding in xids or [case.cause]:
        for item in case.bundle.of("exhibit", finding.episode):
            if item.media_type != LOG:
                continue
            quotes = [Quote(item.id, _quotable(text)) for _, text in lines_of(item) if len(_quotable(text)) > 3]
            own = f"): {xid_of(finding)}," if xid_of(finding) is not None else ""
            chosen = next((q for q in quotes if own and own in q.text), quotes[0] if quotes else None)
            if chosen is None:
                continue
            first = first or chosen
            if xid_of(finding) is not None:
                entry = CATALOGUE.get(xid_of(finding) or 0)
                sentence = f"Xid {xid_of(finding)} ({entry.meaning if entry else 'not in the catalogue'})"
                yield claim(
                    _P.EQUALS, sentence, case.said(finding), item, quotes=(chosen,), path="facts.xid",
                    value=float(xid_of(finding) or 0),
                )  # fmt: skip
            else:
                yield claim(
                    _P.EQUALS, "the log says so", case.said(finding), item, quotes=(chosen,), path="fault",
                    value=finding.fault.value,
                )  # fmt: skip
            yield _further_codes(case, finding, item, quotes)
            announced = next((q for q in quotes if "recovery action changed" in q.text), None)
            if announced is not None and "announced_recovery" in finding.facts:
                sentence = f"the driver itself calls for: {finding.facts['announced_recovery']}"
                yield claim(
                    _P.EQUALS, sentence, case.said(finding), item, quotes=(announced,),
                    path="facts.announced_recovery", value=str(finding.facts["announced_recovery"]),
                )  # fmt: skip
            follower = next((q for q in quotes if "): 45," in q.text or "): 43," in q.text), None)
            if follower is not None and follower != chosen:
                code = "45" if "): 45," in follower.text else "43"
                sentence = f"Xid {code} came only after it: tear-down, not a cause"
                yield claim(_P.PRECEDED, sentence, item, quotes=(chosen, follower), margin_s=0.0)


def _further_codes(case: Case, finding: Finding, item: Evidence, quotes: list[Quote]) -> Claim | None:
    """The other Xids of a burst that are errors of their own, each with its first line."""
    codes = [int(c) for c in str(finding.facts.get("codes", "")).split() if c.isdigit()]
    others = [c for c in codes if c != xid_of(finding) and c not in FOLLOWER_XIDS][:3]
    lines = [next((q for q in quotes if f"): {code}," in q.text), None) for code in others]
    if not others or None in lines:
        return None
    said = ", ".join(f"{code} ({CATALOGUE[code].meaning})" if code in CATALOGUE else f"{code}" for code in others)
    return claim(
        _P.EQUALS,
        f"with it Xid {said}",
        case.said(finding),
        item,
        quotes=tuple(q for q in lines if q is not None),
        path="facts.codes",
        value=str(finding.facts["codes"]),
    )


def _quotable(text: str) -> str:
    return text[:MAX_QUOTE_CHARS].strip()


def _no_hardware_errors(case: Case) -> Drafts:
    """For faults that software could have: that the kernel log of their nodes has no GPU error."""
    if kin_of(case.cause) not in (Kin.LOSS, Kin.GPU_LEAK, Kin.HOST_LEAK, Kin.STALL, Kin.HANG, Kin.STRAGGLER):
        return
    for node in case.where.nodes[:4]:
        log, state = case.bundle.one("kernel_log", node), case.bundle.one("log_state", node)
        sentence = f"no Xid in {node}'s kernel log"
        yield claim(_P.ABSENT, sentence, log, state, patterns=XID_PATTERNS)


def _consequences(case: Case) -> Drafts:
    """What else was found, one sentence per fault: the first subject by name, the others by number."""
    by_fault: dict[Fault, list[Finding]] = {}
    for finding in case.findings:
        same = kin_of(finding) is kin_of(case.cause) and finding.subject == case.cause.subject
        if not same and finding.fault is not Fault.XID:
            by_fault.setdefault(finding.fault, []).append(finding)
    for found in by_fault.values():
        first = min(found, key=onset_key)
        later_s = first.since.t_s - case.cause.since.t_s
        yield _consequence(case, first, later_s, f" and {len(found) - 1} more" if len(found) > 1 else "")


def _consequence(case: Case, first: Finding, later_s: float, more: str) -> Claim | None:
    apart = case.cause.since.order(first.since) is not Order.CONCURRENT
    when = "at the same time"
    if abs(later_s) >= 1:
        when = f"{span(abs(later_s))} {'later' if later_s > 0 else 'before'}"
        when = when if apart else f"{when} (or not: their clocks cannot tell)"
    sentence = f"{when}: {_words(first.fault)} on {first.subject.kind} {short(first.subject.name)}{more}"
    return claim(_P.EQUALS, sentence, case.said(first), path="fault", value=first.fault.value)


def _words(fault: Fault) -> str:
    return fault.value.replace("_", " ")
