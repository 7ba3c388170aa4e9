"""What the rules claim about each kin of fault: sentences with a predicate that grounding can evaluate again.

A builder only drafts. It may draft too much: what the evidence does not bear falls in grounding and is never shown.
Figures in a sentence are those of the predicate's own arguments or of the evidence that it cites.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from agent.kinship import FOLLOWER_XIDS, Kin, kin_of, onset_key, xid_of
from agent.rca.bundle import Bundle
from agent.rca.diagnosis import LOG, Claim, Evidence, Predicate, Quote
from agent.rca.grounding import MAX_QUOTE_CHARS, Ungrounded, bind, lines_of, series_of
from collectors.subject import Subject, SubjectKind
from detectors.base import Fault, Finding
from detectors.xid_catalogue import CATALOGUE

GIB = float(2**30)
_P = Predicate
XID_PATTERNS = "Xid (\nSXid ("


@dataclass(frozen=True)
class Where:
    """Where a fault sits, as the inventory knew it at the onset; empty where it is not known."""

    gpus: tuple[str, ...] = ()
    ranks: tuple[str, ...] = ()
    pods: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    whole_job: bool = False
    """Several ranks of the job show it alike, so that no one rank can be named."""

    def sentence(self, subject: Subject) -> str:
        """Such as `rank 3 of ml/a (GPU-1f3c…, node n1)`."""
        if self.whole_job and len(self.jobs) == 1:
            return f"job {self.jobs[0]} ({len(self.gpus)} GPUs on {', '.join(self.nodes[:4])})"
        inside = []
        if len(self.ranks) == 1:
            head = f"rank {self.ranks[0].rpartition('#')[2]} of {self.ranks[0].rpartition('#')[0]}"
        elif subject.kind in (SubjectKind.JOB, SubjectKind.NODE, SubjectKind.GPU, SubjectKind.SOURCE):
            head = (
                f"{subject.kind} {short(subject.name)}" if subject.kind is not SubjectKind.SOURCE else subject.name
            )
        else:
            head = f"{subject.kind} {subject.name}"
            inside += [f"job {job}" for job in self.jobs[:1]]
        if (len(self.gpus) == 1 and subject.kind is not SubjectKind.GPU) or (len(self.ranks) == 1 and self.gpus):
            inside.append(short(self.gpus[0]))
        if len(self.nodes) == 1 and subject.kind is not SubjectKind.NODE:
            inside.append(f"node {self.nodes[0]}")
        return f"{head} ({', '.join(inside)})" if inside else head


def short(name: str) -> str:
    """A GPU's UUID as people say it."""
    return f"{name[:12]}…" if name.startswith("GPU-") and len(name) > 16 else name


@dataclass(frozen=True)
class Case:
    """An incident as its rules see it: its first cause, everything found, the evidence, and where it sits."""

    cause: Finding
    findings: tuple[Finding, ...]
    bundle: Bundle
    where: Where

    def said(self, finding: Finding | None = None) -> Evidence | None:
        return self.bundle.one("finding", (finding or self.cause).episode)

    def fact(self, name: str, finding: Finding | None = None) -> float:
        value = (finding or self.cause).facts.get(name, math.nan)
        return float(value) if isinstance(value, int | float) and math.isfinite(float(value)) else math.nan


Drafts = Iterator[Claim | None]


def draft(case: Case) -> list[Claim]:
    """Every claim that the rules would make about a case, bound to its evidence; none of them checked yet."""
    builders: list[Callable[[Case], Drafts]] = [_BY_KIN.get(kin_of(case.cause), _plain)]
    builders += [_place, _lines, _learning_rate, _no_hardware_errors, _consequences]
    drafted = [claim for build in builders for claim in build(case) if claim is not None]
    unique = {(c.predicate, c.evidence_ids, c.quotes, tuple(sorted(c.arguments.items()))): c for c in drafted}
    return [bind(claim, case.bundle.items) for claim in unique.values()]


def _claim(
    predicate: Predicate,
    sentence: str,
    *items: Evidence | None,
    quotes: tuple[Quote, ...] = (),
    **arguments: object,
) -> Claim | None:
    if any(item is None for item in items):
        return None
    plain = {k: v if isinstance(v, str) else float(v) for k, v in arguments.items()}  # type: ignore[arg-type]
    return Claim(sentence, predicate, tuple(i.id for i in items if i is not None), quotes, plain)


def _equals(case: Case, name: str, sentence: str, finding: Finding | None = None) -> Claim | None:
    finding = finding or case.cause
    value = finding.facts.get(name)
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return None
    return _claim(_P.EQUALS, sentence, case.said(finding), path=f"facts.{name}", value=value)


def _rise(case: Case, tag: str, about: str, split_s: float, least: float, sentence: str) -> Claim | None:
    """A rise in the first such series that reaches to both sides of the split."""
    for item in case.bundle.of(tag, about):
        try:
            times = [t for t, _ in series_of(item)]
        except Ungrounded:
            continue
        if times[0] <= split_s < times[-1]:
            return _claim(_P.ROSE, sentence, item, split_s=split_s, at_least=least)
        if times[0] < times[-1] and tag == "exhibit":
            return _claim(_P.ROSE, sentence, item, split_s=times[0], at_least=least)
    return None


def clock(t_s: float) -> str:
    return datetime.fromtimestamp(t_s, UTC).strftime("%H:%M:%S")


def span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def size(value: float) -> str:
    return f"{value / GIB:.2f} GiB" if abs(value) >= GIB / 10 else f"{value / 2**20:.0f} MiB"


def _leak(case: Case) -> Drafts:
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
        yield _rise(case, "exhibit", case.cause.episode, case.cause.since.t_s, 0.5 * grown, sentence)
        since = clock(case.cause.since.t_s)
        sentence = f"the signal itself shows it: at least {size(0.4 * grown)} more than before {since}"
        yield _rise(case, "signal", metric, case.cause.since.t_s, 0.4 * grown, sentence)
    peers, others = case.fact("peer_growth_bytes"), case.fact("peers")
    if math.isfinite(peers) and math.isfinite(others):
        sentence = f"the job's {others:.0f} other ranks grew by {size(peers)} (median) in the same time"
        yield _equals(case, "peer_growth_bytes", sentence)
    eta_s = case.fact("eta_s")
    if math.isfinite(eta_s):
        yield _equals(case, "eta_s", f"at this pace its limit is reached in {span(eta_s)}")


def _loss(case: Case) -> Drafts:
    onset_s, episode = case.cause.since.t_s, case.cause.episode
    base, level, step = (case.fact(name) for name in ("baseline_loss", "loss", "onset_step"))
    if math.isfinite(base) and math.isfinite(level) and level > base:
        where = f"step {step:.0f} ({clock(onset_s)})" if math.isfinite(step) else clock(onset_s)
        sentence = f"loss {base:.3g} → {level:.3g} since {where}, with no recovery"
        least = 0.4 * (level - base)
        yield _rise(case, "signal", "loss", onset_s, least, sentence) or _rise(
            case, "exhibit", episode, onset_s, least, sentence
        )
    count = case.fact("nonfinite_steps")
    if math.isfinite(count):
        yield _equals(case, "nonfinite_steps", f"the loss was not a number in {count:.0f} steps")
    for item in case.bundle.of("signal", "grad_norm"):
        before, after = _sides(item, onset_s)
        if before and after:
            usual, top = sorted(before)[len(before) // 2], sorted(after[-5:])[len(after[-5:]) // 2]
            if top > 2 * usual > 0:
                sentence = f"the gradient norm rose from {usual:.3g} to {top:.3g}"
                yield _claim(_P.ROSE, sentence, item, split_s=onset_s, at_least=usual)
    codes = case.fact("hardware_events")
    if codes > 0:
        said = str(case.cause.facts.get("silent_corruption", ""))
        yield _equals(case, "silent_corruption", f"hardware events on the run's GPUs before it: {said}")


def _sides(item: Evidence, split_s: float) -> tuple[list[float], list[float]]:
    try:
        pairs = series_of(item)
    except Ungrounded:
        return [], []
    return [v for t, v in pairs if t <= split_s], [v for t, v in pairs if t > split_s]


def _learning_rate(case: Case) -> Drafts:
    """For damaged training: whether the schedule explains it."""
    item = case.bundle.one("learning_rate")
    if kin_of(case.cause) is not Kin.LOSS or item is None:
        return
    told = json.loads(item.content)
    sentence = f"the learning rate jumped from {told['before']:.3g} to {told['after']:.3g} at {clock(told['at_s'])}"
    yield _claim(_P.EQUALS, sentence, item, path="jumped", value="yes")
    yield _claim(_P.EQUALS, "the learning rate followed its schedule", item, path="jumped", value="no")


def _stall(case: Case) -> Drafts:
    lost, stalls, longest = (case.fact(n) for n in ("lost_share", "stalls", "longest_stall_s"))
    exhibit = case.bundle.one("exhibit", case.cause.episode)
    if math.isfinite(stalls) and math.isfinite(longest) and stalls >= 2:
        typical = case.fact("typical_step_s")
        level = min(0.3 * longest, 10 * typical) if math.isfinite(typical) else 0.3 * longest
        sentence = f"{stalls:.0f} steps stalled, the longest for {longest:.1f} s"
        yield _claim(_P.REPEATED, sentence, exhibit, level=level, times=2.0)
    if math.isfinite(lost):
        yield _equals(case, "lost_share", f"{100 * lost:.0f} % of the time was lost to it")
    idle = case.fact("gpu_idle_share")
    if math.isfinite(idle):
        yield _equals(
            case, "gpu_idle_share", f"its GPUs idled {100 * idle:.0f} % of that time: they waited for data"
        )


def _hang(case: Case) -> Drafts:
    silent_s, step = case.fact("silent_s"), case.fact("last_step")
    if math.isfinite(silent_s):
        after = f" after step {step:.0f}" if math.isfinite(step) else ""
        yield _equals(case, "silent_s", f"no step for {span(silent_s)}{after}")
    if case.cause.facts.get("idle_gpus"):
        gpus = str(case.cause.facts["idle_gpus"]).split()
        yield _equals(case, "idle_gpus", f"idle while the others spin: {', '.join(map(short, gpus[:4]))}")


def _memory(case: Case) -> Drafts:
    since_s = case.cause.since.t_s
    for metric, what in (
        ("gpu_ecc_sbe_total", "corrected memory errors"),
        ("gpu_ecc_dbe_total", "uncorrected memory errors"),
        ("gpu_remapped_rows_correctable", "rows remapped after corrected errors"),
        ("gpu_remapped_rows_uncorrectable", "rows remapped after uncorrected errors"),
        ("gpu_row_remap_pending", "a row remapping waits for a reset"),
    ):
        item = case.bundle.one("signal", metric)
        if item is None:
            continue
        before, after = _sides(item, since_s - 1.0)
        if before and after and after[-1] > before[-1]:
            more = after[-1] - before[0]
            sentence = f"{what} {before[0]:.0f} → {after[-1]:.0f} since {clock(since_s)}"
            yield _claim(_P.ROSE, sentence, item, split_s=since_s - 1.0, at_least=max(0.4 * more, 0.5))
    for finding in case.findings:
        bins, width_s = case.fact("active_bins", finding), case.fact("bin_s", finding)
        if bins >= 1 and math.isfinite(width_s):
            sentence = f"corrected errors in {bins:.0f} windows of {span(width_s)}"
            yield _equals(case, "active_bins", sentence, finding)


def _oom(case: Case) -> Drafts:
    item = case.bundle.one("victims")
    if item is not None and len(case.where.jobs) == 1:
        job = case.where.jobs[0]
        yield _claim(
            _P.EQUALS, f"only containers of {job} gave memory back at the kill", item, path="jobs", value=job
        )
    yield from _plain(case)


def _plain(case: Case) -> Drafts:
    for name, sentence in (
        ("silent_s", "no good answer for {:.0f} s"),
        ("events", "seen {:.0f} times"),
        ("score", "score {:.3g}"),
    ):
        value = case.fact(name)
        if math.isfinite(value):
            yield _equals(case, name, sentence.format(value))
            return
    yield _claim(_P.EQUALS, case.cause.summary, case.said(), path="fault", value=case.cause.fault.value)


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
        yield _claim(_P.CO_LOCATED, sentence, item, one=subject, other=other, place=f"job:{where.jobs[0]}")


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
                yield _claim(
                    _P.EQUALS, sentence, case.said(finding), item, quotes=(chosen,), path="facts.xid",
                    value=float(xid_of(finding) or 0),
                )  # fmt: skip
            else:
                yield _claim(
                    _P.EQUALS, "the log says so", case.said(finding), item, quotes=(chosen,), path="fault",
                    value=finding.fault.value,
                )  # fmt: skip
            yield _further_codes(case, finding, item, quotes)
            announced = next((q for q in quotes if "recovery action changed" in q.text), None)
            if announced is not None and "announced_recovery" in finding.facts:
                sentence = f"the driver itself calls for: {finding.facts['announced_recovery']}"
                yield _claim(
                    _P.EQUALS, sentence, case.said(finding), item, quotes=(announced,),
                    path="facts.announced_recovery", value=str(finding.facts["announced_recovery"]),
                )  # fmt: skip
            follower = next((q for q in quotes if "): 45," in q.text or "): 43," in q.text), None)
            if follower is not None and follower != chosen:
                code = "45" if "): 45," in follower.text else "43"
                sentence = f"Xid {code} came only after it: tear-down, not a cause"
                yield _claim(_P.PRECEDED, sentence, item, quotes=(chosen, follower), margin_s=0.0)


def _further_codes(case: Case, finding: Finding, item: Evidence, quotes: list[Quote]) -> Claim | None:
    """The other Xids of a burst that are errors of their own, each with its first line."""
    codes = [int(c) for c in str(finding.facts.get("codes", "")).split() if c.isdigit()]
    others = [c for c in codes if c != xid_of(finding) and c not in FOLLOWER_XIDS][:3]
    lines = [next((q for q in quotes if f"): {code}," in q.text), None) for code in others]
    if not others or None in lines:
        return None
    said = ", ".join(f"{code} ({CATALOGUE[code].meaning})" if code in CATALOGUE else f"{code}" for code in others)
    return _claim(
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
        yield _claim(_P.ABSENT, sentence, log, state, patterns=XID_PATTERNS)


def _consequences(case: Case) -> Drafts:
    """What else was found, one sentence per fault: the first subject by name, the others by number."""
    by_fault: dict[Fault, list[Finding]] = {}
    for finding in case.findings:
        same = kin_of(finding) is kin_of(case.cause) and finding.subject == case.cause.subject
        if not same and finding.fault is not Fault.XID:
            by_fault.setdefault(finding.fault, []).append(finding)
    for fault, found in by_fault.items():
        first = min(found, key=onset_key)
        later_s = first.since.t_s - case.cause.since.t_s
        when = f"{span(later_s)} later" if later_s >= 1 else "at the same time"
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        sentence = f"{when}: {_words(fault)} on {first.subject.kind} {short(first.subject.name)}{more}"
        yield _claim(_P.EQUALS, sentence, case.said(first), path="fault", value=fault.value)


def _words(fault: Fault) -> str:
    return fault.value.replace("_", " ")


_BY_KIN: dict[Kin, Callable[[Case], Drafts]] = {
    Kin.GPU_LEAK: _leak,
    Kin.HOST_LEAK: _leak,
    Kin.LOSS: _loss,
    Kin.STALL: _stall,
    Kin.HANG: _hang,
    Kin.MEMORY: _memory,
    Kin.OOM: _oom,
}
