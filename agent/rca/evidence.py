"""Gathers what an incident's diagnosis may rest on: numbered items, each as seen, with its source and its bounds.

Items are gathered in a fixed order (what the detectors said and showed, the deciding signal round the onset, the
kernel log, job logs, topology, checkpoints, past incidents), so that the same incident gives the same bundle. Every
item is cut to a stated size, never in the middle of a line, and says so where it was cut.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from agent.kinship import Kin, Places, first_cause, kin_of
from agent.rca.diagnosis import FACTS, LOG, SERIES, Evidence
from collectors.frame import LogRecord
from collectors.history import History
from collectors.kernel_event import KernelEventKind
from collectors.metrics import BY_NAME
from collectors.seal import canonical_json
from collectors.subject import Inventory, Subject, SubjectKind
from detectors.base import Finding, LogExhibit, SeriesExhibit

_K = SubjectKind
KERNEL_LOGS = ("node_log", "kernel_log")
"""Collectors whose lines are a node's kernel log."""
_STEP_SIGNALS = ("loss", "grad_norm", "learning_rate", "step_time_s")

JUMP_RATIO = 1.5
"""Warm-up and cosine schedules change the learning rate by far less between two steps."""
JUMP_AFTER_S = 30.0


class Limits(BaseModel):
    """How large an incident's evidence may become."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    before_s: float = Field(default=900.0, gt=0, description="How far before the onset evidence reaches (s)")
    max_items: int = Field(default=40, ge=4, description="Most items in a bundle")
    max_points: int = Field(default=400, ge=16, description="Most points of a series")
    max_lines: int = Field(default=60, ge=4, description="Most lines of a log item")
    max_item_bytes: int = Field(default=32_768, ge=1024, description="Most bytes of an item")
    max_past: int = Field(default=5, ge=0, description="Most similar past incidents")


@dataclass(frozen=True)
class Bundle:
    """An incident's evidence. `tags` says what each item is, by id: `finding`, `exhibit`, `signal`, `peers`,
    `kernel_log`, `log_state`, `job_log`, `topology`, `checkpoints`, `past`, with the episode, metric or subject."""

    items: tuple[Evidence, ...]
    tags: Mapping[str, tuple[str, str]]
    left_out: int = 0

    def of(self, tag: str, about: str | None = None) -> list[Evidence]:
        return [i for i in self.items if self.tags[i.id][0] == tag and about in (None, self.tags[i.id][1])]

    def one(self, tag: str, about: str | None = None) -> Evidence | None:
        return next(iter(self.of(tag, about)), None)


@dataclass(frozen=True, slots=True)
class PastIncident:
    """What is remembered of an incident that resembles this one."""

    id: str
    cause: str
    subject: str
    opened_s: float
    action: str
    outcome: str


def gather(
    findings: Sequence[Finding],
    history: History,
    inventory: Inventory,
    at_s: float,
    past: Iterable[PastIncident] = (),
    limits: Limits | None = None,
    redact: Callable[[str], str] | None = None,
) -> Bundle:
    """The evidence for an incident with these findings, as of `at_s` (Unix s). `redact` rewrites log text before it
    is stored."""
    return _Gatherer(findings, history, inventory, at_s, limits or Limits(), redact or _as_it_is).gather(past)


def _as_it_is(text: str) -> str:
    return text


@dataclass
class _Gatherer:
    findings: Sequence[Finding]
    history: History
    inventory: Inventory
    at_s: float
    limits: Limits
    redact: Callable[[str], str]
    _items: list[Evidence] = field(default_factory=list)
    _tags: dict[str, tuple[str, str]] = field(default_factory=dict)
    _left_out: int = 0

    def gather(self, past: Iterable[PastIncident]) -> Bundle:
        cause = first_cause(self.findings)
        ordered = [cause, *(f for f in self.findings if f is not cause)]
        self._start_s = cause.since.t_s - self.limits.before_s
        self._places = Places(self.inventory).of(cause)
        for finding in ordered:
            self._say(finding)
        self._signals(cause)
        if kin_of(cause) is Kin.OOM and cause.subject.kind is _K.NODE:
            self._victims(cause)
        for node in self._kind(_K.NODE)[:4]:
            self._kernel_log(node)
        self._job_logs()
        self._topology(ordered)
        self._checkpoints()
        similar = list(past)[: self.limits.max_past]
        if similar:
            body = {p.id: {"cause": p.cause, "subject": p.subject, "outcome": p.outcome} for p in similar}
            self._facts("past", "", "incident store", "similar incidents", "similar past incidents", body)
        return Bundle(tuple(self._items), dict(self._tags), self._left_out)

    def _kind(self, kind: SubjectKind) -> list[Subject]:
        return sorted(s for s in self._places if s.kind is kind)

    def _add(
        self,
        tag: tuple[str, str],
        source: str,
        query: str,
        title: str,
        media_type: str,
        content: bytes,
        *span: float,
    ) -> None:
        if len(self._items) >= self.limits.max_items or len(content) > self.limits.max_item_bytes:
            self._left_out += 1
            return
        start_s, end_s = span or (self._start_s, self.at_s)
        item = Evidence(f"E{len(self._items) + 1}", source, query, start_s, end_s, media_type, content, title)
        self._items.append(item)
        self._tags[item.id] = tag

    def _facts(self, tag: str, about: str, source: str, query: str, title: str, body: Mapping[str, Any]) -> None:
        content = canonical_json(self._clean(_finite(body)))
        self._add((tag, about), source, query, self.redact(title), FACTS, content)

    def _clean(self, value: Any) -> Any:
        """Facts with every text redacted: a summary, a name or a past incident may carry a log's words."""
        if isinstance(value, dict):
            return {key: self._clean(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self._clean(item) for item in value]
        return self.redact(value) if isinstance(value, str) else value

    def _say(self, finding: Finding) -> None:
        """What the detector said, and each exhibit that it showed."""
        said = {
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
        self._facts("finding", finding.episode, f"detector {finding.detector}", str(finding.subject), title, said)
        for exhibit in finding.evidence:
            if isinstance(exhibit, SeriesExhibit):
                self._series(
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
            self._log(("exhibit", finding.episode), lines, f"lines that {finding.detector} saw")

    def _series(
        self,
        tag: tuple[str, str],
        subject: Subject,
        metric: str,
        unit: str,
        t_s: Any,
        values: Any,
        source: str,
        title: str,
        reference: float | None = None,
    ) -> None:
        if len(t_s) == 0:
            return
        if len(t_s) > self.limits.max_points:
            kept = np.unique(np.linspace(0, len(t_s) - 1, self.limits.max_points).round().astype(int))
            t_s, values = t_s[kept], values[kept]
            title += f" (every {(kept[-1] + 1) / len(kept):.1f}th point)"
        body = {
            "subject": str(subject),
            "metric": metric,
            "unit": unit,
            "t_s": [round(float(t), 3) for t in t_s],
            "values": [float(f"{v:.9g}") for v in values],
            "reference": reference,
        }
        content = canonical_json(_finite(body))
        self._add(tag, source, f"{metric}{{{subject}}}", title, SERIES, content, float(t_s[0]), float(t_s[-1]))

    def _signals(self, cause: Finding) -> None:
        """The deciding signals round the onset: the exhibits' metrics, and for training also its step signals."""
        shown = [e for e in cause.evidence if isinstance(e, SeriesExhibit)]
        wanted = [(e.subject, e.metric) for e in shown if e.metric not in _STEP_SIGNALS]
        if kin_of(cause) is Kin.MEMORY:
            names = ("gpu_ecc_sbe_total", "gpu_remapped_rows_correctable", "gpu_remapped_rows_uncorrectable")
            wanted += [(cause.subject, name) for name in (*names, "gpu_row_remap_pending")]
        for subject, metric in dict.fromkeys(wanted):
            t_s, values = self.history.window(subject, metric, self._start_s, self.at_s)
            unit = BY_NAME[metric].unit if metric in BY_NAME else ""
            self._series(
                ("signal", metric), subject, metric, unit, t_s, values, "history", f"{metric} round the onset"
            )
            self._peers(subject, metric, unit)
        for subject in self._steppers()[:2]:
            for metric in _STEP_SIGNALS:
                t_s, values = self.history.window(subject, metric, self._start_s, self.at_s)
                title = f"{metric} by step round the onset"
                self._series(("signal", metric), subject, metric, "", t_s, values, "training log", title)
                if metric == "learning_rate" and len(values) > 1:
                    self._learning_rate(subject, cause.since.t_s, t_s, values)

    def _learning_rate(self, subject: Subject, onset_s: float, t_s: Any, values: Any) -> None:
        """Whether the learning rate jumped: a schedule changes it by little from one step to the next."""
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.maximum(values[1:] / values[:-1], values[:-1] / values[1:])
        ratio = np.where(np.isfinite(ratio) & (t_s[1:] <= onset_s + JUMP_AFTER_S), ratio, 1.0)
        largest = int(np.argmax(ratio))
        body = {
            "jumped": "yes" if ratio[largest] > JUMP_RATIO else "no",
            "largest_step_ratio": float(f"{ratio[largest]:.6g}"),
            "before": float(values[largest]),
            "after": float(values[largest + 1]),
            "at_s": float(t_s[largest + 1]),
        }
        title = "largest change of the learning rate from one step to the next"
        self._facts("learning_rate", "", "training log", f"learning_rate{{{subject}}}", title, body)

    def _peers(self, subject: Subject, metric: str, unit: str) -> None:
        """The median of the same signal over the other members of the subject's job."""
        jobs = self._kind(_K.JOB)
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
        self._series(("peers", metric), jobs[0], metric, unit, columns.t_s[seen], median, "history", title)

    def _victims(self, cause: Finding) -> None:
        """Whose memory was given back at the kill: the kernel names a process, not a pod."""
        metric = "container_memory_anonymous_bytes"
        columns = self.history.columns(_K.CONTAINER, metric, cause.since.t_s - 120.0, self.at_s)
        early = self.history.columns(_K.CONTAINER, metric, cause.since.t_s - 120.0, cause.since.t_s - 1.0)
        before = _last_known(early.subjects, early.values)
        after = _last_known(columns.subjects, columns.values[columns.t_s > cause.since.t_s])
        body = {}
        for container, held in before.items():
            nodes = [self.inventory.above(container, _K.NODE, t) for t in (cause.since.t_s - 60.0, cause.since.t_s)]
            job = self.inventory.above(container, _K.JOB, cause.since.t_s - 60.0)
            left = after.get(container, 0.0)
            if cause.subject in nodes and job is not None and left < 0.5 * held:
                body[container.name] = {"before_bytes": held, "after_bytes": left, "job": job.name}
        if body:
            title = "containers whose memory was given back at the kill"
            jobs = sorted({str(found["job"]) for found in body.values()})
            told = {"containers": body, "jobs": " ".join(jobs), "count": len(jobs)}
            self._facts("victims", "", "history", f"{metric} on {cause.subject.name}", title, told)

    def _steppers(self) -> list[Subject]:
        """Whose training steps were read: the subject's own rank first, then its job."""
        known = set(self.history.step_subjects())
        near = [s for kind in (_K.RANK, _K.CONTAINER, _K.POD, _K.JOB) for s in self._kind(kind)]
        return [s for s in near if s in known]

    def _kernel_log(self, node: Subject) -> None:
        """The node's kernel events and whether its kernel log was seen to be well: absence counts only then."""
        events = self.history.events(node, self._start_s, self.at_s)
        lines = [event.record for event in events]
        self._log(("kernel_log", node.name), lines, f"kernel events of {node.name}", even_if_empty=True)
        sources = [
            s
            for s in self.history.sources()
            if s.source.name.partition(" ")[0] in KERNEL_LOGS and (node in s.covers or node.name in s.source.name)
        ]
        if not sources:
            return
        gaps = sum(event.kind is KernelEventKind.GAP for event in events)
        body = {
            "ok": all(s.ok for s in sources) and gaps == 0,
            "gaps": gaps,
            "sources": {s.source.name: {"ok": s.ok, "reason": str(s.reason or "")} for s in sources},
        }
        self._facts("log_state", node.name, "collector", node.name, f"state of {node.name}'s kernel log", body)

    def _job_logs(self) -> None:
        for kind in (_K.RANK, _K.CONTAINER, _K.POD, _K.JOB):
            for subject in self._kind(kind)[:2]:
                lines = self.history.logs(subject, self._start_s, self.at_s)
                if lines:
                    self._log(("job_log", str(subject)), lines, f"log of {subject.name}")

    def _log(
        self, tag: tuple[str, str], records: Sequence[LogRecord], title: str, even_if_empty: bool = False
    ) -> None:
        """Whole lines, those nearest the onset first where not all fit, in order of time."""
        if not records and not even_if_empty:
            return
        onset_s = self._start_s + self.limits.before_s
        nearest = sorted(records, key=lambda r: abs(r.at.t_s - onset_s))[: self.limits.max_lines]
        kept: list[tuple[float, int, bytes]] = []
        room = self.limits.max_item_bytes
        for record in nearest:
            text = self.redact(record.text).replace("\n", "\\n").replace("\r", "\\r")
            line = f"{record.at.t_s:.3f}\t{text}\n".encode(errors="replace")
            if len(line) <= room:
                room -= len(line)
                kept.append((record.at.t_s, record.offset, line))
        if len(kept) < len(records):
            title += f" ({len(kept)} of {len(records)} lines)"
        content = b"".join(line for _, _, line in sorted(kept))
        source = records[0].source if records else "history"
        self._add(tag, source, tag[1], title, LOG, content)

    def _topology(self, findings: Sequence[Finding]) -> None:
        subjects = dict.fromkeys([*(f.subject for f in findings[:20]), *sorted(self._places)])
        when_s = findings[0].since.t_s
        above: dict[str, list[str]] = {}
        for subject in list(subjects)[:80]:
            found = self.inventory.ancestors(subject, when_s)
            if len(found) == 1:
                found = self.inventory.ancestors(subject, self.at_s)
            above[str(subject)] = sorted(str(s) for s in found if s != subject)
        self._facts(
            "topology", "", "inventory", "who held what at the onset", "topology at the onset", {"above": above}
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
            rows = np.flatnonzero(saved > 0)[-50:]
            body = {
                "step": [int(steps.step[row]) for row in rows],
                "t_s": [float(steps.t_s[row]) for row in rows],
                "newest": int(steps.step[rows[-1]]),
            }
            self._facts("checkpoints", str(subject), steps.source, "checkpoints", "checkpoints saved", body)
            return


def _last_known(subjects: Sequence[Subject], values: Any) -> dict[Subject, float]:
    """Each subject's last value that is not missing, of values [n_ticks, n_subjects]."""
    found = {}
    for column, subject in enumerate(subjects):
        known = values[:, column][np.isfinite(values[:, column])] if len(values) else values[:0]
        if len(known):
            found[subject] = float(known[-1])
    return found


def _finite(value: Any) -> Any:
    """JSON values only: what is not finite becomes null."""
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
