"""Every claim that the rules draft about an incident: those of its kin, and those that any incident may bear.

A claim is a sentence with a predicate that grounding can evaluate again.

A builder only drafts. It may draft too much: what the evidence does not bear falls in grounding and is never shown.
Figures in a sentence are those of the predicate's own arguments or of the evidence that it cites.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable

from nightshift.agent.correlation.kinship import FOLLOWER_XIDS, Kin, kin_of, listed_xids, onset_key, xid_of
from nightshift.agent.rca.case import (
    DiagnosisCase,
    Drafts,
    claim,
    equals,
    few,
    rise,
    short,
    sides,
    size,
    span,
    units_of,
)
from nightshift.agent.rca.grounding import MAX_QUOTE_CHARS, bind, lines_of
from nightshift.agent.store.diagnosis import LOG, Claim, Evidence, Predicate, Quote
from nightshift.agent.units import clock_time
from nightshift.collectors.frame import Order
from nightshift.detectors.base import Fault, Finding
from nightshift.detectors.hardware.sxid_catalogue import title_of
from nightshift.detectors.hardware.xid_catalogue import CATALOGUE


def _leak(case: DiagnosisCase) -> Drafts:
    grown, pace = case.fact("growth_bytes"), case.fact("slope_bytes_per_h")
    gpu = case.cause.fault is Fault.GPU_MEMORY_LEAK
    what, metric = (
        ("GPU memory", "gpu_memory_used_bytes") if gpu else ("Anonymous memory", "container_memory_anonymous_bytes")
    )
    if math.isfinite(grown):
        lasted = span(case.cause.at.t_s - case.cause.since.t_s)
        sentence = f"{what} rose by {size(grown)} in {lasted}"
        if math.isfinite(pace):
            sentence += f", {size(pace)}/h, and does not come back"
        yield rise(case, "exhibit", case.cause.episode, case.cause.since.t_s, 0.5 * grown, sentence)
        since = clock_time(case.cause.since.t_s)
        sentence = f"the signal itself shows it: at least {size(0.4 * grown)} more than before {since}"
        yield rise(case, "signal", metric, case.cause.since.t_s, 0.4 * grown, sentence)
    peers, others = case.fact("peer_growth_bytes"), case.fact("peers")
    if math.isfinite(peers) and math.isfinite(others):
        rest = f"{others:.0f} other ranks" if others > 1 else "other rank"
        sentence = f"the job's {rest} grew by {size(peers)}{' (median)' if others > 1 else ''} in the same time"
        yield equals(case, "peer_growth_bytes", sentence)
    yield equals(case, "eta_s", f"at this pace its limit is reached in {span(case.fact('eta_s'))}")


def _loss(case: DiagnosisCase) -> Drafts:
    onset_s, episode = case.cause.since.t_s, case.cause.episode
    base, level, step = (case.fact(name) for name in ("baseline_loss", "loss", "onset_step"))
    if math.isfinite(base) and math.isfinite(level) and level > base:
        where = f"step {step:.0f} ({clock_time(onset_s)})" if math.isfinite(step) else clock_time(onset_s)
        sentence = f"loss {base:.3g} → {level:.3g} since {where}, with no recovery"
        # below the half: grounding compares medians, which lag behind the newest value
        least = 0.4 * (level - base)
        yield rise(case, "signal", "loss", onset_s, least, sentence) or rise(
            case, "exhibit", episode, onset_s, least, sentence
        )
    count = case.fact("nonfinite_steps")
    yield equals(case, "nonfinite_steps", f"the loss was not a number in {count:.0f} steps")
    for item in case.bundle.of("signal", "grad_norm"):
        before, after = sides(item, onset_s)
        if before and after:
            usual, top = sorted(before)[len(before) // 2], sorted(after[-5:])[len(after[-5:]) // 2]
            if top > 2 * usual > 0:
                sentence = f"the gradient norm rose from {usual:.3g} to {top:.3g}"
                yield claim(_P.ROSE, sentence, item, split_s=onset_s, at_least=usual)
    yield from _departure(case)
    codes = case.fact("hardware_events")
    if codes > 0:
        said = str(case.cause.facts.get("silent_corruption", ""))
        yield equals(case, "silent_corruption", f"hardware events on the run's GPUs before it: {said}")


def _departure(case: DiagnosisCase) -> Drafts:
    """The rank that ran away alone before the damage reached the others."""
    item = case.bundle.one("departure")
    if item is None:
        return
    told = json.loads(item.content)
    rank, lead = str(told["rank"]), int(told["lead_steps"])
    value = "not a number" if told["value"] is None else f"{told['value']:.3g}"
    sentence = (
        f"{told['signal']} of rank {rank.rpartition('#')[2]} left its {int(told['ranks']) - 1} peers at step"
        f" {int(told['step'])} ({value} against {told['peers_median']:.3g}), {lead} steps before any other"
    )
    yield claim(_P.EQUALS, sentence, item, path="rank", value=rank)


def _throttle(case: DiagnosisCase) -> Drafts:
    lost, clock_mhz, reference = (case.fact(n) for n in ("lost_share", "sm_clock_mhz", "reference_mhz"))
    since_s = case.cause.since.t_s
    if math.isfinite(reference) and reference > clock_mhz:
        sentence = f"its clock fell from {reference:.0f} to {clock_mhz:.0f} MHz while it worked"
        # the detector averages for a while: what it calls the onset lies after the drop
        for item in case.bundle.of("signal", "gpu_sm_clock_mhz"):
            yield claim(_P.FELL, sentence, item, split_s=since_s - _LATE_S, at_least=0.5 * (reference - clock_mhz))
    reasons = case.cause.facts.get("reasons", "what the driver does not say")
    yield equals(case, "lost_share", f"{100 * lost:.0f} % of its clock is lost to {reasons}")
    yield equals(case, "temperature_c", f"it is at {case.fact('temperature_c'):.0f} °C")


def _link(case: DiagnosisCase) -> Drafts:
    signal = str(case.cause.facts.get("signal", ""))
    rate, level, best = (case.fact(n) for n in ("errors_per_min", "level", "best"))
    for item in case.bundle.of("signal", signal) if signal else ():
        before, after = sides(item, case.cause.since.t_s)
        if math.isfinite(rate) and before and after and after[-1] > before[-1]:
            more = after[-1] - before[-1]
            sentence = f"{signal} counted {more:.0f} more since {clock_time(case.cause.since.t_s)}"
            yield claim(_P.ROSE, sentence, item, split_s=case.cause.since.t_s, at_least=max(0.3 * more, 0.5))
        if math.isfinite(best):
            sentence = f"{signal} fell from {best:g} to {level:g}"
            yield claim(_P.FELL, sentence, item, split_s=case.cause.since.t_s - 1.0, at_least=0.5 * (best - level))
    if math.isfinite(rate):
        limit = case.fact("limit_per_min")
        yield equals(case, "errors_per_min", f"{rate:,.0f} errors a minute, where {limit:,.0f} still are healthy")
    if not math.isfinite(rate) and not math.isfinite(best):
        yield from plain(case)


def _gone(case: DiagnosisCase) -> Drafts:
    before, now = case.fact("gpus_before"), case.fact("gpus_now")
    if math.isfinite(before) and math.isfinite(now):
        exhibit = case.bundle.one("exhibit", case.cause.episode)
        sentence = f"its node shows {now:.0f} GPUs, {before:.0f} before; the node itself still runs"
        yield claim(_P.FELL, sentence, exhibit, split_s=case.cause.since.t_s, at_least=0.5 * max(1.0, before - now))
        for node in case.where.nodes[:1]:
            log, state = case.bundle.one("kernel_log", node), case.bundle.one("log_state", node)
            yield claim(_P.ABSENT, f"{node}'s kernel log says nothing of it", log, state, patterns="NVRM: Xid (")
    else:
        yield from plain(case)


def _straggler(case: DiagnosisCase) -> Drafts:
    ratio, often = case.fact("ratio"), case.fact("often")
    yield equals(case, "ratio", f"its own work takes {ratio:.2f} times its peers', step after step")
    yield equals(case, "often", f"it was the slower one in {100 * often:.0f} % of the steps")
    if not math.isfinite(ratio):
        yield from plain(case)


_LATE_S = 120.0


def _stall(case: DiagnosisCase) -> Drafts:
    lost, stalls, longest = (case.fact(n) for n in ("lost_share", "stalls", "longest_stall_s"))
    exhibit = case.bundle.one("exhibit", case.cause.episode)
    if math.isfinite(stalls) and math.isfinite(longest) and stalls >= 2:
        typical = case.fact("typical_step_s")
        level = min(0.3 * longest, 10 * typical) if math.isfinite(typical) else 0.3 * longest
        sentence = f"{stalls:.0f} steps stalled, the longest for {longest:.1f} s"
        yield claim(_P.REPEATED, sentence, exhibit, level=level, times=2.0)
    yield equals(case, "lost_share", f"{100 * lost:.0f} % of the time was lost to it")
    yield equals(case, "wait_s_per_step", f"every step waited {case.fact('wait_s_per_step'):.2g} s for data")
    idle = 100 * case.fact("gpu_idle_share")
    yield equals(case, "gpu_idle_share", f"its GPUs idled {idle:.0f} % of that time: they waited for data")
    yield from _storage(case)


def _storage(case: DiagnosisCase) -> Drafts:
    """What remote storage the nodes wait for, and that processes wait in the kernel, each with its first line."""
    item = case.bundle.one("storage")
    if item is None:
        return
    told = json.loads(item.content)
    # each needs a line to quote: without one the claim would rest on our own reading
    for name, pattern, sentence in (
        ("silent", " {} ", "no answer from {} on {}"),
        ("blocked", " blocked ", "{} on {} waits in the kernel and cannot be stopped"),
    ):
        if not told[name]:
            continue
        first, nodes = told[name].split(", ")[0], told[f"{name}_on"].split()
        words = pattern.format(first.rpartition(" ")[2])
        log, quote = _first_line(case, nodes, words)
        if log is None or quote is None:
            continue
        said = sentence.format(told[name], few(nodes, 4))
        yield claim(_P.EQUALS, said, item, log, quotes=(quote,), path=name, value=told[name])


def _first_line(case: DiagnosisCase, nodes: list[str], words: str) -> tuple[Evidence | None, Quote | None]:
    """The first line with these words in the kernel logs of nodes."""
    for node in nodes:
        log = case.bundle.one("kernel_log", node)
        for _, text in lines_of(log) if log is not None else ():
            if words in text and log is not None:
                return log, Quote(log.id, text[:MAX_QUOTE_CHARS].strip())
    return None, None


def _hang(case: DiagnosisCase) -> Drafts:
    silent_s, step = case.fact("silent_s"), case.fact("last_step")
    after = f" after step {step:.0f}" if math.isfinite(step) else ""
    yield equals(case, "silent_s", f"no step for {span(silent_s)}{after}")
    if case.cause.facts.get("idle_gpus"):
        gpus = str(case.cause.facts["idle_gpus"]).split()
        yield equals(case, "idle_gpus", f"idle while the others spin: {', '.join(map(short, gpus[:4]))}")
    yield from _storage(case)


def _memory(case: DiagnosisCase) -> Drafts:
    since_s, unit = case.cause.since.t_s, units_of(case.findings)
    for metric, what in (
        ("gpu_ecc_sbe_total", f"corrected memory errors ({unit})"),
        ("gpu_ecc_dbe_total", f"uncorrected memory errors ({unit})"),
        ("gpu_remapped_rows_correctable", "rows remapped after corrected errors"),
        ("gpu_remapped_rows_uncorrectable", "rows remapped after uncorrected errors"),
        ("gpu_row_remap_pending", "a row remapping waits for a reset"),
    ):
        item = case.bundle.one("signal", metric)
        if item is None:
            continue
        before, after = sides(item, since_s - 1.0)
        if before and after and after[-1] > before[-1]:
            more = after[-1] - before[0]
            sentence = f"{what} {before[0]:.0f} → {after[-1]:.0f} since {clock_time(since_s)}"
            yield claim(_P.ROSE, sentence, item, split_s=since_s - 1.0, at_least=max(0.4 * more, 0.5))
    for finding in case.findings:
        bins, width_s = case.fact("active_bins", finding), case.fact("bin_s", finding)
        if bins >= 1 and math.isfinite(width_s):
            sentence = f"corrected errors in {bins:.0f} windows of {span(width_s)}"
            yield equals(case, "active_bins", sentence, finding)
        share, low, high = (case.fact(f"next_error_{name}", finding) for name in ("24h", "low", "high"))
        # said where an uncorrected error was: after corrected ones alone none of the devices had enough to tell
        if case.fact("error_moments_24h", finding) >= 1 and math.isfinite(share):
            sentence = (
                f"elsewhere, uncorrected errors repeat within 24 h in {share:.0%} of cases "
                f"({low:.0%} to {high:.0%} by device)"
            )
            yield equals(case, "next_error_24h", sentence, finding)


def _oom(case: DiagnosisCase) -> Drafts:
    item = case.bundle.one("victims")
    if item is not None and len(case.where.jobs) == 1:
        job = case.where.jobs[0]
        yield claim(
            _P.EQUALS, f"only containers of {job} gave memory back at the kill", item, path="jobs", value=job
        )
    yield from plain(case)


def _crash(case: DiagnosisCase) -> Drafts:
    yield equals(case, "crash", f"its own log says: {case.cause.facts.get('ended_by', 'an error')}")


def plain(case: DiagnosisCase) -> Drafts:
    for name, sentence in (
        ("silent_s", "no good answer for {:.0f} s"),
        ("events", "seen {:.0f} times"),
        ("score", "score {:.3g}"),
    ):
        value = case.fact(name)
        if math.isfinite(value):
            yield equals(case, name, sentence.format(value))
            return
    yield claim(_P.EQUALS, case.cause.summary, case.said(), path="fault", value=case.cause.fault.value)


BY_KIN: dict[Kin, Callable[[DiagnosisCase], Drafts]] = {
    Kin.GPU_LEAK: _leak,
    Kin.HOST_LEAK: _leak,
    Kin.LOSS: _loss,
    Kin.STALL: _stall,
    Kin.HANG: _hang,
    Kin.MEMORY: _memory,
    Kin.OOM: _oom,
    Kin.CRASH: _crash,
    Kin.THROTTLE: _throttle,
    Kin.LINK: _link,
    Kin.GONE: _gone,
    Kin.STRAGGLER: _straggler,
}


_P = Predicate
XID_PATTERNS = "Xid (\nSXid ("


def draft(case: DiagnosisCase) -> list[Claim]:
    """Every claim that the rules would make about a case, bound to its evidence; none of them checked yet."""
    builders: list[Callable[[DiagnosisCase], Drafts]] = [BY_KIN.get(kin_of(case.cause), plain)]
    builders += [_place, _lines, _learning_rate, _no_hardware_errors, _consequences]
    drafted = [claim for build in builders for claim in build(case) if claim is not None]
    # two findings may quote the same line
    unique = {(c.predicate, c.evidence_ids, c.quotes, tuple(sorted(c.arguments.items()))): c for c in drafted}
    return [bind(claim, case.bundle.items) for claim in unique.values()]


def _learning_rate(case: DiagnosisCase) -> Drafts:
    """For damaged training: whether the schedule explains it."""
    item = case.bundle.one("learning_rate")
    if kin_of(case.cause) is not Kin.LOSS or item is None:
        return
    told = json.loads(item.content)
    at = clock_time(told["at_s"])
    sentence = f"the learning rate jumped from {told['before']:.3g} to {told['after']:.3g} at {at}"
    yield claim(_P.EQUALS, sentence, item, path="jumped", value="yes")
    yield claim(_P.EQUALS, "the learning rate followed its schedule", item, path="jumped", value="no")


def _place(case: DiagnosisCase) -> Drafts:
    subject, where = str(case.cause.subject), case.where
    item = case.bundle.one("topology")
    if (
        len(where.jobs) == 1
        and len(where.nodes) == 1
        and not where.whole_job
        # a job is its own place, and a source stands nowhere
        and not subject.startswith(("job:", "source:"))
    ):
        other = f"rank:{where.ranks[0]}" if len(where.ranks) == 1 else subject
        sentence = f"it is {where.sentence(case.cause.subject)}"
        yield claim(_P.CO_LOCATED, sentence, item, one=subject, other=other, place=f"job:{where.jobs[0]}")


def _lines(case: DiagnosisCase) -> Drafts:
    """The lines that matter, quoted: each Xid's first line, what 154 announced, and that followers came after."""
    xids = [f for f in case.findings if f.fault is Fault.XID]
    for finding in xids or [case.cause]:
        for item in case.bundle.of("exhibit", finding.episode):
            if item.media_type == LOG:
                yield from _quoted(case, finding, item)


def _quoted(case: DiagnosisCase, finding: Finding, item: Evidence) -> Drafts:
    quotes = [Quote(item.id, _quotable(text)) for _, text in lines_of(item) if len(_quotable(text)) > 3]
    code = xid_of(finding)
    # the driver writes `NVRM: Xid (PCI:0000:9b:00): 48, pid=…`: the code stands between `): ` and a comma
    own = f"): {code}," if code is not None else ""
    chosen = next((q for q in quotes if own and own in q.text), quotes[0] if quotes else None)
    if chosen is None:
        return
    sentence, path, value = _own_words(finding, code)
    yield claim(_P.EQUALS, sentence, case.said(finding), item, quotes=(chosen,), path=path, value=value)
    yield _further_codes(case, finding, item, quotes)
    yield _announcement(case, finding, item, quotes)
    yield _tear_down(item, quotes, chosen)


def _own_words(finding: Finding, code: int | None) -> tuple[str, str, str | float]:
    """What a finding's own line says, and the fact beside it: (sentence, path, value)."""
    if code is None:
        return "the log says so", "fault", finding.fault.value
    meaning = CATALOGUE[code].meaning if code in CATALOGUE else None
    return title_of(code, meaning), "facts.xid", float(code)


def _announcement(case: DiagnosisCase, finding: Finding, item: Evidence, quotes: list[Quote]) -> Claim | None:
    """Which recovery the driver announced, by its own line (Xid 154)."""
    line = next((q for q in quotes if "recovery action changed" in q.text), None)
    if line is None or "announced_recovery" not in finding.facts:
        return None
    action = str(finding.facts["announced_recovery"])
    sentence, path = f"the driver itself calls for: {action}", "facts.announced_recovery"
    return claim(_P.EQUALS, sentence, case.said(finding), item, quotes=(line,), path=path, value=action)


def _tear_down(item: Evidence, quotes: list[Quote], first: Quote) -> Claim | None:
    """That 43 and 45 came after the error: the driver logs them for every process that it ends."""
    line = next((q for q in quotes if "): 45," in q.text or "): 43," in q.text), None)
    if line is None or line == first:
        return None
    after = "45" if "): 45," in line.text else "43"
    sentence = f"Xid {after} came only after it: tear-down, not a cause"
    return claim(_P.PRECEDED, sentence, item, quotes=(first, line), margin_s=0.0)


def _further_codes(case: DiagnosisCase, finding: Finding, item: Evidence, quotes: list[Quote]) -> Claim | None:
    """The other Xids of a burst that are errors of their own, each with its first line."""
    # three: a burst may name ten, and the first ones are what it began with
    others = [c for c in listed_xids(finding) if c != xid_of(finding) and c not in FOLLOWER_XIDS][:3]
    lines = [next((q for q in quotes if f"): {code}," in q.text), None) for code in others]
    # a code whose line was not kept cannot be quoted
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


def _no_hardware_errors(case: DiagnosisCase) -> Drafts:
    """For faults that software could have: that the kernel log of their nodes has no GPU error."""
    # a hardware fault is an error of its own, and a claim of none would contradict it
    if kin_of(case.cause) not in (Kin.LOSS, Kin.GPU_LEAK, Kin.HOST_LEAK, Kin.STALL, Kin.HANG, Kin.STRAGGLER):
        return
    for node in case.where.nodes[:4]:
        log, state = case.bundle.one("kernel_log", node), case.bundle.one("log_state", node)
        sentence = f"no Xid in {node}'s kernel log"
        yield claim(_P.ABSENT, sentence, log, state, patterns=XID_PATTERNS)


def _consequences(case: DiagnosisCase) -> Drafts:
    """What else was found, one sentence per fault: the first subject by name, the others by number."""
    by_fault: dict[Fault, list[Finding]] = {}
    for finding in case.findings:
        # the cause itself in another detector's words is no consequence; Xids are quoted above
        same = kin_of(finding) is kin_of(case.cause) and finding.subject == case.cause.subject
        if not same and finding.fault is not Fault.XID:
            by_fault.setdefault(finding.fault, []).append(finding)
    for found in by_fault.values():
        first = min(found, key=onset_key)
        later_s = first.since.t_s - case.cause.since.t_s
        yield _consequence(case, first, later_s, f" and {len(found) - 1} more" if len(found) > 1 else "")


def _consequence(case: DiagnosisCase, first: Finding, later_s: float, more: str) -> Claim | None:
    # two clocks may differ by more than the time between: then no order is claimed
    apart = case.cause.since.order(first.since) is not Order.CONCURRENT
    when = "at the same time"
    if abs(later_s) >= 1:
        when = f"{span(abs(later_s))} {'later' if later_s > 0 else 'before'}"
        when = when if apart else f"{when} (or not: their clocks cannot tell)"
    sentence = f"{when}: {_words(first.fault)} on {first.subject.kind} {short(first.subject.name)}{more}"
    return claim(_P.EQUALS, sentence, case.said(first), path="fault", value=first.fault.value)


def _words(fault: Fault) -> str:
    return fault.value.replace("_", " ")
