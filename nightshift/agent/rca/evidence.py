"""Gathers what an incident's diagnosis may rest on: numbered items, each as seen, with its source and its bounds.

Items are gathered in a fixed order (what the detectors said and showed, the deciding signal round the onset, the
kernel log, Kubernetes events and recent changes, job logs condensed over all ranks, topology, checkpoints, past
incidents), so that the same incident gives the same bundle.

Where each rank logs its own loss or gradient norm, the rank that left its peers first is evidence, too. After an
all-reduce all ranks show the same damage, and nobody can be named. But what a rank computes alone leaves
first on the rank whose hardware flipped the bit: its local gradient norm or loss runs away a few steps before the
others' does. A rank is named only if it was away alone, by several of its peers' spreads, in every step right
before the damage reached the job: a spike of its own long before says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nightshift.agent.correlation.kinship import FindingPlaces, Kin, first_cause, kin_of, onset_key
from nightshift.agent.correlation.storage_outage import silent_servers
from nightshift.agent.rca.bundle import Bundle, EvidenceLedger, EvidenceLimits, PastIncident, as_it_is
from nightshift.agent.rca.case import few
from nightshift.agent.rca.grounding import MAD_TO_SIGMA
from nightshift.agent.rca.joblogs import condensed, first_lines, sources_of
from nightshift.collectors import slurm
from nightshift.collectors.frame import Floats, LogRecord
from nightshift.collectors.history import RAW_AROUND_S, History
from nightshift.collectors.kernel_log.event import KERNEL_LOGS, KernelEventKind
from nightshift.collectors.kubernetes.events import CHANGES, EVENTS
from nightshift.collectors.subject import Inventory, Subject, SubjectKind
from nightshift.collectors.telemetry.metrics import BY_NAME
from nightshift.collectors.training.hang_dumps import PREFIX, from_lines
from nightshift.detectors.base import Finding, LogExhibit, SeriesExhibit
from nightshift.detectors.loss.divergence import rate_jumps
from nightshift.detectors.progress.hang_place import locate

SIGNALS = ("grad_norm", "loss")
SPREADS = 8.0
"""Robust standard deviations of the peers from which on a rank has left them."""
# ... and by this factor: peers may agree to many digits, and a spread of nothing makes all look far.
RATIO = 1.5
BEFORE_S, AFTER_S = 300.0, 60.0
LEAST_STEPS, LEAST_LEAD, STAYS = 20, 2, 3
"""Steps to know the usual by; steps alone before the others; steps for which the job stays damaged."""


@dataclass(frozen=True)
class Departure:
    """The rank that left first at `step` (t_s: Unix s), `lead_steps` before any other; its value and its peers'."""

    rank: Subject
    signal: str
    step: int
    t_s: float
    value: float
    peers: float
    lead_steps: int
    ranks: int


def first_to_leave(history: History, ranks: Sequence[Subject], onset_s: float) -> Departure | None:
    """The rank that left its peers before the onset's damage reached all; None where none stands out."""
    for signal in SIGNALS:
        found = _first(signal, _aligned(history, ranks, signal, onset_s))
        if found is not None:
            return found
    return None


def _aligned(
    history: History, ranks: Sequence[Subject], signal: str, onset_s: float
) -> Mapping[Subject, Mapping[int, tuple[float, float]]]:
    """By rank: step → (t_s, value), of the newest run through each step."""
    found = {}
    for rank in ranks:
        steps = history.steps(rank, onset_s - BEFORE_S, onset_s + AFTER_S)
        if steps is None:
            continue
        values = steps.column(signal)
        rows = {
            int(s): (float(t), float(v))
            for s, t, v in zip(steps.step, steps.t_s, values, strict=True)
            if not np.isnan(v)
        }
        if len(rows) >= LEAST_STEPS:
            found[rank] = rows
    return found


def _first(signal: str, told: Mapping[Subject, Mapping[int, tuple[float, float]]]) -> Departure | None:
    ranks = sorted(told)
    if len(ranks) < 2:
        return None
    common = sorted(set.intersection(*(set(rows) for rows in told.values())))
    if len(common) < LEAST_STEPS:
        return None
    values = np.array([[told[rank][step][1] for rank in ranks] for step in common])
    if np.ptp(np.where(np.isfinite(values), values, 0.0), axis=1).max() == 0.0:
        return None  # all-reduced: everybody's is the same
    spread_out = _spread_out(values)
    away = _away(values)
    row = spread_out - 1
    column = int(np.argmax(away[row])) if row >= 0 else 0
    # backwards from the damage: a spike of its own long before says nothing
    while row >= 0 and away[row].sum() == 1 and away[row, column]:
        row -= 1
    lead = spread_out - 1 - row
    if lead < LEAST_LEAD:
        return None
    row += 1
    peers = float(np.median(np.delete(values[row], column)))
    step = common[row]
    t_s, value = told[ranks[column]][step]
    return Departure(ranks[column], signal, step, t_s, value, peers, lead, len(ranks))


def _usual(values: Floats) -> Floats:
    """The early steps, by which the usual level and spread are known."""
    return values[: max(LEAST_STEPS // 2, len(values) // 2)]


def _spread_out(values: Floats) -> int:
    """The row at which the damage reached the job: half of the ranks or more, for several steps; else the end."""
    level = float(np.nanmedian(_usual(values)))
    with np.errstate(invalid="ignore"):
        damaged = ~np.isfinite(values) | (values > RATIO * level)
    many = damaged.sum(axis=1) >= max(2, values.shape[1] // 2)
    for row in range(len(many)):
        if many[row : row + STAYS].all():
            return row
    return len(many)


def _away(values: Floats) -> NDArray[np.bool_]:
    """[n_steps, n_ranks] whether a rank has left the others: beyond spread and factor, or not finite alone."""
    early = _usual(values)
    gap = np.abs(early - np.median(early, axis=1, keepdims=True))
    known = gap[np.isfinite(gap) & (gap > 0)]
    # a thousandth of the level at least: ranks may agree exactly for many steps
    spread = max(MAD_TO_SIGMA * float(np.median(known)) if len(known) else 0.0, 1e-3 * float(np.nanmedian(early)))
    away = np.zeros(values.shape, dtype=np.bool_)
    for column in range(values.shape[1]):
        own, level = values[:, column], np.median(np.delete(values, column, axis=1), axis=1)
        with np.errstate(invalid="ignore"):
            far = (own - level > SPREADS * spread) & (own > RATIO * np.abs(level))
        away[:, column] = (far | ~np.isfinite(own)) & np.isfinite(level)
    return away


def is_consequence(finding: Finding, cause: Finding) -> bool:
    """Whether a finding is more than the cause itself in another detector's words."""
    return not (kin_of(finding) is kin_of(cause) and finding.subject == cause.subject)


_K = SubjectKind
CHANGES_BEFORE_S = 86_400.0
ALERTS = "alertmanager"
_OF_OTHERS = (EVENTS, CHANGES, ALERTS, slurm.STATES, slurm.CHANGES)
"""Sources that speak of pods and jobs from outside."""
LOGS = 4
"""Nodes whose kernel logs are kept as evidence."""
# A node's lines on storage that are kept as evidence: thousands may come, and GPU errors need the room.
STORAGE_LINES = 20
_STEP_SIGNALS = ("loss", "grad_norm", "learning_rate", "step_time_s")


def gather(
    findings: Sequence[Finding],
    history: History,
    inventory: Inventory,
    at_s: float,
    past: Iterable[PastIncident] = (),
    limits: EvidenceLimits | None = None,
    redact: Callable[[str], str] | None = None,
    rollout: Mapping[str, Any] | None = None,
    versions: Sequence[LogRecord] = (),
) -> Bundle:
    """The evidence for an incident with these findings, as of `at_s` (Unix s). `redact` rewrites log text before it
    is stored; `rollout`: what the fault began with, where that is known; `versions`: which ones changed there."""
    ledger = EvidenceLedger(limits or EvidenceLimits(), first_cause(findings).since.t_s, at_s, redact or as_it_is)
    if rollout:
        ledger.facts(("rollout", ""), "version inventory", "changes by node", "the rollout it began with", rollout)
    if versions:
        ledger.log(("versions", ""), versions, "versions that changed on these nodes in the two weeks before")
    return _Gatherer(findings, history, inventory, ledger).gather(past)


@dataclass
class _Gatherer:
    findings: Sequence[Finding]
    history: History
    inventory: Inventory
    ledger: EvidenceLedger
    _places: frozenset[Subject] = frozenset()
    _start_s: float = 0.0
    at_s: float = 0.0

    def gather(self, past: Iterable[PastIncident]) -> Bundle:
        ledger, cause = self.ledger, first_cause(self.findings)
        self._start_s, self.at_s = ledger.start_s, ledger.at_s
        self._places = FindingPlaces(self.inventory).of(cause)
        ordered = _most_telling(self.findings, cause)
        # a third of the room: a storm's thousand findings must leave place for logs and topology
        for finding in ordered[: ledger.limits.max_items // 3]:
            self._say(finding, cause)
        ledger.left_out += max(0, len(ordered) - ledger.limits.max_items // 3)
        self._signals(cause)
        if kin_of(cause) is Kin.OOM and cause.subject.kind is _K.NODE:
            self._victims(cause)
        for node in self._kind(_K.NODE)[:LOGS]:
            self._kernel_log(node)
        if kin_of(cause) in (Kin.STALL, Kin.HANG):
            self._storage(cause)
        if kin_of(cause) is Kin.HANG:
            self._hang_place()
        self._told_by_others()
        self._job_logs(cause)
        self._topology(ordered)
        self._checkpoints()
        if kin_of(cause) is Kin.LOSS:
            self._departure(cause)
        ledger.past(("past", ""), past)
        self._around_onset(cause)
        return ledger.bundle()

    def _kind(self, kind: SubjectKind) -> list[Subject]:
        return sorted(s for s in self._places if s.kind is kind)

    def _say(self, finding: Finding, cause: Finding) -> None:
        """What the detector said, and each exhibit that it showed."""
        alike = [f for f in self.findings if f.fault is finding.fault and f is not finding]
        said = {
            "at_s": finding.at.t_s,
            "apart_s": abs(finding.since.t_s - cause.since.t_s),
            "alike": float(sum(is_consequence(f, cause) for f in alike)),
            "detector": finding.detector,
            "fault": finding.fault.value,
            "subject": str(finding.subject),
            "summary": finding.summary,
            "since_s": finding.since.t_s,
            "score": finding.score,
            "threshold": finding.threshold,
            "facts": dict(finding.facts),
        }
        title = f"{finding.detector}: {finding.summary}"
        self.ledger.facts(
            ("finding", finding.episode), f"detector {finding.detector}", str(finding.subject), title, said
        )
        for exhibit in finding.evidence:
            if isinstance(exhibit, SeriesExhibit):
                self.ledger.series(
                    ("exhibit", finding.episode),
                    exhibit.subject,
                    exhibit.metric,
                    exhibit.unit,
                    np.asarray(exhibit.t_s, dtype=float),
                    np.asarray(exhibit.values, dtype=float),
                    exhibit.source or f"detector {finding.detector}",
                    exhibit.note or exhibit.metric,
                    exhibit.reference,
                )
        lines = [e.record for e in finding.evidence if isinstance(e, LogExhibit)]
        if lines:
            self.ledger.log(("exhibit", finding.episode), lines, f"lines that {finding.detector} saw")

    def _signals(self, cause: Finding) -> None:
        """The deciding signals round the onset: the exhibits' metrics, and for training also its step signals."""
        shown = [e for e in cause.evidence if isinstance(e, SeriesExhibit)]
        # the steps' signals come below, for each fault of training, whatever its detector showed
        wanted = [(e.subject, e.metric) for e in shown if e.metric not in _STEP_SIGNALS]
        if kin_of(cause) is Kin.MEMORY:
            names = ("gpu_ecc_sbe_total", "gpu_remapped_rows_correctable", "gpu_remapped_rows_uncorrectable")
            wanted += [(cause.subject, name) for name in (*names, "gpu_row_remap_pending")]
        for subject, metric in dict.fromkeys(wanted):
            t_s, values = self.history.window(subject, metric, self._start_s, self.at_s)
            unit = BY_NAME[metric].unit if metric in BY_NAME else ""
            self.ledger.series(
                ("signal", metric), subject, metric, unit, t_s, values, "history", f"{metric} round the onset"
            )
            self._peers(subject, metric, unit)
        for subject in self._steppers()[:2]:
            for metric in _STEP_SIGNALS:
                t_s, values = self.history.window(subject, metric, self._start_s, self.at_s)
                title = f"{metric} by step round the onset"
                self.ledger.series(("signal", metric), subject, metric, "", t_s, values, "training log", title)
            self._learning_rate(subject, cause.since.t_s)

    def _learning_rate(self, subject: Subject, onset_s: float) -> None:
        """Whether the learning rate left its course at the onset, in the run that was then going on."""
        steps = self.history.steps(subject, self._start_s, self.at_s)
        if steps is None:
            return
        rate = steps.column("learning_rate")
        told = np.flatnonzero(np.isfinite(rate))
        # a run that ended before, or began after the onset, had a schedule of its own
        run = np.cumsum(np.diff(steps.step[told], prepend=steps.step[told][:1]) < 0)
        told = told[run == run[max(int((steps.t_s[told] <= onset_s).sum()) - 1, 0)]] if len(told) else told
        if len(told) < 2:
            return
        rate, t_s = rate[told], steps.t_s[told]
        ratio, place = rate_jumps(rate[None, :], steps.step[told][None, :].astype(float), t_s[None, :] > onset_s)
        jumped = ratio[0] > 1.0
        at = int(place[0]) if jumped else max(int(np.searchsorted(t_s, onset_s, side="right")) - 1, 1)
        body = {
            "jumped": "yes" if jumped else "no",
            "largest_step_ratio": float(f"{ratio[0]:.6g}"),
            "before": float(rate[at - 1]),
            "after": float(rate[at]),
            "at_s": float(t_s[at]),
        }
        title = "the learning rate at the onset, beside its course before"
        self.ledger.facts(("learning_rate", ""), "training log", f"learning_rate{{{subject}}}", title, body)

    def _peers(self, subject: Subject, metric: str, unit: str) -> None:
        """The median of the same signal over the other members of the subject's job."""
        jobs = self._kind(_K.JOB)
        # where several jobs share the place, nobody can say whose members are the peers
        if len(jobs) != 1 or subject.kind not in (_K.GPU, _K.CONTAINER):
            return
        columns = self.history.columns(subject.kind, metric, self._start_s, self.at_s)
        members = set(self.inventory.below(jobs[0], subject.kind, self.at_s)) - {subject}
        chosen = [column for column, s in enumerate(columns.subjects) if s in members]
        if not chosen or len(columns.t_s) == 0:
            return
        values = columns.values[:, chosen]
        seen = np.isfinite(values).any(axis=1)
        median = np.array([np.nanmedian(row) for row in values[seen]])
        title = f"median {metric} of the job's {len(chosen)} others"
        self.ledger.series(("peers", metric), jobs[0], metric, unit, columns.t_s[seen], median, "history", title)

    def _victims(self, cause: Finding) -> None:
        """Whose memory was given back at the kill: the kernel names a process, not a pod."""
        metric = "container_memory_anonymous_bytes"
        columns = self.history.columns(_K.CONTAINER, metric, cause.since.t_s - 120.0, self.at_s)
        early = self.history.columns(_K.CONTAINER, metric, cause.since.t_s - 120.0, cause.since.t_s - 1.0)
        before = _last_known(early.subjects, early.values)
        after = _last_known(columns.subjects, columns.values[columns.t_s > cause.since.t_s])
        body = {}
        for container, held in before.items():
            # a minute before, too: the pod may be gone from its node when the kill is logged
            nodes = [self.inventory.above(container, _K.NODE, t) for t in (cause.since.t_s - 60.0, cause.since.t_s)]
            job = self.inventory.above(container, _K.JOB, cause.since.t_s - 60.0)
            left = after.get(container, 0.0)
            if cause.subject in nodes and job is not None and left < 0.5 * held:
                body[container.name] = {"before_bytes": held, "after_bytes": left, "job": job.name}
        if body:
            title = "containers that freed memory at the kill"
            jobs = sorted({str(found["job"]) for found in body.values()})
            told = {"containers": body, "jobs": " ".join(jobs), "count": len(jobs)}
            self.ledger.facts(("victims", ""), "history", f"{metric} on {cause.subject.name}", title, told)

    def _departure(self, cause: Finding) -> None:
        """Which rank of the job left its peers first, where ranks log values of their own."""
        jobs = self._kind(_K.JOB)
        if len(jobs) != 1:
            return
        stepping = set(self.history.step_subjects())
        ranks = [r for r in sorted(self.inventory.below(jobs[0], _K.RANK, cause.since.t_s)) if r in stepping]
        found = first_to_leave(self.history, ranks[: self.ledger.limits.max_ranks], cause.since.t_s)
        if found is None:
            return
        pod = self.inventory.above(found.rank, _K.POD, found.t_s)
        # the rank's pod, since the inventory puts GPUs below pods
        gpus = self.inventory.gpus(pod if pod is not None else found.rank, found.t_s)
        body = {
            "rank": str(found.rank),
            "gpu": str(gpus[0]) if len(gpus) == 1 else "",
            "signal": found.signal,
            "step": found.step,
            "t_s": found.t_s,
            "value": found.value,
            "peers_median": found.peers,
            "lead_steps": found.lead_steps,
            "ranks": found.ranks,
        }
        title = "which rank left its peers first"
        self.ledger.facts(("departure", str(found.rank)), "training log", str(jobs[0]), title, body)

    def _steppers(self) -> list[Subject]:
        """Whose training steps were read: the subject's own rank first, then its job."""
        known = set(self.history.step_subjects())
        near = [s for kind in (_K.RANK, _K.CONTAINER, _K.POD, _K.JOB) for s in self._kind(kind)]
        return [s for s in near if s in known]

    def _kernel_log(self, node: Subject) -> None:
        """The node's kernel events, and the state of the log that they come from."""
        events = self.history.events(node, self._start_s, self.at_s)
        storage = [event.record for event in events if event.kind is KernelEventKind.STORAGE]
        others = [event.record for event in events if event.kind is not KernelEventKind.STORAGE]
        # a flood of storage lines must leave a GPU error its place
        lines = others + storage[:STORAGE_LINES]
        title = f"kernel events of {node.name}"
        item = self.ledger.log(("kernel_log", node.name), lines, title, even_if_empty=True)
        whole = item is not None and item.content.count(b"\n") == len(lines)
        self._log_state(node, whole, sum(event.kind is KernelEventKind.GAP for event in events))

    def _around_onset(self, cause: Finding) -> None:
        """The logs of the fault's own place and node as they stood a minute before and after the onset, without the
        lines that are quoted already. Last, so that it takes no other item's room."""
        first_s, last_s = self.ledger.onset_s - RAW_AROUND_S, self.ledger.onset_s + RAW_AROUND_S
        for subject in dict.fromkeys([cause.subject, *self._kind(_K.RANK)[:1], *self._kind(_K.NODE)[:1]]):
            lines = self.history.raw_lines(subject, first_s, last_s)
            quoted = {event.record.text for event in self.history.events(subject, self._start_s, self.at_s)}
            quoted |= {record.text for record in self._own_lines(subject)} if subject.kind is not _K.NODE else set()
            rest = [record for record in lines if record.text not in quoted]
            self.ledger.log(
                ("raw_log", str(subject)), rest, f"log of {subject.name} around the onset, word for word"
            )

    def _log_state(self, node: Subject, whole: bool, gaps: int) -> None:
        """Adds whether the kernel log was read without a gap and kept whole: only then does absence count."""
        kernel_logs = [s for s in self.history.sources() if s.source.name.partition(" ")[0] in KERNEL_LOGS]
        # a node agent covers its node; a source that reads a file has the node only in its name
        sources = [s for s in kernel_logs if node in s.covers or node.name in s.source.name]
        if not sources:
            return
        body = {
            "ok": all(s.ok for s in sources) and gaps == 0 and whole,
            "gaps": gaps,
            "whole": whole,
            "sources": {s.source.name: {"ok": s.ok, "reason": str(s.reason or "")} for s in sources},
        }
        self.ledger.facts(
            ("log_state", node.name), "collector", node.name, f"state of {node.name}'s kernel log", body
        )

    def _storage(self, cause: Finding) -> None:
        """What remote storage is silent on the nodes, by their kernel logs, and what waits in the kernel."""
        silent: dict[str, set[str]] = {}
        blocked: dict[str, set[str]] = {}
        for node in self._kind(_K.NODE):
            events = self.history.events(node, self._start_s, self.at_s)
            for event in events:
                if event.kind is KernelEventKind.STORAGE and "server" not in event.attributes:
                    blocked.setdefault(event.process or "a process", set()).add(node.name)
            for server in silent_servers(events, cause):
                silent.setdefault(server, set()).add(node.name)
        if not silent and not blocked:
            return
        read = {node.name for node in self._kind(_K.NODE)[:LOGS]}
        for on in (silent, blocked):  # whose lines are to be quoted
            names = sorted(set().union(*on.values()))
            if names and not read & set(names):
                read.add(names[0])
                self._kernel_log(Subject(_K.NODE, names[0]))
        body = {
            "silent": few(sorted(silent), 3),
            "silent_on": " ".join(sorted(set().union(*silent.values()))),
            "blocked": few(sorted(blocked), 3),
            "blocked_on": " ".join(sorted(set().union(*blocked.values()))),
        }
        title = "remote storage that does not answer, and processes that wait in the kernel"
        self.ledger.facts(("storage", ""), "kernel log", str(cause.subject), title, body)

    def _told_by_others(self) -> None:
        """Events and other rules' alerts about these places, and what was changed there in the day before."""
        kinds = (_K.NODE, _K.POD, _K.JOB, _K.GPU)
        # the cluster's own: an upgrade of the driver names no node
        near = [self.inventory.cluster, *(s for kind in kinds for s in self._kind(kind))]
        early_s = self.ledger.onset_s - CHANGES_BEFORE_S
        lines = [record for subject in near[:64] for record in self.history.logs(subject, early_s, self.at_s)]
        recent = [r for r in lines if r.at.t_s >= self._start_s]
        alerts = [r for r in recent if r.source.startswith(ALERTS)]
        self.ledger.log(("alerts", ""), alerts, "alerts of other rules about these places")
        events = [r for r in recent if r.source.startswith(EVENTS)]
        changes = [r for r in lines if r.source.startswith((CHANGES, slurm.CHANGES))]
        self.ledger.log(("events", ""), events, "Kubernetes events about these places")
        said = [r for r in recent if r.source == slurm.STATES]
        self.ledger.log(("slurm", ""), said, "Slurm on these places")
        self.ledger.log(("changes", ""), changes, "changes to these places in the day before")

    def _job_logs(self, cause: Finding) -> None:
        """The log of the fault's own place as it stands, and those of all ranks of its job condensed."""
        near = [cause.subject, *(s for kind in (_K.RANK, _K.CONTAINER, _K.POD, _K.JOB) for s in self._kind(kind))]
        told = 0
        for subject in dict.fromkeys(near):
            lines = self._own_lines(subject)
            # two suffice as they stand: all ranks' logs follow condensed
            if lines and told < 2:
                told += 1
                self.ledger.log(("job_log", str(subject)), lines, f"log of {subject.name}")
        for job in self._kind(_K.JOB)[:1]:
            # the pods of the onset crashed perhaps; where none was known then, those of now
            when_s = self.ledger.onset_s if self.inventory.below(job, _K.POD, self.ledger.onset_s) else self.at_s
            sources = sources_of(job, self.history, self.inventory, when_s, self.ledger)
            own = {
                name: kept
                for name, lines in sources.items()
                if (kept := [r for r in lines if not r.source.startswith(_OF_OTHERS)])
            }
            condensed(own, job, self.ledger)
            first_lines(own, job, self.ledger)

    def _hang_place(self) -> None:
        """Where the job hangs, by what its ranks dumped: flight recorder, NCCL RAS, stacks."""
        for job in self._kind(_K.JOB)[:1]:
            ranks = self.inventory.below(job, _K.RANK, self.at_s) or self.inventory.below(
                job, _K.RANK, self._start_s
            )
            lines = [
                record.text
                for subject in (job, *self.inventory.below(job, _K.POD, self.at_s), *ranks)
                for record in self.history.raw_lines(subject, self._start_s, self.at_s)
                if record.text.startswith(PREFIX)
            ]
            dumps = from_lines(lines)
            place = locate(dumps.traces, dumps.ras, dumps.stacks)
            if place is not None:
                body = {**asdict(place), "words": place.words, "dumps": len(dumps.traces) or len(dumps.stacks)}
                title = f"dumps of {job.name}: {place.words}"
                self.ledger.facts(("hang_place", ""), place.source, f"dumps of {job.name}", title, body)

    def _own_lines(self, subject: Subject) -> list[LogRecord]:
        lines = self.history.logs(subject, self._start_s, self.at_s)
        return [r for r in lines if not r.source.startswith((*_OF_OTHERS, *KERNEL_LOGS))]

    def _topology(self, findings: Sequence[Finding]) -> None:
        subjects = dict.fromkeys([*(f.subject for f in findings[:20]), *sorted(self._places)])
        when_s = findings[0].since.t_s
        above: dict[str, list[str]] = {}
        for subject in list(subjects)[:80]:
            found = self.inventory.ancestors(subject, when_s)
            # only itself: unknown at the onset, so where it is now
            if len(found) == 1:
                found = self.inventory.ancestors(subject, self.at_s)
            above[str(subject)] = sorted(str(s) for s in found if s != subject)
        self.ledger.facts(
            ("topology", ""), "inventory", "who held what at the onset", "topology at the onset", {"above": above}
        )

    def _checkpoints(self) -> None:
        """Checkpoints that the log of any rank of the job told of, newest last, as parallel arrays."""
        jobs = {s for s in self._places if s.kind is _K.JOB}
        mates = [s for s in self.history.step_subjects() if self.inventory.above(s, _K.JOB, self.at_s) in jobs]
        for subject in dict.fromkeys([*self._steppers(), *sorted(mates)]):
            steps = self.history.steps(subject, self._start_s - 86_400.0, self.at_s)
            saved = None if steps is None else steps.column("checkpoint_saved")
            if steps is None or saved is None or not np.any(saved > 0):
                continue
            # the newest checkpoint may be damaged already: older ones are wanted as well
            rows = np.flatnonzero(saved > 0)[-50:]
            body = {
                "step": [int(steps.step[row]) for row in rows],
                "t_s": [float(steps.t_s[row]) for row in rows],
                "newest": int(steps.step[rows[-1]]),
            }
            self.ledger.facts(("checkpoints", str(subject)), steps.source, "checkpoints", "checkpoints saved", body)
            return


def _last_known(subjects: Sequence[Subject], values: Any) -> dict[Subject, float]:
    """Each subject's last value that is not missing, of values [n_ticks, n_subjects]."""
    found = {}
    for column, subject in enumerate(subjects):
        known = values[:, column][np.isfinite(values[:, column])] if len(values) else values[:0]
        if len(known):
            found[subject] = float(known[-1])
    return found


def _most_telling(findings: Sequence[Finding], cause: Finding) -> list[Finding]:
    """The first cause, then one finding of each further fault, then the others."""
    seen = {cause.fault}
    heads = [cause]
    for finding in sorted(findings, key=onset_key):
        if finding.fault not in seen:
            seen.add(finding.fault)
            heads.append(finding)
    # by identity: findings compare by value, and two may be equal
    return heads + [f for f in findings if not any(f is head for head in heads)]
