"""The rules' diagnosis: deterministic, without any model, from an incident's findings and evidence.

The first cause is the earliest stage of the causal order (`agent.correlation.kinship`): hardware before leaks,
leaks before what they kill, a crashed rank before the hang of the others; 43, 45 and 154 never first, 94 and 95
read as the memory error that they contain or fail to contain. What an Xid calls for comes from NVIDIA's catalogue,
unless the driver announced its own recovery action by Xid 154. Each claim is re-evaluated over the evidence before
it is kept; if none stands, the cause is said to be unknown: abstaining beats guessing.

A claim is a sentence with a predicate that grounding can evaluate again. A builder only drafts. It may draft too
much: what the evidence does not bear falls in grounding and is never shown. Figures in a sentence are those of the
predicate's own arguments or of the evidence that it cites.

How sure a diagnosis is: levels are ordered by what was proven: a measured change, an order in time, or a log's own
line weighs more than what a detector says of itself; with no claim that holds, the cause is unknown, and nothing
is done about it. What a level is worth is measured: `calibration.json` holds the share of first causes that were
right at each level, fitted on the written half of the incident benchmark and checked on the drawn half
(docs/reference/figures.md).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from nightshift.agent.correlation.kinship import (
    FOLLOWER_XIDS,
    HARDWARE,
    MEMORY_XIDS,
    FindingPlaces,
    Kin,
    first_cause,
    kin_of,
    listed_xids,
    onset_key,
    xid_of,
    xids_of,
)
from nightshift.agent.correlation.storage_outage import WAITS
from nightshift.agent.rca.bundle import Bundle
from nightshift.agent.rca.case import (
    DiagnosisCase,
    Drafts,
    FaultPlace,
    claim,
    equals,
    few,
    short,
    sides,
    stretch,
    units_of,
)
from nightshift.agent.rca.evidence import is_consequence
from nightshift.agent.rca.figures import (
    TAIL,
    Figure,
    bytes_of,
    figure_of,
    lasting,
    median,
    moment,
    percent,
    reading,
    say,
    size,
    span,
)
from nightshift.agent.rca.grounding import MAX_QUOTE_CHARS, bind, ground, lines_of
from nightshift.agent.store.diagnosis import LOG, Claim, Confidence, Diagnosis, Evidence, Predicate, Quote
from nightshift.agent.store.reports import is_report
from nightshift.agent.units import clock_time
from nightshift.collectors.frame import Order
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.detectors.base import Fault, Finding, State
from nightshift.detectors.hardware.sxid_catalogue import SWITCH_ERRORS, title_of
from nightshift.detectors.hardware.xid_catalogue import (
    CATALOGUE,
    GRAVITY,
    RECOVERY_ACTION_CHANGED,
    Recovery,
    action_of,
    announced_action,
)


def _leak(case: DiagnosisCase) -> Drafts:
    grown = case.fact("growth_bytes")
    gpu = case.cause.fault is Fault.GPU_MEMORY_LEAK
    what, metric = (
        ("GPU memory", "gpu_memory_used_bytes") if gpu else ("Anonymous memory", "container_memory_anonymous_bytes")
    )
    if math.isfinite(grown):
        if (window := stretch(case, "exhibit", case.cause.episode, case.cause.since.t_s)) is not None:
            yield _growth(window, what, 0.5 * grown)
        if (window := stretch(case, "signal", metric, case.cause.since.t_s)) is not None:
            item, at_s = window
            more = bytes_of(item, "change", at_s)
            sentence = say("the signal itself shows it: ", more, " more than before ", moment(item, at_s))
            yield claim(_P.ROSE, sentence, item, split_s=at_s, at_least=0.4 * grown)
    if math.isfinite(case.fact("peer_growth_bytes")) and math.isfinite(case.fact("peers")):
        several = case.fact("peers") > 1
        ranks = (case.figure("peers", "{:.0f}"), " other ranks") if several else ("other rank",)
        own, rest = case.figure("growth_bytes", size), case.figure("peer_growth_bytes", size)
        yield equals(
            case,
            "peer_growth_bytes",
            say(
                "while it grew by ", own, ", the job's ", *ranks, " grew by ", rest, " (median)" if several else ""
            ),
        )
    pace, left = case.figure("slope_bytes_per_h", lambda v: f"{size(v)}/h"), case.figure("eta_s", span)
    yield equals(
        case, "eta_s", say("as of ", case.moment("at_s"), ", at ", pace, " its limit is reached in ", left)
    )


def _growth(window: tuple[Evidence, float], what: str, least: float) -> Claim | None:
    """How much it grew, from when on, and how fast: all of one stretch of one series."""
    item, at_s = window
    more, pace = bytes_of(item, "growth", at_s), bytes_of(item, "pace", at_s, "/h")
    since = " since ", moment(item, at_s), " (", lasting(item, at_s), ")"
    sentence = say(f"{what} rose by ", more, *since, ", ", pace, ", and does not come back")
    return claim(_P.ROSE, sentence, item, split_s=at_s, at_least=least)


def _loss(case: DiagnosisCase) -> Drafts:
    onset_s, episode = case.cause.since.t_s, case.cause.episode
    base, level = case.fact("baseline_loss"), case.fact("loss")
    window = stretch(case, "signal", "loss", onset_s) or stretch(case, "exhibit", episode, onset_s)
    if math.isfinite(base) and math.isfinite(level) and level > base and window is not None:
        item, at_s = window
        sentence = say("loss ", *_ends(item, at_s, " → "), " since ", moment(item, at_s), ", with no recovery")
        # below the half: grounding compares medians, which lag behind the newest value
        yield claim(_P.ROSE, sentence, item, split_s=at_s, at_least=0.4 * (level - base))
    yield equals(case, "onset_step", say("it began at step ", case.figure("onset_step", "{:.0f}")))
    count = case.figure("nonfinite_steps", "{:.0f}")
    yield equals(case, "nonfinite_steps", say("the loss was not a number in ", count, " steps"))
    for item in case.bundle.of("signal", "grad_norm"):
        before, after = sides(item, onset_s)
        if before and after:
            usual = median(before)
            if median(after[-TAIL:]) > 2 * usual > 0:
                sentence = say("the gradient norm rose from ", *_ends(item, onset_s, " to "))
                yield claim(_P.ROSE, sentence, item, split_s=onset_s, at_least=usual)
    yield from _departure(case)
    codes = case.fact("hardware_events")
    if codes > 0:
        said = str(case.cause.facts.get("silent_corruption", ""))
        yield equals(case, "silent_corruption", f"hardware events on the run's GPUs before it: {said}")


def _ends(item: Evidence, at_s: float, between: str, form: str = "{:.3g}") -> tuple[str | Figure, ...]:
    """What a series was before a moment, and what it is now."""
    return reading(item, "first", at_s, form), between, reading(item, "last", at_s, form)


def _departure(case: DiagnosisCase) -> Drafts:
    """The rank that ran away alone before the damage reached the others."""
    item = case.bundle.one("departure")
    if item is None:
        return
    told = json.loads(item.content)
    rank = str(told["rank"])
    value = "not a number" if told["value"] is None else figure_of(item, "value", "{:.3g}")
    sentence = say(
        f"{told['signal']} of rank {rank.rpartition('#')[2]} left the others of ",
        *(figure_of(item, "ranks"), " ranks at step ", figure_of(item, "step"), " (", value, " against "),
        *(
            figure_of(item, "peers_median", "{:.3g}"),
            "), ",
            figure_of(item, "lead_steps"),
            " steps before any other",
        ),
    )
    yield claim(_P.EQUALS, sentence, item, path="rank", value=rank)


def _throttle(case: DiagnosisCase) -> Drafts:
    clock_mhz, reference, at_s = (
        case.fact("sm_clock_mhz"),
        case.fact("reference_mhz"),
        case.cause.since.t_s - _LATE_S,
    )
    if math.isfinite(reference) and reference > clock_mhz:
        # the detector averages for a while: what it calls the onset lies after the drop
        for item in case.bundle.of("signal", "gpu_sm_clock_mhz"):
            if all(sides(item, at_s)):
                clocks = _ends(item, at_s, " to ", "{:.0f}")
                sentence = say("its clock fell from ", *clocks, " MHz while it worked")
                yield claim(_P.FELL, sentence, item, split_s=at_s, at_least=0.5 * (reference - clock_mhz))
    reasons = case.cause.facts.get("reasons", "what the driver does not say")
    yield equals(case, "lost_share", say(case.figure("lost_share", percent), f" of its clock is lost to {reasons}"))
    yield equals(case, "temperature_c", say("it is at ", case.figure("temperature_c", "{:.0f}"), " °C"))


def _link(case: DiagnosisCase) -> Drafts:
    signal, since_s = str(case.cause.facts.get("signal", "")), case.cause.since.t_s
    rate, level, best = (case.fact(n) for n in ("errors_per_min", "level", "best"))
    for item in case.bundle.of("signal", signal) if signal else ():
        before, after = sides(item, since_s)
        if math.isfinite(rate) and before and after and after[-1] > before[-1]:
            more = after[-1] - before[-1]
            sentence = say(f"{signal} counted ", reading(item, "growth", since_s, "{:.0f}"), " more since it began")
            yield claim(_P.ROSE, sentence, item, split_s=since_s, at_least=max(0.3 * more, 0.5))
        if math.isfinite(best) and all(sides(item, since_s - 1.0)):
            sentence = say(f"{signal} fell from ", *_ends(item, since_s - 1.0, " to ", "{:g}"))
            yield claim(_P.FELL, sentence, item, split_s=since_s - 1.0, at_least=0.5 * (best - level))
    if math.isfinite(rate):
        figures = (
            case.figure("errors_per_min", "{:,.0f}"),
            " errors a minute, where ",
            case.figure("limit_per_min", "{:,.0f}"),
        )
        yield equals(case, "errors_per_min", say(*figures, " still are healthy"))
    if not math.isfinite(rate) and not math.isfinite(best):
        yield from plain(case)


def _gone(case: DiagnosisCase) -> Drafts:
    before, now = case.fact("gpus_before"), case.fact("gpus_now")
    if math.isfinite(before) and math.isfinite(now):
        exhibit, at_s = case.bundle.one("exhibit", case.cause.episode), case.cause.since.t_s
        if exhibit is not None and all(sides(exhibit, at_s)):
            counts = reading(exhibit, "end", at_s, "{:.0f}"), " GPUs, ", reading(exhibit, "start", at_s, "{:.0f}")
            sentence = say("its node shows ", *counts, " before; the node itself still runs")
            yield claim(_P.FELL, sentence, exhibit, split_s=at_s, at_least=0.5 * max(1.0, before - now))
        for node in case.where.nodes[:1]:
            log, state = case.bundle.one("kernel_log", node), case.bundle.one("log_state", node)
            yield claim(_P.ABSENT, f"{node}'s kernel log says nothing of it", log, state, patterns="NVRM: Xid (")
    else:
        yield from plain(case)


def _straggler(case: DiagnosisCase) -> Drafts:
    ratio, often = case.figure("ratio", "{:.2f}"), case.figure("often", percent)
    yield equals(case, "ratio", say("its own work takes ", ratio, " times its peers', step after step"))
    yield equals(case, "often", say("it was the slower one in ", often, " of the steps"))
    if not math.isfinite(case.fact("ratio")):
        yield from plain(case)


_LATE_S = 120.0


def _stall(case: DiagnosisCase) -> Drafts:
    stalls, longest = case.fact("stalls"), case.fact("longest_stall_s")
    exhibit = case.bundle.one("exhibit", case.cause.episode)
    if math.isfinite(stalls) and math.isfinite(longest) and stalls >= 2 and exhibit is not None:
        typical = case.fact("typical_step_s")
        level = min(0.3 * longest, 10 * typical) if math.isfinite(typical) else 0.3 * longest
        count, top = reading(exhibit, "count", level, "{:.0f}"), reading(exhibit, "top", level, "{:.1f}")
        sentence = say(count, " steps stalled, the longest for ", top, " s")
        yield claim(_P.REPEATED, sentence, exhibit, level=level, times=2.0)
    yield equals(case, "lost_share", say(case.figure("lost_share", percent), " of the time was lost to it"))
    waits = say("every step waited ", case.figure("wait_s_per_step", "{:.2g}"), " s for data")
    yield equals(case, "wait_s_per_step", waits)
    idle = case.figure("gpu_idle_share", percent)
    yield equals(case, "gpu_idle_share", say("its GPUs idled ", idle, " of that time: they waited for data"))
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
    after = (" after step ", case.figure("last_step", "{:.0f}")) if math.isfinite(case.fact("last_step")) else ()
    at, silent = case.moment("at_s"), case.figure("silent_s", span)
    yield equals(case, "silent_s", say("no step for ", silent, *after, " as of ", at))
    yield from _place_of_hang(case)
    if case.cause.facts.get("idle_gpus"):
        gpus = str(case.cause.facts["idle_gpus"]).split()
        yield equals(case, "idle_gpus", f"idle while the others spin: {', '.join(map(short, gpus[:4]))}")
    yield from _storage(case)


def _place_of_hang(case: DiagnosisCase) -> Drafts:
    """The rank, the collective and the line that differ, where the job's ranks left dumps."""
    item = case.bundle.one("hang_place", "")
    if item is None:
        return
    place = json.loads(item.content)
    yield claim(_P.EQUALS, str(place["words"]), item, path="words", value=str(place["words"]))
    if place["line"]:
        yield claim(_P.EQUALS, f"it is, or was last, at {place['line']}", item, path="line", value=place["line"])
    if place["waiting_line"] and place["waiting_line"] != place["line"]:
        sentence = f"the others wait at {place['waiting_line']}"
        yield claim(_P.EQUALS, sentence, item, path="waiting_line", value=place["waiting_line"])


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
        at_s = since_s - 1.0
        before, after = sides(item, at_s)
        if before and after and after[-1] > before[-1]:
            least = max(0.4 * (after[-1] - before[0]), 0.5)
            counts = reading(item, "start", at_s, "{:.0f}"), " → ", reading(item, "end", at_s, "{:.0f}")
            sentence = say(f"{what} ", *counts, " since ", case.moment("since_s"))
            yield claim(_P.ROSE, sentence, item, split_s=at_s, at_least=least)
    for finding in case.findings:
        bins = case.fact("active_bins", finding)
        if bins >= 1 and math.isfinite(case.fact("bin_s", finding)):
            windows = " window of " if bins == 1 else " windows of "
            count, width = case.figure("active_bins", "{:.0f}", finding), case.figure("bin_s", span, finding)
            yield equals(case, "active_bins", say("corrected errors in ", count, windows, width), finding)
        share = case.fact("next_error_24h", finding)
        # said where an uncorrected error was: after corrected ones alone none of the devices had enough to tell
        if case.fact("error_moments_24h", finding) >= 1 and math.isfinite(share):
            again, low, high = (
                case.figure(f"next_error_{name}", percent, finding) for name in ("24h", "low", "high")
            )
            sentence = say(
                *("on an average device elsewhere, another uncorrected error followed within a day after ", again),
                *(" of them (", low, " to ", high, " by device)"),
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


def _told_by_kubernetes(case: DiagnosisCase) -> Drafts:
    if case.fact("events") > 1:
        yield equals(case, "events", say(case.figure("events", "{:.0f}"), " objects show it"))
    yield equals(case, "meaning", f"Kubernetes reports: {case.cause.facts.get('meaning', case.cause.summary)}")


def plain(case: DiagnosisCase) -> Drafts:
    for name, before, form, after in (
        ("silent_s", "no good answer for ", "{:.0f} s", ""),
        ("events", "seen ", "{:.0f}", " times"),
        ("score", "score ", "{:.3g}", ""),
    ):
        value = case.fact(name)
        # once is what the line itself says
        if math.isfinite(value) and not (name == "events" and value <= 1):
            yield equals(case, name, say(before, case.figure(name, form), after))
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
    Kin.NODE: _told_by_kubernetes,
    Kin.START: _told_by_kubernetes,
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
    builders += [_place, _lines, _rollout, _learning_rate, _no_hardware_errors, _consequences]
    drafted = [claim for build in builders for claim in build(case) if claim is not None]
    # two findings may quote the same line
    unique = {(c.predicate, c.evidence_ids, c.quotes, tuple(sorted(c.arguments.items()))): c for c in drafted}
    return [bind(claim, case.bundle.items) for claim in unique.values()]


def _rollout(case: DiagnosisCase) -> Drafts:
    """The version that the fault began with."""
    item = case.bundle.one("rollout")
    if item is not None:
        told = json.loads(item.content)
        failed, changed, others_failed, others = (
            figure_of(item, name) for name in ("failed_changed", "changed", "failed_others", "others")
        )
        sentence = say(
            f"it began with the rollout of {told['component']} {told['version']} (from {told['before']}); ",
            *(failed, " of ", changed, " changed nodes failed alike after it, ", others_failed, " of ", others),
            " others",
        )
        yield claim(_P.EQUALS, sentence, item, path="version", value=str(told["version"]))


def _learning_rate(case: DiagnosisCase) -> Drafts:
    """For damaged training: whether the schedule explains it."""
    item = case.bundle.one("learning_rate")
    if kin_of(case.cause) is not Kin.LOSS or item is None:
        return
    before, after, at = (
        figure_of(item, "before", "{:.3g}"),
        figure_of(item, "after", "{:.3g}"),
        figure_of(item, "at_s", clock_time),
    )
    sentence = say("the learning rate jumped from ", before, " to ", after, " at ", at)
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
    first = next((q for q in quotes if not _OPENS.match(q.text)), quotes[0] if quotes else None)
    chosen = next((q for q in quotes if own and own in q.text), first)
    if chosen is None:
        return
    sentence, path, value = _own_words(finding, code)
    yield claim(_P.EQUALS, sentence, case.said(finding), item, quotes=(chosen,), path=path, value=value)
    yield _further_codes(case, finding, item, quotes)
    yield _announcement(case, finding, item, quotes)
    yield _tear_down(item, quotes, chosen)


# These open a stack trace: what ended the program stands behind them.
_OPENS = re.compile(r"(?:\[?rank\d*\]?:?\s*)?(?:Traceback \(most recent|File \"|raise \w)")


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
        if is_consequence(finding, case.cause) and finding.fault is not Fault.XID:  # Xids are quoted above
            by_fault.setdefault(finding.fault, []).append(finding)
    for found in by_fault.values():
        yield _consequence(case, min(found, key=onset_key), len(found) > 1)


def _consequence(case: DiagnosisCase, first: Finding, several: bool) -> Claim | None:
    said = case.said(first)
    if said is None:
        return None
    later_s = first.since.t_s - case.cause.since.t_s
    when: tuple[str | Figure, ...] = ("at the same time",)
    if abs(later_s) >= 1:
        # two clocks may differ by more than the time between: then no order is claimed
        apart = case.cause.since.order(first.since) is not Order.CONCURRENT
        doubt = "" if apart else " (or not: their clocks cannot tell)"
        when = figure_of(said, "apart_s", span), " later" if later_s > 0 else " before", doubt
    more = (" and ", figure_of(said, "alike"), " more") if several else ()
    place = f": {_words(first.fault)} on {first.subject.kind} {short(first.subject.name)}"
    return claim(_P.EQUALS, say(*when, place, *more), said, path="fault", value=first.fault.value)


def _words(fault: Fault) -> str:
    return fault.value.replace("_", " ")


_STRONG = frozenset({Predicate.ROSE, Predicate.FELL, Predicate.REPEATED, Predicate.PRECEDED})
_LEAKS = frozenset({Kin.GPU_LEAK, Kin.HOST_LEAK})
_LOGGED = HARDWARE | {Kin.OOM, Kin.GONE, Kin.APPLICATION, Kin.CRASH, Kin.NODE, Kin.START}
"""Kin of which the kernel, the driver or the job's launcher writes a line; that line is the proof."""
_OBSERVED = frozenset({Kin.SOURCE, Kin.BREAKER, Kin.LEMON, Kin.HANG, Kin.THROTTLE})
"""Kin that a detector sees as they are, so that its word alone is worth more than a low level."""


def confidence_of(case: DiagnosisCase, claims: Sequence[Claim]) -> Confidence:
    """The level of a case's first cause, given the claims that held."""
    if not claims or case.cause.fault is Fault.ANOMALY:
        return Confidence.UNKNOWN
    kin = kin_of(case.cause)
    if kin is Kin.FOLLOWER:
        return Confidence.LOW  # what it followed was not seen, so its line proves no cause
    if case.cause.fault is Fault.XID and codes_of([case.cause]) == (RECOVERY_ACTION_CHANGED,):
        return Confidence.LOW  # what is to be done is known, and of what error nothing
    strong = any(claim.predicate in _STRONG for claim in claims)
    if kin is Kin.LOSS:
        proven = jumped(claims)  # nothing else that is logged tells a cause from its damage
    elif kin in _LOGGED:
        proven = any(claim.quotes for claim in claims)
    else:
        # memory of one rank that grows may be its data: only beside its peers is it a leak
        proven = strong and (kin not in _LEAKS or any("peer" in str(c.arguments.get("path")) for c in claims))
    if proven:
        return Confidence.HIGH
    return Confidence.MEDIUM if strong or kin in _OBSERVED else Confidence.LOW


def jumped(claims: Sequence[Claim]) -> bool:
    """Whether it was proven that the learning rate jumped."""
    return any(c.arguments.get("path") == "jumped" and c.arguments.get("value") == "yes" for c in claims)


def right_share(level: Confidence) -> float | None:
    """How often a first cause of this level was right, in [0, 1]; None where that was not measured."""
    return _measured().get(level.value)


@cache
def _measured() -> dict[str, float]:
    path = Path(__file__).with_name("calibration.json")
    return {str(k): float(v) for k, v in json.loads(path.read_text())["right"].items()} if path.exists() else {}


_K = SubjectKind
REMAP_FAILED = 64
"""The Xid of a row remapping that failed: NVIDIA's criterion for a return."""
RESET = frozenset({Recovery.RESET_GPU, Recovery.DRAIN_AND_RESET, Recovery.DRAIN_P2P, Recovery.RESET_GPU_IF_UVM})
# Of several the gravest: a reboot also resets, and a reset also restarts the application.
_WORST = (Recovery.REBOOT_NODE, *sorted(RESET), Recovery.CONTACT_SUPPORT, Recovery.RESTART_APP)
SILENT = (
    "silent data corruption is possible, not proven. No hardware error was reported, which does not exclude it; a "
    "clean test afterwards does not clear the hardware"
)

_SAYS: dict[Fault, str] = {
    Fault.GPU_MEMORY_LEAK: "GPU memory leak",
    Fault.HOST_MEMORY_LEAK: "Host memory leak",
    Fault.LOSS_DIVERGED: "Loss diverged",
    Fault.LOSS_NONFINITE: "Loss or gradient is not a number",
    Fault.DATA_STALL: "Training waits for data",
    Fault.HANG: "Job hangs",
    Fault.STRAGGLER: "One rank is slow",
    Fault.HBM_IMMINENT: "GPU memory errors",
    Fault.HBM_DEGRADED: "GPU memory errors",
    Fault.XID: "GPU error",
    Fault.DRIVER_ERROR: "GPU driver error",
    Fault.HOST_ERROR: "Host hardware error",
    Fault.PART_FAILED: "Part of the chassis failed",
    Fault.GPU_LOST: "GPU lost",
    Fault.NVLINK_DEGRADED: "NVLink errors",
    Fault.PCIE_DEGRADED: "PCIe errors",
    Fault.NETWORK_DEGRADED: "Network link errors",
    Fault.THROTTLE: "GPU throttled",
    Fault.OOM_KILL: "Killed: out of host memory",
    Fault.JOB_CRASH: "Job ended",
    Fault.POD_START: "Pods cannot start",
    Fault.NODE_CONDITION: "Node reports a fault",
    Fault.SOURCE_LOST: "Source lost",
    Fault.ACTIONS_STOPPED: "Nightshift stopped its own actions",
    Fault.LEMON: "Jobs fail more often here than on peers",
    Fault.ANOMALY: "Unusual behaviour",
}


def diagnose(
    findings: Sequence[Finding], bundle: Bundle, inventory: Inventory, open_: Sequence[Finding] | None = None
) -> Diagnosis:
    """The rules' diagnosis of an incident with these findings. Deterministic. `open_`: those of them that a repair
    may rest on; None: all that are not clear."""
    if open_ is None:
        open_ = [finding for finding in findings if finding.state is not State.CLEAR]
    cause = first_cause(findings)
    case = DiagnosisCase(cause, tuple(findings), bundle, where_of(findings, inventory, bundle))
    grounded = ground(draft(case), bundle.items)
    fault = fault_of(findings)
    confidence = confidence_of(case, grounded.held)
    share = right_share(confidence)
    return Diagnosis(
        cause=fault,
        headline=_headline(case, fault, grounded.held),
        confidence=confidence,
        claims=grounded.held,
        evidence=bundle.items,
        caveats=tuple(_caveats(case, grounded.held)),
        hypothesis=_hypothesis(case, grounded.held),
        dropped=len(grounded.fell),
        facts=_facts(case, inventory, grounded.held, open_)
        | ({} if share is None else {"confidence_right": share}),
    )


def where_of(findings: Sequence[Finding], inventory: Inventory, bundle: Bundle | None = None) -> FaultPlace:
    """Where the first cause sat at its onset.

    Where several ranks of one job show the same fault of training, the job as a whole: in data-parallel training
    every rank shows the loss, and whose fault it was cannot be seen. A kill for want of memory sits at the one job
    that gave memory back.
    """
    cause = first_cause(findings)
    places = FindingPlaces(inventory)
    touched = places.of(cause)
    jobs = [s for s in touched if s.kind is _K.JOB]
    whole = len(jobs) == 1 and len(_alike(cause, findings, jobs[0], places)) > 1
    if jobs and (whole or cause.subject.kind is _K.JOB):
        touched = places.of(replace(cause, subject=jobs[0]))
    named = {kind: tuple(sorted(s.name for s in touched if s.kind is kind)) for kind in SubjectKind}
    victims = None if bundle is None else bundle.one("victims")
    # the kernel names the process that it killed, not its pod: who gave memory back tells which job it was
    if victims is not None:
        killed = json.loads(victims.content)
        named[_K.JOB] = tuple(killed["jobs"].split()) if killed["count"] == 1 else ()
    others = _other_jobs(cause, findings, places) - {*named[_K.JOB]} if len(named[_K.JOB]) == 1 else ()
    return FaultPlace(
        gpus=named[_K.GPU],
        ranks=named[_K.RANK],
        pods=named[_K.POD],
        jobs=named[_K.JOB],
        nodes=named[_K.NODE],
        whole_job=whole,
        others=tuple(sorted(others)),
    )


_OF_ALL_RANKS = frozenset({Kin.LOSS, Kin.STALL, Kin.HANG})


def _alike(cause: Finding, findings: Iterable[Finding], job: Subject, places: FindingPlaces) -> set[Subject]:
    """What shows the same fault of training in a job; none for a fault that one rank can show alone."""
    kin = kin_of(cause)
    return {f.subject for f in findings if kin in _OF_ALL_RANKS and kin_of(f) is kin and job in places.of(f)}


def _other_jobs(cause: Finding, findings: Iterable[Finding], places: FindingPlaces) -> set[str]:
    """Jobs that stop or wait in an incident that is about stopping or waiting: one storage server stops many."""
    stopped = [f for f in findings if kin_of(cause) in WAITS and kin_of(f) in WAITS]
    return {s.name for f in stopped for s in places.of(f) if s.kind is _K.JOB}


def fault_of(findings: Sequence[Finding]) -> Fault:
    """The diagnosed fault: an Xid of a known class is said as the fault of that class, memory errors by the gravest
    that was found."""
    cause = first_cause(findings)
    kin = kin_of(cause)
    if kin is Kin.MEMORY:
        # the first sign of failing memory is a mild one: the gravest decides
        failing = any(f.fault is Fault.HBM_IMMINENT for f in findings)
        return Fault.HBM_IMMINENT if failing else Fault.HBM_DEGRADED
    if cause.fault is not Fault.XID:
        return cause.fault
    # a counter that rises proves a loss; a line alone may be of what the link corrected
    if kin is Kin.LINK and all(f.fault is Fault.XID for f in findings):
        called = recovery_of(findings)
        if called is not None and called[0] == Recovery.NONE:
            return Fault.XID  # such as 137, or what the link corrected: nothing says that it lost anything
    return {Kin.BUS: Fault.GPU_LOST, Kin.LINK: Fault.NVLINK_DEGRADED}.get(kin, Fault.XID)


def codes_of(findings: Iterable[Finding]) -> tuple[int, ...]:
    """Every Xid among findings."""
    told = (xids_of(f) for f in findings if f.fault is Fault.XID and xid_of(f) is not None)
    return tuple(sorted(frozenset().union(*told)))


def recovery_of(findings: Sequence[Finding]) -> tuple[str, str] | None:
    """(what is called for, why) by the Xids among findings; None where there are none. An announced action (154)
    overrides the catalogue; of several codes, and of what several GPUs announce, the gravest counts. That nothing
    is to be done is said of the announcing GPU alone: one that fell off the bus announces nothing."""
    announced = dict(sorted((_announced(f) for f in findings), key=lambda said: said[1]))
    if (action := _worst_of(announced)) is not None:
        return _plain(action), f"the driver announced it (Xid 154: {announced[action]})"
    others = _not_called_well(findings)
    told = severities_of(others)
    actions = {asked: code for code in codes_of(others) if (asked := _by_catalogue(code, told.get(code, "")))}
    by_line = {str(f.facts.get("log_recovery", "")): str(f.facts.get("meaning", "")) for f in findings}
    for action in _WORST:
        if action in actions:
            return _plain(action), f"NVIDIA's catalogue: {_of_catalogue(actions[action], told)} → {action}"
        if action.value in by_line:
            return _plain(action), f"the kernel log: {by_line[action.value]} → {action}"
    if Recovery.NONE in announced:
        return _plain(Recovery.NONE), f"the driver announced it (Xid 154: {announced[Recovery.NONE]})"
    if actions:
        code = next(iter(sorted(actions.values())))
        return "none", f"NVIDIA's catalogue requires no action for Xid {code}"
    return None


def _announced(finding: Finding) -> tuple[Recovery | None, str]:
    """The recovery action that the driver announced by Xid 154, and its own words for it."""
    words = str(finding.facts.get("announced_recovery", ""))
    return announced_action(words), words


def _not_called_well(findings: Sequence[Finding]) -> list[Finding]:
    """Findings without those of a GPU of which the driver announced later that nothing is to be done."""
    calm = [f for f in findings if _announced(f)[0] is Recovery.NONE]
    return [f for f in findings if not any(f.subject == g.subject and f.since.t_s <= g.since.t_s for g in calm)]


def _worst_of(called: Container[Recovery | None]) -> Recovery | None:
    return next((action for action in _WORST if action in called), None)


def _by_catalogue(code: int, severity: str) -> Recovery | None:
    """What an Xid, or a switch's SXid, calls for; a switch says itself that an error was not fatal."""
    switch = SWITCH_ERRORS.get(code)
    if switch is None:
        return action_of(code, severity)
    return Recovery.NONE if severity in ("nonfatal", "corrected") else switch.action


def _of_catalogue(code: int, severities: Mapping[int, str]) -> str:
    entry = SWITCH_ERRORS.get(code) or CATALOGUE[code]
    kind = "SXid" if code in SWITCH_ERRORS else "Xid"
    return f"{kind} {code} ({', '.join(filter(None, (entry.meaning, severities.get(code))))})"


_BY_XID = HARDWARE | {Kin.APPLICATION, Kin.FOLLOWER}
RECOVERY_FACTS = frozenset({"recovery_action", "recovery_reason", "remap_failure", "remap"})


def recovery_facts(cause: Finding, open_: Iterable[Finding]) -> dict[str, str | float]:
    """What the Xids ask for at the cause's own place (`RECOVERY_FACTS`). What has cleared asks for nothing, and
    what another GPU asks for says nothing of this one."""
    here = [finding for finding in open_ if finding.subject == cause.subject]
    codes = codes_of(here)
    if kin_of(cause) not in _BY_XID or (called := recovery_of(here)) is None:
        return {}
    facts: dict[str, str | float] = {"recovery_action": called[0], "recovery_reason": called[1]}
    failed = {"remap_failure": 1.0} if REMAP_FAILED in codes else {}
    return facts | failed | ({"remap": 1.0} if 63 in codes else {})


def severities_of(findings: Iterable[Finding]) -> dict[int, str]:
    """The gravest severity that the lines of each NVLink 5 code told."""
    found: dict[int, str] = {}
    for finding in findings:
        for part in str(finding.facts.get("severities", "")).split():
            code, _, word = part.partition(":")
            if finding.fault is Fault.XID and code.isdecimal() and word in GRAVITY:
                found[int(code)] = max(word, found.get(int(code), ""), key=GRAVITY.index)
    return found


def _plain(action: Recovery) -> str:
    return "reset_gpu" if action in RESET else action.value


_MEANS = frozenset(
    {Fault.DRIVER_ERROR, Fault.HOST_ERROR, Fault.POD_START, Fault.NODE_CONDITION, Fault.PCIE_DEGRADED}
) | {Fault.NETWORK_DEGRADED, Fault.NVLINK_DEGRADED, Fault.PART_FAILED}
"""Faults of which one line or object may say more exactly what it is."""


def _headline(case: DiagnosisCase, fault: Fault, held: Sequence[Claim]) -> str:
    what = _SAYS[fault]
    code = xid_of(case.cause)
    if fault is Fault.XID and code is not None:
        what = title_of(code, CATALOGUE[code].meaning if code in CATALOGUE else None)
    if fault is Fault.JOB_CRASH:
        what += f": {case.cause.facts.get('ended_by', 'an error')}"
    if case.cause.fault in _MEANS or is_report(case.cause):
        what = str(case.cause.facts.get("meaning", what))
    if fault in (Fault.HBM_DEGRADED, Fault.HBM_IMMINENT):
        what += f" ({units_of(case.findings)})"
    if kin_of(case.cause) is Kin.LOSS:
        if jumped(held):
            what += " after the learning rate jumped"
        elif not case.fact("hardware_events") > 0:
            what += ", silent corruption possible, not shown"
        else:
            what += ", silent corruption suspected, not proven"
    silent = silent_storage(held)
    if silent and kin_of(case.cause) in (Kin.STALL, Kin.HANG):
        what += f": no answer from {silent}"
    rollout = next((str(c.arguments["value"]) for c in held if c.arguments.get("path") == "version"), "")
    if rollout:
        what += f", began with the rollout of {rollout}"
    suspect = suspect_of(case.bundle)
    named = f", suspect rank {suspect[0].rpartition('#')[2]}" if suspect and not jumped(held) else ""
    return f"{what} · {case.where.sentence(case.cause.subject)}{named}"


def silent_storage(claims: Iterable[Claim]) -> str:
    """Remote storage that does not answer, where a claim that holds says so; else empty."""
    return next((str(claim.arguments["value"]) for claim in claims if claim.arguments.get("path") == "silent"), "")


def suspect_of(bundle: Bundle) -> tuple[str, str] | None:
    """(rank, GPU or empty) that left its peers before the damage reached all, where the evidence names one."""
    item = bundle.one("departure")
    if item is None:
        return None
    told = json.loads(item.content)
    return str(told["rank"]).partition(":")[2], str(told["gpu"]).partition(":")[2]


_SOFTWARE = frozenset({Kin.LOSS, Kin.GPU_LEAK, Kin.HOST_LEAK, Kin.STALL, Kin.HANG, Kin.STRAGGLER})
_CAVEATS: tuple[tuple[Callable[[DiagnosisCase, Kin, Sequence[Claim]], bool], str], ...] = (
    (lambda case, kin, held: kin is Kin.LOSS and not jumped(held) and not case.fact("hardware_events") > 0, SILENT),
    (
        lambda case, kin, held: (
            kin is Kin.LOSS and case.bundle.one("departure") is None and len(case.where.ranks) != 1
        ),
        "cannot tell which rank caused it: per-rank values are missing or diverged together",
    ),
    (
        lambda case, kin, held: jumped(held),
        "resumed with the same schedule it may diverge again: the owner should check the learning rate",
    ),
    (
        lambda case, kin, held: kin is Kin.LOSS and case.bundle.one("learning_rate") is None,
        "the learning rate was not logged: no data on whether it changed",
    ),
    (
        lambda case, kin, held: (
            kin in _SOFTWARE and bool(case.where.nodes) and not any(c.predicate is Predicate.ABSENT for c in held)
        ),
        "the kernel log of its nodes was not read, or shows GPU errors: hardware is not excluded",
    ),
    (
        lambda case, kin, held: kin in _LEAKS and not math.isfinite(case.fact("peers")),
        "there are no other ranks to compare with: it may be growth that stops on its own",
    ),
    (
        lambda case, kin, held: kin in _LEAKS,
        "the allocation that leaks cannot be identified from outside the process",
    ),
    (
        lambda case, kin, held: kin is Kin.STALL and not silent_storage(held),
        "whether storage, network or the loader's own code is slow was not measured",
    ),
    (
        lambda case, kin, held: kin in (Kin.CRASH, Kin.START) and case.cause.facts.get("mended_by") == "owner",
        "the cause is in the job: its owner can mend it, the cluster cannot",
    ),
    (
        lambda case, kin, held: kin is Kin.FOLLOWER,
        "this Xid follows another error, on which there is no data",
    ),
)
"""When a diagnosis says that something is not known, and the sentence; in the order in which people read them."""


def _caveats(case: DiagnosisCase, held: Sequence[Claim]) -> list[str]:
    kin = kin_of(case.cause)
    found = [sentence for applies, sentence in _CAVEATS if applies(case, kin, held)]
    for finding in case.findings:
        if "sources_disagree" in finding.facts and len(found) < 4:
            found.append(f"sources disagree on Xid {xid_of(finding)}: {finding.facts['sources_disagree']}")
    if case.bundle.left_out:
        found.append(f"{case.bundle.left_out} items did not fit into the evidence")
    others = {kin_of(f) for f in case.findings} & HARDWARE
    if len(others) > 1:
        found.append(f"errors of several kinds together ({', '.join(sorted(others))}): the first one is named")
    return found


def _hypothesis(case: DiagnosisCase, held: Sequence[Claim]) -> str:
    kin = kin_of(case.cause)
    if kin is Kin.LOSS and not jumped(held):
        if case.cause.fault is Fault.LOSS_DIVERGED:
            return "a flipped bit in weights or optimizer state, bad data, or an unstable step"
        return "an overflow, a division by zero in the data path, or a flipped bit"
    # what the kernel log proves needs no guess beside it
    if kin is Kin.STALL and silent_storage(held):
        return ""
    return {
        Kin.GPU_LEAK: "tensors kept from step to step, e.g. a loss that was appended without detach",
        Kin.HOST_LEAK: "a data-loader worker or a cache that keeps what it read",
        Kin.STALL: "slow storage, too few loader workers, or a worker that restarts",
    }.get(kin, "")


def _facts(
    case: DiagnosisCase, inventory: Inventory, held: Sequence[Claim], open_: Sequence[Finding]
) -> dict[str, str | float]:
    """Figures that the playbooks and the summary go by; only what is known."""
    cause, where = case.cause, case.where
    facts: dict[str, str | float] = {"subject": str(cause.subject), "since_s": cause.since.t_s}
    for name, values in (("gpu", where.gpus), ("rank", where.ranks), ("job", where.jobs), ("node", where.nodes)):
        if len(values) == 1:
            facts[name] = values[0]
    if len(where.jobs) == 1:
        facts |= _job_facts(case, inventory)
    suspect = suspect_of(case.bundle)
    if suspect is not None and kin_of(cause) is Kin.LOSS:
        facts |= {"suspect_rank": suspect[0]} | ({"suspect_gpu": suspect[1]} if suspect[1] else {})
    known = {"onset_step": "onset_step", "eta_s": "eta_s", "lost_share": "lost_fraction"}
    facts |= {to: case.fact(name) for name, to in known.items() if math.isfinite(case.fact(name))}
    if kin_of(cause) in (Kin.STALL, Kin.HANG) and (silent := silent_storage(held)):
        facts["silent_storage"] = silent
    facts |= _xid_facts(case)
    facts |= recovery_facts(cause, open_)
    damaged = _damaged_since(case)
    if kin_of(cause) is Kin.LOSS and math.isfinite(damaged[0]):
        facts["damaged_step"] = damaged[0]
    return facts | _checkpoints(case)


def _job_facts(case: DiagnosisCase, inventory: Inventory) -> dict[str, str | float]:
    """Size and owners of the one job that is touched first."""
    cause, where = case.cause, case.where
    job = Subject(_K.JOB, where.jobs[0])
    # by the time of the finding its pods may be gone, and before the onset not yet known
    gpus = inventory.gpus(job, cause.since.t_s) or inventory.gpus(job, cause.at.t_s)
    facts: dict[str, str | float] = {"job_gpus": float(len(gpus))}
    owners = [inventory.fact(Subject(_K.JOB, name), "owner") for name in (*where.jobs, *where.others)]
    named = few(list(dict.fromkeys(owner for owner in owners if owner)), 20)
    facts |= {"owner": named} if named else {}
    facts |= {"other_jobs": few(where.others, 50)} if where.others else {}
    return facts


def _xid_facts(case: DiagnosisCase) -> dict[str, str | float]:
    """The Xid that decides the repair, and every memory error beside it on the same subject."""
    codes = codes_of(f for f in case.findings if f.subject == case.cause.subject)
    if not codes or kin_of(case.cause) not in _BY_XID:
        return {}
    code = xid_of(case.cause)
    facts: dict[str, str | float] = {"xid": float(code if code is not None else codes[0])}
    if MEMORY_XIDS & set(codes):
        facts["memory_xids"] = " ".join(str(c) for c in codes if c in MEMORY_XIDS)
    return facts


def _damaged_since(case: DiagnosisCase) -> tuple[float, float]:
    """(step, Unix s) from which on training is damaged: the onset, or earlier where one rank had left its peers."""
    step, at_s = case.fact("onset_step"), case.cause.since.t_s
    left = case.bundle.one("departure")
    if left is None:
        return step, at_s
    told = json.loads(left.content)
    return (min(step, float(told["step"])) if math.isfinite(step) else float(told["step"])), min(
        at_s, float(told["t_s"])
    )


def _checkpoints(case: DiagnosisCase) -> dict[str, str | float]:
    """The newest checkpoint, and the newest from before the onset: in time, and in step where it is told."""
    item = case.bundle.one("checkpoints")
    if item is None:
        return {}
    saved = json.loads(item.content)
    pairs = list(zip(saved["step"], saved["t_s"], strict=True))
    step, at_s = pairs[-1]
    facts: dict[str, str | float] = {"checkpoint_step": float(step), "checkpoint_s": float(at_s)}
    onset_step, onset_s = _damaged_since(case)
    # `not >=`: where no step is known (NaN) the time alone decides
    safe = [(s, t) for s, t in pairs if t < onset_s and not s >= onset_step]
    if safe:
        facts |= {"safe_checkpoint_step": float(safe[-1][0]), "safe_checkpoint_s": float(safe[-1][1])}
    return facts
